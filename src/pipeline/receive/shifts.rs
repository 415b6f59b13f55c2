//! Content that has moved within a file: the places in the existing file where the pieces of the new
//! version are.
//!
//! A shift is the distance from a place in the new version to the same content in the existing file.
//! After an insertion, all content has the same shift, so the shift that was found last is tried
//! first. Another one is found by the [anchors](crate::chunk::anchors) of an offered piece.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::chunk::anchors::{Anchor, fingerprint};
use crate::chunk::patch::PAGE;
use crate::dest::{Basis, BlockIndex, IndexRoom};
use crate::locks::{OrderedMutex, place};

/// The existing file is indexed so many bytes beyond the place of a piece that is looked for.
const AHEAD: u64 = 64 << 20;

/// After each piece that was not found, twice as many bytes, up to this number. So the start of a large
/// file may have been deleted, and an existing file that has nothing is not read far in vain.
const AHEAD_MAX: u64 = 512 << 20;

/// The new version has one piece in so many bytes, or fewer pieces, and each is tried twice at most.
/// More tries are ignored: a sender that tries pieces could find out what the existing bytes are.
const BYTES_PER_TRY: u64 = 64 << 10;

/// Tries of a small file.
const TRIES_MIN: u64 = 64;

/// Most parts of a file's pieces whose places are remembered, some 200 KiB.
const SOURCES_MAX: usize = 1 << 12;

/// The shifts of a file that is compared with an existing one.
#[derive(Default)]
pub struct Shifts {
    found: OrderedMutex<FoundShifts, { place::SHIFTS }>,
    /// Made when a piece is looked for.
    index: OrderedMutex<Option<BlockIndex>, { place::BLOCK_INDEX }>,
    tries: AtomicU64,
}

#[derive(Default)]
struct FoundShifts {
    /// The shift that was found last.
    last: Option<Shift>,
    /// Pieces that were not found.
    missed: u32,
    /// By the offsets of pieces whose patches are expected: the bytes that these are applied to.
    sources: BTreeMap<u64, Vec<PieceSource>>,
    /// The number of all of them.
    count: usize,
}

/// Bytes to add to an offset in the new version.
type Shift = i128;

/// A part of a piece that the existing file has in another place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceSource {
    /// Bytes from the start of the piece: whole pages, unless it ends the piece.
    pub part: Range<usize>,
    /// Offset in the existing file.
    pub from: u64,
}

/// A piece that is looked for in an existing file.
pub struct SoughtPiece<'a> {
    pub old: &'a Basis,
    /// Bytes from the start of the new version.
    pub offset: u64,
    pub anchors: &'a [Anchor],
}

impl Shifts {
    /// True if the existing file may be tried once more for a new version of `size` bytes.
    pub fn may_try(&self, size: u64) -> bool {
        self.tries.load(Relaxed) < TRIES_MIN + size / BYTES_PER_TRY
    }

    /// Where the existing file has the content at `offset`, by the shift that was found last.
    pub fn guess(&self, offset: u64) -> Option<u64> {
        let last = self.found.lock().last?;
        u64::try_from(Shift::from(offset) + last).ok()
    }

    /// A guess was wrong.
    pub fn missed(&self) {
        self.tries.fetch_add(1, Relaxed);
    }

    /// Finds the parts of a piece in the existing file, in ascending order. It first indexes more of
    /// that file if it must, as long as `goes_on`.
    pub fn find(
        &self,
        sought: &SoughtPiece<'_>,
        room: &IndexRoom,
        goes_on: impl Fn() -> bool,
    ) -> Vec<PieceSource> {
        self.tries.fetch_add(1, Relaxed);
        let (last, missed) = {
            let found = self.found.lock();
            (found.last, found.missed)
        };
        let mut search = Search::of(sought);
        search.follow(last);
        let ahead = AHEAD.saturating_mul(1 << missed.min(32));
        let limit = sought.offset.saturating_add(ahead.min(AHEAD_MAX));
        while !search.has_all() && goes_on() {
            if self.look_up(&mut search, room) {
                search.follow(None);
                break;
            }
            // The lock is released after each step.
            let mut index = self.index.lock();
            if !index
                .as_mut()
                .is_some_and(|it| it.extend(sought.old, limit))
            {
                break;
            }
        }
        let mut found = self.found.lock();
        match search.shifts.iter().flatten().next_back() {
            Some(shift) => (found.last, found.missed) = (Some(*shift), 0),
            None => found.missed = found.missed.saturating_add(1),
        }
        drop(found);
        search.sources()
    }

