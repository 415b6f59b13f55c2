//! The tuner's orders to the connections of a session, and the facts that it gets about them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::live::LiveConnection;
use crate::transport::connection::kernel::KernelFacts;
use crate::transport::connection::stats::{ConnectionStats, Orders};
use crate::transport::connections::{ConnectionSet, ConnectionsState, Flow};
use crate::transport::idle_time::IdleTime;
use crate::transport::routes::Route;
use crate::tuner::{AT_WORK_FIRST, ConnectionSight, Sample};
use crate::wire::hello::STREAMS_MAX;

/// A chunk may also be sent on an idle connection if its own delivers it later than that one
/// would, by this time and this factor. Rates are estimates; one that is wrong by less must not
/// fill a slow link twice.
const SOON: Duration = Duration::from_millis(300);
const SOONER: u32 = 2;

/// Orders for all connections, including future ones.
pub(super) struct Targets {
    /// The wanted number of connections of each route.
    wanted: watch::Sender<u16>,
    /// How many of them work; the others are parked, not closed.
    at_work: u16,
    congestion: Option<Arc<str>>,
    /// Bytes a second, for each connection.
    pace: Option<u64>,
    looks: u64,
    /// Bytes that ended connections carried and retransmitted.
    past: (u64, u64),
}

impl Default for Targets {
    fn default() -> Targets {
        Targets {
            wanted: watch::Sender::new(STREAMS_MAX),
            at_work: AT_WORK_FIRST,
            congestion: None,
            pace: None,
            looks: 0,
            past: (0, 0),
        }
    }
}

impl Targets {
    pub(super) fn meter(&self, idle_time: &Arc<IdleTime>) -> Arc<ConnectionStats> {
        let orders = Orders {
            is_parked: false,
            congestion: self.congestion.clone(),
            pace: self.pace,
            looks: self.looks,
        };
        Arc::new(ConnectionStats::new(idle_time.clone(), orders))
    }

    /// Adds an ended connection to `past`.
    pub(super) fn leaves(&mut self, meter: &ConnectionStats) {
        let (carried, again) = carried(meter);
        self.past.0 += carried;
        self.past.1 += again;
    }
}

impl ConnectionsState {
    /// Updates the largest number of connections: of the working ones at the sending end, of all
    /// at the receiving end. Routes that are tried at the same time do not add up, since only one
    /// of them carries data.
    pub(super) fn count_most(&mut self, flow: Flow) {
        let mut at_work = [0; Route::ALL.len()];
        for live in self.live.values() {
            let counts = flow == Flow::In || !live.meter.is_parked();
            at_work[live.route as usize] += usize::from(counts);
        }
        self.most = at_work.into_iter().fold(self.most, usize::max);
    }

    /// Lets the first connections of each route work and parks the others. Called whenever a
    /// connection comes or goes, so that a parked one replaces a lost one.
    pub(super) fn park(&self) {
        let wanted = usize::from(self.course.at_work);
        let mut at_work = [0; Route::ALL.len()];
        for live in self.live.values() {
            let others = &mut at_work[live.route as usize];
            let is_parked = *others >= wanted;
            *others += 1;
            live.meter.order(|orders| orders.is_parked = is_parked);
        }
    }
}

/// Bytes that the other kernel acknowledged, or those given to this kernel if it does not report
/// that; and bytes retransmitted.
fn carried(meter: &ConnectionStats) -> (u64, u64) {
    match meter.kernel() {
        Some(facts) if facts.acked_bytes > 0 => (facts.acked_bytes, facts.retransmitted_bytes),
        _ => (meter.bytes(), 0),
    }
}

/// True if a connection needs clearly longer than an idle one for its held bytes and the `rest` of
/// its frame. False if its segments wait in a queue: the queue is the link's, and retransmitted
/// chunks would wait in it too.
fn is_late(facts: &KernelFacts, rest: u64, idle: &KernelFacts) -> bool {
    let bytes = facts.held.saturating_add(rest);
    let by_other = Duration::from_secs_f64((bytes as f64 / idle.rate.max(1) as f64).min(3600.0));
    !facts.is_queued() && facts.due(rest) > SOON + SOONER * (idle.round_trip + by_other)
}

