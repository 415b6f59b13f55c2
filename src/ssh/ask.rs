//! The program that ssh starts to ask the user a question: fastcp itself, as `SSH_ASKPASS`.
//!
//! Without it ssh writes its questions to the terminal, but its messages to stderr, which fastcp
//! reads. A question could then appear before the message that explains it ("Permission denied,
//! please try again."). This separate program waits until fastcp has shown all messages and
//! removed its progress bar. [`questions`](super::questions) is the other end of that wait.
//!
//! The answer goes to ssh through a pipe, and nowhere else.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use super::questions::{ADDRESS, connect};
use crate::units::harmless;

/// ssh's variable for the expected answer: a confirmation, no answer, or (unset) a line.
const HINT: &str = "SSH_ASKPASS_PROMPT";

/// Bytes of an answer. ssh accepts one fewer.
const ANSWER_MAX: usize = 1024;

/// Questions whose answer is shown while it is typed. ssh does not tell this program which ones
/// they are. So the program also hides an answer that a server wants to be shown
/// (keyboard-interactive with echo).
const SEEN: [&str; 5] = [
    "(yes/no/[fingerprint])?",
    "(yes/no)?",
    "(yes/no):",
    "Please type 'yes', 'no' or the fingerprint:",
    "Please type 'yes' or 'no':",
];

/// Signals that end a question, or stop the job that asks.
const SIGNALS: [Signal; 5] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
];

/// Asks the question if ssh started this process to do so; returns the exit code.
pub fn asked() -> Option<i32> {
    let address = env::var_os(ADDRESS)?;
    let mut words = env::args_os().skip(1);
    let question = words.next()?;
    // A fastcp that inherits the variable in another way (as a proxy command) has other
    // arguments.
    if words.next().is_some() || question.as_bytes().starts_with(b"--") {
        return None;
    }
    let text = harmless_lines(&question);
    Some(match env::var(HINT).as_deref() {
        Ok("none") => {
            // fastcp reads this stderr and shows the line above its progress bar.
            let _ = writeln!(std::io::stderr(), "{text}");
            0
        }
        Ok("confirm") => {
            let answer = ask(&address, &format!("{text} (yes/no) "), true);
            let is_yes = |answer: &Zeroizing<Vec<u8>>| answer.eq_ignore_ascii_case(b"yes");
            answer.map_or_else(|code| code, |answer| i32::from(!is_yes(&answer)))
        }
        _ => match ask(&address, &text, is_seen(&text)) {
            Ok(mut answer) => {
                answer.push(b'\n');
                i32::from(std::io::stdout().write_all(&answer).is_err())
            }
            Err(code) => code,
        },
    })
}

/// Escapes each line, since parts of a question may come from a server.
fn harmless_lines(question: &OsStr) -> String {
    let text = question.to_string_lossy();
    let lines: Vec<_> = text.split('\n').map(harmless).collect();
    lines.join("\n")
}

fn is_seen(question: &str) -> bool {
    let question = question.trim_end();
    SEEN.iter().any(|end| question.ends_with(end))
}

/// The user's answer without its newline, or the exit code.
fn ask(address: &OsStr, question: &str, is_seen: bool) -> Result<Zeroizing<Vec<u8>>, i32> {
    leave_no_core();
    // While this file is open, fastcp does not count the time against the login's limit.
    let terminal = File::options().read(true).write(true).open("/dev/tty");
    let asking = Asking {
        terminal: terminal.map_err(|_| 1)?,
        signals: signals().map_err(|_| 1)?,
        // If fastcp cannot be reached (ssh runs in a network namespace), the question may appear
        // too early, as ssh's own would.
        fastcp: connect(address).ok(),
    };
    asking.wait_for_turn()?;
    loop {
        match asking.answer(question, is_seen) {
            Ok(answer) => return Ok(answer),
            Err(Woken::Signal(Signal::SIGTSTP)) => asking.stop(),
            Err(why) => return Err(why.exit_code()),
        }
    }
}

/// Prevents a core file, which would contain the password.
fn leave_no_core() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Lowering a limit is always allowed.
    let _ = setrlimit(Resource::Core, none);
}

fn signals() -> nix::Result<SignalFd> {
    let set: SigSet = SIGNALS.into_iter().collect();
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)
}

struct Asking {
    terminal: File,
    signals: SignalFd,
    /// Closed when fastcp ends.
    fastcp: Option<UnixStream>,
}

/// Why a wait ended.
enum Woken {
    Signal(Signal),
    /// ssh or fastcp has ended, or the terminal is closed.
    Left,
}

impl Woken {
    fn exit_code(&self) -> i32 {
        match self {
            Woken::Signal(signal) => 128 + *signal as i32,
            Woken::Left => 1,
        }
    }
}

