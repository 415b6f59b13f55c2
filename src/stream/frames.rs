//! The queue of frames shared by all connections of a session: a free connection takes the next.
//!
//! Threads put frames in and tasks take them out; neither allocates memory for it.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Semaphore;

use crate::wire::SealedChunk;

/// A frame to send.
pub enum Frame {
    /// If the frame is lost, its chunk is read again.
    Own(SealedChunk),
    /// Kept until it is acknowledged, since its chunk cannot be read again.
    Kept(Arc<SealedChunk>),
}

/// A handle to the queue; clones share the queue.
#[derive(Clone)]
pub struct Frames(Arc<Shared>);

struct Shared {
    waiting: Mutex<VecDeque<Frame>>,
    /// The most frames that `waiting` holds.
    most: usize,
    /// One permit per queued frame.
    there: Semaphore,
}

impl Frames {
    /// A queue with room for `most` frames.
    pub fn new(most: usize) -> Frames {
        Frames(Arc::new(Shared {
            waiting: Mutex::new(VecDeque::with_capacity(most)),
            most,
            there: Semaphore::new(0),
        }))
    }

    /// Queues a frame. Returns false and drops the frame if the queue is full or closed.
    pub fn put(&self, frame: Frame) -> bool {
        let mut waiting = self.lock();
        if self.0.there.is_closed() || waiting.len() >= self.0.most {
            return false;
        }
        waiting.push_back(frame);
        drop(waiting);
        self.0.there.add_permits(1);
        true
    }

    /// Waits for the next frame; None once the queue is closed.
    pub async fn take(&self) -> Option<Frame> {
        self.0.there.acquire().await.ok()?.forget();
        self.lock().pop_front()
    }

    /// The next frame, or None if the queue is empty.
    pub fn try_take(&self) -> Option<Frame> {
        self.0.there.try_acquire().ok()?.forget();
        self.lock().pop_front()
    }

    /// The number of queued frames.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes the queue: wakes all waiting tasks and drops the queued frames.
    pub fn close(&self) {
        self.0.there.close();
        let left = std::mem::take(&mut *self.lock());
        drop(left);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Frame>> {
        self.0.waiting.lock().expect("no panic while held")
    }
}

impl Deref for Frame {
    type Target = SealedChunk;

    fn deref(&self) -> &SealedChunk {
        match self {
            Frame::Own(frame) => frame,
            Frame::Kept(frame) => frame,
        }
    }
}
