//! The connection set: all connections that are up at this end, their part of a heartbeat, and the
//! detection of dead ones.

mod live;
mod rest;
mod table;
mod targets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use live::Flow;
use live::{CancelHandle, LiveConnection, PACKET, STUCK};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::rest::{Contender, yielding};
use self::table::ConnectionsState;
use self::targets::{carried, is_late};
use super::connection::handshake::ConnectionId;
use super::connection::kernel::KernelFacts;
use super::connection::stall::{Dead, PeerSight, Sight, StallWatch};
use super::connection::stats::ConnectionStats;
use super::idle_time::IdleTime;
use super::routes::Route;
use crate::locks::{OrderedMutex, place};
use crate::outcome::CarriedBytes;
use crate::tuner::{ConnectionSight, Sample};
use crate::wire::hello::STREAMS_MAX;
use crate::wire::message::ConnectionFacts;

/// A connection that is up for this long is stable; one that ends sooner has not helped.
const STANDS_AFTER: Duration = Duration::from_secs(5);

/// Shared by all users of one session's connections; closed with the session.
pub struct ConnectionSet {
    flow: Flow,
    over: CancellationToken,
    idle_time: Arc<IdleTime>,
    state: OrderedMutex<ConnectionsState, { place::CONNECTIONS }>,
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
    /// Since the last look, data has arrived from the other end, or it has proved itself on another
    /// connection. The in-band one does not count, because control counts its bytes.
    pub is_heard: bool,
}

/// Connections whose bytes an idle one would carry clearly sooner.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LateConnections {
    /// Numbers of connections whose bytes in the kernel are late already.
    pub all: Vec<u16>,
    /// Those of which only the frame that is being written is late.
    pub newest: Vec<u16>,
    /// The number of idle connections.
    pub idle: usize,
}

