//! The reading of a plan: its bytes are read, their digest is added to the digest of their file,
//! and files that changed during the reading are detected.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::plan::{
    FileReading, PackMember, Plan, PlannedContent, ReadProgress, RootDigest, SendFile,
};
use super::report::SendReport;
use super::scheduler::{ResumedFile, Scheduler};
use crate::chunk::pack::TableForm;
use crate::chunk::ranges::RangeSet;
use crate::chunk::split::Cut;
use crate::chunk::{Buffer, Chunk, ChunkKind, ChunkPlace};
use crate::digest::{self, Added, Digest};
use crate::error::{Error, Kind, Result, Side};
use crate::journal::identity_of;
use crate::manifest::{ANEW, Entry, Extension};
use crate::pipeline::context::Context;
use crate::pipeline::worker_time::{Activity, WorkerClock};
use crate::source::{self, Changes, FoundFile, SourceFile, ToPack, Unpacked};
use crate::wire::message::{EntryEnd, Message};

/// Reads the sources of plans.
pub struct SendReader {
    context: Arc<Context>,
    scheduler: Arc<Scheduler>,
    report: Arc<SendReport>,
    /// The form of packs that the receiver accepts.
    pub(super) table_form: TableForm,
}

impl SendReader {
    pub fn new(report: &Arc<SendReport>, table_form: TableForm) -> SendReader {
        SendReader {
            context: report.context().clone(),
            scheduler: report.scheduler().clone(),
            report: report.clone(),
            table_form,
        }
    }

    /// The context and the scheduler, for the parts above.
    pub(super) fn report(&self) -> &Arc<SendReport> {
        &self.report
    }

    pub(super) fn open(&self, found: &FoundFile) -> Result<SourceFile> {
        if found.entry.is_device() {
            return SourceFile::open_device(found, self.context.options.direct_io);
        }
        let source = SourceFile::open(found, self.changes())?;
        Ok(match self.context.options.drop_cache {
            true => source.dropping_pages(),
            false => source,
        })
    }

    pub(super) fn changes(&self) -> Changes {
        if self.context.options.live {
            Changes::Taken
        } else if self.takes_growth() {
            Changes::GrowthTaken
        } else {
            Changes::Told
        }
    }

    /// True if a file that only grew is copied up to an earlier length. A dry run copies nothing.
    fn takes_growth(&self) -> bool {
        self.context.agreed.tells_growth && !self.context.options.dry_run
    }

    /// Reads one piece of a big file. The first reading adds its digest to the file's tree. None if
    /// the receiver needs none of it.
    pub(super) fn read_piece(
        &self,
        plan: &Plan,
        file: &Arc<SendFile>,
        mut buffer: Buffer,
        clock: &mut WorkerClock<'_>,
    ) -> Option<(Chunk, Digest)> {
        let mut place = self.place_of_piece(plan, file)?;
        let is_there = match self.load(file, place, &mut buffer) {
            Ok(is_there) => is_there,
            Err(error) => {
                self.reading_failed(file, error);
                return None;
            }
        };
        clock.turn_to(Activity::Rest);
        let whole = u64::from(place.raw_len) == file.found.entry.size;
        let digest = if place.kind == ChunkKind::Zeros {
            buffer.set_len(0);
            // A hole needs no digest: its header is authenticated. `cover` adds it to the tree.
            [0; 32]
        } else {
            let digest = digest::of_range(buffer.data(), place.offset, whole);
            if is_zero(buffer.data()) {
                place.kind = ChunkKind::Zeros;
                buffer.set_len(0);
            }
            digest
        };
        self.piece_is_read(plan, file, Chunk { place, buffer }, digest, is_there)
    }

    /// The place of a piece. None if its file has failed or must be read again; the piece is then
    /// not sent.
    pub(super) fn place_of_piece(&self, plan: &Plan, file: &SendFile) -> Option<ChunkPlace> {
        let PlannedContent::Piece { piece, .. } = &plan.what else {
            return None;
        };
        if file.reading.is_given_up() {
            self.scheduler
                .settle_chunks(plan.chunk..plan.chunk + 1, |_| {});
            return None;
        }
        Some(ChunkPlace {
            kind: piece.kind,
            chunk: plan.chunk,
            entry: file.found.entry.id,
            offset: piece.offset,
            raw_len: piece.len,
        })
    }

