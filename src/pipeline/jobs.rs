//! What the receiver's workers have to do, in the order in which it came.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::chunk::VerifiedChunk;
use crate::pipeline::bell::Bell;
use crate::pipeline::open_file::OpenFile;
use crate::pipeline::opening::Anew;
use crate::pipeline::resume::Resuming;
use crate::wire::SealedChunk;

/// Frames are bounded by the pool, the others by open entries.
pub enum Job {
    Frame {
        stream: u16,
        frame: SealedChunk,
    },
    /// A pack whose directories were not known when it came.
    Pack(VerifiedChunk),
    /// A file of which an earlier run may have left something.
    Resume(Box<Resuming>),
    /// A file whose source is read a second time.
    Anew(Box<Anew>),
    Close(Arc<OpenFile>),
}

/// A queue that takes no memory for who waits on it.
#[derive(Default)]
pub struct Jobs {
    state: Mutex<State>,
    came: Bell,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    is_closed: bool,
}

impl Jobs {
    /// False, and the job is gone, once the copy ends.
    pub fn add(&self, job: Job) -> bool {
        let mut state = self.lock();
        if state.is_closed {
            return false;
        }
        state.waiting.push_back(job);
        drop(state);
        self.came.wake_one();
        true
    }

    /// Waits for the next; None once the copy ends.
    pub fn next(&self) -> Option<Job> {
        let is_over = |state: &State| state.is_closed || !state.waiting.is_empty();
        let mut state = self.came.sleep_until(self.lock(), is_over);
        state.waiting.pop_front()
    }

    /// Drops what is left, and wakes everyone who waits.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        self.came.wake_all();
        drop(left);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}
