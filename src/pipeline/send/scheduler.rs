//! The scheduler: chunks to be sent, in flight, and to be retransmitted. It keeps plans, not
//! bytes: a chunk whose connection died is read again.
//!
//! A chunk keeps its number for life, so that the receiver recognizes a second copy.

mod announced;
mod begin;
mod chores;
mod entries;
mod in_flight;
mod large;
mod pipes;
mod resumed_files;
mod resumed_small_files;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use begin::NextChunk;
pub use chores::{Chores, Discarded};
pub use entries::{EntryAtClose, Settled};
use parking_lot::{Mutex, MutexGuard};

pub use self::resumed_small_files::Sum;
use super::plan::{PackMember, Plan, SendFile, SendPipe};
use crate::chunk::ranges::RangeSet;
use crate::chunk::split::{FilePiece, Gathering};
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::EntryId;
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::wait_queue::WaitQueue;
use crate::source::{FoundFile, SourceFile};

/// The most unacknowledged chunks. At 1 MiB each, this is more than 10 Gbit/s of data compressed
/// threefold needs at 150 ms.
pub const UNACKED_MAX: usize = 2048;

/// The same limit until the link is known.
const UNACKED_AT_FIRST: usize = 128;

/// Members of unacknowledged packs; keeps their names within some 20 MiB.
const UNACKED_MEMBERS_MAX: usize = 1 << 16;

/// Packs and files that are planned and not begun. Beyond this the walk waits.
const FRESH_MAX: usize = 64;

/// Announced entries that are neither in place nor failed.
pub const UNSETTLED_ENTRIES_MAX: u64 = 1 << 15;

/// How often a chunk may be sent again because its connection is slow. The next connection may
/// become slow too.
const REPEATS_MAX: u8 = 3;

/// How often a chunk may arrive damaged before its entry fails.
pub const NACKS_MAX: u8 = 3;

enum ReadyChunk {
    Pack(Arc<Vec<PackMember>>),
    /// A part of a large pack, sent separately.
    Alone(Arc<Vec<PackMember>>),
    File(Arc<SendFile>),
    /// A part of a large piece, sent separately.
    Piece(Arc<SendFile>, FilePiece),
}

struct InFlight {
    plan: Arc<Plan>,
    connection: Option<u16>,
    /// How often it was sent again because its connection was slow.
    repeated: u8,
    was_taken: bool,
}

/// What a connection does with a frame that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Send it, for the first time.
    First,
    /// Send it again.
    Again,
    /// Drop it: the chunk is settled.
    Settled,
}

