//! Signals from the user, the shell and the terminal.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::process::Signal;

use crate::support::inject::{self, Inject};
use crate::support::procs::{self, until};
use crate::support::pty::Terminal;
use crate::support::run::{Running, fastcp_binary};
use crate::support::slow::{self, SLOW, held_back, let_go, wait_for_content};
use crate::support::{keys, *};

ways! { push, pull =>
    usr1_prints_how_far_it_is,
    a_signal_tells_what_is_kept,
    nohup_keeps_a_copy_from_a_hangup,
}

ways! { push, pull, between =>
    a_second_ctrl_c_waits_for_nothing,
    a_second_signal_ends_far_commands_that_ignore_it,
    after_one_signal_far_commands_have_time_to_end,
}

ways! { here =>
    a_second_signal_ends_commands_that_ignore_it,
    a_second_signal_ends_a_copy_whose_disk_hangs,
    a_second_signal_ends_what_hangs_for_another_cause,
}

ways! { local_push => a_server_without_a_client_ends_although_its_disk_hangs }

ways! { push =>
    ctrl_c_at_a_question_of_ssh_gives_the_terminal_back,
    bars_are_drawn_only_in_the_foreground,
    a_stopped_copy_goes_on_in_the_foreground,
}

fn under_way(case: &Case, flags: &[&str]) -> Running {
    slow::started(case, 40 * MIB, flags)
}

fn usr1_prints_how_far_it_is(case: &Case) {
    let run = under_way(case, &["-q", "--route=direct"]);
    // A shell signals the whole job, so ssh and the server must survive the signal too.
    run.signal_group(Signal::USR1);
    for server in case.servers() {
        rustix::process::kill_process(server.pid, Signal::USR1).expect("signal the server");
    }
    let line = until("it answers", || {
        let text = run.stderr.text();
        text.lines().next().map(str::to_owned)
    });
    assert!(line.starts_with("fastcp: "), "{line}");
    for part in [" of 41.9 MB (", "%), ", "left"] {
        assert!(line.contains(part), "no {part:?} in {line:?}");
    }
    let done = run.wait();
    done.succeeds();
    assert_eq!(done.stderr.lines().count(), 1, "once: {done}");
    assert_eq!(case.host().logins(), 1);
}

fn a_signal_tells_what_is_kept(case: &Case) {
    for (signal, code, told) in [
        (Signal::INT, 130, "interrupted; "),
        (Signal::TERM, 143, "terminated; "),
        (Signal::HUP, 129, "hung up; "),
    ] {
        let run = under_way(case, &[]);
        run.signal(signal);
        let done = run.wait();
        done.exits(code)
            .says(told)
            .says("kept: run the same command again")
            .never_says("logging in again")
            .never_says("panicked");
        case.host().wait_for_logins();
        case.dst.sweep();
    }
}

