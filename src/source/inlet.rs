//! What a stream is read from: named, before the first byte. A [`Feed`] is what it is then opened
//! as.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, SeekFrom, Stat, fstat, major, minor, seek, stat};

use super::found::{Changes, Found};
use super::stream::{End, Filled, StreamSource};
use super::tee::{Tap, Tee};
use crate::chunk::Buffer;
use crate::command::{Command, Role};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{
    BEGUN, Entry, EntryId, EntryKind, Extension, NO_PARENT, Name, ONCE, Root, Timestamp, file_type,
};
use crate::pipe::Stop;

/// Devices of Linux that never end: zero, full, random and urandom.
const ENDLESS: [(u32, u32); 4] = [(1, 5), (1, 7), (1, 8), (1, 9)];

/// Of these, the one whose bytes say nothing.
const ZERO: (u32, u32) = (1, 5);

/// What permits of a file that has no source with a mode.
const MODE: u32 = 0o666;

#[derive(Clone)]
pub enum Inlet {
    Stdin,
    /// The stdout of this command, run by `sh -c`.
    Command(OsString),
    /// A FIFO or a character device.
    Path(PathBuf),
    /// A file that is read like one; it is reached by its directory, as every file is.
    File(Box<Found>),
    /// One of these that several copies read, and which of them this is.
    Tee(Arc<Tee>, usize),
}

/// When a stream is at its end, where it does not say so itself.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Bytes that are read of a device.
    pub size: Option<u64>,
    /// A file that has not grown for so long is at its end, or when the flag is set.
    pub follow: Option<(Duration, Stop)>,
}

/// A stream that is open.
pub struct Feed(From);

enum From {
    /// With the command that makes it.
    Source(StreamSource, Option<Command>),
    Tap(Tap),
}

impl Inlet {
    /// For messages.
    pub fn path(&self) -> PathBuf {
        match self {
            Inlet::Stdin => "-".into(),
            Inlet::Command(line) => line.into(),
            Inlet::Path(path) => path.clone(),
            Inlet::File(found) => found.path(),
            Inlet::Tee(tee, _) => tee.inlet().path(),
        }
    }

    /// The entry of what has no name of its own.
    pub fn entry(&self, id: EntryId) -> Entry {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let time = Timestamp {
            s: now.as_secs() as i64,
            ns: now.subsec_nanos(),
        };
        Entry {
            id,
            parent: NO_PARENT,
            name: nameless(),
            kind: EntryKind::Stream,
            mode: MODE,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            user: Vec::new(),
            group: Vec::new(),
            size: 0,
            allocated: 0,
            mtime: time,
            atime: time,
            ctime: time,
            birth: Timestamp::default(),
            dev: 0,
            ino: 0,
            links: 1,
            rdev: 0,
            extensions: vec![once(false)],
        }
    }

    /// The root of what has no name of its own, as the receiver is told of it.
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

    /// Bytes that are left of a file that is our stdin.
    pub fn length(&self) -> Option<u64> {
        match self {
            Inlet::Stdin => {}
            Inlet::Tee(tee, _) => return tee.length(),
            _ => return None,
        }
        let stdin = std::io::stdin();
        let stat = fstat(&stdin).ok()?;
        let at = seek(&stdin, SeekFrom::Current(0)).ok()?;
        let is_file = file_type(&stat) == FileType::RegularFile;
        is_file.then(|| (stat.st_size as u64).saturating_sub(at))
    }

    /// What was read of it cannot be read a second time.
    pub fn is_once(&self) -> bool {
        !matches!(self, Inlet::File(_))
    }

    /// What comes of it shows what a link carries, and nothing else: it travels as it is.
    pub fn is_test(&self) -> bool {
        let device = |stat: &Stat| (major(stat.st_rdev), minor(stat.st_rdev));
        let is_zero =
            |stat: &Stat| file_type(stat) == FileType::CharacterDevice && device(stat) == ZERO;
        self.stat().is_some_and(|stat| is_zero(&stat))
    }

