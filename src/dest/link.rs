//! Symbolic links, kept as they are, and further names of files that this copy placed.
//!
//! What stands under the name goes in one step: the link is made under a temporary name and
//! renamed. A link cannot be locked, so that name is a random one.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, linkat, readlinkat, renameat, symlinkat, unlinkat,
    utimensat,
};
use rustix::io::Errno;

use super::own_name::{self, random_name};
use super::temporary::Temporary;
use super::{Placed, Rules, Slot, commit, space, standing, sync_directory, times_of};
use crate::dir::may_leave;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, EntryKind, file_type};

/// The longest text of a link that Linux takes, in bytes.
const TEXT_MAX: usize = 4095;

/// Makes `entry`, a [`EntryKind::Symlink`], with its text as it is.
pub fn place_symlink(slot: &Slot, entry: &Entry, rules: &Rules) -> Result<Placed> {
    let EntryKind::Symlink(text) = &entry.kind else {
        return Err(broken(slot, "a link without its text"));
    };
    if text.is_empty() || text.len() > TEXT_MAX || text.contains(&0) {
        return Err(broken(slot, "a link whose text cannot be one"));
    }
    if rules.links_inside && may_leave(text, slot.dir.depth()) {
        return Err(slot.refused(
            "is a symbolic link that may lead out of the directory that this key is confined to",
        ));
    }
    let failed = |cause: io::Error| slot.error("cannot make the link", cause);
    let dir = slot.dir.handle().map_err(failed)?;
    let make = |name: &std::ffi::OsStr| symlinkat(text.as_slice(), &*dir, name);
    match make(slot.name.as_os_str()) {
        Ok(()) => {}
        Err(Errno::EXIST) => {
            let same = !rules.blind
                && readlinkat(&*dir, slot.name.as_os_str(), Vec::new())
                    .is_ok_and(|old| old.as_bytes() == text);
            match slot.stat()? {
                _ if same && rules.no_clobber => return Ok(Placed::Kept),
                Some(_) if rules.no_clobber => {
                    return Err(standing::stays(slot, rules));
                }
                Some(old) => commit::may_replace(slot, &old)?,
                None => {}
            }
            if !same {
                replace(slot, &dir, make).map_err(failed)?;
            }
        }
        Err(cause) => return Err(failed(cause.into())),
    }
    if rules.preserve {
        let (name, times) = (slot.name.as_os_str(), times_of(entry));
        utimensat(&*dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|cause| slot.error("cannot set the times", cause))?;
    }
    if rules.fsync {
        sync_directory(&slot.dir)?;
    }
    Ok(Placed::Copied)
}

/// Makes `slot` a further name of `first`, a regular file that this copy has placed; where the
/// file system has no such names, a copy of it with the metadata of `entry`.
pub fn place_hard_link(first: &Slot, slot: &Slot, entry: &Entry, rules: &Rules) -> Result<Placed> {
    let failed = |cause: io::Error| slot.error("cannot make the hard link", cause);
    // Looked at first: a peer may call a link "first" that it made itself.
    let placed = match first.stat()? {
        Some(stat) if file_type(&stat) == FileType::RegularFile => stat,
        _ => {
            let message = "the file that it is a further name of is not there";
            return Err(Error::new(Kind::Entry, Side::Dest, message).at(slot.path()));
        }
    };
    let from = first.dir.handle().map_err(failed)?;
    let to = slot.dir.handle().map_err(failed)?;
    let make = |name: &std::ffi::OsStr| {
        linkat(&*from, first.name.as_os_str(), &*to, name, AtFlags::empty())
    };
    let made = match make(slot.name.as_os_str()) {
        Err(Errno::EXIST) => match slot.stat()? {
            Some(old) if same_file(&old, &placed) => return Ok(Placed::Copied),
            Some(_) if rules.no_clobber => return keep(first, slot, rules),
            Some(old) => {
                commit::may_replace(slot, &old)?;
                replace(slot, &to, make)
            }
            None => replace(slot, &to, make),
        },
        other => other.map_err(io::Error::from),
    };
    match made {
        Ok(()) => {}
        Err(cause) if has_no_links(&cause) => return copy(first, slot, entry, rules),
        Err(cause) => return Err(failed(cause)),
    }
    if rules.fsync {
        sync_directory(&slot.dir)?;
    }
    Ok(Placed::Copied)
}

/// Makes a link under a temporary name and renames it to `slot`.
fn replace(
    slot: &Slot,
    dir: &Arc<OwnedFd>,
    make: impl Fn(&std::ffi::OsStr) -> rustix::io::Result<()>,
) -> io::Result<()> {
    let temporary: OsString = random_name(slot);
    make(&temporary)?;
    let put = || renameat(&**dir, &temporary, &**dir, slot.name.as_os_str());
    // In use again after it was seen to be free: the entry fails, and nothing else.
    let renamed = own_name::while_unused(slot, put).unwrap_or(Err(Errno::BUSY));
    // Also after a success: where both are names of one file a rename does nothing at all.
    let _ = unlinkat(&**dir, &temporary, AtFlags::empty());
    Ok(renamed?)
}

/// `--no-clobber` where another file stands.
fn keep(first: &Slot, slot: &Slot, rules: &Rules) -> Result<Placed> {
    if rules.blind {
        return Err(standing::stays(slot, rules));
    }
    match (standing::digest_of(first)?, standing::digest_of(slot)?) {
        (Some(new), Some(old)) if new == old => Ok(Placed::Kept),
        _ => Err(standing::stays(slot, rules)),
    }
}

