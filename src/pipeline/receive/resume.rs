//! Files that earlier runs left at the receiver, according to its journal, and how they are
//! resumed.
//!
//! If the source has another identity than recorded, or had just been written when it was recorded,
//! the existing data is compared with the source chunk by chunk. Otherwise the receiver reports at
//! once what exists, so that the missing chunks arrive without delay. It reads and verifies the
//! existing data at the same time ([`verify`](super::verify)). A sender of an older version cannot
//! be asked for more afterwards, so it gets the report only when everything was read.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::checks::{Check, Checks, FinishedSmallFile};
use super::entries::Entries;
use super::files::Files;
use super::open_file::{IncomingFile, PartialFile, Unread};
use super::opening::record_of;
use super::recorded::{
    FinishedBefore, FinishedFile, REPORT_EVERY, buffer_len, find_finished, find_finished_by, holds,
    identity_of_pipe, is_as_recorded,
};
use super::restored::{Restored, span};
use crate::chunk::ranges::RangeSet;
use crate::dest::{Basis, ExistingEntry, Partial, UnchangedFile};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::journal::record::Hash;
use crate::journal::{Journal, UnfinishedFile, identity_of};
use crate::manifest::{Entry, EntryId};
use crate::pipeline::context::Context;
use crate::wire::message::{EntryEnd, Message, Missing, RANGES_MAX, Want, WantKind};

/// The state of a small file that the sender asks about.
pub enum Asked {
    Missing,
    InPlace(Box<FinishedBefore>),
    /// In place, if reading it shows that it matches its record.
    Unread(Box<FinishedBefore>),
    /// The existing file counts as unchanged.
    Unchanged(Box<(IncomingFile, UnchangedFile)>),
    /// It is in place as a link to an earlier copy, or as a copy of one.
    Reused(Box<(IncomingFile, ExistingEntry)>),
    /// An earlier copy would be used (`--dry-run`). With the entry's parent and size in bytes.
    WouldReuse(EntryId, u64),
    /// Its directory has failed (`--dry-run`). With the entry's parent.
    Lost(EntryId),
    /// It would be sent (`--dry-run`). With the entry's parent.
    WouldSend(EntryId),
    /// What exists there stays, or nothing new is made. With the entry's parent.
    Stays(EntryId),
    /// It fails: the metadata of an unchanged file cannot be corrected, or the copy would refuse it
    /// (`--dry-run`). With the entry's parent.
    Failed(Box<(EntryId, Error)>),
}

/// The result for a file that an earlier session may have finished.
enum PlacedOrNot {
    Placed(Option<Want>),
    Not(Box<IncomingFile>),
}

/// Whether a pipe that cannot be read again is in place.
pub enum PipeThere {
    /// With its size in bytes and its digest.
    Yes(Box<IncomingFile>, u64, Option<Digest>),
    No(Box<IncomingFile>),
}

/// Resumes files, and verifies what earlier runs wrote.
pub struct Resume {
    pub files: Arc<Files>,
    /// Data from earlier sessions that waits to be read.
    pub checks: Checks,
}

impl Resume {
    pub fn new(files: Arc<Files>) -> Resume {
        let checks = Checks::default();
        Resume { files, checks }
    }

    pub fn entries(&self) -> &Entries {
        &self.files.entries
    }

    pub fn context(&self) -> &Context {
        self.files.context()
    }

    /// Removes what an earlier session has begun of a file that is not copied.
    pub fn drop_begun(&self, file: &IncomingFile) {
        let begun = self.entries().journal();
        let Some(begun) = begun.and_then(|journal| journal.take_begun(&file.path)) else {
            return;
        };
        let (entry, record) = (Arc::new(file.entry.clone()), &begun.file);
        let place = (&record.inode, record.size);
        let rules = &self.entries().rules;
        // Dropping the file removes it. One that cannot be opened stays, as after any early end.
        drop(Partial::resume(
            &file.slot,
            entry,
            rules,
            place,
            record.inplace,
        ));
    }

    /// Keeps what an earlier session has begun of a file, if this error refuses the file.
    pub fn keep_begun(&self, path: &Hash, error: &Error) {
        let journal = self.entries().journal();
        if journal.is_some_and(|journal| journal.take_begun(path).is_some()) {
            self.not_resumed(error);
        }
    }

