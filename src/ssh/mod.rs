//! The far end's process, started by the system's `ssh` or as a child on this machine. With ssh,
//! the user's configuration, agent, jump hosts and prompts work as usual.
//!
//! The user's configuration may have settings for interactive use that break a pipe. These are
//! overridden, as scp does. Lines from the process's stderr are made printable and passed on,
//! because text from a far end must not reach the terminal raw.

mod adapted;
pub mod ask;
mod ending;
pub mod names;
mod options;
mod pinned;
mod prompt;
mod questions;
mod shared;
mod startup;
mod stderr;

use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

pub use adapted::{unattended, with_reasons};
pub use ending::{
    LastOutput, OWN, classify, does_not_run, is_refusal, is_refused, may_pass, no_answer,
    server_killed, why_lost, why_no_hello,
};
pub use names::connect_timeout;
use options::ssh_arguments;
pub use options::{Host, SshOptions};
use parking_lot::Mutex;
pub use pinned::pinned;
pub use prompt::{asks_on_terminal, within};
use questions::Questions;
pub use startup::{Errand, Startup, StartupLimit};
pub use stderr::{Stderr, no_hold, relay_stderr};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::error::{Error, Kind, Result, Side, reason_of};

/// How the server is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rsh {
    #[default]
    Ssh,
    /// As a child process on this machine; the host's name is ignored.
    Local,
}

/// A started far end. Its output is read from `stdout`; dropping `stdin` ends it.
pub struct FarEnd {
    process: Process,
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
    pub stderr: Stderr,
}

/// Starts the command for `errand`. The child stays in this process group, so that ssh may ask
/// for a password on the terminal.
///
/// # Errors
/// `Kind::Connect` if the program cannot be started, `Kind::Usage` if `--remote-path` is not a
/// command.
pub fn start(
    rsh: Rsh,
    host: &Host,
    options: &SshOptions,
    startup: &Startup,
    errand: Errand,
) -> Result<FarEnd> {
    let mut command = match rsh {
        Rsh::Ssh => {
            let mut command = Command::new(options.program());
            command
                .args(ssh_arguments(host, options))
                .arg(startup.command(errand)?);
            command
        }
        Rsh::Local if startup.path.is_some() || !matches!(errand, Errand::Become(_)) => {
            let mut command = Command::new("/bin/sh");
            command
                .arg("-c")
                .arg(format!("exec {}", startup.command(errand)?));
            command
        }
        Rsh::Local => {
            let itself = std::env::current_exe().map_err(|e| {
                let message = format!(
                    "cannot find the file of this fastcp program: {}",
                    reason_of(&e)
                );
                Error::new(Kind::FarEnd, Side::Here, message)
            })?;
            let mut command = Command::new(itself);
            if let Errand::Become(role) = errand {
                command.args(role.split(' '));
            }
            command.env_remove("SSH_CONNECTION");
            command
        }
    };
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let questions = match rsh {
        Rsh::Ssh if !options.batch => Questions::expected(),
        Rsh::Ssh | Rsh::Local => None,
    };
    if let Some(questions) = &questions {
        questions.offer(&mut command);
    }
    // SAFETY: ignoring a signal is one system call, which allocates nothing and locks nothing.
    unsafe { command.pre_exec(ignore_status_signal) };
    let program = command.as_std().get_program().to_owned();
    let mut child = command
        .spawn()
        .map_err(|e| Error::io(Kind::Connect, Side::Here, program, "cannot start", e))?;
    let taken = "the three pipes were asked for above";
    Ok(FarEnd {
        stdin: child.stdin.take().expect(taken),
        stdout: child.stdout.take().expect(taken),
        stderr: Stderr {
            pipe: child.stderr.take().expect(taken),
            questions,
        },
        process: Process::new(child, rsh),
    })
}

/// The user's name on the host according to ssh's configuration, or else a placeholder. ssh is
/// asked only if sudo may refuse that user.
pub async fn login_name(host: &Host, options: &SshOptions, startup: &Startup) -> String {
    let unknown = "THE_USER".to_owned();
    if startup.sudo.is_none() {
        return unknown;
    }
    names::user(host, options).await.unwrap_or(unknown)
}

/// Ignores SIGUSR1, which would end ssh. A shell's `kill -USR1 %1` sends it to all processes of
/// the job, to ask for progress.
fn ignore_status_signal() -> std::io::Result<()> {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: ignoring a signal installs no handler that could run.
    unsafe { signal(Signal::SIGUSR1, SigHandler::SigIgn)? };
    Ok(())
}

