//! Disks that hang: a system call at one end does not return. The copy waits for it and keeps the
//! connection to the other end. Everything else continues, and the user can end the copy at any
//! time.

use std::fs::File;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::process::Signal;

use crate::support::disk::Mounted;
use crate::support::ending::{ENDS_WITHIN, ends_on};
use crate::support::inject::{self, Inject};
use crate::support::procs::until;
use crate::support::run::{Run, Running, fastcp_binary};
use crate::support::*;

ways! { local_push, here =>
    a_disk_that_hangs_where_holes_are_looked_for_holds_one_file_up,
    a_directory_that_hangs_is_waited_for_and_can_be_left,
    a_list_of_digests_that_nobody_reads_is_waited_for_and_can_be_left,
    a_list_of_digests_that_is_not_closed_is_waited_for_and_can_be_left,
    a_removal_that_hangs_at_the_end_is_waited_for_and_can_be_left,
    closing_that_hangs_holds_nothing_up,
}

ways! { local_push, here =>
    an_operand_that_hangs_is_waited_for_and_can_be_left,
}

ways! { local_push, push =>
    a_file_system_that_does_not_answer_can_be_left,
}

ways! { local_pull =>
    a_pattern_that_hangs_is_waited_for_and_can_be_left,
}

ways! { local_push, local_pull =>
    a_server_that_prepares_for_long_dials_after_that,
}

ways! { local_push, local_pull =>
    a_key_whose_directory_hangs_is_waited_for_and_can_be_left,
}

ways! { local_between =>
    of_two_hosts_either_may_look_at_a_slow_disk_first,
}

ways! { here =>
    a_destination_that_hangs_before_the_name_does_not_slow_the_others,
    a_destination_that_hangs_when_written_does_not_slow_the_others,
    a_destination_that_hangs_at_its_end_does_not_slow_the_others,
    a_list_that_is_not_read_does_not_slow_the_others,
}

/// How long either end allows the other to be silent.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long a call hangs in tests that wait for its return: longer than [`TIMEOUT`]. In all other
/// tests it hangs until the copy has ended. `FASTCP_HANGS_S=n` sets this to n seconds.
fn hangs() -> Duration {
    let asked = std::env::var("FASTCP_HANGS_S").ok();
    let seconds = asked.and_then(|asked| asked.parse().ok());
    Duration::from_secs(seconds.unwrap_or(8))
}

/// Longer than the other end may take to list a new stream, plus the allowed silence.
const LONG: Duration = Duration::from_secs(20);

/// A copy with a system call that hangs.
struct Hung<'a> {
    case: &'a Case,
    run: &'a dyn Fn() -> Run,
    inject: &'a dyn Fn() -> Inject,
}

impl Hung<'_> {
    /// The copy succeeds once the call returns, and the user can end it before. If the other end
    /// is another process, the copy also notices its silence.
    fn does_no_harm(&self) {
        self.does_no_harm_for(hangs());
    }

    fn does_no_harm_for(&self, time: Duration) {
        if !inject::permitted() {
            return skip("seccomp user notification");
        }
        self.is_waited_for(time);
        self.is_left();
        if self.case.way != Way::Here {
            self.hides_no_silence();
        }
        self.case.sweep();
    }

    fn start(&self) -> (Running, Inject) {
        empty(self.case);
        let held = (self.inject)();
        let copy = (self.run)().args(timeout()).inject(&held).start();
        held.wait_until_struck(1);
        (copy, held)
    }

    /// Both ends continue to hear each other while the call hangs.
    fn is_waited_for(&self, time: Duration) {
        let (copy, held) = self.start();
        thread::sleep(time);
        held.release();
        let done = copy.wait();
        done.succeeds().never_says("nothing was heard");
        done.never_says("logging in again");
    }

    fn is_left(&self) {
        let (copy, held) = self.start();
        ends_on(self.case, copy, Signal::INT, 130);
        held.release();
    }

    /// The other end falls silent while the call hangs.
    fn hides_no_silence(&self) {
        let (copy, held) = self.start();
        let server = until("the server runs", || self.case.servers().pop());
        let since = Instant::now();
        rustix::process::kill_process(server.pid, Signal::STOP).expect("stop it");
        let done = copy.wait();
        let took = since.elapsed();
        // A lookup that runs during the ssh login may hang before there is a session.
        match done.code {
            Some(4) => done.says("no answer within 5 s"),
            _ => done.exits(5).says("nothing was heard"),
        };
        assert!(took < TIMEOUT + ENDS_WITHIN, "it took {took:?}");
        held.release();
    }
}

