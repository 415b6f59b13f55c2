//! The rate limit in force, and how much of the copy it held back.

use std::fmt;
use std::time::Duration;

use super::bottleneck::{busiest, shares};
use super::sample::Sample;
use super::window::{Rates, Workers, between};
use crate::outcome::Bottleneck;
use crate::units;

/// The share of a limit in use from which on it held the copy back. A smaller share suffices where
/// the network was the busiest stage, or none was busy: the start and the end of a copy count too,
/// and so does a busy machine.
const SPENT: f64 = 0.9;
const SPENT_MOSTLY: f64 = 0.7;

/// The part of a copy that a rate limit held back. The limit may have changed in that time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HeldBack {
    pub time: Duration,
    /// Bytes a second: the lowest and the highest limit that held the copy back.
    pub lowest: u64,
    pub highest: u64,
}

/// `3.07 MB/s`, or `3.07 MB/s to 20.0 MB/s` where the limit changed.
impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: u64| units::rate(rate as f64);
        let (lowest, highest) = (rate(self.lowest), rate(self.highest));
        match lowest == highest {
            true => f.write_str(&lowest),
            false => write!(f, "{lowest} to {highest}"),
        }
    }
}

/// Follows the limit from sample to sample, with a separate period for each limit.
pub(super) struct RateLimit {
    limit: Option<u64>,
    /// When the period of this limit began, and the sample taken then.
    since: Duration,
    first: Sample,
    /// From the earlier periods.
    before: Option<HeldBack>,
}

impl RateLimit {
    pub(super) fn new(limit: Option<u64>) -> RateLimit {
        RateLimit {
            limit,
            since: Duration::ZERO,
            first: Sample::default(),
            before: None,
        }
    }

    /// The limit in bytes a second.
    pub(super) fn now(&self) -> Option<u64> {
        self.limit
    }

    /// True if `sample` has another limit than the one before.
    pub(super) fn follow(&mut self, now: Duration, sample: &Sample, workers: Workers) -> bool {
        if sample.rate_limit == self.limit {
            return false;
        }
        *self = RateLimit {
            limit: sample.rate_limit,
            since: now,
            first: *sample,
            before: self.held_back(now, sample, workers),
        };
        true
    }

    /// Until `now`, when `sample` was taken. None if no limit held the copy back.
    pub(super) fn held_back(
        &self,
        now: Duration,
        sample: &Sample,
        workers: Workers,
    ) -> Option<HeldBack> {
        let time = now.saturating_sub(self.since);
        let rates = between(time, &self.first, sample, workers);
        let Some(limit) = self.limit.filter(|limit| is_spent(*limit, &rates)) else {
            return self.before;
        };
        let before = self.before.unwrap_or(HeldBack {
            time: Duration::ZERO,
            lowest: limit,
            highest: limit,
        });
        Some(HeldBack {
            time: before.time + time,
            lowest: before.lowest.min(limit),
            highest: before.highest.max(limit),
        })
    }
}

fn is_spent(limit: u64, rates: &Rates) -> bool {
    let part = rates.admitted / limit as f64;
    let stage = busiest(&shares(rates));
    let is_possible = stage.is_none_or(|stage| stage == Bottleneck::Network);
    part >= SPENT || (part >= SPENT_MOSTLY && is_possible)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKERS: Workers = Workers {
        here: 2.0,
        there: 2.0,
    };

    fn sample(rate_limit: Option<u64>, admitted_bytes: u64) -> Sample {
        Sample {
            rate_limit,
            admitted_bytes,
            ..Sample::default()
        }
    }

    const MB: u64 = 1_000_000;

    #[test]
    fn each_limit_is_judged_by_what_went_through_while_it_held() {
        let s = Duration::from_secs;
        let mut limit = RateLimit::new(Some(10 * MB));
        assert!(!limit.follow(s(1), &sample(Some(10 * MB), 10 * MB), WORKERS));
        // 10 s at 10 MB/s, then 5 s at 60 MB/s under a limit of 100.
        assert!(limit.follow(s(10), &sample(Some(100 * MB), 100 * MB), WORKERS));
        let held = limit.held_back(s(15), &sample(Some(100 * MB), 400 * MB), WORKERS);
        let held = held.expect("the first limit held it back");
        assert_eq!((held.time, held.to_string()), (s(10), "10.0 MB/s".into()));
        // 20 s at 2 MB/s, and 7 s without a limit.
        assert!(limit.follow(s(15), &sample(Some(2 * MB), 400 * MB), WORKERS));
        assert!(limit.follow(s(35), &sample(None, 440 * MB), WORKERS));
        let held = limit.held_back(s(42), &sample(None, 4000 * MB), WORKERS);
        let held = held.expect("two limits held it back");
        assert_eq!(held.time, s(30));
        assert_eq!(held.to_string(), "2.00 MB/s to 10.0 MB/s");
        assert_eq!(limit.now(), None);
    }
}
