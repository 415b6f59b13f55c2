//! What went wrong at one end, as the other is told of it.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Side};
use crate::manifest::EntryId;

/// A fault at the sender of this message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub kind: Kind,
    pub errno: i32,
    pub side: Side,
    /// 0 where it is not of one entry.
    pub entry: EntryId,
    /// The entry's parent, since the other end may never have heard of the entry.
    pub parent: EntryId,
    /// Empty where there is none.
    pub path: Vec<u8>,
    /// At most [`TEXT_MAX`] bytes.
    pub text: String,
}

/// Bytes of a fault's text that are looked at.
const TEXT_MAX: usize = 1024;

/// Bytes of a fault's path that are looked at.
const PATH_MAX: usize = 4096;

/// Signals have numbers from 1 to this.
const SIGNAL_MAX: i32 = 64;

impl Fault {
    pub fn of(error: &Error, entry: EntryId, parent: EntryId) -> Fault {
        use std::os::unix::ffi::OsStrExt;
        let path = error
            .path
            .as_ref()
            .map_or(Vec::new(), |p| p.as_os_str().as_bytes().to_vec());
        let text = error.message.chars().take(TEXT_MAX / 4).collect();
        Fault {
            kind: error.kind,
            errno: error.errno,
            side: error.side,
            entry,
            parent,
            path,
            text,
        }
    }

    /// As an error of this end, its text made printable and its length bounded.
    pub fn into_error(self) -> Error {
        use std::os::unix::ffi::OsStringExt;
        let text: String = self.text.chars().take(TEXT_MAX).collect();
        let mut path = self.path;
        path.truncate(PATH_MAX);
        // Nothing bigger than what is kept stays behind it.
        path.shrink_to_fit();
        let path = std::ffi::OsString::from_vec(path);
        let kind = match self.kind {
            // No signal has this number, and 128 more of it could be the exit code of a success.
            Kind::Signal(number) if !(1..=SIGNAL_MAX).contains(&number) => Kind::Lost,
            kind => kind,
        };
        Error {
            kind,
            side: self.side,
            path: (!path.is_empty()).then(|| path.into()),
            message: crate::units::harmless(&text),
            errno: self.errno,
        }
    }
}
