//! Verification of the data that earlier sessions wrote, on separate threads and while the missing
//! chunks are on their way. A file gets its name only after this. Data that this command wrote or
//! read before it lost its connection is not read again.
//!
//! A range that does not match its record becomes missing: the receiver asks the sender for it
//! ([`Message::Missing`]), and its chunks arrive like any others.

mod checks;

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use checks::Check;
pub use checks::{Checks, FinishedSmallFile};
use parking_lot::Mutex;

use super::jobs::Job;
use super::open_file::OpenFile;
use super::resume::{Resuming, span};
use crate::chunk::LARGE_PIECE;
use crate::chunk::ranges::RangeSet;
use crate::dest::{ExistingEntry, Readback};
use crate::digest::{Digest, of_range};
use crate::journal::record::{Finished, WrittenRange};
use crate::journal::{Journal, UnfinishedFile};
use crate::pipeline::receive::Receiver;
use crate::wire::message::{ByteRange, Message, Missing, RANGES_MAX};

/// Number of reading threads. A second thread keeps the disk busy while the first one hashes.
pub const THREADS: usize = 2;

/// Bytes that are read between two reports of progress.
const TELL_EVERY: u64 = 16 << 20;

/// Damaged ranges are requested together: at this many, or after this time.
const LOST_MAX: usize = 64;
const LOST_WAIT: Duration = Duration::from_millis(200);

/// Recorded chunks that the disk is asked to fetch before they are read.
const AHEAD: usize = 4;

/// Bytes of zeros that are read at a time.
const STEP: usize = 1 << 20;

/// Ranges of an open file that earlier sessions wrote and that were not read since.
pub struct Unread {
    /// Bytes.
    ranges: Mutex<RangeSet>,
    /// False when all ranges have been handled.
    is_open: AtomicBool,
}

impl Unread {
    /// None if there is nothing to read.
    pub fn new(ranges: RangeSet) -> Option<Unread> {
        let is_open = AtomicBool::new(true);
        let ranges = (!ranges.is_empty()).then_some(ranges)?;
        Some(Unread {
            ranges: Mutex::new(ranges),
            is_open,
        })
    }

    pub fn is_open(&self) -> bool {
        self.is_open.load(Acquire)
    }
}

/// A file that an earlier session finished.
pub struct FinishedBefore {
    pub file: Resuming,
    pub finished: Finished,
    pub standing: ExistingEntry,
    /// The record with its chunks, in case the journal has no digest of the whole file.
    pub begun: Option<UnfinishedFile>,
    /// The sender asked about this file: if it is damaged, it arrives in a pack.
    pub is_small: bool,
}

/// A file whose first bytes the disk is fetching.
struct PrefetchedFile {
    disk: Readback,
    /// False if the disk is known not to have taken the data.
    is_written: bool,
}

impl FinishedBefore {
    /// None if the file cannot be opened, or is not the recorded one any more.
    fn open(&self) -> Option<PrefetchedFile> {
        let disk = Readback::of_standing(&self.file.slot, &self.standing).ok()??;
        let is_written = disk.begin(self.file.entry.size);
        Some(PrefetchedFile { disk, is_written })
    }
}

/// Runs a reading thread until the copy ends.
pub fn verify(receiver: &Receiver) {
    let mut buffer = Vec::new();
    while let Some(check) = receiver.checks.next() {
        match check {
            Check::Open {
                file,
                begun,
                certain,
            } => receiver.verify_open(&file, &begun, &certain, &mut buffer),
            Check::Placed(placed) => receiver.verify_placed(*placed),
            Check::Small(files) => receiver.verify_small(files),
        }
    }
}

impl Receiver {
    /// Queues the unread ranges of an open file.
    pub(in crate::pipeline) fn verify_later(
        &self,
        file: Arc<OpenFile>,
        begun: UnfinishedFile,
        certain: RangeSet,
    ) {
        let check = Check::Open {
            file,
            begun,
            certain,
        };
        self.checks.add(check);
    }

    /// Queues a finished file, which counts as resuming until it was read. Reads it at once if too
    /// many files wait.
    pub(in crate::pipeline) fn verify_placed_later(&self, placed: FinishedBefore) {
        if placed.is_small && placed.file.listed.is_none() {
            let small = FinishedSmallFile::of(&placed.file.entry);
            if small.is_some_and(|small| self.checks.add_small(&small)) {
                return;
            }
        }
        if self.checks.is_full() {
            return self.verify_placed(placed);
        }
        self.checks.add(Check::Placed(Box::new(placed)));
    }

