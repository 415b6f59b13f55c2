//! The existing entry at a destination, and whether it has the new content already, for
//! `--no-clobber`. The same content is success, other content is refused; neither is touched.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat};
use rustix::io::Errno;

use super::{EntrySlot, Rules};
use crate::digest::{Digest, of_small};
use crate::dir::Dir;
use crate::error::{Error, Kind, Result};
use crate::manifest::{Timestamp, file_type};

/// Bytes that are read and compared or hashed at a time.
const STEP: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExistingEntry {
    /// A regular file; false for a link to one.
    pub is_file: bool,
    pub is_directory: bool,
    pub size: u64,
    pub dev: u64,
    pub ino: u64,
    pub mtime: Timestamp,
}

impl ExistingEntry {
    pub(super) fn of(stat: &Stat) -> ExistingEntry {
        ExistingEntry {
            is_file: file_type(stat) == FileType::RegularFile,
            is_directory: file_type(stat) == FileType::Directory,
            size: stat.st_size as u64,
            dev: stat.st_dev,
            ino: stat.st_ino,
            mtime: Timestamp::mtime(stat),
        }
    }
}

/// The entry under this name; a symbolic link is not followed.
pub fn existing(slot: &EntrySlot) -> Result<Option<ExistingEntry>> {
    Ok(slot.stat()?.map(|stat| ExistingEntry::of(&stat)))
}

/// True if a regular file with exactly this content exists there.
pub fn same_content(slot: &EntrySlot, content: &[u8]) -> Result<bool> {
    let Some((file, size)) = open(slot)? else {
        return Ok(false);
    };
    if size != content.len() as u64 {
        return Ok(false);
    }
    let mut found = vec![0; content.len().min(STEP)];
    for (index, step) in content.chunks(STEP).enumerate() {
        let found = &mut found[..step.len()];
        match file.read_exact_at(found, (index * STEP) as u64) {
            Ok(()) if found == step => {}
            Ok(()) => return Ok(false),
            // The file has become shorter since the check.
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(cause) => return Err(slot.unreadable(cause)),
        }
    }
    Ok(true)
}

/// The BLAKE3 of the small file `name` in `dir`. None if it does not have exactly `size` bytes.
///
/// # Errors
/// If it cannot be read.
pub(super) fn content_of(dir: &Arc<Dir>, name: &OsStr, size: u64) -> io::Result<Option<Digest>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = File::from(dir.open(name, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => of_small(file, size),
        false => Ok(None),
    }
}

/// True if a regular file with the content of `other` exists there.
pub(super) fn same_as(slot: &EntrySlot, other: &File) -> Result<bool> {
    let Some((file, size)) = open(slot)? else {
        return Ok(false);
    };
    let mut steps = (vec![0; STEP], vec![0; STEP]);
    let mut offset = 0;
    while offset < size {
        let len = STEP.min(usize::try_from(size - offset).unwrap_or(STEP));
        let (one, two) = (&mut steps.0[..len], &mut steps.1[..len]);
        let read = file.read_exact_at(one, offset);
        let read = read.and_then(|()| other.read_exact_at(two, offset));
        match read {
            Ok(()) if one == two => offset += len as u64,
            Ok(()) => return Ok(false),
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(cause) => return Err(slot.unreadable(cause)),
        }
    }
    Ok(true)
}

/// The BLAKE3 root hash of the regular file there, or None if there is none. Reads the whole file,
/// so the caller compares sizes first.
pub fn digest_of(slot: &EntrySlot) -> Result<Option<Digest>> {
    let Some((file, _)) = open(slot)? else {
        return Ok(None);
    };
    let digest = digest_of_file(&file);
    digest.map(Some).map_err(|cause| slot.unreadable(cause))
}

/// The BLAKE3 root hash of a whole file.
pub(super) fn digest_of_file(file: &File) -> io::Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    let mut step = vec![0; STEP];
    let mut offset = 0;
    loop {
        match file.read_at(&mut step, offset) {
            Ok(0) => return Ok(*hasher.finalize().as_bytes()),
            Ok(len) => {
                hasher.update(&step[..len]);
                offset += len as u64;
            }
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
}

/// The error for an entry that may not be replaced.
pub fn stays(slot: &EntrySlot, rules: &Rules) -> Error {
    slot.refused(if rules.blind || rules.untouched {
        "exists, and this key may not replace it"
    } else {
        KEPT
    })
}

/// For an entry that stays because the user wants that, and no key.
const KEPT: &str = "exists, and --no-clobber keeps it";

/// True for the error of such an entry.
pub fn is_kept(error: &Error) -> bool {
    error.kind == Kind::Refused && error.message == KEPT
}

/// The regular file at `slot` and its size in bytes.
fn open(slot: &EntrySlot) -> Result<Option<(File, u64)>> {
    match slot.stat()? {
        Some(stat) if file_type(&stat) == FileType::RegularFile => {}
        _ => return Ok(None),
    }
    let failed = |cause| Error {
        kind: Kind::Refused,
        ..slot.error("cannot read the existing file (--no-clobber)", cause)
    };
    let opened = open_checked(slot, failed)?;
    Ok(opened.map(|(file, stat)| (file, stat.st_size as u64)))
}

/// Opens the regular file at `slot`, which the caller has checked. None if it was removed or
/// replaced since the check. `failed` makes the error for a file that cannot be opened.
pub(super) fn open_checked(
    slot: &EntrySlot,
    failed: impl FnOnce(io::Error) -> Error,
) -> Result<Option<(File, Stat)>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let fd = match slot.dir.open(slot.name.as_os_str(), flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(cause) => {
            return match Errno::from_io_error(&cause) {
                Some(Errno::NOENT | Errno::LOOP) => Ok(None),
                _ => Err(failed(cause)),
            };
        }
    };
    let stat = fstat(&fd).map_err(|cause| slot.unreadable(cause))?;
    let is_file = file_type(&stat) == FileType::RegularFile;
    Ok(is_file.then(|| (File::from(fd), stat)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn content_is_compared_to_the_last_byte() {
        let temp = tempfile::tempdir().unwrap();
        let content = vec![7; STEP + 1];
        std::fs::write(temp.path().join("a"), &content).unwrap();
        let slot = slot(temp.path(), "a");
        assert!(same_content(&slot, &content).unwrap());
        let mut other = content.clone();
        other[STEP] = 8;
        assert!(!same_content(&slot, &other).unwrap());
        assert!(!same_content(&slot, &content[..STEP]).unwrap());
        let root = blake3::hash(&content);
        assert_eq!(digest_of(&slot).unwrap(), Some(*root.as_bytes()));
    }

    #[test]
    fn a_link_to_the_same_content_is_not_that_content() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("real"), b"x").unwrap();
        std::os::unix::fs::symlink("real", temp.path().join("a")).unwrap();
        let slot = slot(temp.path(), "a");
        assert!(!same_content(&slot, b"x").unwrap());
        assert_eq!(digest_of(&slot).unwrap(), None);
    }
}