impl ConnectionSet {
    /// Sets the wanted number of connections, at least 1; the dialling end makes them.
    pub fn want(&self, streams: u16) {
        let streams = streams.clamp(1, STREAMS_MAX);
        self.state.lock().course.wanted.send_replace(streams);
    }

    /// Sets the number of working connections, at least 1; the sending end parks the others.
    pub fn put_to_work(&self, streams: u16) {
        let mut state = self.state.lock();
        state.course.at_work = streams.clamp(1, STREAMS_MAX);
        state.park();
        state.count_most(self.flow);
    }

    pub fn wanted(&self) -> watch::Receiver<u16> {
        self.state.lock().course.wanted.subscribe()
    }

    /// Sets the congestion control of this end's sockets.
    pub fn set_congestion(&self, name: &str) {
        let mut state = self.state.lock();
        let name: Arc<str> = name.into();
        state.course.congestion = Some(name.clone());
        for live in state.live.values() {
            live.meter
                .order(|orders| orders.congestion = Some(name.clone()));
        }
    }

    /// Limits all connections together to this many bytes a second; each with data to send gets
    /// the same part.
    pub fn pace(&self, bytes_per_s: u64) {
        let mut state = self.state.lock();
        let has_work = |live: &&LiveConnection| {
            let holds = live.meter.kernel().is_some_and(|facts| facts.held > 0);
            holds || !(live.meter.waits() || live.meter.is_parked())
        };
        let at_work = state.live.values().filter(has_work).count() as u64;
        let pace = Some(bytes_per_s / at_work.max(1));
        state.course.pace = pace;
        for live in state.live.values() {
            live.meter.order(|orders| orders.pace = pace);
        }
    }

    /// The kernel's facts about each TCP connection.
    pub fn sights(&self) -> Vec<ConnectionSight> {
        let state = self.state.lock();
        let sight = |live: &LiveConnection| {
            let facts = live.meter.kernel()?;
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
        state.course.looks += 1;
        let looks = state.course.looks;
        for live in state.live.values() {
            live.meter.order(|orders| orders.looks = looks);
        }
    }

    /// The shortest round trip of the connections; None if none is known.
    pub fn round_trip(&self) -> Option<Duration> {
        let state = self.state.lock();
        let facts = state.live.values().filter_map(|live| live.meter.kernel());
        let known = facts.map(|facts| facts.round_trip);
        known.filter(|it| !it.is_zero()).min()
    }

    pub fn has_streams(&self) -> bool {
        !self.state.lock().live.is_empty()
    }

    /// Connections whose bytes an idle one would carry clearly sooner, and the number of idle
    /// ones.
    pub fn late(&self) -> (Vec<u16>, usize) {
        let (mut busy, mut idle) = (Vec::new(), Vec::new());
        for live in self.state.lock().live.values() {
            let Some(facts) = live.meter.kernel() else {
                continue;
            };
            let is_idle = live.meter.waits() && facts.held == 0;
            if is_idle && !live.meter.is_parked() {
                idle.push(facts);
            } else {
                busy.push((live.number, live.meter.rest(), facts));
            }
        }
        let other = idle.iter().max_by_key(|facts| facts.rate);
        let is_late =
            |rest, facts: &KernelFacts| other.is_some_and(|other| is_late(facts, rest, other));
        let late = busy.iter().filter(|(_, rest, facts)| is_late(*rest, facts));
        (late.map(|(number, ..)| *number).collect(), idle.len())
    }

    /// Time that connections spent waiting.
    pub fn idle_time(&self) -> &Arc<IdleTime> {
        &self.idle_time
    }

    /// Adds the facts about connections to a sample.
    pub fn fill(&self, sample: &mut Sample) {
        let state = self.state.lock();
        (sample.carried_bytes, sample.retransmitted_bytes) = state.course.past;
        let mut working: Vec<KernelFacts> = Vec::with_capacity(state.live.len());
        for live in state.live.values() {
            let (carried, again) = carried(&live.meter);
            sample.carried_bytes += carried;
            sample.retransmitted_bytes += again;
            if !live.meter.is_parked() && live.route != Route::Inband {
                sample.streams += 1;
                let facts = live.meter.kernel();
                sample.confirmed_bytes += match (facts, live.route) {
                    (Some(facts), _) => facts.acked_bytes,
                    // ssh connections never have kernel facts.
                    (None, Route::Ssh) => live.meter.bytes(),
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
