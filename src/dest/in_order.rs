//! A pipe as the destination. Chunks arrive in any order, from any thread, and are written in
//! order, except to /dev/null. The consumer sees the end of the data only after all of it was
//! written. A command whose data was cut off is ended before it could take that for the end.

use std::ffi::OsStr;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::{PipeOutput, Reorder, SinkSpec};
use crate::chunk::VerifiedChunk;
use crate::command::{Command, CommandRole};
use crate::error::{Error, Kind, Result, Side};
use crate::pipe::Stop;

/// How long a command that has closed its stdin may take to exit and report its error.
const EARLY_MAX: Duration = Duration::from_secs(5);

pub struct OrderedSink {
    body: SinkKind,
    command: Mutex<Option<Command>>,
    /// Why the consumer takes no more data.
    cause: OnceLock<Error>,
    stop: Stop,
}

enum SinkKind {
    Ordered(Reorder),
    /// /dev/null: chunks are dropped, in any order.
    Null,
}

impl OrderedSink {
    /// Opens `exit`, and waits for the reader of a FIFO. `window` is in chunks; `on_line` gets each
    /// line that a command writes to stderr.
    ///
    /// # Errors
    /// `Kind::Write`, `Kind::Command`; `Kind::Lost` if stopped before a FIFO has a reader.
    pub fn open(
        exit: &SinkSpec,
        window: usize,
        stop: &Stop,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<OrderedSink> {
        let mut command = None;
        let outlet = match exit {
            SinkSpec::Null(_) => None,
            SinkSpec::Stdout => Some(PipeOutput::stdout(stop.clone())?),
            SinkSpec::Stderr => Some(PipeOutput::stderr(stop.clone())?),
            SinkSpec::Path(path) => Some(PipeOutput::open(path, stop.clone())?),
            SinkSpec::Command(line) => Some({
                let (started, stdin) = Command::start(line, CommandRole::Consumer, on_line)?;
                command = Some(started);
                PipeOutput::own(stdin, OsStr::new("stdin of the command"), stop.clone())?
            }),
        };
        let body = match outlet {
            Some(outlet) => SinkKind::Ordered(Reorder::new(outlet, window)?),
            None => SinkKind::Null,
        };
        Ok(OrderedSink {
            body,
            command: Mutex::new(command),
            cause: OnceLock::new(),
            stop: stop.clone(),
        })
    }

    /// Takes a chunk. Returns at once if another thread is writing; otherwise it writes and waits
    /// for the consumer. Calls `on_written` for every chunk that this call has written, without
    /// holding a lock.
    ///
    /// # Errors
    /// `Kind::Command`, with exit status and last lines, if the consumer is a command that has
    /// failed; `Kind::Write` for any other consumer; `Kind::Lost` when stopped; `Kind::Breach` for
    /// a chunk that no honest sender sends.
    pub fn put(
        &self,
        chunk: VerifiedChunk,
        mut on_written: impl FnMut(&VerifiedChunk),
    ) -> Result<()> {
        match &self.body {
            SinkKind::Ordered(ordered) => {
                let put = ordered.put(chunk, on_written);
                put.map(drop).map_err(|error| self.cause_of(error))
            }
            SinkKind::Null => {
                on_written(&chunk);
                Ok(())
            }
        }
    }

    /// Lets the consumer see the end, when all chunks have been written. Waits until a command has
    /// exited, however long that takes. A second call does nothing.
    ///
    /// # Errors
    /// As [`put`](OrderedSink::put); `Kind::Lost` if other than `length` bytes were written.
    pub fn finish(&self, length: u64) -> Result<()> {
        if let SinkKind::Ordered(ordered) = &self.body {
            ordered.finish(length)?;
        }
        let command = self.command.lock().take();
        command.map_or(Ok(()), |command| command.finish(&self.stop))
    }

    /// Gives the copy up: ends the command, and any write that waits.
    pub fn abandon(&self) {
        self.stop.set();
        drop(self.command.lock().take());
    }

    /// The cause of `error`: a consumer that has closed its end may have failed.
    fn cause_of(&self, error: Error) -> Error {
        if error.errno != Errno::PIPE.raw_os_error() {
            return error;
        }
        // Held until the cause is known, so that every other thread reports the same one.
        let mut command = self.command.lock();
        let find = || match command.take() {
            Some(command) => why_early(command, &error, &self.stop),
            None => error.clone(),
        };
        self.cause.get_or_init(find).clone()
    }
}

/// Why `command` has closed its stdin early.
fn why_early(command: Command, error: &Error, stop: &Stop) -> Error {
    let name = command.name().to_owned();
    match command.finish_within(EARLY_MAX, stop) {
        Err(failed) if failed.kind == Kind::Command => failed,
        _ => {
            let message = format!("stdin of the command `{name}`: {}", error.message);
            Error::new(Kind::Command, Side::Dest, message)
        }
    }
}
