//! Invalid requests: each has its own message and exit code.

use std::net::SocketAddr;
use std::process::Command;

use socket2::{Domain, Socket, Type};

use crate::support::limits::without_powers;
use crate::support::run::fastcp_binary;
use crate::support::*;

ways! { push, pull, here =>
    a_missing_source,
    a_missing_destination_directory,
    a_name_that_is_too_long,
    special_files_in_a_tree_are_counted_and_no_failure,
    an_unreadable_source_is_told_and_the_rest_is_copied,
    a_destination_that_may_not_be_written,
    one_bad_entry_does_not_end_the_copy,
}

ways! { push, pull, between =>
    a_host_that_is_not_there,
    a_refused_login,
    a_far_side_without_fastcp,
    a_far_side_of_another_protocol_version,
    a_hello_that_is_cut_short_is_a_lost_connection,
    a_far_side_that_talks_nonsense,
    a_far_side_that_panics_is_not_logged_in_to_again,
}

ways! { push, pull => a_far_side_that_ends_at_once }

fn a_missing_source(case: &Case) {
    let list = case.scratch.file("list", "an older list\n");
    let digests = format!("--digests={}", list.display());
    case.copy(&[&digests], "nothing", "x")
        .exits(9)
        .says("nothing")
        .says("no such file");
    assert_eq!(case.scratch.read("list"), b"an older list\n");
    case.src.file("a", "one");
    case.copy_all(&[], &["nothing", "a"], "")
        .exits(9)
        .says("nothing");
    assert_eq!(case.dst.names(), ["a"]);
}

fn a_missing_destination_directory(case: &Case) {
    case.src.file("a", "one");
    case.src.file("tree/b", "two");
    case.copy(&[], "a", "no/where/a").fails().says("no/where");
    case.copy(&["-r"], "tree", "no/where/tree")
        .fails()
        .says("no/where");
    assert!(case.dst.names().is_empty());
}

fn a_name_that_is_too_long(case: &Case) {
    case.src.file("a", "one");
    let name = "n".repeat(256);
    case.copy(&[], "a", &name).fails().says("name too long");
    let path = "d/".repeat(2100) + "a";
    case.copy(&[], "a", &path).fails().says("name too long");
    assert!(case.dst.names().is_empty());
}

fn special_files_in_a_tree_are_counted_and_no_failure(case: &Case) {
    case.src.file("tree/file", "one");
    let pipe = case.src.path("tree/pipe");
    let made = Command::new("mkfifo")
        .arg(&pipe)
        .status()
        .expect("run mkfifo");
    assert!(made.success());
    let socket = case.scratch.path("s");
    std::os::unix::net::UnixListener::bind(&socket).expect("make a socket");
    std::fs::rename(socket, case.src.path("tree/socket")).expect("move the socket");
    let done = case.copy(&["-r", "--summary"], "tree", "");
    done.succeeds().says("2 special files skipped");
    let done = case.copy(&["-r", "--json"], "tree", "");
    let told = done.succeeds().stdout_text();
    assert!(told.contains("\"special_files_skipped\":2"), "{told}");
    assert_eq!(case.dst.dir("tree").names(), ["file"]);
}

/// A copy in which neither end has root's power to ignore file modes.
#[track_caller]
fn copy_without_powers(case: &Case, src: &str, dst: &str) -> done::Done {
    let powerless = without_powers();
    if case.way != Way::Here {
        case.host().set_login(&Login {
            under: powerless.join(" "),
            ..Login::default()
        });
    }
    case.copying(&["-r"], src, dst).under(powerless).run()
}

fn an_unreadable_source_is_told_and_the_rest_is_copied(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("closed", "secret");
    tree.file("open", "open");
    tree.file("dir/inside", "inside");
    tree.mode("closed", 0);
    tree.mode("dir", 0);
    let done = copy_without_powers(case, "tree", "");
    tree.mode("dir", 0o700);
    done.exits(9)
        .says("tree/closed")
        .says("tree/dir")
        .says("permission denied");
    assert_eq!(case.dst.read("tree/open"), b"open");
    assert!(!case.dst.has("tree/closed"));
    copy_without_powers(case, "tree/closed", "alone").exits(9);
}

