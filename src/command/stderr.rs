//! The stderr of a command (and a consumer's stdout): passed on line by line; the last lines are
//! kept.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::io::{ioctl_fionread, retry_on_intr};

use crate::pipe::{Stop, Until, Waited, wait};
use crate::units::printable;

/// A longer line is passed on in pieces of this many bytes.
pub const LINE_MAX: usize = 4096;

/// Bytes of lines that are kept.
const KEPT_MAX: usize = 4096;

/// Characters of kept lines in an error message. The message is a single line and must leave room
/// for what failed: the other end shows 256 characters.
const SHOWN_MAX: usize = 140;

pub(super) struct StderrRelay {
    kept: Arc<Mutex<VecDeque<String>>>,
    ended: Stop,
    thread: Option<JoinHandle<()>>,
}

impl StderrRelay {
    pub(super) fn start(
        said: OwnedFd,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> io::Result<StderrRelay> {
        let kept = Arc::default();
        let ended = Stop::new();
        let reader = StderrReader {
            kept: Arc::clone(&kept),
            line: Vec::new(),
            on_line,
        };
        let stop = ended.clone();
        let thread = std::thread::Builder::new().spawn(move || reader.read(&said, &stop))?;
        Ok(StderrRelay {
            kept,
            ended,
            thread: Some(thread),
        })
    }

    /// To be called after the command has ended: reads its remaining output, then stops the thread.
    pub(super) fn end(&mut self) {
        self.ended.set();
        if let Some(thread) = self.thread.take() {
            // The thread panics only if `on_line` does, and that panic has already been reported.
            let _ = thread.join();
        }
    }

    /// As many of the last lines as fit into an error, at least (the beginning of) one.
    pub(super) fn last_lines(&self) -> String {
        let kept = self.kept.lock();
        let mut shown = String::new();
        for line in kept.iter().rev() {
            let (len, more) = (shown.chars().count(), line.chars().count());
            if shown.is_empty() {
                shown = line.chars().take(SHOWN_MAX).collect();
            } else if len + more + 3 <= SHOWN_MAX {
                shown = format!("{line} / {shown}");
            } else {
                break;
            }
        }
        shown
    }
}

/// Returns 0 at the end of the pipe, or if it cannot be read.
fn read(said: &OwnedFd, into: &mut [u8]) -> usize {
    retry_on_intr(|| rustix::io::read(said, &mut *into)).unwrap_or(0)
}

struct StderrReader<F> {
    kept: Arc<Mutex<VecDeque<String>>>,
    line: Vec<u8>,
    on_line: F,
}

impl<F: FnMut(&[u8])> StderrReader<F> {
    fn read(mut self, said: &OwnedFd, ended: &Stop) {
        let mut bytes = [0; 4096];
        while let Ok(Waited::Ready) = wait(said, Until::Readable, ended, None) {
            match read(said, &mut bytes) {
                0 => break,
                len => self.take(&bytes[..len]),
            }
        }
        // The command has ended, so the pipe holds the rest of its output. No more than that is read,
        // because a process that it left behind may write on.
        let mut rest = ioctl_fionread(said).unwrap_or(0) as usize;
        while rest > 0 {
            let most = rest.min(bytes.len());
            match read(said, &mut bytes[..most]) {
                0 => break,
                len => {
                    self.take(&bytes[..len]);
                    rest -= len;
                }
            }
        }
        self.end_line();
    }

    /// A progress bar that redraws itself ends its lines with a carriage return.
    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' || byte == b'\r' {
                self.end_line();
                continue;
            }
            self.line.push(byte);
            if self.line.len() == LINE_MAX {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        if self.line.is_empty() {
            return;
        }
        (self.on_line)(&self.line);
        let mut kept = self.kept.lock();
        kept.push_back(printable(&self.line));
        let mut len: usize = kept.iter().map(String::len).sum();
        while len > KEPT_MAX && kept.len() > 1 {
            len -= kept.pop_front().map_or(0, |line| line.len());
        }
        self.line.clear();
    }
}
