//! Pieces of big files and of pipes: claimed, verified, written, recorded and acknowledged, or
//! found to exist already.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::compared::{ComparedPiece, Comparison, place_moved};
use super::files::Files;
use super::open_file::OpenFile;
use super::worker::Worker;
use crate::chunk::anchors::{self, Anchor, BadAnchors};
use crate::chunk::claims::Claim;
use crate::chunk::patch::apply;
use crate::chunk::split::is_subtree;
use crate::chunk::{
    Buffer, Chunk, ChunkKind, ChunkPlace, EncodedChunk, LARGE_PIECE, Pool, VerifiedChunk,
};
use crate::dest::{Basis, OrderedSink};
use crate::digest::{self, Digest};
use crate::error::{Kind, Result};
use crate::pipeline::context::Context;
use crate::pipeline::send::scheduler::UNACKED_MAX;
use crate::pipeline::worker_time::Activity;
use crate::wire::message::{DifferingChunk, Message};

/// Bytes for large pieces beyond the pool: enough for four workers.
const LARGE_BYTES: usize = 8 << 20;

/// Bytes of existing data that are compared between two reports of progress.
const REPORT_EVERY: u64 = 1 << 20;

/// Most gaps between the finished pieces of all open files, besides those that earlier sessions left.
/// The sender still waits for a chunk in each gap.
const GAPS_MAX: usize = 4 * UNACKED_MAX;

/// The result for a claimed piece.
enum RangeOutcome {
    Written,
    /// The sender has to send it again.
    Damaged,
    /// Its file has failed in the meantime.
    Late,
}

/// The result for a patch.
enum Patched {
    /// `new`: how many of its bytes were sent.
    Written { new: u64 },
    /// It does not make the range: another program may have changed the existing bytes since, or a
    /// page seemed unchanged.
    Differs,
    /// It does not decode.
    Damaged,
    /// Its file has failed in the meantime, or the copy ends.
    Late,
}

/// Writes pieces of the files that are in [`Files`].
pub struct RangeWriter {
    files: Arc<Files>,
    /// Buffers for pieces that are larger than a chunk, in addition to the memory of the pool.
    large: Pool,
    /// Bytes of zeros that may still allocate disk blocks.
    fillable: AtomicU64,
}

impl RangeWriter {
    pub fn new(files: Arc<Files>) -> RangeWriter {
        let piece = LARGE_PIECE * files.context().chunk_size;
        RangeWriter {
            large: Pool::new((LARGE_BYTES / piece).max(1), piece),
            fillable: AtomicU64::new(0),
            files,
        }
    }

    fn context(&self) -> &Context {
        self.files.context()
    }

    /// Adds bytes that the sender's files take on its disks: as many bytes of zeros may allocate
    /// blocks here.
    pub fn add_allocated(&self, bytes: u64) {
        let sum = |sum: u64| Some(sum.saturating_add(bytes));
        let _ = self.fillable.fetch_update(Relaxed, Relaxed, sum);
    }

    /// Ends all waits for a buffer.
    pub fn close(&self) {
        self.large.close();
    }

    /// Claims, decodes, verifies, writes and acknowledges a piece of a big file.
    pub fn piece(&self, encoded: EncodedChunk, worker: &mut Worker<'_>) {
        let (place, digest) = (encoded.place, encoded.digest);
        let Some(file) = self.claimed(place) else {
            return;
        };
        if let Some(sink) = file.sink() {
            return self.put_piece(encoded, &file, sink, worker);
        }
        file.began.get_or_init(Instant::now);
        let written = self.write_piece(encoded, &file, worker);
        if !matches!(written, Ok(RangeOutcome::Written)) {
            self.release(&file, place);
        }
        match written {
            Ok(RangeOutcome::Written) => {}
            Ok(RangeOutcome::Damaged) => return self.files.entries.report.damaged(place.chunk),
            Ok(RangeOutcome::Late) => return,
            Err(error) => return self.files.fail(&file, error),
        }
        let len = u64::from(place.raw_len);
        if let Some(state) = file.partial_file().filter(|it| it.basis.is_some()) {
            // No patch follows.
            state.shifts.recall(place.offset);
        }
        if place.kind == ChunkKind::Zeros {
            file.add_zeros_to_tree(place);
            self.context().progress.add_skipped(len);
        } else {
            self.context().progress.add_bytes(len);
        }
        let digest = (place.kind != ChunkKind::Zeros).then_some(digest);
        self.piece_done(&file, place, digest);
    }

