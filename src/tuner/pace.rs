//! How long things take on a link: when it is looked, and over which spans.

use std::time::Duration;

/// A sample is wanted this often at first, and then less often.
const APART_FIRST: Duration = Duration::from_millis(50);
pub(super) const APART: Duration = Duration::from_millis(250);
const FIRST: Duration = Duration::from_secs(1);

/// What a link carries shows as soon as slow start is over, which is within ten round trips or so:
/// ten megabytes at 1 Gbit/s.
const GLANCE: Duration = Duration::from_millis(100);
const GLANCE_ROUND_TRIPS: u32 = 10;

/// Nothing shorter says what a stream more brings.
const QUICK: Duration = Duration::from_millis(500);
const QUICK_ROUND_TRIPS: u32 = 4;

/// A change is judged after this long, or so many round trips.
const SURE: Duration = Duration::from_secs(1);
const SURE_ROUND_TRIPS: u32 = 10;

/// Within this, or so many round trips, the tuner must have found its way: it acts on the
/// shortest spans.
const OPENING: Duration = Duration::from_secs(2);
const OPENING_ROUND_TRIPS: u32 = 30;

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The shortest span that tells what a link carries: 10 round trips, 100 ms to `quick`.
    glance: Duration,
    /// max(500 ms, 4 round trips).
    pub quick: Duration,
    /// What a change is judged by: max(1 s, 10 round trips).
    pub sure: Duration,
    pub opening: Duration,
}

impl Pace {
    pub fn of(round_trip: Duration) -> Pace {
        let quick = QUICK.max(round_trip * QUICK_ROUND_TRIPS);
        Pace {
            glance: GLANCE.max(round_trip * GLANCE_ROUND_TRIPS).min(quick),
            quick,
            sure: SURE.max(round_trip * SURE_ROUND_TRIPS),
            opening: OPENING.max(round_trip * OPENING_ROUND_TRIPS),
        }
    }

    /// The span by which a method is chosen.
    pub fn of_method(&self, now: Duration) -> Duration {
        if now <= self.opening {
            self.glance
        } else {
            self.quick
        }
    }
}

/// How long after `now` the next sample is wanted.
pub fn next_sample(now: Duration) -> Duration {
    if now < FIRST { APART_FIRST } else { APART }
}
