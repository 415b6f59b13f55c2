//! What the receiver knows of entries: directories until their last child is in, big files until
//! they have their name, and which entries are accounted for.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::chunk::VerifiedChunk;
use crate::chunk::ranges::RangeSet;
use crate::dest::{Directory, Exit, Landing, Slot, Spelling, Target};
use crate::journal;
use crate::journal::record::Hash;
use crate::manifest::{Entry, EntryId, EntryKind, NO_PARENT, Name, Root};
use crate::pipeline::digest_list::Listed;
use crate::pipeline::linked::Linked;
use crate::pipeline::names::{Claim, HELD_MAX, Names, UNASKED_HELD_MAX};
use crate::pipeline::open_file::OpenFile;
use crate::pipeline::plans::UNSETTLED_ENTRIES_MAX;

/// Chunks that may arrive damaged, each a few times, before the copy is given up.
const DAMAGED_MAX: usize = 1024;

/// Gaps between entries that are accounted for, or between those that are there and not read yet,
/// and directories that are not full: the sender's bounds and then some.
const SCATTERED_MAX: usize = 3 * UNSETTLED_ENTRIES_MAX as usize;
const DIRECTORIES_MAX: usize = 2 * UNSETTLED_ENTRIES_MAX as usize;

/// Gaps between chunks that were written. Those of a file that fails while it is sent stay, so
/// this is a bound on memory (some 8 MB) that no honest copy comes near.
const CHUNKS_SCATTERED_MAX: usize = 1 << 18;

/// A directory whose children are coming.
pub struct Node {
    /// None if it could not be made: its children fail with it.
    pub directory: Option<Directory>,
    pub entry: Entry,
    pub listed: Option<Listed>,
    /// Of its path below the roots.
    path: Hash,
    names: Names,
    /// Children in place or failed, of how many once that is known.
    settled: u64,
    children: Option<u64>,
}

/// Where an entry is to go.
pub enum Spot {
    Slot(Slot, Option<Listed>),
    Directory(Arc<crate::dir::Dir>, Option<Listed>),
    /// It leaves there.
    Exit(Exit, Option<Listed>),
    /// Its directory failed.
    Lost,
    /// Its directory has not been announced yet.
    Unknown,
}

/// Something that the user named.
struct Named {
    /// Counted from 0.
    number: usize,
    target: Target,
    is_directory: bool,
}

#[derive(Default)]
pub struct Table {
    roots: HashMap<EntryId, Named>,
    /// Of roots that land in a directory under names.
    root_names: Names,
    /// Names that are remembered of all directories.
    names_held: usize,
    hashing: RandomState,
    has_roots: bool,
    /// The sender has said that something cannot be sent.
    told: bool,
    directories: HashMap<EntryId, Box<Node>>,
    /// Directories that were full, and get their modes and times now.
    finishing: usize,
    pub files: HashMap<EntryId, Arc<OpenFile>>,
    /// Files that workers look for the remains of, or that are there and wait to be read.
    resuming: RangeSet,
    pub linked: Linked,
    /// Entries in place or failed.
    accounted: RangeSet,
    /// Chunks that were written: of packs to know them again, of files so that there are no gaps
    /// between those. And packs that are being written.
    chunks_done: RangeSet,
    packs_claimed: HashSet<u64>,
    /// Times that chunks arrived damaged.
    damaged: HashMap<u64, u8>,
    /// Packs whose directories are not known yet.
    pub parked: Vec<VerifiedChunk>,
    last: Option<EntryId>,
}

/// What to do with a copy of a pack.
#[derive(Debug, PartialEq, Eq)]
pub enum PackClaim {
    Yours,
    /// Another worker writes it; it will be acknowledged then.
    Taken,
    Done,
}

impl Table {
    /// `targets` are where the roots land, in their order.
    pub fn set_roots(&mut self, roots: &[Root], targets: Vec<Target>) {
        let named = roots.iter().zip(targets).enumerate();
        self.roots = named
            .map(|(number, (root, target))| {
                let named = Named {
                    number,
                    target,
                    is_directory: root.is_directory,
                };
                (root.id, named)
            })
            .collect();
        self.has_roots = true;
    }

    pub fn has_roots(&self) -> bool {
        self.has_roots
    }

    /// False for a root that is not what it was announced as, with which the user may not have
    /// reckoned: a directory where a file is, or a link where links that were named are followed.
    pub fn fits_root(&self, entry: &Entry) -> bool {
        let Some(root) = self.roots.get(&entry.id) else {
            return true;
        };
        match entry.kind {
            EntryKind::Directory => root.is_directory,
            EntryKind::File | EntryKind::HardLink(_) | EntryKind::Stream => !root.is_directory,
            EntryKind::Symlink(_) => false,
        }
    }

    /// Only one thing was named.
    pub fn has_one_root(&self) -> bool {
        self.roots.len() == 1
    }

    pub fn was_told_of_a_failure(&mut self) {
        self.told = true;
    }