fn nohup_keeps_a_copy_from_a_hangup(case: &Case) {
    case.src.file("a", noise(1, 40 * MIB));
    let run = case
        .copying(&[&held_back(case, "2M")], "a", "a")
        .under(["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"])
        .start();
    wait_for_content(case);
    run.signal_group(Signal::HUP);
    let_go(case);
    run.wait().succeeds();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

/// How long the local processes of the copy may live after the second signal.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Tries a few times, because the machine may be busy: the shortest time counts.
fn ends_at_once(mut try_once: impl FnMut() -> Duration) {
    let mut times = Vec::new();
    while times.len() < 8 {
        times.push(try_once());
        if times.last().is_some_and(|time| *time <= AT_ONCE) {
            return;
        }
    }
    panic!("{AT_ONCE:?} is the most: {times:?}");
}

/// Sends two signals and returns the time from the second until all `processes` have ended. The
/// signals differ, because two of one kind may be merged.
fn after_the_second(run: Running, processes: &[procs::Process]) -> Duration {
    after_the_second_of(run, processes, Duration::ZERO)
}

fn after_the_second_of(run: Running, processes: &[procs::Process], pause: Duration) -> Duration {
    run.signal(Signal::INT);
    std::thread::sleep(pause);
    // If this thread was delayed, the first signal may have been enough.
    rustix::process::kill_process(run.pid(), Signal::TERM).ok();
    let since = Instant::now();
    for process in processes {
        let limit = Duration::from_secs(20);
        assert!(process.ends_within(limit), "{}", process.describe());
    }
    let time = since.elapsed();
    let done = run.wait();
    done.never_says("panicked");
    assert!(matches!(done.code, Some(130 | 143)), "{done}");
    time
}

/// The local fastcp and the ssh processes that it started, without processes on the hosts.
fn here(case: &Case) -> Vec<procs::Process> {
    let program = fastcp_binary().display().to_string();
    let is_here = |process: &procs::Process| {
        let line = &process.line;
        let is_client = line.starts_with(&program) && !line.contains("--server");
        is_client || line.starts_with("ssh ")
    };
    let all = procs::marked(case.mark());
    all.into_iter().filter(is_here).collect()
}

fn a_second_ctrl_c_waits_for_nothing(case: &Case) {
    ends_at_once(|| {
        let run = under_way(case, &[]);
        let servers = case.servers();
        assert!(!servers.is_empty(), "a server runs");
        // A stopped server does not react to the first signal.
        for server in &servers {
            rustix::process::kill_process(server.pid, Signal::STOP).expect("stop the server");
        }
        let processes = here(case);
        assert!(processes.len() > 1, "fastcp and its ssh");
        let time = after_the_second(run, &processes);
        for server in &servers {
            rustix::process::kill_process(server.pid, Signal::CONT).expect("continue the server");
        }
        case.host().wait_for_logins();
        case.dst.sweep();
        time
    });
}

fn a_second_signal_ends_commands_that_ignore_it(case: &Case) {
    let deaf = "trap '' INT TERM HUP;";
    ends_at_once(|| {
        let from = format!("{deaf} while :; do echo line; sleep 0.1; done");
        let to = format!("{deaf} while :; do head -c 1 > /dev/null; sleep 0.1; done");
        let run = case.fastcp();
        let run = run.args(["--from-command", &from, "--to-command", &to]);
        let run = run.start();
        let processes = until("both commands run", || {
            let all = procs::marked(case.mark());
            let commands = all.iter().filter(|process| {
                process.line.starts_with("sh -c") && process.line.contains("trap '' INT TERM HUP;")
            });
            (commands.count() >= 2).then_some(all)
        });
        after_the_second(run, &processes)
    });
}

/// The second signal closes the connection before the host has received the first signal, or after.
fn a_second_signal_ends_far_commands_that_ignore_it(case: &Case) {
    let deaf = "trap '' INT TERM HUP; while :; do sleep 0.1; done &";
    let from = format!("{deaf} while :; do echo line; sleep 0.1; done");
    let to = format!("{deaf} while :; do head -c 1 > /dev/null; sleep 0.1; done");
    for pause in [Duration::ZERO, Duration::from_millis(300)] {
        ends_at_once(|| {
            let run = case.fastcp().args(["--from-command", &from]);
            let run = run.args(["--to-command", &to]);
            let run = match case.way {
                Way::Push => run.args(["-".into(), case.to("")]),
                Way::Pull => run.args([case.from(""), "-".into()]),
                _ => run.args([case.from(""), case.to("")]),
            };
            let run = run.start();
            let processes = until("both commands and what they started run", || {
                let all = procs::marked(case.mark());
                let all = all.into_iter().filter(|one| !one.line.contains("sshd"));
                let all: Vec<_> = all.collect();
                let is_shell = |one: &&procs::Process| one.line.starts_with("sh -c -- trap");
                (all.iter().filter(is_shell).count() >= 4).then_some(all)
            });
            let time = after_the_second_of(run, &processes, pause);
            case.host().wait_for_logins();
            time
        });
    }
}

/// On a busy machine a command may need more than the time that it has. So only a command that was
/// killed too early is a failure.
fn after_one_signal_far_commands_have_time_to_end(case: &Case) {
    const HAS: Duration = Duration::from_secs(2);
    for attempt in 0..5 {
        let done = case.scratch.path(format!("done {attempt}"));
        let tidy = |end: &str| {
            let done = done.display();
            format!("trap 'sleep 0.3; echo {end} >> \"{done}\"; exit' TERM; : > \"{done}.{end}\";")
        };
        let from = format!("{} while :; do echo line; sleep 0.1; done", tidy("from"));
        let to = format!("{} while :; do head -c 1 > /dev/null; done", tidy("to"));
        let run = match case.way {
            Way::Push => case.fastcp().args(["-".into(), case.to("")]),
            Way::Pull => case.fastcp().args([case.from(""), "-".into()]),
            _ => case.fastcp().args([case.from(""), case.to("")]),
        };
        let run = run.args(["--from-command", &from, "--to-command", &to]);
        let run = run.start();
        until("both commands have their traps", || {
            let both = ["from", "to"].map(|end| format!("done {attempt}.{end}"));
            both.iter().all(|one| case.scratch.has(one)).then_some(())
        });
        let signalled = Instant::now();
        run.signal(Signal::INT);
        run.wait().exits(130);
        let ends = std::fs::read_to_string(&done).unwrap_or_default();
        let mut ends: Vec<&str> = ends.lines().collect();
        ends.sort_unstable();
        if ends == ["from", "to"] {
            return;
        }
        let took = signalled.elapsed();
        assert!(took >= HAS, "after {took:?} only {ends:?}");
    }
    panic!("no command ended within its time, five times");
}

fn a_second_signal_ends_a_copy_whose_disk_hangs(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, 3 * MIB));
    ends_at_once(|| {
        let hold = Inject::new().hold("close").on("*.part");
        let run = case.copying(&[], "a", "a").inject(&hold).start();
        hold.wait_until_struck(1);
        let processes = here(case);
        let time = after_the_second(run, &processes);
        hold.release();
        case.sweep();
        time
    });
}

