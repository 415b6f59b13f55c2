//! Results on standard output: JSON, a probe's table, versions, help.

use rustix::io::Errno;

use crate::error::{Error, Kind, Result, Side};
use crate::pipe::{Stop, Until, is_stdout_closed, wait};

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

/// Writes all of `text`, even if another process has made the standard output non-blocking.
fn put(text: &str) -> Result<(), Errno> {
    let stdout = std::io::stdout().lock();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match rustix::io::write(&stdout, rest) {
            Ok(len) => rest = &rest[len..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                wait(&stdout, Until::Writable, &Stop::new(), None).map_err(|_| Errno::BADF)?;
            }
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
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