    /// Claims a piece for this worker. Returns its file, or None if the worker must not write it.
    fn claimed(&self, place: ChunkPlace) -> Option<Arc<OpenFile>> {
        // If the entry is in place, failed or unknown, the piece is dropped and the sender needs no
        // answer.
        let file = self.files.entries.open_file(place.entry)?;
        let first_chunk = file.partial_file().map_or(0, |file| file.first_chunk);
        if place.chunk < first_chunk {
            return None;
        }
        // A piece of a pipe has at most the size of a chunk, also if it is all zeros.
        let is_part =
            file.is_pipe() && u64::from(place.raw_len) <= self.context().chunk_size as u64;
        let is_hole = place.kind == ChunkKind::Zeros && !file.is_pipe();
        let is_cut_well =
            is_hole || is_part || is_subtree(place.offset, place.raw_len.into(), file.entry.size);
        if !is_cut_well {
            self.files
                .entries
                .report
                .breach("an invalid range of a file");
            return None;
        }
        let claim = file
            .claims
            .lock()
            .claim_range(place.offset, u64::from(place.raw_len));
        match claim {
            Ok(Claim::Yours) => return Some(file),
            Ok(Claim::Taken) => {}
            Ok(Claim::Done) => self.files.entries.report.acks.chunk(place.chunk),
            Err(_) => self
                .files
                .entries
                .report
                .breach("an invalid range of a file"),
        }
        None
    }

    /// Gives a claimed piece back. This comes before the request for a retransmission, because a copy
    /// that arrives during the claim is dropped.
    fn release(&self, file: &Arc<OpenFile>, place: ChunkPlace) {
        // The piece was claimed, so this cannot fail.
        let _ = file.claims.lock().release(place.offset);
        // With `--live`, the file may have ended before this piece in the meantime.
        if file.is_complete() {
            self.files.close_later(file.clone());
        }
    }

    /// Records and then acknowledges a claimed piece that is in place.
    fn piece_done(&self, file: &Arc<OpenFile>, place: ChunkPlace, digest: Option<Digest>) {
        if let (Some(journal), Some(number)) =
            (self.files.entries.journal(), self.files.number(file))
        {
            journal.chunk(number, place.offset, u64::from(place.raw_len), digest);
        }
        self.acknowledge(file, place);
    }

    /// Acknowledges a claimed piece that is in place.
    fn acknowledge(&self, file: &Arc<OpenFile>, place: ChunkPlace) {
        // Before the claim ends: another worker may then end the file and the copy, and the sender
        // counts no acknowledgement that comes after the end.
        self.files.entries.report.acks.chunk(place.chunk);
        let gaps = {
            let mut claims = file.claims.lock();
            let _ = claims.done(place.offset);
            file.gaps.set(claims.scattered().saturating_sub(1))
        };
        if gaps > GAPS_MAX {
            return self
                .files
                .entries
                .report
                .breach("files in more pieces at once than allowed");
        }
        self.files.entries.table().chunks.done(place.chunk);
        match (file.is_complete(), file.sink()) {
            (false, _) => {}
            (true, None) => self.files.close(file),
            // The thread that wrote this chunk still holds the pipe to the consumer.
            (true, Some(_)) => self.files.close_later(file.clone()),
        }
    }

    /// Compares a digest with the existing bytes. If they match, the piece is done; otherwise the
    /// sender has to send it, or what differs of it.
    pub fn compared(&self, encoded: EncodedChunk) {
        let (place, digest) = (encoded.place, encoded.digest);
        let Some(file) = self.claimed(place) else {
            return;
        };
        let compared = self.compare(encoded, &file);
        if !matches!(compared, Ok(Comparison::Same { .. })) {
            self.release(&file, place);
        }
        let is_written = match compared {
            Ok(Comparison::Same { is_written }) => is_written,
            Ok(Comparison::Differs(pages)) => return self.differs(place.chunk, pages),
            Ok(Comparison::Late) => return,
            Err(error) => return self.files.fail(&file, error),
        };
        let len = u64::from(place.raw_len);
        self.files.entries.report.checked(len, REPORT_EVERY);
        file.add_range_to_tree(place.offset, len, Some(digest));
        self.context().progress.add_resumed(len);
        let basis = file.partial_file().and_then(|state| state.basis.as_ref());
        match is_written || basis.is_some_and(Basis::is_recorded) {
            true => self.piece_done(&file, place, Some(digest)),
            false => self.acknowledge(&file, place),
        }
    }

