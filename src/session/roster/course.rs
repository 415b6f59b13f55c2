//! What the tuner tells the streams of a session, and what it is told of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::route::Route;
use crate::session::roster::live::Live;
use crate::session::roster::{Flow, Roster, State};
use crate::stream::crowd::Crowd;
use crate::stream::kernel::KernelFacts;
use crate::stream::meter::{Meter, Orders};
use crate::tuner::{AT_WORK_FIRST, Sample, StreamSight};
use crate::wire::hello::STREAMS_MAX;

/// What one stream carries later than another would, by this much and this factor, may go by the
/// other too. Rates are estimates, and one that is wrong by less must not fill a slow link twice.
const SOON: Duration = Duration::from_millis(300);
const SOONER: u32 = 2;

/// The same for all streams, those to come included.
pub(super) struct Course {
    /// Streams of each route that are to be there.
    wanted: watch::Sender<u16>,
    /// Those of them that are to be at work. Those beyond are parked, not closed.
    at_work: u16,
    congestion: Option<Arc<str>>,
    /// Bytes a second of each stream.
    pace: Option<u64>,
    looks: u64,
    /// What streams that are gone had carried and sent again.
    past: (u64, u64),
}

impl Default for Course {
    fn default() -> Course {
        Course {
            wanted: watch::Sender::new(STREAMS_MAX),
            at_work: AT_WORK_FIRST,
            congestion: None,
            pace: None,
            looks: 0,
            past: (0, 0),
        }
    }
}

impl Course {
    pub(super) fn meter(&self, crowd: &Arc<Crowd>) -> Arc<Meter> {
        let orders = Orders {
            is_parked: false,
            congestion: self.congestion.clone(),
            pace: self.pace,
            looks: self.looks,
        };
        Arc::new(Meter::new(crowd.clone(), orders))
    }

    /// A stream is gone.
    pub(super) fn leaves(&mut self, meter: &Meter) {
        let (carried, again) = carried(meter);
        self.past.0 += carried;
        self.past.1 += again;
    }
}

impl State {
    /// Takes note of how many streams are at work, or are there where the other end sends: routes
    /// that are tried side by side do not add up, since data goes by one of them.
    pub(super) fn count_most(&mut self, flow: Flow) {
        let mut at_work = [0; Route::ALL.len()];
        for live in self.live.values() {
            let counts = flow == Flow::In || !live.meter.is_parked();
            at_work[live.route as usize] += usize::from(counts);
        }
        self.most = at_work.into_iter().fold(self.most, usize::max);
    }

    /// Puts the first of each route to work and lets the others rest; to be called whenever a
    /// stream comes or goes, so that one that rests takes the place of one that is lost.
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

/// Bytes that the other kernel has acknowledged, or those that were handed to this one where it
/// does not tell; and bytes sent again.
fn carried(meter: &Meter) -> (u64, u64) {
    match meter.kernel() {
        Some(facts) if facts.acked_bytes > 0 => (facts.acked_bytes, facts.retransmitted_bytes),
        _ => (meter.bytes(), 0),
    }
}

/// True if what a stream holds, and the `rest` of its frame, takes it clearly longer than it would
/// take an idle one. Not where a queue stands in front of it: that is the link's, and what is sent
/// again stands in it too.
fn is_late(facts: &KernelFacts, rest: u64, idle: &KernelFacts) -> bool {
    let bytes = facts.held.saturating_add(rest);
    let by_other = Duration::from_secs_f64((bytes as f64 / idle.rate.max(1) as f64).min(3600.0));
    !facts.is_queued() && facts.due(rest) > SOON + SOONER * (idle.round_trip + by_other)
}

impl Roster {
    /// How many streams there are to be, from 1 on: who dials makes up for what lacks.
    pub fn want(&self, streams: u16) {
        let streams = streams.clamp(1, STREAMS_MAX);
        self.lock().course.wanted.send_replace(streams);
    }

    /// How many streams are to be at work, from 1 on: who sends lets those beyond rest.
    pub fn put_to_work(&self, streams: u16) {
        let mut state = self.lock();
        state.course.at_work = streams.clamp(1, STREAMS_MAX);
        state.park();
        state.count_most(self.flow);
    }

    pub fn wanted(&self) -> watch::Receiver<u16> {
        self.lock().course.wanted.subscribe()
    }

    /// The congestion control of this end's sockets from now on.
    pub fn set_congestion(&self, name: &str) {
        let mut state = self.lock();
        let name: Arc<str> = name.into();
        state.course.congestion = Some(name.clone());
        for live in state.live.values() {
            live.meter
                .order(|orders| orders.congestion = Some(name.clone()));
        }
    }

    /// Bytes a second that all streams together send at most from now on; each that has something to
    /// send gets the same part.
    pub fn pace(&self, bytes_per_s: u64) {
        let mut state = self.lock();
        let has_work = |live: &&Live| {
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

    /// What the kernel knows of each stream; nothing of what is no TCP connection.
    pub fn sights(&self) -> Vec<StreamSight> {
        let state = self.lock();
        let sight = |live: &Live| {
            let facts = live.meter.kernel()?;
            Some(StreamSight {
                number: live.number,
                round_trip: facts.round_trip,
                round_trip_min: facts.round_trip_min,
                acks: facts.segments_in,
                acked_bytes: facts.acked_bytes,
            })
        };
        state.live.values().filter_map(sight).collect()
    }

    /// Has every stream ask the kernel what it knows; they answer soon.
    pub fn ask(&self) {
        let mut state = self.lock();
        state.course.looks += 1;
        let looks = state.course.looks;
        for live in state.live.values() {
            live.meter.order(|orders| orders.looks = looks);
        }
    }

    /// The shortest of the streams' round trips; None while none is known.
    pub fn round_trip(&self) -> Option<Duration> {
        let state = self.lock();
        let facts = state.live.values().filter_map(|live| live.meter.kernel());
        let known = facts.map(|facts| facts.round_trip);
        known.filter(|it| !it.is_zero()).min()
    }

    pub fn has_streams(&self) -> bool {
        !self.lock().live.is_empty()
    }

    /// Streams whose bytes an idle stream would carry clearly sooner, and how many are idle.
    pub fn late(&self) -> (Vec<u16>, usize) {
        let (mut busy, mut idle) = (Vec::new(), Vec::new());
        for live in self.lock().live.values() {
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

    /// How much streams waited.
    pub fn crowd(&self) -> &Arc<Crowd> {
        &self.crowd
    }

    /// Fills in what is known of the streams.
    pub fn fill(&self, sample: &mut Sample) {
        let state = self.lock();
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
                    // No kernel tells, then or ever.
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
        sample.link_busy = self.crowd.none_waits();
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
