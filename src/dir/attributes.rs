//! Metadata that a plain status does not have: extended attributes, with the access control lists
//! among them, and the names of owners and groups.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use nix::libc;
use nix::unistd::{Gid, Group, Uid, User};
use rustix::fs::{getxattr, lgetxattr, listxattr, llistxattr};
use rustix::io::Errno;

use super::acl;
use crate::keep::{Keep, MetadataChanges, NewOwner};
use crate::manifest::{Attribute, Entry, EntryKind};

/// The longest list of names and the longest value on Linux, in bytes.
const LEN_MAX: usize = 64 << 10;

/// Room for most lists and values, in bytes.
const USUAL_LEN: usize = 512;

/// The attributes that are kept, sorted by name, and the first error if some could not be read. A
/// file system without attributes has none.
///
/// `list` puts the names into a buffer, and `get` the value of a name.
pub fn read(
    keep: &Keep,
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> (Vec<Attribute>, Option<Errno>) {
    let names = match whole(list) {
        Ok(names) => names,
        Err(Errno::NOTSUP | Errno::NOSYS) => return (Vec::new(), None),
        Err(cause) => return (Vec::new(), Some(cause)),
    };
    let (mut attributes, mut failed) = (Vec::new(), None);
    for name in names.split(|&byte| byte == 0) {
        if name.is_empty() || !keep.takes(name) {
            continue;
        }
        match whole(|room| get(name, room)) {
            Ok(value) => attributes.push(Attribute {
                name: name.to_vec(),
                value,
            }),
            // It was removed since.
            Err(Errno::NODATA) => {}
            Err(cause) => failed = failed.or(Some(cause)),
        }
    }
    attributes.sort();
    (attributes, failed)
}

/// The attributes that are kept of `name` in an open directory, as in [`read`]; a link is followed
/// only if `follows`.
pub fn read_in(
    keep: &Keep,
    dir: BorrowedFd<'_>,
    name: &OsStr,
    follows: bool,
) -> (Vec<Attribute>, Option<Errno>) {
    let path = || PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    read(
        keep,
        |room| match list_in(dir, name, follows, room) {
            Some(listed) => listed,
            None if follows => listxattr(path(), room),
            None => llistxattr(path(), room),
        },
        |attribute, room| match follows {
            true => getxattr(path(), attribute, room),
            false => lgetxattr(path(), attribute, room),
        },
    )
}

/// True once the kernel has refused `listxattrat`, which is new in Linux 6.13.
static WITHOUT_LIST_IN: AtomicBool = AtomicBool::new(false);

/// Lists the attributes of a name in a directory. It takes a third of the time of a path through
/// /proc. None if the kernel does not have this call.
fn list_in(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    follows: bool,
    room: &mut [u8],
) -> Option<rustix::io::Result<usize>> {
    /// The number on all architectures.
    const SYS_LISTXATTRAT: libc::c_long = 465;
    if WITHOUT_LIST_IN.load(Relaxed) {
        return None;
    }
    let name = CString::new(name.as_bytes()).ok()?;
    let flags = if follows {
        0
    } else {
        libc::AT_SYMLINK_NOFOLLOW
    };
    // SAFETY: the name ends with NUL, and the kernel writes at most `room.len()` bytes into `room`.
    let listed = unsafe {
        libc::syscall(
            SYS_LISTXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            flags,
            room.as_mut_ptr(),
            room.len(),
        )
    };
    if let Ok(len) = usize::try_from(listed) {
        return Some(Ok(len));
    }
    let cause = std::io::Error::last_os_error();
    match Errno::from_io_error(&cause).unwrap_or(Errno::IO) {
        // A filter for system calls returns `PERM` for a call that it does not know.
        Errno::NOSYS | Errno::PERM => {
            WITHOUT_LIST_IN.store(true, Relaxed);
            None
        }
        cause => Some(Err(cause)),
    }
}

/// Calls `get` with a buffer that is large enough.
fn whole(get: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut usual = [0; USUAL_LEN];
    match get(&mut usual) {
        Ok(len) => Ok(usual[..len.min(USUAL_LEN)].to_vec()),
        Err(Errno::RANGE) => {
            let mut room = vec![0; LEN_MAX];
            let len = get(&mut room)?;
            room.truncate(len);
            Ok(room)
        }
        Err(cause) => Err(cause),
    }
}

/// The mode of an entry without its access control list; None if `attributes` has no such list.
pub fn mode_beside(mode: u32, attributes: &[Attribute]) -> Option<u32> {
    let is_list = |one: &&Attribute| one.name == acl::ACCESS.as_bytes();
    let value = &attributes.iter().find(is_list)?.value;
    Some(acl::mode_without_list(mode, |room| {
        let room = room.get_mut(..value.len()).ok_or(Errno::RANGE)?;
        room.copy_from_slice(value);
        Ok(value.len())
    }))
}

/// Gives `entry` the mode and the owners of `--chmod` and `--chown`. With an access control list the
/// change of the mode applies to the list, as chmod does it.
pub fn change(entry: &mut Entry, changes: &MetadataChanges) {
    if changes.is_empty() {
        return;
    }
    let is_directory = entry.kind == EntryKind::Directory;
    let new_mode = |mode| changes.mode(mode, is_directory);
    let mut attributes = entry.attributes().unwrap_or_default();
    let list = attributes
        .iter_mut()
        .find(|one| one.name == acl::ACCESS.as_bytes());
    let changed = list.and_then(|list| {
        let (value, mode) = acl::change_mode(&list.value, entry.mode, new_mode)?;
        list.value = value;
        Some(mode)
    });
    match changed {
        Some(mode) => {
            entry.mode = mode;
            // It has as many bytes as before.
            entry.set_attributes(&attributes);
        }
        None if matches!(entry.kind, EntryKind::Symlink(_)) => {}
        None => entry.mode = new_mode(entry.mode),
    }
    for (new, name, id) in [
        (&changes.user, &mut entry.user, &mut entry.uid),
        (&changes.group, &mut entry.group, &mut entry.gid),
    ] {
        match new {
            None => {}
            Some(NewOwner::Number(number)) => {
                name.clear();
                *id = *number;
            }
            Some(NewOwner::Name(new)) => name.clone_from(new),
        }
    }
}

/// Names of users and groups by number, each looked up once.
#[derive(Default)]
pub struct OwnerNames {
    users: HashMap<u32, Vec<u8>>,
    groups: HashMap<u32, Vec<u8>>,
}

/// Most users, and most groups, that are remembered.
const OWNERS_MAX: usize = 10_000;

impl OwnerNames {
    /// Names the owner and group of `entry`, if they are kept by name and this host knows the names.
    pub fn name(&mut self, entry: &mut Entry, keep: &Keep) {
        if keep.numeric_ids {
            return;
        }
        for known in [&mut self.users, &mut self.groups] {
            if known.len() >= OWNERS_MAX {
                known.clear();
            }
        }
        // If a directory service does not answer, the number counts.
        if keep.owner {
            let known = self.users.entry(entry.uid).or_insert_with_key(|&uid| {
                let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
                user.map_or_else(Vec::new, |user| user.name.into_bytes())
            });
            entry.user.clone_from(known);
        }
        if keep.group {
            let known = self.groups.entry(entry.gid).or_insert_with_key(|&gid| {
                let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
                group.map_or_else(Vec::new, |group| group.name.into_bytes())
            });
            entry.group.clone_from(known);
        }
    }
}