    /// Starts the command, or opens what is read. `on_line` gets each line that a command says.
    ///
    /// # Errors
    /// `Kind::Command`, `Kind::Read`; `Kind::Usage` for a device that never ends, without a size.
    pub fn open(
        &self,
        limits: Limits,
        stop: &Stop,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<Feed> {
        let mut command = None;
        let end = self.end(limits.clone())?;
        let source = match self {
            Inlet::Stdin => StreamSource::stdin(end, stop.clone())?,
            Inlet::Path(path) => StreamSource::open(path, end, stop.clone())?,
            Inlet::File(found) => {
                let (file, _) = found.open(Changes::Told)?;
                StreamSource::from_fd(file.into(), found.path(), end, stop.clone())
            }
            Inlet::Command(line) => {
                let (started, stdout) = Command::start(line, Role::Producer, on_line)?;
                command = Some(started);
                StreamSource::from_fd(stdout, line, end, stop.clone())
            }
            Inlet::Tee(tee, reader) => {
                let tap = tee.tap(*reader, limits, stop, on_line);
                return Ok(Feed(From::Tap(tap)));
            }
        };
        Ok(Feed(From::Source(source, command)))
    }

    fn end(&self, limits: Limits) -> Result<End> {
        if let (Inlet::File(_), Some((idle, enough))) = (self, limits.follow) {
            return Ok(End::Still { idle, enough });
        }
        let Some(stat) = self.stat() else {
            return Ok(End::Closed);
        };
        let device = (major(stat.st_rdev), minor(stat.st_rdev));
        match (file_type(&stat), limits.size) {
            (FileType::CharacterDevice, Some(size)) => Ok(End::Size(size)),
            (FileType::CharacterDevice, None) if ENDLESS.contains(&device) => {
                let message = "never ends: say how much of it with --size";
                Err(Error::new(Kind::Usage, Side::Source, message).at(self.path()))
            }
            _ => Ok(End::Closed),
        }
    }

    fn stat(&self) -> Option<Stat> {
        match self {
            Inlet::Stdin => fstat(std::io::stdin()).ok(),
            Inlet::Command(_) | Inlet::File(_) => None,
            Inlet::Tee(tee, _) => tee.inlet().stat(),
            Inlet::Path(path) => stat(path).ok(),
        }
    }
}

impl Feed {
    /// See [`StreamSource::fill`].
    pub fn fill(&mut self, buffer: &mut Buffer, most: usize) -> Result<Filled> {
        match &mut self.0 {
            From::Source(source, _) => source.fill(buffer, most),
            // It has the same chunks for all.
            From::Tap(tap) => tap.fill(buffer),
        }
    }

    /// The stream is at its end: was it the true one?
    ///
    /// # Errors
    /// `Kind::Command` where the command that made it failed.
    pub fn finish(self, stop: &Stop) -> Result<()> {
        match self.0 {
            From::Source(source, command) => {
                // A command that writes on has nobody who reads.
                drop(source);
                command.map_or(Ok(()), |command| command.finish(stop))
            }
            From::Tap(tap) => tap.finish(),
        }
    }
}

/// Whether what has this type is read as a stream where the user names it.
pub fn is_stream(file_type: FileType) -> bool {
    matches!(file_type, FileType::Fifo | FileType::CharacterDevice)
}

/// The same of what a path leads to; false where it leads nowhere.
pub fn is_stream_at(path: &Path) -> bool {
    stat(path).is_ok_and(|stat| is_stream(file_type(&stat)))
}

/// Tells the receiver that an entry is read once, and whether a former session has `begun` to.
pub fn once(begun: bool) -> Extension {
    Extension {
        tag: ONCE,
        bytes: if begun { BEGUN.to_vec() } else { Vec::new() },
    }
}

fn nameless() -> Name {
    Name::try_from(b"-".to_vec()).expect("one byte that is neither a slash nor a dot")
}
