//! The origin of a pipe before it is read: standard input, a command, a FIFO, a device or a file.
//! Opening a [`PipeSpec`] gives a [`PipeReader`].

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, SeekFrom, Stat, fstat, major, minor, seek, stat};

use super::found::{Changes, FoundFile};
use super::pipe::{Filled, PipeEnd, PipeSource};
use crate::chunk::Buffer;
use crate::command::{Command, CommandRole};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{
    BEGUN, Entry, EntryId, EntryKind, Extension, NO_PARENT, Name, ONCE, Root, Timestamp, file_type,
};
use crate::pipe::Stop;

/// Linux devices that never end: zero, full, random, urandom and hwrng.
const ENDLESS: [(u32, u32); 5] = [(1, 5), (1, 7), (1, 8), (1, 9), (10, 183)];

/// Of [`ENDLESS`], /dev/zero: its bytes carry no information.
const ZERO: (u32, u32) = (1, 5);

/// Permissions of a file whose source has no mode.
const MODE: u32 = 0o666;

#[derive(Clone)]
pub enum PipeSpec {
    Stdin,
    /// The stdout of this command, run by `sh -c`.
    Command(OsString),
    /// A FIFO or a character device.
    Path(PathBuf),
    /// A file that is read as a pipe. It is opened through its directory, as every file is.
    File(Box<FoundFile>),
}

/// Limits that end a pipe which has no end by itself.
#[derive(Clone, Debug, Default)]
pub struct PipeLimits {
    /// Bytes to read from a device that never ends.
    pub size: Option<u64>,
    /// A file is at its end when it has not grown for this long, or when the flag is set.
    pub follow: Option<(Duration, Stop)>,
}

/// An open pipe.
pub struct PipeReader {
    source: PipeSource,
    /// The command that produces it.
    command: Option<Command>,
}

impl PipeSpec {
    /// The path or command line, for messages.
    pub fn path(&self) -> PathBuf {
        match self {
            PipeSpec::Stdin => "-".into(),
            PipeSpec::Command(line) => line.into(),
            PipeSpec::Path(path) => path.clone(),
            PipeSpec::File(found) => found.path(),
        }
    }

    /// An entry for a pipe that has no file name.
    pub fn entry(&self, id: EntryId) -> Entry {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let time = Timestamp {
            s: now.as_secs() as i64,
            ns: now.subsec_nanos(),
        };
        Entry {
            mode: MODE,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mtime: time,
            atime: time,
            ctime: time,
            extensions: vec![once(false)],
            ..Entry::new(id, NO_PARENT, nameless(), EntryKind::Pipe)
        }
    }

    /// The root for a pipe that has no file name, as sent to the receiver.
    pub fn root(&self, id: EntryId) -> Root {
        Root {
            id,
            operand: 0,
            name: nameless(),
            is_directory: false,
            contents: true,
            dev: 0,
            ino: 0,
        }
    }

    /// Bytes left to read, if standard input is a regular file.
    pub fn length(&self) -> Option<u64> {
        if !matches!(self, PipeSpec::Stdin) {
            return None;
        }
        let stdin = std::io::stdin();
        let stat = fstat(&stdin).ok()?;
        let at = seek(&stdin, SeekFrom::Current(0)).ok()?;
        let is_file = file_type(&stat) == FileType::RegularFile;
        is_file.then(|| (stat.st_size as u64).saturating_sub(at))
    }

    /// True if the pipe cannot be read a second time.
    pub fn is_once(&self) -> bool {
        !matches!(self, PipeSpec::File(_))
    }

    /// True for /dev/zero, which measures the throughput of a link: its chunks are not compressed.
    pub fn is_test(&self) -> bool {
        let device = |stat: &Stat| (major(stat.st_rdev), minor(stat.st_rdev));
        let is_zero =
            |stat: &Stat| file_type(stat) == FileType::CharacterDevice && device(stat) == ZERO;
        self.stat().is_some_and(|stat| is_zero(&stat))
    }

