//! Disks that hang: a system call at one end does not return. The copy waits for it without losing
//! the other end, everything else goes on, and the user can end it at any time.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::process::Signal;

use crate::support::inject::{self, Inject};
use crate::support::procs::until;
use crate::support::run::{Run, Running};
use crate::support::*;

ways! { local_push, local_pull =>
    a_disk_that_hangs_where_holes_are_looked_for_holds_one_file_up,
    a_directory_that_hangs_is_waited_for_and_can_be_left,
    a_list_of_digests_that_nobody_reads_is_waited_for_and_can_be_left,
    a_removal_that_hangs_at_the_end_is_waited_for_and_can_be_left,
    closing_that_hangs_holds_nothing_up,
}

ways! { local_pull =>
    a_pattern_that_hangs_is_waited_for_and_can_be_left,
}

ways! { here =>
    a_destination_whose_disk_hangs_does_not_slow_the_others,
}

/// Silence that either end bears, and for how long a call hangs: it would be noticed.
const TIMEOUT: &str = "--timeout=5s";
const HANGS: Duration = Duration::from_secs(8);

/// How long a copy may take to end that the user ends, on a busy machine. The call hangs for as
/// long as the test runs.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// Runs a copy that hangs twice: once the call returns in the end, once the user loses patience.
/// `is_hanging` waits for that.
fn waits_or_is_left(
    case: &Case,
    run: impl Fn() -> Run,
    inject: impl Fn() -> Inject,
    code: i32,
) -> Option<()> {
    if !inject::permitted() {
        skip("seccomp user notification");
        return None;
    }
    let held = inject();
    let copy = run().arg(TIMEOUT).inject(&held).start();
    held.wait_until_struck(1);
    thread::sleep(HANGS);
    held.release();
    let done = copy.wait();
    done.exits(code).never_says("nothing was heard");
    done.never_says("logging in again");
    for entry in case.dst.names() {
        let path = case.dst.path(entry);
        let removed = match path.is_dir() {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
        removed.expect("empty the destination");
    }
    let held = inject();
    let copy = run().arg(TIMEOUT).inject(&held).start();
    held.wait_until_struck(1);
    is_left(copy);
    held.release();
    case.sweep();
    Some(())
}

fn is_left(copy: Running) {
    let since = Instant::now();
    copy.signal(Signal::INT);
    copy.wait().exits(130);
    let took = since.elapsed();
    assert!(took < ENDS_WITHIN, "it took {took:?}");
}

/// A tree with a sparse file, which `hangs` by its name, and small and big ones beside it.
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
    // The others are in place while it hangs.
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

    let hold = || Inject::new().hold("seek_data").on("*hangs");
    waits_or_is_left(case, || case.copying(&["-r"], "tree", ""), hold, 0);
}

fn a_directory_that_hangs_is_waited_for_and_can_be_left(case: &Case) {
    tree(case);
    case.src.file("tree/sub/file", "file");
    let hold = || Inject::new().hold("getdents64").on("*/tree/sub");
    waits_or_is_left(case, || case.copying(&["-r"], "tree", ""), hold, 0);
}

fn a_pattern_that_hangs_is_waited_for_and_can_be_left(case: &Case) {
    tree(case);
    for (call, at) in [("stat", "*hangs"), ("getdents64", "*/tree")] {
        let hold = || Inject::new().hold(call).on(at).at_server();
        let run = || case.copying(&[], "tree/*", "");
        if waits_or_is_left(case, run, hold, 0).is_none() {
            return;
        }
    }
}

/// A FIFO that holds little, of which `reader` is the open end.
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
    let run = case.copying(&flags, "tree", "").arg(TIMEOUT).start();
    let copied = case.dst.dir("tree");
    until("every file is in place", || {
        (copied.names().len() == 300).then_some(())
    });
    thread::sleep(HANGS);
    let flags = OFlags::empty();
    rustix::fs::fcntl_setfl(&reader, flags).expect("let the reader wait");
    let lines = thread::spawn(move || std::io::read_to_string(reader).expect("read"));
    run.wait().succeeds().never_says("nothing was heard");
    assert_eq!(lines.join().expect("it ended").lines().count(), 300);

    std::fs::remove_dir_all(&copied.0).expect("remove the copy");
    let (path, _reader) = narrow_fifo(case, "never read");
    let flags = ["-r".to_owned(), format!("--digests={}", path.display())];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let run = case.copying(&flags, "tree", "").arg(TIMEOUT).start();
    until("every file is in place", || {
        (case.dst.dir("tree").names().len() == 300).then_some(())
    });
    is_left(run);
    case.sweep();
}

fn a_removal_that_hangs_at_the_end_is_waited_for_and_can_be_left(case: &Case) {
    tree(case);
    let hold = || Inject::new().hold("unlink").on("*.journal");
    waits_or_is_left(case, || case.copying(&["-r"], "tree", ""), hold, 0);
}

/// As on a file system in user space, which is asked at each close.
fn closing_that_hangs_holds_nothing_up(case: &Case) {
    let tree = tree(case);
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let held = Inject::new().hold("close").on("*/src/tree/big");
    let copy = case
        .copying(&["-r"], "tree", "")
        .arg(TIMEOUT)
        .inject(&held)
        .start();
    held.wait_until_struck(1);
    let done = copy.wait();
    held.release();
    done.succeeds();
    assert_same(&tree.0, case.dst.path("tree"), Also::Nothing);
}

/// One of three destinations hangs when its file is to get its name.
fn a_destination_whose_disk_hangs_does_not_slow_the_others(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let path = case.src.file("file", noise(1, 3 * MIB));
    let (two, three) = (case.scratch.dir("two"), case.scratch.dir("three"));
    let held = Inject::new().hold("rename").on("*/two/*");
    let copy = case
        .fastcp()
        .args(["--rsh", "local", TIMEOUT])
        .arg(&path)
        .arg(format!("h:{}/", case.dst.0.display()))
        .arg("--also")
        .arg(format!("h:{}/", two.0.display()))
        .arg("--also")
        .arg(format!("h:{}/", three.0.display()))
        .inject(&held)
        .start();
    held.wait_until_struck(1);
    until("the others have it", || {
        let there = |dir: &Dir| std::fs::read(dir.path("file")).ok();
        let content = std::fs::read(&path).ok();
        (there(&case.dst) == content && there(&three) == content).then_some(())
    });
    thread::sleep(HANGS);
    held.release();
    copy.wait().succeeds();
    assert_same(&path, two.path("file"), Also::Nothing);
}
