//! Streams at the sender, from the announcement until they are in place. Parts are planned in the
//! order in which they are read.

use std::sync::Arc;

use super::{AnnouncedFile, Ended, Scheduler, SchedulerState, UNACKED_MAX};
use crate::manifest::EntryId;
use crate::pipeline::send::plan::{PipePart, PlannedContent, SendPipe};

impl Scheduler {
    /// Adds a pipe that is about to be announced.
    pub fn announce_pipe(&self, pipe: Arc<SendPipe>) {
        let mut state = self.state.lock();
        let id = pipe.entry.id;
        if state.ended {
            pipe.stop.set();
        }
        state.open.insert(id, AnnouncedFile::Pipe(pipe, false));
    }

    /// Handles the answer that the receiver wants this pipe. False if it is not open.
    pub fn want_pipe(&self, entry: EntryId) -> bool {
        let mut state = self.state.lock();
        let Some(AnnouncedFile::Pipe(_, wanted)) = state.open.get_mut(&entry) else {
            return false;
        };
        *wanted = true;
        drop(state);
        self.wake();
        true
    }

    /// Waits until the receiver wants this pipe. False if it failed there.
    pub fn wait_wanted(&self, entry: EntryId) -> Result<bool, Ended> {
        let is_waiting = |state: &SchedulerState| {
            matches!(state.open.get(&entry), Some(AnnouncedFile::Pipe(_, false)))
        };
        let state = self.wait_until(|state| !is_waiting(state))?;
        Ok(state.open.contains_key(&entry))
    }

    /// Waits until another part may be read. Each part takes a buffer until it is acknowledged.
    pub fn wait_part_room(&self) -> Result<(), Ended> {
        let has_room =
            |state: &SchedulerState| state.in_flight.len() < UNACKED_MAX && state.is_in_window();
        self.wait_until(has_room).map(drop)
    }

    /// Plans the next part of a pipe, which was just read.
    pub fn add_part(&self, part: PipePart) -> Result<(), Ended> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(Ended);
        }
        // It may have failed at the receiver in the meantime.
        if state.open.contains_key(&part.pipe.entry.id) {
            let plan = state.number(PlannedContent::Part(Arc::new(part)));
            state.parts.push_back(plan);
        }
        drop(state);
        self.wake();
        Ok(())
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
        let state = self.wait_until(|state| !state.open.contains_key(&id) || is_digested())?;
        Ok(state.open.contains_key(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NextTask, SmallFileMode};
    use super::*;
    use crate::chunk::Buffer;
    use crate::source::PipeSpec;

    #[test]
    fn no_part_is_read_beyond_the_window_and_a_lost_one_goes_first() {
        let pipe_spec = PipeSpec::Command("x".into());
        let pipe = Arc::new(SendPipe::new(pipe_spec.entry(1), &pipe_spec, None, true));
        let plans = Scheduler::default();
        plans.start(SmallFileMode::Fresh, 2);
        plans.announce_pipe(pipe.clone());
        assert!(plans.want_pipe(1) && plans.wait_wanted(1).unwrap());
        let add = |n: u64| {
            let part = PipePart::read(&pipe, n * 1024, 1024, Buffer::loose(1024));
            plans.add_part(part).unwrap();
        };
        let next = || match plans.next().unwrap() {
            NextTask::Chunk(plan) => plan.chunk,
            NextTask::End(_) | NextTask::Reopen(..) => panic!("no file"),
        };
        let has_room = || plans.state.lock().is_in_window();
        add(0);
        assert!(has_room());
        add(1);
        assert!(!has_room());
        assert_eq!((next(), next()), (0, 1));
        plans.taken(0, 7);
        plans.taken(1, 8);
        plans.settle_chunks(1..2, |_| {});
        assert!(!has_room(), "the first is still on its way");
        assert_eq!(plans.connection_lost(7), 1);
        assert_eq!(next(), 0);
        plans.settle_chunks(0..1, |_| {});
        assert!(has_room());
        plans.close(1);
        assert!(pipe.stop.is_set());
        assert!(
            !plans.wait_digested(&pipe, 2048).unwrap(),
            "it is not open any more"
        );
    }
}
