//! The line that the far end leaves in the system log of its host. Logins see a socket of the test
//! as `/dev/log`, through mounts of their own.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use rustix::process::{Signal, kill_process};

use crate::support::host::{find_program, user};
use crate::support::procs::{self, MARK, until};
use crate::support::run::fastcp_binary;
use crate::support::*;

ways! { push, pull => a_session_leaves_one_line_that_names_cannot_forge }

ways! { push =>
    each_kind_of_session_has_its_role_and_result,
    a_session_that_is_cut_short_leaves_one_line,
    only_a_key_without_limits_leaves_no_line_on_request,
    a_log_that_is_missing_or_full_costs_the_line_alone,
    a_login_by_sudo_is_told_with_its_user_and_address,
}

ways! { between => each_of_two_hosts_leaves_its_line }

ways! { local_push => a_copy_on_one_machine_leaves_no_line }

/// The socket that a case has as `/dev/log`.
struct FakeLog {
    socket: UnixDatagram,
    place: PathBuf,
    /// Words before a command that sees it.
    enter: String,
}

impl FakeLog {
    /// None if this machine allows no mounts.
    fn open(case: &Case) -> Option<FakeLog> {
        if !rustix::process::geteuid().is_root() {
            skip("root, for mounts");
            return None;
        }
        let place = case.scratch.path("log");
        // Another /dev, since this one may lack the name, or have a symbolic link there.
        let script = format!(
            "#!/bin/sh\nset -e\nmount -t tmpfs tmpfs /mnt\n\
             for n in null zero random urandom tty; do\n\
             : >/mnt/$n; mount --bind /dev/$n /mnt/$n; done\n\
             ln -s /proc/self/fd /mnt/fd\nln -s '{}' /mnt/log\n\
             mount --rbind /mnt /dev\nexec \"$@\"\n",
            place.display()
        );
        let enter = case.scratch.file("enter", script);
        case.scratch.mode("enter", 0o755);
        let enter = format!("unshare -m --propagation private '{}'", enter.display());
        let works = Run::new("sh", "/").args(["-c", &format!("{enter} true")]);
        if works.run().code != Some(0) {
            skip("mounts");
            return None;
        }
        let socket = listen(&place);
        Some(FakeLog {
            socket,
            place,
            enter,
        })
    }

    /// The same, for the logins of the case.
    fn of_logins(case: &Case) -> Option<FakeLog> {
        let log = FakeLog::open(case)?;
        case.host().set_login(&Login {
            under: log.enter.clone(),
            ..Login::default()
        });
        Some(log)
    }

    /// The lines of fastcp that have come since the last call.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(len) = self.socket.recv(&mut buffer) {
            let message = String::from_utf8(buffer[..len].to_vec()).expect("UTF-8");
            // sudo writes there too.
            if message.contains(" fastcp[") {
                lines.push(text(&message));
            }
        }
        lines
    }

    /// The only line since the last call, once all logins are over.
    #[track_caller]
    fn only(&self, case: &Case) -> String {
        case.host().wait_for_logins();
        let mut lines = self.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }
}

fn listen(place: &PathBuf) -> UnixDatagram {
    let socket = UnixDatagram::bind(place).expect("bind a socket");
    socket.set_nonblocking(true).expect("set an option");
    socket
}

/// The text of a message in the form of RFC 3164: `<38>Nov 28 22:00:01 fastcp[47]: role=...`.
fn text(message: &str) -> String {
    let head = |message: &str| {
        let (severity, rest) = message.strip_prefix('<')?.split_once('>')?;
        let (time, rest) = rest.split_at_checked(15)?;
        let (pid, text) = rest.strip_prefix(" fastcp[")?.split_once("]: ")?;
        let is_time = time.as_bytes()[9] == b':' && time.as_bytes()[12] == b':';
        let is_number = pid.parse::<u32>().is_ok() && is_time;
        // The facility is auth.
        let severity = severity.parse::<u8>().ok()?.checked_sub(4 << 3)?;
        is_number.then(|| (severity, text.to_owned()))
    };
    let (severity, text) = head(message).unwrap_or_else(|| panic!("{message:?}"));
    let expected = if field(&text, "exit") == "0" { 6 } else { 4 };
    assert_eq!(severity, expected, "{message:?}");
    text
}

#[track_caller]
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let start = format!("{name}=");
    let found = line.split(' ').find_map(|word| word.strip_prefix(&start));
    found.unwrap_or_else(|| panic!("no {name}: {line}"))
}

