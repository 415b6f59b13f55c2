//! How many streams are at work while the link is not known: few at first, and more with each
//! round trip that shows no queue, and few again where the link turns out to be slow.
//!
//! What was remembered is where the rise may lead to, so that the memory of another link fills
//! none. On a fast link it costs one round trip; on a slow one each stream too many is a first
//! window that the link needs long to carry.

use std::time::Duration;

use super::model::{LIMITED, LOSSY};
use super::streams::streams;
use super::window::Rates;
use super::{Congestion, FAR_AWAY, Tuner, first_streams};

/// Streams at work from the start.
pub const AT_WORK_FIRST: u16 = 2;

/// So many times more with each step. What the first streams have shown when theirs comes back
/// is true of a few more.
const FIRST_STEP: u16 = 4;
const STEP: u16 = 2;

/// Streams that are dialled and wait for the next round trips to show that they are of use.
const READY: u16 = 4;

/// Most of what a stream sends before anything comes back: ten segments in Linux.
const FIRST_WINDOW: u64 = 10 << 10;

/// A round trip that takes so much longer than the shortest shows a queue.
const QUEUE: f64 = 1.25;
const QUEUE_MIN: Duration = Duration::from_millis(5);

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
        let next = at_work.saturating_mul(READY);
        let target = self.rise.target.unwrap_or(at_work);
        target.min(next).max(at_work)
    }

    /// Puts more streams to work where the last round trip shows that the link has room. True while
    /// the rise goes on.
    pub(super) fn rise(&mut self, now: Duration) -> bool {
        let Some(target) = self.rise.target else {
            return false;
        };
        let newest = self.window.newest();
        let until = self.rise.until.unwrap_or(self.pace().opening);
        if self.decision.streams >= target || now > until || self.is_queuing() {
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
        let confirming = newest.under_way_bytes / 4 * 3;
        self.rise.confirmed_at = newest.confirmed_bytes + confirming;
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
        if !is_slow || is_of_use || !self.is_queuing() {
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
        if !self.full.as_ref().is_some_and(is_faster) || self.is_queuing() {
            return;
        }
        self.full = None;
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

    /// As [`Tuner::is_queue`], but where a link is slow less of it is a queue.
    pub(super) fn is_queuing(&self) -> bool {
        let is = self.window.newest().round_trip;
        is > self.round_trip_min.mul_f64(QUEUE) + QUEUE_MIN
    }
}
