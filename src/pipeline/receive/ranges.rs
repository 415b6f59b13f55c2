//! Pieces of big files: claimed, verified, written, recorded and acknowledged, or found to exist
//! already.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::jobs::Job;
use super::open_file::OpenFile;
use crate::chunk::claims::Claim;
use crate::chunk::split::is_subtree;
use crate::chunk::{ChunkKind, ChunkPlace, EncodedChunk, VerifiedChunk};
use crate::digest;
use crate::digest::{Digest, pipe};
use crate::error::{Error, Kind, Side};
use crate::pipeline::receive::{Hands, Receiver};
use crate::pipeline::send::scheduler::{NACKS_MAX, UNACKED_MAX};
use crate::pipeline::worker_time::Activity;
use crate::wire::message::Message;

/// Most ranges of finished pieces in one file. Each gap between them is a chunk that the sender
/// still waits for.
const PIECES_SCATTERED_MAX: usize = 4 * UNACKED_MAX;

/// The result for a claimed piece.
enum RangeOutcome {
    Written,
    /// The sender has to send it again.
    Damaged,
    /// Its file has failed in the meantime.
    Late,
}

impl Receiver {
    /// Claims, decodes, verifies, writes and acknowledges a piece of a big file.
    pub(in crate::pipeline) fn piece(&self, encoded: EncodedChunk, hands: &mut Hands<'_>) {
        let (place, digest) = (encoded.place, encoded.digest);
        let Some(file) = self.claimed(place) else {
            return;
        };
        if let Some(drain) = file.at.drain() {
            return self.drain_piece(encoded, &file, drain, hands);
        }
        let written = self.write_piece(encoded, &file, hands);
        if !matches!(written, Ok(RangeOutcome::Written)) {
            // The piece was claimed above, so `release` cannot fail. It comes before the request
            // for a retransmission, because a copy that arrives during the claim is dropped.
            let _ = file.claims.lock().release(place.offset);
        }
        match written {
            Ok(RangeOutcome::Written) => {}
            Ok(RangeOutcome::Damaged) => return self.damaged(place.chunk),
            Ok(RangeOutcome::Late) => return,
            Err(error) => return self.fail_file(&file, error),
        }
        let len = u64::from(place.raw_len);
        if place.kind == ChunkKind::Zeros {
            self.add_zeros_to_tree(&file, place);
            self.progress.add_skipped(len);
        } else {
            self.progress.add_bytes(len);
        }
        let digest = (place.kind != ChunkKind::Zeros).then_some(digest);
        self.piece_done(&file, place, digest);
    }

    /// Claims a piece for this worker. Returns its file, or None if the worker must not write it.
    fn claimed(&self, place: ChunkPlace) -> Option<Arc<OpenFile>> {
        // If the entry is in place, failed or unknown, the piece is dropped and the sender needs no
        // answer.
        let file = self.table.lock().files.get(&place.entry).cloned()?;
        if place.chunk < file.first_chunk {
            return None;
        }
        // A piece of a pipe has at most the size of a chunk, also if it is all zeros.
        let is_part = file.is_stream() && u64::from(place.raw_len) <= self.chunk_size;
        let is_hole = place.kind == ChunkKind::Zeros && !file.is_stream();
        let is_cut_well =
            is_hole || is_part || is_subtree(place.offset, place.raw_len.into(), file.entry.size);
        if !is_cut_well {
            self.breach("a range that the file does not have");
            return None;
        }
        let claim = file
            .claims
            .lock()
            .claim_range(place.offset, u64::from(place.raw_len));
        match claim {
            Ok(Claim::Yours) => return Some(file),
            Ok(Claim::Taken) => {}
            Ok(Claim::Done) => self.acks.chunk(place.chunk),
            Err(_) => self.breach("a range that the file does not have"),
        }
        None
    }

    /// Records and then acknowledges a claimed piece that is in place.
    pub(in crate::pipeline) fn piece_done(
        &self,
        file: &Arc<OpenFile>,
        place: ChunkPlace,
        digest: Option<Digest>,
    ) {
        if let (Some(journal), Some(number)) = (self.journal(), file.number) {
            journal.chunk(number, place.offset, u64::from(place.raw_len), digest);
        }
        let is_scattered = {
            let mut claims = file.claims.lock();
            let _ = claims.done(place.offset);
            claims.fragments() > PIECES_SCATTERED_MAX
        };
        if is_scattered {
            return self.breach("it sends a file in more pieces at once than it may");
        }
        self.acks.chunk(place.chunk);
        self.table.lock().chunk_done(place.chunk);
        match (file.is_complete(), file.at.drain()) {
            (false, _) => {}
            (true, None) => self.close(file),
            // The thread that wrote this chunk still holds the pipe to the consumer.
            (true, Some(_)) => {
                // Fails only when the copy is ending.
                self.jobs.add(Job::Close(file.clone()));
            }
        }
    }

