//! The connection set: all connections that are up at this end, their part of a heartbeat, and the
//! detection of dead ones.

mod live;
mod targets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use live::Registration;
use live::{CancelHandle, LiveConnection, PACKET, STUCK};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::targets::Targets;
use super::connection::handshake::ConnectionId;
use super::connection::stall::{Dead, PeerSight, Sight, StallWatch};
use super::idle_time::IdleTime;
use super::routes::Route;
use crate::wire::hello::STREAMS_MAX;
use crate::wire::message::ConnectionFacts;

/// A connection that is up for this long is stable; one that ends sooner has not helped.
const STANDS_AFTER: Duration = Duration::from_secs(5);

/// The direction of the session's data, seen from this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Out,
    In,
}

/// Shared by all users of one session's connections; closed with the session.
pub struct ConnectionSet {
    flow: Flow,
    over: CancellationToken,
    idle_time: Arc<IdleTime>,
    state: Mutex<ConnectionsState>,
}

#[derive(Default)]
struct ConnectionsState {
    live: BTreeMap<u16, LiveConnection>,
    course: Targets,
    now: Duration,
    /// Heartbeats received up to the last look.
    beats: u64,
    /// See `Sight::share`.
    share: u64,
    next_number: u16,
    most: usize,
    has_begun: bool,
    was_ever_proven: bool,
    was_ever_listed: bool,
    last_cause: Option<String>,
    /// Bytes of connections that have ended, by route.
    carried: [u64; Route::ALL.len()],
    /// Routes that carried an opening, but then not even as much as a packet.
    doubtful: [bool; Route::ALL.len()],
}

/// The state of a route's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteState {
    /// Connections whose other end has proved itself, with no sign that they are dead.
    pub sound: usize,
    /// Connections that carried more than fits into a packet.
    pub up: usize,
}

/// The result of a look at all connections.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DeadConnections {
    /// At least one connection has been up for `STANDS_AFTER`.
    pub stands: bool,
    /// Connections with nothing to do.
    pub idle: usize,
    /// Numbers of connections whose bytes another would carry clearly sooner.
    pub slow: Vec<u16>,
}

impl ConnectionSet {
    pub fn new(flow: Flow) -> Arc<ConnectionSet> {
        Arc::new(ConnectionSet {
            flow,
            over: CancellationToken::new(),
            idle_time: Arc::default(),
            state: Mutex::default(),
        })
    }

    pub fn flow(&self) -> Flow {
        self.flow
    }

    /// Adds a connection and ends an older attempt of the same stream. None if a later attempt is
    /// present, or if no route has a stream of this number.
    pub fn join(self: &Arc<Self>, id: ConnectionId) -> Option<Registration> {
        let route = Route::of(id.stream)?;
        let mut state = self.state.lock();
        let present = state.live.get(&id.stream);
        if present.is_some_and(|live| live.attempt >= id.attempt) {
            return None;
        }
        let number = state.next_number;
        state.next_number = number.wrapping_add(1);
        let meter = state.course.meter(&self.idle_time);
        let leash = Arc::<CancelHandle>::default();
        let live = LiveConnection {
            route,
            attempt: id.attempt,
            number,
            since: state.now,
            meter: meter.clone(),
            leash: leash.clone(),
            watch: StallWatch::new(state.now),
            given: 0,
            through: 0,
            owed: Duration::ZERO,
        };
        if let Some(before) = state.live.insert(id.stream, live) {
            before.leash.end(Dead::Replaced);
        }
        state.park();
        state.count_most(self.flow);
        Some(Registration {
            connection_set: self.clone(),
            id,
            number,
            meter,
            leash,
        })
    }

    /// The most connections of one route that were up at once.
    pub fn most(&self) -> u32 {
        self.state.lock().most as u32
    }

    /// The connections' part of a heartbeat.
    pub fn facts(&self) -> Vec<ConnectionFacts> {
        let state = self.state.lock();
        let facts = state.live.iter().map(|(&stream, live)| ConnectionFacts {
            stream,
            attempt: live.attempt,
            bytes: live.meter.bytes(),
            waits: live.meter.take_waits(),
        });
        facts.collect()
    }

