//! Copies that start and stop at set times, and copies that wait for another one to end.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::done::Done;
use crate::support::procs::until;
use crate::support::pty::Terminal;
use crate::support::run::{Run, Running};
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { local_push, local_pull, here, local_between =>
    a_copy_stops_in_time_and_the_same_command_resumes_it,
    a_copy_waits_for_another_one_to_the_same_place,
}

ways! { local_push =>
    a_stop_deletes_nothing_and_completes_no_snapshot,
    a_stopped_pipe_is_not_resumed,
    each_destination_stops,
    a_snapshot_waits_for_another_one,
    while_it_waits_it_can_be_ended,
}

ways! { here =>
    a_copy_starts_at_its_time,
    a_terminal_shows_the_wait,
}

/// Long enough for all tries of [`stopped`] at the rate of [`RATE`].
const SIZE: usize = 80 * MIB;
const RATE: &str = "2M";

/// Runs the copy with a stop after a few seconds; a busy machine gets more of them, until it has
/// copied something by then.
fn stopped(case: &Case, copying: impl Fn() -> Run) -> Done {
    for seconds in ["3s", "6s", "12s", "24s"] {
        let held = held_back(case, RATE);
        let run = copying().args(["--stop-after", seconds, &held]);
        let done = run.run();
        done.exits(15).says("fastcp: stopped after ");
        if done.stderr.contains(" (--stop-after); ") && done.stderr.contains(" were kept: run the")
        {
            return done;
        }
    }
    panic!("nothing was kept at any stop");
}

#[track_caller]
fn json(done: &Done) -> Value {
    done.end()
}

fn a_copy_stops_in_time_and_the_same_command_resumes_it(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    let flags = ["-q", "--json", "--memory", "16Mi"];
    let done = stopped(case, || case.copying(&flags, "a", "b"));
    let told = json(&done);
    assert_eq!(told["exit_code"], 15);
    let error = told["error"].as_str().expect("an error");
    assert!(error.starts_with("stopped after "), "{error}");
    assert!(case.servers().is_empty(), "no server is left");
    assert!(!case.dst.has("b"), "no incomplete file has the final name");
    let done = case.copy(&["--json", "--stop-after", "1h"], "a", "b");
    let already = json(done.succeeds())["already_bytes"].as_u64();
    assert!(already.is_some_and(|bytes| bytes > 0), "{done}");
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
    assert_eq!(case.dst.names(), ["b"]);
}

fn a_stop_deletes_nothing_and_completes_no_snapshot(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("big", noise(1, SIZE));
    case.dst.file("mirror/extra", "x");
    stopped(case, || {
        case.copying(&["-a", "--delete"], "tree/", "mirror")
    });
    assert!(case.dst.has("mirror/extra"));
    let snapshot = || case.copying(&["-a", "--snapshot"], "tree/", "bk");
    stopped(case, snapshot);
    assert!(!case.dst.has("bk/latest"));
    snapshot().run().succeeds();
    assert_same(&tree.0, case.dst.path("bk/latest/"), Also::ModesAndTimes);
    Dir(case.dst.path("mirror")).sweep();
    case.dst.sweep();
    std::fs::remove_dir_all(case.dst.path("bk")).expect("remove the snapshots");
}

fn a_stopped_pipe_is_not_resumed(case: &Case) {
    let was_begun = ["3s", "9s", "27s"].into_iter().any(|time| {
        let run = case.fastcp().args(["--spool", "--stop-after", time]);
        let mut run = run.arg("-").arg(case.dst("b")).start_with(Stdio::piped());
        // As much as fits into a pipe that nobody reads.
        run.write_stdin(&noise(1, 50_000));
        let done = run.wait();
        done.exits(15)
            .says("(--stop-after); ")
            .never_says("run the same command");
        // A busy machine may not have begun to read the pipe.
        let told = "; this copy reads from or writes to a pipe, so it cannot be resumed: start the";
        done.stderr.contains(told)
    });
    assert!(was_begun);
    assert!(!case.dst.has("b"));
    case.dst.sweep();
}

