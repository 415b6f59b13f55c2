//! The names that a copy to a snapshot has announced, in directories which an interrupted run has
//! made.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use parking_lot::Mutex;

use crate::dest::EntrySlot;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, EntryId};

/// Most names of unfinished directories that are remembered, in some 50 MB.
const ANNOUNCED_MAX: usize = 3 << 20;

#[derive(Default)]
pub(super) struct AnnouncedNames {
    names: Mutex<NamesByDirectory>,
    hashing: RandomState,
}

#[derive(Default)]
struct NamesByDirectory {
    /// By the number of the directory: hashes of names, with the entry's number. A list takes half as
    /// much memory as a hash table.
    directories: HashMap<EntryId, Vec<(u64, EntryId)>>,
    held: usize,
}

impl AnnouncedNames {
    fn hash(&self, name: &[u8]) -> u64 {
        self.hashing.hash_one(name)
    }

    /// Notes that this run announces an entry in such a directory.
    ///
    /// # Errors
    /// `Kind::Refused` if there are too many.
    pub(super) fn note(&self, entry: &Entry, slot: &EntrySlot) -> Result<()> {
        let hash = self.hash(slot.name.as_bytes());
        let mut announced = self.names.lock();
        if announced.held >= ANNOUNCED_MAX {
            let message = "is in a directory with too many entries to resume a snapshot: copy again with \
                           --no-resume";
            return Err(Error::new(Kind::Refused, Side::Dest, message).at(slot.path()));
        }
        let names = announced.directories.entry(entry.parent).or_default();
        names.push((hash, entry.id));
        announced.held += 1;
        Ok(())
    }

    /// Forgets an entry that has vanished at the source.
    pub(super) fn forget(&self, id: EntryId, parent: EntryId) {
        let mut announced = self.names.lock();
        if let Some(names) = announced.directories.get_mut(&parent) {
            let before = names.len();
            names.retain(|(_, entry)| *entry != id);
            let forgotten = before - names.len();
            announced.held -= forgotten;
        }
    }

    /// Removes and returns the announced entries of a directory.
    pub(super) fn take(&self, directory: EntryId) -> AnnouncedIn<'_> {
        let mut announced = self.names.lock();
        let mut names = announced.directories.remove(&directory).unwrap_or_default();
        announced.held -= names.len();
        drop(announced);
        names.sort_unstable();
        AnnouncedIn { all: self, names }
    }
}

/// The names that were announced in one directory.
pub(super) struct AnnouncedIn<'a> {
    all: &'a AnnouncedNames,
    /// In order.
    names: Vec<(u64, EntryId)>,
}

impl AnnouncedIn<'_> {
    pub(super) fn contains(&self, name: &[u8]) -> bool {
        let hash = self.all.hash(name);
        let found = self.names.binary_search_by_key(&hash, |(hash, _)| *hash);
        found.is_ok()
    }
}
