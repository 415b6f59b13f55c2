//! A command at one end of a copy: the producer of a pipe, or its consumer. It runs as `sh -c` in
//! a separate session and process group, so that the whole pipeline of the command ends with the
//! copy. It gets no terminal: a terminal would stop a background process that asks for a password.
//! Its stderr is passed on line by line. Its exit status decides whether the copy is complete.
//!
//! No command outlives this process. Dropping a [`Command`] terminates it (TERM, then KILL) and
//! waits for it; a [`watchdog`] terminates it if this process is killed.
//! A consumer never sees a false end of data: its stdin is held open until [`Command::finish`]
//! confirms that all data is written.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal as Named;
use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group, setsid, test_kill_process_group};

use self::inherited::Inherited;
pub use self::inherited::{ignore_signal, raise_open_files};
use self::stderr::StderrRelay;
use self::watchdog::Watchdog;
use crate::error::{Error, Kind, Result, Side, reason_of};
use crate::pipe::{Stop, enlarge, stopped};
use crate::units::printable;

/// The time between TERM and KILL, for a command to clean up.
const TERM_MAX: Duration = Duration::from_secs(2);

/// A killed process that still exists after this time hangs in the kernel, and is left there.
const KILL_MAX: Duration = Duration::from_secs(5);

/// Interval between checks of a process that is ending.
const LOOK: Duration = Duration::from_millis(10);

/// Characters of a command that a message shows.
const SHOWN_MAX: usize = 60;

/// How long it takes to end all commands; after that they can be alive only inside the kernel.
pub const END_MAX: Duration = Duration::from_millis(2500);

/// Process groups of the commands that run now, and of their watches.
static RUNNING: Mutex<BTreeMap<i32, i32>> = Mutex::new(BTreeMap::new());

/// Kills every command of this process, which is about to exit.
pub fn kill_all() {
    for (command, watch) in RUNNING.lock().iter() {
        // The watch is killed second: it holds a consumer's stdin open, which must not end.
        for group in [command, watch] {
            // Fails only if the group has ended.
            let _ = Pid::from_raw(*group).map(|group| kill_process_group(group, Signal::KILL));
        }
    }
}

/// True until every command of this process is known to have ended, with its whole group.
pub fn are_running() -> bool {
    !RUNNING.lock().is_empty()
}

/// The relation of a command to the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandRole {
    /// Its stdout is the pipe; it has no stdin.
    Producer,
    /// Its stdin is the pipe; its stdout is treated like its stderr.
    Consumer,
}

pub struct Command {
    /// For messages.
    name: String,
    side: Side,
    child: Child,
    group: Pid,
    relay: StderrRelay,
    watch: Watchdog,
    is_ended: bool,
}