/// The copy has failed and waits because nobody reads its error message. The second signal must end
/// it too.
fn a_second_signal_ends_what_hangs_for_another_cause(case: &Case) {
    case.src.file("a", "one");
    let path = case.scratch.path("not read");
    mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).expect("make a FIFO");
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut options = std::fs::File::options();
    let full = options.read(true).write(true).custom_flags(flags);
    let mut full = full.open(&path).expect("open the FIFO");
    while full.write(b"x").is_ok() {}
    let script = format!("exec \"$@\" 2> '{}'", path.display());
    ends_at_once(|| {
        let run = case.copying(&[], "a", "/proc/nowhere/x");
        let run = run.under(["sh", "-c", &script, "sh"]).start();
        until("it waits for a reader", || {
            let tasks = format!("/proc/{}/task", run.pid().as_raw_nonzero());
            let waits = std::fs::read_dir(tasks).ok()?.flatten().any(|task| {
                let place = std::fs::read_to_string(task.path().join("wchan"));
                place.is_ok_and(|place| place.contains("pipe_write"))
            });
            waits.then_some(())
        });
        after_the_second(run, &here(case))
    });
}

/// The client has gone while the server's disk hangs: the server ends without a signal.
fn a_server_without_a_client_ends_although_its_disk_hangs(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, 20 * MIB));
    let hold = Inject::new().hold("close").on("*.part");
    let run = case.copying(&SLOW, "a", "a").inject(&hold).start();
    wait_for_content(case);
    let server = case.servers().pop().expect("a server runs");
    run.signal(Signal::KILL);
    hold.wait_until_struck(1);
    let limit = Duration::from_secs(20);
    assert!(server.ends_within(limit), "{}", server.describe());
    run.wait();
    hold.release();
    case.sweep();
}

