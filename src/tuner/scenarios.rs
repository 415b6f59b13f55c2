//! The tuner against the simulator.

use super::sim::*;
use super::*;

fn show(name: &str, run: &Run) {
    for (at, it) in &run.adjustments {
        if let Some(r) = &it.reason {
            eprintln!("{name} {at:7.2}s {r}");
        }
    }
}

#[test]
fn explore() {
    let worlds: Vec<(&str, World)> = vec![
        (
            "lan",
            World {
                link: 1000.0 * MBIT,
                rtt: 0.0005,
                ..WORLD
            },
        ),
        (
            "lan-random",
            World {
                link: 1000.0 * MBIT,
                rtt: 0.0005,
                data: Data::Random,
                ..WORLD
            },
        ),
        (
            "unshaped",
            World {
                link: 8e9,
                rtt: 0.0002,
                here: 2.0,
                there: 2.0,
                ..WORLD
            },
        ),
        (
            "unshaped-random",
            World {
                link: 8e9,
                rtt: 0.0002,
                data: Data::Random,
                ..WORLD
            },
        ),
        ("wan50", World { rtt: 0.05, ..WORLD }),
        ("wan150", World { rtt: 0.15, ..WORLD }),
        (
            "wan150-random",
            World {
                rtt: 0.15,
                data: Data::Random,
                ..WORLD
            },
        ),
        (
            "lossy",
            World {
                link: 500.0 * MBIT,
                rtt: 0.15,
                loss: 0.001,
                data: Data::Random,
                ..WORLD
            },
        ),
        (
            "lossy-pages",
            World {
                link: 500.0 * MBIT,
                rtt: 0.15,
                loss: 0.001,
                ..WORLD
            },
        ),
        (
            "slow",
            World {
                link: 50.0 * MBIT,
                rtt: 0.08,
                ..WORLD
            },
        ),
        (
            "slow-2cpu",
            World {
                link: 50.0 * MBIT,
                rtt: 0.08,
                here: 2.0,
                there: 2.0,
                ..WORLD
            },
        ),
        (
            "windows",
            World {
                link: 10_000.0 * MBIT,
                rtt: 0.05,
                window: 1e6,
                data: Data::Random,
                ..WORLD
            },
        ),
        (
            "slow-write",
            World {
                write: 60e6,
                ..WORLD
            },
        ),
        (
            "slow-read",
            World {
                read: 60e6,
                ..WORLD
            },
        ),
        (
            "competing",
            World {
                competing: 8.0,
                rtt: 0.02,
                data: Data::Random,
                ..WORLD
            },
        ),
    ];
    for (name, world) in worlds {
        let run = run(world, start(&world), 1, 120.0, &[]);
        show(name, &run);
        let fin = run.mean(90.0, 120.0);
        let due = 2f64.max(30.0 * world.rtt);
        eprintln!(
            "== {name}: due {:.2} final {:.3e} best {:.3e} = {:.2} at due {:.2} changes {} {:?}",
            due,
            fin,
            run.best(),
            fin / run.best(),
            run.mean(due, due + 2.0) / fin,
            run.changes_since(0.0),
            run.tuner.decision()
        );
    }
}
