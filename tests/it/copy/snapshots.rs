//! `--snapshot`: one complete copy per run, which shares unchanged files with the one before.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use rustix::process::{Signal, kill_process};

use crate::support::cut_short::{SIZE, SLOW, has_third, kill_receiver};
use crate::support::procs::until;
use crate::support::*;

ways! { push, pull, between, here =>
    snapshots_share_unchanged_files_and_keep_thins_them,
}

ways! { local_push =>
    a_killed_snapshot_is_resumed_without_its_leftovers,
    a_killed_snapshot_of_content_and_a_file_beside_it_is_resumed,
    entries_that_are_linked_are_counted_once,
    what_failed_is_not_called_latest,
    a_refused_snapshot_and_one_stopped_at_its_end_leave_no_harm,
    a_snapshot_of_two_sources_with_one_name_is_not_completed,
}

const STATE: &str = ".fastcp-snapshots";

/// The snapshots in a directory, oldest first.
fn snapshots(there: &Dir) -> Vec<String> {
    let mut names = there.names();
    names.retain(|name| name.ends_with('Z'));
    names
}

fn latest(there: &Dir) -> String {
    let target = fs::read_link(there.path("latest")).expect("a link");
    target.to_str().expect("a date").to_owned()
}

/// Removes the files of fastcp, which every other copy must not leave.
fn forget(there: &Dir) {
    fs::remove_dir_all(there.path(STATE)).expect("remove it");
}

/// On several streams a late chunk is sent again.
const ONE_STREAM: [&str; 5] = [
    "-a",
    "--snapshot",
    "--summary",
    "--streams=1",
    "--route=direct",
];

/// Calls `act` while the client is stopped, so that its copy does not end.
fn stopped(run: &run::Running, act: impl FnOnce()) {
    let signal = |signal| kill_process(run.pid(), signal).expect("it runs");
    signal(Signal::STOP);
    act();
    signal(Signal::CONT);
}

fn snapshots_share_unchanged_files_and_keep_thins_them(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("sub/same", "same");
    tree.file("sub/name\nwith a line", "odd");
    tree.file("changed", "old");
    tree.file("gone", "gone");
    tree.file("big", noise(1, 2 * MIB));
    tree.link("link", "target");
    tree.file("type/was a directory", "x");
    let there = Dir(case.dst.path("bk"));
    case.copy(&["-a", "--snapshot"], "tree/", "bk").succeeds();
    let first = latest(&there);
    assert_eq!(snapshots(&there), std::slice::from_ref(&first));
    let old = Dir(there.path(&first));
    assert_same(&tree.0, &old.0, Also::ModesAndTimes);
    let before = Tree::read(&old.0);

    tree.file("changed", "newer");
    fs::remove_file(tree.path("gone")).expect("remove it");
    fs::remove_dir_all(tree.path("type")).expect("remove it");
    tree.file("type", "a file");
    tree.mode("sub/same", 0o600);
    let planned = case.copy(&["-an", "--snapshot"], "tree/", "bk");
    let planned = planned.succeeds().stdout_text();
    let is_told = |path: &str| planned.contains(&format!("f+++++++++ {path}\n"));
    assert!(
        is_told("changed") && is_told("type") && !is_told("big"),
        "{planned}"
    );
    assert_eq!(snapshots(&there).len(), 1);

    let done = case.copy(&["-a", "--snapshot", "--json"], "tree/", "bk");
    let done = done.succeeds().stdout_text();
    let second = latest(&there);
    assert!(done.contains(&format!("\"name\":\"{second}\"")), "{done}");
    assert!(second > first && snapshots(&there).len() == 2);
    let new = Dir(there.path(&second));
    assert_same(&tree.0, &new.0, Also::ModesAndTimes);
    for (path, is_shared) in [
        ("big", true),
        ("link", true),
        ("sub/name\nwith a line", true),
        ("sub/same", false),
        ("changed", false),
    ] {
        let same = old.meta(path).ino() == new.meta(path).ino();
        assert_eq!(same, is_shared, "{path}");
    }
    let kept = before.differences(&Tree::read(&old.0), Also::ModesAndTimes);
    assert!(kept.is_empty(), "{kept:?}");

    // A directory without a mark is no snapshot, and one with a later date keeps all others.
    there.file("2001-01-01T000000Z/f", "not ours");
    there.file("2999-01-01T000000Z/f", "later");
    there.file(".fastcp-snapshots/2999-01-01T000000Z", "");
    let flags = ["-a", "--snapshot", "--keep", "1y", "--summary"];
    let done = case.copy(&flags, "tree/", "bk");
    let told = format!("{}{}", done.succeeds().stdout_text(), done.stderr);
    assert!(told.contains("an old one is dated later"), "{told}");
    assert_eq!(snapshots(&there).len(), 5);
    fs::remove_dir_all(there.path("2999-01-01T000000Z")).expect("remove it");
    // What a killed run was removing goes too.
    there.file(".fastcp-removing-2002-01-01T000000Z/f", "half there");
    there.mode(".fastcp-removing-2002-01-01T000000Z", 0o500);
    case.copy(&flags, "tree/", "bk").succeeds();
    assert_eq!(
        snapshots(&there),
        ["2001-01-01T000000Z".to_owned(), latest(&there)]
    );
    assert_same(&tree.0, there.path("latest/"), Also::ModesAndTimes);
    forget(&there);
}

