//! Tests of the tuner against a simulated copy: it finds good settings, follows changes, and
//! otherwise leaves the settings alone.

mod changing_links;
mod hours;
mod lzma;
mod polite;
mod slow_links;
mod standing_queues;

use proptest::prelude::*;

use super::sim::*;
use super::*;
use crate::outcome::Bottleneck;

/// Unshaped, between two virtual machines.
const UNSHAPED: World = World {
    link: 8e9,
    rtt: 0.0002,
    here: 2.0,
    there: 2.0,
    ..WORLD
};
const LAN: World = World {
    rtt: 0.0005,
    ..WORLD
};
const OCEAN: World = World { rtt: 0.15, ..WORLD };
const LOSSY: World = World {
    link: 500.0 * MBIT,
    rtt: 0.15,
    loss: 0.001,
    ..WORLD
};
const SLOW: World = World {
    link: 50.0 * MBIT,
    rtt: 0.08,
    here: 2.0,
    there: 2.0,
    ..WORLD
};
const WINDOWS: World = World {
    link: 10_000.0 * MBIT,
    rtt: 0.05,
    window: 1e6,
    ..WORLD
};

const EVERYWHERE: [(&str, World); 12] = [
    ("unshaped", UNSHAPED),
    (
        "unshaped, random",
        World {
            data: SimulatedData::Random,
            ..UNSHAPED
        },
    ),
    ("lan", LAN),
    (
        "lan, random",
        World {
            data: SimulatedData::Random,
            ..LAN
        },
    ),
    ("50 ms", World { rtt: 0.05, ..WORLD }),
    ("150 ms", OCEAN),
    (
        "150 ms, random",
        World {
            data: SimulatedData::Random,
            ..OCEAN
        },
    ),
    ("lossy", LOSSY),
    (
        "lossy, random",
        World {
            data: SimulatedData::Random,
            ..LOSSY
        },
    ),
    ("slow", SLOW),
    (
        "slow, text",
        World {
            data: SimulatedData::Text,
            ..SLOW
        },
    ),
    (
        "small windows, random",
        World {
            data: SimulatedData::Random,
            ..WINDOWS
        },
    ),
];