fn timeout() -> [String; 2] {
    let timeout = format!("--timeout={}s", TIMEOUT.as_secs());
    [timeout, "--retry-for=0".to_owned()]
}

fn empty(case: &Case) {
    for entry in case.dst.names() {
        let path = case.dst.path(entry);
        let removed = match path.is_dir() {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
        removed.expect("empty the destination");
    }
    case.sweep();
}

/// A tree with a sparse file named `hangs`, and small and big files beside it.
fn tree(case: &Case) -> Dir {
    let tree = case.src.dir("tree");
    for number in 0..40 {
        tree.file(format!("small{number}"), noise(number, 3000));
    }
    tree.file("big", noise(1, 3 * MIB));
    tree.sparse("hangs", 8 << 20, &[(4 << 20, b"data")]);
    tree
}

fn a_disk_that_hangs_where_holes_are_looked_for_holds_one_file_up(case: &Case) {
    let tree = tree(case);
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    // The other files are complete while the call hangs.
    let held = Inject::new().hold("seek_data").on("*hangs");
    let copy = case
        .copying(&["-r", "--no-resume"], "tree", "")
        .inject(&held)
        .start();
    held.wait_until_struck(1);
    let copied = case.dst.dir("tree");
    until("the others are in place", || {
        let big = std::fs::read(copied.path("big")).is_ok_and(|bytes| bytes == tree.read("big"));
        let names = copied.names();
        let small = names.iter().filter(|name| name.starts_with("small"));
        (big && small.count() == 40).then_some(())
    });
    held.release();
    copy.wait().succeeds();
    assert_same(&tree.0, &copied.0, Also::Nothing);

    Hung {
        case,
        run: &|| case.copying(&["-r"], "tree", ""),
        inject: &|| Inject::new().hold("seek_data").on("*hangs"),
    }
    .does_no_harm();
}

fn a_directory_that_hangs_is_waited_for_and_can_be_left(case: &Case) {
    tree(case);
    case.src.file("tree/sub/file", "file");
    Hung {
        case,
        run: &|| case.copying(&["-r"], "tree", ""),
        inject: &|| Inject::new().hold("getdents64").on("*/src/tree/sub"),
    }
    .does_no_harm();
}

/// The client looks the operand up before there is a session.
fn an_operand_that_hangs_is_waited_for_and_can_be_left(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    tree(case);
    let hung = Hung {
        case,
        run: &|| case.copying(&["-r"], "tree", ""),
        inject: &|| Inject::new().hold("stat").on("*/src/tree").at_client(),
    };
    hung.is_waited_for(hangs());
    hung.is_left();
    case.sweep();
}

fn a_pattern_that_hangs_is_waited_for_and_can_be_left(case: &Case) {
    tree(case);
    for (call, at) in [("stat", "*hangs"), ("getdents64", "*/tree")] {
        Hung {
            case,
            run: &|| case.copying(&[], "tree/*", ""),
            inject: &|| Inject::new().hold(call).on(at).at_server(),
        }
        .does_no_harm();
    }
}

/// `--route reverse` gives the server 12 s to dial, but only once it may. Nor does `--timeout`
/// count before that.
fn a_server_that_prepares_for_long_dials_after_that(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = tree(case);
    let script = homeless(case);
    let flags = ["-r", "--route", "reverse", "--remote-path", &script];
    let held = match case.way {
        Way::LocalPush => Inject::new().hold("open").on("/etc/passwd").at_server(),
        _ => Inject::new().hold("getdents64").on("*/src/tree"),
    };
    let copy = case.copying(&flags, "tree", "").args(timeout());
    let copy = copy.inject(&held).start();
    held.wait_until_struck(1);
    thread::sleep(Duration::from_secs(13));
    held.release();
    copy.wait().succeeds();
    assert_same(&tree.0, &case.dst.dir("tree").0, Also::Nothing);
}

/// A FIFO with a small buffer; the `File` is its open reading end.
fn narrow_fifo(case: &Case, name: &str) -> (PathBuf, File) {
    let path = case.scratch.path(name);
    mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).expect("make a FIFO");
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut options = File::options();
    let reader = options.read(true).custom_flags(flags).open(&path);
    let reader = reader.expect("open the FIFO");
    rustix::pipe::fcntl_setpipe_size(&reader, 4096).expect("make it narrow");
    (path, reader)
}

