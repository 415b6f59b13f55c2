//! The directories of earlier copies, as the user named them, and copies of their files.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::ioctl_ficlone;
use rustix::io::Errno;

use super::earlier::EarlierDirs;
use super::option_path::{OptionBase, OptionDirectory};
use super::partial::{replaceable, write_sparse};
use super::reuse::EarlierEntry;
use super::temporary::Temporary;
use super::{EntrySlot, ExistingEntry, Rules, Spec, commit, space};
use crate::dir::Handles;
use crate::earlier::{EarlierCopies, EarlierPath};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::Entry;
use crate::units::printable;

/// Bytes that are copied between two looks at whether the copy is ending.
const STEP: u64 = 8 << 20;

/// Bytes that are read at a time from a file with holes.
const SPARSE_STEP: usize = 1 << 20;

impl EarlierEntry {
    /// Copies the file to `slot`, with the metadata of `entry`. None if it cannot be read, has
    /// changed, or if the copy `is_ending`.
    ///
    /// # Errors
    /// Of the file system, at the new place.
    pub fn copy_to(
        &self,
        slot: &EntrySlot,
        entry: &Entry,
        rules: &Rules,
        is_ending: &dyn Fn() -> bool,
        make_room: &dyn Fn() -> Result<()>,
    ) -> Result<Option<ExistingEntry>> {
        let Some(from) = self.open() else {
            return Ok(None);
        };
        replaceable(slot, entry, rules)?;
        let temporary = Temporary::create(slot)?;
        let copied = copy_content(&from, &temporary.file, entry, is_ending)
            .map_err(|cause| space::write_error(slot, entry.size, cause))?;
        // It may have changed while it was read.
        if copied != Some(entry.size) || is_ending() || !self.is_as_found(&from) {
            return Ok(None);
        }
        make_room()?;
        let stat = commit::commit(temporary, entry, rules)?;
        Ok(Some(ExistingEntry::of(&stat)))
    }
}

/// Copies the content of `entry` from a file that has it; returns the number of bytes. None if it cannot
/// be read: the content is sent. If it is the new file that cannot be written, that fails too.
///
/// # Errors
/// If there is no room for the new file.
fn copy_content(
    from: &File,
    into: &File,
    entry: &Entry,
    is_ending: &dyn Fn() -> bool,
) -> io::Result<Option<u64>> {
    if ioctl_ficlone(into, from).is_ok() {
        return Ok(Some(entry.size));
    }
    into.set_len(0)?;
    let copied = match entry.is_sparse() {
        true => copy_sparse(from, into, entry.size, is_ending),
        false => copy_all(from, into, entry.size, is_ending),
    };
    match copied {
        Err(cause) if !is_of_writing(&cause) => Ok(None),
        copied => copied.map(Some),
    }
}

/// True for an error that only writing can have: the file system has no room for the new file. The
/// kernel copies the data, so other errors may come from reading.
fn is_of_writing(cause: &io::Error) -> bool {
    let errno = Errno::from_io_error(cause);
    matches!(
        errno,
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::ROFS)
    )
}

/// Copies a file of `size` bytes; returns the number of bytes, which is larger if the file grows. The
/// standard library lets the kernel copy the data where it can.
fn copy_all(
    from: &File,
    mut into: &File,
    size: u64,
    is_ending: &dyn Fn() -> bool,
) -> io::Result<u64> {
    let mut copied = 0;
    while copied <= size && !is_ending() {
        match io::copy(&mut from.take(STEP), &mut into)? {
            0 => break,
            len => copied += len,
        }
    }
    Ok(copied)
}

