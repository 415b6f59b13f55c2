//! Slow links, without a memory and with the memory of other links.

use super::*;

pub(super) const RATES: [f64; 6] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0];
const ROUND_TRIPS: [f64; 3] = [0.02, 0.1, 0.3];

pub(super) fn slow(mbit: f64, rtt: f64) -> World {
    World {
        link: mbit * MBIT,
        rtt,
        here: 2.0,
        there: 2.0,
        data: SimulatedData::Random,
        ..WORLD
    }
}

pub(super) fn remembering(world: &World, streams: Option<u16>) -> Start {
    let mut start = start(world);
    start.remembered = streams.map(|streams| Remembered {
        round_trip_us: (world.rtt * 1e6) as u64,
        streams: Some(streams),
        method: None,
    });
    start
}

/// Seconds that a link takes to carry the bytes it holds: twice its round trip, or its round trip
/// and its queue, which is at least the 100 packets that a single connection fills.
pub(super) fn holds_s(world: &World) -> f64 {
    let queue = world.queue_s.max(150e3 / world.link);
    world.rtt + world.rtt.max(queue)
}

/// The case of this number, out of all combinations of rate, round trip, memory and queue.
fn kind(seed: usize) -> (String, World, Option<u16>) {
    let (mbit, rtt) = (RATES[seed % 6], ROUND_TRIPS[seed / 6 % 3]);
    let memory = [None, Some(128), Some(1)][seed / 18 % 3];
    let queue_s = [0.0, 2.0][seed / 54 % 2];
    let name = format!("{mbit} Mbit/s, {rtt} s, queue {queue_s} s, {memory:?}, seed {seed}");
    let world = World {
        queue_s,
        ..slow(mbit, rtt)
    };
    (name, world, memory)
}

#[test]
fn a_slow_link_is_filled_and_carries_the_data_once_whatever_was_remembered() {
    for seed in 0..100 {
        let (name, world, memory) = kind(seed);
        let run = run(world, remembering(&world, memory), seed as u64, 60.0, &[]);
        let goodput = run.mean(5.0, 60.0);
        assert!(
            goodput >= 0.95 * world.link,
            "{name}: {goodput}\n{}",
            told(&run)
        );
        assert!(
            run.overhead <= 0.05,
            "{name}: {:.3} sent again\n{}",
            run.overhead,
            told(&run)
        );
        // A window that grows until a loss is too large by one step. Before that, the first
        // windows of all usual connections may arrive at once.
        let (first, most) = (
            run.most_in_flight_s(0.0, 2.0),
            run.most_in_flight_s(2.0, 60.0),
        );
        let windows_s = 16.0 * 14.6e3 / world.link;
        assert!(
            first <= 1.5 * holds_s(&world) + windows_s && most <= 1.5 * holds_s(&world),
            "{name}: {first} s and {most} s under way\n{}",
            told(&run)
        );
        // At the end, at most twice as many connections as the link can use.
        let streams = run.tuner.decision().streams;
        let fit = (2.0 * world.link * world.rtt / 65536.0).max(1.0);
        assert!(
            f64::from(streams) <= 2.0 * fit,
            "{name}: {streams}\n{}",
            told(&run)
        );
    }
}

#[test]
fn the_memory_of_a_slow_link_does_not_slow_a_fast_one() {
    for rtt in [0.02, 0.05, 0.15] {
        let world = World {
            rtt,
            data: SimulatedData::Random,
            ..WORLD
        };
        let none = run(world, remembering(&world, None), 1, 10.0, &[]);
        let one = run(world, remembering(&world, Some(1)), 1, 10.0, &[]);
        let (none, one) = (none.mean(0.0, 10.0), one.mean(0.0, 10.0));
        assert!(one >= 0.95 * none, "{rtt} s: {one:.3e} and {none:.3e}");
    }
}

/// The rate of the best of some fixed numbers of connections in the same time.
fn best_fixed(world: World, seed: u64, seconds: f64) -> f64 {
    let runs = [1, 2, 8, 32].map(|streams| {
        let mut start = start(&world);
        start.forced.streams = Some(streams);
        let run = run(world, start, seed, seconds, &[]);
        run.mean(0.0, seconds)
    });
    runs.into_iter().fold(0.0, f64::max)
}

#[test]
fn no_fixed_number_of_streams_is_much_better_on_a_slow_link() {
    for seed in 0..100 {
        let (name, world, memory) = kind(seed);
        let run = run(world, remembering(&world, memory), seed as u64, 30.0, &[]);
        let (made, best) = (run.mean(0.0, 30.0), best_fixed(world, seed as u64, 30.0));
        assert!(
            made >= 0.95 * best,
            "{name}: {made:.3e} of {best:.3e}\n{}",
            told(&run)
        );
    }
}

/// On a local link processors are the bottleneck, and nothing is compressed.
#[test]
fn the_memory_of_a_near_link_does_not_slow_a_far_one() {
    for seed in 0..100 {
        let (mbit, rtt) = (RATES[seed % 6], ROUND_TRIPS[seed / 6 % 3]);
        let world = World {
            data: SimulatedData::Pages,
            ..slow(mbit, rtt)
        };
        let mut remembering = start(&world);
        remembering.remembered = Some(Remembered {
            round_trip_us: 200,
            streams: Some(64),
            method: Some(Method::None),
        });
        let none = run(world, start(&world), seed as u64, 10.0, &[]);
        let near = run(world, remembering, seed as u64, 10.0, &[]);
        let (none, near) = (none.mean(0.0, 10.0), near.mean(0.0, 10.0));
        assert!(
            near >= 0.95 * none,
            "{mbit} Mbit/s, {rtt} s, seed {seed}: {near:.3e} and {none:.3e}"
        );
    }
}