fn a_destination_that_may_not_be_written(case: &Case) {
    case.src.file("a", "new");
    case.dst.file("dir/there", "old");
    case.dst.mode("dir", 0o555);
    for name in ["dir/new", "dir/there"] {
        let done = copy_without_powers(case, "a", name);
        done.exits(8).says("dst/dir").says("permission denied");
        match name {
            "dir/new" => done.never_says("--inplace"),
            _ => done
                .says("cannot create files in this directory")
                .says("use --inplace to write into there itself"),
        };
    }
    case.dst.mode("dir", 0o755);
    assert_eq!(case.dst.dir("dir").names(), ["there"]);
    assert_eq!(case.dst.read("dir/there"), b"old");
}

fn one_bad_entry_does_not_end_the_copy(case: &Case) {
    let tree = case.src.dir("tree");
    for number in 0..50 {
        tree.file(format!("{number}/file"), noise(number, 20_000));
    }
    case.dst.file("tree/7/file/in the way", "stays");
    let done = case.copy(&["-r"], "tree", "");
    done.fails().says("tree/7/file");
    for number in (0..50).filter(|number| *number != 7) {
        let name = format!("tree/{number}/file");
        assert_same(case.src.path(&name), case.dst.path(&name), Also::Nothing);
    }
}

fn a_host_that_is_not_there(case: &Case) {
    case.src.file("a", "one");
    // The port is bound without a listener, so no other process gets it during the test.
    let closed = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    closed.bind(&any.into()).expect("bind it");
    let at = closed.local_addr().expect("it is bound").as_socket_ipv4();
    let port = format!("Port={}", at.expect("IPv4").port());
    // An older list of digests is still true.
    let list = case.scratch.file("list", "an older list\n");
    let digests = format!("--digests={}", list.display());
    case.copy(&["-o", &port, &digests], "a", "a")
        .exits(3)
        .says("far")
        .says("refused");
    case.copy(&["-o", "HostName=no-such-host.invalid"], "a", "a")
        .exits(3)
        .says("no-such-host.invalid");
    case.copy(&["-S", "/nonexistent/ssh"], "a", "a")
        .fails()
        .says("/nonexistent/ssh");
    assert_eq!(case.scratch.read("list"), b"an older list\n");
}

fn a_refused_login(case: &Case) {
    case.src.file("a", "one");
    case.host().dir().file("authorized_keys", "");
    case.copy(&[], "a", "a").exits(3).says("permission denied");
    case.host().dir().file("known_hosts", "");
    case.copy(&[], "a", "a")
        .exits(3)
        .says("host key verification failed");
}

fn a_far_side_without_fastcp(case: &Case) {
    case.src.file("a", "one");
    case.host().set_login(&Login {
        path: "/usr/bin:/bin".into(),
        ..Login::default()
    });
    case.copy(&["--no-install"], "a", "a")
        .exits(4)
        .says("--remote-path")
        .says("far");
    case.copy(&["--remote-path", "/no/such/fastcp"], "a", "a")
        .exits(4)
        .says("/no/such/fastcp");
    // An account for sftp only: another program answers whatever command is sent.
    case.host().set_login(&Login {
        before: "echo 'This service allows sftp connections only.'; exit 1".into(),
        ..Login::default()
    });
    case.copy(&[], "a", "a").exits(4).says("allows only sftp");
    // A disabled account, with nologin's message on stdout.
    case.host().set_login(&Login {
        before: "echo 'This account is currently not available.'; exit 1".into(),
        ..Login::default()
    });
    case.copy(&[], "a", "a")
        .exits(4)
        .says("This account is currently not available.")
        .never_says("sftp");
    case.host().set_login(&Login::default());
    case.copy(&["--remote-path", "/bin/false"], "a", "a")
        .exits(4)
        .says("--remote-path")
        .never_says("sftp");
}

/// A host that runs these shell lines instead of fastcp.
fn far_side(case: &Case, script: &str) -> done::Done {
    far_side_with(case, script, &[])
}

fn far_side_with(case: &Case, script: &str, flags: &[&str]) -> done::Done {
    case.src.file("a", "one");
    case.scratch
        .file("stand-in", format!("#!/bin/sh\n{script}\n"));
    case.scratch.mode("stand-in", 0o755);
    let command = case.scratch.path("stand-in").display().to_string();
    let flags = [&["--remote-path", &command], flags].concat();
    case.copy(&flags, "a", "a")
}

