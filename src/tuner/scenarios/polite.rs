//! A polite copy beside a flow that comes and goes.

use crate::tuner::sim::MBIT;
use crate::tuner::sim::shared::{SharedPath, share};

/// When the other flow begins and ends, and when the run ends.
const COMES: f64 = 8.0;
const GOES: f64 = 68.0;
const END: f64 = 74.0;

/// By then the copy knows the link's rate.
const STARTED: f64 = 3.0;

const PACKET: f64 = 1500.0;

/// On links that hold at least this many bytes, a flow whose slow start ends early grows slowly:
/// cubic reaches 100 Mbit/s at 100 ms after 12 s. No sender that filled the link before can
/// prevent the first queue from ending slow start.
const LONG_FAT: f64 = 350e3;

fn bottleneck(seed: u64) -> SharedPath {
    let at = |list: &[f64], by: u64| list[(seed / by) as usize % list.len()];
    let link = at(&[5.0, 10.0, 20.0, 50.0, 100.0], 1) * MBIT;
    SharedPath {
        link,
        rtt: at(&[0.02, 0.03, 0.05, 0.1], 5),
        // Up to the queue of a modem with bufferbloat.
        queue_s: at(&[0.1, 0.2, 0.5, 1.0, 2.0], 20),
        jitter_s: if seed % 3 == 2 { 0.003 } else { 0.0 },
        other: (COMES, GOES),
        other_wants: (seed % 7 == 6).then_some(0.5 * link),
        end: END,
    }
}

fn is_polite(seeds: impl Iterator<Item = u64>) {
    let mut faults = Vec::new();
    for seed in seeds {
        let world = bottleneck(seed);
        let (alone, beside) = (share(&world, false, seed), share(&world, true, seed));
        let since = beside.other_gone + 2.0;
        let part = beside.other_bytes / alone.other_bytes;
        let queue = beside.queue_p95(&[(STARTED, COMES), (since, END)]);
        let due = beside.due(0.9 * world.link).unwrap_or(END);
        let before = beside.mean(STARTED, COMES) / world.link;
        // The copy cannot avoid one more packet in the queue.
        let queue_most = 0.02 + PACKET / world.link;
        let least = if world.link * world.rtt < LONG_FAT {
            0.9
        } else {
            0.8
        };
        if part < least || queue > queue_most || due > 2.0 || before < 0.88 {
            faults.push(format!(
                "seed {seed}: the other flow has {part:.3}, queue {queue:.3} s, full after \
                 {due:.2} s, {before:.3} of the link at first: {world:?}"
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

// Two tests with different seeds, because tests run in parallel.

#[test]
fn a_flow_that_comes_and_goes_has_what_it_wants_and_leaves_the_link_to_a_polite_copy() {
    is_polite((0..100).step_by(2));
}

#[test]
fn a_flow_that_comes_and_goes_has_what_it_wants_for_other_seeds_too() {
    is_polite((1..100).step_by(2));
}
