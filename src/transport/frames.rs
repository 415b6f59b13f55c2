//! The queue of frames shared by all connections of a session: a free connection takes the next.
//!
//! Threads put frames in and tasks take them out; neither allocates memory for it.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::chunk::ChunkKind;
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
pub struct Frames(Arc<FrameQueue>);

struct FrameQueue {
    waiting: Mutex<VecDeque<Frame>>,
    /// The most frames that `waiting` holds.
    most: usize,
    /// One permit per queued frame.
    there: Semaphore,
}

impl Frames {
    /// A queue with room for `most` frames.
    pub fn new(most: usize) -> Frames {
        Frames(Arc::new(FrameQueue {
            waiting: Mutex::new(VecDeque::with_capacity(most)),
            most,
            there: Semaphore::new(0),
        }))
    }

    /// Queues a frame. Returns false and drops the frame if the queue is full or closed.
    pub fn put(&self, frame: Frame) -> bool {
        let mut waiting = self.0.waiting.lock();
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
        self.0.waiting.lock().pop_front()
    }

    /// The next frame, or None if the queue is empty.
    pub fn try_take(&self) -> Option<Frame> {
        self.0.there.try_acquire().ok()?.forget();
        self.0.waiting.lock().pop_front()
    }

    /// Takes frames out of the back of the queue whose chunks can be read again, up to one that
    /// cannot, and leaves the first `keep`.
    pub fn take_back(&self, keep: usize) -> Vec<SealedChunk> {
        let mut waiting = self.0.waiting.lock();
        let mut taken = Vec::new();
        let may_take = |frame: &Frame| {
            matches!(frame.header().kind, ChunkKind::Range | ChunkKind::Pack)
                && matches!(frame, Frame::Own(_))
        };
        while waiting.len() > keep && waiting.back().is_some_and(may_take) {
            // Without a permit left, the frames that are there belong to tasks on their way here.
            let Ok(permit) = self.0.there.try_acquire() else {
                break;
            };
            permit.forget();
            if let Some(Frame::Own(frame)) = waiting.pop_back() {
                taken.push(frame);
            }
        }
        taken
    }

    /// The number of queued frames.
    pub fn len(&self) -> usize {
        self.0.waiting.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes the queue: wakes all waiting tasks and drops the queued frames.
    pub fn close(&self) {
        self.0.there.close();
        let left = std::mem::take(&mut *self.0.waiting.lock());
        drop(left);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{Buffer, ChunkKind, ChunkPlace, EncodedChunk};
    use crate::seal::{Direction, Sealer, Secret, Suite};

    fn frame(chunk: u64, kind: ChunkKind) -> SealedChunk {
        let place = ChunkPlace {
            kind,
            chunk,
            entry: 1,
            offset: chunk << 20,
            raw_len: 5,
        };
        let mut buffer = Buffer::loose(1024);
        buffer.set_len(5);
        let encoded = EncodedChunk {
            place,
            digest: [0; 32],
            codec: 0,
            buffer,
        };
        SealedChunk::seal(
            encoded,
            &Sealer::new(&Secret::random(), Direction::ToServer, Suite::Tag),
        )
    }

    #[tokio::test]
    async fn frames_are_taken_back_from_behind_up_to_one_that_cannot_be_made_again() {
        let frames = Frames::new(8);
        for chunk in 0..3 {
            frames.put(Frame::Own(frame(chunk, ChunkKind::Range)));
        }
        frames.put(Frame::Kept(Arc::new(frame(3, ChunkKind::Range))));
        for chunk in 4..6 {
            frames.put(Frame::Own(frame(chunk, ChunkKind::Range)));
        }
        let numbers = |taken: Vec<SealedChunk>| -> Vec<u64> {
            taken.iter().map(|frame| frame.header().chunk).collect()
        };
        assert_eq!(numbers(frames.take_back(1)), [5, 4]);
        assert!(frames.take_back(1).is_empty());
        for chunk in 0..4 {
            let next = frames.take().await.expect("open");
            assert_eq!(next.header().chunk, chunk);
        }
        assert!(frames.try_take().is_none(), "no permit is left");
        frames.put(Frame::Own(frame(6, ChunkKind::Range)));
        assert!(frames.take_back(1).is_empty(), "the next one stays");
        assert_eq!(numbers(frames.take_back(0)), [6]);
        assert!(frames.try_take().is_none());
    }
}
