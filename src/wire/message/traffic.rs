//! How the streams fare: what rides on control in their place, what each end has seen of them, what
//! is changed for it, and what came of it all.

use serde::{Deserialize, Serialize};

use crate::octets;
use crate::tuner::{Remembered, Verdict};

/// Bytes of frames that ride on control, for when there is no stream: at most [`DATA_MAX`] each,
/// and no more than the other end has given `Credit` for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    #[serde(with = "octets")]
    pub bytes: Vec<u8>,
}

/// Bytes of a `Data`: what stands before a control message that is said meanwhile.
pub const DATA_MAX: usize = 64 << 10;

/// What an end has seen lately; comes every few seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub counter: u64,
    /// The streams that are up at this end.
    pub streams: Vec<StreamFacts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFacts {
    pub stream: u16,
    pub attempt: u16,
    /// Bytes of frames that this end has parsed, or handed to its socket.
    pub bytes: u64,
    /// This end's reader waits for a buffer: it is slow, not dead.
    pub waits: bool,
}

/// What is gone by from now on: the sender tells how many streams, to whoever dials them and tells
/// the user; the client how fast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tune {
    /// Streams that there should be.
    pub streams: Option<u16>,
    /// Bytes a second; 0 is no limit.
    pub rate_limit: Option<u64>,
    /// Why it changed, a line; empty where there is nothing to tell.
    pub reason: String,
}

/// What the receiver did with its time, counted from its start. Comes with acknowledgements, and
/// before the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    pub elapsed_us: u64,
    /// Of all workers together: opening, decompressing, digesting.
    pub workers_us: u64,
    /// The part of it that was decompressing.
    pub decode_us: u64,
    /// A write was under way and the workers had nothing else to do.
    pub write_us: u64,
    /// Streams' readers waited for a buffer, as a mean of all streams.
    pub waits_us: u64,
}

/// How fast a place is written, as its own host tried it; all zero where it was not tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub bytes: u64,
    /// Until the system had taken them, and until they were on the disk.
    pub written_us: u64,
    pub synced_us: u64,
}

/// The sender's last word, for the end that the user sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// None where there was nothing to measure.
    pub verdict: Option<Verdict>,
    /// What was learnt of the way, for the next copy.
    pub remembered: Option<Remembered>,
}

/// Shares are no NaN where an end made them.
impl Eq for Conclusion {}
