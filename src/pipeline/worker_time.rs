//! Time that workers spend in each activity; used to find the bottleneck.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The present activity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// No work.
    Nothing,
    /// Waits for a buffer or for room in the queue of frames, because a later stage is slower.
    Held,
    /// Reads or writes.
    Disk,
    /// Compresses or decompresses.
    Codec,
    /// Computes digests, or seals or opens frames.
    Rest,
}

const KINDS: usize = 5;

pub struct WorkerTime(Mutex<ActivityTimes>);

struct ActivityTimes {
    began: Instant,
    last: Instant,
    /// How many workers are in each activity.
    now: [u32; KINDS],
    spent: [Duration; KINDS],
    disk_alone: Duration,
}

/// Times since the start, added up over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    pub elapsed: Duration,
    /// All time on a processor.
    pub working: Duration,
    /// The part of `working` in compression or decompression.
    pub codec: Duration,
    /// Time during which some worker read or wrote, and no other was held or used a processor. It
    /// is not added up, so it never exceeds `elapsed`.
    pub disk_alone: Duration,
}

/// The activities of one worker, from its first chunk to its last.
pub struct WorkerClock<'a> {
    worker_time: &'a WorkerTime,
    doing: Activity,
    since: Instant,
}

impl Default for WorkerTime {
    fn default() -> WorkerTime {
        let now = Instant::now();
        WorkerTime(Mutex::new(ActivityTimes {
            began: now,
            last: now,
            now: [0; KINDS],
            spent: [Duration::ZERO; KINDS],
            disk_alone: Duration::ZERO,
        }))
    }
}

impl WorkerTime {
    /// Adds a worker without work.
    pub fn begin(&self) -> WorkerClock<'_> {
        let now = Instant::now();
        let mut book = self.0.lock();
        book.count_to(now);
        book.now[Activity::Nothing as usize] += 1;
        WorkerClock {
            worker_time: self,
            doing: Activity::Nothing,
            since: now,
        }
    }

    pub fn spent(&self) -> Spent {
        let mut book = self.0.lock();
        book.count_to(Instant::now());
        let codec = book.spent[Activity::Codec as usize];
        Spent {
            elapsed: book.last - book.began,
            working: codec + book.spent[Activity::Rest as usize],
            codec,
            disk_alone: book.disk_alone,
        }
    }
}

impl ActivityTimes {
    fn count_to(&mut self, now: Instant) {
        // Two threads may read the clock in one order and come here in the other.
        let passed = now.saturating_duration_since(self.last);
        self.last = self.last.max(now);
        for (spent, workers) in self.spent.iter_mut().zip(self.now) {
            *spent += passed * workers;
        }
        let others = [Activity::Held, Activity::Codec, Activity::Rest];
        let is_alone = others.iter().all(|doing| self.now[*doing as usize] == 0);
        if self.now[Activity::Disk as usize] > 0 && is_alone {
            self.disk_alone += passed;
        }
    }
}

impl WorkerClock<'_> {
    /// Changes the activity. Returns how long the last one took.
    pub fn turn_to(&mut self, doing: Activity) -> Duration {
        let now = Instant::now();
        let mut book = self.worker_time.0.lock();
        book.count_to(now);
        book.now[self.doing as usize] -= 1;
        book.now[doing as usize] += 1;
        drop(book);
        let took = now.saturating_duration_since(self.since);
        (self.doing, self.since) = (doing, now);
        took
    }
}

impl Drop for WorkerClock<'_> {
    fn drop(&mut self) {
        let mut book = self.worker_time.0.lock();
        book.count_to(Instant::now());
        book.now[self.doing as usize] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves the clock forward.
    fn pass(worker_time: &WorkerTime, ms: u64) {
        let mut book = worker_time.0.lock();
        let then = book.last + Duration::from_millis(ms);
        book.count_to(then);
    }

    #[test]
    fn a_disk_is_waited_for_only_while_nobody_works() {
        let worker_time = WorkerTime::default();
        let (mut one, mut two) = (worker_time.begin(), worker_time.begin());
        let future = Duration::from_secs(3600);
        // From here on the real clock is behind and adds nothing.
        pass(&worker_time, future.as_millis() as u64);
        one.turn_to(Activity::Disk);
        two.turn_to(Activity::Codec);
        pass(&worker_time, 100);
        two.turn_to(Activity::Held);
        pass(&worker_time, 20);
        two.turn_to(Activity::Disk);
        pass(&worker_time, 7);
        one.turn_to(Activity::Rest);
        pass(&worker_time, 1);
        drop((one, two));
        let spent = worker_time.spent();
        assert_eq!(spent.disk_alone, Duration::from_millis(7));
        assert_eq!(spent.codec, Duration::from_millis(100));
        assert_eq!(spent.working, Duration::from_millis(101));
        assert!(spent.elapsed >= future + Duration::from_millis(128));
    }
}
