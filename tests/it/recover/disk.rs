//! Destinations that fail in the middle of a tree: failed files are reported with the reason, and
//! all other files arrive. Also disks whose sync fails or never ends.

use std::time::Duration;

use rustix::io::Errno;

use super::damaged::damage;
use crate::support::disk::Mounted;
use crate::support::ending::ENDS_WITHIN;
use crate::support::inject::{self, Inject};
use crate::support::limits::without_powers;
use crate::support::loops::{Loop, Mount};
use crate::support::procs::{self, until};
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { pull, here =>
    a_quota_that_is_used_up_fails_what_is_under_it,
    a_disk_that_fails_fails_what_is_on_it,
}

ways! { push, pull =>
    a_disk_that_is_full_fails_what_does_not_fit,
    directories_that_are_closed_while_we_copy_fail_alone,
    reasons_of_both_ends_are_told,
    a_disk_that_fills_after_a_login_again_is_the_cause_that_is_told,
}

ways! { push, here =>
    a_disk_without_inodes_says_so,
    an_immutable_file_says_so,
    a_directory_that_is_append_only_takes_trees_and_refuses_files,
}

ways! { local_push =>
    an_error_of_syncfs_fails_the_copy,
}

ways! { local_push, local_pull =>
    a_sync_without_an_end_holds_no_copy_up,
}

ways! { local_push, here =>
    a_journal_that_cannot_be_written_is_not_left_behind,
}

/// A `tree` with a big file in `bad` and other files elsewhere.
fn tree_with_one_to_fail(case: &Case, bad: &str) -> Dir {
    let tree = case.src.dir("tree");
    tree.file(format!("{bad}/big"), noise(1, 24 * MIB));
    for number in 0..30 {
        tree.file(format!("good/{number}"), noise(number, 50_000));
    }
    tree.file("good/big", noise(2, 3 * MIB));
    tree
}

#[track_caller]
fn only_the_big_one_failed(case: &Case, bad: &str, reason: &str) {
    let limit = Duration::from_secs(120);
    let done = case.copying(&["-r"], "tree", "").limit(limit).run();
    done.exits(8).says(&format!("{bad}/big")).says(reason);
    done.never_says("good/");
    assert!(!case.dst.has(format!("tree/{bad}/big")));
    let (src, dst) = (case.src.path("tree/good"), case.dst.path("tree/good"));
    assert_same(src, dst, Also::Nothing);
}

fn a_quota_that_is_used_up_fails_what_is_under_it(case: &Case) {
    let at = case.dst.dir("tree/disk");
    let Some(_disk) = Mounted::with_quota(case, &at.0, 8 << 20) else {
        return skip("root and btrfs");
    };
    tree_with_one_to_fail(case, "disk/limited");
    only_the_big_one_failed(case, "disk/limited", "quota");
}

fn a_disk_that_fails_fails_what_is_on_it(case: &Case) {
    let at = case.dst.dir("tree/bad");
    let Some(_disk) = Mounted::failing(case, &at.0, 12 << 20) else {
        return skip("root, btrfs and ext4");
    };
    tree_with_one_to_fail(case, "bad");
    only_the_big_one_failed(case, "bad", "input/output error");
}

fn a_disk_that_is_full_fails_what_does_not_fit(case: &Case) {
    let at = case.dst.dir("tree/bad");
    let Some(_disk) = Mounted::small(&at.0, 8 << 20) else {
        return skip("root");
    };
    tree_with_one_to_fail(case, "bad");
    // A known shortage would end the copy before the first byte, so the disk fills after that.
    case.src.file("tree/bad/big", noise(1, 6 * MIB));
    let run = case.copying(&["-r"], "tree", "");
    let run = run.arg(held_back(case, "400K")).start();
    until("the big file is under way", || {
        at.has_partial().then_some(())
    });
    let mut filler = std::fs::File::create(at.path("filler")).expect("make a file");
    std::io::copy(&mut std::io::repeat(1), &mut filler).expect_err("the disk is small");
    let_go(case);
    let done = run.wait();
    done.exits(8).says("bad/big").says("space");
    assert_eq!(at.names(), ["filler"]);
    let (src, dst) = (case.src.path("tree/good"), case.dst.path("tree/good"));
    assert_same(src, dst, Also::Nothing);
    // The source has no such file.
    std::fs::remove_file(at.path("filler")).expect("remove a file");
}

fn a_disk_without_inodes_says_so(case: &Case) {
    let at = case.dst.dir("disk");
    let Some(_disk) = Mounted::of_inodes(&at.0, 30) else {
        return skip("root");
    };
    for number in 0..60 {
        case.src.file(format!("tree/{number}"), "small");
    }
    case.src.file("big", noise(1, 3 * MIB));
    let done = case.copy(&["-r"], "tree", "disk");
    done.exits(8).says("tree/").says("no inodes left");
    assert!(!at.names().is_empty());
    assert_eq!(at.dir("tree").partials().len(), 0);
    let done = case.copy(&[], "big", "disk");
    done.exits(8).says("disk/big").says("no inodes left");
    assert_eq!(at.names(), ["tree"]);
}

