//! Removes entries that the source does not have (`--delete`).

use std::collections::HashSet;

use rustix::fs::{AtFlags, FileType, StatxAttributes, StatxFlags, statx, unlinkat};
use rustix::io::Errno;

use super::{BackupPart, Directory, EntrySlot, Rules, closed, holds_snapshots, is_own_name};
use crate::dir::DirReader;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Name, Timestamp, file_type};

/// Directories of a tree that stay open for reading; outer ones keep their position.
const READING_MAX: usize = 32;

/// Removes entries, or only counts what it would remove.
pub struct Remover<'a> {
    pub only_counts: bool,
    /// No permissions are added to look into a directory.
    pub only_looks: bool,
    /// Device and inode of files and directories that are never removed.
    pub protected: &'a HashSet<(u64, u64)>,
    /// Decide whether a removed entry gets a backup.
    pub rules: &'a Rules,
    pub is_ending: &'a dyn Fn() -> bool,
    /// Entries younger than this are not removed.
    pub began: Timestamp,
    /// Asked before each removal; if it returns false, the entry stays.
    pub may_remove: &'a dyn Fn() -> bool,
    /// Gets the path of each removed entry; that of a directory ends in a slash.
    pub removed: &'a mut dyn FnMut(&[u8]),
    pub failed: &'a mut dyn FnMut(&Error),
}

/// A directory that is being emptied.
struct TreeLevel {
    reader: DirReader,
    /// Holds the permissions that were added to empty it.
    _opened: Directory,
    slot: EntrySlot,
    /// Length of the path of the directory above.
    outer: usize,
    /// Something in it could not be removed.
    is_left: bool,
    /// Something was removed since it was read from the start.
    is_less: bool,
}

/// What became of one entry.
enum Removal {
    Removed,
    /// It has a backup in the same directory.
    BackedUp,
    /// Another process was faster.
    Gone,
    /// An error was reported, or it may not be removed.
    Left,
    Directory(Directory),
}

