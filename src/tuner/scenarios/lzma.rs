//! LZMA is used on slow links, and only while they are slow.

use super::slow_links::slow;
use super::*;

const RATES: [f64; 6] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0];
const ROUND_TRIPS: [f64; 3] = [0.02, 0.1, 0.3];

/// Bytes of a frame of pages compressed by zstd 3.
const FRAME: f64 = 400e3;

#[test]
fn what_shrinks_goes_by_lzma_over_a_slow_link() {
    for seed in 0..36 {
        let (mbit, rtt) = (RATES[seed % 6], ROUND_TRIPS[seed / 6 % 3]);
        let data = [SimulatedData::Pages, SimulatedData::Text][seed / 18 % 2];
        let world = World {
            data,
            ..slow(mbit, rtt)
        };
        let run = run(world, start(&world), seed as u64, 120.0, &[]);
        let name = format!("{data:?}, {mbit} Mbit/s, {rtt} s, seed {seed}");
        let method = run.tuner.decision().method;
        assert!(
            matches!(method, Method::Lzma(_)),
            "{name}: {method}\n{}",
            told(&run)
        );
        let (goodput, best) = (run.mean(70.0, 120.0), run.best());
        assert!(
            goodput >= 0.9 * best,
            "{name}: {goodput:.3e} of {best:.3e}\n{}",
            told(&run)
        );
        // Each step takes a frame or two, and at 0.5 Mbit/s a frame takes 6 s.
        let due = 5.0 + 6.0 * FRAME / world.link;
        let at = run
            .adjustments
            .iter()
            .find(|(_, it)| matches!(it.decision.method, Method::Lzma(_)));
        let at = at.map(|(at, _)| *at);
        assert!(at.is_some_and(|at| at <= due), "{name}\n{}", told(&run));
    }
}

#[test]
fn packs_go_as_one_over_a_slow_link_alone() {
    for (mbit, packs) in [(0.5, 1..=1), (10.0, 2..=4), (20.0, 2..=4), (1000.0, 1..=1)] {
        let world = World {
            data: SimulatedData::Text,
            ..slow(mbit, 0.03)
        };
        let run = run(world, start(&world), 0, 30.0, &[]);
        let found = run.tuner.decision().packs;
        assert!(
            packs.contains(&found),
            "{mbit} Mbit/s: {found}\n{}",
            told(&run)
        );
    }
}

#[test]
fn a_link_that_becomes_fast_gets_its_cheap_method_back_at_once() {
    for seed in 0..20 {
        let rtt = [0.02, 0.05, 0.1, 0.15][seed % 4];
        let world = World {
            link: 5.0 * MBIT,
            rtt,
            here: 2.0,
            there: 2.0,
            ..WORLD
        };
        let faster: Event = (30.0, |w| w.link = 1000.0 * MBIT);
        let run = run(world, start(&world), seed as u64, 60.0, &[faster]);
        let due = 30.0 + 3f64.max(20.0 * rtt);
        let (soon, later) = (run.mean(due, due + 2.0), run.mean(50.0, 60.0));
        // On a far link a first step down comes before the link is seen to be idle.
        let least = if rtt > 0.1 { 0.75 } else { 0.9 };
        assert!(
            soon >= least * later,
            "{rtt} s, {seed}: {soon:.3e} of {later:.3e} at {due} s\n{}",
            told(&run)
        );
    }
}

#[test]
fn where_processors_are_too_slow_for_lzma_the_best_that_keeps_up_takes_its_place() {
    for seed in 0..8 {
        let world = World {
            data: SimulatedData::Text,
            ..slow(20.0, 0.03)
        };
        let busy: Event = (20.0, |w| w.here = 0.5);
        let run = run(world, start(&world), seed, 40.0, &[busy]);
        let mut fallen = run.adjustments.iter().skip_while(|(_, it)| {
            let reason = it.reason.as_deref().unwrap_or_default();
            !reason.contains("the processors are too slow")
        });
        let to = fallen.next().map(|(_, it)| it.decision.method);
        assert_eq!(to, Some(Method::Zstd(9)), "{seed}\n{}", told(&run));
    }
}

/// A copy of pages once took 43 s where zstd 9 alone would have taken 18 s.
#[test]
fn processors_that_are_busy_are_no_worse_for_lzma() {
    for seed in 0..24 {
        let (mbit, rtt) = ([5.0, 10.0, 20.0][seed % 3], [0.03, 0.2][seed / 3 % 2]);
        let here = [0.05, 0.2, 0.5, 1.0][seed / 6];
        let world = World {
            data: SimulatedData::Pages,
            here,
            ..slow(mbit, rtt)
        };
        let mut start = start(&world);
        start.processors_here = 2;
        let mut without = start.clone();
        without.may_lzma = false;
        let with = run(world, start, seed as u64, 60.0, &[]);
        let without = run(world, without, seed as u64, 60.0, &[]);
        let name = format!("{mbit} Mbit/s, {rtt} s, {here} processors");
        let (made, before) = (with.mean(0.0, 60.0), without.mean(0.0, 60.0));
        assert!(
            made >= 0.9 * before,
            "{name}: {made:.3e} and {before:.3e}\n{}",
            told(&with)
        );
    }
}
