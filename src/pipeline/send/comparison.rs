//! The comparisons of big files with the receiver's versions: which pieces are compared, and whether
//! that is worth it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use crate::chunk::anchors::BLOCK_MIN;
use crate::chunk::ranges::RangeSet;
use crate::chunk::split::FilePiece;

/// The parts of a file whose digests are sent first, because the receiver may have them.
#[derive(Default)]
pub struct ComparedRanges {
    /// Bytes, in whole chunks.
    ranges: RangeSet,
    /// Bytes of a piece that is compared; a power of two up to a chunk.
    piece: u64,
    /// The receiver finds pieces by their anchors.
    has_anchors: bool,
    /// Pieces whose anchors were sent, and that the receiver has not answered.
    anchored: AtomicUsize,
    result: ComparisonResult,
    /// Pieces in a row of which the receiver had nothing.
    misses: AtomicU32,
    /// Consecutive pieces whose anchors found nothing more at the receiver.
    anchor_misses: AtomicU32,
    /// The end of the last piece of which the receiver had some.
    hit_end: AtomicU64,
}

/// The results so far of the comparisons of all files of a copy.
#[derive(Clone, Default)]
pub struct CopyComparisons(Arc<ComparisonCounts>);

#[derive(Default)]
struct ComparisonCounts {
    /// Chunks whose anchors were sent, and that the receiver has not answered.
    anchored: AtomicUsize,
    /// Files in a row of which the receiver had nothing.
    files_missed: AtomicU32,
}

impl CopyComparisons {
    /// The number of chunks whose anchors were sent, and that the receiver has not answered.
    pub fn anchored(&self) -> usize {
        self.0.anchored.load(Relaxed)
    }

    /// False if the receiver has nothing of the files that replace others.
    fn are_useful(&self) -> bool {
        self.0.files_missed.load(Relaxed) < FILES_MISSED
    }
}

/// Whether the receiver has some of a file. Counted when the file has been sent.
#[derive(Default)]
struct ComparisonResult {
    copy: CopyComparisons,
    has_some: AtomicBool,
    /// It has nothing of a piece.
    has_missed: AtomicBool,
}

impl ComparisonResult {
    fn of(copy: &CopyComparisons) -> ComparisonResult {
        ComparisonResult {
            copy: copy.clone(),
            has_some: AtomicBool::new(false),
            has_missed: AtomicBool::new(false),
        }
    }

    fn hit(&self) {
        self.has_some.store(true, Relaxed);
        self.copy.0.files_missed.store(0, Relaxed);
    }
}

impl Drop for ComparisonResult {
    fn drop(&mut self) {
        if *self.has_missed.get_mut() && !*self.has_some.get_mut() {
            self.copy.0.files_missed.fetch_add(1, Relaxed);
        }
    }
}

/// Bytes of a piece that is compared, if both ends know patches. If one of a hundred pages of 8 KiB
/// has changed, a quarter of such pieces differ, and three quarters of the pieces of 1 MiB would.
/// What differs is read and hashed once more at each end.
pub const COMPARED_PIECE: u64 = 256 << 10;

/// After so many misses in a row, only some pieces are compared. Content that was changed throughout
/// would otherwise be read once more at each end, for nothing.
const MISSES: u32 = 16;

/// After so many misses in a row despite anchors, only the same few pieces are offered with anchors.
/// The start of a file may be new: this is more than an insertion of 4 MiB.
const ANCHOR_MISSES: u32 = 32;

/// Chunks of all files whose anchors were sent and that have no answer: half of those in flight, so
/// that other files go on. Beyond this, all bytes of a chunk are sent.
const ANCHORED_MAX: usize = 1024;

/// While so many pieces of a file are offered with their anchors, no other piece of it begins. So not
/// much is sent between the end of an insertion and the answer that the receiver has the rest.
const ANCHORED_OF_FILE: usize = 3;

/// After so many files in a row of which the receiver had nothing, only the start of the next one is
/// compared at first. Otherwise each piece of many files would be refused twice.
const FILES_MISSED: u32 = 8;

/// Then these are the fewest bytes between pieces that are compared.
const PROBES_APART_MIN: u64 = 4 << 20;

/// The most bytes between the starts of these pieces. Before that they are an eighth of the way from the
/// last piece of which the receiver had some. So after a long insertion, not much more than that is
/// sent.
const PROBES_APART: u64 = 16 << 20;

impl ComparedRanges {
    /// `ranges` are whole chunks, which are compared in pieces of `piece` bytes.
    /// The receiver has the first `start` bytes of the file already.
    pub fn of(ranges: RangeSet, piece: u64, start: u64, copy: &CopyComparisons) -> ComparedRanges {
        ComparedRanges {
            ranges,
            piece,
            result: ComparisonResult::of(copy),
            hit_end: AtomicU64::new(start),
            ..ComparedRanges::default()
        }
    }

