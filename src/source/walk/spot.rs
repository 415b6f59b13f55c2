//! The place of an entry in the tree, before its type is known.

use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, Stat, getxattr, lgetxattr, readlinkat, statat};
use rustix::io::Errno;

use crate::dir::{Dir, acl};
use crate::error::Result;
use crate::keep::Keep;
use crate::manifest::{Entry, EntryId, EntryKind, Identity, Name};
use crate::source::device::SourceDevice;
use crate::source::found::FoundFile;

/// The longest text of a symbolic link, in bytes; the limit of Linux.
const LINK_MAX: usize = 4095;

pub(super) struct WalkSpot {
    /// Its entry number, if that is already fixed.
    pub id: Option<EntryId>,
    pub parent: EntryId,
    pub dir: Arc<Dir>,
    pub name: Name,
    /// Links are followed: the user named the entry, or asked for it with an option.
    pub through_link: bool,
    /// It is a link that is followed because listed names lead through it.
    pub is_followed: bool,
}

impl WalkSpot {
    /// As the user would write it, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }

    pub(super) fn stat(&self) -> io::Result<Stat> {
        if self.through_link {
            let dir = self.dir.handle()?;
            Ok(statat(&*dir, self.name.as_os_str(), AtFlags::empty())?)
        } else {
            self.dir.stat(self.name.as_os_str())
        }
    }

    /// The mode of a directory for copies without its ACL. The directory need not be open.
    pub(super) fn mode_without_list(&self, mode: u32) -> u32 {
        let Ok(dir) = self.dir.handle() else {
            return mode;
        };
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let path = PathBuf::from(path).join(&self.name);
        acl::mode_without_list(mode, |room| match self.through_link {
            true => getxattr(&path, acl::ACCESS, room),
            false => lgetxattr(&path, acl::ACCESS, room),
        })
    }

    pub(super) fn link_text(&self) -> io::Result<Vec<u8>> {
        let dir = self.dir.handle()?;
        let text = readlinkat(&*dir, self.name.as_os_str(), Vec::new())?.into_bytes();
        if text.len() > LINK_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        Ok(text)
    }

    /// The content of the block device here, as a file entry of the same size.
    pub(super) fn into_device(self, id: EntryId, stat: &Stat, keep: Keep) -> Result<FoundFile> {
        let size = SourceDevice::open(&self.path(), false)?.size();
        let found = self.into_found(id, EntryKind::File, stat, keep);
        let entry = found.entry.of_device(size);
        Ok(FoundFile { entry, ..found })
    }

    pub(super) fn into_found(
        self,
        id: EntryId,
        kind: EntryKind,
        stat: &Stat,
        keep: Keep,
    ) -> FoundFile {
        FoundFile {
            entry: Entry::from_stat(id, self.parent, self.name.clone(), kind, stat),
            dir: self.dir,
            name: self.name,
            identity: Identity::of(stat),
            through_link: self.through_link,
            keep,
            lacks_attributes: false,
        }
    }
}
