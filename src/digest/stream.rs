//! The digest of a stream, whose length nobody knows before its end.
//!
//! A piece of a stream is never known to be all of it, so its digest is the chaining value at its
//! offset. The first piece is hashed both ways: if nothing follows it, its own BLAKE3 is the
//! stream's, else its chaining value is a part of it. The end of the stream tells which.
//!
//! Where the producer pauses, a piece ends anywhere. What it holds of whole subtrees is hashed once
//! more for the tree, and of its frayed ends, of less than a kilobyte each, the bytes wait for their
//! neighbours.

use std::collections::BTreeMap;
use std::ops::Range;

use blake3::hazmat::{Mode, merge_subtrees_non_root, merge_subtrees_root};

use super::{Added, Digest, of_range, of_zeros};

/// Bytes of the smallest subtree.
const GRAIN: u64 = blake3::CHUNK_LEN as u64;

/// The digests of a stream's pieces on their way to its own. They come in any order; what cannot
/// be joined to the beginning yet is kept, so whoever adds bounds how far ahead it may be. Of what
/// is joined some 50 values at most are in memory.
#[derive(Default)]
pub struct StreamTree {
    /// From the beginning without a gap. Two neighbours of one length are merged when a further
    /// part comes, no earlier: the last merge of all must be the root's.
    joined: Vec<Part>,
    /// Bytes of it.
    end: u64,
    /// By offset, with a gap before.
    ahead: BTreeMap<u64, Part>,
    /// By offset, bytes of subtrees of [`GRAIN`] that are not whole.
    frayed: BTreeMap<u64, Vec<u8>>,
    /// Of the first part, should it be all.
    whole: Option<Digest>,
}

/// A subtree that is full, or the last of the stream.
#[derive(Clone, Copy)]
struct Part {
    offset: u64,
    len: u64,
    value: Digest,
}

/// A piece of a stream as it joins the tree: its full subtrees, and its ends.
pub struct Piece {
    full: Vec<Part>,
    frayed: Vec<(u64, Vec<u8>)>,
    whole: Option<Digest>,
}

impl Piece {
    /// The bytes at `offset`, whose digest is `value` as [`of_range`] gives it with `whole` unset.
    pub fn new(data: &[u8], offset: u64, value: Digest) -> Piece {
        let at = |range: &Range<u64>| {
            &data[(range.start - offset) as usize..(range.end - offset) as usize]
        };
        let len = data.len() as u64;
        Piece::cut(
            offset,
            len,
            |range, whole| match whole {
                true => blake3::hash(at(range)).into(),
                false if range.end - range.start == len => value,
                false => of_range(at(range), range.start, false),
            },
            |range| at(range).to_vec(),
        )
    }

    /// `len` zeros at `offset`. Hashes them all, a second for some 4.5 GB.
    pub fn of_zeros(offset: u64, len: u64) -> Piece {
        Piece::cut(
            offset,
            len,
            |range, whole| of_zeros(range.start, range.end - range.start, whole),
            |range| vec![0; (range.end - range.start) as usize],
        )
    }

    fn cut(
        offset: u64,
        len: u64,
        value: impl Fn(&Range<u64>, bool) -> Digest,
        bytes: impl Fn(&Range<u64>) -> Vec<u8>,
    ) -> Piece {
        let mut piece = Piece {
            full: Vec::new(),
            frayed: Vec::new(),
            whole: None,
        };
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let step = step(at, end - at);
            let range = at..at + step;
            if step.is_power_of_two() && step >= GRAIN && at.is_multiple_of(step) {
                if at == 0 && step == len {
                    piece.whole = Some(value(&range, true));
                }
                piece.full.push(Part {
                    offset: at,
                    len: step,
                    value: value(&range, false),
                });
            } else {
                piece.frayed.push((at, bytes(&range)));
            }
            at = range.end;
        }
        piece
    }
}

/// Of `len` bytes at `at`: the longest full subtree from there, or what lies within one of [`GRAIN`].
fn step(at: u64, len: u64) -> u64 {
    let into = at % GRAIN;
    if into > 0 || len < GRAIN {
        return len.min(GRAIN - into);
    }
    let longest = 1 << len.ilog2();
    match at {
        0 => longest,
        _ => longest.min(1 << at.trailing_zeros()),
    }
}

impl StreamTree {
    pub fn new() -> StreamTree {
        StreamTree::default()
    }

    /// Adds a piece. No byte may come twice: what was there stays, and the stream may be left without
    /// a digest.
    pub fn add(&mut self, piece: Piece) {
        if self.whole.is_none() {
            self.whole = piece.whole;
        }
        for part in piece.full {
            self.add_part(part);
        }
        for (offset, bytes) in piece.frayed {
            self.fray(offset, bytes);
        }
    }

