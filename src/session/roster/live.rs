//! One stream that is up: what is known of it, and the place that it has until it ends.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::route::Route;
use crate::session::roster::{Flow, Roster, State};
use crate::stream::meter::Meter;
use crate::stream::opening::StreamId;
use crate::stream::stall::{Dead, PeerSight, Watch};

/// What one packet may hold, jumbo frames left aside.
pub(super) const PACKET: u64 = 1500;

/// How long until a stream that makes no progress is no reason any more not to try others: longer
/// than a heartbeat takes.
pub(super) const STUCK: Duration = Duration::from_secs(2);

/// What is known of it.
pub(super) struct Live {
    pub(super) route: Route,
    pub(super) attempt: u16,
    pub(super) number: u16,
    pub(super) since: Duration,
    pub(super) meter: Arc<Meter>,
    pub(super) leash: Arc<Leash>,
    pub(super) watch: Watch,
    /// Bytes that were given to it at one end, and that have come out at the other.
    pub(super) given: u64,
    pub(super) through: u64,
    /// How long nothing of what was given has come out.
    pub(super) owed: Duration,
}

impl Live {
    /// Takes what is known of both ends now.
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

    /// More than a packet has come through.
    pub(super) fn is_up(&self, flow: Flow) -> bool {
        match flow {
            Flow::Out => self.through > PACKET,
            Flow::In => self.meter.bytes() > PACKET,
        }
    }
}

impl State {
    /// Streams whose bytes another would carry clearly sooner. Where a queue stands in front of
    /// one it is the link that is slow, for whatever is sent again too.
    pub(super) fn slow(&self) -> Vec<u16> {
        let fastest = self.live.values().map(|live| live.watch.fastest()).max();
        let is_slow = |live: &&Live| {
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

/// By which a stream is ended from outside.
#[derive(Default)]
pub(super) struct Leash {
    token: CancellationToken,
    why: OnceLock<Dead>,
}

impl Leash {
    pub(super) fn end(&self, why: Dead) {
        // What was found first is the cause.
        let _ = self.why.set(why);
        self.token.cancel();
    }
}

/// The place of a stream that is up. It is left when this is dropped.
pub struct Member {
    pub(super) roster: Arc<Roster>,
    pub(super) id: StreamId,
    /// Of this connection: a stream that was dialled again has another. It comes round after 64 Ki
    /// of them, when at worst a few chunks of another stream are sent twice.
    pub number: u16,
    pub meter: Arc<Meter>,
    pub(super) leash: Arc<Leash>,
}

impl Member {
    /// Ends the stream when it is cancelled.
    pub fn token(&self) -> CancellationToken {
        self.leash.token.clone()
    }

    /// Why it was ended from outside; None where it was for what came on it.
    pub fn why(&self) -> Option<Dead> {
        self.leash.why.get().copied()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.roster.lock();
        state.was_ever_proven |= self.meter.is_proven();
        if let Some(route) = Route::of(self.id.stream) {
            state.carried[route as usize] += self.meter.bytes();
        }
        let is_mine = |live: &Live| live.number == self.number;
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
