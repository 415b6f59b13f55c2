//! The places of files that may get further names (hard links). For each file and each further name
//! the sender says whether more names follow. Places beyond [`BYTES_MAX`] go to a temporary file.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::dest::{EntrySlot, LinkTarget, temporary_file};
use crate::dir::{Dir, HeldDirs};
use crate::disk_table::{DiskTable, Key, VALUE};
use crate::locks::{OrderedMutex, place};
use crate::manifest::{Entry, EntryId, LINKED_BYTES_MAX, Name, linked_weight};

/// A sender that cannot remember more keeps within its own limit. It forgets a file when it meets the
/// last name, but up to 40,000 other entries may be on their way before that name arrives.
const BYTES_MAX: usize = LINKED_BYTES_MAX + (16 << 20);

/// Most bytes of places on disk, since the sender may be hostile: 40 million with paths of 100 bytes.
const DISK_MAX: u64 = 8 << 30;

/// Bytes of records that are written at once.
const WRITE: usize = 64 << 10;

/// Most directories of operands, or behind links, that files on disk may be below.
const ANCHORS_MAX: usize = 1 << 16;

pub struct HardLinks(OrderedMutex<PlacedLinks, { place::PLACED_LINKS }>);

#[derive(Default)]
struct PlacedLinks {
    files: BTreeMap<EntryId, FirstLink>,
    bytes: usize,
    dirs: HeldDirs,
    more: Option<DiskLinks>,
    /// Why there are no more places on disk.
    failed: Option<io::Error>,
}

struct FirstLink {
    dir: Arc<Dir>,
    name: Name,
    /// Device and inode, if the file system has lasting numbers.
    inode: Option<(u64, u64)>,
    /// Approximate bytes of memory.
    weight: usize,
}

/// Places on disk.
struct DiskLinks {
    /// For each entry the offset and the length of its record in `records`.
    table: DiskTable,
    /// Each is a [`DiskLink`], in postcard.
    records: File,
    /// Length of `records`, and records that follow it.
    written: u64,
    unwritten: Vec<u8>,
    anchors: Vec<Arc<Dir>>,
    /// Numbers of the anchors by device and inode.
    numbers: HashMap<(u64, u64), u32>,
}

#[derive(Serialize, Deserialize)]
struct DiskLink {
    anchor: u32,
    /// The path of the directory below its [anchor](Dir::below_anchor).
    #[serde(with = "byte_strings")]
    way: Vec<u8>,
    /// Device and inode of the directory.
    dir: (u64, u64),
    name: Name,
    /// As in [`FirstLink`].
    inode: Option<(u64, u64)>,
}

enum FoundLink {
    InMemory(EntrySlot, Option<(u64, u64)>),
    /// With its anchor.
    OnDisk(DiskLink, Arc<Dir>),
}

impl Default for HardLinks {
    fn default() -> HardLinks {
        HardLinks(OrderedMutex::new(PlacedLinks::default()))
    }
}

impl HardLinks {
    /// Notes that a file with this device and inode is in place at `slot`, so that its further
    /// names can be linked to it. If there is no place for the note, [`first`](HardLinks::first)
    /// gives the error.
    pub fn placed(&self, entry: &Entry, slot: &EntrySlot, inode: Option<(u64, u64)>) {
        if entry.links > 1 {
            self.0.lock().add(entry.id, slot, inode);
        }
    }

    /// The first name of the file that `entry` is a further name of. None if that file was not
    /// placed.
    ///
    /// # Errors
    /// If the file's place could not be noted, or is not found again.
    pub fn first(&self, first: EntryId, entry: &Entry) -> io::Result<Option<LinkTarget>> {
        let found = self.0.lock().find(first, entry.links <= 1)?;
        // A directory is opened without the lock.
        found.map(FoundLink::target).transpose()
    }
}

