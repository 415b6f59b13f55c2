//! Exit codes of the command.

use crate::error::{Error, Result};
use crate::pipe::write_all;

/// The exit code of the copy, or of the failure to write its record if the copy succeeded.
pub(super) fn code_of(code: i32, written: Result<()>) -> i32 {
    match written.map_err(|error| refuse(&error)) {
        Err(unwritten) if code == 0 => unwritten,
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
