//! The entries of a copy at the receiver: where each goes, which are in place or failed, and the
//! journal that records this for a later run.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::copy_journal::CopyJournal;
use super::destination::Sessions;
use super::done_files::PlacedContent;
use super::entry_table::{EntryTable, Location};
use super::merged::MergeClaim;
use super::mirror::Mirroring;
use super::moved::MovedFiles;
use super::names::NameClaim;
use super::open_directories::OpenDirectory;
use super::open_file::{IncomingFile, OpenFile};
use super::report::Report;
use super::reused::ReusedEntries;
use super::snapshot::SnapshotCopy;
use crate::dest::{
    self, EarlierDirs, EarlierEntry, EarlierPlace, EntrySlot, ExistingEntry, Owners, Rules,
    Standing, UnchangedFile,
};
use crate::digest::Digest;
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::journal::Journal;
use crate::journal::record::Hash;
use crate::locks::{OrderedGuard, OrderedMutex, place};
use crate::manifest::{Entry, EntryId, EntryKind};
use crate::pipeline::context::Context;
use crate::pipeline::digest_list::ListedPath;
use crate::report::event::FileResult;
use crate::source::is_just_written;
use crate::wire::message::{DirectoryNames, ExtraEntries, RemovedSources, SourcePlaces};

/// For a breach: an entry that is not [expected](Entries::is_expected).
pub const NOT_IN_SCP: &str = "a link or a special file, which --scp does not copy";

const SAME_NAME: &str = "would get the same name as another source, and one would replace the other; \
                         copy them to different names or into different directories";

pub struct Entries {
    pub report: Report,
    pub rules: Rules,
    pub sessions: Sessions,
    owners: Owners,
    pub(super) reused: ReusedEntries,
    /// Set when the roots land, if the copy makes a snapshot.
    pub(super) snapshot: OnceLock<SnapshotCopy>,
    table: OrderedMutex<EntryTable, { place::ENTRIES }>,
    pub(super) journal: CopyJournal,
    pub(super) mirror: Mirroring,
    pub(super) moved: MovedFiles,
    removal: RemovalSteps,
    /// Device and inode of the destination and of the directories above it, if one of them may be
    /// below the source.
    pub(super) above: OnceLock<HashSet<(u64, u64)>>,
}

/// With `--remove-source-files`, the copy is over after both of these.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RemovalStep {
    /// Everything is in place.
    Placed,
    /// The sender has removed its files.
    Removed,
}

/// Which of them are over.
#[derive(Default)]
struct RemovalSteps(Mutex<Vec<RemovalStep>>);

impl RemovalSteps {
    /// Notes a step. True once, when nothing is left.
    fn is_over(&self, step: RemovalStep, entries: &Entries) -> bool {
        let mut steps = self.0.lock();
        if steps.contains(&step) {
            return false;
        }
        steps.push(step);
        steps.len() == 2 || !entries.context().removes_sources()
    }
}

impl Entries {
    pub fn new(report: Report, rules: Rules, sessions: Sessions) -> Entries {
        let mirror = Mirroring::new(rules.clone(), sessions.tell.clone());
        let journal = CopyJournal::new(sessions.tell.clone());
        let reused = ReusedEntries::new(rules.clone());
        let backups = rules.backup.as_ref();
        if let Some(backups) = backups.filter(|_| !sessions.before.is_empty()) {
            backups.has_earlier_sessions();
        }
        Entries {
            report,
            rules,
            sessions,
            owners: Owners::default(),
            reused,
            snapshot: OnceLock::new(),
            table: OrderedMutex::default(),
            journal,
            mirror,
            moved: MovedFiles::default(),
            removal: RemovalSteps::default(),
            above: OnceLock::new(),
        }
    }

