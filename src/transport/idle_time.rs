//! Time in which the connections of a session are all busy, and time in which they wait.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// All connections of a session. A sending connection waits for a frame, a receiving one for a
/// buffer.
pub struct IdleTime(Mutex<Count>);

struct Count {
    last: Instant,
    there: u32,
    waiting: u32,
    none_waits: Duration,
    waits: Duration,
}

impl Default for IdleTime {
    fn default() -> IdleTime {
        IdleTime(Mutex::new(Count {
            last: Instant::now(),
            there: 0,
            waiting: 0,
            none_waits: Duration::ZERO,
            waits: Duration::ZERO,
        }))
    }
}

impl IdleTime {
    /// Time in which there was at least one connection and none waited.
    pub fn none_waits(&self) -> Duration {
        self.now().none_waits
    }

    /// Time that connections spent waiting, as a mean over the connections present.
    pub fn waits(&self) -> Duration {
        self.now().waits
    }

    pub(crate) fn join(&self) {
        self.now().there += 1;
    }

    pub(crate) fn leave(&self) {
        self.now().there -= 1;
    }

    pub(crate) fn begin_to_wait(&self) {
        self.now().waiting += 1;
    }

    pub(crate) fn end_waiting(&self) {
        self.now().waiting -= 1;
    }

    fn now(&self) -> MutexGuard<'_, Count> {
        let mut count = self.0.lock();
        count.count_to(Instant::now());
        count
    }
}

impl Count {
    fn count_to(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.last);
        self.last = self.last.max(now);
        if self.there == 0 {
            return;
        }
        if self.waiting == 0 {
            self.none_waits += passed;
        }
        self.waits += passed * self.waiting.min(self.there) / self.there;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_busy_while_no_stream_waits() {
        let idle_time = IdleTime::default();
        let pass = |ms| {
            let mut count = idle_time.0.lock();
            let then = count.last + Duration::from_millis(ms);
            count.count_to(then);
        };
        // The real clock is behind from here on, and adds nothing.
        pass(3_600_000);
        idle_time.join();
        idle_time.join();
        pass(40);
        idle_time.begin_to_wait();
        pass(10);
        idle_time.end_waiting();
        idle_time.leave();
        pass(2);
        idle_time.leave();
        pass(100);
        assert_eq!(idle_time.none_waits(), Duration::from_millis(42));
        assert_eq!(idle_time.waits(), Duration::from_millis(5));
    }
}
