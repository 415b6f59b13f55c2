//! The work queue of the receiver's workers, first in, first out.

use std::collections::VecDeque;
use std::sync::Arc;

use super::open_file::{IncomingFile, OpenFile};
use crate::chunk::VerifiedChunk;
use crate::dest::Partial;
use crate::locks::{OrderedMutex, place};
use crate::manifest::{Entry, EntryId};
use crate::pipeline::wait_queue::WaitQueue;
use crate::transport::frames::SealedChunk;

/// The pool limits the number of frames; the number of open entries limits the other jobs.
pub enum Job {
    Frame {
        connection: u16,
        frame: SealedChunk,
    },
    /// A pack that arrived before its directories were known.
    Pack(VerifiedChunk),
    /// A file that an earlier run may have left in part or whole.
    Resume(Box<IncomingFile>),
    /// A file whose source is read a second time.
    Restart(Box<Restart>),
    Close(Arc<OpenFile>),
    Remove(Box<FailedFile>),
}

/// A file whose source is read a second time.
pub struct Restart {
    pub entry: Entry,
    /// The number of the first chunk of the new reading.
    pub first_chunk: u64,
    /// The file with the chunks of the previous reading.
    pub old: Arc<OpenFile>,
}

/// A file that has failed while other threads hold its partial file. It is accounted for when that is
/// removed.
pub struct FailedFile {
    pub partial: Arc<Partial>,
    pub id: EntryId,
    pub parent: EntryId,
}

/// A queue that needs no memory for the threads that wait on it.
#[derive(Default)]
pub struct Jobs {
    state: OrderedMutex<JobQueue, { place::JOBS }>,
    came: WaitQueue,
}

#[derive(Default)]
struct JobQueue {
    waiting: VecDeque<Job>,
    is_closed: bool,
}

impl Jobs {
    /// Returns false and drops the job once the copy ends.
    pub fn add(&self, job: Job) -> bool {
        let mut state = self.state.lock();
        if state.is_closed {
            return false;
        }
        state.waiting.push_back(job);
        drop(state);
        self.came.wake_one();
        true
    }

    /// Waits for the next job; None once the copy ends.
    pub fn next(&self) -> Option<Job> {
        let is_over = |state: &JobQueue| state.is_closed || !state.waiting.is_empty();
        let mut state = self.came.sleep_until(self.state.lock(), is_over);
        state.waiting.pop_front()
    }

    /// Drops the remaining jobs and wakes all waiting threads.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        self.came.wake_all();
        drop(left);
    }
}
