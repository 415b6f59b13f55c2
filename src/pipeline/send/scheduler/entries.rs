//! The entries in the scheduler: big files and pipes from their announcement until they are in
//! place, and small files that the receiver is asked about.

use std::ops::Range;
use std::sync::Arc;

use super::kept::Sum;
use super::open_files::{Chores, Discarded, EntryAtClose, NotHad, Requested, Unanswered};
use super::removable::Removals;
use super::{Ended, Scheduler, SchedulerState};
use crate::chunk::ranges::RangeSet;
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::{Entry, EntryId};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::plan::{PackMember, SendFile, SendPipe};
use crate::source::{CopiedFile, FoundFile, SourceFile};
use crate::wire::message::EntryEnd;

/// A file that the receiver does not change.
pub struct LeftFile {
    pub found: Entry,
    /// Set for a big file, which was open.
    pub source: Option<Box<SourceFile>>,
}

/// The remaining work for entries that were just settled.
pub struct Settled {
    /// Entries to be closed: big files, and small files that the receiver was asked about.
    pub open: Vec<EntryId>,
    /// The other small files that the receiver already had.
    pub kept: Sum,
}

impl Scheduler {
    /// Begins the walk. Numbers below `first` belong to operands.
    pub fn begin_walk(&self, first: EntryId) {
        self.state.lock().entries.begin_walk(first);
    }

    /// The part of a limit of `bytes` for one of the hosts that get the copy.
    pub fn share_of(&self, bytes: usize) -> usize {
        self.state.lock().entries.share_of(bytes)
    }

    /// Waits until `entry` may be announced: until few enough entries are unsettled and few enough
    /// bytes announced. Calls `before` before such a wait, since unannounced entries cannot
    /// settle. Small files that the receiver already has count by their bytes only. False if files
    /// that have outgrown their packs must be sent first, since nothing else may settle before.
    pub fn wait_entry_room(
        &self,
        entry: EntryId,
        before: impl FnOnce() -> Result<(), Ended>,
    ) -> Result<bool, Ended> {
        let has_room = |state: &SchedulerState| {
            state.entries.has_room(state.asked.kept_count())
                && state.asked.has_room()
                && state.removable.has_room()
        };
        let mut state = self.state.lock();
        state.entries.meet(entry);
        let is_roomy = has_room(&state);
        drop(state);
        if is_roomy {
            return Ok(true);
        }
        before()?;
        let state = self.wait_in_walk(|state| has_room(state) || state.entries.has_outgrown())?;
        Ok(has_room(&state))
    }

    /// Counts entries that are about to be announced.
    pub fn announcing(&self, entries: &[Entry]) {
        self.state.lock().entries.announce(entries);
    }

    /// The ends of these directories are about to be sent.
    pub fn ending(&self, ends: &[EntryEnd]) {
        self.state.lock().entries.end_directories(ends);
    }

    /// Adds a big file that is about to be announced. Waits while too many are open, and calls
    /// `before` before such a wait.
    pub fn announce(
        &self,
        entry: EntryId,
        source: SourceFile,
        listed: Option<ListedPath>,
        before: impl FnOnce() -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        if !self.state.lock().files.has_room() {
            before()?;
        }
        let mut state = self.wait_in_walk(|state| state.files.has_room())?;
        state.files.announce(entry, source, listed);
        Ok(())
    }

    /// Like [`announce`](Scheduler::announce), but never waits. For workers, since the files that
    /// are open may wait for a worker.
    pub fn announce_now(&self, entry: EntryId, source: SourceFile, listed: Option<ListedPath>) {
        self.state.lock().files.announce(entry, source, listed);
    }

    /// Like [`announce_now`](Scheduler::announce_now), for a second reading. Drops all plans of the
    /// first reading. Returns the lowest chunk number that the second reading may use; None if the
    /// file is no longer being sent.
    pub fn announce_second_reading(
        &self,
        entry: EntryId,
        source: SourceFile,
        listed: Option<ListedPath>,
    ) -> Option<u64> {
        let mut state = self.state.lock();
        let copied = CopiedFile::of(source.found());
        if !state.files.announce_again(entry, source, listed) {
            return None;
        }
        state.removable.refresh(entry, copied);
        state.forget(entry);
        let first = state.chunks.next_number();
        drop(state);
        self.wake();
        Some(first)
    }

