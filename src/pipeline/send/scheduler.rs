//! The scheduler: chunks to be sent, in flight, and to be retransmitted, and the entries that they
//! belong to. It keeps plans, not bytes: a chunk whose connection died is read again. Only the
//! parts of a pipe are kept.
//!
//! A chunk keeps its number for life, so that the receiver recognizes a second copy.
//!
//! Each part of the state is a separate object. The scheduler joins them under one lock, and
//! wakes the threads that wait for a change. This file has the methods for chunks, `entries` those
//! for entries.

mod announced;
mod asked_files;
mod entries;
mod in_flight;
mod kept;
mod open_files;
mod ready;
mod removable;
mod sum_questions;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use announced::AnnouncedEntries;
pub use announced::{
    ANNOUNCED_BYTES_MAX, DIRECTORIES_MAX, DIRECTORY_BYTES_MAX, UNSETTLED_ENTRIES_MAX,
};
use asked_files::AskedFiles;
pub use entries::{LeftFile, Settled};
use in_flight::ChunksInFlight;
pub use in_flight::{Taken, UNACKED_MAX};
pub use kept::Sum;
use open_files::OpenFiles;
pub use open_files::{Chores, Discarded, EntryAtClose, NotHad, ResumedFile, Unanswered};
use ready::{NextStep, NextTerms, ReadyChunks};
use removable::RemovableFiles;
pub use removable::Removals;
use sum_questions::SumQuestions;

use super::comparison::CopyComparisons;
use super::offer::NotOffered;
use super::plan::{PackMember, PipePart, Plan, PlannedContent, SendFile};
use crate::chunk::ranges::RangeSet;
use crate::digest::Digest;
use crate::error::{Error, Kind, Side};
use crate::locks::{OrderedGuard, OrderedMutex, place};
use crate::pipeline::wait_queue::WaitQueue;
use crate::source::SourceCount;
use crate::wire::message::{DifferingChunk, SumsAnswer};

/// Packs and files that are planned and not begun. Beyond this the walk waits.
const FRESH_MAX: usize = 64;

/// How often a chunk may arrive damaged before its entry fails.
pub const NACKS_MAX: u8 = 3;

/// The error for a chunk that arrives damaged however often it is sent.
pub fn damaged_too_often(side: Side) -> Error {
    let message = format!(
        "a chunk failed verification {NACKS_MAX} times; check the memory and the network hardware \
         of both hosts"
    );
    Error::new(Kind::Verify, side, message)
}

#[derive(Default)]
struct SchedulerState {
    chunks: ChunksInFlight,
    ready: ReadyChunks,
    files: OpenFiles,
    asked: AskedFiles,
    entries: AnnouncedEntries,
    removable: RemovableFiles,
    /// The walk is over, and nothing more will be planned.
    planned: bool,
    /// How small files are sent; None until the receiver says where everything lands.
    landed: Option<SmallFileMode>,
    sums: SumQuestions,
    /// How far ahead of the first unacknowledged chunk another may begin. Applies to pipes, and to
    /// all chunks if they leave the receiver in order.
    window: u64,
    ended: bool,
}

/// How small files are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallFileMode {
    /// In packs.
    Fresh,
    /// The receiver is asked first, because an earlier run may have finished them.
    Resumes,
    /// Like big files, because everything leaves the receiver in order.
    Ordered,
}

/// The next task of a worker.
pub enum NextTask {
    Chunk(Arc<Plan>),
    /// Only the end of this file is to be sent.
    End(Arc<SendFile>),
    /// These ranges of a file are to be sent again.
    Reopen(Box<ResumedFile>, RangeSet),
    /// This file has grown: are the bytes that were read still the same?
    Compare(Arc<SendFile>),
}

#[derive(Default)]
pub struct Scheduler {
    state: OrderedMutex<SchedulerState, { place::SCHEDULER }>,
    /// Where workers wait for chunks.
    work: WaitQueue,
    /// Where other threads wait.
    changed: WaitQueue,
    /// Replaces the content of spare plans.
    nothing: Arc<Vec<PackMember>>,
    /// The count of the sources, if it goes on while the copy begins.
    count: Option<Arc<SourceCount>>,
}

