//! Queues on the path, seen as round trips that are longer than the shortest.

use std::time::Duration;

/// How much longer the round trip must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum QueueDepth {
    /// The link is full, unless packet loss slows the connections down, which more connections
    /// would compensate.
    Slight,
    /// A slow link is full, or the path has become longer.
    Clear,
    /// Any link is full, and more connections would only take bandwidth from others.
    Long,
}

impl QueueDepth {
    /// The longest delay beyond the shortest round trip that shows no such queue.
    fn threshold(self, shortest: Duration) -> Duration {
        const MS: Duration = Duration::from_millis(1);
        match self {
            QueueDepth::Slight => (shortest / 10).max(5 * MS),
            QueueDepth::Clear => shortest / 4 + 5 * MS,
            QueueDepth::Long => (shortest / 2).max(3 * MS),
        }
    }

    /// This round trip shows such a queue.
    pub(super) fn is_shown(self, shortest: Duration, round_trip: Duration) -> bool {
        round_trip > shortest + self.threshold(shortest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_at_hand_a_queue_takes_milliseconds_and_far_away_a_part_of_the_round_trip() {
        let shown = |shortest_ms: u64, round_trip_ms: u64| {
            let shortest = Duration::from_millis(shortest_ms);
            let round_trip = Duration::from_millis(round_trip_ms);
            let queues = [QueueDepth::Slight, QueueDepth::Clear, QueueDepth::Long];
            queues.map(|queue| queue.is_shown(shortest, round_trip))
        };
        assert_eq!(shown(1, 4), [false, false, false]);
        assert_eq!(shown(1, 5), [false, false, true]);
        assert_eq!(shown(1, 7), [true, true, true]);
        assert_eq!(shown(100, 110), [false, false, false]);
        assert_eq!(shown(100, 111), [true, false, false]);
        assert_eq!(shown(100, 131), [true, true, false]);
        assert_eq!(shown(100, 151), [true, true, true]);
    }
}