    /// Handles the answer that the receiver wants this file's content or digest. None if the file
    /// was not announced.
    ///
    /// # Errors
    /// The error of `make`. The file is then no longer open.
    pub fn want<E>(
        &self,
        entry: EntryId,
        make: impl FnOnce(Unanswered) -> Result<SendFile, E>,
    ) -> Result<Option<Arc<SendFile>>, E> {
        let mut state = self.state.lock();
        let Some(announced) = state.files.take_announced(entry) else {
            return Ok(None);
        };
        let file = Arc::new(make(announced)?);
        state.files.send(entry, file.clone());
        state.ready.add_file(file.clone());
        drop(state);
        self.wake();
        Ok(Some(file))
    }

    /// The number of ranges that the receiver named, over all files that are being sent.
    pub fn ranges(&self) -> usize {
        self.state.lock().files.ranges()
    }

    /// Handles the answer that this file is not wanted: it is in place or failed, as a later
    /// message will say. Keeps only its size. Returns the source if the file was announced.
    pub fn skip(&self, entry: EntryId) -> Option<Box<SourceFile>> {
        self.state.lock().files.skip(entry)
    }

    /// Forgets a file that the receiver does not change, or that a dry run would copy. None if it
    /// failed here in the meantime. `is_placed`: further names are linked to the file there.
    /// Otherwise it is sent under the next name.
    pub fn leave(&self, entry: EntryId, is_placed: bool) -> Option<LeftFile> {
        let mut state = self.state.lock();
        let left = match state.asked.take_asked(entry) {
            Some(member) => LeftFile {
                found: member.found.entry,
                source: None,
            },
            None => {
                let source = state.files.take_announced(entry)?.source;
                LeftFile {
                    found: source.found().entry.clone(),
                    source: Some(source),
                }
            }
        };
        if left.found.links > 1 && !is_placed {
            // Under one lock, because the walk goes on when nothing is asked.
            state.entries.fail(entry..entry + 1);
        }
        drop(state);
        self.wake();
        Some(left)
    }

    /// Adds small files that the receiver is about to be asked about.
    pub fn ask(&self, members: Vec<PackMember>) {
        self.state.lock().asked.ask(members);
    }

    /// Moves small files that the receiver wants into packs. Ignores entries that it was not asked
    /// about.
    pub fn want_small(&self, entries: impl Iterator<Item = EntryId>) {
        let mut state = self.state.lock();
        if !state.asked.has_asked() {
            return;
        }
        for entry in entries {
            if let Some(member) = state.asked.take_asked(entry) {
                state.ready.gather(member);
            }
        }
        drop(state);
        self.wake();
    }

    /// The receiver says that it has all `size` bytes of an announced file, or of a small file
    /// that it was asked about. Keeps only a description, for most small files even less, and
    /// returns the entry. None for other entries.
    pub fn hold(&self, entry: EntryId, size: u64, digest: Option<Digest>) -> Option<Entry> {
        let mut state = self.state.lock();
        let (file, is_small) = match state.files.take_had(entry, size) {
            Some(file) => (file, false),
            None => (state.asked.take_had(entry, size)?, true),
        };
        let (found, listed) = &file;
        let described = found.entry.clone();
        if is_small && listed.is_none() && state.asked.keep(found) {
            state.entries.lighten(entry);
            drop(state);
            // The walk may have room. There is nothing to send.
            self.changed.wake_all();
            return Some(described);
        }
        state.files.hold(file, digest, is_small);
        drop(state);
        self.wake();
        Some(described)
    }

    /// The receiver asks for ranges that it said it has. Returns how many bytes of the file count
    /// as resumed from now on; None if the file has failed in the meantime.
    ///
    /// # Errors
    /// If it never said so.
    pub fn missing(&self, entry: EntryId, ranges: RangeSet) -> Result<Option<u64>, NotHad> {
        let mut state = self.state.lock();
        if let Some(size) = state.asked.kept_size(entry) {
            // Small files are sent whole.
            let is_all = ranges.iter().eq(std::iter::once(0..size));
            if !is_all || !state.asked.request(entry) {
                return Err(NotHad);
            }
            drop(state);
            self.wake();
            return Ok(Some(size));
        }
        let had = match state.files.request(entry, &ranges)? {
            Requested::Reopens(had) => Some(had),
            Requested::Packs(had) => {
                state.asked.add_damaged(entry);
                Some(had)
            }
            Requested::Sending(file) => {
                state.take_back(&file, &ranges)?;
                Some(0)
            }
            Requested::Gone => None,
        };
        drop(state);
        self.wake();
        Ok(had)
    }

