//! `--backup` keeps replaced and deleted files; `--remove-source-files` removes copied ones.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, lchown};

use rustix::fs::{CWD, Mode};
use rustix::process::geteuid;

use super::archive::{LIST, list};
use crate::support::disk::Mounted;
use crate::support::limits::without_powers;
use crate::support::procs::{Process, until};
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { push, between =>
    old_versions_are_kept_beside_their_files_or_in_a_directory,
    copied_files_leave_the_source,
}

ways! { local_push, here =>
    a_backup_that_cannot_be_made_leaves_the_old_version,
    backups_go_to_other_file_systems_and_without_hard_links,
    only_what_is_safe_elsewhere_leaves_the_source,
}

ways! { local_push, local_pull => a_backup_outlives_a_lost_connection }

ways! { local_push =>
    a_planted_link_leads_no_backup_and_no_earlier_copy_elsewhere,
    strict_removes_only_what_was_kept_whole,
    files_of_one_inode_are_not_written_in_place,
    a_newer_file_stays_in_the_place_of_a_hard_link,
    a_source_whose_copy_another_one_would_replace_stays,
    a_backup_directory_keeps_the_version_from_before_the_copy,
}

/// Old versions of `tree`, with other sizes.
fn old_versions(there: &Dir) {
    there.file("file", "old file");
    there.mode("file", 0o640);
    there.time("file", 1_000_000_000, 5);
    there.file("sub/big", noise(3, 2 * MIB));
    there.link("link", "old target");
    there.file("second", "old second name");
    there.file("extra/deep/file", "old extra");
    there.file("kept~", "an older backup");
}

fn old_versions_are_kept_beside_their_files_or_in_a_directory(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("file", "new");
    tree.file("sub/big", noise(4, 3 * MIB));
    tree.link("link", "new target");
    tree.file("first", "two names");
    tree.hard_link("second", "first");
    let there = case.dst.dir("tree");
    old_versions(&there);

    let flags = ["-a", "-b", "--delete"];
    case.copy(&flags, "tree/", "tree").succeeds();
    let target = |path: &str| fs::read_link(there.path(path)).expect("a link");
    assert_eq!(there.read("file"), b"new");
    assert_eq!(there.read("file~"), b"old file");
    assert_eq!(there.mode_of("file~"), 0o640);
    let meta = there.meta("file~");
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 5));
    assert!(there.read("sub/big~") == noise(3, 2 * MIB) && there.read("sub/big").len() == 3 * MIB);
    assert_eq!(target("link~").to_str(), Some("old target"));
    assert_eq!(there.read("second~"), b"old second name");
    assert_eq!(there.meta("second").nlink(), 2);
    assert_eq!(there.read("extra/deep/file~"), b"old extra");
    assert!(!there.has("extra/deep/file") && there.has("kept~"));
    // Nothing changes, so nothing gets a backup, and no backup is deleted. Content that is the same
    // needs none, whatever the times are.
    let before = Tree::read(&there.0);
    case.copy(&flags, "tree/", "tree").succeeds();
    case.copy(&["-r", "-b", "-I"], "tree/file", "tree/file")
        .succeeds();
    let changed = before.differences(&Tree::read(&there.0), Also::Nothing);
    assert!(changed.is_empty(), "{changed:?}");
    assert_eq!(there.read("file~"), b"old file");

    tree.file("file", "newer file");
    there.file("gone/file", "deleted");
    there.mode("gone", 0o750);
    let flags = ["-a", "--delete", "--backup-dir=old/1", "--suffix=.o"];
    for _ in 0..2 {
        case.copy(&flags, "tree/", "tree").succeeds();
        assert_eq!(there.read("old/1/file.o"), b"new");
        assert_eq!(there.read("old/1/gone/file.o"), b"deleted");
        assert_eq!(there.read("old/1/file~.o"), b"old file");
        assert_eq!(there.mode_of("old/1/gone"), 0o750);
        let names = ["file", "first", "link", "old", "second", "sub"];
        assert_eq!(there.names(), names);
    }
    // A dry run does not take entries to delete for backups of an earlier run.
    let done = case.copy(&["-an", "-b", "--delete"], "tree/", "tree");
    let told = done.succeeds().stdout_text();
    assert!(told.contains("*deleting   old/1/file.o\n"), "{told}");
    assert!(there.has("old/1/file.o"));
}

