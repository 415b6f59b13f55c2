//! Messages about data connections: data sent through control, measurements of each end, changes of
//! tuning, and the final result.

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::outcome::{Remembered, Verdict};

/// Bytes of frames, sent through control while no data connection works. Each message has at most
/// [`DATA_MAX`] bytes, and the sum stays within the other end's `Credit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    #[serde(with = "byte_strings")]
    pub bytes: Vec<u8>,
}

/// Most bytes of a `Data`; bounds how long it delays another control message.
pub const DATA_MAX: usize = 64 << 10;

/// Recent measurements of one end, sent every second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub counter: u64,
    /// The data connections of this end.
    pub streams: Vec<ConnectionFacts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionFacts {
    pub stream: u16,
    pub attempt: u16,
    /// Bytes of frames that this end has parsed, or passed to its socket.
    pub bytes: u64,
    /// This end's reader waits for a buffer, so the connection is slow and not dead.
    pub waits: bool,
}

/// New settings. The sender sets the number of connections, for the end that makes them and for
/// the user interface. The client sets the rate limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tune {
    /// The wanted number of data connections.
    pub streams: Option<u16>,
    /// Bytes a second; 0 means no limit.
    pub rate_limit: Option<u64>,
    /// One line with the reason for the change; empty if the user need not see one.
    pub reason: String,
}

impl Tune {
    /// The client's order to the sender: bytes a second; None for no limit.
    pub fn rate(limit: Option<u64>) -> Tune {
        Tune {
            streams: None,
            rate_limit: Some(limit.unwrap_or(0)),
            reason: String::new(),
        }
    }

    /// A line for the user alone.
    pub fn reason(line: String) -> Tune {
        Tune {
            streams: None,
            rate_limit: None,
            reason: line,
        }
    }
}

/// How the receiver spent its time since it started. Sent after some acknowledgements, and
/// before `Done`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    pub elapsed_us: u64,
    /// Sum over all workers: opening, decompressing, digesting.
    pub workers_us: u64,
    /// The part of `workers_us` spent decompressing.
    pub decode_us: u64,
    /// A write was in progress and the workers were idle.
    pub write_us: u64,
    /// Time that readers of connections waited for a buffer, as a mean over all of them.
    pub waits_us: u64,
}

/// Write speed at a path, measured on its own host; all zero if it was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub bytes: u64,
    /// Until the system had accepted the bytes (`written_us`) and had synced them to disk
    /// (`synced_us`).
    pub written_us: u64,
    pub synced_us: u64,
}

/// The sender's last message, for the end that the user sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// None if there was nothing to measure.
    pub verdict: Option<Verdict>,
    /// What the tuner learnt about the link, for the next copy.
    pub remembered: Option<Remembered>,
}

/// An end never makes a share that is NaN.
impl Eq for Conclusion {}
