//! The receiver's table of entries: where each goes, big files until they have their names, and the
//! set of entries that are accounted for.

use std::collections::HashMap;
use std::sync::Arc;

use super::arrived::ArrivedChunks;
use super::hard_links::HardLinks;
use super::merged::{Claimant, MergeClaim, MergedNames, Merging};
use super::open_directories::{Lack, OpenDirectories, OpenDirectory};
use super::open_file::OpenFile;
use super::requested::{RequestedFiles, RequestedNames};
use super::root_table::RootTable;
use super::unsettled::UnsettledEntries;
use crate::chunk::ranges::RangeSet;
use crate::dest::{Directory, EarlierPlace, EntrySlot, Landing, SinkSpec};
use crate::journal;
use crate::journal::record::Hash;
use crate::manifest::{Entry, EntryId, EntryKind, NO_PARENT, Name};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::scheduler::UNSETTLED_ENTRIES_MAX;

/// Most ranges of entries that are accounted for: more than the sender's own limits allow.
const SCATTERED_MAX: usize = 3 * UNSETTLED_ENTRIES_MAX as usize;

/// Most big files that are open or resuming. The sender stops at `UNSETTLED_ENTRIES_MAX`, but
/// finishes its message, of up to 256 entries.
const FILES_MAX: usize = UNSETTLED_ENTRIES_MAX as usize + 256;

/// The place for an entry.
pub enum Location {
    Slot(EntrySlot, Option<ListedPath>),
    Directory(Arc<crate::dir::Dir>, Option<ListedPath>),
    /// A pipe.
    Exit(SinkSpec, Option<ListedPath>),
    /// The entry's directory failed.
    Lost,
    /// The entry's directory was not made (`--existing`).
    LeftOut,
    /// The entry's directory would be made (`--dry-run`), so nothing is there.
    Planned(Option<ListedPath>),
    /// The entry's directory has not been announced yet.
    Unknown,
    /// The entry was not requested, which has ended the copy.
    Refused,
}

#[derive(Default)]
pub struct EntryTable {
    pub roots: RootTable,
    requested: Option<RequestedFiles>,
    merged: MergedNames,
    /// The sender has reported a failure.
    told: bool,
    pub directories: OpenDirectories,
    pub files: HashMap<EntryId, Arc<OpenFile>>,
    unsettled: UnsettledEntries,
    /// Used without the lock of this table, since it may read a disk.
    pub linked: Arc<HardLinks>,
    /// Entries in place or failed.
    accounted: RangeSet,
    pub chunks: ArrivedChunks,
    last: Option<EntryId>,
    /// `take_done` has returned true. It does so once, so that only one caller ends the copy.
    is_over: bool,
}

impl EntryTable {
    pub fn was_told_of_a_failure(&mut self) {
        self.told = true;
    }

    /// The place for an entry with this parent and name; with `listing`, also its place in a list
    /// of digests.
    pub fn locate(&self, id: EntryId, parent: EntryId, name: &Name, listing: bool) -> Location {
        if parent == NO_PARENT {
            let Some((root, landing)) = self.roots.find(id) else {
                return Location::Unknown;
            };
            let listed = listing.then(|| ListedPath::of_root(root));
            return match landing {
                Landing::Name(slot) => Location::Slot(slot.clone(), listed),
                Landing::Directory(dir) => Location::Directory(dir.clone(), listed),
                Landing::Exit(exit) => Location::Exit(exit.clone(), listed),
                Landing::Missing(_) => Location::Planned(listed),
            };
        }
        let Some(node) = self.directories.get(parent) else {
            return Location::Unknown;
        };
        let listed = node.listed.as_ref();
        let listed = listed.map(|above| above.child(name.as_bytes()));
        match (&node.directory, node.lack) {
            (Some(directory), _) => Location::Slot(directory.slot(name.clone()), listed),
            (None, Lack::LeftOut) => Location::LeftOut,
            (None, Lack::Planned) => Location::Planned(listed),
            (None, Lack::Failed) => Location::Lost,
        }
    }

    /// From now on only these entries are allowed.
    pub(super) fn request(&mut self, files: RequestedFiles) {
        self.requested = Some(files);
    }

    /// True if the sender may send listed names only.
    pub(super) fn has_requests(&self) -> bool {
        self.requested.is_some()
    }

