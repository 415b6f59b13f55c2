//! Tests with real commands, and with a process that is really killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use super::*;

/// Generous, because the machine may be busy.
const SOON: Duration = Duration::from_secs(30);

fn start(line: &str, role: CommandRole) -> (Command, std::fs::File) {
    let (command, fd) = Command::start(OsStr::new(line), role, |_| {}).unwrap();
    (command, fd.into())
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < SOON, "{what}");
        std::thread::sleep(LOOK);
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie with another parent counts as dead.
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.starts_with(" Z"))
}

fn number(path: &Path) -> i32 {
    let mut found = None;
    eventually("the command says its number", || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        found = text.strip_suffix('\n').and_then(|text| text.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_producer_gives_its_stdout_and_a_consumer_takes_its_stdin() {
    let (command, mut from) = start("printf 'a b\\n'; printf c", CommandRole::Producer);
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    command.finish(&Stop::new()).unwrap();
    assert_eq!(text, "a b\nc");

    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("out");
    let line = format!("sleep 0.1; cat | cat > {}", path.display());
    let (command, mut to) = start(&line, CommandRole::Consumer);
    to.write_all(&[7; 300_000]).unwrap();
    drop(to);
    command.finish(&Stop::new()).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), [7; 300_000]);
}

#[test]
fn a_failure_names_the_command_its_status_and_its_last_lines() {
    let table = [
        (
            "echo no such table >&2; exit 3",
            "`echo no such table >&2; exit 3` failed with status 3: no such table",
        ),
        ("kill -KILL $$", "`kill -KILL $$` was killed by SIGKILL"),
        ("false", "`false` failed with status 1"),
        (
            "printf 'one\\ntwo\\033[2J\\n' >&2; exit 9",
            "`printf 'one\\\\ntwo\\\\033[2J\\\\n' >&2; exit 9` failed with status 9: one / two\\x1b[2J",
        ),
    ];
    for role in [CommandRole::Producer, CommandRole::Consumer] {
        for (line, message) in table {
            let (command, fd) = start(line, role);
            drop(fd);
            let error = command.finish(&Stop::new()).unwrap_err();
            assert_eq!(error.kind, Kind::Command);
            assert_eq!(error.message, format!("the command {message}"));
        }
    }
}

#[test]
fn every_line_is_passed_on_and_a_flood_of_them_is_bounded() {
    let (send, lines) = std::sync::mpsc::channel();
    let line = "i=0; while [ $i -lt 3000 ]; do echo line $i >&2; i=$((i+1)); done
        head -c 10000 /dev/zero | tr '\\0' x >&2; exit 1";
    let on_line = move |line: &[u8]| send.send(line.to_vec()).unwrap();
    let (command, fd) = Command::start(OsStr::new(line), CommandRole::Producer, on_line).unwrap();
    drop(fd);
    let error = command.finish(&Stop::new()).unwrap_err();
    let lines: Vec<_> = lines.into_iter().collect();
    assert_eq!(lines[2999], b"line 2999");
    let long: Vec<_> = lines[3000..].iter().map(Vec::len).collect();
    assert_eq!(long, [LINE_MAX, LINE_MAX, 10_000 - 2 * LINE_MAX]);
    assert!(error.message.ends_with(&"x".repeat(100)));
    assert!(error.message.chars().count() < 256, "{}", error.message);
}

/// The lines go to a terminal that takes none for a while.
#[test]
fn the_last_lines_arrive_however_long_each_takes() {
    let (send, lines) = std::sync::mpsc::channel();
    let mut took = [300, 1100].map(Duration::from_millis).into_iter();
    let on_line = move |line: &[u8]| {
        took.next().into_iter().for_each(std::thread::sleep);
        send.send(line.len()).unwrap();
    };
    let line = OsStr::new("head -c 16384 /dev/zero >&2");
    let (command, fd) = Command::start(line, CommandRole::Producer, on_line).unwrap();
    drop(fd);
    command.finish(&Stop::new()).unwrap();
    assert_eq!(lines.into_iter().collect::<Vec<_>>(), [LINE_MAX; 4]);
}

/// It holds the pipe open, in a process group of its own.
#[test]
fn what_a_command_left_behind_does_not_keep_it_from_its_end() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("number");
    let line = format!(
        "setsid sh -c 'echo $$ > {0}; while echo x >&2; do :; done' & \
         while [ ! -s {0} ]; do :; done; echo last >&2; exit 1",
        path.display()
    );
    let (command, fd) = start(&line, CommandRole::Producer);
    drop(fd);
    command.finish(&Stop::new()).unwrap_err();
    // Nobody reads what it writes, which ends it.
    let left = number(&path);
    eventually("it ends", || !is_alive(left));
}