fn same_file(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// No hard links here, none between these two, or none left for this file.
fn has_no_links(cause: &io::Error) -> bool {
    let errno = Errno::from_io_error(cause);
    [
        Errno::PERM,
        Errno::OPNOTSUPP,
        Errno::NOSYS,
        Errno::XDEV,
        Errno::MLINK,
    ]
    .map(Some)
    .contains(&errno)
}

/// Writes what `first` holds to `slot`.
fn copy(first: &Slot, slot: &Slot, entry: &Entry, rules: &Rules) -> Result<Placed> {
    let from = first
        .dir
        .open(
            first.name.as_os_str(),
            OFlags::RDONLY | OFlags::NONBLOCK,
            Mode::empty(),
        )
        .map_err(|cause| first.error("cannot read what was placed", cause))?;
    let temporary = Temporary::create(slot)?;
    // The standard library keeps to what the kernel can copy by itself, where it can.
    io::copy(&mut File::from(from), &mut &temporary.file)
        .map_err(|cause| space::write_error(slot, entry.size, cause))?;
    commit::commit(temporary, entry, rules)?;
    Ok(Placed::Copied)
}

fn broken(slot: &Slot, message: &str) -> Error {
    Error::new(Kind::Lost, Side::Dest, message).at(slot.path())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::testing::*;
    use super::*;

    fn link(text: &str) -> Entry {
        let mut entry = file(0, 0o777);
        entry.kind = EntryKind::Symlink(text.as_bytes().to_vec());
        entry
    }

    #[test]
    fn a_link_replaces_a_file_or_a_link_and_never_what_a_link_points_at() {
        let temp = tempfile::tempdir().unwrap();
        let read = |name| std::fs::read_link(temp.path().join(name)).unwrap();
        std::fs::write(temp.path().join("file"), b"old").unwrap();
        std::fs::write(temp.path().join("victim"), b"precious").unwrap();
        std::os::unix::fs::symlink("victim", temp.path().join("link")).unwrap();
        let preserve = Rules {
            preserve: true,
            ..rules()
        };
        for name in ["file", "link", "new"] {
            let slot = slot(temp.path(), name);
            place_symlink(&slot, &link("../to"), &preserve).unwrap();
            assert_eq!(read(name).to_str(), Some("../to"));
            let meta = std::fs::symlink_metadata(temp.path().join(name)).unwrap();
            assert_eq!(meta.mtime(), 1_000_000_000);
        }
        assert_eq!(
            std::fs::read(temp.path().join("victim")).unwrap(),
            b"precious"
        );
        std::fs::create_dir(temp.path().join("dir")).unwrap();
        let refused = place_symlink(&slot(temp.path(), "dir"), &link("x"), &rules());
        assert_eq!(refused.unwrap_err().kind, Kind::Refused);
        assert_eq!(names(temp.path()), ["dir", "file", "link", "new", "victim"]);
    }

    #[test]
    fn a_text_that_no_link_can_have_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        for text in ["", "a\0b", &"x".repeat(TEXT_MAX + 1)] {
            assert!(place_symlink(&slot(temp.path(), "a"), &link(text), &rules()).is_err());
        }
        assert_eq!(names(temp.path()), [""; 0]);
    }

    #[test]
    fn a_hard_link_replaces_what_is_there_and_leaves_no_temporary() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("first"), b"content").unwrap();
        std::fs::write(temp.path().join("other"), b"old").unwrap();
        std::fs::hard_link(temp.path().join("first"), temp.path().join("same")).unwrap();
        let first = slot(temp.path(), "first");
        for name in ["other", "same", "new"] {
            place_hard_link(&first, &slot(temp.path(), name), &file(0, 0o644), &rules()).unwrap();
        }
        let meta = std::fs::metadata(temp.path().join("first")).unwrap();
        assert_eq!(meta.nlink(), 4);
        assert_eq!(names(temp.path()), ["first", "new", "other", "same"]);
    }

    #[test]
    fn what_is_there_stays_with_no_clobber() {
        let temp = tempfile::tempdir().unwrap();
        let no_clobber = Rules {
            no_clobber: true,
            ..rules()
        };
        for (name, content) in [("first", "one"), ("same", "one"), ("other", "two")] {
            std::fs::write(temp.path().join(name), content).unwrap();
        }
        let first = slot(temp.path(), "first");
        let hard = |name| {
            let slot = slot(temp.path(), name);
            place_hard_link(&first, &slot, &file(0, 0o644), &no_clobber)
        };
        assert_eq!(hard("same").unwrap(), Placed::Kept);
        assert_eq!(hard("other").unwrap_err().kind, Kind::Refused);
        let soft = |text| place_symlink(&slot(temp.path(), "soft"), &link(text), &no_clobber);
        assert_eq!(soft("a").unwrap(), Placed::Copied);
        assert_eq!(soft("a").unwrap(), Placed::Kept);
        assert_eq!(soft("b").unwrap_err().kind, Kind::Refused);
    }

    #[test]
    fn without_hard_links_the_file_is_copied() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("first"), b"content").unwrap();
        let (first, second) = (slot(temp.path(), "first"), slot(temp.path(), "second"));
        copy(&first, &second, &file(7, 0o640), &rules()).unwrap();
        let meta = std::fs::metadata(temp.path().join("second")).unwrap();
        assert_eq!(
            (meta.len(), meta.mode() & 0o7777, meta.nlink()),
            (7, 0o640, 1)
        );
    }
}
