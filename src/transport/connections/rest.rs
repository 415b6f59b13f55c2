//! The last frames of a copy: which connections leave them to faster ones. A frame on a slow
//! connection would arrive after all others, and the copy would wait for it.

use std::time::Duration;

use crate::transport::connection::kernel::KernelFacts;

/// A connection leaves the frames to others if it would deliver its first one later than they
/// deliver the last one, by this factor and this time. Rates are estimates.
const LATER: f64 = 1.5;
const LATE: Duration = Duration::from_millis(100);

/// With more frames left than this for each connection, even a slow one delivers some in time.
const FRAMES_EACH: u64 = 8;

/// A sending connection, and the bytes that it will send before another frame.
pub(super) struct Contender {
    pub(super) facts: KernelFacts,
    /// Unwritten bytes of the frame that it is sending.
    pub(super) rest: u64,
}

impl Contender {
    /// When its nth frame from now on is delivered.
    fn delivers(&self, nth: u64, frame: u64) -> Duration {
        self.facts.due(self.rest + nth * frame)
    }
}

/// True for each connection that should take no more frames: `left` bytes are left, in frames of
/// `frame` bytes.
pub(super) fn yielding(contenders: &[Contender], left: u64, frame: u64) -> Vec<bool> {
    let frame = frame.max(1);
    let frames = left.div_ceil(frame);
    if frames == 0 || frames > FRAMES_EACH * contenders.len() as u64 {
        return vec![false; contenders.len()];
    }
    // Each frame goes to the connection that delivers it first.
    let mut next: Vec<(Duration, u64)> = contenders
        .iter()
        .map(|contender| (contender.delivers(1, frame), 1))
        .collect();
    let mut last = Duration::ZERO;
    for _ in 0..frames {
        let first = (0..next.len()).min_by_key(|at| next[*at].0);
        let Some(at) = first else { break };
        let (delivered, nth) = next[at];
        last = last.max(delivered);
        next[at] = (contenders[at].delivers(nth + 1, frame), nth + 1);
    }
    let is_late = |contender: &Contender| contender.delivers(1, frame) > last.mul_f64(LATER) + LATE;
    contenders.iter().map(is_late).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: u64 = 1000;

    fn contender(rate: u64, held: u64) -> Contender {
        let facts = KernelFacts {
            rate,
            held,
            ..KernelFacts::default()
        };
        Contender { facts, rest: 0 }
    }

    #[test]
    fn a_slow_connection_leaves_the_last_frames_to_fast_ones() {
        let both = [
            contender(1000 * KB, 100 * KB),
            contender(100 * KB, 100 * KB),
        ];
        // 0.1 s and then 0.3 s for each frame; the slow one delivers its first one after 4 s.
        assert_eq!(yielding(&both, 600 * KB, 300 * KB), [false, true]);
        // Ten frames take the fast one 3.1 s, and 15 frames 4.6 s.
        assert_eq!(yielding(&both, 2400 * KB, 300 * KB), [false, true]);
        assert_eq!(yielding(&both, 4500 * KB, 300 * KB), [false, false]);
    }

    #[test]
    fn connections_that_are_alike_all_take_frames() {
        let alike: Vec<_> = (0..16).map(|n| contender(100 * KB, n * 10 * KB)).collect();
        assert_eq!(yielding(&alike, 600 * KB, 300 * KB), [false; 16]);
    }

    /// A stalled connection has a window of one segment, and doubles it a few times only.
    #[test]
    fn a_stalled_connection_is_not_expected_to_overtake_the_others() {
        let stalled = Contender {
            rest: 1000 * KB,
            facts: KernelFacts {
                rate: 14_480,
                grows_to: 7 * 14_480,
                round_trip: Duration::from_millis(100),
                ..KernelFacts::default()
            },
        };
        let mut all = vec![stalled];
        all.extend((0..7).map(|_| contender(125 * KB, 0)));
        assert_eq!(yielding(&all, 64 * 300 * KB, 300 * KB)[1..], [false; 7]);
    }

    #[test]
    fn the_fastest_connection_never_yields() {
        for seed in 0..1000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let count = random.usize(1..20);
            let contenders: Vec<_> = (0..count)
                .map(|_| contender(random.u64(0..10_000_000), random.u64(0..10_000_000)))
                .collect();
            let left = random.u64(0..100_000_000);
            let yields = yielding(&contenders, left, random.u64(0..1_000_000));
            assert!(yields.contains(&false), "{seed}");
        }
    }

    #[test]
    fn nothing_yields_where_nothing_or_much_is_left() {
        let both = [contender(1000 * KB, 0), contender(KB, 0)];
        assert_eq!(yielding(&both, 0, 300 * KB), [false, false]);
        assert_eq!(yielding(&both, 100_000 * KB, 300 * KB), [false, false]);
        assert!(yielding(&[], 1, 1).is_empty());
    }
}
