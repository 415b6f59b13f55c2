//! Large packs and large pieces: several packs, or two chunks of a file, read into memory that the
//! pool lends and compressed as one into a single buffer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::chunk_maker::{ChunkMaker, SendWorker};
use super::encoder_control::{Compression, compress};
use super::plan::{Plan, PlannedContent, SendFile};
use super::read::is_zero;
use crate::algorithms::Method;
use crate::chunk::pool::{Lent, TAILROOM};
use crate::chunk::{Buffer, Chunk, EncodedChunk};
use crate::codec::Encoder;
use crate::digest;
use crate::pipeline::budget::large_slots;
use crate::pipeline::worker_time::{Activity, WorkerClock};

/// Room behind the compressed bytes for the seal's tag.
const SPARE: usize = TAILROOM / 2;

/// The wait before memory is looked for again, for a large pack or piece that was sent before. A
/// slow link has few buffers in use.
const MEMORY_PAUSE: Duration = Duration::from_millis(50);

impl ChunkMaker {
    /// Reads and compresses several packs, or several chunks of a file, as one. None if nothing is
    /// to be sent now, or if they are sent separately: there is no memory, or the result does not
    /// fit into a frame. A piece that was sent once stays whole, since the receiver may have it.
    pub(super) fn large_chunk(
        &self,
        plan: &Plan,
        buffer: Buffer,
        worker: &mut SendWorker<'_>,
    ) -> Option<EncodedChunk> {
        let clock = &mut worker.clock;
        let made = match &plan.what {
            // It arrived damaged, or the receiver had no memory for it.
            PlannedContent::Large(_) if plan.nacks.load(Relaxed) > 0 => {
                self.scheduler.end_large();
                LargeOutcome::Apart
            }
            PlannedContent::Large(packs) => self.make_large(plan, packs.len(), buffer, clock),
            PlannedContent::Piece { file, .. } => self.make_large_piece(plan, file, buffer, clock),
            PlannedContent::Pack(_) | PlannedContent::Part(_) => LargeOutcome::Nothing,
        };
        self.large_is_over(plan, made, clock)
    }

    /// Acts on the outcome of an attempt. Gives the chunk to send, if there is one.
    fn large_is_over(
        &self,
        plan: &Plan,
        made: LargeOutcome,
        clock: &mut WorkerClock<'_>,
    ) -> Option<EncodedChunk> {
        self.scheduler.large_is_made(plan.chunk);
        match made {
            LargeOutcome::Made(encoded) => return Some(encoded),
            LargeOutcome::Nothing => {}
            LargeOutcome::Apart => self.scheduler.take_apart(plan, self.context.chunk_size),
            LargeOutcome::Later => {
                clock.turn_to(Activity::Held);
                std::thread::sleep(MEMORY_PAUSE);
                self.scheduler.put_back(plan.chunk);
            }
        }
        None
    }

    /// The compression of a large pack or piece, and memory for the work. If it was sent before, it
    /// is compressed as it was then, so that it fits again: the receiver may have it already.
    fn large_means(&self, plan: &Plan) -> Result<(Compression, Lent), LargeOutcome> {
        let before = plan.method.get().copied().map(Compression::Forced);
        let compression = before.or_else(|| self.large_compression());
        let compression = compression.ok_or(LargeOutcome::Apart)?;
        match self.context.pool.lend(large_slots(self.context.chunk_size)) {
            Some(lent) => Ok((compression, lent)),
            None if before.is_some() => Err(LargeOutcome::Later),
            None => Err(LargeOutcome::Apart),
        }
    }