    /// The user may remove the cause of a refusal, and resume the file with the next run.
    fn not_resumed(&self, error: &Error) {
        let entries = self.entries();
        // Each snapshot is a copy of its own.
        if error.kind == Kind::Refused && !entries.rules.snapshot {
            entries.journal.need();
        }
    }

    /// Copies a big file from an earlier copy, or resumes it; called on a worker.
    pub fn resume(&self, file: IncomingFile) {
        let (id, parent, path) = (file.entry.id, file.entry.parent, file.path);
        let entries = self.entries();
        let earlier = entries.find_earlier(&file.entry);
        let copied = earlier.map(|found| entries.copy_earlier(&file, &found));
        let resumed = match copied.transpose().map(Option::flatten) {
            Ok(Some(existing)) => {
                self.drop_begun(&file);
                let kind = WantKind::Unchanged;
                // Sent first, because the acknowledgement refers to this answer.
                self.context()
                    .say(Message::Want(vec![Want { entry: id, kind }]));
                self.entries().found_reused(file, &existing);
                return;
            }
            Ok(None) => self.try_resume(file),
            Err(error) => Err(error),
        };
        match resumed {
            Ok(None) => {}
            Ok(Some(want)) => self.context().say(Message::Want(vec![want])),
            Err(error) => {
                self.keep_begun(&path, &error);
                self.entries().fail(id, parent, &error);
                let kind = WantKind::Skip;
                let skip = Want { entry: id, kind };
                self.context().say(Message::Want(vec![skip]));
            }
        }
    }

    fn try_resume(&self, file: IncomingFile) -> Result<Option<Want>> {
        let Some(journal) = self.entries().journal() else {
            return self.files.begin(file, 0).map(Some);
        };
        let begun = journal.take_begun(&file.path);
        let file = match self.resume_placed(file, begun)? {
            PlacedOrNot::Placed(want) => return Ok(want),
            PlacedOrNot::Not(file) => *file,
        };
        let Some(begun) = begun else {
            return self.files.begin(file, 0).map(Some);
        };
        let entry = Arc::new(file.entry.clone());
        let record = &begun.file;
        let found = Partial::resume(
            &file.slot,
            entry.clone(),
            &self.entries().rules,
            (&record.inode, record.size),
            record.inplace,
        );
        let found = found.inspect_err(|error| self.not_resumed(error))?;
        let Some(partial) = found.filter(|_| begun.chunks > 0) else {
            return self.files.begin(file, 0).map(Some);
        };
        if record.identity != identity_of(&entry) || record.young {
            return self.compare(journal, begun, file, partial).map(Some);
        }
        self.resume_partial(journal, begun, file, partial)
    }

