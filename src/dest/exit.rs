//! Where a stream leaves: named, before the first byte; a [`Drain`](super::Drain) is what it is
//! then opened as.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use super::{Landing, Target, is_sink};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Root, file_type};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    Stdout,
    /// The stdin of this command, run by `sh -c`.
    Command(OsString),
    /// A FIFO or a character device.
    Path(PathBuf),
    /// /dev/null.
    Null(PathBuf),
}

impl Exit {
    /// None for what is no such thing.
    pub(super) fn of(path: PathBuf, stat: &Stat) -> Option<Exit> {
        match file_type(stat) {
            FileType::CharacterDevice if is_sink(stat) => Some(Exit::Null(path)),
            FileType::CharacterDevice | FileType::Fifo => Some(Exit::Path(path)),
            _ => None,
        }
    }

    /// For messages.
    pub fn path(&self) -> &Path {
        match self {
            Exit::Stdout => Path::new("-"),
            Exit::Command(line) => Path::new(line),
            Exit::Path(path) | Exit::Null(path) => path,
        }
    }

    /// Where the one root of a copy lands that leaves here.
    ///
    /// # Errors
    /// `Kind::Usage` for anything but one file or stream.
    pub fn target(&self, roots: &[Root]) -> Result<Target> {
        match roots {
            [root] if !root.is_directory => Ok(Target {
                landing: Landing::Exit(self.clone()),
                // As b3sum calls it.
                listed: b"-".to_vec(),
                existed: true,
            }),
            _ => {
                let message = "takes one file or stream, and no directory \
                               (a tree goes through tar: --from-command 'tar -c DIR')";
                Err(Error::new(Kind::Usage, Side::Dest, message).at(self.path()))
            }
        }
    }
}
