//! A source that is read from its beginning to its end and only once: standard input, a command's
//! stdout, a FIFO, a character device, a file that is still written, one of /proc that says it is
//! empty. One thread reads; each chunk is full, but for the last and where the producer is slow.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, fstatfs};
use rustix::io::Errno;

use crate::chunk::Buffer;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;
use crate::pipe::{STEP, Stop, Until, Waited, enlarge, is_stdin_closed, pause, stopped, wait};

/// How long the first byte of a chunk waits for the others. Nobody who watches a log at the other end
/// sees a difference, a producer of more than 5 MiB a second fills its chunks of 1 MiB before, and of
/// any other there are five chunks a second at most.
const LINGER: Duration = Duration::from_millis(200);

/// File systems by their magic numbers (linux/magic.h): proc, sysfs, securityfs, configfs, selinuxfs
/// and both versions of cgroups.
const MADE_UP: [u32; 7] = [
    0x9fa0,
    0x6265_6572,
    0x7363_6673,
    0x6265_6570,
    0xf97c_ff8c,
    0x0027_e0eb,
    0x6367_7270,
];

/// Likewise debugfs and tracefs.
const SPENT: [u32; 2] = [0x6462_6720, 0x7472_6163];

/// What a file system says of the sizes of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    True,
    /// A guess (0 in /proc, a page in /sys), since the kernel makes content up as it is read.
    MadeUp,
    /// Likewise, and some files there lose what is read of them: no one reads them twice.
    Spent,
}

/// When a stream is at its end.
#[derive(Clone, Debug)]
pub enum End {
    /// When its producer closes it; for a file, at its end.
    Closed,
    /// After this many bytes: a device that never ends. It is an error to end before.
    Size(u64),
    /// When a growing file has not grown for `idle`, or when `enough` is set and all that is there
    /// has been read.
    Still { idle: Duration, enough: Stop },
}

/// What [`StreamSource::fill`] put into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Bytes; fewer than asked for at the end and where no more came in time, and none where the end
    /// came after a full chunk.
    pub len: usize,
    /// Nothing follows. Not set with a full chunk whose end nobody has seen yet.
    pub end: bool,
}

pub struct StreamSource {
    file: File,
    /// As the user would write it; for messages.
    path: PathBuf,
    end: End,
    stop: Stop,
    /// Bytes so far.
    read: u64,
    /// When the last byte came.
    grown: Instant,
}

impl StreamSource {
    /// What comes from a descriptor of ours: a command's stdout.
    pub fn from_fd(fd: OwnedFd, path: impl AsRef<Path>, end: End, stop: Stop) -> StreamSource {
        enlarge(&fd);
        StreamSource {
            file: fd.into(),
            path: path.as_ref().to_owned(),
            end,
            stop,
            read: 0,
            grown: Instant::now(),
        }
    }

    /// Standard input, shown as `-`. Nothing else may read from it.
    ///
    /// # Errors
    /// `Kind::Read`, also where nobody has given this process one.
    pub fn stdin(end: End, stop: Stop) -> Result<StreamSource> {
        if is_stdin_closed() {
            let message = "standard input is closed";
            return Err(Error::new(Kind::Read, Side::Source, message).at("-"));
        }
        let fd = std::io::stdin().as_fd().try_clone_to_owned();
        let fd = fd.map_err(|cause| cannot_read(Path::new("-"), cause))?;
        Ok(StreamSource::from_fd(fd, "-", end, stop))
    }

