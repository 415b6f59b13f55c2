//! Pipes over bad connections: lost, late and damaged connections change neither their bytes nor
//! the order. Memory stays within the pool, and a lost session ends the copy.

use std::ffi::{OsStr, OsString};

use rustix::process::Signal;

use crate::support::peer::readable;
use crate::support::procs::until;
use crate::support::proxy::{self, Fault, Proxied};
use crate::support::*;

const SIZE: usize = 24 * MIB;

ways! { local_push, local_pull =>
    lost_connections_cost_neither_bytes_nor_order,
    a_connection_that_is_a_second_late_holds_nothing_up_for_good,
    a_file_that_leaves_in_order_survives_lost_connections,
    a_slow_consumer_slows_the_producer_and_memory_stays_within_the_pool,
    a_lost_session_is_the_end_of_a_stream_and_of_its_commands,
    a_file_that_leaves_is_not_given_to_a_second_command,
    an_interrupt_ends_a_stream_and_its_commands,
    what_has_come_is_kept_where_the_user_wants_it,
}

/// Copies between two commands, or from a file to a command, through a proxy.
fn through(case: &Case, from: &[OsString], faults: &[Fault]) -> Proxied {
    let streams = faults.len().to_string();
    let to = format!("cat > '{}'", case.dst.path("a").display());
    let is_push = case.way == Way::LocalPush;
    let place = if is_push { case.to("") } else { "-".into() };
    let flags = [
        "--streams",
        &streams,
        "--compress",
        "none",
        "--to-command",
        &to,
    ];
    let words: Vec<&OsStr> = flags
        .iter()
        .map(|flag| OsStr::new(*flag))
        .chain(from.iter().map(|word| word.as_os_str()))
        .chain([place.as_os_str()])
        .collect();
    let proxied = proxy::copy(case, &words, is_push, faults);
    readable(&proxied.done);
    proxied
}

fn by_command(case: &Case) -> Vec<OsString> {
    let command = format!("cat '{}'", case.src.path("a").display());
    let place = match case.way {
        Way::LocalPush => "-".into(),
        _ => case.from(""),
    };
    vec!["--from-command".into(), command.into(), place]
}

