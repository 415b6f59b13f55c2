//! Existing entries whose content a copy does not change: unchanged files, of which it corrects
//! only the metadata, and entries that the user wants to keep.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, StatxFlags, chmod, fstat, fstatfs, lgetxattr,
    statx, utimensat,
};

use super::attributes::{self, Marked};
use super::existing::content_of;
use super::shared_inodes::{InodeUse, use_in_place};
use super::{EntrySlot, ExistingEntry, Rules, times_of};
use crate::chunk::SMALL_FILE_MAX;
use crate::dir::acl::{self, mode_without_list};
use crate::dir::attributes::{mode_beside, read_in};
use crate::error::Result;
use crate::keep::{Keep, UnchangedBy};
use crate::manifest::{Entry, EntryKind, Timestamp, file_type};

/// What happens to an entry, given what exists under its name.
#[derive(Debug)]
pub enum Standing {
    /// It is copied.
    Copied,
    /// The existing file is unchanged, so only its metadata may need correction.
    Unchanged(UnchangedFile),
    /// The existing entry stays, or a missing one is not made.
    Stays,
}

/// An existing file that counts as unchanged, by its time or its content.
#[derive(Debug)]
pub struct UnchangedFile(Stat);

impl UnchangedFile {
    /// An existing file whose content is the source's.
    pub(super) fn of(stat: Stat) -> UnchangedFile {
        UnchangedFile(stat)
    }

    pub fn existing(&self) -> ExistingEntry {
        ExistingEntry::of(&self.0)
    }

    /// When its status changed last.
    pub fn changed_at(&self) -> Timestamp {
        Timestamp::ctime(&self.0)
    }
}

