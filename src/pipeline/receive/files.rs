//! The files that are being received: opened by [`opening`](super::opening), filled by
//! [`ranges`](super::ranges), and here completed, failed, or left for a later run.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::done_files::PlacedContent;
use super::entries::Entries;
use super::jobs::{FailedFile, Job, Jobs};
use super::open_file::{FileOutput, Gaps, OpenFile, PartialFile};
use super::recorded::{finished, identity_of_pipe};
use crate::dest::{self, EntrySlot, ExistingEntry, IndexRoom};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result, Side};
use crate::keep::UnchangedBy;
use crate::manifest::EntryId;
use crate::pipe::Stop;
use crate::pipeline::context::Context;
use crate::report::event::FileResult;
use crate::units::{printable, size};
use crate::wire::message::EntryEnd;

/// The message if another thread still writes to a file.
pub(super) const STILL_WRITING: &str = "a write to it has not ended; check the disk";

pub struct Files {
    pub entries: Arc<Entries>,
    pub jobs: Jobs,
    /// Ends all waits for a consumer.
    pub stop: Stop,
    /// For content that has moved within files.
    pub(super) index_room: IndexRoom,
    /// The number of gaps between the finished pieces of all open files.
    gaps: Arc<AtomicUsize>,
}

/// A file that has its final name.
struct ClosedFile {
    digest: Option<Digest>,
    /// Its status, if this copy put it there.
    existing: Option<ExistingEntry>,
    /// The existing file has stayed because its content is the same.
    is_unchanged: bool,
}

impl Files {
    pub fn new(entries: Arc<Entries>) -> Files {
        Files {
            entries,
            jobs: Jobs::default(),
            stop: Stop::new(),
            index_room: IndexRoom::default(),
            gaps: Arc::default(),
        }
    }

    pub fn context(&self) -> &Arc<Context> {
        self.entries.context()
    }

    pub(super) fn gaps(&self) -> Gaps {
        Gaps::new(&self.gaps)
    }

    /// Accepts the chunks of a file from now on. Returns its number.
    pub(super) fn insert(&self, file: OpenFile) -> EntryId {
        let id = file.entry.id;
        let file = Arc::new(file);
        if self.entries.table().open(file.clone()) {
            let name = &file.entry.name;
            let path = || match file.slot() {
                Some(slot) => slot.path_in_copy(name),
                None => name.as_bytes().to_vec(),
            };
            self.context().progress.start_name(id, path);
        } else {
            // The sender has reported in the meantime that the entry failed.
            self.discard(&file);
            self.entries.finish_directories(None);
        }
        id
    }

    /// Queues the closing of a file; called where the thread still holds something of it.
    pub fn close_later(&self, file: Arc<OpenFile>) {
        // Fails only when the copy is ending.
        self.jobs.add(Job::Close(file));
    }

    /// All of a file has arrived: gives it its name if the digests agree.
    pub fn close(&self, file: &Arc<OpenFile>) {
        if !file.begin_close() {
            return;
        }
        if file
            .partial_file()
            .is_some_and(|state| state.basis.is_some())
        {
            // Reported before the copy may be complete.
            self.entries.report.checked(0, 1);
        }
        if self.entries.rules.dry_run {
            return self.close_dry(file);
        }
        match self.finish(file) {
            Ok(ClosedFile {
                digest,
                existing,
                is_unchanged,
            }) => {
                if let Some(slot) = file.slot() {
                    self.entries
                        .remember_linked(&file.entry, slot, existing.as_ref());
                }
                let is_copied = match &file.output {
                    // An earlier session has put it there.
                    FileOutput::Compared { known, .. } => known.is_some(),
                    FileOutput::Partial(_) => true,
                    FileOutput::Pipe(..) => false,
                };
                if let Some(slot) = file.slot().filter(|_| is_copied) {
                    self.entries.found_durable(&file.entry, slot);
                }
                let partial = file.partial_file();
                let placed = PlacedContent {
                    size: match &file.output {
                        FileOutput::Compared { .. } => file.entry.size,
                        FileOutput::Partial(_) | FileOutput::Pipe(..) => file.claims.lock().end(),
                    },
                    digest,
                    result: match is_unchanged {
                        true => FileResult::Unchanged,
                        false if partial.is_none_or(|it| it.is_resumed) && is_copied => {
                            FileResult::Resumed
                        }
                        false => FileResult::Copied,
                    },
                };
                if let (Some(began), Some(slot)) = (file.began.get(), file.slot()) {
                    let path = || slot.path_in_copy(&file.entry.name);
                    let progress = &self.context().progress;
                    progress.add_file_time(began.elapsed(), placed.size, path);
                }
                self.entries
                    .file_placed(&file.entry, file.listed.as_ref(), &placed);
                self.entries.report.done.flush();
            }
            Err(error) => self.give_up(file, &error),
        }
    }

