//! Long queues in front of slow links: the copy leaves them empty, unless others fill them.

use super::slow_links::{RATES, slow};
use super::*;

fn bloated(mbit: f64, rtt: f64) -> World {
    World {
        queue_s: 2.0,
        ..slow(mbit, rtt)
    }
}

#[test]
fn a_slow_link_is_full_with_a_short_queue() {
    for (seed, (mbit, rtt)) in RATES[..3]
        .iter()
        .flat_map(|mbit| [0.02, 0.1, 0.3].map(|rtt| (*mbit, rtt)))
        .enumerate()
    {
        let world = bloated(mbit, rtt);
        let run = run(world, start(&world), seed as u64, 60.0, &[]);
        let name = format!("{mbit} Mbit/s, {rtt} s");
        let (goodput, held) = (run.mean(5.0, 60.0), run.most_in_flight_s(10.0, 60.0));
        assert!(goodput >= 0.97 * world.link, "{name}: {goodput}");
        assert!(
            held <= 1.3 * (1.5 * rtt + 0.3),
            "{name}: {held} s under way"
        );
        assert!(run.overhead <= 0.005, "{name}: {} sent again", run.overhead);
    }
}

#[test]
fn with_others_in_the_queue_the_copy_takes_its_share() {
    for mbit in &RATES[..3] {
        let world = bloated(*mbit, 0.03);
        let events: [Event; 2] = [
            (20.0, |world| world.competing = 1.0),
            (60.0, |world| world.competing = 0.0),
        ];
        let run = run(world, start(&world), 1, 90.0, &events);
        let (share, alone) = (
            run.mean(30.0, 60.0) / world.link,
            run.mean(65.0, 90.0) / world.link,
        );
        assert!(share >= 0.4, "{mbit} Mbit/s: {share}");
        assert!(alone >= 0.97, "{mbit} Mbit/s: {alone}");
    }
}

/// Each connection holds four packets in any case. A round trip takes up to 20 s here, so the share
/// grows slowly.
#[test]
fn with_others_in_the_queue_of_the_slowest_links_the_copy_takes_its_share_in_the_end() {
    for (seed, mbit) in [0.064, 0.128, 0.19].into_iter().enumerate() {
        let world = bloated(mbit, 0.03);
        let events: [Event; 2] = [
            (20.0, |world| world.competing = 1.0),
            (320.0, |world| world.competing = 0.0),
        ];
        let run = run(world, start(&world), seed as u64, 350.0, &events);
        let (share, alone) = (
            run.mean(170.0, 320.0) / world.link,
            run.mean(325.0, 350.0) / world.link,
        );
        assert!(share >= 0.35, "{mbit} Mbit/s: {share}");
        assert!(alone >= 0.97, "{mbit} Mbit/s: {alone}");
    }
}

#[test]
fn a_link_that_becomes_slower_keeps_a_short_queue() {
    for offset in [0.0, 0.1, 0.2] {
        let mut world = bloated(2.0, 0.02);
        let from = start(&world);
        let slower = World {
            link: 0.5 * MBIT,
            queue_s: 2.4,
            ..world
        };
        let run = run_through(world, from, 1, 60.0, &[(20.0 + offset, slower)]);
        world = run.world;
        let (goodput, held) = (run.mean(25.0, 60.0), run.most_in_flight_s(28.0, 60.0));
        assert!(run.tuner.held_max().is_some(), "{offset}");
        assert!(goodput >= 0.97 * world.link, "{offset}: {goodput}");
        assert!(held <= 0.45, "{offset}: {held} s under way");
        assert!(
            run.overhead <= 0.005,
            "{offset}: {} sent again",
            run.overhead
        );
    }
}

#[test]
fn a_path_that_becomes_longer_under_the_limit_is_filled_again() {
    // The limit allows 0.33 s.
    for rtt in [0.3, 0.36, 0.6] {
        let mut world = bloated(2.0, 0.02);
        let from = start(&world);
        world.rtt = rtt;
        let run = run_through(bloated(2.0, 0.02), from, 1, 80.0, &[(20.0, world)]);
        let made = run.mean(40.0, 80.0) / world.link;
        assert!(made >= 0.97, "{rtt} s: {made}");
    }
}

#[test]
fn a_link_that_becomes_faster_is_filled_soon() {
    let world = bloated(2.0, 0.03);
    let events: [Event; 1] = [(20.0, |world| world.link = 100.0 * MBIT)];
    let run = run(world, start(&world), 1, 40.0, &events);
    let made = run.mean(23.0, 40.0) / run.world.link;
    assert!(made >= 0.9, "{made}");
    assert_eq!(run.tuner.held_max(), None);
}
