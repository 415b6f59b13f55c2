//! The distinction between a path that has become longer and a queue on the path.
//!
//! Both make the round trip longer than the shortest one seen. More bytes in flight tell them
//! apart. Behind a queue they only wait longer: the rate stays, and the round trip grows. On a
//! longer path they arrive: the rate grows, and the round trip stays.
//!
//! BBR forgets the shortest round trip after 10 s. It then sends almost nothing for 200 ms to
//! measure it again (draft-ietf-ccwg-bbr: MinRTTFilterLen, ProbeRTT). That does not work here.
//! Cubic always keeps a queue in front of a slow link, so a minimum over the last 10 s would
//! include that queue, and no program outside the kernel can empty all connections at once. So the
//! tuner keeps the shortest round trip until rate and round trip show that the queue is empty.
//! Where the rate fell as the round trip rose, it tries more connections, which gives the answer
//! within some round trips.

use std::time::Duration;

use super::model::{LIMITED, LOSSY};
use super::network::Network;
use super::queue::QueueDepth;
use super::terms::Congestion;
use super::window::Rates;

/// Round trips whose ratio is below this count as equal.
const SAME: f64 = 1.15;

/// How far the round trip may grow during a doubt. Connections that show the capacity of a longer
/// path go on to fill it.
const LONGER: f64 = 2.0;

/// Growth of the rate, without loss, that rules out a queue. Behind a queue of this copy the rate
/// could not have grown, and a queue that others keep full loses packets. Between two losses
/// cubic's window grows by 1/0.7 (RFC 9438, section 4.6), which is less.
const GREW: f64 = 1.5;

/// The same while more connections are on trial.
const GREW_BY_TRIAL: f64 = 1.25;

/// How far the rate fell if the path became longer.
const FELL: f64 = 1.3;

/// How long a rate is remembered, as BBR remembers the round trip; at most twice as long.
const WHILE: Duration = Duration::from_secs(10);

/// The share of retransmitted bytes that shows a queue that overflows; the round trip then
/// includes that queue. When a path becomes longer, the retransmission timers are too short at
/// first, and each connection sends one segment again; that is less than this.
const OVERFLOWS: f64 = 0.05;

/// A longer path holds as many bytes as the windows allow, as the former path did. If it holds
/// less than this part of them, the windows shrank because packets were lost.
const HOLDS: f64 = 0.25;

/// If it holds more than so many times as much, the windows had grown to fill a queue: slow start
/// doubles them with each round trip, and the first look comes two round trips after the path
/// became longer. At 1 Mbit/s and 20 ms a queue of 100 packets is 60 times as much.
const HOLDS_MOST: f64 = 8.0;

/// The share of the time in which connections must have data to send; the rate is then the path's.
const BUSY: f64 = 0.5;

#[derive(Debug, Default)]
pub(super) struct Path {
    /// The highest rate of busy connections, in bytes a second: in this period of [`WHILE`] and in
    /// the one before.
    carried: [f64; 2],
    /// When this period began.
    since: Duration,
    doubt: Option<Doubt>,
    /// A limit held for the bytes in flight when the round trip became long, so their number does
    /// not show a queue.
    was_limited: bool,
    /// The shortest round trip before the path last became longer.
    former: Option<Duration>,
}

/// A span in which round trips are longer than the shortest one and do not become shorter.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    since: Duration,
    shortest: Duration,
    /// The lowest rate during this doubt since the last loss, in bytes a second. None until the
    /// doubt has lasted for the span over which the rate is measured.
    least: Option<f64>,
    /// The rate when the doubt had lasted that long.
    first: Option<f64>,
    /// The shortest round trip from then on. Earlier smoothed round trips may still be rising.
    settled: Duration,
    /// The highest rate before the doubt.
    before: f64,
}

impl Path {
    pub(super) fn note_round_trip(&mut self, network: &mut Network, is: Duration) {
        if is.is_zero() {
            return;
        }
        // A clearly shorter round trip means that the path is the former one again, perhaps with a
        // queue. If it is a third path, the tuner finds that it is longer again.
        if let Some(former) = self.former
            && is.mul_f64(SAME) < network.round_trip_min
        {
            self.former = None;
            network.round_trip_min = former;
        }
        network.round_trip_min = match network.round_trip_min {
            Duration::ZERO => is,
            min => min.min(is),
        };
    }

