//! Content that has moved within a file: the places in the existing file that have the pieces of the
//! new version.
//!
//! A shift is the distance from a place in the new version to the same content in the existing
//! file. After an insertion, all content has the same shift, so the shift that was found last is
//! tried first. The [anchors](crate::chunk::anchors) of an offered piece lead to other shifts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::chunk::anchors::{Anchor, fingerprint};
use crate::chunk::patch::PAGE;
use crate::dest::{Basis, BlockIndex, IndexRoom};
use crate::locks::{OrderedMutex, place};

/// The existing file is indexed so many bytes before and beyond the place where a piece is expected.
const AHEAD: u64 = 64 << 20;

/// After each piece that was not found, twice as many bytes beyond it are indexed, up to this
/// number. So content is found even if the start of a large file was deleted, and of an existing
/// file without common content not much is read.
const AHEAD_MAX: u64 = 512 << 20;

/// Bytes of an existing file that are indexed at first.
const INDEXED_AT_FIRST: u64 = AHEAD + AHEAD_MAX;

/// For each byte that was found in another place, so many more may be indexed. So the search of a file
/// ends whose content was changed and not moved.
const INDEXED_PER_FOUND: u64 = 16;

/// If no more than this part of a piece is not found, the existing file is not read for it: little of
/// the piece is sent.
const REST_MAX: usize = 8;

/// One try for so many bytes. An honest sender needs fewer: it tries each of its pieces of 256 KiB
/// three times at most. More tries are ignored: a sender that tries pieces could find out what the
/// existing bytes are.
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
    /// The shift that was found last. None at first, and where content is in its place again.
    last: Option<Shift>,
    /// The offset of the last piece that has it.
    last_at: u64,
    /// A piece did not have it afterwards.
    is_doubted: bool,
    /// The shift of the last whole piece, around which others are expected.
    around: Shift,
    /// Pieces that were not found.
    missed: u32,
    /// Bytes that were found in another place.
    moved: u64,
    /// By the offsets of pieces whose patches are expected: the bytes that these are applied to.
    sources: BTreeMap<u64, Vec<PieceSource>>,
    /// The number of all of them.
    count: usize,
}

/// Bytes to add to an offset in the new version.
type Shift = i128;

/// Where the existing file may have a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guess {
    /// Offset in the existing file.
    pub from: u64,
    /// The piece may as well be in its place.
    pub is_doubted: bool,
}

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
    /// True if an existing file of `old` bytes may be tried once more for a new version of `size` bytes.
    /// The sender chooses only one of these sizes.
    pub fn may_try(&self, size: u64, old: u64) -> bool {
        self.tries.load(Relaxed) < TRIES_MIN + size.min(old) / BYTES_PER_TRY
    }

    /// Where the existing file has the content at `offset`, by the shift that was found last.
    pub fn guess(&self, offset: u64) -> Option<Guess> {
        let found = self.found.lock();
        let from = u64::try_from(Shift::from(offset) + found.last?).ok()?;
        let is_doubted = found.is_doubted;
        Some(Guess { from, is_doubted })
    }

    /// The guess for the piece of `len` bytes at `offset` was right.
    pub fn hit(&self, offset: u64, len: u64, guess: Guess) {
        let mut found = self.found.lock();
        found.around = Shift::from(guess.from) - Shift::from(offset);
        found.moved += len;
        if found.last == Some(found.around) {
            found.is_doubted = false;
            found.last_at = found.last_at.max(offset);
        }
    }

    /// A guess was wrong.
    pub fn missed(&self) {
        self.tries.fetch_add(1, Relaxed);
        self.found.lock().is_doubted = true;
    }

    /// The piece at `offset` is in its place, and probably those after it.
    pub fn is_in_place(&self, offset: u64) {
        let mut found = self.found.lock();
        // Pieces arrive out of order.
        if offset >= found.last_at {
            (found.last, found.around, found.missed) = (None, 0, 0);
        }
    }

    /// Finds the parts of a piece that the existing file has in another place, in ascending order. It
    /// first indexes more of that file if it must, as long as `goes_on`.
    pub fn find(
        &self,
        sought: &SoughtPiece<'_>,
        room: &IndexRoom,
        goes_on: impl Fn() -> bool,
    ) -> Vec<PieceSource> {
        self.tries.fetch_add(1, Relaxed);
        let (last, window, indexed_max) = {
            let found = self.found.lock();
            (found.last, found.window(sought.offset), found.indexed_max())
        };
        let mut search = Search::of(sought);
        search.follow(last);
        search.follow_in_place();
        while !search.has_all() {
            if self.look_up(&mut search, room) {
                search.follow(None);
                break;
            }
            if search.has_most() || !goes_on() {
                break;
            }
            let extend = |it: &mut BlockIndex| {
                it.read_bytes() < indexed_max && it.extend(sought.old, &window)
            };
            // The lock is released after each step.
            if !self.index.lock().as_mut().is_some_and(extend) {
                break;
            }
        }
        self.found.lock().add(&search);
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

    /// Forgets and returns the bytes that the patch of the piece at `offset` is applied to. Empty if
    /// they are in their place.
    pub fn recall(&self, offset: u64) -> Vec<PieceSource> {
        let mut found = self.found.lock();
        let sources = found.sources.remove(&offset).unwrap_or_default();
        found.count -= sources.len();
        sources
    }
}

