//! Metadata of a new file. It inherits owner, group, mode, ACL and SELinux label from the file that
//! it replaces. If it replaces none, it gets the source's mode, less the bits that the directory's
//! default ACL removes, or the umask if there is no such ACL. With `-p` the source's mode and times
//! are used in both cases.
//!
//! Order matters: a change of owner clears set-id bits, and the mode is also the ACL's mask.

use std::fs::File;

use rustix::buffer::{SpareCapacity, spare_capacity};
use rustix::fs::{
    Gid, Mode, Stat, Uid, XattrFlags, fchmod, fchown, fgetxattr, fremovexattr, fsetxattr, futimens,
    lgetxattr,
};
use rustix::io::Errno;

use super::attributes::{self, Marked};
use super::temporary::Temporary;
use super::{EntrySlot, Rules, times_of};
use crate::dest::hints::inplace_instead;
use crate::dir::acl;
use crate::error::{Error, Result};
use crate::keep::Keep;
use crate::manifest::Entry;

const LABEL: &str = "security.selinux";

/// Longest value of an extended attribute on Linux, in bytes.
const XATTR_MAX: usize = 64 << 10;

/// Gives `temporary` owner, ACL, label, mode and times. It will replace the file `heir_of`.
pub(super) fn give(
    temporary: &Temporary,
    entry: &Entry,
    heir_of: Option<&Stat>,
    rules: &Rules,
) -> Result<()> {
    let slot = &temporary.slot;
    let (keep, mut stat) = (&rules.keep, temporary.stat);
    if let Some(old) = heir_of {
        give_owner(temporary, old, keep)?;
        (stat.st_uid, stat.st_gid) = (
            if keep.owner { stat.st_uid } else { old.st_uid },
            if keep.group { stat.st_gid } else { old.st_gid },
        );
        if !keep.acls {
            give_attribute(temporary, acl::ACCESS)?;
        }
        give_attribute(temporary, LABEL)?;
    }
    let marked = Marked::open(&temporary.file);
    attributes::give_before_mode(&marked, slot, entry, &mut stat, rules)?;
    match heir_of {
        None => give_mode(slot, &temporary.file, &stat, entry, rules)?,
        Some(old) => {
            let mode = match keep.perms {
                true => rules.mode_to_give(entry, &stat),
                false => old.st_mode & 0o1777,
            };
            // Always set: an inherited ACL may have changed the mode.
            set_mode(slot, &temporary.file, mode)?;
        }
    }
    attributes::give_after_mode(&marked, slot, entry, rules)?;
    if keep.times {
        futimens(&temporary.file, &times_of(entry))
            .map_err(|cause| slot.error("cannot set the times", cause))?;
    }
    Ok(())
}

/// Gives `file` its ACL and mode. It replaces nothing at `slot`, and `stat` is its status.
pub(super) fn give_mode(
    slot: &EntrySlot,
    file: &File,
    stat: &Stat,
    entry: &Entry,
    rules: &Rules,
) -> Result<()> {
    if !rules.keep.perms
        && let Some(acl) = slot.dir.default_acl()
    {
        let given = acl.masked(entry.mode & 0o777).give(file, 0);
        return given.map_err(|cause| slot.error("cannot set the mode", cause));
    }
    let mode = match rules.keep.perms {
        true => rules.mode_to_give(entry, stat),
        false => rules.new_mode(entry),
    };
    if mode == stat.st_mode & 0o7777 {
        return Ok(());
    }
    set_mode(slot, file, mode)
}

fn set_mode(slot: &EntrySlot, file: &File, mode: u32) -> Result<()> {
    fchmod(file, Mode::from_raw_mode(mode))
        .map_err(|cause| slot.error("cannot set the mode", cause))
}

