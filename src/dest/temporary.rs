//! A partial file: beside its final name, accessible only to its owner, locked, and removed unless
//! it is committed or kept for a later run to resume.
//!
//! Its name is derived from the final name, so that a later run finds the file of a killed one. The
//! lock shows whether another fastcp is still writing the file. On a file system without locks the
//! name is random, and nothing is resumed. The name alone is never trusted: before the rename it is
//! compared with the open file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::own_names::{
    OwnName, former_name, may_be_entry, name_for_user, random_name, unlock, usual_name,
};
use super::{EntrySlot, hints};
use crate::dir::is_ours;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;

/// Attempts to find a name; each may meet a file that another process has just made or removed.
const TRIES: usize = 16;

pub(super) struct Temporary {
    /// The final name.
    pub slot: EntrySlot,
    pub file: File,
    /// Its status when it was made or last refreshed.
    pub stat: Stat,
    name: OwnName,
    /// The file still has `name`, and is removed on drop.
    existing: bool,
}

/// Device number of the last directory without locks, so that they are not tried for each file.
static WITHOUT_LOCKS: AtomicU64 = AtomicU64::new(0);

impl Temporary {
    /// Makes an empty file for `slot`.
    ///
    /// # Errors
    /// `Kind::Busy` if the slot's partial file is already being written.
    pub(super) fn create(slot: &EntrySlot) -> Result<Temporary> {
        let mut name = usual_name(slot);
        for _ in 0..TRIES {
            let has_locks = WITHOUT_LOCKS.load(Relaxed) != slot.dir.identity().0;
            if !has_locks {
                name = random_name(slot);
            }
            let make = || {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                slot.dir.open(&name, flags, Mode::RUSR | Mode::WUSR)
            };
            let Some(opened) = OwnName::claim(&slot.dir, &name, make) else {
                return Err(Error::busy(slot.path()));
            };
            match opened {
                Ok((own, fd)) => {
                    if let Some(made) = Temporary::own(slot, fd, own, has_locks)? {
                        return Ok(made);
                    }
                }
                Err(cause) if Errno::from_io_error(&cause) == Some(Errno::EXIST) => {
                    if !remove_stale(slot, &name)? {
                        name = random_name(slot);
                    }
                }
                Err(cause) => return Err(hints::name_error(slot, "cannot create a file", cause)),
            }
        }
        Err(Error::busy(slot.path()))
    }

    /// Locks a new file. None if that fails: another process was faster, or there are no locks and
    /// the file needs a name that no other process finds.
    fn own(slot: &EntrySlot, fd: OwnedFd, name: OwnName, lock: bool) -> Result<Option<Temporary>> {
        let stat = fstat(&fd).map_err(|cause| slot.error("cannot read its status", cause))?;
        let mut made = Temporary {
            slot: slot.clone(),
            file: File::from(fd),
            stat,
            name,
            existing: true,
        };
        if lock {
            match flock(&made.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => made.refresh()?,
                Err(Errno::AGAIN) => {
                    made.existing = false;
                    return Ok(None);
                }
                Err(_) => {
                    WITHOUT_LOCKS.store(slot.dir.identity().0, Relaxed);
                    return Ok(None);
                }
            }
        }
        Ok((made.stat.st_nlink > 0).then_some(made))
    }

