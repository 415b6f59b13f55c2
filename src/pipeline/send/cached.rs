//! Reading and encoding when several hosts get the same data. A sender uses the chunks that another
//! sender has read and compressed, and offers its own.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::cache::{CacheKey, CacheShare, CachedChunk, Got};
use super::encoder_control::Compression;
use super::plan::{PackMember, Plan, PlannedContent, SendFile, SendPipe};
use super::read::place_of_pack;
use crate::chunk::split::FilePiece;
use crate::chunk::{Buffer, Chunk, ChunkKind, ChunkPlace, EncodedChunk};
use crate::codec::{Codec, Encoder};
use crate::digest::Digest;
use crate::pipeline::send::Sender;
use crate::pipeline::worker_time::{Activity, WorkerClock};

impl Sender {
    /// None if each sender reads this piece for itself. That is so for a hole, for a file that may
    /// change between readings, and for a file that cannot be told from others.
    pub(in crate::pipeline) fn share_of(
        &self,
        file: &SendFile,
        piece: &FilePiece,
    ) -> Option<&CacheShare> {
        let is_known = file.found.entry.ino != 0;
        let is_same = is_known
            && file.live.is_none()
            && piece.kind == ChunkKind::Range
            && !file.alone.load(Relaxed);
        self.share.as_ref().filter(|_| is_same)
    }

    /// Reads and encodes a piece, or takes it from the cache. None if nothing is to be sent.
    pub(in crate::pipeline) fn carry_shared(
        &self,
        share: &CacheShare,
        plan: &Plan,
        buffer: Buffer,
        encoder: &mut Encoder,
        clock: &mut WorkerClock<'_>,
    ) -> Option<EncodedChunk> {
        let PlannedContent::Piece { file, piece } = &plan.what else {
            return None;
        };
        let key = CacheKey::of(&file.found.entry);
        // If only the digest is sent, no other sender could use the chunk.
        let may_make = plan.digest.get().is_none() && !file.digest_only && !plan.is_offer();
        clock.turn_to(Activity::Held);
        let got = share.chunk(key, piece.offset, piece.len, may_make);
        clock.turn_to(Activity::Disk);
        let ticket = match got {
            Got::Taken(made) => return self.carry_made(plan, file, &made, buffer),
            Got::Make(ticket) => Some(ticket),
            Got::Alone => None,
        };
        let (chunk, digest) = self.read_piece(plan, file, buffer, clock)?;
        let encoded = self.encode(chunk, digest, self.encoder_control.next(), encoder, clock);
        if let Some(ticket) = ticket {
            ticket.put(CachedChunk::of(&encoded));
        }
        Some(encoded)
    }

    /// Reads and encodes a pack, or takes it from the cache. None if nothing is to be sent.
    pub(in crate::pipeline) fn carry_pack(
        &self,
        plan: &Plan,
        members: &[PackMember],
        buffer: Buffer,
        encoder: &mut Encoder,
        clock: &mut WorkerClock<'_>,
    ) -> Option<EncodedChunk> {
        clock.turn_to(Activity::Held);
        let got = self.share_of_pack(members).map(|(share, key)| {
            // A pack that is read again is not for others: they have had it.
            let may_make = members.iter().all(|member| member.digest.get().is_none());
            share.chunk(key, 0, self.context.chunk_size as u32, may_make)
        });
        clock.turn_to(Activity::Disk);
        let ticket = match got {
            Some(Got::Taken(made)) => return Some(self.take_pack(plan, members, &made, buffer)),
            Some(Got::Make(ticket)) => Some(ticket),
            Some(Got::Alone) | None => None,
        };
        let (chunk, digest) = self.read_pack(plan, buffer)?;
        let encoded = self.encode(chunk, digest, self.encoder_control.next(), encoder, clock);
        let is_whole = || members.iter().all(|member| !member.failed.load(Relaxed));
        let read = |it: &PackMember| Some((*it.digest.get()?, it.size.load(Relaxed)));
        let read: Option<_> = members.iter().map(read).collect();
        if let (Some(ticket), Some(members), true) = (ticket, read, is_whole()) {
            ticket.put(CachedChunk {
                members,
                ..CachedChunk::of(&encoded)
            });
        }
        Some(encoded)
    }

    /// None if each sender reads this pack for itself, as with a piece ([`Sender::share_of`]).
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
            .then(|| (share, CacheKey::of_pack(entries, self.table_form)))
    }

    /// Uses a pack from the cache instead of reading it.
    fn take_pack(
        &self,
        plan: &Plan,
        members: &[PackMember],
        made: &CachedChunk,
        mut buffer: Buffer,
    ) -> EncodedChunk {
        self.begins_pack(members.first());
        for (member, &(digest, size)) in members.iter().zip(&made.members) {
            self.member_is_read(member, digest, size);
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
    pub(in crate::pipeline) fn encode_part(
        &self,
        pipe: &SendPipe,
        mut chunk: Chunk,
        digest: Digest,
        compression: Compression,
        encoder: &mut Encoder,
        clock: &mut WorkerClock<'_>,
    ) -> EncodedChunk {
        let ChunkPlace {
            offset, raw_len, ..
        } = chunk.place;
        let share = self.share.as_ref();
        let share = share.filter(|_| pipe.is_shared && chunk.place.kind == ChunkKind::Range);
        clock.turn_to(Activity::Held);
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
        let encoded = self.encode(chunk, digest, compression, encoder, clock);
        if let Some(Got::Make(ticket)) = got {
            ticket.put(CachedChunk::of(&encoded));
        }
        encoded
    }

    /// Uses a piece from the cache instead of reading it.
    fn carry_made(
        &self,
        plan: &Plan,
        file: &Arc<SendFile>,
        made: &CachedChunk,
        mut buffer: Buffer,
    ) -> Option<EncodedChunk> {
        let mut place = self.place_of_piece(plan, file)?;
        if made.is_zeros {
            place.kind = ChunkKind::Zeros;
        }
        fill(&mut buffer, made);
        let chunk = Chunk { place, buffer };
        let (Chunk { place, buffer }, digest) =
            self.piece_is_read(plan, file, chunk, made.digest, true)?;
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

fn fill(buffer: &mut Buffer, made: &CachedChunk) {
    let len = made.bytes.len();
    buffer.room()[..len].copy_from_slice(&made.bytes);
    buffer.set_len(len);
}
