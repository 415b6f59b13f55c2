//! The program that ssh starts to ask the user a question: fastcp itself, as `SSH_ASKPASS`.
//!
//! By itself ssh writes a question to the terminal, but its messages to stderr, which fastcp reads
//! first. The question could then come before the message that explains it ("Permission denied,
//! please try again."). As a program of its own the question waits until fastcp has shown every
//! message and taken its bar away; [`questions`](super::questions) is the other end of that wait.
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

/// ssh's word for what it expects: a confirmation, nothing at all, or (unset) a line.
const HINT: &str = "SSH_ASKPASS_PROMPT";

/// Bytes of an answer; ssh takes one fewer.
const ANSWER_MAX: usize = 1024;

/// Questions whose answer is seen while it is typed. ssh does not tell this program which those
/// are, so an answer that a server wants to be seen (keyboard-interactive with echo) is hidden.
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

/// Asks, if ssh has started this process for that; gives the exit code.
pub fn asked() -> Option<i32> {
    let address = env::var_os(ADDRESS)?;
    let mut words = env::args_os().skip(1);
    let question = words.next()?;
    // A fastcp that inherits the variable otherwise (of a proxy command) has other arguments.
    if words.next().is_some() || question.as_bytes().starts_with(b"--") {
        return None;
    }
    let text = harmless_lines(&question);
    Some(match env::var(HINT).as_deref() {
        Ok("none") => {
            // fastcp reads this stderr, and shows the line above its bar.
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

/// A part of a question may be a server's text.
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
    // Open from here on, which tells fastcp that a person is asked: the login's limit waits.
    let terminal = File::options().read(true).write(true).open("/dev/tty");
    let asking = Asking {
        terminal: terminal.map_err(|_| 1)?,
        signals: signals().map_err(|_| 1)?,
        // Where fastcp cannot be reached (ssh runs in a network namespace) the question is as
        // early as ssh's own.
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

/// A core file would hold the password.
fn leave_no_core() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // A limit may always be lowered.
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

/// Why a wait is over.
enum Woken {
    Signal(Signal),
    /// ssh or fastcp has ended, or the terminal is gone.
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
    /// Waits until fastcp has shown what ssh said before.
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
        // Neither a hidden newline nor a signal has ended the line.
        if hidden.is_some() || answer.is_err() {
            drop(hidden);
            self.write("\n")?;
        }
        answer
    }

    /// What is typed until a newline, or until the end of input.
    fn line(&self) -> Result<Zeroizing<Vec<u8>>, Woken> {
        // Room for the newline, so that no copy is left behind by growing.
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
                // Nobody reads the answer any more.
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

    /// Stops as the rest of the job does for Ctrl-Z, until it is continued.
    fn stop(&self) {
        // Fails for no signal that exists.
        let _ = raise(Signal::SIGSTOP);
    }
}

/// A terminal that does not show what is typed, until this is dropped.
struct Hidden<'a> {
    terminal: &'a File,
    before: Termios,
}

impl Hidden<'_> {
    /// A job in the background is stopped here until it has the terminal, as ssh would be.
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
        // The shell may have the terminal already: this must not stop the process.
        let set: SigSet = [Signal::SIGTTOU].into_iter().collect();
        let mut before = SigSet::empty();
        let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before));
        // Fails only where the terminal is gone.
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