    /// Opens the file that an earlier run left under a usual name of `slot`. None unless the file
    /// is ours, no other user can have written it, and `is_it` accepts it. Also None if there are
    /// no locks, since its writer may still be at work.
    ///
    /// # Errors
    /// `Kind::Busy` if the process that made it is still at work.
    pub(super) fn reopen(
        slot: &EntrySlot,
        is_it: impl Fn(&File, &Stat) -> bool,
    ) -> Result<Option<Temporary>> {
        for name in [usual_name(slot), former_name(slot)] {
            let found = Temporary::reopen_as(slot, &name, &is_it)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn reopen_as(
        slot: &EntrySlot,
        name: &OsStr,
        is_it: impl Fn(&File, &Stat) -> bool,
    ) -> Result<Option<Temporary>> {
        let ours = |stat: &Stat| is_ours(stat) && stat.st_mode & 0o077 == 0;
        match slot.dir.stat(name) {
            Ok(stat) if ours(&stat) => {}
            _ => return Ok(None),
        }
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        let open = || {
            let file = File::from(slot.dir.open(name, flags, Mode::empty())?);
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            // Checked again under the lock: while the file has a link, the name still refers to it.
            let stat = fstat(&file)?;
            match ours(&stat) && is_it(&file, &stat) {
                true => Ok((file, stat)),
                false => {
                    unlock(&file);
                    Err(Errno::NOENT.into())
                }
            }
        };
        match OwnName::claim(&slot.dir, name, open) {
            None => Err(Error::busy(slot.path())),
            Some(Ok((name, (file, stat)))) => Ok(Some(Temporary {
                slot: slot.clone(),
                file,
                stat,
                name,
                existing: true,
            })),
            Some(Err(cause)) if Errno::from_io_error(&cause) == Some(Errno::AGAIN) => {
                Err(Error::busy(slot.path()))
            }
            // A file that cannot be shown to be the right one is not resumed.
            Some(Err(_)) => Ok(None),
        }
    }

    /// Leaves the file for a later run to resume, if that run can find it.
    pub(super) fn keep(&mut self) {
        let name = self.name();
        self.existing = ![usual_name, former_name]
            .map(|of| of(&self.slot))
            .contains(&name);
    }

    /// Leaves the file for the user; returns its name. Under the usual name, the next copy to this
    /// place would take it for the file of a killed run, and remove it.
    pub(super) fn keep_for_user(&mut self) -> OsString {
        self.existing = false;
        let mut held = self.name.hold();
        let new = name_for_user(&self.slot);
        let found = self.slot.dir.stat(held.name());
        // If it cannot be renamed, it keeps its name.
        if found.is_ok_and(|found| same_file(&found, &self.stat))
            && let Ok(dir) = self.slot.dir.handle()
            && renameat(&*dir, held.name(), &*dir, &new).is_ok()
        {
            held.set(new);
        }
        held.name().to_owned()
    }

    pub(super) fn name(&self) -> OsString {
        self.name.hold().name().to_owned()
    }

    /// Reads the status again, after a change that `stat` does not show yet.
    pub(super) fn refresh(&mut self) -> Result<()> {
        let stat = fstat(&self.file);
        self.stat = stat.map_err(|cause| self.slot.no_status(cause))?;
        Ok(())
    }

    /// Calls `rename` with a name that refers to this file. If its own name refers to a file of
    /// another process by now, the file gets a new name first.
    ///
    /// # Errors
    /// `Kind::Write` if the file has lost its name and cannot get another one.
    pub(super) fn renamed<T>(&self, rename: impl FnOnce(&OsStr) -> Result<T>) -> Result<T> {
        let mut held = self.name.hold();
        let is_own = match self.slot.dir.stat(held.name()) {
            Ok(found) => same_file(&found, &self.stat),
            Err(cause) if Errno::from_io_error(&cause) == Some(Errno::NOENT) => false,
            Err(cause) => return Err(self.slot.no_status(cause)),
        };
        if !is_own {
            let name = self.link_by_new_name()?;
            held.set(name);
        }
        rename(held.name())
    }

    /// Gives the file a new name, since its own is gone.
    fn link_by_new_name(&self) -> Result<OsString> {
        let name = random_name(&self.slot);
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let linked = self.slot.dir.handle().and_then(|dir| {
            let flags = AtFlags::SYMLINK_FOLLOW;
            Ok(rustix::fs::linkat(CWD, &path, &*dir, &name, flags)?)
        });
        linked.map_err(|cause: io::Error| match Errno::from_io_error(&cause) {
            // A file that has no name any more cannot be linked.
            Some(Errno::NOENT) => {
                let message =
                    "its partial file was removed or replaced by another process; copy it again";
                Error::new(Kind::Write, Side::Dest, message).at(self.slot.path())
            }
            _ => self.slot.error("cannot name its partial file again", cause),
        })?;
        Ok(name)
    }

    /// Notes that the file has its final name, so there is nothing left to remove.
    pub(super) fn committed(&mut self) {
        self.existing = false;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.existing {
            return;
        }
        let held = self.name.hold();
        let found = self.slot.dir.stat(held.name());
        if found.is_ok_and(|found| same_file(&found, &self.stat))
            && let Ok(dir) = self.slot.dir.handle()
        {
            // A drop cannot report an error; the next run removes the file.
            let _ = unlinkat(&*dir, held.name(), AtFlags::empty());
        }
    }
}

/// Removes the file that a killed run left under `name`. False if it may be any other file.
///
/// # Errors
/// `Kind::Busy` if the process that made it is still at work.
fn remove_stale(slot: &EntrySlot, name: &OsStr) -> Result<bool> {
    if may_be_entry(&slot.dir, name) {
        return Ok(false);
    }
    let removed = OwnName::while_held(&slot.dir, name, || remove_if_stale(slot, name));
    removed.unwrap_or(Ok(false))
}

fn remove_if_stale(slot: &EntrySlot, name: &OsStr) -> Result<bool> {
    // Checked before the open, since opening a device or a FIFO has side effects.
    match slot.dir.stat(name) {
        Ok(stat) if may_be_left(&stat) => {}
        Ok(_) => return Ok(false),
        Err(cause) => return gone(slot, cause),
    }
    let open = |access| {
        slot.dir
            .open(name, access | OFlags::NONBLOCK, Mode::empty())
    };
    // NFS locks only files that are open for writing.
    let opened = match open(OFlags::RDWR) {
        // The killed run had given the file its mode, which forbids that.
        Err(cause) if Errno::from_io_error(&cause) == Some(Errno::ACCESS) => open(OFlags::RDONLY),
        opened => opened,
    };
    let fd = match opened {
        Ok(fd) => fd,
        Err(cause) if Errno::from_io_error(&cause) == Some(Errno::NOENT) => return Ok(true),
        Err(_) => return Ok(false),
    };
    match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        // Any user may have locked another file.
        Err(Errno::AGAIN) if fstat(&fd).is_ok_and(|stat| is_ours(&stat)) => {
            return Err(Error::busy(slot.path()));
        }
        // Nothing shows whether its writer is at work.
        Err(_) => return Ok(false),
    }
    // Checked again under the lock: while the file has a link, the name still refers to it.
    let removed = match fstat(&fd) {
        Ok(stat) if may_be_left(&stat) => {
            let dir = slot.dir.handle();
            match dir.and_then(|dir| Ok(unlinkat(&*dir, name, AtFlags::empty())?)) {
                Ok(()) => Ok(true),
                Err(cause) => gone(slot, cause),
            }
        }
        Ok(stat) => Ok(stat.st_nlink == 0),
        Err(cause) => gone(slot, cause.into()),
    };
    unlock(&fd);
    removed
}

/// True for a file that a killed run may have left. Root gives a complete file its owner before its
/// name.
fn may_be_left(stat: &Stat) -> bool {
    let is_given =
        geteuid().is_root() && file_type(stat) == FileType::RegularFile && stat.st_nlink == 1;
    is_given || is_ours(stat)
}

pub(super) fn same_file(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// True if `cause` says that the file to remove does not exist any more; else an error.
fn gone(slot: &EntrySlot, cause: io::Error) -> Result<bool> {
    match Errno::from_io_error(&cause) {
        Some(Errno::NOENT) => Ok(true),
        _ => Err(slot.error("cannot remove the partial file of an earlier run", cause)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::testing::*;
    use super::*;

    /// The check whether a file is the right partial file locks it for a moment.
    #[test]
    fn an_entry_of_that_name_is_not_refused_because_this_process_looks_at_it() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "a");
        let usual = usual_name(&slot);
        let entry = EntrySlot::new(slot.dir.clone(), name(usual.to_str().unwrap()));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    assert!(Temporary::reopen(&slot, |_, _| false).unwrap().is_none());
                }
            });
            for _ in 0..5000 {
                let file = File::create(temp.path().join(&usual)).unwrap();
                rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).unwrap();
                entry.stat().unwrap();
            }
            is_over.store(true, Relaxed);
        });
    }

    #[test]
    fn a_dropped_temporary_is_gone_and_a_stale_one_is_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "a");
        let stale = temp.path().join(usual_name(&slot));
        std::fs::write(&stale, b"left by a killed run").unwrap();
        let made = Temporary::create(&slot).unwrap();
        assert_eq!(made.name(), usual_name(&slot));
        assert_eq!(std::fs::metadata(&stale).unwrap().len(), 0, "made afresh");
        drop(made);
        assert_eq!(names(temp.path()), [""; 0]);
        // A file that was copied under that name stays.
        std::fs::write(&stale, b"a file of the user's").unwrap();
        let entry = EntrySlot::new(slot.dir.clone(), name(usual_name(&slot).to_str().unwrap()));
        assert!(entry.stat().unwrap().is_some());
        let made = Temporary::create(&slot).unwrap();
        assert_ne!(made.name(), usual_name(&slot));
        drop(made);
        assert_eq!(std::fs::read(&stale).unwrap(), b"a file of the user's");
    }

    #[test]
    fn what_is_left_for_the_user_is_not_removed_by_the_next_copy() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "piped");
        let mut made = Temporary::create(&slot).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&made.file, b"of a pipe", 0).unwrap();
        let left = temp.path().join(made.keep_for_user());
        drop(made);
        drop(Temporary::create(&slot).unwrap());
        assert_eq!(std::fs::read(left).unwrap(), b"of a pipe");
    }

    #[test]
    fn root_removes_a_stale_temporary_that_has_its_owner_already() {
        if !geteuid().is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "given");
        let stale = temp.path().join(usual_name(&slot));
        let leave = || {
            let file = File::create(&stale).unwrap();
            std::os::unix::fs::fchown(&file, Some(1234), Some(1234)).unwrap();
            file
        };
        drop(leave());
        let made = Temporary::create(&slot).unwrap();
        assert_eq!(made.name(), usual_name(&slot));
        drop(made);
        assert_eq!(names(temp.path()), [""; 0]);
        // The other user cannot hold up the copy.
        let theirs = leave();
        flock(&theirs, FlockOperation::LockExclusive).unwrap();
        let made = Temporary::create(&slot).unwrap();
        assert_ne!(made.name(), usual_name(&slot));
        drop(made);
        assert!(stale.exists());
    }

    #[test]
    fn a_file_whose_name_was_taken_is_committed_under_another_and_one_without_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "a");
        let made = Temporary::create(&slot).unwrap();
        let at = temp.path().join(made.name());
        std::fs::rename(&at, temp.path().join("moved away")).unwrap();
        std::fs::write(&at, b"of another process").unwrap();
        let name = made.renamed(|name| Ok(name.to_owned())).unwrap();
        assert_ne!(name, usual_name(&slot));
        assert!(temp.path().join(name).exists());
        drop(made);
        assert_eq!(std::fs::read(&at).unwrap(), b"of another process");
        std::fs::remove_file(&at).unwrap();
        let made = Temporary::create(&slot).unwrap();
        std::fs::remove_file(&at).unwrap();
        let error = made.renamed(|_| Ok(())).unwrap_err();
        assert!(error.message.contains("by another process"), "{error}");
    }

    #[test]
    fn two_writers_of_one_name_do_not_meet() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "a");
        let first = Temporary::create(&slot).unwrap();
        let second = Temporary::create(&slot).err().expect("refused");
        assert_eq!(second.kind, Kind::Busy);
        drop(first);
        Temporary::create(&slot).unwrap();
    }

    #[test]
    fn a_planted_temporary_is_not_written_through() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "a");
        let victim = temp.path().join("victim");
        std::fs::write(&victim, b"precious").unwrap();
        let planted = temp.path().join(usual_name(&slot));
        for plant in [
            (|victim, planted| std::os::unix::fs::symlink(victim, planted))
                as fn(&std::path::Path, &std::path::Path) -> io::Result<()>,
            |victim, planted| std::fs::hard_link(victim, planted),
        ] {
            plant(&victim, &planted).unwrap();
            let made = Temporary::create(&slot).unwrap();
            assert_ne!(made.name(), usual_name(&slot));
            std::os::unix::fs::FileExt::write_all_at(&made.file, b"hostile", 0).unwrap();
            drop(made);
            assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
            std::fs::remove_file(&planted).unwrap();
        }
    }
}
