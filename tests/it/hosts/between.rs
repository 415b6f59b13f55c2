//! Copies from one host to another: data goes between them, and the user's machine controls both.

use std::time::Duration;

use rustix::process::Signal;

use crate::support::done::Done;
use crate::support::host::{Host, find_program};
use crate::support::net::{At, Ip, Net, Wall};
use crate::support::procs::{self, MARK, until};
use crate::support::pty::Terminal;
use crate::support::routes::{self, goes};
use crate::support::run::{Running, fastcp_binary};
use crate::support::slow::{self, SLOW, wait_for_content};
use crate::support::{keys, *};

ways! { between, local_between =>
    a_file_and_a_tree_arrive_and_are_counted,
    what_failed_is_told_once_with_the_code_of_its_kind,
    each_route_carries_a_copy_alone,
    a_stream_goes_from_a_command_to_a_command,
    a_second_run_finds_what_is_there,
}

ways! { between =>
    a_killed_receiver_is_logged_in_again_and_goes_on,
    a_killed_sender_is_logged_in_again,
    a_stream_that_is_cut_is_not_begun_again,
    ctrl_c_ends_both,
    a_login_that_fails_ends_the_other,
    a_host_that_is_gone_for_good_is_named,
    two_passphrases_are_asked_for_one_after_the_other,
    both_hosts_may_be_behind_a_jump_host,
    what_passes_through_here_stays_sealed,
}

fn a_file_and_a_tree_arrive_and_are_counted(case: &Case) {
    let tree = case.src.dir("tree");
    tree::one_of_everything(&tree);
    tree.file("big", noise(1, 5 * MIB + 7));
    let done = case.copy(&["-r", "-p", "--json"], "tree", "x");
    done.succeeds().never_says("panicked");
    assert_same(&tree.0, case.dst.path("x"), Also::ModesAndTimes);
    let counts = |done: &Done| {
        let json = done.end();
        ["bytes", "files", "failed", "unsent_bytes"].map(|name| json[name].clone())
    };
    let there = case.scratch.path("here");
    let here = case.bare().args(["-r", "-p", "--json"]).arg(&tree.0);
    assert_eq!(counts(&done), counts(&here.arg(there).run()), "{done}");

    let done = case.copy(&["--summary"], "tree/big", "b");
    done.succeeds().says("1 file, 5.24 MB");
    assert!(done.wire_bytes() >= 5_000_000, "{done}");
    assert_same(tree.path("big"), case.dst.path("b"), Also::Nothing);
}

fn what_failed_is_told_once_with_the_code_of_its_kind(case: &Case) {
    case.src.file("there", "new");
    case.dst.file("kept", "old");
    let done = case.copy(&[], "missing", "m");
    done.exits(9).says("far:").says("missing: no such file");
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    assert!(!case.dst.has("m"));

    let done = case.copy_all(&[], &["missing", "there"], "");
    done.exits(9);
    assert_eq!(case.dst.read("there"), b"new");

    let done = case.copy(&["--no-clobber"], "there", "kept");
    done.exits(11).says("far:").says("kept");
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    assert_eq!(case.dst.read("kept"), b"old");

    let done = case.copy(&[], "there", "nowhere/x/");
    done.fails().says("nowhere");

    let there = case.from(case.src.path("there"));
    let itself = case.to(case.src.path("there"));
    let done = case.fastcp().arg(there).arg(itself).run();
    done.fails().says("same file");
    assert_eq!(case.src.read("there"), b"new");
}

fn each_route_carries_a_copy_alone(case: &Case) {
    case.src.file("a", noise(1, 6 * MIB));
    for (route, told) in [
        ("direct", "direct"),
        ("reverse", "reverse"),
        ("ssh", "through this host"),
    ] {
        let done = case.copy(&["--summary", "--route", route], "a", route);
        done.succeeds();
        goes(&done, told);
        assert_same(case.src.path("a"), case.dst.path(route), Also::Nothing);
    }
    let flags = ["--no-encrypt", "--summary", "--route=direct"];
    let done = case.copy(&flags, "a", "tagged");
    done.succeeds().says("--no-encrypt");
    goes(&done, "direct");
}