    /// Ends dead connections. `beats` heartbeats have arrived; the last one reported `peer`.
    pub fn look(&self, now: Duration, beats: u64, peer: &[ConnectionFacts]) -> DeadConnections {
        // A hostile end may list millions; this end has only a few.
        let peer: BTreeMap<(u16, u16), PeerSight> = peer
            .iter()
            .take(usize::from(STREAMS_MAX) * Route::ALL.len())
            .map(|facts| {
                let sight = PeerSight {
                    bytes: facts.bytes,
                    waits: facts.waits,
                };
                ((facts.stream, facts.attempt), sight)
            })
            .collect();
        let mut state = self.state.lock();
        let state = &mut *state;
        state.was_ever_listed |= !peer.is_empty();
        let passed = now.saturating_sub(state.now);
        if beats == std::mem::replace(&mut state.beats, beats) {
            state.share = 0;
        }
        state.now = now;
        let mut looked = DeadConnections::default();
        for (&stream, live) in &mut state.live {
            state.was_ever_proven |= live.meter.is_proven();
            let sight = Sight {
                now,
                sent: (self.flow == Flow::Out).then(|| live.meter.bytes()),
                kernel: live.meter.kernel(),
                beats,
                peer: peer.get(&(stream, live.attempt)).copied(),
                share: state.share,
            };
            live.count(self.flow, sight.peer, passed);
            let doubtful = &mut state.doubtful[live.route as usize];
            *doubtful = (*doubtful || live.owed >= STUCK) && live.through <= PACKET;
            // An in-band connection is alive as long as control is.
            if let Some(dead) = live.watch.look(&sight)
                && live.route != Route::Inband
            {
                live.leash.end(dead);
                continue;
            }
            looked.stands |= live.meter.is_proven() && now - live.since >= STANDS_AFTER;
            looked.idle += usize::from(live.watch.is_idle());
        }
        looked.slow = state.slow();
        state.share = state.share();
        looked
    }

    pub fn standing(&self, route: Route) -> RouteState {
        let state = self.state.lock();
        let mut standing = RouteState::default();
        for live in state.live.values().filter(|live| live.route == route) {
            let is_up = live.is_up(self.flow);
            let is_sound = live.meter.is_proven()
                && live.owed < STUCK
                && (is_up || !state.doubtful[route as usize]);
            standing.sound += usize::from(is_sound);
            standing.up += usize::from(is_up);
        }
        standing
    }

    /// True if a connection other than the in-band one is sound.
    pub fn has_sound(&self) -> bool {
        let routes = [Route::Direct, Route::Reverse, Route::Ssh];
        routes.iter().any(|&route| self.standing(route).sound > 0)
    }

    /// Ends the connections of a route that is no longer used.
    pub fn end(&self, route: Route) {
        for live in self.state.lock().live.values() {
            if live.route == route {
                live.leash.end(Dead::NotNeeded);
            }
        }
    }

    /// Bytes that each route carried, indexed by route.
    pub fn carried(&self) -> [u64; Route::ALL.len()] {
        let state = self.state.lock();
        let mut carried = state.carried;
        for live in state.live.values() {
            carried[live.route as usize] += live.meter.bytes();
        }
        carried
    }

    /// Notes that dialling has begun.
    pub fn begin(&self) {
        self.state.lock().has_begun = true;
    }

    pub fn has_begun(&self) -> bool {
        self.state.lock().has_begun
    }

    /// True if any other end has proved on a connection that it knows the secret.
    pub fn was_ever_proven(&self) -> bool {
        self.state.lock().was_ever_proven
    }

    /// True if the other end has ever listed a connection. Until it is prepared, it
    /// answers openings but lists none.
    pub fn was_ever_listed(&self) -> bool {
        self.state.lock().was_ever_listed
    }

    /// The last reason why a connection ended or could not be made.
    pub fn last_cause(&self) -> Option<String> {
        self.state.lock().last_cause.clone()
    }

    pub fn set_cause(&self, cause: String) {
        self.state.lock().last_cause = Some(cause);
    }

    /// Ends all connections and all dialling.
    pub fn close(&self) {
        self.over.cancel();
    }

