//! Facts about the network, computed from the samples. Every decision is based on them.

use std::time::Duration;

use super::bounds::{FAR_AWAY, ROUND_TRIP_MAX, STREAMS_MAX};
use super::intervals::Intervals;
use super::model::{LIMITED, LOSSY};
use super::queue::QueueDepth;
use super::rate_limit::RateLimit;
use super::sample::Sample;
use super::terms::Start;
use super::window::{Rates, SampleWindow, Workers};
use crate::outcome::Remembered;

/// Connections fill their windows if they carry this share of what the windows allow.
const WINDOWS_FULL: f64 = 0.75;

/// How long the link's throughput as the bottleneck is taken as still valid.
const LINK_KNOWN: Duration = Duration::from_secs(30);

/// The rate is still rising if it grows by this factor from one span to the next.
pub(super) const GROWING: f64 = 1.1;

/// The share of a rate limit in use that shows the limit to be in effect. Compressed data comes in
/// bursts and leaves gaps.
const RATE_LIMITED: f64 = 0.8;

/// A full slow link counts as unchanged while its throughput stays within these factors.
const FULL_LEAST: f64 = 0.8;
pub(super) const FULL_MOST: f64 = 1.3;

/// Above this a link has room for many connections even if it is local.
const SLOW_BYTES_PER_S: f64 = 12.5e6;

pub(super) struct Network {
    pub start: Start,
    pub workers: Workers,
    pub window: SampleWindow,
    /// The shortest round trip since the path last became longer.
    pub round_trip_min: Duration,
    pub rate_limit: RateLimit,
    /// When the last sample was taken.
    pub sampled: Duration,
    /// The link's throughput when it was last the bottleneck, and when that was.
    pub link: Option<(f64, Duration)>,
    /// The throughput of a slow link when it was full, in bytes a second, and when that was.
    pub full: Option<(f64, Duration)>,
}

impl Network {
    pub(super) fn new(start: Start) -> Network {
        let here = start.forced.threads.unwrap_or(start.processors_here).max(1);
        Network {
            workers: Workers {
                here: f64::from(here),
                there: f64::from(start.processors_there.max(1)),
            },
            window: SampleWindow::default(),
            round_trip_min: start.round_trip,
            rate_limit: RateLimit::new(start.forced.rate_limit),
            sampled: Duration::ZERO,
            link: None,
            full: None,
            start,
        }
    }

    /// Replaces a guess by the first round trip that was measured. Returns true if it did.
    pub(super) fn note_first_round_trip(&mut self, is: Duration) -> bool {
        if !self.start.is_guess || is.is_zero() {
            return false;
        }
        (self.start.round_trip, self.start.is_guess) = (is, false);
        self.round_trip_min = is;
        true
    }

    /// True if `sample` has another rate limit than the one before.
    pub(super) fn follow_limit(&mut self, now: Duration, sample: &Sample) -> bool {
        self.rate_limit.follow(now, sample, self.workers)
    }

    /// The newest round trip shows such a queue.
    pub(super) fn has_queue(&self, queue: QueueDepth) -> bool {
        self.shows(queue, self.window.newest().round_trip)
    }

    fn shows(&self, queue: QueueDepth, round_trip: Duration) -> bool {
        queue.is_shown(self.round_trip_min, round_trip)
    }

    /// Frames that the link carries in a second, and frames on the link; zero while unknown.
    pub(super) fn frames(&self) -> (f64, f64) {
        match self.window.last(self.pace().quick, self.workers) {
            Some(rates) if rates.frame_bytes > 0.0 => {
                let round_trip = self.window.newest().round_trip.min(ROUND_TRIP_MAX);
                let per_s = rates.wire / rates.frame_bytes;
                (per_s, per_s * round_trip.as_secs_f64())
            }
            _ => (0.0, 0.0),
        }
    }

    pub(super) fn pace(&self) -> Intervals {
        Intervals::of(self.round_trip_min.min(ROUND_TRIP_MAX))
    }

    /// What an earlier copy learnt, if the round trip is about the same now.
    pub(super) fn remembered_here(&self) -> Option<Remembered> {
        self.start
            .remembered
            .filter(|it| it.is_of(self.start.round_trip))
    }

    pub(super) fn streams_max(&self) -> u16 {
        let room = self
            .start
            .slots
            .saturating_sub(2 * self.workers.here as usize);
        (room.min(usize::from(STREAMS_MAX)) as u16).max(1)
    }

    pub(super) fn is_slow(&self, rates: &Rates) -> bool {
        rates.wire < SLOW_BYTES_PER_S
    }

    /// A slow link was full, and carries as much with the remaining connections. It needs no more
    /// of them, and the loss while it was full does not show how lossy it is.
    pub(super) fn is_fit(&self, now: Duration, rates: &Rates) -> bool {
        self.full.is_some_and(|(wire, since)| {
            let is_same = rates.wire > wire * FULL_LEAST && rates.wire < wire * FULL_MOST;
            is_same || now < since + self.pace().opening
        })
    }

    /// Packets are lost on the path, and no queue overflows or did so just now. On a local link a
    /// queue is too short to be seen.
    pub(super) fn is_lossy(&self, rates: &Rates) -> bool {
        let lately = self.window.longest_round_trip(self.pace().sure);
        // The queue of slow start says nothing about the time after it.
        let is_settled = self.sampled > self.pace().opening;
        let may_be_full = self.full.is_some() || (is_settled && self.is_slow(rates));
        let was_queue = may_be_full && self.shows(QueueDepth::Long, lately);
        let is_queue = was_queue || self.has_queue(QueueDepth::Long);
        rates.loss >= LOSSY && !is_queue && self.round_trip_min >= FAR_AWAY
    }

    /// Connections carry what their windows allow, so that only more connections raise the rate.
    pub(super) fn is_windows_full(&self, rates: &Rates) -> bool {
        let most = self.window.newest().window_rate();
        most.is_some_and(|most| rates.wire >= WINDOWS_FULL * most)
    }

    /// In the first half of `span` the path lost less than half of `loss`.
    pub(super) fn lost_less(&self, span: Duration, loss: f64) -> bool {
        let halves = self.window.halves(span, self.workers);
        halves.is_some_and(|(before, _)| before.loss < loss / 2.0)
    }

    /// `rates` are those of the last `span`.
    pub(super) fn is_growing(&self, span: Duration, rates: &Rates) -> bool {
        match self.window.last(2 * span, self.workers) {
            None => true,
            Some(both) => {
                let bytes = both.wire * both.seconds - rates.wire * rates.seconds;
                let before = bytes / (both.seconds - rates.seconds).max(1e-3);
                rates.wire > before * GROWING
            }
        }
    }

    pub(super) fn note_link(&mut self, now: Duration, rates: &Rates) {
        if rates.link >= LIMITED || self.is_rate_limited(rates) {
            self.link = Some((rates.wire, now));
        } else if let Some((carried, at)) = self.link
            && (now > at + LINK_KNOWN || rates.wire > carried * GROWING)
        {
            self.link = None;
        }
    }

    pub(super) fn is_rate_limited(&self, rates: &Rates) -> bool {
        let limit = self.rate_limit.now();
        limit.is_some_and(|limit| rates.admitted >= RATE_LIMITED * limit as f64)
    }
}