/// The process without its pipes. It is killed when this is dropped, except an ssh whose connection
/// other processes share.
pub struct Process {
    child: Child,
    id: Option<i32>,
    rsh: Rsh,
}

/// The running processes by id.
static RUNNING: Mutex<BTreeMap<i32, Rsh>> = Mutex::new(BTreeMap::new());

/// Kills every ssh of this process, which exits right afterwards.
pub fn kill_all() {
    use nix::sys::signal::{Signal, kill};
    for (id, rsh) in RUNNING.lock().iter() {
        if !is_shared(*id, *rsh) {
            // Fails only if the process has just ended.
            let _ = kill(nix::unistd::Pid::from_raw(*id), Signal::SIGKILL);
        }
    }
}

fn is_shared(id: i32, rsh: Rsh) -> bool {
    rsh == Rsh::Ssh && shared::serves_others(id)
}

fn number(child: &Child) -> Option<i32> {
    child.id().and_then(|id| i32::try_from(id).ok())
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            RUNNING.lock().remove(&id);
        }
        if !self.is_shared() {
            // Fails only if the process has ended.
            let _ = self.child.start_kill();
        }
    }
}

impl FarEnd {
    pub fn split(self) -> (Process, ChildStdin, ChildStdout, Stderr) {
        (self.process, self.stdin, self.stdout, self.stderr)
    }
}

/// Time to wait for a killed process. One that is blocked in an unresponsive file system ends
/// only when the file system answers, and the user need not wait for that.
const KILLED: Duration = Duration::from_millis(300);

/// Time to wait for an ssh whose connection other processes share. It ends only after their
/// sessions, and the user need not wait for that.
const SHARED: Duration = Duration::from_secs(1);

impl Process {
    fn new(child: Child, rsh: Rsh) -> Process {
        let id = number(&child);
        RUNNING.lock().extend(id.map(|id| (id, rsh)));
        Process { child, id, rsh }
    }

    /// None if the process has ended.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// True for an ssh whose connection other processes share.
    fn is_shared(&self) -> bool {
        number(&self.child).is_some_and(|id| is_shared(id, self.rsh))
    }

    /// Ends a process that may be asking for a password. Only ssh itself restores the terminal's
    /// echo and ends the prompt's line, and it does both for SIGTERM too.
    pub async fn end_by_signal(&mut self, patience: Duration) {
        use nix::sys::signal::{Signal, kill};
        if let Some(id) = number(&self.child)
            && !self.is_shared()
        {
            // Fails only if the process has just ended.
            let _ = kill(nix::unistd::Pid::from_raw(id), Signal::SIGTERM);
        }
        self.end(patience).await;
    }

    /// Waits for the process to end, and kills it after `patience`. None if it was killed, or was
    /// left to the other processes that share its connection.
    pub async fn end(&mut self, patience: Duration) -> Option<ExitStatus> {
        let brief = patience.min(SHARED);
        for wait in [brief, patience - brief] {
            if let Ok(status) = timeout(wait, self.child.wait()).await {
                return status.ok();
            }
            if self.is_shared() {
                return None;
            }
        }
        // Fails only if the process has just ended.
        let _ = self.child.start_kill();
        let _ = timeout(KILLED, self.child.wait()).await;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::options::PIPE_OPTIONS;
    use super::*;

    #[test]
    fn a_host_name_can_never_be_an_option_and_letters_mean_what_they_do_in_scp() {
        let host = Host {
            user: Some("u".into()),
            name: "h".into(),
            port: Some(2222),
        };
        let options = SshOptions {
            port: Some(22),
            identities: vec!["id".into()],
            options: vec!["A=b".into()],
            batch: true,
            verbose: 2,
            ..SshOptions::default()
        };
        let arguments = ssh_arguments(&host, &options);
        let text: Vec<_> = arguments.iter().map(|a| a.to_str().unwrap()).collect();
        assert_eq!(text[..9], PIPE_OPTIONS);
        assert_eq!(
            text[9..].join(" "),
            "-p 2222 -i id -o A=b -l u -oBatchMode=yes -oForwardAgent=no -v -v -- h"
        );
    }

    #[test]
    fn a_login_that_nobody_watches_never_asks_whatever_the_user_has_set() {
        let typed = SshOptions {
            options: vec!["BatchMode=no".into(), "ConnectTimeout=3".into()],
            ..SshOptions::default()
        };
        let again = typed.unattended(false).options.join(" ");
        assert_eq!(again, "BatchMode=yes BatchMode=no ConnectTimeout=3");
        let afresh = typed.unattended(true).options.join(" ");
        assert!(afresh.contains("ControlPath=none BatchMode=no"), "{afresh}");
    }
}
