//! Results on standard output: JSON, a probe's table, versions, help.

use rustix::io::Errno;

use crate::error::{Error, Kind, Result, Side};
use crate::pipe::{is_stdout_closed, write_all};

/// Writes a result for the user.
///
/// # Errors
/// `Kind::Write`. A reader that has exited (`| head`) is not an error.
pub fn show(text: &str) -> Result<()> {
    check()?;
    match put(text) {
        Err(Errno::PIPE) => Ok(()),
        written => written.map_err(failed),
    }
}

/// Writes a result for a program, which must get all of it.
///
/// # Errors
/// `Kind::Write`.
pub fn record(text: &str) -> Result<()> {
    check()?;
    put(text).map_err(failed)
}

/// # Errors
/// `Kind::Write` if this process was started without a standard output.
pub fn check() -> Result<()> {
    match is_stdout_closed() {
        true => Err(Error::new(
            Kind::Write,
            Side::Here,
            "standard output is closed",
        )),
        false => Ok(()),
    }
}

fn put(text: &str) -> Result<(), Errno> {
    write_all(std::io::stdout().lock(), text.as_bytes())
}

fn failed(cause: Errno) -> Error {
    Error::io(
        Kind::Write,
        Side::Here,
        "standard output",
        "cannot write",
        cause,
    )
}