    /// All of an existing file was compared in a dry run. Nothing was written.
    fn close_dry(&self, file: &OpenFile) {
        let (id, parent) = (file.entry.id, file.entry.parent);
        let itemizer = &self.entries.report.itemizer;
        let Some(partial) = file.take_partial() else {
            return;
        };
        let whole = match file.end.get() {
            Some(end) => self
                .check_whole(file, end)
                .map(|(length, root)| (length, root.or(end.root))),
            None => Err(file.changed()),
        };
        let same = whole.and_then(|(length, root)| {
            // With `--live` it may have become shorter.
            if length != file.entry.size {
                partial.would_write();
            }
            partial.same_inode(root.as_ref())
        });
        let same = match same {
            Ok(same) => same,
            Err(error) => return self.entries.fail(id, parent, &error),
        };
        match same {
            None => itemizer.would_send(file.entry.size),
            Some(inode) => {
                itemizer.is_unchanged(id, inode);
                itemizer.unchanged();
            }
        }
        self.context().progress.end_name(id);
        itemizer.placed(id);
        self.entries.acknowledge(id, parent);
    }

    fn finish(&self, file: &OpenFile) -> Result<ClosedFile> {
        let Some(end) = file.end.get() else {
            let early = Error::new(
                Kind::Lost,
                Side::Dest,
                "the copy ended before the end of this file",
            );
            return Err(early.at(file.path()));
        };
        match &file.output {
            FileOutput::Compared { slot, known } => {
                let digest = self.finish_compared(file, slot, *known, end.root)?;
                Ok(ClosedFile {
                    digest,
                    existing: None,
                    is_unchanged: known.is_none(),
                })
            }
            FileOutput::Pipe(sink, _) => {
                let (length, root) = self.check_whole(file, end)?;
                sink.finish(length)?;
                Ok(ClosedFile {
                    digest: root,
                    existing: None,
                    is_unchanged: false,
                })
            }
            FileOutput::Partial(partial) => {
                let (length, root) = self.check_whole(file, end)?;
                let digest = root.or(end.root);
                let (existing, is_unchanged) = self.commit(file, partial, length, digest)?;
                Ok(ClosedFile {
                    digest: root,
                    existing: Some(existing),
                    is_unchanged,
                })
            }
        }
    }

    /// Compares length and digest of the received data with the sender's, and returns them.
    fn check_whole(&self, file: &OpenFile, end: &EntryEnd) -> Result<(u64, Option<Digest>)> {
        let root = file.root();
        if file.is_pipe() && (root.is_none() || root != end.root) {
            let message =
                "failed verification: the digests of the whole file differ; copy it again";
            return Err(Error::new(Kind::Verify, Side::Dest, message).at(file.path()));
        }
        let length = file.claims.lock().end();
        let may_change = self.context().options.live || file.is_pipe();
        if (end.length != file.entry.size && !may_change)
            || (root.is_some() && end.root.is_some() && root != end.root)
        {
            return Err(file.changed());
        }
        Ok((length, root))
    }

    /// Gives the file its name, and records it. Returns its status, and true if the existing file has
    /// stayed because its content is the same.
    fn commit(
        &self,
        file: &OpenFile,
        state: &PartialFile,
        length: u64,
        digest: Option<Digest>,
    ) -> Result<(ExistingEntry, bool)> {
        let partial = file.take_partial();
        // No claim is open, so no worker holds the partial file any more.
        let mut partial = partial
            .and_then(Arc::into_inner)
            .ok_or_else(|| Error::new(Kind::Lost, Side::Dest, STILL_WRITING).at(file.path()))?;
        if length != file.entry.size {
            partial.end_at(length)?;
        }
        if let Some(slot) = file.slot() {
            self.entries.make_room(slot, &file.entry)?;
        }
        let (existing, stays) = partial.commit(digest.as_ref())?;
        if let Some(slot) = file.slot().filter(|_| stays && self.entries.rules.fsync) {
            // The run that copied it may not have made it durable.
            dest::make_durable(slot)?;
        }
        if stays && self.entries.rules.update.unchanged_by == UnchangedBy::Content {
            let inode = (existing.dev, existing.ino);
            self.entries
                .report
                .itemizer
                .is_unchanged(file.entry.id, inode);
        }
        let journal = self.entries.journal();
        if let Some(journal) = journal.filter(|_| self.may_meet_again(file)) {
            let mut record = finished(file.path, &file.entry, state.young, &existing, digest);
            if file.is_pipe() {
                record.identity = identity_of_pipe(&self.entries.sessions.own);
            }
            journal.finished(&[record]);
        }
        Ok((existing, stays))
    }

    /// True if a later session may find the file in place. A pipe that can be read again is read
    /// again in that session. If the only root is a pipe that cannot be read again, there is no
    /// later session.
    fn may_meet_again(&self, file: &OpenFile) -> bool {
        !file.is_pipe() || file.entry.is_once() && self.entries.table().roots.count() != 1
    }

