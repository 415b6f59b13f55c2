//! The place of one entry at the destination.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dir::Dir;
use crate::error::{Error, Kind, Side};
use crate::manifest::Name;

/// A directory and a name in it: where one entry lands.
#[derive(Clone)]
pub struct EntrySlot {
    pub dir: Arc<Dir>,
    pub name: Name,
    /// This copy made the directory, so no entry is expected under the name. This is only a hint
    /// that saves a system call: an entry that another process has put there is replaced or refused
    /// when the new one gets its name, and options such as `-u` do not look at it.
    pub fresh: bool,
    /// The path for messages, if it is not that of the name in `dir`: above all the path as typed,
    /// if the user named a block device here. The device is then written, and nothing replaces it.
    /// A device that the user did not name is left alone.
    pub device: Option<Arc<Path>>,
}

impl EntrySlot {
    pub fn new(dir: Arc<Dir>, name: Name) -> EntrySlot {
        EntrySlot {
            dir,
            name,
            fresh: false,
            device: None,
        }
    }

    /// The path as the user would write it; for messages.
    pub fn path(&self) -> PathBuf {
        match &self.device {
            Some(device) => device.to_path_buf(),
            None => self.dir.path().join(&self.name),
        }
    }

    /// The path below the destination of an entry that has this name at the source.
    pub fn path_in_copy(&self, name: &Name) -> Vec<u8> {
        let (_, mut path) = self.dir.below();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        path
    }

    /// The error for a failed call on this name.
    pub(super) fn error(&self, what: &str, cause: impl Into<io::Error>) -> Error {
        Error::io(Kind::Write, Side::Dest, self.path(), what, cause)
    }

    /// The error if the status of a file that is being written cannot be read.
    pub(super) fn no_status(&self, cause: impl Into<io::Error>) -> Error {
        self.error("cannot read the status of the written file", cause)
    }

    /// The error if the file that already has this name cannot be read.
    pub fn unreadable(&self, cause: impl Into<io::Error>) -> Error {
        self.error("cannot read the existing file", cause)
    }

    pub(super) fn refused(&self, message: impl Into<String>) -> Error {
        Error::new(Kind::Refused, Side::Dest, message).at(self.path())
    }
}
