//! The names of files with several names: the first ones, and the further ones, which become hard
//! links to them.
//!
//! If no name can come twice, a file is forgotten when all its names have been seen. Files that wait
//! for more names are remembered in memory up to [`LINKED_BYTES_MAX`], and the others in a temporary
//! file. If the receiver does not remember as many, or that file fails, they count as files with one
//! name each.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use rustix::fs::Stat;

use super::spot::WalkSpot;
use crate::disk_table::{DiskTable, Key, Value, temporary_file};
use crate::manifest::{EntryId, LINKED_BYTES_MAX, Timestamp, link_count, linked_weight};

/// Further names that may wait, about 300 bytes each. Each may keep a directory open at the
/// receiver.
pub(super) const FURTHER_NAMES_MAX: usize = 1 << 13;

/// The names of files with several names.
pub(super) struct LinkedNames {
    pub first: FirstNames,
    pub further: FurtherNames,
}

impl LinkedNames {
    /// `distinct`: no name of a file comes twice: one thing was named, and links are not followed.
    pub(super) fn new(distinct: bool) -> LinkedNames {
        LinkedNames {
            first: FirstNames::new(distinct),
            further: FurtherNames::default(),
        }
    }
}

pub(super) struct FirstNames {
    /// As in [`LinkedNames::new`].
    distinct: bool,
    /// Keyed by device and inode.
    files: BTreeMap<(u64, u64), WalkedName>,
    /// Memory that these files take at the receiver, which needs more for them than the sender.
    bytes: usize,
    more: MoreFiles,
    /// Names of files with several names that could not be remembered.
    unlinked: u64,
}

/// The files for which there is no room in memory.
enum MoreFiles {
    /// The receiver cannot remember more either.
    Forgotten,
    /// There was none yet.
    None,
    OnDisk(DiskTable),
}

/// The first name of a file. Size and time distinguish the file from a later one that reuses its
/// inode number after all its names were removed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WalkedName {
    entry: EntryId,
    size: i64,
    mtime: Timestamp,
    weight: u32,
    /// Names seen so far, including this one.
    seen: u32,
}

impl WalkedName {
    fn is_of(&self, stat: &Stat) -> bool {
        (self.size, self.mtime) == (stat.st_size, Timestamp::mtime(stat))
    }

    /// Counts one more name. True if no further one follows: no name comes twice, and all have come.
    fn counts_last(&mut self, stat: &Stat, distinct: bool) -> bool {
        self.seen = self.seen.saturating_add(1);
        distinct && u64::from(self.seen) >= link_count(stat)
    }

    /// As a record of a [`DiskTable`], where it has no weight.
    fn to_value(&self) -> Value {
        let mut value = Value::default();
        value[..8].copy_from_slice(&self.entry.to_le_bytes());
        value[8..16].copy_from_slice(&self.size.to_le_bytes());
        value[16..24].copy_from_slice(&self.mtime.s.to_le_bytes());
        value[24..28].copy_from_slice(&self.mtime.ns.to_le_bytes());
        value[28..].copy_from_slice(&self.seen.to_le_bytes());
        value
    }

    fn from_value(value: &Value) -> WalkedName {
        let long = |at: usize| value[at..at + 8].try_into().expect("8 bytes");
        let short = |at: usize| value[at..at + 4].try_into().expect("4 bytes");
        WalkedName {
            entry: u64::from_le_bytes(long(0)),
            size: i64::from_le_bytes(long(8)),
            mtime: Timestamp {
                s: i64::from_le_bytes(long(16)),
                ns: u32::from_le_bytes(short(24)),
            },
            weight: 0,
            seen: u32::from_le_bytes(short(28)),
        }
    }
}

/// A name of a file that was announced under another name.
pub(super) struct FurtherName {
    pub spot: WalkSpot,
    /// The entry of the first name.
    pub first: EntryId,
    pub stat: Stat,
}

/// Further names that wait for the end of the walk, in order.
#[derive(Default)]
pub(super) struct FurtherNames {
    waiting: VecDeque<FurtherName>,
    /// Too many are waiting; they come before anything else.
    overflows: bool,
}