    /// Sends a file that was opened again because the receiver found it damaged.
    pub fn reopened(&self, entry: EntryId, file: Arc<SendFile>) {
        let mut state = self.state.lock();
        // None if it has failed at the receiver in the meantime.
        let Some(late) = state.files.reopened(entry, &file) else {
            return;
        };
        state.ready.add_file(file.clone());
        if !late.is_empty() {
            // Ranges that the receiver does not have are ignored.
            let _ = state.take_back(&file, &late);
        }
        drop(state);
        self.wake();
    }

    /// Adds a pipe that is about to be announced.
    pub fn announce_pipe(&self, pipe: Arc<SendPipe>) {
        let mut state = self.state.lock();
        if state.ended {
            pipe.stop.set();
        }
        state.files.announce_pipe(pipe);
    }

    /// Handles the answer that the receiver wants this pipe. False if it is not open.
    pub fn want_pipe(&self, entry: EntryId) -> bool {
        let is_open = self.state.lock().files.want_pipe(entry);
        if is_open {
            self.wake();
        }
        is_open
    }

    /// Waits until the receiver wants this pipe. False if it failed there.
    pub fn wait_wanted(&self, entry: EntryId) -> Result<bool, Ended> {
        let state = self.wait_until(|state| !state.files.is_pipe_waiting(entry))?;
        Ok(state.files.contains(entry))
    }

    /// Wakes the thread that waits for digests, after a digest was added.
    pub fn part_digested(&self) {
        // A waiting thread checked before this lock was taken, or checks afterwards.
        drop(self.state.lock());
        self.wake();
    }

    /// Waits until the tree has the digests of all `length` bytes of a pipe. False if it failed.
    pub fn wait_digested(&self, pipe: &SendPipe, length: u64) -> Result<bool, Ended> {
        let id = pipe.entry.id;
        let is_digested = || pipe.tree.lock().end() == length;
        let state = self.wait_until(|state| !state.files.contains(id) || is_digested())?;
        Ok(state.files.contains(id))
    }

    /// Adds a file of unknown size that had no room in its pack.
    pub fn outgrow(&self, found: FoundFile, listed: Option<ListedPath>) {
        self.state.lock().entries.outgrow(found, listed);
        self.wake();
    }

    /// Takes the files added by [`outgrow`](Scheduler::outgrow).
    pub fn take_outgrown(&self) -> Vec<(FoundFile, Option<ListedPath>)> {
        self.state.lock().entries.take_outgrown()
    }

    /// True if the walk has reached this number. The receiver cannot know of later entries.
    pub fn is_met(&self, entry: EntryId) -> bool {
        self.state.lock().entries.is_met(entry)
    }

    /// Ends the walk. No entry has a number in `unused`.
    pub fn end_planning(&self, unused: impl Iterator<Item = Range<EntryId>>) {
        let mut state = self.state.lock();
        unused.for_each(|range| state.entries.skip(range));
        state.planned = true;
        drop(state);
        // The thread that removes files may be done.
        self.changed.wake_all();
    }

    /// True if the walk is over, and every entry is in place or failed. A worker may still look for the
    /// data of a file that has failed, or send a pack whose files have come in another one.
    pub fn is_done(&self) -> bool {
        let state = self.state.lock();
        state.planned && state.entries.are_all_settled()
    }

    /// Records that these entries are in place or failed.
    pub fn settle_entries(&self, entries: Range<EntryId>) -> Settled {
        let mut state = self.state.lock();
        let SchedulerState {
            entries: announced,
            removable,
            ..
        } = &mut *state;
        announced.settle(entries.clone());
        removable.settle(entries.clone(), |id| announced.has_failed(id));
        let kept = state.asked.settle(entries.clone());
        let open = state.files.within(entries.clone());
        let open = open.chain(state.asked.asked_within(entries)).collect();
        drop(state);
        self.wake();
        Settled { open, kept }
    }

