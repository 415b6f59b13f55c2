//! What is to be sent, what was sent and not yet acknowledged, and what must be sent again. Keeps
//! plans, not bytes: a chunk whose stream died is read anew.
//!
//! A chunk keeps its number for life, so that the receiver knows a second copy for what it is.

mod announced;
mod begin;
mod chores;
mod entries;
mod flight;
mod held;
mod kept;
mod large;
mod parts;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::chunk::ranges::RangeSet;
use crate::chunk::split::{Gathering, Piece};
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::EntryId;
use crate::pipeline::bell::Bell;
use crate::pipeline::digest_list::Listed;
use crate::pipeline::plan::{File, Member, Plan, Stream};
use crate::source::{Found, SourceFile};
use begin::Begun;
pub use chores::{Chores, Discarded};
pub use entries::{Closed, Settled};
pub use kept::Sum;

/// Chunks that may be sent and unacknowledged at most: at 1 MiB each more than 10 Gbit/s of
/// threefold compressed data at 150 ms needs.
pub const UNACKED_MAX: usize = 2048;

/// As many of them as there may be until the link is known.
const UNACKED_AT_FIRST: usize = 128;

/// Members of packs that may be unacknowledged, so that their names stay within some 20 MiB.
const UNACKED_MEMBERS_MAX: usize = 1 << 16;

/// Packs and files that are planned and not begun; the walk waits beyond.
const FRESH_MAX: usize = 64;

/// Entries that may be announced and neither in place nor failed.
pub const UNSETTLED_ENTRIES_MAX: u64 = 1 << 15;

/// Times that one chunk may be sent again because its stream is slow: the stream that took it
/// then may have become slow too.
const REPEATS_MAX: u8 = 3;

/// Times that one chunk may arrive damaged before its entry is given up.
pub const NACKS_MAX: u8 = 3;

enum Fresh {
    Pack(Arc<Vec<Member>>),
    /// One that goes by itself.
    Alone(Arc<Vec<Member>>),
    File(Arc<File>),
    /// A part of a large piece that goes by itself.
    Piece(Arc<File>, Piece),
}

struct InFlight {
    plan: Arc<Plan>,
    stream: Option<u16>,
    /// Times that it was sent again because its stream was slow.
    repeated: u8,
    was_taken: bool,
}

/// What a stream that takes a frame is to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Send it: nobody has sent this chunk.
    First,
    /// Send it, although it was sent before.
    Again,
    /// Drop it: the chunk is settled.
    Settled,
}

#[derive(Default)]
struct State {
    again: BTreeMap<u64, Arc<Plan>>,
    fresh: VecDeque<Fresh>,
    in_flight: BTreeMap<u64, InFlight>,
    /// Plans that are done with, for their memory.
    spare: Vec<Arc<Plan>>,
    /// None: [`UNACKED_AT_FIRST`].
    in_flight_max: Option<usize>,
    /// Streams that frames are made for; 0 while that is not known.
    streams: u64,
    members_in_flight: usize,
    /// How packs are put together.
    large: large::Large,
    next_chunk: u64,
    /// Bytes of the pieces of files that were begun, holes not counted.
    begun: u64,
    /// Files that workers look for the next data of.
    looking: usize,
    /// Files that are done with and not yet closed; how many were taken to be closed.
    discarded: Vec<Discarded>,
    closing: usize,
    /// Files that changed while they were read, and why the reading failed.
    changed: Vec<(Arc<File>, Error)>,
    /// Parts of streams that were read and not yet begun.
    parts: VecDeque<Arc<Plan>>,
    /// How many big files may be in `open`.
    open_max: usize,
    /// Big files that are announced and not yet in place or failed.
    open: HashMap<EntryId, Open>,
    /// Small files that the receiver was asked about.
    asked: BTreeMap<EntryId, Member>,
    /// Small files that the receiver has and is reading,
    kept: kept::Kept,
    /// and other files, with all that is known of them.
    held: BTreeMap<EntryId, Held>,
    /// Small ones of them that it has found damaged, each once,
    damaged: VecDeque<EntryId>,
    /// and others.
    reopen: VecDeque<EntryId>,
    /// Ranges that it asked for while their file was opened.
    late: HashMap<EntryId, RangeSet>,
    /// Those of them that it wants.
    answered: Gathering<Member>,
    /// Files without a size that had no room in their packs.
    outgrown: Vec<(Found, Option<Listed>)>,
    /// Entries that are in place or failed.
    settled: RangeSet,
    announced: announced::Announced,
    /// Failed entries that a pack in flight or a further name may still ask about.
    failed: RangeSet,
    /// The highest entry that the walk has come to.
    highest: EntryId,
    /// The walk is over: nothing is planned any more.
    planned: bool,
    /// The receiver has said where everything lands, and whether some of it is there.
    landed: Option<Landed>,
    /// Chunks from the first without an acknowledgement that may be begun, of a stream and where
    /// everything leaves in order.
    window: u64,
    ended: bool,
}