    /// Reads the unread ranges of an open file.
    fn verify_open(
        &self,
        file: &Arc<OpenFile>,
        begun: &UnfinishedFile,
        certain: &RangeSet,
        buffer: &mut Vec<u8>,
    ) {
        let (Some(unread), Some(journal)) = (&file.unread, self.journal()) else {
            return;
        };
        let partial = file.partial.lock().clone();
        let Some(partial) = partial else {
            return; // It failed meanwhile.
        };
        let readback = partial.readback().ok();
        let goes_on = || !self.ending.is_ending() && !file.closing.load(Acquire);
        let mut lost = LostRanges::default();
        buffer.resize(STEP.max(self.recorded_max()), 0);
        let mut look = |ready: Ready| {
            let Ready {
                chunk,
                is_written,
                is_certain,
            } = ready;
            let range = chunk.offset..chunk.offset + chunk.len;
            // The range may have become missing together with a neighbour.
            if !unread.ranges.lock().contains_all(range.clone()) {
                return;
            }
            let holds = is_certain
                || is_written
                    && readback
                        .as_ref()
                        .is_some_and(|disk| holds(disk, &chunk, file.entry.size, buffer));
            if !is_certain {
                if let Some(disk) = readback.as_ref().filter(|_| self.rules.drop_cache) {
                    disk.drop_cache(range.clone());
                }
                self.tell_checked(chunk.len, TELL_EVERY);
            }
            unread.ranges.lock().remove(range.clone());
            match holds {
                true => self.add_recorded(file, &chunk),
                false => lost.add(range.clone()),
            }
            if holds && !is_certain {
                journal.checked(begun.number, range);
            }
            if lost.is_due() {
                self.ask_for(file, unread, journal, &mut lost);
            }
        };
        let mut ahead = VecDeque::with_capacity(AHEAD);
        journal.replay(begun, |chunk| {
            if !goes_on() {
                return ControlFlow::Break(());
            }
            let end = chunk.offset.checked_add(chunk.len);
            let is_inside = end.is_some_and(|end| end <= file.entry.size) && chunk.len > 0;
            let range = chunk.offset..end.unwrap_or(chunk.offset);
            // Another record may cover the same range or a part of it.
            if !is_inside || !unread.ranges.lock().contains_all(range.clone()) {
                return ControlFlow::Continue(());
            }
            let is_certain = certain.contains_all(range.clone());
            let is_written = match &readback {
                _ if is_certain => true,
                Some(disk) if chunk.digest.is_some() => disk.prepare(&range),
                Some(disk) => disk.prepare_hole(&range),
                None => true,
            };
            ahead.push_back(Ready {
                chunk,
                is_written,
                is_certain,
            });
            if ahead.len() > AHEAD
                && let Some(ready) = ahead.pop_front()
            {
                look(ready);
            }
            ControlFlow::Continue(())
        });
        if !goes_on() {
            return;
        }
        ahead.into_iter().for_each(&mut look);
        // Ranges whose records could not be found in the journal.
        let left: Vec<_> = unread.ranges.lock().iter().collect();
        left.into_iter().for_each(|range| lost.add(range));
        self.ask_for(file, unread, journal, &mut lost);
        self.tell_checked(0, 1);
        // The thread that commits the file must be its only holder.
        drop(readback);
        drop(partial);
        unread.is_open.store(false, Release);
        if file.is_complete() {
            // Fails only when the copy is ending.
            self.jobs.add(Job::Close(file.clone()));
        }
    }

    /// Adds a recorded range that matches its record to the file's digest.
    fn add_recorded(&self, file: &OpenFile, chunk: &WrittenRange) {
        let Some(tree) = &file.tree else { return };
        let mut tree = tree.lock();
        match chunk.digest {
            Some(digest) => tree.add_subtree(chunk.offset, chunk.len, digest),
            None => tree.add_zeros(chunk.offset, chunk.len),
        };
    }

    /// Marks ranges that do not match their records as missing, and asks the sender for them.
    fn ask_for(&self, file: &OpenFile, unread: &Unread, journal: &Journal, lost: &mut LostRanges) {
        let ranges = std::mem::take(lost).ranges;
        if ranges.is_empty() {
            return;
        }
        // A later run must trust none of this without reading it.
        journal.doubted();
        let mut missing = RangeSet::new();
        {
            let mut claims = file.claims.lock();
            for range in ranges.iter() {
                let start = range.start / self.grain * self.grain;
                let end = range.end.next_multiple_of(self.grain).min(file.entry.size);
                if let Ok(range) = claims.forget(start..end) {
                    unread.ranges.lock().remove(range.clone());
                    missing.insert(range);
                }
            }
        }
        self.progress.add_damaged(missing.count());
        let spans: Vec<ByteRange> = missing.iter().map(span).collect();
        for spans in spans.chunks(RANGES_MAX) {
            self.say(Message::Missing(Missing {
                entry: file.entry.id,
                spans: spans.to_vec(),
            }));
        }
    }

