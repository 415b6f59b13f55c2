//! Progress of one copy to several destinations: the figures of the unfinished copy with the least
//! progress, and a few of each.

use std::sync::Arc;

use super::{Copies, DestProgress, Phase, Progress, Snapshot};

pub struct Together {
    dests: Vec<(Arc<str>, Arc<Progress>)>,
    /// ssh may ask for a password on the terminal.
    may_ask: bool,
}

impl Together {
    /// Each copy with the printable name of its destination.
    pub fn new(dests: impl Iterator<Item = (String, Arc<Progress>)>, may_ask: bool) -> Together {
        let dests = dests.map(|(name, progress)| (Arc::from(name), progress));
        Together {
            dests: dests.collect(),
            may_ask,
        }
    }

    /// Shows a copy that may ask for a password before others, because nothing is drawn then.
    ///
    /// # Panics
    /// If there are no copies.
    pub fn snapshot(&self) -> Snapshot {
        let snapshots = self.dests.iter().map(|(_, progress)| progress.snapshot());
        let mut snapshots: Vec<_> = snapshots.collect();
        let names = self.dests.iter().map(|(name, _)| name);
        let dests = names.zip(&snapshots).map(|(name, one)| DestProgress {
            name: name.clone(),
            phase: one.phase,
            has_failed: one.has_failed,
            totals: one.totals,
            done_bytes: one.done_bytes,
            moved_bytes: one.moved_bytes,
            files: one.files,
            traffic: one.traffic(),
        });
        let dests = dests.collect();
        let first_shown = |(_, one): &(usize, &Snapshot)| {
            let is_over = one.phase == Phase::Done;
            let is_connecting = one.phase == Phase::Connecting;
            (is_over, is_connecting != self.may_ask, one.done_bytes)
        };
        let shown = snapshots.iter().enumerate().min_by_key(first_shown);
        let shown = shown.expect("there are several").0;
        Snapshot {
            copies: Some(Copies::Together { dests, shown }),
            ..snapshots.swap_remove(shown)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_that_goes_on_is_shown_and_a_login_that_may_ask_before_it() {
        let all: Vec<_> = (0..3).map(|_| Arc::<Progress>::default()).collect();
        let together = |may_ask| {
            let named = ["one", "two", "three"].map(str::to_owned);
            Together::new(named.into_iter().zip(all.clone()), may_ask).snapshot()
        };
        for (one, bytes) in all.iter().zip([30, 10, 20]) {
            one.set_phase(Phase::Copying);
            one.add_bytes(bytes);
        }
        let shown = || {
            let now = together(true);
            let Some(Copies::Together { dests, shown }) = now.copies else {
                panic!("several")
            };
            assert_eq!(dests[shown].done_bytes, now.done_bytes);
            let over = dests.iter().filter(|dest| dest.phase == Phase::Done);
            (over.count(), &*dests[shown].name == "two", now.done_bytes)
        };
        assert_eq!(shown(), (0, true, 10));
        all[1].end(false);
        assert_eq!(shown(), (1, false, 20));
        all[0].set_phase(Phase::Connecting);
        assert_eq!(together(true).phase, Phase::Connecting);
        assert_eq!(together(false).done_bytes, 20);
        all.iter().for_each(|one| one.end(true));
        assert_eq!(together(true).phase, Phase::Done);
        let Some(Copies::Together { dests, .. }) = together(true).copies else {
            panic!("several")
        };
        assert!(dests.iter().all(|dest| !dest.has_failed));
    }
}