/// Checks, before the content is sent, whether the owner can be kept; then the file is ours again.
/// It keeps the group: in a set-group-ID directory, it may be made with a group that this user cannot
/// give to it.
pub(super) fn rehearse(temporary: &mut Temporary, old: &Stat, keep: &Keep) -> Result<()> {
    let new = &temporary.stat;
    if (old.st_uid, old.st_gid) == (new.st_uid, new.st_gid) {
        return Ok(());
    }
    give_owner(temporary, old, keep)?;
    if !keep.owner && old.st_uid != new.st_uid {
        let back = fchown(&temporary.file, Some(Uid::from_raw(new.st_uid)), None);
        back.map_err(|cause| temporary.slot.error("cannot set the owner", cause))?;
    }
    temporary.refresh()
}

/// Gives owner and group of the file that is replaced, unless the source's are kept.
fn give_owner(temporary: &Temporary, old: &Stat, keep: &Keep) -> Result<()> {
    let slot = &temporary.slot;
    let new = &temporary.stat;
    let uid = (!keep.owner && new.st_uid != old.st_uid).then(|| Uid::from_raw(old.st_uid));
    let gid = (!keep.group && new.st_gid != old.st_gid).then(|| Gid::from_raw(old.st_gid));
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    fchown(&temporary.file, uid, gid).map_err(|cause| {
        // This user may own the file and not be in its group.
        let (what, who) = match uid {
            Some(_) => ("owner", "as its owner or root"),
            None => ("group", "as a member of that group or root"),
        };
        let what = format!(
            "cannot keep the {what} of the existing file (user {}, group {})",
            old.st_uid, old.st_gid
        );
        let advice = inplace_instead(slot);
        let advice = advice.unwrap_or_else(|| format!("remove it first, or copy {who}"));
        let error = slot.error(&what, cause);
        Error {
            message: format!("{}; {advice}", error.message),
            ..error
        }
    })
}

/// Makes the new file's attribute equal to the old file's, even if that has none.
fn give_attribute(temporary: &Temporary, attribute: &str) -> Result<()> {
    let slot = &temporary.slot;
    let failed = |cause| {
        let what = format!("cannot keep {attribute} of the existing file");
        slot.error(&what, cause)
    };
    let mut value = Vec::new();
    let new = present(read(&mut value, |room| {
        fgetxattr(&temporary.file, attribute, room)
    }))
    .map_err(failed)?
    .then(|| value.clone());
    let old = present(read_old(slot, attribute, &mut value))
        .map_err(failed)?
        .then_some(value);
    match (old, new) {
        (old, new) if old == new => Ok(()),
        (Some(old), new) => {
            match fsetxattr(&temporary.file, attribute, &old, XattrFlags::empty()) {
                // The kernel uses no labels: then new files have none, and only root may set one.
                Err(Errno::PERM) if attribute == LABEL && new.is_none() => Ok(()),
                set => set.map_err(failed),
            }
        }
        // Every file has a label, so there is none to remove.
        (None, _) if attribute == LABEL => Ok(()),
        (None, _) => fremovexattr(&temporary.file, attribute).map_err(failed),
    }
}

/// Reads through /proc, which needs no permission to read the file itself and follows no link.
fn read_old(slot: &EntrySlot, attribute: &str, value: &mut Vec<u8>) -> rustix::io::Result<()> {
    use std::os::fd::AsRawFd;
    let dir = slot
        .dir
        .handle()
        .map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::IO))?;
    let path =
        std::path::PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(&slot.name);
    read(value, |room| lgetxattr(&path, attribute, room))
}

fn read(
    value: &mut Vec<u8>,
    get: impl FnOnce(SpareCapacity<'_, u8>) -> rustix::io::Result<usize>,
) -> rustix::io::Result<()> {
    value.clear();
    value.reserve(XATTR_MAX);
    get(spare_capacity(value)).map(drop)
}

/// True if an attribute was read. A missing attribute is not an error, nor is a file system without
/// attributes. A file that vanished, or a system without /proc, has no attribute to inherit.
fn present(read: rustix::io::Result<()>) -> rustix::io::Result<bool> {
    match read {
        Ok(()) => Ok(true),
        Err(Errno::NODATA | Errno::NOTSUP | Errno::NOENT | Errno::NOSYS) => Ok(false),
        Err(other) => Err(other),
    }
}
