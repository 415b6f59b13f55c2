//! A copy of an old version, with its attributes, where it can be neither linked nor renamed.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Stat, Uid, XattrFlags, chmodat, chownat, fchmod, fchown, fsetxattr,
    fstat, futimens, mknodat, readlinkat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::super::attributes::Marked;
use super::super::local_copy::{LocalCopy, NotCopied};
use super::super::own_names::random_name;
use super::super::{CANNOT_SYNC, EntrySlot, Rules, close, existing, space, times_in};
use crate::dir::acl::mode_without_list;
use crate::error::{Error, Kind, Result, Side};
use crate::keep::{ACCESS_LIST, Keep, is_acl};
use crate::manifest::file_type;

/// Copies the entry in `slot`, whose status is `old`, to the directory of `backup`.
///
/// # Errors
/// If it cannot be read, or changes, or the copy cannot be made.
pub(super) fn copy<'a>(
    slot: &EntrySlot,
    old: &Stat,
    backup: &'a EntrySlot,
    rules: &Rules,
) -> Result<UnnamedCopy<'a>> {
    let temporary = UnnamedCopy {
        backup,
        name: random_name(backup),
    };
    let made = match file_type(old) {
        rustix::fs::FileType::RegularFile => copy_file(slot, &temporary, rules),
        rustix::fs::FileType::Symlink => {
            copy_link(slot, old, &temporary).map_err(|cause| failed(slot, backup, cause))
        }
        _ => copy_special(old, &temporary, rules).map_err(|cause| failed(slot, backup, cause)),
    };
    made.map(|()| temporary)
}

/// A copy without its final name, which is removed on drop.
pub(super) struct UnnamedCopy<'a> {
    backup: &'a EntrySlot,
    name: std::ffi::OsString,
}

impl UnnamedCopy<'_> {
    /// Its name for now.
    pub(super) fn name(&self) -> &std::ffi::OsStr {
        &self.name
    }
}

impl Drop for UnnamedCopy<'_> {
    fn drop(&mut self) {
        if let Ok(dir) = self.backup.dir.handle() {
            // After a success nothing has this name.
            let _ = unlinkat(&*dir, &self.name, AtFlags::empty());
        }
    }
}

/// The error if the backup of the entry in `slot` cannot be made.
pub(super) fn failed(
    slot: &EntrySlot,
    backup: &EntrySlot,
    cause: impl Into<std::io::Error>,
) -> Error {
    let path = crate::units::printable(backup.path().as_os_str().as_bytes());
    let cause = cause.into();
    match Errno::from_io_error(&cause) {
        Some(Errno::EXIST) => slot.refused(format!(
            "is neither replaced nor deleted: its backup {path} exists, and this key may not replace \
             backups"
        )),
        Some(Errno::STALE) => {
            let message = "is neither replaced nor deleted: another process replaced it, or a \
                           directory, while its backup was made; copy again";
            Error::new(Kind::Changed, Side::Dest, message).at(slot.path())
        }
        _ => slot.error(
            &format!("is neither replaced nor deleted: cannot make its backup {path}"),
            cause,
        ),
    }
}

fn copy_file(slot: &EntrySlot, temporary: &UnnamedCopy<'_>, rules: &Rules) -> Result<()> {
    let backup = temporary.backup;
    let fails = |cause: Errno| failed(slot, backup, cause);
    let opened = existing::open_checked(slot, |cause| slot.unreadable(cause))?;
    let (from, before) = opened.ok_or_else(|| changed(slot))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let to = backup
        .dir
        .open(&temporary.name, flags, Mode::RUSR | Mode::WUSR);
    let to = File::from(to.map_err(|cause| failed(slot, backup, cause))?);
    let size = before.st_size as u64;
    let copy = LocalCopy {
        from: &from,
        before: &before,
        into: &to,
        is_sparse: false,
        is_ending: &|| false,
    };
    copy.run().map_err(|why| match why {
        NotCopied::Changed | NotCopied::Ending => changed(slot),
        NotCopied::Read(cause) => slot.unreadable(cause),
        NotCopied::Write(cause) => space::write_error(backup, size, cause),
    })?;
    give_attributes(&from, &to, rules).map_err(fails)?;
    futimens(&to, &times_in(&before)).map_err(fails)?;
    // The old version is gone soon.
    to.sync_all()
        .map_err(|cause| backup.error(CANNOT_SYNC, cause))?;
    close(to).map_err(|cause| space::write_error(backup, size, cause))
}

