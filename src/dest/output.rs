//! The output for data in order: a command's stdin, a FIFO, a character device, this process's
//! stdout. A write waits for as long as the consumer does, unless it is stopped.
//!
//! A write to a pipe blocks until all of it fits, so a thread in it could not be stopped.
//! `O_NONBLOCK` belongs to the open file. The shell and the programs that it started share the open
//! file of stdout, and their writes would fail if the flag were set there. Hence three cases:
//! - A pipe that this process made, or a FIFO or device that it opened by its path, is set to
//!   `O_NONBLOCK`.
//! - A pipe that it was given is opened once more through /proc, which makes a separate open file.
//! - If that is refused (another user made the pipe), and for terminals and sockets, each write is
//!   no larger than what fits when `poll` reports room.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;
use crate::pipe::{
    STEP, Stop, Until, Waited, enlarge, is_stderr_closed, is_stdout_closed, pause, stopped, wait,
};

/// Bytes that a pipe takes without blocking once it has any room: PIPE_BUF on Linux.
const ROOM: usize = 4096;

/// Most bytes in one write where writes do not block.
const WRITE_MAX: usize = 1 << 20;

pub struct PipeOutput {
    fd: OwnedFd,
    /// The path as the user would write it; for messages.
    path: PathBuf,
    /// Most bytes in one write.
    step: usize,
    stop: Stop,
    /// Bytes written so far.
    taken: u64,
}

impl PipeOutput {
    /// This end of the pipe to a command, whose open file nobody shares.
    pub fn own(fd: OwnedFd, path: impl AsRef<Path>, stop: Stop) -> Result<PipeOutput> {
        let set = fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags | OFlags::NONBLOCK));
        set.map_err(|cause| cannot_write(path.as_ref(), cause.into()))?;
        Ok(PipeOutput::new(fd, path.as_ref(), WRITE_MAX, stop))
    }

    /// Standard output, shown as `-`. The consumer sees the end when this process exits, since the
    /// descriptor stays open.
    ///
    /// # Errors
    /// `Kind::Write`, also if this process was started without a standard output.
    pub fn stdout(stop: Stop) -> Result<PipeOutput> {
        if is_stdout_closed() {
            let message = "standard output is closed";
            return Err(Error::new(Kind::Write, Side::Dest, message).at("-"));
        }
        PipeOutput::shared(io::stdout().as_fd(), "-", stop)
    }

    /// Standard error, shown as `/dev/stderr`.
    ///
    /// # Errors
    /// `Kind::Write`, also if this process was started without a standard error.
    pub fn stderr(stop: Stop) -> Result<PipeOutput> {
        let path = "/dev/stderr";
        if is_stderr_closed() {
            let message = "standard error is closed";
            return Err(Error::new(Kind::Write, Side::Dest, message).at(path));
        }
        PipeOutput::shared(io::stderr(), path, stop)
    }

    /// An open file that other processes may write to as well.
    fn shared(fd: impl AsFd, path: impl AsRef<Path>, stop: Stop) -> Result<PipeOutput> {
        let path = path.as_ref();
        let failed = |cause| cannot_write(path, cause);
        let stat = fstat(&fd).map_err(|cause| failed(cause.into()))?;
        if file_type(&stat) == FileType::Fifo
            && let Some(fd) = opened_again(&fd)
        {
            return Ok(PipeOutput::new(fd, path, WRITE_MAX, stop));
        }
        let fd = fd.as_fd().try_clone_to_owned().map_err(failed)?;
        let step = match file_type(&stat) {
            FileType::RegularFile | FileType::BlockDevice => WRITE_MAX,
            _ => ROOM,
        };
        Ok(PipeOutput::new(fd, path, step, stop))
    }

    /// Opens a character device or a FIFO, and waits for the reader of a FIFO.
    ///
    /// # Errors
    /// `Kind::Write`; `Kind::Lost` if stopped before the FIFO has a reader.
    pub fn open(path: &Path, stop: Stop) -> Result<PipeOutput> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = loop {
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(fd) => break fd,
                // The error of a FIFO without a reader, and also of a device without hardware.
                Err(Errno::NXIO) if is_fifo(path) => {
                    if pause(&stop, STEP) == Waited::Stopped {
                        return Err(stopped(Side::Dest).at(path));
                    }
                }
                Err(Errno::INTR) => {}
                Err(cause) => {
                    let what = "cannot open";
                    return Err(Error::io(Kind::Write, Side::Dest, path, what, cause));
                }
            }
        };
        Ok(PipeOutput::new(fd, path, WRITE_MAX, stop))
    }

    fn new(fd: OwnedFd, path: &Path, step: usize, stop: Stop) -> PipeOutput {
        enlarge(&fd);
        PipeOutput {
            fd,
            path: path.to_owned(),
            step,
            stop,
            taken: 0,
        }
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// `Kind::Write`, with the number of bytes written if the consumer has closed its end;
    /// `Kind::Lost` when stopped. Some of `bytes` may have been written then.
    pub fn write_all(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match wait(&self.fd, Until::Writable, &self.stop, None) {
                Ok(Waited::Stopped) => return Err(stopped(Side::Dest).at(&self.path)),
                Ok(_) => {}
                Err(cause) => return Err(cannot_write(&self.path, cause)),
            }
            match rustix::io::write(&self.fd, &bytes[..bytes.len().min(self.step)]) {
                // As some drivers do.
                Ok(0) => {
                    let why = "the device or pipe accepts no data";
                    let cause = io::Error::new(io::ErrorKind::WriteZero, why);
                    return Err(cannot_write(&self.path, cause));
                }
                Ok(len) => {
                    self.taken += len as u64;
                    bytes = &bytes[len..];
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::PIPE) => return Err(self.closed_early()),
                Err(cause) => return Err(cannot_write(&self.path, cause.into())),
            }
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A second handle, to be [closed](super::close) after the last write: a file system that
    /// writes at each close reports its errors there. None for a pipe or a socket.
    ///
    /// # Errors
    /// `Kind::Write`, if there is none although it is needed.
    pub fn second(&self) -> Result<Option<OwnedFd>> {
        let failed = |cause: io::Error| {
            let what = "cannot open it a second time";
            Error::io(Kind::Write, Side::Dest, &self.path, what, cause)
        };
        let stat = fstat(&self.fd).map_err(|cause| failed(cause.into()))?;
        let tells = matches!(
            file_type(&stat),
            FileType::RegularFile | FileType::BlockDevice | FileType::CharacterDevice
        );
        let second = tells.then(|| self.fd.try_clone());
        second.transpose().map_err(failed)
    }

    fn closed_early(&self) -> Error {
        let message = format!("the reader closed the pipe after {} bytes", self.taken);
        let error = Error::new(Kind::Write, Side::Dest, message).at(&self.path);
        Error {
            errno: Errno::PIPE.raw_os_error(),
            ..error
        }
    }
}

/// Opens the same pipe once more, as a separate open file.
fn opened_again(fd: &impl AsFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let reopened = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let (one, other) = (fstat(fd).ok()?, fstat(&reopened).ok()?);
    ((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)).then_some(reopened)
}

fn is_fifo(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| file_type(&stat) == FileType::Fifo)
}

