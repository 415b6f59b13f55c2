//! Packs that travel as one: read into memory that the pool lends, and compressed into a buffer.

use std::sync::atomic::Ordering::Relaxed;

use crate::chunk::pool::TAILROOM;
use crate::chunk::{Buffer, EncodedChunk};
use crate::codec::Encoder;
use crate::pipeline::budget::large_slots;
use crate::pipeline::plan::Plan;
use crate::pipeline::sender::Sender;
use crate::pipeline::shifts::{Doing, Shift};
use crate::pipeline::steering::{Compression, compress};
use crate::tuner::Method;

/// Room behind a compressed pack that is left to the seal's tag.
const SPARE: usize = TAILROOM / 2;

impl Sender {
    /// Reads and compresses so many packs as one. None if nothing is to be sent, or if they go one by
    /// one: there is no memory, or what comes of them is longer than a frame.
    pub(super) fn carry_large(
        &self,
        plan: &Plan,
        packs: usize,
        buffer: Buffer,
        shift: &mut Shift<'_>,
    ) -> Option<EncodedChunk> {
        if plan.nacks.load(Relaxed) > 0 {
            self.plans.end_large();
            self.plans.take_apart(plan);
            return None;
        }
        let made = self.make_large(plan, packs, buffer, shift);
        self.plans.large_is_made(plan.chunk);
        if made.is_none() {
            self.plans.take_apart(plan);
        }
        made
    }

    fn make_large(
        &self,
        plan: &Plan,
        packs: usize,
        buffer: Buffer,
        shift: &mut Shift<'_>,
    ) -> Option<EncodedChunk> {
        let compression = self.steering.next();
        let (Compression::Forced(method) | Compression::Sampled(method)) = compression;
        if !matches!(method, Method::Zstd(_) | Method::Lzma(_)) {
            return None;
        }
        let lent = self.pool.lend(large_slots(self.chunk_size))?;
        let large = Buffer::of_lent(packs * self.chunk_size, lent);
        shift.turn_to(Doing::Disk);
        let (chunk, digest) = self.read_pack(plan, large)?;
        shift.turn_to(Doing::Codec);
        let most = buffer.capacity() - SPARE;
        let made = Encoder::encode_large(&chunk, compress(method), digest, buffer, most);
        let took = shift.turn_to(Doing::Rest);
        let raw = chunk.buffer.len();
        let len = made.as_ref().map_or(raw, |made| made.buffer.len());
        self.steering.coded(compression, raw, len, took);
        made
    }
}
