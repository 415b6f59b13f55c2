//! One connection that is up: its facts, and how it is ended from outside.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::transport::connection::stall::{Dead, PeerSight, StallWatch};
use crate::transport::connection::stats::ConnectionStats;
use crate::transport::routes::Route;

/// The most bytes in one packet, ignoring jumbo frames.
pub(super) const PACKET: u64 = 1500;

/// A connection without progress for this long no longer keeps other routes from being tried;
/// longer than a heartbeat.
pub(super) const STUCK: Duration = Duration::from_secs(2);

/// The direction of the session's data, seen from this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Out,
    In,
}

/// The facts about one connection.
pub(super) struct LiveConnection {
    pub(super) route: Route,
    pub(super) attempt: u16,
    pub(super) number: u16,
    pub(super) since: Duration,
    pub(super) stats: Arc<ConnectionStats>,
    pub(super) cancel: Arc<CancelHandle>,
    pub(super) watch: StallWatch,
    /// Bytes that entered it at one end, and bytes that left it at the other.
    pub(super) given: u64,
    pub(super) through: u64,
    /// How long none of the bytes that entered it have left it.
    pub(super) owed: Duration,
    /// A look has seen that the other end has proved itself on it.
    pub(super) was_proven: bool,
}

impl LiveConnection {
    /// Updates the facts from both ends. Returns how many more bytes have left it.
    pub(super) fn count(&mut self, flow: Flow, peer: Option<PeerSight>, passed: Duration) -> u64 {
        let (here, there) = (self.stats.bytes(), peer.map_or(0, |peer| peer.bytes));
        let (given, through, waits) = match flow {
            Flow::Out => (here, there, peer.is_some_and(|peer| peer.waits)),
            Flow::In => (there, here, self.stats.waits()),
        };
        let was_owed = self.given > self.through;
        if given > through && was_owed && through == self.through && !waits {
            self.owed += passed;
        } else {
            self.owed = Duration::ZERO;
        }
        let arrived = through.saturating_sub(self.through);
        (self.given, self.through) = (given, through);
        arrived
    }

    /// True if it has carried more than a packet.
    pub(super) fn is_up(&self, flow: Flow) -> bool {
        match flow {
            Flow::Out => self.through > PACKET,
            Flow::In => self.stats.bytes() > PACKET,
        }
    }
}

/// A handle that ends a connection from outside.
#[derive(Default)]
pub(super) struct CancelHandle {
    pub(super) token: CancellationToken,
    pub(super) why: OnceLock<Dead>,
}

impl CancelHandle {
    pub(super) fn end(&self, why: Dead) {
        // The first cause counts.
        let _ = self.why.set(why);
        self.token.cancel();
    }
}
