//! The consuming end of a stream. Chunks come in any order, from any thread; they leave in order,
//! but at /dev/null. Whoever consumes sees an end of data only when all of it was written: a
//! command whose stream was cut off is ended before it could take that for the end.

use std::ffi::OsStr;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use rustix::io::Errno;

use super::{Exit, Ordered, Outlet, Sink};
use crate::chunk::VerifiedChunk;
use crate::command::{Command, Role};
use crate::error::{Error, Kind, Result, Side};
use crate::pipe::Stop;

/// How long a command that has closed its stdin may take to end, and to say so why.
const EARLY_MAX: Duration = Duration::from_secs(5);

pub struct Drain {
    body: Body,
    command: Mutex<Option<Command>>,
    /// Why it takes nothing any more.
    cause: OnceLock<Error>,
    stop: Stop,
}

enum Body {
    Ordered(Ordered),
    Null(Sink),
}

impl Drain {
    /// Opens `exit`; for a FIFO waits for its reader. `window` is in chunks; `on_line` gets each
    /// line that a command says.
    ///
    /// # Errors
    /// `Kind::Write`, `Kind::Command`; `Kind::Lost` where it is stopped before a FIFO has a reader.
    pub fn open(
        exit: &Exit,
        window: usize,
        stop: &Stop,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<Drain> {
        let mut command = None;
        let outlet = match exit {
            Exit::Null(_) => None,
            Exit::Stdout => Some(Outlet::stdout(stop.clone())?),
            Exit::Stderr => Some(Outlet::shared(
                std::io::stderr(),
                exit.path(),
                stop.clone(),
            )?),
            Exit::Path(path) => Some(Outlet::open(path, stop.clone())?),
            Exit::Command(line) => Some({
                let (started, stdin) = Command::start(line, Role::Consumer, on_line)?;
                command = Some(started);
                Outlet::own(stdin, OsStr::new("stdin of the command"), stop.clone())?
            }),
        };
        let body = match outlet {
            Some(outlet) => Body::Ordered(Ordered::new(outlet, window)),
            None => Body::Null(Sink::default()),
        };
        Ok(Drain {
            body,
            command: Mutex::new(command),
            cause: OnceLock::new(),
            stop: stop.clone(),
        })
    }

    /// Takes a chunk, and tells of every one that this call has written, without a lock. Returns at
    /// once where another thread is writing; else it waits for the consumer.
    ///
    /// # Errors
    /// `Kind::Command` where the consumer is a command that has failed, with its status and last
    /// words; `Kind::Write` where it is another; `Kind::Lost` when it was stopped; `Kind::Breach`
    /// for a chunk that no honest sender sends.
    pub fn put(
        &self,
        chunk: VerifiedChunk,
        mut on_written: impl FnMut(&VerifiedChunk),
    ) -> Result<()> {
        match &self.body {
            Body::Ordered(ordered) => {
                let put = ordered.put(chunk, on_written);
                put.map(drop).map_err(|error| self.cause_of(error))
            }
            Body::Null(sink) => {
                sink.write(&chunk);
                on_written(&chunk);
                Ok(())
            }
        }
    }

    /// All chunks have been written: lets the consumer see the end, and waits for a command for as
    /// long as it takes. A second call does nothing.
    ///
    /// # Errors
    /// As [`put`](Drain::put); also where `length` is not what was written.
    pub fn finish(&self, length: u64) -> Result<()> {
        if let Body::Ordered(ordered) = &self.body {
            ordered.finish(length)?;
        }
        let command = self.lock().take();
        command.map_or(Ok(()), |command| command.finish(&self.stop))
    }

    /// The stream does not come to its end: a command is ended, and a write that waits.
    pub fn abandon(&self) {
        self.stop.set();
        drop(self.lock().take());
    }

    /// A consumer that has closed its end may have failed, and then that is the cause.
    fn cause_of(&self, error: Error) -> Error {
        if error.errno != Errno::PIPE.raw_os_error() {
            return error;
        }
        // Held until it is known, so that whoever comes next does not tell less.
        let mut command = self.lock();
        let find = || match command.take() {
            Some(command) => why_early(command, &error, &self.stop),
            None => error.clone(),
        };
        self.cause.get_or_init(find).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Command>> {
        self.command.lock().expect("no panic while held")
    }
}

/// `command` has closed its stdin.
fn why_early(command: Command, error: &Error, stop: &Stop) -> Error {
    let name = command.name().to_owned();
    match command.finish_within(EARLY_MAX, stop) {
        Err(failed) if failed.kind == Kind::Command => failed,
        _ => {
            let message = format!("the command `{name}`: {}", error.message);
            Error::new(Kind::Command, Side::Dest, message)
        }
    }
}