fn cannot_write(path: &Path, cause: io::Error) -> Error {
    Error::io(Kind::Write, Side::Dest, path, "cannot write", cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::time::Duration;

    use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

    /// One outlet for each way to write without blocking forever.
    fn outlets(stop: &Stop) -> Vec<(PipeOutput, File)> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (own, shared, step) = (pipe(), pipe(), pipe());
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut by_step = PipeOutput::shared(&step.1, "-", stop.clone()).unwrap();
        // As if /proc refused to open it: the original descriptor, which blocks.
        (by_step.fd, by_step.step) = (step.1, ROOM);
        vec![
            (
                PipeOutput::own(own.1, "-", stop.clone()).unwrap(),
                own.0.into(),
            ),
            (
                PipeOutput::shared(&shared.1, "-", stop.clone()).unwrap(),
                shared.0.into(),
            ),
            (by_step, step.0.into()),
            (
                PipeOutput::shared(&here, "-", stop.clone()).unwrap(),
                OwnedFd::from(there).into(),
            ),
        ]
    }

    #[test]
    fn all_bytes_come_in_order_through_a_full_pipe() {
        let data: Vec<u8> = (0..3_000_000u32).map(|n| (n ^ (n >> 8)) as u8).collect();
        for (mut outlet, mut from) in outlets(&Stop::new()) {
            let mut read = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    outlet.write_all(&data[..7]).unwrap();
                    outlet.write_all(&data[7..]).unwrap();
                    drop(outlet);
                });
                from.read_to_end(&mut read).unwrap();
            });
            assert!(read == data);
        }
    }

    #[test]
    fn a_write_to_a_consumer_that_does_not_read_comes_back_when_it_is_stopped() {
        let stop = Stop::new();
        for (mut outlet, from) in outlets(&stop) {
            let writing = std::thread::spawn(move || outlet.write_all(&[1; 3_000_000]));
            std::thread::sleep(Duration::from_millis(100));
            stop.set();
            let error = writing.join().unwrap().unwrap_err();
            assert_eq!(error.kind, Kind::Lost);
            drop(from);
        }
    }

    #[test]
    fn a_consumer_that_closes_early_is_told_with_what_it_took() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut outlet = PipeOutput::own(write, "-", Stop::new()).unwrap();
        outlet.write_all(b"12345").unwrap();
        crate::pipe::close_reader(read, &outlet.fd);
        let error = outlet.write_all(b"6").unwrap_err();
        assert_eq!(
            error.to_string(),
            "dest: -: the reader closed the pipe after 5 bytes"
        );
    }

    #[test]
    fn a_pipe_that_is_shared_keeps_its_flags() {
        let (_read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        fcntl_setpipe_size(&write, 4096).unwrap();
        let outlet = PipeOutput::shared(&write, "-", Stop::new()).unwrap();
        assert_eq!(outlet.step, WRITE_MAX, "opened again");
        assert!(!fcntl_getfl(&write).unwrap().contains(OFlags::NONBLOCK));
    }

    #[test]
    fn a_fifo_waits_for_its_reader_and_can_be_stopped() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let stop = Stop::new();
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| PipeOutput::open(&path, stop.clone()));
            std::thread::sleep(Duration::from_millis(50));
            stop.set();
            assert_eq!(opening.join().unwrap().err().unwrap().kind, Kind::Lost);
            let writing = scope.spawn(|| {
                let mut outlet = PipeOutput::open(&path, Stop::new()).unwrap();
                outlet.write_all(b"through").unwrap();
            });
            assert_eq!(std::fs::read(&path).unwrap(), b"through");
            writing.join().unwrap();
        });
    }
}
