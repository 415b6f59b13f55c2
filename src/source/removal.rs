//! The removal of source files whose copies are on disk (`--remove-source-files`). A file is
//! removed only if it is the copied file and has not changed since.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Mode, OFlags, StatxFlags, Timespec, fstat, fstatfs, openat, statx, unlinkat,
};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::found::FoundFile;
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{EntryKind, Identity, Name};

/// File systems keep times by the tick of the kernel, at most this many nanoseconds.
const TICK_NS: i64 = 10_000_000;

/// Some file systems keep times to 2 s only.
const COARSE_NS: i64 = 2_000_000_000;

/// File systems that keep no time of status or show it late, by their statfs(2) magic numbers: FUSE,
/// FAT, exFAT, 9P, SMB (three drivers), and VirtualBox's shared folders. There a copy that is the
/// source itself cannot be told apart.
const WITHOUT_STATUS_TIME: [u64; 8] = [
    0x6573_5546,
    0x4d44,
    0x2011_bab0,
    0x0102_1997,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x786f_4256,
];

/// Files with further names that are remembered; of others, the further names stay.
const LINKED_MAX: usize = 1 << 18;

/// A file that is copied, as it was just before it was read.
#[derive(Clone)]
pub struct CopiedFile {
    dir: Arc<Dir>,
    name: Name,
    identity: Identity,
    through_link: bool,
    /// It has, or is, a further name of a file.
    is_linked: bool,
    /// It is a further name.
    is_further: bool,
}

impl CopiedFile {
    /// Approximate bytes of memory, without its directory.
    pub fn bytes(&self) -> usize {
        size_of::<CopiedFile>() + self.name.as_bytes().len()
    }

    /// For a file that was opened, `found` describes it as it was then.
    pub fn of(found: &FoundFile) -> CopiedFile {
        let entry = &found.entry;
        let is_further = matches!(entry.kind, EntryKind::HardLink(_));
        let mut identity = found.identity;
        if entry.kind == EntryKind::File && !entry.is_made_up() {
            (identity.size, identity.mtime, identity.ctime) =
                (entry.size, entry.mtime, entry.ctime);
        }
        CopiedFile {
            dir: found.dir.clone(),
            name: found.name.clone(),
            identity,
            through_link: found.through_link,
            is_linked: is_further || entry.links > 1,
            is_further,
        }
    }

    pub fn is_linked(&self) -> bool {
        self.is_linked
    }

    /// As the user would write it, for messages.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }

    /// How many nanoseconds a reading has to wait so that a later write shows in the file's times. 0
    /// for a file that was not changed just now.
    pub fn too_young_ns(&self) -> u64 {
        let time = self.identity.ctime.max(self.identity.mtime);
        let is_coarse = self.identity.ctime.ns == 0 && self.identity.mtime.ns == 0;
        let grain = if is_coarse { COARSE_NS } else { TICK_NS };
        let now: Timespec = clock_gettime(ClockId::RealtimeCoarse);
        let age = (now.tv_sec - time.s)
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::from(now.tv_nsec as u32) - i64::from(time.ns));
        // A clock that is ahead of this one says nothing.
        match (-grain..=grain).contains(&age) {
            true => u64::try_from(grain - age).unwrap_or(0).min(grain as u64),
            false => 0,
        }
    }

    /// The error for a file that stays, for the reason `what`.
    pub fn stays(&self, what: &str) -> Error {
        let message = format!("is copied, but not removed: {what}");
        Error::new(Kind::Changed, Side::Source, message).at(self.path())
    }
}

/// Removes files. Knows those whose further names may follow.
#[derive(Default)]
pub struct SourceRemover {
    /// By device and inode: as they were when they were read, but with the time of the last removal of
    /// a name, which changes the status.
    linked: HashMap<(u64, u64), Identity>,
}

