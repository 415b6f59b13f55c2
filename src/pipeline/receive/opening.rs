//! The opening of a copy's files at the receiver: as a partial file, only for a comparison, or as a
//! pipe; and once more, if the source is read a second time.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::files::{Files, STILL_WRITING};
use super::jobs::{Job, Restart};
use super::open_file::{FileOutput, FileTree, IncomingFile, OpenFile, PartialFile};
use super::restored::{Restored, span};
use crate::chunk::SMALL_FILE_MAX;
use crate::chunk::claims::Claims;
use crate::dest::{self, Basis, EarlierEntry, EntrySlot, OrderedSink, Partial, SinkSpec};
use crate::digest::Digest;
use crate::digest::pipe::PipeTree;
use crate::error::{Error, Kind, Result, Side};
use crate::journal::identity_of;
use crate::journal::record::{BegunFile, Hash};
use crate::keep::UnchangedBy;
use crate::manifest::{Entry, EntryId, EntryKind};
use crate::pipeline::digest_list::ListedPath;
use crate::wire::message::{ByteRange, EntryEnd, Message, Want, WantKind};

/// How long a write to a file that has failed, or is read a second time, may take to return.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);

impl Files {
    /// Opens a partial file and requests all of the content, whose chunks have the number
    /// `first_chunk` or a higher one. If the old version can be compared with it, only what differs.
    ///
    /// # Errors
    /// Of the file system, at the file's path.
    pub fn begin(&self, file: IncomingFile, first_chunk: u64) -> Result<Want> {
        let entry = Arc::new(file.entry.clone());
        let (partial, basis) = self.partial(&file.slot, &entry)?;
        let young = self.entries.is_young(&entry);
        let number = match self.entries.journal() {
            Some(journal) if partial.is_made() => {
                Some(journal.begin(&record_of(&file.path, &entry, &partial, young)?))
            }
            _ => None,
        };
        let IncomingFile {
            slot, listed, path, ..
        } = file;
        let mut state = PartialFile::new(slot, partial, number, young);
        state.first_chunk = first_chunk;
        let kind = match &basis {
            Some(basis) => WantKind::Compare(self.compared(basis, &entry)),
            None => WantKind::Fresh,
        };
        state.basis = basis;
        let nothing = self.nothing_of(&entry);
        Ok(Want {
            entry: self.open(entry, (listed, path), state, nothing, None),
            kind,
        })
    }

    /// A new version of a file, with the old one if they are compared.
    fn partial(&self, slot: &EntrySlot, entry: &Arc<Entry>) -> Result<(Partial, Option<Basis>)> {
        let rules = &self.entries.rules;
        if self.compares(entry)
            && let Some((partial, basis)) = Partial::equal(slot, entry, rules)?
        {
            return Ok((partial, Some(basis)));
        }
        if rules.update.unchanged_by == UnchangedBy::Content
            && let Some(earlier) = self.earlier_of_size(entry)
            && let Some((partial, basis)) = Partial::equal_to_earlier(slot, entry, rules, earlier)?
        {
            return Ok((partial, Some(basis)));
        }
        let mut partial = Partial::create(slot, entry.clone(), rules)?;
        let basis = match self.basis(&mut partial, true)? {
            None => self.basis_elsewhere(slot, &mut partial, true)?,
            basis => basis,
        };
        Ok((partial, basis))
    }

    /// The file of an earlier copy that a new version is compared with, and its length in bytes.
    fn earlier_file(&self, entry: &Entry) -> Option<(File, u64)> {
        let is_compared = self.entries.rules.earlier.is_some() && self.compares(entry);
        let place = is_compared.then(|| self.entries.table().earlier(entry))?;
        place.file()
    }

    /// The same, if it may have the content of the new version (`--checksum`).
    fn earlier_of_size(&self, entry: &Entry) -> Option<EarlierEntry> {
        let is_compared = self.entries.rules.earlier.is_some() && self.compares(entry);
        let place = is_compared.then(|| self.entries.table().earlier(entry))?;
        place.find_of_size(entry)
    }

