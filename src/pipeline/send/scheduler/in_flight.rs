//! Chunks in flight: numbered when they begin, sent again if their connection dies or is slow, and
//! removed when they are settled.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::manifest::EntryId;
use crate::pipeline::send::comparison::CopyComparisons;
use crate::pipeline::send::offer::NotOffered;
use crate::pipeline::send::plan::{Plan, PlannedContent};
use crate::wire::message::DifferingChunk;

/// The most unacknowledged chunks. At 1 MiB each, this is more than 10 Gbit/s of data compressed
/// threefold needs at 150 ms.
pub const UNACKED_MAX: usize = 2048;

/// Digests without an answer, at first. Each one that the receiver has allows one more, so that a
/// file that is new throughout is not read twice for long.
const OFFERS_AT_FIRST: usize = 32;

/// The same limit until the link is known.
const UNACKED_AT_FIRST: usize = 128;

/// Members of unacknowledged packs; keeps their names within some 20 MiB.
const UNACKED_MEMBERS_MAX: usize = 1 << 16;

/// How often a chunk may be sent again because its connection is slow. The next connection may
/// become slow too.
const REPEATS_MAX: u8 = 3;

/// Plans kept to reuse their memory. Usually no more are settled before new chunks begin.
const SPARE_MAX: usize = 64;

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

struct InFlight {
    plan: Arc<Plan>,
    connection: Option<u16>,
    /// How often it was sent again because its connection was slow.
    repeated: u8,
    was_taken: bool,
    /// Only its digest was sent.
    is_offer: bool,
}

#[derive(Default)]
pub(super) struct ChunksInFlight {
    chunks: BTreeMap<u64, InFlight>,
    /// Chunks to be sent again.
    again: BTreeMap<u64, Arc<Plan>>,
    /// Settled plans, kept to reuse their memory.
    spare: Vec<Arc<Plan>>,
    /// None stands for [`UNACKED_AT_FIRST`].
    max: Option<usize>,
    /// Members of the packs in flight.
    members: usize,
    /// Chunks of which only the digest was sent.
    offers: usize,
    comparisons: CopyComparisons,
    /// Grows with each digest that the receiver had, and is halved by each one that it refused.
    hits: usize,
    next_number: u64,
}

impl ChunksInFlight {
    /// How many chunks may be unacknowledged, up to [`UNACKED_MAX`].
    pub(super) fn set_max(&mut self, chunks: usize) {
        self.max = Some(chunks.clamp(1, UNACKED_MAX));
    }

    /// True if another chunk may begin.
    pub(super) fn has_room(&self) -> bool {
        // A digest carries no data, so the link does not limit how many are on it.
        let digests = self.offers + self.comparisons.anchored();
        self.offers < OFFERS_AT_FIRST + self.hits
            && self.chunks.len().saturating_sub(digests) < self.max.unwrap_or(UNACKED_AT_FIRST)
            && self.chunks.len() < UNACKED_MAX
            && self.members < UNACKED_MEMBERS_MAX
    }

    /// The comparisons of all files that are sent.
    pub(super) fn comparisons(&self) -> &CopyComparisons {
        &self.comparisons
    }

    /// True if a part of a pipe may be read, whatever the tuner has decided.
    pub(super) fn has_room_for_part(&self) -> bool {
        self.chunks.len() < UNACKED_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The number that the next chunk gets.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// True if the next chunk is not more than `window` ahead of the first unacknowledged one.
    pub(super) fn is_in_window(&self, window: u64) -> bool {
        let first = self.chunks.keys().next().unwrap_or(&self.next_number);
        self.next_number < first + window
    }

    /// Numbers a chunk, which is in flight from now on.
    pub(super) fn number(&mut self, what: PlannedContent) -> Arc<Plan> {
        let chunk = self.next_number;
        self.next_number += 1;
        self.members += what.members().count();
        let plan = Plan::new(chunk, what);
        let plan = match self.spare.pop() {
            Some(mut spare) => {
                *Arc::get_mut(&mut spare).expect("nobody holds a spare one") = plan;
                spare
            }
            None => Arc::new(plan),
        };
        let in_flight = InFlight {
            plan: plan.clone(),
            connection: None,
            repeated: 0,
            was_taken: false,
            is_offer: plan.offer().is_open(),
        };
        self.offers += usize::from(in_flight.is_offer);
        self.chunks.insert(chunk, in_flight);
        plan
    }

    /// Settles the first of these chunks that is in flight, and moves the start of the range past
    /// it.
    pub(super) fn settle_first(&mut self, chunks: &mut Range<u64>) -> Option<Arc<Plan>> {
        let (&chunk, _) = self.chunks.range(chunks.clone()).next()?;
        chunks.start = chunk + 1;
        self.again.remove(&chunk);
        let mut in_flight = self.chunks.remove(&chunk)?;
        in_flight.plan.offer().anchors_answered();
        self.members -= in_flight.plan.what.members().count();
        if self.answered(&mut in_flight) {
            self.hits = (self.hits + 1).min(UNACKED_MAX);
        }
        Some(in_flight.plan)
    }

    /// An answer to a chunk has come. Returns true if it was an offer without one.
    fn answered(&mut self, in_flight: &mut InFlight) -> bool {
        let was_offer = std::mem::take(&mut in_flight.is_offer);
        self.offers -= usize::from(was_offer);
        was_offer
    }

    /// Settles one chunk. Returns false if it is not in flight.
    pub(super) fn settle(&mut self, chunk: u64) -> bool {
        self.settle_first(&mut (chunk..chunk + 1)).is_some()
    }

    /// Keeps the memory of a settled plan that nobody uses.
    pub(super) fn reuse(&mut self, plan: Option<Arc<Plan>>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.extend(plan);
        }
    }

