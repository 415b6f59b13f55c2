//! Encoded chunks, made from plans. A chunk is read and compressed. If several hosts get the same
//! data, it may instead come from the cache, where another sender has put it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::cache::{CacheKey, CacheShare, CachedChunk, Got};
use super::encoder_control::{Compression, EncoderControl};
use super::plan::{PackMember, Plan, PlannedContent, SendFile, SendPipe};
use super::read::{SendReader, place_of_pack};
use super::scheduler::Scheduler;
use crate::algorithms::{Codec, Method};
use crate::chunk::split::FilePiece;
use crate::chunk::{Buffer, Chunk, ChunkKind, ChunkPlace, EncodedChunk, patch};
use crate::codec::Encoder;
use crate::digest::Digest;
use crate::pipeline::budget::lzma_slots;
use crate::pipeline::context::Context;
use crate::pipeline::lzma_room::LzmaRoom;
use crate::pipeline::worker_time::{Activity, WorkerClock};

/// A longer patch, in eighths of the range, is not worth its cost: the receiver reads its bytes again
/// to apply it.
const PATCH_MAX_EIGHTHS: usize = 7;

/// Makes the encoded chunks of plans.
pub struct ChunkMaker {
    pub(super) context: Arc<Context>,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) reader: Arc<SendReader>,
    pub encoder_control: EncoderControl,
    lzma_room: LzmaRoom,
    /// Set if other hosts get the same data.
    share: Option<CacheShare>,
}

/// A worker's encoder and clock.
pub(super) struct SendWorker<'a> {
    pub encoder: Encoder,
    /// A patch that is being made.
    pub patch: Vec<u8>,
    pub clock: WorkerClock<'a>,
}

impl ChunkMaker {
    pub fn new(reader: &Arc<SendReader>, share: Option<CacheShare>) -> ChunkMaker {
        let context = reader.report().context().clone();
        let (budget, chunk_size) = (context.budget, context.chunk_size);
        ChunkMaker {
            scheduler: reader.report().scheduler().clone(),
            reader: reader.clone(),
            encoder_control: EncoderControl::new(context.options.compress),
            lzma_room: LzmaRoom::new(budget.lzma_workers, lzma_slots(chunk_size)),
            share,
            context,
        }
    }

    /// The chunk of a piece or a pack. None if there is nothing to send now.
    pub(super) fn chunk_for(
        &self,
        plan: &Plan,
        buffer: Buffer,
        worker: &mut SendWorker<'_>,
    ) -> Option<EncodedChunk> {
        if plan.what.is_large(self.context.chunk_size) {
            return self.large_chunk(plan, buffer, worker);
        }
        worker.clock.turn_to(Activity::Held);
        let cached = self.look_in_cache(plan);
        worker.clock.turn_to(Activity::Disk);
        let ticket = match cached {
            Some(Got::Taken(made)) => return self.take_cached(plan, &made, buffer),
            Some(Got::Make(ticket)) => Some(ticket),
            Some(Got::Alone) | None => None,
        };
        let (chunk, digest) = match &plan.what {
            PlannedContent::Piece { file, .. } => {
                self.reader
                    .read_piece(plan, file, buffer, &mut worker.clock)?
            }
            _ => self.reader.read_pack(plan, buffer)?,
        };
        let chunk = self.patched(plan, chunk, worker);
        let encoded = self.encode(chunk, digest, self.encoder_control.next(), worker);
        if let Some(ticket) = ticket
            && let Some(cached) = cached_form(plan, &encoded)
        {
            ticket.put(cached);
        }
        Some(encoded)
    }

