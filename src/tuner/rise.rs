//! How many streams are at work while the link is not known: few at first, and more with each
//! round trip that shows no queue, and few again where the link turns out to be slow.
//!
//! What was remembered is where the rise may lead to, so that the memory of another link fills
//! none. On a fast link it costs one round trip; on a slow one each stream too many is a first
//! window that the link needs long to carry.

use std::time::Duration;

use super::model::{LIMITED, LOSSY};
use super::queue::Queue;
use super::streams::streams;
use super::window::Rates;
use super::{Congestion, FAR_AWAY, Sample, Tuner, first_streams, next_sample};

/// Streams at work from the start.
pub const AT_WORK_FIRST: u16 = 2;

/// So many times more with each step. What the first streams have shown when theirs comes back
/// is true of a few more.
const FIRST_STEP: u16 = 4;
const STEP: u16 = 2;

/// Streams that are dialled and wait for the next round trips to show that they are of use; those
/// that are usual at this distance in any case.
const READY: u16 = 4;

/// What all usual streams send first may stand in a queue for this part of a round trip.
const LEAP: u32 = 4;

/// The smoothed round trip takes over an eighth of each that is measured (RFC 6298): after those of
/// a first window it has gone about half of the way.
const SMOOTHED: u32 = 2;

/// How often it is looked whether the first round trip is over.
const LOOK: Duration = Duration::from_millis(10);

/// Most of what a stream sends before anything comes back: ten segments in Linux.
const FIRST_WINDOW: u64 = 10 << 10;

/// Of the time, streams have something to send where the link is what holds the copy up.
const BUSY: f64 = 0.5;

/// Each stream is to have this much under way, so that it gets over a lost packet without a pause:
/// some forty of them. A link that holds less has no use for another stream.
const PART: f64 = (64 << 10) as f64;

/// What a link may hold: what is on its way, and as much in its queue.
const HOLDS: f64 = 2.0;

/// A link that was full carries about as much while it does so within these bounds.
const FULL_LEAST: f64 = 0.8;
const FULL_MOST: f64 = 1.3;

/// Above this a link has room for many streams however near it is.
const SLOW_BYTES_PER_S: f64 = 12.5e6;

/// The rise from the first streams to as many as are of use where the link can take them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rise {
    /// None once it is over.
    target: Option<u16>,
    /// It may rise again when so many bytes are confirmed: what was under way when it rose last has
    /// come back by then, and has shown whether a queue stands.
    confirmed_at: u64,
    /// It is over by then; None: at the end of the copy's opening.
    until: Option<Duration>,
}

impl Rise {
    /// To as many streams as are of use at this distance or were remembered.
    pub fn to(target: u16) -> Rise {
        Rise {
            target: Some(target),
            confirmed_at: FIRST_WINDOW * u64::from(target.min(AT_WORK_FIRST)),
            until: None,
        }
    }
}

impl Tuner {
    /// Where the rise leads to if every round trip confirms it.
    pub(super) fn rise_target(&self) -> u16 {
        let near = self.start.round_trip < FAR_AWAY;
        let by_distance = first_streams(self.start.round_trip, self.start.forced.streams);
        let remembered = self.remembered_here().and_then(|it| it.streams);
        let wanted = match remembered {
            _ if self.start.forced.streams.is_some() => return by_distance,
            // Near at hand one stream can be faster than two.
            Some(streams) if near => streams,
            Some(streams) => streams.max(by_distance),
            None => by_distance,
        };
        wanted.min(self.streams_max())
    }

    pub(super) fn at_work_first(&self) -> u16 {
        let target = self.rise_target();
        match self.start.forced.streams {
            Some(_) => target,
            None => target.min(AT_WORK_FIRST),
        }
    }

    /// Streams that are to be dialled: those at work, and some for the next step of a rise.
    pub(super) fn ready(&self) -> u16 {
        let at_work = self.decision.streams;
        let usual = first_streams(self.start.round_trip, None);
        let next = at_work.saturating_mul(READY).max(usual);
        let target = self.rise.target.unwrap_or(at_work);
        target.min(next).max(at_work)
    }

    /// How long after `now` the next sample is wanted.
    pub fn next_sample(&self, now: Duration) -> Duration {
        let apart = next_sample(now);
        if self.is_first_step() && now < self.pace().opening {
            apart.min(LOOK)
        } else {
            apart
        }
    }

    fn is_first_step(&self) -> bool {
        let at_work = self.decision.streams;
        at_work == AT_WORK_FIRST && self.rise.target.is_some_and(|target| target > at_work)
    }

    /// Puts to work at once what is usual at this distance, where the first windows have come back
    /// so soon that those of all of them would be no queue to speak of. Slow start takes a round
    /// trip to double what is under way: each that the rise takes is one more of slow start.
    pub(super) fn leap(&mut self, sample: &Sample) -> bool {
        if !self.is_first_step() || sample.confirmed_bytes < self.rise.confirmed_at {
            return false;
        }
        let usual = first_streams(self.start.round_trip, None);
        let streams = self.rise.target.map_or(usual, |target| target.min(usual));
        let queue = sample.round_trip.saturating_sub(self.round_trip_min);
        let of_all = queue * SMOOTHED * u32::from(streams) / u32::from(AT_WORK_FIRST);
        if of_all > self.round_trip_min / LEAP {
            return false;
        }
        self.rise.confirmed_at = sample.confirmed_bytes + confirming(sample);
        self.decision.streams = streams;
        true
    }

