//! Throughput, smoothed over some seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(5);

/// A shorter time does not give a meaningful rate.
const SPAN_MIN: Duration = Duration::from_millis(500);

/// Readings of a counter within the window, oldest first.
#[derive(Default)]
pub(super) struct Throughput {
    readings: VecDeque<(Instant, u64)>,
}

impl Throughput {
    /// Notes that the counter was at `bytes` at time `now`. Of readings of 0 only the last is
    /// kept, so that the login time does not make the first seconds look slow.
    pub(super) fn note(&mut self, now: Instant, bytes: u64) {
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
    pub(super) fn per_s(&self) -> Option<f64> {
        let (first, last) = (self.readings.front()?, self.readings.back()?);
        let span = last.0.duration_since(first.0);
        (span >= SPAN_MIN).then(|| last.1.saturating_sub(first.1) as f64 / span.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
