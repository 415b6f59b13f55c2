//! Chunks in flight: numbered when they begin, and removed when they are settled.

use std::ops::Range;
use std::sync::Arc;

use crate::pipeline::send::plan::{Plan, PlannedContent};

use super::{InFlight, Scheduler, SchedulerState};

/// Plans kept to reuse their memory. Usually no more are settled before new chunks begin.
const SPARE_MAX: usize = 64;

impl Scheduler {
    /// Schedules a chunk again that no connection took.
    pub fn put_back(&self, chunk: u64) {
        let mut state = self.state.lock();
        if let Some(in_flight) = state.in_flight.get(&chunk) {
            let plan = in_flight.plan.clone();
            state.again.insert(chunk, plan);
        }
        drop(state);
        self.wake();
    }

    /// Settles chunks that are done or have nothing left to send. Calls `each` for those that were
    /// in flight.
    pub fn settle_chunks(&self, mut chunks: Range<u64>, each: impl Fn(&Plan)) {
        let mut spare = None;
        loop {
            let mut state = self.state.lock();
            if state.spare.len() < SPARE_MAX {
                state.spare.extend(spare.take());
            }
            let Some(mut plan) = state.settle_first(&mut chunks) else {
                break;
            };
            drop(state);
            each(&plan);
            // The worker that took the plan may still use it.
            if let Some(unshared) = Arc::get_mut(&mut plan) {
                // A spare plan must not keep a file open.
                unshared.what = PlannedContent::Pack(self.nothing.clone());
                spare = Some(plan);
            }
        }
        // A worker that wakes up wakes the next one if there is more work.
        self.work.wake_one();
        self.changed.wake_all();
    }
}

impl SchedulerState {
    /// Numbers a chunk, which is in flight from now on.
    pub(super) fn number(&mut self, what: PlannedContent) -> Arc<Plan> {
        let chunk = self.next_chunk;
        self.next_chunk += 1;
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
        };
        self.in_flight.insert(chunk, in_flight);
        plan
    }

    /// Settles the first of these chunks that is in flight, and moves the start of the range past
    /// it.
    pub(super) fn settle_first(&mut self, chunks: &mut Range<u64>) -> Option<Arc<Plan>> {
        let (&chunk, _) = self.in_flight.range(chunks.clone()).next()?;
        chunks.start = chunk + 1;
        self.again.remove(&chunk);
        let plan = self.in_flight.remove(&chunk)?.plan;
        self.members_in_flight -= plan.what.members().count();
        Some(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NextTask, ReadyChunk, SmallFileMode, Taken};
    use super::*;

    #[test]
    fn nothing_goes_twice_while_something_waits_to_go_once() {
        let plans = Scheduler::default();
        plans.start(SmallFileMode::Fresh, 8);
        plans.steer(1, 1, 1);
        let pack = || ReadyChunk::Pack(Arc::default());
        plans.state.lock().fresh.extend([pack(), pack()]);
        assert!(matches!(plans.next(), Ok(NextTask::Chunk(_))));
        assert_eq!(plans.taken(0, 7), Taken::First);
        assert_eq!(plans.repeat(&[7], 9), 0, "the other waits for room");
        plans.state.lock().fresh.clear();
        assert_eq!(plans.repeat(&[6], 9), 0);
        assert_eq!(plans.repeat(&[7], 9), 1);
        assert_eq!(plans.taken(0, 8), Taken::Again);
        plans.settle_chunks(0..1, |_| {});
        assert_eq!(plans.taken(0, 9), Taken::Settled);
    }
}