fn changed(slot: &EntrySlot) -> Error {
    let message =
        "is neither replaced nor deleted: it was written while its backup was made; copy again";
    Error::new(Kind::Changed, Side::Dest, message).at(slot.path())
}

/// Gives owner, group, extended attributes, mode and access control lists of one open file or
/// directory to another. What this user may not give is left out, and set-id bits with it.
pub(super) fn give_attributes(
    from: &impl AsFd,
    to: &impl AsFd,
    rules: &Rules,
) -> rustix::io::Result<()> {
    let (old, made) = (fstat(from)?, fstat(to)?);
    let is_other = |one: u32, other: u32| (one != other).then_some(one);
    let user = is_other(old.st_uid, made.st_uid).map(Uid::from_raw);
    let group = is_other(old.st_gid, made.st_gid).map(Gid::from_raw);
    let mut mode = old.st_mode & 0o7777;
    if user.is_some() || group.is_some() {
        let may_not = |cause: Errno| matches!(cause, Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP);
        match fchown(to, user, group) {
            Ok(()) => {}
            Err(cause) if may_not(cause) => {
                mode &= 0o1777;
                match fchown(to, None, group) {
                    Err(cause) if !may_not(cause) => return Err(cause),
                    // The group of this user gets no rights that it did not have.
                    Err(_) => mode &= !0o070 | (mode & 0o007) << 3,
                    Ok(()) => {}
                }
            }
            Err(cause) => return Err(cause),
        }
    }
    if !rules.set_id {
        mode &= 0o1777;
    }
    let keep = Keep {
        acls: true,
        xattrs: true,
        ..Keep::default()
    };
    let attributes = Marked::open(from).attributes(&keep)?;
    let set = |name: &[u8], value: &[u8]| fsetxattr(to, name, value, XattrFlags::empty());
    for one in attributes.iter().filter(|one| !is_acl(&one.name)) {
        // As for other files, an attribute that cannot be kept is no error.
        if rules.may_set(&one.name) {
            let _ = set(&one.name, &one.value);
        }
    }
    let mut has_lists = true;
    let list = attributes
        .iter()
        .find(|one| one.name == ACCESS_LIST.as_bytes());
    fchmod(to, Mode::from_raw_mode(mode))?;
    for one in attributes.iter().filter(|one| is_acl(&one.name)) {
        has_lists &= set(&one.name, &one.value).is_ok();
    }
    if let (Some(list), false) = (list, has_lists) {
        let read = |room: &mut [u8]| {
            let room = room.get_mut(..list.value.len()).ok_or(Errno::RANGE)?;
            room.copy_from_slice(&list.value);
            Ok(list.value.len())
        };
        // The mask of the list may give the group more rights than it had.
        let mode = mode_without_list(old.st_mode, read) & mode;
        fchmod(to, Mode::from_raw_mode(mode & 0o7777))?;
    }
    Ok(())
}

fn copy_link(slot: &EntrySlot, old: &Stat, temporary: &UnnamedCopy<'_>) -> std::io::Result<()> {
    let (from, to) = (slot.dir.handle()?, temporary.backup.dir.handle()?);
    let text = readlinkat(&*from, slot.name.as_os_str(), Vec::new())?;
    symlinkat(&text, &*to, &temporary.name)?;
    give_owner_and_times(old, temporary)?;
    Ok(())
}

fn copy_special(old: &Stat, temporary: &UnnamedCopy<'_>, rules: &Rules) -> std::io::Result<()> {
    let to = temporary.backup.dir.handle()?;
    let mode = Mode::from_raw_mode(old.st_mode & if rules.set_id { 0o7777 } else { 0o777 });
    mknodat(&*to, &temporary.name, file_type(old), mode, old.st_rdev)?;
    // The umask does not count.
    chmodat(&*to, &temporary.name, mode, AtFlags::empty())?;
    give_owner_and_times(old, temporary)?;
    Ok(())
}

fn give_owner_and_times(old: &Stat, temporary: &UnnamedCopy<'_>) -> std::io::Result<()> {
    let to = temporary.backup.dir.handle()?;
    let (user, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    // Only root may.
    let _ = chownat(&*to, &temporary.name, Some(user), Some(group), flags);
    utimensat(&*to, &temporary.name, &times_in(old), flags)?;
    Ok(())
}
