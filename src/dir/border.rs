//! The border of a file system, seen without opening what lies behind it. A directory behind it may
//! be on a server that does not answer, and opening a directory may mount one.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, StatxAttributes, StatxFlags, makedev, statx};
use rustix::io::Errno;

use super::Dir;
use crate::manifest::file_type;

impl Dir {
    /// The type of `name`, as far as this machine knows it. None if it is on another file system,
    /// or would be when it is opened.
    ///
    /// # Errors
    /// Of the file system.
    pub fn type_within(self: &Arc<Dir>, name: &OsStr) -> io::Result<Option<FileType>> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        // Asked for more than the device, FUSE refuses every user but the one who mounted it.
        let stat = match statx(&*self.handle()?, name, flags, StatxFlags::empty()) {
            // Some containers forbid statx.
            Err(Errno::NOSYS | Errno::PERM) => {
                let stat = self.stat(name)?;
                return Ok((stat.st_dev == self.dev).then(|| file_type(&stat)));
            }
            told => told?,
        };
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let has = |attribute| stat.stx_attributes.contains(attribute);
        let is_within = match kind {
            FileType::Directory => {
                let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
                device == self.dev && !has(StatxAttributes::AUTOMOUNT)
            }
            // overlayfs gives files other device numbers than directories.
            _ => !has(StatxAttributes::MOUNT_ROOT),
        };
        Ok(is_within.then_some(kind))
    }
}