#[track_caller]
fn survives(case: &Case, from: &[OsString], faults: &[Fault], struck: usize) {
    let proxied = through(case, from, faults);
    proxied.done.succeeds();
    assert!(proxied.struck >= struck, "only {} faults", proxied.struck);
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn lost_connections_cost_neither_bytes_nor_order(case: &Case) {
    use Fault::*;
    case.src.file("a", noise(1, SIZE));
    let from = by_command(case);
    let faults = [
        Reset(3 * MIB / 2),
        None,
        Close(MIB + 77),
        Flip(2 * MIB),
        None,
    ];
    survives(case, &from, &faults, 3);
    survives(case, &from, &[BlackHole(MIB + 5), Noise(2 * MIB), None], 2);
    // All connections are lost.
    survives(case, &from, &[Reset(MIB), Close(2 * MIB)], 2);
}

fn a_connection_that_is_a_second_late_holds_nothing_up_for_good(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    let faults = [Fault::Late, Fault::None, Fault::None];
    survives(case, &by_command(case), &faults, 1);
}

fn a_file_that_leaves_in_order_survives_lost_connections(case: &Case) {
    use Fault::*;
    case.src.file("a", noise(1, SIZE));
    let from = [case.src("a")];
    let faults = [Reset(3 * MIB / 2), None, Close(MIB + 77), Late];
    survives(case, &from, &faults, 3);
}

fn is_push(case: &Case) -> bool {
    case.way == Way::LocalPush
}

fn a_slow_consumer_slows_the_producer_and_memory_stays_within_the_pool(case: &Case) {
    const POOL: usize = 24 * MIB;
    case.src.file("a", noise(1, 8 * MIB));
    let path = case.src.path("a");
    let from = format!(
        "for n in 1 2 3 4 5 6 7 8 9 10; do cat '{}'; done",
        path.display()
    );
    let to = format!("sleep 2; cksum > '{}'", case.scratch.path("sum").display());
    let pool = POOL.to_string();
    let run = case
        .fastcp()
        .args(["--memory", &pool, "--compress", "none"]);
    let run = run.args(["--from-command", &from, "--to-command", &to]);
    let run = match is_push(case) {
        true => run.arg("-").arg(case.to("")),
        false => run.arg(case.from("")).arg("-"),
    };
    let done = run.measured().run();
    done.succeeds();
    let wanted = Run::new("sh", &case.scratch.0)
        .args(["-c", &format!("({from}) | cksum")])
        .run();
    assert_eq!(case.scratch.read("sum"), wanted.stdout);
    let most = POOL + 64 * MIB;
    let peak = done.peak_rss_bytes() as usize;
    assert!(peak < most, "{peak} bytes, more than {most}");
}

/// A copy from a command that writes some megabytes and then waits.
fn begun(case: &Case, flags: &[&str]) -> run::Running {
    let path = case.src.file("a", noise(1, 5 * MIB));
    let from = format!("cat '{}'; exec sleep 1000", path.display());
    let run = case.fastcp().args(flags).args(["--from-command", &from]);
    let run = match is_push(case) {
        true => run,
        false => run.arg(case.from("")),
    };
    let run = run.arg(case.dst("a")).start();
    until("some of it is there", || {
        (case.dst.partial_bytes() >= 5 * MIB as u64).then_some(())
    });
    run
}

fn a_lost_session_is_the_end_of_a_stream_and_of_its_commands(case: &Case) {
    let run = begun(case, &[]);
    for server in case.servers() {
        server.kill();
    }
    run.wait()
        .exits(5)
        .says("connection to far lost: ")
        .says("so it cannot be resumed")
        .never_says("to resume");
    assert!(!case.dst.has("a"));
    case.sweep();
    // The command has ended too: the case checks for remaining processes.
}

/// A database that has read half of the file would read that half again.
fn a_file_that_leaves_is_not_given_to_a_second_command(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    let (starts, read) = (case.scratch.path("starts"), case.scratch.path("read"));
    let to = format!(
        "echo start >> '{}'; head -c 2000000 > '{}'; exec sleep 1000",
        starts.display(),
        read.display()
    );
    let run = case.fastcp().args(["--to-command", &to]);
    let run = run.arg(case.src("a"));
    let run = match is_push(case) {
        true => run.arg(case.to("")),
        false => run.arg("-"),
    };
    let run = run.start();
    until("the command has read some", || {
        std::fs::metadata(&read)
            .is_ok_and(|read| read.len() == 2_000_000)
            .then_some(())
    });
    for server in case.servers() {
        server.kill();
    }
    run.wait().exits(5);
    assert_eq!(case.scratch.read("starts"), b"start\n");
}

fn an_interrupt_ends_a_stream_and_its_commands(case: &Case) {
    let run = begun(case, &[]);
    run.signal_group(Signal::INT);
    run.wait().exits(130).never_says("to resume");
    assert_eq!(case.dst.names(), [""; 0]);
}

fn what_has_come_is_kept_where_the_user_wants_it(case: &Case) {
    let run = begun(case, &["--spool"]);
    if is_push(case) {
        // The receiver survives and loses its client.
        run.signal(Signal::KILL);
        run.wait();
    } else {
        for server in case.servers() {
            server.kill();
        }
        run.wait()
            .exits(5)
            .says("holds the first 5.24 MB of the pipe");
    }
    until("the receiver has ended", || {
        case.servers().is_empty().then_some(())
    });
    assert!(!case.dst.has("a"));
    let partial = case.dst.partials().pop().expect("it is kept");
    assert_same(case.src.path("a"), partial, Also::Nothing);
    case.sweep();
}
