//! The names of files with several names: the first ones, and the further ones, which become hard
//! links to them.
//!
//! A file is forgotten when all its names have been seen. Files that wait for more names are
//! remembered up to [`LINKED_BYTES_MAX`]; the others count as files with one name each.

use std::collections::{BTreeMap, VecDeque};

use rustix::fs::Stat;

use super::spot::WalkSpot;
use crate::manifest::{EntryId, LINKED_BYTES_MAX, Timestamp, linked_weight};

/// Further names that may wait, about 300 bytes each. Each may keep a directory open at the
/// receiver.
pub(super) const FURTHER_NAMES_MAX: usize = 1 << 13;

pub(super) struct FirstNames {
    /// No name of a file comes twice: one thing was named, and links are not followed.
    distinct: bool,
    /// Keyed by device and inode.
    files: BTreeMap<(u64, u64), WalkedName>,
    /// Memory that these files take at the receiver, which needs more for them than the sender.
    bytes: usize,
    /// Names of files with several names for which there was no room.
    unlinked: u64,
}

/// The first name of a file. Size and time distinguish the file from a later one that reuses its
/// inode number after all its names were removed.
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
            unlinked: 0,
        }
    }

    /// Forgets all files, because none of them gets further names. `distinct`: no later name occurs
    /// twice.
    pub(super) fn forget_all(&mut self, distinct: bool) {
        *self = FirstNames {
            unlinked: self.unlinked,
            ..FirstNames::new(distinct)
        };
    }

    /// The entry of the first name, if this is a further one. If no name comes twice, the file is
    /// forgotten at its last name; then the second value is true.
    pub(super) fn find(&mut self, stat: &Stat) -> Option<(EntryId, bool)> {
        let inode = (stat.st_dev, stat.st_ino);
        let first = self.files.get_mut(&inode)?;
        if !first.is_of(stat) {
            return None;
        }
        first.seen = first.seen.saturating_add(1);
        let entry = first.entry;
        let is_last = self.distinct && u64::from(first.seen) >= stat.st_nlink;
        if is_last {
            self.forget(inode);
        }
        Some((entry, is_last))
    }

    /// Remembers a file by its first name, which has `name_len` bytes. False if there is no room.
    pub(super) fn remember(&mut self, entry: EntryId, name_len: usize, stat: &Stat) -> bool {
        let inode = (stat.st_dev, stat.st_ino);
        self.forget(inode);
        let weight = linked_weight(name_len);
        if self.bytes + weight > LINKED_BYTES_MAX {
            self.unlinked += 1;
            return false;
        }
        self.bytes += weight;
        let first = WalkedName {
            entry,
            size: stat.st_size,
            mtime: Timestamp::mtime(stat),
            weight: weight as u32,
            seen: 1,
        };
        self.files.insert(inode, first);
        true
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
}