    fn finish_compared(
        &self,
        file: &OpenFile,
        slot: &EntrySlot,
        known: Option<Digest>,
        root: Option<Digest>,
    ) -> Result<Option<Digest>> {
        if let Some(known) = known {
            if self.entries.rules.fsync {
                dest::make_durable(slot)?;
            }
            return match root == Some(known) {
                true => Ok(root),
                false => Err(file.changed()),
            };
        }
        let rules = &self.entries.rules;
        let same = root.is_some() && dest::digest_of(slot)? == root;
        self.context().progress.add_skipped(file.entry.size);
        if same {
            if rules.fsync {
                dest::make_durable(slot)?;
            }
            Ok(root)
        } else {
            Err(dest::stays(slot, rules))
        }
    }

    pub fn fail(&self, file: &OpenFile, error: Error) {
        if file.begin_close() {
            self.give_up(file, &error);
        }
    }

    /// The same for a file that this thread closes.
    fn give_up(&self, file: &OpenFile, error: &Error) {
        let (id, parent) = (file.entry.id, file.entry.parent);
        self.entries.report.failed(id, parent, error);
        self.settle_failed(file);
    }

    /// Accounts for a file that has failed, when its partial file is removed: its directory may then
    /// get its mode, which may forbid that, and its times.
    pub fn settle_failed(&self, file: &OpenFile) {
        self.forget_in_journal(file);
        if let Some(sink) = file.sink() {
            sink.abandon();
        }
        let (id, parent) = (file.entry.id, file.entry.parent);
        let partial = file.take_partial();
        match partial.and_then(|partial| Arc::try_unwrap(partial).err()) {
            None => self.entries.settle(id, parent),
            // A thread still writes to it.
            Some(partial) => {
                let failed = FailedFile {
                    partial,
                    id,
                    parent,
                };
                // Fails only when the copy is ending.
                self.jobs.add(Job::Remove(Box::new(failed)));
            }
        }
    }

    /// Accounts for a failed file when no thread writes to it any more; called on a worker.
    pub fn remove(&self, failed: FailedFile) {
        // The copy goes on if a write does not end.
        self.remove_partial(failed.partial);
        self.entries.settle(failed.id, failed.parent);
    }

    /// Drops the partial file, which is removed when the last worker that writes to it is done.
    pub fn discard(&self, file: &OpenFile) {
        self.forget_in_journal(file);
        drop(file.take_partial());
        if let Some(sink) = file.sink() {
            sink.abandon();
        }
    }

    pub(super) fn forget_in_journal(&self, file: &OpenFile) {
        if let (Some(journal), Some(number)) = (self.entries.journal(), file.number()) {
            journal.dropped(number);
        }
    }

    /// Ends the copy at the receiver. After an early end, keeps the files that can be resumed. Call
    /// this when no worker runs any more.
    pub fn put_away(&self) {
        let entries = &self.entries;
        entries.journal.end_sync();
        entries.leave_directories();
        let mut files = entries.table().take_files();
        for pipe in files.extract_if(.., |file| file.is_pipe()) {
            self.spool(&pipe);
        }
        if entries.report.acks.is_finished() {
            return;
        }
        // Data from a sender that broke the protocol is not kept.
        let cause = self.context().shutdown.cause();
        let is_kept = cause.is_none_or(|cause| cause.kind != Kind::Breach);
        for file in files {
            let partial = file.take_partial();
            let done = file.claims.lock().done_bytes();
            if done > 0 && file.number().is_some() && is_kept {
                // A partial file that a stuck worker holds stays too, since nobody drops it.
                if let Some(partial) = partial.and_then(Arc::into_inner) {
                    partial.keep();
                }
            }
        }
        entries.journal.put_away(is_kept);
    }

    /// With `--spool`, after the connection was lost: keeps the bytes up to the first gap in a file
    /// beside the final name, and prints its path.
    fn spool(&self, file: &OpenFile) {
        let context = self.context();
        let cause = context.shutdown.cause().map(|cause| cause.kind);
        let is_lost = cause.is_some_and(|cause| cause == Kind::Lost || cause.is_wanted());
        let partial = file.take_partial();
        let Some(partial) = partial.filter(|_| context.options.spool && is_lost) else {
            return;
        };
        let first = file.claims.lock().first_run();
        // A stuck worker may still be writing to the partial file.
        let Some(partial) = Arc::into_inner(partial).filter(|_| first > 0) else {
            return;
        };
        match partial.spool(first) {
            Ok((path, len)) => {
                let path = printable(path.as_os_str().as_bytes());
                let len = size(len);
                (context.tell)(&format!("fastcp: {path} holds the first {len} of the pipe"));
            }
            Err(error) => context.news.failures.add(&error),
        }
    }
}