    /// Compares a claimed piece with existing content, also where it may have moved to.
    fn compare(&self, encoded: EncodedChunk, file: &OpenFile) -> Result<Comparison> {
        let EncodedChunk {
            place,
            digest,
            buffer,
            ..
        } = encoded;
        let Some(basis) = self.basis(file, place, &buffer) else {
            return Ok(Comparison::Late);
        };
        let (Some(partial), Some(state)) = (file.partial(), file.partial_file()) else {
            return Ok(Comparison::Late);
        };
        let Ok(anchors) = anchors_of(place, &buffer) else {
            let what = "anchors that do not fill their range";
            self.files.entries.report.breach(what);
            return Ok(Comparison::Late);
        };
        let looks = self.context().agreed.shifts && !self.files.entries.rules.dry_run;
        let may_try = |old: &&Basis| state.shifts.may_try(file.entry.size, old.len());
        let piece = ComparedPiece {
            partial: &partial,
            basis,
            moved: basis.unwritten().filter(|_| looks).filter(may_try),
            shifts: &state.shifts,
            anchors: &anchors,
            place: ChunkPlace {
                kind: ChunkKind::Range,
                ..place
            },
            digest,
            is_whole: u64::from(place.raw_len) == file.entry.size,
        };
        piece.compare(buffer, &self.files.index_room, self.context())
    }

