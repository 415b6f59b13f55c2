//! Time limits of logins, and retries of failed ones.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::host::Host;
use crate::support::procs::until;
use crate::support::pty::Terminal;
use crate::support::run::Running;
use crate::support::{keys, *};

ways! { push, pull, between => a_host_that_accepts_and_is_silent_is_given_up }

ways! { push, pull => a_host_that_starts_up_is_waited_for }

ways! { push =>
    a_first_login_is_tried_again_for_as_long_as_asked,
    every_command_that_logs_in_has_the_limit,
    time_at_a_prompt_is_told_from_a_login_that_hangs,
}

/// A port that accepts connections and never answers: a hung sshd, or a host that swaps.
struct SilentHost(TcpListener);

impl SilentHost {
    fn open() -> SilentHost {
        SilentHost(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    /// `path` on this host. The kernel completes the connections.
    fn operand(&self, path: &str) -> OsString {
        let port = self.0.local_addr().expect("it is bound").port();
        format!("scp://127.0.0.1:{port}/{path}").into()
    }
}

/// A port without a listener so far. While the socket is held, no other process but one that asks for
/// this port gets it.
fn closed_port() -> (Socket, SocketAddr) {
    let closed = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    closed.set_reuse_address(true).expect("set an option");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    closed.bind(&any.into()).expect("bind it");
    let at = closed.local_addr().expect("it is bound").as_socket();
    (closed, at.expect("an address of IP"))
}

fn a_host_that_starts_up_is_waited_for(case: &Case) {
    case.src.file("a", "one");
    let (_held, at) = closed_port();
    let port = at.port().to_string();
    // ssh reads the configuration of the host that starts later, at each login.
    let dir = case.scratch.dir("later");
    let config = dir.path("ssh_config");
    dir.file(
        "ssh_config",
        format!("Host far\nHostName 127.0.0.1\nPort {port}\n"),
    );
    let run = case.bare().arg("-F").arg(&config);
    let run = run.args(["--retry-for", "1min"]);
    let run = run.arg(case.src("a")).arg(case.dst("a")).start();
    until("the first login has failed", || {
        let text = run.stderr.text();
        text.contains("Connection refused; logging in again in 1 s (giving up in")
            .then_some(())
    });
    let host = Host::start_at(at, dir, &case.home.0, case.mark());
    let host = host.unwrap_or_else(|lacks| panic!("{lacks:?}"));
    let done = run.wait();
    done.succeeds();
    assert_eq!(done.stderr.lines().count(), 1, "told once: {done}");
    assert_eq!(case.dst.read("a"), b"one");
    host.wait_for_logins();
}

fn a_first_login_is_tried_again_for_as_long_as_asked(case: &Case) {
    case.src.file("a", "one");
    let (_held, at) = closed_port();
    let there = format!("scp://127.0.0.1:{}/tmp/x", at.port());
    let copy = |flags: &[&str]| {
        let run = case.fastcp().args(flags).arg(case.src("a"));
        run.arg(&there).run()
    };
    copy(&["--retry-for", "2s", "-q", "-oLogLevel=QUIET"])
        .exits(3)
        .says("Connection refused; gave up after");
    let quiet = copy(&["-q"]);
    quiet.exits(3).says("Connection refused)");
    assert_eq!(quiet.stderr.lines().count(), 1, "{quiet}");
    for flags in [&[][..], &["--retry-for", "0"], &["--retries", "3"]] {
        copy(flags).exits(3).never_says("again");
    }
    // A host that accepts the connection and is silent for longer than ssh waits.
    let silent = SilentHost::open();
    let run = case
        .fastcp()
        .args(["--retry-for", "1min", "-o", "ConnectTimeout=1"]);
    let run = run.arg(case.src("a")).arg(silent.operand("tmp/x")).start();
    until("the first login has failed", || {
        let text = run.stderr.text();
        text.contains("timed out; logging in again in")
            .then_some(())
    });
    drop(run);
    // Failures that another login would not repair.
    let unknown = ["--retry-for", "1min", "-o", "HostName=no-such-host.invalid"];
    case.copy(&unknown, "a", "a").exits(3).never_says("again");
    case.host().dir().file("authorized_keys", "");
    case.copy(&["--retry-for", "1min"], "a", "a")
        .exits(3)
        .says("Permission denied")
        .never_says("again");
    assert_eq!(case.host().logins(), 1);
}

const LIMIT: [&str; 2] = ["--timeout", "5s"];

fn gives_up(run: Running) {
    run.wait()
        .exits(3)
        .says("127.0.0.1: no answer within 5 s (see --timeout)")
        .never_says("panicked");
}

fn a_host_that_accepts_and_is_silent_is_given_up(case: &Case) {
    case.src.file("a", "one");
    let silent = SilentHost::open();
    let there = silent.operand("tmp/x");
    let copy = |from: OsString, to: OsString| case.fastcp().args(LIMIT).arg(from).arg(to).start();
    match case.way {
        Way::Pull => gives_up(copy(there, case.dst("a"))),
        Way::Between => {
            let silent_source = copy(there.clone(), case.dst("a"));
            let silent_dest = copy(case.src("a"), there);
            gives_up(silent_source);
            gives_up(silent_dest);
        }
        _ => gives_up(copy(case.src("a"), there)),
    }
    // A host that accepts the login, but whose login shell hangs until ssh has gone.
    case.host().set_login(&Login {
        before: "cat > /dev/null; exit 1".into(),
        ..Login::default()
    });
    let done = case.copy(&LIMIT, "a", "a");
    done.exits(3).says("no answer within 5 s (see --timeout)");
    // A host that prints a line first, and then hangs.
    case.host().set_login(&Login {
        before: "echo Welcome; cat > /dev/null; exit 1".into(),
        ..Login::default()
    });
    case.copy(&LIMIT, "a", "a").exits(3).says("no answer");
}

fn every_command_that_logs_in_has_the_limit(case: &Case) {
    case.src.file("a", "one");
    let silent = SilentHost::open();
    let root = silent.operand("");
    let run = |words: &[&str], operands: &[OsString]| {
        let run = case.fastcp().args(LIMIT).args(words);
        run.args(operands).start()
    };
    let also = {
        let (a, good, bad) = (case.src("a"), case.dst("a"), silent.operand("tmp/x"));
        run(&["--also"], &[bad, a, good])
    };
    let runs = [
        run(&["--version"], std::slice::from_ref(&root)),
        run(&["--remove"], std::slice::from_ref(&root)),
        run(&["--probe"], &[silent.operand("tmp/")]),
    ];
    for run in runs {
        gives_up(run);
    }
    // The other host gets its copy.
    gives_up(also);
    assert_eq!(case.dst.read("a"), b"one");
}

/// ssh asks on the terminal: the time that a user takes to answer does not count.
fn time_at_a_prompt_is_told_from_a_login_that_hangs(case: &Case) {
    case.src.file("a", "one");
    let key = keys::lock(case, "open sesame");
    let terminal = Terminal::open(80, 24);
    let run = case
        .copying(&["-i", key.to_str().expect("an ASCII path")], "a", "a")
        .args(LIMIT)
        .env("TERM", "xterm")
        .start_on(terminal.output(), terminal.slave());
    let id = run.pid().as_raw_pid() as u32;
    assert!(!fastcp::ssh::asks_on_terminal(std::process::id()));
    until("the question is seen in /proc", || {
        let is_asked = run.stdout.text().contains("passphrase");
        (is_asked && fastcp::ssh::asks_on_terminal(id)).then_some(())
    });
    // Longer than the limit.
    std::thread::sleep(Duration::from_secs(6));
    terminal.type_in("open sesame\n");
    run.wait().succeeds();
}