fn a_backup_that_cannot_be_made_leaves_the_old_version(case: &Case) {
    let tree = case.src.dir("tree");
    let there = case.dst.dir("tree");
    let (long, name) = ("x".repeat(255), "a");
    for path in [name, &long, "link"] {
        tree.file(path, "the new version");
        there.file(path, "old");
    }
    there.dir("a~");
    fs::remove_file(tree.path("link")).expect("remove it");
    tree.link("link", "target");
    there.file("link~/taken", "");
    // Of other sizes: their times may be the same.
    tree.file("b", "the new b");
    tree.file("b~", "new b~, a file of the source");
    there.file("b", "old b");
    there.file("b~", "old b~");
    let done = case.copy(&["-a", "-b"], "tree/", "tree");
    done.exits(8).says("cannot make its backup").says("a~");
    for path in [name, &long, "link"] {
        assert_eq!(there.read(path), b"old", "{path}");
    }
    // No backup replaces a file of the copy, or another backup.
    assert_eq!(there.read("b"), b"the new b");
    assert_eq!(there.read("b~"), tree.read("b~"));
    let backups = there.names().into_iter();
    let backups: Vec<_> = backups.filter(|name| name.starts_with("b~~")).collect();
    let mut old: Vec<_> = backups.iter().map(|name| there.read(name)).collect();
    old.sort();
    assert!(old.contains(&b"old b".to_vec()), "{backups:?}");

    for (flags, why) in [
        (&["--backup-dir=."][..], "is the destination itself"),
        (&["--backup-dir=.."], "contains the directory"),
        (&["--backup-dir=a"], "is not a directory"),
    ] {
        let flags = [&["-a"], flags].concat();
        case.copy(&flags, "tree/", "tree").exits(2).says(why);
    }
    tree.file("old/file", "of the source");
    let done = case.copy(&["-a", "--backup-dir=old"], "tree/", "tree");
    done.exits(11).says("is the backup directory of this copy");
    assert_eq!(there.read("old/a"), b"old");
    for (flags, why) in [
        (["-b", "--inplace"], "--inplace"),
        (["-b", "--suffix=a/b"], "must not contain a slash"),
        (["-b", "--suffix="], "--backup-dir"),
        (["-a", "--suffix=x"], "add --backup"),
    ] {
        case.copy(&flags, "tree/b", "tree").exits(2).says(why);
    }
    let command = format!("--from-command=cat '{}'", tree.path("a").display());
    let piped = case.fastcp().args(["-b", &command]);
    piped.arg(case.dst("tree/b")).run().succeeds();
    assert_eq!(there.read("b"), b"the new version");
}

fn a_planted_link_leads_no_backup_and_no_earlier_copy_elsewhere(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("file", "the new version");
    let there = case.dst.dir("tree");
    there.file("file", "old");
    let outside = case.dst.dir("outside");
    there.link("planted", "../outside");
    there.link("absolute", &outside.0);
    let refused = |flag: &str, path: &str, why: &str| {
        let done = case.copy(&["-a", &format!("{flag}={path}")], "tree/", "tree");
        done.exits(11).says(why);
        assert_eq!(there.read("file"), b"old", "{flag} {path}");
        assert!(outside.names().is_empty(), "{flag} {path}");
    };
    let in_destination = "is a symbolic link in the destination";
    for flag in ["--backup-dir", "--link-dest", "--copy-dest"] {
        refused(flag, "planted", in_destination);
    }
    let spelled = there.path("planted/sub");
    for path in ["planted/sub", "absolute", spelled.to_str().expect("text")] {
        refused("--backup-dir", path, in_destination);
    }
    // The copy itself brings the link, before or after the directory is needed.
    tree.link("brought", "../outside");
    let done = case.copy(&["-a", "--backup-dir=brought/sub"], "tree/", "tree");
    done.fails();
    assert!(outside.names().is_empty());
    fs::remove_file(tree.path("brought")).expect("remove it");

    // Elsewhere the links of this user and of root are followed, but none of others.
    there.file("file", "old");
    case.dst.link("own", "outside");
    if geteuid().is_root() {
        case.dst.link("theirs", "outside");
        lchown(case.dst.path("theirs"), Some(65534), None).expect("give it away");
        for flag in ["--backup-dir", "--link-dest"] {
            refused(flag, "../theirs", "of another user");
        }
    }
    for (path, at) in [
        ("../own/day", "outside/day/file"),
        ("../x/../old", "old/file"),
    ] {
        let flag = format!("--backup-dir={path}");
        case.copy(&["-a", &flag], "tree/", "tree").succeeds();
        assert_eq!(case.dst.read(at), b"old", "{path}");
        there.file("file", "old");
    }
}

