//! Links that change during a copy or that others use for a while, without a memory and with the
//! memory of other links.

use super::slow_links::{RATES, holds_s, remembering, slow};
use super::*;

const MEMORIES: [Option<u16>; 3] = [None, Some(128), Some(1)];

/// By when the copy must have adapted to a change: max(3 s, 20 round trips) later.
fn due(at: f64, world: &World) -> f64 {
    at + 3f64.max(20.0 * world.rtt)
}

/// The rate of a new copy in this world after it has found its settings.
fn fresh(world: World, seed: usize) -> f64 {
    run(world, start(&world), seed as u64, 20.0, &[]).mean(10.0, 20.0)
}

/// Runs a copy for 60 s through a world that changes at 20 s and back at 40 s, and compares it
/// with copies that begin in the world of that moment.
fn follows(name: &str, world: World, memory: Option<u16>, seed: usize, change: fn(&mut World)) {
    let mut other = world;
    change(&mut other);
    // A function pointer cannot hold the former world.
    let events: [(f64, World); 2] = [(20.0, other), (40.0, world)];
    let run = run_through(
        world,
        remembering(&world, memory),
        seed as u64,
        60.0,
        &events,
    );
    let name = format!("{name}, {memory:?}, seed {seed}");
    let (shortest, then) = (run.tuner.network.round_trip_min, world.rtt);
    assert!(
        shortest.as_secs_f64() <= 1.05 * then,
        "{name}: {shortest:?} is taken for the shortest round trip\n{}",
        told(&run)
    );
    for (from, world) in events {
        let due = due(from, &world);
        let (soon, fresh) = (run.mean(due, due + 2.0), fresh(world, seed));
        assert!(
            soon >= 0.9 * fresh,
            "{name}: {soon:.3e} at {due} s, a fresh copy makes {fresh:.3e}\n{}",
            told(&run)
        );
        // The size of windows on a fast link is not modelled.
        if world.link >= 100.0 * MBIT {
            continue;
        }
        let (most, holds) = (run.most_in_flight_s(due, from + 20.0), holds_s(&world));
        assert!(
            most <= 1.5 * holds,
            "{name}: {most:.2} s under way after {due} s, the link holds {holds:.2} s\n{}",
            told(&run)
        );
    }
    assert!(
        run.overhead <= 0.03 || world.link >= 100.0 * MBIT,
        "{name}: {:.3} sent again\n{}",
        run.overhead,
        told(&run)
    );
}

#[test]
fn a_path_that_becomes_longer_is_told_from_a_queue() {
    for seed in 0..100 {
        let mbit = [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0][seed % 7];
        let rtt = [0.02, 0.05, 0.1][seed / 7 % 3];
        let memory = MEMORIES[seed / 21 % 3];
        let name = format!("{mbit} Mbit/s, {rtt} s to 300 ms");
        follows(&name, slow(mbit, rtt), memory, seed, |w| w.rtt = 0.3);
    }
}

#[test]
fn a_link_that_becomes_slower_is_not_taken_for_a_longer_path() {
    for seed in 0..100 {
        let rtt = [0.02, 0.1, 0.3][seed / 6 % 3];
        let (mbit, queue_s) = (RATES[seed % 6], [0.0, 2.0][seed % 2]);
        let memory = MEMORIES[seed / 18 % 3];
        let world = World {
            queue_s,
            ..slow(mbit, rtt)
        };
        let name = format!("{mbit} Mbit/s to a quarter, {rtt} s, queue {queue_s} s");
        follows(&name, world, memory, seed, |w| w.link /= 4.0);
    }
}

#[test]
fn a_link_that_begins_to_lose_packets_is_filled_as_a_fresh_copy_does() {
    for seed in 0..40 {
        let (mbit, rtt) = [(5.0, 0.1), (20.0, 0.1), (50.0, 0.02)][seed % 3];
        let memory = MEMORIES[seed / 3 % 3];
        let name = format!("{mbit} Mbit/s, {rtt} s, 2 % lost");
        follows(&name, slow(mbit, rtt), memory, seed, |w| w.loss = 0.02);
    }
}

#[test]
fn a_fast_link_that_begins_to_lose_packets_is_filled_in_time() {
    for seed in 0..100 {
        let mbit = [100.0, 500.0, 1000.0][seed % 3];
        let rtt = [0.02, 0.05, 0.1, 0.15, 0.3][seed / 3 % 5];
        let may_bbr = seed / 15 % 2 == 1;
        // Windows take 3 s to shrink, and the number of connections takes 2.5 s to reach its
        // maximum.
        if mbit * rtt >= 300.0 && !may_bbr {
            continue;
        }
        let world = World {
            link: mbit * MBIT,
            rtt,
            data: SimulatedData::Random,
            ..WORLD
        };
        let lossy = World {
            loss: 0.02,
            ..world
        };
        let start = |world| Start {
            may_bbr,
            ..start(world)
        };
        let due = due(20.0, &lossy);
        let run = run_through(world, start(&world), seed as u64, 30.0, &[(20.0, lossy)]);
        let fresh = super::run(lossy, start(&lossy), seed as u64, 20.0, &[]).mean(10.0, 20.0);
        let soon = run.mean(due, due + 2.0);
        assert!(
            soon >= 0.9 * fresh,
            "{mbit} Mbit/s, {rtt} s, bbr {may_bbr}, seed {seed}: {soon:.3e} at {due} s, a fresh copy \
             makes {fresh:.3e}\n{}",
            told(&run)
        );
    }
}

/// Other flows begin at 20 s and end at 40 s.
#[test]
fn other_flows_get_their_part_of_a_slow_link_and_leave_it_behind() {
    for seed in 0..100 {
        let (mbit, rtt) = (RATES[seed / 2 % 6], [0.02, 0.03, 0.1, 0.3][seed / 12 % 4]);
        let world = slow(mbit, rtt);
        let memory = MEMORIES[seed / 24 % 3];
        let loss = if seed % 5 == 4 { 0.01 } else { 0.0 };
        let world = World { loss, ..world };
        let competing = [1.0, 8.0][seed % 2];
        let others = World { competing, ..world };
        let worlds = [(20.0, others), (40.0, world)];
        let start = remembering(&world, memory);
        let run = run_through(world, start, seed as u64, 60.0, &worlds);
        let name = format!("{mbit} Mbit/s, {rtt} s, {competing} others, {memory:?}, seed {seed}");
        let at_work = |from: f64, to: f64| {
            let before = run.adjustments.iter().rfind(|(at, _)| *at < from);
            let within = run
                .adjustments
                .iter()
                .filter(|(at, _)| (from..to).contains(at));
            let most = before
                .into_iter()
                .chain(within)
                .map(|(_, it)| it.decision.streams);
            most.max().expect("it was tuned")
        };
        // Trials of twice as many connections are over by then, except the one after 30 s.
        let (before, beside) = (at_work(20.0, 20.0), at_work(38.0, 40.0));
        assert!(
            beside <= 2 * before,
            "{name}: {beside} streams beside others, {before} before\n{}",
            told(&run)
        );
        let due = due(40.0, &world);
        let then = run.mean(due, due + 2.0);
        // The model's windows grow by a segment in a round trip; cubic's grow faster.
        assert!(
            then >= 0.8 * world.link,
            "{name}: {then:.3e} at {due} s\n{}",
            told(&run)
        );
    }
}

#[test]
fn a_link_that_was_slow_for_a_while_is_filled_again() {
    for seed in 0..20 {
        let rtt = [0.02, 0.05, 0.1, 0.15][seed % 4];
        let data = SimulatedData::Random;
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