impl SourceRemover {
    /// Removes a file. False if another process has done so.
    ///
    /// # Errors
    /// `Kind::Changed` if it is not the file that was copied, or if it changed since it was read;
    /// `Kind::Refused` if the file system cannot show that the copy is another file; `Kind::Write` if
    /// the file cannot be removed.
    pub fn remove(&mut self, file: &CopiedFile) -> Result<bool> {
        let failed = |cause: std::io::Error| {
            let what = "is copied, but cannot be removed";
            Error::io(Kind::Write, Side::Source, file.path(), what, cause)
        };
        let fd = match open(file) {
            Ok(fd) => fd,
            Err(cause) if Errno::from_io_error(&cause) == Some(Errno::NOENT) => return Ok(false),
            Err(cause) => return Err(failed(cause)),
        };
        let kind = fstatfs(&fd).map_err(|cause| failed(cause.into()))?.f_type as u64;
        if WITHOUT_STATUS_TIME.contains(&(kind & 0xffff_ffff)) {
            let mut error = file.stays(
                "its file system (FUSE, FAT, 9P or SMB) cannot show that source and copy are two \
                 files; compare the two with --check, then remove it by hand",
            );
            error.kind = Kind::Refused;
            return Err(error);
        }
        let now = || fstat(&fd).map_err(|cause| failed(cause.into()));
        let key = (file.identity.dev, file.identity.ino);
        let expected = match (file.is_further, self.linked.get(&key)) {
            (true, None) => {
                return Err(file.stays(
                    "another name (hard link) of this file changed, or could not be removed; copy again",
                ));
            }
            (_, Some(first)) => *first,
            (false, None) => file.identity,
        };
        if Identity::of(&now()?) != expected {
            return Err(file.stays(
                "it changed since it was read, or it and the copy are the same file; copy again",
            ));
        }
        let dir = file.dir.handle().map_err(failed)?;
        match unlinkat(&*dir, file.name.as_os_str(), AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(cause) => return Err(failed(cause.into())),
        }
        if file.is_linked {
            let left = now()?;
            match left.st_nlink > 0 && self.linked.len() < LINKED_MAX {
                true => self.linked.insert(key, Identity::of(&left)),
                false => self.linked.remove(&key),
            };
        }
        Ok(true)
    }
}

/// A handle to the file, whose status is that of now also on a network file system.
fn open(file: &CopiedFile) -> std::io::Result<OwnedFd> {
    let fd = match file.through_link {
        true => {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let dir = file.dir.handle()?;
            openat(&*dir, file.name.as_os_str(), flags, Mode::empty())?
        }
        false => file
            .dir
            .open(file.name.as_os_str(), OFlags::PATH, Mode::empty())?,
    };
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    // Kernels before 4.11 lack this call; then `fstat` returns the cached status.
    let _ = statx(&fd, c"", flags, StatxFlags::BASIC_STATS);
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::found::trees;
    use super::*;

    #[test]
    fn only_the_file_that_was_copied_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let (path, found) = trees::one(temp.path(), b"content");
        let copied = CopiedFile::of(&found);
        let mut remover = SourceRemover::default();
        let meta = std::fs::metadata(&path).unwrap();
        let times = std::fs::FileTimes::new().set_modified(meta.modified().unwrap());
        std::thread::sleep(std::time::Duration::from_nanos(copied.too_young_ns()));
        // A new content of the same size, with the old time: only the status tells.
        std::fs::write(&path, b"changed").unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_times(times).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mtime(), meta.mtime());
        let stays = remover.remove(&copied).unwrap_err();
        assert_eq!(stays.kind, Kind::Changed);
        assert!(path.exists());
        let copied = CopiedFile::of(&trees::files(temp.path())[0]);
        assert!(remover.remove(&copied).unwrap() && !path.exists());
        assert!(!remover.remove(&copied).unwrap(), "it is gone");
        // Another file has the name.
        std::fs::write(&path, b"content").unwrap();
        assert!(remover.remove(&copied).is_err() && path.exists());
    }

    #[test]
    fn each_name_of_a_file_is_removed_and_its_removals_are_no_change() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        std::fs::write(at("a"), b"content").unwrap();
        std::fs::hard_link(at("a"), at("b")).unwrap();
        std::fs::hard_link(at("a"), at("c")).unwrap();
        let found = trees::files(temp.path());
        let copied: Vec<_> = found.iter().map(CopiedFile::of).collect();
        let further: Vec<_> = copied.iter().filter(|it| it.is_further).collect();
        let first = copied.iter().find(|it| !it.is_further).unwrap();
        assert_eq!(further.len(), 2);
        let mut remover = SourceRemover::default();
        assert!(remover.remove(further[0]).is_err(), "before the first");
        assert!(remover.remove(first).unwrap());
        assert!(remover.remove(further[0]).unwrap() && remover.remove(further[1]).unwrap());
        assert!(trees::files(temp.path()).is_empty() && remover.linked.is_empty());
    }
}