fn a_list_of_digests_that_nobody_reads_is_waited_for_and_can_be_left(case: &Case) {
    let tree = case.src.dir("tree");
    for number in 0..300 {
        tree.file(format!("small{number}"), noise(number, 30));
    }
    let (path, reader) = narrow_fifo(case, "read late");
    let flags = ["-r".to_owned(), format!("--digests={}", path.display())];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let run = case.copying(&flags, "tree", "").args(timeout()).start();
    let copied = case.dst.dir("tree");
    until("every file is in place", || {
        (copied.names().len() == 300).then_some(())
    });
    thread::sleep(hangs());
    let flags = OFlags::empty();
    rustix::fs::fcntl_setfl(&reader, flags).expect("let the reader wait");
    let lines = thread::spawn(move || std::io::read_to_string(reader).expect("read"));
    run.wait().succeeds().never_says("nothing was heard");
    assert_eq!(lines.join().expect("it ended").lines().count(), 300);

    std::fs::remove_dir_all(&copied.0).expect("remove the copy");
    let (path, _reader) = narrow_fifo(case, "never read");
    let flags = ["-r".to_owned(), format!("--digests={}", path.display())];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let run = case.copying(&flags, "tree", "").args(timeout()).start();
    until("every file is in place", || {
        (case.dst.dir("tree").names().len() == 300).then_some(())
    });
    ends_on(case, run, Signal::INT, 130);
    case.sweep();
}

fn a_removal_that_hangs_at_the_end_is_waited_for_and_can_be_left(case: &Case) {
    tree(case);
    Hung {
        case,
        run: &|| case.copying(&["-r"], "tree", ""),
        inject: &|| Inject::new().hold("unlink").on("*.journal"),
    }
    .does_no_harm();
}

fn a_list_of_digests_that_is_not_closed_is_waited_for_and_can_be_left(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    tree(case);
    let list = format!("--digests={}", case.scratch.path("sums").display());
    let hung = Hung {
        case,
        run: &|| case.copying(&["-r", &list], "tree", ""),
        inject: &|| Inject::new().hold("close").on("*/sums"),
    };
    // Everything else has ended by then.
    hung.is_waited_for(hangs());
    hung.is_left();
}

/// The server checks whether its key allows the copy.
fn a_key_whose_directory_hangs_is_waited_for_and_can_be_left(case: &Case) {
    tree(case);
    let allowed = case.scratch.0.parent().expect("that of the case");
    let name = allowed.file_name().expect("a name").to_string_lossy();
    let script = case.scratch.path("forced");
    let (binary, dir) = (fastcp_binary().display(), allowed.display());
    executable(&script, &format!("'{binary}' \"$@\" --confine '{dir}'"));
    let at = format!("*/{name}");
    let flags = ["-r", "--remote-path", script.to_str().expect("UTF-8")];
    Hung {
        case,
        run: &|| case.copying(&flags, "tree", ""),
        inject: &|| Inject::new().hold("open").on(&at).at_server(),
    }
    .does_no_harm_for(hangs().max(LONG));
}

/// A program for the host, which looks its user's home up in /etc/passwd.
fn homeless(case: &Case) -> String {
    let (script, home) = (case.scratch.path("homeless"), case.home.0.display());
    let command = format!(
        "env -u HOME XDG_STATE_HOME='{home}/.local/state' '{}' \"$@\"",
        fastcp_binary().display()
    );
    executable(&script, &command);
    script.to_str().expect("UTF-8").to_owned()
}

/// Each host looks up its user's home first. The receiver dials after that, and until then the
/// sender gets no stream. Either host may be the first to look.
fn of_two_hosts_either_may_look_at_a_slow_disk_first(case: &Case) {
    tree(case);
    let script = homeless(case);
    let flags = ["-r", "--remote-path", &script, "--route=reverse"];
    for nth in [1, 2] {
        Hung {
            case,
            run: &|| case.copying(&flags, "tree", ""),
            inject: &|| {
                Inject::new()
                    .hold("open")
                    .on("/etc/passwd")
                    .at_server()
                    .nth(nth)
            },
        }
        .is_waited_for(hangs().max(LONG));
    }
}

fn executable(path: &Path, command: &str) {
    std::fs::write(path, format!("#!/bin/sh\nexec {command}\n")).expect("write");
    let executable = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(path, executable).expect("make it executable");
    tree::no_longer_written(path);
}

/// As on a FUSE file system, which is called at each close.
fn closing_that_hangs_holds_nothing_up(case: &Case) {
    let tree = tree(case);
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let held = Inject::new().hold("close").on("*/src/tree/big");
    let copy = case
        .copying(&["-r"], "tree", "")
        .args(timeout())
        .inject(&held)
        .start();
    held.wait_until_struck(1);
    let done = copy.wait();
    held.release();
    done.succeeds();
    assert_same(&tree.0, case.dst.path("tree"), Also::Nothing);
}

