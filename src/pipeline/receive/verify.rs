//! Verification of the data that earlier sessions wrote, on separate threads and while the missing
//! chunks are on their way. A file gets its name only after this. Data that this command wrote or
//! read before it lost its connection is not read again.
//!
//! A range that does not match its record becomes missing: the receiver asks the sender for it
//! ([`Message::Missing`]), and its chunks arrive like any others.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::checks::{Check, FinishedSmallFile};
use super::entry_table::Location;
use super::open_file::{IncomingFile, OpenFile, Unread};
use super::recorded::{
    FinishedBefore, PrefetchedFile, REPORT_EVERY, buffer_len, find_finished_by, holds,
    reads_as_recorded,
};
use super::restored::span;
use super::resume::Resume;
use crate::chunk::ranges::RangeSet;
use crate::journal::record::WrittenRange;
use crate::journal::{Journal, UnfinishedFile};
use crate::manifest::{Entry, EntryKind};
use crate::wire::message::{ByteRange, Message, Missing, RANGES_MAX};

/// Number of reading threads. A second thread keeps the disk busy while the first one hashes.
pub const THREADS: usize = 2;

/// Damaged ranges are requested together: at this many, or after this time.
const LOST_MAX: usize = 64;
const LOST_WAIT: Duration = Duration::from_millis(200);

/// Recorded chunks that the disk is asked to fetch before they are read.
const AHEAD: usize = 4;

impl Resume {
    /// Runs a reading thread until the copy ends.
    pub fn verify(&self) {
        let mut buffer = Vec::new();
        while let Some(check) = self.checks.next() {
            match check {
                Check::Open {
                    file,
                    begun,
                    certain,
                } => self.verify_open(&file, &begun, &certain, &mut buffer),
                Check::Placed(placed) => self.verify_placed(*placed),
                Check::Small(files) => self.verify_small(files),
            }
        }
    }

    /// Reads the unread ranges of an open file.
    fn verify_open(
        &self,
        file: &Arc<OpenFile>,
        begun: &UnfinishedFile,
        certain: &RangeSet,
        buffer: &mut Vec<u8>,
    ) {
        let unread = file.partial_file().and_then(|file| file.unread.as_ref());
        let (Some(unread), Some(journal)) = (unread, self.entries().journal()) else {
            return;
        };
        let Some(partial) = file.partial() else {
            return; // The file has failed.
        };
        let readback = partial.readback().ok();
        let goes_on = || !self.context().is_ending() && !file.is_closing();
        let mut lost = LostRanges::default();
        buffer.resize(buffer_len(self.context()), 0);
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
                if let Some(disk) = readback
                    .as_ref()
                    .filter(|_| self.entries().rules.drop_cache)
                {
                    disk.drop_cache(range.clone());
                }
                self.entries().report.checked(chunk.len, REPORT_EVERY);
            }
            unread.ranges.lock().remove(range.clone());
            match holds {
                true => file.add_range_to_tree(chunk.offset, chunk.len, chunk.digest),
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
        self.entries().report.checked(0, 1);
        // The thread that commits the file must be its only holder.
        drop(readback);
        drop(partial);
        unread.close();
        if file.is_complete() {
            self.files.close_later(file.clone());
        }
    }

    /// Marks ranges that do not match their records as missing, and asks the sender for them.
    fn ask_for(&self, file: &OpenFile, unread: &Unread, journal: &Journal, lost: &mut LostRanges) {
        let ranges = std::mem::take(lost).ranges;
        if ranges.is_empty() {
            return;
        }
        // A later run must trust none of this without reading it.
        journal.doubted();
        let grain = self.context().agreed.grain;
        let mut missing = RangeSet::new();
        {
            let mut claims = file.claims.lock();
            for range in ranges.iter() {
                let start = range.start / grain * grain;
                let end = range.end.next_multiple_of(grain).min(file.entry.size);
                if let Ok(range) = claims.forget(start..end) {
                    unread.ranges.lock().remove(range.clone());
                    missing.insert(range);
                }
            }
        }
        self.context().progress.add_damaged(missing.count());
        let spans: Vec<ByteRange> = missing.iter().map(span).collect();
        for spans in spans.chunks(RANGES_MAX) {
            self.context().say(Message::Missing(Missing {
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
            let is_as_recorded =
                disk.is_some_and(|disk| reads_as_recorded(self.entries(), &placed, &disk));
            match is_as_recorded {
                true => intact.push(placed),
                false => self.small_is_damaged(&placed.file),
            }
        }
        if self.checks.is_idle() {
            // Reported before the copy may be complete.
            self.entries().report.checked(0, 1);
        }
        if let Some(journal) = self.entries().journal() {
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
        if self.context().is_ending() || self.entries().table().is_accounted(small.id) {
            return None;
        }
        // A directory stays in the table until its contents are settled or the copy ends.
        let file = self.describe(small)?;
        // Its source was compared when the sender asked. A file that cannot be checked is sent, and
        // fails then for the same reason.
        let Ok(Some(found)) = find_finished_by(self.entries(), &file, |_| true) else {
            self.small_is_damaged(&file);
            return None;
        };
        let placed = found.small(file);
        let disk = placed.open();
        Some((placed, disk))
    }

    /// The description of a small file that was in place when the sender asked, to read it now.
    /// None if its directory is not known any more.
    fn describe(&self, small: FinishedSmallFile) -> Option<IncomingFile> {
        let FinishedSmallFile {
            id,
            parent,
            name,
            size,
            has_links,
        } = small;
        let is_listing = self.entries().is_listing();
        let table = self.entries().table();
        let path = table.path_of(id, parent, &name)?;
        let Location::Slot(slot, listed) = table.locate(id, parent, &name, is_listing) else {
            return None;
        };
        drop(table);
        let entry = Entry {
            size: size.into(),
            allocated: size.into(),
            links: 1 + u64::from(has_links),
            ..Entry::new(id, parent, name, EntryKind::File)
        };
        Some(IncomingFile {
            entry,
            slot,
            listed,
            path,
        })
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
