//! A directory at the destination, open until its last child is in place.
//!
//! Until then its owner has at least rwx, whatever its old or final mode is, since a read-only
//! directory cannot be filled. [`Directory::finish`] sets the mode, and then the times, which every
//! new child changes.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, Stat, chmod, fchmod, fstat, futimens, mkdirat};
use rustix::io::Errno;

use super::attributes::{self, Marked};
use super::lent_mode::{LentMode, WORKING};
use super::partial::inode_of;
use super::{EntrySlot, Rules, hints, own_names, sync_directory, times_of};
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, Inode, NO_PARENT, Name, Timestamp, file_type};

pub struct Directory {
    dir: Arc<Dir>,
    /// The directory that holds its name, if known.
    above: Option<Arc<Dir>>,
    made: bool,
    /// It was made just now, so it is empty.
    fresh: bool,
    /// Its permissions, unless it is only looked at.
    lent: Option<LentMode>,
}

/// For the error of `mkdir`.
pub(super) const CANNOT_CREATE: &str = "cannot create the directory";

impl Directory {
    /// Makes the directory, or enters an existing one. Fails for a symbolic link.
    pub fn make(slot: &EntrySlot) -> Result<Directory> {
        own_names::make_way(slot)?;
        let mut directory = Directory::make_or_enter(slot)?;
        directory.above = Some(slot.dir.clone());
        Ok(directory)
    }

    fn make_or_enter(slot: &EntrySlot) -> Result<Directory> {
        let handle = slot
            .dir
            .handle()
            .map_err(|cause| slot.error("cannot open its parent directory", cause))?;
        let name = slot.name.as_os_str();
        let made = match mkdirat(&*handle, name, Mode::from_raw_mode(WORKING)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(cause) => return Err(hints::name_error(slot, CANNOT_CREATE, cause)),
        };
        let closed = match slot.dir.child(&slot.name) {
            Ok(dir) => return Directory::open_up(dir, made, None),
            Err(cause) => cause,
        };
        let stat = slot.stat()?;
        if let Some(refused) = stat.and_then(|stat| is_in_the_way(slot, &stat)) {
            return Err(refused);
        }
        match stat {
            Some(_) if Errno::from_io_error(&closed) == Some(Errno::ACCESS) => {
                let mode = unlock(slot).map_err(|_| slot.error("cannot open", closed))?;
                let dir = slot.dir.child(&slot.name);
                let dir = dir.map_err(|cause| slot.error("cannot open", cause))?;
                Directory::open_up(dir, made, (!made).then_some(mode))
            }
            _ => Err(slot.error("cannot open", closed)),
        }
    }

    /// Enters an existing directory that the typed path leads to.
    pub fn enter(dir: Arc<Dir>) -> Result<Directory> {
        Directory::open_up(dir, false, None)
    }

    /// Enters an empty directory that was made for this copy.
    pub fn enter_new(dir: Arc<Dir>) -> Result<Directory> {
        let mut directory = Directory::open_up(dir, false, None)?;
        directory.fresh = true;
        Ok(directory)
    }

    /// Enters an existing directory to look at its entries. It gets no permissions, and never a mode
    /// or times.
    pub fn look(dir: Arc<Dir>) -> Directory {
        Directory {
            dir,
            above: None,
            made: false,
            fresh: false,
            lent: None,
        }
    }

    /// The directory in `slot`, to look at its entries. None if it does not exist.
    ///
    /// # Errors
    /// If something else is there, or it cannot be looked at.
    pub fn look_for(slot: &EntrySlot) -> Result<Option<Directory>> {
        if slot.fresh {
            return Ok(None);
        }
        let Some(stat) = slot.stat()? else {
            return Ok(None);
        };
        if let Some(refused) = is_in_the_way(slot, &stat) {
            return Err(refused);
        }
        let dir = slot.dir.child(&slot.name);
        let dir = dir.map_err(|cause| slot.error("cannot open", cause))?;
        Ok(Some(Directory::look(dir)))
    }