    /// Makes a patch of a chunk, if the receiver has another version of it and the patch is short.
    /// Otherwise offers the chunk once more, if that may help.
    fn patched(&self, plan: &Plan, mut chunk: Chunk, worker: &mut SendWorker<'_>) -> Chunk {
        let is_range = chunk.place.kind == ChunkKind::Range;
        let Some(pages) = plan.offer().pages().filter(|_| is_range) else {
            return chunk;
        };
        let most = chunk.buffer.len() / 8 * PATCH_MAX_EIGHTHS;
        worker.patch.resize(most, 0);
        let hasher = &self.context.page_hasher;
        let made = patch::make(chunk.buffer.data(), pages, hasher, &mut worker.patch);
        if plan
            .offer()
            .tries_anchors(chunk.buffer.len(), made.map(|(_, new)| new))
        {
            plan.offer().make(&mut chunk);
            return chunk;
        }
        match made {
            Some((len, new)) => {
                plan.offer().set_new(new);
                plan.offer().sent();
                chunk.place.kind = ChunkKind::Patch;
                chunk.buffer.room()[..len].copy_from_slice(&worker.patch[..len]);
                chunk.buffer.set_len(len);
            }
            None => plan.offer().give_up_patch(),
        }
        chunk
    }

    /// Looks whether another sender has made this chunk, or makes it for this one. None if each
    /// sender reads it for itself.
    fn look_in_cache(&self, plan: &Plan) -> Option<Got> {
        match &plan.what {
            // A patch is for this receiver alone.
            PlannedContent::Piece { .. } if plan.offer().pages().is_some() => None,
            PlannedContent::Piece { file, piece } => {
                let share = self.share_of(file, piece)?;
                // If only the digest is sent, no other sender could use the chunk.
                let may_make =
                    plan.digest.get().is_none() && !file.digest_only && !plan.offer().is_open();
                let key = CacheKey::of(&file.found.entry);
                Some(share.chunk(key, piece.offset, piece.len, may_make))
            }
            PlannedContent::Pack(members) => {
                let (share, key) = self.share_of_pack(members)?;
                // A pack that is read again is not for others: they have had it.
                let may_make = members.iter().all(|member| member.digest.get().is_none());
                Some(share.chunk(key, 0, self.context.chunk_size as u32, may_make))
            }
            PlannedContent::Large(_) | PlannedContent::Part(_) => None,
        }
    }

    /// Uses a chunk from the cache instead of reading it. None if the receiver needs none of it.
    fn take_cached(&self, plan: &Plan, made: &CachedChunk, buffer: Buffer) -> Option<EncodedChunk> {
        match &plan.what {
            PlannedContent::Piece { file, .. } => self.take_piece(plan, file, made, buffer),
            PlannedContent::Pack(members) => Some(self.take_pack(plan, members, made, buffer)),
            PlannedContent::Large(_) | PlannedContent::Part(_) => None,
        }
    }

    /// Compresses a chunk that has bytes to send.
    pub(super) fn encode(
        &self,
        chunk: Chunk,
        digest: Digest,
        compression: Compression,
        worker: &mut SendWorker<'_>,
    ) -> EncodedChunk {
        worker.clock.turn_to(Activity::Codec);
        match chunk.place.kind {
            ChunkKind::Zeros | ChunkKind::Digest | ChunkKind::Anchors => {
                let Chunk { place, buffer } = chunk;
                EncodedChunk {
                    place,
                    digest,
                    codec: Codec::None.number(),
                    buffer,
                }
            }
            _ => {
                let raw = chunk.buffer.len();
                let (compression, room) = match compression {
                    Compression::Sampled(Method::Lzma(_)) => {
                        let room = self.lzma_room.enter(&self.context.pool);
                        let without = Compression::Sampled(self.context.budget.strongest);
                        (room.as_ref().map_or(without, |_| compression), room)
                    }
                    _ => (compression, None),
                };
                let encoded = compression.encode(&mut worker.encoder, chunk, digest);
                drop(room);
                let took = worker.clock.turn_to(Activity::Rest);
                let made = encoded.buffer.len();
                self.encoder_control.coded(compression, raw, made, took);
                encoded
            }
        }
    }

    /// None if each sender reads this piece for itself. That is so for a hole, for a file that may
    /// change between readings, and for a file that cannot be told from others.
    fn share_of(&self, file: &SendFile, piece: &FilePiece) -> Option<&CacheShare> {
        let is_known = file.found.entry.ino != 0;
        let is_same = is_known
            && !file.reading.is_live()
            && piece.kind == ChunkKind::Range
            && !file.alone.load(Relaxed);
        self.share.as_ref().filter(|_| is_same)
    }

