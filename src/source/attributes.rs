//! Metadata of a source that a plain status does not have: the names of owner and group, extended
//! attributes, and access control lists, which are extended attributes too.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use nix::unistd::{Gid, Group, Uid, User};
use rustix::fs::{fgetxattr, flistxattr, getxattr, lgetxattr, listxattr, llistxattr};
use rustix::io::Errno;

use super::found::FoundFile;
use crate::dir::acl;
use crate::keep::{ACCESS_LIST, Keep};
use crate::manifest::{Attribute, Entry, EntryKind, NO_PARENT};

/// The longest list of names and the longest value on Linux, in bytes.
const LEN_MAX: usize = 64 << 10;

/// Room for most lists and values, in bytes.
const USUAL_LEN: usize = 512;

/// Names of users and groups, each looked up once.
#[derive(Default)]
pub(super) struct OwnerNames {
    users: HashMap<u32, Vec<u8>>,
    groups: HashMap<u32, Vec<u8>>,
}

impl OwnerNames {
    /// Names the owner and group of `entry`, if the system knows their names.
    pub(super) fn name(&mut self, entry: &mut Entry, keep: &Keep) {
        if keep.owner {
            entry.user = self
                .users
                .entry(entry.uid)
                .or_insert_with(|| {
                    // An unknown name, or a directory service that does not answer: the number
                    // counts.
                    let user = User::from_uid(Uid::from_raw(entry.uid)).ok().flatten();
                    user.map_or_else(Vec::new, |user| user.name.into_bytes())
                })
                .clone();
        }
        if keep.group {
            entry.group = self
                .groups
                .entry(entry.gid)
                .or_insert_with(|| {
                    let group = Group::from_gid(Gid::from_raw(entry.gid)).ok().flatten();
                    group.map_or_else(Vec::new, |group| group.name.into_bytes())
                })
                .clone();
        }
    }
}

/// Adds the attributes of a file, directory, link or special file that the walk has found. False if
/// some of them cannot be read, or if there are too many of them.
///
/// The mode becomes that without the access control list, since the destination may not have lists.
pub(super) fn add(found: &mut FoundFile, keep: &Keep) -> bool {
    let Ok(dir) = found.dir.handle() else {
        // The entry fails when it is opened.
        return true;
    };
    let dir = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    let is_named_directory =
        found.entry.kind == EntryKind::Directory && found.entry.parent == NO_PARENT;
    let (path, follows) = match is_named_directory {
        true => (dir, true),
        false => (dir.join(&found.name), found.through_link),
    };
    let read = match follows {
        true => read(
            keep,
            |room| listxattr(&path, room),
            |name, room| getxattr(&path, name, room),
        ),
        false => read(
            keep,
            |room| llistxattr(&path, room),
            |name, room| lgetxattr(&path, name, room),
        ),
    };
    set(&mut found.entry, read)
}

/// Reads the attributes of an open file again. False if some cannot be read.
pub(super) fn refresh(entry: &mut Entry, file: &File, keep: &Keep) -> bool {
    let read = read(
        keep,
        |room| flistxattr(file, room),
        |name, room| fgetxattr(file, name, room),
    );
    set(entry, read)
}

fn set(entry: &mut Entry, (attributes, is_whole): (Vec<Attribute>, bool)) -> bool {
    let list = attributes
        .iter()
        .find(|one| one.name == ACCESS_LIST.as_bytes());
    if let Some(list) = list {
        let value = &list.value;
        entry.mode = acl::mode_without_list(entry.mode, |room| {
            let room = room.get_mut(..value.len()).ok_or(Errno::RANGE)?;
            room.copy_from_slice(value);
            Ok(value.len())
        });
    }
    entry.set_attributes(&attributes) && is_whole
}

/// The attributes that are kept, and false if some could not be read.
fn read(
    keep: &Keep,
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&str, &mut [u8]) -> rustix::io::Result<usize>,
) -> (Vec<Attribute>, bool) {
    let names = match whole(list) {
        Ok(names) => names,
        // A file system without attributes has none to keep. A file that has vanished fails when it
        // is opened.
        Err(Errno::NOTSUP | Errno::NOENT | Errno::NOSYS) => return (Vec::new(), true),
        Err(_) => return (Vec::new(), false),
    };
    let (mut attributes, mut is_whole) = (Vec::new(), true);
    for name in names.split(|&byte| byte == 0) {
        if name.is_empty() || !keep.takes(name) {
            continue;
        }
        // Names of attributes are text on every Linux file system that lists them.
        let Ok(text) = std::str::from_utf8(name) else {
            is_whole = false;
            continue;
        };
        match whole(|room| get(text, room)) {
            Ok(value) => attributes.push(Attribute {
                name: name.to_vec(),
                value,
            }),
            // It was removed since.
            Err(Errno::NODATA) => {}
            Err(_) => is_whole = false,
        }
    }
    attributes.sort();
    (attributes, is_whole)
}

/// Calls `get` with a buffer that is large enough.
fn whole(get: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut usual = [0; USUAL_LEN];
    match get(&mut usual) {
        // A size of 0 in a call asks for the length only, so `get` never sees an empty buffer.
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