    /// Enters an existing directory to delete its entries.
    pub(super) fn enter_to_empty(slot: &EntrySlot) -> Result<Directory> {
        match slot.dir.child(&slot.name) {
            Ok(dir) => Directory::open_up(dir, false, None),
            Err(cause) if Errno::from_io_error(&cause) == Some(Errno::ACCESS) => {
                let mode = unlock(slot).map_err(|_| slot.error("cannot open", cause))?;
                let dir = slot.dir.child(&slot.name);
                let dir = dir.map_err(|cause| slot.error("cannot open", cause))?;
                Directory::open_up(dir, false, Some(mode))
            }
            Err(cause) => Err(slot.error("cannot open", cause)),
        }
    }

    pub fn dir(&self) -> &Arc<Dir> {
        &self.dir
    }

    /// Adds the missing permissions of [`WORKING`] if this user owns the directory. `before` is its
    /// mode before some were added by its name.
    fn open_up(dir: Arc<Dir>, made: bool, before: Option<u32>) -> Result<Directory> {
        let mut directory = Directory {
            dir,
            above: None,
            made,
            fresh: made,
            lent: None,
        };
        if made {
            // The umask may have removed some.
            let mode = directory.stat()?.st_mode & 0o7777;
            if mode & WORKING != WORKING {
                directory.chmod(mode | WORKING)?;
            }
        }
        let lent = LentMode::lend(&directory.dir, before);
        let lent = lent.map_err(|cause| directory.error("cannot set the mode", cause))?;
        directory.lent = Some(lent);
        Ok(directory)
    }

    /// False if it existed before the copy.
    pub fn made(&self) -> bool {
        self.made
    }

    /// The mode that it had before permissions were added.
    pub fn restore(&self) -> Option<u32> {
        self.lent.as_ref().and_then(LentMode::mode)
    }

    /// Identifies the directory on its file system, now and in later runs. None if the file system
    /// keeps no lasting inode numbers or no times of birth.
    pub fn lasting_inode(&self) -> Option<Inode> {
        if self.dir.lasting_number() == 0 {
            return None;
        }
        let inode = inode_of(&*self.dir.handle().ok()?).ok()?;
        (inode.birth != Timestamp::default()).then_some(inode)
    }

    /// True if it has the mode of a new directory whose last child is not in place yet.
    pub fn has_working_mode(&self) -> bool {
        self.stat()
            .is_ok_and(|stat| stat.st_mode & 0o777 == WORKING)
    }

    /// Notes that an earlier run of this copy made the directory, or added permissions to it.
    /// Set-id bits and the sticky bit keep their present values: adding permissions leaves them
    /// unchanged, so the journal's record does not apply to them.
    pub fn adopt(&mut self, made: bool, restore: Option<u32>) {
        const PERMISSIONS: u32 = 0o777;
        self.made |= made;
        let special = self.stat().map_or(0, |stat| stat.st_mode & 0o7000);
        let restore = restore.map(|mode| mode & PERMISSIONS | special);
        let Some(lent) = &self.lent else {
            return;
        };
        match restore {
            // A directory that the copy made gets the source's mode.
            _ if made => lent.set_mode(None),
            Some(mode) => lent.set_mode(Some(mode)),
            None => {}
        }
    }

    /// The directory, if it may have content that is older than the copy.
    pub fn with_content(&self) -> Option<&Arc<Dir>> {
        (!self.fresh).then_some(&self.dir)
    }

    /// The slot of a child.
    pub fn slot(&self, name: Name) -> EntrySlot {
        EntrySlot {
            dir: self.dir.clone(),
            name,
            fresh: self.fresh,
            device: None,
        }
    }