fn each_destination_stops(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    let here = case.dst.path("here");
    let done = case
        .copying(&["--json", &held_back(case, RATE)], "a", "one")
        .args(["--stop-after", "2s", "--also"])
        .arg(&here)
        .run();
    done.exits(15)
        .says("fastcp: stopped after 2.0 s (--stop-after)");
    let ends = done.ends();
    let codes: Vec<Value> = ends.iter().map(|end| end["exit_code"].clone()).collect();
    // No limit holds the copy on this machine.
    assert_eq!(codes[0], 15, "{done}");
    assert!(codes[1] == 0 || codes[1] == 15, "{done}");
    case.dst.sweep();
}

/// A copy that another one to the same place finds at work.
fn first(case: &Case, flags: &[&str], from: &str, to: &str) -> Running {
    let slow = ["--memory", "16Mi", "--compress", "none"];
    let run = case.copying(&[&slow, flags].concat(), from, to);
    let run = run.arg(held_back(case, "500K")).start();
    until("the first has begun", || has_begun(case, to).then_some(()));
    run
}

fn has_begun(case: &Case, to: &str) -> bool {
    let state = Dir(case.dst.path(to).join(".fastcp-snapshot-partial"));
    match state.0.is_dir() {
        true => !state.partials().is_empty(),
        false => !case.dst.partials().is_empty(),
    }
}

fn waits(run: &Running) {
    until("the second waits", || {
        let told = run.stderr.text();
        told.contains("; waiting for it to end\n").then_some(())
    });
}

fn a_copy_waits_for_another_one_to_the_same_place(case: &Case) {
    case.src.file("a", noise(1, 40 * MIB));
    let first = first(case, &[], "a", "b");
    case.copy(&["--wait=1s"], "a", "b")
        .exits(12)
        .says("another fastcp is writing there; waiting for up to 1.0 s for it to end")
        .says("another fastcp is writing there; gave up after 1.0 s (--wait)");
    case.copy(&[], "a", "b")
        .exits(12)
        .says("another fastcp is writing there; wait for it to end (--wait), or stop it");
    let second = case.copying(&["--wait", "--json"], "a", "b").start();
    waits(&second);
    let_go(case);
    first.wait().succeeds();
    let done = second.wait();
    let waited = json(done.succeeds())["waited_seconds"].as_f64();
    assert!(waited.is_some_and(|seconds| seconds > 0.9), "{done}");
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
    assert_eq!(case.dst.names(), ["b"]);
}

fn a_snapshot_waits_for_another_one(case: &Case) {
    case.src.file("a/big", noise(1, 40 * MIB));
    let flags = ["-a", "--snapshot"];
    let first = first(case, &flags, "a/", "bk");
    let second = case.copying(&flags, "a/", "bk").arg("--wait").start();
    waits(&second);
    let_go(case);
    first.wait().succeeds();
    second
        .wait()
        .succeeds()
        .says("making a snapshot there (process ");
    let there = Dir(case.dst.path("bk"));
    let dated = there.names().into_iter().filter(|name| name.ends_with('Z'));
    assert_eq!(dated.count(), 2);
    std::fs::remove_dir_all(&there.0).expect("remove the snapshots");
}

