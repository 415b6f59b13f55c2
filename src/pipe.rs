//! Waiting at a pipe, a terminal or a socket without getting lost there: a thread that waits for
//! a silent producer or a slow consumer comes back soon after it is told to stop. `O_NONBLOCK` is
//! not touched: standard input and output are shared with the shell that comes after us.

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
pub use given::{is_stdin_closed, is_stdout_closed};

/// How long a thread goes on waiting after it was told to stop, at most.
pub const STEP: Duration = Duration::from_millis(200);

/// What a pipe is asked to hold, in bytes: a chunk. It is all that a user without powers may have
/// by default.
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

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Readable,
    Writable,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// A call will return at once, be it with an error or the end.
    Ready,
    /// The time is over.
    Late,
    Stopped,
}

/// Waits for `limit`, or without one for as long as nobody says stop.
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

/// Sleeps for `time`, or until it is stopped.
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

/// Asks for a pipe that holds a chunk; one that may not be so large, or is no pipe, stays as it is.
pub fn enlarge(fd: impl AsFd) {
    if rustix::pipe::fcntl_getpipe_size(&fd).is_ok_and(|size| size < PIPE_SIZE) {
        let _ = rustix::pipe::fcntl_setpipe_size(&fd, PIPE_SIZE);
    }
}

/// What a thread says that was told to stop. Whoever told it has the true reason.
pub fn stopped(side: Side) -> Error {
    Error::new(Kind::Lost, side, "stopped before its end")
}

/// Closes the reading end of a pipe and waits until it is closed everywhere. A child that another
/// test forks at this moment has a copy of it until its exec, and a write would still succeed.
#[cfg(test)]
pub fn close_reader(read: std::os::fd::OwnedFd, write: impl AsFd) {
    drop(read);
    // Asked for nothing, poll still reports that there is no reader.
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
}