    /// Reads small finished files. The disk starts to fetch all of them before the first one is
    /// read.
    fn verify_small(&self, files: Vec<FinishedSmallFile>) {
        let mut intact = Vec::with_capacity(files.len());
        let begun = files
            .into_iter()
            .filter_map(|small| self.begin_small(small));
        for (placed, disk) in begun.collect::<Vec<_>>() {
            // The first attempt may have failed because the other files used all descriptors.
            let disk = disk.or_else(|| placed.open());
            let is_as_recorded = disk.is_some_and(|disk| self.reads_as_recorded(&placed, &disk));
            match is_as_recorded {
                true => intact.push(placed),
                false => self.small_is_damaged(&placed.file),
            }
        }
        if self.checks.is_idle() {
            // Reported before the copy may be complete.
            self.tell_checked(0, 1);
        }
        if let Some(journal) = self.journal() {
            // For a later session of this command.
            let records: Vec<_> = intact.iter().map(|placed| placed.finished).collect();
            journal.finished(&records);
        }
        intact.into_iter().for_each(|file| self.placed_stays(file));
    }

    /// Makes the disk fetch a small finished file, if it still exists.
    fn begin_small(
        &self,
        small: FinishedSmallFile,
    ) -> Option<(FinishedBefore, Option<PrefetchedFile>)> {
        if self.ending.is_ending() || self.table.lock().is_accounted(small.id) {
            return None;
        }
        // A directory stays in the table until its contents are settled or the copy ends.
        let file = self.describe(small)?;
        let Some((finished, standing)) = self.still_stands(&file) else {
            self.small_is_damaged(&file);
            return None;
        };
        let placed = FinishedBefore {
            file,
            finished,
            standing,
            begun: None,
            is_small: true,
        };
        let disk = placed.open();
        Some((placed, disk))
    }

    /// Requests a small file that was found damaged; it is sent like a missing one.
    fn small_is_damaged(&self, file: &Resuming) {
        if self.ending.is_ending() {
            return;
        }
        let (id, size) = (file.entry.id, file.entry.size);
        self.tell_checked(0, 1);
        if let Some(journal) = self.journal() {
            journal.doubted();
            journal.forget_finished(&file.path);
        }
        if !self.table.lock().end_resuming(id) {
            return;
        }
        self.progress.add_resumed(size);
        self.progress.add_damaged(size);
        let spans = vec![span(0..size)];
        self.say(Message::Missing(Missing { entry: id, spans }));
    }

    /// Reads a finished file. If it matches its record, it is in place; otherwise it is sent again.
    fn verify_placed(&self, placed: FinishedBefore) {
        if self.ending.is_ending() || self.table.lock().is_accounted(placed.file.entry.id) {
            return;
        }
        let is_as_recorded = self.is_as_recorded(&placed);
        if self.checks.is_idle() {
            // Reported before the copy may be complete.
            self.tell_checked(0, 1);
        }
        if is_as_recorded {
            if let Some(journal) = self.journal() {
                // For a later session of this command.
                journal.finished(&[placed.finished]);
            }
            return self.placed_stays(placed);
        }
        if placed.is_small {
            return self.small_is_damaged(&placed.file);
        }
        if self.ending.is_ending() {
            return;
        }
        if let Some(journal) = self.journal() {
            journal.doubted();
        }
        let entry = &placed.file.entry;
        let (id, parent, size) = (entry.id, entry.parent, entry.size);
        self.progress.add_resumed(size);
        self.progress.add_damaged(size);
        match self.begin(placed.file, 0) {
            Ok(_) => {
                let spans = vec![ByteRange {
                    start: 0,
                    end: size,
                }];
                self.say(Message::Missing(Missing { entry: id, spans }));
            }
            Err(error) => self.fail(id, parent, &error),
        }
    }

    /// Accounts for a file that is as an earlier session left it.
    pub(in crate::pipeline) fn placed_stays(&self, placed: FinishedBefore) {
        self.found_in_place(placed.file, placed.finished.digest, Some(&placed.standing));
    }

    /// Reads a finished file and compares it with its record. An unreadable file does not match.
    pub(in crate::pipeline) fn is_as_recorded(&self, placed: &FinishedBefore) -> bool {
        let disk = placed.open();
        disk.is_some_and(|disk| self.reads_as_recorded(placed, &disk))
    }

