//! The entries of a directory at the destination, in a form that can be compared with the source's.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{Dir as Reader, FileType, Mode, OFlags, readlinkat};

use super::existing::content_of;
use super::{Rules, is_own_name};
use crate::chunk::SMALL_FILE_MAX;
use crate::dir::Dir;
use crate::dir::attributes::{OwnerNames, mode_beside, read_in};
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
    each_entry(dir, rules, names, false, &mut each)
}

/// The same for a directory of an earlier copy, whose files have several names.
///
/// # Errors
/// If the directory cannot be read.
pub fn entries_to_link(
    dir: &Arc<Dir>,
    rules: &Rules,
    names: &mut OwnerNames,
    mut each: impl FnMut(Entry),
) -> std::io::Result<()> {
    each_entry(dir, rules, names, true, &mut each)
}

/// `has_linked`: also files with several names.
fn each_entry(
    dir: &Arc<Dir>,
    rules: &Rules,
    names: &mut OwnerNames,
    has_linked: bool,
    each: &mut dyn FnMut(Entry),
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
        if let Some(entry) = entry(dir, name, rules, names, has_linked) {
            each(entry);
        }
    }
    Ok(())
}

/// Reads a small file in `dir` and puts the BLAKE3 of its content into the entry, unless it has
/// changed since.
pub fn read_content(dir: &Arc<Dir>, entry: &mut Entry) {
    if entry.kind != EntryKind::File || entry.size > SMALL_FILE_MAX {
        return;
    }
    // An error is reported when the entry itself is compared.
    if let Ok(Some(content)) = content_of(dir, entry.name.as_os_str(), entry.size) {
        entry.set_content(&content);
    }
}

fn entry(
    dir: &Arc<Dir>,
    name: Name,
    rules: &Rules,
    names: &mut OwnerNames,
    has_linked: bool,
) -> Option<Entry> {
    let keep = &rules.keep;
    let stat = dir.stat(name.as_os_str()).ok()?;
    let kind = match file_type(&stat) {
        FileType::RegularFile if stat.st_nlink > 1 && !has_linked => return None,
        FileType::RegularFile => EntryKind::File,
        FileType::Symlink => {
            let handle = dir.handle().ok()?;
            let text = readlinkat(&*handle, name.as_os_str(), Vec::new()).ok()?;
            EntryKind::Symlink(text.into_bytes())
        }
        FileType::Directory => return None,
        other => EntryKind::Special(SpecialFile::of(other)?),
    };
    let mut entry = Entry::from_stat(0, NO_PARENT, name, kind, &stat);
    names.name(&mut entry, keep);
    if !keep.has_attributes() {
        return Some(entry);
    }
    let handle = dir.handle().ok()?;
    let name = entry.name.as_os_str();
    let (attributes, failed) = read_in(keep, handle.as_fd(), name, false);
    if failed.is_some() || !entry.set_attributes(&attributes) {
        return None;
    }
    if let Some(mode) = mode_beside(entry.mode, &attributes) {
        entry.mode = mode;
    }
    Some(entry)
}
