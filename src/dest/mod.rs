//! The destination on a file system: where entries land, and how they are written.
//!
//! Promises:
//! - No name that a peer sends leads outside the directories that the user named. Each name is one
//!   component, opened from its directory's handle. Below the typed path no symbolic link is
//!   followed, not even for options like `--backup-dir`. One link is followed: DEST/NAME, if NAME is
//!   the name of a source that the user typed.
//! - A final name never refers to an incomplete file. The exceptions are a block device that the
//!   user named and `--inplace`, which are written directly.
//! - An entry that fails leaves no temporary file, unless it is kept for a later run to resume,
//!   or for the user (`--spool`).
//!
//! Other modules decide which bytes are missing, compute digests and order the entries. All calls
//! block, so callers make them on threads; several threads may write one [`Partial`] at once. A
//! pipe or a command as the destination is an [`OrderedSink`].
//!
//! The order of a copy: [`resolve()`] and [`check_free_space`] before the first byte;
//! [`Directory::make`] for each directory; its entries ([`place_small`], [`Partial`],
//! [`place_symlink`], [`place_hard_link`]); [`Directory::finish`].

mod attributes;
mod backup;
mod backup_place;
mod basis;
mod block_index;
mod changed;
mod commit;
mod conflict;
mod device;
mod device_journal;
mod directory;
mod discard;
mod earlier;
mod earlier_copies;
mod equal_names;
mod existing;
mod hints;
mod identity;
mod in_order;
mod in_use;
mod inplace;
mod left_partial;
mod lent_mode;
mod link;
mod listed;
mod local_copy;
mod mkpath;
mod moved;
mod nameless;
mod option_path;
mod output;
mod own_names;
mod owners;
mod partial;
mod placement;
mod read_ahead;
mod readback;
mod remove;
mod reorder;
mod resolve;
mod reuse;
mod room;
mod root;
mod secret;
mod shared_inodes;
mod sink_spec;
mod slot;
mod small;
mod snapshot_marks;
mod snapshots;
mod space;
mod special;
mod temporary;
#[cfg(test)]
mod testing;
mod unchanged;
mod user_path;
mod write_test;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, readlinkat, statat,
    utimensat,
};
use rustix::io::Errno;

use crate::dir::{Dir, RESERVED, is_reserved, may_leave};
use crate::earlier::Reuse;
use crate::error::{Error, Kind, Result, Side};
use crate::keep::{Keep, MetadataChanges, NotKept, NotKeptCounters, UnchangedBy, Update, is_acl};
use crate::manifest::{Entry, EntryKind, file_type};

pub use self::backup::{BackupPart, Backups};
pub use self::backup_place::INPLACE_AND_BACKUP;
pub use self::basis::Basis;
pub use self::block_index::{BlockIndex, IndexRoom};
pub use self::changed::{changes, changes_of_directory, status, status_of};
pub use self::commit::check_place;
pub use self::conflict::refuse_overlap;
pub use self::device_journal::device_journal;
pub use self::discard::is_sink;
pub use self::earlier::{EarlierDirs, EarlierPlace};
pub use self::earlier_copies::earlier_copies;
pub use self::equal_names::{Spelling, Spellings, spelling};
pub use self::existing::{ExistingEntry, digest_of, existing, is_kept, same_content, stays};
pub use self::hints::is_append_only;
pub use self::in_order::OrderedSink;
pub use self::left_partial::{CleanedDirectory, FoundPartial, LeftPartial};
pub use self::listed::{entries_in, entries_to_link, read_content};
pub use self::moved::FilesByTime;
pub use self::nameless::temporary_file;
pub use self::output::PipeOutput;
pub use self::own_names::{JournalName, is_own_name};
pub use self::owners::Owners;
pub use self::remove::{Remover, enter_to_delete, is_born_since, remove_if_empty};
pub use self::reorder::{Put, Reorder};
pub use self::room::{Obstacle, obstacle};
pub use self::shared_inodes::{SharedInodes, stays_in_place};
pub use self::sink_spec::SinkSpec;
pub use self::snapshot_marks::{closed, holds_snapshots};
pub use self::snapshots::{
    SnapshotRun, SnapshotStore, has_no_entries, refuse_in_snapshots, refuse_targets_in_snapshots,
    remove_others, remove_tree,
};
pub use self::special::place_special;
pub use self::unchanged::{Standing, UnchangedFile, correct, has_owner_and_attributes, standing};
pub use self::write_test::{WriteTest, try_writing};
pub use crate::dir::home::own as home_directory;
pub use directory::Directory;
pub use link::{LinkTarget, check_symlink, place_hard_link, place_symlink};
pub use partial::Partial;
pub use placement::ScpPlaces;
pub use readback::Readback;
pub use resolve::{Spec, Unfinished, resolve, resolve_in, would_resolve_in};
pub use reuse::{EarlierEntry, has_metadata};
pub use root::{Landing, RootTarget, Source};
pub use secret::{UserKey, stored_user_key, user_key};
pub use slot::EntrySlot;
pub use small::place_small;
pub use space::{NeededSpace, check_free_space, check_space_of_each};

