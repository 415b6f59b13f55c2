//! Tells a path that has become longer from a queue that stands on it.
//!
//! Both make the round trip longer than the shortest that was seen. Behind a queue more bytes under
//! way only wait longer: the rate stays, and the round trip grows. On a longer path they arrive: the
//! rate grows, and the round trip stays.
//!
//! BBR forgets the shortest round trip after 10 s, and then sends next to nothing for 200 ms to
//! measure it again (draft-ietf-ccwg-bbr: MinRTTFilterLen, ProbeRTT). Cubic keeps a queue in front
//! of a slow link all the time, so a minimum of the last 10 s would be that of a queue; and nothing
//! outside of the kernel can empty all streams at once. So here the shortest round trip holds until
//! rate and round trip show that no queue stands. Where the rate fell as the round trip rose, more
//! streams are put on trial, which shows it within some round trips.

use std::time::Duration;

use super::model::{LIMITED, LOSSY};
use super::queue::Queue;
use super::trial::Trial;
use super::window::Rates;
use super::{Congestion, Tuner};

/// Round trips that differ by less than this are the same.
const SAME: f64 = 1.15;

/// The round trip may become so much longer while it is watched: streams that show what a longer
/// path carries go on to fill it.
const LONGER: f64 = 2.0;

/// A rate that grew by this without that anything was lost: no queue stood, for behind one of our
/// own it could not have grown, and one that others keep full loses something. Between two losses
/// cubic's window grows by 1/0.7 (RFC 9438, section 4.6), which is less.
const GREW: f64 = 1.5;

/// The same while more streams are on trial.
const GREW_BY_TRIAL: f64 = 1.25;

/// A rate that fell by this when the round trip became longer.
const FELL: f64 = 1.3;

/// What was carried is remembered for this long, as the round trip is by BBR, and at most for twice
/// as long.
const WHILE: Duration = Duration::from_secs(10);

/// Where more than this is sent again a queue overflows, and the round trip is that of the queue.
/// Timers that are too short for a path that has just become longer make each stream send one
/// segment again.
const OVERFLOWS: f64 = 0.05;

/// A path that has become longer holds what the streams' windows let through, as it did before.
/// Where it holds less than this part of it, windows are smaller since something was lost.
const HOLDS: f64 = 0.25;

/// Of the time, streams have something to send: what they carry is what the path lets through.
const BUSY: f64 = 0.5;

#[derive(Debug, Default)]
pub(super) struct Path {
    /// The most that busy streams carried, in bytes a second: in this while of [`WHILE`] and in the
    /// one before.
    carried: [f64; 2],
    /// When this one began.
    since: Duration,
    doubt: Option<Doubt>,
    /// The shortest round trip of the path that became longer last.
    former: Option<Duration>,
}

/// Round trips are longer than the shortest, and do not become shorter.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    since: Duration,
    shortest: Duration,
    /// The least that was carried in this time since something was lost, in bytes a second; None
    /// until it has lasted for the span over which the rate is measured.
    least: Option<f64>,
    /// What was carried when it had lasted that long.
    first: Option<f64>,
    /// The shortest round trip from then on: before, smoothed ones may still be on their way up.
    settled: Duration,
    /// The most that was carried before.
    before: f64,
}

impl Tuner {
    pub(super) fn note_round_trip(&mut self, is: Duration) {
        if is.is_zero() {
            return;
        }
        // Clearly shorter than what the path became is what it was, with a queue perhaps. Where it
        // is a third one, it is found to be longer again.
        if let Some(former) = self.path.former
            && is.mul_f64(SAME) < self.round_trip_min
        {
            self.path.former = None;
            self.round_trip_min = former;
        }
        self.round_trip_min = match self.round_trip_min {
            Duration::ZERO => is,
            min => min.min(is),
        };
    }

