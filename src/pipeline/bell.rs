//! What threads sleep by. Unlike a bare condition variable it makes no system call where nobody
//! sleeps, which for what happens with every chunk is nearly always.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, MutexGuard};

/// Goes with one mutex: to be rung after what the mutex guards has changed.
#[derive(Default)]
pub struct Bell {
    /// Goes up and down only while the mutex is held, so whoever rings after a change knows of all
    /// who have not seen it.
    sleepers: AtomicUsize,
    condvar: Condvar,
}

impl Bell {
    /// Sleeps until `is_over`.
    pub fn sleep_until<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        is_over: impl Fn(&T) -> bool,
    ) -> MutexGuard<'a, T> {
        while !is_over(&guard) {
            self.sleepers.fetch_add(1, Relaxed);
            guard = self.condvar.wait(guard).expect("no panic while held");
            self.sleepers.fetch_sub(1, Relaxed);
        }
        guard
    }

    pub fn wake_one(&self) {
        if self.sleepers.load(Relaxed) > 0 {
            self.condvar.notify_one();
        }
    }

    pub fn wake_all(&self) {
        if self.sleepers.load(Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }
}