/// Options and restrictions for every entry that lands here, from the user and the ssh key.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Which metadata an entry gets from its source.
    pub keep: Keep,
    /// Which existing files stay.
    pub update: Update,
    /// Modes and owners that copies get instead of the source's.
    pub changes: Arc<MetadataChanges>,
    /// Counts the metadata that could not be kept.
    pub not_kept: Arc<NotKeptCounters>,
    /// An existing entry is not replaced.
    pub no_clobber: bool,
    /// `--delete`: an existing entry of another kind is removed.
    pub makes_room: bool,
    /// `--fsync`: data and metadata are durable before the rename, the rename before success.
    pub fsync: bool,
    /// `--inplace`: an existing file is written into.
    pub inplace: bool,
    /// Existing files with several names, with `--inplace`.
    pub shared_inodes: Arc<SharedInodes>,
    /// `--force`: replace a file that is open for writing elsewhere, and write a device in use.
    pub force: bool,
    /// `--allow-empty`: an empty pipe may replace a file that has content.
    pub allow_empty: bool,
    /// Existing content is never read, not even to compare it: the key may only write.
    pub blind: bool,
    /// Existing directories keep their mode and times.
    pub untouched: bool,
    /// Set-id bits, file capabilities and devices are kept; false for a confined key.
    pub set_id: bool,
    /// No entry may have a name that begins with `.fastcp-`, as those of partial files do.
    pub no_own_names: bool,
    /// A symbolic link may not lead out of the directory that the key is confined to.
    pub links_inside: bool,
    /// `--direct-io`: refuse a device that cannot be written past the page cache.
    pub direct_io: bool,
    /// `--drop-cache`: written data does not stay in the page cache.
    pub drop_cache: bool,
    /// `--dry-run`: nothing is written, and no mode changes.
    pub dry_run: bool,
    /// `--check`: a dry run that finds differences, also where a copy would be refused.
    pub check: bool,
    /// `--backup`: the place of replaced and deleted entries.
    pub backup: Option<Arc<Backups>>,
    /// How unchanged files of earlier copies are used, if there are any. Then nothing is changed in
    /// place that has another name.
    pub earlier: Option<Reuse>,
    /// The copy makes a snapshot, in a separate directory.
    pub snapshot: bool,
    /// Directories that hold snapshots are closed to other copies: the key may not replace files.
    pub closed: bool,
    pub modes: ModeRules,
    /// Permission bits that new files and directories do not get unless modes are kept or their
    /// directory has a default ACL.
    pub umask: u32,
}

/// Which modes files and directories get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeRules {
    /// With `-p` the source's mode. Otherwise the source's less the umask, and what exists keeps its
    /// own.
    Usual,
    /// As scp's SFTP server sets them: directories get the source's mode even without `-p`, and
    /// whether they exist or not.
    ScpUpload,
    /// As scp itself sets them: directories get no bits of the umask even with `-p`, and existing ones
    /// keep their mode. Without `-p`, a new file can be written by its owner.
    ScpDownload,
}

/// Result of placing an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    Copied,
    /// The same entry existed already and was left untouched (`--no-clobber`).
    Kept,
}