    /// Sets mode and times, as the rules say, after the last child is in place.
    pub fn finish(mut self, entry: &Entry, rules: &Rules) -> Result<()> {
        if rules.dry_run {
            return Ok(());
        }
        let is_ours = (self.made || !rules.untouched) && !entry.is_plain();
        let is_preserved = rules.keeps_directory_modes() && is_ours;
        // For messages.
        let slot = EntrySlot {
            device: Some(self.dir.path().into()),
            ..EntrySlot::new(self.dir.clone(), entry.name.clone())
        };
        let handle = self.dir.handle();
        let handle = handle.map_err(|cause| self.error("cannot open", cause))?;
        let marked = Marked::open(&*handle);
        let mut stat = self.stat()?;
        if is_ours {
            attributes::give_before_mode(&marked, &slot, entry, &mut stat, rules)?;
        }
        let lent = self.above.as_ref().and_then(|above| above.default_acl());
        let lent = lent.filter(|_| self.made && !is_preserved);
        let mode = if is_preserved {
            Some(rules.mode_to_give(entry, &stat))
        } else if let Some(acl) = lent {
            let acl = acl.masked(entry.mode & 0o777);
            let inherited = self.stat()?.st_mode & 0o2000;
            let set = self.dir.handle();
            let set = set.and_then(|fd| Ok(acl.give(&*fd, inherited)?));
            set.map_err(|cause| self.error("cannot set the mode", cause))?;
            Some(self.stat()?.st_mode & 0o7777)
        } else if self.made {
            // A directory inherits the set-group-ID bit from the one above it, and keeps it.
            let inherited = self.stat()?.st_mode & 0o2000;
            Some(rules.new_mode(entry) | inherited)
        } else {
            self.restore()
        };
        let lent = self.lent.take();
        let set = |mode| match mode == self.stat()?.st_mode & 0o7777 {
            true => Ok(()),
            false => self.chmod(mode),
        };
        lent.map_or(Ok(()), |lent| lent.end(mode, set))?;
        if is_ours {
            attributes::give_after_mode(&marked, &slot, entry, rules)?;
        }
        let has_times = rules.keep.times && !rules.keep.omit_dir_times;
        if is_ours && has_times && Timestamp::mtime(&self.stat()?) != entry.mtime {
            let times = times_of(entry);
            let set = self.dir.handle().and_then(|fd| Ok(futimens(&*fd, &times)?));
            set.map_err(|cause| self.error("cannot set the times", cause))?;
        }
        if rules.fsync {
            sync_directory(&self.dir)?;
        }
        // Any other name becomes durable with the directory above it, which is finished later.
        let is_root = entry.parent == NO_PARENT;
        if let Some(above) = self.above.as_ref().filter(|_| rules.fsync && is_root) {
            sync_directory(above)?;
        }
        Ok(())
    }

    fn stat(&self) -> Result<Stat> {
        let stat = self.dir.handle().and_then(|fd| Ok(fstat(&*fd)?));
        stat.map_err(|cause| self.error("cannot read its status", cause))
    }

    fn chmod(&self, mode: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(mode);
        let set = self.dir.handle().and_then(|fd| Ok(fchmod(&*fd, mode)?));
        set.map_err(|cause| self.error("cannot set the mode", cause))
    }

    fn error(&self, what: &str, cause: std::io::Error) -> Error {
        Error::io(Kind::Write, Side::Dest, self.dir.path(), what, cause)
    }
}

/// The error if the place of a directory has an entry of another kind.
fn is_in_the_way(slot: &EntrySlot, stat: &Stat) -> Option<Error> {
    match file_type(stat) {
        FileType::Directory => None,
        FileType::Symlink => Some(slot.refused(
            "is a symbolic link, and a directory does not replace it; remove the link first",
        )),
        _ => {
            Some(slot.refused(
                "is not a directory, and a directory does not replace it; remove it first",
            ))
        }
    }
}

