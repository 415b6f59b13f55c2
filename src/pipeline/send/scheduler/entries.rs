//! Entries at the sender, and which are settled: big files from their announcement until they are
//! in place, and small files that the receiver is asked about.

use std::ops::Range;
use std::sync::Arc;

use super::resumed_small_files::Sum;
use super::{
    AnnouncedFile, Ended, ReadyChunk, ResumedFile, Scheduler, SchedulerState,
    UNSETTLED_ENTRIES_MAX, Unanswered,
};
use crate::manifest::EntryId;
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::plan::{PackMember, SendFile, SendPipe};
use crate::source::{FoundFile, SourceFile};

/// The state of an entry when it was closed.
pub enum EntryAtClose {
    /// Announced, without an answer.
    Announced(Box<SourceFile>),
    Sending(Arc<SendFile>),
    Pipe(Arc<SendPipe>),
    /// The receiver did not want it. `size` is in bytes.
    Skipped {
        size: u64,
    },
    /// The receiver already had it.
    Held(Box<ResumedFile>),
}

/// What is left to do for entries that were just settled.
pub struct Settled {
    /// Entries to be closed: big files, and small files that the receiver was asked about.
    pub open: Vec<EntryId>,
    /// The other small files that the receiver already had.
    pub kept: Sum,
}

impl Scheduler {
    /// Adds a big file that is about to be announced. Waits while too many are open, and calls
    /// `before` before such a wait.
    pub fn announce(
        &self,
        entry: EntryId,
        source: SourceFile,
        listed: Option<ListedPath>,
        before: impl FnOnce() -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        // A file that is not closed yet still has a descriptor.
        let has_room = |state: &SchedulerState| {
            state.open.len() + state.discarded.len() + state.closing < state.open_max
        };
        if !has_room(&self.state.lock()) {
            before()?;
        }
        let mut state = self.wait_until(has_room)?;
        state.open.insert(entry, announced(source, listed));
        Ok(())
    }

    /// Like [`announce`](Scheduler::announce), but never waits. For workers, since the files that are
    /// open may wait for a worker.
    pub fn announce_now(&self, entry: EntryId, source: SourceFile, listed: Option<ListedPath>) {
        self.state
            .lock()
            .open
            .insert(entry, announced(source, listed));
    }

    /// Like [`announce_now`](Scheduler::announce_now), for a second reading. Drops all plans of the
    /// first reading. Returns the lowest chunk number that the second reading may use; None if the
    /// file is no longer being sent.
    pub fn announce_anew(
        &self,
        entry: EntryId,
        source: SourceFile,
        listed: Option<ListedPath>,
    ) -> Option<u64> {
        let mut state = self.state.lock();
        if !matches!(state.open.get(&entry), Some(AnnouncedFile::Sending(_))) {
            return None;
        }
        state.forget(entry);
        let announced = Unanswered {
            source: Box::new(source),
            listed,
            anew: true,
        };
        state
            .open
            .insert(entry, AnnouncedFile::Announced(announced));
        let first = state.next_chunk;
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
        let announced = match state.open.remove(&entry) {
            Some(AnnouncedFile::Announced(announced)) => announced,
            Some(other) => {
                state.open.insert(entry, other);
                return Ok(None);
            }
            None => return Ok(None),
        };
        let file = Arc::new(make(announced)?);
        state
            .open
            .insert(entry, AnnouncedFile::Sending(file.clone()));
        state.fresh.push_back(ReadyChunk::File(file.clone()));
        drop(state);
        self.wake();
        Ok(Some(file))
    }

    /// The number of ranges that the receiver named, over all files that are being sent.
    pub fn ranges(&self) -> usize {
        let ranges = |open: &AnnouncedFile| match open {
            AnnouncedFile::Sending(file) => file.ranges,
            _ => 0,
        };
        self.state.lock().open.values().map(ranges).sum()
    }

    /// Handles the answer that this file is not wanted: it is in place or failed, as a later
    /// message will say. Keeps only its size. Returns the source if the file was announced.
    pub fn skip(&self, entry: EntryId) -> Option<Box<SourceFile>> {
        let mut state = self.state.lock();
        let open = state.open.get_mut(&entry)?;
        let AnnouncedFile::Announced(Unanswered { source, .. }) = open else {
            return None;
        };
        let size = source.found().entry.size;
        match std::mem::replace(open, AnnouncedFile::Skipped { size }) {
            AnnouncedFile::Announced(announced) => Some(announced.source),
            _ => None,
        }
    }

    /// Adds small files that the receiver is about to be asked about.
    pub fn ask(&self, members: Vec<PackMember>) {
        let members = members
            .into_iter()
            .map(|member| (member.found.entry.id, member));
        self.state.lock().asked.extend(members);
    }