/// A copy to several destinations, one of which has a hung disk: the copies to the others end.
fn slows_nobody(case: &Case, others: &[&str], flags: &[&str], length: usize, held: &Inject) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let path = case.src.file("file", noise(1, length));
    let hangs_at = case.scratch.dir("hangs");
    let others: Vec<Dir> = others.iter().map(|name| case.scratch.dir(name)).collect();
    let also = |dir: &Dir| ["--also".to_owned(), format!("host:{}/", dir.0.display())];
    let copy = case
        .fastcp()
        .args(["--rsh", "local"])
        .args(timeout())
        .args(flags)
        .arg(&path)
        .arg(format!("host:{}/", hangs_at.0.display()))
        .args(others.iter().flat_map(also))
        .inject(held)
        .start();
    held.wait_until_struck(1);
    until("the copies to the others have ended", || {
        let are_there = others.iter().all(|dir| dir.has("file"));
        (are_there && case.servers().len() == 1).then_some(())
    });
    thread::sleep(hangs());
    held.release();
    copy.wait().succeeds().never_says("nothing was heard");
    for dir in others.iter().chain([&hangs_at]) {
        assert_same(&path, dir.path("file"), Also::Nothing);
    }
}

fn a_destination_that_hangs_before_the_name_does_not_slow_the_others(case: &Case) {
    let held = Inject::new().hold("rename").on("*/hangs/*");
    slows_nobody(case, &["two", "three"], &[], 3 * MIB, &held);
}

/// The file is longer than the data that the hung destination takes plus the cache kept for it.
/// With only two destinations, the whole cache is kept for the hung one.
fn a_destination_that_hangs_when_written_does_not_slow_the_others(case: &Case) {
    let held = Inject::new().hold("pwrite64").on("*/hangs/*.part");
    let few = ["--memory=48Mi", "--streams=1", "--threads=1"];
    slows_nobody(case, &["two"], &few, 128 * MIB, &held);
}

fn a_destination_that_hangs_at_its_end_does_not_slow_the_others(case: &Case) {
    let held = Inject::new().hold("unlink").on("*/hangs/*.journal");
    slows_nobody(case, &["two", "three"], &[], 3 * MIB, &held);
}

/// The list of one destination is a FIFO that nobody reads.
fn a_list_that_is_not_read_does_not_slow_the_others(case: &Case) {
    let tree = case.src.dir("tree");
    for number in 0..300 {
        tree.file(format!("small{number}"), noise(number, 30));
    }
    let other = case.scratch.dir("other");
    let (_, reader) = narrow_fifo(case, "sums.one");
    let copy = case
        .fastcp()
        .args(["--rsh", "local", "-r"])
        .args(timeout())
        .arg(format!("--digests={}", case.scratch.path("sums").display()))
        .arg(&tree.0)
        .arg(format!("one:{}/", case.dst.0.display()))
        .arg("--also")
        .arg(format!("two:{}/", other.0.display()))
        .start();
    until("the other list is whole", || {
        let list = std::fs::read_to_string(case.scratch.path("sums.two"));
        list.is_ok_and(|list| list.lines().count() == 300)
            .then_some(())
    });
    ends_on(case, copy, Signal::INT, 130);
    drop(reader);
    case.sweep();
}

/// Not even SIGKILL ends the process that writes.
fn a_file_system_that_does_not_answer_can_be_left(case: &Case) {
    let at = case.dst.dir("disk");
    let Some(disk) = Mounted::caseless(case, &at.0) else {
        return skip("root and exfat-fuse");
    };
    case.src.file("big", noise(1, 24 * MIB));
    let run = case.copying(&["-l", "32000"], "big", "disk").start();
    until("the copy is under way", || {
        (at.partial_bytes() > 2 << 20).then_some(())
    });
    let hangs = disk.hang();
    thread::sleep(Duration::from_secs(1));
    let since = Instant::now();
    run.signal(Signal::INT);
    run.wait().exits(130);
    let took = since.elapsed();
    // The client gives the server time to end, and then kills it.
    assert!(took < 2 * ENDS_WITHIN, "it took {took:?}");
    drop(hangs);
    for server in case.servers() {
        assert!(server.ends_within(ENDS_WITHIN), "{}", server.describe());
    }
    at.sweep();
}