    /// Where the entry with this parent and name goes. `listing` if its place in a list of digests
    /// is wanted too.
    pub fn spot(&self, id: EntryId, parent: EntryId, name: &Name, listing: bool) -> Spot {
        if parent == NO_PARENT {
            let Some(Named { number, target, .. }) = self.roots.get(&id) else {
                return Spot::Unknown;
            };
            let listed = listing.then(|| Listed {
                root: *number,
                below: Vec::new(),
            });
            return match &target.landing {
                Landing::Name(slot) => Spot::Slot(slot.clone(), listed),
                Landing::Directory(dir) => Spot::Directory(dir.clone(), listed),
                Landing::Exit(exit) => Spot::Exit(exit.clone(), listed),
            };
        }
        let Some(node) = self.directories.get(&parent) else {
            return Spot::Unknown;
        };
        let listed = node
            .listed
            .as_ref()
            .map(|listed| listed.child(name.as_bytes()));
        match &node.directory {
            Some(directory) => Spot::Slot(directory.slot(name.clone()), listed),
            None => Spot::Lost,
        }
    }

    /// An entry is to have this name in the directory of `parent`.
    pub fn claim_name(&mut self, id: EntryId, parent: EntryId, name: &Name) -> Claim {
        let Some(names) = names_in(&mut self.root_names, &mut self.directories, parent) else {
            return Claim::Yours;
        };
        let most = match names.is_asked() {
            true => HELD_MAX,
            false => UNASKED_HELD_MAX,
        };
        let (held, room) = (names.held(), most.saturating_sub(self.names_held));
        let claim = names.claim(id, name, &self.hashing, room);
        self.names_held += names.held() - held;
        claim
    }

    /// What the directory of `parent` makes of names.
    pub fn set_spelling(&mut self, parent: EntryId, spelling: Spelling) {
        if let Some(names) = names_in(&mut self.root_names, &mut self.directories, parent) {
            let held = names.held();
            names.asked(spelling);
            self.names_held -= held - names.held();
        }
    }

    /// A hash of the way from the roots to an entry with this parent and name, the same on every run
    /// of a copy. None where the parent is not known.
    pub fn path_of(&self, id: EntryId, parent: EntryId, name: &Name) -> Option<Hash> {
        if parent == NO_PARENT {
            let number = self.roots.get(&id)?.number as u64;
            return Some(journal::hash([&number.to_le_bytes()[..]].into_iter()));
        }
        let above = &self.directories.get(&parent)?.path;
        Some(journal::hash([&above[..], name.as_bytes()].into_iter()))
    }

    /// True for a number that was given twice, which no sender does.
    pub fn is_known(&self, id: EntryId) -> bool {
        self.accounted.contains(id) || self.files.contains_key(&id) || self.resuming.contains(id)
    }

    /// A worker looks for what is there of this file, or reads it.
    pub fn set_resuming(&mut self, id: EntryId) {
        self.resuming.insert_one(id);
    }

    /// What is there is damaged: the file comes like any other. False if it has failed meanwhile.
    pub fn end_resuming(&mut self, id: EntryId) -> bool {
        self.remove_resuming(id);
        !self.accounted.contains(id)
    }

    fn remove_resuming(&mut self, id: EntryId) {
        self.resuming.remove(id..id.saturating_add(1));
    }

    /// The file's chunks may come. False if it has failed meanwhile.
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

    /// The directory was made, or could not be; either way it is accounted for.
    pub fn add_directory(
        &mut self,
        entry: Entry,
        directory: Option<Directory>,
        listed: Option<Listed>,
    ) {
        self.accounted.insert_one(entry.id);
        let path = self.path_of(entry.id, entry.parent, &entry.name);
        let node = Box::new(Node {
            directory,
            path: path.unwrap_or_default(),
            listed,
            names: Names::default(),
            settled: 0,
            children: None,
            entry,
        });
        self.directories.insert(node.entry.id, node);
    }

    /// A directory has so many children. Gives it if all of them are settled.
    pub fn end_directory(&mut self, id: EntryId, children: u64) -> Option<Node> {
        self.directories.get_mut(&id)?.children = Some(children);
        self.take_full(id)
    }

    /// The entry is in place or failed, once. Gives its directory if it was the last one there.
    pub fn account(&mut self, id: EntryId, parent: EntryId) -> Option<Node> {
        self.files.remove(&id);
        self.remove_resuming(id);
        if id == 0 || !self.accounted.insert_one(id) {
            return None;
        }
        self.child_settled(parent)
    }

    /// A child of `parent` is settled: an entry, or a directory with all that is in it.
    pub fn child_settled(&mut self, parent: EntryId) -> Option<Node> {
        self.directories.get_mut(&parent)?.settled += 1;
        self.take_full(parent)
    }

    fn take_full(&mut self, id: EntryId) -> Option<Node> {
        let node = self.directories.get(&id)?;
        if node
            .children
            .is_some_and(|children| node.settled >= children)
        {
            self.finishing += 1;
            let node = self.directories.remove(&id)?;
            self.names_held -= node.names.held();
            Some(*node)
        } else {
            None
        }
    }

