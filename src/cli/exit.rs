//! Exit codes of the command.

use std::io::Write;

use crate::error::{Error, Result};

/// The exit code of the copy, or of the failure to write its record if the copy succeeded.
pub(super) fn code_of(code: i32, written: Result<()>) -> i32 {
    match written.map_err(|error| refuse(&error)) {
        Err(unwritten) if code == 0 => unwritten,
        _ => code,
    }
}

/// Shows the error that prevents the copy; returns the exit code.
pub(super) fn refuse(error: &Error) -> i32 {
    let _ = writeln!(std::io::stderr(), "{error}");
    error.kind.exit_code()
}