#[derive(Default)]
struct SchedulerState {
    again: BTreeMap<u64, Arc<Plan>>,
    fresh: VecDeque<ReadyChunk>,
    in_flight: BTreeMap<u64, InFlight>,
    /// Settled plans, kept to reuse their memory.
    spare: Vec<Arc<Plan>>,
    /// None stands for [`UNACKED_AT_FIRST`].
    in_flight_max: Option<usize>,
    /// Connections that share the frames; 0 if unknown.
    streams: u64,
    members_in_flight: usize,
    /// How packs and pieces are merged.
    large: large::LargeChunks,
    next_chunk: u64,
    /// Bytes of the pieces begun so far, without holes.
    begun: u64,
    /// Workers that are looking for a file's next data.
    looking: usize,
    /// Finished files that are not yet closed, and how many of them a thread is closing.
    discarded: Vec<Discarded>,
    closing: usize,
    /// Files that changed during the reading, each with its error.
    changed: Vec<(Arc<SendFile>, Error)>,
    /// Parts of streams that were read and that no worker has taken yet.
    parts: VecDeque<Arc<Plan>>,
    /// The most big files in `open`.
    open_max: usize,
    /// Announced big files and streams that are neither in place nor failed.
    open: HashMap<EntryId, AnnouncedFile>,
    /// Small files that the receiver was asked about and has not answered.
    asked: BTreeMap<EntryId, PackMember>,
    /// Small files that the receiver has and is verifying, described briefly.
    kept: resumed_small_files::Kept,
    /// Other files that the receiver has and is verifying, fully described.
    held: BTreeMap<EntryId, ResumedFile>,
    /// Small files that the receiver found damaged, each once.
    damaged: VecDeque<EntryId>,
    /// Big files that the receiver found damaged.
    reopen: VecDeque<EntryId>,
    /// Damaged ranges that the receiver named while their file was being opened.
    late: HashMap<EntryId, RangeSet>,
    /// Small files that the receiver wants, not yet in a full pack.
    answered: Gathering<PackMember>,
    /// Files of unknown size that had no room in their pack.
    outgrown: Vec<(FoundFile, Option<ListedPath>)>,
    /// Entries that are in place or failed.
    settled: RangeSet,
    announced: announced::AnnouncedEntries,
    /// Failed entries, as long as a pack in flight or a further name may ask about them.
    failed: RangeSet,
    /// The highest entry number of the walk so far.
    highest: EntryId,
    /// The walk is over, and nothing more will be planned.
    planned: bool,
    /// How small files are sent; None until the receiver says where everything lands.
    landed: Option<SmallFileMode>,
    /// How far ahead of the first unacknowledged chunk another may begin. Applies to streams, and
    /// to all chunks if they leave the receiver in order.
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

/// An announced big file or pipe.
enum AnnouncedFile {
    Announced(Unanswered),
    Sending(Arc<SendFile>),
    /// A pipe, and whether the receiver wants it.
    Pipe(Arc<SendPipe>, bool),
    /// Not wanted: the file is in place or has failed, as a later message will say.
    Skipped {
        size: u64,
    },
    /// The receiver found it damaged, and a worker is opening it.
    Reopening,
}

/// A file that the receiver has and is verifying.
pub struct ResumedFile {
    pub found: FoundFile,
    pub listed: Option<ListedPath>,
    /// The digest according to the receiver.
    pub digest: Option<Digest>,
    /// A small file, which is sent in a pack if it is damaged.
    is_small: bool,
    /// Ranges that the receiver has found damaged.
    missing: Option<RangeSet>,
}

/// A big file that the receiver has not yet answered.
pub struct Unanswered {
    pub source: Box<SourceFile>,
    pub listed: Option<ListedPath>,
    /// It changed during the first reading, and this is the second one.
    pub anew: bool,
}

/// The next task of a worker.
pub enum NextTask {
    Chunk(Arc<Plan>),
    /// Only the end of this file is to be sent.
    End(Arc<SendFile>),
    /// These ranges of a file are to be sent again.
    Reopen(Box<ResumedFile>, RangeSet),
}

#[derive(Default)]
pub struct Scheduler {
    state: Mutex<SchedulerState>,
    /// Where workers wait for chunks.
    work: WaitQueue,
    /// Where other threads wait.
    changed: WaitQueue,
    /// Replaces the content of spare plans.
    nothing: Arc<Vec<PackMember>>,
}

/// The copy is ending.
#[derive(Debug)]
pub struct Ended;

impl Scheduler {
    /// `open_max` limits the big files open at once, and is at least one. `large_max` limits the
    /// large packs and pieces that are compressed at once. There are large pieces only if
    /// `takes_pieces`.
    pub fn of(open_max: u32, large_max: usize, takes_pieces: bool) -> Scheduler {
        let plans = Scheduler::default();
        let mut state = plans.state.lock();
        state.open_max = (open_max as usize).max(1);
        state.large.at_work_max = large_max;
        state.large.takes_pieces = takes_pieces;
        drop(state);
        plans
    }

    /// Lets workers take chunks, since the receiver now knows where everything lands.
    pub fn start(&self, landed: SmallFileMode, window: usize) {
        let mut state = self.state.lock();
        (state.landed, state.window) = (Some(landed), window as u64);
        drop(state);
        self.wake();
    }

    /// How small files are sent, if known.
    pub fn landed(&self) -> Option<SmallFileMode> {
        self.state.lock().landed
    }