impl FoundShifts {
    /// The part of the existing file in which the content at `offset` is looked for.
    fn window(&self, offset: u64) -> Range<u64> {
        let expected = Shift::from(offset) + self.around;
        let expected = u64::try_from(expected).unwrap_or(0);
        let ahead = AHEAD.saturating_mul(1 << self.missed.min(32));
        expected.saturating_sub(AHEAD)..expected.saturating_add(ahead.min(AHEAD_MAX))
    }

    /// Bytes of the existing file that may be indexed.
    fn indexed_max(&self) -> u64 {
        INDEXED_AT_FIRST.saturating_add(self.moved.saturating_mul(INDEXED_PER_FOUND))
    }

    fn add(&mut self, search: &Search<'_>) {
        self.moved += search.bytes(|shift| shift.is_some_and(|shift| shift != 0)) as u64;
        let Some(shift) = search.shifts.iter().flatten().next_back() else {
            self.missed = self.missed.saturating_add(1);
            return;
        };
        self.missed = 0;
        self.last = Some(*shift).filter(|shift| *shift != 0);
        self.last_at = search.sought.offset;
        self.is_doubted = false;
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

    /// The bytes of the blocks with such a shift.
    fn bytes(&self, is_such: impl Fn(Option<Shift>) -> bool) -> usize {
        let blocks = self.sought.anchors.iter().zip(&self.shifts);
        let such = blocks.filter(|(_, shift)| is_such(**shift));
        such.map(|(anchor, _)| anchor.block.len()).sum()
    }

    /// True if little is left to be found.
    fn has_most(&self) -> bool {
        let missing = self.bytes(|shift| shift.is_none());
        missing <= self.bytes(|_| true) / REST_MAX
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

    /// Tries each block in its place.
    fn follow_in_place(&mut self) {
        for nth in 0..self.shifts.len() {
            if self.shifts[nth].is_none() {
                self.tries(nth, 0);
            }
        }
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

    /// The parts that were found in another place, without the pages of which only a part was found.
    /// The sender knows all of their bytes, so it may know that the existing file has them.
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
                let Some(shift) = shift.filter(|shift| *shift != 0 && !part.is_empty()) else {
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::chunk::anchors;

    const MIB: usize = 1 << 20;
    const PIECE: usize = 256 << 10;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut noise = fastrand::Rng::with_seed(seed);
        std::iter::repeat_with(|| noise.u8(..)).take(len).collect()
    }

    /// A file of `len` bytes, a hole but for these bytes.
    fn old(len: u64, at: u64, data: &[u8]) -> Basis {
        let file: File = tempfile::tempfile().expect("make it");
        file.set_len(len).expect("set its length");
        file.write_all_at(data, at).expect("write");
        Basis::other(file, len, false)
    }

    /// Looks for a piece. Returns its places, and how often more bytes could have been indexed.
    fn look(shifts: &Shifts, old: &Basis, offset: u64, data: &[u8]) -> (Vec<PieceSource>, usize) {
        let rows = anchors::write(data).expect("it is long");
        let anchors = anchors::read(&rows, data.len()).expect("they fill it");
        let sought = SoughtPiece {
            old,
            offset,
            anchors: &anchors,
        };
        let steps = Cell::new(0);
        let goes_on = || steps.replace(steps.get() + 1) < 4;
        let found = shifts.find(&sought, &IndexRoom::default(), goes_on);
        (found, steps.get())
    }

    fn indexed(shifts: &Shifts) -> (u64, u64) {
        let index = shifts.index.lock();
        let index = index.as_ref().expect("something was looked up");
        (index.end(), index.read_bytes())
    }

    /// A piece at 900 GB of an image of 1 TB is looked for around its place.
    #[test]
    fn a_changed_piece_late_in_a_file_does_not_read_the_file_from_its_start() {
        let at = 900u64 << 30;
        let old = old(1 << 40, at, &noise(1, PIECE));
        let shifts = Shifts::default();
        assert_eq!(look(&shifts, &old, at, &noise(2, PIECE)), (Vec::new(), 5));
        let (end, read) = indexed(&shifts);
        assert!(read <= 4 * MIB as u64, "{read} bytes");
        assert!((at - AHEAD..at).contains(&end), "up to {end}");
    }

    /// Of a piece of which one byte has changed, the rest is in its place.
    #[test]
    fn a_piece_that_is_mostly_in_its_place_reads_nothing_else() {
        let mut content = noise(1, PIECE);
        let old = old(1 << 40, 1 << 39, &content);
        content[PIECE / 2] ^= 1;
        let shifts = Shifts::default();
        assert_eq!(look(&shifts, &old, 1 << 39, &content), (Vec::new(), 0));
        assert_eq!(indexed(&shifts), (0, 0));
        assert_eq!(shifts.guess(0), None);
    }

    #[test]
    fn after_its_share_no_more_of_a_file_is_indexed_unless_content_has_moved() {
        let mut found = FoundShifts::default();
        assert_eq!(found.window(0), 0..AHEAD);
        assert_eq!(found.indexed_max(), AHEAD + AHEAD_MAX);
        found.missed = 100;
        assert_eq!(found.window(0), 0..AHEAD_MAX);
        let shifts = Shifts::default();
        let content = noise(1, 4 * PIECE);
        let old = old(1 << 30, 8 * MIB as u64, &content);
        // All that may be indexed was indexed.
        let index = BlockIndex::at(INDEXED_AT_FIRST, old.len());
        *shifts.index.lock() = Some(index);
        let sought = &content[3 * PIECE + 7..];
        let offset = 700 << 20;
        assert_eq!(look(&shifts, &old, offset, sought), (Vec::new(), 1));
        assert_eq!(indexed(&shifts).1, INDEXED_AT_FIRST);
        // Each piece that was found allows more.
        shifts.found.lock().last = Some((8 << 20) - (700 << 20));
        let guess = shifts.guess(offset).expect("a shift is known");
        shifts.hit(offset, PIECE as u64, guess);
        let next = offset + PIECE as u64;
        assert_eq!(look(&shifts, &old, next, &noise(9, PIECE)).1, 5);
        assert!(indexed(&shifts).1 > INDEXED_AT_FIRST);
        assert_eq!(
            shifts.found.lock().window(next).start,
            0,
            "around its place"
        );
    }

    #[test]
    fn where_content_is_in_its_place_again_the_last_shift_is_forgotten() {
        let shifts = Shifts::default();
        let content = noise(1, 2 * PIECE);
        let old = old(2 * PIECE as u64 + 100, 100, &content);
        let (found, _) = look(&shifts, &old, 0, &content[..PIECE]);
        assert_eq!(
            found,
            [PieceSource {
                part: 0..PIECE,
                from: 100
            }]
        );
        let offset = PIECE as u64;
        let right = Guess {
            from: offset + 100,
            is_doubted: false,
        };
        assert_eq!(shifts.guess(offset), Some(right));
        shifts.missed();
        let doubted = Guess {
            is_doubted: true,
            ..right
        };
        assert_eq!(shifts.guess(offset), Some(doubted), "its place comes first");
        shifts.hit(offset, offset, doubted);
        assert_eq!(shifts.guess(offset), Some(right));
        // A piece before the shift, which arrives late.
        shifts.is_in_place(0);
        assert_eq!(shifts.guess(offset), Some(right));
        shifts.is_in_place(2 * offset);
        assert_eq!(shifts.guess(offset), None);
    }

    #[test]
    fn a_sender_has_no_more_tries_for_a_larger_file() {
        let shifts = Shifts::default();
        assert!(shifts.may_try(1 << 50, 100));
        (0..TRIES_MIN).for_each(|_| shifts.missed());
        assert!(!shifts.may_try(1 << 50, 100));
        assert!(shifts.may_try(1 << 50, 1 << 50));
    }
}
