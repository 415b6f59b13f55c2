//! The directories of a copy at the receiver, until their last child is settled.

use std::collections::HashMap;
use std::sync::Arc;

use super::merged::Merging;
use super::names::{NameClaim, NameMemory, Names};
use super::requested::RequestedNames;
use crate::dest::{Directory, EarlierDirs, Spelling};
use crate::dir::{DEPTH_MAX, Dir};
use crate::journal::record::Hash;
use crate::manifest::{Entry, EntryId, NO_PARENT, Name, OPERAND_BYTES_MAX};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::scheduler::{DIRECTORIES_MAX, DIRECTORY_BYTES_MAX};
use crate::wire::message::{DirectoryNames, entry_weight};

/// About how many bytes of sums of names are kept.
const SOURCE_NAMES_BYTES_MAX: usize = 8 << 20;

/// The most open directories: as many as the sender has open, one message more (256), and the
/// directories above the innermost one.
const OPEN_MAX: usize = DIRECTORIES_MAX + 256 + DEPTH_MAX;

/// The most bytes of their entries: as many as the sender's, as many for those above, and those of the
/// operands' directories.
const ENTRY_BYTES_MAX: usize = 2 * DIRECTORY_BYTES_MAX + 2 * OPERAND_BYTES_MAX;

/// A directory whose children are still arriving.
pub struct OpenDirectory {
    /// None if there is none, as `lack` says.
    pub directory: Option<Directory>,
    pub(super) lack: Lack,
    pub entry: Entry,
    /// Its place, if there is a list of digests or changes.
    pub(super) listed: Option<Arc<ListedPath>>,
    /// The hash of its path below the roots.
    pub(super) path: Hash,
    pub(super) place: PlaceInCopy,
    /// The same directory in earlier copies.
    pub(super) earlier: EarlierDirs,
    /// The names of its entries at the source, if the sender has sent them.
    pub(super) source_names: Option<DirectoryNames>,
    names: Names,
    /// What may be sent of it, if there is a list.
    pub(super) requested: Option<RequestedNames>,
    /// Number of children in place or failed, and of all children once that is known.
    settled: u64,
    children: Option<u64>,
}

/// The reason why the destination has no such directory, if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
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

#[derive(Default)]
pub struct OpenDirectories {
    open: HashMap<EntryId, Box<OpenDirectory>>,
    /// Complete directories that are finished at the end of the copy.
    last: Vec<OpenDirectory>,
    /// Complete directories that are getting their modes and times now.
    finishing: usize,
    /// Bytes of memory of all `source_names`.
    source_names_bytes: usize,
    /// Bytes of memory of the entries of `open`.
    entry_bytes: usize,
    is_too_deep: bool,
    pub(super) name_memory: NameMemory,
    /// The names of roots that go into a directory.
    root_names: Names,
}