impl Rules {
    /// True for a copy with the results of scp.
    pub fn is_scp(&self) -> bool {
        self.modes != ModeRules::Usual
    }

    /// True if a file that has the new content already gets the present time, as scp gives it. With
    /// `--checksum`, a file of the same content is not written, so its time stays.
    fn touches(&self) -> bool {
        !self.keep.times && self.update.unchanged_by != UnchangedBy::Content
    }

    /// The option by which existing files are written in place, for messages.
    pub fn option_in_place(&self) -> &'static str {
        match self.is_scp() {
            true => "--scp",
            false => "--inplace",
        }
    }

    /// The entry's mode if modes are kept, for a file whose owner and group are those in `stat`. A file
    /// keeps its set-user-ID and set-group-ID bits only if its owner or group is the source's.
    fn mode_of(&self, entry: &Entry, stat: &Stat) -> u32 {
        let is_directory = file_type(stat) == FileType::Directory;
        let bits = match self.modes {
            ModeRules::Usual if self.set_id => 0o7777,
            ModeRules::ScpUpload | ModeRules::ScpDownload if !is_directory => 0o777,
            _ => 0o1777,
        };
        let mode = entry.mode & bits;
        if is_directory {
            return mode;
        }
        let user = if stat.st_uid == entry.uid { 0 } else { 0o4000 };
        let group = if stat.st_gid == entry.gid { 0 } else { 0o2000 };
        mode & !(user | group)
    }

    /// The mode of a new file or directory if modes are not kept.
    fn new_mode(&self, entry: &Entry) -> u32 {
        let more = match (self.modes, &entry.kind) {
            (ModeRules::ScpDownload, EntryKind::File | EntryKind::Pipe) => 0o200,
            // scp keeps the sticky bit.
            (ModeRules::ScpDownload, EntryKind::Directory) => entry.mode & 0o1000,
            _ => 0,
        };
        (entry.mode & 0o777 | more) & !self.umask
    }

    /// True if a directory gets the source's mode.
    fn keeps_directory_modes(&self) -> bool {
        match self.modes {
            ModeRules::Usual => self.keep.perms,
            ModeRules::ScpUpload => true,
            ModeRules::ScpDownload => false,
        }
    }

    /// The mode that an entry is given; counts set-id bits that it does not keep.
    fn mode_to_give(&self, entry: &Entry, stat: &Stat) -> u32 {
        let mode = self.mode_of(entry, stat);
        self.count_set_id(entry, mode);
        mode
    }

    /// Counts an entry that has `mode` and so lacks set-id bits of its source.
    fn count_set_id(&self, entry: &Entry, mode: u32) {
        let lacks_some = entry.mode & !mode & 0o6000 != 0;
        let is_kept = self.keep.perms && self.modes == ModeRules::Usual;
        if is_kept && lacks_some && !matches!(entry.kind, EntryKind::Symlink(_)) {
            self.not_kept.add(&NotKept {
                set_ids: 1,
                ..NotKept::default()
            });
        }
    }

    /// True if a change of the existing file would change names that are not further names of `entry`:
    /// those of separate files of the source, or of earlier copies.
    fn is_shared(&self, entry: &Entry, existing: &Stat) -> bool {
        (entry.links <= 1 || self.earlier.is_some()) && existing.st_nlink > 1
    }

    /// False for an attribute that could give a program more rights, if the key is confined.
    fn may_set(&self, attribute: &[u8]) -> bool {
        self.set_id || is_acl(attribute) || attribute.starts_with(b"user.")
    }

    /// Refuses a name that this copy may not create.
    ///
    /// # Errors
    /// `Kind::Refused`.
    pub fn check_name(&self, slot: &EntrySlot) -> Result<()> {
        if self.no_own_names && is_reserved(slot.name.as_bytes()) {
            return Err(slot.refused(RESERVED));
        }
        Ok(())
    }

    /// True if the entry `name` in `dir` is a symbolic link that this copy may not have in a directory of
    /// this depth.
    fn leads_out(&self, dir: impl AsFd, name: &OsStr, depth: usize) -> rustix::io::Result<bool> {
        if !self.links_inside {
            return Ok(false);
        }
        match readlinkat(dir, name, Vec::new()) {
            Ok(text) => Ok(may_leave(text.as_bytes(), depth)),
            // It is no symbolic link.
            Err(Errno::INVAL) => Ok(false),
            Err(cause) => Err(cause),
        }
    }
}

