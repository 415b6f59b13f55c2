//! One connection that is up: its facts, and its place in the connection set until it ends.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::transport::connection::handshake::ConnectionId;
use crate::transport::connection::stall::{Dead, PeerSight, StallWatch};
use crate::transport::connection::stats::ConnectionStats;
use crate::transport::connections::{ConnectionSet, ConnectionsState, Flow};
use crate::transport::routes::Route;

/// The most bytes in one packet, ignoring jumbo frames.
pub(super) const PACKET: u64 = 1500;

/// A connection without progress for this long no longer keeps other routes from being tried;
/// longer than a heartbeat.
pub(super) const STUCK: Duration = Duration::from_secs(2);

/// The facts about one connection.
pub(super) struct LiveConnection {
    pub(super) route: Route,
    pub(super) attempt: u16,
    pub(super) number: u16,
    pub(super) since: Duration,
    pub(super) meter: Arc<ConnectionStats>,
    pub(super) leash: Arc<CancelHandle>,
    pub(super) watch: StallWatch,
    /// Bytes that entered it at one end, and bytes that left it at the other.
    pub(super) given: u64,
    pub(super) through: u64,
    /// How long none of the bytes that entered it have left it.
    pub(super) owed: Duration,
}

impl LiveConnection {
    /// Updates the facts from both ends.
    pub(super) fn count(&mut self, flow: Flow, peer: Option<PeerSight>, passed: Duration) {
        let (here, there) = (self.meter.bytes(), peer.map_or(0, |peer| peer.bytes));
        let (given, through, waits) = match flow {
            Flow::Out => (here, there, peer.is_some_and(|peer| peer.waits)),
            Flow::In => (there, here, self.meter.waits()),
        };
        let was_owed = self.given > self.through;
        if given > through && was_owed && through == self.through && !waits {
            self.owed += passed;
        } else {
            self.owed = Duration::ZERO;
        }
        (self.given, self.through) = (given, through);
    }

    /// True if it has carried more than a packet.
    pub(super) fn is_up(&self, flow: Flow) -> bool {
        match flow {
            Flow::Out => self.through > PACKET,
            Flow::In => self.meter.bytes() > PACKET,
        }
    }
}

impl ConnectionsState {
    /// Connections whose bytes another would carry clearly sooner. One whose segments wait in a
    /// queue does not count: then the link is slow, also for retransmitted chunks.
    pub(super) fn slow(&self) -> Vec<u16> {
        let fastest = self.live.values().map(|live| live.watch.fastest()).max();
        let is_slow = |live: &&LiveConnection| {
            let is_queued = live.meter.kernel().is_some_and(|facts| facts.is_queued());
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
}

/// A handle that ends a connection from outside.
#[derive(Default)]
pub(super) struct CancelHandle {
    token: CancellationToken,
    why: OnceLock<Dead>,
}

impl CancelHandle {
    pub(super) fn end(&self, why: Dead) {
        // The first cause counts.
        let _ = self.why.set(why);
        self.token.cancel();
    }
}

/// The place of a connection in the connection set; dropping it removes the connection.
pub struct Registration {
    pub(super) connection_set: Arc<ConnectionSet>,
    pub(super) id: ConnectionId,
    /// The number of this connection: a stream that was dialled again has a new one. Numbers
    /// repeat after 64 Ki connections; at worst a few chunks of another connection are then sent
    /// twice.
    pub number: u16,
    pub meter: Arc<ConnectionStats>,
    pub(super) leash: Arc<CancelHandle>,
}

impl Registration {
    /// Cancelled to end the connection.
    pub fn token(&self) -> CancellationToken {
        self.leash.token.clone()
    }

    /// Why it was ended from outside; None if its data was refused.
    pub fn why(&self) -> Option<Dead> {
        self.leash.why.get().copied()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.connection_set.state.lock();
        state.was_ever_proven |= self.meter.is_proven();
        if let Some(route) = Route::of(self.id.stream) {
            state.carried[route as usize] += self.meter.bytes();
        }
        let is_mine = |live: &LiveConnection| live.number == self.number;
        if state.live.get(&self.id.stream).is_some_and(is_mine)
            && let Some(live) = state.live.remove(&self.id.stream)
            && live.given > PACKET
            && live.through <= PACKET
        {
            state.doubtful[live.route as usize] = true;
        }
        state.course.leaves(&self.meter);
        state.park();
    }
}