    fn reads_as_recorded(&self, placed: &FinishedBefore, whole: &PrefetchedFile) -> bool {
        let PrefetchedFile { disk, is_written } = whole;
        let size = placed.file.entry.size;
        let checked = |len| {
            self.tell_checked(len, TELL_EVERY);
            !self.ending.is_ending()
        };
        match (placed.finished.digest, &placed.begun) {
            (Some(digest), _) => {
                let found = disk.digest(size, *is_written, checked);
                if self.rules.drop_cache {
                    disk.drop_cache(0..size);
                }
                matches!(found, Ok(found) if found == Some(digest))
            }
            (None, Some(begun)) => self.has_chunks(disk, begun, size, checked),
            (None, None) => false,
        }
    }

    /// True if the recorded chunks cover the whole file and match it.
    fn has_chunks(
        &self,
        disk: &Readback,
        begun: &UnfinishedFile,
        size: u64,
        mut checked: impl FnMut(u64) -> bool,
    ) -> bool {
        let Some(journal) = self.journal() else {
            return false;
        };
        let mut buffer = vec![0; STEP.max(self.recorded_max())];
        let mut found = RangeSet::new();
        journal.replay(begun, |chunk| {
            let Some(end) = chunk.offset.checked_add(chunk.len) else {
                return ControlFlow::Break(());
            };
            let range = chunk.offset..end;
            let is_new = !found.contains_all(range.clone());
            if is_new {
                let is_written = match chunk.digest {
                    Some(_) => disk.prepare(&range),
                    None => disk.prepare_hole(&range),
                };
                // A damaged range may have been sent again and therefore recorded twice.
                if is_written && holds(disk, &chunk, size, &mut buffer) {
                    found.insert(range);
                }
            }
            match checked(chunk.len) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        found.is_full(size)
    }

    /// Bytes of the longest piece that is recorded with a digest.
    pub(in crate::pipeline) fn recorded_max(&self) -> usize {
        LARGE_PIECE * self.chunk_size as usize
    }

    /// Counts `bytes` as read. Reports to the other end, which may show the progress, after every
    /// `every` bytes.
    pub(in crate::pipeline) fn tell_checked(&self, bytes: u64, every: u64) {
        use std::sync::atomic::Ordering::Relaxed;
        let all = self.progress.add_checked(bytes);
        if self.checks.untold.fetch_add(bytes, Relaxed) + bytes >= every {
            self.checks.untold.store(0, Relaxed);
            self.say(Message::Checked(all));
        }
    }
}

struct Ready {
    chunk: WrittenRange,
    /// False if the disk is known not to have taken the data written there.
    is_written: bool,
    /// The range need not be read.
    is_certain: bool,
}

/// Ranges to be requested.
#[derive(Default)]
struct LostRanges {
    ranges: RangeSet,
    since: Option<Instant>,
}

impl LostRanges {
    fn add(&mut self, range: Range<u64>) {
        self.ranges.insert(range);
        self.since.get_or_insert_with(Instant::now);
    }

    fn is_due(&self) -> bool {
        let waited = self.since.is_some_and(|since| since.elapsed() >= LOST_WAIT);
        waited || self.ranges.fragments() >= LOST_MAX
    }
}

/// Reads a recorded range of the file and compares it with the record.
pub(in crate::pipeline) fn holds(
    disk: &Readback,
    chunk: &WrittenRange,
    size: u64,
    buffer: &mut [u8],
) -> bool {
    let range = chunk.offset..chunk.offset.saturating_add(chunk.len);
    if chunk.len == 0 || range.end > size {
        return false;
    }
    let Some(digest) = chunk.digest else {
        return holds_zeros(disk, range, buffer);
    };
    let Some(data) = buffer.get_mut(..chunk.len as usize) else {
        return false;
    };
    disk.read(data, chunk.offset).is_ok() && digest_of(data, chunk, size) == digest
}

fn digest_of(data: &[u8], chunk: &WrittenRange, size: u64) -> Digest {
    of_range(data, chunk.offset, chunk.len == size)
}

fn holds_zeros(disk: &Readback, mut range: Range<u64>, buffer: &mut [u8]) -> bool {
    while let Some(data) = disk.data_in(range.clone()) {
        let step = (data.end - data.start).min(buffer.len() as u64);
        let found = &mut buffer[..step as usize];
        if disk.read(found, data.start).is_err() || found.iter().any(|&byte| byte != 0) {
            return false;
        }
        range.start = data.start + step;
        if range.is_empty() {
            break;
        }
    }
    true
}