fn backups_go_to_other_file_systems_and_without_hard_links(case: &Case) {
    let tree = case.src.dir("tree");
    let (there, at) = (case.dst.dir("tree"), case.dst.dir("other"));
    let Some(_mounted) = Mounted::small(&at.0, 64 << 20) else {
        return skip("root");
    };
    tree.file("sub/file", "new");
    tree.link("link", "new");
    let fill = |there: &Dir| {
        there.file("sub/file", noise(5, MIB));
        there.mode("sub/file", 0o604);
        there.time("sub/file", 1_100_000_000, 7);
        there.file("gone", "gone");
    };
    fill(&there);
    // Names of attributes are bytes.
    let odd = OsStr::from_bytes(b"user.\xff");
    for (name, value) in [(odd, b"odd".to_vec()), (LIST.as_ref(), list(4, 6))] {
        xattr::set(there.path("gone"), name, &value).expect("set an attribute");
    }
    there.sparse("sub/holes", 8 * MIB as u64, &[(4 * MIB as u64, b"data")]);
    there.link("link", "old");
    let path = format!("--backup-dir={}/backups", at.0.display());
    case.copy(&["-a", "--delete", &path], "tree/", "tree")
        .succeeds();
    let backups = at.dir("backups");
    assert_eq!(backups.read("sub/file"), noise(5, MIB));
    let meta = backups.meta("sub/file");
    assert_eq!(backups.mode_of("sub/file"), 0o604);
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_100_000_000, 7));
    assert!(backups.meta("sub/holes").blocks() < 4096);
    assert_eq!(backups.read("gone"), b"gone");
    for (name, value) in [(odd, b"odd".to_vec()), (LIST.as_ref(), list(4, 6))] {
        let kept = xattr::get(backups.path("gone"), name).expect("read an attribute");
        assert_eq!(kept, Some(value), "{name:?}");
    }
    let target = fs::read_link(backups.path("link")).expect("a link");
    assert_eq!(target.to_str(), Some("old"));
    assert_eq!(there.names(), ["link", "sub"]);

    let at = case.dst.dir("caseless");
    let Some(_mounted) = Mounted::caseless(case, &at.0) else {
        return skip("root, and a file system without hard links");
    };
    fs::remove_file(tree.path("link")).expect("remove it");
    at.file("sub/file", "old file");
    for (content, backup) in [("newer", "old file"), ("newest", "newer")] {
        tree.file("sub/file", content);
        case.copy(&["-r", "-b"], "tree/", "caseless").succeeds();
        assert_eq!(at.read("sub/file"), content.as_bytes());
        assert_eq!(at.read("sub/file~"), backup.as_bytes());
    }
    assert_eq!(at.dir("sub").names(), ["file", "file~"]);
    // The backup directory that was to be made is one of the copy, in another spelling.
    tree.file("A/file", "of the source");
    tree.file("sub/file", "the last");
    let done = case.copy(&["-r", "--backup-dir=a"], "tree/", "caseless");
    done.exits(11);
    let copied = at.read("a/file") == b"of the source" && at.read("sub/file") == b"newest";
    assert!(copied || at.read("sub/file") == b"the last" && at.read("a/sub/file") == b"newest");
    // FUSE does not show whether a copy is the source itself.
    let moved = case.fastcp().arg("--remove-source-files");
    let done = moved.arg(at.path("sub/file")).arg(case.dst("moved")).run();
    done.exits(11).says("by hand");
    assert!(at.has("sub/file"));
}