/// The second run finds everything unchanged.
fn a_session_leaves_one_line_that_names_cannot_forge(case: &Case) {
    let Some(log) = FakeLog::of_logins(case) else {
        return;
    };
    let name = "tree\n\"x";
    let tree = case.src.dir(name);
    tree.file("a", "one");
    tree.file("big", noise(1, 2 * MIB));
    let (role, there) = match case.way {
        Way::Push => ("receive", &case.dst),
        _ => ("send", &case.src),
    };
    for (bytes, more) in [(2 * MIB + 3, ""), (0, " unchanged=2")] {
        case.copy(&["-a"], format!("{name}/"), name).succeeds();
        let line = log.only(case);
        let [port, seconds] = ["port", "seconds"].map(|name| field(&line, name).to_owned());
        assert!(port.parse::<u16>().is_ok() && seconds.parse::<u16>().is_ok());
        let slash = if role == "send" { "/" } else { "" };
        let expected = format!(
            "role={role} user={} from=127.0.0.1 port={port} files=2 bytes={bytes}{more} \
             seconds={seconds} exit=0 result=complete path=\"{}/tree\\n\\\"x{slash}\"",
            user(),
            there.0.display()
        );
        assert_eq!(line, expected);
    }
}

fn each_kind_of_session_has_its_role_and_result(case: &Case) {
    let Some(log) = FakeLog::of_logins(case) else {
        return;
    };
    let list = case.scratch.path("list").display().to_string();
    case.src.file("a", "one");
    case.copy(&["--digests", &list], "a", "a").succeeds();
    assert_eq!(field(&log.only(case), "files"), "1");
    let there = case.dst.0.display().to_string();
    let ran = |code: i32, words: &[&str]| {
        let words = words.iter().map(|word| word.replace("THERE", &there));
        case.fastcp().args(words).run().exits(code);
        log.only(case)
    };
    let ends = |line: &str, end: &str| {
        let end = end.replace("THERE", &there);
        assert!(line.ends_with(&end), "{line}");
    };
    let a = case.src.path("a").display().to_string();
    let line = ran(0, &[&format!("--check={list}"), "far:THERE"]);
    assert!(line.starts_with("role=check-list user="), "{line}");
    assert_eq!(field(&line, "files"), "1");
    ends(&line, "exit=0 result=complete path=\"THERE\"");
    let line = ran(0, &["--clean", "far:THERE"]);
    assert!(line.starts_with("role=clean user="), "{line}");
    let line = ran(0, &["-n", &a, "far:THERE/b"]);
    assert!(
        line.starts_with("role=receive mode=dry-run user="),
        "{line}"
    );
    // The words of a command may be secret.
    let line = ran(10, &[&a, "far:", "--to-command", "exit 3 # secret"]);
    assert!(line.starts_with("role=to-command user="), "{line}");
    ends(&line, " exit=10 result=incomplete");
    let here = case.dst.path("here").display().to_string();
    let line = ran(
        9,
        &[
            "far:THERE/a",
            "far:THERE/no",
            &format!("{here}/"),
            "--mkpath",
        ],
    );
    assert!(line.starts_with("role=send user="), "{line}");
    assert_eq!(
        ["files", "failed"].map(|name| field(&line, name)),
        ["1", "1"]
    );
    ends(&line, "exit=9 result=incomplete paths=2 path=\"THERE/a\"");
    std::fs::remove_dir_all(here).expect("remove it");
}

/// Further logins, which carry data, leave no lines.
fn a_session_that_is_cut_short_leaves_one_line(case: &Case) {
    let Some(log) = FakeLog::of_logins(case) else {
        return;
    };
    case.src.file("a", noise(1, 4 * MIB));
    let slowly = slow::held_back(case, "100k");
    let started = |flags: &[&str]| {
        let flags = [&[&slowly[..], "--retries=0", "--compress=none"], flags].concat();
        case.copying(&flags, "a", "a").start()
    };
    let over = || {
        until("all is over", || {
            procs::marked(case.mark()).is_empty().then_some(())
        });
        log.only(case)
    };
    let run = started(&["--route=ssh", "--streams=3"]);
    until("a further login", || {
        (case.host().logins() > 1).then_some(())
    });
    until("content arrives", || {
        (case.dst.partial_bytes() > 0).then_some(())
    });
    run.signal(Signal::KILL);
    run.wait();
    let line = over();
    assert!(line.contains(" files=0 bytes="), "{line}");
    assert!(line.contains(" exit=5 result=lost path="), "{line}");

    case.sweep();
    let run = started(&[]);
    until("content arrives", || {
        (case.dst.partial_bytes() > 0).then_some(())
    });
    let server = case.servers().pop().expect("a server runs");
    kill_process(server.pid, Signal::TERM).expect("end the server");
    assert_ne!(run.wait().code, Some(0));
    let line = over();
    assert!(line.contains(" exit=143 result=signal path="), "{line}");
    case.sweep();
}

