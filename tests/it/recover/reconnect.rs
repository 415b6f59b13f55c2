//! Lost connections: the client logs in again by itself and the copy completes, or it reports what
//! happened.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::support::done::Done;
use crate::support::host::find_program;
use crate::support::inject::{self, Inject};
use crate::support::procs::{self, Process, until};
use crate::support::pty::Terminal;
use crate::support::run::{Running, fastcp_binary};
use crate::support::slow::{self, SLOW, held_back, let_go, wait_for_content};
use crate::support::ssh_once::SshOnce;
use crate::support::*;

ways! { push, pull, between =>
    a_killed_ssh_is_logged_in_again,
    what_a_former_session_brought_is_not_sent_again,
    connections_may_be_lost_again_and_again,
    a_tree_completes_after_a_lost_connection,
    without_retries_a_lost_connection_is_the_end,
    a_first_login_that_fails_is_not_tried_again,
    a_login_again_never_asks,
}

ways! { push, pull =>
    of_several_only_what_is_read_once_fails_with_the_connection,
    what_is_read_once_and_in_place_outlives_the_connection,
    a_killed_server_is_logged_in_again,
    a_server_that_is_ended_there_is_started_again,
    a_former_server_that_hangs_holds_nobody_up,
    a_copy_that_slept_longer_than_the_server_waits_completes,
    spent_retries_are_told_with_cause_and_last_login,
}

ways! { push =>
    a_server_that_does_not_want_to_start_again_is_quoted,
    a_later_server_is_given_its_task_before_a_slow_source_is_looked_up,
    a_signal_ends_a_later_login_before_ssh_has_told_its_configuration,
}

ways! { local_push, local_pull => a_broken_protocol_is_not_tried_again }

ways! { local_push => a_tree_that_was_complete_before_the_loss_is_not_nested_into }

/// Without further logins, which on a busy machine might be tried and are ssh processes too.
const DIRECT: &str = "--route=direct";

/// Starts a copy of `a` and waits for its first content.
fn under_way(case: &Case, flags: &[&str]) -> Running {
    slow::started(case, 40 * MIB, &[&[DIRECT], flags].concat())
}

/// One login to each host.
fn logins_of_a_session(case: &Case) -> usize {
    1 + usize::from(case.way.is_between())
}

fn ssh_of(case: &Case) -> Process {
    until("ssh runs", || {
        procs::marked(case.mark()).into_iter().find(Process::is_ssh)
    })
}

/// How many times the client reported a lost connection.
fn notices(done: &Done) -> usize {
    done.stderr.matches("; logging in again in ").count()
}

