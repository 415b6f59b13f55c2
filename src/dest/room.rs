//! Room for an entry where the destination has one of another kind, which no rename replaces
//! (`--delete`): a new directory where there is anything else; anything else where there is a
//! directory; a file or a link where there is a special file; with `--inplace`, a file where there
//! is a link.

use rustix::fs::{FileType, Stat};

use super::{EntrySlot, Rules};
use crate::dir::DirReader;
use crate::error::Result;
use crate::manifest::{Entry, EntryKind, NO_PARENT, file_type};

/// An existing entry that must be removed before another one gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A directory, which is not empty or cannot be read.
    FullDirectory,
    EmptyDirectory,
    /// A file, a link or a special file.
    Other,
}

/// The obstacle in the place of the entry. None if there is none, or if the rules do not allow its
/// removal: then the entry fails when it is placed. `--delete` does not change what an operand
/// itself may replace.
///
/// # Errors
/// If the place cannot be looked at.
pub fn obstacle(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<Option<Obstacle>> {
    if !rules.makes_room || entry.parent == NO_PARENT || slot.fresh || slot.device.is_some() {
        return Ok(None);
    }
    let Some(old) = slot.stat()? else {
        return Ok(None);
    };
    if !is_in_the_way(entry, &old, rules) {
        return Ok(None);
    }
    Ok(Some(match file_type(&old) {
        FileType::Directory if is_empty(slot) => Obstacle::EmptyDirectory,
        FileType::Directory => Obstacle::FullDirectory,
        _ => Obstacle::Other,
    }))
}

/// True if [`obstacle`] finds the entry with the status `old` in the way.
pub(super) fn is_removed_first(entry: &Entry, old: &Stat, rules: &Rules) -> bool {
    rules.makes_room && entry.parent != NO_PARENT && is_in_the_way(entry, old, rules)
}

fn is_in_the_way(entry: &Entry, old: &Stat, rules: &Rules) -> bool {
    match (&entry.kind, file_type(old)) {
        (EntryKind::Directory, FileType::Directory) => false,
        (EntryKind::Directory, _) | (_, FileType::Directory) => true,
        // Its target is not written in place.
        (EntryKind::File, FileType::Symlink) => rules.inplace,
        (_, FileType::RegularFile | FileType::Symlink) => false,
        // It replaces one of any kind.
        (EntryKind::Special(_), _) => false,
        _ => true,
    }
}

/// False for a directory that cannot be read.
fn is_empty(slot: &EntrySlot) -> bool {
    let dir = slot.dir.child(&slot.name);
    dir.is_ok_and(|dir| matches!(DirReader::new(dir).next_name(), Ok(None)))
}