/// Everything that may hold files when the copy is over. Dropping this closes them.
pub struct Rest {
    _files: OpenFiles,
    _ready: ReadyChunks,
    _chunks: Vec<Arc<Plan>>,
}

/// The copy is ending.
#[derive(Debug)]
pub struct Ended;

impl Scheduler {
    /// `open_max` limits the big files open at once, and is at least one. `large_max` limits the
    /// large packs and pieces that are compressed at once. There are large pieces only if
    /// `takes_pieces`. The copy goes to `hosts` hosts.
    pub fn of(open_max: u32, large_max: usize, takes_pieces: bool, hosts: usize) -> Scheduler {
        let state = SchedulerState {
            entries: AnnouncedEntries::of(hosts),
            files: OpenFiles::of(open_max),
            ready: ReadyChunks::of(large_max, takes_pieces),
            ..SchedulerState::default()
        };
        Scheduler {
            state: OrderedMutex::new(state),
            ..Scheduler::default()
        }
    }

    /// `count` goes on while the walk waits for room.
    pub fn beside(self, count: Option<Arc<SourceCount>>) -> Scheduler {
        Scheduler { count, ..self }
    }

    /// The count of the sources, if the receiver was told the roots without the totals.
    pub fn count(&self) -> Option<Arc<SourceCount>> {
        self.count.clone()
    }

    /// Lets workers take chunks, since the receiver now knows where everything lands.
    pub fn start(&self, landed: SmallFileMode, window: usize) {
        let mut state = self.state.lock();
        (state.landed, state.window) = (Some(landed), window as u64);
        drop(state);
        if let Some(count) = &self.count {
            count.landed();
        }
        self.wake();
    }

    /// How small files are sent, if known.
    pub fn landed(&self) -> Option<SmallFileMode> {
        self.state.lock().landed
    }

    pub fn wait_landed(&self) -> Result<(), Ended> {
        self.wait_until(|state| state.landed.is_some()).map(|_| ())
    }

    /// The receiver compares sums of directories. Called before [`start`](Scheduler::start).
    pub fn sum_up(&self, key: Digest) {
        self.state.lock().sums.key = Some(key);
    }

    pub fn sum_key(&self) -> Option<Digest> {
        self.state.lock().sums.key
    }

    /// Counts questions about sums that are about to be sent.
    pub fn asking_sums(&self, count: usize) {
        self.state.lock().sums.ask(count);
    }

    /// Adds an answer about sums. False if it answers no question, or is too long.
    pub fn add_sums_answer(&self, answer: SumsAnswer) -> bool {
        let is_added = self.state.lock().sums.add_answer(answer);
        if is_added {
            self.changed.wake_all();
        }
        is_added
    }

    /// Takes the answers about sums that have come. If `waits`, waits until there is one.
    pub fn take_sums_answers(&self, waits: bool) -> Result<Vec<SumsAnswer>, Ended> {
        let is_ready = |state: &SchedulerState| !waits || state.sums.has_answers();
        let mut state = self.wait_until(is_ready)?;
        Ok(state.sums.take_answers())
    }

    /// Sets the tuner's decisions: how many chunks may be unacknowledged, up to [`UNACKED_MAX`],
    /// how many connections share the rest, and how many packs are merged.
    pub fn steer(&self, in_flight_max: u16, connections: u16, packs: u16) {
        let mut state = self.state.lock();
        state.chunks.set_max(in_flight_max.into());
        state.ready.steer(connections, packs);
        drop(state);
        self.wake();
    }

    /// Sets how many connections share the rest, until [`Scheduler::steer`] is called.
    pub fn share_among(&self, connections: u16) {
        self.state.lock().ready.share_among(connections);
    }

