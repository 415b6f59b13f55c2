//! Where files stand that may get further names (hard links). The sender says of each file and of
//! each further name whether more come, and bounds how many files wait; this end does so too, since
//! the sender may be hostile.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::dest::{FirstName, Slot};
use crate::dir::Dir;
use crate::manifest::{Entry, EntryId, LINKED_BYTES_MAX, Name, linked_weight};

/// More than at the sender, which forgets a file when it meets its last name: that may be on its
/// way for as long as 40,000 other entries.
const BYTES_MAX: usize = LINKED_BYTES_MAX + (16 << 20);

#[derive(Default)]
pub struct Linked {
    files: BTreeMap<EntryId, First>,
    bytes: usize,
}

struct First {
    dir: Arc<Dir>,
    name: Name,
    /// Device and inode, where the file system has lasting ones.
    inode: Option<(u64, u64)>,
}

impl Linked {
    /// A file with this device and inode is in place at `slot`, where its further names are linked
    /// to.
    pub fn placed(&mut self, entry: &Entry, slot: &Slot, inode: Option<(u64, u64)>) {
        let weight = weight(&slot.name);
        // A file is placed once, so none is replaced here.
        if entry.links > 1 && self.bytes + weight <= BYTES_MAX {
            self.bytes += weight;
            let (dir, name) = (slot.dir.clone(), slot.name.clone());
            self.files.insert(entry.id, First { dir, name, inode });
        }
    }

    /// The first name of which `entry` is a further one. None if it was not placed.
    pub fn first(&mut self, first: EntryId, entry: &Entry) -> Option<FirstName> {
        let found = self.files.get(&first)?;
        let name = FirstName {
            slot: Slot::new(found.dir.clone(), found.name.clone()),
            inode: found.inode,
        };
        if entry.links <= 1 {
            self.bytes -= weight(&found.name);
            self.files.remove(&first);
        }
        Some(name)
    }
}

fn weight(name: &Name) -> usize {
    linked_weight(name.as_bytes().len())
}