/// Makes an unreadable directory of this user readable; returns its old mode. An `O_PATH` handle
/// needs no permission and follows no link, since the name may be swapped at any time.
pub(super) fn unlock(slot: &EntrySlot) -> std::io::Result<u32> {
    use std::os::fd::AsRawFd;
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let fd = slot.dir.open(slot.name.as_os_str(), flags, Mode::empty())?;
    let mode = fstat(&fd)?.st_mode & 0o7777;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    chmod(Path::new(&path), Mode::from_raw_mode(mode | WORKING))?;
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::super::testing::*;
    use super::*;
    use crate::keep::Keep;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn entry(mode: u32) -> Entry {
        let mut entry = file(0, mode);
        entry.kind = crate::manifest::EntryKind::Directory;
        entry
    }

    #[test]
    fn a_new_directory_gets_its_mode_when_its_last_child_is_in() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("d");
        let directory = Directory::make(&slot(temp.path(), "d")).unwrap();
        assert!(directory.made() && directory.slot(name("x")).fresh);
        assert_eq!(mode(&path), 0o700);
        directory.finish(&entry(0o575), &rules()).unwrap();
        assert_eq!(mode(&path), 0o555);
        let preserve = Rules {
            keep: Keep::modes_and_times(),
            ..rules()
        };
        let again = Directory::make(&slot(temp.path(), "d")).unwrap();
        assert!(!again.made());
        assert_eq!(mode(&path), 0o755, "opened up");
        std::fs::write(path.join("x"), b"").unwrap();
        again.finish(&entry(0o2775), &preserve).unwrap();
        assert_eq!(mode(&path), 0o2775);
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 5));
    }

    #[test]
    fn a_directory_that_was_there_keeps_its_mode_even_if_the_copy_ends_early() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("d");
        std::fs::create_dir(&path).unwrap();
        for old in [0o550, 0o000, 0o3755] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(old)).unwrap();
            let directory = Directory::make(&slot(temp.path(), "d")).unwrap();
            assert_eq!(mode(&path) & WORKING, WORKING);
            directory.finish(&entry(0o777), &rules()).unwrap();
            assert_eq!(mode(&path), old);
            drop(Directory::make(&slot(temp.path(), "d")).unwrap());
            assert_eq!(mode(&path), old);
        }
    }

    /// As the directories of two sources that become one.
    #[test]
    fn a_directory_keeps_its_permissions_until_the_last_is_done_who_works_in_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("d");
        let make = || Directory::make(&slot(temp.path(), "d")).unwrap();
        let (one, two) = (make(), make());
        assert!(one.made() && !two.made());
        one.finish(&entry(0o555), &rules()).unwrap();
        assert_eq!(mode(&path), 0o755, "the other one is at work");
        two.finish(&entry(0o777), &rules()).unwrap();
        assert_eq!(mode(&path), 0o555);
        let preserve = Rules {
            keep: Keep::modes_and_times(),
            ..rules()
        };
        for old in [0o555, 0o755] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(old)).unwrap();
            let (one, two) = (make(), make());
            two.finish(&entry(0o550), &preserve).unwrap();
            assert_eq!(mode(&path), 0o750, "the other one is at work");
            one.finish(&entry(0o575), &preserve).unwrap();
            assert_eq!(mode(&path), 0o575);
        }
    }

    #[test]
    fn the_inherited_set_group_id_bit_stays() {
        let temp = tempfile::tempdir().unwrap();
        let set = std::fs::Permissions::from_mode(0o2755);
        std::fs::set_permissions(temp.path(), set).unwrap();
        let directory = Directory::make(&slot(temp.path(), "d")).unwrap();
        directory.finish(&entry(0o755), &rules()).unwrap();
        assert_eq!(mode(&temp.path().join("d")), 0o2755);
    }

    #[test]
    fn a_link_or_a_file_is_not_taken_for_a_directory() {
        let temp = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", temp.path().join("link")).unwrap();
        std::fs::write(temp.path().join("file"), b"").unwrap();
        for (name, word) in [("link", "symbolic link"), ("file", "not a directory")] {
            let refused = Directory::make(&slot(temp.path(), name)).err();
            let refused = refused.expect("refused");
            assert_eq!(refused.kind, Kind::Refused);
            assert!(refused.message.contains(word), "{}", refused.message);
        }
    }
}
