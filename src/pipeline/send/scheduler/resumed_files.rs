//! Files that the receiver has from an earlier session and verifies while other files are sent. No
//! file is kept open for them here. If the receiver finds damage, the file is opened and sent
//! again.

use std::sync::Arc;

use super::chores::Discarded;
use super::{AnnouncedFile, NextTask, ReadyChunk, ResumedFile, Scheduler, SchedulerState};
use crate::chunk::ranges::RangeSet;
use crate::digest::Digest;
use crate::manifest::{Entry, EntryId};
use crate::pipeline::send::plan::SendFile;

/// The receiver asked for bytes that it never said it has.
#[derive(Debug)]
pub struct NotHad;

impl Scheduler {
    /// The receiver says that it has all `size` bytes of an announced file, or of a small file
    /// that it was asked about. Keeps only a description, for most small files even less, and
    /// returns the entry. None for other entries.
    pub fn hold(&self, entry: EntryId, size: u64, digest: Option<Digest>) -> Option<Entry> {
        let mut state = self.state.lock();
        let is_announced = match (state.open.get(&entry), state.asked.get(&entry)) {
            (Some(AnnouncedFile::Announced(it)), _) if it.source.found().entry.size == size => true,
            (None, Some(member)) if member.found.entry.size == size => false,
            _ => return None,
        };
        let (found, listed) = if is_announced {
            match state.open.remove(&entry)? {
                AnnouncedFile::Announced(it) => {
                    let found = it.source.found().clone();
                    state.discarded.push(Discarded::Source(it.source));
                    (found, it.listed)
                }
                _ => return None,
            }
        } else {
            let member = state.asked.remove(&entry)?;
            (member.found, member.listed)
        };
        let described = found.entry.clone();
        let is_small = !is_announced;
        if is_small && listed.is_none() && state.kept.add(&found) {
            state.announced.lighten(entry);
            drop(state);
            // The walk may have room. There is nothing to send.
            self.changed.wake_all();
            return Some(described);
        }
        let held = ResumedFile {
            found,
            listed,
            digest,
            is_small,
            missing: None,
        };
        state.held.insert(entry, held);
        drop(state);
        self.wake();
        Some(described)
    }

    /// The receiver asks for ranges that it said it has. Returns how many bytes of the file count
    /// as resumed from now on; None if the file has failed in the meantime. `Err` if it never said
    /// so.
    pub fn missing(&self, entry: EntryId, ranges: RangeSet) -> Result<Option<u64>, NotHad> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let asked = if let Some(size) = state.kept.size(entry) {
            // Small files are sent whole.
            let is_all = ranges.iter().eq(std::iter::once(0..size));
            if !is_all || !state.kept.set_damaged(entry) {
                return Err(NotHad);
            }
            state.damaged.push_back(entry);
            Ok(Some(size))
        } else if let Some(held) = state.held.get_mut(&entry) {
            let all = held.missing.get_or_insert_default();
            let is_first = all.is_empty();
            let size = held.found.entry.size;
            let are_new = ranges
                .iter()
                .all(|range| range.end <= size && !all.contains_any(range));
            all.extend(ranges.iter());
            match held.is_small {
                true if is_first => state.damaged.push_back(entry),
                false if is_first => state.reopen.push_back(entry),
                _ => {}
            }
            let had = if is_first { size } else { 0 };
            are_new.then_some(Some(had)).ok_or(NotHad)
        } else {
            match state.open.get(&entry).map(AnnouncedFile::sending) {
                Some(Some(file)) => state.take_back(&file, &ranges).map(|()| Some(0)),
                // If it is being opened, the ranges wait. Otherwise the request is out of date.
                Some(None) => {
                    let is_opened =
                        matches!(state.open.get(&entry), Some(AnnouncedFile::Reopening));
                    if is_opened {
                        state.late.entry(entry).or_default().extend(ranges.iter());
                    }
                    Ok(is_opened.then_some(0))
                }
                // It has failed in the meantime.
                None => Ok(None),
            }
        };
        self.wake();
        asked
    }

    /// Sends a held file that was opened again.
    pub fn reopened(&self, entry: EntryId, file: Arc<SendFile>) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if !matches!(state.open.get(&entry), Some(AnnouncedFile::Reopening)) {
            return; // It failed at the receiver meanwhile.
        }
        state
            .open
            .insert(entry, AnnouncedFile::Sending(file.clone()));
        state.fresh.push_back(ReadyChunk::File(file.clone()));
        if let Some(ranges) = state.late.remove(&entry) {
            // Ranges that the receiver does not have are ignored.
            let _ = state.take_back(&file, &ranges);
        }
        self.wake();
    }
}

impl AnnouncedFile {
    fn sending(&self) -> Option<Arc<SendFile>> {
        match self {
            AnnouncedFile::Sending(file) => Some(file.clone()),
            _ => None,
        }
    }
}

impl SchedulerState {
    /// True if a damaged file may be opened. The limit on open files is the same as for
    /// announcements.
    pub(super) fn may_reopen(&self) -> bool {
        !self.reopen.is_empty() && self.open.len() < self.open_max
    }

    pub(super) fn next_to_reopen(&mut self) -> Option<NextTask> {
        while self.may_reopen() {
            let entry = self.reopen.pop_front()?;
            // It may have failed at the receiver in the meantime.
            let Some(mut held) = self.held.remove(&entry) else {
                continue;
            };
            let missing = held.missing.take().unwrap_or_default();
            self.open.insert(entry, AnnouncedFile::Reopening);
            return Some(NextTask::Reopen(Box::new(held), missing));
        }
        None
    }

    fn take_back(&mut self, file: &Arc<SendFile>, ranges: &RangeSet) -> Result<(), NotHad> {
        file.take_back(ranges).ok_or(NotHad)?;
        if !self.is_planned(file) {
            self.fresh.push_back(ReadyChunk::File(file.clone()));
        }
        Ok(())
    }

    /// True if the rest of a file is planned. Planned twice, it would end early.
    pub(super) fn is_planned(&self, file: &Arc<SendFile>) -> bool {
        let is_this =
            |fresh: &ReadyChunk| matches!(fresh, ReadyChunk::File(it) if Arc::ptr_eq(it, file));
        self.fresh.iter().any(is_this)
    }
}