fn a_killed_snapshot_is_resumed_without_its_leftovers(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("same", "same");
    let there = Dir(case.dst.path("bk"));
    let flags = [&["-a", "--snapshot"][..], &SLOW].concat();
    case.copy(&flags, "tree/", "bk").succeeds();
    let first = latest(&there);
    tree.file("big", noise(2, SIZE));
    tree.file("gone/f", "gone");
    tree.file("becomes a directory", "x");
    tree.file("becomes a file/f", "x");
    let run = case.copying(&flags, "tree/", "bk").start();
    let state = Dir(there.path(STATE));
    until("a third is there", || {
        state
            .journals()
            .iter()
            .any(|it| has_third(it))
            .then_some(())
    });
    // A second run does not touch it.
    stopped(&run, || {
        case.copy(&flags, "tree/", "bk")
            .exits(12)
            .says("another fastcp is making a snapshot there (process ");
    });
    kill_receiver(case, run);
    assert_eq!(latest(&there), first);
    assert_eq!(snapshots(&there).len(), 1);

    let partial = Dir(there.path(".fastcp-snapshot-partial"));
    assert!(!partial.partials().is_empty());
    partial.file("stray/f", "from elsewhere");
    partial.time("stray/f", 4_000_000_000, 0);
    partial.mode("stray", 0o500);
    fs::remove_dir_all(tree.path("gone")).expect("remove it");
    fs::remove_file(tree.path("becomes a directory")).expect("remove it");
    fs::remove_dir_all(tree.path("becomes a file")).expect("remove it");
    tree.file("becomes a directory/f", "y");
    tree.file("becomes a file", "y");
    let done = case.copy(&ONE_STREAM, "tree/", "bk");
    assert!(done.succeeds().wire_bytes() < SIZE * 3 / 4, "{done}");
    let new = Dir(there.path(latest(&there)));
    assert_same(&tree.0, &new.0, Also::ModesAndTimes);
    assert_eq!(new.meta("same").nlink(), 2);
    let names = [STATE.to_owned(), first, latest(&there), "latest".to_owned()];
    assert_eq!(there.names(), names);
    forget(&there);
}

/// The content is complete while the file is on its way to the same directory.
fn a_killed_snapshot_of_content_and_a_file_beside_it_is_resumed(case: &Case) {
    let tree = case.src.dir("tree");
    tree.link("link", "nowhere");
    let big = noise(2, SIZE);
    case.src.file("big", &big);
    let there = Dir(case.dst.path("bk"));
    let flags = [&["-a", "--snapshot"][..], &SLOW].concat();
    let run = case.fastcp().args(flags);
    let run = run.args([case.src("tree/"), case.src("big"), case.dst("bk")]);
    let run = run.start();
    let state = Dir(there.path(STATE));
    until("a third is there", || {
        let is_third = |it: &PathBuf| has_third(it);
        (there.has(STATE) && state.journals().iter().any(is_third)).then_some(())
    });
    kill_receiver(case, run);
    let flags = ONE_STREAM;
    let done = case.copy_all(&flags, &["tree/", "big"], "bk");
    assert!(done.succeeds().wire_bytes() < SIZE * 3 / 4, "{done}");
    let new = Dir(there.path(latest(&there)));
    assert_eq!(new.names(), ["big", "link"]);
    assert!(new.read("big") == big);
    // The file is no content of the tree, which is looked at when both are in place.
    fs::remove_file(tree.path("link")).expect("remove it");
    let done = case.copy_all(&flags, &["tree/", "big"], "bk");
    done.exits(11)
        .says("the source of this directory is empty, or all of it is left out");
    fs::remove_dir_all(there.path(".fastcp-snapshot-partial")).expect("remove it");
    forget(&there);
}

/// One file of each directory has a right that the next snapshot does not keep. The files that were
/// linked before it was found are asked about once more.
fn entries_that_are_linked_are_counted_once(case: &Case) {
    let tree = case.src.dir("tree");
    for name in ["a", "b", "c", "d"] {
        for number in 0..10 {
            tree.file(format!("{name}/{number}"), "content");
        }
        let set_id = format!("{name}/set-id-{name}");
        tree.file(&set_id, "content");
        tree.mode(&set_id, 0o4755);
    }
    case.copy(&["-a", "--snapshot"], "tree/", "bk").succeeds();
    let flags = ["-a", "--no-perms", "--snapshot", "--summary"];
    let done = case.copy(&flags, "tree/", "bk");
    done.succeeds()
        .says(", 40 entries linked to the snapshot before it");
    forget(&Dir(case.dst.path("bk")));
}

