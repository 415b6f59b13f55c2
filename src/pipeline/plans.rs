//! What is to be sent, what was sent and not yet acknowledged, and what must be sent again. Keeps
//! plans, not bytes: a chunk whose stream died is read anew.
//!
//! A chunk keeps its number for life, so that the receiver knows a second copy for what it is.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use crate::chunk::ranges::RangeSet;
use crate::manifest::EntryId;
use crate::pipeline::digest_list::Listed;
use crate::pipeline::plan::{File, Member, Plan, What};
use crate::source::SourceFile;

/// Chunks that may be sent and unacknowledged: at 1 MiB each more than 10 Gbit/s of threefold
/// compressed data at 150 ms needs.
pub const UNACKED_MAX: usize = 1024;

/// Members of packs that may be unacknowledged, so that their names stay within some 20 MiB.
const UNACKED_MEMBERS_MAX: usize = 1 << 16;

/// Packs and files that are planned and not begun; the walk waits beyond.
const FRESH_MAX: usize = 64;

/// Entries that may be announced and neither in place nor failed.
pub const UNSETTLED_ENTRIES_MAX: u64 = 1 << 15;

/// Times that one chunk may arrive damaged before its entry is given up.
pub const NACKS_MAX: u8 = 3;

enum Fresh {
    Pack(Arc<Vec<Member>>),
    File(Arc<File>),
}

struct InFlight {
    plan: Arc<Plan>,
    stream: Option<u16>,
}

#[derive(Default)]
struct State {
    again: BTreeMap<u64, Arc<Plan>>,
    fresh: VecDeque<Fresh>,
    in_flight: BTreeMap<u64, InFlight>,
    members_in_flight: usize,
    next_chunk: u64,
    /// Big files that are announced and not yet in place or failed.
    open: HashMap<EntryId, Open>,
    /// Entries that are in place or failed.
    settled: RangeSet,
    /// Failed entries that a pack in flight or a further name may still ask about.
    failed: HashSet<EntryId>,
    /// The highest entry that the walk has come to.
    highest: EntryId,
    /// The walk is over: nothing is planned any more.
    planned: bool,
    started: bool,
    ended: bool,
}

/// A big file, waiting to be wanted or being sent.
enum Open {
    Announced(Box<SourceFile>, Option<Listed>),
    Sending(Arc<File>),
}

#[derive(Default)]
pub struct Plans {
    state: Mutex<State>,
    changed: Condvar,
}

/// The copy is ending.
#[derive(Debug)]
pub struct Ended;

impl Plans {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    /// Lets chunks be taken: the receiver knows where everything lands and has room for it.
    pub fn start(&self) {
        self.lock().started = true;
        self.changed.notify_all();
    }

