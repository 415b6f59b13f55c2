//! The receiver's table of entries: directories until their last child is settled, big files until
//! they have their names, and the set of entries that are accounted for.

use std::collections::HashMap;
use std::sync::Arc;

use super::arrived::ArrivedChunks;
use super::hard_links::HardLinks;
use super::merged::{MergeClaim, MergedNames, Merging};
use super::names::{NameClaim, NameMemory, Names};
use super::open_file::OpenFile;
use super::requested::{RequestedFiles, RequestedNames};
use super::root_table::RootTable;
use crate::chunk::ranges::RangeSet;
use crate::dest::{Directory, EarlierDirs, EarlierPlace, EntrySlot, Landing, SinkSpec, Spelling};
use crate::journal;
use crate::journal::record::Hash;
use crate::manifest::{Entry, EntryId, EntryKind, NO_PARENT, Name};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::scheduler::UNSETTLED_ENTRIES_MAX;
use crate::wire::message::DirectoryNames;

/// Most ranges of entries that are accounted for, most ranges of resuming entries, and most
/// incomplete directories: more than the sender's own limits allow.
const SCATTERED_MAX: usize = 3 * UNSETTLED_ENTRIES_MAX as usize;
const DIRECTORIES_MAX: usize = 2 * UNSETTLED_ENTRIES_MAX as usize;

/// About how many bytes of sums of names are kept.
const SOURCE_NAMES_BYTES_MAX: usize = 8 << 20;

/// A directory whose children are still arriving.
pub struct OpenDirectory {
    /// None if there is none, as `lack` says.
    pub directory: Option<Directory>,
    lack: Lack,
    pub entry: Entry,
    pub listed: Option<ListedPath>,
    /// The hash of its path below the roots.
    path: Hash,
    pub(super) place: PlaceInCopy,
    /// The same directory in earlier copies.
    pub(super) earlier: EarlierDirs,
    /// The names of its entries at the source, if the sender has sent them.
    pub(super) source_names: Option<DirectoryNames>,
    names: Names,
    /// What may be sent of it, if there is a list.
    requested: Option<RequestedNames>,
    /// Number of children in place or failed, and of all children once that is known.
    settled: u64,
    children: Option<u64>,
}

/// Why there is no directory at the destination, if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// It could not be made: its children fail with it.
    Failed,
    /// It was not made (`--existing`), nor are its children.
    LeftOut,
    /// It would be made (`--dry-run`), and so would its children.
    Planned,
}