    /// Resumes a partial file of the same source. Returns the request to send, if it was not sent
    /// yet.
    fn resume_partial(
        &self,
        journal: &Journal,
        begun: UnfinishedFile,
        file: IncomingFile,
        mut partial: Partial,
    ) -> Result<Option<Want>> {
        let (entry, context) = (partial.entry().clone(), self.context());
        // Before the reading, which may take long.
        let young = self.entries().is_young(&entry);
        // Other programs may have changed a file that is written in place.
        let is_intact = partial.is_intact() && !partial.is_inplace();
        if !is_intact {
            journal.doubted();
        }
        let restored = match context.agreed.peer_repairs {
            true => self.recorded(journal, &begun, &entry),
            false => self.read_first(journal, &begun, &partial, &entry),
        };
        let told = restored.in_grains(context.agreed.grain);
        let have = told.have().filter(|have| !have.is_empty());
        let Some(have) = have else {
            if context.is_ending() {
                // It was not read to its end, so nothing is known of it: the next run may use it.
                partial.keep();
                return Ok(None);
            }
            drop(partial);
            return self.files.begin(file, 0).map(Some);
        };
        context.progress.add_resumed(told.claims.done_bytes());
        let is_whole = told.claims.done_bytes() == entry.size;
        let basis = match is_whole {
            true => None,
            false => match self.files.basis(&mut partial, false)? {
                None => self
                    .files
                    .basis_elsewhere(&file.slot, &mut partial, false)?,
                basis => basis,
            },
        };
        let kind = match &basis {
            Some(basis) => WantKind::HaveAndCompare(have, self.files.compared(basis, &entry)),
            None => WantKind::Have(have),
        };
        let IncomingFile {
            slot, listed, path, ..
        } = file;
        let mut state = PartialFile::new(slot, partial, Some(begun.number), young);
        (state.basis, state.is_resumed) = (basis, true);
        let place = (listed, path);
        if !context.agreed.peer_repairs {
            let entry = self.files.open(entry, place, state, told, None);
            return Ok(Some(Want { entry, kind }));
        }
        let unread: RangeSet = told.claims.done_ranges().collect();
        // If all of the file is there, the sender keeps nothing open for it and sends no end of it.
        let end = (unread.count() == entry.size).then(|| EntryEnd {
            entry: entry.id,
            length: entry.size,
            root: told.tree.as_ref().and_then(|tree| tree.root()),
        });
        // Only data that is read from now on goes into the digest.
        let restored = self.finest(&entry).claimed(unread.iter());
        state.unread = Unread::new(unread);
        let id = self.files.open(entry.clone(), place, state, restored, end);
        // Sent first, because a report of damage refers to these ranges.
        context.say(Message::Want(vec![Want { entry: id, kind }]));
        if let Some(file) = self.entries().open_file(id) {
            let sessions = &self.entries().sessions;
            let is_trusted = sessions.trusts && journal.trusts(&begun) && is_intact;
            let certain = match is_trusted {
                true => std::iter::once(0..entry.size).collect(),
                // Other programs may have changed a file that is written in place.
                false if is_intact => journal.certain(&begun),
                false => RangeSet::new(),
            };
            let check = Check::Open {
                file,
                begun,
                certain,
            };
            self.checks.add(check);
        }
        Ok(None)
    }

    /// An empty [`Restored`] for a file, whose records may be of parts of this session's chunks.
    fn finest(&self, entry: &Entry) -> Restored {
        let chunk_size = self.context().chunk_size as u64;
        Restored::finest(entry.size, chunk_size, self.files.needs_tree(entry))
    }

    /// Resumes a big file that an earlier session finished. Returns the request to send, if any, or
    /// the file if it is not in place.
    fn resume_placed(
        &self,
        file: IncomingFile,
        begun: Option<UnfinishedFile>,
    ) -> Result<PlacedOrNot> {
        let found = find_finished(self.entries(), &file, begun.is_some())?;
        let Some(FinishedFile {
            finished,
            existing,
            trusted,
            ..
        }) = found
        else {
            return Ok(PlacedOrNot::Not(Box::new(file)));
        };
        let context = self.context();
        let (id, size, digest) = (file.entry.id, file.entry.size, finished.digest);
        let have = WantKind::Have(vec![(span(0..size), digest.unwrap_or_default())]);
        let placed = FinishedBefore {
            file,
            finished,
            existing,
            begun,
            is_small: false,
        };
        if context.agreed.peer_repairs && size > 0 {
            let kind = have;
            // Sent first, because the later messages refer to this answer.
            context.say(Message::Want(vec![Want { entry: id, kind }]));
            match trusted {
                true => self.placed_stays(placed),
                false => self.verify_placed_later(placed),
            }
            return Ok(PlacedOrNot::Placed(None));
        }
        if !trusted && !is_as_recorded(self.entries(), &placed) {
            return Ok(PlacedOrNot::Not(Box::new(placed.file)));
        }
        let FinishedBefore { file, existing, .. } = placed;
        // The other end writes a list of digests and needs the digest of this file.
        if let (true, None, Some(digest)) = (context.options.digests, &context.digests, digest) {
            context.progress.add_resumed(size);
            let mut want = self.files.compare_whole(file, Some(digest));
            want.kind = have;
            return Ok(PlacedOrNot::Placed(Some(want)));
        }
        let kind = WantKind::Skip;
        context.say(Message::Want(vec![Want { entry: id, kind }]));
        self.entries().found_in_place(file, digest, Some(&existing));
        Ok(PlacedOrNot::Placed(None))
    }

