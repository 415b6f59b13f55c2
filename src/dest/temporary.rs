//! A file that is being written: beside its final name, 0600, locked, removed unless committed or
//! kept for a second run to go on with.
//!
//! Its name follows from the final name, so that a second run finds what a killed one left. The
//! lock tells that from the file of another fastcp that is still at work: without it the second
//! could take the name over and the first would rename the second's half-written file.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, unlinkat};
use rustix::io::Errno;

use super::Slot;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;

/// Tries for a name: each may find what another process has just made or removed.
const TRIES: usize = 16;

pub(super) struct Temporary {
    /// Where it is to stand when it is whole.
    pub slot: Slot,
    pub file: File,
    /// As it was made, or last looked at.
    pub stat: Stat,
    name: OsString,
    /// It still stands under `name`, and is to be removed.
    standing: bool,
}

impl Temporary {
    /// An empty file for `slot`.
    ///
    /// # Errors
    /// `Kind::Busy` where another process writes to this slot.
    pub fn create(slot: &Slot) -> Result<Temporary> {
        let mut name = usual_name(slot);
        for _ in 0..TRIES {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            match slot.dir.open(&name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => {
                    if let Some(made) = Temporary::own(slot, fd, &name)? {
                        return Ok(made);
                    }
                }
                Err(cause) if Errno::from_io_error(&cause) == Some(Errno::EXIST) => {
                    if !remove_stale(slot, &name)? {
                        name = random_name(slot);
                    }
                }
                Err(cause) => return Err(slot.error("cannot create a file", cause)),
            }
        }
        Err(busy(slot))
    }

    /// None where another process has removed it before it was locked.
    fn own(slot: &Slot, fd: OwnedFd, name: &OsString) -> Result<Option<Temporary>> {
        // Some file systems have no locks; there O_EXCL is all the protection.
        if flock(&fd, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN) {
            return Ok(None);
        }
        let stat = fstat(&fd).map_err(|cause| slot.error("cannot create a file", cause))?;
        Ok((stat.st_nlink > 0).then(|| Temporary {
            slot: slot.clone(),
            file: File::from(fd),
            stat,
            name: name.clone(),
            standing: true,
        }))
    }

    /// What an earlier run left under the usual name of `slot`, if it is a file of ours that nobody
    /// else can have written, and `is_it` says that it is the right one.
    ///
    /// # Errors
    /// `Kind::Busy` where the process that made it is at work.
    pub fn reopen(slot: &Slot, is_it: impl Fn(&File, &Stat) -> bool) -> Result<Option<Temporary>> {
        let name = usual_name(slot);
        let ours = |stat: &Stat| is_ours(stat) && stat.st_mode & 0o7777 == 0o600;
        match slot.dir.stat(&name) {
            Ok(stat) if ours(&stat) => {}
            _ => return Ok(None),
        }
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        let Ok(fd) = slot.dir.open(&name, flags, Mode::empty()) else {
            return Ok(None);
        };
        if flock(&fd, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN) {
            return Err(busy(slot));
        }
        let file = File::from(fd);
        // Again, now that it is locked: with a link left, the name is still that of this file.
        match fstat(&file) {
            Ok(stat) if ours(&stat) && is_it(&file, &stat) => Ok(Some(Temporary {
                slot: slot.clone(),
                file,
                stat,
                name,
                standing: true,
            })),
            _ => Ok(None),
        }
    }

    /// Stays where it is, for a later run to go on with.
    pub fn keep(&mut self) {
        self.standing = false;
    }

    pub fn name(&self) -> &OsString {
        &self.name
    }

    /// Looks at it again: something was changed that `stat` does not know of.
    pub fn refresh(&mut self) -> Result<()> {
        let stat = fstat(&self.file);
        self.stat =
            stat.map_err(|cause| self.slot.error("cannot look at what was written", cause))?;
        Ok(())
    }

