//! The destination on a file system: where things land, directories, files, links.
//!
//! Promises: whatever a peer names, nothing is touched outside the directories that the user named
//! (each name is one component, reached from its directory's handle, no link below what the user
//! typed is followed); nothing stands under a final name unless it is whole; what failed leaves no
//! temporary behind. A block device that the user named is the exception: it is written where it
//! is. What this leaves to others: which bytes are missing, digests of what arrives, the order of
//! entries. Everything is plain blocking calls for worker threads; `Partial` may be written from
//! several at once. What is no file but a way out (a pipe, a command) is a [`Drain`].
//!
//! The order of a copy: [`resolve()`] and [`check_free_space`] before the first byte;
//! [`Directory::make`] for each directory, then what is in it ([`place_small`], [`Partial`],
//! [`place_symlink`], [`place_hard_link`]), then [`Directory::finish`].

mod alike;
mod commit;
mod conflict;
mod device;
mod directory;
mod drain;
mod exit;
mod identity;
mod in_use;
mod inplace;
mod link;
mod nameless;
mod ordered;
mod outlet;
mod own_name;
mod partial;
mod placement;
mod readback;
mod reason;
mod resolve;
mod secret;
mod sink;
mod small;
mod space;
mod standing;
mod state;
mod temporary;
#[cfg(test)]
mod testing;
mod trial;
mod typed;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use crate::dir::{Dir, RESERVED, is_reserved};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, Name, file_type};

pub use alike::{Spelling, spelling};
pub use directory::Directory;
pub use drain::Drain;
pub use exit::Exit;
pub use link::{FirstName, place_hard_link, place_symlink};
pub use ordered::{Ordered, Put};
pub use outlet::Outlet;
pub use own_name::{JournalName, is_own_name};
pub use partial::Partial;
pub use readback::Readback;
pub use reason::is_append_only;
pub use resolve::{Landing, Source, Spec, Target, resolve};
pub use secret::{UserKey, user_key};
pub use sink::{Sink, is_sink};
pub use small::place_small;
pub use space::check_free_space;
pub use standing::{Standing, digest_of, same_content, standing, stays};
pub use state::device_journal;
pub use trial::{Trial, try_writing};
pub use typed::home_directory;

/// What the user asked of every entry that lands here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// `-p`: the source's mode and times, and set-id bits where owner and group are the source's.
    pub preserve: bool,
    /// What is there stays as it is.
    pub no_clobber: bool,
    /// Data and metadata are durable before the rename, the rename before success.
    pub fsync: bool,
    /// `--inplace`: a file that stands there is written into.
    pub inplace: bool,
    /// `--force`: a file that another process holds open for writing is replaced all the same, and a
    /// device that is in use is written.
    pub force: bool,
    /// A pipe from which nothing came may replace a file that has content.
    pub allow_empty: bool,
    /// What stands there is not read, not even to be compared.
    pub blind: bool,
    /// Directories that stand there keep mode and times.
    pub untouched: bool,
    /// `-p` keeps set-id bits.
    pub set_id: bool,
    /// No entry gets a name that begins like those of unfinished files (`.fastcp-`).
    pub no_own_names: bool,
    /// A symbolic link may not lead out of the directory that the key is confined to.
    pub links_inside: bool,
    /// `--direct-io`: a device that cannot be written past the page cache is not written.
    pub direct_io: bool,
    /// `--drop-cache`: what is written leaves the page cache.
    pub drop_cache: bool,
    /// Permission bits that new files and directories do not get without `-p`, where their
    /// directory has no default ACL.
    pub umask: u32,
}

/// A name in a directory: where one entry lands.
#[derive(Clone)]
pub struct Slot {
    pub dir: Arc<Dir>,
    pub name: Name,
    /// The directory was made by this copy, so nothing is expected under the name. Only a hint that
    /// saves a system call: what stands there all the same is treated as anywhere.
    pub fresh: bool,
    /// A block device stands here and the user named it, in these words: then it is written, and
    /// nothing takes its place. One that the user did not name stays as it is.
    pub device: Option<Arc<Path>>,
}

/// What came of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    Copied,
    /// The same was there already and was left untouched (`--no-clobber`).
    Kept,
}

