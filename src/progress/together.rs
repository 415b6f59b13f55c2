//! Progress of one copy to several destinations, shown as one: the unfinished copy with the
//! least progress.

use std::sync::Arc;

use super::{Phase, Progress, Snapshot};

pub struct Together(pub Vec<Arc<Progress>>);

impl Together {
    /// Shows a copy that is still connecting before others, because it may ask for a password.
    ///
    /// # Panics
    /// If there are no copies.
    pub fn snapshot(&self) -> Snapshot {
        let snapshots: Vec<_> = self.0.iter().map(|one| one.snapshot()).collect();
        let all = snapshots.len();
        let over = snapshots.iter().filter(|one| one.phase == Phase::Done);
        let copies = Some((over.count(), all));
        let first_shown = |one: &Snapshot| {
            let is_over = one.phase == Phase::Done;
            let may_ask = one.phase == Phase::Connecting;
            (is_over, !may_ask, one.done_bytes)
        };
        let slowest = snapshots.into_iter().min_by_key(first_shown);
        Snapshot {
            copies,
            ..slowest.expect("there are several")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_that_goes_on_is_shown_and_a_login_before_it() {
        let all: Vec<_> = (0..3).map(|_| Arc::<Progress>::default()).collect();
        let together = Together(all.clone());
        for (one, bytes) in all.iter().zip([30, 10, 20]) {
            one.set_phase(Phase::Copying);
            one.add_bytes(bytes);
        }
        let shown = || {
            let now = together.snapshot();
            (now.done_bytes, now.copies)
        };
        assert_eq!(shown(), (10, Some((0, 3))));
        all[1].set_phase(Phase::Done);
        assert_eq!(shown(), (20, Some((1, 3))));
        all[0].set_phase(Phase::Connecting);
        assert_eq!(together.snapshot().phase, Phase::Connecting);
        all.iter().for_each(|one| one.set_phase(Phase::Done));
        assert_eq!(together.snapshot().phase, Phase::Done);
    }
}
