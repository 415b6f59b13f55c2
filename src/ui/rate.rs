//! Throughput: of the last seconds, and the average of the whole copy.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::progress::{Copies, Snapshot};

const WINDOW: Duration = Duration::from_secs(5);

/// An average over a shorter time hardly differs from the recent rate.
const AVERAGE_MIN: Duration = Duration::from_secs(10);

/// A shorter time does not give a meaningful rate.
const SPAN_MIN: Duration = Duration::from_millis(500);

/// Rates in bytes a second. None before there are enough readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CopyRates {
    /// Of the last seconds.
    pub recent: Option<f64>,
    /// Since the first byte.
    pub average: Option<f64>,
    /// The recent rate of each of several destinations.
    pub each: Vec<Option<f64>>,
}

/// Measures the rates of a copy, or of the copies to several destinations.
#[derive(Default)]
pub(super) struct RateMeter {
    /// Of the copy, or of all copies in turn.
    whole: Throughput,
    each: Vec<Throughput>,
}

impl RateMeter {
    pub(super) fn note(&mut self, now: Instant, snapshot: &Snapshot) {
        let Some(Copies::Together { dests, .. }) = &snapshot.copies else {
            return self.whole.note(now, snapshot.moved_bytes);
        };
        self.each.resize_with(dests.len(), Throughput::default);
        for (one, dest) in self.each.iter_mut().zip(dests) {
            one.note(now, dest.moved_bytes);
        }
    }

    /// `snapshot` is the last one that was noted.
    pub(super) fn rates(&self, now: Instant, snapshot: &Snapshot) -> CopyRates {
        let each: Vec<_> = self.each.iter().map(Throughput::per_s).collect();
        let recent = match &snapshot.copies {
            Some(Copies::Together { shown, .. }) => each.get(*shown).copied().flatten(),
            _ => self.whole.per_s(),
        };
        let time = snapshot.began.map(|began| now.duration_since(began));
        let time = time.filter(|time| *time >= AVERAGE_MIN);
        let average = time.map(|time| snapshot.moved_bytes as f64 / time.as_secs_f64());
        CopyRates {
            recent,
            average,
            each,
        }
    }
}

/// Readings of a counter within the window, oldest first.
#[derive(Default)]
struct Throughput {
    readings: VecDeque<(Instant, u64)>,
}

impl Throughput {
    /// Notes that the counter was at `bytes` at time `now`. Of readings of 0 only the last is
    /// kept, so that the login time does not make the first seconds look slow.
    fn note(&mut self, now: Instant, bytes: u64) {
        if bytes == 0 {
            self.readings.clear();
        }
        self.readings.push_back((now, bytes));
        // Keeps the first reading outside the window, so that the window is full.
        while let Some((second, _)) = self.readings.get(1)
            && now.duration_since(*second) >= WINDOW
        {
            self.readings.pop_front();
        }
    }

    /// Bytes a second; None before there are enough readings.
    fn per_s(&self) -> Option<f64> {
        let (first, last) = (self.readings.front()?, self.readings.back()?);
        let span = last.0.duration_since(first.0);
        (span >= SPAN_MIN).then(|| last.1.saturating_sub(first.1) as f64 / span.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Progress;
    use crate::progress::together::Together;
    use std::sync::Arc;

    #[test]
    fn the_average_is_that_of_the_whole_copy_and_comes_when_it_tells_something() {
        let progress = Progress::default();
        progress.add_bytes(1000);
        let snapshot = progress.snapshot();
        let began = snapshot.began.unwrap();
        let mut meter = RateMeter::default();
        let mut average = |s: u64| {
            let now = began + Duration::from_secs(s);
            meter.note(now, &snapshot);
            meter.rates(now, &snapshot)
        };
        assert_eq!(average(1).average, None);
        let late = average(20);
        assert_eq!((late.recent, late.average), (Some(0.0), Some(50.0)));
    }

    #[test]
    fn each_destination_has_its_own_rate_whichever_is_the_slowest() {
        let all = [Arc::<Progress>::default(), Arc::default()];
        let named = ["fast", "slow"].map(str::to_owned).into_iter();
        let together = Together::new(named.zip(all.clone()), false);
        let mut meter = RateMeter::default();
        let start = Instant::now();
        let mut tick = |s: u64, bytes: [u64; 2]| {
            all[0].add_bytes(bytes[0]);
            all[1].add_bytes(bytes[1]);
            let (now, snapshot) = (start + Duration::from_secs(s), together.snapshot());
            meter.note(now, &snapshot);
            meter.rates(now, &snapshot)
        };
        tick(0, [10, 20]);
        let rates = tick(1, [300, 100]);
        assert_eq!(rates.each, [Some(300.0), Some(100.0)]);
        assert_eq!(rates.recent, Some(100.0), "of the one with fewer bytes");
    }

    #[test]
    fn the_rate_follows_a_change_within_the_window() {
        let start = Instant::now();
        let at = |tick: u32| start + Duration::from_millis(100) * tick;
        let mut rate = Throughput::default();
        for tick in 0..100 {
            rate.note(at(tick), 0);
        }
        assert_eq!(rate.per_s(), None, "nothing moved yet");
        for tick in 100..200 {
            rate.note(at(tick), u64::from(tick - 99) * 10);
        }
        assert_eq!(rate.per_s().map(f64::round), Some(100.0));
        for tick in 200..260 {
            rate.note(at(tick), 1000);
        }
        assert_eq!(
            rate.per_s(),
            Some(0.0),
            "stalled for longer than the window"
        );
    }
}
