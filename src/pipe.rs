//! Waits on pipes, terminals and sockets that can be stopped. A thread that waits for a silent
//! producer or a slow consumer returns soon after it is stopped. `O_NONBLOCK` is never set on
//! standard input and output, which are shared with the shell.

mod given;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::{Error, Kind, Side};
pub use given::{
    is_closed_stdin, is_stderr_closed, is_stdin_closed, is_stdout_closed, open_option_file,
};

/// The longest time that a thread keeps waiting after it was stopped.
pub const STEP: Duration = Duration::from_millis(200);

/// The size in bytes requested for pipes: one chunk, which is also the usual limit for ordinary
/// users.
const PIPE_SIZE: usize = 1 << 20;

/// A flag that is set once and seen by all who hold it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn new() -> Stop {
        Stop::default()
    }

    pub fn set(&self) {
        self.0.store(true, Release);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Acquire)
    }
}

/// The event to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Readable,
    Writable,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// A read or write returns at once, possibly with an error or the end.
    Ready,
    /// The time limit has passed.
    Late,
    Stopped,
}

/// Waits for at most `limit`; without one, until the descriptor is ready or `stop` is set.
pub fn wait(
    fd: impl AsFd,
    until: Until,
    stop: &Stop,
    limit: Option<Duration>,
) -> io::Result<Waited> {
    let started = Instant::now();
    let flags = match until {
        Until::Readable => PollFlags::IN,
        Until::Writable => PollFlags::OUT,
    };
    loop {
        if stop.is_set() {
            return Ok(Waited::Stopped);
        }
        let left = limit.map_or(STEP, |limit| limit.saturating_sub(started.elapsed()));
        let step = Timespec::try_from(left.min(STEP)).expect("less than a second");
        let mut fds = [PollFd::new(&fd, flags)];
        match poll(&mut fds, Some(&step)) {
            Ok(0) if left.is_zero() => return Ok(Waited::Late),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) if fds[0].revents().contains(PollFlags::NVAL) => return Err(Errno::BADF.into()),
            Ok(_) => return Ok(Waited::Ready),
            Err(cause) => return Err(cause.into()),
        }
    }
}

/// Writes all `bytes`, even if another process has made the open file non-blocking.
pub fn write_all(fd: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::write(&fd, rest) {
            // As some drivers do.
            Ok(0) => return Err(Errno::IO),
            Ok(len) => rest = &rest[len..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                wait(&fd, Until::Writable, &Stop::new(), None).map_err(|_| Errno::BADF)?;
            }
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

/// Sleeps for `time`, or until `stop` is set.
pub fn pause(stop: &Stop, time: Duration) -> Waited {
    let started = Instant::now();
    while !stop.is_set() {
        let left = time.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Waited::Late;
        }
        std::thread::sleep(left.min(STEP));
    }
    Waited::Stopped
}

/// Enlarges a pipe to hold one chunk. Does nothing if that is not permitted or `fd` is not a pipe.
pub fn enlarge(fd: impl AsFd) {
    if rustix::pipe::fcntl_getpipe_size(&fd).is_ok_and(|size| size < PIPE_SIZE) {
        let _ = rustix::pipe::fcntl_setpipe_size(&fd, PIPE_SIZE);
    }
}

/// The error of a thread that was stopped. The code that stopped it knows the real reason.
pub fn stopped(side: Side) -> Error {
    Error::new(Kind::Lost, side, "stopped before its end")
}

/// Closes the reading end of a pipe and waits until it is closed everywhere. A child that another
/// test forks at this moment holds a copy of it until its exec, so a write could still succeed.
#[cfg(test)]
pub fn close_reader(read: std::os::fd::OwnedFd, write: impl AsFd) {
    drop(read);
    // Even without requested events, poll reports that the pipe has no reader.
    let mut fds = [PollFd::new(&write, PollFlags::empty())];
    let limit = Timespec::try_from(Duration::from_secs(30)).expect("a short time");
    poll(&mut fds, Some(&limit)).expect("poll a pipe");
    assert!(
        fds[0].revents().contains(PollFlags::ERR),
        "a reader is left"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::io::Read;

    #[test]
    fn a_wait_ends_with_data_with_the_other_end_with_time_and_by_a_flag() {
        let stop = Stop::new();
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let short = Some(Duration::from_millis(20));
        let readable = |limit| wait(&read, Until::Readable, &stop, limit).unwrap();
        assert_eq!(readable(short), Waited::Late);
        rustix::io::write(&write, b"x").unwrap();
        assert_eq!(readable(None), Waited::Ready);
        rustix::io::read(&read, &mut [0; 9]).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&read, Until::Readable, &stop, None).unwrap());
            stop.set();
            assert_eq!(waiting.join().unwrap(), Waited::Stopped);
        });
        drop(write);
        let end = wait(&read, Until::Readable, &Stop::new(), None).unwrap();
        assert_eq!(end, Waited::Ready);
        assert_eq!(pause(&Stop::new(), Duration::from_millis(5)), Waited::Late);
        assert_eq!(pause(&stop, Duration::MAX), Waited::Stopped);
    }

    #[test]
    fn a_pipe_that_does_not_block_takes_all_bytes() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let bytes = vec![b'x'; 3 << 20];
        let all = bytes.clone();
        let writer = std::thread::spawn(move || write_all(write, &all));
        rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::empty()).unwrap();
        let mut got = Vec::new();
        std::fs::File::from(read).read_to_end(&mut got).unwrap();
        assert_eq!(writer.join().unwrap(), Ok(()));
        assert!(got == bytes, "{} bytes", got.len());
    }
}
