//! The queue of frames shared by all connections of a session: a free connection takes the next.
//!
//! Threads put frames in and tasks take them out; neither allocates memory for it.
//!
//! A [`SealedChunk`] is a frame that was built around the data in its buffer. So no data is moved,
//! and one write sends it:
//!
//! ```text
//! …headroom │ header 64 │ digest 32 │ encoded bytes │ tag │ …tailroom
//!                                   └ data of the buffer
//! ```

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::algorithms::{Codec, TAG_LEN};
use crate::chunk::{Buffer, ChunkKind, EncodedChunk};
use crate::locks::{OrderedMutex, place};
use crate::seal::{Opener, Sealer, Unsealed};
use crate::wire::frame::{DIGEST_LEN, FrameHeader, HEADER_LEN};

/// A frame in a buffer.
pub struct SealedChunk {
    header: FrameHeader,
    buffer: Buffer,
}

impl SealedChunk {
    /// Seals a chunk in its own buffer.
    ///
    /// # Panics
    /// If the codec is unknown, or the encoder left no room for the tag.
    pub fn seal(encoded: EncodedChunk, sealer: &Sealer) -> SealedChunk {
        let EncodedChunk {
            place,
            digest,
            codec,
            mut buffer,
        } = encoded;
        let codec = Codec::from_number(codec).expect("an encoder names a codec that there is");
        let suite = sealer.suite();
        let mut header = FrameHeader::of(&place, codec, buffer.len(), suite);
        let ticket = sealer.reserve(header.wire_len as usize);
        (header.epoch, header.counter) = (ticket.epoch, ticket.counter);
        let header_bytes = header.to_bytes();
        let frame = buffer.around_mut(HEADER_LEN + DIGEST_LEN, suite.tag_len());
        frame[..HEADER_LEN].copy_from_slice(&header_bytes);
        let (payload, tag) = frame[HEADER_LEN..].split_at_mut(DIGEST_LEN + header.encoded_len());
        payload[..DIGEST_LEN].copy_from_slice(&digest);
        let sealed = sealer.seal(ticket, &header_bytes, payload);
        tag.copy_from_slice(&sealed[..suite.tag_len()]);
        SealedChunk { header, buffer }
    }

    /// Prepares for the rest of a frame whose header has arrived. `header` is the parsed form of
    /// `header_bytes`. The caller reads the other bytes into [`payload_mut`](Self::payload_mut),
    /// and must not trust any of them before [`open`](Self::open).
    ///
    /// # Panics
    /// If `buffer` comes from a pool for which the header's limits were not made.
    pub fn receive(
        header: FrameHeader,
        header_bytes: &[u8; HEADER_LEN],
        mut buffer: Buffer,
    ) -> SealedChunk {
        buffer.set_len(header.encoded_len());
        // The received bytes, not re-encoded ones: the seal covers exactly these.
        buffer.around_mut(HEADER_LEN + DIGEST_LEN, 0)[..HEADER_LEN].copy_from_slice(header_bytes);
        SealedChunk { header, buffer }
    }

    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// The frame's bytes on the wire.
    pub fn bytes(&self) -> &[u8] {
        let tag_len = self.header.suite.tag_len();
        self.buffer.around(HEADER_LEN + DIGEST_LEN, tag_len)
    }

    /// The bytes after the header: digest, encoded data and tag.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let tag_len = self.header.suite.tag_len();
        self.buffer.around_mut(DIGEST_LEN, tag_len)
    }

    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// # Errors
    /// If the frame was not sealed with the session's key and suite.
    pub fn open(mut self, opener: &Opener) -> Result<EncodedChunk, Unsealed> {
        let digest = self.unseal(opener)?;
        Ok(EncodedChunk {
            place: self.header.place(),
            digest,
            codec: self.header.codec.number(),
            buffer: self.buffer,
        })
    }

    fn unseal(&mut self, opener: &Opener) -> Result<[u8; DIGEST_LEN], Unsealed> {
        let FrameHeader {
            suite,
            epoch,
            counter,
            ..
        } = self.header;
        if suite != opener.suite() {
            return Err(Unsealed);
        }
        let frame = self
            .buffer
            .around_mut(HEADER_LEN + DIGEST_LEN, suite.tag_len());
        let (header, rest) = frame.split_at_mut(HEADER_LEN);
        let (payload, tag_bytes) =
            rest.split_at_mut(self.header.wire_len as usize - suite.tag_len());
        let mut tag = [0; TAG_LEN];
        tag[..tag_bytes.len()].copy_from_slice(tag_bytes);
        opener.open(epoch, counter, header, payload, &tag)?;
        Ok(std::array::from_fn(|n| payload[n]))
    }
}

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
    waiting: OrderedMutex<VecDeque<Frame>, { place::FRAMES }>,
    /// The most frames that `waiting` holds.
    most: usize,
    /// One permit per queued frame.
    there: Semaphore,
}

impl Frames {
    /// A queue with room for `most` frames.
    pub fn new(most: usize) -> Frames {
        Frames(Arc::new(FrameQueue {
            waiting: OrderedMutex::new(VecDeque::with_capacity(most)),
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