    /// Wakes all waiting threads. No more work is given out.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.files.stop_pipes();
        drop(state);
        if let Some(count) = &self.count {
            count.end();
        }
        self.wake();
    }

    fn wake(&self) {
        self.work.wake_all();
        self.changed.wake_all();
    }

    fn wait_until(
        &self,
        ready: impl Fn(&SchedulerState) -> bool,
    ) -> Result<OrderedGuard<'_, SchedulerState>, Ended> {
        self.wait_at(&self.changed, ready)
    }

    /// As [`wait_until`](Scheduler::wait_until), for the walk. The count of the sources goes on while
    /// it waits.
    fn wait_in_walk(
        &self,
        ready: impl Fn(&SchedulerState) -> bool,
    ) -> Result<OrderedGuard<'_, SchedulerState>, Ended> {
        let must_wait = || {
            let state = self.state.lock();
            !state.ended && !ready(&state)
        };
        let Some(count) = self.count.as_ref().filter(|_| must_wait()) else {
            return self.wait_until(ready);
        };
        count.hold(false);
        let waited = self.wait_until(ready);
        count.hold(true);
        waited
    }

    fn wait_at(
        &self,
        queue: &WaitQueue,
        ready: impl Fn(&SchedulerState) -> bool,
    ) -> Result<OrderedGuard<'_, SchedulerState>, Ended> {
        let state = queue.sleep_until(self.state.lock(), |state| state.ended || ready(state));
        if state.ended { Err(Ended) } else { Ok(state) }
    }

    /// Plans a pack. Waits while enough is planned.
    pub fn add_pack(&self, members: Vec<PackMember>) -> Result<(), Ended> {
        let mut state = self.wait_in_walk(|state| state.ready.len() < FRESH_MAX)?;
        state.ready.add_pack(members);
        drop(state);
        self.wake();
        Ok(())
    }

    /// Waits until another part may be read. Each part takes a buffer until it is acknowledged.
    pub fn wait_part_room(&self) -> Result<(), Ended> {
        let has_room = |state: &SchedulerState| {
            state.chunks.has_room_for_part() && state.chunks.is_in_window(state.window)
        };
        self.wait_until(has_room).map(drop)
    }

    /// Plans the next part of a pipe, which was just read.
    pub fn add_part(&self, part: PipePart) -> Result<(), Ended> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(Ended);
        }
        // It may have failed at the receiver in the meantime.
        if state.files.contains(part.pipe.entry.id) {
            let plan = state.chunks.number(PlannedContent::Part(Arc::new(part)));
            state.ready.add_part(plan);
        }
        drop(state);
        self.wake();
        Ok(())
    }

    /// Waits for the next task. Retransmissions come first, lowest number first.
    pub fn next(&self) -> Result<NextTask, Ended> {
        loop {
            let mut state = self.wait_at(&self.work, SchedulerState::has_work)?;
            let next = state.next();
            let has_more = state.has_work();
            drop(state);
            // One at a time: if every chunk woke all workers, most would wake for nothing.
            if has_more {
                self.work.wake_one();
            }
            // The walk may have room.
            self.changed.wake_all();
            match next {
                Some(NextWork::Task(task)) => return Ok(task),
                Some(NextWork::Look(file, from)) => self.look(file, from),
                None => {}
            }
        }
    }

    /// Looks for the next data of a file. No lock is held, since the disk may take its time.
    fn look(&self, file: Arc<SendFile>, from: u64) {
        let found = &file.source.found().entry;
        // If the file system cannot report holes, the reading reports why.
        let rest = Some(from..found.size);
        let data = file.source.next_data(from).unwrap_or(rest);
        let mut cut = file.cut.lock();
        // In the meantime the receiver may have asked for earlier ranges.
        if cut.unknown_from() == Some(from) {
            cut.set_data(data);
        }
        drop(cut);
        let mut state = self.state.lock();
        // In the meantime the file may have failed, or may be read again from its start.
        let goes_on = state.files.is_sending(&file);
        state.ready.looked(&file, goes_on);
        drop(state);
        self.wake();
    }

    /// Records that a connection took the chunk's frame.
    pub fn taken(&self, chunk: u64, connection: u16) -> Taken {
        self.state.lock().chunks.taken(chunk, connection)
    }

    /// Schedules the unacknowledged chunks of a dead connection again. Returns how many.
    pub fn connection_lost(&self, connection: u16) -> usize {
        let count = self.state.lock().chunks.connection_lost(connection);
        self.wake();
        count
    }

    /// Schedules unacknowledged chunks of these slow connections again, oldest first, at most
    /// `most`, and each a few times at most; of the connections in `newest` only the newest chunk.
    /// Does nothing while there is anything else to send. Returns how many.
    pub fn repeat(&self, slow: &[u16], newest: &[u16], most: usize) -> usize {
        let mut state = self.state.lock();
        // Chunks that leave in order may all wait for one chunk. Otherwise planned chunks can
        // begin soon.
        let is_full = !state.is_ordered() && state.has_more();
        if state.has_work() || is_full {
            return 0;
        }
        let count = state.chunks.repeat(slow, newest, most);
        drop(state);
        self.wake();
        count
    }

    /// The comparisons of all files that are sent.
    pub fn comparisons(&self) -> CopyComparisons {
        self.state.lock().chunks.comparisons().clone()
    }

    /// Schedules a chunk again that no connection took.
    pub fn put_back(&self, chunk: u64) {
        self.state.lock().chunks.put_back(chunk);
        self.wake();
    }

    /// Schedules a chunk again that arrived damaged, or whose digest or patch was refused. After
    /// [`NACKS_MAX`] damaged arrivals, the worker that takes it gives it up.
    pub fn nacked(&self, chunk: u64) {
        self.state.lock().chunks.refused(chunk);
        self.wake();
    }

    /// Schedules a chunk again of which the receiver has another version, to send what differs.
    ///
    /// # Errors
    /// If the receiver was not sent the chunk's digest.
    pub fn differs(&self, differing: DifferingChunk) -> Result<(), NotOffered> {
        self.state.lock().chunks.differs(differing)?;
        self.wake();
        Ok(())
    }

    /// Settles chunks that are done or have nothing left to send. Calls `each` for those that were
    /// in flight.
    pub fn settle_chunks(&self, mut chunks: Range<u64>, each: impl Fn(&Plan)) {
        let mut spare = None;
        loop {
            let mut state = self.state.lock();
            state.chunks.reuse(spare.take());
            let Some(mut plan) = state.chunks.settle_first(&mut chunks) else {
                break;
            };
            state.were_sent(&plan);
            drop(state);
            each(&plan);
            // The worker that took the plan may still use it.
            if let Some(unshared) = Arc::get_mut(&mut plan) {
                // That worker may have offered it since then.
                unshared.offer().anchors_answered();
                // A spare plan must not keep a file open.
                unshared.what = PlannedContent::Pack(self.nothing.clone());
                spare = Some(plan);
            }
        }
        // A worker that wakes up wakes the next one if there is more work.
        self.work.wake_one();
        self.changed.wake_all();
    }

    /// Settles what is left of the chunks when every entry is in place or failed: the packs of a large
    /// pack that was taken apart, if another copy of it has arrived. Calls `each` for them.
    pub fn settle_rest(&self, each: impl Fn(&Plan)) {
        let mut state = self.state.lock();
        for pack in state.ready.take_packs() {
            state.chunks.number(PlannedContent::Pack(pack));
        }
        drop(state);
        self.settle_chunks(0..u64::MAX, each);
    }

    /// Records that a large pack or piece is compressed, or will be taken apart.
    pub fn large_is_made(&self, chunk: u64) {
        self.state.lock().ready.large_is_made(chunk);
    }

    /// Schedules the packs of a large pack separately, or the chunks of a large piece, which must
    /// not have been sent. If the receiver has files from a large pack, it recognizes them.
    pub fn take_apart(&self, plan: &Plan, chunk_size: usize) {
        let mut state = self.state.lock();
        // Under one lock, or for a moment nothing would seem to be left to send.
        if state.chunks.settle(plan.chunk) {
            state.ready.take_apart(plan, chunk_size as u32);
        }
        drop(state);
        self.wake();
    }

    /// Ends merging, because the receiver had no memory for a large pack or it arrived damaged.
    pub fn end_large(&self) {
        self.state.lock().ready.end_large();
    }

    /// True if all chunks are settled and nothing is left to send.
    pub fn has_nothing_to_carry(&self) -> bool {
        let state = self.state.lock();
        state.planned
            && state.ready.len() == 0
            && !state.ready.is_looking()
            && state.chunks.is_empty()
            && !state.files.has_to_reopen()
            && !state.asked.has_damaged()
            && state.files.are_all_sending()
    }

    /// Waits until everything planned so far is acknowledged or failed.
    pub fn wait_idle(&self) -> Result<(), Ended> {
        self.wait_in_walk(SchedulerState::is_idle).map(|_| ())
    }

    /// True if workers have begun every chunk and none waits for a retransmission.
    pub fn is_all_taken(&self) -> bool {
        let state = self.state.lock();
        state.planned
            && !state.has_more()
            && !state.chunks.has_again()
            && !state.asked.has_asked()
            && !state.files.has_to_reopen()
            && !state.files.has_waiting()
    }

    /// Takes everything that may hold files, when the copy is over.
    pub fn take_rest(&self) -> Rest {
        let mut state = self.state.lock();
        Rest {
            _files: state.files.take_all(),
            _ready: state.ready.take_all(),
            _chunks: state.chunks.take_all(),
        }
    }
}

