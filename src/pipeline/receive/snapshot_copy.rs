//! The snapshot that a copy makes, and the names that this run has announced in directories which an
//! interrupted run has made.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use parking_lot::Mutex;

use crate::dest::{EntrySlot, SnapshotStore};
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, EntryId};
use crate::snapshot::SnapshotTerms;

/// Most names of unfinished directories that are remembered, in some 130 MB.
const ANNOUNCED_MAX: usize = 1 << 22;

/// The snapshot that this copy makes.
pub(super) struct SnapshotCopy {
    pub(super) store: SnapshotStore,
    pub(super) terms: SnapshotTerms,
    /// Names of the roots in the directory of the snapshot.
    pub(super) root_names: Vec<Vec<u8>>,
    announced: Mutex<AnnouncedNames>,
    hashing: RandomState,
}

/// The names that this run has announced, in directories that an earlier run has made.
#[derive(Default)]
struct AnnouncedNames {
    /// By the number of the directory: hashes of names, with the entry's number.
    directories: HashMap<EntryId, HashMap<u64, EntryId>>,
    held: usize,
}

impl SnapshotCopy {
    pub(super) fn new(
        store: SnapshotStore,
        terms: SnapshotTerms,
        root_names: Vec<Vec<u8>>,
    ) -> SnapshotCopy {
        SnapshotCopy {
            store,
            terms,
            root_names,
            announced: Mutex::default(),
            hashing: RandomState::new(),
        }
    }

    /// True for the directory of the snapshot, if this run has made it.
    pub(super) fn has_made(&self, dir: &Dir) -> bool {
        self.store.is_new() && self.store.partial().identity() == dir.identity()
    }

    /// False if size and time of an existing file do not show that its content is on the disk.
    pub(super) fn is_certain(&self) -> bool {
        self.store.is_certain()
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.hashing.hash_one(name)
    }

    /// Notes that this run announces an entry in such a directory.
    ///
    /// # Errors
    /// `Kind::Refused` if there are too many.
    pub(super) fn note(&self, entry: &Entry, slot: &EntrySlot) -> Result<()> {
        let hash = self.hash(slot.name.as_bytes());
        let mut announced = self.announced.lock();
        if announced.held >= ANNOUNCED_MAX {
            let message = "is in a directory with too many entries to resume a snapshot: copy again with \
                           --no-resume";
            return Err(Error::new(Kind::Refused, Side::Dest, message).at(slot.path()));
        }
        let names = announced.directories.entry(entry.parent).or_default();
        let is_new = names.insert(hash, entry.id).is_none();
        announced.held += usize::from(is_new);
        Ok(())
    }

    /// Forgets an entry that has vanished at the source.
    pub(super) fn forget(&self, id: EntryId, parent: EntryId) {
        let mut announced = self.announced.lock();
        if let Some(names) = announced.directories.get_mut(&parent) {
            names.retain(|_, entry| *entry != id);
        }
    }

    /// Removes and returns the announced entries of a directory.
    pub(super) fn take(&self, directory: EntryId) -> AnnouncedIn<'_> {
        let mut announced = self.announced.lock();
        let names = announced.directories.remove(&directory).unwrap_or_default();
        announced.held = announced.held.saturating_sub(names.len());
        AnnouncedIn { copy: self, names }
    }
}

/// The names that were announced in one directory.
pub(super) struct AnnouncedIn<'a> {
    copy: &'a SnapshotCopy,
    names: HashMap<u64, EntryId>,
}

impl AnnouncedIn<'_> {
    pub(super) fn contains(&self, name: &[u8]) -> bool {
        self.names.contains_key(&self.copy.hash(name))
    }
}