/// Records the bytes that the hosts send to this machine, after ssh has decrypted them.
fn what_passes_through_here_stays_sealed(case: &Case) {
    let line = b"the same words as in every other line";
    case.src.file("a", prose(1, 4 * MIB));
    let heard = case.scratch.dir("heard");
    let ssh = find_program("ssh").expect("ssh is there: the case has hosts");
    let script = format!(
        "#!/bin/sh\n'{}' \"$@\" | tee '{}'/$$\n",
        ssh.display(),
        heard.0.display()
    );
    let program = case.scratch.file("noting ssh", script);
    case.scratch.mode("noting ssh", 0o755);
    let flags = ["--compress=none", "--summary", "-S"];
    let flags = [&flags[..], &[program.to_str().expect("an ASCII path")]].concat();
    for (chosen, is_readable) in [
        (&["--route=ssh"][..], false),
        (&["-3"], false),
        (&["-3", "--no-encrypt"], true),
    ] {
        let done = case.copy(&[&flags, chosen].concat(), "a", "b");
        done.succeeds();
        goes(&done, "through this host");
        let found = heard.names().iter().any(|name| {
            let said = heard.read(name);
            said.windows(line.len()).any(|window| window == line)
        });
        assert_eq!(found, is_readable, "with {chosen:?}");
        std::fs::remove_file(case.dst.path("b")).expect("remove");
    }
}

fn a_stream_goes_from_a_command_to_a_command(case: &Case) {
    case.src.file("a", noise(1, 3 * MIB));
    let (from, to) = (case.src.path("a"), case.dst.path("b"));
    let (from, to) = (
        format!("cat {}", from.display()),
        format!("cat > {}", to.display()),
    );
    let run = case
        .fastcp()
        .args(["--from-command", &from, "--to-command", &to]);
    let done = run.arg(case.from("")).arg(case.to("")).run();
    done.succeeds();
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
    let run = case.fastcp().args(["--from-command", "cat /nonexistent"]);
    let done = run.arg(case.from("")).arg(case.dst("c")).run();
    done.exits(10).says("cat");
    assert!(!case.dst.has("c"));
}

