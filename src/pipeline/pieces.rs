//! Pieces of big files: claimed, verified, written, recorded, acknowledged; or found there already.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::chunk::claims::Claim;
use crate::chunk::split::is_subtree;
use crate::chunk::{ChunkKind, EncodedChunk, GRAINS, Place, VerifiedChunk};
use crate::digest::{self, Added, Digest, stream};
use crate::error::{Error, Kind, Side};
use crate::pipeline::jobs::Job;
use crate::pipeline::open_file::OpenFile;
use crate::pipeline::plans::{NACKS_MAX, UNACKED_MAX};
use crate::pipeline::receiver::{Hands, Receiver};
use crate::pipeline::shifts::Doing;
use crate::wire::message::Message;

/// Gaps between the pieces of one file: each is a chunk that its sender still waits for.
const PIECES_SCATTERED_MAX: usize = 4 * UNACKED_MAX;

/// What became of a piece that was claimed.
enum Piece {
    Written,
    /// It is to be sent again.
    Damaged,
    /// Its file has failed meanwhile.
    Late,
}

impl Receiver {
    /// A piece of a big file: claimed, decoded, verified, written, acknowledged.
    pub(super) fn piece(&self, encoded: EncodedChunk, hands: &mut Hands<'_>) {
        let (place, digest) = (encoded.place, encoded.digest);
        let Some(file) = self.claimed(place) else {
            return;
        };
        if let Some(drain) = file.at.drain() {
            return self.drain_piece(encoded, &file, drain, hands);
        }
        let written = self.write_piece(encoded, &file, hands);
        if !matches!(written, Ok(Piece::Written)) {
            // It was claimed above, so it can be released. Before it is asked for again: what
            // comes while it is claimed is dropped.
            let _ = file
                .claims
                .lock()
                .expect("no panic while held")
                .release(place.offset);
        }
        match written {
            Ok(Piece::Written) => {}
            Ok(Piece::Damaged) => return self.damaged(place.chunk),
            Ok(Piece::Late) => return,
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

    /// The file of a piece, if the piece is this worker's to write.
    fn claimed(&self, place: Place) -> Option<Arc<OpenFile>> {
        // Of an entry that is in place, failed or unknown: dropped. Its sender needs no answer.
        let file = self.lock().files.get(&place.entry).cloned()?;
        if place.chunk < file.first_chunk {
            return None;
        }
        // A part of a stream is a chunk at most, zeros or not.
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
            .expect("no panic while held")
            .claim_range(place.offset, u64::from(place.raw_len));
        match claim {
            Ok(Claim::Yours) => return Some(file),
            Ok(Claim::Taken) => {}
            Ok(Claim::Done) => self.acks.chunk(place.chunk),
            Err(_) => self.breach("a range that the file does not have"),
        }
        None
    }

    /// A piece that was claimed is there: recorded, then acknowledged.
    pub(super) fn piece_done(&self, file: &Arc<OpenFile>, place: Place, digest: Option<Digest>) {
        if let (Some(journal), Some(number)) = (self.journal(), file.number) {
            journal.chunk(number, place.offset, u64::from(place.raw_len), digest);
        }
        let is_scattered = {
            let mut claims = file.claims.lock().expect("no panic while held");
            let _ = claims.done(place.offset);
            claims.fragments() > PIECES_SCATTERED_MAX
        };
        if is_scattered {
            return self.breach("it sends a file in more pieces at once than it may");
        }
        self.acks.chunk(place.chunk);
        self.lock().chunk_done(place.chunk);
        match (file.is_complete(), file.at.drain()) {
            (false, _) => {}
            (true, None) => self.close(file),
            // Whoever has written this chunk still holds the consumer's pipe.
            (true, Some(_)) => {
                // Fails only when the copy is ending.
                self.jobs.add(Job::Close(file.clone()));
            }
        }
    }

    /// The digest of a piece that may be there: if it is, the piece is done, else it is to be sent.
    pub(super) fn compared(&self, encoded: EncodedChunk) {
        let EncodedChunk {
            place,
            digest,
            mut buffer,
            ..
        } = encoded;
        let Some(file) = self.claimed(place) else {
            return;
        };
        let partial = file.partial.lock().expect("no panic while held").clone();
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
            // It was claimed above, so it can be released.
            let _ = file
                .claims
                .lock()
                .expect("no panic while held")
                .release(place.offset);
            return match file.offered && fits {
                true => self.say(Message::Nack(vec![place.chunk])),
                false => self.breach("a digest that was not asked for"),
            };
        }
        drop(buffer);
        self.tell_checked(len as u64, 1 << 20);
        if let Some(tree) = &file.tree {
            tree.lock()
                .expect("no panic while held")
                .add_subtree(place.offset, len as u64, digest);
        }
        self.progress.add_resumed(len as u64);
        self.piece_done(&file, place, Some(digest));
    }

    /// Verifies and writes what was claimed. The partial is held only while there is a claim, so
    /// that whoever commits the file, when no claim is open, holds it alone.
    fn write_piece(
        &self,
        encoded: EncodedChunk,
        file: &OpenFile,
        hands: &mut Hands<'_>,
    ) -> Result<Piece, Error> {
        let (place, digest) = (encoded.place, encoded.digest);
        let partial = file.partial.lock().expect("no panic while held").clone();
        let Some(partial) = partial else {
            return Ok(Piece::Late);
        };
        if place.kind == ChunkKind::Zeros {
            hands.shift.turn_to(Doing::Disk);
            let len = u64::from(place.raw_len);
            let may_fill = file.is_stream() || file.entry.is_sparse() || self.may_fill(len);
            partial.write_zeros(place.offset, len, may_fill)?;
            return Ok(Piece::Written);
        }
        let whole = u64::from(place.raw_len) == file.entry.size;
        let chunk = match place.raw_len as usize > self.chunk_size as usize {
            false => hands.decode(encoded),
            // Nobody who holds such a buffer waits for another, so this ends; not before the copy
            // does at the latest.
            true => match self.large.take_blocking() {
                Ok(into) => hands.decode_into(encoded, into),
                Err(_) => return Ok(Piece::Late),
            },
        };
        let Some(chunk) = chunk.and_then(|chunk| chunk.verify(digest, whole).ok()) else {
            return Ok(Piece::Damaged);
        };
        hands.shift.turn_to(Doing::Disk);
        partial.write(&chunk)?;
        self.add_to_tree(file, place, &chunk);
        Ok(Piece::Written)
    }

    /// Takes `len` from what the sender announced as the room that the sources occupy: 96 bytes of
    /// a frame may stand for 2 GiB of zeros. What goes beyond becomes a hole, which reads the same.
    fn may_fill(&self, len: u64) -> bool {
        let left = |left: u64| left.checked_sub(len);
        self.fillable.fetch_update(Relaxed, Relaxed, left).is_ok()
    }

    /// Asks for a chunk again, unless its sender goes on where an honest one gives it up.
    pub(super) fn damaged(&self, chunk: u64) {
        if self.lock().count_damage(chunk) > NACKS_MAX {
            let error = Error::new(Kind::Verify, Side::Dest, "arrived damaged again and again");
            return self.ending.end(error);
        }
        self.say(Message::Nack(vec![chunk]));
    }

    pub(super) fn add_to_tree(&self, file: &OpenFile, place: Place, chunk: &VerifiedChunk) {
        if let Some(tree) = &file.tree {
            let len = place.raw_len.into();
            let mut tree = tree.lock().expect("no panic while held");
            let added = tree.add_subtree(place.offset, len, chunk.digest());
            if added == Added::Partly {
                // Parts of it were found intact, and came again along with a damaged one.
                let step = self.chunk_size as usize / GRAINS;
                for (nth, part) in chunk.data().chunks(step).enumerate() {
                    let offset = place.offset + (nth * step) as u64;
                    let digest = digest::of_range(part, offset, false);
                    tree.add_subtree(offset, part.len() as u64, digest);
                }
            }
        } else if let Some(stream_tree) = &file.stream {
            let piece = stream::Piece::new(chunk.data(), place.offset, chunk.digest());
            stream_tree.lock().expect("no panic while held").add(piece);
        }
    }

    pub(super) fn add_zeros_to_tree(&self, file: &OpenFile, place: Place) {
        let len = u64::from(place.raw_len);
        if let Some(tree) = &file.tree {
            tree.lock()
                .expect("no panic while held")
                .add_zeros(place.offset, len);
        } else if let Some(stream_tree) = &file.stream {
            let piece = stream::Piece::of_zeros(place.offset, len);
            stream_tree.lock().expect("no panic while held").add(piece);
        }
    }
}