/// The same for a file with holes, which stay.
fn copy_sparse(
    from: &File,
    into: &File,
    size: u64,
    is_ending: &dyn Fn() -> bool,
) -> io::Result<u64> {
    into.set_len(size)?;
    let mut room = vec![0; SPARSE_STEP];
    let mut at = 0;
    while at < size && !is_ending() {
        let len = room.len().min((size - at) as usize);
        match from.read_at(&mut room[..len], at) {
            Ok(0) => break,
            Ok(len) => {
                write_sparse(into, &room[..len], at)?;
                at += len as u64;
            }
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(at)
}

/// The earlier copies that exist. `is_directory`: the first root is a directory. Warns the user of a
/// missing copy; it is no error, because the first copy of a series has no earlier one.
///
/// # Errors
/// `Kind::Usage` if one is not a directory, or a key may not reach it; `Kind::Refused` if it is behind a
/// symbolic link that is not followed.
pub fn earlier_copies(
    spec: &Spec,
    earlier: &EarlierCopies,
    is_directory: bool,
    handles: &Arc<Handles>,
    tell: &dyn Fn(&str),
) -> Result<EarlierDirs> {
    let base = OptionBase::of(spec, is_directory, handles)?;
    let mut found = Vec::new();
    for EarlierPath(path) in &earlier.directories {
        match base.find(path)? {
            OptionDirectory::Directory(dir) => found.push(dir),
            OptionDirectory::Missing => tell(&is_missing(path, &base.path_of(path))),
            OptionDirectory::Other => {
                let message = "is not a directory, so it is no earlier copy";
                let error = Error::new(Kind::Usage, Side::Dest, message);
                return Err(error.at(base.path_of(path)));
            }
        }
    }
    Ok(EarlierDirs::of(found))
}

fn is_missing(typed: &[u8], whole: &Path) -> String {
    format!(
        "fastcp: the earlier copy {} does not exist ({}), so fastcp does not use it",
        printable(typed),
        printable(whole.as_os_str().as_bytes())
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::testing::*;
    use super::*;
    use crate::keep::{Keep, UnchangedBy, Update};
    use crate::manifest::Timestamp;

    #[test]
    fn a_file_that_grows_is_not_copied_to_its_end() {
        let (from, into) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.set_len(3 * STEP).unwrap();
        let copied = copy_all(&from, &into, 1, &|| false).unwrap();
        assert_eq!(copied, STEP);
    }

    #[test]
    fn an_earlier_file_that_cannot_be_read_is_not_used() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("f");
        std::fs::write(&path, b"content").unwrap();
        let into = tempfile::tempfile().unwrap();
        let sparse = Entry {
            allocated: 0,
            ..file(7, 0o644)
        };
        for entry in [file(7, 0o644), sparse] {
            let from = File::open(&path).unwrap();
            let copied = copy_content(&from, &into, &entry, &|| false);
            assert_eq!(copied.unwrap(), Some(7));
            // A read from this handle fails, and not with EIO.
            let unreadable = File::options().append(true).open(&path).unwrap();
            let copied = copy_content(&unreadable, &into, &entry, &|| false);
            assert_eq!(copied.unwrap(), None);
        }
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = copy_all(&File::open(&path).unwrap(), &full, 7, &|| false);
        assert!(is_of_writing(&error.unwrap_err()));
    }

    #[test]
    fn an_equal_file_is_linked_and_one_with_another_mode_copied() {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["old", "new"] {
            std::fs::create_dir(temp.path().join(dir)).unwrap();
        }
        std::fs::write(temp.path().join("old/f"), b"content").unwrap();
        let rules = Rules {
            keep: Keep::modes_and_times(),
            update: Update {
                unchanged_by: UnchangedBy::SizeAndTime,
                ..Update::default()
            },
            ..rules()
        };
        let old = slot(&temp.path().join("old"), "f");
        let stat = old.dir.stat("f".as_ref()).unwrap();
        let mut entry = file(7, stat.st_mode & 0o7777);
        entry.mtime = Timestamp::mtime(&stat);
        let place = EarlierDirs::of(vec![old.dir.clone()]).place(name("f"));
        let found = place.find(&entry, &rules).expect("the earlier file");
        assert!(found.is_equal());
        let new = slot(&temp.path().join("new"), "f");
        assert!(found.link_to(&new, &rules).unwrap().is_some());
        let meta = |path: &str| std::fs::metadata(temp.path().join(path)).unwrap();
        assert_eq!(meta("old/f").ino(), meta("new/f").ino());

        entry.mode = 0o600;
        let found = place.find(&entry, &rules).expect("the earlier file");
        assert!(!found.is_equal());
        let copied = found
            .copy_to(&new, &entry, &rules, &|| false, &|| Ok(()))
            .unwrap();
        assert!(copied.is_some());
        assert_ne!(meta("old/f").ino(), meta("new/f").ino());
        assert_eq!(meta("new/f").mode() & 0o777, 0o600);
        assert_eq!(meta("new/f").mtime(), meta("old/f").mtime());
        assert_eq!(meta("old/f").mode() & 0o7777, stat.st_mode & 0o7777);
        entry.size = 8;
        assert!(place.find(&entry, &rules).is_none());
    }
}