impl FurtherNames {
    pub(super) fn add(&mut self, further: FurtherName) {
        self.waiting.push_back(further);
    }

    pub(super) fn take(&mut self) -> Option<FurtherName> {
        self.waiting.pop_front()
    }

    /// The next one, from when too many are waiting until none is.
    pub(super) fn take_overflowing(&mut self) -> Option<FurtherName> {
        self.overflows |= self.waiting.len() >= FURTHER_NAMES_MAX;
        if !self.overflows {
            return None;
        }
        let further = self.waiting.pop_front();
        self.overflows = !self.waiting.is_empty();
        further
    }
}

impl FirstNames {
    pub(super) fn new(distinct: bool) -> FirstNames {
        FirstNames {
            distinct,
            files: BTreeMap::new(),
            bytes: 0,
            more: MoreFiles::Forgotten,
            unlinked: 0,
        }
    }

    /// From now on files that find no room in memory are remembered too.
    pub(super) fn remember_all(&mut self) {
        if let MoreFiles::Forgotten = self.more {
            self.more = MoreFiles::None;
        }
    }

    /// Forgets all files, because none of them gets further names. `distinct`: no later name occurs
    /// twice.
    pub(super) fn forget_all(&mut self, distinct: bool) {
        *self = FirstNames {
            unlinked: self.unlinked,
            more: match self.more {
                MoreFiles::Forgotten => MoreFiles::Forgotten,
                MoreFiles::None | MoreFiles::OnDisk(_) => MoreFiles::None,
            },
            ..FirstNames::new(distinct)
        };
    }

    /// The entry of the first name, if this is a further one. If no name comes twice, the file is
    /// forgotten at its last name; then the second value is true.
    pub(super) fn find(&mut self, stat: &Stat) -> Option<(EntryId, bool)> {
        let inode = (stat.st_dev, stat.st_ino);
        let Some(first) = self.files.get_mut(&inode) else {
            return self.find_on_disk(stat);
        };
        if !first.is_of(stat) {
            return None;
        }
        let is_last = first.counts_last(stat, self.distinct);
        let entry = first.entry;
        if is_last {
            self.forget(inode);
        }
        Some((entry, is_last))
    }

    fn find_on_disk(&mut self, stat: &Stat) -> Option<(EntryId, bool)> {
        let MoreFiles::OnDisk(table) = &mut self.more else {
            return None;
        };
        let found = find_in(table, stat, self.distinct);
        self.or_forget_more(found).flatten()
    }

    /// Remembers a file by its first name, which has `name_len` bytes. False if that is not
    /// possible.
    pub(super) fn remember(&mut self, entry: EntryId, name_len: usize, stat: &Stat) -> bool {
        let inode = (stat.st_dev, stat.st_ino);
        self.forget(inode);
        let weight = linked_weight(name_len);
        let first = WalkedName {
            entry,
            size: stat.st_size,
            mtime: Timestamp::mtime(stat),
            weight: weight as u32,
            seen: 1,
        };
        if self.bytes + weight <= LINKED_BYTES_MAX {
            self.bytes += weight;
            self.files.insert(inode, first);
            return true;
        }
        let is_remembered = self.remember_on_disk(stat, &first);
        self.unlinked += u64::from(!is_remembered);
        is_remembered
    }

    fn remember_on_disk(&mut self, stat: &Stat, first: &WalkedName) -> bool {
        if let MoreFiles::None = self.more {
            let made = DiskTable::new(Box::new(temporary_file));
            if let Some(table) = self.or_forget_more(made) {
                self.more = MoreFiles::OnDisk(table);
            }
        }
        let MoreFiles::OnDisk(table) = &mut self.more else {
            return false;
        };
        let put = table.put(key(stat), first.to_value());
        self.or_forget_more(put).is_some()
    }

    /// After an error all files on disk are forgotten: the names that this affects are counted, and
    /// the count is reported in place of the error.
    fn or_forget_more<T>(&mut self, result: io::Result<T>) -> Option<T> {
        if result.is_err() {
            self.more = MoreFiles::Forgotten;
        }
        result.ok()
    }