    pub async fn closed(&self) {
        self.over.cancelled().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(stream: u16, attempt: u16) -> ConnectionId {
        ConnectionId { stream, attempt }
    }

    #[test]
    fn a_newer_attempt_takes_the_place_of_an_older_and_not_the_other_way_round() {
        let connection_set = ConnectionSet::new(Flow::In);
        let first = connection_set.join(id(3, 0)).unwrap();
        assert!(connection_set.join(id(3, 0)).is_none());
        let second = connection_set.join(id(3, 2)).unwrap();
        assert_eq!(first.why(), Some(Dead::Replaced));
        assert!(first.token().is_cancelled() && !second.token().is_cancelled());
        assert!(connection_set.join(id(3, 1)).is_none(), "it comes too late");
        drop(first);
        let listed: Vec<_> = connection_set
            .facts()
            .iter()
            .map(|f| (f.stream, f.attempt))
            .collect();
        assert_eq!(listed, [(3, 2)]);
        drop(second);
        assert!(connection_set.facts().is_empty());
        let of_no_route = Route::ALL.len() as u16 * 256;
        assert!(connection_set.join(id(of_no_route, 0)).is_none());
    }

    #[test]
    fn routes_that_are_tried_side_by_side_do_not_add_up() {
        let connection_set = ConnectionSet::new(Flow::Out);
        connection_set.put_to_work(8);
        let first = |route: Route| route.stream(0);
        let registration = |stream| connection_set.join(id(stream, 0)).unwrap();
        let _inside = registration(first(Route::Inband));
        assert_eq!(connection_set.most(), 1);
        let tried: Vec<_> = (0..4)
            .map(|n| registration(first(Route::Direct) + n))
            .collect();
        let chosen: Vec<_> = (0..3)
            .map(|n| registration(first(Route::Reverse) + n))
            .collect();
        assert_eq!(connection_set.most(), 4);
        drop((tried, chosen));
        let _later: Vec<_> = (4..6)
            .map(|n| registration(first(Route::Direct) + n))
            .collect();
        assert_eq!(connection_set.most(), 4, "the most at once");
    }

    #[test]
    fn a_route_that_lets_nothing_but_openings_through_is_not_believed_again() {
        for (flow, here, there) in [(Flow::Out, 1_000_000, 0), (Flow::In, 0, 1_000_000)] {
            let connection_set = ConnectionSet::new(flow);
            let registration = connection_set.join(id(0, 0)).unwrap();
            registration.meter.set_proven();
            registration.meter.add(here);
            assert_eq!(connection_set.standing(Route::Direct).sound, 1);
            let facts = |attempt, bytes| ConnectionFacts {
                stream: 0,
                attempt,
                bytes,
                waits: false,
            };
            for second in 1..=4 {
                connection_set.look(Duration::from_secs(second), second, &[facts(0, there)]);
            }
            assert!(!connection_set.has_sound(), "{flow:?}");
            drop(registration);
            let again = connection_set.join(id(0, 1)).unwrap();
            again.meter.set_proven();
            assert!(!connection_set.has_sound(), "{flow:?}");
            again.meter.add(100_000);
            connection_set.look(Duration::from_secs(5), 5, &[facts(1, 100_000)]);
            assert_eq!(
                connection_set.standing(Route::Direct),
                RouteState { sound: 1, up: 1 }
            );
        }
    }

    #[test]
    fn a_stream_that_rests_takes_the_place_of_one_that_is_lost() {
        let connection_set = ConnectionSet::new(Flow::Out);
        connection_set.put_to_work(2);
        let members: Vec<_> = (0..4)
            .map(|n| connection_set.join(id(n, 0)).unwrap())
            .collect();
        let other = connection_set.join(id(Route::Inband.stream(0), 0)).unwrap();
        let mut members = members.into_iter();
        let lost = members.next();
        let rest: Vec<_> = members.collect();
        let parked = || rest.iter().map(|it| it.meter.is_parked());
        assert!(parked().eq([false, true, true]) && !other.meter.is_parked());
        drop(lost);
        assert!(parked().eq([false, false, true]));
        let again = connection_set.join(id(0, 1)).unwrap();
        assert!(!again.meter.is_parked() && parked().eq([false, true, true]));
        connection_set.put_to_work(4);
        assert!(parked().eq([false, false, false]));
    }

    #[test]
    fn a_stream_of_another_attempt_is_not_the_one_that_the_peer_lists() {
        let connection_set = ConnectionSet::new(Flow::Out);
        let registration = connection_set.join(id(0, 1)).unwrap();
        let old = ConnectionFacts {
            stream: 0,
            attempt: 0,
            bytes: 7,
            waits: false,
        };
        for second in 1..=11 {
            connection_set.look(Duration::from_secs(second), second, &[old]);
        }
        assert_eq!(registration.why(), Some(Dead::NotListed));
    }
}