    /// `Outside`: no part can lie there. `Same` and `Differs`: it waits already. `Merged`: it is
    /// part of what has been joined.
    fn add_part(&mut self, part: Part) -> Added {
        let Part { offset, len, value } = part;
        let Some(end) = offset.checked_add(len) else {
            return Added::Outside;
        };
        if offset < self.end {
            return if end <= self.end {
                Added::Merged
            } else {
                Added::Outside
            };
        }
        if let Some(known) = self.ahead.get(&offset) {
            return match (known.len == len, known.value == value) {
                (true, true) => Added::Same,
                (true, false) => Added::Differs,
                (false, _) => Added::Outside,
            };
        }
        let overlaps = |other: &Part| other.offset < end && offset < other.offset + other.len;
        let below = self.ahead.range(..offset).next_back();
        let above = self.ahead.range(offset..).next();
        if below.into_iter().chain(above).any(|(_, p)| overlaps(p)) {
            return Added::Outside;
        }
        self.ahead.insert(offset, part);
        while let Some(next) = self.ahead.remove(&self.end) {
            self.end += next.len;
            join(&mut self.joined, next);
        }
        Added::New
    }

    /// Keeps bytes that lie within one smallest subtree until all of it is there.
    fn fray(&mut self, offset: u64, bytes: Vec<u8>) {
        let start = offset - offset % GRAIN;
        let end = offset + bytes.len() as u64;
        let below = self.frayed.range(..offset).next_back();
        let above = self.frayed.range(offset..).next();
        let is_free = below.is_none_or(|(at, kept)| at + kept.len() as u64 <= offset)
            && above.is_none_or(|(at, _)| end <= *at);
        if !is_free || start < self.end {
            return;
        }
        self.frayed.insert(offset, bytes);
        if self.run(start) < GRAIN {
            return;
        }
        let rest = self.frayed.split_off(&start);
        let (mut block, mut after) = (Vec::with_capacity(GRAIN as usize), BTreeMap::new());
        for (at, bytes) in rest {
            if at < start + GRAIN {
                block.extend(bytes);
            } else {
                after.insert(at, bytes);
            }
        }
        self.frayed.append(&mut after);
        if start == 0 {
            self.whole = Some(blake3::hash(&block).into());
        }
        self.add_part(Part {
            offset: start,
            len: GRAIN,
            value: of_range(&block, start, false),
        });
    }

    /// Bytes that are kept from `start` on without a gap, up to [`GRAIN`].
    fn run(&self, start: u64) -> u64 {
        let mut end = start;
        for (&at, bytes) in self.frayed.range(start..start.saturating_add(GRAIN)) {
            if at != end {
                break;
            }
            end += bytes.len() as u64;
        }
        end - start
    }

    /// Bytes from the beginning whose pieces are all there.
    pub fn end(&self) -> u64 {
        self.end + self.run(self.end)
    }

    /// Values in memory, and pieces of bytes.
    pub fn held(&self) -> usize {
        self.joined.len() + self.ahead.len() + self.frayed.len()
    }

    /// The BLAKE3 of the stream, if `length` bytes are all of it. None while pieces are missing,
    /// and where there are more.
    pub fn root(&self, length: u64) -> Option<Digest> {
        if self.end() != length || !self.ahead.is_empty() {
            return None;
        }
        let tail: Vec<u8> = self.frayed.values().flatten().copied().collect();
        if self.end + tail.len() as u64 != length {
            return None;
        }
        let mut joined = self.joined.clone();
        if joined.is_empty() {
            return Some(blake3::hash(&tail).into());
        }
        if !tail.is_empty() {
            let (offset, len) = (self.end, tail.len() as u64);
            let value = of_range(&tail, offset, false);
            join(&mut joined, Part { offset, len, value });
        }
        let (first, rest) = joined.split_first()?;
        let Some((last, between)) = rest.split_last() else {
            return self.whole;
        };
        // From the right, since every left part is a full subtree and what is right of it is less.
        let right = between.iter().rev().fold(last.value, |right, left| {
            merge_subtrees_non_root(&left.value, &right, Mode::Hash)
        });
        Some(merge_subtrees_root(&first.value, &right, Mode::Hash).into())
    }
}

/// Puts a part behind those that are joined.
fn join(joined: &mut Vec<Part>, part: Part) {
    while let [.., left, right] = &joined[..]
        && left.len == right.len
        && left.offset.is_multiple_of(2 * left.len)
    {
        let merged = Part {
            offset: left.offset,
            len: 2 * left.len,
            value: merge_subtrees_non_root(&left.value, &right.value, Mode::Hash),
        };
        joined.truncate(joined.len() - 2);
        joined.push(merged);
    }
    joined.push(part);
}

#[cfg(test)]
mod tests;
