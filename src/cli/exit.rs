//! Exit codes of the command: its own, and those of scp.

use crate::error::{Error, Kind, Result};
use crate::pipe::write_all;
use crate::session::Outcome;

/// scp's exit code if something was not copied.
pub(super) const SCP_ERROR: i32 = 1;

/// scp's exit code if ssh failed, or if another error than a signal ended scp before it was done.
pub(super) const SCP_FATAL: i32 = 255;

/// The result of one of scp's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScpExit {
    pub code: i32,
    /// No step follows.
    pub ends: bool,
}

impl ScpExit {
    pub(super) fn fatal(code: i32) -> ScpExit {
        ScpExit { code, ends: true }
    }

    /// scp goes on with the next operand if an entry fails.
    pub(super) fn of_entries(are_copied: bool) -> ScpExit {
        let code = if are_copied { 0 } else { SCP_ERROR };
        ScpExit { code, ends: false }
    }

    /// `is_upload_of_several`: several files of this machine go into one directory of a host.
    pub(super) fn of(outcome: &Outcome, is_upload_of_several: bool) -> ScpExit {
        match outcome.fatal.as_ref().map(|fatal| fatal.kind) {
            Some(Kind::Connect | Kind::FarEnd | Kind::Lost) => ScpExit::fatal(SCP_FATAL),
            Some(Kind::Signal(_)) => ScpExit::fatal(SCP_ERROR),
            Some(_) if is_upload_of_several => ScpExit::fatal(SCP_FATAL),
            _ => ScpExit::of_entries(outcome.exit_code() == 0),
        }
    }

    /// The result of this step and of those before it.
    pub(super) fn after(self, code: i32) -> i32 {
        match self.ends {
            true => self.code,
            false => code.max(self.code),
        }
    }
}

/// The exit code of the copy, or of the failure to write its record if nothing else failed.
pub(super) fn code_of(code: i32, written: Result<()>) -> i32 {
    match written.map_err(|error| refuse(&error)) {
        Err(unwritten) if code == 0 || code == Kind::Grew.exit_code() => unwritten,
        _ => code,
    }
}

/// Shows the error that prevents the copy; returns the exit code.
pub(super) fn refuse(error: &Error) -> i32 {
    say(&format!("{error}\n"));
    error.kind.exit_code()
}

/// Writes to stderr. Ignores errors: nobody may read it any more.
pub(super) fn say(text: &str) {
    let _ = write_all(std::io::stderr().lock(), text.as_bytes());
}
