//! The extended attributes of what the walk finds.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{fgetxattr, flistxattr, getxattr, lgetxattr, listxattr, llistxattr};
use rustix::io::Errno;

use crate::dir::attributes::read;
use crate::dir::{Dir, acl};
use crate::keep::{ACCESS_LIST, Keep};
use crate::manifest::{Attribute, Entry, EntryKind, NO_PARENT, Name};

/// Adds the attributes of a file, directory, link or special file that the walk has found. False if
/// some of them cannot be read, or if there are too many of them.
///
/// The mode becomes that without the access control list, since the destination may not have lists.
pub(super) fn add(
    entry: &mut Entry,
    (dir, name): (&Arc<Dir>, &Name),
    through_link: bool,
    keep: &Keep,
) -> bool {
    let Ok(dir) = dir.handle() else {
        // The entry fails when it is opened.
        return true;
    };
    let dir = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    // A directory that the user named is `dir` itself.
    let is_dir = entry.kind == EntryKind::Directory && entry.parent == NO_PARENT;
    let (path, follows) = match is_dir {
        true => (dir, true),
        false => (dir.join(name), through_link),
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
    set(entry, read)
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

fn set(entry: &mut Entry, (attributes, failed): (Vec<Attribute>, Option<Errno>)) -> bool {
    let is_list = |one: &&Attribute| one.name == ACCESS_LIST.as_bytes();
    if let Some(list) = attributes.iter().find(is_list) {
        let value = &list.value;
        entry.mode = acl::mode_without_list(entry.mode, |room| {
            let room = room.get_mut(..value.len()).ok_or(Errno::RANGE)?;
            room.copy_from_slice(value);
            Ok(value.len())
        });
    }
    // A file that has vanished fails when it is opened.
    let is_whole = failed.is_none_or(|cause| cause == Errno::NOENT);
    entry.set_attributes(&attributes) && is_whole
}