    /// Records that a connection took the chunk's frame.
    pub(super) fn taken(&mut self, chunk: u64, connection: u16) -> Taken {
        let Some(in_flight) = self.chunks.get_mut(&chunk) else {
            return Taken::Settled;
        };
        in_flight.connection = Some(connection);
        match std::mem::replace(&mut in_flight.was_taken, true) {
            false => Taken::First,
            true => Taken::Again,
        }
    }

    /// The first chunk that is to be sent again.
    pub(super) fn pop_again(&mut self) -> Option<Arc<Plan>> {
        self.again.pop_first().map(|(_, plan)| plan)
    }

    /// True if a chunk is to be sent again.
    pub(super) fn has_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// Sends the chunks of a dead connection again. Returns how many.
    pub(super) fn connection_lost(&mut self, connection: u16) -> usize {
        let mut count = 0;
        for (&chunk, in_flight) in &mut self.chunks {
            if in_flight.connection == Some(connection) {
                in_flight.connection = None;
                self.again.insert(chunk, in_flight.plan.clone());
                count += 1;
            }
        }
        count
    }

    /// Sends chunks of these slow connections again, oldest first, at most `most`, and each at most
    /// [`REPEATS_MAX`] times. Of the connections in `newest` only the newest chunk is sent again.
    /// Returns how many.
    pub(super) fn repeat(&mut self, slow: &[u16], newest: &[u16], most: usize) -> usize {
        let last_of = |connection: &u16| {
            let mut of_it = self.chunks.iter().rev();
            let found = of_it.find(|(_, it)| it.connection == Some(*connection));
            found.map(|(chunk, _)| *chunk)
        };
        let last: Vec<u64> = newest.iter().filter_map(last_of).collect();
        let is_slow = |chunk: &u64, it: &InFlight| {
            let is_on = |connection: u16| slow.contains(&connection) || last.contains(chunk);
            it.connection.is_some_and(is_on)
        };
        let lying = self.chunks.iter_mut();
        let lying = lying.filter(|(chunk, it)| it.repeated < REPEATS_MAX && is_slow(chunk, it));
        let before = self.again.len();
        for (&chunk, in_flight) in lying.take(most) {
            in_flight.repeated += 1;
            self.again.insert(chunk, in_flight.plan.clone());
        }
        self.again.len() - before
    }

    /// Sends a chunk again that no connection took.
    pub(super) fn put_back(&mut self, chunk: u64) {
        if let Some(in_flight) = self.chunks.get(&chunk) {
            self.again.insert(chunk, in_flight.plan.clone());
        }
    }

    /// Sends a chunk again that arrived damaged, or whose digest or patch the receiver refused.
    pub(super) fn refused(&mut self, chunk: u64) {
        let Some(mut in_flight) = self.chunks.remove(&chunk) else {
            return;
        };
        in_flight.connection = None;
        let was_offer = in_flight.plan.refused();
        // The receiver gets its bytes for the first time.
        in_flight.was_taken &= !was_offer;
        if self.answered(&mut in_flight) {
            self.hits /= 2;
        }
        self.again.insert(chunk, in_flight.plan.clone());
        self.chunks.insert(chunk, in_flight);
    }

    /// Sends a chunk again of which the receiver has another version. One that is settled stays so.
    pub(super) fn differs(&mut self, differing: DifferingChunk) -> Result<(), NotOffered> {
        let chunk = differing.chunk;
        let Some(mut in_flight) = self.chunks.remove(&chunk) else {
            return Ok(());
        };
        let news = in_flight.plan.offer().differs(differing);
        if let Ok(true) = news {
            (in_flight.connection, in_flight.was_taken) = (None, false);
            self.answered(&mut in_flight);
            self.again.insert(chunk, in_flight.plan.clone());
        }
        self.chunks.insert(chunk, in_flight);
        news.map(|_| ())
    }

    /// Drops all chunks of a big file or pipe.
    pub(super) fn forget(&mut self, entry: EntryId) {
        self.again.retain(|_, plan| !plan.is_of(entry));
        self.chunks
            .retain(|_, in_flight| !in_flight.plan.is_of(entry));
        self.offers = self.chunks.values().filter(|it| it.is_offer).count();
    }

    /// Removes and returns all plans, which may hold files open.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Plan>> {
        let again = std::mem::take(&mut self.again).into_values();
        self.offers = 0;
        let chunks = std::mem::take(&mut self.chunks).into_values();
        again.chain(chunks.map(|it| it.plan)).collect()
    }
}