impl FoundLink {
    fn target(self) -> io::Result<LinkTarget> {
        let (slot, inode) = match self {
            FoundLink::InMemory(slot, inode) => (slot, inode),
            FoundLink::OnDisk(link, anchor) => {
                let dir = anchor.descend(&link.way)?;
                if dir.identity() != link.dir {
                    return Err(io::Error::other("its directory was replaced"));
                }
                (EntrySlot::new(dir, link.name), link.inode)
            }
        };
        Ok(LinkTarget { slot, inode })
    }
}

impl PlacedLinks {
    fn add(&mut self, id: EntryId, slot: &EntrySlot, inode: Option<(u64, u64)>) {
        let weight = linked_weight(slot.name.as_bytes().len()) + self.dirs.weight(&slot.dir);
        let link = FirstLink {
            dir: slot.dir.clone(),
            name: slot.name.clone(),
            inode,
            weight,
        };
        if self.bytes + weight <= BYTES_MAX {
            self.bytes += weight;
            // A file is placed once, so this replaces no other entry of the map.
            self.files.insert(id, link);
        } else if self.failed.is_none()
            && let Err(cause) = self.add_on_disk(id, link)
        {
            self.more = None;
            self.failed = Some(cause);
        }
    }

    fn add_on_disk(&mut self, id: EntryId, link: FirstLink) -> io::Result<()> {
        let more = match &mut self.more {
            Some(more) => more,
            None => self.more.insert(DiskLinks::new(&link.dir)?),
        };
        more.add(id, link)
    }

    /// `is_last`: no name follows, so the file is forgotten.
    fn find(&mut self, id: EntryId, is_last: bool) -> io::Result<Option<FoundLink>> {
        if let Some(link) = self.files.get(&id) {
            let slot = EntrySlot::new(link.dir.clone(), link.name.clone());
            let found = FoundLink::InMemory(slot, link.inode);
            if is_last && let Some(link) = self.files.remove(&id) {
                self.bytes -= link.weight;
            }
            return Ok(Some(found));
        }
        match (&mut self.more, &self.failed) {
            (Some(more), _) => more.find(id, is_last),
            (None, Some(cause)) => Err(io::Error::new(cause.kind(), cause.to_string())),
            (None, None) => Ok(None),
        }
    }
}

impl DiskLinks {
    /// The files are made in `dir` if possible, so that they take no space elsewhere.
    fn new(dir: &Arc<Dir>) -> io::Result<DiskLinks> {
        let make = {
            let dir = dir.clone();
            move || temporary_file(&dir)
        };
        Ok(DiskLinks {
            records: make()?,
            table: DiskTable::new(Box::new(make))?,
            written: 0,
            unwritten: Vec::new(),
            anchors: Vec::new(),
            numbers: HashMap::new(),
        })
    }

    fn add(&mut self, id: EntryId, link: FirstLink) -> io::Result<()> {
        let (anchor, way) = link.dir.below_anchor();
        let record = postcard::to_allocvec(&DiskLink {
            anchor: self.number(anchor)?,
            way,
            dir: link.dir.identity(),
            name: link.name,
            inode: link.inode,
        })
        .map_err(io::Error::other)?;
        let start = self.written + self.unwritten.len() as u64;
        let len = record.len() as u64;
        if start + len > DISK_MAX {
            return Err(io::Error::other(
                "too many hard links to remember; copy in several runs",
            ));
        }
        self.unwritten.extend_from_slice(&record);
        if self.unwritten.len() >= WRITE {
            self.flush()?;
        }
        let mut value = [0; VALUE];
        value[..8].copy_from_slice(&start.to_le_bytes());
        value[8..16].copy_from_slice(&len.to_le_bytes());
        self.table.put(key(id), value)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.records.write_all_at(&self.unwritten, self.written)?;
        self.written += self.unwritten.len() as u64;
        self.unwritten.clear();
        Ok(())
    }

    fn number(&mut self, anchor: &Arc<Dir>) -> io::Result<u32> {
        if let Some(number) = self.numbers.get(&anchor.identity()) {
            return Ok(*number);
        }
        if self.anchors.len() >= ANCHORS_MAX {
            return Err(io::Error::other(
                "too many directories have hard links; copy in several runs",
            ));
        }
        let number = self.anchors.len() as u32;
        self.numbers.insert(anchor.identity(), number);
        self.anchors.push(anchor.clone());
        Ok(number)
    }