/// All adjustments of a run, as text.
fn told(run: &SimulatedRun) -> String {
    let lines = run.adjustments.iter().filter_map(|(at, adjustment)| {
        Some(format!("{at:8.2} s  {}", adjustment.reason.as_ref()?))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Asserts that from `due` on the copy reaches 90 % of its rate at the end.
fn has_found_its_way(name: &str, run: &SimulatedRun, due: f64, end: f64) {
    let last = run.mean(end - 10.0, end);
    let then = run.mean(due, due + 1.0);
    assert!(
        then >= 0.9 * last,
        "{name}: {then:.3e} of {last:.3e} at {due} s\n{}",
        told(run)
    );
}

#[test]
fn goodput_is_soon_what_it_stays_and_near_the_best_that_could_be() {
    for (name, world) in EVERYWHERE {
        let run = run(world, start(&world), 1, 60.0, &[]);
        let soon: f64 = if world.rtt < 0.005 { 0.5 } else { 2.0 };
        has_found_its_way(name, &run, soon.max(30.0 * world.rtt), 60.0);
        let (last, best) = (run.mean(50.0, 60.0), run.best());
        assert!(
            last >= 0.9 * best,
            "{name}: {last:.3e} of {best:.3e}\n{}",
            told(&run)
        );
    }
}

#[test]
fn whatever_changes_is_followed_within_three_seconds_or_twenty_round_trips() {
    let stories: [(&str, World, Event); 10] = [
        ("a tenth of the link", WORLD, (30.0, |w| w.link /= 10.0)),
        (
            "ten times the link",
            World {
                link: 100.0 * MBIT,
                ..WORLD
            },
            (30.0, |w| w.link *= 10.0),
        ),
        ("a tenth of the ocean", OCEAN, (30.0, |w| w.link /= 10.0)),
        ("processors get busy", WORLD, (30.0, |w| w.here = 0.5)),
        (
            "processors get free",
            World { here: 0.5, ..SLOW },
            (30.0, |w| w.here = 4.0),
        ),
        (
            "the far processors get busy",
            LAN,
            (30.0, |w| w.there = 0.4),
        ),
        (
            "the destination slows down",
            WORLD,
            (30.0, |w| w.write = 50e6),
        ),
        ("the source slows down", WORLD, (30.0, |w| w.read = 50e6)),
        (
            "text becomes random",
            WORLD,
            (30.0, |w| w.data = SimulatedData::Random),
        ),
        ("others want half", OCEAN, (30.0, |w| w.competing = 16.0)),
    ];
    for (name, world, event) in stories {
        let mut start = start(&world);
        start.processors_here = 4;
        let run = run(world, start, 2, 90.0, &[event]);
        has_found_its_way(name, &run, 30.0 + 3f64.max(20.0 * world.rtt), 90.0);
    }
}

#[test]
fn random_data_leaves_the_method_ready_for_what_comes_behind_it() {
    let events: [Event; 2] = [
        (20.0, |w| w.data = SimulatedData::Random),
        (40.0, |w| w.data = SimulatedData::Pages),
    ];
    let run = run(WORLD, start(&WORLD), 3, 60.0, &events);
    assert!(
        run.mean(30.0, 40.0) >= 0.95 * WORLD.link,
        "raw, as fast as the link"
    );
    assert!(
        run.mean(41.0, 42.0) >= 0.9 * run.mean(10.0, 20.0),
        "{}",
        told(&run)
    );
}

/// A connection through ssh has no round trip, and a direct one may come up later.
#[test]
fn a_round_trip_that_was_guessed_is_forgotten_when_the_first_is_measured() {
    for rtt in [0.7, 2.0] {
        let world = World {
            rtt,
            data: SimulatedData::Random,
            ..WORLD
        };
        let known = run(world, start(&world), 1, 60.0, &[]);
        let guess = Start {
            round_trip: Duration::from_millis(20),
            is_guess: true,
            ..start(&world)
        };
        let guessed = run(world, guess, 1, 60.0, &[]);
        let streams = |run: &SimulatedRun| run.tuner.decision().streams;
        assert!(
            streams(&guessed) >= 16 && streams(&guessed) == streams(&known),
            "{rtt} s: {}\n{}",
            streams(&guessed),
            told(&guessed)
        );
        let (made, best) = (guessed.mean(0.0, 60.0), known.mean(0.0, 60.0));
        assert!(made >= 0.95 * best, "{rtt} s: {made:.3e} of {best:.3e}");
    }
}

#[test]
fn a_slow_disk_is_no_reason_to_change_anything() {
    for world in [
        World {
            write: 40e6,
            ..WORLD
        },
        World {
            read: 40e6,
            ..WORLD
        },
    ] {
        let run = run(world, start(&world), 4, 600.0, &[]);
        assert_eq!(run.changes_since(0.0), 0, "{}", told(&run));
    }
    let run = run(
        World {
            write: 40e6,
            ..WORLD
        },
        start(&WORLD),
        4,
        60.0,
        &[],
    );
    assert_eq!(run.tuner.verdict().limit, Some(Bottleneck::DestinationDisk));
}

/// Waiting frames were encoded by an earlier decision.
#[test]
fn the_slower_the_link_the_fewer_frames_wait_for_it() {
    let queue = |world: World, seconds| {
        let run = run(world, start(&world), 5, seconds, &[]);
        run.tuner.decision().queue
    };
    assert_eq!(queue(WORLD, 0.05), QUEUE_MIN, "nothing is known");
    assert_eq!(queue(WORLD, 20.0), 2 * 8);
    assert_eq!(queue(SLOW, 20.0), QUEUE_MIN);
}

#[test]
fn a_full_link_that_others_use_gets_no_more_streams() {
    let world = World {
        competing: 8.0,
        data: SimulatedData::Random,
        ..WORLD
    };
    let run = run(world, start(&world), 5, 300.0, &[]);
    assert!(run.tuner.decision().streams <= 8, "{}", told(&run));
}

#[test]
fn loss_is_answered_by_bbr_where_it_may_be_and_by_streams_where_not() {
    let world = World {
        data: SimulatedData::Random,
        ..LOSSY
    };
    let story = |change: fn(&mut Start)| {
        let mut start = start(&world);
        change(&mut start);
        run(world, start, 6, 30.0, &[])
    };
    let decide = |change| story(change).tuner.decision();
    let with_bbr = story(|start| start.may_bbr = true);
    let bbr = with_bbr.tuner.decision();
    assert_eq!((bbr.congestion, bbr.streams), (Congestion::Bbr, 16));
    // The tuner tries no more: each takes the free bandwidth by itself.
    let most = with_bbr.adjustments.iter().map(|it| it.1.decision.streams);
    assert_eq!(most.max(), Some(16), "{}", told(&with_bbr));
    // Connections that begin with it behave as if it had been chosen.
    let begun = story(|start| start.congestion = Congestion::Bbr);
    let most = begun.adjustments.iter().map(|it| it.1.decision.streams);
    assert_eq!(most.max(), Some(16), "{}", told(&begun));
    assert_eq!(begun.tuner.decision().congestion, Congestion::Bbr);
    let plain = decide(|_| ());
    assert_eq!((plain.congestion, plain.streams), (Congestion::System, 64));
    let nice = decide(|start| (start.may_bbr, start.nice) = (true, true));
    assert_eq!(nice.congestion, Congestion::System);
    let forced = decide(|start| (start.may_bbr, start.forced.congestion) = (true, true));
    assert_eq!(forced.congestion, Congestion::System);
}

#[test]
fn streams_that_cost_processors_more_than_they_bring_go() {
    // Processors are the bottleneck, and each connection costs processor time.
    let world = World {
        here: 0.5,
        there: 2.0,
        data: SimulatedData::Random,
        ..UNSHAPED
    };
    let mut start = start(&world);
    start.remembered = Some(Remembered {
        round_trip_us: 200,
        streams: Some(16),
        method: None,
    });
    let run = run(world, start, 7, 120.0, &[]);
    assert!(run.tuner.decision().streams <= 8, "{}", told(&run));
}

#[test]
fn what_was_forced_stays() {
    for (name, world) in EVERYWHERE {
        let mut start = start(&world);
        start.may_bbr = true;
        start.forced = Forced {
            streams: Some(3),
            compress: Some(Method::Lz4),
            congestion: true,
            ..Forced::default()
        };
        let run = run(world, start, 8, 60.0, &[]);
        assert_eq!(run.changes_since(0.0), 0, "{name}\n{}", told(&run));
    }
}

#[test]
fn a_rate_limit_is_worth_compressing_for_but_not_more_streams() {
    let mut start = start(&WORLD);
    start.forced.rate_limit = Some(10_000_000);
    let run = run(WORLD, start, 9, 60.0, &[]);
    assert_eq!(run.tuner.decision().streams, 8, "{}", told(&run));
    assert!(run.mean(50.0, 60.0) > 26e6, "{}", told(&run));
    assert_eq!(run.tuner.verdict().limit, Some(Bottleneck::RateLimit));
}

#[test]
fn a_rate_limit_that_is_lifted_holds_nothing_back_any_more() {
    let mut limited = start(&WINDOWS);
    limited.forced.rate_limit = Some(10_000_000);
    let lift: Event = (30.0, |world| world.rate_limit = None);
    let run = run(WINDOWS, limited, 9, 120.0, &[lift]);
    let free = sim::run(WINDOWS, start(&WINDOWS), 9, 90.0, &[]);
    // More connections are needed for their windows as soon as the limit is lifted.
    let streams = free.tuner.decision().streams;
    assert!(streams > 8, "{}", told(&free));
    assert_eq!(run.tuner.decision().streams, streams, "{}", told(&run));
    assert!(
        run.mean(100.0, 120.0) > 0.9 * free.mean(70.0, 90.0),
        "{}",
        told(&run)
    );
    assert_ne!(run.tuner.verdict().limit, Some(Bottleneck::RateLimit));
    let remembered = run.tuner.remembered().expect("it took long enough");
    assert_eq!(remembered.streams, Some(streams));
}

#[test]
fn a_low_rate_limit_leaves_few_streams_until_it_is_lifted() {
    let limited = |limit: u64, streams: Option<u16>| {
        let mut limited = start(&OCEAN);
        limited.forced.rate_limit = Some(limit);
        limited.forced.streams = streams;
        let lift: Event = (30.0, |world| world.rate_limit = None);
        run(OCEAN, limited, 9, 60.0, &[lift])
    };
    let free = run(OCEAN, start(&OCEAN), 9, 60.0, &[]);
    for (limit, most) in [(200_000, 2), (1_000_000, 3)] {
        let run = limited(limit, None);
        let before = run.adjustments.iter().filter(|(at, _)| *at < 30.0);
        let before = before.map(|(_, it)| (it.decision.streams, it.decision.ready));
        assert_eq!(before.max(), Some((most, most)), "{}", told(&run));
        let streams = run.tuner.decision().streams;
        assert_eq!(streams, free.tuner.decision().streams, "{}", told(&run));
        let (soon, goodput) = (run.mean(33.0, 35.0), free.mean(33.0, 35.0));
        assert!(
            soon >= 0.9 * goodput,
            "{soon:.3e} of {goodput:.3e}\n{}",
            told(&run)
        );
    }
    assert_eq!(limited(200_000, Some(8)).tuner.decision().streams, 8);
}

#[test]
fn a_rate_limit_that_comes_later_is_no_reason_for_more_streams() {
    let limit: Event = (60.0, |world| world.rate_limit = Some(1_000_000));
    let run = run(WORLD, start(&WORLD), 9, 300.0, &[limit]);
    let (before, after): (Vec<_>, Vec<_>) =
        (run.adjustments.iter()).partition(|(at, _)| *at < 60.0);
    let (_, then) = before.last().expect("it was tuned");
    let most = after.iter().map(|(_, it)| it.decision.streams).max();
    assert!(most <= Some(then.decision.streams), "{}", told(&run));
    assert_eq!(run.tuner.decision().streams, 3, "{}", told(&run));
    let verdict = run.tuner.verdict();
    assert_eq!(verdict.limit, Some(Bottleneck::RateLimit));
    assert!(verdict.sentence.contains("--bwlimit (1.00 MB/s;"));
    // Settings for a megabyte a second do not suit the whole link.
    let remembered = run.tuner.remembered().expect("it took long enough");
    assert_eq!(remembered.streams, Some(then.decision.streams));
    assert_eq!(remembered.method, Some(then.decision.method));
}

/// It cannot tell a slow link from one that others use.
#[test]
fn a_polite_copy_leaves_no_settings_to_the_next_copy() {
    let remembered = |polite| {
        let start = Start {
            polite,
            ..start(&SLOW)
        };
        let run = run(SLOW, start, 9, 10.0, &[]);
        run.tuner.remembered().expect("it took long enough")
    };
    assert!(remembered(false).method.is_some());
    let Remembered {
        streams, method, ..
    } = remembered(true);
    assert_eq!((streams, method), (None, None));
}

#[test]
fn a_limit_that_several_copies_share_is_seen_by_each() {
    let mut tuner = Tuner::new(start(&WORLD)).0;
    for n in 1..200u64 {
        let now = Duration::from_millis(n * 250);
        let sample = Sample {
            // A fifth of the bytes of all copies.
            carried_bytes: n * 500_000,
            wire_bytes: n * 500_000,
            raw_bytes: n * 500_000,
            acked_bytes: n * 500_000,
            frames: n,
            link_busy: now,
            rate_limit: Some(10_000_000),
            admitted_bytes: n * 2_500_000,
            round_trip: Duration::from_millis(20),
            streams: 8,
            ..Sample::default()
        };
        let adjusted = tuner.on_sample(now, &sample);
        let streams = adjusted.map(|it| it.decision.streams);
        assert!(streams.is_none_or(|streams| streams <= 8), "at {now:?}");
    }
    assert_eq!(tuner.verdict().limit, Some(Bottleneck::RateLimit));
}

#[test]
fn the_next_copy_starts_where_the_last_one_ended() {
    let first = run(LOSSY, start(&LOSSY), 10, 60.0, &[]);
    let mut next = start(&LOSSY);
    next.remembered = first.tuner.remembered();
    let (_, decision) = Tuner::new(next.clone());
    let last = first.tuner.decision();
    assert_eq!(decision.method, last.method);
    let second = run(LOSSY, next, 11, 60.0, &[]);
    // A few connections first, and more as the round trips show that the link is the same.
    let streams_at = |at: f64| {
        let before = second
            .adjustments
            .iter()
            .take_while(|(then, _)| *then <= at);
        before.last().map(|(_, it)| it.decision.streams)
    };
    assert_eq!(decision.streams, AT_WORK_FIRST);
    assert_eq!(streams_at(1.5), Some(last.streams), "{}", told(&second));
    assert!(
        second.mean(2.0, 3.0) >= 0.9 * second.mean(50.0, 60.0),
        "{}",
        told(&second)
    );
}

proptest! {
    /// The receiver's counters come from a peer and may have any value.
    #[test]
    fn no_peer_can_say_what_upsets_it(words in prop::collection::vec(any::<[u64; 6]>(), 1..60)) {
        let (mut tuner, _) = Tuner::new(start(&WORLD));
        for (at, [a, b, c, d, e, window]) in words.into_iter().enumerate() {
            let raw = 1_000_000 * at as u64;
            let far = ReceiverSample {
                elapsed: Duration::from_nanos(a).saturating_mul((b % 1000) as u32 * 1_000_000),
                workers_busy: Duration::from_secs(b),
                decode_busy: Duration::from_secs(c),
                write_busy: Duration::from_secs(d),
                waits: Duration::from_nanos(e),
            };
            let sample = Sample {
                acked_bytes: a,
                raw_bytes: raw,
                wire_bytes: raw / 2,
                carried_bytes: raw / 2,
                round_trip: Duration::from_nanos(e >> (b % 64)),
                receive_window: window,
                link_busy: Duration::from_millis(250) * at as u32,
                far,
                ..Sample::default()
            };
            if let Some(it) = tuner.on_sample(Duration::from_millis(250) * at as u32, &sample) {
                prop_assert!((1..=STREAMS_MAX).contains(&it.decision.streams));
                prop_assert!(it.decision.in_flight <= IN_FLIGHT_MAX);
            }
            tuner.verdict();
        }
    }
}