/// What small files are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// They are sent.
    Fresh,
    /// They are asked about: an earlier run may have finished them.
    Resumes,
    /// They are sent like big ones: what comes leaves in order.
    Ordered,
}

/// A big file, waiting to be wanted or being sent.
enum Open {
    Announced(Announced),
    Sending(Arc<File>),
    /// A stream, and whether it is wanted.
    Stream(Arc<Stream>, bool),
    /// Not wanted: it is there or has failed, as will be told.
    Skipped {
        size: u64,
    },
    /// The receiver had it and asks for it again: a worker opens it.
    Reopening,
}

/// A file that the receiver has and is reading.
pub struct Held {
    pub found: Found,
    pub listed: Option<Listed>,
    /// As the receiver knows it.
    pub digest: Option<Digest>,
    /// It was asked about, so it comes in a pack.
    is_small: bool,
    /// Asked for since.
    missing: Option<RangeSet>,
}

/// A big file before it is known what of it is wanted.
pub struct Announced {
    pub source: Box<SourceFile>,
    pub listed: Option<Listed>,
    /// It changed while it was read, and is read once more.
    pub anew: bool,
}

/// What a worker does next.
pub enum Work {
    Chunk(Arc<Plan>),
    /// Nothing of this file is to be sent, but that it ends.
    End(Arc<File>),
    /// These ranges of a file are to be sent after all.
    Reopen(Box<Held>, RangeSet),
}

#[derive(Default)]
pub struct Plans {
    state: Mutex<State>,
    /// Where workers wait for chunks.
    work: Bell,
    /// Where others wait.
    changed: Bell,
    /// What stands in plans that are done with.
    nothing: Arc<Vec<Member>>,
}

/// The copy is ending.
#[derive(Debug)]
pub struct Ended;

impl Plans {
    /// With at most `open_max` big files open at once, and at least one; `large_max` large packs
    /// and pieces at work; no such pieces unless the receiver takes them.
    pub fn of(open_max: u32, large_max: usize, takes_pieces: bool) -> Plans {
        let plans = Plans::default();
        let mut state = plans.lock();
        state.open_max = (open_max as usize).max(1);
        state.large.at_work_max = large_max;
        state.large.takes_pieces = takes_pieces;
        drop(state);
        plans
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    /// Lets chunks be taken: the receiver knows where everything lands and has room for it.
    pub fn start(&self, landed: Landed, window: usize) {
        let mut state = self.lock();
        (state.landed, state.window) = (Some(landed), window as u64);
        drop(state);
        self.wake();
    }

    /// How small files are sent, once that is known.
    pub fn landed(&self) -> Option<Landed> {
        self.lock().landed
    }

    pub fn wait_landed(&self) -> Result<(), Ended> {
        self.wait_until(|state| state.landed.is_some()).map(|_| ())
    }

    /// From now on so many chunks may be unacknowledged, up to [`UNACKED_MAX`], so many streams share
    /// what is left, and so many packs go as one.
    pub fn steer(&self, in_flight_max: u16, streams: u16, packs: u16) {
        let mut state = self.lock();
        state.in_flight_max = Some(usize::from(in_flight_max).clamp(1, UNACKED_MAX));
        state.streams = streams.into();
        state.large.packs = packs.into();
        drop(state);
        self.wake();
    }

    /// Wakes everyone who waits; nothing is given out any more.
    pub fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        for open in state.open.values() {
            if let Open::Stream(stream, _) = open {
                stream.stop.set();
            }
        }
        drop(state);
        self.wake();
    }

    /// Everyone looks what has changed.
    fn wake(&self) {
        self.work.wake_all();
        self.changed.wake_all();
    }