    /// The existing content that a claimed piece is compared with. Without it, the sender has broken
    /// the protocol.
    fn basis<'a>(
        &self,
        file: &'a OpenFile,
        place: ChunkPlace,
        buffer: &Buffer,
    ) -> Option<&'a Basis> {
        let len = place.raw_len as usize;
        let fits = len <= self.context().chunk_size && len <= buffer.capacity();
        let state = file.partial_file().filter(|_| fits);
        let basis = state.and_then(|state| state.basis.as_ref());
        if basis.is_none() {
            let what = "a digest that was not requested";
            self.files.entries.report.breach(what);
        }
        basis
    }

    /// Asks for a chunk whose digest differs from that of the existing bytes.
    fn differs(&self, chunk: u64, pages: Vec<u8>) {
        // A key that may only write must not learn existing content.
        let may_tell = self.context().agreed.patches && !self.files.entries.rules.blind;
        self.context().say(match may_tell && !pages.is_empty() {
            true => Message::Differs(DifferingChunk { chunk, pages }),
            false => Message::Nack(vec![chunk]),
        });
    }

    /// Makes a range from existing bytes and a patch, writes and acknowledges it.
    pub fn patched(&self, encoded: EncodedChunk, worker: &mut Worker<'_>) {
        let (place, digest) = (encoded.place, encoded.digest);
        let Some(file) = self.claimed(place) else {
            return;
        };
        let written = self.write_patched(encoded, &file, worker);
        if !matches!(written, Ok(Patched::Written { .. })) {
            self.release(&file, place);
        }
        let new = match written {
            Ok(Patched::Written { new }) => new,
            Ok(Patched::Differs) => return self.files.entries.report.patch_failed(place.chunk),
            Ok(Patched::Damaged) => return self.files.entries.report.damaged(place.chunk),
            Ok(Patched::Late) => return,
            Err(error) => return self.files.fail(&file, error),
        };
        let existing = u64::from(place.raw_len).saturating_sub(new);
        self.files.entries.report.checked(existing, REPORT_EVERY);
        self.context().progress.add_bytes(new);
        self.context().progress.add_resumed(existing);
        self.piece_done(&file, place, Some(digest));
    }

    fn write_patched(
        &self,
        encoded: EncodedChunk,
        file: &OpenFile,
        worker: &mut Worker<'_>,
    ) -> Result<Patched> {
        let (mut place, digest) = (encoded.place, encoded.digest);
        let Some(basis) = self.basis(file, place, &encoded.buffer) else {
            return Ok(Patched::Late);
        };
        let (Some(partial), Some(state)) = (file.partial(), file.partial_file()) else {
            return Ok(Patched::Late);
        };
        let Some((patch, Chunk { mut buffer, .. })) = worker.decode_patch(encoded) else {
            return Ok(Patched::Damaged);
        };
        let len = place.raw_len as usize;
        let room = &mut buffer.room()[..len];
        let Ok(mut existing) = basis.read(room, place.offset) else {
            return Ok(Patched::Differs);
        };
        let sources = state.shifts.recall(place.offset);
        if !sources.is_empty() {
            let old = basis.unwritten();
            if !old.is_some_and(|old| place_moved(room, existing, old, &sources)) {
                return Ok(Patched::Differs);
            }
            existing = len;
        }
        let Ok(parts) = apply(patch, room, existing) else {
            return Ok(Patched::Differs);
        };
        buffer.set_len(len);
        place.kind = ChunkKind::Range;
        let chunk = Chunk { place, buffer };
        let Ok(verified) = chunk.verify(digest, len as u64 == file.entry.size) else {
            return Ok(Patched::Differs);
        };
        match sources.is_empty() {
            true => partial.write_differing(&verified, &parts, basis)?,
            false => partial.write(&verified)?,
        }
        file.add_to_tree(place, &verified);
        let new = parts.iter().map(|part| part.len() as u64).sum();
        Ok(Patched::Written { new })
    }

    /// Verifies and writes a claimed piece. It holds the partial file only during the claim. So the
    /// thread that commits the file, when no claim is open, is its only holder.
    fn write_piece(
        &self,
        encoded: EncodedChunk,
        file: &OpenFile,
        worker: &mut Worker<'_>,
    ) -> Result<RangeOutcome> {
        let (place, digest) = (encoded.place, encoded.digest);
        let Some(partial) = file.partial() else {
            return Ok(RangeOutcome::Late);
        };
        if place.kind == ChunkKind::Zeros {
            worker.clock.turn_to(Activity::Disk);
            let len = u64::from(place.raw_len);
            let may_fill = file.is_pipe() || file.entry.is_sparse() || self.may_fill(len);
            partial.write_zeros(place.offset, len, may_fill)?;
            return Ok(RangeOutcome::Written);
        }
        let whole = u64::from(place.raw_len) == file.entry.size;
        let chunk = match place.raw_len as usize > self.context().chunk_size {
            false => worker.decode(encoded),
            // No thread waits for another buffer while it holds a large one, so this wait ends. It
            // fails when the copy ends.
            true => match self.large.take_blocking() {
                Ok(into) => worker.decode_into(encoded, into),
                Err(_) => return Ok(RangeOutcome::Late),
            },
        };
        let Some(chunk) = chunk.and_then(|chunk| chunk.verify(digest, whole).ok()) else {
            return Ok(RangeOutcome::Damaged);
        };
        worker.clock.turn_to(Activity::Disk);
        partial.write(&chunk)?;
        file.add_to_tree(place, &chunk);
        Ok(RangeOutcome::Written)
    }

    /// Takes `len` from the allocated bytes that the sender announced. Without this limit a frame
    /// of 96 bytes could make the disk allocate 2 GiB of zeros. Zeros beyond the limit become a
    /// hole, which reads the same.
    fn may_fill(&self, len: u64) -> bool {
        let left = |left: u64| left.checked_sub(len);
        self.fillable.fetch_update(Relaxed, Relaxed, left).is_ok()
    }

    /// Writes a claimed piece to a pipe. The piece stays claimed while it waits for those before
    /// it.
    fn put_piece(
        &self,
        encoded: EncodedChunk,
        file: &Arc<OpenFile>,
        sink: &OrderedSink,
        worker: &mut Worker<'_>,
    ) {
        let place = encoded.place;
        let Some(chunk) = verified(encoded, file, worker) else {
            // The piece was claimed, so `release` cannot fail.
            let _ = file.claims.lock().release(place.offset);
            return self.files.entries.report.damaged(place.chunk);
        };
        match place.kind {
            ChunkKind::Zeros => file.add_zeros_to_tree(place),
            _ => file.add_to_tree(place, &chunk),
        }
        worker.clock.turn_to(Activity::Disk);
        let put: Result<()> = sink.put(chunk, |written| {
            let place = written.place();
            let len = u64::from(place.raw_len);
            match place.kind {
                ChunkKind::Zeros => self.context().progress.add_skipped(len),
                _ => self.context().progress.add_bytes(len),
            }
            self.piece_done(file, place, None);
        });
        match put {
            Ok(()) => {}
            Err(error) if error.kind == Kind::Breach => self.context().shutdown.end(error),
            Err(error) => self.files.fail(file, error),
        }
    }
}

/// The anchors that came with the digest of a piece.
fn anchors_of(place: ChunkPlace, buffer: &Buffer) -> Result<Vec<Anchor>, BadAnchors> {
    match place.kind {
        ChunkKind::Anchors => anchors::read(buffer.data(), place.raw_len as usize),
        _ => Ok(Vec::new()),
    }
}

fn verified(
    encoded: EncodedChunk,
    file: &OpenFile,
    worker: &mut Worker<'_>,
) -> Option<VerifiedChunk> {
    // A sender that has read a range of zeros sends the digest of its bytes, but a `Zeros` chunk is
    // verified without a digest.
    let digest = match encoded.place.kind {
        ChunkKind::Zeros => digest::NONE,
        _ => encoded.digest,
    };
    let whole = u64::from(encoded.place.raw_len) == file.entry.size;
    worker.decode(encoded)?.verify(digest, whole).ok()
}