    /// True if a dry run compares the content of files (`--checksum`).
    pub fn checks(&self, entry: &Entry) -> bool {
        let by = self.entries.rules.update.unchanged_by;
        by == UnchangedBy::Content && self.compares(entry)
    }

    /// In a dry run, compares a file with the existing one, in chunks with the number `first_chunk` or
    /// a higher one. None if that has another size.
    ///
    /// # Errors
    /// If a copy would fail.
    pub fn begin_check(&self, file: IncomingFile, first_chunk: u64) -> Result<Option<Want>> {
        let entry = Arc::new(file.entry.clone());
        let opened = Partial::equal(&file.slot, &entry, &self.entries.rules)?;
        let Some((partial, basis)) = opened else {
            return Ok(None);
        };
        let IncomingFile {
            slot, listed, path, ..
        } = file;
        let kind = WantKind::Compare(self.compared(&basis, &entry));
        let mut state = PartialFile::new(slot, partial, None, false);
        state.basis = Some(basis);
        state.first_chunk = first_chunk;
        let nothing = self.nothing_of(&entry);
        let entry = self.open(entry, (listed, path), state, nothing, None);
        Ok(Some(Want { entry, kind }))
    }

    /// The old version of a file, if both ends can compare it with the new one. `is_new`: nothing of
    /// the new version was written yet.
    pub(super) fn basis(&self, partial: &mut Partial, is_new: bool) -> Result<Option<Basis>> {
        match self.compares(partial.entry()) {
            true => partial.basis(is_new),
            false => Ok(None),
        }
    }

    /// The file that an earlier copy has in this place, or that the destination has under another
    /// name, if the source has probably moved it here. `is_new`: nothing of the new version was
    /// written yet.
    pub(super) fn basis_elsewhere(
        &self,
        slot: &EntrySlot,
        partial: &mut Partial,
        is_new: bool,
    ) -> Result<Option<Basis>> {
        let entry = partial.entry().clone();
        if let Some((file, len)) = self.earlier_file(&entry) {
            return partial.other_basis(file, len, is_new).map(Some);
        }
        if !self.may_have_moved(slot, &entry) {
            return Ok(None);
        }
        let other = self.entries.moved.find(&entry, self.context());
        other
            .map(|other| partial.other_basis(other, entry.size, is_new))
            .transpose()
    }

    /// True for a new file that the source may have moved here: the destination may have it under
    /// another name. A sender that may send listed names only must not learn of other files.
    pub(super) fn may_have_moved(&self, slot: &EntrySlot, entry: &Entry) -> bool {
        let rules = &self.entries.rules;
        let has_times = rules.keep.times && rules.update.unchanged_by != UnchangedBy::Nothing;
        has_times
            && self.entries.moved.may_have_any()
            && self.compares(entry)
            && !self.entries.table().has_requests()
            && dest::status(slot).is_ok_and(|old| old.is_none())
    }

    /// True if a file is compared with its old version. A key that may only write must not learn
    /// whether a guess about it is right.
    fn compares(&self, entry: &Entry) -> bool {
        let rules = &self.entries.rules;
        let may_look = !rules.blind && !rules.no_clobber;
        self.context().agreed.patches && may_look && entry.size > SMALL_FILE_MAX
    }

    /// The journal's number of a file that was perhaps made just now. None if it is not recorded, and
    /// so cannot be resumed.
    pub(super) fn number(&self, file: &OpenFile) -> Option<u32> {
        let state = file.partial_file()?;
        let journal = self.entries.journal()?;
        if let Some(number) = state.number.get() {
            return Some(*number);
        }
        let partial = file.partial()?;
        // Pipes are not recorded.
        if file.is_pipe() || !partial.is_made() {
            return None;
        }
        let record = record_of(&file.path, &file.entry, &partial, state.young);
        // Without its status it is not recorded; it is only resumed from its beginning then.
        let record = record.ok()?;
        Some(*state.number.get_or_init(|| journal.begin(&record)))
    }

