//! Owner, group, extended attributes and access control lists that an entry gets from its source.
//!
//! Metadata that the system does not allow (for a user other than root, or on a file system without
//! attributes) is counted. It is not an error.
//!
//! Order matters: a change of owner clears set-id bits and file capabilities, so it comes first.
//! Old access control lists are removed before the mode is set, since their removal leaves a mode
//! that the list made. New lists are set after the mode.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, CWD, Gid, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags, chownat,
    fgetxattr, flistxattr, fremovexattr, fsetxattr, fstat, futimens, getxattr, listxattr,
    removexattr, setxattr,
};
use rustix::io::Errno;

use super::space::free_bytes;
use super::{EntrySlot, Rules};
use crate::dir::attributes::read;
use crate::error::{Error, Result, Side};
use crate::keep::{Keep, NotKept, is_acl};
use crate::manifest::{Attribute, Entry};

/// An entry at the destination whose metadata is set.
pub(super) enum Marked<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// Anything, through a handle that can be neither read nor written.
    Path(BorrowedFd<'a>),
}

impl<'a> Marked<'a> {
    pub(super) fn open(file: &'a impl AsFd) -> Marked<'a> {
        Marked::Open(file.as_fd())
    }

    pub(super) fn stat(&self) -> rustix::io::Result<Stat> {
        let (Marked::Open(fd) | Marked::Path(fd)) = self;
        fstat(fd)
    }

    /// A path that leads to the entry itself, even if it is a symbolic link.
    pub(super) fn through_proc(fd: &BorrowedFd<'_>) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
    }

    fn chown(&self, uid: Option<Uid>, gid: Option<Gid>) -> rustix::io::Result<()> {
        match self {
            Marked::Open(fd) => rustix::fs::fchown(fd, uid, gid),
            Marked::Path(fd) => match chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH) {
                Err(Errno::NOENT | Errno::INVAL | Errno::BADF) => {
                    chownat(CWD, Marked::through_proc(fd), uid, gid, AtFlags::empty())
                }
                set => set,
            },
        }
    }

    fn list(&self, room: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Marked::Open(fd) => flistxattr(fd, room),
            Marked::Path(fd) => listxattr(Marked::through_proc(fd), room),
        }
    }

    fn get(&self, name: &[u8], room: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Marked::Open(fd) => fgetxattr(fd, name, room),
            Marked::Path(fd) => getxattr(Marked::through_proc(fd), name, room),
        }
    }

    fn set(&self, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
        let flags = XattrFlags::empty();
        match self {
            Marked::Open(fd) => fsetxattr(fd, name, value, flags),
            Marked::Path(fd) => setxattr(Marked::through_proc(fd), name, value, flags),
        }
    }

    fn remove(&self, name: &[u8]) -> rustix::io::Result<()> {
        match self {
            Marked::Open(fd) => fremovexattr(fd, name),
            Marked::Path(fd) => removexattr(Marked::through_proc(fd), name),
        }
    }

    /// The attributes that are kept, sorted.
    pub(super) fn attributes(&self, keep: &Keep) -> rustix::io::Result<Vec<Attribute>> {
        let (attributes, failed) = read(
            keep,
            |room| self.list(room),
            |name, room| self.get(name, room),
        );
        failed.map_or(Ok(attributes), Err)
    }
}

/// Sets owner and group; then removes and sets attributes, except new access control lists. Call
/// this before the mode is set. `stat` is the present status, and afterwards the new one.
pub(super) fn give_before_mode(
    marked: &Marked<'_>,
    slot: &EntrySlot,
    entry: &Entry,
    stat: &mut Stat,
    rules: &Rules,
) -> Result<()> {
    if give_owner(marked, slot, entry, stat, rules)? {
        *stat = marked.stat().map_err(|cause| slot.no_status(cause))?;
    }
    if !rules.keep.has_attributes() {
        return Ok(());
    }
    let wanted = wanted(slot, entry, rules)?;
    let present = match marked.attributes(&rules.keep) {
        Ok(present) => present,
        Err(cause) => return unless_not_kept(slot, cause, rules, &wanted),
    };
    let (gone, new) = difference(&wanted, &present);
    if gone.is_empty() && new.is_empty() {
        return Ok(());
    }
    for one in gone {
        match marked.remove(&one.name) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(cause) => unless_not_kept(slot, cause, rules, std::slice::from_ref(one))?,
        }
    }
    set(marked, slot, rules, &new, |one| !is_acl(&one.name))?;
    // The removal of a list may have changed it.
    *stat = marked.stat().map_err(|cause| slot.no_status(cause))?;
    Ok(())
}

/// Sets the access control lists of an entry that has its mode.
pub(super) fn give_after_mode(
    marked: &Marked<'_>,
    slot: &EntrySlot,
    entry: &Entry,
    rules: &Rules,
) -> Result<()> {
    if !rules.keep.acls {
        return Ok(());
    }
    let mut lists = wanted(slot, entry, rules)?;
    lists.retain(|one| is_acl(&one.name));
    if lists.is_empty() {
        return Ok(());
    }
    let lists: Vec<&Attribute> = lists.iter().collect();
    set(marked, slot, rules, &lists, |_| true)
}