impl Remover<'_> {
    /// Removes an entry and everything in it. `path` is its path for messages. False if something
    /// stays.
    pub fn remove_tree(&mut self, top: &EntrySlot, mut path: Vec<u8>) -> bool {
        let mut levels: Vec<TreeLevel> = Vec::new();
        let mut next = Some((top.clone(), 0));
        while !(self.is_ending)() {
            if let Some((slot, outer)) = next.take() {
                match self.entry(&slot) {
                    Removal::Removed => {
                        (self.removed)(&path);
                        lessen(&mut levels);
                    }
                    Removal::BackedUp => {
                        (self.removed)(&path);
                        leave(&mut levels);
                    }
                    Removal::Gone => {}
                    Removal::Left if levels.is_empty() => return false,
                    Removal::Left => leave(&mut levels),
                    Removal::Directory(opened) => {
                        path.push(b'/');
                        levels.push(TreeLevel {
                            reader: DirReader::new(opened.dir().clone()),
                            _opened: opened,
                            slot,
                            outer,
                            is_left: false,
                            is_less: false,
                        });
                        if let Some(above) = levels.len().checked_sub(READING_MAX + 1) {
                            levels[above].reader.pause();
                        }
                        continue;
                    }
                }
                path.truncate(outer);
            }
            let Some(level) = levels.last_mut() else {
                return true;
            };
            match level.reader.next_name() {
                Ok(Some(found)) => {
                    let outer = path.len();
                    path.extend_from_slice(&found.name);
                    // Names that the system lists are names, but for a broken file system.
                    match Name::try_from(found.name) {
                        Ok(name) => {
                            let dir = level.reader.dir().clone();
                            next = Some((EntrySlot::new(dir, name), outer));
                        }
                        Err(_) => {
                            level.is_left = true;
                            path.truncate(outer);
                        }
                    }
                    continue;
                }
                Ok(None) => {}
                Err(cause) => {
                    let error = level.slot.error("cannot read the directory", cause);
                    (self.failed)(&error);
                    level.is_left = true;
                }
            }
            let Some(mut level) = levels.pop() else {
                return true;
            };
            let is_gone = match self.emptied(&level) {
                // Some file systems skip entries while others are removed.
                Emptied::HasMore if level.is_less => {
                    level.is_less = false;
                    level.reader = DirReader::new(level.reader.dir().clone());
                    levels.push(level);
                    continue;
                }
                Emptied::HasMore => {
                    let message = "cannot delete it: it is not empty, another process may be \
                                   writing there";
                    let error = Error::new(Kind::Write, Side::Dest, message);
                    (self.failed)(&error.at(level.slot.path()));
                    false
                }
                Emptied::Yes => true,
                Emptied::No => false,
            };
            match (is_gone, levels.is_empty()) {
                (true, _) => {
                    (self.removed)(&path);
                    lessen(&mut levels);
                }
                (false, true) => return false,
                (false, false) => leave(&mut levels),
            }
            path.truncate(level.outer);
        }
        false
    }

    /// Removes one entry, or opens a directory.
    fn entry(&mut self, slot: &EntrySlot) -> Removal {
        match self.try_entry(slot) {
            Ok(removal) => removal,
            Err(error) => {
                (self.failed)(&error);
                Removal::Left
            }
        }
    }

    fn try_entry(&mut self, slot: &EntrySlot) -> Result<Removal> {
        let Some(stat) = slot.stat()? else {
            return Ok(Removal::Gone);
        };
        if is_born_since(slot, self.began) {
            return Ok(Removal::Left);
        }
        let identity = (stat.st_dev, stat.st_ino);
        if file_type(&stat) == FileType::Directory {
            self.check_directory(slot, identity)?;
            return self.enter(slot).map(Removal::Directory);
        }
        if self.protected.contains(&identity) {
            return Err(slot.refused("is never deleted: it is the source"));
        }
        let backup = self.rules.backup.as_ref();
        if backup.is_some_and(|backup| backup.has_made(slot)) {
            return Ok(Removal::Left);
        }
        // A backup has no backup.
        let has_none =
            |name: &[u8]| is_own_name(name) || backup.is_some_and(|backup| backup.is_backup(name));
        let backup = backup.filter(|_| !has_none(slot.name.as_bytes()));
        let removed = match backup {
            Some(backup) if backup.are_beside() => Removal::BackedUp,
            Some(_) | None => Removal::Removed,
        };
        if self.only_counts {
            return Ok(removed);
        }
        if !(self.may_remove)() {
            return Ok(Removal::Left);
        }
        match backup {
            Some(backup) => backup.move_away(slot, &stat, self.rules).map(|()| removed),
            None => unlink(slot),
        }
    }

    /// # Errors
    /// `Kind::Refused` for a directory that must stay.
    fn check_directory(&self, slot: &EntrySlot, identity: (u64, u64)) -> Result<()> {
        let part = self.rules.backup.as_ref();
        let part = part.map_or(BackupPart::None, |backup| backup.part(identity));
        if part == BackupPart::Root {
            return Err(slot.refused("is never deleted: it holds the backups"));
        }
        if self.protected.contains(&identity) {
            let message = "is never deleted: it is or contains a source, an earlier copy, or what \
                           this command has copied";
            return Err(slot.refused(message));
        }
        if identity.0 != slot.dir.identity().0 || is_mount_point(slot) {
            return Err(
                slot.refused("is never deleted: it is a mount point, or another file system")
            );
        }
        Ok(())
    }

    /// Opens a directory of which some entries may stay.
    ///
    /// # Errors
    /// If it must stay, or cannot be opened.
    pub fn open_directory(&self, slot: &EntrySlot) -> Result<Directory> {
        let Some(stat) = slot.stat()? else {
            return Err(slot.unreadable(Errno::NOENT));
        };
        self.check_directory(slot, (stat.st_dev, stat.st_ino))?;
        self.enter(slot)
    }

    /// # Errors
    /// `Kind::Refused` for a directory of snapshots that the key may not change.
    fn enter(&self, slot: &EntrySlot) -> Result<Directory> {
        let directory = enter_to_delete(slot, self.only_looks)?;
        let is_closed = self.rules.closed && !self.rules.snapshot;
        match is_closed && holds_snapshots(directory.dir()) {
            true => Err(closed(directory.dir())),
            false => Ok(directory),
        }
    }

    /// Removes a directory whose entries were handled.
    fn emptied(&mut self, level: &TreeLevel) -> Emptied {
        if level.is_left || !self.only_counts && !(self.may_remove)() {
            return Emptied::No;
        }
        if self.only_counts {
            return Emptied::Yes;
        }
        let cause = match level.slot.dir.handle() {
            Ok(dir) => match unlinkat(&*dir, level.slot.name.as_os_str(), AtFlags::REMOVEDIR) {
                Ok(()) => return Emptied::Yes,
                Err(Errno::NOENT) => return Emptied::No,
                Err(Errno::NOTEMPTY | Errno::EXIST) => return Emptied::HasMore,
                Err(cause) => cause.into(),
            },
            Err(cause) => cause,
        };
        (self.failed)(&level.slot.error(CANNOT_DELETE, cause));
        Emptied::No
    }
}

/// What became of a directory that was to be emptied.
enum Emptied {
    /// It is removed.
    Yes,
    No,
    HasMore,
}

/// Enters a directory to delete some of its entries. If it `only_looks`, no permissions are added.
///
/// # Errors
/// If it cannot be opened.
pub fn enter_to_delete(slot: &EntrySlot, only_looks: bool) -> Result<Directory> {
    if !only_looks {
        return Directory::enter_to_empty(slot);
    }
    let gone = || slot.unreadable(Errno::NOENT);
    Directory::look_for(slot)?.ok_or_else(gone)
}

