//! A file that a walk found: its status at that time, and a way to open it again by handle. Opening
//! fails if another file has taken its place since.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, Mode, OFlags, Stat, fgetxattr, fstat, getxattr, lgetxattr, openat};
use rustix::io::Errno;

use super::attributes;
use crate::chunk::SMALL_FILE_MAX;
use crate::digest::of_small;
use crate::dir::Dir;
use crate::dir::acl::{self, mode_without_list};
use crate::error::{Error, Kind, Result, Side};
use crate::keep::Keep;
use crate::manifest::{
    Entry, EntryKind, Extension, Identity, NO_PARENT, Name, Timestamp, YOUNG, file_type,
};

/// How to treat a source that changes while it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Read it once more; fail if it changes again.
    Told,
    /// The same, but if it only grew, copy it up to its first length.
    GrowthTaken,
    /// Copy it anyway: `--live`.
    Taken,
}

#[derive(Clone)]
pub struct FoundFile {
    pub entry: Entry,
    /// The directory that contains it; for a directory that the user named, that directory itself.
    pub dir: Arc<Dir>,
    /// Its name in `dir`, even if `entry.name` differs later.
    pub name: Name,
    /// As the walk saw it.
    pub identity: Identity,
    /// The name may be a link that is followed, because the user named it or asked for that.
    pub through_link: bool,
    /// Which metadata the destination gets.
    pub keep: Keep,
    /// Some of its extended attributes could not be read.
    pub lacks_attributes: bool,
}

impl FoundFile {
    /// As the user would write it, for messages.
    pub fn path(&self) -> PathBuf {
        if self.entry.kind == EntryKind::Directory && self.entry.parent == NO_PARENT {
            self.dir.path()
        } else {
            self.dir.path().join(&self.name)
        }
    }

    /// The path from the name of its root on, which tells the files of one copy apart.
    pub fn path_in_copy(&self) -> Vec<u8> {
        let name = self.name.as_bytes();
        if self.entry.parent == NO_PARENT {
            return name.to_vec();
        }
        let (root, way) = self.dir.below();
        let root = root.path();
        let root = root.file_name().map_or(&b""[..], OsStr::as_encoded_bytes);
        let parts = [root, &way, name].into_iter();
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        parts.join(&b'/')
    }

    /// Makes the mode of a file that which a copy without access control lists has. Without `-a` the
    /// list is not among the attributes.
    pub fn take_list_from_mode(&mut self) {
        let is_needed = self.keep.perms && !self.keep.acls && self.entry.kind == EntryKind::File;
        let Ok(dir) = self.dir.handle() else {
            // It fails when it is opened.
            return;
        };
        if !is_needed {
            return;
        }
        let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(&self.name);
        self.entry.mode = mode_without_list(self.entry.mode, |room| match self.through_link {
            true => getxattr(&path, acl::ACCESS, room),
            false => lgetxattr(&path, acl::ACCESS, room),
        });
    }