    /// A FIFO (whose first writer is waited for by the first `fill`), a character device or a file.
    ///
    /// # Errors
    /// `Kind::Read`; `Kind::Entry` for what is no stream (a directory, a socket, a block device).
    pub fn open(path: &Path, end: End, stop: Stop) -> Result<StreamSource> {
        // NONBLOCK: to open a FIFO must not wait for its writer where nobody can say stop.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NXIO) => return Err(no_stream(path)),
            Err(cause) => {
                let what = "cannot open";
                return Err(Error::io(Kind::Read, Side::Source, path, what, cause));
            }
        };
        let stat = fstat(&fd).map_err(|cause| cannot_read(path, cause.into()))?;
        match file_type(&stat) {
            FileType::Fifo | FileType::CharacterDevice | FileType::RegularFile => {
                Ok(StreamSource::from_fd(fd, path, end, stop))
            }
            _ => Err(no_stream(path)),
        }
    }

    /// Reads until `most` bytes are in `buffer`, the end has come, or the first byte has waited long
    /// enough for the others. Waits for that one for as long as the producer takes, and comes back
    /// within a second when it is stopped.
    ///
    /// # Errors
    /// `Kind::Read`; `Kind::Changed` where a growing file became shorter; `Kind::Lost` when it was
    /// stopped. No further call is of use then.
    pub fn fill(&mut self, buffer: &mut Buffer, most: usize) -> Result<Filled> {
        let mut len = 0;
        let mut until = None;
        let end = loop {
            let want = self.wanted(most - len);
            if want == 0 {
                break len < most || self.wanted(1) == 0;
            }
            match self.read_some(&mut buffer.room()[len..len + want], until)? {
                Some(0) => break true,
                Some(more) => {
                    len += more;
                    self.read += more as u64;
                    until.get_or_insert(self.grown + LINGER);
                }
                None => break false,
            }
        };
        buffer.set_len(len);
        Ok(Filled { len, end })
    }

    /// Bytes so far.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// How many of `most` bytes are to be read.
    fn wanted(&self, most: usize) -> usize {
        match self.end {
            End::Size(size) => (size - self.read).min(most as u64) as usize,
            _ => most,
        }
    }

    /// At least one byte, or none at the end. None where it is `until` and nothing came.
    fn read_some(&mut self, room: &mut [u8], until: Option<Instant>) -> Result<Option<usize>> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            match wait(&self.file, Until::Readable, &self.stop, left) {
                Ok(Waited::Stopped) => return Err(stopped(Side::Source).at(&self.path)),
                Ok(Waited::Late) => return Ok(None),
                Ok(Waited::Ready) => {}
                Err(cause) => return Err(cannot_read(&self.path, cause)),
            }
            match rustix::io::read(&self.file, &mut *room) {
                Ok(0) if self.is_at_end(left)? => return Ok(Some(0)),
                Ok(0) => {}
                Ok(len) => {
                    self.grown = Instant::now();
                    return Ok(Some(len));
                }
                // Another reader of the same pipe was faster.
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(cause) => return Err(cannot_read(&self.path, cause.into())),
            }
        }
    }

    /// Nothing is there to read: is that the end? A file that may grow still is waited for a bit, no
    /// longer than `most`.
    fn is_at_end(&self, most: Option<Duration>) -> Result<bool> {
        let (idle, enough) = match &self.end {
            End::Closed => return Ok(true),
            End::Size(size) => {
                let message = format!("ended after {} of {size} bytes", self.read);
                return Err(Error::new(Kind::Read, Side::Source, message).at(&self.path));
            }
            End::Still { idle, enough } => (*idle, enough),
        };
        let stat = fstat(&self.file).map_err(|cause| cannot_read(&self.path, cause.into()))?;
        if file_type(&stat) != FileType::RegularFile {
            return Ok(true);
        }
        if (stat.st_size as u64) < self.read {
            let message = "became shorter while it was followed";
            return Err(Error::new(Kind::Changed, Side::Source, message).at(&self.path));
        }
        let left = idle.saturating_sub(self.grown.elapsed());
        // What was written before somebody said enough has been read by then, or is read next.
        if left.is_zero() || (enough.is_set() && stat.st_size as u64 == self.read) {
            return Ok(true);
        }
        pause(&self.stop, left.min(most.unwrap_or(STEP)).min(STEP));
        Ok(false)
    }
}

/// Whether what was opened as a file has to be read as a stream: it says that it is empty and has
/// content all the same, as files of /proc do.
pub fn has_unsaid_content(file: &File, stat: &Stat) -> bool {
    file_type(stat) == FileType::RegularFile
        && stat.st_size == 0
        && file.read_at(&mut [0], 0).is_ok_and(|len| len > 0)
}

/// What is said of sizes where a file lies. By the type of the file system and not by a read that
/// ends early: elsewhere that is a file which became shorter.
pub fn sizes(file: &File) -> Sizes {
    match fstatfs(file).map(|found| found.f_type as u32) {
        Ok(found) if MADE_UP.contains(&found) => Sizes::MadeUp,
        Ok(found) if SPENT.contains(&found) => Sizes::Spent,
        _ => Sizes::True,
    }
}

fn cannot_read(path: &Path, cause: io::Error) -> Error {
    Error::io(Kind::Read, Side::Source, path, "cannot read", cause)
}

fn no_stream(path: &Path) -> Error {
    let message =
        "cannot be read as a stream: neither a FIFO, nor a device of characters or a file";
    Error::new(Kind::Entry, Side::Source, message).at(path)
}

#[cfg(test)]
mod tests;