    /// A directory that was given out as full has its mode and times.
    pub fn finished(&mut self) {
        self.finishing -= 1;
    }

    /// More at once than a sender that keeps to its bounds can bring about.
    pub fn is_scattered(&self) -> bool {
        self.accounted.fragments() > SCATTERED_MAX + self.roots.len()
            || self.resuming.fragments() > SCATTERED_MAX + self.roots.len()
            || self.directories.len() > DIRECTORIES_MAX
            || self.chunks_done.fragments() > CHUNKS_SCATTERED_MAX
    }

    pub fn claim_pack(&mut self, chunk: u64) -> PackClaim {
        if self.chunks_done.contains(chunk) {
            PackClaim::Done
        } else if self.packs_claimed.insert(chunk) {
            PackClaim::Yours
        } else {
            PackClaim::Taken
        }
    }

    pub fn unclaim_pack(&mut self, chunk: u64) {
        self.packs_claimed.remove(&chunk);
    }

    pub fn chunk_done(&mut self, chunk: u64) {
        self.packs_claimed.remove(&chunk);
        self.chunks_done.insert_one(chunk);
    }

    /// How often the chunk has arrived damaged, with this time.
    pub fn count_damage(&mut self, chunk: u64) -> u8 {
        if self.damaged.len() >= DAMAGED_MAX && !self.damaged.contains_key(&chunk) {
            return u8::MAX;
        }
        let times = self.damaged.entry(chunk).or_default();
        *times = times.saturating_add(1);
        *times
    }

    /// The walk is over: no more directories will come.
    pub fn is_walked(&self) -> bool {
        self.last.is_some()
    }

    /// The walk is over: these are all entries. False if something that was named is not among them
    /// and no failure was told of.
    pub fn all_sent(
        &mut self,
        last: EntryId,
        unused: impl Iterator<Item = std::ops::Range<u64>>,
    ) -> bool {
        self.last = Some(last);
        let mut whole = self.roots.keys().all(|&id| id <= last);
        for range in unused {
            whole &= !self.roots.keys().any(|id| range.contains(id));
            self.accounted.insert(range);
        }
        whole || self.told
    }

    /// The sender has read everything that was announced.
    pub fn is_all_sent(&self) -> bool {
        self.last.is_some() && self.files.values().all(|file| file.end.get().is_some())
    }

    /// True for a directory that a root fills.
    pub fn is_landing(&self, dir: &crate::dir::Dir) -> bool {
        let mut landings = self.roots.values().map(|named| &named.target.landing);
        // One that has a name may hold the journal where the directory above takes none.
        landings.any(|landing| match landing {
            Landing::Directory(landing) => landing.identity() == dir.identity(),
            Landing::Name(slot) => slot.dir.identity() != dir.identity(),
            Landing::Exit(_) => false,
        })
    }

    /// Big files that are not in place.
    pub fn take_files(&mut self) -> Vec<Arc<OpenFile>> {
        self.files.drain().map(|(_, file)| file).collect()
    }

    /// The unfinished directories that this copy made, innermost first.
    pub fn take_made_directories(&mut self) -> Vec<(Directory, Entry)> {
        let mut nodes: Vec<Node> = self.directories.drain().map(|(_, node)| *node).collect();
        // A directory is announced before its children, so it has a lower number.
        nodes.sort_by_key(|node| std::cmp::Reverse(node.entry.id));
        let made = nodes.into_iter().filter_map(|node| {
            let Node {
                directory, entry, ..
            } = node;
            Some((directory.filter(Directory::made)?, entry))
        });
        made.collect()
    }

    /// Gives away everything. Dropped, partials are removed and directories get their modes back,
    /// so it is to be dropped when the table is not locked.
    #[must_use]
    pub fn take(&mut self) -> Table {
        std::mem::take(self)
    }

    /// Everything that was announced is in place or failed.
    pub fn is_done(&self) -> bool {
        self.is_settled() && self.directories.is_empty()
    }

    /// Nothing more will come, and yet a directory waits for more.
    pub fn is_stuck(&self) -> bool {
        self.is_settled() && !self.directories.is_empty()
    }

    fn is_settled(&self) -> bool {
        let all = |last: EntryId| self.accounted.contains_all(1..last.saturating_add(1));
        self.last.is_some_and(all)
            && self.finishing == 0
            && self.files.is_empty()
            && self.resuming.is_empty()
            && self.packs_claimed.is_empty()
    }
}

/// Those in the directory of `parent`. None where it is not known any more.
fn names_in<'a>(
    of_roots: &'a mut Names,
    directories: &'a mut HashMap<EntryId, Box<Node>>,
    parent: EntryId,
) -> Option<&'a mut Names> {
    if parent == NO_PARENT {
        return Some(of_roots);
    }
    directories.get_mut(&parent).map(|node| &mut node.names)
}