/// An ext4 with a directory `t`, where `file` gets an attribute by `chattr`.
fn with_attribute(case: &Case, change: &str, file: &str) -> Option<(Loop, Mount, Dir, Attribute)> {
    let at = case.dst.dir("disk");
    let disk = Loop::new(&case.scratch, "disk", vec![0; 32 * MIB]);
    let Some((disk, mount)) = disk.and_then(|disk| disk.mounted(&at.0).map(|mount| (disk, mount)))
    else {
        skip("root, ext4 and loop devices");
        return None;
    };
    let t = at.dir("t");
    t.file("file", "old");
    let attribute = Attribute(t.path(file), change.replace('+', "-"));
    chattr(change, &attribute.0);
    Some((disk, mount, t, attribute))
}

/// The attribute is removed when dropped.
struct Attribute(std::path::PathBuf, String);

impl Drop for Attribute {
    fn drop(&mut self) {
        chattr(&self.1, &self.0);
    }
}

fn chattr(change: &str, path: &std::path::Path) {
    let mut command = std::process::Command::new("chattr");
    let status = command.arg(change).arg(path).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "chattr {change}"
    );
}

fn an_immutable_file_says_so(case: &Case) {
    let Some((_disk, _mount, t, _immutable)) = with_attribute(case, "+i", "file") else {
        return;
    };
    case.src.file("s/file", "new");
    case.src.file("s/other", "new");
    for option in ["-r", "-r --inplace"] {
        let options: Vec<&str> = option.split(' ').collect();
        let done = case.copy(&options, "s/", "disk/t");
        done.exits(8).says("t/file").says("immutable");
        assert_eq!(t.read("file"), b"old");
        assert_eq!(t.read("other"), b"new");
        assert_eq!(t.names(), ["file", "other"]);
    }
    case.src.link("links/file", "other");
    let done = case.copy(&["-r"], "links/", "disk/t");
    done.exits(8).says("t/file").says("immutable");
    done.never_says("not supported");
    assert_eq!(t.names(), ["file", "other"]);
}

/// Nothing can be renamed or removed there, so fastcp may not create partial files.
fn a_directory_that_is_append_only_takes_trees_and_refuses_files(case: &Case) {
    let Some((_disk, _mount, t, _append)) = with_attribute(case, "+a", "") else {
        return;
    };
    case.src.file("big", noise(1, 3 * MIB));
    case.src.file("tree/small", "content");
    case.src.file("tree/big", noise(2, 3 * MIB));
    let done = case.copy(&[], "big", "disk/t");
    done.exits(8).says("append-only");
    assert_eq!(t.names(), ["file"]);
    case.copy(&["-r"], "tree", "disk/t")
        .succeeds()
        .never_says("journal");
    assert_eq!(t.names(), ["file", "tree"]);
    assert_same(case.src.path("tree"), t.path("tree"), Also::Nothing);
}

/// The message gives the first real cause, not the earlier loss of the connection.
fn a_disk_that_fills_after_a_login_again_is_the_cause_that_is_told(case: &Case) {
    let at = case.dst.dir("disk");
    let Some(_disk) = Mounted::small(&at.0, 24 << 20) else {
        return skip("root");
    };
    case.src.file("a", noise(1, 20 * MIB));
    let run = case.copying(&["--memory", "16Mi"], "a", "disk/a");
    let run = run.arg(held_back(case, "1M")).start();
    let brought = |bytes: u64| move |dir: &Dir| (dir.partial_bytes() > bytes).then_some(());
    until("the copy is under way", || brought(2 << 20)(&at));
    case.servers().pop().expect("a server runs").kill();
    until("it goes on", || brought(8 << 20)(&at));
    let mut filler = std::fs::File::create(at.path("filler")).expect("make a file");
    std::io::copy(&mut std::io::repeat(1), &mut filler).expect_err("the disk is small");
    let_go(case);
    let done = run.wait();
    done.exits(8).says("no space").never_says("gave up");
    std::fs::remove_file(at.path("filler")).expect("remove a file");
    assert!(!at.has("a"));
    at.sweep();
}

/// A slow copy by users without root's power to ignore file modes.
fn slowly_without_powers(case: &Case) -> run::Running {
    let powerless = without_powers();
    case.host().set_login(&Login {
        under: powerless.join(" "),
        ..Login::default()
    });
    let slow = ["-r", "-l", "16000", "--streams", "1"];
    case.copying(&slow, "tree", "").under(powerless).start()
}