impl OpenDirectories {
    pub(super) fn get(&self, id: EntryId) -> Option<&OpenDirectory> {
        self.open.get(&id).map(|open| &**open)
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// True if there are more or deeper directories than a sender within its limits can cause, besides
    /// those of `roots` roots.
    pub(super) fn are_too_many(&self, roots: usize) -> bool {
        self.open.len() > OPEN_MAX + roots
            || self.entry_bytes > ENTRY_BYTES_MAX + roots * size_of::<Entry>()
            || self.is_too_deep
    }

    /// True if complete directories are getting their modes and times now.
    pub(super) fn are_finishing(&self) -> bool {
        self.finishing > 0
    }

    /// Where a directory is in the copy. None if it is not open.
    pub(super) fn place_of(&self, directory: EntryId) -> Option<PlaceInCopy> {
        self.open.get(&directory).map(|open| open.place)
    }

    /// True if another source may have entries in this directory too.
    pub fn is_merging(&self, directory: EntryId) -> bool {
        self.place_of(directory)
            .is_some_and(|place| place.merging != Merging::Alone)
    }

    /// A directory that may have unchanged files; None inside if it has none, because the copy made
    /// it or could not make it. None if it is not open.
    pub fn comparable(&self, id: EntryId) -> Option<Option<Arc<Dir>>> {
        let directory = &self.open.get(&id)?.directory;
        Some(
            directory
                .as_ref()
                .and_then(Directory::with_content)
                .cloned(),
        )
    }

    /// A directory that the copy made, and the same directory in an earlier copy. None if it is
    /// another one.
    pub fn linkable(&self, id: EntryId) -> Option<(Arc<Dir>, Arc<Dir>)> {
        let open = self.open.get(&id)?;
        let new = open
            .directory
            .as_ref()
            .filter(|it| it.with_content().is_none())?;
        Some((new.dir().clone(), open.earlier.first()?.clone()))
    }

    /// Adds a directory, or the reason why the destination lacks it.
    pub(super) fn add(
        &mut self,
        entry: Entry,
        directory: Option<Directory>,
        listed: Option<ListedPath>,
        lack: Lack,
        merging: Merging,
    ) -> &mut OpenDirectory {
        let (root, depth) = match self.open.get(&entry.parent) {
            Some(above) => (above.place.root, above.place.depth + 1),
            None => (entry.id, 0),
        };
        let id = entry.id;
        self.entry_bytes += entry_weight(&entry);
        // Where a directory would be made, it fails there, and the copy goes on.
        self.is_too_deep |= lack == Lack::Planned && depth > DEPTH_MAX;
        let added = Box::new(OpenDirectory {
            directory,
            lack,
            entry,
            listed: listed.map(Arc::new),
            path: Hash::default(),
            place: PlaceInCopy {
                root,
                depth,
                merging,
            },
            earlier: EarlierDirs::default(),
            source_names: None,
            names: Names::default(),
            requested: None,
            settled: 0,
            children: None,
        });
        self.open.entry(id).insert_entry(added).into_mut()
    }

    /// Claims this name for an entry in the directory of `parent`.
    pub fn claim_name(&mut self, id: EntryId, parent: EntryId, name: &Name) -> NameClaim {
        match names_in(&mut self.root_names, &mut self.open, parent) {
            Some(names) => self.name_memory.claim(names, id, name),
            None => NameClaim::Yours,
        }
    }

    /// Sets how the directory of `parent` treats names.
    pub fn set_spelling(&mut self, parent: EntryId, spelling: Spelling) {
        if let Some(names) = names_in(&mut self.root_names, &mut self.open, parent) {
            self.name_memory.asked(names, spelling);
        }
    }

    /// Keeps the names in a directory at the source. None if the directory is not open, false if
    /// there is no room.
    pub fn set_source_names(&mut self, names: DirectoryNames) -> Option<bool> {
        let directory = self.open.get_mut(&names.directory)?;
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
    pub fn end(&mut self, id: EntryId, children: u64) -> Option<OpenDirectory> {
        self.open.get_mut(&id)?.children = Some(children);
        self.take_full(id)
    }

    /// Counts a settled child of `parent`: an entry, or a directory with all its contents.
    pub fn child_settled(&mut self, parent: EntryId) -> Option<OpenDirectory> {
        self.open.get_mut(&parent)?.settled += 1;
        self.take_full(parent)
    }

    fn take_full(&mut self, id: EntryId) -> Option<OpenDirectory> {
        let node = self.open.get(&id)?;
        if node
            .children
            .is_some_and(|children| node.settled >= children)
        {
            self.finishing += 1;
            let node = self.open.remove(&id)?;
            self.name_memory.forget(&node.names);
            let bytes = node.source_names.as_ref().map_or(0, source_names_bytes);
            self.source_names_bytes -= bytes;
            self.entry_bytes -= entry_weight(&node.entry);
            Some(*node)
        } else {
            None
        }
    }

    /// A complete directory that was returned earlier has its mode and times now.
    pub fn finished(&mut self) {
        self.finishing -= 1;
    }

    /// Keeps a complete directory, into which other roots still go, until the end of the copy.
    pub(super) fn finish_last(&mut self, directory: OpenDirectory) {
        self.last.push(directory);
    }

    /// Removes and returns the directories that are finished at the end of the copy.
    pub(super) fn take_last(&mut self) -> Vec<OpenDirectory> {
        std::mem::take(&mut self.last)
    }

    /// Removes and returns the unfinished directories that this copy made, innermost first.
    pub fn take_made(&mut self) -> Vec<(Directory, Entry)> {
        let mut nodes = self.take_last();
        nodes.extend(self.open.drain().map(|(_, node)| *node));
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
}

fn source_names_bytes(names: &DirectoryNames) -> usize {
    size_of_val(&names.sums[..])
}

/// The names in the directory of `parent`. None if that is not known any more.
fn names_in<'a>(
    root_names: &'a mut Names,
    open: &'a mut HashMap<EntryId, Box<OpenDirectory>>,
    parent: EntryId,
) -> Option<&'a mut Names> {
    if parent == NO_PARENT {
        return Some(root_names);
    }
    open.get_mut(&parent).map(|node| &mut node.names)
}
