//! The division of files into chunks, from their sizes alone, before any byte is read: a big file
//! is cut into ranges, and small files are gathered into packs.

use std::ops::Range;

use super::ChunkKind;
use super::pack::PackPlan;
use super::ranges::RangeSet;

/// Bytes of holes that one `Zeros` chunk may represent; a multiple of every chunk size.
pub const ZEROS_MAX: u64 = 1 << 31;

/// The progress of cutting a big file. `next_data` returns the first range with data at or after
/// an offset; for a file without holes that is the rest of the file.
#[derive(Debug)]
pub struct Cut {
    size: u64,
    chunk_size: u64,
    /// All pieces except the last end at multiples of this.
    grain: u64,
    offset: u64,
    /// A range known to be data; empty at first.
    data: Range<u64>,
    /// Byte ranges to leave out, the last one first.
    skip: Vec<Range<u64>>,
}

/// One piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePiece {
    pub kind: ChunkKind,
    pub offset: u64,
    pub len: u32,
}

impl FilePiece {
    /// It has more data than a chunk.
    pub fn is_larger_than(&self, chunk_size: usize) -> bool {
        self.kind == ChunkKind::Range && self.len as usize > chunk_size
    }
}

impl Cut {
    /// Leaves out `had`: ranges that begin and end at grains of the file. Both sizes are powers of
    /// two.
    pub fn skipping(size: u64, chunk_size: u64, grain: u64, had: &RangeSet) -> Self {
        let mut skip: Vec<_> = had.iter().collect();
        skip.reverse();
        let mut cut = Cut {
            size,
            chunk_size,
            grain,
            offset: 0,
            data: 0..0,
            skip,
        };
        cut.skip();
        cut
    }

    /// The offset from which to look for data before the next piece can be cut; None if that is
    /// known. The caller asks the disk, since that may be slow.
    pub fn unknown_from(&self) -> Option<u64> {
        (self.offset < self.size && self.offset >= self.data.end).then_some(self.offset)
    }

    /// Sets the answer: the first data at or after that offset, None if only a hole follows.
    pub fn set_data(&mut self, data: Option<Range<u64>>) {
        self.data = data.unwrap_or(self.size..self.size);
    }

    /// The next piece in the order of offsets, None at the end. A piece with any data is a `Range`
    /// of about `most` bytes, from a grain to a chunk. Where all of it is data, it may have up to
    /// `longest` bytes, a power of two from a chunk. Whole chunks without data are merged into
    /// `Zeros`.
    pub fn next_up_to(
        &mut self,
        longest: u64,
        most: u64,
        next_data: impl Fn(u64) -> Option<Range<u64>>,
    ) -> Option<FilePiece> {
        if self.offset >= self.size {
            return None;
        }
        if self.offset >= self.data.end {
            self.data = next_data(self.offset).unwrap_or(self.size..self.size);
        }
        let first_data = self.data.start.max(self.offset).min(self.size);
        let hole_end = match first_data {
            data if data == self.size => self.size,
            data => data / self.chunk_size * self.chunk_size,
        };
        let skipped = self.skip.last().map_or(self.size, |range| range.start);
        let hole_end = hole_end.min(skipped);
        let (kind, len) = if hole_end > self.offset {
            (ChunkKind::Zeros, (hole_end - self.offset).min(ZEROS_MAX))
        } else {
            (ChunkKind::Range, self.subtree(longest, most, skipped))
        };
        let piece = FilePiece {
            kind,
            offset: self.offset,
            len: len as u32,
        };
        self.offset += len;
        self.skip();
        Some(piece)
    }

    /// Adds ranges that were left out. They begin and end at grains. Cutting restarts at offset 0
    /// and leaves out the pieces already cut.
    pub fn add(&mut self, ranges: &RangeSet) {
        let mut left: RangeSet = ranges.clone();
        let mut at = self.offset.min(self.size);
        for range in self.skip.iter().rev() {
            left.insert(at..range.start.max(at));
            at = range.end.max(at);
        }
        left.insert(at..self.size.max(at));
        let mut skipped: Vec<_> = left.missing(self.size).collect();
        skipped.reverse();
        (self.skip, self.offset, self.data) = (skipped, 0, 0..0);
        self.skip();
    }

    /// Bytes of the next piece, which ends at `end` at the latest: a power of two at a multiple of
    /// itself, or shorter at the end of the file.
    fn subtree(&self, longest: u64, most: u64, end: u64) -> u64 {
        let most = 1 << most.max(1).ilog2();
        let most: u64 = u64::clamp(most, self.grain, longest);
        let aligned = match self.offset.trailing_zeros() {
            zeros @ 0..63 => most.min(1 << zeros),
            _ => most,
        };
        let mut len = aligned;
        // A hole in it would travel as zeros.
        while len > self.chunk_size && self.offset + len > self.data.end.min(end) {
            len /= 2;
        }
        while len > self.grain && self.offset + len > end && end < self.size {
            len /= 2;
        }
        len.min(self.size - self.offset)
    }

