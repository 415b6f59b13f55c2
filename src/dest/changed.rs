//! The changes of a copy to an existing entry, for `--itemize-changes`.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{FileType, Stat, fstat, lgetxattr, readlinkat};
use rustix::process::{getegid, geteuid, getgroups};

use super::attributes::{self, Marked};
use super::unchanged::is_rounded;
use super::{EntrySlot, Rules};
use crate::dir::Dir;
use crate::dir::acl::{self, mode_without_list};
use crate::dir::attributes::{mode_beside, read_in};
use crate::error::{Error, Kind, Result, Side};
use crate::itemize::{ItemAction, ItemChanges};
use crate::keep::{UnchangedBy, is_acl};
use crate::manifest::{Attribute, Entry, EntryKind, Timestamp, file_type};

/// The status of the entry that has this name, if there is one.
///
/// # Errors
/// If the directory cannot be looked at.
pub fn status(slot: &EntrySlot) -> Result<Option<Stat>> {
    match slot.fresh {
        true => Ok(None),
        false => slot.stat(),
    }
}

/// The status of an existing directory.
///
/// # Errors
/// If it cannot be read.
pub fn status_of(dir: &Arc<Dir>) -> Result<Stat> {
    let stat = dir.handle().and_then(|dir| Ok(fstat(&*dir)?));
    let what = "cannot read its status";
    stat.map_err(|cause| Error::io(Kind::Write, Side::Dest, dir.path(), what, cause))
}

/// The changes to the entry in `slot`, whose status is `old`, when `entry` is copied there. With
/// `is_sent` a file's content is written.
///
/// # Errors
/// If the existing entry cannot be read, or the sender broke the protocol.
pub fn changes(
    slot: &EntrySlot,
    entry: &Entry,
    old: Option<&Stat>,
    is_sent: bool,
    rules: &Rules,
) -> Result<(ItemAction, ItemChanges)> {
    let made = match entry.kind {
        EntryKind::File | EntryKind::Pipe => ItemAction::Sent,
        EntryKind::HardLink(_) => ItemAction::Linked,
        EntryKind::Directory | EntryKind::Symlink(_) | EntryKind::Special(_) => ItemAction::Made,
    };
    let is_there = old.is_some();
    let Some(old) = old.filter(|old| is_kind_of(entry, old)) else {
        let changes = ItemChanges {
            replaces: is_there,
            ..ItemChanges::of_new()
        };
        return Ok((made, changes));
    };
    let mut changes = ItemChanges::default();
    let action = match &entry.kind {
        EntryKind::File | EntryKind::Pipe if is_sent => {
            let has_size = entry.kind == EntryKind::File && !entry.is_made_up();
            changes.size = has_size && old.st_size as u64 != entry.size;
            changes.value = rules.update.unchanged_by == UnchangedBy::Content;
            ItemAction::Sent
        }
        EntryKind::HardLink(_) => ItemAction::Linked,
        EntryKind::Symlink(text) => {
            let dir = slot.dir.handle().map_err(|cause| slot.unreadable(cause))?;
            let there = readlinkat(&*dir, slot.name.as_os_str(), Vec::new());
            changes.value = !there.is_ok_and(|there| there.as_bytes() == text);
            made_or_corrected(changes.value)
        }
        EntryKind::Special(special) => {
            changes.value = special.is_device() && old.st_rdev != entry.rdev;
            made_or_corrected(changes.value)
        }
        EntryKind::File | EntryKind::Pipe | EntryKind::Directory => ItemAction::Corrected,
    };
    let stays = rules.untouched || rules.no_clobber;
    if stays && action == ItemAction::Corrected {
        return Ok((action, changes));
    }
    let new_time = has_new_time(slot, entry, old);
    changes.time = rules.keep.times && new_time;
    changes.time_of_copy = !rules.keep.times && action != ItemAction::Corrected;
    let read = || {
        let dir = slot.dir.handle().map_err(|cause| slot.unreadable(cause))?;
        let name = slot.name.as_os_str();
        let (present, failed) = read_in(&rules.keep, dir.as_fd(), name, false);
        Ok(failed.is_none().then_some(present))
    };
    let beside = || {
        let dir = slot.dir.handle().map_err(|cause| slot.unreadable(cause))?;
        let path = Marked::through_proc(&dir.as_fd()).join(&slot.name);
        let list = |room: &mut [u8]| lgetxattr(&path, acl::ACCESS, room);
        Ok(mode_without_list(old.st_mode, list))
    };
    metadata(slot, entry, old, rules, &mut changes, (read, beside))?;
    Ok((action, changes))
}

/// True if the entry's time differs from that in `old` by more than the file system's rounding.
fn has_new_time(slot: &EntrySlot, entry: &Entry, old: &Stat) -> bool {
    let time = Timestamp::mtime(old);
    time != entry.mtime && !is_rounded(slot, entry.mtime, time)
}