impl Command {
    /// Starts `line` and returns this process's end of its pipe. A separate thread calls `on_line`
    /// with each line of stderr: untrusted bytes without the line end, at most [`LINE_MAX`]. While
    /// `on_line` does not return, the command blocks as soon as a pipe is full.
    ///
    /// # Errors
    /// `Kind::Command` if there is no `sh`, or no process or pipe can be created.
    pub fn start(
        line: &OsStr,
        role: CommandRole,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<(Command, OwnedFd)> {
        let side = match role {
            CommandRole::Producer => Side::Source,
            CommandRole::Consumer => Side::Dest,
        };
        let name = shown(line);
        Command::spawn(line, &name, role, side, on_line).map_err(|cause| {
            let why = reason_of(&cause);
            let what = format!("cannot start the command `{name}`: {why}");
            Error::new(Kind::Command, side, what)
        })
    }

    fn spawn(
        line: &OsStr,
        name: &str,
        role: CommandRole,
        side: Side,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> io::Result<(Command, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        enlarge(&write);
        let (said, say) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut shell = process::Command::new("sh");
        // `--`, because a command may begin with a dash.
        shell.args([OsStr::new("-c"), OsStr::new("--"), line]);
        let inherited = Inherited::now();
        let begin = move || {
            setsid()?;
            inherited.undo()
        };
        // SAFETY: between `fork` and `exec` it makes a few system calls, and allocates nothing.
        unsafe { shell.pre_exec(begin) };
        let (ours, held) = match role {
            CommandRole::Producer => {
                shell.stdin(Stdio::null()).stdout(write);
                (read, None)
            }
            CommandRole::Consumer => {
                shell.stdin(read).stdout(say.try_clone()?);
                let held = write.try_clone()?;
                (write, Some(held))
            }
        };
        shell.stderr(say);
        let mut watch = Watchdog::start(held)?;
        let relay = StderrRelay::start(said, on_line)?;
        let child = shell.spawn()?;
        // `shell` holds copies of the other ends of the pipes. While they are open, no pipe ends.
        drop(shell);
        let group = Pid::from_child(&child);
        let number = group.as_raw_nonzero().get();
        RUNNING.lock().insert(number, watch.group());
        let watched = watch.guard(group);
        let command = Command {
            name: name.to_owned(),
            side,
            child,
            group,
            relay,
            watch,
            is_ended: false,
        };
        // From here on, an error terminates the command by dropping it.
        watched?;
        Ok((command, ours))
    }

    /// Waits for the command without a limit, except `stop`; then terminates everything left in its
    /// group. To be called at the end of a producer's pipe, or when the last byte is written to a
    /// consumer and this end of its pipe is closed.
    ///
    /// # Errors
    /// `Kind::Command` with status or signal and the last lines of stderr. `Kind::Lost` if `stop`
    /// came first; the command is then terminated.
    pub fn finish(self, stop: &Stop) -> Result<()> {
        self.finish_within(Duration::MAX, stop)
    }

    /// Like [`finish`](Command::finish); after `limit` the command is terminated as if by `stop`.
    pub fn finish_within(mut self, limit: Duration, stop: &Stop) -> Result<()> {
        self.watch.let_end();
        let started = Instant::now();
        let mut look = Duration::from_millis(1);
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if stop.is_set() || started.elapsed() > limit => {
                    return Err(stopped(self.side));
                }
                Ok(None) => std::thread::sleep(look),
                Err(cause) => {
                    let why = reason_of(&cause);
                    let what = format!("cannot wait for the command `{}`: {why}", self.name);
                    return Err(Error::new(Kind::Command, self.side, what));
                }
            }
            look = (look * 2).min(10 * LOOK);
        };
        self.end();
        if status.success() {
            return Ok(());
        }
        Err(self.failure(status))
    }

    /// The beginning of its command line, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn failure(&self, status: ExitStatus) -> Error {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("failed with status {code}"),
            (None, Some(number)) => match Named::try_from(number) {
                Ok(signal) => format!("was killed by {}", signal.as_str()),
                Err(_) => format!("was killed by signal {number}"),
            },
            (None, None) => "failed".to_owned(),
        };
        let last = self.relay.last_lines();
        let colon = if last.is_empty() { "" } else { ": " };
        let what = format!("the command `{}` {how}{colon}{last}", self.name);
        Error::new(Kind::Command, self.side, what)
    }

    /// Terminates the whole group and leaves no zombie. Waits for up to `TERM_MAX` + `KILL_MAX`;
    /// usually only until the command reacts to TERM.
    fn end(&mut self) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        // Fails if the group is already empty, which is fine.
        let _ = kill_process_group(self.group, Signal::TERM);
        // A stopped process gets TERM only when it continues.
        let _ = kill_process_group(self.group, Signal::CONT);
        if !self.is_gone_within(TERM_MAX) {
            let _ = kill_process_group(self.group, Signal::KILL);
            self.is_gone_within(KILL_MAX);
        }
        let number = self.group.as_raw_nonzero().get();
        RUNNING.lock().remove(&number);
        self.watch.end();
        self.relay.end();
    }

    fn is_gone_within(&mut self, limit: Duration) -> bool {
        let started = Instant::now();
        loop {
            // The kernel does not reuse the child's ID before the wait, nor the group's before it
            // is empty.
            let waited = !matches!(self.child.try_wait(), Ok(None));
            if waited && test_kill_process_group(self.group).is_err() {
                return true;
            }
            if started.elapsed() > limit {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        self.end();
    }
}

pub use self::stderr::LINE_MAX;

/// The beginning of a command as shown in messages.
fn shown(line: &OsStr) -> String {
    let whole = printable(line.as_bytes());
    let mut shown: String = whole.chars().take(SHOWN_MAX).collect();
    if shown.len() < whole.len() {
        shown.push('…');
    }
    shown
}

mod inherited;
mod stderr;
#[cfg(test)]
mod tests;
mod watchdog;