    /// Moves small files that the receiver wants into packs. Ignores entries that it was not asked
    /// about.
    pub fn want_small(&self, entries: impl Iterator<Item = EntryId>) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.asked.is_empty() {
            return;
        }
        for entry in entries {
            let Some(member) = state.asked.remove(&entry) else {
                continue;
            };
            let (size, name_len) = (member.found.entry.size, member.found.name.as_bytes().len());
            if let Some(pack) = state.answered.add(member, size, name_len) {
                state.fresh.push_back(ReadyChunk::Pack(Arc::new(pack)));
            }
        }
        self.wake();
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
        // A hard link to an operand comes last, with a low number.
        let has_room = |state: &SchedulerState| {
            let counted = state.settled.count() + state.kept.count();
            entry.saturating_sub(counted) <= UNSETTLED_ENTRIES_MAX
                // Each gap takes memory here and at the receiver.
                && state.settled.fragments() as u64 <= UNSETTLED_ENTRIES_MAX
                && state.announced.has_room()
                && state.kept.has_room()
        };
        let mut state = self.state.lock();
        state.highest = state.highest.max(entry);
        let is_roomy = has_room(&state);
        drop(state);
        if is_roomy {
            return Ok(true);
        }
        before()?;
        let state = self.wait_until(|state| has_room(state) || !state.outgrown.is_empty())?;
        Ok(has_room(&state))
    }

    /// Adds a file of unknown size that had no room in its pack.
    pub fn outgrow(&self, found: FoundFile, listed: Option<ListedPath>) {
        self.state.lock().outgrown.push((found, listed));
        self.wake();
    }

    /// Takes the files added by [`outgrow`](Scheduler::outgrow).
    pub fn take_outgrown(&self) -> Vec<(FoundFile, Option<ListedPath>)> {
        std::mem::take(&mut self.state.lock().outgrown)
    }

    /// True if the walk has reached this number. The receiver cannot know of later entries.
    pub fn is_met(&self, entry: EntryId) -> bool {
        entry <= self.state.lock().highest
    }

    /// Ends the walk. No entry has a number in `unused`.
    pub fn end_planning(&self, unused: impl Iterator<Item = Range<EntryId>>) {
        let mut state = self.state.lock();
        for range in unused {
            state.settled.insert(range);
        }
        state.planned = true;
    }

    /// True if the walk is over, every chunk is acknowledged, and every entry is in place or
    /// failed.
    pub fn is_done(&self) -> bool {
        let state = self.state.lock();
        state.planned && state.is_idle() && state.settled.contains_all(1..state.highest + 1)
    }

    /// Records that these entries are in place or failed.
    pub fn settle_entries(&self, entries: Range<EntryId>) -> Settled {
        let mut state = self.state.lock();
        state.settled.insert(entries.clone());
        let SchedulerState {
            announced, settled, ..
        } = &mut *state;
        announced.settle(entries.clone(), settled);
        let kept = state.kept.settle(entries.clone());
        let open = state.open.keys().filter(|id| entries.contains(id));
        let asked = state.asked.range(entries.clone()).map(|(id, _)| id);
        let held = state.held.range(entries.clone()).map(|(id, _)| id);
        let open = open.chain(asked).chain(held).copied().collect();
        drop(state);
        self.wake();
        Settled { open, kept }
    }

    /// Records a failed entry, for its pack and for its hard links.
    pub fn entry_failed(&self, entry: EntryId) {
        self.state.lock().failed.insert_one(entry);
        self.settle_entries(entry..entry + 1);
    }

    /// Records entries that failed along with their directory, for their packs and their hard
    /// links.
    pub fn entries_lost(&self, entries: Range<EntryId>) {
        self.state.lock().failed.insert(entries);
    }

    pub fn has_failed(&self, entry: EntryId) -> bool {
        self.state.lock().failed.contains(entry)
    }

    /// Closes an entry that is in place or failed, so that nothing more of it is sent. None if it
    /// is not open.
    pub fn close(&self, entry: EntryId) -> Option<EntryAtClose> {
        let mut state = self.state.lock();
        let closed = match state.open.remove(&entry) {
            Some(AnnouncedFile::Announced(announced)) => EntryAtClose::Announced(announced.source),
            Some(AnnouncedFile::Skipped { size }) => EntryAtClose::Skipped { size },
            Some(AnnouncedFile::Sending(file)) => {
                state.forget(entry);
                EntryAtClose::Sending(file)
            }
            Some(AnnouncedFile::Pipe(pipe, _)) => {
                state.forget(entry);
                // Ends any wait for the producer. At the end of a pipe there is none.
                pipe.stop.set();
                EntryAtClose::Pipe(pipe)
            }
            Some(AnnouncedFile::Reopening) => {
                state.late.remove(&entry);
                EntryAtClose::Skipped { size: 0 }
            }
            None => match state.held.remove(&entry) {
                Some(held) => EntryAtClose::Held(Box::new(held)),
                None => {
                    let size = state.asked.remove(&entry)?.found.entry.size;
                    EntryAtClose::Skipped { size }
                }
            },
        };
        drop(state);
        self.wake();
        Some(closed)
    }
}

fn announced(source: SourceFile, listed: Option<ListedPath>) -> AnnouncedFile {
    AnnouncedFile::Announced(Unanswered {
        source: Box::new(source),
        listed,
        anew: false,
    })
}

impl SchedulerState {
    /// Drops all plans of a big file or pipe.
    fn forget(&mut self, entry: EntryId) {
        self.fresh
            .retain(|fresh| !matches!(fresh, ReadyChunk::File(file) | ReadyChunk::Piece(file, _) if file.found.entry.id == entry));
        self.parts.retain(|plan| !plan.is_of(entry));
        self.again.retain(|_, plan| !plan.is_of(entry));
        self.in_flight
            .retain(|_, in_flight| !in_flight.plan.is_of(entry));
    }
}