fn a_backup_outlives_a_lost_connection(case: &Case) {
    // On a busy machine the sender may begin with the big file.
    let tries = ["tree1", "tree2", "tree3", "tree4", "tree5"];
    let is_shown = tries
        .iter()
        .any(|name| loses_it_after_small_files(case, name));
    assert!(is_shown, "the big file was first in each of {tries:?}");
}

/// False if the big file was copied before the small ones, so that nothing was left to lose.
fn loses_it_after_small_files(case: &Case, name: &str) -> bool {
    let from = case.src.dir(name);
    from.file("a", "new");
    from.file("b", noise(1, 6 * MIB));
    from.file("c", "stays new");
    let there = case.dst.dir(name);
    there.file("a", "the old version");
    there.file("c", "the old c");
    let slow = held_back(case, "300K");
    let flags = ["-a", "-b", "--delete-excluded", &slow];
    let running = case.copying(&flags, format!("{name}/"), name).start();
    let is_under_way = until("a and c are placed and b is under way", || {
        let are_placed = there.read("a") == b"new" && there.read("c") == b"stays new";
        match are_placed && there.partial_bytes() > 0 {
            true => Some(true),
            false => there.has("b").then_some(false),
        }
    });
    if !is_under_way {
        let_go(case);
        running.wait().succeeds();
        return false;
    }
    // The next session copies it again.
    from.file("a", "newer version");
    case.servers().iter().for_each(Process::kill);
    let_go(case);
    let done = running.wait();
    done.succeeds();
    if !done.stderr.contains(" lost: ") {
        // The small files came last, and all was in place by then.
        return false;
    }
    assert_eq!(there.read("a"), b"newer version");
    assert_eq!(there.read("a~"), b"the old version");
    assert_eq!(there.read("c"), b"stays new");
    assert_eq!(there.read("c~"), b"the old c");
    assert_eq!(there.names(), ["a", "a~", "b", "c", "c~"]);
    true
}

fn copied_files_leave_the_source(case: &Case) {
    let tree = case.src.dir("tree");
    for path in ["small", "sub/small", "sub/ same ", "sub/odd\nname"] {
        tree.file(path, format!("content of {path}"));
    }
    tree.file("sub/big", noise(7, 3 * MIB));
    tree.hard_link("sub/second", "sub/big");
    tree.hard_link("third", "sub/big");
    tree.link("link", "sub/big");
    rustix::fs::mkfifoat(CWD, tree.path("fifo"), Mode::RUSR).expect("make a FIFO");
    tree.file("excluded.o", "stays");
    let there = case.dst.dir("tree");
    let flags = ["-a", "--exclude=*.o"];
    // An earlier run was killed before it removed its copied files.
    case.copy(&flags, "tree/sub", "tree").succeeds();
    let whole = Tree::read(&tree.0);
    let removing = [&flags[..], &["--remove-source-files", "--json", "-v"]].concat();
    let done = case.copy(&[&removing[..], &["-n"]].concat(), "tree/", "tree");
    done.succeeds();
    assert!(
        whole
            .differences(&Tree::read(&tree.0), Also::HardLinks)
            .is_empty()
    );
    let done = case.copy(&removing, "tree/", "tree");
    let told = done.succeeds().stdout_text();
    assert!(told.contains("\"removed_sources\":9"), "{told}");
    done.says("tree/sub/odd\\nname\n").says("fastcp: removed ");
    assert_eq!(tree.names(), ["excluded.o", "sub"]);
    assert!(tree.dir("sub").names().is_empty());
    fs::remove_file(tree.path("excluded.o")).expect("remove it");
    assert_eq!(there.read("sub/big"), noise(7, 3 * MIB));
    let first = there.meta("sub/big").ino();
    assert!(
        ["sub/second", "third"]
            .iter()
            .all(|name| there.meta(name).ino() == first)
    );
    let left = whole.differences(&Tree::read(&there.0), Also::HardLinks);
    let is_of_rule = |line: &String| line.contains("excluded.o");
    assert!(left.iter().all(is_of_rule), "{left:?}");
}