    /// Starts the command, or opens the source. `on_line` gets the lines of the command's stderr.
    ///
    /// # Errors
    /// `Kind::Command`, `Kind::Read`; `Kind::Usage` for an endless device without a size.
    pub fn open(
        &self,
        limits: PipeLimits,
        stop: &Stop,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<PipeReader> {
        let mut command = None;
        let end = self.end(limits)?;
        let source = match self {
            PipeSpec::Stdin => PipeSource::stdin(end, stop.clone())?,
            PipeSpec::Path(path) => PipeSource::open(path, end, stop.clone())?,
            PipeSpec::File(found) => {
                let (file, _) = found.open(Changes::Told)?;
                PipeSource::from_fd(file.into(), found.path(), end, stop.clone())
            }
            PipeSpec::Command(line) => {
                let (started, stdout) = Command::start(line, CommandRole::Producer, on_line)?;
                command = Some(started);
                PipeSource::from_fd(stdout, line, end, stop.clone())
            }
        };
        Ok(PipeReader { source, command })
    }

    fn end(&self, limits: PipeLimits) -> Result<PipeEnd> {
        if let (PipeSpec::File(_), Some((idle, enough))) = (self, limits.follow) {
            return Ok(PipeEnd::Still { idle, enough });
        }
        let Some(stat) = self.stat() else {
            return Ok(PipeEnd::Closed);
        };
        let device = (major(stat.st_rdev), minor(stat.st_rdev));
        let is_endless = file_type(&stat) == FileType::CharacterDevice && ENDLESS.contains(&device);
        match limits.size {
            // The size is only an estimate.
            _ if !is_endless => Ok(PipeEnd::Closed),
            Some(size) => Ok(PipeEnd::Size(size)),
            None => {
                let message = "never ends: set the bytes to read with --size";
                Err(Error::new(Kind::Usage, Side::Source, message).at(self.path()))
            }
        }
    }

    fn stat(&self) -> Option<Stat> {
        match self {
            PipeSpec::Stdin => fstat(std::io::stdin()).ok(),
            PipeSpec::Command(_) | PipeSpec::File(_) => None,
            PipeSpec::Path(path) => stat(path).ok(),
        }
    }
}

impl PipeReader {
    /// See [`PipeSource::fill`].
    pub fn fill(&mut self, buffer: &mut Buffer, most: usize) -> Result<Filled> {
        self.source.fill(buffer, most)
    }

    /// Checks, at the end of the pipe, that its producer succeeded.
    ///
    /// # Errors
    /// `Kind::Command` if the command that produces the pipe failed.
    pub fn finish(self, stop: &Stop) -> Result<()> {
        // A command that still writes then gets an error, because nobody reads any more.
        drop(self.source);
        self.command.map_or(Ok(()), |command| command.finish(stop))
    }
}

/// True if a file of this type is read as a pipe when the user names it.
pub fn is_pipe(file_type: FileType) -> bool {
    matches!(file_type, FileType::Fifo | FileType::CharacterDevice)
}

/// The same for the file that a path leads to; false if it leads nowhere.
pub fn is_pipe_at(path: &Path) -> bool {
    stat(path).is_ok_and(|stat| is_pipe(file_type(&stat)))
}

/// Marks an entry that can be read only once. `begun`: an earlier session has begun to read it.
pub fn once(begun: bool) -> Extension {
    Extension {
        tag: ONCE,
        bytes: if begun { BEGUN.to_vec() } else { Vec::new() },
    }
}

fn nameless() -> Name {
    Name::try_from(b"-".to_vec()).expect("one byte that is neither a slash nor a dot")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_ends_only_a_device_that_never_ends() {
        let end = |device: &str, size| {
            let limits = PipeLimits { size, follow: None };
            PipeSpec::Path(device.into()).end(limits)
        };
        for device in ["/dev/zero", "/dev/urandom"] {
            assert!(matches!(end(device, Some(5)), Ok(PipeEnd::Size(5))));
            assert_eq!(end(device, None).unwrap_err().kind, Kind::Usage);
        }
        for size in [None, Some(5)] {
            assert!(matches!(end("/dev/null", size), Ok(PipeEnd::Closed)));
        }
    }
}