fn a_second_run_finds_what_is_there(case: &Case) {
    case.src.file("a", noise(1, 40 * MIB));
    let run = case.copying(&SLOW, "a", "a").start();
    wait_for_content(case);
    run.signal(Signal::KILL);
    run.wait();
    until("the hosts' ends are gone", || {
        procs::marked(case.mark()).is_empty().then_some(())
    });
    let done = case.copy(&["--summary", "--compress", "none"], "a", "a");
    done.succeeds().says("already there");
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

/// Starts a slow copy of `a`, and returns when content arrives.
fn under_way(case: &Case, flags: &[&str]) -> Running {
    slow::started(case, 40 * MIB, flags)
}

/// The server that has a file open below the directory.
fn server_at(case: &Case, dir: &Dir) -> procs::Process {
    until("a server has it open", || {
        case.servers().into_iter().find(|server| {
            let open = format!("/proc/{}/fd", server.pid.as_raw_nonzero());
            let mut open = std::fs::read_dir(open).into_iter().flatten().flatten();
            open.any(|fd| {
                let file = std::fs::read_link(fd.path()).unwrap_or_default();
                file.starts_with(&dir.0) && file.is_file()
            })
        })
    })
}

#[track_caller]
fn completes(case: &Case, done: &Done) {
    done.succeeds()
        .never_says("panicked")
        .says("connection to far lost")
        .says("logged in again once");
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn a_killed_receiver_is_logged_in_again_and_goes_on(case: &Case) {
    let run = under_way(case, &["--compress", "none"]);
    server_at(case, &case.dst).kill();
    let done = run.wait();
    completes(case, &done);
    // The file once, and again the chunks in flight.
    let wire = done.wire_bytes();
    assert!(wire < 60 * MIB, "{wire} bytes: {done}");
}

fn a_killed_sender_is_logged_in_again(case: &Case) {
    let run = under_way(case, &[]);
    server_at(case, &case.src).kill();
    completes(case, &run.wait());
}

fn a_stream_that_is_cut_is_not_begun_again(case: &Case) {
    case.src.file("a", noise(1, 40 * MIB));
    let cat = format!("cat {}", case.src.path("a").display());
    let run = case.fastcp().args(SLOW).args(["--from-command", &cat]);
    let run = run.arg(case.from("")).arg(case.dst("b")).start();
    wait_for_content(case);
    server_at(case, &case.dst).kill();
    let done = run.wait();
    done.exits(5)
        .says("connection to far lost: ")
        .says("so it cannot be resumed")
        .never_says("logging in again");
    case.sweep();
}

fn ctrl_c_ends_both(case: &Case) {
    let run = under_way(case, &[]);
    run.signal_group(Signal::INT);
    run.wait().exits(130).says("kept");
    until("no server is left", || {
        case.servers().is_empty().then_some(())
    });
    case.sweep();
}

fn a_login_that_fails_ends_the_other(case: &Case) {
    case.src.file("a", "one");
    for (from, to) in [("far", "nobody.invalid"), ("nobody.invalid", "far")] {
        let from = format!("{from}:{}", case.src.path("a").display());
        let done = case.fastcp().args([&from, &format!("{to}:a")]).run();
        done.exits(3).says("nobody.invalid");
    }
}

fn a_host_that_is_gone_for_good_is_named(case: &Case) {
    let run = under_way(case, &["--retries", "0"]);
    server_at(case, &case.dst).kill();
    let done = run.wait();
    done.exits(5)
        .says("connection to far lost")
        .says("were kept");
    case.sweep();
}

fn two_passphrases_are_asked_for_one_after_the_other(case: &Case) {
    case.src.file("a", "one");
    let key = keys::lock(case, "open sesame");
    let terminal = Terminal::open(80, 24);
    let run = case
        .copying(&["-i", key.to_str().expect("an ASCII path")], "a", "a")
        .env("TERM", "xterm")
        .start_on(terminal.output(), terminal.slave());
    for nth in 1..=2 {
        let asked = || run.stdout.text().matches("passphrase").count();
        until("ssh asks", || (asked() >= nth).then_some(()));
        // The other ssh does not ask during that time.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(asked(), nth, "{}", run.stdout.text());
        terminal.type_in("open sesame\n");
    }
    run.wait().succeeds();
    assert_eq!(case.dst.read("a"), b"one");
}

fn both_hosts_may_be_behind_a_jump_host(case: &Case) {
    case.src.file("a", noise(1, 6 * MIB));
    for (nth, (flags, told)) in [
        (&["-J", "far", "--route=direct"][..], "direct"),
        (&["-o", "ProxyJump=far", "--route=reverse"], "reverse"),
        (&["-J", "far", "--route=ssh"], "through this host"),
    ]
    .into_iter()
    .enumerate()
    {
        let flags = [flags, &["--summary"]].concat();
        let done = case.copy(&flags, "a", told);
        done.succeeds();
        goes(&done, told);
        assert_same(case.src.path("a"), case.dst.path(told), Also::Nothing);
        // Each of the two hosts takes a login to the jump host and one to the host behind it.
        assert_eq!(case.host().logins(), 4 * (nth + 1), "{done}");
    }
}

/// Copies between two hosts of a network. fastcp runs on the source's host and logs in there.
fn in_a_network(ip: Ip, body: impl FnOnce(&Case, &Net)) {
    Case::run_between(Way::Between, ip, body);
}

/// Copies by this route with one login to each host.
#[track_caller]
fn arrives_by(case: &Case, route: &str, flags: &[&str]) {
    case.src.file("a", noise(1, 6 * MIB));
    let logins = || [case.host().logins(), case.source_host().logins()];
    routes::arrives_by(case, route, logins, || {
        let done = case.copying(&["--summary"], "a", "a").args(flags).run();
        done.succeeds().never_says("panicked");
        assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
        done
    });
}

#[test]
fn an_open_network_is_gone_by_directly() {
    for ip in [Ip::V4AndV6, Ip::V6Only] {
        in_a_network(ip, |case, _| arrives_by(case, "direct", &[]));
    }
}

#[test]
fn a_destination_that_lets_nothing_in_dials_the_source() {
    for wall in [Wall::Drop, Wall::Reject] {
        in_a_network(Ip::V4AndV6, |case, net| {
            net.open_only(At::Far, &["22"], wall);
            arrives_by(case, "reverse", &["-l", "24000"]);
        });
    }
}

#[test]
fn a_source_that_lets_nothing_in_dials_the_destination() {
    in_a_network(Ip::V4AndV6, |case, net| {
        net.open_only(At::Near, &["22"], Wall::Drop);
        arrives_by(case, "direct", &[]);
    });
}

#[test]
fn where_neither_lets_the_other_in_data_passes_through_here() {
    at_once([Wall::Drop, Wall::Reject], |wall| {
        in_a_network(Ip::V4AndV6, |case, net| {
            net.open_only(At::Far, &["22"], wall);
            net.open_only(At::Near, &["22"], wall);
            arrives_by(case, "through this host", &["-l", "24000"]);
            let done = case.copy(&["--route", "direct"], "a", "b");
            done.exits(3).says("no stream between near and far");
        });
    });
}

#[test]
fn when_the_way_between_them_is_cut_data_passes_through_here() {
    in_a_network(Ip::V4AndV6, |case, net| {
        let run = under_way(case, &["--compress", "none", "-v"]);
        net.cut(At::Far);
        let done = run.wait();
        done.succeeds().never_says("panicked").never_says(" lost: ");
        assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
        assert_eq!((case.host().logins(), case.source_host().logins()), (1, 1));
    });
}

#[test]
fn ports_that_are_open_are_used_on_whichever_host_listens() {
    in_a_network(Ip::V4AndV6, |case, net| {
        net.open_only(At::Far, &["22"], Wall::Drop);
        net.open_only(At::Near, &["22", "9001:9016"], Wall::Drop);
        arrives_by(case, "reverse", &["--ports", "9001-9016", "-l", "24000"]);

        // Nobody waits for a stream that cannot come.
        let _taken = net.within(At::Far, || std::net::TcpListener::bind("[::]:9001"));
        let done = case.copy(&["--ports", "9001", "--route", "direct"], "a", "b");
        done.exits(3)
            .says("far cannot open a port")
            .never_says("no answer");
    });
}

#[test]
fn a_key_that_is_confined_dials_no_other_host_and_is_dialled() {
    in_a_network(Ip::V4AndV6, |case, net| {
        let force = |host: &Host, dir: &Dir, access: &str| {
            host.force(&format!(
                "env HOME='{}' {MARK}='{}' '{}' --server --confine '{}' {access}",
                case.home.0.display(),
                case.mark(),
                fastcp_binary().display(),
                dir.0.display()
            ));
        };
        force(case.source_host(), &case.src, "--read-only");
        arrives_by(case, "reverse", &["-l", "24000"]);
        // The key may dial the host that its login comes from, which here is the source's host.
        force(case.host(), &case.dst, "--write-only --no-overwrite");
        net.open_only(At::Near, &["22"], Wall::Drop);
        let done = case.copy(&["--summary", "-l", "24000"], "a", "b");
        done.succeeds();
        goes(&done, "through this host");
        case.copy(&[], "a", "a").exits(11);
    });
}
