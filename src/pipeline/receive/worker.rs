//! A receiver's worker: its decoder and its clock.

use crate::chunk::{Buffer, Chunk, EncodedChunk};
use crate::codec::Decoder;
use crate::pipeline::worker_time::{Activity, WorkerClock};

pub struct Worker<'a> {
    decoder: Decoder,
    /// The patch that is being applied.
    patch: Vec<u8>,
    pub clock: WorkerClock<'a>,
}

impl<'a> Worker<'a> {
    /// `chunk_size` is in bytes.
    pub fn new(chunk_size: usize, clock: WorkerClock<'a>) -> Worker<'a> {
        let decoder = Decoder::new(chunk_size);
        Worker {
            decoder,
            patch: Vec::new(),
            clock,
        }
    }

    /// None if the chunk differs from its announcement.
    pub fn decode(&mut self, encoded: EncodedChunk) -> Option<Chunk> {
        self.clock.turn_to(Activity::Codec);
        let chunk = self.decoder.decode(encoded).ok();
        self.clock.turn_to(Activity::Rest);
        chunk
    }

    /// The bytes of a patch, and a buffer for the range that it makes. None if the patch differs from
    /// its announcement.
    pub fn decode_patch(&mut self, encoded: EncodedChunk) -> Option<(&[u8], Chunk)> {
        self.clock.turn_to(Activity::Codec);
        let chunk = self.decoder.decode_patch(encoded).ok();
        self.clock.turn_to(Activity::Disk);
        let chunk = chunk?;
        self.patch.clear();
        self.patch.extend_from_slice(chunk.buffer.data());
        Some((&self.patch, chunk))
    }

    /// Like [`decode`](Worker::decode), for more than a chunk.
    pub fn decode_into(&mut self, encoded: EncodedChunk, into: Buffer) -> Option<Chunk> {
        self.clock.turn_to(Activity::Codec);
        let chunk = self.decoder.decode_into(encoded, into).ok();
        self.clock.turn_to(Activity::Rest);
        chunk
    }
}
