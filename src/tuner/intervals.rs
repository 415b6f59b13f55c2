//! The interval between the tuner's samples, and the spans over which it measures.

use std::time::Duration;

/// The interval between samples during the first second; [`APART`] is the interval after it.
const APART_FIRST: Duration = Duration::from_millis(50);
pub(super) const APART: Duration = Duration::from_millis(250);
const FIRST: Duration = Duration::from_secs(1);

/// The shortest span that shows a link's throughput. Slow start is over within about ten round
/// trips; the minimum is ten megabytes at 1 Gbit/s.
const GLANCE: Duration = Duration::from_millis(100);
const GLANCE_ROUND_TRIPS: u32 = 10;

/// The shortest span that shows the gain from one more connection.
const QUICK: Duration = Duration::from_millis(500);
const QUICK_ROUND_TRIPS: u32 = 4;

/// The tuner judges a change after this long, or so many round trips if those are longer.
const SURE: Duration = Duration::from_secs(1);
const SURE_ROUND_TRIPS: u32 = 10;

/// The tuner must have found good settings within this time, or so many round trips if those are
/// longer. Until then it acts on the shortest spans.
const OPENING: Duration = Duration::from_secs(2);
const OPENING_ROUND_TRIPS: u32 = 30;

#[derive(Clone, Copy, Debug)]
pub(super) struct Intervals {
    /// The shortest span that shows a link's throughput: 10 round trips, 100 ms to `quick`.
    glance: Duration,
    /// max(500 ms, 4 round trips).
    pub quick: Duration,
    /// The span for judging a change: max(1 s, 10 round trips).
    pub sure: Duration,
    pub opening: Duration,
}

impl Intervals {
    pub(super) fn of(round_trip: Duration) -> Intervals {
        let quick = QUICK.max(round_trip * QUICK_ROUND_TRIPS);
        Intervals {
            glance: GLANCE.max(round_trip * GLANCE_ROUND_TRIPS).min(quick),
            quick,
            sure: SURE.max(round_trip * SURE_ROUND_TRIPS),
            opening: OPENING.max(round_trip * OPENING_ROUND_TRIPS),
        }
    }

    /// The span for choosing a method.
    pub(super) fn of_method(&self, now: Duration) -> Duration {
        if now <= self.opening {
            self.glance
        } else {
            self.quick
        }
    }
}

/// The interval from `now` to the next sample.
pub fn next_sample(now: Duration) -> Duration {
    if now < FIRST { APART_FIRST } else { APART }
}