    /// Handles a piece whose digest is known. None if the receiver needs none of it.
    pub(super) fn piece_is_read(
        &self,
        plan: &Plan,
        file: &Arc<SendFile>,
        chunk: Chunk,
        digest: Digest,
        is_there: bool,
    ) -> Option<(Chunk, Digest)> {
        let PlannedContent::Piece { piece, .. } = &plan.what else {
            return None;
        };
        let Chunk { place, buffer } = chunk;
        if piece.kind == ChunkKind::Range && place.kind == ChunkKind::Zeros {
            plan.zeros.store(true, Relaxed);
        }
        if file.digest_only || !is_there {
            // Nothing of it is sent, and it must be settled before the entry ends.
            self.scheduler
                .settle_chunks(plan.chunk..plan.chunk + 1, |_| {});
        }
        self.is_as_before(plan, file, place, buffer.data(), digest)?;
        if file.digest_only || !is_there {
            return None;
        }
        let mut chunk = Chunk { place, buffer };
        if place.kind == ChunkKind::Range && plan.offer().is_open() {
            plan.offer().make(&mut chunk);
        }
        Some((chunk, digest))
    }

    /// Adds the digest of a piece to the file's tree, once. None if the digest differs from that
    /// of the first reading.
    pub(super) fn is_as_before(
        &self,
        plan: &Plan,
        file: &Arc<SendFile>,
        place: ChunkPlace,
        data: &[u8],
        digest: Digest,
    ) -> Option<()> {
        let PlannedContent::Piece { piece, .. } = &plan.what else {
            return None;
        };
        let is_first = plan.digest.set(digest).is_ok();
        if is_first {
            self.cover(file, piece.kind, place, data, digest);
        } else if !file.reading.is_live() && plan.digest.get() != Some(&digest) {
            self.reading_failed(file, written(file.found.path()));
            return None;
        }
        Some(())
    }

    /// Reads the bytes of a piece, none for a hole. False if a file that may change no longer
    /// reaches this far. If it ends within the piece, zeros stand for the rest, and the receiver
    /// cuts them off.
    pub(super) fn load(
        &self,
        file: &SendFile,
        place: ChunkPlace,
        buffer: &mut Buffer,
    ) -> Result<bool> {
        file.began.get_or_init(Instant::now);
        let (offset, len) = (place.offset, place.raw_len as usize);
        let is_hole = place.kind == ChunkKind::Zeros;
        if !file.reading.is_live() {
            if !is_hole {
                file.source.read(offset, len, buffer)?;
            }
            return Ok(true);
        }
        let there = if is_hole {
            let size = file.source.size_now()?;
            size.saturating_sub(offset).min(len as u64)
        } else {
            buffer.set_len(len);
            let room = &mut buffer.room()[..len];
            let read = file.source.read_up_to(offset, room)?;
            room[read..].fill(0);
            read as u64
        };
        let end = offset + there;
        // The receiver may know the end already; this repeats it.
        if there < len as u64 && file.reading.ends_at(end) {
            self.say_end(file, end, None);
        }
        Ok(there > 0)
    }

    /// Adds the digest of a range to the file's tree. After the last range, ends the entry.
    fn cover(
        &self,
        file: &Arc<SendFile>,
        kind: ChunkKind,
        place: ChunkPlace,
        data: &[u8],
        digest: Digest,
    ) {
        let len = u64::from(place.raw_len);
        if let RootDigest::Tree(tree) = &file.digest {
            let mut tree = tree.lock();
            if kind == ChunkKind::Zeros {
                tree.add_zeros(place.offset, len);
            } else if data.len() as u64 == len {
                // The receiver may have had parts of it, and asked for the others.
                tree.add_bytes(place.offset, data, digest);
            } else if tree.add_subtree(place.offset, len, digest) == Added::Partly {
                // Only zeros come without their bytes.
                tree.add_zeros(place.offset, len);
            }
        }
        if file.coverage.add_read(len) == file.found.entry.size {
            self.end_file(file);
        }
    }

