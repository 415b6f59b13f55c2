//! The extended attributes of the entries that the walk finds.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, fgetxattr, flistxattr, statat};
use rustix::io::Errno;

use crate::dir::Dir;
use crate::dir::attributes::{mode_beside, read, read_in};
use crate::keep::Keep;
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
    // A directory that the user named is `dir` itself.
    let is_dir = entry.kind == EntryKind::Directory && entry.parent == NO_PARENT;
    let read = match is_dir {
        true => read(
            keep,
            |room| flistxattr(&*dir, room),
            |name, room| fgetxattr(&*dir, name, room),
        ),
        false => read_in(keep, dir.as_fd(), name.as_os_str(), through_link),
    };
    // A file that has vanished fails when it is opened.
    let is_gone = read.1 == Some(Errno::NOENT)
        && statat(&*dir, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW).is_err();
    set(entry, read) || is_gone
}

/// Reads the attributes of an open file again. If some cannot be read, the entry keeps its earlier
/// attributes.
pub(super) fn refresh(entry: &mut Entry, file: &File, keep: &Keep) {
    let read = read(
        keep,
        |room| flistxattr(file, room),
        |name, room| fgetxattr(file, name, room),
    );
    let before = entry.clone();
    if !set(entry, read) {
        *entry = before;
    }
}

fn set(entry: &mut Entry, (attributes, failed): (Vec<Attribute>, Option<Errno>)) -> bool {
    if let Some(mode) = mode_beside(entry.mode, &attributes) {
        entry.mode = mode;
    }
    entry.set_attributes(&attributes) && failed.is_none()
}
