//! Symbolic links, with their text unchanged, and hard links to files that this copy placed.
//!
//! An existing entry is replaced in one step: the link is made under a temporary name and renamed.
//! A link cannot be locked, so its temporary name is random.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, linkat, readlinkat, renameat, statat, symlinkat,
    unlinkat, utimensat,
};
use rustix::io::Errno;

use super::attributes::{self, Marked};
use super::in_use::refuse_in_use_elsewhere;
use super::local_copy::{LocalCopy, NotCopied};
use super::own_names::random_name;
use super::temporary::{Temporary, same_file};
use super::{
    EntrySlot, Placement, Rules, backup, commit, existing, hints, own_names, space, sync_directory,
    times_of,
};
use crate::dir::may_leave;
use crate::error::{Error, Kind, Result, Side};
use crate::keep::NotKept;
use crate::manifest::{Entry, EntryKind, file_type};

/// Longest text of a link on Linux, in bytes.
const TEXT_MAX: usize = 4095;

/// Checks that the text of the symbolic link `entry` is possible and allowed; returns it.
///
/// # Errors
/// If it is not.
pub fn check_symlink<'a>(slot: &EntrySlot, entry: &'a Entry, rules: &Rules) -> Result<&'a [u8]> {
    let EntryKind::Symlink(text) = &entry.kind else {
        return Err(broken(slot, "a symbolic link without a target"));
    };
    if text.is_empty() || text.len() > TEXT_MAX || text.contains(&0) {
        return Err(broken(slot, "a symbolic link with an invalid target"));
    }
    if rules.links_inside && may_leave(text, slot.dir.depth()) {
        return Err(slot.refused(
            "is a symbolic link that may lead out of the directory that this key is confined to: \
             its forced command lacks --allow-outside-links",
        ));
    }
    Ok(text)
}

