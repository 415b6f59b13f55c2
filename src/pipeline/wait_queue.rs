//! A condition variable that makes no system call when nobody waits. It is used for events that
//! come with every chunk, when there is nearly always no waiter.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Condvar;

use crate::locks::OrderedGuard;

/// Belongs to one mutex. Wake waiters after changing the data that the mutex guards.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// Changes only while the mutex is held. So a thread that wakes others after a change sees
    /// every waiter that has not seen the change.
    sleepers: AtomicUsize,
    condvar: Condvar,
}

impl WaitQueue {
    /// Waits until `is_over` is true.
    pub(super) fn sleep_until<'a, T>(
        &self,
        mut guard: OrderedGuard<'a, T>,
        is_over: impl Fn(&T) -> bool,
    ) -> OrderedGuard<'a, T> {
        while !is_over(&guard) {
            self.sleepers.fetch_add(1, Relaxed);
            guard.wait(&self.condvar);
            self.sleepers.fetch_sub(1, Relaxed);
        }
        guard
    }

    pub(super) fn wake_one(&self) {
        if self.sleepers.load(Relaxed) > 0 {
            self.condvar.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        if self.sleepers.load(Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }
}