/// Removes a directory unless something is left in it. True if it is removed.
///
/// # Errors
/// If it cannot be removed although it is empty.
pub fn remove_if_empty(slot: &EntrySlot) -> Result<bool> {
    let removed = slot
        .dir
        .handle()
        .and_then(|dir| Ok(unlinkat(&*dir, slot.name.as_os_str(), AtFlags::REMOVEDIR)?));
    match removed {
        Ok(()) => Ok(true),
        Err(cause) => match Errno::from_io_error(&cause) {
            Some(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => Ok(false),
            _ => Err(slot.error(CANNOT_DELETE, cause)),
        },
    }
}

const CANNOT_DELETE: &str = "cannot delete it";

fn unlink(slot: &EntrySlot) -> Result<Removal> {
    let name = slot.name.as_os_str();
    let removed = slot
        .dir
        .handle()
        .and_then(|dir| Ok(unlinkat(&*dir, name, AtFlags::empty())?));
    match removed {
        Ok(()) => Ok(Removal::Removed),
        Err(cause) if Errno::from_io_error(&cause) == Some(Errno::NOENT) => Ok(Removal::Gone),
        Err(cause) => Err(slot.error(CANNOT_DELETE, cause)),
    }
}

fn lessen(levels: &mut [TreeLevel]) {
    if let Some(above) = levels.last_mut() {
        above.is_less = true;
    }
}

fn leave(levels: &mut [TreeLevel]) {
    if let Some(above) = levels.last_mut() {
        above.is_left = true;
    }
}

/// True if an entry was made since `time`, where the file system keeps times of birth.
pub fn is_born_since(slot: &EntrySlot, time: Timestamp) -> bool {
    let Ok(dir) = slot.dir.handle() else {
        return false;
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = statx(&*dir, slot.name.as_os_str(), flags, StatxFlags::BTIME);
    let birth = found.ok().as_ref().and_then(Timestamp::birth);
    birth.is_some_and(|birth| birth.is_since(time, Timestamp::now()))
}

/// True for the root of a mounted file system, also where the device number shows no border (a bind
/// mount). Kernels before 5.8 do not tell; there the removal of the directory itself fails.
fn is_mount_point(slot: &EntrySlot) -> bool {
    let Ok(dir) = slot.dir.handle() else {
        return false;
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(&*dir, slot.name.as_os_str(), flags, StatxFlags::empty())
        .is_ok_and(|told| told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::testing::*;
    use super::*;

    fn removed(
        only_counts: bool,
        root: &std::path::Path,
        name: &str,
        rules: &Rules,
    ) -> (Vec<String>, Vec<String>) {
        let (mut paths, mut errors) = (Vec::new(), Vec::new());
        let slot = slot(root, name);
        let mut remover = Remover {
            only_counts,
            only_looks: false,
            rules,
            protected: &HashSet::new(),
            is_ending: &|| false,
            may_remove: &|| true,
            began: Timestamp { s: i64::MAX, ns: 0 },
            removed: &mut |path| paths.push(String::from_utf8_lossy(path).into_owned()),
            failed: &mut |error| errors.push(error.message.clone()),
        };
        remover.remove_tree(&slot, name.as_bytes().to_vec());
        paths.sort();
        (paths, errors)
    }

    #[test]
    fn a_tree_goes_whatever_its_modes_are_and_links_are_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        std::fs::create_dir_all(path("t/a/b")).unwrap();
        std::fs::create_dir(path("kept")).unwrap();
        std::fs::write(path("kept/f"), b"x").unwrap();
        std::fs::write(path("t/a/f"), b"x").unwrap();
        std::os::unix::fs::symlink(path("kept"), path("t/a/link")).unwrap();
        std::fs::write(path("t/a/.fastcp-0123456789abcdef.part"), b"x").unwrap();
        for name in ["t/a/b", "t/a"] {
            std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(0o500)).unwrap();
        }
        let all = [
            "t/",
            "t/a/",
            "t/a/.fastcp-0123456789abcdef.part",
            "t/a/b/",
            "t/a/f",
            "t/a/link",
        ];
        for only_counts in [true, false] {
            let (paths, errors) = removed(only_counts, temp.path(), "t", &rules());
            assert_eq!((paths, errors.len()), (all.map(str::to_owned).to_vec(), 0));
            assert_eq!(path("t").exists(), only_counts);
        }
        assert!(path("kept/f").exists());
    }

    /// A key that may delete, but replaces no files.
    #[test]
    fn snapshots_in_a_tree_stay_if_they_are_closed_to_the_key() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        std::fs::create_dir_all(path("t/web/.fastcp-snapshots")).unwrap();
        std::fs::create_dir_all(path("t/web/2026-11-22T020000Z")).unwrap();
        std::fs::create_dir_all(path("t/other")).unwrap();
        std::fs::write(path("t/web/2026-11-22T020000Z/f"), b"x").unwrap();
        std::fs::set_permissions(path("t/web"), std::fs::Permissions::from_mode(0o000)).unwrap();
        let closed = Rules {
            closed: true,
            ..rules()
        };
        for only_counts in [true, false] {
            let (paths, errors) = removed(only_counts, temp.path(), "t", &closed);
            assert_eq!(paths, ["t/other/"]);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains("holds snapshots"), "{errors:?}");
        }
        assert!(path("t/web/2026-11-22T020000Z/f").exists());
        let (paths, _) = removed(false, temp.path(), "t", &rules());
        assert_eq!(paths.len(), 5);
    }
}
