//! The report of an error from one end to the other.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::error::{Error, Kind, Side};
use crate::manifest::EntryId;

/// A fault at the sender of this message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub kind: Kind,
    pub errno: i32,
    pub side: Side,
    /// 0 if the error does not concern one entry.
    pub entry: EntryId,
    /// The entry's parent. The other end may not know the entry itself.
    pub parent: EntryId,
    /// Empty if there is no path.
    #[serde(with = "byte_strings")]
    pub path: Vec<u8>,
    /// At most [`TEXT_MAX`] characters.
    pub text: String,
}

/// Characters of the text that the receiver of a fault reads. Some texts name two paths as typed.
const TEXT_MAX: usize = 1024;

/// The end of a text that was cut.
const CUT: &str = "...";

/// Bytes of the path that the receiver of a fault reads.
const PATH_MAX: usize = 4096;

/// Highest signal number; the lowest is 1.
const SIGNAL_MAX: i32 = 64;

const SIGTERM: i32 = 15;

impl Fault {
    pub fn of(error: &Error, entry: EntryId, parent: EntryId) -> Fault {
        let path = error
            .path
            .as_ref()
            .map_or(Vec::new(), |p| p.as_os_str().as_bytes().to_vec());
        Fault {
            kind: match error.kind {
                Kind::Stopped => Kind::Signal(SIGTERM),
                Kind::Grew => Kind::Changed,
                kind => kind,
            },
            errno: error.errno,
            side: error.side,
            entry,
            parent,
            path,
            text: bounded(&error.message),
        }
    }

    /// Names its path relative to `root` if it is below it.
    pub fn name_path_from(&mut self, root: &Path) {
        let path = Path::new(OsStr::from_bytes(&self.path));
        let Ok(below) = path.strip_prefix(root) else {
            return;
        };
        self.path = match below.as_os_str().as_bytes() {
            b"" => b".".to_vec(),
            below => below.to_vec(),
        };
    }

    /// Converts the report of a file that only grew to a warning of this end.
    pub fn into_growth(self) -> Error {
        Error {
            kind: Kind::Grew,
            ..self.into_error()
        }
    }

    /// Converts to an error of this end. Makes the text printable and bounds its length.
    pub fn into_error(self) -> Error {
        use std::os::unix::ffi::OsStringExt;
        let mut path = self.path;
        path.truncate(PATH_MAX);
        // Frees the memory of the part that was cut off.
        path.shrink_to_fit();
        let path = std::ffi::OsString::from_vec(path);
        let kind = match self.kind {
            // No such signal exists, and with 128 added the number could be exit code 0.
            Kind::Signal(number) if !(1..=SIGNAL_MAX).contains(&number) => Kind::Lost,
            // Only the client decides this.
            Kind::Stopped => Kind::Lost,
            // An entry has failed. That one only grew is another message.
            Kind::Grew => Kind::Changed,
            kind => kind,
        };
        Error {
            kind,
            side: self.side,
            path: (!path.is_empty()).then(|| path.into()),
            message: crate::units::harmless(&bounded(&self.text)),
            errno: self.errno,
        }
    }
}

/// The text, with a mark if it is too long.
fn bounded(text: &str) -> String {
    if text.chars().nth(TEXT_MAX).is_none() {
        return text.to_owned();
    }
    let kept = text.chars().take(TEXT_MAX - CUT.len());
    kept.chain(CUT.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_ends_in_a_mark() {
        let kept = |text: String| {
            let fault = Fault::of(&Error::new(Kind::Read, Side::Source, &*text), 0, 0);
            assert!(fault.text.chars().count() <= TEXT_MAX);
            let once = fault.text.clone();
            assert_eq!(fault.into_error().message, once, "it is not cut again");
            once
        };
        let short = "é".repeat(TEXT_MAX);
        assert_eq!(kept(short.clone()), short);
        let long = kept(short.clone() + "é");
        assert_eq!(long, "é".repeat(TEXT_MAX - 3) + "...");
        let mut fault = Fault::of(&Error::new(Kind::Read, Side::Source, ""), 0, 0);
        fault.text = short + "é";
        assert_eq!(fault.into_error().message, long);
    }

    /// A peer that does not know the kind would take the message for a breach, and keep nothing.
    #[test]
    fn a_stop_travels_as_a_signal() {
        let stopped = Error::new(Kind::Stopped, Side::Here, "stopped at 06:00");
        let mut fault = Fault::of(&stopped, 0, 0);
        assert_eq!(fault.kind, Kind::Signal(15));
        fault.kind = Kind::Stopped;
        assert_eq!(fault.into_error().kind, Kind::Lost);
    }

    #[test]
    fn a_path_below_the_root_is_named_from_there() {
        for (path, named) in [
            ("/srv/web1/day/a", "day/a"),
            ("/srv/web1", "."),
            ("/srv/web10/a", "/srv/web10/a"),
            ("day/a", "day/a"),
            ("", ""),
        ] {
            let error = Error::new(Kind::Read, Side::Source, "");
            let mut fault = Fault::of(&error, 0, 0);
            fault.path = path.into();
            fault.name_path_from(Path::new("/srv/web1/"));
            assert_eq!(fault.path, named.as_bytes());
        }
    }
}