    fn make_large(
        &self,
        plan: &Plan,
        packs: usize,
        buffer: Buffer,
        clock: &mut WorkerClock<'_>,
    ) -> LargeOutcome {
        let (compression, lent) = match self.large_means(plan) {
            Ok(means) => means,
            Err(outcome) => return outcome,
        };
        let large = Buffer::of_lent(packs * self.context.chunk_size, lent);
        clock.turn_to(Activity::Disk);
        let Some((chunk, digest)) = self.reader.read_pack(plan, large) else {
            return LargeOutcome::Nothing;
        };
        match self.encode_large(&chunk, digest, compression, buffer, clock) {
            Some(made) => {
                let _ = plan.method.set(method_of(compression));
                LargeOutcome::Made(made)
            }
            None => LargeOutcome::Apart,
        }
    }

    /// How the next large chunk is compressed. None if the current method cannot compress into a
    /// limited buffer ([`Encoder::encode_large`]).
    fn large_compression(&self) -> Option<Compression> {
        let compression = self.encoder_control.next();
        let method = method_of(compression);
        matches!(method, Method::Zstd(_) | Method::Lzma(_)).then_some(compression)
    }

    fn encode_large(
        &self,
        chunk: &Chunk,
        digest: digest::Digest,
        compression: Compression,
        buffer: Buffer,
        clock: &mut WorkerClock<'_>,
    ) -> Option<EncodedChunk> {
        clock.turn_to(Activity::Codec);
        let most = buffer.capacity() - SPARE;
        let how = compress(method_of(compression));
        let made = Encoder::encode_large(chunk, how, digest, buffer, most);
        let took = clock.turn_to(Activity::Rest);
        let raw = chunk.buffer.len();
        let len = made.as_ref().map_or(raw, |made| made.buffer.len());
        self.encoder_control.coded(compression, raw, len, took);
        made
    }

    fn make_large_piece(
        &self,
        plan: &Plan,
        file: &Arc<SendFile>,
        buffer: Buffer,
        clock: &mut WorkerClock<'_>,
    ) -> LargeOutcome {
        let was_sent = plan.method.get().is_some();
        let (compression, lent) = match self.large_means(plan) {
            Ok(means) => means,
            Err(outcome) => return outcome,
        };
        let Some(place) = self.reader.place_of_piece(plan, file) else {
            return LargeOutcome::Nothing;
        };
        clock.turn_to(Activity::Disk);
        let mut large = Buffer::of_lent(place.raw_len as usize, lent);
        if let Err(error) = self.reader.load(file, place, &mut large) {
            self.reader.reading_failed(file, error);
            return LargeOutcome::Nothing;
        }
        clock.turn_to(Activity::Rest);
        let whole = u64::from(place.raw_len) == file.found.entry.size;
        let digest = digest::of_range(large.data(), place.offset, whole);
        if !was_sent && is_zero(large.data()) {
            return LargeOutcome::Apart;
        }
        let chunk = Chunk {
            place,
            buffer: large,
        };
        let made = self.encode_large(&chunk, digest, compression, buffer, clock);
        // A different digest shows that the file changed, even if the result no longer fits.
        if (made.is_some() || was_sent)
            && self
                .reader
                .is_as_before(plan, file, place, chunk.buffer.data(), digest)
                .is_none()
        {
            return LargeOutcome::Nothing;
        }
        match made {
            Some(made) => {
                let _ = plan.method.set(method_of(compression));
                LargeOutcome::Made(made)
            }
            None if !was_sent => LargeOutcome::Apart,
            // Should not happen: the same bytes, compressed the same way, are as long as before. It
            // counts like a damaged arrival, so that the retries end.
            None => {
                plan.refused();
                LargeOutcome::Later
            }
        }
    }
}

/// The outcome of an attempt to make a large pack or piece.
enum LargeOutcome {
    Made(EncodedChunk),
    /// To be retried later: there is no memory now.
    Later,
    /// Its packs or chunks must be sent separately.
    Apart,
    /// Nothing is left to send: its files have failed, or are read again from the start.
    Nothing,
}

fn method_of(compression: Compression) -> Method {
    let (Compression::Forced(method) | Compression::Sampled(method)) = compression;
    method
}
