//! A small new file that has no name until it is complete: it is made without one, written, and
//! linked to its final name. That takes five system calls instead of twelve, and a killed process
//! leaves nothing behind.
//!
//! A link cannot replace a file, so this is only for free names. For all others, and on file
//! systems without such files, a [`Temporary`](super::temporary::Temporary) is written and renamed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, futimens, linkat, openat, unlinkat};
use rustix::io::Errno;

use super::attributes::{self, Marked};
use super::commit::CANNOT_NAME;
use super::own_names::{is_own_name, usual_name};
use super::{EntrySlot, Rules, close, hints, identity, space, times_of};
use crate::dir::Dir;
use crate::disk_table;
use crate::error::Result;
use crate::manifest::Entry;

/// Device number of the last directory that refused a file without a name; it is not tried again.
static WITHOUT_NAMELESS: AtomicU64 = AtomicU64::new(0);

/// True if this kernel links a descriptor only through /proc: before 6.10 the direct way needs
/// CAP_DAC_READ_SEARCH.
static THROUGH_PROC: AtomicBool = AtomicBool::new(false);

pub(super) struct Nameless<'a> {
    slot: &'a EntrySlot,
    pub file: File,
}

/// A file that never gets a name, for data of this process: in `dir`, or where temporary files are
/// if it cannot be made there.
pub fn temporary_file(dir: &Arc<Dir>) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL;
    match dir.open(OsStr::new("."), flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => Ok(File::from(fd)),
        // Read-only, or of a file system that lacks such files; the other place reports its own error.
        Err(_) => disk_table::temporary_file(),
    }
}

impl<'a> Nameless<'a> {
    /// Makes an empty file for `slot`, where the caller found no entry. None if the file needs a
    /// temporary name, as it does with `--fsync`: file systems differ in how durable a new link is.
    pub(super) fn create(
        slot: &'a EntrySlot,
        entry: &Entry,
        rules: &Rules,
    ) -> Result<Option<Nameless<'a>>> {
        let device = slot.dir.identity().0;
        if rules.fsync
            || is_own_name(slot.name.as_bytes())
            || WITHOUT_NAMELESS.load(Relaxed) == device
            || slot.dir.may_write_at_close()
            || is_being_written(slot)
        {
            return Ok(None);
        }
        let failed = |cause| hints::name_error(slot, "cannot create a file", cause);
        let dir = slot.dir.handle().map_err(failed)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match openat(&*dir, ".", flags, first_mode(slot, entry, rules)) {
            Ok(fd) => Ok(Some(Nameless {
                slot,
                file: File::from(fd),
            })),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {
                WITHOUT_NAMELESS.store(device, Relaxed);
                Ok(None)
            }
            // A temporary file fails the same way, unless a policy forbids only this call.
            Err(Errno::PERM | Errno::ACCESS | Errno::NOENT) => Ok(None),
            Err(cause) => Err(failed(cause.into())),
        }
    }

    /// Gives the complete file its times, mode and name; returns its status. None if the name is
    /// taken by now, or cannot be given by a link.
    pub(super) fn commit(self, entry: &Entry, rules: &Rules) -> Result<Option<Stat>> {
        let (slot, keep) = (self.slot, &rules.keep);
        let times = || {
            futimens(&self.file, &times_of(entry))
                .map_err(|cause| slot.error("cannot set the times", cause))
        };
        let status = || fstat(&self.file).map_err(|cause| slot.no_status(cause));
        let stat = if keep.has_owners_or_attributes() {
            let (marked, mut stat) = (Marked::open(&self.file), status()?);
            attributes::give_before_mode(&marked, slot, entry, &mut stat, rules)?;
            identity::give_mode(slot, &self.file, &stat, entry, rules)?;
            attributes::give_after_mode(&marked, slot, entry, rules)?;
            if keep.times {
                times()?;
            }
            status()?
        } else {
            if keep.times {
                times()?;
            }
            let stat = status()?;
            identity::give_mode(slot, &self.file, &stat, entry, rules)?;
            stat
        };
        if !self.link()? {
            return Ok(None);
        }
        // Closed last, since these file systems write nothing at a close (see `create`).
        close(self.file).map_err(|cause| {
            remove(slot, &stat);
            space::write_error(slot, 0, cause)
        })?;
        Ok(Some(stat))
    }

    /// Links the file to its final name. False if the name is taken, or links are not possible.
    fn link(&self) -> Result<bool> {
        let slot = self.slot;
        let failed = |cause: io::Error| hints::name_error(slot, CANNOT_NAME, cause);
        let dir = slot.dir.handle().map_err(failed)?;
        let to = slot.name.as_os_str();
        let through_proc = || {
            let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(CWD, from, &*dir, to, AtFlags::SYMLINK_FOLLOW)
        };
        let linked = match THROUGH_PROC.load(Relaxed) {
            true => through_proc(),
            false => match linkat(&self.file, "", &*dir, to, AtFlags::EMPTY_PATH) {
                Err(Errno::NOENT | Errno::INVAL) => {
                    through_proc().inspect(|()| THROUGH_PROC.store(true, Relaxed))
                }
                linked => linked,
            },
        };
        match linked {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            // There is no /proc, or links are not supported or not allowed here.
            Err(
                Errno::NOENT
                | Errno::PERM
                | Errno::ACCESS
                | Errno::XDEV
                | Errno::OPNOTSUPP
                | Errno::NOSYS,
            ) => {
                WITHOUT_NAMELESS.store(slot.dir.identity().0, Relaxed);
                Ok(false)
            }
            Err(cause) => Err(failed(cause.into())),
        }
    }
}

/// True if the directory has a partial file for `slot`. Another fastcp may be writing it, or a
/// killed run left it: making a [`Temporary`](super::temporary::Temporary) tells these apart.
fn is_being_written(slot: &EntrySlot) -> bool {
    !slot.fresh && slot.dir.stat(&usual_name(slot)).is_ok()
}

/// The mode to make the file with: the final one if possible, which saves a call. Other users
/// cannot open a file without a name.
fn first_mode(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Mode {
    let mode = match slot.dir.default_acl() {
        // The kernel applies the ACL to this mode; `give_mode` sets the right one.
        Some(_) => 0o600,
        None if rules.keep.perms => entry.mode & 0o777,
        None => rules.new_mode(entry),
    };
    Mode::from_raw_mode(mode)
}

/// Removes the final name of a file that the file system reported as incomplete.
fn remove(slot: &EntrySlot, stat: &Stat) {
    let is_it = |found: &Stat| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino);
    if slot
        .dir
        .stat(slot.name.as_os_str())
        .is_ok_and(|found| is_it(&found))
        && let Ok(dir) = slot.dir.handle()
    {
        // The entry fails either way.
        let _ = unlinkat(&*dir, slot.name.as_os_str(), AtFlags::empty());
    }
}
