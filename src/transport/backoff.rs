//! The wait before a lost connection is dialled again.

use std::time::Duration;

/// The first wait, and the longest.
const FIRST: Duration = Duration::from_millis(250);
const LAST: Duration = Duration::from_secs(10);

/// Waits that double while attempts fail.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { next: FIRST }
    }
}

impl Backoff {
    /// The next wait. `chance` shortens it by up to a quarter, so that connections that were lost
    /// together are not always dialled together.
    pub fn wait(&mut self, chance: u8) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LAST);
        wait - wait / 4 * u32::from(chance) / 255
    }
}

/// A random number that need not be secret.
pub fn chance() -> u8 {
    fastrand::u8(..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_ten_seconds_and_chance_shortens_them_by_a_quarter() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..8).map(|_| backoff.wait(0).as_millis()).collect();
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(backoff.wait(255).as_millis(), 7500);
    }
}
