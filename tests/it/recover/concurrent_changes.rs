//! Changes that others make to the two ends, and to the network between them, while a copy runs.

use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::time::Duration;

use rustix::process::geteuid;

use crate::support::chaos::{Fault, Flow, Script, Step};
use crate::support::inject::{self, Inject};
use crate::support::limits::without_powers;
use crate::support::procs::until;
use crate::support::storm::Storm;
use crate::support::*;

ways! { push, pull =>
    directories_that_vanish_at_the_destination_fail_alone,
    a_directory_that_becomes_a_link_leads_nowhere,
    what_is_added_to_the_source_does_no_harm,
    a_file_of_anothers_in_a_sticky_directory_stays,
}

ways! { local_push, here =>
    a_file_that_takes_the_first_name_of_another_gets_no_hard_link,
}

ways! { local_push, local_pull => many_files_cross_a_slow_and_late_link }

const DIRS: u64 = 60;
const FILES: u64 = 8;

/// Starts to copy a tree, which takes some seconds. Returns once the first files have their names.
fn tree_under_way(case: &Case) -> run::Running {
    let tree = case.src.dir("tree");
    for number in 0..DIRS * FILES {
        let name = format!("{}/{number}", number / FILES);
        tree.file(name, noise(number, 30_000));
    }
    let slow = ["-r", "-l", "16000", "--streams", "1", "--retries", "0"];
    let run = case.copying(&slow, "tree", "").start();
    until("the directories and a first file are there", || {
        let dir = |number: u64| case.dst.path(format!("tree/{number}"));
        let there = (0..DIRS).filter(|number| dir(*number).exists());
        let are_there = there.count() as u64 == DIRS;
        (are_there && !empty(case).is_empty() && empty(case).len() < DIRS as usize).then_some(())
    });
    run
}

/// Directories at the destination that are still empty.
fn empty(case: &Case) -> Vec<u64> {
    let names = |number: &u64| std::fs::read_dir(case.dst.path(format!("tree/{number}")));
    let is_empty = |number: &u64| names(number).is_ok_and(|mut names| names.next().is_none());
    (0..DIRS).filter(is_empty).collect()
}

/// Everything is there except the content of these directories.
#[track_caller]
fn all_but(case: &Case, lost: &[u64]) {
    for number in (0..DIRS).filter(|number| !lost.contains(number)) {
        let name = format!("tree/{number}");
        assert_same(case.src.path(&name), case.dst.path(&name), Also::Nothing);
    }
}

fn directories_that_vanish_at_the_destination_fail_alone(case: &Case) {
    let run = tree_under_way(case);
    let mut lost = empty(case);
    // A directory that has received a file by now is not removed.
    lost.retain(|number| std::fs::remove_dir(case.dst.path(format!("tree/{number}"))).is_ok());
    let done = run.wait();
    if !lost.is_empty() {
        done.exits(8).says("no such file");
    }
    all_but(case, &lost);
}

fn a_directory_that_becomes_a_link_leads_nowhere(case: &Case) {
    let elsewhere = case.scratch.dir("elsewhere");
    let run = tree_under_way(case);
    let mut lost = empty(case);
    lost.retain(|number| {
        let dir = case.dst.path(format!("tree/{number}"));
        std::fs::remove_dir(&dir).is_ok_and(|()| symlink(&elsewhere.0, &dir).is_ok())
    });
    let done = run.wait();
    if !lost.is_empty() {
        done.exits(8);
    }
    assert!(elsewhere.names().is_empty(), "{:?}", elsewhere.names());
    all_but(case, &lost);
}

fn what_is_added_to_the_source_does_no_harm(case: &Case) {
    let run = tree_under_way(case);
    for number in 0..DIRS {
        case.src.file(format!("tree/{number}/added"), "added");
        case.src
            .file(format!("tree/added {number}/file"), "added too");
    }
    // Added files are copied if the walk reaches them later, and otherwise not. No file is copied
    // in part.
    run.wait().succeeds();
    case.copy(&["-r"], "tree", "").succeeds();
    assert_same(case.src.path("tree"), case.dst.path("tree"), Also::Nothing);
}

