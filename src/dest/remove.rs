//! Removes entries that the source does not have (`--delete`).

use std::collections::HashSet;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, StatxAttributes, StatxFlags, statx, unlinkat};
use rustix::io::Errno;

use super::{Directory, EntrySlot};
use crate::dir::{Dir, DirReader};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Name, file_type};

/// Directories of a tree that stay open for reading; outer ones keep their position.
const READING_MAX: usize = 32;

/// Removes entries, or only counts what it would remove.
pub struct Remover<'a> {
    pub only_counts: bool,
    /// Directories that are never removed: those that are copied, and those above them.
    pub sources: &'a HashSet<(u64, u64)>,
    pub is_ending: &'a dyn Fn() -> bool,
    /// Gets the path of each removed entry; that of a directory ends in a slash.
    pub removed: &'a mut dyn FnMut(&[u8]),
    pub failed: &'a mut dyn FnMut(&Error),
}

/// A directory that is being emptied.
struct TreeLevel {
    reader: DirReader,
    /// Holds the permissions that were added to empty it.
    _opened: Option<Directory>,
    slot: EntrySlot,
    /// Length of the path of the directory above.
    outer: usize,
    /// Something in it could not be removed.
    is_left: bool,
}

/// What became of one entry.
enum Removal {
    Removed,
    /// Another process was faster.
    Gone,
    /// An error was reported.
    Left,
    Directory(Arc<Dir>, Option<Directory>),
}

impl Remover<'_> {
    /// Removes `name` in `dir`, and everything in it. `path` is its path for messages.
    pub fn remove_tree(&mut self, dir: &Arc<Dir>, name: &Name, path: Vec<u8>) {
        let mut path = path;
        let mut levels: Vec<TreeLevel> = Vec::new();
        let mut next = Some((EntrySlot::new(dir.clone(), name.clone()), 0));
        while !(self.is_ending)() {
            if let Some((slot, outer)) = next.take() {
                match self.entry(&slot) {
                    Removal::Removed => (self.removed)(&path),
                    Removal::Gone => {}
                    Removal::Left => leave(&mut levels),
                    Removal::Directory(dir, opened) => {
                        path.push(b'/');
                        levels.push(TreeLevel {
                            reader: DirReader::new(dir),
                            _opened: opened,
                            slot,
                            outer,
                            is_left: false,
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
                return;
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
            let Some(level) = levels.pop() else { return };
            match self.emptied(&level) {
                true => (self.removed)(&path),
                false => leave(&mut levels),
            }
            path.truncate(level.outer);
        }
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
        if file_type(&stat) != FileType::Directory {
            return match self.only_counts {
                true => Ok(Removal::Removed),
                false => unlink(slot, AtFlags::empty()),
            };
        }
        self.check_directory(slot, (stat.st_dev, stat.st_ino))?;
        if !self.only_counts {
            let opened = Directory::enter_to_empty(slot)?;
            return Ok(Removal::Directory(opened.dir().clone(), Some(opened)));
        }
        match slot.dir.child(&slot.name) {
            Ok(dir) => Ok(Removal::Directory(dir, None)),
            Err(_) => Ok(Removal::Removed),
        }
    }

    /// # Errors
    /// `Kind::Refused` for a directory that must stay.
    fn check_directory(&self, slot: &EntrySlot, identity: (u64, u64)) -> Result<()> {
        if self.sources.contains(&identity) {
            return Err(slot.refused("is not deleted: it contains the source"));
        }
        if identity.0 != slot.dir.identity().0 || is_mount_point(slot) {
            return Err(slot.refused("is not deleted: it is a mount point"));
        }
        Ok(())
    }

    /// Opens a directory of which some entries may stay.
    ///
    /// # Errors
    /// If it must stay, or cannot be opened.
    pub fn open_directory(&self, slot: &EntrySlot) -> Result<(Arc<Dir>, Option<Directory>)> {
        let Some(stat) = slot.stat()? else {
            return Err(slot.unreadable(Errno::NOENT));
        };
        self.check_directory(slot, (stat.st_dev, stat.st_ino))?;
        if self.only_counts {
            let dir = slot.dir.child(&slot.name);
            return Ok((dir.map_err(|cause| slot.unreadable(cause))?, None));
        }
        let opened = Directory::enter_to_empty(slot)?;
        Ok((opened.dir().clone(), Some(opened)))
    }

    /// Removes a directory whose entries were handled. True if it is gone.
    fn emptied(&mut self, level: &TreeLevel) -> bool {
        if level.is_left || self.only_counts {
            return !level.is_left;
        }
        match unlink(&level.slot, AtFlags::REMOVEDIR) {
            Ok(removal) => matches!(removal, Removal::Removed),
            Err(error) => {
                (self.failed)(&error);
                false
            }
        }
    }
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

fn unlink(slot: &EntrySlot, flags: AtFlags) -> Result<Removal> {
    let removed = slot
        .dir
        .handle()
        .and_then(|dir| Ok(unlinkat(&*dir, slot.name.as_os_str(), flags)?));
    match removed {
        Ok(()) => Ok(Removal::Removed),
        Err(cause) if Errno::from_io_error(&cause) == Some(Errno::NOENT) => Ok(Removal::Gone),
        Err(cause) => Err(Error::io(
            Kind::Write,
            Side::Dest,
            slot.path(),
            CANNOT_DELETE,
            cause,
        )),
    }
}

fn leave(levels: &mut [TreeLevel]) {
    if let Some(above) = levels.last_mut() {
        above.is_left = true;
    }
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
    ) -> (Vec<String>, Vec<String>) {
        let (mut paths, mut errors) = (Vec::new(), Vec::new());
        let slot = slot(root, name);
        let mut remover = Remover {
            only_counts,
            sources: &HashSet::new(),
            is_ending: &|| false,
            removed: &mut |path| paths.push(String::from_utf8_lossy(path).into_owned()),
            failed: &mut |error| errors.push(error.message.clone()),
        };
        remover.remove_tree(&slot.dir, &slot.name, name.as_bytes().to_vec());
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
            let (paths, errors) = removed(only_counts, temp.path(), "t");
            assert_eq!((paths, errors.len()), (all.map(str::to_owned).to_vec(), 0));
            assert_eq!(path("t").exists(), only_counts);
        }
        assert!(path("kept/f").exists());
    }
}