    pub fn wait_landed(&self) -> Result<(), Ended> {
        self.wait_until(|state| state.landed.is_some()).map(|_| ())
    }

    /// Sets the tuner's decisions: how many chunks may be unacknowledged, up to [`UNACKED_MAX`],
    /// how many connections share the rest, and how many packs are merged.
    pub fn steer(&self, in_flight_max: u16, streams: u16, packs: u16) {
        let mut state = self.state.lock();
        state.in_flight_max = Some(usize::from(in_flight_max).clamp(1, UNACKED_MAX));
        state.streams = streams.into();
        state.large.packs = packs.into();
        drop(state);
        self.wake();
    }

    /// Wakes all waiting threads. No more work is given out.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        for open in state.open.values() {
            if let AnnouncedFile::Pipe(pipe, _) = open {
                pipe.stop.set();
            }
        }
        drop(state);
        self.wake();
    }

    fn wake(&self) {
        self.work.wake_all();
        self.changed.wake_all();
    }

    fn wait_until(
        &self,
        ready: impl Fn(&SchedulerState) -> bool,
    ) -> Result<MutexGuard<'_, SchedulerState>, Ended> {
        self.wait_at(&self.changed, ready)
    }

    fn wait_at(
        &self,
        bell: &WaitQueue,
        ready: impl Fn(&SchedulerState) -> bool,
    ) -> Result<MutexGuard<'_, SchedulerState>, Ended> {
        let state = bell.sleep_until(self.state.lock(), |state| state.ended || ready(state));
        if state.ended { Err(Ended) } else { Ok(state) }
    }

    /// Plans a pack. Waits while enough is planned.
    pub fn add_pack(&self, members: Vec<PackMember>) -> Result<(), Ended> {
        let mut state = self.wait_until(|state| state.fresh.len() < FRESH_MAX)?;
        state.fresh.push_back(ReadyChunk::Pack(Arc::new(members)));
        drop(state);
        self.wake();
        Ok(())
    }

    /// Waits for the next task. Retransmissions come first, lowest number first.
    pub fn next(&self) -> Result<NextTask, Ended> {
        loop {
            let mut state = self.wait_at(&self.work, SchedulerState::has_work)?;
            let again = state.again.pop_first();
            let begun = match again {
                Some((_, plan)) => Some(NextChunk::Work(NextTask::Chunk(plan))),
                None => match state.next_to_reopen() {
                    Some(work) => Some(NextChunk::Work(work)),
                    None => state.begin(),
                },
            };
            let has_more = state.has_work();
            drop(state);
            // One at a time: if every chunk woke all workers, most would wake for nothing.
            if has_more {
                self.work.wake_one();
            }
            // The walk may have room.
            self.changed.wake_all();
            match begun {
                Some(NextChunk::Work(work)) => return Ok(work),
                Some(NextChunk::Look(file, from)) => self.look(file, from),
                None => {}
            }
        }
    }

    /// Records that a connection took the chunk's frame.
    pub fn taken(&self, chunk: u64, connection: u16) -> Taken {
        let mut state = self.state.lock();
        let Some(in_flight) = state.in_flight.get_mut(&chunk) else {
            return Taken::Settled;
        };
        in_flight.connection = Some(connection);
        match std::mem::replace(&mut in_flight.was_taken, true) {
            false => Taken::First,
            true => Taken::Again,
        }
    }

    /// Schedules the unacknowledged chunks of a dead connection again. Returns how many.
    pub fn connection_lost(&self, connection: u16) -> usize {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut count = 0;
        for (&chunk, in_flight) in &mut state.in_flight {
            if in_flight.connection == Some(connection) {
                in_flight.connection = None;
                state.again.insert(chunk, in_flight.plan.clone());
                count += 1;
            }
        }
        self.wake();
        count
    }

    /// Schedules unacknowledged chunks of these slow connections again, oldest first, at most
    /// `most`, and each at most [`REPEATS_MAX`] times. Does nothing while there is anything else
    /// to send. Returns how many.
    pub fn repeat(&self, slow: &[u16], most: usize) -> usize {
        let mut state = self.state.lock();
        let state = &mut *state;
        // Chunks that leave in order may all wait for one chunk. Otherwise planned chunks can
        // begin soon.
        let is_full = state.landed != Some(SmallFileMode::Ordered) && state.has_fresh();
        if state.has_work() || is_full {
            return 0;
        }
        let is_slow = |it: &InFlight| {
            it.connection
                .is_some_and(|connection| slow.contains(&connection))
        };
        let lying = state.in_flight.iter_mut();
        let lying = lying.filter(|(_, it)| it.repeated < REPEATS_MAX && is_slow(it));
        let before = state.again.len();
        for (&chunk, in_flight) in lying.take(most) {
            in_flight.repeated += 1;
            state.again.insert(chunk, in_flight.plan.clone());
        }
        self.wake();
        state.again.len() - before
    }

    /// True if all chunks are settled and nothing is left to send.
    pub fn has_nothing_to_carry(&self) -> bool {
        let state = self.state.lock();
        let is_sending = |open: &AnnouncedFile| {
            matches!(open, AnnouncedFile::Sending(_) | AnnouncedFile::Pipe(..))
        };
        state.planned
            && state.fresh.is_empty()
            && state.looking == 0
            && state.in_flight.is_empty()
            && state.reopen.is_empty()
            && state.damaged.is_empty()
            && state.open.values().all(is_sending)
    }

    /// Schedules a chunk again that arrived damaged, or whose digest the receiver refused. After
    /// [`NACKS_MAX`] damaged arrivals, the worker that takes it gives it up.
    pub fn nacked(&self, chunk: u64) {
        let mut state = self.state.lock();
        let Some(in_flight) = state.in_flight.get_mut(&chunk) else {
            return;
        };
        in_flight.connection = None;
        let plan = in_flight.plan.clone();
        plan.refused();
        state.again.insert(chunk, plan);
        self.wake();
    }

    /// Waits until everything planned so far is acknowledged or failed.
    pub fn wait_idle(&self) -> Result<(), Ended> {
        self.wait_until(SchedulerState::is_idle).map(|_| ())
    }

    /// True if workers have begun every chunk and none waits for a retransmission.
    pub fn is_all_taken(&self) -> bool {
        let state = self.state.lock();
        let is_waiting = |open: &AnnouncedFile| {
            matches!(
                open,
                AnnouncedFile::Announced(_)
                    | AnnouncedFile::Pipe(_, false)
                    | AnnouncedFile::Reopening
            )
        };
        state.planned
            && !state.has_fresh()
            && state.again.is_empty()
            && state.asked.is_empty()
            && state.reopen.is_empty()
            && !state.open.values().any(is_waiting)
    }
}