fn a_far_side_of_another_protocol_version(case: &Case) {
    // A real server's hello with another number for the protocol versions.
    let real = fastcp_binary().display();
    let script = format!(
        "true | '{real}' --server | sed -E 's/\"(protocol_m[inax]+)\":[0-9]+/\"\\1\":77/g'; \
         cat > /dev/null"
    );
    far_side(case, &script)
        .exits(4)
        .says("protocol 77 ")
        .says("protocol 1 ");
}

fn a_hello_that_is_cut_short_is_a_lost_connection(case: &Case) {
    let real = fastcp_binary().display();
    let script = format!("true | '{real}' --server | head -c 100");
    far_side(case, &script)
        .exits(5)
        .says("the connection ended while fastcp started there")
        .never_says("protocol_min");
}

fn a_far_side_that_talks_nonsense(case: &Case) {
    let nonsense = [
        "head -c 300000 /dev/urandom; cat > /dev/null",
        "yes | head -c 10000000; cat > /dev/null",
        "seq 30; exit 0",
    ];
    for script in nonsense {
        far_side(case, script).exits(4).never_says("panicked");
    }
    // A valid hello, then bytes that are no message.
    let real = fastcp_binary().display();
    let script = format!(
        "true | '{real}' --server | cat; head -c 300000 /dev/zero | tr '\\0' '\\377'; cat > /dev/null"
    );
    far_side(case, &script).exits(13).never_says("panicked");
    let script = format!(
        "true | '{real}' --server | cat; printf '\\1\\0\\377\\377\\377\\377\\377\\377\\377\\177'; cat > /dev/null"
    );
    far_side(case, &script).exits(13).never_says("panicked");
}

/// After another login the server would panic again.
fn a_far_side_that_panics_is_not_logged_in_to_again(case: &Case) {
    let real = fastcp_binary().display();
    let logins = case.scratch.path("logins");
    for code in [13, 101] {
        let script = format!(
            "echo >> '{}'; true | '{real}' --server | cat; exit {code}",
            logins.display()
        );
        far_side(case, &script)
            .exits(13)
            .says("internal error")
            .never_says("logging in again");
    }
    let logins = std::fs::read_to_string(logins).expect("each login leaves a line");
    let hosts = if case.way.is_between() { 2 } else { 1 };
    assert_eq!(logins.lines().count(), 2 * hosts);
}

fn a_far_side_that_says_nothing(case: &Case) {
    far_side_with(case, "cat > /dev/null", &["--timeout", "5s"])
        .exits(4)
        .says("no answer within 5 s (see --timeout)");
}

fn a_far_side_that_ends_at_once(case: &Case) {
    far_side(case, "exit 0").exits(4).says("far");
    far_side(case, "kill -KILL $$").exits(4).says("far");
}

ways! { local_push => a_far_side_that_says_nothing }

#[test]
fn what_was_typed_wrong_is_said_with_exit_2() {
    Case::run(Way::Here, |case| {
        case.src.file("a", "one");
        let a = case.src.path("a").display().to_string();
        let lines: [&[&str]; 10] = [
            &[],
            &[&a],
            &["--no-such-flag", &a, "b"],
            &["-l", "fast", &a, "b"],
            &["-P", "70000", &a, "far:b"],
            &["--streams", "many", &a, "b"],
            &["--rsh", "telnet", &a, "far:b"],
            &[&a, "scp://far:99999/b"],
            &[&a, ""],
            &["one:a", "two:a", "c"],
        ];
        for line in lines {
            let done = case.fastcp().args(line).run();
            done.exits(2);
            assert!(!done.stderr.trim().is_empty(), "{line:?} needs a sentence");
        }
        let host = "-oProxyCommand=touch pwned";
        case.fastcp().arg(&a).arg(format!("{host}:b")).run().fails();
        case.fastcp()
            .arg("--")
            .arg(&a)
            .arg(format!("{host}:b"))
            .run()
            .fails();
        assert!(!case.home.has("pwned"));
    });
}
