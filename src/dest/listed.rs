//! What a directory at the destination contains, as entries that can be compared with the source's.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{Dir as Reader, FileType, Mode, OFlags, lgetxattr, llistxattr, readlinkat};
use rustix::io::Errno;

use super::attributes::Marked;
use super::{Rules, is_own_name};
use crate::dir::Dir;
use crate::dir::acl::{self, mode_without_list};
use crate::dir::attributes::{OwnerNames, read};
use crate::manifest::{Entry, EntryKind, NO_PARENT, Name, SpecialFile, file_type};

/// Calls `each` for every entry in `dir` but directories, files with several names and our own
/// files, with the metadata that the rules keep. An entry that cannot be looked at is left out, as
/// if it did not exist.
///
/// # Errors
/// If the directory cannot be read.
pub fn entries_in(
    dir: &Arc<Dir>,
    rules: &Rules,
    names: &mut OwnerNames,
    mut each: impl FnMut(Entry),
) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut reader = Reader::new(dir.open(".".as_ref(), flags, Mode::empty())?)?;
    while let Some(found) = reader.read() {
        let found = found?;
        let name = found.file_name().to_bytes();
        if found.file_type() == FileType::Directory || is_own_name(name) {
            continue;
        }
        // Neither `.` nor `..`, if the file system does not tell types.
        let Ok(name) = Name::try_from(name.to_vec()) else {
            continue;
        };
        if let Some(entry) = entry(dir, name, rules, names) {
            each(entry);
        }
    }
    Ok(())
}

fn entry(dir: &Arc<Dir>, name: Name, rules: &Rules, names: &mut OwnerNames) -> Option<Entry> {
    let keep = &rules.keep;
    let stat = dir.stat(name.as_os_str()).ok()?;
    let kind = match file_type(&stat) {
        FileType::RegularFile if stat.st_nlink > 1 => return None,
        FileType::RegularFile => EntryKind::File,
        FileType::Symlink => {
            let handle = dir.handle().ok()?;
            let text = readlinkat(&*handle, name.as_os_str(), Vec::new()).ok()?;
            EntryKind::Symlink(text.into_bytes())
        }
        FileType::Directory => return None,
        other => EntryKind::Special(SpecialFile::of(other)?),
    };
    let is_file = kind == EntryKind::File;
    let mut entry = Entry::from_stat(0, NO_PARENT, name, kind, &stat);
    names.name(&mut entry, keep);
    let may_have_list = keep.perms && is_file && entry.mode & 0o070 != 0;
    if !keep.has_attributes() && !may_have_list {
        return Some(entry);
    }
    let handle = dir.handle().ok()?;
    let path = Marked::through_proc(&handle.as_fd()).join(&entry.name);
    if keep.has_attributes() {
        let (attributes, failed) = read(
            keep,
            |room| llistxattr(&path, room),
            |name, room| lgetxattr(&path, name, room),
        );
        if failed.is_some() || !entry.set_attributes(&attributes) {
            return None;
        }
        if attributes.is_empty() {
            return Some(entry);
        }
    }
    if is_file {
        let list = |room: &mut [u8]| match lgetxattr(&path, acl::ACCESS, room) {
            Err(Errno::NOENT) => Err(Errno::NODATA),
            other => other,
        };
        entry.mode = mode_without_list(entry.mode, list);
    }
    Some(entry)
}