    /// Looks for blocks in the index. True if it has any that was not found before.
    fn look_up(&self, search: &mut Search<'_>, room: &IndexRoom) -> bool {
        let places: Vec<Option<u64>> = {
            let mut index = self.index.lock();
            let old = search.sought.old;
            let index = index.get_or_insert_with(|| BlockIndex::new(old.len(), room));
            let anchors = search.sought.anchors.iter();
            anchors.map(|it| index.place(it.fingerprint)).collect()
        };
        let mut is_found = false;
        for (nth, place) in places.into_iter().enumerate() {
            if let (None, Some(place)) = (search.shifts[nth], place) {
                let shift = Shift::from(place) - search.start_of(nth);
                is_found |= search.tries(nth, shift);
            }
        }
        is_found
    }

    /// Remembers the bytes that the patch of the piece at `offset` is applied to. False if it remembers
    /// too many already.
    pub fn remember(&self, offset: u64, sources: Vec<PieceSource>) -> bool {
        let mut found = self.found.lock();
        let fits = found.count + sources.len() <= SOURCES_MAX;
        if fits {
            found.count += sources.len();
            let before = found.sources.insert(offset, sources);
            found.count -= before.map_or(0, |before| before.len());
        }
        fits
    }

    /// Forgets and returns the bytes that the patch of the piece at `offset` is applied to. None if
    /// they are in their place.
    pub fn recall(&self, offset: u64) -> Vec<PieceSource> {
        let mut found = self.found.lock();
        let sources = found.sources.remove(&offset).unwrap_or_default();
        found.count -= sources.len();
        sources
    }
}

/// The blocks of a piece, some of which are found.
struct Search<'a> {
    sought: &'a SoughtPiece<'a>,
    shifts: Vec<Option<Shift>>,
    /// For a block that is read.
    data: Vec<u8>,
}

impl<'a> Search<'a> {
    fn of(sought: &'a SoughtPiece<'a>) -> Search<'a> {
        Search {
            shifts: vec![None; sought.anchors.len()],
            data: Vec::new(),
            sought,
        }
    }

    fn has_all(&self) -> bool {
        self.shifts.iter().all(Option::is_some)
    }

    /// Offset of a block in the new version.
    fn start_of(&self, nth: usize) -> Shift {
        Shift::from(self.sought.offset) + self.sought.anchors[nth].block.start as Shift
    }

    /// Tries a block at a shift. True if the existing file has it there.
    fn tries(&mut self, nth: usize, shift: Shift) -> bool {
        let anchor = &self.sought.anchors[nth];
        let Ok(from) = u64::try_from(self.start_of(nth) + shift) else {
            return false;
        };
        self.data.resize(anchor.block.len(), 0);
        let there = self.sought.old.read(&mut self.data, from);
        let is_there = there.is_ok_and(|there| there == self.data.len())
            && fingerprint(&self.data) == anchor.fingerprint;
        if is_there {
            self.shifts[nth] = Some(shift);
        }
        is_there
    }

    /// Tries `shift`, and the shift of each block that is found for those beside it.
    fn follow(&mut self, shift: Option<Shift>) {
        let count = self.shifts.len();
        self.follow_in(0..count, shift);
        self.follow_in((0..count).rev(), None);
    }

    fn follow_in(&mut self, order: impl Iterator<Item = usize>, mut shift: Option<Shift>) {
        for nth in order {
            match (self.shifts[nth], shift) {
                (Some(found), _) => shift = Some(found),
                (None, Some(shift)) => {
                    self.tries(nth, shift);
                }
                (None, None) => {}
            }
        }
    }

    /// The parts that were found, without the pages of which only a part was found. The sender knows
    /// all of their bytes, so it may know that the existing file has them.
    fn sources(&self) -> Vec<PieceSource> {
        let anchors = self.sought.anchors;
        let len = anchors.last().map_or(0, |last| last.block.end);
        let mut sources: Vec<PieceSource> = Vec::new();
        let blocks: Vec<_> = anchors.iter().zip(&self.shifts).collect();
        for run in blocks.chunk_by(|one, next| one.1.is_some() == next.1.is_some()) {
            let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else {
                continue;
            };
            let start = first.block.start.next_multiple_of(PAGE);
            let end = match last.block.end == len {
                true => len,
                false => last.block.end / PAGE * PAGE,
            };
            for (anchor, shift) in run {
                let part = anchor.block.start.max(start)..anchor.block.end.min(end);
                let Some(shift) = shift.filter(|_| !part.is_empty()) else {
                    continue;
                };
                let from = Shift::from(self.sought.offset) + part.start as Shift + shift;
                let Ok(from) = u64::try_from(from) else {
                    continue;
                };
                match sources.last_mut() {
                    Some(last) if last.is_before(&part, from) => last.part.end = part.end,
                    _ => sources.push(PieceSource { part, from }),
                }
            }
        }
        sources
    }
}

impl PieceSource {
    /// True if `part`, which the existing file has at `from`, follows in both versions.
    fn is_before(&self, part: &Range<usize>, from: u64) -> bool {
        self.part.end == part.start && self.from + self.part.len() as u64 == from
    }
}
