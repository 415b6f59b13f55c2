//! Detection of the end of a terminal resize.
//!
//! After a resize the terminal wraps lines again. The number of rows to move back then depends on
//! its width. With an outdated width the cursor would go too far and overwrite earlier output.
//! While a window is dragged, each width is soon outdated. It may also be reported late: tmux
//! reports four times a second.

use std::time::{Duration, Instant};

use super::terminal::Size;

/// Longer than tmux's delay before it reports a new size.
const QUIET: Duration = Duration::from_millis(300);

/// Most time that lines for the user wait for the end of a resize.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The last size, and the time of the current resize.
pub(super) struct Steady {
    size: Size,
    /// The first and the last change of a resize that has not ended.
    changes: Option<(Instant, Instant)>,
}

impl Steady {
    pub(super) fn new(size: Size) -> Steady {
        Steady {
            size,
            changes: None,
        }
    }

    /// Notes that the terminal has `size` at time `now`. False if it must not be drawn on yet.
    pub(super) fn note(&mut self, now: Instant, size: Size) -> bool {
        if size != self.size {
            let first = self.changes.map_or(now, |(first, _)| first);
            self.changes = Some((first, now));
            self.size = size;
        }
        let is_over = self.changes.is_none_or(|(first, last)| {
            now.duration_since(last) >= QUIET || now.duration_since(first) >= WAIT_MAX
        });
        if is_over {
            self.changes = None;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_trusted_when_it_has_stayed_or_when_waiting_takes_too_long() {
        let sized = |columns| Size {
            columns,
            rows: 24,
            reflows: true,
        };
        let start = Instant::now();
        let at = |tick: u32| start + Duration::from_millis(100) * tick;
        let mut steady = Steady::new(sized(80));
        assert!(steady.note(at(0), sized(80)));
        assert!(!steady.note(at(1), sized(50)));
        assert!(!steady.note(at(2), sized(40)));
        assert!(!steady.note(at(4), sized(40)));
        assert!(steady.note(at(5), sized(40)), "300 ms after the last");
        assert!(steady.note(at(6), sized(40)));
        let dragged = (10..30).map(|tick| steady.note(at(tick), sized(100 + tick as usize)));
        let drawn: Vec<_> = (10..30).zip(dragged).filter(|(_, drawn)| *drawn).collect();
        assert_eq!(drawn, [(20, true)], "a second after the first");
    }
}