    /// Wakes everyone who waits; nothing is given out any more.
    pub fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits until `ready` holds.
    fn wait_until(&self, ready: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>, Ended> {
        let state = self.lock();
        let state = self
            .changed
            .wait_while(state, |state| !state.ended && !ready(state))
            .expect("no panic while held");
        if state.ended { Err(Ended) } else { Ok(state) }
    }

    /// Plans a pack, waiting while enough is planned.
    pub fn add_pack(&self, members: Vec<Member>) -> Result<(), Ended> {
        let mut state = self.wait_until(|state| state.fresh.len() < FRESH_MAX)?;
        state.fresh.push_back(Fresh::Pack(Arc::new(members)));
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Remembers a big file that is about to be announced, waiting while `limit` of them are open;
    /// `before` is done first if that takes a wait.
    pub fn announce(
        &self,
        entry: EntryId,
        source: SourceFile,
        listed: Option<Listed>,
        limit: usize,
        before: impl FnOnce() -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        let has_room = |state: &State| state.open.len() < limit;
        if !has_room(&self.lock()) {
            before()?;
        }
        let mut state = self.wait_until(has_room)?;
        state
            .open
            .insert(entry, Open::Announced(Box::new(source), listed));
        Ok(())
    }

    /// As [`announce`](Plans::announce), for a worker, on whom those that are open may wait.
    pub fn announce_now(&self, entry: EntryId, source: SourceFile, listed: Option<Listed>) {
        self.lock()
            .open
            .insert(entry, Open::Announced(Box::new(source), listed));
    }

    /// The receiver wants this file: its content or its digest. None if it was not announced.
    pub fn want(
        &self,
        entry: EntryId,
        make: impl FnOnce(SourceFile, Option<Listed>) -> File,
    ) -> Option<Arc<File>> {
        let mut state = self.lock();
        let open = state.open.remove(&entry)?;
        let Open::Announced(source, listed) = open else {
            state.open.insert(entry, open);
            return None;
        };
        let file = Arc::new(make(*source, listed));
        state.open.insert(entry, Open::Sending(file.clone()));
        state.fresh.push_back(Fresh::File(file.clone()));
        drop(state);
        self.changed.notify_all();
        Some(file)
    }

    /// What to send next: first what must be sent again, lowest number first.
    pub fn next(&self) -> Result<Arc<Plan>, Ended> {
        loop {
            let mut state = self.wait_until(State::has_work)?;
            if let Some((_, plan)) = state.again.pop_first() {
                return Ok(plan);
            }
            if let Some(plan) = state.begin() {
                drop(state);
                // Another worker may have work too, and the walk may have room.
                self.changed.notify_all();
                return Ok(plan);
            }
        }
    }

    /// A stream took the chunk's frame.
    pub fn taken(&self, chunk: u64, stream: u16) {
        if let Some(in_flight) = self.lock().in_flight.get_mut(&chunk) {
            in_flight.stream = Some(stream);
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
        self.changed.notify_all();
        count
    }

    /// Sends again what lies on these streams, which are slow, the oldest first and at most `most`,
    /// unless there is something else to send. Gives how many that are.
    pub fn repeat(&self, slow: &[u16], most: usize) -> usize {
        let mut state = self.lock();
        let state = &mut *state;
        if state.has_work() {
            return 0;
        }
        let is_slow = |in_flight: &InFlight| in_flight.stream.is_some_and(|it| slow.contains(&it));
        let lying = state.in_flight.iter().filter(|(_, it)| is_slow(it));
        let before = state.again.len();
        state.again.extend(
            lying
                .take(most)
                .map(|(&chunk, it)| (chunk, it.plan.clone())),
        );
        self.changed.notify_all();
        state.again.len() - before
    }

    /// Everything that streams had to carry is where it belongs.
    pub fn has_nothing_to_carry(&self) -> bool {
        let state = self.lock();
        let is_sending = |open: &Open| matches!(open, Open::Sending(_));
        state.planned
            && state.fresh.is_empty()
            && state.in_flight.is_empty()
            && state.open.values().all(is_sending)
    }

    /// The chunk arrived damaged: it is sent again, or given up by the worker that sees that it
    /// was damaged [`NACKS_MAX`] times.
    pub fn nacked(&self, chunk: u64) {
        let mut state = self.lock();
        let Some(in_flight) = state.in_flight.get_mut(&chunk) else {
            return;
        };
        in_flight.stream = None;
        let plan = in_flight.plan.clone();
        plan.nacks.fetch_add(1, Relaxed);
        state.again.insert(chunk, plan);
        self.changed.notify_all();
    }

    /// These chunks are done, or have nothing left to send. Gives those that were in flight.
    pub fn settle_chunks(&self, chunks: Range<u64>) -> Vec<Arc<Plan>> {
        let mut state = self.lock();
        let numbers: Vec<u64> = state
            .in_flight
            .range(chunks)
            .map(|(&chunk, _)| chunk)
            .collect();
        let mut settled = Vec::with_capacity(numbers.len());
        for chunk in numbers {
            state.again.remove(&chunk);
            let Some(InFlight { plan, .. }) = state.in_flight.remove(&chunk) else {
                continue;
            };
            if let What::Pack(members) = &plan.what {
                state.members_in_flight -= members.len();
            }
            settled.push(plan);
        }
        drop(state);
        self.changed.notify_all();
        settled
    }

    /// Waits until so few entries are unsettled that `entry` may be announced; `before` is done
    /// first if that takes a wait, since what is not yet announced cannot settle.
    pub fn wait_entry_room(
        &self,
        entry: EntryId,
        before: impl FnOnce() -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        // A further name of something that was typed comes last, with a low number.
        let has_room =
            |state: &State| entry.saturating_sub(state.settled.count()) <= UNSETTLED_ENTRIES_MAX;
        let mut state = self.lock();
        state.highest = state.highest.max(entry);
        let is_roomy = has_room(&state);
        drop(state);
        if !is_roomy {
            before()?;
            drop(self.wait_until(has_room)?);
        }
        Ok(())
    }

    /// The walk has come this far: the receiver can have heard of no other entry.
    pub fn is_met(&self, entry: EntryId) -> bool {
        entry <= self.lock().highest
    }

    /// The walk is over, and no entry has the numbers in `unused`.
    pub fn end_planning(&self, unused: impl Iterator<Item = Range<EntryId>>) {
        let mut state = self.lock();
        for range in unused {
            state.settled.insert(range);
        }
        state.planned = true;
    }

    /// The walk is over, every chunk is acknowledged, and every entry is in place or failed.
    pub fn is_done(&self) -> bool {
        let state = self.lock();
        state.planned && state.is_idle() && state.settled.contains_all(1..state.highest + 1)
    }

    /// These entries are in place or failed. Gives the big files among them.
    pub fn settle_entries(&self, entries: Range<EntryId>) -> Vec<EntryId> {
        let mut state = self.lock();
        state.settled.insert(entries.clone());
        let open = state
            .open
            .keys()
            .copied()
            .filter(|id| entries.contains(id))
            .collect();
        drop(state);
        self.changed.notify_all();
        open
    }

    /// Remembers that an entry failed, for its pack and for its further names.
    pub fn entry_failed(&self, entry: EntryId) {
        self.lock().failed.insert(entry);
        self.settle_entries(entry..entry + 1);
    }

    pub fn has_failed(&self, entry: EntryId) -> bool {
        self.lock().failed.contains(&entry)
    }

    /// The file is in place, failed or not wanted: nothing of it is sent any more. Gives the file
    /// if its sending had begun, and None if it is not open.
    pub fn close(&self, entry: EntryId) -> Option<Option<Arc<File>>> {
        let mut state = self.lock();
        let open = state.open.remove(&entry)?;
        let of_entry = |plan: &Plan| matches!(&plan.what, What::Piece { file, .. } if file.found.entry.id == entry);
        if let Open::Sending(_) = open {
            state.fresh.retain(|fresh| {
                let Fresh::File(file) = fresh else {
                    return true;
                };
                file.found.entry.id != entry
            });
            state.again.retain(|_, plan| !of_entry(plan));
            state
                .in_flight
                .retain(|_, in_flight| !of_entry(&in_flight.plan));
        }
        drop(state);
        self.changed.notify_all();
        match open {
            Open::Announced(..) => Some(None),
            Open::Sending(file) => Some(Some(file)),
        }
    }

    /// Waits until everything planned so far is acknowledged or failed.
    pub fn wait_idle(&self) -> Result<(), Ended> {
        self.wait_until(State::is_idle).map(|_| ())
    }

    /// Everything was read and sent once, and what is left is up to the receiver.
    pub fn is_all_taken(&self) -> bool {
        let state = self.lock();
        let is_sending = |open: &Open| matches!(open, Open::Sending(_));
        state.planned
            && state.fresh.is_empty()
            && state.again.is_empty()
            && state.open.values().all(is_sending)
    }
}

impl State {
    fn has_work(&self) -> bool {
        let room =
            self.in_flight.len() < UNACKED_MAX && self.members_in_flight < UNACKED_MEMBERS_MAX;
        self.started && (!self.again.is_empty() || (room && !self.fresh.is_empty()))
    }

    fn is_idle(&self) -> bool {
        self.fresh.is_empty() && self.in_flight.is_empty() && self.open.is_empty()
    }

    /// Begins the next of what is planned: a pack, or the next piece of a file.
    fn begin(&mut self) -> Option<Arc<Plan>> {
        let what = match self.fresh.pop_front()? {
            Fresh::Pack(members) => {
                self.members_in_flight += members.len();
                What::Pack(members)
            }
            Fresh::File(file) => {
                let mut cut = file.cut.lock().expect("no panic while held");
                // Where the holes cannot be told, reading tells why.
                let size = file.found.entry.size;
                let next_data = |at| file.source.next_data(at).unwrap_or(Some(at..size));
                let piece = cut.next(next_data)?;
                let is_done = cut.is_done();
                drop(cut);
                if !is_done {
                    self.fresh.push_front(Fresh::File(file.clone()));
                }
                What::Piece { file, piece }
            }
        };
        let chunk = self.next_chunk;
        self.next_chunk += 1;
        let plan = Arc::new(Plan {
            chunk,
            what,
            digest: OnceLock::new(),
            nacks: AtomicU8::new(0),
        });
        self.in_flight.insert(
            chunk,
            InFlight {
                plan: plan.clone(),
                stream: None,
            },
        );
        Some(plan)
    }
}