    /// False if an entry was not requested.
    pub fn may_be_sent(&self, entry: &Entry) -> bool {
        let is_directory = entry.kind == EntryKind::Directory;
        self.requested.is_none()
            || self
                .requested_below(entry.parent, &entry.name)
                .is_some_and(|names| names.is_named() || is_directory)
    }

    /// What may be sent of an entry.
    fn requested_below(&self, parent: EntryId, name: &Name) -> Option<RequestedNames> {
        let files = self.requested.as_ref()?;
        if parent == NO_PARENT {
            return Some(files.top());
        }
        match self.directories.get(parent) {
            Some(above) => files.child(above.requested.as_ref()?, name),
            // It is refused for that reason, or was accounted for with its directory.
            None => Some(files.any()),
        }
    }

    /// True if other sources may have entries in the directory of an entry.
    pub(super) fn is_shared(&self, entry: &Entry) -> bool {
        self.roots.beside(entry.parent).is_some()
            || self.merging_above(entry, false) != Merging::Alone
    }

    /// Claims the place of an entry in a directory that sources may share. `confuses`: there, names that
    /// differ only in case are one place.
    pub(super) fn claim_merged(
        &mut self,
        entry: &Entry,
        slot: &EntrySlot,
        confuses: bool,
    ) -> MergeClaim {
        let above = self.merging_above(entry, confuses);
        let new = Claimant {
            id: entry.id,
            is_directory: entry.kind == EntryKind::Directory,
        };
        self.merged.claim(above, slot, confuses, new)
    }

    /// What the place of an entry has to do with other sources.
    fn merging_above(&self, entry: &Entry, confuses: bool) -> Merging {
        let is_shared = match entry.parent {
            NO_PARENT => self.roots.may_merge(entry.id),
            parent => {
                let root = self.roots.beside_as(parent, &entry.name, confuses);
                root.is_some()
            }
        };
        match self.directories.get(entry.parent) {
            _ if is_shared => Merging::First,
            Some(above) => above.place.merging,
            None => Merging::Alone,
        }
    }

    /// A hash of the path from the root to an entry with this parent and name. It is the same on
    /// every run of a copy. None if the parent is not known.
    pub fn path_of(&self, id: EntryId, parent: EntryId, name: &Name) -> Option<Hash> {
        if parent == NO_PARENT {
            let number = self.roots.find(id)?.0 as u64;
            return Some(journal::hash([&number.to_le_bytes()[..]].into_iter()));
        }
        let above = &self.directories.get(parent)?.path;
        Some(journal::hash([&above[..], name.as_bytes()].into_iter()))
    }

    /// True if the entry is in place, failed, open or resuming. A sender announces no such entry
    /// again.
    pub fn is_known(&self, id: EntryId) -> bool {
        self.accounted.contains(id)
            || self.files.contains_key(&id)
            || self.unsettled.resuming.contains(id)
    }

    /// An entry that is no directory was announced.
    pub(super) fn announce(&mut self, entry: &Entry) {
        if !self.accounted.contains(entry.id) {
            self.unsettled.add(entry);
        }
    }

    /// Marks a file as resuming: it waits for a worker to check or read its earlier data, or to
    /// open it again.
    pub fn set_resuming(&mut self, id: EntryId) {
        self.unsettled.resuming.insert_one(id);
    }

    /// Ends resuming, because the existing data is damaged and the file is sent again. Returns
    /// false if the file has failed in the meantime.
    pub fn end_resuming(&mut self, id: EntryId) -> bool {
        self.unsettled.end_resuming(id);
        !self.accounted.contains(id)
    }

    /// Accepts the chunks of a file. Returns false if the file has failed in the meantime.
    pub fn open(&mut self, file: Arc<OpenFile>) -> bool {
        let id = file.entry.id;
        self.unsettled.end_resuming(id);
        let open = !self.accounted.contains(id);
        if open {
            self.files.insert(id, file);
        }
        open
    }

    pub fn is_accounted(&self, id: EntryId) -> bool {
        self.accounted.contains(id)
    }

    /// The place of an entry in earlier copies.
    pub fn earlier(&self, entry: &Entry) -> EarlierPlace {
        if entry.parent == NO_PARENT {
            return self.roots.earlier(entry.id);
        }
        let above = self.directories.get(entry.parent);
        above.map_or_else(EarlierPlace::default, |above| {
            above.earlier.place(entry.name.clone())
        })
    }