#[track_caller]
fn completes(case: &Case, done: &Done) {
    done.succeeds().never_says("panicked");
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn a_killed_ssh_is_logged_in_again(case: &Case) {
    let run = under_way(case, &[]);
    ssh_of(case).kill();
    let done = run.wait();
    completes(case, &done);
    done.says("connection to far lost: ssh was killed by signal 9;")
        .says("(giving up in 5 min 00 s)")
        .says("logged in again once");
    // Between two hosts the sender reports to the client four times a second. Only chunks placed
    // since the last report may count as already there.
    match done.stderr.split_once(" MB of it already there") {
        Some((before, _)) if case.way.is_between() => {
            let megabytes = before.rsplit(' ').next().and_then(|it| it.parse().ok());
            assert!(megabytes.is_some_and(|it: f64| it < 5.0), "{done}");
        }
        _ => drop(done.never_says("already there")),
    }
    assert_eq!(notices(&done), 1, "{done}");
}

/// Sends this signal to the server, until the client tells this cause of the loss: on a busy machine
/// ssh may end later than fastcp waits for it.
#[track_caller]
fn goes_on_and_tells(case: &Case, signal: Signal, cause: &str) {
    let is_told = (0..4).any(|_| {
        let run = under_way(case, &[]);
        let server = case.servers().pop().expect("a server runs");
        rustix::process::kill_process(server.pid, signal).expect("end the server");
        let done = run.wait();
        completes(case, &done);
        done.says("connection to far lost: ");
        assert_eq!(notices(&done), 1, "{done}");
        std::fs::remove_file(case.dst.path("a")).expect("remove the copy");
        eprintln!("{done}");
        done.stderr
            .contains(&format!("connection to far lost: {cause}"))
    });
    assert!(is_told, "never told: {cause}");
}

fn a_killed_server_is_logged_in_again(case: &Case) {
    goes_on_and_tells(case, Signal::KILL, "ssh ended without a message");
}

fn what_a_former_session_brought_is_not_sent_again(case: &Case) {
    for flags in [&[][..], &["--no-resume"]] {
        case.src.file("a", noise(1, 40 * MIB));
        let slow = ["--memory", "16Mi", "--summary", "--compress", "none"];
        let run = case.copying(&slow, "a", "a").arg(DIRECT).args(flags);
        let run = run.arg(held_back(case, "3M")).start();
        until("half is there", || {
            (case.dst.partial_bytes() > 20 << 20).then_some(())
        });
        ssh_of(case).kill();
        let_go(case);
        let done = run.wait();
        completes(case, &done);
        done.says("logged in again once");
        if !case.way.is_between() {
            // Between two hosts, the client may miss the last report of the sender.
            done.never_says("already there");
        }
        let wire = done.wire_bytes();
        // 40 MiB, and the chunks in flight a second time.
        assert!(wire < 56 * MIB, "{wire} bytes for {flags:?}: {done}");
        std::fs::remove_file(case.dst.path("a")).expect("remove the copy");
    }
}

fn a_server_that_is_ended_there_is_started_again(case: &Case) {
    goes_on_and_tells(case, Signal::TERM, "fastcp there was killed by signal 15;");
}

/// A stopped server notices neither the end of its ssh nor a request to end. As the receiver it
/// still holds the lock on the destination.
fn a_former_server_that_hangs_holds_nobody_up(case: &Case) {
    let run = under_way(case, &[]);
    let former = case.servers().pop().expect("a server runs");
    rustix::process::kill_process(former.pid, Signal::STOP).expect("stop the server");
    ssh_of(case).kill();
    let done = run.wait();
    completes(case, &done);
    done.says("logged in again once");
    if case.way == Way::Push {
        assert!(former.is_over(), "{}", former.describe());
    } else {
        // It writes nothing, so nobody has to end it.
        rustix::process::kill_process(former.pid, Signal::CONT).expect("let it go on");
    }
}

/// A lost connection leaves no unreaped child, no leaked memory and no server behind.
fn connections_may_be_lost_again_and_again(case: &Case) {
    let size = 60 * MIB as u64;
    case.src.file("a", noise(1, size as usize));
    // Slow until the last loss, which a busy machine may bring about late.
    let rate = case.scratch.file("rate", "4M");
    let limit = format!("--bwlimit=@{}", rate.display());
    let run = case
        .copying(&["--summary", "--memory=16Mi", &limit, DIRECT], "a", "a")
        .start();
    let mut peaks = Vec::new();
    let mut former: Vec<Pid> = Vec::new();
    for _ in 1..=5 {
        let logins = || -> Vec<Process> {
            let processes = procs::marked(case.mark()).into_iter();
            processes.filter(Process::is_ssh).collect()
        };
        until("it logs in", || {
            let logins = logins();
            let is_next = |ssh: &Process| !former.contains(&ssh.pid);
            let are_all = !logins.is_empty() && logins.len() >= former.len();
            (are_all && logins.iter().all(is_next)).then_some(())
        });
        // A login that is lost before the copy goes on belongs to the loss before it. Data of the
        // former connections may be written late.
        let before = case.dst.partial_bytes();
        until("it goes on", || {
            (case.dst.partial_bytes() > before + size / 15).then_some(())
        });
        // The first ssh processes may only have read its configuration.
        let logins = logins();
        peaks.push(procs::peak_rss_bytes(run.pid()));
        until("every child is reaped", || {
            (procs::zombies(run.pid()) == 0).then_some(())
        });
        former = logins.iter().map(|ssh| ssh.pid).collect();
        logins[0].kill();
    }
    case.scratch.file("rate", "50M");
    let done = run.wait();
    completes(case, &done);
    done.says("logged in again 5 times");
    assert_eq!(notices(&done), 5, "{done}");
    let grown = peaks[4].saturating_sub(peaks[1]);
    // A leaked buffer pool would add 16 MiB at each of three losses. Fragmentation of freed memory
    // adds less.
    assert!(grown < 32 << 20, "memory at each loss: {peaks:?}");
}

fn a_tree_completes_after_a_lost_connection(case: &Case) {
    let tree = case.src.dir("tree");
    for number in 0..60 {
        tree.file(number.to_string(), noise(number, 100_000));
    }
    tree.file("z", noise(100, 40 * MIB));
    // These entries fail, or are skipped, in each session.
    tree.file("blocked", "a file");
    case.dst.dir("tree/blocked");
    rustix::fs::mkfifoat(rustix::fs::CWD, case.src.path("tree/fifo"), 0o600.into())
        .expect("make a FIFO");
    let run = case.copying(&["-r", DIRECT], "tree/", "tree");
    let run = run.args(SLOW).start();
    until("the copy is under way", || {
        let into = Dir(case.dst.path("tree"));
        (into.partial_bytes() > 6 << 20).then_some(())
    });
    ssh_of(case).kill();
    let done = run.wait();
    done.exits(11).says("1 failed").says("logged in again once");
    done.says("1 special file skipped");
    let told = done.stderr.matches("blocked").count();
    assert_eq!(told, 1, "told once: {done}");
    for source in ["tree/fifo", "tree/blocked"] {
        std::fs::remove_file(case.src.path(source)).expect("remove");
    }
    std::fs::remove_dir(case.dst.path("tree/blocked")).expect("remove");
    assert_same(&tree.0, case.dst.path("tree"), Also::Nothing);
}

/// A FIFO cannot be read twice. Files of /proc are read in the same way, but can be read again.
fn of_several_only_what_is_read_once_fails_with_the_connection(case: &Case) {
    case.src.file("a", noise(1, 40 * MIB));
    case.src
        .file("version", std::fs::read("/proc/version").expect("read"));
    let fifo = case.scratch.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).expect("make a FIFO");
    let run = case.fastcp().args(SLOW).arg(DIRECT).arg(case.src("a"));
    let run = run.args([case.from(&fifo), case.from("/proc/version")]);
    let run = run.arg(case.dst("")).start();
    // The FIFO's reader ends with the connection, and no other writer opens the FIFO.
    let mut writer = until("the FIFO has a reader", || {
        let mut options = std::fs::File::options();
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        options.write(true).custom_flags(flags).open(&fifo).ok()
    });
    writer.write_all(b"some of it").expect("write to it");
    wait_for_content(case);
    ssh_of(case).kill();
    let done = run.wait();
    done.exits(9)
        .says("fifo")
        .says("a pipe cannot be read again")
        .says("1 failed")
        .says("logged in again once");
    assert_eq!(case.dst.names(), ["a", "version"]);
    assert_same(&case.src.0, &case.dst.0, Also::Nothing);
}

