//! A write or a removal at the destination that hangs when the receiver needs it to finish: one
//! entry waits for it, and nothing else does.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use fastcp::journal::record::RecordBody;
use rustix::process::Signal;

use crate::support::ending::ends_on;
use crate::support::inject::{self, Inject};
use crate::support::procs::until;
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { local_pull, here =>
    a_write_of_an_earlier_reading_holds_one_file_up,
    clearing_what_is_not_begun_ends_with_the_copy,
}

ways! { local_push, local_pull =>
    clearing_what_failed_is_no_silence,
    a_write_that_returns_late_leaves_no_partial,
}

/// Slow enough for the test to act in the middle of the copy, with memory for this many workers.
const SLOW: [&str; 5] = [
    "-r",
    "--bwlimit=4M",
    "--memory=64Mi",
    "--threads=4",
    "--compress=none",
];

/// The receiver has discarded the written data of a file.
fn has_dropped(journal: &Path) -> bool {
    let content = std::fs::read(journal).unwrap_or_default();
    let bodies = journals::bodies(journal, &content);
    let is_dropped = |body: &RecordBody| matches!(body, RecordBody::Dropped(_));
    bodies.iter().any(is_dropped)
}

/// The source grows and is read again, once the writes of the first read have returned. Later
/// entries do not wait for those writes.
fn a_write_of_an_earlier_reading_holds_one_file_up(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = case.src.dir("tree");
    tree.file("a", noise(1, 48 * MIB));
    let later = case.src.dir("later");
    for number in 0..20 {
        later.file(format!("{number}/small"), noise(number, 3000));
    }
    later.file("big", noise(2, MIB / 2));
    // Holds the walk at the second operand until the first is read again, so that its directories
    // are announced only then. Counting the sources before the walk takes two calls.
    let held = Inject::new()
        .hold("getdents64")
        .on("*/src/later")
        .after(2)
        .hold("sync_file_range")
        .on("*.part")
        .nth(4);
    // The held call follows a write, so the other workers still write and the sender still reads.
    let run = case.fastcp().args(SLOW).arg("--drop-cache");
    let run = run.args([case.src("tree"), case.src("later"), case.dst("")]);
    let copy = run.inject(&held).start();
    held.wait_until_struck(2);
    tree.append("a", "more");
    let journal = until("there is a journal", || case.dst.journals().pop());
    until("the written data is dropped", || {
        has_dropped(&journal).then_some(())
    });
    held.release_first(1);
    let into = case.dst.dir("later");
    until("everything else is in place", || {
        let big = std::fs::read(into.path("big")).is_ok_and(|bytes| bytes == later.read("big"));
        let mut small = (0..20).map(|number| into.has(format!("{number}/small")));
        (big && small.all(|is_there| is_there)).then_some(())
    });
    assert!(!case.dst.has("tree/a"), "it waits");
    ends_on(case, copy, Signal::INT, 130);
    held.release();
    case.sweep();
    assert_same(&later.0, &into.0, Also::Nothing);
}

/// A partial file without any data is removed when the copy ends.
fn clearing_what_is_not_begun_ends_with_the_copy(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, 8 * MIB));
    let held = Inject::new().hold("unlink").on("*.part");
    let copy = case
        .copying(&["--no-resume", "--bwlimit=10k"], "a", "a")
        .inject(&held)
        .start();
    until("the copy is under way", || {
        (!case.dst.partials().is_empty()).then_some(())
    });
    ends_on(case, copy, Signal::INT, 130);
    assert!(held.struck() > 0, "nothing was removed: {held}");
    held.release();
    case.sweep();
}

/// The source file is deleted, so its copy fails and its partial file is removed. The two ends keep
/// hearing each other for as long as the removal takes.
fn clearing_what_failed_is_no_silence(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = case.src.dir("tree");
    tree.file("a", noise(1, 8 * MIB));
    let held = Inject::new().hold("unlink").on("*.part");
    let copy = case
        .copying(&["-r", "--no-resume", "--timeout=8s"], "tree", "")
        .arg(held_back(case, "400K"))
        .inject(&held)
        .start();
    let into = case.dst.dir("tree");
    until("the copy is under way", || into.has_partial().then_some(()));
    std::fs::remove_file(tree.path("a")).expect("remove it");
    let_go(case);
    held.wait_until_struck(1);
    // Longer than the timeout of either end.
    std::thread::sleep(Duration::from_secs(11));
    held.release();
    let done = copy.wait();
    done.exits(7).says("during the copy");
    done.never_says("nothing was heard");
    assert_eq!(into.names(), [""; 0]);
}

/// The source file is deleted while the receiver writes to its copy. The write returns when nothing
/// else is left to do; the partial file is removed all the same, before its directory gets its times.
fn a_write_that_returns_late_leaves_no_partial(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = case.src.dir("tree");
    tree.file("a", noise(1, 8 * MIB));
    case.src.time("tree", 1_400_000_000, 5);
    let held = Inject::new().hold("pwrite64").on("*.part").nth(2);
    let copy = case
        .copying(&["--no-resume", "-p"], "tree", "")
        .args(SLOW)
        .inject(&held)
        .start();
    held.wait_until_struck(1);
    std::fs::remove_file(tree.path("a")).expect("remove it");
    // More than a thread may take to end after an early end, less than after a complete copy.
    std::thread::sleep(Duration::from_secs(3));
    held.release();
    copy.wait().exits(7).says("during the copy");
    let meta = case.dst.meta("tree");
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_400_000_000, 5));
    assert_eq!(case.dst.dir("tree").names(), [""; 0]);
}
