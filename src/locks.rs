//! Mutexes with a place in the order of locks (see `src/concurrency.md`). A debug build panics when
//! a thread takes one while it holds another of the same or a later place. So each run of the tests
//! checks the order, and finds a deadlock before it happens. A release build checks nothing.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Places in the order of locks. A lock is taken before those with larger numbers.
pub mod place {
    pub const PIPE_PART: u8 = 10;
    pub const SCHEDULER: u8 = 20;
    pub const FILE_HAD: u8 = 30;
    pub const FILE_CUT: u8 = 31;
    pub const PIPE_TREE: u8 = 40;
    pub const CHUNK_CACHE: u8 = 41;
    pub const LZMA_ROOM: u8 = 42;
    pub const ENCODER_CONTROL: u8 = 43;
    pub const FRAMES: u8 = 44;
    pub const ENTRIES: u8 = 50;
    pub const JOBS: u8 = 51;
    pub const ANCHORED: u8 = 52;
    pub const CLAIMS: u8 = 60;
    pub const UNREAD: u8 = 61;
    pub const PARTIAL: u8 = 70;
    pub const SHIFTS: u8 = 71;
    pub const BLOCK_INDEX: u8 = 72;
    pub const PLACED_LINKS: u8 = 73;
    pub const LINKS: u8 = 80;
    pub const LIST: u8 = 81;
    pub const HEART: u8 = 90;
    pub const CONNECTIONS: u8 = 91;
    pub const KERNEL_FACTS: u8 = 92;
    pub const FORMER_PROGRESS: u8 = 100;
    pub const TOTALS: u8 = 101;
    pub const NAMES: u8 = 102;
    pub const WAITING: u8 = 103;
    pub const ACTIVITY: u8 = 104;
    pub const SLOW_FILES: u8 = 105;
}

/// A mutex at `PLACE` in the order of locks.
#[derive(Default)]
pub struct OrderedMutex<T, const PLACE: u8>(Mutex<T>);

/// Holds an [`OrderedMutex`]. The mutex is released before its place.
pub struct OrderedGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    #[cfg(debug_assertions)]
    _held: held::Held,
}

impl<T, const PLACE: u8> OrderedMutex<T, PLACE> {
    pub const fn new(value: T) -> OrderedMutex<T, PLACE> {
        OrderedMutex(Mutex::new(value))
    }

    /// # Panics
    /// In a debug build, if this thread holds a lock of the same or a later place.
    pub fn lock(&self) -> OrderedGuard<'_, T> {
        OrderedGuard {
            // Before the lock: a wrong order is to panic, not to wait.
            #[cfg(debug_assertions)]
            _held: held::Held::at(PLACE),
            guard: self.0.lock(),
        }
    }
}

impl<T> OrderedGuard<'_, T> {
    /// Releases the lock until another thread notifies `condvar`.
    pub fn wait(&mut self, condvar: &Condvar) {
        condvar.wait(&mut self.guard);
    }

    /// The same, for at most this time.
    pub fn wait_for(&mut self, condvar: &Condvar, time: Duration) {
        condvar.wait_for(&mut self.guard, time);
    }
}

impl<T> Deref for OrderedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for OrderedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    thread_local! {
        /// Places of the locks that this thread holds.
        static PLACES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) struct Held(u8);

    impl Held {
        pub(super) fn at(place: u8) -> Held {
            PLACES.with_borrow_mut(|places| {
                let last = places.iter().max();
                assert!(
                    last.is_none_or(|last| *last < place),
                    "lock {place} is taken while lock {last:?} is held"
                );
                places.push(place);
            });
            Held(place)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            PLACES.with_borrow_mut(|places| {
                let at = places.iter().rposition(|place| *place == self.0);
                at.map(|at| places.remove(at));
            });
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn the_wrong_order_panics_and_the_right_one_does_not() {
        let (early, late) = (OrderedMutex::<_, 1>::new(0), OrderedMutex::<_, 2>::new(0));
        for _ in 0..2 {
            let first = early.lock();
            let second = late.lock();
            // In whatever order they are released.
            drop(first);
            drop(second);
        }
        let held = late.lock();
        let wrong = catch_unwind(AssertUnwindSafe(|| drop(early.lock())));
        let twice = catch_unwind(AssertUnwindSafe(|| drop(late.lock())));
        assert!(wrong.is_err() && twice.is_err());
        drop(held);
        assert_eq!(*early.lock() + *late.lock(), 0);
    }

    #[test]
    fn a_wait_gives_the_lock_back() {
        let (mutex, condvar) = (OrderedMutex::<_, 1>::new(false), Condvar::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *mutex.lock() = true;
                condvar.notify_all();
            });
            let mut is_set = mutex.lock();
            while !*is_set {
                is_set.wait(&condvar);
            }
        });
    }
}
