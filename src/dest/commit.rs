//! The last step of a file: metadata, durability, and only then its name.
//!
//! The entry under the name is checked again here, since it may have appeared or gone while the
//! content arrived. The rename replaces the old content in one step. If no entry is expected, the
//! rename refuses to replace one, where the file system supports that.

use std::ffi::OsStr;
use std::fs::File;

use rustix::fs::{
    AtFlags, FileType, RenameFlags, Stat, linkat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::shared_inodes::{InodeUse, refuse_link, use_in_place};
use super::temporary::Temporary;
use super::{
    CANNOT_SYNC, EntrySlot, Rules, backup, close, existing, hints, identity, is_flag_unknown,
    own_names, space, sync_directory,
};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, EntryKind, file_type};

/// How often a file may appear and vanish under the final name before the commit gives up.
const TRIES: usize = 8;

enum Renamed {
    Done,
    /// An entry has appeared under the name.
    Appeared,
}

/// Gives a complete file its final name; returns its status there.
pub(super) fn commit(mut temporary: Temporary, entry: &Entry, rules: &Rules) -> Result<Stat> {
    let slot = temporary.slot.clone();
    let mut old = if slot.fresh { None } else { slot.stat()? };
    for _ in 0..TRIES {
        if let Some(old) = &old {
            may_replace(&slot, old)?;
            if rules.no_clobber {
                return Err(existing::stays(&slot, rules));
            }
        }
        let heir_of = old
            .as_ref()
            .filter(|old| file_type(old) == FileType::RegularFile);
        // Compared first, since that may take long: no run resumes a file that has its owner and mode.
        let replaced = old
            .as_ref()
            .filter(|old| !is_same(&slot, old, &temporary.file, rules));
        identity::give(&temporary, entry, heir_of, rules)?;
        settle(&slot, &temporary.file, rules)?;
        temporary.refresh()?;
        let kept = backup::keep_old(&slot, replaced, rules)?;
        let renamed = temporary.renamed(|name| {
            let put = || rename(name, &slot, old.is_some(), rules);
            own_names::while_unused(&slot, put).unwrap_or(Ok(Renamed::Appeared))
        });
        backup::settle(kept, matches!(renamed, Ok(Renamed::Done)))?;
        match renamed? {
            Renamed::Done => {
                temporary.committed();
                if rules.fsync {
                    sync_directory(&slot.dir)?;
                }
                return Ok(temporary.stat);
            }
            Renamed::Appeared => {
                old = slot.stat()?;
            }
        }
    }
    let message =
        "another process keeps creating and removing a file of this name; stop it and copy again";
    Err(Error::new(Kind::Write, Side::Dest, message).at(slot.path()))
}

/// True if no backup is needed, since the old version has the content of the new one. So a copy that
/// is repeated does not replace the backup that the first one made. A key that may not read gets the
/// backup in any case, because a missing one would show the content.
fn is_same(slot: &EntrySlot, old: &Stat, new: &File, rules: &Rules) -> bool {
    let may_compare = rules.backup.is_some() && !rules.blind;
    let has_size = || {
        new.metadata()
            .is_ok_and(|new| new.len() == old.st_size as u64)
    };
    let is_file = file_type(old) == FileType::RegularFile;
    may_compare && is_file && has_size() && existing::same_as(slot, new).unwrap_or(false)
}

/// For an error of the call that gives a complete file its name.
pub(super) const CANNOT_NAME: &str = "cannot give the finished file its name";

const IS_DIRECTORY: &str =
    "is a directory, and a file does not replace it; remove or rename one of them";

/// Only a regular file or a symbolic link may be replaced.
pub(super) fn may_replace(slot: &EntrySlot, old: &Stat) -> Result<()> {
    match file_type(old) {
        FileType::RegularFile | FileType::Symlink => Ok(()),
        FileType::Directory => Err(slot.refused(IS_DIRECTORY)),
        FileType::BlockDevice => {
            Err(slot.refused("is a block device; to write to it, name it as the destination"))
        }
        _ => Err(slot.refused(
            "is a device, FIFO or socket, and a file does not replace it; remove it first",
        )),
    }
}

/// Checks that the copy may put `entry` where an entry with the status `old` is.
///
/// # Errors
/// `Kind::Refused` if it may not.
pub fn check_place(slot: &EntrySlot, entry: &Entry, old: &Stat, rules: &Rules) -> Result<()> {
    let is_special = matches!(entry.kind, EntryKind::Special(_));
    if rules.no_clobber {
        let may_be_same = match entry.kind {
            EntryKind::File => {
                file_type(old) == FileType::RegularFile && old.st_size as u64 == entry.size
            }
            EntryKind::Pipe => false,
            _ => file_type(old) != FileType::Directory,
        };
        return match may_be_same {
            true => Ok(()),
            false => Err(existing::stays(slot, rules)),
        };
    }
    match is_special && file_type(old) != FileType::Directory {
        true => Ok(()),
        false => may_replace(slot, old),
    }?;
    match entry.kind {
        EntryKind::File | EntryKind::Pipe => {
            refuse_link(slot, old, rules)?;
            use_in_place(slot, old, InodeUse::Written, rules)
        }
        _ => Ok(()),
    }
}

/// Collects every write error that the kernel has not reported yet.
pub(super) fn settle(slot: &EntrySlot, file: &File, rules: &Rules) -> Result<()> {
    if rules.fsync {
        let synced = file.sync_all();
        synced.map_err(|cause| slot.error(CANNOT_SYNC, cause))?;
    }
    // Network file systems write back at each close. Closing a second handle reports their errors,
    // while the first handle keeps the lock until the rename is done.
    let closed = file.try_clone().and_then(close);
    closed.map_err(|cause| space::write_error(slot, 0, cause))
}

