//! The table of a session's connections: each connection that is up, and totals of all that have
//! ended.

use std::collections::BTreeMap;
use std::time::Duration;

use super::live::{Flow, LiveConnection, PACKET};
use super::targets::Targets;
use crate::transport::connection::handshake::ConnectionId;
use crate::transport::connection::stats::ConnectionStats;
use crate::transport::routes::Route;

#[derive(Default)]
pub(super) struct ConnectionsState {
    pub(super) live: BTreeMap<u16, LiveConnection>,
    pub(super) targets: Targets,
    pub(super) now: Duration,
    /// Heartbeats received up to the last look.
    pub(super) beats: u64,
    /// See `Sight::share`.
    pub(super) share: u64,
    pub(super) next_number: u16,
    pub(super) most: usize,
    pub(super) has_begun: bool,
    pub(super) was_ever_proven: bool,
    pub(super) was_ever_listed: bool,
    pub(super) last_cause: Option<String>,
    /// Bytes that have left connections at the receiving end, as far as this end knows. It wraps:
    /// the other end may report any number.
    pub(super) arrived: u64,
    /// By number of the route.
    pub(super) routes: [RouteRecord; Route::ALL.len()],
}

/// What the connections of one route have shown.
#[derive(Clone, Copy, Default)]
pub(super) struct RouteRecord {
    /// Bytes of connections that have ended.
    pub(super) carried: u64,
    /// It carried an opening, but then not even as much as a packet.
    pub(super) is_doubtful: bool,
}

impl ConnectionsState {
    /// Updates the largest number of connections: of the working ones at the sending end, of all
    /// at the receiving end. Routes that are tried at the same time do not add up, since only one
    /// of them carries data.
    pub(super) fn count_most(&mut self, flow: Flow) {
        let mut at_work = [0; Route::ALL.len()];
        for live in self.live.values() {
            let counts = flow == Flow::In || !live.stats.is_parked();
            at_work[live.route as usize] += usize::from(counts);
        }
        self.most = at_work.into_iter().fold(self.most, usize::max);
    }

    /// Lets the oldest connections of each route work and parks the others. Called whenever a
    /// connection comes or goes, so that a parked one replaces a lost one. An older one has taken a
    /// frame already, which it must send in any case.
    pub(super) fn park(&self) {
        let wanted = usize::from(self.targets.at_work);
        let mut at_work = [0; Route::ALL.len()];
        let mut by_age: Vec<&LiveConnection> = self.live.values().collect();
        by_age.sort_unstable_by_key(|live| live.number);
        for live in by_age {
            let others = &mut at_work[live.route as usize];
            let is_parked = *others >= wanted;
            *others += 1;
            live.stats.order(|orders| orders.is_parked = is_parked);
        }
    }

    /// The number of connections with data to send, at least 1.
    pub(super) fn at_work(&self) -> u64 {
        let has_work = |live: &&LiveConnection| {
            let holds = live.stats.kernel().is_some_and(|facts| facts.held > 0);
            holds || !(live.stats.waits() || live.stats.is_parked())
        };
        let at_work = self.live.values().filter(has_work).count() as u64;
        at_work.max(1)
    }

    /// Connections whose bytes another would carry clearly sooner. One whose segments wait in a
    /// queue does not count: then the link is slow, also for retransmitted chunks.
    pub(super) fn slow(&self) -> Vec<u16> {
        let fastest = self.live.values().map(|live| live.watch.fastest()).max();
        let is_slow = |live: &&LiveConnection| {
            let is_queued = live.stats.kernel().is_some_and(|facts| facts.is_queued());
            !is_queued && live.watch.is_slower_than(fastest.unwrap_or(0))
        };
        let slow = self.live.values().filter(is_slow);
        slow.map(|live| live.number).collect()
    }

    /// See `Sight::share`.
    pub(super) fn share(&self) -> u64 {
        let carried = self.live.values().filter_map(|live| live.watch.carries());
        let (sum, streams) = carried.fold((0, 0), |(sum, streams), step| (sum + step, streams + 1));
        sum / u64::max(streams, 1)
    }

    /// Removes a connection that has ended.
    pub(super) fn leaves(&mut self, id: ConnectionId, number: u16, stats: &ConnectionStats) {
        self.was_ever_proven |= stats.is_proven();
        if let Some(route) = Route::of(id.stream) {
            self.routes[route as usize].carried += stats.bytes();
        }
        let is_it = |live: &LiveConnection| live.number == number;
        if self.live.get(&id.stream).is_some_and(is_it)
            && let Some(live) = self.live.remove(&id.stream)
            && live.given > PACKET
            && live.through <= PACKET
        {
            self.routes[live.route as usize].is_doubtful = true;
        }
        self.targets.leaves(stats);
        self.park();
    }
}
