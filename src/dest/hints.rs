//! Hints for a name that cannot be made, where the kernel's error says little: the file or its
//! directory may not be changed, no inodes are left, or the file system does not allow the name.

use std::io;
use std::sync::Arc;

use rustix::fs::{
    Access, AtFlags, FileType, StatxAttributes, StatxFlags, accessat, fstatvfs, statat, statx,
};
use rustix::io::Errno;

use super::EntrySlot;
use crate::dir::Dir;
use crate::error::Error;
use crate::manifest::file_type;
use crate::units::printable;

/// The error for a failed call that makes or names a file in `slot`, with a hint if one is known.
pub(super) fn name_error(slot: &EntrySlot, what: &str, cause: impl Into<io::Error>) -> Error {
    let cause = cause.into();
    let hint = match Errno::from_io_error(&cause) {
        Some(Errno::INVAL | Errno::ILSEQ) => Some(
            "the file system does not allow this name; rename the file, or copy it to another file system",
        ),
        Some(Errno::NOSPC) if has_no_inodes(&slot.dir) => {
            Some("the file system has no inodes left (see df -i)")
        }
        Some(Errno::PERM) => locked(slot),
        _ => None,
    };
    let mut error = slot.error(what, cause);
    if let Some(hint) = hint {
        error.message += &format!("; {hint}");
    }
    error
}

/// The attribute that keeps even root from changing the existing file or its directory.
fn locked(slot: &EntrySlot) -> Option<&'static str> {
    let dir = slot.dir.handle().ok()?;
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let there = statx(&*dir, slot.name.as_os_str(), flags, StatxFlags::empty());
    let there = there.map_or(StatxAttributes::empty(), |there| there.stx_attributes);
    if there.contains(StatxAttributes::IMMUTABLE) {
        Some("the existing file is immutable (see lsattr)")
    } else if there.contains(StatxAttributes::APPEND) {
        Some("the existing file may only be appended to (see lsattr)")
    } else {
        is_append_only(&slot.dir).then_some("its directory is append-only (see lsattr)")
    }
}

/// True if no name in it can be changed or removed, so that a partial file could not be renamed.
pub fn is_append_only(dir: &Arc<Dir>) -> bool {
    let attributes = dir.handle().and_then(|dir| {
        let told = statx(&*dir, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
        Ok(told.stx_attributes)
    });
    attributes.is_ok_and(|attributes| attributes.contains(StatxAttributes::APPEND))
}

/// True if no more files can be made. Some file systems do not count files and report 0.
fn has_no_inodes(dir: &Arc<Dir>) -> bool {
    let found = dir.handle().and_then(|dir| Ok(fstatvfs(&*dir)?));
    found.is_ok_and(|found| found.f_files > 0 && found.f_favail == 0)
}

/// Advice for an existing file that a new one cannot replace, if it can be written to.
pub(super) fn inplace_instead(slot: &EntrySlot) -> Option<String> {
    let dir = slot.dir.handle().ok()?;
    let name = slot.name.as_os_str();
    let stat = statat(&*dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if file_type(&stat) != FileType::RegularFile {
        return None;
    }
    accessat(&*dir, name, Access::WRITE_OK, AtFlags::EACCESS).ok()?;
    let name = printable(slot.name.as_bytes());
    Some(format!("use --inplace to write into {name} itself"))
}