impl ConnectionSet {
    pub fn new(flow: Flow) -> Arc<ConnectionSet> {
        Arc::new(ConnectionSet {
            flow,
            over: CancellationToken::new(),
            idle_time: Arc::default(),
            state: OrderedMutex::default(),
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
        let stats = state.targets.stats(&self.idle_time);
        let cancel = Arc::<CancelHandle>::default();
        let live = LiveConnection {
            route,
            attempt: id.attempt,
            number,
            since: state.now,
            stats: stats.clone(),
            cancel: cancel.clone(),
            watch: StallWatch::new(state.now),
            given: 0,
            through: 0,
            owed: Duration::ZERO,
            was_proven: false,
        };
        if let Some(before) = state.live.insert(id.stream, live) {
            before.cancel.end(Dead::Replaced);
        }
        state.park();
        state.count_most(self.flow);
        Some(Registration {
            connection_set: self.clone(),
            id,
            number,
            stats,
            cancel,
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
            bytes: live.stats.bytes(),
            waits: live.stats.take_waits(),
        });
        facts.collect()
    }

    /// The bytes of each connection.
    pub fn carried_by_each(&self) -> Vec<CarriedBytes> {
        let state = self.state.lock();
        let carried = state.live.iter().map(|(&stream, live)| CarriedBytes {
            stream,
            attempt: live.attempt,
            bytes: live.stats.bytes(),
        });
        carried.collect()
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
            let is_proven = live.stats.is_proven();
            state.was_ever_proven |= is_proven;
            let sight = Sight {
                now,
                sent: (self.flow == Flow::Out).then(|| live.stats.bytes()),
                kernel: live.stats.kernel(),
                beats,
                peer: peer.get(&(stream, live.attempt)).copied(),
                share: state.share,
            };
            let arrived = live.count(self.flow, sight.peer, passed);
            state.arrived = state.arrived.wrapping_add(arrived);
            if is_proven && live.route != Route::Inband {
                let was_proven = std::mem::replace(&mut live.was_proven, true);
                looked.is_heard |= !was_proven || arrived > 0;
            }
            let doubtful = &mut state.routes[live.route as usize].is_doubtful;
            *doubtful = (*doubtful || live.owed >= STUCK) && live.through <= PACKET;
            // An in-band connection is alive as long as control is.
            if let Some(dead) = live.watch.look(&sight)
                && live.route != Route::Inband
            {
                live.cancel.end(dead);
                continue;
            }
            looked.stands |= is_proven && now - live.since >= STANDS_AFTER;
            looked.idle += usize::from(live.watch.is_idle());
        }
        looked.slow = state.slow();
        state.share = state.share();
        looked
    }

    pub fn route_state(&self, route: Route) -> RouteState {
        let state = self.state.lock();
        let mut route_state = RouteState::default();
        for live in state.live.values().filter(|live| live.route == route) {
            let is_up = live.is_up(self.flow);
            let is_sound = live.stats.is_proven()
                && live.owed < STUCK
                && (is_up || !state.routes[route as usize].is_doubtful);
            route_state.sound += usize::from(is_sound);
            route_state.up += usize::from(is_up);
        }
        route_state
    }

    /// True if a connection other than the in-band one is sound.
    pub fn has_sound(&self) -> bool {
        let routes = [Route::Direct, Route::Reverse, Route::Ssh];
        routes
            .iter()
            .any(|&route| self.route_state(route).sound > 0)
    }

    /// Ends the connections of a route that is no longer used.
    pub fn end(&self, route: Route) {
        for live in self.state.lock().live.values() {
            if live.route == route {
                live.cancel.end(Dead::NotNeeded);
            }
        }
    }

    /// Bytes that each route carried, indexed by route.
    pub fn carried(&self) -> [u64; Route::ALL.len()] {
        let state = self.state.lock();
        let mut carried = state.routes.map(|record| record.carried);
        for live in state.live.values() {
            carried[live.route as usize] += live.stats.bytes();
        }
        carried
    }

    /// Counts bytes that have arrived at the receiving end until the last look, including those of
    /// unfinished frames.
    pub fn arrived(&self) -> u64 {
        self.state.lock().arrived
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

    /// Sets the wanted number of connections, at least 1; the dialling end makes them.
    pub fn want(&self, streams: u16) {
        let streams = streams.clamp(1, STREAMS_MAX);
        self.state.lock().targets.wanted.send_replace(streams);
    }

    /// Sets the number of working connections, at least 1; the sending end parks the others.
    pub fn put_to_work(&self, streams: u16) {
        let mut state = self.state.lock();
        state.targets.at_work = streams.clamp(1, STREAMS_MAX);
        state.park();
        state.count_most(self.flow);
    }

    pub fn wanted(&self) -> watch::Receiver<u16> {
        self.state.lock().targets.wanted.subscribe()
    }

    /// Sets the congestion control of this end's sockets.
    pub fn set_congestion(&self, name: &str) {
        let mut state = self.state.lock();
        let name: Arc<str> = name.into();
        state.targets.congestion = Some(name.clone());
        for live in state.live.values() {
            live.stats
                .order(|orders| orders.congestion = Some(name.clone()));
        }
    }

    /// Limits all connections together to this many bytes a second; each with data to send gets
    /// the same part.
    pub fn pace(&self, bytes_per_s: u64) {
        let mut state = self.state.lock();
        let pace = Some(bytes_per_s / state.at_work());
        state.targets.pace = pace;
        for live in state.live.values() {
            live.stats.order(|orders| orders.pace = pace);
        }
    }

    /// Limits the bytes that the kernel and the link hold for all connections together; each with
    /// data to send gets the same part.
    pub fn limit_held(&self, bytes: Option<u64>) {
        let mut state = self.state.lock();
        let held_max = bytes.map(|bytes| bytes / state.at_work());
        state.targets.held_max = held_max;
        for live in state.live.values() {
            live.stats.order(|orders| orders.held_max = held_max);
        }
    }

    /// The kernel's facts about each TCP connection.
    pub fn sights(&self) -> Vec<ConnectionSight> {
        let state = self.state.lock();
        let sight = |live: &LiveConnection| {
            let facts = live.stats.kernel()?;
            Some(ConnectionSight {
                number: live.number,
                round_trip: facts.round_trip,
                round_trip_min: facts.round_trip_min,
                acks: facts.segments_in,
                acked_bytes: facts.acked_bytes,
            })
        };
        state.live.values().filter_map(sight).collect()
    }

    /// Makes every connection read the kernel's facts; they report soon.
    pub fn ask(&self) {
        let mut state = self.state.lock();
        state.targets.looks += 1;
        let looks = state.targets.looks;
        for live in state.live.values() {
            live.stats.order(|orders| orders.looks = looks);
        }
    }

    /// The shortest round trip of the connections; None if none is known.
    pub fn round_trip(&self) -> Option<Duration> {
        let state = self.state.lock();
        let facts = state.live.values().filter_map(|live| live.stats.kernel());
        let known = facts.map(|facts| facts.round_trip);
        known.filter(|it| !it.is_zero()).min()
    }

    pub fn has_streams(&self) -> bool {
        !self.state.lock().live.is_empty()
    }

    /// Connections whose bytes an idle one would carry clearly sooner.
    pub fn late(&self) -> LateConnections {
        let (mut busy, mut idle) = (Vec::new(), Vec::new());
        for live in self.state.lock().live.values() {
            let Some(facts) = live.stats.kernel() else {
                continue;
            };
            let is_idle = live.stats.waits() && facts.held == 0;
            if is_idle && !live.stats.is_parked() {
                idle.push(facts);
            } else {
                busy.push((live.number, live.stats.rest(), facts));
            }
        }
        let mut late = LateConnections {
            idle: idle.len(),
            ..LateConnections::default()
        };
        let Some(other) = idle.iter().max_by_key(|facts| facts.rate) else {
            return late;
        };
        for (number, rest, facts) in busy {
            if is_late(&facts, 0, other) {
                late.all.push(number);
            } else if is_late(&facts, rest, other) {
                late.newest.push(number);
            }
        }
        late
    }

    /// Lets slow connections leave the last frames of the copy to fast ones. `left` bytes that no
    /// connection has taken are left, in frames of `frame` bytes; None if that is unknown.
    pub fn share_rest(&self, left: Option<u64>, frame: u64) {
        let state = self.state.lock();
        let of_rest = |live: &LiveConnection| {
            let facts = live.stats.kernel().filter(|_| !live.stats.is_parked())?;
            let rest = live.stats.rest();
            Some((live.number, Contender { facts, rest }))
        };
        let (numbers, contenders): (Vec<u16>, Vec<Contender>) =
            state.live.values().filter_map(of_rest).unzip();
        let yields = yielding(&contenders, left.unwrap_or(0), frame);
        for live in state.live.values() {
            let at = numbers.iter().position(|number| *number == live.number);
            let is_yielding = at.is_some_and(|at| yields[at]);
            live.stats.order(|orders| orders.is_yielding = is_yielding);
        }
    }

    /// Time that connections spent waiting.
    pub fn idle_time(&self) -> &Arc<IdleTime> {
        &self.idle_time
    }

    /// Adds the facts about connections to a sample.
    pub fn fill(&self, sample: &mut Sample) {
        let state = self.state.lock();
        (sample.carried_bytes, sample.retransmitted_bytes) = state.targets.past;
        let mut working: Vec<KernelFacts> = Vec::with_capacity(state.live.len());
        for live in state.live.values() {
            let (carried, again) = carried(&live.stats);
            sample.carried_bytes += carried;
            sample.retransmitted_bytes += again;
            if !live.stats.is_parked() && live.route != Route::Inband {
                sample.streams += 1;
                let facts = live.stats.kernel();
                sample.confirmed_bytes += match (facts, live.route) {
                    (Some(facts), _) => facts.acked_bytes,
                    // ssh connections never have kernel facts.
                    (None, Route::Ssh) => live.stats.bytes(),
                    (None, _) => 0,
                };
                working.extend(facts);
            }
        }
        let sum = |get: fn(&KernelFacts) -> u64| working.iter().map(get).sum::<u64>();
        sample.receive_window = sum(|facts| facts.receive_window.into());
        sample.under_way_bytes = sum(|facts| facts.under_way);
        sample.send_window = sum(|facts| facts.send_buffer.into());
        let round_trips = sum(|facts| facts.round_trip.as_micros() as u64);
        if !working.is_empty() {
            sample.round_trip = Duration::from_micros(round_trips / working.len() as u64);
        }
        sample.link_busy = self.idle_time.none_waits();
    }

    /// Ends all connections and all dialling.
    pub fn close(&self) {
        self.over.cancel();
    }

    pub async fn closed(&self) {
        self.over.cancelled().await
    }
}

/// The place of a connection in the connection set; dropping it removes the connection.
pub struct Registration {
    connection_set: Arc<ConnectionSet>,
    id: ConnectionId,
    /// The number of this connection: a stream that was dialled again has a new one. Numbers
    /// repeat after 64 Ki connections; at worst a few chunks of another connection are then sent
    /// twice.
    pub number: u16,
    pub stats: Arc<ConnectionStats>,
    cancel: Arc<CancelHandle>,
}

impl Registration {
    /// Cancelled to end the connection.
    pub fn token(&self) -> CancellationToken {
        self.cancel.token.clone()
    }

    /// Why the set ended it. None if the receiver did, which refused its data.
    pub fn why(&self) -> Option<Dead> {
        self.cancel.why.get().copied()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.connection_set.state.lock();
        state.leaves(self.id, self.number, &self.stats);
    }
}

#[cfg(test)]
mod scenario;

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
            registration.stats.set_proven();
            registration.stats.add(here);
            assert_eq!(connection_set.route_state(Route::Direct).sound, 1);
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
            again.stats.set_proven();
            assert!(!connection_set.has_sound(), "{flow:?}");
            again.stats.add(100_000);
            connection_set.look(Duration::from_secs(5), 5, &[facts(1, 100_000)]);
            assert_eq!(
                connection_set.route_state(Route::Direct),
                RouteState { sound: 1, up: 1 }
            );
        }
    }

    #[test]
    fn the_other_end_is_heard_by_its_data_and_by_a_proof_but_not_inside_control() {
        let proven = |connection_set: &Arc<ConnectionSet>, stream, attempt| {
            let registration = connection_set.join(id(stream, attempt)).unwrap();
            registration.stats.set_proven();
            registration
        };
        for flow in [Flow::In, Flow::Out] {
            let connection_set = ConnectionSet::new(flow);
            let mut second = 0;
            let mut is_heard = || {
                second += 1;
                let now = Duration::from_secs(second);
                connection_set.look(now, second, &[]).is_heard
            };
            let registration = connection_set.join(id(0, 0)).unwrap();
            assert!(!is_heard(), "{flow:?}: an opening proves nothing");
            registration.stats.set_proven();
            assert!(is_heard() && !is_heard(), "{flow:?}: once");
            registration.stats.add(1);
            assert_eq!(is_heard(), flow == Flow::In, "sent bytes are no answer");
            let _again = proven(&connection_set, 0, 1);
            assert!(is_heard() && !is_heard(), "{flow:?}: another proof");
            let inside = proven(&connection_set, Route::Inband.stream(0), 0);
            inside.stats.add(1);
            assert!(!is_heard(), "{flow:?}: control counts it");
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
        let parked = || rest.iter().map(|it| it.stats.is_parked());
        assert!(parked().eq([false, true, true]) && !other.stats.is_parked());
        drop(lost);
        assert!(parked().eq([false, false, true]));
        let again = connection_set.join(id(0, 1)).unwrap();
        // The others have frames to send already.
        assert!(again.stats.is_parked() && parked().eq([false, false, true]));
        connection_set.put_to_work(4);
        assert!(!again.stats.is_parked() && parked().eq([false, false, false]));
    }

    #[test]
    fn bytes_have_arrived_when_the_other_end_says_so_and_not_when_they_are_sent() {
        let connection_set = ConnectionSet::new(Flow::Out);
        let registration = connection_set.join(id(0, 0)).unwrap();
        let mut second = 0;
        let mut arrived = |bytes| {
            second += 1;
            let facts = ConnectionFacts {
                stream: 0,
                attempt: 0,
                bytes,
                waits: false,
            };
            connection_set.look(Duration::from_secs(second), second, &[facts]);
            connection_set.arrived()
        };
        registration.stats.add(1_000_000);
        assert_eq!([0, 20_000, 20_000].map(&mut arrived), [0, 20_000, 20_000]);
        // A hostile end overflows no counter.
        assert_ne!(arrived(u64::MAX), 20_000);
        arrived(0);
        arrived(u64::MAX);
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