/// Renames the file `from` to the name of `slot`.
fn rename(from: &OsStr, slot: &EntrySlot, replace: bool, rules: &Rules) -> Result<Renamed> {
    let failed = |cause: std::io::Error| match Errno::from_io_error(&cause) {
        Some(Errno::ISDIR) => slot.refused(IS_DIRECTORY),
        _ => hints::name_error(slot, CANNOT_NAME, cause),
    };
    let dir = slot.dir.handle().map_err(failed)?;
    let to = slot.name.as_os_str();
    if replace {
        renameat(&*dir, from, &*dir, to).map_err(|cause| failed(cause.into()))?;
        return Ok(Renamed::Done);
    }
    match renameat_with(&*dir, from, &*dir, to, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(Renamed::Done),
        Err(Errno::EXIST) => return Ok(Renamed::Appeared),
        Err(cause) if is_flag_unknown(cause) => {}
        Err(cause) => return Err(failed(cause.into())),
    }
    if rules.no_clobber {
        match linkat(&*dir, from, &*dir, to, AtFlags::empty()) {
            Ok(()) => {
                unlinkat(&*dir, from, AtFlags::empty()).map_err(|cause| failed(cause.into()))?;
                return Ok(Renamed::Done);
            }
            Err(Errno::EXIST) => return Ok(Renamed::Appeared),
            // Hard links are not supported either: only a check just before the rename remains.
            Err(_) => {}
        }
    }
    match statat(&*dir, to, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => return Ok(Renamed::Appeared),
        Err(Errno::NOENT) => {}
        Err(cause) => return Err(failed(cause.into())),
    }
    renameat(&*dir, from, &*dir, to).map_err(|cause| failed(cause.into()))?;
    Ok(Renamed::Done)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
    use std::path::Path;

    use super::super::testing::*;
    use super::*;
    use crate::keep::Keep;

    fn copy(slot: &EntrySlot, content: &[u8], entry: &Entry, rules: &Rules) -> Result<()> {
        let temporary = Temporary::create(slot)?;
        temporary.file.write_all_at(content, 0).unwrap();
        commit(temporary, entry, rules).map(drop)
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_new_file_has_the_sources_mode_less_umask_and_all_of_it_with_p() {
        let temp = tempfile::tempdir().unwrap();
        let entry = file(3, 0o4777);
        copy(&slot(temp.path(), "a"), b"new", &entry, &rules()).unwrap();
        assert_eq!(mode(&temp.path().join("a")), 0o755);
        let preserve = Rules {
            keep: Keep::modes_and_times(),
            ..rules()
        };
        copy(&slot(temp.path(), "b"), b"new", &entry, &preserve).unwrap();
        assert_eq!(mode(&temp.path().join("b")), 0o4777);
        let meta = std::fs::metadata(temp.path().join("b")).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 5));
    }

    #[test]
    fn what_stood_there_keeps_owner_mode_and_acl_but_no_set_id_bits() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a");
        std::fs::write(&path, b"old content").unwrap();
        let root = rustix::process::geteuid().is_root();
        if root {
            std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4640)).unwrap();
        // user::rw-, user:77:r--, group::r--, mask::r--, other::---
        let acl = [
            &[2u8, 0, 0, 0][..],
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 4, 0, 77, 0, 0, 0],
            &[4, 0, 4, 0, 255, 255, 255, 255],
            &[16, 0, 4, 0, 255, 255, 255, 255],
            &[32, 0, 0, 0, 255, 255, 255, 255],
        ]
        .concat();
        let has_acls = xattr::set(&path, "system.posix_acl_access", &acl).is_ok();
        copy(&slot(temp.path(), "a"), b"new", &file(3, 0o666), &rules()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(mode(&path), 0o640);
        let meta = std::fs::metadata(&path).unwrap();
        if root {
            assert_eq!((meta.uid(), meta.gid()), (1234, 4321));
        }
        if has_acls {
            let kept = xattr::get(&path, "system.posix_acl_access").unwrap();
            assert_eq!(kept, Some(acl));
        }
        assert_eq!(names(temp.path()), ["a"]);
    }

    #[test]
    fn a_name_that_appears_in_a_fresh_directory_is_replaced_as_anywhere() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a");
        std::fs::write(&path, b"came meanwhile").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
        let mut fresh = slot(temp.path(), "a");
        fresh.fresh = true;
        copy(&fresh, b"new", &file(3, 0o644), &rules()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(mode(&path), 0o604);
        let no_clobber = Rules {
            no_clobber: true,
            ..rules()
        };
        let refused = copy(&fresh, b"newer", &file(5, 0o644), &no_clobber).unwrap_err();
        assert_eq!(refused.kind, Kind::Refused);
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(names(temp.path()), ["a"]);
    }

    #[test]
    fn a_link_under_the_final_name_is_replaced_and_a_directory_is_not() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("victim"), b"precious").unwrap();
        std::os::unix::fs::symlink("victim", temp.path().join("a")).unwrap();
        copy(&slot(temp.path(), "a"), b"new", &file(3, 0o644), &rules()).unwrap();
        let read = |name| std::fs::read(temp.path().join(name)).unwrap();
        assert_eq!(read("victim"), b"precious");
        assert_eq!(read("a"), b"new");
        std::fs::create_dir(temp.path().join("d")).unwrap();
        let refused = copy(&slot(temp.path(), "d"), b"new", &file(3, 0o644), &rules());
        assert_eq!(
            refused.unwrap_err().message,
            "is a directory, and a file does not replace it; remove or rename one of them"
        );
        assert_eq!(names(temp.path()), ["a", "d", "victim"]);
    }
}