    pub fn chunk_size(&self) -> u64 {
        self.chunk_size
    }

    /// Bytes to the end of the file, including holes and ranges to leave out.
    pub fn rest(&self) -> u64 {
        self.size - self.offset.min(self.size)
    }

    /// Moves past the next range to leave out, if it begins here.
    fn skip(&mut self) {
        if let Some(range) = self.skip.pop_if(|range| range.start <= self.offset) {
            self.offset = range.end;
        }
    }

    pub fn is_done(&self) -> bool {
        self.offset >= self.size
    }
}

/// True if the digest of these bytes is part of the file's digest: `len` is a power of two and
/// `offset` is a multiple of it. A piece that ends at the file's end may be shorter.
pub fn is_subtree(offset: u64, len: u64, size: u64) -> bool {
    let whole = len.checked_next_power_of_two();
    let is_full = whole == Some(len) || offset.checked_add(len) == Some(size);
    is_full && whole.is_some_and(|whole| offset.is_multiple_of(whole))
}

/// `spans` as a set, if each of them begins and ends at a chunk border of a file of `size` bytes
/// and no two overlap.
pub fn whole_chunks(
    size: u64,
    chunk_size: u64,
    spans: impl Iterator<Item = Range<u64>>,
) -> Option<RangeSet> {
    let mut set = RangeSet::new();
    for span in spans {
        let starts_well = span.start.is_multiple_of(chunk_size);
        let ends_well =
            span.end == size || (span.end < size && span.end.is_multiple_of(chunk_size));
        let len = span.end.checked_sub(span.start).filter(|len| *len > 0)?;
        if !starts_well || !ends_well || set.insert(span) != len {
            return None;
        }
    }
    Some(set)
}

/// Small files that will share a chunk.
#[derive(Debug)]
pub struct Gathering<M> {
    members: Vec<M>,
    plan: PackPlan,
}

impl<M> Default for Gathering<M> {
    fn default() -> Self {
        Gathering {
            members: Vec::new(),
            plan: PackPlan::default(),
        }
    }
}