    /// Ends a file that was read completely, or that the receiver has.
    pub(super) fn end_file(&self, file: &Arc<SendFile>) {
        let size = file.found.entry.size;
        if let Some(length) = file.reading.end_live() {
            let root = if length == size { file.root() } else { None };
            return self.say_end(file, length, root);
        }
        match file.source.unchanged() {
            Ok(()) => match file.reading.leave(ReadProgress::Ended) {
                ReadProgress::Goes | ReadProgress::Grew => self.say_end(file, size, file.root()),
                ReadProgress::Ended | ReadProgress::Again => {}
            },
            Err(error) if self.may_have_grown_only(file, &error) => self.has_grown(file, error),
            Err(error) => self.reading_failed(file, error),
        }
    }

    /// True if a comparison can show that the file did nothing but grow.
    fn may_have_grown_only(&self, file: &SendFile, error: &Error) -> bool {
        self.takes_growth() && source::has_grown(error) && file.root().is_some()
    }

    /// Handles a file that has grown since it was opened. After the first reading it is better to
    /// read it again when it has stopped growing.
    fn has_grown(&self, file: &Arc<SendFile>, error: Error) {
        if file.reading.leave(ReadProgress::Grew) != ReadProgress::Goes {
            return;
        }
        match file.reading.is_last() {
            true => self.scheduler.compare_grown(file.clone()),
            false => self.scheduler.read_again(file.clone(), error),
        }
    }

    /// Compares a file that grew with what was read of it. If that has stayed, it was the file's
    /// content at the end of the reading, and the copy has the length that the file had when it was
    /// opened.
    pub(super) fn compare_grown(&self, file: &Arc<SendFile>) {
        let Some(compared) = self.has_stayed(file) else {
            return;
        };
        let Err(error) = compared else {
            if file.reading.leave(ReadProgress::Ended) == ReadProgress::Grew {
                let size = file.found.entry.size;
                self.report.grew(&file.found, size);
                self.say_end(file, size, file.root());
            }
            return;
        };
        if file.reading.is_last() {
            return self.report.fail_file(file, error);
        }
        match self.open(&file.found) {
            Ok(source) => self.announce_second_reading(file, source),
            // It was replaced or removed.
            Err(_) => self.report.fail_file(file, grew(file.found.path())),
        }
    }

    /// Reads a file once more, as far as it was sent, and compares the digests. None if the file has
    /// failed, or if the copy ends.
    fn has_stayed(&self, file: &SendFile) -> Option<Result<()>> {
        let changed = || Some(Err(written(file.found.path())));
        let size = file.found.entry.size;
        let mut buffer = self.context.pool.take_blocking().ok()?;
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        while at < size {
            if self.context.is_ending() || file.reading.has_failed() {
                return None;
            }
            if !file.reading.has_grown() {
                // Another reading has shown it.
                return changed();
            }
            let step = (size - at).min(self.context.chunk_size as u64);
            if let Err(error) = file.source.read(at, step as usize, &mut buffer) {
                return Some(Err(error));
            }
            hasher.update(buffer.data());
            at += step;
        }
        match file.source.unchanged() {
            // It was removed or cut off since then.
            Err(error) if !source::has_grown(&error) => Some(Err(error)),
            _ if file.root() == Some(*hasher.finalize().as_bytes()) => Some(Ok(())),
            _ => changed(),
        }
    }

