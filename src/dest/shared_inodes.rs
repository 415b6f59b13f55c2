//! Files of a copy in place (`--inplace`) that have several names at the destination. If two entries
//! of the copy have names of one file there, the second would be written over the first.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FileType, Stat};

use super::{EntrySlot, Rules};
use crate::dir::Dir;
use crate::error::Result;
use crate::manifest::{Name, file_type};
use crate::units::printable;

/// Most files that are remembered, in some 30 MB.
const FILES_MAX: usize = 1 << 17;

/// The files with several names that this copy has met.
#[derive(Debug, Default)]
pub struct SharedInodes {
    state: Mutex<SharedState>,
    /// Sources on other hosts go to the same destination, in sessions of their own.
    is_beside: bool,
}

impl SharedInodes {
    pub fn new(is_beside: bool) -> Arc<SharedInodes> {
        Arc::new(SharedInodes {
            is_beside,
            ..SharedInodes::default()
        })
    }
}

#[derive(Default)]
struct SharedState {
    /// By device and inode.
    files: HashMap<(u64, u64), FirstUse>,
    /// There was no room for one that stays.
    is_full: bool,
}

/// The first entry that has the file.
struct FirstUse {
    dir: Arc<Dir>,
    name: Name,
    use_of_file: InodeUse,
}

/// What becomes of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InodeUse {
    /// It stays: it equals the content of the entry, or the user wants to keep it.
    Stays,
    Written,
}

impl std::fmt::Debug for SharedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SharedState")
            .field(&self.files.len())
            .finish()
    }
}

/// Notes what becomes of the existing file in `slot`, whose status is `old`.
///
/// # Errors
/// `Kind::Refused` if another entry of this copy has the same file, and one of the two is written;
/// with sources on several hosts, also if another entry may have it.
pub(super) fn use_in_place(
    slot: &EntrySlot,
    old: &Stat,
    use_of_file: InodeUse,
    rules: &Rules,
) -> Result<()> {
    let is_shared = file_type(old) == FileType::RegularFile && old.st_nlink > 1;
    if !rules.inplace || !is_shared || slot.device.is_some() {
        return Ok(());
    }
    if rules.shared_inodes.is_beside && use_of_file == InodeUse::Written {
        return Err(slot.refused(
            "has several hard links, and --inplace could write a file from another host into the \
             same inode; copy from each host in its own run, or without --inplace",
        ));
    }
    let mut state = rules.shared_inodes.state.lock();
    let key = (old.st_dev, old.st_ino);
    if let Some(first) = state.files.get_mut(&key) {
        let is_same = first.dir.identity() == slot.dir.identity() && first.name == slot.name;
        if is_same {
            first.use_of_file = use_of_file;
            return Ok(());
        }
        let what = match (first.use_of_file, use_of_file) {
            (InodeUse::Stays, InodeUse::Stays) => return Ok(()),
            (InodeUse::Written, _) => "this copy writes",
            (InodeUse::Stays, InodeUse::Written) => "this copy does not change",
        };
        let path = first.dir.path().join(&first.name);
        let path = printable(path.as_os_str().as_bytes());
        let option = rules.option_in_place();
        return Err(slot.refused(format!(
            "has the same inode as {path}, which {what}; copy without {option}"
        )));
    }
    if state.is_full || state.files.len() >= FILES_MAX {
        if use_of_file == InodeUse::Stays {
            state.is_full = true;
            return Ok(());
        }
        let option = rules.option_in_place();
        return Err(slot.refused(format!(
            "has several hard links, and there are too many such files to tell whether another file of \
             this copy has the same inode; copy it without {option}"
        )));
    }
    let (dir, name) = (slot.dir.clone(), slot.name.clone());
    let first = FirstUse {
        dir,
        name,
        use_of_file,
    };
    state.files.insert(key, first);
    Ok(())
}

/// Refuses to write in place into what a symbolic link leads to, which the user did not choose.
///
/// # Errors
/// `Kind::Refused` for a symbolic link, with `--inplace`.
pub(super) fn refuse_link(slot: &EntrySlot, old: &Stat, rules: &Rules) -> Result<()> {
    if !rules.inplace || file_type(old) != FileType::Symlink {
        return Ok(());
    }
    // `--scp` is another command, so a copy without it is no advice.
    let advice = match rules.is_scp() {
        true => "",
        false => ", or copy without --inplace",
    };
    let option = rules.option_in_place();
    Err(slot.refused(format!(
        "is a symbolic link, and {option} writes into files only: remove the link first{advice}"
    )))
}

/// The same for a file that an earlier session of this copy has put in place.
///
/// # Errors
/// As [`use_in_place`], or if it cannot be looked at.
pub fn stays_in_place(slot: &EntrySlot, rules: &Rules) -> Result<()> {
    if !rules.inplace {
        return Ok(());
    }
    match slot.stat()? {
        Some(old) => use_in_place(slot, &old, InodeUse::Stays, rules),
        None => Ok(()),
    }
}