    /// Refuses to copy a directory with all that it has into itself.
    pub fn check_above(&self, entry: &Entry, slot: &EntrySlot) -> Result<()> {
        let contains = |above: &HashSet<_>| above.contains(&(entry.dev, entry.ino));
        if entry.is_implied() || !self.above.get().is_some_and(contains) {
            return Ok(());
        }
        let message = "is inside the source directory that would be copied here; a directory cannot be \
                       copied into itself";
        Err(Error::new(Kind::Refused, Side::Dest, message).at(slot.path()))
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.report.context
    }

    pub fn table(&self) -> OrderedGuard<'_, EntryTable> {
        self.table.lock()
    }

    pub fn journal(&self) -> Option<&Journal> {
        self.journal.get()
    }

    /// The place for an entry, and the hash of its path; None if its directory is not known.
    pub fn locate(&self, entry: &Entry) -> (Location, Option<Hash>) {
        self.locate_in(&self.table(), entry)
    }

    fn locate_in(&self, table: &EntryTable, entry: &Entry) -> (Location, Option<Hash>) {
        if !self.is_requested(table, entry) {
            return (Location::Refused, None);
        }
        (
            table.locate(entry.id, entry.parent, &entry.name, self.is_listing()),
            table.path_of(entry.id, entry.parent, &entry.name),
        )
    }

    /// True if the user wants the paths of entries.
    pub(super) fn is_listing(&self) -> bool {
        self.context().digests.is_some() || self.report.names_entries()
    }

    /// Ends the copy, and returns false, if the sender sends what the user did not name.
    pub(super) fn is_requested(&self, table: &EntryTable, entry: &Entry) -> bool {
        let may_be = table.may_be_sent(entry);
        if !may_be {
            self.report.breach("an entry that was not requested");
        }
        may_be
    }

    /// The same for an entry that is new; None if it is in place, failed or being received. One
    /// look at the table: when the last child of a directory is accounted for, the directory leaves
    /// it.
    pub fn locate_new(&self, entry: &Entry) -> Option<(Location, Option<Hash>)> {
        self.locate_new_in(&self.table(), entry)
    }

    /// The same for a small file that has come; None too if another worker places it.
    pub(super) fn claim_small(&self, entry: &Entry) -> Option<(Location, Option<Hash>)> {
        let mut table = self.table();
        let found = self.locate_new_in(&table, entry)?;
        table.chunks.claim_file(entry.id).then_some(found)
    }

    fn locate_new_in(&self, table: &EntryTable, entry: &Entry) -> Option<(Location, Option<Hash>)> {
        let found = self.locate_in(table, entry);
        let is_refused = matches!(found.0, Location::Refused);
        (is_refused || !table.is_known(entry.id)).then_some(found)
    }

    /// Gives the entry the mode, owner and group that its copy gets on this host.
    pub fn localize(&self, entry: &mut Entry) {
        self.owners.localize(entry, &self.rules);
    }

    /// False for a link or a special file in a copy as scp, which has none. Later copies would write
    /// in place into what such a link leads to.
    pub fn is_expected(&self, entry: &Entry) -> bool {
        let is_file = matches!(
            entry.kind,
            EntryKind::File | EntryKind::Directory | EntryKind::Pipe
        );
        is_file || !self.rules.is_scp()
    }

    /// # Errors
    /// If this host does not know the owner that the user wants.
    pub fn check_owners(&self) -> Result<()> {
        self.owners.check(&self.rules.changes)
    }

    /// The place of an entry in earlier copies, if there are any.
    fn earlier_place(&self, entry: &Entry) -> Option<EarlierPlace> {
        self.rules.earlier?;
        Some(self.table().earlier(entry))
    }

    /// The same directory in earlier copies.
    pub(super) fn earlier_directories(&self, entry: &Entry) -> EarlierDirs {
        let place = self.earlier_place(entry);
        place.map_or_else(EarlierDirs::default, |place| place.directories())
    }

    /// The entry of an earlier copy that can be used for this one.
    pub(super) fn find_earlier(&self, entry: &Entry) -> Option<EarlierEntry> {
        self.reused.find(&self.earlier_place(entry)?, entry)
    }

    /// Makes `slot` a hard link to an entry of an earlier copy, in the place of an entry of another
    /// kind too (`--delete`). None if it has to be copied or sent.
    ///
    /// # Errors
    /// Of the file system, at the new place.
    pub(super) fn link_earlier(
        &self,
        slot: &EntrySlot,
        entry: &Entry,
        found: &EarlierEntry,
    ) -> Result<Option<ExistingEntry>> {
        if !self.reused.is_linked(found) {
            return Ok(None);
        }
        self.make_room(slot, entry)?;
        self.reused.link(slot, entry, found)
    }

    /// The same with a copy of a file. None if it has to be sent.
    ///
    /// # Errors
    /// Of the file system, at the new place.
    pub(super) fn copy_earlier(
        &self,
        file: &IncomingFile,
        found: &EarlierEntry,
    ) -> Result<Option<ExistingEntry>> {
        let (slot, entry) = (&file.slot, &file.entry);
        self.check_room(slot, entry)?;
        let make_room = || self.make_room(slot, entry);
        self.reused.copy(file, found, &self.report, &make_room)
    }

    /// What happens to a file, given what exists in its place. With a list of digests the content of
    /// unchanged files must be read, so they are copied.
    pub fn standing(&self, slot: &EntrySlot, entry: &Entry) -> Result<Standing> {
        // Its content may not be on the disk: it is linked once more, or read, or sent.
        if self
            .snapshot
            .get()
            .is_some_and(|snapshot| !snapshot.is_certain())
        {
            return Ok(Standing::Copied);
        }
        let context = self.context();
        let lists = context.digests.is_some() || context.options.digests;
        match dest::standing(slot, entry, &self.rules)? {
            Standing::Unchanged(_) if lists => Ok(Standing::Copied),
            // An interrupted run may have written it. The journal decides, or it is compared.
            Standing::Unchanged(found) if self.may_be_lost(&found) => Ok(Standing::Copied),
            standing => Ok(standing),
        }
    }

    fn may_be_lost(&self, found: &UnchangedFile) -> bool {
        self.journal()
            .is_some_and(|journal| journal.may_have_lost(found.changed_at()))
    }

    /// Corrects the metadata of an unchanged file, and reports what changes.
    pub fn correct(&self, file: &IncomingFile, unchanged: &UnchangedFile) -> Result<()> {
        let IncomingFile {
            entry,
            slot,
            listed,
            ..
        } = file;
        let itemizer = &self.report.itemizer;
        let item = itemizer.change(slot, entry, listed.as_ref(), false)?;
        if !self.rules.dry_run {
            self.correct_metadata(file, unchanged)?;
        }
        let existing = unchanged.existing();
        itemizer.report(item, entry, Some((existing.dev, existing.ino)));
        Ok(())
    }

    fn correct_metadata(&self, file: &IncomingFile, unchanged: &UnchangedFile) -> Result<()> {
        dest::correct(&file.slot, &file.entry, unchanged, &self.rules)?;
        match self.rules.fsync {
            // The run that copied it may not have made it durable.
            true => dest::make_durable(&file.slot),
            false => Ok(()),
        }
    }

    /// Accounts for an unchanged file, which exists with correct metadata.
    pub fn found_unchanged(&self, file: IncomingFile, existing: &ExistingEntry) {
        self.found_there(file, existing, FileResult::Unchanged);
    }

    fn found_there(&self, file: IncomingFile, existing: &ExistingEntry, result: FileResult) {
        let IncomingFile {
            entry,
            slot,
            listed,
            ..
        } = file;
        self.context().progress.add_unchanged(entry.size);
        let placed = PlacedContent {
            size: entry.size,
            digest: None,
            result,
        };
        self.report.done.add(listed.as_ref(), &placed);
        self.remember_linked(&entry, &slot, Some(existing));
        // What `--no-clobber` leaves alone stays at both ends.
        if !self.rules.no_clobber {
            self.found_durable(&entry, &slot);
        }
        self.acknowledge(entry.id, entry.parent);
    }

    /// Accounts for a file that is in place as a link to an earlier copy, or as a copy of one.
    pub(super) fn found_reused(&self, file: IncomingFile, existing: &ExistingEntry) {
        let inode = (existing.dev, existing.ino);
        let itemizer = &self.report.itemizer;
        itemizer.note_first(&file.entry, file.listed.as_ref(), Some(inode));
        self.found_there(file, existing, FileResult::Reused);
    }

    /// Accounts for an entry that is in place, or would be (`--dry-run`), and tells the sender.
    pub fn acknowledge(&self, id: EntryId, parent: EntryId) {
        self.report.acks.entry(id);
        self.settle(id, parent);
    }

    /// Accounts for an entry that is not copied because of an existing entry or the lack of one.
    pub fn stays(&self, id: EntryId, parent: EntryId) {
        self.report.stays();
        self.acknowledge(id, parent);
    }

    /// A file that is being received.
    pub fn open_file(&self, id: EntryId) -> Option<Arc<OpenFile>> {
        self.table().files.get(&id).cloned()
    }

    /// True if a later write to the source might not show in its times. A newer sender reports this
    /// by the clock that made the times. For an older sender, this machine's clock is used. Nothing
    /// shows a write to a device, or a change of content that the kernel generates.
    pub fn is_young(&self, entry: &Entry) -> bool {
        if entry.is_device() || entry.is_made_up() {
            return true;
        }
        match self.context().agreed.peer_repairs {
            true => entry.is_young(),
            false => is_just_written(entry),
        }
    }

    /// Refuses to write a file into itself (`--inplace`): both may be names of one file, also where
    /// the directories differ.
    fn check_itself(&self, entry: &Entry, slot: &EntrySlot) -> Result<()> {
        let is_possible = self.rules.inplace && self.mirror.same_machine.load(Relaxed);
        if !is_possible || entry.kind != EntryKind::File {
            return Ok(());
        }
        let existing = dest::existing(slot)?;
        match existing.is_some_and(|it| (it.dev, it.ino) == (entry.dev, entry.ino)) {
            true => {
                let option = self.rules.option_in_place();
                let message =
                    format!("is the source itself, which {option} would write while it is read");
                Err(Error::new(Kind::Refused, Side::Dest, message).at(slot.path()))
            }
            false => Ok(()),
        }
    }

    /// Refuses an entry in the place of another root: one of the two would replace the other. Two
    /// directories become one, except in a snapshot, where each would remove the entries of the other,
    /// and if files of the source are removed, of which one may replace another.
    fn check_roots_beside(&self, entry: &Entry, slot: &EntrySlot, confuses: bool) -> Result<()> {
        let root = self
            .table()
            .roots
            .beside_as(entry.parent, &slot.name, confuses);
        let Some(is_directory) = root else {
            return Ok(());
        };
        let are_one = is_directory && entry.kind == EntryKind::Directory;
        if are_one && !self.rules.snapshot && !self.context().removes_sources() {
            return Ok(());
        }
        Err(Error::new(Kind::Refused, Side::Dest, SAME_NAME).at(slot.path()))
    }

    /// The same for an entry in a directory that is that of two sources.
    fn check_merged(&self, entry: &Entry, slot: &EntrySlot, confuses: bool) -> Result<()> {
        let message = match self.table().claim_merged(entry, slot, confuses) {
            MergeClaim::Yours => return Ok(()),
            MergeClaim::Taken => SAME_NAME,
            MergeClaim::Unknown => {
                "is in a directory that two sources fill, and that has too many names to compare; \
                 make sure that no name is in both, then copy the sources one by one"
            }
        };
        Err(Error::new(Kind::Refused, Side::Dest, message).at(slot.path()))
    }

    /// Refuses a name that this copy may not use, or that the file system could confuse with
    /// another entry's name. A second call for the same entry has the same result.
    ///
    /// # Errors
    /// `Kind::Refused`, or the error of a look at the directory.
    pub fn check_name(&self, entry: &Entry, slot: &EntrySlot) -> Result<()> {
        self.rules.check_name(slot)?;
        if self.table().is_shared(entry) {
            let confuses = self.mirror.may_confuse(&slot.dir);
            self.check_roots_beside(entry, slot, confuses)?;
            self.check_merged(entry, slot, confuses)?;
        }
        self.check_itself(entry, slot)?;
        if let Some(snapshot) = self.snapshot.get() {
            snapshot.announce(entry, slot)?;
        }
        if let Some(backup) = &self.rules.backup {
            backup.note(slot);
        }
        let claim = || {
            self.table()
                .directories
                .claim_name(entry.id, entry.parent, &slot.name)
        };
        let mut claimed = claim();
        if claimed == NameClaim::Ask {
            let spelling = dest::spelling(&slot.dir, &self.rules);
            self.table()
                .directories
                .set_spelling(entry.parent, spelling);
            claimed = claim();
        }
        match claimed {
            NameClaim::Refused(why) => {
                Err(Error::new(Kind::Refused, Side::Dest, why).at(slot.path()))
            }
            // The directory was checked above, so `Ask` does not occur.
            NameClaim::Yours | NameClaim::Ask => Ok(()),
        }
    }

    /// Removes an existing entry of another kind from the place of an entry (`--delete`). In a dry
    /// run, only reports it.
    ///
    /// # Errors
    /// If it has to stay.
    pub(super) fn make_room(&self, slot: &EntrySlot, entry: &Entry) -> Result<()> {
        if !self.rules.makes_room {
            return Ok(());
        }
        let place = self.table().directories.place_of(entry.parent);
        self.mirror.make_room(&self.report, (slot, entry), place)
    }

    /// True if something of another kind has to be removed first.
    ///
    /// # Errors
    /// If it has to stay.
    pub(super) fn check_room(&self, slot: &EntrySlot, entry: &Entry) -> Result<bool> {
        let found = self.mirror.check_room(&self.report, slot, entry)?;
        Ok(found.is_some())
    }

    /// A file is in place and its further names may follow. Without `existing`, its present status
    /// is used.
    pub fn remember_linked(
        &self,
        entry: &Entry,
        slot: &EntrySlot,
        existing: Option<&ExistingEntry>,
    ) {
        // A dry run makes no links.
        if entry.links <= 1 || self.rules.dry_run {
            return;
        }
        let inode = match existing {
            _ if slot.dir.lasting_number() == 0 => None,
            Some(existing) => Some((existing.dev, existing.ino)),
            None => match dest::existing(slot) {
                Ok(Some(existing)) => Some((existing.dev, existing.ino)),
                // Its further names do not find the file either.
                Ok(None) | Err(_) => return,
            },
        };
        let linked = self.table().linked.clone();
        linked.placed(entry, slot, inode);
    }

    /// A file has its final name.
    pub fn file_placed(&self, entry: &Entry, listed: Option<&ListedPath>, placed: &PlacedContent) {
        self.report.file_placed(entry, listed, placed);
        self.settle(entry.id, entry.parent);
    }

    /// Accounts for a file that an earlier session put in place.
    pub fn found_in_place(
        &self,
        file: IncomingFile,
        digest: Option<Digest>,
        existing: Option<&ExistingEntry>,
    ) {
        let IncomingFile {
            entry,
            slot,
            listed,
            ..
        } = file;
        if let Err(error) = dest::stays_in_place(&slot, &self.rules) {
            return self.fail(entry.id, entry.parent, &error);
        }
        // The earlier run may not have made the file durable.
        if self.rules.fsync
            && let Err(error) = dest::make_durable(&slot)
        {
            return self.fail(entry.id, entry.parent, &error);
        }
        let context = self.context();
        if let (Some(list), Some(listed), Some(digest)) = (&context.digests, &listed, &digest) {
            list.add(listed, digest);
            list.remember(&entry, digest);
        }
        if let Some(existing) = existing {
            let inode = (existing.dev, existing.ino);
            let itemizer = &self.report.itemizer;
            itemizer.note_first(&entry, listed.as_ref(), Some(inode));
        }
        let placed = PlacedContent {
            size: existing.map_or(entry.size, |existing| existing.size),
            digest,
            result: FileResult::Resumed,
        };
        self.report.done.add(listed.as_ref(), &placed);
        context.progress.add_resumed(entry.size);
        context.progress.add_resumed_files(1);
        context.progress.add_files(1);
        self.remember_linked(&entry, &slot, existing);
        self.found_durable(&entry, &slot);
        self.acknowledge(entry.id, entry.parent);
    }

    /// An entry failed here. Tells the sender; the end that the user sees also prints the error.
    pub fn fail(&self, id: EntryId, parent: EntryId, error: &Error) {
        self.report.failed(id, parent, error);
        self.settle(id, parent);
    }

    /// An entry failed along with its directory.
    pub fn lost_with_directory(&self, entry: &Entry) {
        self.report.failed_with_directory(entry.id);
        self.settle(entry.id, entry.parent);
    }

    /// Accounts for an entry, and finishes the directories that are complete as a result.
    pub fn settle(&self, id: EntryId, parent: EntryId) {
        self.report.itemizer.forget(id);
        let full = self.table().account(id, parent);
        self.finish_directories(full);
    }

    /// Gives complete directories their modes and times. Ends the copy if everything is in place.
    pub fn finish_directories(&self, mut full: Option<OpenDirectory>) {
        while let Some(open) = full {
            let parent = open.entry.parent;
            let mut table = self.table();
            if table.roots.beside(open.entry.id).is_some() {
                table.directories.finish_last(open);
            } else {
                drop(table);
                self.finish_directory(open);
                table = self.table();
            }
            table.directories.finished();
            full = table.directories.child_settled(parent);
        }
        let mut table = self.table();
        if table.take_done() {
            let last = table.directories.take_last();
            drop(table);
            last.into_iter()
                .for_each(|open| self.finish_directory(open));
            self.report.flush();
            if self.mirror.begin(&self.report) && self.removal.is_over(RemovalStep::Placed, self) {
                self.complete();
            }
        } else if table.is_stuck() {
            self.report
                .breach("a directory with fewer entries than announced");
        } else if table.is_scattered() {
            self.report.breach("more entries at once than allowed");
        }
    }

    /// Nothing more goes into a directory: removes what a snapshot does not have, notes what the source
    /// may not have, and gives it its mode and times.
    fn finish_directory(&self, open: OpenDirectory) {
        if let Some(snapshot) = self.snapshot.get() {
            snapshot.settle(&open);
        }
        let OpenDirectory {
            directory,
            entry,
            place,
            source_names,
            ..
        } = open;
        if let (Some(names), Some(directory)) = (&source_names, &directory) {
            self.mirror.compare(&self.report, directory, names, &place);
        }
        if let Some(directory) = directory
            && let Err(error) = directory.finish(&entry, &self.rules)
        {
            self.context().report_fault(&error, 0, 0);
        }
    }

    /// Keeps the names in directories at the source (`--delete`).
    pub fn take_names(&self, directories: Vec<DirectoryNames>) {
        if !self.context().options.mirror.deletes {
            return self.report.breach("names that it was not asked for");
        }
        for names in directories {
            let kept = self.table().directories.set_source_names(names);
            match kept {
                Some(true) => {}
                Some(false) => self.mirror.had_no_room(),
                None => self
                    .report
                    .breach("names in a directory that was not announced"),
            }
        }
    }

    /// Keeps the places of the source from being deleted.
    pub fn take_source_places(&self, places: SourcePlaces) {
        if !self.context().options.mirror.deletes {
            return self.report.breach("places that it was not asked for");
        }
        self.mirror.protect_source(places.0);
    }

    /// Ends what `--delete` does, if the copy ends early.
    pub fn end_mirror(&self) {
        self.mirror.end();
    }

    /// Handles an answer about names that only the destination has.
    pub fn take_extra(&self, answer: ExtraEntries) {
        if self.mirror.answered(&self.report, answer) {
            self.complete();
        }
    }

    /// This link to a copy is on disk: the sender may remove the source.
    pub(super) fn link_durable(&self, entry: &Entry, slot: &EntrySlot) {
        if self.context().removes_sources() && self.may_be_removed(entry, slot) {
            self.durable(entry);
        }
    }

    /// The same for any other entry, which may have existed before. Its status is changed, so that the
    /// sender sees if it is the source itself.
    pub(super) fn found_durable(&self, entry: &Entry, slot: &EntrySlot) {
        if !self.context().removes_sources() || !self.may_be_removed(entry, slot) {
            return;
        }
        match dest::change_status(slot) {
            Ok(()) => self.durable(entry),
            Err(error) => self.context().report_fault(&error, 0, 0),
        }
    }

    fn durable(&self, entry: &Entry) {
        let moved = &self.context().news.failures.moved;
        moved.are_durable(entry.id..entry.id.saturating_add(1));
        self.report.acks.durable(entry.id);
    }

    /// False with `--strict` for a copy that lacks some metadata, or of which that cannot be told.
    fn may_be_removed(&self, entry: &Entry, slot: &EntrySlot) -> bool {
        if !self.context().options.mirror.removes_kept_only {
            return true;
        }
        match dest::has_owner_and_attributes(slot, entry, &self.rules) {
            Ok(has_all) => has_all,
            Err(error) => {
                self.context().report_fault(&error, 0, 0);
                false
            }
        }
    }

    /// Takes the sender's report of the entries that it has removed at the source.
    pub fn take_removed(&self, message: &RemovedSources) {
        if !self.context().removes_sources() {
            return self.report.breach("a removal that it was not asked for");
        }
        self.context().news.removed(&message.removed);
        if message.is_last && self.removal.is_over(RemovalStep::Removed, self) {
            self.complete();
        }
    }

    /// Ends the copy: everything is in place.
    fn complete(&self) {
        self.report.flush();
        match self.rules.fsync {
            // Each file has reported its own errors.
            true => self.journal.end_sync(),
            false => self.journal.settle_sync(|| self.context().is_ending()),
        }
        let is_landing = |dir: &Dir| self.table().roots.is_landing(dir);
        let has_failed = self.context().news.failures.has_some();
        // A snapshot notes its own doubts.
        if self.snapshot.get().is_none() && self.journal.leaves_doubt(has_failed) {
            self.journal.need();
        }
        self.journal.done(self.rules.keep.times, is_landing);
        if let Some(list) = &self.context().digests
            && let Err(cause) = list.tell_rest()
        {
            let error = list.error("some hard links are missing in the list", &cause);
            self.context().report_fault(&error, 0, 0);
        }
        self.report.tell_not_kept(&self.rules.not_kept);
        if let Some(snapshot) = self.snapshot.get() {
            let has_contents = self.table().roots.is_landing(snapshot.partial());
            snapshot.complete(has_contents, &self.reused);
        }
        self.report.acks.finish();
    }

    /// Gives unfinished directories their final modes, so that none stays private that should not
    /// be. The next run makes them writable again.
    pub fn leave_directories(&self) {
        let rules = Rules {
            fsync: false,
            ..self.rules.clone()
        };
        let made = self.table().directories.take_made();
        for (directory, entry) in made {
            // The copy has failed already, and the user needs that error.
            let _ = directory.finish(&entry, &rules);
        }
    }
}