/// What a worker does next.
enum NextWork {
    Task(NextTask),
    /// It looks for the data of this file from this offset on.
    Look(Arc<SendFile>, u64),
}

impl SchedulerState {
    /// The next chunk. None if nothing is planned.
    fn next(&mut self) -> Option<NextWork> {
        if let Some(plan) = self.chunks.pop_again() {
            return Some(NextWork::Task(NextTask::Chunk(plan)));
        }
        if let Some((held, missing)) = self.files.next_to_reopen() {
            return Some(NextWork::Task(NextTask::Reopen(Box::new(held), missing)));
        }
        if let Some(part) = self.ready.pop_part() {
            return Some(NextWork::Task(NextTask::Chunk(part)));
        }
        if let Some(file) = self.files.next_grown() {
            return Some(NextWork::Task(NextTask::Compare(file)));
        }
        self.gather_damaged();
        let terms = NextTerms {
            number: self.chunks.next_number(),
            is_last: self.is_last(),
            is_planned: self.planned,
            is_ordered: self.is_ordered(),
        };
        Some(match self.ready.next(&terms)? {
            NextStep::Begin(what) => NextWork::Task(NextTask::Chunk(self.chunks.number(what))),
            NextStep::End(file) => NextWork::Task(NextTask::End(file)),
            NextStep::Look(file, from) => NextWork::Look(file, from),
        })
    }