impl Asking {
    /// Waits until fastcp has shown ssh's earlier messages.
    fn wait_for_turn(&self) -> Result<(), i32> {
        let Some(mut fastcp) = self.fastcp.as_ref() else {
            return Ok(());
        };
        loop {
            match self.readable(fastcp) {
                Ok(()) => break,
                Err(Woken::Signal(Signal::SIGTSTP)) => self.stop(),
                Err(why) => return Err(why.exit_code()),
            }
        }
        match fastcp.read(&mut [0]) {
            Ok(1) => Ok(()),
            _ => Err(1),
        }
    }

    fn answer(&self, question: &str, is_seen: bool) -> Result<Zeroizing<Vec<u8>>, Woken> {
        let hidden = match is_seen {
            true => None,
            false => Some(Hidden::begin(&self.terminal).map_err(|_| Woken::Left)?),
        };
        self.write(&format!("\r{question}"))?;
        let answer = self.line();
        // Neither a hidden newline nor a signal moved the cursor to a new line.
        if hidden.is_some() || answer.is_err() {
            drop(hidden);
            self.write("\n")?;
        }
        answer
    }

    /// The input up to a newline or the end of input.
    fn line(&self) -> Result<Zeroizing<Vec<u8>>, Woken> {
        // Room for the newline too: growing would leave a copy behind.
        let mut line = Zeroizing::new(Vec::with_capacity(ANSWER_MAX + 1));
        let mut read = Zeroizing::new([0; ANSWER_MAX]);
        loop {
            self.readable(&self.terminal)?;
            let len = match rustix::io::read(&self.terminal, &mut read[..]) {
                Ok(0) => return Ok(line),
                Ok(len) => len,
                Err(Errno::INTR) => continue,
                Err(_) => return Err(Woken::Left),
            };
            let end = read[..len].iter().position(|&byte| byte == b'\n');
            let room = ANSWER_MAX - line.len();
            line.extend_from_slice(&read[..end.unwrap_or(len).min(room)]);
            if end.is_some() {
                return Ok(line);
            }
        }
    }

    fn write(&self, text: &str) -> Result<(), Woken> {
        let written = (&self.terminal).write_all(text.as_bytes());
        written.map_err(|_| Woken::Left)
    }

    /// Waits until `input` can be read.
    fn readable(&self, input: &impl AsFd) -> Result<(), Woken> {
        let stdout = std::io::stdout();
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        loop {
            let mut waits = vec![
                PollFd::new(input, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
                // ssh no longer reads the answer.
                PollFd::new(&stdout, PollFlags::empty()),
            ];
            waits.extend(
                self.fastcp
                    .as_ref()
                    .map(|fastcp| PollFd::new(fastcp, PollFlags::RDHUP)),
            );
            match poll(&mut waits, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return Err(Woken::Left),
            }
            if !waits[1].revents().is_empty() {
                let signal = self.signals.read_signal().ok().flatten();
                let signal = signal.and_then(|info| Signal::try_from(info.ssi_signo as i32).ok());
                return Err(signal.map_or(Woken::Left, Woken::Signal));
            }
            if waits[2..]
                .iter()
                .any(|wait| wait.revents().intersects(gone))
            {
                return Err(Woken::Left);
            }
            if !waits[0].revents().is_empty() {
                return Ok(());
            }
        }
    }

    /// Stops this process until it is continued, as Ctrl-Z stops the rest of the job.
    fn stop(&self) {
        // Cannot fail for an existing signal.
        let _ = raise(Signal::SIGSTOP);
    }
}

/// Turns off the terminal's echo until it is dropped.
struct Hidden<'a> {
    terminal: &'a File,
    before: Termios,
}

impl Hidden<'_> {
    /// Stops a background job here until it owns the terminal, as ssh would be stopped.
    fn begin(terminal: &File) -> rustix::io::Result<Hidden<'_>> {
        let before = tcgetattr(terminal)?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ECHO | LocalModes::ECHONL;
        loop {
            match tcsetattr(terminal, OptionalActions::Flush, &modes) {
                Ok(()) => return Ok(Hidden { terminal, before }),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        // The shell may already own the terminal. Without the mask SIGTTOU would stop this process.
        let set: SigSet = [Signal::SIGTTOU].into_iter().collect();
        let mut before = SigSet::empty();
        let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before));
        // Fails only if the terminal is closed.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hidden_and_confirmations_are_seen() {
        for question in [
            "The authenticity of host 'h' can't be established.\n\
             Are you sure you want to continue connecting (yes/no/[fingerprint])? ",
            "Please type 'yes', 'no' or the fingerprint: ",
        ] {
            assert!(is_seen(question), "{question}");
        }
        for question in [
            "me@h's password: ",
            "Enter passphrase for key '/home/me/(yes/no)? ': ",
            "(me@h) Verification code: ",
        ] {
            assert!(!is_seen(question), "{question}");
        }
    }

    #[test]
    fn a_question_keeps_its_lines_and_loses_what_a_terminal_would_act_on() {
        let question = OsStr::new("one\ntwo\x1b[2J: ");
        assert_eq!(harmless_lines(question), "one\ntwo\\x1b[2J: ");
    }
}