/// The changes to an existing directory, whose status was `old` before the copy.
///
/// # Errors
/// As [`changes`].
pub fn changes_of_directory(
    dir: &Arc<Dir>,
    entry: &Entry,
    old: &Stat,
    rules: &Rules,
) -> Result<ItemChanges> {
    let mut changes = ItemChanges::default();
    if rules.untouched {
        return Ok(changes);
    }
    // For messages.
    let slot = EntrySlot {
        device: Some(dir.path().into()),
        ..EntrySlot::new(dir.clone(), entry.name.clone())
    };
    let has_times = rules.keep.times && !rules.keep.omit_dir_times;
    changes.time = has_times && has_new_time(&slot, entry, old);
    let read = || {
        let handle = dir.handle().map_err(|cause| slot.unreadable(cause))?;
        Ok(Marked::open(&*handle).attributes(&rules.keep).ok())
    };
    let beside = || {
        let handle = dir.handle().map_err(|cause| slot.unreadable(cause))?;
        let path = Marked::through_proc(&handle.as_fd());
        let list = |room: &mut [u8]| rustix::fs::getxattr(&path, acl::ACCESS, room);
        Ok(mode_without_list(old.st_mode, list))
    };
    metadata(&slot, entry, old, rules, &mut changes, (read, beside))?;
    Ok(changes)
}

fn made_or_corrected(is_made: bool) -> ItemAction {
    match is_made {
        true => ItemAction::Made,
        false => ItemAction::Corrected,
    }
}

/// False if the entry takes the place of one of another kind.
fn is_kind_of(entry: &Entry, old: &Stat) -> bool {
    let kind = match &entry.kind {
        EntryKind::File | EntryKind::HardLink(_) | EntryKind::Pipe => FileType::RegularFile,
        EntryKind::Directory => FileType::Directory,
        EntryKind::Symlink(_) => FileType::Symlink,
        EntryKind::Special(special) => special.file_type(),
    };
    file_type(old) == kind
}

/// Compares permissions, owner, group and attributes. The first of `access` reads the existing
/// attributes, None if they cannot be read; the second the mode beside an access control list.
fn metadata(
    slot: &EntrySlot,
    entry: &Entry,
    old: &Stat,
    rules: &Rules,
    changes: &mut ItemChanges,
    (read, beside): (
        impl FnOnce() -> Result<Option<Vec<Attribute>>>,
        impl FnOnce() -> Result<u32>,
    ),
) -> Result<()> {
    let keep = &rules.keep;
    let mut owned = *old;
    if keep.owner && geteuid().is_root() && old.st_uid != entry.uid {
        changes.owner = true;
        owned.st_uid = entry.uid;
    }
    if keep.group && old.st_gid != entry.gid && may_give_to(entry.gid) {
        changes.group = true;
        owned.st_gid = entry.gid;
    }
    let mut mode = old.st_mode;
    if keep.has_attributes() {
        let wanted = attributes::wanted(slot, entry, rules)?;
        // Unreadable attributes are set, which shows whether they can be kept.
        let present = read()?.unwrap_or_default();
        let of = |is_list: bool, all: &[Attribute]| -> Vec<Attribute> {
            let one_of = all.iter().filter(|one| is_acl(&one.name) == is_list);
            one_of.cloned().collect()
        };
        changes.acl = of(true, &wanted) != of(true, &present);
        changes.xattrs = of(false, &wanted) != of(false, &present);
        mode = mode_beside(mode, &present).unwrap_or(mode);
    } else if keep.perms {
        mode = beside()?;
    }
    let has_mode = keep.perms && !matches!(entry.kind, EntryKind::Symlink(_));
    changes.perms = has_mode && mode & 0o7777 != rules.mode_of(entry, &owned);
    Ok(())
}

/// True if this user may give its files to the group.
pub(super) fn may_give_to(group: u32) -> bool {
    let is_it = |one: rustix::fs::Gid| one.as_raw() == group;
    geteuid().is_root()
        || is_it(getegid())
        || getgroups().is_ok_and(|groups| groups.into_iter().any(is_it))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::testing::*;
    use super::*;
    use crate::keep::Keep;

    #[test]
    fn each_kept_property_that_differs_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a");
        std::fs::write(&path, b"xy").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let (slot, mut entry) = (slot(temp.path(), "a"), file(2, 0o644));
        let old = status(&slot).unwrap();
        let found = |entry: &Entry, is_sent, keep| {
            let rules = Rules { keep, ..rules() };
            changes(&slot, entry, old.as_ref(), is_sent, &rules).unwrap()
        };
        let none = ItemChanges::default();
        let (action, of_copy) = found(&entry, true, Keep::default());
        assert_eq!(action, ItemAction::Sent);
        let expected = ItemChanges {
            time_of_copy: true,
            ..none
        };
        assert_eq!(of_copy, expected);
        let expected = ItemChanges {
            time: true,
            perms: true,
            ..none
        };
        let kept = Keep::modes_and_times();
        let corrected = (ItemAction::Corrected, expected);
        assert_eq!(found(&entry, false, kept), corrected);
        entry.size = 3;
        assert!(found(&entry, true, kept).1.size);
        entry.mode = 0o600;
        entry.mtime = Timestamp::mtime(old.as_ref().unwrap());
        assert!(found(&entry, false, Keep::everything()).1.is_none());
        entry.kind = EntryKind::Symlink(b"x".to_vec());
        let replaced = ItemChanges {
            replaces: true,
            ..ItemChanges::of_new()
        };
        assert_eq!(found(&entry, false, kept), (ItemAction::Made, replaced));
    }
}
