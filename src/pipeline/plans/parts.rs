//! Streams at the sender: from their announcement to their place, part by part in the order in
//! which they are read.

use std::sync::Arc;

use super::{Ended, Open, Plans, State, UNACKED_MAX};
use crate::manifest::EntryId;
use crate::pipeline::plan::{Part, Stream, What};

impl Plans {
    /// Remembers a stream that is about to be announced.
    pub fn announce_stream(&self, stream: Arc<Stream>) {
        let mut state = self.lock();
        let id = stream.entry.id;
        if state.ended {
            stream.stop.set();
        }
        state.open.insert(id, Open::Stream(stream, false));
    }

    /// The receiver wants this stream. False if it is none that is open.
    pub fn want_stream(&self, entry: EntryId) -> bool {
        let mut state = self.lock();
        let Some(Open::Stream(_, wanted)) = state.open.get_mut(&entry) else {
            return false;
        };
        *wanted = true;
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Waits until the receiver wants this stream. False if it failed there.
    pub fn wait_wanted(&self, entry: EntryId) -> Result<bool, Ended> {
        let is_waiting =
            |state: &State| matches!(state.open.get(&entry), Some(Open::Stream(_, false)));
        let state = self.wait_until(|state| !is_waiting(state))?;
        Ok(state.open.contains_key(&entry))
    }

    /// Waits until another part may be read: each takes a buffer until it is acknowledged.
    pub fn wait_part_room(&self) -> Result<(), Ended> {
        let has_room = |state: &State| state.in_flight.len() < UNACKED_MAX && state.is_in_window();
        self.wait_until(has_room).map(drop)
    }

    /// Plans a part that was read, the next of its stream.
    pub fn add_part(&self, part: Part) -> Result<(), Ended> {
        let mut state = self.lock();
        if state.ended {
            return Err(Ended);
        }
        // It may have failed at the receiver meanwhile.
        if state.open.contains_key(&part.stream.entry.id) {
            let plan = state.number(What::Part(Arc::new(part)));
            state.parts.push_back(plan);
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// The digest of a part has joined its stream's.
    pub fn part_digested(&self) {
        // Whoever waits has looked before this lock was taken, or looks after.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Waits until the digests of all `length` bytes of a stream have been joined. False if it has
    /// failed.
    pub fn wait_digested(&self, stream: &Stream, length: u64) -> Result<bool, Ended> {
        let id = stream.entry.id;
        let is_digested = || stream.tree.lock().expect("no panic while held").end() == length;
        let state = self.wait_until(|state| !state.open.contains_key(&id) || is_digested())?;
        Ok(state.open.contains_key(&id))
    }
}