/// The umask of this process, as permission bits. Call this once, before other threads exist: a
/// kernel before 4.7 shows the umask only to a process that sets it.
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

/// The entry's times for a system call. Nanoseconds are limited to their valid range, since the
/// kernel reads two larger values as "now" and "leave unchanged".
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

/// The times of an existing entry, for a system call.
pub fn times_in(stat: &Stat) -> Timestamps {
    let time = |tv_sec, tv_nsec| Timespec {
        tv_sec,
        tv_nsec: tv_nsec as _,
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Closes a handle and returns the error, since some file systems write only at a close.
pub fn close(handle: impl Into<OwnedFd>) -> io::Result<()> {
    match nix::unistd::close(handle.into()) {
        // Linux closes the descriptor before it reports an interruption, so nothing is lost.
        Ok(()) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(cause) => Err(cause.into()),
    }
}

/// For an error of `fsync`.
const CANNOT_SYNC: &str = "cannot sync it to disk";

/// Makes the entry at `slot`, and its name, durable.
pub fn make_durable(slot: &EntrySlot) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let synced = match slot.dir.open(slot.name.as_os_str(), flags, Mode::empty()) {
        Ok(fd) => rustix::fs::fsync(fd).map_err(io::Error::from),
        // Its mode does not let this user open it, so its whole file system is synced.
        Err(cause) if Errno::from_io_error(&cause) == Some(Errno::ACCESS) => {
            let dir = slot.dir.handle();
            dir.and_then(|dir| Ok(rustix::fs::syncfs(&*dir)?))
        }
        Err(cause) => Err(cause),
    };
    synced.map_err(|cause| slot.error(CANNOT_SYNC, cause))?;
    sync_directory(&slot.dir)
}

/// Changes the status of an existing entry, and nothing else: its time of change becomes that of now.
///
/// # Errors
/// If that is not possible: the entry belongs to another user.
pub fn change_status(slot: &EntrySlot) -> Result<()> {
    let what = "is copied, but its source is not removed (compare the two with --check, then remove \
                the source by hand): fastcp cannot show that they are two files, because it cannot set \
                the times of the copy";
    let changed = slot.dir.handle().and_then(|dir| {
        let name = slot.name.as_os_str();
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let stat = statat(&*dir, name, flags)?;
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: stat.st_mtime,
                tv_nsec: stat.st_mtime_nsec as _,
            },
        };
        Ok(utimensat(&*dir, name, &times, flags)?)
    });
    changed.map_err(|cause| slot.error(what, cause))
}

/// Refuses a destination that keeps nothing: the source may not be removed.
///
/// # Errors
/// `Kind::Usage` for a pipe or device.
pub fn check_lasting(targets: &[RootTarget]) -> Result<()> {
    for landing in targets.iter().map(|target| &target.landing) {
        if landing.device().is_some() || matches!(landing, Landing::Exit(_)) {
            let message = "is a device or pipe; --remove-source-files needs a copy in a file";
            return Err(Error::new(Kind::Usage, Side::Dest, message).at(landing.path()));
        }
    }
    Ok(())
}

/// True if the kernel or the file system (NFS, some of FUSE) does not know the flags of renameat2(2).
fn is_flag_unknown(cause: Errno) -> bool {
    matches!(cause, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Makes the names in `dir` durable.
pub fn sync_directory(dir: &Arc<Dir>) -> Result<()> {
    let synced = dir.handle().and_then(|fd| match rustix::fs::fsync(&*fd) {
        // Some file systems cannot sync a directory.
        Err(Errno::INVAL) => Ok(()),
        // It was opened without permission to read it, see `Dir::filled`.
        Err(Errno::BADF) => Err(Errno::ACCESS.into()),
        other => Ok(other?),
    });
    synced.map_err(|cause| {
        let what = "cannot sync the directory to disk";
        Error::io(Kind::Write, Side::Dest, dir.path(), what, cause)
    })
}