    /// Puts more streams to work where the last round trip shows that the link has room. True while
    /// the rise goes on.
    pub(super) fn rise(&mut self, now: Duration) -> bool {
        let Some(target) = self.rise.target else {
            return false;
        };
        let newest = self.window.newest();
        let until = self.rise.until.unwrap_or(self.pace().opening);
        if self.decision.streams >= target || now > until || self.has_queue(Queue::Clear) {
            self.rise.target = None;
            return false;
        }
        let span = newest.round_trip.max(self.round_trip_min);
        let rates = self.window.last(span, self.workers);
        let is_busy = rates.is_some_and(|rates| rates.link >= BUSY);
        if !is_busy || newest.confirmed_bytes < self.rise.confirmed_at {
            return is_busy;
        }
        // What was remembered beyond that was for a link that loses something or for windows.
        let usual = first_streams(self.start.round_trip, None);
        let wants = |rates: Rates| rates.loss >= LOSSY || self.is_windows_full(&rates);
        if self.decision.streams >= usual && !rates.is_some_and(wants) {
            return false;
        }
        self.rise.confirmed_at = newest.confirmed_bytes + confirming(&newest);
        let by = match self.decision.streams {
            ..=AT_WORK_FIRST => FIRST_STEP,
            _ => STEP,
        };
        let most = if self.decision.streams < usual {
            target.min(usual)
        } else {
            target
        };
        self.decision.streams = self.decision.streams.saturating_mul(by).min(most);
        true
    }

    /// Lets streams rest that a slow link has no use for: what they hold stands in its queue.
    pub(super) fn shrink(&mut self, now: Duration, rates: &Rates) -> Option<String> {
        let is_slow = self.is_slow(rates) && rates.link >= LIMITED;
        let is_of_use = self.start.forced.streams.is_some()
            || self.is_rate_limited(rates)
            || self.decision.congestion == Congestion::Bbr;
        if !is_slow || is_of_use || !self.has_queue(Queue::Clear) {
            return None;
        }
        let holds = HOLDS * rates.wire * self.round_trip_min.as_secs_f64();
        let fit = ((holds / PART) as u16).max(1);
        // The rate is not the same in every second.
        if self.decision.streams <= fit.saturating_add(fit / 4) {
            if let Some((wire, _)) = &mut self.full {
                *wire = rates.wire;
            }
            return None;
        }
        self.rise.target = None;
        self.decision.streams = fit;
        self.full = Some((rates.wire, now));
        Some(format!("{}: the link is slow and full", streams(fit)))
    }

    /// Begins to rise once more where a slow link that was full carries clearly more and no queue
    /// stands: it has become a faster one. New streams find out sooner than old ones how fast, which
    /// have given up their slow start.
    pub(super) fn rise_again(&mut self, now: Duration, rates: &Rates) {
        let is_faster = |(wire, _): &(f64, Duration)| rates.wire > wire * FULL_MOST;
        if !self.full.as_ref().is_some_and(is_faster) || self.has_queue(Queue::Clear) {
            return;
        }
        self.full = None;
        self.begin_rise(now);
    }

    /// Begins to rise once more, for as long as a copy's opening takes.
    pub(super) fn begin_rise(&mut self, now: Duration) {
        self.rise = Rise {
            target: Some(self.rise_target()),
            confirmed_at: self.window.newest().confirmed_bytes,
            until: Some(now + self.pace().opening),
        };
    }

    pub(super) fn is_slow(&self, rates: &Rates) -> bool {
        rates.wire < SLOW_BYTES_PER_S
    }

    /// A slow link was full, and carries as much with the streams that were left to work: it wants
    /// no more of them, and what was lost while it was full says nothing of how lossy it is.
    pub(super) fn is_fit(&self, now: Duration, rates: &Rates) -> bool {
        self.full.is_some_and(|(wire, since)| {
            let is_same = rates.wire > wire * FULL_LEAST && rates.wire < wire * FULL_MOST;
            is_same || now < since + self.pace().opening
        })
    }
}

/// Most of what is under way; the last of it need not be waited for.
fn confirming(sample: &Sample) -> u64 {
    sample.under_way_bytes / 4 * 3
}

#[cfg(test)]
mod tests {
    use super::super::sim::{WORLD, World, start};
    use super::*;

    fn tuner(round_trip_ms: u64) -> Tuner {
        let rtt = round_trip_ms as f64 / 1e3;
        Tuner::new(start(&World { rtt, ..WORLD })).0
    }

    /// Streams at work after one sample in which the first windows have come back.
    fn after_the_first_windows(round_trip_ms: u64, is_ms: f64) -> u16 {
        let mut tuner = tuner(round_trip_ms);
        let sample = Sample {
            confirmed_bytes: AT_WORK_FIRST as u64 * FIRST_WINDOW,
            round_trip: Duration::from_secs_f64(is_ms / 1e3),
            ..Sample::default()
        };
        let adjustment = tuner.on_sample(Duration::from_millis(15), &sample);
        adjustment.map_or(AT_WORK_FIRST, |it| it.decision.streams)
    }

    #[test]
    fn a_first_round_trip_without_a_queue_puts_all_usual_streams_to_work() {
        // 1 Gbit/s, as measured; what ten segments of each of two streams take at 5 Mbit/s.
        assert_eq!(after_the_first_windows(150, 150.4), 16);
        assert_eq!(after_the_first_windows(50, 50.2), 8);
        assert_eq!(after_the_first_windows(150, 162.0), AT_WORK_FIRST);
        assert_eq!(after_the_first_windows(300, 312.0), AT_WORK_FIRST);
        // Before they are back nothing is known.
        let mut tuner = tuner(150);
        let sample = Sample {
            confirmed_bytes: FIRST_WINDOW,
            round_trip: Duration::from_millis(150),
            ..Sample::default()
        };
        assert_eq!(tuner.on_sample(Duration::from_millis(15), &sample), None);
        assert_eq!(tuner.next_sample(Duration::from_millis(15)), LOOK);
    }
}