impl SchedulerState {
    fn has_work(&self) -> bool {
        let chunks = self.in_flight_max.unwrap_or(UNACKED_AT_FIRST);
        let room = self.in_flight.len() < chunks
            && self.members_in_flight < UNACKED_MEMBERS_MAX
            && (self.landed != Some(SmallFileMode::Ordered) || self.is_in_window());
        let is_ready = !self.again.is_empty() || !self.parts.is_empty() || self.may_reopen();
        self.landed.is_some() && (is_ready || (room && self.has_planned()))
    }

    fn has_fresh(&self) -> bool {
        !self.parts.is_empty() || self.looking > 0 || self.has_planned()
    }

    fn has_planned(&self) -> bool {
        !self.fresh.is_empty() || !self.answered.is_empty() || !self.damaged.is_empty()
    }

    /// True if the next chunk is not too far ahead of the first unacknowledged one.
    fn is_in_window(&self) -> bool {
        let first = self.in_flight.keys().next().unwrap_or(&self.next_chunk);
        self.next_chunk < first + self.window
    }

    fn is_idle(&self) -> bool {
        !self.has_fresh()
            && self.in_flight.is_empty()
            && self.open.is_empty()
            && self.asked.is_empty()
            && self.held.is_empty()
            && self.kept.count() == 0
    }
}
