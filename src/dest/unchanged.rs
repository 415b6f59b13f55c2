//! Existing entries that a copy leaves alone: unchanged files, whose metadata alone is corrected, and
//! those that the user wants to keep.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, StatxFlags, chmod, fstat, fstatfs, lgetxattr,
    llistxattr, statx, utimensat,
};

use super::attributes::{self, Marked};
use super::{EntrySlot, ExistingEntry, Rules, times_of};
use crate::dir::acl::{self, mode_without_list};
use crate::dir::attributes::read;
use crate::error::Result;
use crate::keep::{ACCESS_LIST, UnchangedBy};
use crate::manifest::{Entry, EntryKind, Timestamp, file_type};

/// What happens to an entry, given what exists under its name.
#[derive(Debug)]
pub enum Standing {
    /// It is copied.
    Copied,
    /// The existing file is unchanged, so only its metadata may need correction.
    Unchanged(UnchangedFile),
    /// What is there, if anything, stays as it is.
    Stays,
}

/// An existing file that has the source's size and time.
#[derive(Debug)]
pub struct UnchangedFile(Stat);

impl UnchangedFile {
    pub fn existing(&self) -> ExistingEntry {
        ExistingEntry::of(&self.0)
    }
}

/// Looks at what exists in `slot`, if the rules depend on it.
///
/// # Errors
/// If the destination cannot be looked at.
pub fn standing(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<Standing> {
    let update = &rules.update;
    // A key that may only write must not learn what exists.
    if !update.asks() || rules.blind || slot.device.is_some() {
        return Ok(Standing::Copied);
    }
    let old = match slot.fresh {
        true => None,
        false => slot.stat()?,
    };
    let Some(old) = old else {
        return Ok(match update.existing_only {
            true => Standing::Stays,
            false => Standing::Copied,
        });
    };
    let is_directory = entry.kind == EntryKind::Directory;
    if update.new_only && !is_directory {
        return Ok(Standing::Stays);
    }
    if entry.kind != EntryKind::File || file_type(&old) != FileType::RegularFile {
        return Ok(Standing::Copied);
    }
    let time = Timestamp::mtime(&old);
    if update.newer_stays && time > entry.mtime {
        return Ok(Standing::Stays);
    }
    let has_size = old.st_size as u64 == entry.size && !entry.is_made_up() && !entry.is_device();
    let is_unchanged = has_size
        && match update.unchanged_by {
            UnchangedBy::Nothing => false,
            UnchangedBy::Size => true,
            UnchangedBy::SizeAndTime => time == entry.mtime || is_rounded(slot, entry.mtime, time),
        };
    Ok(match is_unchanged {
        true => Standing::Unchanged(UnchangedFile(old)),
        false => Standing::Copied,
    })
}

/// Times are kept in steps of so many nanoseconds: NTFS and SMB; UFS and some network file systems;
/// exFAT; ext3 and HFS+; FAT.
const STEPS: [u64; 5] = [100, 1000, 10_000_000, 1_000_000_000, 2_000_000_000];

/// True if `stored` is what the destination's file system keeps of `time`.
fn is_rounded(slot: &EntrySlot, time: Timestamp, stored: Timestamp) -> bool {
    if time.s.abs_diff(stored.s) > 1 || keeps_nanoseconds(slot) {
        return false;
    }
    let nanoseconds = |time: Timestamp| i128::from(time.s) * 1_000_000_000 + i128::from(time.ns);
    let (time, stored) = (nanoseconds(time), nanoseconds(stored));
    STEPS.iter().any(|&step| {
        let step = i128::from(step);
        time.div_euclid(step) * step == stored
    })
}

/// True on a file system that is known to keep nanoseconds, so that a difference is a change.
fn keeps_nanoseconds(slot: &EntrySlot) -> bool {
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const TMPFS: u64 = 0x0102_1994;
    const F2FS: u64 = 0xf2f5_2010;
    const ZFS: u64 = 0x2fc1_2fc1;
    const BCACHEFS: u64 = 0xca45_1a4e;
    let Ok(dir) = slot.dir.handle() else {
        return false;
    };
    match fstatfs(&*dir).map_or(0, |found| found.f_type as u64) {
        XFS | BTRFS | TMPFS | F2FS | ZFS | BCACHEFS => true,
        // Small inodes, as ext3 makes them, have room neither for nanoseconds nor for times of birth.
        EXT4 => statx(&*dir, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)
            .is_ok_and(|told| told.stx_mask & StatxFlags::BTIME.bits() != 0),
        _ => false,
    }
}

/// Gives an unchanged file the metadata that the rules keep, where it differs. Its content is not
/// touched.
///
/// # Errors
/// If the mode or the times may not be changed, or the file has been replaced since.
pub fn correct(
    slot: &EntrySlot,
    entry: &Entry,
    unchanged: &UnchangedFile,
    rules: &Rules,
) -> Result<()> {
    let old = &unchanged.0;
    if rules.untouched || rules.no_clobber || !differs(slot, entry, old, rules)? {
        return Ok(());
    }
    let flags = OFlags::PATH;
    let opened = slot.dir.open(slot.name.as_os_str(), flags, Mode::empty());
    let fd = opened.map_err(|cause| slot.unreadable(cause))?;
    let mut stat = fstat(&fd).map_err(|cause| slot.no_status(cause))?;
    if (stat.st_dev, stat.st_ino) != (old.st_dev, old.st_ino) {
        return Err(slot.refused("was replaced by another process during the copy; copy it again"));
    }
    let marked = Marked::Path(fd.as_fd());
    let path = Marked::through_proc(&fd.as_fd());
    attributes::give_before_mode(&marked, slot, entry, &mut stat, rules)?;
    if rules.keep.perms {
        let mode = rules.mode_of(entry, &stat);
        if mode != stat.st_mode & 0o7777 {
            chmod(&path, Mode::from_raw_mode(mode))
                .map_err(|cause| slot.error("cannot set the mode", cause))?;
        }
    }
    attributes::give_after_mode(&marked, slot, entry, rules)?;
    if rules.keep.times {
        give_times(slot, &path, entry)?;
    }
    Ok(())
}

fn give_times(slot: &EntrySlot, path: &Path, entry: &Entry) -> Result<()> {
    utimensat(CWD, path, &times_of(entry), AtFlags::empty())
        .map_err(|cause| slot.error("cannot set the times", cause))
}

/// True if any metadata differs that the rules keep.
fn differs(slot: &EntrySlot, entry: &Entry, old: &Stat, rules: &Rules) -> Result<bool> {
    let keep = &rules.keep;
    if keep.owner && old.st_uid != entry.uid
        || keep.group && old.st_gid != entry.gid
        || keep.times && Timestamp::mtime(old) != entry.mtime
    {
        return Ok(true);
    }
    let wanted_mode = rules.mode_of(entry, old);
    let is_same_mode = |mode: u32| !keep.perms || mode & 0o7777 == wanted_mode;
    if !keep.has_attributes() && is_same_mode(old.st_mode) {
        return Ok(false);
    }
    let dir = slot.dir.handle().map_err(|cause| slot.unreadable(cause))?;
    let path = Marked::through_proc(&dir.as_fd()).join(&slot.name);
    if !keep.has_attributes() {
        let list = |room: &mut [u8]| lgetxattr(&path, acl::ACCESS, room);
        return Ok(!is_same_mode(mode_without_list(old.st_mode, list)));
    }
    let (present, failed) = read(
        keep,
        |room| llistxattr(&path, room),
        |name, room| lgetxattr(&path, name, room),
    );
    // What cannot be read is set again, which shows whether it can be kept.
    if failed.is_some() {
        return Ok(true);
    }
    let wanted = attributes::wanted(slot, entry, rules)?;
    let has_list = present.iter().any(|one| one.name == ACCESS_LIST.as_bytes());
    let mode = match has_list {
        true => {
            let list = |room: &mut [u8]| lgetxattr(&path, acl::ACCESS, room);
            mode_without_list(old.st_mode, list)
        }
        false => old.st_mode,
    };
    Ok(present != wanted || !is_same_mode(mode))
}
