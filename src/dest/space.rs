//! Free space at the destination: checked before the first byte, and reported when it runs out.

use std::io;
use std::sync::Arc;

use rustix::fs::fstatvfs;
use rustix::io::Errno;

use super::{EntrySlot, RootTarget};
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::Totals;
use crate::units::size;

/// A file system with less free space than this, in bytes, is full: the rest is its reserve.
const FULL: u64 = 1 << 20;

/// Compares the space that the copy needs with the free space. Existing entries free their space
/// file by file as they are replaced, so then only the largest file must fit. The same rule is used
/// for targets on several file systems, since nobody knows which data goes where. `there` bytes
/// have their space already, and devices are not counted.
pub fn check_free_space(targets: &[RootTarget], totals: &Totals, there: u64) -> Result<()> {
    let fresh = targets.iter().all(|target| !target.existed);
    let mut dirs: Vec<&Arc<Dir>> = Vec::new();
    let landings = targets.iter().map(|target| &target.landing);
    for landing in landings.filter(|landing| landing.device().is_none()) {
        let Some(dir) = landing.dir() else {
            continue;
        };
        if !dirs
            .iter()
            .any(|seen| seen.identity().0 == dir.identity().0)
        {
            dirs.push(dir);
        }
    }
    let needed = if fresh && dirs.len() == 1 {
        totals.allocated
    } else {
        totals.largest
    };
    let needed = needed.saturating_sub(there);
    for dir in dirs {
        if let Some(free) = free_bytes(dir)
            && free < needed
        {
            return Err(no_space(needed, free).at(dir.path()));
        }
    }
    Ok(())
}

/// The space that one root needs, in bytes.
#[derive(Clone, Copy)]
pub struct NeededSpace {
    pub allocated: u64,
    pub largest: u64,
}

/// The same where the space of each target is known (`--map`): targets on one file system share its
/// space. New ones need all of theirs, and of the others the largest file must fit.
pub fn check_space_of_each(
    targets: &[RootTarget],
    needed: &[NeededSpace],
    there: u64,
) -> Result<()> {
    let mut disks: Vec<(&Arc<Dir>, NeededSpace)> = Vec::new();
    for (target, of_root) in targets.iter().zip(needed) {
        let landing = &target.landing;
        let Some(dir) = landing.dir().filter(|_| landing.device().is_none()) else {
            continue;
        };
        let of_root = match target.existed {
            true => NeededSpace {
                allocated: 0,
                ..*of_root
            },
            false => NeededSpace {
                largest: 0,
                ..*of_root
            },
        };
        let disk = dir.identity().0;
        match disks.iter_mut().find(|(dir, _)| dir.identity().0 == disk) {
            Some((_, needed)) => {
                needed.allocated = needed.allocated.saturating_add(of_root.allocated);
                needed.largest = needed.largest.max(of_root.largest);
            }
            None => disks.push((dir, of_root)),
        }
    }
    for (dir, needed) in disks {
        let needed = needed.allocated.saturating_add(needed.largest);
        let needed = needed.saturating_sub(there);
        if let Some(free) = free_bytes(dir)
            && free < needed
        {
            return Err(no_space(needed, free).at(dir.path()));
        }
    }
    Ok(())
}

/// Bytes that this process may still use on the file system of `dir`; None if that is unknown.
pub(super) fn free_bytes(dir: &Arc<Dir>) -> Option<u64> {
    let found = fstatvfs(&*dir.handle().ok()?).ok()?;
    let blocks = if rustix::process::geteuid().is_root() {
        found.f_bfree
    } else {
        found.f_bavail
    };
    // Some file systems in user space report no blocks at all.
    (found.f_blocks > 0).then(|| blocks.saturating_mul(found.f_frsize))
}

/// The error for a failed write to a file of `needed` bytes, under its final name.
pub(super) fn write_error(slot: &EntrySlot, needed: u64, cause: io::Error) -> Error {
    match (Errno::from_io_error(&cause), free_bytes(&slot.dir)) {
        (Some(Errno::NOSPC), Some(free)) => no_space(needed, free).at(slot.path()),
        _ => slot.error("cannot write", cause),
    }
}

fn no_space(needed: u64, free: u64) -> Error {
    let (needs, has) = (size(needed), size(free));
    let message = if free < needed {
        format!("no space left: needs {needs}, {has} free")
    } else if free < FULL {
        // For example from a pipe, whose length is not known.
        format!("no space left: {has} free")
    } else {
        // The file system does not know that the storage below it is full.
        format!(
            "no space left, although {has} are reported as free: the storage below the file \
             system (a thin volume, a disk image) is full"
        )
    };
    Error {
        errno: Errno::NOSPC.raw_os_error(),
        ..Error::new(Kind::Write, Side::Dest, message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Landing;
    use super::super::testing::*;
    use super::*;

    fn target(slot: EntrySlot, existed: bool) -> RootTarget {
        RootTarget {
            landing: Landing::Name(slot),
            listed: Vec::new(),
            existed,
            earlier: Default::default(),
        }
    }

    /// As on a thin volume, which the file system takes for a disk.
    #[test]
    fn a_disk_that_is_full_with_room_on_it_is_told_from_one_without() {
        assert_eq!(
            no_space(25_200_000, 12_600_000).message,
            "no space left: needs 25.2 MB, 12.6 MB free"
        );
        // As from a pipe.
        let message = no_space(0, 4096).message;
        assert_eq!(message, "no space left: 4.10 KB free");
        let message = no_space(25_200_000, 83_100_000).message;
        assert!(message.contains("although 83.1 MB are reported as free: "));
    }

    #[test]
    fn each_root_needs_its_own_room_and_those_on_one_disk_that_of_both() {
        let temp = tempfile::tempdir().unwrap();
        let targets = |existed| {
            [
                target(slot(temp.path(), "a"), false),
                target(slot(temp.path(), "b"), existed),
            ]
        };
        let free = free_bytes(&slot(temp.path(), "a").dir).unwrap();
        let half = NeededSpace {
            allocated: free / 3 * 2,
            largest: 1,
        };
        check_space_of_each(&targets(false)[..1], &[half], 0).unwrap();
        let error = check_space_of_each(&targets(false), &[half, half], 0).unwrap_err();
        assert_eq!(error.kind, Kind::Write);
        check_space_of_each(&targets(true), &[half, half], 0).unwrap();
        check_space_of_each(&targets(false), &[half, half], free).unwrap();
    }

    #[test]
    fn a_new_tree_needs_all_of_its_room_and_one_over_another_that_of_its_largest_file() {
        let temp = tempfile::tempdir().unwrap();
        let totals = Totals {
            allocated: 1 << 60,
            largest: 1,
            ..Totals::default()
        };
        let new = [target(slot(temp.path(), "a"), false)];
        let error = check_free_space(&new, &totals, 0).unwrap_err();
        assert_eq!(error.kind, Kind::Write);
        assert!(error.message.starts_with("no space left: needs 1.15 EB, "));
        assert!(error.message.ends_with("B free"), "{}", error.message);
        let over = [target(slot(temp.path(), "a"), true)];
        check_free_space(&over, &totals, 0).unwrap();
    }
}
