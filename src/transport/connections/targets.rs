//! The tuner's orders to the connections of a session.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::transport::connection::kernel::KernelFacts;
use crate::transport::connection::stats::{ConnectionStats, Orders};
use crate::transport::idle_time::IdleTime;
use crate::tuner::AT_WORK_FIRST;
use crate::wire::hello::STREAMS_MAX;

/// A chunk may also be sent on an idle connection if its own delivers it later than that one
/// would, by this time and this factor. Rates are estimates; one that is wrong by less must not
/// fill a slow link twice.
const SOON: Duration = Duration::from_millis(300);
const SOONER: u32 = 2;

/// Orders for all connections, including future ones.
pub(super) struct Targets {
    /// The wanted number of connections of each route.
    pub(super) wanted: watch::Sender<u16>,
    /// How many of them work; the others are parked, not closed.
    pub(super) at_work: u16,
    pub(super) congestion: Option<Arc<str>>,
    /// Bytes a second, for each connection.
    pub(super) pace: Option<u64>,
    /// For each connection.
    pub(super) held_max: Option<u64>,
    pub(super) looks: u64,
    /// Bytes that ended connections carried and retransmitted.
    pub(super) past: (u64, u64),
}

impl Default for Targets {
    fn default() -> Targets {
        Targets {
            wanted: watch::Sender::new(STREAMS_MAX),
            at_work: AT_WORK_FIRST,
            congestion: None,
            pace: None,
            held_max: None,
            looks: 0,
            past: (0, 0),
        }
    }
}

impl Targets {
    pub(super) fn stats(&self, idle_time: &Arc<IdleTime>) -> Arc<ConnectionStats> {
        let orders = Orders {
            is_parked: false,
            is_yielding: false,
            congestion: self.congestion.clone(),
            pace: self.pace,
            held_max: self.held_max,
            looks: self.looks,
        };
        Arc::new(ConnectionStats::new(idle_time.clone(), orders))
    }

    /// Adds an ended connection to `past`.
    pub(super) fn leaves(&mut self, stats: &ConnectionStats) {
        let (carried, again) = carried(stats);
        self.past.0 += carried;
        self.past.1 += again;
    }
}

/// Bytes that the other kernel acknowledged, or those given to this kernel if it does not report
/// that; and bytes retransmitted.
pub(super) fn carried(stats: &ConnectionStats) -> (u64, u64) {
    match stats.kernel() {
        Some(facts) if facts.acked_bytes > 0 => (facts.acked_bytes, facts.retransmitted_bytes),
        _ => (stats.bytes(), 0),
    }
}

/// True if a connection needs clearly longer than an idle one for its held bytes and the `rest` of
/// its frame. False if its segments wait in a queue: the queue is the link's, and retransmitted
/// chunks would wait in it too.
pub(super) fn is_late(facts: &KernelFacts, rest: u64, idle: &KernelFacts) -> bool {
    let by_other = idle.takes(facts.held.saturating_add(rest));
    !facts.is_queued() && facts.due(rest) > SOON + SOONER * (idle.round_trip + by_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(rate: u64, round_trip_ms: u64) -> KernelFacts {
        KernelFacts {
            rate,
            round_trip: Duration::from_millis(round_trip_ms),
            round_trip_min: Duration::from_millis(100),
            unacknowledged: 20,
            held: 100_000,
            ..KernelFacts::default()
        }
    }

    #[test]
    fn a_chunk_goes_twice_only_where_its_stream_is_clearly_slower_and_the_link_is_not_full() {
        let idle = facts(1_000_000, 100);
        assert!(
            is_late(&facts(50_000, 100), 100_000, &idle),
            "4 s and 0.3 s"
        );
        let alike = facts(50_000, 100);
        assert!(
            !is_late(&facts(50_000, 100), 100_000, &alike),
            "a slow link"
        );
        assert!(
            !is_late(&facts(400_000, 100), 100_000, &idle),
            "0.5 s and 0.3 s"
        );
        assert!(
            !is_late(&facts(50_000, 400), 100_000, &idle),
            "a queue stands"
        );
    }
}
