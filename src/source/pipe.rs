//! A source that is read once, from beginning to end: standard input, a command's stdout, a FIFO, a
//! character device, a file that is still being written, or a file of /proc whose size reads as 0.
//! One thread reads. Each chunk is full, except the last one and those of a slow producer.

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

/// How long the first byte of a chunk waits for the others. Nobody who watches a log at the other
/// end notices this delay. A producer of more than 5 MiB/s fills its chunks of 1 MiB earlier; any
/// slower one causes at most five chunks a second.
const LINGER: Duration = Duration::from_millis(200);

/// File systems with made-up sizes, by their magic numbers (linux/magic.h; ipc/mqueue.c and
/// fs/fuse/control.c of the kernel): proc, sysfs, securityfs, configfs, selinuxfs, both versions of
/// cgroups, mqueue, resctrl and fusectl.
const MADE_UP: [u32; 10] = [
    0x9fa0,
    0x6265_6572,
    0x7363_6673,
    0x6265_6570,
    0xf97c_ff8c,
    0x0027_e0eb,
    0x6367_7270,
    0x1980_0202,
    0x0765_5821,
    0x6573_5543,
];

/// The same for debugfs and tracefs.
const SPENT: [u32; 2] = [0x6462_6720, 0x7472_6163];

/// How reliable the file sizes of a file system are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    True,
    /// A guess (0 in /proc, a page in /sys), because the kernel makes up the content during the
    /// read.
    MadeUp,
    /// The same, and some files there lose the bytes that are read, so nobody may read them twice.
    Spent,
}

/// What ends a pipe.
#[derive(Clone, Debug)]
pub enum PipeEnd {
    /// The producer closes it; a file ends at its last byte.
    Closed,
    /// This many bytes, for a device that never ends. An earlier end is an error.
    Size(u64),
    /// A growing file has not grown for `idle`, or `enough` is set and all its bytes have been
    /// read.
    Still { idle: Duration, enough: Stop },
}

impl PipeEnd {
    /// The user has said that the file has all its bytes.
    fn is_enough(&self) -> bool {
        matches!(self, PipeEnd::Still { enough, .. } if enough.is_set())
    }
}

/// What [`PipeSource::fill`] put into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Number of bytes. It is less than requested at the end, or if no more came in time. It is 0
    /// if the end came after a full chunk.
    pub len: usize,
    /// Nothing follows. Not set with a full chunk if the end has not been seen yet.
    pub end: bool,
}

pub struct PipeSource {
    file: File,
    /// As the user would write it, for messages.
    path: PathBuf,
    end: PipeEnd,
    stop: Stop,
    /// Bytes read so far.
    read: u64,
    /// When the last byte came.
    grown: Instant,
}

impl PipeSource {
    /// A pipe from a descriptor that this process owns, such as a command's stdout.
    pub fn from_fd(fd: OwnedFd, path: impl AsRef<Path>, end: PipeEnd, stop: Stop) -> PipeSource {
        enlarge(&fd);
        PipeSource {
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
    /// `Kind::Read`, also if this process was started without a standard input.
    pub fn stdin(end: PipeEnd, stop: Stop) -> Result<PipeSource> {
        if is_stdin_closed() {
            let message = "standard input is closed";
            return Err(Error::new(Kind::Read, Side::Source, message).at("-"));
        }
        let fd = io::stdin().as_fd().try_clone_to_owned();
        let fd = fd.map_err(|cause| cannot_read(Path::new("-"), cause))?;
        Ok(PipeSource::from_fd(fd, "-", end, stop))
    }

    /// Opens a FIFO, a character device or a file. The first `fill` waits for the writer of a FIFO.
    ///
    /// # Errors
    /// `Kind::Read`; `Kind::Entry` for a directory, a socket or a block device.
    pub fn open(path: &Path, end: PipeEnd, stop: Stop) -> Result<PipeSource> {
        // NONBLOCK: opening a FIFO must not wait for its writer, since nothing could stop that
        // wait.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NXIO) => return Err(not_a_pipe(path)),
            Err(cause) => {
                let what = "cannot open";
                return Err(Error::io(Kind::Read, Side::Source, path, what, cause));
            }
        };
        let stat = fstat(&fd).map_err(|cause| cannot_read(path, cause.into()))?;
        match file_type(&stat) {
            FileType::Fifo | FileType::CharacterDevice | FileType::RegularFile => {
                Ok(PipeSource::from_fd(fd, path, end, stop))
            }
            _ => Err(not_a_pipe(path)),
        }
    }

    /// Reads until `buffer` holds `most` bytes, the pipe ends, or the first byte has waited long
    /// enough for the others. Waits for that byte without a limit, but at most a second after
    /// `stop`.
    ///
    /// # Errors
    /// `Kind::Read`; `Kind::Changed` if a growing file became shorter; `Kind::Lost` if it was
    /// stopped. No further call may follow an error.
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

    /// How many of `most` bytes may still be read.
    fn wanted(&self, most: usize) -> usize {
        match self.end {
            PipeEnd::Size(size) => (size - self.read).min(most as u64) as usize,
            _ => most,
        }
    }

    /// Reads at least one byte, or 0 at the end. None if nothing came before `until`.
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
            // Both are found out before the read: if this thread is delayed after it, the file may
            // have grown.
            let idle_for = self.grown.elapsed();
            let is_enough = self.end.is_enough();
            match rustix::io::read(&self.file, &mut *room) {
                Ok(0) if self.is_at_end(idle_for, is_enough, left)? => return Ok(Some(0)),
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

    /// Decides whether an empty read is the end; it began `idle_for` after the last byte, and after
    /// the user's word if that `is_enough`. Waits up to `most` for a file that may still grow.
    fn is_at_end(
        &self,
        idle_for: Duration,
        is_enough: bool,
        most: Option<Duration>,
    ) -> Result<bool> {
        let idle = match &self.end {
            PipeEnd::Closed => return Ok(true),
            PipeEnd::Size(size) => {
                let message = format!("ended after {} of {size} bytes (--size)", self.read);
                return Err(Error::new(Kind::Read, Side::Source, message).at(&self.path));
            }
            PipeEnd::Still { idle, .. } => *idle,
        };
        let stat = fstat(&self.file).map_err(|cause| cannot_read(&self.path, cause.into()))?;
        if file_type(&stat) != FileType::RegularFile {
            return Ok(true);
        }
        if (stat.st_size as u64) < self.read {
            let message = "was truncated while --follow read it";
            return Err(Error::new(Kind::Changed, Side::Source, message).at(&self.path));
        }
        let left = idle.saturating_sub(idle_for);
        if left.is_zero() || is_enough {
            return Ok(true);
        }
        pause(&self.stop, left.min(most.unwrap_or(STEP)).min(STEP));
        Ok(false)
    }
}

/// True if a file must be read as a pipe: it has content although its size is 0, as in /proc.
pub fn has_unsaid_content(file: &File, stat: &Stat) -> bool {
    file_type(stat) == FileType::RegularFile
        && stat.st_size == 0
        && file.read_at(&mut [0], 0).is_ok_and(|len| len > 0)
}

/// How reliable sizes are on the file system of `file`. The type of the file system decides, not a
/// read that ends early: on other file systems that means that the file became shorter.
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

fn not_a_pipe(path: &Path) -> Error {
    let message =
        "is not a FIFO, a character device or a regular file, so it cannot be read in order";
    Error::new(Kind::Entry, Side::Source, message).at(path)
}

#[cfg(test)]
mod tests;
