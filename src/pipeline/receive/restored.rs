//! The part of a file that an earlier session wrote.

use std::ops::Range;

use crate::chunk::GRAINS;
use crate::chunk::claims::Claims;
use crate::digest::{self, Added, Digest, Tree};
use crate::journal::record::WrittenRange;
use crate::wire::message::{ByteRange, RANGES_MAX};

pub(super) struct Restored {
    pub claims: Claims,
    pub tree: Option<Tree>,
    size: u64,
}

impl Restored {
    /// Nothing yet of a file of `size` bytes, which is requested in multiples of `grain`.
    pub(super) fn nothing(size: u64, grain: u64, needs_tree: bool) -> Restored {
        Restored {
            claims: Claims::new(size, grain),
            tree: needs_tree.then(|| Tree::new(size, grain)),
            size,
        }
    }

    /// The same for the journal's records: the session that wrote them may have used smaller
    /// pieces.
    pub(super) fn finest(size: u64, chunk_size: u64, needs_tree: bool) -> Restored {
        Restored::nothing(size, chunk_size / GRAINS as u64, needs_tree)
    }

    /// The same with these byte ranges marked as done, but not in the tree.
    pub(super) fn claimed(mut self, ranges: impl Iterator<Item = Range<u64>>) -> Restored {
        for range in ranges {
            // A range that is not a run of whole chunks stays missing.
            let _ = self.claims.restore(range.start, range.end - range.start);
        }
        self
    }

    /// Adds a recorded chunk. Returns false if it cannot belong to this file. A chunk that overlaps
    /// an earlier one changes nothing.
    pub(super) fn add(&mut self, chunk: &WrittenRange) -> bool {
        if self.claims.has_any(chunk.offset, chunk.len) {
            return true;
        }
        if let Some(tree) = &mut self.tree {
            let added = match &chunk.digest {
                Some(digest) => tree.add_subtree(chunk.offset, chunk.len, *digest),
                None => tree.add_zeros(chunk.offset, chunk.len),
            };
            if added != Added::New {
                return false;
            }
        }
        self.claims.restore(chunk.offset, chunk.len).is_ok()
    }

    /// The part that consists of whole multiples of `grain`.
    pub(super) fn in_grains(&self, grain: u64) -> Restored {
        let mut whole = Restored::nothing(self.size, grain, self.tree.is_some());
        for (range, value) in self.parts() {
            let inner = inner(range.clone(), grain, self.size);
            // A tree value is valid only for its whole range.
            let Some(range) = inner.filter(|it| whole.tree.is_none() || *it == range) else {
                continue;
            };
            let (start, len) = (range.start, range.end - range.start);
            let added = match &mut whole.tree {
                Some(tree) => tree.add_subtree(start, len, value) == Added::New,
                None => true,
            };
            if added {
                let _ = whole.claims.restore(start, len);
            }
        }
        whole
    }

    /// The ranges that consist of whole chunks.
    pub(super) fn whole_chunks(&self, chunk_size: u64) -> impl Iterator<Item = Range<u64>> {
        let ranges = self.claims.done_ranges();
        ranges.filter_map(move |range| inner(range, chunk_size, self.size))
    }

    /// The existing ranges with the values of their subtrees. None if they exceed [`RANGES_MAX`].
    pub(super) fn have(&self) -> Option<Vec<(ByteRange, Digest)>> {
        let parts = self.parts().take(RANGES_MAX + 1);
        let have: Vec<_> = parts.map(|(range, value)| (span(range), value)).collect();
        (have.len() <= RANGES_MAX).then_some(have)
    }

    /// Without a tree the values are [`digest::NONE`].
    fn parts(&self) -> impl Iterator<Item = (Range<u64>, Digest)> {
        let ranges = self.tree.is_none().then(|| self.claims.done_ranges());
        let ranges = ranges.into_iter().flatten();
        let frontier = self.tree.iter().flat_map(Tree::frontier);
        frontier.chain(ranges.map(|range| (range, digest::NONE)))
    }
}

pub(super) fn span(range: Range<u64>) -> ByteRange {
    ByteRange {
        start: range.start,
        end: range.end,
    }
}

/// The largest part of `range` that begins and ends at multiples of `unit`, or at the file's end.
fn inner(range: Range<u64>, unit: u64, size: u64) -> Option<Range<u64>> {
    let start = range.start.checked_next_multiple_of(unit)?;
    let end = match range.end {
        end if end == size => end,
        end => end / unit * unit,
    };
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::of_range;

    const UNIT: u64 = 1 << 20;

    /// Whole chunks count, also if they were recorded in parts. An incomplete chunk does not count.
    #[test]
    fn parts_of_chunks_are_of_use_where_they_are_whole_chunks_together() {
        let content = vec![7; (4 * UNIT + 5000) as usize];
        let size = content.len() as u64;
        let piece = |offset: u64, len: u64| WrittenRange {
            offset,
            len,
            digest: Some(of_range(
                &content[offset as usize..(offset + len) as usize],
                offset,
                false,
            )),
        };
        for needs_tree in [true, false] {
            let mut fine = Restored::finest(size, UNIT, needs_tree);
            for (offset, len) in [
                (0, UNIT / 2),
                (UNIT / 2, UNIT / 2),
                (UNIT, UNIT / 8),
                (2 * UNIT, UNIT),
                (3 * UNIT + UNIT / 2, UNIT / 2),
                (4 * UNIT, 5000),
            ] {
                assert!(fine.add(&piece(offset, len)));
            }
            assert!(!fine.add(&piece(UNIT * 7 / 4 + 1000, 1000)), "no chunk");
            assert!(fine.add(&piece(0, UNIT)), "parts of it are there");
            let expected = [0..UNIT, 2 * UNIT..3 * UNIT, 4 * UNIT..size];
            assert!(fine.whole_chunks(UNIT).eq(expected.clone()));
            let whole = fine.in_grains(UNIT);
            assert!(whole.claims.done_ranges().eq(expected));
            let have = whole.have().expect("few");
            let first = match needs_tree {
                true => piece(0, UNIT).digest.expect("it has one"),
                false => digest::NONE,
            };
            assert_eq!(have[0], (span(0..UNIT), first));
        }
    }
}