fn directories_that_are_closed_while_we_copy_fail_alone(case: &Case) {
    let tree = case.src.dir("tree");
    let all = 60;
    for number in 0..all * 8 {
        let name = format!("{}/{number}", number / 8);
        tree.file(name, noise(number, 30_000));
    }
    let run = slowly_without_powers(case);
    let into = |number: u64| case.dst.path(format!("tree/{number}"));
    until("the directories and a first file are there", || {
        let there = (0..all).filter(|number| into(*number).exists()).count();
        let files =
            || (0..all).any(|number| !case.dst.dir(format!("tree/{number}")).names().is_empty());
        (there as u64 == all && files()).then_some(())
    });
    let is_empty = |number: &u64| case.dst.dir(format!("tree/{number}")).names().is_empty();
    let closed: Vec<u64> = (0..all).filter(is_empty).collect();
    assert!(!closed.is_empty(), "the copy was too quick");
    for number in &closed {
        case.dst.mode(format!("tree/{number}"), 0o555);
    }
    let done = run.wait();
    done.exits(8).says("permission denied");
    for number in &closed {
        let dir = case.dst.dir(format!("tree/{number}"));
        case.dst.mode(format!("tree/{number}"), 0o755);
        // If the directory is closed before the rename, nobody may remove the partial file.
        for partial in dir.partials() {
            std::fs::remove_file(partial).expect("remove a temporary");
        }
    }
    for number in 0..all * 8 {
        let name = format!("tree/{}/{number}", number / 8);
        if case.dst.has(&name) {
            assert_same(case.src.path(&name), case.dst.path(&name), Also::Nothing);
        } else {
            assert!(closed.contains(&(number / 8)), "{name} is missing: {done}");
        }
    }
}

fn reasons_of_both_ends_are_told(case: &Case) {
    let tree = case.src.dir("tree");
    for number in 0..20 {
        tree.file(format!("{number}"), noise(number, 400_000));
    }
    tree.file("unreadable", "secret");
    tree.mode("unreadable", 0);
    tree.file("blocked/file", "content");
    case.dst.file("tree/blocked", "in the way");
    let done = slowly_without_powers(case).wait();
    // Failures of several kinds, each with its path.
    done.exits(1).says("tree/unreadable").says("tree/blocked");
    for number in 0..20 {
        let name = format!("tree/{number}");
        assert_same(case.src.path(&name), case.dst.path(&name), Also::Nothing);
    }
}

fn a_journal_that_cannot_be_written_is_not_left_behind(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, 3 * MIB));
    for call in ["write", "ftruncate"] {
        // The header, the session, a record.
        for number in 1..=3 {
            let full = Inject::new().fail(call, Errno::NOSPC);
            let full = full.on(".fastcp-*.journal").nth(number);
            case.copying(&[], "a", "a").inject(&full).run().succeeds();
            assert_eq!(case.dst.names(), ["a"]);
        }
    }
}

/// The sync that runs beside the copy every 30 s: its error is not about a named file.
fn an_error_of_syncfs_fails_the_copy(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("tree/big", noise(1, 5 * MIB));
    case.src.file("tree/other", noise(2, 2 * MIB));
    // Holds the copy until the sync has failed.
    let inject = Inject::new()
        .fail("syncfs", Errno::IO)
        .hold("pwrite64")
        .on("*.part")
        .nth(3);
    let run = case.copying(&["-a"], "tree", "").inject(&inject);
    let running = run.limit(Duration::from_secs(120)).start();
    inject.wait_until_struck_within(2, Duration::from_secs(90));
    inject.release();
    running.wait().exits(8).says("the disk reported an error");
    assert_same(case.src.path("tree"), case.dst.path("tree"), Also::Nothing);
    // The next run trusts no size and time.
    damage(&case.dst.path("tree/other"));
    case.copy(&["-a"], "tree", "").succeeds();
    assert_same(case.src.path("tree"), case.dst.path("tree"), Also::Nothing);
    assert_eq!(case.dst.names(), ["tree"]);
}

/// A file system on which other programs write takes minutes to sync. No thread of the copy may
/// wait in that sync: the kernel would not let its process end before.
fn a_sync_without_an_end_holds_no_copy_up(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("tree/big", noise(1, 5 * MIB));
    // The copy continues when the sync has begun.
    let inject = Inject::new()
        .hold("pwrite64")
        .on("*.part")
        .nth(3)
        .hold("syncfs");
    let run = case.copying(&["-r"], "tree", "").inject(&inject);
    let running = run.limit(Duration::from_secs(150)).start();
    inject.wait_until_struck_within(2, Duration::from_secs(90));
    inject.release_first(1);
    let is_beside = |process: &procs::Process| process.line.contains(" --syncfs");
    let beside = procs::marked(case.mark()).into_iter().find(is_beside);
    let beside = beside.expect("a process for it alone");
    let done = running.wait();
    assert!(beside.ends_within(ENDS_WITHIN), "it outlives the copy");
    inject.release();
    done.exits(0)
        .says("the disk is still writing the copied data");
    assert_same(case.src.path("tree"), case.dst.path("tree"), Also::Nothing);
}