    /// Compares a digest with the existing bytes. If they match, the piece is done; otherwise the
    /// sender has to send it.
    pub(in crate::pipeline) fn compared(&self, encoded: EncodedChunk) {
        let EncodedChunk {
            place,
            digest,
            mut buffer,
            ..
        } = encoded;
        let Some(file) = self.claimed(place) else {
            return;
        };
        let partial = file.partial.lock().clone();
        let len = place.raw_len as usize;
        let fits = len as u64 <= self.chunk_size && len <= buffer.capacity();
        let same = partial
            .filter(|_| file.offered && fits)
            .is_some_and(|partial| {
                buffer.set_len(len);
                let data = &mut buffer.room()[..len];
                let range = place.offset..place.offset + len as u64;
                let disk = file.readback.get_or_init(|| partial.readback().ok());
                let is_read = disk.as_ref().is_some_and(|disk| {
                    disk.prepare(&range) && disk.read(data, place.offset).is_ok()
                });
                is_read
                    && digest::of_range(data, place.offset, len as u64 == file.entry.size) == digest
            });
        if !same {
            // The piece was claimed above, so `release` cannot fail.
            let _ = file.claims.lock().release(place.offset);
            return match file.offered && fits {
                true => self.say(Message::Nack(vec![place.chunk])),
                false => self.breach("a digest that was not asked for"),
            };
        }
        drop(buffer);
        self.tell_checked(len as u64, 1 << 20);
        if let Some(tree) = &file.tree {
            tree.lock().add_subtree(place.offset, len as u64, digest);
        }
        self.progress.add_resumed(len as u64);
        self.piece_done(&file, place, Some(digest));
    }

    /// Verifies and writes a claimed piece. It holds the partial file only during the claim. So the
    /// thread that commits the file, when no claim is open, is its only holder.
    fn write_piece(
        &self,
        encoded: EncodedChunk,
        file: &OpenFile,
        hands: &mut Hands<'_>,
    ) -> Result<RangeOutcome, Error> {
        let (place, digest) = (encoded.place, encoded.digest);
        let partial = file.partial.lock().clone();
        let Some(partial) = partial else {
            return Ok(RangeOutcome::Late);
        };
        if place.kind == ChunkKind::Zeros {
            hands.shift.turn_to(Activity::Disk);
            let len = u64::from(place.raw_len);
            let may_fill = file.is_stream() || file.entry.is_sparse() || self.may_fill(len);
            partial.write_zeros(place.offset, len, may_fill)?;
            return Ok(RangeOutcome::Written);
        }
        let whole = u64::from(place.raw_len) == file.entry.size;
        let chunk = match place.raw_len as usize > self.chunk_size as usize {
            false => hands.decode(encoded),
            // No thread waits for another buffer while it holds a large one, so this wait ends. It
            // fails when the copy ends.
            true => match self.large.take_blocking() {
                Ok(into) => hands.decode_into(encoded, into),
                Err(_) => return Ok(RangeOutcome::Late),
            },
        };
        let Some(chunk) = chunk.and_then(|chunk| chunk.verify(digest, whole).ok()) else {
            return Ok(RangeOutcome::Damaged);
        };
        hands.shift.turn_to(Activity::Disk);
        partial.write(&chunk)?;
        self.add_to_tree(file, place, &chunk);
        Ok(RangeOutcome::Written)
    }

    /// Takes `len` from the allocated bytes that the sender announced. Without this limit a frame
    /// of 96 bytes could make the disk allocate 2 GiB of zeros. Zeros beyond the limit become a
    /// hole, which reads the same.
    fn may_fill(&self, len: u64) -> bool {
        let left = |left: u64| left.checked_sub(len);
        self.fillable.fetch_update(Relaxed, Relaxed, left).is_ok()
    }

    /// Asks for a chunk again. Ends the copy if the chunk has arrived damaged more often than an
    /// honest sender sends it.
    pub(in crate::pipeline) fn damaged(&self, chunk: u64) {
        if self.table.lock().count_damage(chunk) > NACKS_MAX {
            let error = Error::new(
                Kind::Verify,
                Side::Dest,
                "failed verification again and again",
            );
            return self.ending.end(error);
        }
        self.say(Message::Nack(vec![chunk]));
    }

    pub(in crate::pipeline) fn add_to_tree(
        &self,
        file: &OpenFile,
        place: ChunkPlace,
        chunk: &VerifiedChunk,
    ) {
        if let Some(tree) = &file.tree {
            // Parts of this piece may have been found intact, and arrived again together with a
            // damaged part.
            let mut tree = tree.lock();
            tree.add_bytes(place.offset, chunk.data(), chunk.digest());
        } else if let Some(stream_tree) = &file.stream {
            let piece = pipe::PipePiece::new(chunk.data(), place.offset, chunk.digest());
            stream_tree.lock().add(piece);
        }
    }

    pub(in crate::pipeline) fn add_zeros_to_tree(&self, file: &OpenFile, place: ChunkPlace) {
        let len = u64::from(place.raw_len);
        if let Some(tree) = &file.tree {
            tree.lock().add_zeros(place.offset, len);
        } else if let Some(stream_tree) = &file.stream {
            let piece = pipe::PipePiece::of_zeros(place.offset, len);
            stream_tree.lock().add(piece);
        }
    }
}