/// Makes the symbolic link `entry`, an [`EntryKind::Symlink`], with its text unchanged.
pub fn place_symlink(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<Placement> {
    let text = check_symlink(slot, entry, rules)?;
    let cannot_name = |cause| hints::name_error(slot, "cannot create the symbolic link", cause);
    let cannot_make = |cause: Errno| match cause {
        // symlink(2) returns PERM where links are not supported; FUSE file systems return the
        // others.
        Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP => {
            let what = "symbolic links are not supported (-L copies their targets)";
            slot.error(what, cause)
        }
        _ => cannot_name(cause.into()),
    };
    let dir = slot.dir.handle().map_err(cannot_name)?;
    let make = |name: &OsStr| symlinkat(text, &*dir, name);
    match make(slot.name.as_os_str()) {
        Ok(()) => {}
        Err(Errno::EXIST) => {
            let old = slot.stat()?;
            // A change of its metadata would change an earlier copy too.
            let is_shared = old.is_some_and(|old| rules.earlier.is_some() && old.st_nlink > 1);
            let same = !rules.blind
                && !is_shared
                && readlinkat(&*dir, slot.name.as_os_str(), Vec::new())
                    .is_ok_and(|old| old.as_bytes() == text);
            match &old {
                // A link of an earlier run may not be durable yet.
                _ if same && rules.no_clobber => {
                    make_durable(slot, rules)?;
                    return Ok(Placement::Kept);
                }
                Some(_) if rules.no_clobber => {
                    return Err(existing::stays(slot, rules));
                }
                Some(old) => {
                    commit::may_replace(slot, old)?;
                    refuse_in_use_elsewhere(slot, old, rules)?;
                }
                None => {}
            }
            if !same {
                let kept = backup::keep_old(slot, old.as_ref(), rules)?;
                let replaced = replace(slot, &dir, make);
                backup::settle(kept, replaced.is_ok())?;
                replaced.map_err(|error| match error {
                    ReplaceError::Make(cause) => cannot_make(cause),
                    ReplaceError::Rename(cause) => cannot_name(cause.into()),
                })?;
            }
        }
        Err(cause) => return Err(cannot_make(cause)),
    }
    give_metadata(slot, entry, rules)?;
    if rules.keep.times {
        let (name, times) = (slot.name.as_os_str(), times_of(entry));
        utimensat(&*dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|cause| slot.error("cannot set the times", cause))?;
    }
    make_durable(slot, rules)?;
    Ok(Placement::Copied)
}

/// Gives owner, group and attributes to a link, which has no mode of its own.
fn give_metadata(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<()> {
    let keep = &rules.keep;
    if !keep.has_owners_or_attributes() {
        return Ok(());
    }
    let opened = slot
        .dir
        .open(slot.name.as_os_str(), OFlags::PATH, Mode::empty());
    let fd = opened.map_err(|cause| slot.unreadable(cause))?;
    let mut stat = fstat(&fd).map_err(|cause| slot.no_status(cause))?;
    if file_type(&stat) != FileType::Symlink {
        return Err(slot.refused("was replaced by another process during the copy; copy it again"));
    }
    attributes::give_before_mode(&Marked::Path(fd.as_fd()), slot, entry, &mut stat, rules)
}

/// A file that this copy has placed, or found in place, and that gets hard links.
#[derive(Clone)]
pub struct LinkTarget {
    pub slot: EntrySlot,
    /// Device and inode; None if the file system has no lasting inode numbers.
    pub inode: Option<(u64, u64)>,
}

impl LinkTarget {
    fn is(&self, stat: &Stat) -> bool {
        let inode = (stat.st_dev, stat.st_ino);
        file_type(stat) == FileType::RegularFile && self.inode.is_none_or(|own| own == inode)
    }
}

/// Makes `slot` a hard link to `first`. If the file system has no hard links, makes a copy with the
/// metadata of `entry` instead.
///
/// # Errors
/// If another file has taken the first name; no link to that file stays under `slot`.
pub fn place_hard_link(
    first: &LinkTarget,
    slot: &EntrySlot,
    entry: &Entry,
    rules: &Rules,
) -> Result<Placement> {
    let failed = |cause: io::Error| slot.error("cannot create the hard link", cause);
    let (first_name, first) = (first, &first.slot);
    // Checked first: a peer may call a symbolic link "first" that it made itself.
    let placed = match first.stat()? {
        Some(stat) if first_name.is(&stat) => stat,
        Some(_) => return Err(replaced(slot)),
        None => return Err(gone(slot, "no longer exists")),
    };
    let from = first.dir.handle().map_err(failed)?;
    let to = slot.dir.handle().map_err(failed)?;
    let is_other = Cell::new(false);
    let make = |name: &OsStr| {
        linkat(&*from, first.name.as_os_str(), &*to, name, AtFlags::empty())?;
        // Another process may have replaced the first name since the check.
        let made = statat(&*to, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if first_name.is(&made) {
            return Ok(());
        }
        is_other.set(true);
        refuse_outside(&to, name, slot, rules)?;
        let now = statat(&*from, first.name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)?;
        // If they differ, that process has also put another entry under the new name, which stays.
        if same_file(&made, &now) {
            unlinkat(&*to, name, AtFlags::empty())?;
        }
        Err(Errno::STALE)
    };
    let made = match make(slot.name.as_os_str()) {
        Err(Errno::EXIST) => match slot.stat()? {
            Some(old) if same_file(&old, &placed) => {
                make_durable(slot, rules)?;
                return Ok(Placement::Copied);
            }
            Some(_) if rules.no_clobber => return keep(first, slot, rules),
            Some(old) => {
                commit::may_replace(slot, &old)?;
                refuse_in_use_elsewhere(slot, &old, rules)?;
                let old =
                    Some(&old).filter(|old| !has_content_of(slot, old, first, &placed, rules));
                let kept = backup::keep_old(slot, old, rules)?;
                let made = replace(slot, &to, make);
                backup::settle(kept, made.is_ok())?;
                made.map_err(io::Error::from)
            }
            None => replace(slot, &to, make).map_err(io::Error::from),
        },
        other => other.map_err(io::Error::from),
    };
    match made {
        Ok(()) => {}
        Err(_) if is_other.get() => return Err(replaced(slot)),
        Err(cause) if has_no_links(&cause) => return copy(first_name, slot, entry, rules),
        Err(cause) => return Err(failed(cause)),
    }
    make_durable(slot, rules)?;
    Ok(Placement::Copied)
}

/// Removes the hard link `name` that was just made in `dir`, the directory of `slot`, if it is to a
/// symbolic link that could lead out of there: another session of a confined key has put that in the
/// place of the entry to link.
///
/// # Errors
/// `STALE` if it was removed.
pub(super) fn refuse_outside(
    dir: &OwnedFd,
    name: &OsStr,
    slot: &EntrySlot,
    rules: &Rules,
) -> rustix::io::Result<()> {
    match rules.leads_out(dir, name, slot.dir.depth())? {
        true => unlinkat(dir, name, AtFlags::empty()).and(Err(Errno::STALE)),
        false => Ok(()),
    }
}

/// True if the old entry in `slot` needs no backup, since it has the content of `new` in `of`. A key
/// that may not read gets the backup in any case.
pub(super) fn has_content_of(
    slot: &EntrySlot,
    old: &Stat,
    of: &EntrySlot,
    new: &Stat,
    rules: &Rules,
) -> bool {
    if rules.backup.is_none() || rules.blind || file_type(old) != file_type(new) {
        return false;
    }
    match file_type(new) {
        FileType::RegularFile if old.st_size == new.st_size => {
            let digest = |slot| existing::digest_of(slot).ok().flatten();
            digest(slot).is_some_and(|old| Some(old) == digest(of))
        }
        FileType::Symlink => {
            let text = |slot: &EntrySlot| {
                let dir = slot.dir.handle().ok()?;
                readlinkat(&*dir, slot.name.as_os_str(), Vec::new()).ok()
            };
            text(slot).is_some_and(|old| Some(old) == text(of))
        }
        _ => false,
    }
}

/// With `--fsync`, the name of a link survives a power failure.
fn make_durable(slot: &EntrySlot, rules: &Rules) -> Result<()> {
    match rules.fsync {
        true => sync_directory(&slot.dir),
        false => Ok(()),
    }
}

fn gone(slot: &EntrySlot, what: &str) -> Error {
    let message = format!("its hard link target {what}");
    Error::new(Kind::Entry, Side::Dest, message).at(slot.path())
}

fn replaced(slot: &EntrySlot) -> Error {
    gone(slot, "was replaced by another process")
}

/// Where [`replace`] failed.
pub(super) enum ReplaceError {
    Make(Errno),
    Rename(Errno),
}

impl From<ReplaceError> for io::Error {
    fn from(error: ReplaceError) -> io::Error {
        let (ReplaceError::Make(cause) | ReplaceError::Rename(cause)) = error;
        cause.into()
    }
}

/// Makes a link under a temporary name and renames it to `slot`.
pub(super) fn replace(
    slot: &EntrySlot,
    dir: &Arc<OwnedFd>,
    make: impl Fn(&OsStr) -> rustix::io::Result<()>,
) -> std::result::Result<(), ReplaceError> {
    let temporary: OsString = random_name(slot);
    make(&temporary).map_err(ReplaceError::Make)?;
    let put = || renameat(&**dir, &temporary, &**dir, slot.name.as_os_str());
    // A partial file took the name after it was seen to be free: then only this entry fails.
    let renamed = own_names::while_unused(slot, put).unwrap_or(Err(Errno::BUSY));
    // Needed after a success too: a rename between two names of one file does nothing.
    let _ = unlinkat(&**dir, &temporary, AtFlags::empty());
    renamed.map_err(ReplaceError::Rename)
}

/// `--no-clobber` if another file exists: the same content is kept, other content is refused.
fn keep(first: &EntrySlot, slot: &EntrySlot, rules: &Rules) -> Result<Placement> {
    if rules.blind {
        return Err(existing::stays(slot, rules));
    }
    match (existing::digest_of(first)?, existing::digest_of(slot)?) {
        (Some(new), Some(old)) if new == old => {
            make_durable(slot, rules)?;
            Ok(Placement::Kept)
        }
        _ => Err(existing::stays(slot, rules)),
    }
}

/// True if hard links are not supported here or between these two, or if this file has too many.
pub(super) fn has_no_links(cause: &io::Error) -> bool {
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

/// Copies the content of `first` to `slot`.
fn copy(first: &LinkTarget, slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<Placement> {
    let failed = |cause: io::Error| first.slot.error("cannot read the copied file", cause);
    let name = first.slot.name.as_os_str();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let from = first.slot.dir.open(name, flags, Mode::empty());
    let from = from.map_err(failed)?;
    let before = fstat(&from).map_err(|cause| failed(cause.into()))?;
    if !first.is(&before) {
        return Err(replaced(slot));
    }
    let temporary = Temporary::create(slot)?;
    let copy = LocalCopy {
        from: &File::from(from),
        before: &before,
        into: &temporary.file,
        is_sparse: false,
        is_ending: &|| false,
    };
    copy.run().map_err(|why| match why {
        NotCopied::Changed | NotCopied::Ending => gone(slot, "was written by another process"),
        NotCopied::Read(cause) => failed(cause),
        NotCopied::Write(cause) => space::write_error(slot, entry.size, cause),
    })?;
    commit::commit(temporary, entry, rules)?;
    rules.not_kept.add(&NotKept {
        links: 1,
        ..NotKept::default()
    });
    Ok(Placement::Copied)
}

fn broken(slot: &EntrySlot, what: &str) -> Error {
    Error::breach(Side::Dest, "the sender", what).at(slot.path())
}

#[cfg(test)]
mod tests {
    use crate::keep::Keep;
    use std::os::unix::fs::MetadataExt;

    use super::super::testing::*;
    use super::*;

    /// The file with the name "first".
    fn first(dir: &std::path::Path) -> LinkTarget {
        let slot = slot(dir, "first");
        let stat = slot.stat().unwrap().unwrap();
        let inode = Some((stat.st_dev, stat.st_ino));
        LinkTarget { slot, inode }
    }

    #[test]
    fn what_has_taken_the_first_name_gets_no_further_name() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        std::fs::write(at("first"), b"content").unwrap();
        std::fs::write(at("theirs"), b"theirs").unwrap();
        let first = first(temp.path());
        std::fs::rename(at("theirs"), at("first")).unwrap();
        let second = slot(temp.path(), "second");
        for error in [
            place_hard_link(&first, &second, &file(7, 0o644), &rules()).map(drop),
            copy(&first, &second, &file(7, 0o644), &rules()).map(drop),
        ] {
            let message = error.unwrap_err().message;
            assert!(message.contains("was replaced by another"), "{message}");
        }
        assert_eq!(names(temp.path()), ["first"]);
    }

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
            keep: Keep::modes_and_times(),
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
        let first = first(temp.path());
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
        let first = first(temp.path());
        let hard = |name| {
            let slot = slot(temp.path(), name);
            place_hard_link(&first, &slot, &file(0, 0o644), &no_clobber)
        };
        assert_eq!(hard("same").unwrap(), Placement::Kept);
        assert_eq!(hard("other").unwrap_err().kind, Kind::Refused);
        let soft = |text| place_symlink(&slot(temp.path(), "soft"), &link(text), &no_clobber);
        assert_eq!(soft("a").unwrap(), Placement::Copied);
        assert_eq!(soft("a").unwrap(), Placement::Kept);
        assert_eq!(soft("b").unwrap_err().kind, Kind::Refused);
    }

    #[test]
    fn without_hard_links_the_file_is_copied() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("first"), b"content").unwrap();
        let (first, second) = (first(temp.path()), slot(temp.path(), "second"));
        copy(&first, &second, &file(7, 0o640), &rules()).unwrap();
        let meta = std::fs::metadata(temp.path().join("second")).unwrap();
        assert_eq!(
            (meta.len(), meta.mode() & 0o7777, meta.nlink()),
            (7, 0o640, 1)
        );
    }
}
