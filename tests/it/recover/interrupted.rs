//! Copies that end early: signals and killed processes.

use std::time::Instant;

use rustix::process::Signal;

use crate::support::ending::ENDS_WITHIN;
use crate::support::procs::{self, until};
use crate::support::run::Running;
use crate::support::*;

ways! { push, here =>
    ctrl_c_ends_both_ends_within_two_seconds,
}

ways! { push, pull =>
    a_killed_sender_leaves_what_was_there,
    a_killed_receiver_leaves_what_was_there,
    a_killed_ssh_leaves_what_was_there,
}

/// Big enough that a copy on this host is still running when the test acts.
const SIZE: u64 = 1 << 30;

/// Starts a copy over `there`, and returns when content arrives. Over ssh it is slow; on this
/// host it is long.
fn copy_under_way(case: &Case) -> Running {
    case.dst.file("there", "old");
    let run = if case.way == Way::Here {
        let piece = noise(1, 4096);
        let pieces: Vec<(u64, &[u8])> = (0..SIZE >> 18).map(|n| (n << 18, &piece[..])).collect();
        case.src.sparse("a", SIZE, &pieces);
        case.copying(&["--threads", "1"], "a", "there").start()
    } else {
        // Little memory, so that most of the source is unread. Without further logins, which are ssh
        // processes too.
        case.src.file("a", noise(1, 40 * MIB));
        let slow = ["-l", "32000", "--memory", "16Mi", "--retries", "0"];
        let run = case.copying(&slow, "a", "there").arg("--route=direct");
        run.start()
    };
    until("the copy is under way", || {
        case.dst.has_partial().then_some(())
    });
    run
}

/// The interrupted copy left only files for a resume.
fn assert_as_before(case: &Case) {
    case.dst.sweep();
    assert_eq!(case.dst.read("there"), b"old");
    assert_eq!(case.dst.names(), ["there"]);
}

/// Tries a few times, because the machine may be busy: the shortest time counts.
fn ctrl_c_ends_both_ends_within_two_seconds(case: &Case) {
    const TRIES: usize = 8;
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut times = Vec::new();
        while times.last().is_none_or(|time| *time > 2.0) {
            assert!(times.len() < TRIES, "{signal:?}: {times:?} seconds");
            times.push(seconds_to_end(case, signal, code));
        }
    }
}

/// Seconds from the signal until every process has ended.
fn seconds_to_end(case: &Case, signal: Signal, code: i32) -> f64 {
    let run = copy_under_way(case);
    let processes = procs::marked(case.mark());
    let since = Instant::now();
    run.signal_group(signal);
    run.wait().exits(code).never_says("panicked");
    for process in processes {
        assert_ends(&process);
    }
    let time = since.elapsed().as_secs_f64();
    assert_as_before(case);
    time
}

#[track_caller]
fn assert_ends(process: &procs::Process) {
    assert!(
        process.ends_within(ENDS_WITHIN),
        "still there: {}",
        process.describe()
    );
}

/// The sender and the receiver.
fn ends(case: &Case, run: &Running) -> (rustix::process::Pid, rustix::process::Pid) {
    let server = case.servers().pop().expect("a server runs").pid;
    match case.way {
        Way::Push => (run.pid(), server),
        _ => (server, run.pid()),
    }
}

fn a_killed_sender_leaves_what_was_there(case: &Case) {
    let run = copy_under_way(case);
    let (sender, _) = ends(case, &run);
    rustix::process::kill_process(sender, Signal::KILL).expect("kill the sender");
    let done = run.wait();
    if case.way == Way::Pull {
        done.exits(5);
    }
    case.host().wait_for_logins();
    procs::marked(case.mark()).iter().for_each(assert_ends);
    assert_as_before(case);
}

fn a_killed_receiver_leaves_what_was_there(case: &Case) {
    let run = copy_under_way(case);
    let (_, receiver) = ends(case, &run);
    rustix::process::kill_process(receiver, Signal::KILL).expect("kill the receiver");
    let done = run.wait();
    if case.way == Way::Push {
        done.exits(5);
    }
    assert_as_before(case);
}

fn a_killed_ssh_leaves_what_was_there(case: &Case) {
    let run = copy_under_way(case);
    let ssh = procs::marked(case.mark())
        .into_iter()
        .find(procs::Process::is_ssh)
        .expect("ssh runs");
    ssh.kill();
    run.wait().exits(5).never_says("panicked");
    procs::marked(case.mark()).iter().for_each(assert_ends);
    assert_as_before(case);
}
