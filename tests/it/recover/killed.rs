//! Copies that are killed at random moments chosen by a seed, at either end in turn. The same
//! command completes them, and the bytes sent twice are bounded. `FASTCP_KILL=n` plays one
//! moment.

use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::support::chaos::Script;
use crate::support::cut_short::bytes_on_disk;
use crate::support::procs::until;
use crate::support::storm::Storm;
use crate::support::*;

/// Moments at which a copy is killed, for each end.
const MOMENTS: u64 = 6;

/// Copies at once.
const AT_ONCE: u64 = 8;

/// 6 MB/s, so that a copy lasts long enough to be killed at any point.
const KBITS: &str = "48000";
const BYTES_PER_S: u64 = 48_000 * 1024 / 8;

/// `--memory`: it holds data that was received and not yet written.
const MEMORY: u64 = 16 << 20;
const STREAMS: u64 = 2;

/// Bytes of one stream that the kernel may hold, sent and not yet received. Here a stream passes
/// through two connections. Each starts with about the default of `net.ipv4.tcp_wmem` and
/// `tcp_rmem`, since the sender limits the rate.
const SOCKETS: u64 = 2 << 20;

/// A source that was written shortly before its copy cannot be recognized by its times, so a
/// resume would send its finished files again.
const AGE: Duration = Duration::from_millis(3200);

/// The most bytes that are sent and not yet written when a copy is killed.
const UNWRITTEN_MAX: u64 = MEMORY + STREAMS * SOCKETS;

#[derive(Debug)]
struct Moment {
    way: Way,
    kills_client: bool,
    is_tree: bool,
    /// The streams have carried this many bytes.
    at: u64,
    /// The bytes of the whole copy.
    size: u64,
}

impl Moment {
    fn of(number: u64) -> Moment {
        let chance = noise(number ^ 0x4B11_0000, 4);
        let per_mille = 20 + u64::from(u16::from_le_bytes([chance[0], chance[1]])) % 950;
        let size = 48 << 20;
        Moment {
            way: [Way::LocalPush, Way::LocalPull][number as usize % 2],
            kills_client: number & 2 == 0,
            is_tree: number & 4 == 0,
            at: size * per_mille / 1000,
            size,
        }
    }
}

#[test]
fn a_copy_that_is_killed_at_any_moment_is_finished_by_the_same_command() {
    let chosen = std::env::var("FASTCP_KILL").ok();
    if let Some(number) = chosen.and_then(|number| number.parse().ok()) {
        return play(number);
    }
    std::thread::scope(|scope| {
        for lane in 0..AT_ONCE {
            scope.spawn(move || (lane..2 * MOMENTS).step_by(AT_ONCE as usize).for_each(play));
        }
    });
}

fn play(number: u64) {
    let moment = Moment::of(number);
    // The test harness shows this if the test fails.
    eprintln!("FASTCP_KILL={number}: {moment:?}");
    Case::run(moment.way, |case| killed_and_finished(case, &moment));
}

#[test]
fn a_copy_that_is_killed_again_and_again_is_finished() {
    for way in [Way::LocalPush, Way::LocalPull] {
        let moment = |kills_client| Moment {
            way,
            kills_client,
            is_tree: true,
            // Late kills leave enough for the last one.
            at: 6 << 20,
            size: 48 << 20,
        };
        Case::run(way, |case| {
            sources(case, &moment(true));
            for kills_client in [true, false, true] {
                killed(case, &moment(kills_client)).expect("it was not over");
            }
            finished(case);
        });
    }
}

fn killed_and_finished(case: &Case, moment: &Moment) {
    sources(case, moment);
    let Some(Killed { sent, unwritten }) = killed(case, moment) else {
        return assert_same(case.src.path("it"), case.dst.path("it"), Also::Nothing);
    };
    let again = (sent + finished(case)).saturating_sub(moment.size);
    eprintln!(
        "unwritten: {} KiB, sent again: {} KiB, {moment:?}",
        unwritten >> 10,
        again >> 10
    );
    assert!(
        again <= unwritten.min(UNWRITTEN_MAX) + 2 * BYTES_PER_S,
        "{again} bytes were sent again, {unwritten} were not yet written, of {moment:?}"
    );
}

/// The bytes that the streams of a killed copy carried, and the unwritten part of them.
struct Killed {
    sent: u64,
    unwritten: u64,
}

/// None if the copy ended before it was killed: on a busy machine the last moments are too late.
fn killed(case: &Case, moment: &Moment) -> Option<Killed> {
    let storm = Storm::new(case, &Script::calm());
    let run = copying(case, &storm).args(["-l", KBITS]).start();
    until("so many bytes have gone", || {
        (storm.bytes() >= moment.at).then_some(())
    });
    let unwritten = storm.bytes().saturating_sub(bytes_on_disk(&case.dst.0));
    let is_killed = if moment.kills_client {
        run.signal(Signal::KILL);
        true
    } else {
        let server = case.servers().pop();
        server.is_some_and(|it| kill_process(it.pid, Signal::KILL).is_ok())
    };
    let done = run.wait();
    if !is_killed {
        done.succeeds();
    }
    let sent = storm.bytes();
    storm.end();
    (done.code != Some(0)).then_some(Killed { sent, unwritten })
}

/// Completes the copy; returns the bytes that this took.
fn finished(case: &Case) -> u64 {
    let storm = Storm::new(case, &Script::calm());
    copying(case, &storm).run().succeeds();
    let sent = storm.bytes();
    storm.end();
    assert_same(case.src.path("it"), case.dst.path("it"), Also::Nothing);
    sent
}

fn copying(case: &Case, storm: &Storm) -> Run {
    let (memory, streams) = (MEMORY.to_string(), STREAMS.to_string());
    storm
        .fastcp(case)
        .args(["-r", "--compress", "none", "--retries", "0"])
        .args([
            "--memory",
            &memory,
            "--streams",
            &streams,
            "--timeout",
            "20s",
        ])
        .arg(case.src("it"))
        .arg(case.dst(""))
        .limit(Duration::from_secs(120))
}

fn sources(case: &Case, moment: &Moment) {
    make_sources(case, moment);
    std::thread::sleep(AGE);
}

fn make_sources(case: &Case, moment: &Moment) {
    if !moment.is_tree {
        case.src.file("it", noise(moment.at, moment.size as usize));
        return;
    }
    let tree = case.src.dir("it");
    let small = 400;
    let len = 30_000;
    for number in 0..small {
        let content = noise(moment.at ^ number, len as usize);
        tree.file(format!("{}/{number}", number % 9), content);
    }
    let rest = moment.size - small * len;
    tree.file("big", noise(moment.at, rest as usize / 2));
    tree.file("0/big too", noise(!moment.at, rest as usize / 2));
}