    /// Announces a file that changed for its second reading.
    pub(super) fn announce_second_reading(&self, file: &SendFile, source: SourceFile) {
        if !file.reading.fail() {
            return;
        }
        let mut entry = source.found().entry.clone();
        let first = self
            .scheduler
            .announce_second_reading(entry.id, source, file.listed.clone());
        // The receiver may have failed it in the meantime.
        let Some(first) = first else { return };
        self.context.progress.add_again(file.coverage.placed());
        entry.extensions.push(Extension {
            tag: ANEW,
            bytes: first.to_le_bytes().to_vec(),
        });
        self.report.say(Message::Entries(vec![entry]));
    }

    fn say_end(&self, file: &SendFile, length: u64, root: Option<Digest>) {
        let entry = file.found.entry.id;
        self.report.say(Message::EntryEnd(vec![EntryEnd {
            entry,
            length,
            root,
        }]));
    }

    /// Handles a failed reading. A file that changed is read once more, unless this was the second
    /// reading or its end was sent. Any other error fails the file.
    pub(super) fn reading_failed(&self, file: &Arc<SendFile>, error: Error) {
        if error.kind != Kind::Changed || file.reading.is_last() {
            return self.report.fail_file(file, error);
        }
        match file.reading.leave(ReadProgress::Again) {
            ReadProgress::Goes => {}
            ReadProgress::Ended => return self.report.fail_file(file, error),
            // Another thread handles it: one that has seen it, or one that waits for the end of the
            // growth, or compares what was read.
            ReadProgress::Again | ReadProgress::Grew => return,
        }
        // Another thread waits, so that this worker stays free.
        self.scheduler.read_again(file.clone(), error);
    }

    /// Opens a file in which the receiver found these ranges damaged, and schedules them.
    pub(super) fn reopen(&self, held: ResumedFile, missing: &RangeSet) {
        let ResumedFile {
            found,
            listed,
            digest,
            ..
        } = held;
        let Entry { id, size, .. } = found.entry;
        let source = match self.open(&found) {
            Ok(source) => source,
            Err(error) => return self.report.fail(&found, error),
        };
        let is_same = identity_of(&source.found().entry) == identity_of(&found.entry);
        if !is_same && !self.context.options.live {
            return self.report.fail(&found, written(found.path()));
        }
        let mut had: RangeSet = std::iter::once(0..size).collect();
        missing.iter().for_each(|range| {
            had.remove(range);
        });
        let (chunk_size, grain) = (self.context.chunk_size as u64, self.context.agreed.grain);
        let cut = Cut::skipping(size, chunk_size, grain, &had);
        // If it changes while it is read, it fails.
        let reading = FileReading::new(true, self.context.options.live.then_some(size));
        let file = SendFile {
            ranges: missing.fragments(),
            digest: digest.map_or(RootDigest::Unneeded, RootDigest::Known),
            alone: AtomicBool::new(true),
            listed,
            ..SendFile::new(found, source, had, cut, reading)
        };
        self.context
            .progress
            .start_name(id, || file.found.path_in_copy());
        self.scheduler.reopened(id, Arc::new(file));
    }

    /// Reads the members of a pack, except those that failed before.
    pub(super) fn read_pack(&self, plan: &Plan, mut buffer: Buffer) -> Option<(Chunk, Digest)> {
        let members = plan.what.members();
        let live: Vec<&PackMember> = members.filter(|it| !it.failed.load(Relaxed)).collect();
        self.begins_pack(live.first().copied());
        let founds = live.iter().map(|member| ToPack {
            found: &member.found,
            read_before: member
                .digest
                .get()
                .map(|digest| (member.size.load(Relaxed), *digest)),
        });
        let (changes, drops_pages) = (self.changes(), self.context.options.drop_cache);
        let read = source::read_pack(founds, changes, drops_pages, self.table_form, &mut buffer);
        // Recorded before the pack is settled, since hard links are planned after that. The
        // receiver learns of them only after it is settled: that may complete the copy at its end, so
        // this end must be complete too.
        let left_out = read.left_out.into_iter();
        let left_out: Vec<LeftOut<'_>> = left_out
            .filter_map(|(index, why)| self.leave_out(live[index], why))
            .collect();
        if read.packed.is_empty() {
            self.scheduler
                .settle_chunks(plan.chunk..plan.chunk + 1, |_| {});
        }
        left_out.into_iter().for_each(|it| self.tell_left_out(it));
        for packed in &read.packed {
            let member = live[packed.place];
            self.member_is_read(member, packed.digest, packed.size);
            if packed.has_grown && !member.grew.swap(true, Relaxed) {
                self.report.grew(&member.found, packed.size);
            }
        }
        if read.packed.is_empty() {
            return None;
        }
        let place = place_of_pack(plan, read.raw_len);
        Some((Chunk { place, buffer }, read.digest))
    }