    /// Checks a small file that the sender asks about. If the sender can send damaged files
    /// afterwards, the file is read later, otherwise now.
    pub fn resume_small(&self, file: IncomingFile) -> Asked {
        // A file that cannot be checked is sent, and fails then for the same reason.
        let Ok(Some(found)) = find_finished(self.entries(), &file, false) else {
            return Asked::Missing;
        };
        let trusted = found.trusted || file.entry.size == 0;
        let placed = found.small(file);
        if !trusted && self.context().agreed.peer_repairs {
            return Asked::Unread(Box::new(placed));
        }
        if !trusted && !is_as_recorded(self.entries(), &placed) {
            return Asked::Missing;
        }
        Asked::InPlace(Box::new(placed))
    }

    /// Requests a comparison of the chunks that were written from a source that may have changed.
    fn compare(
        &self,
        journal: &Journal,
        begun: UnfinishedFile,
        file: IncomingFile,
        mut partial: Partial,
    ) -> Result<Want> {
        let entry = partial.entry().clone();
        let young = self.entries().is_young(&entry);
        let chunk_size = self.context().chunk_size as u64;
        let mut ranges = Restored::finest(entry.size, chunk_size, false);
        journal.replay(&begun, |chunk| {
            // A chunk outside the present file is useless.
            ranges.add(&chunk);
            ControlFlow::Continue(())
        });
        let target = self.files.basis(&mut partial, false)?;
        let whole = match target.filter(Basis::is_target) {
            None => self
                .files
                .basis_elsewhere(&file.slot, &mut partial, false)?,
            target => target,
        };
        let (basis, spans) = match whole {
            // All of the file or device may be equal, not only the written part.
            Some(basis) => {
                let spans = self.files.compared(&basis, &entry);
                (Some(basis), spans)
            }
            None => {
                let basis = partial.written_basis();
                let spans = ranges.whole_chunks(chunk_size);
                let spans = spans.filter(|_| basis.is_some());
                let spans = spans.take(RANGES_MAX).map(span).collect();
                (basis, spans)
            }
        };
        let IncomingFile {
            slot, listed, path, ..
        } = file;
        let number = journal.begin(&record_of(&path, &entry, &partial, young)?);
        let mut state = PartialFile::new(slot, partial, Some(number), young);
        (state.basis, state.is_resumed) = (basis, true);
        let nothing = self.files.nothing_of(&entry);
        let place = (listed, path);
        Ok(Want {
            entry: self.files.open(entry, place, state, nothing, None),
            kind: WantKind::Compare(spans),
        })
    }

    /// Checks whether a pipe that cannot be read again is in place: an earlier session of this
    /// command finished the file, and it is unchanged.
    ///
    /// # Errors
    /// If the destination cannot be looked at.
    pub fn pipe_in_place(&self, file: IncomingFile) -> Result<PipeThere> {
        let former = &self.entries().sessions.before;
        let found = find_finished_by(self.entries(), &file, |finished| {
            let is_its = |session: &[u8; 16]| finished.identity == identity_of_pipe(session);
            former.iter().any(is_its)
        })?;
        let Some(found) = found else {
            return Ok(PipeThere::No(Box::new(file)));
        };
        let FinishedFile {
            finished,
            existing,
            trusted,
            ..
        } = found;
        let (mut file, size) = (file, existing.size);
        // The size of a pipe is unknown before it was read.
        file.entry.size = size;
        let placed = FinishedBefore {
            file,
            finished,
            existing,
            begun: None,
            is_small: false,
        };
        let is_there = trusted || is_as_recorded(self.entries(), &placed);
        let mut file = placed.file;
        file.entry.size = 0;
        Ok(match is_there {
            true => PipeThere::Yes(Box::new(file), size, finished.digest),
            false => PipeThere::No(Box::new(file)),
        })
    }