fn a_file_of_anothers_in_a_sticky_directory_stays(case: &Case) {
    if !geteuid().is_root() {
        return skip("root");
    }
    case.src.file("tree/theirs", "new");
    case.src.file("tree/ours", "new too");
    let theirs = case.dst.file("tree/theirs", "old");
    let dir = case.dst.path("tree");
    chown(&theirs, Some(12345), Some(23456)).expect("give the file away");
    chown(&dir, Some(12345), Some(23456)).expect("give the directory away");
    case.dst.mode("tree", 0o1777);
    let powerless = without_powers();
    case.host().set_login(&Login {
        under: powerless.join(" "),
        ..Login::default()
    });
    let run = case.copying(&["-r"], "tree", "").under(powerless);
    run.run().exits(8).says("tree/theirs");
    assert_eq!(case.dst.read("tree/theirs"), b"old");
    assert_eq!(case.dst.meta("tree/theirs").uid(), 12345);
    assert_eq!(case.dst.read("tree/ours"), b"new too");
    assert_eq!(case.dst.dir("tree").names(), ["ours", "theirs"]);
}

fn a_file_that_takes_the_first_name_of_another_gets_no_hard_link(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("first", "content");
    for name in ["new", "old"] {
        case.src.hard_link(name, "first");
    }
    // At the destination one name is free, and the other belongs to a file.
    case.dst.file("old", "what stood there");
    let theirs = case.dst.file("theirs", "theirs");
    case.remember();
    // fastcp checks the first name and then links to it. The test replaces the file in between.
    let inject = Inject::new().hold("linkat").on("new");
    let sources = ["first", "new", "old"].map(|name| case.src(name));
    let run = case
        .fastcp()
        .args(sources)
        .arg(case.dst(""))
        .inject(&inject);
    let run = run.start();
    inject.wait_until_struck(1);
    std::fs::rename(theirs, case.dst.path("first")).expect("replace the file");
    inject.release();
    let done = run.wait();
    done.exits(1)
        .says("new: ")
        .says("was replaced by another process");
    assert!(!case.dst.has("new"));
    assert_eq!(case.dst.read("old"), b"what stood there");
    assert_eq!(case.dst.dir("").names(), ["first", "old"]);
}

/// 300 KB/s and 40 ms of extra delay each way, on every connection.
fn many_files_cross_a_slow_and_late_link(case: &Case) {
    let tree = case.src.dir("tree");
    for number in 0..150 {
        tree.file(format!("{}/{number}", number % 5), noise(number, 3000));
    }
    tree.file("big", noise(1, 2 * MIB));
    let step = |connection, flow, fault| Step {
        connection,
        flow,
        at: 0,
        fault,
    };
    let slow = (0..40).flat_map(|n| {
        [Flow::ToServer, Flow::ToClient]
            .into_iter()
            .flat_map(move |flow| {
                let late = Fault::Delay(Duration::from_millis(40));
                [step(n, flow, Fault::Throttle(300_000)), step(n, flow, late)]
            })
    });
    let script = Script {
        steps: slow.collect(),
        ..Script::calm()
    };
    let storm = Storm::new(case, &script);
    let words = ["-r", "--timeout", "10s", "--retries", "0", "--streams", "2"];
    let run = storm.fastcp(case).args(words).args(["--compress", "none"]);
    let run = run.arg(case.src("tree")).arg(case.dst(""));
    run.limit(Duration::from_secs(120)).run().succeeds();
    // The client did not give up the slow connections.
    assert!(
        storm.connections() < 20,
        "{} connections",
        storm.connections()
    );
    storm.end();
    assert_same(&tree.0, case.dst.path("tree"), Also::Nothing);
}