    pub(super) fn begins_pack(&self, first: Option<&PackMember>) {
        if let Some(first) = first {
            let found = &first.found;
            self.context
                .progress
                .start_name(found.entry.id, || found.path_in_copy());
        }
    }

    /// Every copy of a pack is correct in itself. But this end cannot know which copy the receiver
    /// takes, and a list of digests must know.
    pub(super) fn member_is_read(&self, member: &PackMember, digest: Digest, size: u64) {
        member.size.store(size, Relaxed);
        let known = member.digest.get_or_init(|| digest);
        if *known != digest && self.context.digests.is_some() {
            self.report
                .fail_member(member, written(member.found.path()));
        }
    }

    /// Handles a member that could not be packed. None if the receiver need not be told.
    fn leave_out<'a>(&self, member: &'a PackMember, why: Unpacked) -> Option<LeftOut<'a>> {
        let error = match why {
            Unpacked::Failed(error) => error,
            // It did not only grow. The receiver may have the file from an earlier copy of the
            // pack, and an entry cannot be announced after that.
            Unpacked::Grew if member.digest.get().is_some() => grew(member.found.path()),
            Unpacked::Grew => return self.outgrown(member),
        };
        if member.failed.swap(true, Relaxed) {
            return None;
        }
        self.scheduler.entry_failed(member.found.entry.id);
        Some(LeftOut::Failed(&member.found, error))
    }

    /// A member without room in its pack is sent as a big file. A member of unknown size is sent
    /// by the planner as a pipe.
    fn outgrown<'a>(&self, member: &'a PackMember) -> Option<LeftOut<'a>> {
        if member.failed.swap(true, Relaxed) {
            return None;
        }
        let (found, listed) = (&member.found, member.listed.clone());
        if found.entry.is_made_up() {
            self.scheduler.outgrow(found.clone(), listed);
            return None;
        }
        Some(match self.open(found) {
            Ok(source) => {
                let entry = source.found().entry.clone();
                self.scheduler.announce_now(entry.id, source, listed);
                LeftOut::Alone(entry)
            }
            Err(error) => {
                self.scheduler.entry_failed(found.entry.id);
                LeftOut::Failed(found, error)
            }
        })
    }

    fn tell_left_out(&self, left_out: LeftOut<'_>) {
        match left_out {
            LeftOut::Failed(found, error) => self.report.fail(found, error),
            LeftOut::Alone(entry) => self.report.say(Message::Entries(vec![entry])),
        }
    }
}

/// The message to the receiver about a member that is not in its pack.
enum LeftOut<'a> {
    Failed(&'a FoundFile, Error),
    Alone(Entry),
}

/// The place of a pack, which belongs to no single entry.
pub(super) fn place_of_pack(plan: &Plan, raw_len: u32) -> ChunkPlace {
    ChunkPlace {
        kind: ChunkKind::Pack,
        chunk: plan.chunk,
        entry: 0,
        offset: 0,
        raw_len,
    }
}

fn written(path: impl AsRef<Path>) -> Error {
    Error::new(Kind::Changed, Side::Source, source::WRITTEN).at(path)
}

fn grew(path: impl AsRef<Path>) -> Error {
    Error::new(Kind::Changed, Side::Source, source::GREW).at(path)
}

pub(super) fn is_zero(data: &[u8]) -> bool {
    // Comparing a slice with itself, shifted by one, is a memcmp, as fast as memory.
    data.first() == Some(&0) && data[1..] == data[..data.len() - 1]
}