    /// The chunks of a new version that begin within the old one, or all if content of the old one
    /// may have moved.
    pub(super) fn compared(&self, basis: &Basis, entry: &Entry) -> Vec<ByteRange> {
        if self.context().agreed.shifts && basis.unwritten().is_some() {
            return vec![span(0..entry.size)];
        }
        let end = basis
            .len()
            .next_multiple_of(self.context().chunk_size as u64);
        vec![span(0..end.min(entry.size))]
    }

    /// Accepts the chunks of a partial file. `end` is the end of the file if the sender sends none.
    pub(super) fn open(
        &self,
        entry: Arc<Entry>,
        place: (Option<ListedPath>, Hash),
        state: PartialFile,
        restored: Restored,
        end: Option<EntryEnd>,
    ) -> EntryId {
        let tree = FileTree::of(restored.tree);
        let output = FileOutput::Partial(Box::new(state));
        let mut file = OpenFile::new(entry, place, restored.claims, tree, output, self.gaps());
        file.end = end.map_or_else(Default::default, Into::into);
        self.insert(file)
    }

    /// Requests only the digest of a file, to compare it with the existing file. `known` is the
    /// digest of the existing file, if it is known.
    pub fn compare_whole(&self, file: IncomingFile, known: Option<Digest>) -> Want {
        let IncomingFile {
            entry,
            slot,
            listed,
            path,
        } = file;
        let claims = self.nothing_of(&entry).claims;
        let output = FileOutput::Compared { slot, known };
        let entry = self.insert(OpenFile::new(
            Arc::new(entry),
            (listed, path),
            claims,
            FileTree::None,
            output,
            self.gaps(),
        ));
        let kind = WantKind::Digest;
        Want { entry, kind }
    }

    /// Opens the partial file of a pipe. The journal does not record its chunks, since a pipe
    /// cannot be resumed.
    ///
    /// # Errors
    /// Of the file system, at the file's path.
    pub fn begin_pipe(&self, file: IncomingFile) -> Result<Want> {
        let IncomingFile {
            entry,
            slot,
            listed,
            path,
        } = file;
        let entry = Arc::new(entry);
        let partial = Partial::create(&slot, entry.clone(), &self.entries.rules)?;
        let state = PartialFile::new(slot, partial, None, false);
        let output = FileOutput::Partial(Box::new(state));
        Ok(self.receive_pipe(entry, (listed, path), output))
    }

    /// Opens the pipe that an entry is written to: starts the command, or waits for a FIFO's
    /// reader.
    ///
    /// # Errors
    /// If the pipe cannot be opened.
    pub fn begin_output(
        &self,
        entry: Entry,
        sink: &SinkSpec,
        place: (Option<ListedPath>, Hash),
    ) -> Result<Want> {
        let context = self.context();
        let tell = context.tell.clone();
        let on_line = move |line: &[u8]| tell(&String::from_utf8_lossy(line));
        let opened = OrderedSink::open(sink, context.budget.window(), &self.stop, on_line)?;
        // Bytes that have left cannot be sent again.
        context.shutdown.set_once();
        let output = FileOutput::Pipe(Box::new(opened), sink.path().to_owned());
        Ok(self.receive_pipe(Arc::new(entry), place, output))
    }

    /// Accepts the chunks of a source or a destination that is a pipe.
    fn receive_pipe(
        &self,
        entry: Arc<Entry>,
        place: (Option<ListedPath>, Hash),
        output: FileOutput,
    ) -> Want {
        let (claims, tree) = match entry.kind {
            EntryKind::Pipe => (Claims::endless(), FileTree::Pipe(PipeTree::new().into())),
            _ => {
                let nothing = self.nothing_of(&entry);
                (nothing.claims, FileTree::of(nothing.tree))
            }
        };
        let entry = self.insert(OpenFile::new(
            entry,
            place,
            claims,
            tree,
            output,
            self.gaps(),
        ));
        let kind = WantKind::Fresh;
        Want { entry, kind }
    }

    pub(super) fn nothing_of(&self, entry: &Entry) -> Restored {
        Restored::nothing(
            entry.size,
            self.context().agreed.grain,
            self.needs_tree(entry),
        )
    }