/// Starts a shell with job control on a terminal. Its `script` starts the copy as `"$@"`, which is
/// held back.
fn in_a_shell(case: &Case, terminal: &Terminal, script: &str) -> Running {
    case.src.file("a", noise(1, 40 * MIB));
    case.copying(&["--memory", "16Mi", &held_back(case, "2M")], "a", "a")
        .under(["sh", "-m", "-c", script, "sh"])
        .env("TERM", "xterm")
        .start_on(terminal.output(), terminal.slave())
}

/// The local fastcp, which the shell started.
fn client_of(case: &Case) -> procs::Process {
    let client = procs::marked(case.mark()).into_iter().find(|process| {
        process
            .line
            .starts_with(&*fastcp_binary().to_string_lossy())
            && !process.line.contains("--server")
    });
    client.expect("the client runs")
}

fn ctrl_c_at_a_question_of_ssh_gives_the_terminal_back(case: &Case) {
    case.src.file("a", "one");
    let key = keys::lock(case, "open sesame");
    let terminal = Terminal::open(80, 24);
    assert!(terminal.echoes());
    // Ctrl-C at the terminal, and a signal that reaches fastcp but not ssh.
    for is_typed in [true, false] {
        let run = case
            .copying(&["-i", key.to_str().expect("an ASCII path")], "a", "a")
            .env("TERM", "xterm")
            .start_on(terminal.output(), terminal.slave());
        until("ssh waits for an answer", || {
            let asks = run.stdout.text().contains("passphrase");
            (asks && !terminal.echoes()).then_some(())
        });
        match is_typed {
            true => terminal.type_in("\x03"),
            false => run.signal(Signal::INT),
        }
        let done = run.wait();
        done.exits(130);
        let told = String::from_utf8_lossy(&done.stdout);
        assert!(told.contains("\nfastcp: interrupted"), "{told:?}");
        assert!(terminal.echoes(), "the terminal does not echo again");
    }
}

fn is_drawn(text: &str) -> bool {
    text.contains('%')
}

fn bars_are_drawn_only_in_the_foreground(case: &Case) {
    let terminal = Terminal::open(80, 24);
    let run = in_a_shell(case, &terminal, "\"$@\" & read line; fg");
    wait_for_content(case);
    // Long enough for several redraws.
    std::thread::sleep(Duration::from_millis(500));
    let before = run.stdout.text();
    assert!(!is_drawn(&before), "{before:?}");
    terminal.type_in("\n");
    until("a bar is drawn", || {
        is_drawn(&run.stdout.text()).then_some(())
    });
    let_go(case);
    run.wait().succeeds();
}

fn a_stopped_copy_goes_on_in_the_foreground(case: &Case) {
    let terminal = Terminal::open(80, 24);
    let run = in_a_shell(case, &terminal, "\"$@\"; read line; echo; echo again; fg");
    until("a bar is drawn", || {
        is_drawn(&run.stdout.text()).then_some(())
    });
    let client = client_of(case);
    terminal.type_in("\x1a");
    until("it is stopped", || {
        client.describe().contains("T (stopped)").then_some(())
    });
    terminal.type_in("\n");
    until("a bar is drawn again", || {
        let text = run.stdout.text();
        let (_, after) = text.split_once("again")?;
        is_drawn(after).then_some(())
    });
    let_go(case);
    run.wait().succeeds();
}

#[test]
fn a_reader_who_has_left_is_no_crash() {
    for (flag, code) in [("--help", 0), ("--version", 0), ("--nope", 2)] {
        let (reader, writer) = std::io::pipe().expect("make a pipe");
        drop(reader);
        let status = Command::new(fastcp_binary())
            .arg(flag)
            .stdin(Stdio::null())
            .stdout(writer.try_clone().expect("duplicate a pipe"))
            .stderr(writer)
            .status()
            .expect("run fastcp");
        assert_eq!(status.code(), Some(code), "{flag}: {status}");
    }
}
