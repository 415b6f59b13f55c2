//! The progress of copies that run one after the other, and their sum.

use std::sync::Arc;

use super::{Copies, Phase, Progress, Snapshot};

pub struct InTurn(pub Vec<Arc<Progress>>);

impl InTurn {
    /// The running copy, and the number of finished ones.
    ///
    /// # Panics
    /// If there are no copies.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshots: Vec<_> = self.0.iter().map(|one| one.snapshot()).collect();
        let all = snapshots.len();
        let is_over = |one: &Snapshot| one.phase == Phase::Done;
        let over = snapshots.iter().filter(|one| is_over(one)).count();
        let moved_bytes = snapshots.iter().map(|one| one.moved_bytes).sum();
        let running = snapshots.iter().position(|one| !is_over(one));
        Snapshot {
            copies: Some(Copies::InTurn { over, all }),
            moved_bytes,
            ..snapshots.swap_remove(running.unwrap_or(all - 1))
        }
    }
}

impl Snapshot {
    /// Adds the counters of another copy.
    pub fn add(&mut self, other: &Snapshot) {
        for (count, of_other) in [
            (&mut self.scanned_files, other.scanned_files),
            (&mut self.scanned_bytes, other.scanned_bytes),
            (&mut self.done_bytes, other.done_bytes),
            (&mut self.again_bytes, other.again_bytes),
            (&mut self.moved_bytes, other.moved_bytes),
            (&mut self.already_bytes, other.already_bytes),
            (&mut self.unsent_bytes, other.unsent_bytes),
            (&mut self.checked_bytes, other.checked_bytes),
            (&mut self.damaged_bytes, other.damaged_bytes),
            (&mut self.raw_bytes, other.raw_bytes),
            (&mut self.wire_bytes, other.wire_bytes),
            (&mut self.sent_again_bytes, other.sent_again_bytes),
            (&mut self.files, other.files),
            (&mut self.special, other.special),
            (&mut self.unlinked, other.unlinked),
            (&mut self.grown, other.grown),
            (&mut self.symlinks, other.symlinks),
            (&mut self.symlinks_outside, other.symlinks_outside),
            (&mut self.unchanged, other.unchanged),
            (&mut self.staying, other.staying),
            (&mut self.missing, other.missing),
            (&mut self.different, other.different),
            (&mut self.other_metadata, other.other_metadata),
            (&mut self.would_send_files, other.would_send_files),
            (&mut self.would_send_bytes, other.would_send_bytes),
        ] {
            *count = count.saturating_add(of_other);
        }
        let chunks = self.codec_chunks.iter_mut().zip(other.codec_chunks);
        chunks.for_each(|(count, of_other)| *count = count.saturating_add(of_other));
        self.not_kept.add(&other.not_kept);
        self.streams = self.streams.max(other.streams);
        self.logins_again = self.logins_again.saturating_add(other.logins_again);
        self.waited += other.waited;
        let earlier = |one: Option<_>, two: Option<_>| one.into_iter().chain(two).min();
        self.logged_in = earlier(self.logged_in, other.logged_in);
        self.began = earlier(self.began, other.began);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_copy_is_shown_and_all_are_added_up() {
        let all: Vec<_> = (0..3).map(|_| Arc::<Progress>::default()).collect();
        for (one, bytes) in all.iter().zip([30, 10, 20]) {
            one.set_phase(Phase::Copying);
            one.add_bytes(bytes);
        }
        let in_turn = InTurn(all.clone());
        let shown = || {
            let now = in_turn.snapshot();
            (now.done_bytes, now.copies)
        };
        let after = |over| Some(Copies::InTurn { over, all: 3 });
        assert_eq!(shown(), (30, after(0)));
        all[0].end(true);
        assert_eq!(shown(), (10, after(1)));
        all.iter().for_each(|one| one.end(true));
        assert_eq!(shown(), (20, after(3)));
        let mut sum = all[0].snapshot();
        all[1..].iter().for_each(|one| sum.add(&one.snapshot()));
        assert_eq!(sum.done_bytes, 60);
    }
}