fn only_a_key_without_limits_leaves_no_line_on_request(case: &Case) {
    let Some(log) = FakeLog::of_logins(case) else {
        return;
    };
    let a = case.src.file("a", "one").display().to_string();
    let there = case.dst.0.display().to_string();
    let copy = |flags: &[&str], name: &str| {
        let run = case.fastcp().args(flags);
        let done = run.args([&a[..], &format!("far:{name}")]).run();
        case.host().wait_for_logins();
        done
    };
    let none = || assert_eq!(log.lines(), Vec::<String>::new());
    copy(&["--no-syslog"], &format!("{there}/a"))
        .succeeds()
        .is_silent();
    none();
    let run = case.fastcp().env("FASTCP_FLAGS", "--no-syslog");
    run.arg(&a).arg(format!("far:{there}/a")).run().succeeds();
    case.host().wait_for_logins();
    none();

    let force = |more: &str| {
        case.host().force(&format!(
            "{} env HOME='{}' {MARK}='{}' '{}' --server --confine '{there}' {more}",
            log.enter,
            case.home.0.display(),
            case.mark(),
            fastcp_binary().display()
        ));
    };
    force("");
    copy(&["--no-syslog"], "b").succeeds().is_silent();
    let end = format!(" exit=0 result=complete path=\"b\" confine=\"{there}\"");
    let line = log.only(case);
    assert!(line.ends_with(&end), "{line}");
    copy(&["--no-syslog", "-r", "--delete"], "b").exits(2);
    let line = log.only(case);
    let end =
        " error=\"this key does not allow --delete: its forced command lacks --allow-delete\"";
    assert!(
        line.contains(" exit=2 result=usage ") && line.ends_with(end),
        "{line}"
    );
    force("--no-syslog");
    copy(&[], "c").succeeds();
    none();
    assert_eq!(case.dst.names(), ["a", "b", "c"]);
}

fn a_log_that_is_missing_or_full_costs_the_line_alone(case: &Case) {
    let Some(log) = FakeLog::of_logins(case) else {
        return;
    };
    case.src.file("a", "one");
    let remove = || std::fs::remove_file(&log.place).expect("remove it");
    remove();
    case.copy(&[], "a", "missing").succeeds().is_silent();
    rustix::fs::mkfifoat(rustix::fs::CWD, &log.place, 0o666.into()).expect("make a FIFO");
    case.copy(&[], "a", "fifo").succeeds().is_silent();
    remove();
    // A daemon that reads nothing.
    let socket = listen(&log.place);
    let others = UnixDatagram::unbound().expect("a socket");
    others.set_nonblocking(true).expect("set an option");
    while others.send_to(b"others", &log.place).is_ok() {}
    case.copy(&[], "a", "full").succeeds().is_silent();
    case.host().wait_for_logins();
    let mut buffer = [0; 4096];
    while let Ok(len) = socket.recv(&mut buffer) {
        assert_eq!(&buffer[..len], b"others");
    }
    assert_eq!(case.dst.names(), ["fifo", "full", "missing"]);
}

/// sudo keeps the variables of sshd from the far end.
fn a_login_by_sudo_is_told_with_its_user_and_address(case: &Case) {
    let Some(log) = FakeLog::of_logins(case) else {
        return;
    };
    if find_program("sudo").is_none() {
        return skip("sudo");
    }
    case.src.file("a", "one");
    let program = fastcp_binary().display().to_string();
    case.copy(&["--sudo", "--remote-path", &program], "a", "a")
        .succeeds();
    let line = log.only(case);
    let start = format!(
        "role=receive user=root sudo_user={} from=127.0.0.1 port=",
        user()
    );
    assert!(line.starts_with(&start), "{line}");
}

fn each_of_two_hosts_leaves_its_line(case: &Case) {
    let Some(log) = FakeLog::of_logins(case) else {
        return;
    };
    case.src.file("a", noise(1, MIB));
    case.copy(&[], "a", "a").succeeds();
    case.host().wait_for_logins();
    let mut lines = log.lines();
    lines.sort();
    let [receiver, sender] = &lines[..] else {
        panic!("{lines:?}");
    };
    for (line, role) in [(receiver, "receive"), (sender, "send")] {
        assert!(line.starts_with(&format!("role={role} user=")), "{line}");
        assert!(line.contains(" files=1 bytes=1048576 seconds="), "{line}");
        assert!(line.contains(" exit=0 result=complete path="), "{line}");
    }
    case.copy(&["--no-syslog"], "a", "b").succeeds();
    case.host().wait_for_logins();
    assert_eq!(log.lines(), Vec::<String>::new());
}

fn a_copy_on_one_machine_leaves_no_line(case: &Case) {
    let Some(log) = FakeLog::open(case) else {
        return;
    };
    case.src.file("a", "one");
    let words = ["-m", "--propagation", "private"];
    let under = |run: Run| {
        let words = ["unshare"].into_iter().chain(words).map(PathBuf::from);
        run.under(words.chain([case.scratch.path("enter")]))
    };
    under(case.copying(&[], "a", "a")).run().succeeds();
    let here = case.bare().arg(case.src.path("a"));
    under(here.arg(case.dst.path("b"))).run().succeeds();
    assert_eq!(log.lines(), Vec::<String>::new());
}
