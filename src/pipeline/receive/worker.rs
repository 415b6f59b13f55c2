//! A receiver's worker: its decoder and its clock.

use crate::chunk::{Buffer, Chunk, EncodedChunk};
use crate::codec::Decoder;
use crate::pipeline::worker_time::{Activity, WorkerClock};

pub struct Worker<'a> {
    decoder: Decoder,
    pub clock: WorkerClock<'a>,
}

impl<'a> Worker<'a> {
    /// `chunk_size` is in bytes.
    pub fn new(chunk_size: usize, clock: WorkerClock<'a>) -> Worker<'a> {
        let decoder = Decoder::new(chunk_size);
        Worker { decoder, clock }
    }

    /// None if the chunk differs from its announcement.
    pub fn decode(&mut self, encoded: EncodedChunk) -> Option<Chunk> {
        self.clock.turn_to(Activity::Codec);
        let chunk = self.decoder.decode(encoded).ok();
        self.clock.turn_to(Activity::Rest);
        chunk
    }

    /// Like [`decode`](Worker::decode), for more than a chunk.
    pub fn decode_into(&mut self, encoded: EncodedChunk, into: Buffer) -> Option<Chunk> {
        self.clock.turn_to(Activity::Codec);
        let chunk = self.decoder.decode_into(encoded, into).ok();
        self.clock.turn_to(Activity::Rest);
        chunk
    }
}
