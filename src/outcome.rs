//! The results of a copy: for the user, for the other end and for the next copy.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::algorithms::Method;
use crate::units;

/// Counts since the start of a session. The fields are those of
/// [`Progress`](crate::progress::Progress).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub bytes: u64,
    pub skipped_bytes: u64,
    pub resumed_bytes: u64,
    pub resumed_files: u64,
    pub wire_bytes: u64,
    pub raw_bytes: u64,
    pub files: u64,
    pub failed: u64,
    /// Bytes that were sent a second time.
    pub again_bytes: u64,
    pub codec_chunks: [u64; 8],
    pub streams: u32,
}

/// What limited the copy, as figures and as a sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// None where no stage was busy most of the time.
    pub limit: Option<Bottleneck>,
    pub shares: Shares,
    /// `limited by: the network, 97 % busy (source 12 %, …)`
    pub sentence: String,
    /// Advice, one sentence each, at most three.
    pub hints: Vec<String>,
}

/// The time that the copy of a file took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTime {
    /// The end of its path, printable.
    pub path: String,
    pub size: u64,
    /// From the first piece to the acknowledgement.
    pub time: Duration,
}

/// The slowest files that are kept of a copy.
pub const SLOWEST_MAX: usize = 20;

/// What the sending end does now, for the report of the copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CopyActivity {
    /// Since the sender of this session has started.
    pub elapsed_us: u64,
    /// Of about the last second.
    pub shares: Shares,
    /// For chunks whose sample shrinks.
    pub method: Method,
    /// The data connections that are up.
    pub connections: Vec<CarriedBytes>,
}

/// An end never makes a share that is NaN.
impl Eq for CopyActivity {}

/// The bytes of one data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedBytes {
    pub stream: u16,
    /// A stream that was dialled again has a higher one.
    pub attempt: u16,
    pub bytes: u64,
}

/// More connections than a copy has are left out.
const CONNECTIONS_MAX: usize = 256;

impl CopyActivity {
    /// A peer's message made safe to show.
    pub fn harmless(mut self) -> CopyActivity {
        self.connections.truncate(CONNECTIONS_MAX);
        CopyActivity {
            shares: self.shares.harmless(),
            ..self
        }
    }
}

/// More hints, and longer texts, than any verdict has.
const HINTS_MAX: usize = 3;
const TEXT_MAX: usize = 300;

impl Verdict {
    /// A peer's verdict made safe to show: shares from 0 to 1, and short, printable texts.
    pub fn harmless(self) -> Verdict {
        let text = |text: String| -> String {
            let short: String = text.chars().take(TEXT_MAX).collect();
            units::harmless(&short)
        };
        Verdict {
            limit: self.limit,
            shares: self.shares.harmless(),
            sentence: text(self.sentence),
            hints: self.hints.into_iter().take(HINTS_MAX).map(text).collect(),
        }
    }
}

/// The busiest stage of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    Network,
    /// `--bwlimit`.
    RateLimit,
    SourceDisk,
    Compression,
    /// The sender's processors, but not compression.
    Sender,
    Decompression,
    /// The receiver's processors, but not decompression.
    Receiver,
    DestinationDisk,
}

/// Shares of the copy's time, 0 to 1. Network: every connection had unsent bytes and the receiver
/// took them. Processors: the mean over all workers. Disks: a read or write was in progress and
/// the workers had nothing else to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    pub network: f64,
    pub source_disk: f64,
    /// Of the sending workers' time; part of `sender`.
    pub compression: f64,
    pub sender: f64,
    /// Of the receiving workers' time; part of `receiver`.
    pub decompression: f64,
    pub receiver: f64,
    pub destination_disk: f64,
}

impl Shares {
    /// The shares of a peer, from 0 to 1.
    fn harmless(self) -> Shares {
        let share = |share: f64| if share > 0.0 { share.min(1.0) } else { 0.0 };
        Shares {
            network: share(self.network),
            source_disk: share(self.source_disk),
            compression: share(self.compression),
            sender: share(self.sender),
            decompression: share(self.decompression),
            receiver: share(self.receiver),
            destination_disk: share(self.destination_disk),
        }
    }
}

/// Round trips that differ by a larger factor belong to different paths.
const SAME_PATH: u32 = 3;

/// Shorter round trips depend more on the processors than on the path.
const NEAR: Duration = Duration::from_millis(1);

/// The settings that suited a pair of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Microseconds.
    pub round_trip_us: u64,
    /// None where the user chose.
    pub streams: Option<u16>,
    pub method: Option<Method>,
}

impl Remembered {
    pub fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_us)
    }

    /// True if this was learnt at about this round trip.
    pub fn is_of(&self, round_trip: Duration) -> bool {
        let then = Duration::from_micros(self.round_trip_us).max(NEAR);
        let is = round_trip.max(NEAR);
        then <= is.saturating_mul(SAME_PATH) && is <= then.saturating_mul(SAME_PATH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_round_trip_is_another_path() {
        let home = Remembered {
            round_trip_us: 50_000,
            streams: None,
            method: None,
        };
        assert!(home.is_of(Duration::from_millis(20)));
        assert!(!home.is_of(Duration::from_millis(2)));
        assert!(!home.is_of(Duration::from_millis(500)));
    }
}