    /// Records the newest sample. Returns the round trip of the path if that has become longer.
    /// `is_tried`: more connections are on trial because it may have.
    pub(super) fn note(
        &mut self,
        now: Duration,
        network: &Network,
        is_tried: bool,
    ) -> Option<Duration> {
        let is = network.window.newest().round_trip;
        if !network.has_queue(QueueDepth::Clear) {
            self.end_doubt(now, network);
            self.was_limited = false;
            return None;
        }
        let before = self.most();
        let doubt = self.doubt.get_or_insert(Doubt::new(now, is, before));
        if is.mul_f64(SAME) < doubt.shortest || is > doubt.shortest.mul_f64(LONGER) {
            *doubt = Doubt::new(now, is, before);
            return None;
        }
        doubt.shortest = doubt.shortest.min(is);
        let span = network.pace().quick.max(2 * is);
        let doubt = self.doubt.expect("it was just put there");
        if now < doubt.since + span {
            return None;
        }
        let rates = network.window.last(span, network.workers)?;
        if rates.link < BUSY {
            self.doubt = None;
            return None;
        }
        let settled = doubt.settled.min(is);
        let least = doubt.least.filter(|_| rates.loss < LOSSY);
        let least = least.map_or(rates.wire, |least| least.min(rates.wire));
        if rates.wire > least * if is_tried { GREW_BY_TRIAL } else { GREW } {
            return Some(settled);
        }
        self.doubt = Some(Doubt {
            least: Some(least),
            first: doubt.first.or(Some(rates.wire)),
            settled,
            ..doubt
        });
        self.note_carried(now, rates.wire);
        None
    }

    /// A limit holds for the bytes in flight. No window grows under it, so more bytes in flight
    /// cannot show a longer path.
    pub(super) fn note_limited(&mut self, now: Duration, network: &Network) {
        self.end_doubt(now, network);
        self.was_limited = true;
    }

    fn end_doubt(&mut self, now: Duration, network: &Network) {
        self.doubt = None;
        let rates = network.window.last(network.pace().quick, network.workers);
        if let Some(rates) = rates.filter(|rates| rates.link >= BUSY) {
            self.note_carried(now, rates.wire);
        }
    }

    /// The path has become longer: forgets what the former path showed.
    pub(super) fn on_longer(&mut self, network: &mut Network, round_trip: Duration) {
        self.doubt = None;
        self.former = Some(network.round_trip_min);
        network.round_trip_min = round_trip;
        network.start.round_trip = round_trip;
        network.full = None;
    }

    /// The rate fell while the round trip rose, and no queue overflows: the path may have become
    /// longer. More connections would show it.
    pub(super) fn may_be_longer(
        &self,
        network: &Network,
        congestion: Congestion,
        rates: &Rates,
    ) -> bool {
        let Some(doubt) = self.doubt else {
            return false;
        };
        let has_fallen = |rate: f64| rate * FELL < doubt.before;
        let held = doubt.before * network.round_trip_min.as_secs_f64();
        let holds = rates.wire * network.window.newest().round_trip.as_secs_f64();
        let held_first = |rate: f64| rate * doubt.settled.as_secs_f64() < HOLDS_MOST * held;
        !self.was_limited
            && has_fallen(rates.wire)
            && doubt
                .first
                .is_none_or(|first| has_fallen(first) && held_first(first))
            && holds > HOLDS * held
            && rates.link >= LIMITED
            && rates.loss < OVERFLOWS
            && congestion == Congestion::System
            && network.start.forced.streams.is_none()
            && !network.is_rate_limited(rates)
    }

    /// The path may be longer, and the round trip has been stable for long enough to try.
    pub(super) fn is_longer_to_be_tried(
        &self,
        network: &Network,
        congestion: Congestion,
        rates: &Rates,
    ) -> bool {
        let is_known = self.doubt.is_some_and(|doubt| doubt.least.is_some());
        is_known && self.may_be_longer(network, congestion, rates)
    }

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
    use super::super::{Sample, Tuner};
    use super::*;
    use crate::algorithms::Method;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_millis(100);

    /// The tuner's shortest round trip for a link whose round trip grows after 5 s and whose rate
    /// doubles within 4 s after that. `loss` is the retransmitted share.
    fn shortest_after(loss: f64) -> Duration {
        let mut start = start(&World { rtt: 0.02, ..WORLD });
        start.forced.compress = Some(Method::None);
        // More connections on trial are another way to find out.
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
        tuner.network.round_trip_min
    }

    #[test]
    fn a_rate_that_grows_shows_a_longer_path_only_where_nothing_is_lost() {
        assert_eq!(shortest_after(0.0), LONG);
        assert_eq!(shortest_after(0.01), SHORT);
    }
}