impl<M> Gathering<M> {
    /// Adds a member of `size` bytes. If it does not fit, returns the members before it as a pack.
    pub fn add(&mut self, member: M, size: u64, name_len: usize) -> Option<Vec<M>> {
        let before = if self.plan.fits(name_len, size) {
            None
        } else {
            self.take()
        };
        self.plan.add(name_len, size);
        self.members.push(member);
        before
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The gathered members, if any.
    pub fn take(&mut self) -> Option<Vec<M>> {
        self.plan = PackPlan::default();
        (!self.members.is_empty()).then(|| std::mem::take(&mut self.members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::CHUNK_SIZE;
    use proptest::prelude::*;

    fn pieces(size: u64, chunk: u64, data: &[Range<u64>]) -> Vec<FilePiece> {
        pieces_without(size, chunk, data, &RangeSet::new())
    }

    fn pieces_without(
        size: u64,
        chunk: u64,
        data: &[Range<u64>],
        had: &RangeSet,
    ) -> Vec<FilePiece> {
        let mut cut = Cut::skipping(size, chunk, chunk, had);
        let next_data = |offset: u64| {
            let range = data.iter().find(|range| range.end > offset)?;
            Some(range.start.max(offset)..range.end)
        };
        let mut pieces = Vec::new();
        while !cut.is_done() {
            pieces.extend(cut.next_up_to(chunk, u64::MAX, next_data));
        }
        assert_eq!(cut.next_up_to(chunk, u64::MAX, next_data), None);
        pieces
    }

    #[test]
    fn holes_are_put_together_and_chunks_with_any_data_are_read() {
        let zeros = |offset, len| FilePiece {
            kind: ChunkKind::Zeros,
            offset,
            len,
        };
        let range = |offset, len| FilePiece {
            kind: ChunkKind::Range,
            offset,
            len,
        };
        let found = pieces(100, 8, &[9..10, 46..50]);
        let expected = [
            zeros(0, 8),
            range(8, 8),
            zeros(16, 24),
            range(40, 8),
            range(48, 8),
        ];
        assert_eq!(found[..5], expected);
        assert_eq!(found[5..], [zeros(56, 44)]);
        assert_eq!(pieces(20, 8, std::slice::from_ref(&(0..20))).len(), 3);
        assert!(pieces(0, 8, &[]).is_empty());
    }

    proptest! {
        #[test]
        fn pieces_cover_a_file_once_and_no_data_is_left_out(
            size in 0u64..5000,
            starts in proptest::collection::btree_set(0u64..5000, 0..12),
        ) {
            let starts: Vec<_> = starts.into_iter().filter(|start| *start < size).collect();
            let data: Vec<_> = starts.chunks(2).map(|c| c[0]..c.get(1).copied().unwrap_or(size)).collect();
            let mut at = 0;
            for piece in pieces(size, 64, &data) {
                prop_assert_eq!(piece.offset, at);
                prop_assert_eq!(at % 64, 0);
                let end = at + u64::from(piece.len);
                let has_data = data.iter().any(|range| range.start < end && range.end > at);
                prop_assert_eq!(piece.kind == ChunkKind::Range, has_data);
                at = end;
            }
            prop_assert_eq!(at, size);
        }
    }

    proptest! {
        #[test]
        fn what_is_had_is_left_out_and_the_rest_is_cut_as_before(
            size in 1u64..5000,
            starts in proptest::collection::btree_set(0u64..5000, 0..12),
            had in proptest::collection::vec(any::<bool>(), 80),
        ) {
            let starts: Vec<_> = starts.into_iter().filter(|start| *start < size).collect();
            let data: Vec<_> = starts.chunks(2).map(|c| c[0]..c.get(1).copied().unwrap_or(size)).collect();
            let chunks = (0..size.div_ceil(64)).filter(|chunk| had[*chunk as usize]);
            let spans = chunks.map(|chunk| chunk * 64..size.min(chunk * 64 + 64));
            let had = whole_chunks(size, 64, spans).unwrap();
            let mut seen = had.clone();
            for piece in pieces_without(size, 64, &data, &had) {
                let end = piece.offset + u64::from(piece.len);
                prop_assert_eq!(seen.insert(piece.offset..end), u64::from(piece.len));
                let has_data = data.iter().any(|range| range.start < end && range.end > piece.offset);
                prop_assert_eq!(piece.kind == ChunkKind::Range, has_data);
            }
            prop_assert!(seen.is_full(size));
        }
    }

    proptest! {
        #[test]
        fn however_fine_a_file_is_cut_each_piece_is_a_subtree(
            size in 1u64..5000,
            hole in (0u64..5000, 0u64..3000),
            had in proptest::collection::vec(any::<bool>(), 640),
            most in proptest::collection::vec(0u64..200, 640),
            large in any::<bool>(),
        ) {
            let (chunk, grain) = (64, 8);
            let hole = hole.0..hole.0 + hole.1;
            let data = [0..hole.start.min(size), hole.end.min(size)..size];
            let grains = (0..size.div_ceil(grain)).filter(|at| had[*at as usize]);
            let spans = grains.map(|at| at * grain..size.min(at * grain + grain));
            let had = whole_chunks(size, grain, spans).unwrap();
            let mut cut = Cut::skipping(size, chunk, grain, &had);
            let next_data = |offset: u64| {
                let range = data.iter().find(|range| range.end > offset)?;
                Some(range.start.max(offset)..range.end)
            };
            let (mut seen, mut most) = (had.clone(), most.into_iter());
            while !cut.is_done() {
                let before = cut.rest();
                let most = most.next().unwrap_or(0);
                let longest = if large { 2 * chunk } else { chunk };
                let piece = cut.next_up_to(longest, most, next_data).expect("it is not done");
                let (offset, len) = (piece.offset, u64::from(piece.len));
                prop_assert_eq!(seen.insert(offset..offset + len), len);
                prop_assert!(cut.rest() <= before - len);
                if piece.kind == ChunkKind::Range {
                    prop_assert!(is_subtree(offset, len, size));
                    prop_assert!(len <= most.clamp(grain, longest));
                    let is_data = data.iter().any(|it| it.start <= offset && offset + len <= it.end);
                    prop_assert!(len <= chunk || is_data);
                }
            }
            prop_assert!(seen.is_full(size));
        }
    }

    #[test]
    fn ranges_that_are_no_chunks_are_told() {
        let whole = |spans: &[(u64, u64)]| {
            whole_chunks(250, 100, spans.iter().map(|&(start, end)| start..end))
        };
        assert_eq!(whole(&[(0, 100), (200, 250)]).unwrap().count(), 150);
        assert!(whole(&[]).is_some_and(|set| set.is_empty()));
        let alone = [
            (1, 100),
            (0, 99),
            (100, 300),
            (300, 400),
            (100, 100),
            (200, 100),
            (u64::MAX - 15, u64::MAX),
        ];
        for bad in alone {
            assert!(whole(&[bad]).is_none(), "{bad:?}");
        }
        assert!(whole(&[(0, 200), (100, 200)]).is_none());
    }

    #[test]
    fn a_pack_is_given_out_before_it_would_overflow() {
        let mut gathering = Gathering::default();
        let mut packs = Vec::new();
        for n in 0..2000 {
            packs.extend(gathering.add(n, 3000, 10));
        }
        packs.extend(gathering.take());
        assert_eq!(packs.concat(), (0..2000).collect::<Vec<_>>());
        assert!(packs.len() > 6 && packs.iter().all(|pack| pack.len() * 3000 <= CHUNK_SIZE));
    }
}