    /// The file stands under its final name: there is nothing to remove any more.
    pub fn committed(&mut self) {
        self.standing = false;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.standing
            && let Ok(dir) = self.slot.dir.handle()
        {
            // Nobody is left to tell, and the next run clears it.
            let _ = unlinkat(&*dir, &self.name, AtFlags::empty());
        }
    }
}

/// Removes what a killed run left under `name`. False where it is none of ours: then it stays.
///
/// # Errors
/// `Kind::Busy` where the process that made it is at work.
fn remove_stale(slot: &Slot, name: &OsString) -> Result<bool> {
    let ours = is_ours;
    // Looked at before it is opened, since opening a device or a pipe has effects.
    match slot.dir.stat(name) {
        Ok(stat) if ours(&stat) => {}
        Ok(_) => return Ok(false),
        Err(cause) => return gone(slot, cause),
    }
    let fd = match slot
        .dir
        .open(name, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty())
    {
        Ok(fd) => fd,
        Err(cause) if Errno::from_io_error(&cause) == Some(Errno::NOENT) => return Ok(true),
        Err(_) => return Ok(false),
    };
    if flock(&fd, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN) {
        return Err(busy(slot));
    }
    // Again, now that it is locked: with a link left, the name is still that of this file.
    match fstat(&fd) {
        Ok(stat) if ours(&stat) => {}
        Ok(stat) => return Ok(stat.st_nlink == 0),
        Err(cause) => return gone(slot, cause.into()),
    }
    match slot
        .dir
        .handle()
        .and_then(|dir| Ok(unlinkat(&*dir, name, AtFlags::empty())?))
    {
        Ok(()) => Ok(true),
        Err(cause) => gone(slot, cause),
    }
}

fn is_ours(stat: &Stat) -> bool {
    file_type(stat) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1
}

/// True if `cause` says that what was to be removed is not there any more.
fn gone(slot: &Slot, cause: std::io::Error) -> Result<bool> {
    match Errno::from_io_error(&cause) {
        Some(Errno::NOENT) => Ok(true),
        _ => Err(slot.error("cannot clear what an earlier run left", cause)),
    }
}

fn busy(slot: &Slot) -> Error {
    Error::new(Kind::Busy, Side::Dest, "another fastcp is writing there").at(slot.path())
}

/// Short whatever the final name is, and the same on every run.
fn usual_name(slot: &Slot) -> OsString {
    format!(".fastcp-{}.part", hash_of(slot)).into()
}

/// For where the usual name is taken by something that is not ours, and for what cannot be locked.
pub(super) fn random_name(slot: &Slot) -> OsString {
    let mut random = [0; 8];
    // Without a source of chance the clock serves: O_EXCL is what protects, not the name.
    if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK).is_err() {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        random = now.tv_nsec.to_ne_bytes();
    }
    let random = u64::from_ne_bytes(random);
    format!(".fastcp-{}-{random:016x}.part", hash_of(slot)).into()
}

fn hash_of(slot: &Slot) -> String {
    blake3::hash(slot.name.as_bytes()).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn a_dropped_temporary_is_gone_and_a_stale_one_is_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "a");
        let stale = temp.path().join(usual_name(&slot));
        std::fs::write(&stale, b"left by a killed run").unwrap();
        let made = Temporary::create(&slot).unwrap();
        assert_eq!(*made.name(), usual_name(&slot));
        assert_eq!(std::fs::metadata(&stale).unwrap().len(), 0, "made afresh");
        drop(made);
        assert_eq!(names(temp.path()), [""; 0]);
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
                as fn(&std::path::Path, &std::path::Path) -> std::io::Result<()>,
            |victim, planted| std::fs::hard_link(victim, planted),
        ] {
            plant(&victim, &planted).unwrap();
            let made = Temporary::create(&slot).unwrap();
            assert_ne!(*made.name(), usual_name(&slot));
            std::os::unix::fs::FileExt::write_all_at(&made.file, b"hostile", 0).unwrap();
            drop(made);
            assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
            std::fs::remove_file(&planted).unwrap();
        }
    }
}