/// Before the connection is lost, the FIFO has been read to its end and the file has its final
/// name.
fn what_is_read_once_and_in_place_outlives_the_connection(case: &Case) {
    case.src.file("fifo", noise(2, MIB + 77));
    case.src.file("a", noise(1, 40 * MIB));
    let fifo = case.scratch.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).expect("make a FIFO");
    let list = case.scratch.path("list");
    for digests in [false, true] {
        let run = case
            .fastcp()
            .args(SLOW)
            .arg(DIRECT)
            .args([case.from(&fifo), case.src("a")]);
        let run = match digests {
            true => run.arg("--digests").arg(&list),
            false => run,
        };
        let run = run.arg(case.dst("")).start();
        let mut options = std::fs::File::options();
        let mut writer = options.write(true).open(&fifo).expect("open a FIFO");
        writer.write_all(&noise(2, MIB + 77)).expect("write to it");
        drop(writer);
        until("it is in place", || case.dst.has("fifo").then_some(()));
        wait_for_content(case);
        ssh_of(case).kill();
        let done = run.wait();
        done.succeeds()
            .says("2 files, 43.0 MB")
            .says("logged in again once");
        assert_same(&case.src.0, &case.dst.0, Also::Nothing);
        if digests {
            let digest = blake3::hash(&noise(2, MIB + 77)).to_hex();
            let list = String::from_utf8(case.scratch.read("list")).expect("text");
            assert!(list.contains(&format!("{digest}  fifo\n")), "{list}");
        }
        for name in case.dst.names() {
            std::fs::remove_file(case.dst.path(name)).expect("remove");
        }
    }
}