    /// Adds a file that is removed when its copy is durable (`--remove-source-files`). `is_sent`: the
    /// announcement is all that is sent.
    pub fn will_remove(&self, entry: EntryId, file: CopiedFile, is_sent: bool) {
        self.state.lock().removable.add(entry, file, is_sent);
    }

    /// Records that the receiver has these entries durably, and will say that they are in place.
    pub fn durable(&self, entries: Range<EntryId>) {
        self.state.lock().removable.durable(entries);
    }

    /// Records that all of an entry was sent, or that the receiver has it.
    pub fn sent(&self, entry: EntryId) {
        self.state.lock().removable.sent(entry);
        self.changed.wake_all();
    }

    /// A file of the source is not removed after all.
    pub fn will_stay(&self, entry: EntryId) {
        self.state.lock().removable.will_stay(entry);
        self.changed.wake_all();
    }

    /// Waits for files of the source to remove.
    pub fn next_removals(&self) -> Result<Removals, Ended> {
        let is_done = |state: &SchedulerState| {
            state.planned && state.is_idle() && state.entries.are_all_settled()
        };
        let mut state =
            self.wait_until(|state| state.removable.has_some(state.planned) || is_done(state))?;
        let (is_planned, is_done) = (state.planned, is_done(&state));
        let removals = state.removable.take(is_planned, is_done);
        drop(state);
        // The walk may have room.
        self.changed.wake_all();
        Ok(removals)
    }

    /// Records a failed entry, for its pack and for its hard links.
    pub fn entry_failed(&self, entry: EntryId) {
        self.entries_lost(entry..entry + 1);
        self.settle_entries(entry..entry + 1);
    }

    /// Records entries that failed along with their directory, for their packs and their hard
    /// links.
    pub fn entries_lost(&self, entries: Range<EntryId>) {
        self.state.lock().entries.fail(entries);
    }

    pub fn has_failed(&self, entry: EntryId) -> bool {
        self.state.lock().entries.has_failed(entry)
    }

    /// Closes an entry that is in place or failed, so that nothing more of it is sent. None if it
    /// is not open.
    pub fn close(&self, entry: EntryId) -> Option<EntryAtClose> {
        let mut state = self.state.lock();
        let closed = match state.files.close(entry) {
            Some(closed) => {
                if matches!(closed, EntryAtClose::Sending(_) | EntryAtClose::Pipe(_)) {
                    state.forget(entry);
                }
                closed
            }
            None => {
                let size = state.asked.take_asked(entry)?.found.entry.size;
                EntryAtClose::Skipped { size }
            }
        };
        // Under one lock, or for a moment it would seem that not all of it was sent.
        if closed.is_whole() {
            state.removable.sent(entry);
        }
        drop(state);
        self.wake();
        Some(closed)
    }

    /// Gives a file to the thread that closes files.
    pub fn discard(&self, file: Discarded) {
        self.state.lock().files.discard(file);
        self.changed.wake_all();
    }

    /// Gives a changed file to the thread that waits until it can be read again.
    pub fn read_again(&self, file: Arc<SendFile>, error: Error) {
        self.state.lock().files.read_again(file, error);
        self.changed.wake_all();
    }

    /// Lets a worker compare a file that grew with what was read of it.
    pub fn compare_grown(&self, file: Arc<SendFile>) {
        self.state.lock().files.compare_grown(file);
        self.wake();
    }

    /// Takes the tasks of the care thread. If `waits`, waits until there is one.
    pub fn chores(&self, waits: bool) -> Result<Chores, Ended> {
        let mut state = self.wait_until(|state| !waits || state.files.has_chores())?;
        Ok(state.files.take_chores())
    }

    /// Records that so many discarded files are closed.
    pub fn were_closed(&self, files: usize) {
        if files > 0 {
            self.state.lock().files.were_closed(files);
            self.changed.wake_all();
        }
    }
}

impl SchedulerState {
    /// Drops all plans of a big file or pipe.
    fn forget(&mut self, entry: EntryId) {
        self.ready.forget(entry);
        self.chunks.forget(entry);
    }

    fn take_back(&mut self, file: &Arc<SendFile>, ranges: &RangeSet) -> Result<(), NotHad> {
        file.take_back(ranges).ok_or(NotHad)?;
        if !self.ready.is_planned(file) {
            self.ready.add_file(file.clone());
        }
        Ok(())
    }
}