/// Looks at what exists in `slot`, if the rules depend on it.
///
/// # Errors
/// If the destination cannot be looked at.
pub fn standing(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<Standing> {
    let update = &rules.update;
    // A key that may only write must not learn what exists, except in the snapshots that it makes.
    if !update.asks() || rules.blind && !rules.snapshot || slot.device.is_some() {
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
    let is_file = matches!(entry.kind, EntryKind::File | EntryKind::HardLink(_));
    if !is_file || file_type(&old) != FileType::RegularFile {
        return Ok(Standing::Copied);
    }
    let time = Timestamp::mtime(&old);
    if update.newer_stays && time > entry.mtime {
        use_in_place(slot, &old, InodeUse::Stays, rules)?;
        return Ok(Standing::Stays);
    }
    // It becomes a further name of a file that was looked at.
    if entry.kind != EntryKind::File {
        return Ok(Standing::Copied);
    }
    let has_size = old.st_size as u64 == entry.size && !entry.is_made_up() && !entry.is_device();
    let is_unchanged = has_size
        && match update.unchanged_by {
            UnchangedBy::Nothing => false,
            // The content of a large file is compared later.
            UnchangedBy::Content => match entry.content() {
                Some(content) if entry.size <= SMALL_FILE_MAX => {
                    let found = content_of(&slot.dir, slot.name.as_os_str(), entry.size);
                    found.map_err(|cause| slot.unreadable(cause))? == Some(content)
                }
                _ => false,
            },
            UnchangedBy::Size => true,
            UnchangedBy::SizeAndTime => time == entry.mtime || is_rounded(slot, entry.mtime, time),
        };
    if !is_unchanged {
        return Ok(Standing::Copied);
    }
    // A correction would change all names of the file, which the source has as separate files, or
    // which are older snapshots.
    let is_shared = rules.is_shared(entry, &old) && !rules.check;
    if is_shared && !rules.untouched && !rules.no_clobber && differs(slot, entry, &old, rules)? {
        return Ok(Standing::Copied);
    }
    use_in_place(slot, &old, InodeUse::Stays, rules)?;
    Ok(Standing::Unchanged(UnchangedFile(old)))
}

/// Times are kept in steps of so many nanoseconds: NTFS and SMB; UFS and some network file systems;
/// ext3 and HFS+.
const STEPS: [u64; 3] = [100, 1000, 1_000_000_000];

/// The same for FAT and exFAT, which may be served by a process (FUSE).
const STEPS_OF_FAT: [u64; 2] = [10_000_000, 2_000_000_000];

/// How a file system keeps times.
enum TimeSteps {
    Nanoseconds,
    Fat,
    Unknown,
}

/// True if `stored` is what the destination's file system keeps of `time`.
pub(super) fn is_rounded(slot: &EntrySlot, time: Timestamp, stored: Timestamp) -> bool {
    if time.s.abs_diff(stored.s) > 1 {
        return false;
    }
    let more = match time_steps(slot) {
        TimeSteps::Nanoseconds => return false,
        TimeSteps::Fat => &STEPS_OF_FAT[..],
        TimeSteps::Unknown => &[],
    };
    let nanoseconds = |time: Timestamp| i128::from(time.s) * 1_000_000_000 + i128::from(time.ns);
    let (time, stored) = (nanoseconds(time), nanoseconds(stored));
    STEPS.iter().chain(more).any(|&step| {
        let step = i128::from(step);
        time.div_euclid(step) * step == stored
    })
}

fn time_steps(slot: &EntrySlot) -> TimeSteps {
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const TMPFS: u64 = 0x0102_1994;
    const F2FS: u64 = 0xf2f5_2010;
    const ZFS: u64 = 0x2fc1_2fc1;
    const BCACHEFS: u64 = 0xca45_1a4e;
    const MSDOS: u64 = 0x4d44;
    const EXFAT: u64 = 0x2011_bab0;
    const FUSE: u64 = 0x6573_5546;
    let Ok(dir) = slot.dir.handle() else {
        return TimeSteps::Unknown;
    };
    // Small inodes, as ext3 makes them, have room neither for nanoseconds nor for times of birth.
    let has_birth = || {
        statx(&*dir, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)
            .is_ok_and(|told| Timestamp::birth(&told).is_some())
    };
    match fstatfs(&*dir).map_or(0, |found| found.f_type as u64) {
        XFS | BTRFS | TMPFS | F2FS | ZFS | BCACHEFS => TimeSteps::Nanoseconds,
        EXT4 if has_birth() => TimeSteps::Nanoseconds,
        MSDOS | EXFAT | FUSE => TimeSteps::Fat,
        _ => TimeSteps::Unknown,
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
    if rules.untouched || rules.no_clobber {
        return Ok(());
    }
    // A time that looks rounded may come from another tool: it is set anyway.
    let is_other_time = rules.keep.times && Timestamp::mtime(old) != entry.mtime;
    if !is_other_time && !differs(slot, entry, old, rules)? {
        rules.count_set_id(entry, old.st_mode);
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
        let mode = rules.mode_to_give(entry, &stat);
        if mode != stat.st_mode & 0o7777 {
            chmod(&path, Mode::from_raw_mode(mode))
                .map_err(|cause| slot.error("cannot set the mode", cause))?;
        }
    }
    attributes::give_after_mode(&marked, slot, entry, rules)?;
    if rules.keep.times && Timestamp::mtime(&stat) != entry.mtime {
        give_times(slot, &path, entry)?;
    }
    Ok(())
}

fn give_times(slot: &EntrySlot, path: &Path, entry: &Entry) -> Result<()> {
    utimensat(CWD, path, &times_of(entry), AtFlags::empty())
        .map_err(|cause| slot.error("cannot set the times", cause))
}

/// True if the copy in `slot` has the owner, the group and the extended attributes of the entry, as
/// far as the rules keep them. What else cannot be kept is an error when it is set.
///
/// # Errors
/// If the copy cannot be looked at.
pub fn has_owner_and_attributes(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<bool> {
    let keep = &rules.keep;
    let Some(stat) = slot.stat()? else {
        return Ok(false);
    };
    if keep.owner && stat.st_uid != entry.uid || keep.group && stat.st_gid != entry.gid {
        return Ok(false);
    }
    if !keep.has_attributes() {
        return Ok(true);
    }
    let dir = slot.dir.handle();
    let dir = dir.map_err(|cause| slot.unreadable(cause))?;
    let (present, failed) = read_in(keep, dir.as_fd(), slot.name.as_os_str(), false);
    let wanted = attributes::wanted(slot, entry, rules)?;
    // A file system without attributes keeps all of a file that has none.
    Ok(present == wanted && (failed.is_none() || wanted.is_empty()))
}

/// True if an existing file has rights that a copy of it would not get: set-id bits if modes are not
/// kept, capabilities if extended attributes are not. `len_of` gives the length of an attribute.
pub(super) fn has_more_rights(
    existing: &Stat,
    rules: &Rules,
    len_of: impl FnOnce(&CStr) -> rustix::io::Result<usize>,
) -> bool {
    let has_set_id = existing.st_mode & 0o6000 != 0 && !rules.keep.perms;
    has_set_id || !rules.keep.xattrs && len_of(c"security.capability").is_ok()
}

/// True if any metadata differs that the rules keep, as far as the file system keeps times.
pub(super) fn differs(slot: &EntrySlot, entry: &Entry, old: &Stat, rules: &Rules) -> Result<bool> {
    differs_in(&rules.keep, slot, entry, old, rules)
}

/// The same for a part of what the rules keep.
pub(super) fn differs_in(
    keep: &Keep,
    slot: &EntrySlot,
    entry: &Entry,
    old: &Stat,
    rules: &Rules,
) -> Result<bool> {
    let time = Timestamp::mtime(old);
    if keep.owner && old.st_uid != entry.uid
        || keep.group && old.st_gid != entry.gid
        || keep.times && time != entry.mtime && !is_rounded(slot, entry.mtime, time)
    {
        return Ok(true);
    }
    let wanted_mode = rules.mode_of(entry, old);
    let is_same_mode = |mode: u32| !keep.perms || mode & 0o7777 == wanted_mode;
    if !keep.has_attributes() && is_same_mode(old.st_mode) {
        return Ok(false);
    }
    let dir = slot.dir.handle();
    let dir = dir.map_err(|cause| slot.unreadable(cause))?;
    if !keep.has_attributes() {
        let path = Marked::through_proc(&dir.as_fd()).join(&slot.name);
        let list = |room: &mut [u8]| lgetxattr(&path, acl::ACCESS, room);
        return Ok(!is_same_mode(mode_without_list(old.st_mode, list)));
    }
    let name = slot.name.as_os_str();
    let (present, failed) = read_in(keep, dir.as_fd(), name, false);
    // Unreadable attributes are set again, which shows whether they can be kept.
    if failed.is_some() {
        return Ok(true);
    }
    let wanted = attributes::wanted(slot, entry, rules)?;
    let mode = mode_beside(old.st_mode, &present).unwrap_or(old.st_mode);
    Ok(present != wanted || !is_same_mode(mode))
}