    /// None if each sender reads this pack for itself, as with a piece ([`ChunkMaker::share_of`]).
    fn share_of_pack(&self, members: &[PackMember]) -> Option<(&CacheShare, CacheKey)> {
        let share = self.share.as_ref().filter(|_| !self.context.options.live)?;
        let is_known = |member: &PackMember| {
            let entry = &member.found.entry;
            let is_same = entry.ino != 0 && !entry.is_made_up();
            is_same && !member.failed.load(Relaxed)
        };
        let entries = members.iter().map(|member| &member.found.entry);
        members
            .iter()
            .all(is_known)
            .then(|| (share, CacheKey::of_pack(entries, self.reader.table_form)))
    }

    /// Uses a pack from the cache instead of reading it.
    fn take_pack(
        &self,
        plan: &Plan,
        members: &[PackMember],
        made: &CachedChunk,
        mut buffer: Buffer,
    ) -> EncodedChunk {
        self.reader.begins_pack(members.first());
        for (member, &(digest, size)) in members.iter().zip(&made.members) {
            self.reader.member_is_read(member, digest, size);
        }
        fill(&mut buffer, made);
        EncodedChunk {
            place: place_of_pack(plan, made.raw_len),
            digest: made.digest,
            codec: made.codec,
            buffer,
        }
    }

    /// Compresses a part of a pipe, or takes it from the cache. Files that each sender reads for
    /// itself (in /proc, or while they grow) are not shared, since each may read different bytes.
    pub(super) fn encode_part(
        &self,
        pipe: &SendPipe,
        mut chunk: Chunk,
        digest: Digest,
        compression: Compression,
        worker: &mut SendWorker<'_>,
    ) -> EncodedChunk {
        let ChunkPlace {
            offset, raw_len, ..
        } = chunk.place;
        let share = self.share.as_ref();
        let share = share.filter(|_| pipe.is_shared && chunk.place.kind == ChunkKind::Range);
        worker.clock.turn_to(Activity::Held);
        let got = share.map(|share| share.chunk(CacheKey::PIPE, offset, raw_len, true));
        if let Some(Got::Taken(made)) = got {
            fill(&mut chunk.buffer, &made);
            return EncodedChunk {
                place: chunk.place,
                digest,
                codec: made.codec,
                buffer: chunk.buffer,
            };
        }
        let encoded = self.encode(chunk, digest, compression, worker);
        if let Some(Got::Make(ticket)) = got {
            ticket.put(CachedChunk::of(&encoded));
        }
        encoded
    }

    /// Uses a piece from the cache instead of reading it.
    fn take_piece(
        &self,
        plan: &Plan,
        file: &Arc<SendFile>,
        made: &CachedChunk,
        mut buffer: Buffer,
    ) -> Option<EncodedChunk> {
        let mut place = self.reader.place_of_piece(plan, file)?;
        if made.is_zeros {
            place.kind = ChunkKind::Zeros;
        }
        fill(&mut buffer, made);
        let chunk = Chunk { place, buffer };
        let (Chunk { place, buffer }, digest) =
            self.reader
                .piece_is_read(plan, file, chunk, made.digest, true)?;
        let codec = match place.kind {
            ChunkKind::Range => made.codec,
            _ => Codec::None.number(),
        };
        Some(EncodedChunk {
            place,
            digest,
            codec,
            buffer,
        })
    }
}

/// A chunk as other senders can use it. None if a file of the pack could not be read, or grew: each
/// user is told of that.
fn cached_form(plan: &Plan, encoded: &EncodedChunk) -> Option<CachedChunk> {
    let PlannedContent::Pack(members) = &plan.what else {
        return Some(CachedChunk::of(encoded));
    };
    let read = |member: &PackMember| {
        let is_whole = !member.failed.load(Relaxed) && !member.grew.load(Relaxed);
        let digest = member.digest.get().filter(|_| is_whole)?;
        Some((*digest, member.size.load(Relaxed)))
    };
    Some(CachedChunk {
        members: members.iter().map(read).collect::<Option<_>>()?,
        ..CachedChunk::of(encoded)
    })
}

fn fill(buffer: &mut Buffer, made: &CachedChunk) {
    let len = made.bytes.len();
    buffer.room()[..len].copy_from_slice(&made.bytes);
    buffer.set_len(len);
}