    /// The part of a file that exists according to the journal.
    fn recorded(&self, journal: &Journal, begun: &UnfinishedFile, entry: &Entry) -> Restored {
        let mut restored = self.finest(entry);
        journal.replay(begun, |chunk| {
            restored.add(&chunk);
            match self.context().is_ending() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        restored
    }

    /// The same part, but only ranges that were just read and match their records.
    fn read_first(
        &self,
        journal: &Journal,
        begun: &UnfinishedFile,
        partial: &Partial,
        entry: &Entry,
    ) -> Restored {
        let mut restored = self.finest(entry);
        let Ok(disk) = partial.readback() else {
            return restored;
        };
        let mut buffer = vec![0; buffer_len(self.context())];
        journal.replay(begun, |chunk| {
            if self.context().is_ending() {
                return ControlFlow::Break(());
            }
            let range = chunk.offset..chunk.offset.saturating_add(chunk.len);
            if disk.prepare(&range) && holds(&disk, &chunk, entry.size, &mut buffer) {
                restored.add(&chunk);
            }
            self.entries().report.checked(chunk.len, REPORT_EVERY);
            ControlFlow::Continue(())
        });
        restored
    }

    /// Queues a finished file, which counts as resuming until it was read. Reads it at once if too
    /// many files wait.
    pub fn verify_placed_later(&self, placed: FinishedBefore) {
        // Before a source is removed, `--strict` compares all metadata of its entry.
        let needs_entry = self.context().options.mirror.removes_kept_only;
        let lists = self.context().digests.is_some() || self.entries().report.itemizer.is_on();
        if placed.is_small && !lists && !needs_entry {
            let small = FinishedSmallFile::of(&placed.file.entry);
            if small.is_some_and(|small| self.checks.add_small(&small)) {
                return;
            }
        }
        if self.checks.is_full() {
            return self.verify_placed(placed);
        }
        self.checks.add(Check::Placed(Box::new(placed)));
    }

    /// Reads a finished file. If it matches its record, it is in place; otherwise it is sent again.
    pub(super) fn verify_placed(&self, placed: FinishedBefore) {
        let (entries, context) = (self.entries(), self.context());
        if context.is_ending() || entries.table().is_accounted(placed.file.entry.id) {
            return;
        }
        let is_as_recorded = is_as_recorded(entries, &placed);
        if self.checks.is_idle() {
            // Reported before the copy may be complete.
            entries.report.checked(0, 1);
        }
        if is_as_recorded {
            if let Some(journal) = entries.journal() {
                // For a later session of this command.
                journal.finished(&[placed.finished]);
            }
            return self.placed_stays(placed);
        }
        if placed.is_small {
            return self.small_is_damaged(&placed.file);
        }
        if context.is_ending() {
            return;
        }
        if let Some(journal) = entries.journal() {
            journal.doubted();
        }
        let entry = &placed.file.entry;
        let (id, parent, size) = (entry.id, entry.parent, entry.size);
        context.progress.add_resumed(size);
        context.progress.add_damaged(size);
        match self.files.begin(placed.file, 0) {
            Ok(_) => self.ask_for_all(id, size),
            Err(error) => entries.fail(id, parent, &error),
        }
    }

    /// Requests a small file that was found damaged; it is sent like a missing one.
    pub(super) fn small_is_damaged(&self, file: &IncomingFile) {
        let (entries, context) = (self.entries(), self.context());
        if context.is_ending() {
            return;
        }
        let (id, size) = (file.entry.id, file.entry.size);
        entries.report.checked(0, 1);
        if let Some(journal) = entries.journal() {
            journal.doubted();
            journal.forget_finished(&file.path);
        }
        if !entries.table().end_resuming(id) {
            return;
        }
        context.progress.add_resumed(size);
        context.progress.add_damaged(size);
        self.ask_for_all(id, size);
    }

    /// Requests a file that the sender was told is in place.
    fn ask_for_all(&self, entry: EntryId, size: u64) {
        let spans = vec![span(0..size)];
        self.context()
            .say(Message::Missing(Missing { entry, spans }));
    }

    /// Accounts for a file that is as an earlier session left it.
    pub fn placed_stays(&self, placed: FinishedBefore) {
        let FinishedBefore {
            file,
            finished,
            existing,
            ..
        } = placed;
        self.entries()
            .found_in_place(file, finished.digest, Some(&existing));
    }
}