fn a_copy_that_slept_longer_than_the_server_waits_completes(case: &Case) {
    let run = under_way(case, &["--timeout", "5s"]);
    // Ctrl-Z and the lid of a laptop do the same: ssh stops too.
    run.signal_group(Signal::STOP);
    let server = case.servers().pop().expect("a server runs");
    assert!(
        server.ends_within(Duration::from_secs(30)),
        "the server waits: {}",
        server.describe()
    );
    run.signal_group(Signal::CONT);
    let done = run.wait();
    completes(case, &done);
    done.says("logged in again once");
}

fn spent_retries_are_told_with_cause_and_last_login(case: &Case) {
    let ssh = SshOnce::new(case, "no way in");
    let program = ssh.program();
    let flags = ["-S", &program, "--retries", "2", "-oBatchMode=no"];
    let run = under_way(case, &flags);
    case.servers().pop().expect("a server runs").kill();
    let done = run.wait();
    done.exits(5)
        .says("connection to far lost: ssh ended without a message")
        .says("; gave up after 2 more logins (the last: no way in)")
        .says("kept: run the same command again")
        .never_says("panicked");
    assert_eq!(notices(&done), 1, "{done}");
    let logins = ssh.logins();
    assert_eq!(logins.len(), 3, "{logins:?}");
    for again in &logins[1..] {
        let at = |option: &str| {
            again
                .find(option)
                .unwrap_or_else(|| panic!("{option}: {again}"))
        };
        assert!(at("BatchMode=yes") < at("BatchMode=no"), "{again}");
        at("ConnectTimeout=15");
    }
    case.dst.sweep();
}

/// The error quotes the server's line, without the program name at its start.
fn a_server_that_does_not_want_to_start_again_is_quoted(case: &Case) {
    let ssh = SshOnce::ending(case, "fastcp: only 9 files may be open at once", 4);
    let program = ssh.program();
    let run = under_way(case, &["-S", &program, "--retries", "1"]);
    case.servers().pop().expect("a server runs").kill();
    let done = run.wait();
    let why = "far: fastcp cannot run there: only 9 files may be open at once";
    done.exits(5)
        .says(&format!("1 more login (the last: {why})"))
        .never_says(" fastcp: only");
    case.dst.sweep();
}

/// A server waits only a short time for its task. The number of its threads is a part of it that
/// shows.
fn a_later_server_is_given_its_task_before_a_slow_source_is_looked_up(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, 40 * MIB));
    let armed = case.scratch.path("armed");
    let held = Inject::new().hold("stat").on("*/src/a").at_client();
    let held = held.armed_by(armed.clone());
    let flags = [&SLOW[..], &["--threads=24", "--memory=256Mi", DIRECT]].concat();
    let run = case.copying(&flags, "a", "a").inject(&held).start();
    wait_for_content(case);
    std::fs::write(&armed, "").expect("arm it");
    let first = case.servers().pop().expect("a server runs");
    first.kill();
    held.wait_until_struck(1);
    until("the next server has its task", || {
        let servers = case.servers().into_iter();
        let mut later = servers.filter(|server| server.pid != first.pid);
        later.any(|server| server.threads() >= 24).then_some(())
    });
    held.release();
    completes(case, &run.wait());
}

fn a_signal_ends_a_later_login_before_ssh_has_told_its_configuration(case: &Case) {
    let (ssh, asked) = (find_program("ssh"), case.scratch.path("asked"));
    let script = format!(
        "#!/bin/sh\ncase $1 in -G) echo $$ >'{0}.new'; mv '{0}.new' '{0}'; exec sleep 600;; esac\n\
         exec '{1}' \"$@\"\n",
        asked.display(),
        ssh.expect("the case has a host").display(),
    );
    let program = case.scratch.file("ssh", script);
    case.scratch.mode("ssh", 0o755);
    // It gives up after 5 s. On a busy machine a signal may take as long, so there are a few tries.
    let ends_at_once = (0..4).any(|_| {
        let program = program.to_str().expect("UTF-8");
        let run = under_way(case, &["-S", program]);
        std::fs::remove_file(&asked).ok();
        case.servers().pop().expect("a server runs").kill();
        let asking = until("ssh is asked", || std::fs::read_to_string(&asked).ok());
        let since = Instant::now();
        run.signal(Signal::INT);
        run.wait().exits(130);
        let took = since.elapsed();
        let asking = asking.trim().parse().ok().and_then(Pid::from_raw);
        assert!(procs::ended_within(
            asking.expect("a number"),
            Duration::from_secs(60)
        ));
        eprintln!("it took {took:?}");
        case.sweep();
        took < Duration::from_secs(4)
    });
    assert!(ends_at_once, "never within 4 s");
}

