//! A command at one of the ends: the producer of a stream, or its consumer. It runs by `sh -c`, in
//! a process group of its own, so that a whole pipeline is ended with the copy; what it says on
//! stderr is passed on line by line; how it ended decides whether the copy is whole.
//!
//! Nothing of it outlives us: dropped, it is ended (TERM, then KILL) and waited for, and a
//! [`watch`] ends it where this process is killed. An end of data that is not the true one never
//! reaches a consumer: its stdin is held open until [`Command::finish`] says that all is written.

mod relay;
mod watch;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Child, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal as Named;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::error::{Error, Kind, Result, Side};
use crate::pipe::{Stop, enlarge, stopped};
use crate::units::printable;
use relay::Relay;
use watch::Watch;

/// What a command gets between TERM and KILL to put its things in order.
const TERM_MAX: Duration = Duration::from_secs(2);

/// A killed process that is not gone by then hangs in the kernel; it is left to that.
const KILL_MAX: Duration = Duration::from_secs(5);

/// How often a process that ends is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Characters of a command that a message shows.
const SHOWN_MAX: usize = 60;

/// How long commands that are ended may take, and be alive after that only in the kernel.
pub const END_MAX: Duration = Duration::from_millis(2500);

/// Groups of commands that run now, and those of their watches.
static RUNNING: Mutex<BTreeMap<i32, i32>> = Mutex::new(BTreeMap::new());

/// Kills every command of this process, which then exits.
pub fn kill_all() {
    for (command, watch) in RUNNING.lock().expect("no panic while held").iter() {
        // The watch comes second: it holds a consumer's stdin open, which must not see an end.
        for group in [command, watch] {
            // Fails only for a group that has ended meanwhile.
            let _ = Pid::from_raw(*group).map(|group| kill_process_group(group, Signal::KILL));
        }
    }
}

/// True while a command of this process is not known to have ended, with all of its group.
pub fn are_running() -> bool {
    !RUNNING.lock().expect("no panic while held").is_empty()
}

/// What a command is to the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its stdout is the stream; it has no stdin.
    Producer,
    /// Its stdin is the stream; its stdout goes where its stderr goes.
    Consumer,
}

pub struct Command {
    /// For messages.
    name: String,
    side: Side,
    child: Child,
    group: Pid,
    relay: Relay,
    watch: Watch,
    is_ended: bool,
}

impl Command {
    /// Starts `line` and gives our end of its pipe. `on_line` is called from a thread of its own
    /// with each line of stderr as it came (bytes that nobody has vouched for, without the line
    /// end, at most [`LINE_MAX`]); while it does not return, the command waits as soon as a pipe
    /// is full.
    ///
    /// # Errors
    /// `Kind::Command` where there is no `sh`, or no process or pipe to be had.
    pub fn start(
        line: &OsStr,
        role: Role,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<(Command, OwnedFd)> {
        let side = match role {
            Role::Producer => Side::Source,
            Role::Consumer => Side::Dest,
        };
        let name = shown(line);
        Command::spawn(line, &name, role, side, on_line).map_err(|cause| {
            let what = format!("cannot start the command `{name}`: {cause}");
            Error::new(Kind::Command, side, what)
        })
    }

    fn spawn(
        line: &OsStr,
        name: &str,
        role: Role,
        side: Side,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> io::Result<(Command, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        enlarge(&write);
        let (said, say) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut shell = process::Command::new("sh");
        // `--`: a command may begin with a dash.
        shell.args([OsStr::new("-c"), OsStr::new("--"), line]);
        shell.process_group(0);
        let (ours, held) = match role {
            Role::Producer => {
                shell.stdin(Stdio::null()).stdout(write);
                (read, None)
            }
            Role::Consumer => {
                shell.stdin(read).stdout(say.try_clone()?);
                let held = write.try_clone()?;
                (write, Some(held))
            }
        };
        shell.stderr(say);
        let mut watch = Watch::start(held)?;
        let relay = Relay::start(said, on_line)?;
        let child = shell.spawn()?;
        // It has our copies of the pipes' other ends, and while it has them no pipe ends.
        drop(shell);
        let group = Pid::from_child(&child);
        let number = group.as_raw_nonzero().get();
        RUNNING
            .lock()
            .expect("no panic while held")
            .insert(number, watch.group());
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
        // From here on an error ends the command by its drop.
        watched?;
        Ok((command, ours))
    }

    /// To be called when a producer's stream has come to its end, or when the last byte is written
    /// to a consumer and our end of its pipe is closed. Waits for the command without a limit but
    /// `stop`, then ends whatever it left in its group.
    ///
    /// # Errors
    /// `Kind::Command` with status or signal and the last lines of stderr; `Kind::Lost` where
    /// `stop` came first, and then the command has been ended.
    pub fn finish(self, stop: &Stop) -> Result<()> {
        self.finish_within(Duration::MAX, stop)
    }

    /// As [`finish`](Command::finish); a command that takes longer is ended as if `stop` were set.
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
                    let what = format!("cannot wait for the command `{}`: {cause}", self.name);
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

    /// The beginning of its line, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn failure(&self, status: ExitStatus) -> Error {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("failed with status {code}"),
            (None, Some(number)) => match Named::try_from(number) {
                Ok(signal) => format!("was ended by {}", signal.as_str()),
                Err(_) => format!("was ended by signal {number}"),
            },
            (None, None) => "failed".to_owned(),
        };
        let last = self.relay.last_lines();
        let colon = if last.is_empty() { "" } else { ": " };
        let what = format!("the command `{}` {how}{colon}{last}", self.name);
        Error::new(Kind::Command, self.side, what)
    }

    /// Ends all of the group and leaves no zombie. Waits for up to `TERM_MAX` + `KILL_MAX`, in
    /// practice for as long as the command takes to heed TERM.
    fn end(&mut self) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        // Fails where nobody is left, and that is what it is for.
        let _ = kill_process_group(self.group, Signal::TERM);
        if !self.is_gone_within(TERM_MAX) {
            let _ = kill_process_group(self.group, Signal::KILL);
            self.is_gone_within(KILL_MAX);
        }
        let number = self.group.as_raw_nonzero().get();
        RUNNING.lock().expect("no panic while held").remove(&number);
        self.watch.end();
        self.relay.end();
    }

    fn is_gone_within(&mut self, limit: Duration) -> bool {
        let started = Instant::now();
        loop {
            // Its number is ours until it is waited for, and its group's until the group is empty.
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

pub use relay::LINE_MAX;

/// The beginning of a command as a message shows it.
fn shown(line: &OsStr) -> String {
    let whole = printable(line.as_bytes());
    let mut shown: String = whole.chars().take(SHOWN_MAX).collect();
    if shown.len() < whole.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests;