/// True if the owner or group has changed.
fn give_owner(
    marked: &Marked<'_>,
    slot: &EntrySlot,
    entry: &Entry,
    stat: &Stat,
    rules: &Rules,
) -> Result<bool> {
    let is_new_owner = rules.keep.owner && stat.st_uid != entry.uid;
    let is_new_group = rules.keep.group && stat.st_gid != entry.gid;
    let uid = is_new_owner.then(|| Uid::from_raw(entry.uid));
    let gid = is_new_group.then(|| Gid::from_raw(entry.gid));
    if uid.is_none() && gid.is_none() {
        return Ok(false);
    }
    // An ID that this user namespace does not have is invalid.
    let is_refused =
        |cause: Errno| is_not_allowed(cause) || [Errno::INVAL, Errno::OVERFLOW].contains(&cause);
    let failed = |cause| slot.error("cannot set the owner", cause);
    match marked.chown(uid, gid) {
        Ok(()) => return Ok(true),
        Err(cause) if is_refused(cause) => {}
        Err(cause) => return Err(failed(cause)),
    }
    // A user may give a file to another group that the user is in.
    let has_group = match (uid, gid) {
        (Some(_), Some(_)) => match marked.chown(None, gid) {
            Ok(()) => true,
            Err(cause) if is_refused(cause) => false,
            Err(cause) => return Err(failed(cause)),
        },
        _ => false,
    };
    rules.not_kept.add(&NotKept {
        owners: u64::from(is_new_owner),
        groups: u64::from(is_new_group && !has_group),
        ..NotKept::default()
    });
    Ok(has_group)
}

/// Gives the file the present time. Without the right to do so, which root may lack too, it keeps
/// its time.
pub(super) fn touch(file: impl AsFd) {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let now = Timestamps {
        last_access: time(UTIME_OMIT),
        last_modification: time(UTIME_NOW),
    };
    let _ = futimens(file, &now);
}

/// The attributes that an entry is to have.
///
/// # Errors
/// If the sender broke the protocol.
pub(super) fn wanted(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<Vec<Attribute>> {
    let Some(mut attributes) = entry.attributes() else {
        let breach = Error::breach(Side::Dest, "the sender", "malformed extended attributes");
        return Err(breach.at(slot.path()));
    };
    attributes.retain(|one| rules.keep.takes(&one.name));
    Ok(attributes)
}

/// The attributes to remove and the attributes to set.
pub(super) fn difference<'a>(
    wanted: &'a [Attribute],
    present: &'a [Attribute],
) -> (Vec<&'a Attribute>, Vec<&'a Attribute>) {
    let is_wanted = |one: &&Attribute| wanted.iter().any(|other| other.name == one.name);
    let gone = present.iter().filter(|one| !is_wanted(one)).collect();
    let new = wanted.iter().filter(|one| !present.contains(one)).collect();
    (gone, new)
}

fn set(
    marked: &Marked<'_>,
    slot: &EntrySlot,
    rules: &Rules,
    attributes: &[&Attribute],
    which: impl Fn(&Attribute) -> bool,
) -> Result<()> {
    let mut refused = Vec::new();
    for one in attributes.iter().filter(|one| which(one)) {
        let set = match rules.may_set(&one.name) {
            true => marked.set(&one.name, &one.value),
            false => Err(Errno::PERM),
        };
        match set {
            Ok(()) => {}
            Err(cause) => {
                if !is_not_kept(slot, cause) {
                    return Err(failed(slot, cause));
                }
                refused.push((*one).clone());
            }
        }
    }
    count(rules, &refused);
    Ok(())
}

/// Counts attributes that could not be read, set or removed. Fails if `cause` is another error.
fn unless_not_kept(
    slot: &EntrySlot,
    cause: Errno,
    rules: &Rules,
    attributes: &[Attribute],
) -> Result<()> {
    if !is_not_kept(slot, cause) {
        return Err(failed(slot, cause));
    }
    count(rules, attributes);
    Ok(())
}

/// Counts an entry once for its lists and once for its other attributes.
fn count(rules: &Rules, refused: &[Attribute]) {
    rules.not_kept.add(&NotKept {
        acls: u64::from(refused.iter().any(|one| is_acl(&one.name))),
        xattrs: u64::from(refused.iter().any(|one| !is_acl(&one.name))),
        ..NotKept::default()
    });
}

/// True for an error that says that this user or file system may not have the attribute. If the
/// file system has space, ext4 reports `NOSPC` for a file whose attributes have no room left.
fn is_not_kept(slot: &EntrySlot, cause: Errno) -> bool {
    let is_too_long = [Errno::INVAL, Errno::TOOBIG, Errno::RANGE].contains(&cause);
    let has_space = || free_bytes(&slot.dir).is_some_and(|free| free > SPACE);
    is_not_allowed(cause) || is_too_long || cause == Errno::NOSPC && has_space()
}

/// More than any attributes of a file take, in bytes.
const SPACE: u64 = 1 << 20;

/// True for an error that says that this user or file system does not allow a change.
fn is_not_allowed(cause: Errno) -> bool {
    [Errno::PERM, Errno::ACCESS, Errno::NOTSUP, Errno::NOSYS].contains(&cause)
}

fn failed(slot: &EntrySlot, cause: Errno) -> Error {
    slot.error("cannot set its extended attributes", cause)
}