    pub(super) fn unlinked(&self) -> u64 {
        self.unlinked
    }

    fn forget(&mut self, inode: (u64, u64)) {
        if let Some(first) = self.files.remove(&inode) {
            self.bytes -= first.weight as usize;
        }
    }
}

/// [`FirstNames::find`] for a file that is not in memory.
fn find_in(
    table: &mut DiskTable,
    stat: &Stat,
    distinct: bool,
) -> io::Result<Option<(EntryId, bool)>> {
    let key = key(stat);
    let found = table.get(key)?.map(|value| WalkedName::from_value(&value));
    let Some(mut first) = found.filter(|first| first.is_of(stat)) else {
        return Ok(None);
    };
    let is_last = first.counts_last(stat, distinct);
    match is_last {
        true => table.remove(key)?,
        false => table.put(key, first.to_value())?,
    }
    Ok(Some((first.entry, is_last)))
}

fn key(stat: &Stat) -> Key {
    [stat.st_dev, stat.st_ino]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(inode: u64, links: u64) -> Stat {
        let mut stat = rustix::fs::stat("/").unwrap();
        (stat.st_ino, stat.st_nlink, stat.st_size) = (inode, links, 7);
        stat
    }

    #[test]
    fn a_file_whose_names_have_all_come_makes_room_for_another() {
        let mut names = FirstNames::new(true);
        // Many more files than fit at once.
        for inode in 0..400_000 {
            assert!(names.remember(inode + 1, 20, &stat(inode, 3)));
            assert_eq!(names.find(&stat(inode, 3)), Some((inode + 1, false)));
            assert_eq!(names.find(&stat(inode, 3)), Some((inode + 1, true)));
            assert_eq!(names.find(&stat(inode, 3)), None);
        }
        assert_eq!(
            (names.unlinked(), names.bytes, names.files.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn names_that_may_come_twice_do_not_count() {
        let mut names = FirstNames::new(false);
        names.remember(1, 20, &stat(5, 2));
        for _ in 0..3 {
            assert_eq!(names.find(&stat(5, 2)), Some((1, false)));
        }
    }

    #[test]
    fn files_that_wait_for_more_names_than_fit_are_counted() {
        let mut names = FirstNames::new(true);
        let mut held = 0;
        while names.remember(held + 1, 255, &stat(held, 2)) {
            held += 1;
        }
        assert!((30_000..200_000).contains(&held), "{held}");
        assert_eq!(names.unlinked(), 1);
        assert_eq!(names.find(&stat(held, 2)), None);
        assert_eq!(names.find(&stat(0, 2)), Some((1, true)));
        assert!(names.remember(held + 2, 255, &stat(held, 2)), "room again");
    }

    #[test]
    fn files_beyond_the_memory_are_remembered_on_disk() {
        let mut names = FirstNames::new(true);
        names.remember_all();
        for inode in 1..60_000 {
            assert!(names.remember(inode + 1, 255, &stat(inode, 3)));
        }
        assert!(matches!(names.more, MoreFiles::OnDisk(_)));
        assert!(names.bytes <= LINKED_BYTES_MAX);
        let mut other_time = stat(59_999, 3);
        other_time.st_mtime_nsec ^= 1;
        assert_eq!(names.find(&other_time), None);
        for (is_last, found) in [(false, true), (true, true), (false, false)] {
            for inode in 1..60_000 {
                let expected = found.then_some((inode + 1, is_last));
                assert_eq!(names.find(&stat(inode, 3)), expected);
            }
        }
        assert_eq!(names.unlinked(), 0);
    }

    #[test]
    fn after_an_error_of_the_disk_files_are_counted() {
        let mut names = FirstNames::new(true);
        let full = || Err(io::ErrorKind::StorageFull.into());
        assert!(
            names
                .or_forget_more(DiskTable::new(Box::new(full)))
                .is_none()
        );
        names.bytes = LINKED_BYTES_MAX;
        assert!(!names.remember(1, 20, &stat(1, 2)));
        assert_eq!((names.find(&stat(1, 2)), names.unlinked()), (None, 1));
    }
}