/// Where a directory is in the copy.
#[derive(Clone, Copy)]
pub(super) struct PlaceInCopy {
    /// The operand's entry number.
    pub root: EntryId,
    /// Number of names from the operand down to it.
    pub depth: usize,
    pub merging: Merging,
}

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
    name_memory: NameMemory,
    merged: MergedNames,
    /// Bytes of memory of all `source_names`.
    source_names_bytes: usize,
    /// The sender has reported a failure.
    told: bool,
    directories: HashMap<EntryId, Box<OpenDirectory>>,
    /// Complete directories that are getting their modes and times now.
    finishing: usize,
    pub files: HashMap<EntryId, Arc<OpenFile>>,
    /// Files that wait for a worker to check or read their earlier data, or to open them again.
    resuming: RangeSet,
    pub linked: HardLinks,
    /// Entries in place or failed.
    accounted: RangeSet,
    pub chunks: ArrivedChunks,
    last: Option<EntryId>,
    /// Somebody was given the end of the copy.
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
            let listed = listing.then(|| ListedPath {
                root,
                below: Vec::new(),
            });
            return match landing {
                Landing::Name(slot) => Location::Slot(slot.clone(), listed),
                Landing::Directory(dir) => Location::Directory(dir.clone(), listed),
                Landing::Exit(exit) => Location::Exit(exit.clone(), listed),
                Landing::Missing(_) => Location::Planned(listed),
            };
        }
        let Some(node) = self.directories.get(&parent) else {
            return Location::Unknown;
        };
        let listed = node
            .listed
            .as_ref()
            .map(|listed| listed.child(name.as_bytes()));
        match (&node.directory, node.lack) {
            (Some(directory), _) => Location::Slot(directory.slot(name.clone()), listed),
            (None, Lack::LeftOut) => Location::LeftOut,
            (None, Lack::Planned) => Location::Planned(listed),
            (None, Lack::Failed) => Location::Lost,
        }
    }

    /// Where a directory is in the copy. None if it is not open.
    pub(super) fn place_of(&self, directory: EntryId) -> Option<PlaceInCopy> {
        self.directories.get(&directory).map(|open| open.place)
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
        match self.directories.get(&parent) {
            Some(above) => files.child(above.requested.as_ref()?, name),
            // It is refused for that reason, or was accounted for with its directory.
            None => Some(files.any()),
        }
    }

    /// Claims this name for an entry in the directory of `parent`.
    pub fn claim_name(&mut self, id: EntryId, parent: EntryId, name: &Name) -> NameClaim {
        match names_in(&mut self.roots, &mut self.directories, parent) {
            Some(names) => self.name_memory.claim(names, id, name),
            None => NameClaim::Yours,
        }
    }

    /// Claims the place of an entry in a directory that sources may share.
    pub(super) fn claim_merged(&mut self, entry: &Entry, slot: &EntrySlot) -> MergeClaim {
        let above = self.merging_above(entry);
        let is_directory = entry.kind == EntryKind::Directory;
        self.merged.claim(above, slot, entry.id, is_directory)
    }

    /// What the place of an entry has to do with other sources.
    fn merging_above(&self, entry: &Entry) -> Merging {
        let is_shared = match entry.parent {
            NO_PARENT => self.roots.may_merge(entry.id),
            parent => {
                let names = self.roots.beside(parent);
                names.is_some_and(|names| names.contains_key(&entry.name))
            }
        };
        match self.directories.get(&entry.parent) {
            _ if is_shared => Merging::First,
            Some(above) => above.place.merging,
            None => Merging::Alone,
        }
    }

    /// True if another source may have entries in this directory too.
    pub(super) fn is_merging(&self, directory: EntryId) -> bool {
        self.place_of(directory)
            .is_some_and(|place| place.merging != Merging::Alone)
    }

    /// Sets how the directory of `parent` treats names.
    pub fn set_spelling(&mut self, parent: EntryId, spelling: Spelling) {
        if let Some(names) = names_in(&mut self.roots, &mut self.directories, parent) {
            self.name_memory.asked(names, spelling);
        }
    }

    /// A hash of the path from the root to an entry with this parent and name. It is the same on
    /// every run of a copy. None if the parent is not known.
    pub fn path_of(&self, id: EntryId, parent: EntryId, name: &Name) -> Option<Hash> {
        if parent == NO_PARENT {
            let number = self.roots.find(id)?.0 as u64;
            return Some(journal::hash([&number.to_le_bytes()[..]].into_iter()));
        }
        let above = &self.directories.get(&parent)?.path;
        Some(journal::hash([&above[..], name.as_bytes()].into_iter()))
    }

    /// True if the entry is in place, failed, open or resuming. A sender announces no such entry
    /// again.
    pub fn is_known(&self, id: EntryId) -> bool {
        self.accounted.contains(id) || self.files.contains_key(&id) || self.resuming.contains(id)
    }

    /// Marks a file as resuming: it waits for a worker to check or read its earlier data, or to
    /// open it again.
    pub fn set_resuming(&mut self, id: EntryId) {
        self.resuming.insert_one(id);
    }

    /// Ends resuming, because the existing data is damaged and the file is sent again. Returns
    /// false if the file has failed in the meantime.
    pub fn end_resuming(&mut self, id: EntryId) -> bool {
        self.remove_resuming(id);
        !self.accounted.contains(id)
    }

    fn remove_resuming(&mut self, id: EntryId) {
        self.resuming.remove(id..id.saturating_add(1));
    }

    /// Accepts the chunks of a file. Returns false if the file has failed in the meantime.
    pub fn open(&mut self, file: Arc<OpenFile>) -> bool {
        let id = file.entry.id;
        self.remove_resuming(id);
        let open = !self.accounted.contains(id);
        if open {
            self.files.insert(id, file);
        }
        open
    }

    pub fn is_accounted(&self, id: EntryId) -> bool {
        self.accounted.contains(id)
    }

    /// A directory that may have unchanged files; None inside if it has none, because the copy made
    /// it or could not make it. None if it is not open.
    pub fn comparable(&self, id: EntryId) -> Option<Option<Arc<crate::dir::Dir>>> {
        let directory = &self.directories.get(&id)?.directory;
        Some(
            directory
                .as_ref()
                .and_then(Directory::with_content)
                .cloned(),
        )
    }

    /// The place of an entry in earlier copies.
    pub fn earlier(&self, entry: &Entry) -> EarlierPlace {
        if entry.parent == NO_PARENT {
            return self.roots.earlier(entry.id);
        }
        let above = self.directories.get(&entry.parent);
        above.map_or_else(EarlierPlace::default, |above| {
            above.earlier.place(entry.name.clone())
        })
    }

    /// Notes the same directory in earlier copies.
    pub fn set_earlier(&mut self, id: EntryId, earlier: EarlierDirs) {
        if let Some(directory) = self.directories.get_mut(&id) {
            directory.earlier = earlier;
        }
    }

    /// A directory that the copy made, and the same directory in an earlier copy. None if it is
    /// another one.
    pub fn linkable(&self, id: EntryId) -> Option<(Arc<crate::dir::Dir>, Arc<crate::dir::Dir>)> {
        let open = self.directories.get(&id)?;
        let new = open
            .directory
            .as_ref()
            .filter(|it| it.with_content().is_none())?;
        Some((new.dir().clone(), open.earlier.first()?.clone()))
    }

    /// Adds a directory that was made, or could not be made. In both cases it is accounted for.
    pub fn add_directory(
        &mut self,
        entry: Entry,
        directory: Option<Directory>,
        listed: Option<ListedPath>,
    ) {
        self.add(entry, directory, listed, Lack::Failed);
    }

    /// Adds a directory that is not made, nor are its children.
    pub fn leave_out_directory(&mut self, entry: Entry) {
        self.add(entry, None, None, Lack::LeftOut);
    }

    /// Adds a directory that would be made (`--dry-run`).
    pub fn plan_directory(&mut self, entry: Entry, listed: Option<ListedPath>) {
        self.add(entry, None, listed, Lack::Planned);
    }

    fn add(
        &mut self,
        entry: Entry,
        directory: Option<Directory>,
        listed: Option<ListedPath>,
        lack: Lack,
    ) {
        self.accounted.insert_one(entry.id);
        let path = self.path_of(entry.id, entry.parent, &entry.name);
        let merging = self.merged.open(entry.id);
        let place = match self.directories.get(&entry.parent) {
            Some(above) => PlaceInCopy {
                root: above.place.root,
                depth: above.place.depth + 1,
                merging,
            },
            None => PlaceInCopy {
                root: entry.id,
                depth: 0,
                merging,
            },
        };
        let requested = self.requested_below(entry.parent, &entry.name);
        let node = Box::new(OpenDirectory {
            requested,
            directory,
            lack,
            place,
            source_names: None,
            earlier: EarlierDirs::default(),
            path: path.unwrap_or_default(),
            listed,
            names: Names::default(),
            settled: 0,
            children: None,
            entry,
        });
        self.directories.insert(node.entry.id, node);
    }

    /// Keeps the names in a directory at the source. None if the directory is not open, false if
    /// there is no room.
    pub(super) fn set_source_names(&mut self, names: DirectoryNames) -> Option<bool> {
        let directory = self.directories.get_mut(&names.directory)?;
        let bytes = source_names_bytes(&names);
        if self.source_names_bytes + bytes > SOURCE_NAMES_BYTES_MAX {
            return Some(false);
        }
        let before = directory.source_names.replace(names);
        self.source_names_bytes += bytes;
        self.source_names_bytes -= before.as_ref().map_or(0, source_names_bytes);
        Some(true)
    }

    /// Sets the number of a directory's children. Returns the directory if all of them are settled.
    pub fn end_directory(&mut self, id: EntryId, children: u64) -> Option<OpenDirectory> {
        self.directories.get_mut(&id)?.children = Some(children);
        self.take_full(id)
    }

    /// Marks an entry as in place or failed; a second call does nothing. Returns its directory if
    /// this was the last child.
    pub fn account(&mut self, id: EntryId, parent: EntryId) -> Option<OpenDirectory> {
        self.files.remove(&id);
        self.remove_resuming(id);
        if id == 0 || !self.accounted.insert_one(id) {
            return None;
        }
        self.child_settled(parent)
    }

    /// Counts a settled child of `parent`: an entry, or a directory with all its contents.
    pub fn child_settled(&mut self, parent: EntryId) -> Option<OpenDirectory> {
        self.directories.get_mut(&parent)?.settled += 1;
        self.take_full(parent)
    }

    fn take_full(&mut self, id: EntryId) -> Option<OpenDirectory> {
        let node = self.directories.get(&id)?;
        if node
            .children
            .is_some_and(|children| node.settled >= children)
        {
            self.finishing += 1;
            let node = self.directories.remove(&id)?;
            self.name_memory.forget(&node.names);
            let bytes = node.source_names.as_ref().map_or(0, source_names_bytes);
            self.source_names_bytes -= bytes;
            Some(*node)
        } else {
            None
        }
    }

    /// A complete directory that was returned earlier has its mode and times now.
    pub fn finished(&mut self) {
        self.finishing -= 1;
    }

    /// True if there is more than a sender within its limits can cause.
    pub fn is_scattered(&self) -> bool {
        self.accounted.fragments() > SCATTERED_MAX + self.roots.count()
            || self.resuming.fragments() > SCATTERED_MAX + self.roots.count()
            || self.directories.len() > DIRECTORIES_MAX
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

    /// Removes and returns the unfinished directories that this copy made, innermost first.
    pub fn take_made_directories(&mut self) -> Vec<(Directory, Entry)> {
        let mut nodes: Vec<OpenDirectory> =
            self.directories.drain().map(|(_, node)| *node).collect();
        // A directory is announced before its children, so it has a lower number.
        nodes.sort_by_key(|node| std::cmp::Reverse(node.entry.id));
        let made = nodes.into_iter().filter_map(|node| {
            let OpenDirectory {
                directory, entry, ..
            } = node;
            Some((directory.filter(Directory::made)?, entry))
        });
        made.collect()
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
        let is_done = self.is_settled() && self.directories.is_empty();
        is_done && !std::mem::replace(&mut self.is_over, true)
    }

    /// True if nothing more will arrive and a directory still lacks children.
    pub fn is_stuck(&self) -> bool {
        self.is_settled() && !self.directories.is_empty()
    }

    fn is_settled(&self) -> bool {
        let all = |last: EntryId| self.accounted.contains_all(1..last.saturating_add(1));
        self.last.is_some_and(all)
            && self.finishing == 0
            && self.files.is_empty()
            && self.resuming.is_empty()
            && self.chunks.is_idle()
    }
}

fn source_names_bytes(names: &DirectoryNames) -> usize {
    size_of_val(&names.sums[..])
}

/// The names in the directory of `parent`. None if that is not known any more.
fn names_in<'a>(
    roots: &'a mut RootTable,
    directories: &'a mut HashMap<EntryId, Box<OpenDirectory>>,
    parent: EntryId,
) -> Option<&'a mut Names> {
    if parent == NO_PARENT {
        return Some(&mut roots.names);
    }
    directories.get_mut(&parent).map(|node| &mut node.names)
}

#[cfg(test)]
mod tests;