fn without_retries_a_lost_connection_is_the_end(case: &Case) {
    let run = under_way(case, &["--retries", "0"]);
    ssh_of(case).kill();
    let done = run.wait();
    done.exits(5)
        .says("connection to far lost: ssh was killed by signal 9; ")
        .never_says("logging in again")
        .never_says("gave up");
    assert_eq!(case.host().logins(), logins_of_a_session(case));
    case.host().wait_for_logins();
    case.dst.sweep();
}

fn a_first_login_that_fails_is_not_tried_again(case: &Case) {
    case.src.file("a", "one");
    case.host().dir().file("authorized_keys", "");
    case.copy(&[], "a", "a")
        .exits(3)
        .never_says("logging in again");
    // If one of two hosts refuses, the client may end the login to the other before the host counts
    // it.
    let logins = case.host().logins();
    assert!(
        (1..=logins_of_a_session(case)).contains(&logins),
        "{logins}"
    );
}

fn a_login_again_never_asks(case: &Case) {
    case.src.file("a", noise(1, 40 * MIB));
    let terminal = Terminal::open(80, 24);
    let run = case
        .copying(
            &["-l", "16000", "--memory", "16Mi", "--retries", "1", DIRECT],
            "a",
            "a",
        )
        .env("TERM", "xterm")
        .start_on(terminal.output(), terminal.slave());
    wait_for_content(case);
    // From now on the key needs a passphrase that only a person knows.
    let locked = std::process::Command::new("ssh-keygen")
        .args(["-q", "-p", "-P", "", "-N", "secret", "-f"])
        .arg(case.host().key())
        .stdout(std::process::Stdio::null())
        .status()
        .expect("run ssh-keygen");
    assert!(locked.success());
    ssh_of(case).kill();
    let done = run.wait();
    done.exits(5);
    let drawn = done.stdout_text();
    assert!(drawn.contains("logging in again"), "{drawn:?}");
    assert!(!drawn.to_lowercase().contains("passphrase"), "{drawn:?}");
    case.host().wait_for_logins();
    case.dst.sweep();
}

/// The receiver has removed its journal, and its report of that is lost.
fn a_tree_that_was_complete_before_the_loss_is_not_nested_into(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = case.src.dir("tree");
    tree.file("a/b", "small");
    tree.file("c", noise(1, MIB));
    let inject = Inject::new().hold("unlink").on(".fastcp-*.journal");
    let inject = inject.at_server().nth(1);
    let run = case.copying(&["-r"], "tree", "x").inject(&inject).start();
    inject.wait_until_struck(1);
    for journal in case.dst.journals() {
        std::fs::remove_file(journal).expect("remove the journal");
    }
    case.servers().iter().for_each(Process::kill);
    inject.release();
    run.wait().succeeds().says("logging in again");
    assert_same(&tree.0, case.dst.path("x"), Also::Nothing);
    assert_eq!(case.dst.names(), ["x"]);
}

fn a_broken_protocol_is_not_tried_again(case: &Case) {
    case.src.file("a", "one");
    let (real, log) = (fastcp_binary().display(), case.scratch.path("starts"));
    // A real hello, then a message of 4 GB.
    case.scratch.file(
        "far end",
        format!(
            "#!/bin/sh\necho start >> '{}'\n\
             true | '{real}' --server | cat; head -c 300000 /dev/zero | tr '\\0' '\\377'\n\
             cat > /dev/null\n",
            log.display()
        ),
    );
    case.scratch.mode("far end", 0o755);
    let command = format!("'{}'", case.scratch.path("far end").display());
    case.copy(&["--remote-path", &command], "a", "a")
        .exits(13)
        .says("an invalid message")
        .never_says("logging in again");
    let starts = std::fs::read_to_string(log).expect("it was started");
    assert_eq!(starts.lines().count(), 1);
}
