//! A count of the sources that may go on while the copy begins.
//!
//! A first copy waits for the totals, since all of it must fit. A second copy does not: its own walk
//! meets the same entries. The count pauses while that walk runs, and continues while it waits for
//! data to be sent, so that the remaining time of a long copy is soon known. The first of the two
//! to finish gives the totals.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::manifest::Totals;

/// The count, as the copy sees it.
#[derive(Default)]
pub struct SourceCount {
    state: Mutex<CountState>,
    changed: Condvar,
}

#[derive(Default)]
struct CountState {
    totals: Option<Totals>,
    /// The receiver has landed without the totals.
    has_landed: bool,
    is_held: bool,
    /// It has its result, or nobody wants one any more.
    is_over: bool,
}

/// The thread that counts.
pub struct Counter(Arc<SourceCount>);

/// How the walk of a copy begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountStart {
    /// The receiver waits for these totals.
    Counted(Totals),
    /// It has landed without them.
    Landed,
    /// The count has no result: the copy ends.
    Ended,
}

impl SourceCount {
    /// Called when the receiver has landed without the totals.
    pub fn landed(&self) {
        let mut state = self.state.lock();
        state.has_landed = true;
        state.is_held = true;
        self.changed.notify_all();
    }

    /// Waits until the walk of the copy may begin.
    pub fn wait(&self) -> CountStart {
        let mut state = self.state.lock();
        loop {
            match state.totals {
                _ if state.has_landed => return CountStart::Landed,
                Some(totals) => return CountStart::Counted(totals),
                None if state.is_over => return CountStart::Ended,
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// The totals, once the count has them.
    pub fn totals(&self) -> Option<Totals> {
        self.state.lock().totals
    }

    /// Holds the count, or lets it go on.
    pub fn hold(&self, is_held: bool) {
        self.state.lock().is_held = is_held;
        self.changed.notify_all();
    }

    /// Ends the count, since nobody wants its result any more.
    pub fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}

impl Counter {
    pub fn of(count: &Arc<SourceCount>) -> Counter {
        Counter(count.clone())
    }

    /// Waits while the count is held. False if nobody wants its result any more.
    pub fn goes_on(&self) -> bool {
        let SourceCount { state, changed } = &*self.0;
        let mut state = state.lock();
        changed.wait_while(&mut state, |state| state.is_held && !state.is_over);
        !state.is_over
    }

    pub fn has_counted(self, totals: Totals) {
        self.0.state.lock().totals = Some(totals);
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTALS: Totals = Totals {
        files: 3,
        directories: 1,
        bytes: 5,
        allocated: 4096,
        largest: 4096,
        streams: 0,
    };

    #[test]
    fn the_walk_begins_with_the_totals_or_when_the_receiver_has_landed() {
        let count = Arc::<SourceCount>::default();
        Counter::of(&count).has_counted(TOTALS);
        assert_eq!(count.wait(), CountStart::Counted(TOTALS));
        let count = Arc::<SourceCount>::default();
        let counter = Counter::of(&count);
        count.landed();
        assert_eq!(count.wait(), CountStart::Landed);
        drop(counter);
        let count = Arc::<SourceCount>::default();
        // As after a panic.
        drop(Counter::of(&count));
        assert_eq!(count.wait(), CountStart::Ended);
    }

    #[test]
    fn a_count_is_held_while_the_walk_of_the_copy_goes_on() {
        let count = Arc::<SourceCount>::default();
        let counter = Counter::of(&count);
        assert!(counter.goes_on());
        count.landed();
        std::thread::scope(|scope| {
            let counting = scope.spawn(|| {
                let goes_on = counter.goes_on();
                counter.has_counted(TOTALS);
                goes_on
            });
            assert_eq!(count.totals(), None);
            count.hold(false);
            assert!(counting.join().unwrap());
        });
        assert_eq!(count.totals(), Some(TOTALS));
        let count = Arc::<SourceCount>::default();
        let counter = Counter::of(&count);
        count.landed();
        count.end();
        assert!(!counter.goes_on());
    }
}