#[test]
fn what_a_consumer_writes_does_not_reach_our_stdout() {
    let (send, lines) = std::sync::mpsc::channel();
    let on_line = move |line: &[u8]| send.send(line.to_vec()).unwrap();
    let (command, fd) =
        Command::start(OsStr::new("echo done"), CommandRole::Consumer, on_line).unwrap();
    drop(fd);
    command.finish(&Stop::new()).unwrap();
    assert_eq!(lines.into_iter().collect::<Vec<_>>(), [b"done"]);
}

#[test]
fn a_dropped_command_is_ended_with_all_of_its_pipeline() {
    let temp = tempfile::tempdir().unwrap();
    let (inner, outer) = (temp.path().join("inner"), temp.path().join("outer"));
    // One process reacts to TERM and the other does not; neither is the shell that was started.
    let line = format!(
        "sh -c 'trap \"\" TERM; echo $$ > {}; while :; do sleep 1; done' | \
         sh -c 'echo $$ > {}; exec sleep 1000'; true",
        inner.display(),
        outer.display()
    );
    let (command, fd) = start(&line, CommandRole::Producer);
    let (stubborn, mild) = (number(&inner), number(&outer));
    let shell = command.child.id() as i32;
    drop(command);
    drop(fd);
    for pid in [shell, stubborn, mild] {
        eventually("it is gone", || !is_alive(pid));
    }
    assert!(!Path::new(&format!("/proc/{shell}")).exists(), "no zombie");
}

#[test]
fn a_stopped_command_can_clean_up_when_it_is_ended() {
    let temp = tempfile::tempdir().unwrap();
    let cleaned = temp.path().join("cleaned");
    let line = format!(
        "trap 'echo > {}; exit' TERM; kill -STOP $$; sleep 1000",
        cleaned.display()
    );
    let (command, _from) = start(&line, CommandRole::Producer);
    let stat = format!("/proc/{}/stat", command.child.id());
    eventually("it is stopped", || {
        std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
    });
    drop(command);
    assert!(cleaned.exists());
}

#[test]
fn a_command_that_does_not_end_is_ended_when_we_stop() {
    let (command, fd) = start("exec sleep 1000", CommandRole::Consumer);
    let pid = command.child.id() as i32;
    drop(fd);
    let stop = Stop::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| command.finish(&stop));
        stop.set();
        assert_eq!(waiting.join().unwrap().unwrap_err().kind, Kind::Lost);
    });
    assert!(!is_alive(pid));
}

#[test]
fn a_process_left_behind_with_the_stderr_does_not_hold_us() {
    let (command, fd) = start(
        "setsid sleep 60 & echo started >&2; exit 4",
        CommandRole::Producer,
    );
    drop(fd);
    let started = Instant::now();
    let error = command.finish(&Stop::new()).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(45));
    assert!(
        error.message.ends_with("status 4: started"),
        "{}",
        error.message
    );
}

/// Not a test: the process that `a_killed_process_…` kills. Prints the IDs of its commands.
#[test]
#[ignore = "run by another test"]
fn victim() {
    let Some(dir) = std::env::var_os("FASTCP_TEST_VICTIM") else {
        return;
    };
    let dir = Path::new(&dir);
    let producer = format!("echo $$ > {}; exec sleep 1000", dir.join("p").display());
    let (_producer, _from) = start(&producer, CommandRole::Producer);
    // The consumer reports that all data has come as soon as it sees an end.
    let consumer = format!(
        "echo $$ > {}; cat > /dev/null; echo > {}",
        dir.join("c").display(),
        dir.join("whole").display()
    );
    let (_consumer, mut to) = start(&consumer, CommandRole::Consumer);
    to.write_all(b"half").unwrap();
    writeln!(io::stdout(), "started").unwrap();
    std::thread::sleep(Duration::from_secs(1000));
}

#[test]
fn a_killed_process_leaves_no_command_and_no_end_that_looks_true() {
    let temp = tempfile::tempdir().unwrap();
    let mut victim = process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "command::tests::victim",
            "--ignored",
            "--nocapture",
        ])
        .env("FASTCP_TEST_VICTIM", temp.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pids = ["p", "c"].map(|name| number(&temp.path().join(name)));
    let mut said = BufReader::new(victim.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("started")));
    victim.kill().unwrap();
    victim.wait().unwrap();
    for pid in pids {
        eventually("it is gone", || !is_alive(pid));
    }
    assert!(!temp.path().join("whole").exists());
}