    /// If a file changes during the copy, its chunks are from different times and their common
    /// digest is useless.
    pub(super) fn needs_tree(&self, entry: &Entry) -> bool {
        let options = &self.context().options;
        (!entry.is_sparse() && !options.live) || options.digests
    }

    /// The source changed while it was read and is read again: a worker drops the written data and
    /// opens the file again. The entry writer does not do this, because a write may take long to
    /// return and all other entries wait for the entry writer.
    pub fn restart_later(&self, entry: Entry, first_chunk: u64) {
        let id = entry.id;
        let old = {
            let mut table = self.entries.table();
            let old = table.files.get(&id).cloned();
            // If the file failed here, a `Fault` informs the sender.
            let Some(old) = old.filter(|old| old.begin_close()) else {
                return;
            };
            // The new entry may take more memory.
            table.announce(&entry);
            // Late chunks find no file. If the entry fails at the sender before the worker opens it
            // again, it is accounted for as usual.
            table.files.remove(&id);
            table.set_resuming(id);
            old
        };
        let restart = Restart {
            entry,
            first_chunk,
            old,
        };
        // Fails only when the copy is ending.
        self.jobs.add(Job::Restart(Box::new(restart)));
    }

    /// Opens a file for its next reading; called on a worker.
    pub fn restart(&self, restart: Restart) {
        let old = restart.old.clone();
        let (id, parent) = (restart.entry.id, restart.entry.parent);
        let size = restart.entry.size;
        let done = old.claims.lock().done_bytes();
        let restarted = self.try_restart(restart);
        if restarted.is_ok() {
            self.context().progress.add_again(done);
        }
        let kind = match &restarted {
            Ok(Some(want)) => want.kind.clone(),
            Ok(None) => WantKind::WouldSend,
            Err(_) => WantKind::Skip,
        };
        // Sent first, because an acknowledgement refers to this answer.
        self.context()
            .say(Message::Want(vec![Want { entry: id, kind }]));
        match restarted {
            Ok(Some(_)) => {}
            // A dry run: it has another size now.
            Ok(None) => {
                let itemizer = &self.entries.report.itemizer;
                itemizer.would_send(size);
                itemizer.placed(id);
                self.entries.acknowledge(id, parent);
            }
            Err(error) => self.entries.fail(id, parent, &error),
        }
    }

    /// None if a dry run need not read it again.
    fn try_restart(&self, restart: Restart) -> Result<Option<Want>> {
        let Restart {
            entry,
            first_chunk,
            old,
        } = restart;
        let Some(slot) = old.slot().cloned() else {
            self.discard(&old);
            return Err(old.changed());
        };
        self.forget_in_journal(&old);
        // A late write must not mix with the writes of the new reading.
        let partial = old.take_partial();
        if partial.is_some_and(|partial| !self.remove_partial(partial)) {
            return Err(Error::new(Kind::Write, Side::Dest, STILL_WRITING).at(old.path()));
        }
        self.context().progress.end_name(entry.id);
        let file = IncomingFile {
            entry,
            slot,
            listed: old.listed.clone(),
            path: old.path,
        };
        match self.entries.rules.dry_run {
            true => self.begin_check(file, first_chunk),
            false => self.begin(file, first_chunk).map(Some),
        }
    }

    /// Removes a partial file when no other thread writes to it any more. False if that takes too long,
    /// or if the copy ends.
    pub(super) fn remove_partial(&self, mut partial: Arc<Partial>) -> bool {
        let until = Instant::now() + WRITE_PATIENCE;
        loop {
            match Arc::try_unwrap(partial) {
                Ok(_removed) => return true,
                Err(held) if Instant::now() < until && !self.context().is_ending() => {
                    partial = held;
                }
                Err(_) => return false,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The journal's record of a partial file. `young`: its source was recently written.
pub(super) fn record_of(
    path: &Hash,
    entry: &Entry,
    partial: &Partial,
    young: bool,
) -> Result<BegunFile> {
    Ok(BegunFile {
        path: *path,
        identity: identity_of(entry),
        size: entry.size,
        inode: partial.inode()?,
        young,
        inplace: partial.is_inplace(),
    })
}