    /// Opens a regular file for reading and returns its present status. Size and times may differ
    /// from the entry's. The inode may differ only if changes are taken, as with a rotated log.
    ///
    /// # Errors
    /// `Kind::Read` if it vanished or is unreadable; `Kind::Changed` if another file has its name.
    pub fn open(&self, changes: Changes) -> Result<(File, Stat)> {
        // NONBLOCK: a FIFO that took the name must not block the open until a writer comes.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = if self.through_link {
            self.dir.handle().and_then(|dir| {
                let flags = flags | OFlags::CLOEXEC;
                Ok(openat(&*dir, self.name.as_os_str(), flags, Mode::empty())?)
            })
        } else {
            self.dir.open(self.name.as_os_str(), flags, Mode::empty())
        };
        let fd = opened.map_err(|cause| self.cannot_open(cause))?;
        let stat = fstat(&fd).map_err(|cause| self.cannot_read(cause.into()))?;
        let same = (stat.st_dev, stat.st_ino) == (self.identity.dev, self.identity.ino);
        if !(same || changes == Changes::Taken) || file_type(&stat) != FileType::RegularFile {
            return Err(self.changed(REPLACED));
        }
        Ok((File::from(fd), stat))
    }

    /// Reads a small file and puts the BLAKE3 of its content into the entry. Without it, because it
    /// is large or has changed, it differs from every file at the destination.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_content(&mut self, changes: Changes) -> Result<()> {
        let size = self.entry.size;
        let is_small = self.entry.kind == EntryKind::File && size <= SMALL_FILE_MAX;
        if !is_small || self.entry.is_device() || self.entry.content().is_some() {
            return Ok(());
        }
        let (file, _) = self.open(changes)?;
        let content = of_small(file, size).map_err(|cause| self.cannot_read(cause))?;
        if let Some(content) = content {
            self.entry.set_content(&content);
        }
        Ok(())
    }

    fn cannot_open(&self, cause: io::Error) -> Error {
        match Errno::from_io_error(&cause) {
            Some(Errno::NOENT) => Error::io(Kind::Read, Side::Source, self.path(), REMOVED, cause),
            // A link, a socket, or a replaced directory above it.
            Some(Errno::LOOP | Errno::NXIO) | None => self.changed(REPLACED),
            Some(_) => Error::io(Kind::Read, Side::Source, self.path(), "cannot open", cause),
        }
    }

    pub(super) fn cannot_read(&self, cause: io::Error) -> Error {
        if cause.kind() == io::ErrorKind::UnexpectedEof {
            return self.changed(SHRANK);
        }
        Error::io(Kind::Read, Side::Source, self.path(), "cannot read", cause)
    }

    fn changed(&self, what: &str) -> Error {
        Error::new(Kind::Changed, Side::Source, what).at(self.path())
    }

    /// Compares two statuses of an open file.
    ///
    /// # Errors
    /// `Kind::Changed` if they differ in a way that makes the copy doubtful.
    pub(super) fn compare(&self, before: &Stat, after: &Stat) -> Result<()> {
        let (then, now) = (Identity::of(before), Identity::of(after));
        // A file that had no name when the walk found it (/dev/fd/3) can lose none.
        let what = if after.st_nlink == 0 && self.entry.links > 0 {
            "was removed or replaced during the copy"
        } else if then == now {
            return Ok(());
        } else if now.size > then.size {
            GREW
        } else if now.size < then.size {
            SHRANK
        } else if now.mtime != then.mtime {
            WRITTEN
        } else {
            "its content, owner, mode or link count changed during the copy"
        };
        Err(self.changed(what))
    }
}

/// True if the error says that a source had vanished before it was opened.
pub fn has_vanished(error: &Error) -> bool {
    error.kind == Kind::Read && error.errno == Errno::NOENT.raw_os_error()
}

/// True if the error says that a link leads nowhere. Its errno is that of a file that has vanished, but
/// the link is still there.
pub fn is_dangling(error: &Error) -> bool {
    error.kind == Kind::Read && error.message.starts_with(DANGLING)
}

/// True if the error says that a file was longer after it was read than before. Its first bytes may
/// have changed too.
pub fn has_grown(error: &Error) -> bool {
    error.kind == Kind::Changed && error.message == GREW
}

pub(super) const DANGLING: &str = "is a dangling link";
pub(super) const REPLACED: &str = "was replaced during the copy";
pub(super) const REMOVED: &str = "was removed during the copy";
/// The file is in use.
pub const WRITTEN: &str = "was written during the copy; --live copies files that are in use";
/// Usually a log or a database in use.
pub const GREW: &str = "grew during the copy; --live copies files that are in use";
const SHRANK: &str = "shrank during the copy; --live copies files that are in use";

/// Updates `entry` from the present status of an open regular file. The link count stays as the
/// walk saw it: the walk announces further names by that count, and the receiver remembers the
/// place of a file only if its entry has several names.
pub(super) fn refresh(entry: &mut Entry, file: &File, stat: &Stat, keep: &Keep) {
    let name = entry.name.clone();
    let (id, parent) = (entry.id, entry.parent);
    let has_changed = entry.ctime != Timestamp::ctime(stat);
    // The name of the former owner.
    if entry.uid != stat.st_uid {
        entry.user.clear();
    }
    if entry.gid != stat.st_gid {
        entry.group.clear();
    }
    *entry = Entry {
        links: entry.links,
        user: std::mem::take(&mut entry.user),
        group: std::mem::take(&mut entry.group),
        birth: entry.birth,
        extensions: std::mem::take(&mut entry.extensions),
        ..Entry::from_stat(id, parent, name, EntryKind::File, stat)
    };
    if keep.has_attributes() && has_changed {
        attributes::refresh(entry, file, keep);
    }
    entry.mode = mode_without_list(entry.mode, |room| fgetxattr(file, acl::ACCESS, room));
    mark_young(entry);
}

