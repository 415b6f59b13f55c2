//! Copies that end early: signals and killed processes.

use std::time::{Duration, Instant};

use rustix::process::Signal;

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
        // Little memory, so that most of the source is unread.
        case.src.file("a", noise(1, 40 * MIB));
        let slow = ["-l", "160000", "--memory", "16Mi", "--retries", "0"];
        case.copying(&slow, "a", "there").start()
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

fn ctrl_c_ends_both_ends_within_two_seconds(case: &Case) {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let run = copy_under_way(case);
        let processes = procs::marked(case.mark());
        let since = Instant::now();
        run.signal_group(signal);
        run.wait().exits(code).never_says("panicked");
        for process in processes {
            let left = Duration::from_secs(2).saturating_sub(since.elapsed());
            assert!(
                process.ends_within(left),
                "still there: {}",
                process.describe()
            );
        }
        assert_as_before(case);
    }
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
    for process in procs::marked(case.mark()) {
        assert!(
            process.ends_within(Duration::from_secs(2)),
            "{}",
            process.describe()
        );
    }
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
        .find(|process| process.line.starts_with("ssh "))
        .expect("ssh runs");
    ssh.kill();
    run.wait().exits(5).never_says("panicked");
    for process in procs::marked(case.mark()) {
        assert!(
            process.ends_within(Duration::from_secs(5)),
            "{}",
            process.describe()
        );
    }
    assert_as_before(case);
}
