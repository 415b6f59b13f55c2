//! The tuner's knowledge at the start of a copy, and its decisions.

use std::time::Duration;

use super::bounds::{IN_FLIGHT_MAX, QUEUE_PER_STREAM, STREAMS_MAX};
use crate::algorithms::Method;
use crate::outcome::Remembered;

/// Facts known before the first byte.
#[derive(Clone, Debug)]
pub struct Start {
    /// Measured on the first connection, or a guess.
    pub round_trip: Duration,
    /// `round_trip` is a guess: the first one that a sample shows takes its place.
    pub is_guess: bool,
    /// Processors of the sender, where the tuner runs. Zero counts as one.
    pub processors_here: u16,
    pub processors_there: u16,
    /// Buffers in the smaller pool. The connections and twice the workers must fit.
    pub slots: usize,
    /// The strongest zstd level that memory allows.
    pub strongest: Method,
    /// Memory and the peer also allow LZMA.
    pub may_lzma: bool,
    /// The congestion control that connections begin with.
    pub congestion: Congestion,
    /// The kernel lets this user choose bbr.
    pub may_bbr: bool,
    /// `--nice`: use nothing that takes bandwidth from others.
    pub nice: bool,
    /// `--polite`: the copy takes only what others leave.
    pub polite: bool,
    pub remembered: Option<Remembered>,
    pub forced: Forced,
}

/// The user's choices, which the tuner does not change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forced {
    pub streams: Option<u16>,
    pub compress: Option<Method>,
    /// The tuner may not choose a congestion control: the user named one, which the caller sets, or
    /// the copy is polite.
    pub congestion: bool,
    /// Workers at the sender.
    pub threads: Option<u16>,
    /// Bytes a second on the wire, at the start; each [`Sample`](super::Sample) has the limit then
    /// in force.
    pub rate_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// What connections begin with, where that is not bbr. Loss slows it down.
    #[default]
    System,
    /// Chosen here, or what connections begin with. Loss does not slow it down.
    Bbr,
}

/// How the copy proceeds from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// For chunks whose sample shrinks.
    pub method: Method,
    /// One chunk in [`SCOUT_EVERY`](super::SCOUT_EVERY) uses this method, to measure it.
    pub scout: Option<Method>,
    /// Until the link is known, chunks that would have to wait for a connection use this method,
    /// whose time is hidden in that wait. It is stronger on a far link: those are slow at first and
    /// often remain so.
    pub spare: Option<Method>,
    /// Connections in use, 1 to [`STREAMS_MAX`]. Surplus ones are parked, not closed.
    pub streams: u16,
    /// Connections to have open: in use, or soon to be used.
    pub ready: u16,
    /// The most chunks in flight: read and not yet acknowledged.
    pub in_flight: u16,
    /// Frames that may wait for a connection. They were encoded by an earlier decision.
    pub queue: u16,
    /// Packs to merge into a large one. More than 1 on a slow link: as many as it carries in a
    /// short time after compression, and as fit into a frame.
    pub packs: u16,
    pub congestion: Congestion,
    /// Index of `method` on the ladder; meaningless if the user chose the method.
    pub(super) rung: usize,
}

impl Decision {
    /// For a test of the link alone: no compression, and the maximum number of chunks in flight.
    pub fn of_link_test(streams: u16) -> Decision {
        Decision {
            method: Method::None,
            scout: None,
            spare: None,
            streams,
            ready: streams,
            in_flight: IN_FLIGHT_MAX,
            queue: QUEUE_PER_STREAM * streams,
            packs: 1,
            congestion: Congestion::System,
            rung: 0,
        }
    }
}

/// A decision that differs from the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjustment {
    pub decision: Decision,
    /// What changed and why, in one line; None for the first rise in connections, and where only
    /// the method under measurement or the number of chunks in flight changed.
    pub reason: Option<String>,
}

/// How many connections to dial before any of them is up. `round_trip` may be a guess. A
/// remembered number counts only after a round trip has shown the present state of the link.
pub fn first_streams(round_trip: Duration, forced: Option<u16>) -> u16 {
    // On a local link each further connection costs wake-ups: 1 GB on loopback with 2 busy
    // processors took 2.4 s with 1 connection, 2.6 with 2, 2.9 with 4 and 3.4 with 8. Two rarely
    // fail at once.
    let by_distance = match round_trip.as_millis() {
        ..5 => 2,
        5..100 => 8,
        _ => 16,
    };
    forced.unwrap_or(by_distance).clamp(1, STREAMS_MAX)
}

/// For messages: `8 streams`.
pub(super) fn streams(count: u16) -> String {
    match count {
        1 => "1 stream".to_owned(),
        count => format!("{count} streams"),
    }
}