fn while_it_waits_it_can_be_ended(case: &Case) {
    case.src.file("a", noise(1, 40 * MIB));
    let first = first(case, &[], "a", "b");
    let second = case.copying(&["--wait"], "a", "b").start();
    waits(&second);
    second.signal(Signal::INT);
    second.wait().exits(130).says("fastcp: interrupted\n");
    let stopped = case.copy(&["--wait", "--stop-after", "3s"], "a", "b");
    stopped
        .exits(15)
        .says("stopped after 3.0 s (--stop-after); nothing had been copied yet");
    let_go(case);
    first.wait().succeeds();

    let later = case.copying(&["--start-at", "now+1h"], "a", "c").start();
    until("it waits", || {
        let told = later.stderr.text();
        (told.contains("(--start-at)\n") && catches_sigterm(&later)).then_some(())
    });
    assert!(case.servers().is_empty(), "it has not logged in");
    later.signal(Signal::TERM);
    later.wait().exits(143).says("fastcp: terminated\n");

    // A login that hangs is ended too.
    let ssh = case.scratch.file("ssh", "#!/bin/sh\nexec sleep 100\n");
    case.scratch.mode("ssh", 0o755);
    let run = case.bare().arg("-S").arg(ssh).args(["--stop-after", "2s"]);
    let done = run.arg(case.src.path("a")).arg("far:b").run();
    done.exits(15).says("nothing had been copied yet");
}

/// The line about the wait precedes the copy, and so what it does about signals.
fn catches_sigterm(run: &Running) -> bool {
    let status = format!("/proc/{}/status", run.pid().as_raw_pid());
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.unwrap_or_default() >> (Signal::TERM.as_raw() - 1) & 1 == 1
}

fn a_copy_starts_at_its_time(case: &Case) {
    case.src.file("a", "one");
    let has_waited = [3, 9, 27].into_iter().any(|wait| {
        let start = format!("--start-at=now+{wait}s");
        let done = case.copy(&[&start, "--json"], "a", "b");
        done.succeeds().says("fastcp: waiting until 2");
        // `now` may have been almost a second later than its whole second.
        assert!(done.elapsed >= Duration::from_secs(wait - 1), "{done}");
        let told = json(&done);
        let seconds = |key: &str| {
            told[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key}: {told}"))
        };
        let both = seconds("waited_seconds") + seconds("seconds");
        assert!(both < done.elapsed.as_secs_f64() + 0.1, "{done}");
        // A busy machine may start the program when the time has almost come.
        seconds("waited_seconds") > 1.0
    });
    assert!(has_waited);
    // The time zone is the user's, and a start in the past is now.
    let at = |zone: &str| {
        let run = case.copying(&["--start-at", "2026-01-02T03:04Z"], "a", "b");
        run.env("TZ", zone).run()
    };
    let passed = "has passed: the copy starts now (--start-at)";
    at("UTC0")
        .succeeds()
        .says(&format!("fastcp: 2026-01-02 03:04 {passed}"));
    at("XST-5:30")
        .succeeds()
        .says(&format!("fastcp: 2026-01-02 08:34 {passed}"));
    case.copy(&["-q", "--start-at", "now+1s"], "a", "b")
        .succeeds()
        .is_silent();
    for (flags, told) in [
        (
            &["--stop-at", "25:00"][..],
            "expected a time, such as 06:00",
        ),
        (&["--stop-at", "2020-01-01"], "2020-01-01 00:00 has passed"),
        (&["--stop-after", "4 hours ago"], "such as 4h, 90min"),
        (&["--wait=0s"], "from 1ms to 30days"),
    ] {
        case.copy(flags, "a", "b").exits(2).says(told);
    }
    for (flags, told) in [
        (["--probe", "--stop-at=06:00"], "leave out --stop-at"),
        (["--version", "--wait"], "leave out --wait"),
    ] {
        case.fastcp().args(flags).run().exits(2).says(told);
    }
}

fn a_terminal_shows_the_wait(case: &Case) {
    case.src.file("a", "one");
    let terminal = Terminal::open(80, 24);
    let run = case
        .copying(&["--start-at", "now+1h"], "a", "b")
        .env("TERM", "xterm")
        .start_on(terminal.output(), terminal.slave());
    until("it counts down", || {
        let text = run.stdout.text();
        let counts = text.contains("(--start-at), 5");
        (text.contains("\x1b[J") && counts).then_some(())
    });
    run.signal(Signal::USR1);
    until("it answers", || {
        let told = run.stdout.text();
        told.contains("fastcp: waiting until 2").then_some(())
    });
    terminal.type_in("\x03");
    run.wait().exits(130);
}