fn only_what_is_safe_elsewhere_leaves_the_source(case: &Case) {
    let tree = case.src.dir("tree");
    let there = case.dst.dir("tree");
    tree.file("new", "new");
    tree.file("same", "same");
    tree.file("other", "the source's");
    there.file("other", "another");
    there.file("same", "same");
    tree.time("same", 1_200_000_000, 9);
    there.time("same", 1_200_000_000, 9);
    let copy = |flags: &[&str]| {
        let flags = [&["-a", "--remove-source-files"], flags].concat();
        case.copy(&flags, "tree/", "tree")
    };
    copy(&["--ignore-existing"]).succeeds();
    assert_eq!(tree.names(), ["other", "same"]);
    copy(&["--no-clobber"]).exits(11);
    assert_eq!(tree.names(), ["other", "same"]);
    there.time("other", 4_000_000_000, 0);
    copy(&["--update"]).succeeds();
    assert!(tree.has("other") && !tree.has("same"));
    // A copy that is the source itself: by another name, and by another path.
    there.hard_link("other two", "other");
    tree.hard_link("other two", there.path("other two"));
    fs::remove_file(tree.path("other")).expect("remove it");
    let done = copy(&[]);
    done.exits(7).says("it and the copy are the same file");
    assert!(tree.has("other two") && there.has("other two"));
    // One that fails stays.
    tree.file("new/file", "where a file is");
    copy(&[]).fails().says("is not a directory");
    assert!(tree.has("new/file"));

    for dir in [&tree, &there] {
        rustix::fs::mkfifoat(CWD, dir.path("pipe"), Mode::RUSR).expect("make a FIFO");
    }
    // One that `--no-clobber` leaves alone is not copied.
    copy(&["--no-clobber"]).fails();
    assert!(tree.has("pipe"));
    let done = case.copy(&["--remove-source-files"], "tree/pipe", "pipe");
    done.exits(11).says("leave out --remove-source-files");
    // The first of these files fails before other messages announce its directory.
    let run = case.fastcp().args(["-r", "--remove-source-files"]);
    let run = run.arg(case.from("/proc/sys/net/ipv4/conf/lo"));
    let done = run.arg(case.dst("kernel")).run();
    done.exits(11).says("a file that the kernel generates");
    let also = format!("--also={}", case.dst.path("two").display());
    for (flag, why) in [
        ("--delete", "cannot be combined"),
        ("--size-only", "--size-only"),
        ("--follow", "--follow"),
        (&also, "--also"),
    ] {
        copy(&[flag]).exits(2).says(why);
    }
    assert!(tree.has("pipe") && tree.has("other two"));
}

fn strict_removes_only_what_was_kept_whole(case: &Case) {
    if !geteuid().is_root() {
        return skip("root, for files of other users");
    }
    let tree = case.src.dir("tree");
    for name in ["own", "small", "linked"] {
        tree.file(name, name);
    }
    tree.file("big", noise(4, MIB));
    tree.hard_link("further", "linked");
    tree.link("link", "own");
    for name in ["small", "big", "linked", "link"] {
        let path = tree.path(name);
        lchown(path, Some(12345), Some(12345)).expect("give it away");
        // Else it cannot be read.
        if name != "link" {
            tree.mode(name, 0o644);
        }
    }
    // The directory of another user's files is this user's, so it may remove them.
    let run = |flags: &[&str]| {
        let flags = [&["-a", "--remove-source-files"], flags].concat();
        case.copying(&flags, "tree/", "tree")
            .under(without_powers())
            .run()
    };
    run(&["--strict"]).exits(1).says("not kept");
    assert_eq!(tree.names(), ["big", "further", "link", "linked", "small"]);
    // The next run finds them unchanged, and the same lacking.
    run(&["--strict", "-q"]).exits(1).says("leave out -q");
    assert_eq!(tree.names().len(), 5);
    run(&[]).succeeds();
    assert!(tree.names().is_empty());
}