    /// Waits until `ready` holds.
    fn wait_until(&self, ready: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>, Ended> {
        self.wait_at(&self.changed, ready)
    }

    fn wait_at(
        &self,
        bell: &Bell,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>, Ended> {
        let state = bell.sleep_until(self.lock(), |state| state.ended || ready(state));
        if state.ended { Err(Ended) } else { Ok(state) }
    }

    /// Plans a pack, waiting while enough is planned.
    pub fn add_pack(&self, members: Vec<Member>) -> Result<(), Ended> {
        let mut state = self.wait_until(|state| state.fresh.len() < FRESH_MAX)?;
        state.fresh.push_back(Fresh::Pack(Arc::new(members)));
        drop(state);
        self.wake();
        Ok(())
    }

    /// What to send next: first what must be sent again, lowest number first.
    pub fn next(&self) -> Result<Work, Ended> {
        loop {
            let mut state = self.wait_at(&self.work, State::has_work)?;
            let again = state.again.pop_first();
            let begun = match again {
                Some((_, plan)) => Some(Begun::Work(Work::Chunk(plan))),
                None => match state.next_to_reopen() {
                    Some(work) => Some(Begun::Work(work)),
                    None => state.begin(),
                },
            };
            let has_more = state.has_work();
            drop(state);
            // One by one: were all woken for each chunk, most would wake in vain.
            if has_more {
                self.work.wake_one();
            }
            // The walk may have room.
            self.changed.wake_all();
            match begun {
                Some(Begun::Work(work)) => return Ok(work),
                Some(Begun::Look(file, from)) => self.look(file, from),
                None => {}
            }
        }
    }

    /// A stream took the chunk's frame.
    pub fn taken(&self, chunk: u64, stream: u16) -> Taken {
        let mut state = self.lock();
        let Some(in_flight) = state.in_flight.get_mut(&chunk) else {
            return Taken::Settled;
        };
        in_flight.stream = Some(stream);
        match std::mem::replace(&mut in_flight.was_taken, true) {
            false => Taken::First,
            true => Taken::Again,
        }
    }

    /// All that this stream took and nobody acknowledged is sent again. Gives how many that are.
    pub fn stream_died(&self, stream: u16) -> usize {
        let mut state = self.lock();
        let state = &mut *state;
        let mut count = 0;
        for (&chunk, in_flight) in &mut state.in_flight {
            if in_flight.stream == Some(stream) {
                in_flight.stream = None;
                state.again.insert(chunk, in_flight.plan.clone());
                count += 1;
            }
        }
        self.wake();
        count
    }

    /// Sends again what lies on these streams, which are slow, the oldest first and at most `most`,
    /// each no more than [`REPEATS_MAX`] times, unless there is something else to send. Gives how
    /// many that are.
    pub fn repeat(&self, slow: &[u16], most: usize) -> usize {
        let mut state = self.lock();
        let state = &mut *state;
        // What must leave in order may wait for one chunk; else what is planned may be begun soon.
        let is_full = state.landed != Some(Landed::Ordered) && state.has_fresh();
        if state.has_work() || is_full {
            return 0;
        }
        let is_slow = |it: &InFlight| it.stream.is_some_and(|stream| slow.contains(&stream));
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

    /// Everything that streams had to carry is where it belongs.
    pub fn has_nothing_to_carry(&self) -> bool {
        let state = self.lock();
        let is_sending = |open: &Open| matches!(open, Open::Sending(_) | Open::Stream(..));
        state.planned
            && state.fresh.is_empty()
            && state.looking == 0
            && state.in_flight.is_empty()
            && state.reopen.is_empty()
            && state.damaged.is_empty()
            && state.open.values().all(is_sending)
    }

    /// The chunk arrived damaged, or its digest is not that of what is there: it is sent again, or
    /// given up by the worker that sees that it was damaged [`NACKS_MAX`] times.
    pub fn nacked(&self, chunk: u64) {
        let mut state = self.lock();
        let Some(in_flight) = state.in_flight.get_mut(&chunk) else {
            return;
        };
        in_flight.stream = None;
        let plan = in_flight.plan.clone();
        plan.refused();
        state.again.insert(chunk, plan);
        self.wake();
    }

    /// Waits until everything planned so far is acknowledged or failed.
    pub fn wait_idle(&self) -> Result<(), Ended> {
        self.wait_until(State::is_idle).map(|_| ())
    }

    /// Everything was read and sent once, and what is left is up to the receiver.
    pub fn is_all_taken(&self) -> bool {
        let state = self.lock();
        let is_waiting = |open: &Open| {
            matches!(
                open,
                Open::Announced(_) | Open::Stream(_, false) | Open::Reopening
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

impl State {
    fn has_work(&self) -> bool {
        let chunks = self.in_flight_max.unwrap_or(UNACKED_AT_FIRST);
        let room = self.in_flight.len() < chunks
            && self.members_in_flight < UNACKED_MEMBERS_MAX
            && (self.landed != Some(Landed::Ordered) || self.is_in_window());
        let is_ready = !self.again.is_empty() || !self.parts.is_empty() || self.may_reopen();
        self.landed.is_some() && (is_ready || (room && self.has_planned()))
    }

    fn has_fresh(&self) -> bool {
        !self.parts.is_empty() || self.looking > 0 || self.has_planned()
    }

    fn has_planned(&self) -> bool {
        !self.fresh.is_empty() || !self.answered.is_empty() || !self.damaged.is_empty()
    }

    /// The next chunk is not too far ahead of the first without an acknowledgement.
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