/// A source written this recently may be written again without a change of its times. Some file
/// systems keep times to 2 s only.
const YOUNG_FOR: Duration = Duration::from_secs(2);

/// True if this file may be written again without a change of its times, by this machine's clock.
pub fn is_just_written(entry: &Entry) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = now.unwrap_or_default().saturating_sub(YOUNG_FOR).as_secs() as i64;
    entry.mtime.s >= since || entry.ctime.s >= since
}

/// Marks an entry that was just written: its times cannot show a later run that it is unchanged.
pub fn mark_young(entry: &mut Entry) {
    if is_just_written(entry) && !entry.is_young() {
        entry.extensions.push(Extension {
            tag: YOUNG,
            bytes: Vec::new(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn a_file_is_shown_with_its_path_from_the_name_of_the_root_on() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("tree/sub")).unwrap();
        for name in ["tree/top", "tree/sub/file"] {
            std::fs::write(temp.path().join(name), "x").unwrap();
        }
        let files = trees::files(&temp.path().join("tree"));
        let paths = files.iter().filter(|found| found.entry.size == 1);
        let paths: Vec<_> = paths.map(FoundFile::path_in_copy).collect();
        assert_eq!(paths, [&b"tree/sub/file"[..], b"tree/top"]);
    }

    #[test]
    fn a_file_is_young_for_as_long_as_coarse_times_may_hide_a_write() {
        let temp = tempfile::tempdir().unwrap();
        let (_, mut found) = trees::one(temp.path(), b"content");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut is_young = |age: i64| {
            let s = now.as_secs() as i64 - age;
            (found.entry.mtime.s, found.entry.ctime.s) = (s, s);
            found.entry.extensions.clear();
            mark_young(&mut found.entry);
            mark_young(&mut found.entry);
            assert!(found.entry.extensions.len() <= 1);
            found.entry.is_young()
        };
        assert!(
            is_young(0) && is_young(1) && is_young(-3600),
            "a clock that is ahead"
        );
        assert!(!is_young(5));
    }
}

/// "a FIFO" and the like for types that cannot be copied; None for types that can.
pub(super) fn special(file_type: FileType) -> Option<&'static str> {
    match file_type {
        FileType::RegularFile | FileType::Directory | FileType::Symlink => None,
        FileType::Fifo => Some("a FIFO"),
        FileType::Socket => Some("a socket"),
        FileType::BlockDevice => Some("a block device"),
        FileType::CharacterDevice => Some("a character device"),
        _ => Some("of an unknown type"),
    }
}

/// Small trees for tests of the modules that read them.
#[cfg(test)]
pub(crate) mod trees {
    use super::*;
    use crate::source::{Lookup, Step, Walk, expand};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    /// The files below `dir`, sorted by name.
    pub(crate) fn files(dir: &Path) -> Vec<FoundFile> {
        let lookup = Lookup {
            confine: None,
            base: dir.to_owned(),
            remote: false,
            scp: false,
        };
        let (roots, _) = expand(
            dir.as_os_str().as_bytes(),
            &lookup,
            true,
            &Default::default(),
        );
        let steps = Walk::new(roots, crate::source::WalkOptions::default(), Arc::default());
        let mut files: Vec<_> = steps
            .filter_map(|step| match step {
                Step::Entry(found) if found.entry.size > 0 || found.entry.parent != 0 => {
                    Some(found)
                }
                _ => None,
            })
            .collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        files
    }

    pub(crate) fn one(dir: &Path, content: &[u8]) -> (PathBuf, FoundFile) {
        let path = dir.join("file");
        std::fs::write(&path, content).unwrap();
        (path, files(dir).remove(0))
    }

    pub(crate) fn append(path: &Path, content: &[u8]) {
        use std::io::Write;
        let mut file = File::options().append(true).open(path).unwrap();
        file.write_all(content).unwrap();
    }
}
