//! A pipe, a command or a character device as the destination, identified before the first byte. A
//! [`OrderedSink`](super::OrderedSink) opens it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use super::is_sink;
use crate::manifest::file_type;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkSpec {
    Stdout,
    Stderr,
    /// The stdin of this command, run by `sh -c`.
    Command(OsString),
    /// A FIFO or a character device.
    Path(PathBuf),
    /// /dev/null.
    Null(PathBuf),
}

impl SinkSpec {
    /// None for any other kind of file.
    pub(super) fn of(path: PathBuf, stat: &Stat) -> Option<SinkSpec> {
        match file_type(stat) {
            FileType::CharacterDevice if is_sink(stat) => Some(SinkSpec::Null(path)),
            FileType::CharacterDevice | FileType::Fifo => Some(SinkSpec::Path(path)),
            _ => None,
        }
    }

    /// A pipe or a terminal that this process was given, as `>(command)` in a shell names it. The
    /// target of its link in /proc is not a path that could be opened.
    pub fn of_descriptor(path: &[u8]) -> Option<SinkSpec> {
        let number = [&b"/dev/fd/"[..], b"/proc/self/fd/"]
            .into_iter()
            .find_map(|dir| path.strip_prefix(dir))?;
        let path = Path::new(OsStr::from_bytes(path));
        let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
        let stat = rustix::fs::stat(path).ok().filter(|_| is_number)?;
        SinkSpec::of(path.to_owned(), &stat)
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        match self {
            SinkSpec::Stdout => Path::new("-"),
            SinkSpec::Stderr => Path::new("/dev/stderr"),
            SinkSpec::Command(line) => Path::new(line),
            SinkSpec::Path(path) | SinkSpec::Null(path) => path,
        }
    }
}