    /// Adds a directory that was made, or could not be made. In both cases it is accounted for.
    pub fn add_directory(
        &mut self,
        entry: Entry,
        directory: Option<Directory>,
        listed: Option<ListedPath>,
    ) -> &mut OpenDirectory {
        self.add(entry, directory, listed, Lack::Failed)
    }

    /// Adds a directory that is not made, nor are its children.
    pub fn leave_out_directory(&mut self, entry: Entry) {
        self.add(entry, None, None, Lack::LeftOut);
    }

    /// Adds a directory that would be made (`--dry-run`).
    pub fn plan_directory(
        &mut self,
        entry: Entry,
        listed: Option<ListedPath>,
    ) -> &mut OpenDirectory {
        self.add(entry, None, listed, Lack::Planned)
    }

    fn add(
        &mut self,
        entry: Entry,
        directory: Option<Directory>,
        listed: Option<ListedPath>,
        lack: Lack,
    ) -> &mut OpenDirectory {
        self.accounted.insert_one(entry.id);
        let path = self.path_of(entry.id, entry.parent, &entry.name);
        let requested = self.requested_below(entry.parent, &entry.name);
        let merging = self.merged.open(entry.id);
        let added = self
            .directories
            .add(entry, directory, listed, lack, merging);
        added.path = path.unwrap_or_default();
        added.requested = requested;
        added
    }

    /// Marks an entry as in place or failed; a second call does nothing. Returns its directory if
    /// this was the last child.
    pub fn account(&mut self, id: EntryId, parent: EntryId) -> Option<OpenDirectory> {
        self.files.remove(&id);
        self.unsettled.settle(id);
        self.chunks.has_result(id);
        if id == 0 || !self.accounted.insert_one(id) {
            return None;
        }
        self.directories.child_settled(parent)
    }

    /// True if there is more than a sender within its limits can cause.
    pub fn is_scattered(&self) -> bool {
        let roots = self.roots.count();
        self.accounted.fragments() > SCATTERED_MAX + roots
            || self.files.len() as u64 + self.unsettled.resuming.count()
                > (FILES_MAX + roots) as u64
            || self.unsettled.are_too_many()
            || self.directories.are_too_many(roots)
            || self.chunks.is_scattered()
    }

    /// True after the end of the walk: no more directories will be announced.
    pub fn is_walked(&self) -> bool {
        self.last.is_some()
    }

    /// Ends the walk; `last` and `unused` define all entries. Returns false if a root is missing
    /// and no failure was reported.
    pub fn all_sent(
        &mut self,
        last: EntryId,
        unused: impl Iterator<Item = std::ops::Range<u64>>,
    ) -> bool {
        self.last = Some(last);
        let mut whole = self.roots.are_within(last);
        for range in unused {
            whole &= !self.roots.has_one_in(&range);
            self.accounted.insert(range);
        }
        whole || self.told
    }

    /// True if the sender has read everything that it announced.
    pub fn is_all_sent(&self) -> bool {
        self.last.is_some() && self.files.values().all(|file| file.end.get().is_some())
    }

    /// Removes and returns the big files that are not in place.
    pub fn take_files(&mut self) -> Vec<Arc<OpenFile>> {
        self.files.drain().map(|(_, file)| file).collect()
    }

    /// Takes the whole content. Dropping the result removes partial files and restores the modes of
    /// directories, so drop it while the table is not locked.
    #[must_use]
    pub fn take(&mut self) -> EntryTable {
        std::mem::take(self)
    }

    /// True, and once only, if everything that was announced is in place or failed: threads that
    /// settle the last entries at the same time must not both end the copy.
    pub fn take_done(&mut self) -> bool {
        let is_done = self.is_settled() && self.directories.len() == 0;
        is_done && !std::mem::replace(&mut self.is_over, true)
    }

    /// True if nothing more will arrive and a directory still lacks children.
    pub fn is_stuck(&self) -> bool {
        self.is_settled() && self.directories.len() > 0
    }

    fn is_settled(&self) -> bool {
        let all = |last: EntryId| self.accounted.contains_all(1..last.saturating_add(1));
        self.last.is_some_and(all)
            && !self.directories.are_finishing()
            && self.files.is_empty()
            && self.unsettled.resuming.is_empty()
            && self.chunks.is_idle()
    }
}

#[cfg(test)]
mod tests;
