//! Ends, or their ssh, that are stopped for a while or forever: fastcp gives up after a limited
//! silence, and an end that continues in time loses nothing.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::procs::{Process, until};
use crate::support::run::Running;
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { local_push, local_pull =>
    an_end_that_is_stopped_for_a_while_goes_on,
    an_end_that_is_slow_is_not_called_dead,
    a_far_end_that_is_stopped_for_good_is_given_up,
    a_server_whose_client_is_stopped_ends_by_itself,
}

ways! { push, pull => a_stopped_ssh_ends_both_ends }

/// Longer than any of these ends accepts silence, with a margin for a busy machine.
const IN_TIME: Duration = Duration::from_secs(30);

/// Starts a copy that takes about ten seconds. Returns once content arrives.
fn under_way(case: &Case, flags: &[&str]) -> Running {
    started(case, 20 * MIB, &[&["-l16000"], flags].concat())
}

fn started(case: &Case, size: usize, flags: &[&str]) -> Running {
    case.src.file("a", noise(1, size));
    // Without further logins, which are ssh processes too.
    let slow = ["--memory", "16Mi", "--streams", "2", "--route=direct"];
    let run = case.copying(&[&slow, flags].concat(), "a", "a").start();
    until("the copy is under way", || {
        case.dst.has_partial().then_some(())
    });
    run
}

fn server(case: &Case) -> Process {
    case.servers().pop().expect("a server runs")
}

fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).expect("stop it");
}

fn go_on(pid: Pid) {
    kill_process(pid, Signal::CONT).expect("let it go on");
}

#[track_caller]
fn ended(process: &Process) {
    assert!(
        process.ends_within(IN_TIME),
        "still there: {}",
        process.describe()
    );
}

fn an_end_that_is_stopped_for_a_while_goes_on(case: &Case) {
    let run = under_way(case, &[]);
    for pid in [server(case).pid, run.pid()] {
        stop(pid);
        // Longer than a connection may make no progress.
        std::thread::sleep(Duration::from_secs(8));
        go_on(pid);
    }
    run.wait().succeeds();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn an_end_that_is_slow_is_not_called_dead(case: &Case) {
    let run = started(case, 60 * MIB, &["-v", &held_back(case, "2M")]);
    // Each end is stopped for most of the time, in all longer than a connection may make no
    // progress. Between the stops it runs until something arrives, which a busy machine may delay.
    for pid in [server(case).pid, run.pid()] {
        for _ in 0..7 {
            stop(pid);
            std::thread::sleep(Duration::from_millis(900));
            let before = case.dst.partial_bytes();
            go_on(pid);
            until("something arrives", || {
                (case.dst.partial_bytes() != before).then_some(())
            });
        }
    }
    let_go(case);
    run.wait().succeeds().never_says("was lost (");
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn a_far_end_that_is_stopped_for_good_is_given_up(case: &Case) {
    let run = under_way(case, &["--timeout", "5s", "--retries", "0"]);
    let server = server(case);
    stop(server.pid);
    run.wait().exits(5).says("nothing was heard from");
    // The client ended the server, which is its child process here.
    ended(&server);
    // Removes the files that an interrupted copy keeps.
    case.dst.sweep();
}

fn a_server_whose_client_is_stopped_ends_by_itself(case: &Case) {
    let run = under_way(case, &["--timeout", "5s", "--retries", "0"]);
    let server = server(case);
    stop(run.pid());
    until("the server has ended", || server.is_over().then_some(()));
    go_on(run.pid());
    run.wait().exits(5);
    case.dst.sweep();
}

fn a_stopped_ssh_ends_both_ends(case: &Case) {
    let run = under_way(case, &["--timeout", "5s", "--retries", "0"]);
    let server = server(case);
    let ssh = procs::marked(case.mark())
        .into_iter()
        .find(Process::is_ssh)
        .expect("ssh runs");
    stop(ssh.pid);
    run.wait().exits(5).says("nothing was heard from");
    ended(&server);
    ended(&ssh);
    case.dst.sweep();
}
