//! The queue of frames that all streams of a session share: whichever is free takes the next.
//!
//! Threads put frames in, tasks take them out; neither takes memory for it.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Semaphore;

use crate::wire::SealedChunk;

/// A frame that is to be sent.
pub enum Frame {
    /// If it is lost its chunk is read again.
    Own(SealedChunk),
    /// Kept until it is acknowledged, since its chunk cannot be read again.
    Kept(Arc<SealedChunk>),
}

/// Clones are the same queue.
#[derive(Clone)]
pub struct Frames(Arc<Shared>);

struct Shared {
    waiting: Mutex<VecDeque<Frame>>,
    /// Bound of those.
    most: usize,
    /// A permit for each that is there.
    there: Semaphore,
}

impl Frames {
    /// Room for `most` frames.
    pub fn new(most: usize) -> Frames {
        Frames(Arc::new(Shared {
            waiting: Mutex::new(VecDeque::with_capacity(most)),
            most,
            there: Semaphore::new(0),
        }))
    }

    /// False, and the frame is gone, where there is no room or nobody takes any more.
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

    /// Waits for the next; None once the queue is closed.
    pub async fn take(&self) -> Option<Frame> {
        self.0.there.acquire().await.ok()?.forget();
        self.lock().pop_front()
    }

    /// The next if there is one.
    pub fn try_take(&self) -> Option<Frame> {
        self.0.there.try_acquire().ok()?.forget();
        self.lock().pop_front()
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Wakes everyone who waits. What nobody has taken is dropped.
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