/// The second would be written over the first, whose source is then removed.
fn files_of_one_inode_are_not_written_in_place(case: &Case) {
    let (tree, there) = (case.src.dir("tree"), case.dst.dir("tree"));
    for (one, other) in [(3, 5), (MIB, MIB + 1)] {
        tree.file("a", noise(1, one));
        tree.file("b", noise(2, other));
        there.file("a", "old");
        fs::remove_file(there.path("b")).ok();
        there.hard_link("b", "a");
        let flags = ["-a", "--inplace", "--remove-source-files"];
        case.copy(&[&flags[..], &["-n"]].concat(), "tree/", "tree")
            .exits(11)
            .says("has the same inode as");
        case.copy(&flags, "tree/", "tree")
            .exits(11)
            .says("has the same inode as");
        assert_eq!(tree.names().len(), 1);
    }
    // One of them is to stay.
    tree.file("a", "same");
    tree.file("b", "other content");
    there.file("a", "same");
    fs::remove_file(there.path("b")).expect("remove it");
    there.hard_link("b", "a");
    for dir in [&tree, &there] {
        dir.time("a", 1_200_000_000, 0);
    }
    case.copy(&["-a", "--inplace"], "tree/", "tree")
        .exits(11)
        .says("has the same inode as");
    // Nor is a file written into itself.
    fs::remove_file(there.path("a")).expect("remove it");
    fs::remove_file(there.path("b")).expect("remove it");
    fs::hard_link(tree.path("a"), there.path("a")).expect("make a link");
    case.copy(&["-r", "--inplace"], "tree/", "tree")
        .exits(11)
        .says("is the source itself");
}

fn a_newer_file_stays_in_the_place_of_a_hard_link(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("a", "old");
    tree.hard_link("b", "a");
    tree.hard_link("c", "a");
    tree.time("a", 1_200_000_000, 0);
    for newer in ["a", "b", "c"] {
        let there = case.dst.dir(newer);
        there.file(newer, "newer");
        let flags = ["-a", "-u", "--remove-source-files"];
        case.copy(&flags[..2], "tree/", newer).succeeds();
        assert_eq!(there.read(newer), b"newer");
        assert_eq!(there.names().len(), 3);
        if newer == "c" {
            case.copy(&flags, "tree/", newer).succeeds();
            assert_eq!(tree.names(), ["c"]);
        }
    }
}

fn a_source_whose_copy_another_one_would_replace_stays(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("file", "another");
    tree.file("sub/file", "another in sub");
    tree.file("alone", "alone");
    case.src.file("file", "one");
    let sub = case.src.dir("sub");
    sub.file("file", "one in sub");
    let flags = ["-a", "--remove-source-files"];
    let done = case.copy_all(&flags, &["file", "sub", "tree/"], "");
    done.exits(11)
        .says("would get the same name as another source");
    assert_eq!(tree.read("file"), b"another");
    assert_eq!(tree.read("sub/file"), b"another in sub");
    assert!(!tree.has("alone") && !case.src.has("file") && !sub.has("file"));
    assert_eq!(case.dst.read("file"), b"one");
    assert_eq!(case.dst.read("sub/file"), b"one in sub");
    // Directories become one if all sources stay.
    fs::remove_file(tree.path("file")).expect("remove it");
    sub.file("other", "other");
    case.copy_all(&["-a"], &["sub", "tree/"], "").succeeds();
    assert_eq!(case.dst.dir("sub").names(), ["file", "other"]);
}

fn a_backup_directory_keeps_the_version_from_before_the_copy(case: &Case) {
    case.dst.file("there/sub/file", "the old version");
    // Both go into one directory, where the second fails.
    case.src.file("sub/file", "one");
    case.src.file("tree/sub/file", "another");
    let flags = ["-a", "--backup-dir=../old"];
    case.copy_all(&flags, &["sub", "tree/"], "there").exits(11);
    assert_eq!(case.dst.read("old/sub/file"), b"the old version");
}
