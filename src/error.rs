//! The error type: what failed, on which side, with which path, and with which exit code.
//!
//! An `Error` is made where the failure is detected, with the path that the user would look for.
//! Callers may add to it. Its `Kind` alone decides the exit code. Text from a peer is shown
//! through [`printable`], never raw.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::units::printable;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What to do about another fastcp at the same place.
pub const BUSY_ADVICE: &str = "; wait for it to end (--wait), or stop it";

/// The kind decides the exit code and whether a retry is worthwhile. On the wire it is the
/// variant's index, so the order must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// An entry that cannot be copied for a reason without an exit code of its own (a special
    /// file).
    Entry,
    /// The command line asks for something impossible.
    Usage,
    /// Cannot connect or log in.
    Connect,
    /// The far end cannot run fastcp, or its fastcp shares no protocol version.
    FarEnd,
    /// The connection was lost.
    Lost,
    /// Received data differs from the data that was sent.
    Verify,
    /// The source changed while it was copied.
    Changed,
    /// No space left, or another write error at the destination.
    Write,
    /// The source disappeared or cannot be read.
    Read,
    /// A command at one end failed.
    Command,
    /// Refused to replace an existing file.
    Refused,
    /// Another fastcp is writing there.
    Busy,
    /// Ended by this signal.
    Signal(i32),
    /// A bug: a panic at either end, or a peer that broke the protocol. Never retried, since it
    /// would happen again.
    Breach,
    /// Ended at the time that the user has set. Never on the wire, since older peers do not know
    /// it: the other end gets a signal.
    Stopped,
    /// A file that only grew is copied up to an earlier length: a warning, and no failed entry.
    /// Never on the wire, as above.
    Grew,
}

impl Kind {
    pub fn exit_code(self) -> i32 {
        match self {
            Kind::Entry => 1,
            Kind::Usage => 2,
            Kind::Connect => 3,
            Kind::FarEnd => 4,
            Kind::Lost => 5,
            Kind::Verify => 6,
            Kind::Changed => 7,
            Kind::Write => 8,
            Kind::Read => 9,
            Kind::Command => 10,
            Kind::Refused => 11,
            Kind::Busy => 12,
            Kind::Breach => 13,
            Kind::Grew => 14,
            Kind::Stopped => 15,
            Kind::Signal(number) => 128 + number,
        }
    }

    /// One word for records: in events, and in the line of a server in the system log.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Entry => "entry",
            Kind::Usage => "usage",
            Kind::Connect => "connect",
            Kind::FarEnd => "far_end",
            Kind::Lost => "lost",
            Kind::Verify => "verify",
            Kind::Changed => "changed",
            Kind::Write => "write",
            Kind::Read => "read",
            Kind::Command => "command",
            Kind::Refused => "refused",
            Kind::Busy => "busy",
            Kind::Signal(_) => "signal",
            Kind::Breach => "internal",
            Kind::Stopped => "stopped",
            Kind::Grew => "grew",
        }
    }

    /// True if the user wanted the copy to end: by a signal, or at a set time.
    pub fn is_wanted(self) -> bool {
        matches!(self, Kind::Signal(_) | Kind::Stopped)
    }

    /// True for errors that another login may resolve.
    pub fn is_worth_a_retry(self) -> bool {
        self == Kind::Lost
    }
}

/// Where the failure is. `Here` is the client itself (arguments, ssh, the link).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    Here,
    Source,
    Dest,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Here => "fastcp",
            Side::Source => "source",
            Side::Dest => "dest",
        })
    }
}

/// Users read it through `ui::errors`, with the host as they typed it. It displays as
/// `dest: /data/a.bin: no space left: needs 3.1 GB, 1.2 GB free` in tests, and as `fastcp: ...`
/// where no copy has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: Kind,
    pub side: Side,
    pub path: Option<PathBuf>,
    /// One line, printable, lower case, no full stop. Says what to do where that is known.
    pub message: String,
    /// The operating system's error number; 0 if there is none.
    pub errno: i32,
}

impl Error {
    pub fn new(kind: Kind, side: Side, message: impl Into<String>) -> Self {
        Error {
            kind,
            side,
            path: None,
            message: message.into(),
            errno: 0,
        }
    }

    /// A failed system call on `path`. `what` names the operation ("cannot open").
    pub fn io(
        kind: Kind,
        side: Side,
        path: impl AsRef<Path>,
        what: &str,
        cause: impl Into<io::Error>,
    ) -> Self {
        let cause = cause.into();
        let errno = cause.raw_os_error().unwrap_or(0);
        let reason = reason_of(&cause);
        let message = if what.is_empty() {
            reason
        } else {
            format!("{what}: {reason}")
        };
        Error {
            kind,
            side,
            path: Some(path.as_ref().to_owned()),
            message,
            errno,
        }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Error::new(Kind::Usage, Side::Here, message)
    }

    /// A thread or task of this process panicked, which has printed its own message.
    pub fn panicked() -> Self {
        let message =
            "internal error: fastcp panicked (its message is above); please report this bug";
        Error::new(Kind::Breach, Side::Here, message)
    }

    /// `who` ("the sender", "fastcp there") broke the protocol. `what` says how.
    pub fn breach(side: Side, who: &str, what: impl fmt::Display) -> Self {
        let message = format!("{who} sent an invalid message: {what}; please report this bug");
        Error::new(Kind::Breach, side, message)
    }

    /// Another process writes the file at `path`, or copies to that place.
    pub fn busy(path: impl AsRef<Path>) -> Self {
        let message = format!("another fastcp is writing there{BUSY_ADVICE}");
        Error::new(Kind::Busy, Side::Dest, message).at(path)
    }

    /// `/data/a: no space left`, for a line that is about the host where it is printed.
    pub fn in_place(&self) -> String {
        use std::os::unix::ffi::OsStrExt;
        match &self.path {
            Some(path) => format!(
                "{}: {}",
                printable(path.as_os_str().as_bytes()),
                self.message
            ),
            None => self.message.clone(),
        }
    }

    pub fn at(mut self, path: impl AsRef<Path>) -> Self {
        self.path = Some(path.as_ref().to_owned());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use std::os::unix::ffi::OsStrExt;
        write!(f, "{}: ", self.side)?;
        if let Some(path) = &self.path {
            write!(f, "{}: ", printable(path.as_os_str().as_bytes()))?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The system's message in lower case, without Rust's "(os error N)".
pub fn reason_of(cause: &io::Error) -> String {
    let text = cause.to_string();
    let Some(_) = cause.raw_os_error() else {
        return text;
    };
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(chars).collect()
    })
}