fn what_failed_is_not_called_latest(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("f", "content");
    let there = Dir(case.dst.path("bk"));
    case.copy(&["-a", "--snapshot"], "tree/", "bk").succeeds();
    let first = latest(&there);
    let flags = ["-a", "--snapshot"];
    let done = case.copy_all(&flags, &["tree/", "missing"], "bk");
    done.exits(9).says("the snapshot is not completed");
    // A disk that is not mounted.
    case.src.dir("empty");
    case.copy(&flags, "empty/", "bk")
        .exits(11)
        .says("the last snapshot has entries");
    assert_eq!(
        (latest(&there), snapshots(&there).len()),
        (first.clone(), 1)
    );
    for (to, why) in [
        (
            &format!("bk/{first}")[..],
            "is inside a directory of snapshots",
        ),
        ("bk/latest", "is inside a directory of snapshots"),
    ] {
        case.copy(&flags, "tree/", to).exits(2).says(why);
    }
    // The lock holds although its file is removed, and the run that had it completes nothing.
    tree.file("big", noise(2, SIZE));
    let slow = [&flags[..], &SLOW].concat();
    let run = case.copying(&slow, "tree/", "bk").start();
    let state = Dir(there.path(STATE));
    until("a third is there", || {
        state
            .journals()
            .iter()
            .any(|it| has_third(it))
            .then_some(())
    });
    stopped(&run, || {
        fs::remove_file(state.path("lock")).expect("remove it");
        case.copy(&flags, "tree/", "bk").exits(12);
    });
    run.wait().exits(11).says("is not completed");
    assert_eq!(
        (latest(&there), snapshots(&there).len()),
        (first.clone(), 1)
    );
    // A run that was stopped between its last steps is completed by the next.
    let made = "2020-01-01T000000Z";
    there.file(format!("{made}/f"), "content");
    state.file(format!("{made}.new"), "");
    case.copy(&flags, "tree/", "bk").succeeds();
    assert!(state.has(made) && state.has(latest(&there)));
    assert_same(&tree.0, there.path(latest(&there)), Also::ModesAndTimes);
    assert_eq!(
        fs::metadata(&state.0)
            .expect("it exists")
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
    forget(&there);
}

fn a_refused_snapshot_and_one_stopped_at_its_end_leave_no_harm(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("f", "content");
    let inner = case.dst.dir("outer").dir("inner");
    case.copy(&["-a", "--snapshot"], "tree/", "outer/inner")
        .succeeds();
    // A directory of snapshots around one goes on, and nothing new begins in it.
    case.copy(&["-a", "--snapshot"], "tree/", "outer")
        .succeeds();
    case.copy(&["-a", "--snapshot"], "tree/", "outer/inner")
        .succeeds();
    assert_eq!(snapshots(&inner).len(), 2);
    let refused = case.copy(&["-a", "--snapshot"], "tree/", "outer/other");
    refused.exits(2).says("is inside a directory of snapshots");
    // As a run leaves it that is stopped before `latest` leads to its snapshot.
    let outer = Dir(case.dst.path("outer"));
    let stopped = latest(&outer);
    fs::remove_file(outer.path("latest")).expect("remove it");
    let mark = outer.path(STATE).join(&stopped);
    fs::rename(&mark, mark.with_extension("new")).expect("rename it");
    tree.mode("f", 0o600);
    case.copy(&["-a", "--snapshot"], "tree/", "outer")
        .succeeds();
    assert!(mark.exists() && latest(&outer) > stopped);
    forget(&inner);
    forget(&outer);
}

fn a_snapshot_of_two_sources_with_one_name_is_not_completed(case: &Case) {
    let same = case.src.dir("same");
    same.file("sub/one", "one");
    case.src.file("tree/same/sub/two", "two");
    let there = Dir(case.dst.path("bk"));
    let flags = ["-a", "--snapshot"];
    // Each would remove what the other has there, whichever comes first, also with an earlier snapshot.
    let refused = |sources: &[&str]| {
        let done = case.copy_all(&flags, sources, "bk");
        done.exits(11)
            .says("would get the same name as another source")
            .says("the snapshot is not completed");
    };
    refused(&["same", "tree/"]);
    refused(&["tree/", "same"]);
    assert!(!there.has("latest"));
    case.copy_all(&flags, &["same"], "bk").succeeds();
    let first = latest(&there);
    refused(&["same", "tree/"]);
    assert_eq!(latest(&there), first);
    assert_same(&same.0, there.path("latest/same"), Also::ModesAndTimes);
    fs::remove_dir_all(there.path(".fastcp-snapshot-partial")).expect("remove it");
    forget(&there);
}
