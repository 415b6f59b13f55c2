//! Slow links, with the memory of none and of others.

use super::*;

const RATES: [f64; 6] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0];
const ROUND_TRIPS: [f64; 3] = [0.02, 0.1, 0.3];

fn slow(mbit: f64, rtt: f64) -> World {
    World {
        link: mbit * MBIT,
        rtt,
        here: 2.0,
        there: 2.0,
        data: Data::Random,
        ..WORLD
    }
}

fn remembering(world: &World, streams: Option<u16>) -> Start {
    let mut start = start(world);
    start.remembered = streams.map(|streams| Remembered {
        round_trip_us: (world.rtt * 1e6) as u64,
        streams: Some(streams),
        method: None,
    });
    start
}

/// What a link has under way on its own account: its round trip twice over, or the queue of 100
/// packets that a single stream fills.
fn own_s(world: &World) -> f64 {
    (2.0 * world.rtt).max(world.rtt + 150e3 / world.link)
}

#[test]
fn a_slow_link_is_filled_and_carries_the_data_once_whatever_was_remembered() {
    for seed in 0..100 {
        let (mbit, rtt) = (RATES[seed % 6], ROUND_TRIPS[seed / 6 % 3]);
        let world = slow(mbit, rtt);
        let memory = [None, Some(128), Some(1)][seed / 18 % 3];
        let run = run(world, remembering(&world, memory), seed as u64, 60.0, &[]);
        let name = format!("{mbit} Mbit/s, {rtt} s, {memory:?}, seed {seed}");
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
        let most = run.in_flight_s.iter().copied().fold(0.0, f64::max);
        assert!(
            most <= 1.05 * own_s(&world),
            "{name}: {most} s under way\n{}",
            told(&run)
        );
        // From the start until it is known how slow it is, one more stream at the most.
        let streams = run.tuner.decision().streams;
        let fit = (2.0 * world.link * rtt / 65536.0).max(1.0);
        assert!(
            f64::from(streams) <= 2.0 * fit,
            "{name}: {streams}\n{}",
            told(&run)
        );
    }
}

#[test]
fn a_link_that_was_slow_for_a_while_is_filled_again() {
    for seed in 0..20 {
        let rtt = [0.02, 0.05, 0.1, 0.15][seed % 4];
        let data = Data::Random;
        let world = World { rtt, data, ..WORLD };
        let events: [Event; 2] = [
            (20.0, |w| w.link = 5.0 * MBIT),
            (40.0, |w| w.link = 1000.0 * MBIT),
        ];
        let run = run(world, start(&world), seed as u64, 80.0, &events);
        for (from, to) in [(20.0, 40.0), (40.0, 80.0)] {
            let due = from + 3f64.max(20.0 * rtt);
            let (soon, later) = (run.mean(due, due + 2.0), run.mean(to - 5.0, to));
            assert!(
                soon >= 0.9 * later,
                "{rtt} s, {seed}: {soon:.3e} of {later:.3e} at {due} s\n{}",
                told(&run)
            );
        }
        assert!(
            run.mean(75.0, 80.0) >= 0.9 * world.link,
            "{rtt} s, {seed}\n{}",
            told(&run)
        );
    }
}

#[test]
fn the_memory_of_a_slow_link_does_not_slow_a_fast_one() {
    for rtt in [0.02, 0.05, 0.15] {
        let world = World {
            rtt,
            data: Data::Random,
            ..WORLD
        };
        let none = run(world, remembering(&world, None), 1, 10.0, &[]);
        let one = run(world, remembering(&world, Some(1)), 1, 10.0, &[]);
        let (none, one) = (none.mean(0.0, 10.0), one.mean(0.0, 10.0));
        assert!(one >= 0.95 * none, "{rtt} s: {one:.3e} and {none:.3e}");
    }
}
