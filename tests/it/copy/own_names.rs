//! Sources with names that fastcp gives to its own files. Their content arrives under these names,
//! and never under another.

use rustix::io::Errno;

use crate::support::inject::{self, Inject};
use crate::support::*;

ways! { local_pull, here =>
    every_kind_of_entry_may_have_the_name_of_a_partial,
}

ways! { local_push, local_between =>
    what_a_cut_copy_left_in_the_source_is_copied,
    an_unfinished_file_that_was_replaced_gives_its_name_to_nothing_else,
}

ways! { push, here =>
    the_name_of_the_journal_in_use_is_refused_for_that_entry_alone,
}

ways! { local_push, here =>
    without_locks_and_leases_every_copy_is_whole,
}

/// A tree with entries that have the names of partial files in `dst`.
fn tree(case: &Case, dst: &Dir, plant: Plant) -> Dir {
    let tree = case.src.dir("tree");
    tree.file("big", noise(1, 3 * MIB));
    plant(&tree, dst, &dst.partial_of("big"));
    tree
}

type Plant = fn(&Dir, &Dir, &str);

const KINDS: [(&str, Plant); 6] = [
    ("small", |dir, _, name| {
        dir.file(name, "a small file");
        dir.mode(name, 0o600);
    }),
    ("large", |dir, _, name| {
        dir.file(name, noise(2, 2 * MIB));
        dir.mode(name, 0o600);
    }),
    ("hard link", |dir, _, name| {
        dir.file("another", "two names");
        dir.hard_link(name, "another");
    }),
    ("symlink", |dir, _, name| {
        dir.link(name, "big");
    }),
    ("directory", |dir, _, name| {
        dir.file(format!("{name}/inside"), "a file");
    }),
    ("both small", |dir, dst, name| {
        // Many files, so that the partial file of one exists when another is placed.
        for number in 0..60 {
            let one = format!("file {number}");
            dir.file(&one, noise(number, 3000));
            dir.file(dst.partial_of(&one), noise(1000 + number, 2000));
        }
        dir.file(name, "a small file");
    }),
];

fn every_kind_of_entry_may_have_the_name_of_a_partial(case: &Case) {
    for (kind, plant) in KINDS {
        for flags in [&["-r"][..], &["-rp", "--force"], &["-r", "--inplace"]] {
            println!("{kind} {flags:?}");
            let into = case.dst.dir("into");
            into.file("big", "old");
            let tree = tree(case, &into, plant);
            case.copy(flags, "tree/", "into").succeeds();
            assert_same(&tree.0, &into.0, Also::HardLinks);
            // Again, with all of it already at the destination.
            case.copy(flags, "tree/", "into").succeeds();
            assert_same(&tree.0, &into.0, Also::HardLinks);
            std::fs::remove_dir_all(&tree.0).expect("remove the tree");
            std::fs::remove_dir_all(&into.0).expect("remove the copy");
        }
    }
}

/// Copies a directory into which an earlier copy was cut short. Its leftovers have names made for
/// that directory, and the new copy uses names made for its own.
fn what_a_cut_copy_left_in_the_source_is_copied(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let whole = case.src.dir("whole");
    whole.file("big", noise(1, 3 * MIB));
    let tree = case.src.dir("tree");
    let kill = Inject::new().kill("rename").on("*.part");
    let run = case.bare().arg("-r").arg(whole.path("")).arg(&tree.0);
    run.inject(&kill).run();
    kill.assert_struck(1);
    assert_eq!((tree.journals().len(), tree.partials().len()), (1, 1));
    case.remember();
    for flags in [&["-r"][..], &["-rp"], &["-r", "--inplace"]] {
        case.copy(flags, "tree", "").succeeds();
        assert_same(&tree.0, case.dst.path("tree"), Also::HardLinks);
        case.copy(flags, "tree/", "new").succeeds();
        assert_same(&tree.0, case.dst.path("new"), Also::HardLinks);
    }
    // A copy of the file alone must not remove the leftovers beside it.
    case.copy(&[], "whole/big", "tree").succeeds();
    tree.file("big", whole.read("big"));
    assert_same(&tree.0, case.dst.path("tree"), Also::HardLinks);
}

/// Another process moves the partial file away and puts its own file under that name.
fn an_unfinished_file_that_was_replaced_gives_its_name_to_nothing_else(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, 3 * MIB));
    let held = Inject::new().hold("pwrite64").on("*.part").times(1);
    let copy = case.copying(&[], "a", "a").inject(&held).start();
    held.wait_until_struck(1);
    let at = case.dst.path(case.dst.partial_of("a"));
    std::fs::rename(&at, case.dst.path("moved away")).expect("move it away");
    std::fs::write(&at, "of another process").expect("write");
    held.release();
    copy.wait().succeeds();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
    assert_eq!(std::fs::read(&at).expect("it stays"), b"of another process");
    std::fs::remove_file(at).expect("remove it");
}

/// A copy is resumed from its journal, so nothing may replace the journal while the copy runs.
fn the_name_of_the_journal_in_use_is_refused_for_that_entry_alone(case: &Case) {
    let journal = case.dst.journal_of_content();
    let tree = case.src.dir("tree");
    tree.file("a", noise(1, 3 * MIB));
    tree.file(&journal, "not a journal");
    tree.file("sub/b", "another");
    let done = case.copy(&["-r"], "tree/", "");
    done.exits(12).says(&journal).says("journal");
    std::fs::remove_file(tree.path(&journal)).expect("remove it");
    assert_same(&tree.0, &case.dst.0, Also::HardLinks);
}

/// Without locks, fastcp cannot tell whether the writer of a partial file is still running.
fn without_locks_and_leases_every_copy_is_whole(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    for errno in [Errno::NOLCK, Errno::OPNOTSUPP] {
        let into = case.dst.dir("into");
        into.file("big", "old");
        let tree = tree(case, &into, KINDS[0].1);
        let inject = Inject::new()
            .fail("flock", errno)
            .fail("lease", Errno::INVAL);
        for flags in [&["-r"][..], &["-r", "--force"]] {
            let run = case.copying(flags, "tree/", "into");
            run.inject(&inject).run().succeeds();
            assert_same(&tree.0, &into.0, Also::HardLinks);
        }
        std::fs::remove_dir_all(&tree.0).expect("remove the tree");
        std::fs::remove_dir_all(&into.0).expect("remove the copy");
    }
    // Two copies to one name: the second runs while the first is held in the middle.
    case.src.file("one", noise(3, 9 * MIB));
    case.src.file("two", noise(4, 7 * MIB));
    let without = || Inject::new().fail("flock", Errno::NOLCK);
    let held = without().hold("pwrite64").on("*.part").after(3);
    let first = case.copying(&[], "one", "name").inject(&held).start();
    held.wait_until_struck(3);
    // The first copy avoids the usual name, which other processes find and may use.
    let usual = case.dst.partial_of("name");
    assert!(!case.dst.has(&usual) && case.dst.partials().len() == 1);
    case.dst.file(&usual, "of another fastcp");
    case.dst.mode(&usual, 0o600);
    let second = case.copying(&[], "two", "name").inject(&without()).run();
    second.succeeds();
    assert_same(case.src.path("two"), case.dst.path("name"), Also::Nothing);
    held.release();
    let done = first.wait();
    let expected = if done.code == Some(0) { "one" } else { "two" };
    assert_same(
        case.src.path(expected),
        case.dst.path("name"),
        Also::Nothing,
    );
    assert_eq!(case.dst.read(&usual), b"of another fastcp");
    case.sweep();
}