    fn find(&mut self, id: EntryId, is_last: bool) -> io::Result<Option<FoundLink>> {
        let Some(value) = self.table.get(key(id))? else {
            return Ok(None);
        };
        let number = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().expect("8 bytes"));
        if number(0) >= self.written {
            self.flush()?;
        }
        let mut record = vec![0; number(8) as usize];
        self.records.read_exact_at(&mut record, number(0))?;
        let link: DiskLink = postcard::from_bytes(&record).map_err(io::Error::other)?;
        let anchor = self.anchors[link.anchor as usize].clone();
        if is_last {
            self.table.remove(key(id))?;
        }
        Ok(Some(FoundLink::OnDisk(link, anchor)))
    }
}

fn key(id: EntryId) -> Key {
    // No entry has the number 0, and the second half is not that of a mark either.
    [id, 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::Handles;
    use crate::manifest::EntryKind;

    fn entry(id: EntryId, links: u64) -> Entry {
        let name = Name::try_from(b"further".to_vec()).unwrap();
        Entry {
            links,
            ..Entry::new(id, 0, name, EntryKind::File)
        }
    }

    fn slot(dir: &Arc<Dir>, name: &str) -> EntrySlot {
        let name = Name::try_from(name.as_bytes().to_vec()).unwrap();
        EntrySlot::new(dir.clone(), name)
    }

    /// Keeps nothing in memory.
    fn on_disk() -> HardLinks {
        let links = HardLinks::default();
        links.0.lock().bytes = BYTES_MAX;
        links
    }

    #[test]
    fn places_on_disk_are_found_until_the_last_name() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("a/b")).unwrap();
        let root = Dir::root(temp.path(), &Arc::new(Handles::default())).unwrap();
        let below = root.descend(b"a/b").unwrap();
        let links = on_disk();
        for id in 1..3000 {
            let dir = [&root, &below][id as usize % 2];
            let place = slot(dir, &format!("name{id}"));
            links.placed(&entry(id, 3), &place, Some((4, id)));
        }
        assert!(links.0.lock().files.is_empty());
        drop(below);
        for left in [2, 1] {
            for id in 1..3000 {
                let further = entry(10_000 + id, left);
                let found = links.first(id, &further).unwrap().unwrap();
                let dir =
                    [temp.path().to_owned(), temp.path().join("a/b")][id as usize % 2].clone();
                assert_eq!(found.slot.path(), dir.join(format!("name{id}")));
                assert_eq!(found.inode, Some((4, id)));
            }
        }
        assert!(links.first(7, &entry(10_000, 1)).unwrap().is_none());
        assert!(links.first(9_999, &entry(10_000, 1)).unwrap().is_none());
        let left = std::fs::read_dir(temp.path()).unwrap().count();
        assert_eq!(left, 1, "the temporary files have no names");
    }

    #[test]
    fn a_directory_that_was_replaced_gives_no_first_name() {
        let temp = tempfile::tempdir().unwrap();
        let at = temp.path().join("d");
        std::fs::create_dir(&at).unwrap();
        let root = Dir::root(temp.path(), &Arc::new(Handles::default())).unwrap();
        let links = on_disk();
        let dir = root.descend(b"d").unwrap();
        links.placed(&entry(1, 2), &slot(&dir, "first"), None);
        std::fs::rename(&at, temp.path().join("away")).unwrap();
        std::fs::create_dir(&at).unwrap();
        assert!(links.first(1, &entry(2, 1)).is_err());
    }

    #[test]
    fn what_cannot_be_noted_gives_an_error_and_not_a_missing_file() {
        let links = on_disk();
        let root = Dir::root("/".as_ref(), &Arc::new(Handles::default())).unwrap();
        links.0.lock().failed = Some(io::ErrorKind::StorageFull.into());
        links.placed(&entry(1, 2), &slot(&root, "first"), None);
        let error = links.first(1, &entry(2, 1)).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
