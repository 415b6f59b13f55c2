//! The files whose copies took the longest, for the report of the copy.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::locks::{OrderedMutex, place};
use crate::outcome::{FileTime, SLOWEST_MAX};

#[derive(Default)]
pub(super) struct SlowFiles {
    /// The slowest first, at most [`SLOWEST_MAX`].
    files: OrderedMutex<Vec<FileTime>, { place::SLOW_FILES }>,
    /// No faster file is kept, in microseconds. So most files take no lock.
    least_us: AtomicU64,
}

impl SlowFiles {
    /// `path` is called if the file is kept.
    pub(super) fn add(&self, time: Duration, size: u64, path: impl FnOnce() -> String) {
        if (time.as_micros() as u64) < self.least_us.load(Relaxed) {
            return;
        }
        let path = path();
        let mut files = self.files.lock();
        let at = files.partition_point(|other| other.time >= time);
        files.insert(at, FileTime { path, size, time });
        files.truncate(SLOWEST_MAX);
        if let (SLOWEST_MAX, Some(last)) = (files.len(), files.last()) {
            self.least_us.store(last.time.as_micros() as u64, Relaxed);
        }
    }

    pub(super) fn slowest(&self) -> Vec<FileTime> {
        self.files.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_are_kept_in_order() {
        let slow = SlowFiles::default();
        for ms in [7, 3, 9].into_iter().chain(100..200) {
            slow.add(Duration::from_millis(ms), ms, || format!("{ms}"));
        }
        slow.add(Duration::from_millis(5), 5, || {
            unreachable!("it is too fast")
        });
        let sizes: Vec<_> = slow.slowest().iter().map(|file| file.size).collect();
        let slowest: Vec<_> = (100..200).rev().take(SLOWEST_MAX).collect();
        assert_eq!(sizes, slowest);
    }
}