    /// Takes note of the newest sample. Where that shows that the path has become longer, what was
    /// measured of the former path is forgotten, and the rise begins again.
    pub(super) fn note_path(&mut self, now: Duration) {
        let is = self.window.newest().round_trip;
        if !self.has_queue(Queue::Clear) {
            self.path.doubt = None;
            let rates = self.window.last(self.pace().quick, self.workers);
            if let Some(rates) = rates.filter(|rates| rates.link >= BUSY) {
                self.path.note_carried(now, rates.wire);
            }
            return;
        }
        let before = self.path.most();
        let doubt = self.path.doubt.get_or_insert(Doubt::new(now, is, before));
        if is.mul_f64(SAME) < doubt.shortest || is > doubt.shortest.mul_f64(LONGER) {
            *doubt = Doubt::new(now, is, before);
            return;
        }
        doubt.shortest = doubt.shortest.min(is);
        let span = self.pace().quick.max(2 * is);
        let doubt = self.path.doubt.expect("it was just put there");
        if now < doubt.since + span {
            return;
        }
        let Some(rates) = self.window.last(span, self.workers) else {
            return;
        };
        if rates.link < BUSY {
            self.path.doubt = None;
            return;
        }
        let settled = doubt.settled.min(is);
        let least = doubt.least.filter(|_| rates.loss < LOSSY);
        let least = least.map_or(rates.wire, |least| least.min(rates.wire));
        let is_tried = self.trial.as_ref().is_some_and(Trial::is_of_path);
        if rates.wire > least * if is_tried { GREW_BY_TRIAL } else { GREW } {
            return self.on_longer_path(now, settled);
        }
        self.path.doubt = Some(Doubt {
            least: Some(least),
            first: doubt.first.or(Some(rates.wire)),
            settled,
            ..doubt
        });
        self.path.note_carried(now, rates.wire);
    }

    fn on_longer_path(&mut self, now: Duration, round_trip: Duration) {
        self.path.doubt = None;
        self.path.former = Some(self.round_trip_min);
        self.round_trip_min = round_trip;
        self.start.round_trip = round_trip;
        // More streams on trial have shown it.
        self.trial = None;
        self.full = None;
        self.changed = now;
        self.begin_rise(now);
    }

    /// The rate fell while the round trip rose, and no queue overflows: the path may have become
    /// longer. More streams would show it.
    pub(super) fn may_be_longer(&self, rates: &Rates) -> bool {
        let Some(doubt) = self.path.doubt else {
            return false;
        };
        let has_fallen = |rate: f64| rate * FELL < doubt.before;
        let held = doubt.before * self.round_trip_min.as_secs_f64();
        let holds = rates.wire * self.window.newest().round_trip.as_secs_f64();
        has_fallen(rates.wire)
            && doubt.first.is_none_or(has_fallen)
            && holds > HOLDS * held
            && rates.link >= LIMITED
            && rates.loss < OVERFLOWS
            && self.decision.congestion == Congestion::System
            && self.start.forced.streams.is_none()
            && !self.is_rate_limited(rates)
    }

    /// It may be, and the round trip has been the same for long enough to try.
    pub(super) fn is_longer_to_be_tried(&self, rates: &Rates) -> bool {
        let is_known = self.path.doubt.is_some_and(|doubt| doubt.least.is_some());
        is_known && self.may_be_longer(rates)
    }
}

impl Path {
    fn note_carried(&mut self, now: Duration, rate: f64) {
        let [this, _] = self.carried;
        self.carried = match now >= self.since + WHILE {
            true => [rate, this],
            false => [this.max(rate), self.carried[1]],
        };
        if now >= self.since + WHILE {
            self.since = now;
        }
    }

    fn most(&self) -> f64 {
        self.carried[0].max(self.carried[1])
    }
}

impl Doubt {
    fn new(now: Duration, is: Duration, before: f64) -> Doubt {
        Doubt {
            since: now,
            shortest: is,
            least: None,
            first: None,
            settled: Duration::MAX,
            before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::{MBIT, WORLD, World, start};
    use super::super::{Method, Sample};
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_millis(100);

    /// What is taken for the shortest round trip of a link whose round trip grows after 5 s, and whose
    /// rate doubles within the 4 s after that, while such a part of it is sent again.
    fn shortest_after(loss: f64) -> Duration {
        let mut start = start(&World { rtt: 0.02, ..WORLD });
        start.forced.compress = Some(Method::None);
        // More streams on trial are another way to find out.
        start.forced.streams = Some(8);
        let mut tuner = Tuner::new(start).0;
        let (mut carried, mut lost) = (0.0, 0.0);
        for step in 1..=180 {
            let now = Duration::from_millis(50) * step;
            let since = (now.as_secs_f64() - 5.0).max(0.0);
            let bytes = 20.0 * MBIT * (1.0 + 0.25 * since) * 0.05;
            carried += bytes;
            lost += if since > 0.0 { loss * bytes } else { 0.0 };
            let sample = Sample {
                raw_bytes: carried as u64,
                wire_bytes: carried as u64,
                carried_bytes: carried as u64,
                confirmed_bytes: carried as u64,
                retransmitted_bytes: lost as u64,
                link_busy: now,
                round_trip: if since > 0.0 { LONG } else { SHORT },
                ..Sample::default()
            };
            tuner.on_sample(now, &sample);
        }
        tuner.round_trip_min
    }

    #[test]
    fn a_rate_that_grows_shows_a_longer_path_only_where_nothing_is_lost() {
        assert_eq!(shortest_after(0.0), LONG);
        assert_eq!(shortest_after(0.01), SHORT);
    }
}
