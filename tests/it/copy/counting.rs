//! Copies that begin while their sources are counted. Each test holds or delays one system call of
//! the count, but not the same call of the copy's own walk.

use std::time::Duration;

use crate::support::inject::{self, Inject};
use crate::support::limits::Disk;
use crate::support::*;

ways! { local_push, local_pull, local_between, here =>
    a_second_copy_does_not_wait_for_the_count,
    a_first_copy_waits_for_it,
    too_little_space_is_told_before_the_first_byte_however_late_the_count,
}

ways! { local_push =>
    a_count_that_ends_later_is_told_once,
}

/// Strikes the count of `last` in `src/tree`.
fn count_of(call: impl Fn(Inject, &str) -> Inject) -> Inject {
    call(Inject::new(), "stat").on("*/src/tree/last").times(1)
}

fn a_second_copy_does_not_wait_for_the_count(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = case.src.dir("tree");
    tree.file("last", "last");
    // A copy gives its count a moment. On a busy machine its walk may still reach the file first, and
    // is held instead.
    let is_over_first = (0..5).any(|nth| {
        let name = format!("there {nth}");
        let there = case.dst.dir(&name);
        tree.file("sub/file", "old");
        std::fs::remove_file(tree.path("big")).ok();
        case.copy(&["-a"], "tree", &name).succeeds();
        tree.file("sub/file", "new and longer");
        tree.file("big", noise(1, 3 * MIB));
        there.file("tree/extra", "extra");
        // It is held until the copy is over.
        let held = count_of(|inject, call| inject.hold(call));
        let flags = ["-a", "--delete", "--json"];
        let copy = case.copying(&flags, "tree", &name).inject(&held).start();
        let is_over_first = procs::ended_within(copy.pid(), Duration::from_secs(20));
        held.assert_struck(1);
        held.release();
        let told = copy.wait().succeeds().stdout_text();
        assert!(told.contains("\"files_unchanged\":1"), "{told}");
        assert_same(&tree.0, there.path("tree"), Also::Nothing);
        is_over_first
    });
    assert!(is_over_first, "each copy waited");
}

fn a_first_copy_waits_for_it(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = case.src.dir("tree");
    tree.file("last", "last");
    tree.file("file", "file");
    let held = count_of(|inject, call| inject.hold(call));
    let copy = case.copying(&["-a"], "tree", "there").inject(&held).start();
    held.wait_until_struck(1);
    // Longer than a copy waits before it begins without the totals.
    std::thread::sleep(Duration::from_millis(300));
    assert!(!case.dst.path("there").exists());
    held.release();
    copy.wait().succeeds();
    assert_same(&tree.0, case.dst.path("there"), Also::Nothing);
}

fn too_little_space_is_told_before_the_first_byte_however_late_the_count(case: &Case) {
    let Some(disk) = Disk::small(case, 4 << 20) else {
        return skip("a small file system");
    };
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("tree/big", noise(1, 9 * MIB));
    case.src.file("tree/last", "last");
    let late = count_of(|inject, call| inject.delay(call, Duration::from_millis(300)));
    case.fastcp()
        .arg("-a")
        .arg(case.src("tree"))
        .arg(case.to(disk.dir.path("new")))
        .inject(&late)
        .run()
        .exits(8)
        .says("no space left: needs 9.4");
    late.assert_struck(1);
    assert_eq!(disk.dir.names(), [""; 0]);
}

/// The walk of the copy waits for data when the count ends.
fn a_count_that_ends_later_is_told_once(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = case.src.dir("tree");
    tree.file("last", "last");
    let there = case.dst.dir("there");
    case.copy(&["-a"], "tree", "there").succeeds();
    for number in 0..300 {
        tree.file(format!("big{number}"), noise(number, 100_000));
    }
    let late = count_of(|inject, call| inject.delay(call, Duration::from_millis(300)));
    let flags = ["-a", "-l", "160000"];
    case.copying(&flags, "tree", "there")
        .inject(&late)
        .run()
        .succeeds();
    late.assert_struck(1);
    assert_same(&tree.0, there.path("tree"), Also::Nothing);
}