impl Rules {
    /// The entry's mode as `-p` gives it to what stands there as `stat` says. A file runs with the
    /// rights of its owner or group only where they are the source's.
    fn mode_of(&self, entry: &Entry, stat: &Stat) -> u32 {
        let mode = entry.mode & if self.set_id { 0o7777 } else { 0o1777 };
        if file_type(stat) == FileType::Directory {
            return mode;
        }
        let user = if stat.st_uid == entry.uid { 0 } else { 0o4000 };
        let group = if stat.st_gid == entry.gid { 0 } else { 0o2000 };
        mode & !(user | group)
    }

    /// Refuses a name that this copy may not give.
    ///
    /// # Errors
    /// `Kind::Refused`.
    pub fn check_name(&self, slot: &Slot) -> Result<()> {
        if self.no_own_names && is_reserved(slot.name.as_bytes()) {
            return Err(slot.refused(RESERVED));
        }
        Ok(())
    }
}

impl Slot {
    pub fn new(dir: Arc<Dir>, name: Name) -> Slot {
        Slot {
            dir,
            name,
            fresh: false,
            device: None,
        }
    }

    /// As the user would write it; for messages.
    pub fn path(&self) -> PathBuf {
        match &self.device {
            Some(device) => device.to_path_buf(),
            None => self.dir.path().join(&self.name),
        }
    }

    /// The status of what stands here, a link not followed. An unfinished file of this process gets
    /// another name first.
    fn stat(&self) -> Result<Option<Stat>> {
        own_name::make_way(self)?;
        match self.dir.stat(self.name.as_os_str()) {
            Ok(stat) => Ok(Some(stat)),
            Err(cause) if Errno::from_io_error(&cause) == Some(Errno::NOENT) => Ok(None),
            Err(cause) => Err(self.error("cannot look at what is there", cause)),
        }
    }

    /// A failed call that was to write here.
    fn error(&self, what: &str, cause: impl Into<io::Error>) -> Error {
        Error::io(Kind::Write, Side::Dest, self.path(), what, cause)
    }

    fn refused(&self, message: impl Into<String>) -> Error {
        Error::new(Kind::Refused, Side::Dest, message).at(self.path())
    }
}

/// The umask of this process in permission bits. To be read once, before there are threads: a
/// kernel before 4.7 tells it only to who sets it.
pub fn process_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    if let Some(mask) = line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()) {
        return mask & 0o777;
    }
    let mask = rustix::process::umask(Mode::from_raw_mode(0o077));
    rustix::process::umask(mask);
    mask.as_raw_mode() & 0o777
}

/// The entry's times as a call takes them. What no clock shows is pulled into range, since the
/// kernel reads two such values as "now" and "leave".
fn times_of(entry: &Entry) -> Timestamps {
    let time = |time: crate::manifest::Timestamp| Timespec {
        tv_sec: time.s,
        tv_nsec: time.ns.min(999_999_999).into(),
    };
    Timestamps {
        last_access: time(entry.atime),
        last_modification: time(entry.mtime),
    }
}

/// Closes a handle, and tells what the file system says to that: some write only then.
pub fn close(handle: impl Into<OwnedFd>) -> io::Result<()> {
    match nix::unistd::close(handle.into()) {
        // Interrupted after it was closed: Linux says so and nothing is lost.
        Ok(()) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(cause) => Err(cause.into()),
    }
}

/// Makes what stands at `slot`, and its name, durable.
pub fn make_durable(slot: &Slot) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let fd = slot.dir.open(slot.name.as_os_str(), flags, Mode::empty());
    let synced = fd.and_then(|fd| Ok(rustix::fs::fsync(fd)?));
    synced.map_err(|cause| slot.error("cannot make it durable", cause))?;
    sync_directory(&slot.dir)
}

/// Makes the names in `dir` durable.
fn sync_directory(dir: &Arc<Dir>) -> Result<()> {
    let synced = dir.handle().and_then(|fd| match rustix::fs::fsync(&*fd) {
        // Some file systems have no such thing for directories.
        Err(Errno::INVAL) => Ok(()),
        other => Ok(other?),
    });
    synced.map_err(|cause| {
        let what = "cannot make the directory durable";
        Error::io(Kind::Write, Side::Dest, dir.path(), what, cause)
    })
}