    /// The same, for a receiver that finds pieces that have moved by their anchors.
    pub fn with_anchors(self) -> ComparedRanges {
        ComparedRanges {
            has_anchors: true,
            ..self
        }
    }

    /// True if nothing is compared.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The receiver had some of the piece that ends here.
    pub(super) fn hit(&self, end: u64) {
        self.misses.store(0, Relaxed);
        self.result.hit();
        self.hit_end.fetch_max(end, Relaxed);
    }

    /// The receiver had some of a piece, or had no more of it, because of its anchors.
    pub(super) fn anchors_helped(&self, helped: bool) {
        match helped {
            true => self.anchor_misses.store(0, Relaxed),
            false => {
                self.anchor_misses.fetch_add(1, Relaxed);
            }
        }
    }

    /// The receiver had nothing of a piece, or too little for a patch.
    pub(super) fn missed(&self) {
        self.misses.fetch_add(1, Relaxed);
        self.result.has_missed.store(true, Relaxed);
    }

    /// The anchors of a piece are sent.
    pub(super) fn begin_anchored(&self) {
        self.anchored.fetch_add(1, Relaxed);
        self.result.copy.0.anchored.fetch_add(1, Relaxed);
    }

    pub(super) fn end_anchored(&self) {
        self.anchored.fetch_sub(1, Relaxed);
        self.result.copy.0.anchored.fetch_sub(1, Relaxed);
    }

    /// True if no other piece begins before the receiver has answered.
    pub fn awaits_answers(&self) -> bool {
        self.anchored.load(Relaxed) >= ANCHORED_OF_FILE
    }

    /// The most bytes of the next piece: a piece that will not be compared may be a whole chunk.
    pub fn piece_max(&self) -> u64 {
        match self.is_useful() {
            true => self.piece,
            false => u64::MAX,
        }
    }

    pub(super) fn is_useful(&self) -> bool {
        self.misses.load(Relaxed) < MISSES && self.result.copy.are_useful()
    }

    /// True if the digest of this piece is sent first.
    pub(super) fn takes(&self, piece: &FilePiece) -> bool {
        let end = piece.offset + u64::from(piece.len);
        let is_piece = !self.is_empty() && piece.offset.is_multiple_of(self.piece);
        let is_useful = self.is_useful() || self.is_probe(piece);
        is_piece && is_useful && self.ranges.contains_all(piece.offset..end)
    }

    /// True for a piece that is compared although those before it were not there.
    fn is_probe(&self, piece: &FilePiece) -> bool {
        let since = piece.offset.saturating_sub(self.hit_end.load(Relaxed));
        let least = match self.result.copy.are_useful() {
            true => self.piece,
            false => PROBES_APART_MIN,
        };
        let apart = (since / 8).clamp(least, PROBES_APART);
        piece.offset.is_multiple_of(apart.next_power_of_two())
    }

    /// True if this piece is offered with its anchors after another offer was refused.
    pub(super) fn takes_anchors(&self, piece: &FilePiece) -> bool {
        let is_useful = self.anchor_misses.load(Relaxed) < ANCHOR_MISSES || self.is_probe(piece);
        let has_room = self.result.copy.anchored() < ANCHORED_MAX;
        self.has_anchors && has_room && is_useful && piece.len as usize >= BLOCK_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::ChunkKind;

    const SIZE: u64 = 32 << 20;

    /// The pieces of a file that are compared, of which the receiver has nothing.
    fn offers(copy: &CopyComparisons, has: impl Fn(u64) -> bool) -> Vec<u64> {
        let whole = std::iter::once(0..SIZE).collect();
        let compared = ComparedRanges::of(whole, COMPARED_PIECE, 0, copy);
        let piece = |offset| FilePiece {
            kind: ChunkKind::Range,
            offset,
            len: COMPARED_PIECE as u32,
        };
        let offsets = (0..SIZE).step_by(COMPARED_PIECE as usize);
        let taken = |offset: &u64| {
            let takes = compared.takes(&piece(*offset));
            match has(*offset) {
                _ if !takes => {}
                true => compared.hit(offset + COMPARED_PIECE),
                false => compared.missed(),
            }
            takes
        };
        offsets.filter(taken).collect()
    }

    #[test]
    fn after_some_files_of_which_nothing_is_there_only_the_start_of_the_next_is_compared() {
        let copy = CopyComparisons::default();
        for _ in 0..FILES_MISSED {
            assert!(offers(&copy, |_| false).len() > MISSES as usize);
        }
        let few = [
            0,
            4 << 20,
            8 << 20,
            12 << 20,
            16 << 20,
            20 << 20,
            24 << 20,
            28 << 20,
        ];
        assert_eq!(offers(&copy, |_| false), few);
        // The first piece that is there brings back the comparison of the rest.
        let offered = offers(&copy, |offset| offset >= 8 << 20);
        assert_eq!(
            offered.len() as u64,
            3 + (SIZE - (8 << 20)) / COMPARED_PIECE - 1
        );
        assert!(offers(&copy, |_| false).len() > MISSES as usize);
    }
}
