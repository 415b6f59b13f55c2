//! The places of files that may get further names (hard links). For each file and each further name
//! the sender says whether more names follow, and it limits how many files wait. The receiver
//! applies a limit too, because the sender may be hostile.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::dest::{EntrySlot, LinkTarget};
use crate::dir::Dir;
use crate::manifest::{Entry, EntryId, LINKED_BYTES_MAX, Name, linked_weight};

/// More than the sender's limit. The sender forgets a file when it meets the last name, but up to
/// 40,000 other entries may be on their way before that name arrives.
const BYTES_MAX: usize = LINKED_BYTES_MAX + (16 << 20);

#[derive(Default)]
pub struct HardLinks {
    files: BTreeMap<EntryId, FirstLink>,
    bytes: usize,
}

struct FirstLink {
    dir: Arc<Dir>,
    name: Name,
    /// Device and inode, if the file system has lasting numbers.
    inode: Option<(u64, u64)>,
}

impl HardLinks {
    /// Notes that a file with this device and inode is in place at `slot`, so that its further
    /// names can be linked to it.
    pub fn placed(&mut self, entry: &Entry, slot: &EntrySlot, inode: Option<(u64, u64)>) {
        let weight = weight(&slot.name);
        // A file is placed once, so this replaces no other entry of the map.
        if entry.links > 1 && self.bytes + weight <= BYTES_MAX {
            self.bytes += weight;
            let (dir, name) = (slot.dir.clone(), slot.name.clone());
            self.files.insert(entry.id, FirstLink { dir, name, inode });
        }
    }

    /// The first name of the file that `entry` is a further name of. None if that file was not
    /// placed.
    pub fn first(&mut self, first: EntryId, entry: &Entry) -> Option<LinkTarget> {
        let found = self.files.get(&first)?;
        let name = LinkTarget {
            slot: EntrySlot::new(found.dir.clone(), found.name.clone()),
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