    /// If nothing else is planned, gathers small files that are damaged at the receiver into a
    /// pack, as many as fit.
    fn gather_damaged(&mut self) {
        while !self.ready.has_fresh()
            && let Some((entry, kept)) = self.asked.next_damaged()
        {
            let kept = kept.map(|found| (found, None));
            let held = || self.files.take_held(entry).map(|it| (it.found, it.listed));
            // It may have failed at the receiver in the meantime.
            if let Some((found, listed)) = kept.or_else(held) {
                self.ready.gather(PackMember::new(found, listed));
            }
        }
    }

    /// A chunk is in place: its small files were sent.
    fn were_sent(&mut self, plan: &Plan) {
        if self.removable.is_empty() {
            return;
        }
        for member in plan.what.members() {
            let id = member.found.entry.id;
            if !member.failed.load(Relaxed) && !self.entries.has_failed(id) {
                self.removable.sent(id);
            }
        }
    }

    fn is_ordered(&self) -> bool {
        self.landed == Some(SmallFileMode::Ordered)
    }

    /// True if a worker has something to do.
    fn has_work(&self) -> bool {
        let room =
            self.chunks.has_room() && (!self.is_ordered() || self.chunks.is_in_window(self.window));
        let is_ready = self.chunks.has_again()
            || self.ready.has_parts()
            || self.files.may_reopen()
            || self.files.has_grown();
        self.landed.is_some() && (is_ready || (room && self.can_begin()))
    }

    /// True if more chunks can begin, even if the queue has no room for them now.
    fn has_more(&self) -> bool {
        self.ready.has_any() || self.asked.has_damaged()
    }

    /// True if a chunk can begin now, if there is room for it.
    fn can_begin(&self) -> bool {
        self.ready.can_begin() || self.asked.has_damaged()
    }

    /// True if nothing is left to begin besides what begins now.
    fn is_last(&self) -> bool {
        self.planned
            && self.ready.is_last()
            && !self.asked.has_damaged()
            && !self.asked.has_asked()
            && !self.is_ordered()
            && !self.files.may_bring_more()
    }

    fn is_idle(&self) -> bool {
        !self.has_more()
            && self.chunks.is_empty()
            && self.files.is_empty()
            && !self.asked.has_asked()
            && self.asked.kept_count() == 0
    }
}
