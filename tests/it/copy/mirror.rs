//! `--delete`: what the source does not have goes, everything else stays.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

use rustix::fs::{CWD, Mode};

use crate::support::disk::Mounted;
use crate::support::limits::without_powers;
use crate::support::procs::{Process, until};
use crate::support::slow::{held_back, let_go};
use crate::support::tree::one_of_everything;
use crate::support::*;

ways! { pull, between =>
    what_the_source_lacks_is_deleted_and_nothing_else,
    entries_replace_others_of_another_kind,
}

ways! { local_pull =>
    the_few_extra_names_in_large_directories_are_found,
}

ways! { local_push, here =>
    filter_rules_protect_entries,
    rules_for_one_side_and_followed_links,
    more_than_max_delete_deletes_nothing,
    a_source_that_cannot_be_read_deletes_nothing,
    operands_in_one_directory_keep_each_others_entries,
}

ways! { local_push, here =>
    the_source_and_mounted_file_systems_stay,
    names_that_the_destination_confuses_stay,
    other_copies_files_stay,
    what_is_renamed_during_the_copy_is_not_lost,
    a_full_disk_deletes_nothing,
}

ways! { local_push, local_pull => what_others_make_stays_after_a_lost_connection }

ways! { local_push =>
    a_directory_with_entries_stays_in_doubt,
    an_entry_that_fails_deletes_nothing,
    an_empty_directory_that_the_user_named_deletes_nothing,
    read_only_directories_are_emptied_by_their_user,
}

fn what_others_make_stays_after_a_lost_connection(case: &Case) {
    case.src.file("tree/b", noise(1, 6 * MIB));
    let there = case.dst.dir("tree");
    there.file("gone", "of an earlier copy");
    let slow = held_back(case, "300K");
    let flags = ["-a", "--delete", &slow];
    let running = case.copying(&flags, "tree/", "tree").start();
    until("b is under way", || {
        (there.partial_bytes() > 0).then_some(())
    });
    there.file("new", "of another process");
    case.remember();
    case.servers().iter().for_each(Process::kill);
    let_go(case);
    let done = running.wait();
    done.succeeds()
        .says(" lost: ")
        .says(": directories changed");
    assert_eq!(there.names(), ["b", "new"]);
    assert_same(case.src.path("tree/b"), there.path("b"), Also::Nothing);
}

fn what_the_source_lacks_is_deleted_and_nothing_else(case: &Case) {
    let tree = case.src.dir("tree");
    one_of_everything(&tree);
    tree.file("empty now/file", "goes");
    for (path, seconds) in [("sub/deeper", 1_400_000_000), ("sub", 1_500_000_000)] {
        tree.time(path, seconds, 1);
    }
    case.copy(&["-a"], "tree/", "tree").succeeds();
    fs::remove_file(tree.path("empty now/file")).expect("remove it");
    tree.time("empty now", 1_300_000_000, 5);
    let there = case.dst.dir("tree");
    there.file("sub/deeper/only there", "goes");
    there.file("sub/tree only there/deep/file", noise(1, MIB));
    there.file("sub/tree only there/hard", "goes");
    there.hard_link("hard", "sub/tree only there/hard");
    there.link("sub/tree only there/link", &case.src.0);
    rustix::fs::mkfifoat(CWD, there.path("fifo"), Mode::RUSR).expect("make a FIFO");
    there.dir("sub/tree only there/empty");
    there.file(".fastcp-0123456789abcdef.txt", "no file of fastcp's");
    there.mode("sub/tree only there/deep", 0o500);
    tree.file("new/file", "comes");
    tree.time(".", 1_600_000_000, 7);

    let done = case.copy(&["-a", "--delete", "--json", "-v"], "tree/", "tree");
    let told = done.succeeds().stdout_text();
    assert!(told.contains("\"deleted\":11"), "{told}");
    for path in ["sub/tree only there/deep/", "empty now/file", "hard"] {
        done.says(&format!("fastcp: deleted {path}\n"));
        assert!(told.contains(&format!("\"{path}\"")), "{told}");
    }
    assert_same(&tree.0, &there.0, Also::HardLinks);
    for path in [".", "sub", "sub/deeper", "empty now"] {
        let time = |dir: &Dir| (dir.meta(path).mtime(), dir.meta(path).mtime_nsec());
        assert_eq!(time(&tree), time(&there), "{path}");
    }
    let done = case.copy(&["-a", "--delete", "--json"], "tree/", "tree");
    let told = done.succeeds().stdout_text();
    assert!(told.contains("\"deleted\":0,"), "{told}");
    // Without it nothing is deleted, and the directory beside the copied one is not compared.
    there.file("stays", "stays");
    case.dst.file("beside", "stays");
    case.copy(&["-a"], "tree/", "tree").succeeds();
    case.copy(&["-a", "--delete"], "tree", "").succeeds();
    assert!(!there.has("stays") && case.dst.has("beside"));
}

fn filter_rules_protect_entries(case: &Case) {
    let tree = case.src.dir("tree");
    for path in ["a.o", "sub/a.o", "sub/a.c", "keep/rules"] {
        tree.file(path, "source");
    }
    tree.file("keep/.rules", "- local*\n");
    let there = case.dst.dir("tree");
    let fill = || {
        for path in [
            "b.o",
            "b.c",
            "only there/c.o",
            "only there/c.c",
            "only there/deep/d.c",
            "keep/local.txt",
            "keep/other.txt",
        ] {
            there.file(path, "there");
        }
    };
    fill();
    let flags = ["-a", "--delete", "--exclude=*.o", "--filter=: .rules"];
    case.copy(&flags, "tree", "").succeeds();
    let left = [
        "b.o",
        "only there/c.o",
        "keep/local.txt",
        "keep/.rules",
        "keep/rules",
        "sub/a.c",
    ];
    assert_eq!(there.names(), ["b.o", "keep", "only there", "sub"]);
    assert!(left.iter().all(|path| there.has(path)));
    assert_eq!(there.dir("only there").names(), ["c.o"]);
    assert!(!there.has("keep/other.txt") && !there.has("sub/a.o"));

    fill();
    there.file("a.o", "excluded");
    let flags = ["-a", "--delete-excluded", "--exclude=*.o"];
    case.copy(&flags, "tree", "").succeeds();
    assert_eq!(there.names(), ["keep", "sub"]);
    assert_eq!(there.dir("keep").names(), [".rules", "rules"]);
    // A file that is too large to be copied still counts as an entry of the source.
    there.file("sub/a.c", "larger than 3 bytes");
    case.copy(&["-a", "--delete", "--max-size=3"], "tree", "")
        .succeeds();
    assert!(there.has("sub/a.c"));
}

fn rules_for_one_side_and_followed_links(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("a.log", "");
    tree.file("a.tmp", "");
    let there = case.dst.dir("tree");
    let fill = || {
        for path in ["b.log", "b.tmp", "x/b.log", "x/b.tmp", "x/empty/b.tmp"] {
            there.file(path, "");
        }
    };
    fill();
    let rules = ["--filter=P *.log", "--filter=H *.tmp"];
    case.copy(&[&["-a", "--delete"][..], &rules].concat(), "tree", "")
        .succeeds();
    assert_eq!(there.names(), ["a.log", "b.log", "x"]);
    assert_eq!(there.dir("x").names(), ["b.log"]);
    fill();
    let excluded = ["-a", "--delete-excluded", "--exclude=*.log", rules[0]];
    case.copy(&excluded, "tree", "").succeeds();
    assert_eq!(there.names(), ["a.log", "a.tmp", "b.log", "x"]);

    // The limit counts what rules leave of a directory too.
    fill();
    let limited = |most: &str| {
        let most = format!("--max-delete={most}");
        case.copy(&["-a", "--delete", rules[0], &most], "tree", "")
    };
    limited("3").exits(11).says("would delete 4 of 8 entries");
    assert!(there.has("x/empty/b.tmp"));
    limited("49%").exits(11);
    limited("50%").succeeds();
    assert_eq!(there.dir("x").names(), ["b.log"]);

    // A directory that is left out goes, but for what another rule protects.
    there.file("cache/a.tmp", "");
    there.file("cache/deep/b.tmp", "");
    tree.file("cache/a.tmp", "");
    let hidden = ["-a", "--delete", "--filter=H cache/", rules[0]];
    case.copy(&hidden, "tree", "")
        .succeeds()
        .never_says("next run");
    assert!(!there.has("cache"));
    there.file("cache/b.log", "");
    case.copy(&hidden, "tree", "").succeeds();
    assert_eq!(there.dir("cache").names(), ["b.log"]);
    fs::remove_dir_all(tree.path("cache")).expect("remove it");

    // A link that is followed is a directory for the rules.
    tree.file("real/a.c", "");
    tree.link("linked", "real");
    there.file("only there", "");
    let followed = [
        "-r",
        "-L",
        "--delete-excluded",
        "--include=*/",
        "--include=*.c",
        "--exclude=*",
    ];
    case.copy(&followed, "tree", "").succeeds();
    assert_eq!(there.names(), ["linked", "real"]);
    assert!(there.has("linked/a.c"));

    // So is a link on the way to a listed name, also for what only the destination has.
    case.src.file("behind/x/.rules", "- *.log\n");
    case.src.link("listed/way", "../behind");
    let x = case.dst.dir("listed/way/x");
    x.file("gone/b.log", "");
    x.file("gone/b.tmp", "");
    let list = case.scratch.file("list", "way/x/\n").display().to_string();
    let listed = ["--filter=dir-merge .rules", "--files-from", &list];
    let listed = [&["-r", "-a", "--delete"], &listed[..]].concat();
    case.copy(&listed, "listed", "listed").succeeds();
    assert_eq!(x.dir("gone").names(), ["b.log"]);
}

fn the_few_extra_names_in_large_directories_are_found(case: &Case) {
    let tree = case.src.dir("tree");
    for number in 0..5000 {
        tree.file(format!("many/{number}"), "");
    }
    for number in 0..300 {
        tree.file(format!("d{number}/file"), "");
    }
    case.copy(&["-r"], "tree", "").succeeds();
    let there = case.dst.dir("tree");
    there.file("many/only there", "");
    there.file("d7/only there", "");
    for number in 0..6000 {
        there.file(format!("d8/only there {number}"), "");
        there.file(format!("gone/{number}"), "");
    }
    for flag in ["-a", "-r"] {
        let done = case.copy(&[flag, "--delete", "--json"], "tree", "");
        let told = done.succeeds().stdout_text();
        let expected = if flag == "-a" { 12_003 } else { 0 };
        assert!(told.contains(&format!("\"deleted\":{expected},")), "{told}");
        assert_same(&tree.0, &there.0, Also::Nothing);
    }
}

fn more_than_max_delete_deletes_nothing(case: &Case) {
    let tree = case.src.dir("tree");
    (0..10).for_each(|number| drop(tree.file(number.to_string(), "")));
    case.copy(&["-a"], "tree", "").succeeds();
    let there = case.dst.dir("tree");
    // Four entries of fourteen.
    there.file("x", "");
    there.file("y/1", "");
    there.file("y/2", "");
    for most in ["0", "3", "0%", "28%"] {
        let done = case.copy(&["-a", "--delete", "--max-delete", most], "tree", "");
        done.exits(11).says(&format!(
            "--max-delete allows {most}, and the copy would delete 4 of 14 entries"
        ));
        assert!(there.has("x") && there.has("y/2"), "{most}");
    }
    case.copy(&["-a", "--delete", "--max-delete=29%"], "tree", "")
        .succeeds();
    assert_same(&tree.0, &there.0, Also::Nothing);
    there.file("x", "");
    case.copy(&["-a", "--delete", "--max-delete=1"], "tree", "")
        .succeeds();
    assert_same(&tree.0, &there.0, Also::Nothing);
}

fn a_source_that_cannot_be_read_deletes_nothing(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("sub/file", "");
    let there = case.dst.dir("tree");
    there.file("only there", "stays");
    let flags = ["-a", "--delete"];
    let with_missing = |flags: &[&str]| case.copy_all(flags, &["tree/", "missing/"], "tree");
    with_missing(&flags).exits(9).says("nothing was deleted");
    assert!(there.has("only there"));
    with_missing(&["-a", "--delete", "--force"]).exits(9);
    assert!(!there.has("only there") && there.has("sub/file"));

    // However many questions wait for an answer.
    for number in 0..300 {
        tree.file(format!("{number}/file"), "");
        there.file(format!("{number}/only there"), "stays");
    }
    with_missing(&flags).exits(9).says("nothing was deleted");
    for number in 0..300 {
        assert!(there.has(format!("{number}/only there")));
        fs::remove_dir_all(tree.path(number.to_string())).expect("remove it");
        fs::remove_dir_all(there.path(number.to_string())).expect("remove it");
    }

    // A rule file that cannot be read: nobody knows which entries it protects.
    there.file("only there", "stays");
    tree.file("sub/.rules", "no rule\n");
    let with_rules = ["-a", "--delete", "--filter=: .rules"];
    case.copy(&with_rules, "tree/", "tree")
        .exits(9)
        .says("nothing was deleted");
    assert!(there.has("only there"));
    fs::remove_dir_all(tree.path("sub")).expect("empty the source");
    case.copy(&flags, "tree/", "tree")
        .exits(11)
        .says("the source of this directory is empty, or all of it is left out");
    assert!(there.has("only there") && there.has("sub/file"));
    case.copy(&["-a", "--delete", "--force"], "tree/", "tree")
        .succeeds();
    assert!(there.names().is_empty());
    case.copy(&flags, "tree/", "tree").succeeds();
}

fn operands_in_one_directory_keep_each_others_entries(case: &Case) {
    for path in [
        "a/of a",
        "a/both/of a",
        "other/both/of other",
        "d/of d",
        "file",
    ] {
        case.src.file(path, "");
    }
    let there = case.dst.dir("there");
    for path in [
        "only there",
        "both/only there",
        "both/sub/only there",
        "d/only there",
    ] {
        there.file(path, "");
    }
    let sources = ["a/", "other/both", "d", "file"];
    case.copy_all(&["-a", "--delete"], &sources, "there")
        .succeeds();
    assert_eq!(there.names(), ["both", "d", "file", "of a"]);
    assert_eq!(there.dir("both").names(), ["of a", "of other"]);
    assert_eq!(there.dir("d").names(), ["of d"]);

    // Nobody knows the name of an operand that is left out, so nothing beside it is deleted.
    case.src.file("file", "long");
    for (most, stays) in [("--max-size=3", true), ("--max-size=4", false)] {
        there.file("only there", "");
        case.copy_all(&["-a", "--delete", most], &sources, "there")
            .succeeds();
        assert!(
            there.has("file") && there.has("only there") == stays,
            "{most}"
        );
    }

    // A directory of two operands counts once.
    let counted = case.dst.dir("counted");
    for number in 0..4 {
        case.src.file(format!("one/both/{number}"), "");
        case.src.file(format!("two/both/other {number}"), "");
    }
    let copy = |most: &str| {
        counted.file("both/only there 1", "");
        counted.file("both/only there 2", "");
        let most = format!("--max-delete={most}");
        let sources = ["one/", "two/both"];
        case.copy_all(&["-a", "--delete", &most], &sources, "counted")
    };
    copy("18%").exits(11).says("would delete 2 of 11 entries");
    copy("19%").succeeds();
    assert_eq!(counted.dir("both").names().len(), 8);
}

fn the_source_and_mounted_file_systems_stay(case: &Case) {
    let there = case.dst.dir("there");
    there.file("only there", "");
    there.file("deep/source/file", "stays");
    there.file("deep/beside", "stays");
    let source = case.from(there.path("deep/source/"));
    let run = || {
        case.fastcp()
            .args(["-a", "--delete"])
            .arg(&source)
            .arg(case.dst("there"))
            .run()
    };
    run()
        .exits(11)
        .says("is never deleted: it is or contains a source");
    assert_eq!(there.names(), ["deep", "file"]);
    assert!(there.has("deep/source/file") && there.has("deep/beside"));

    // Neither does a file that is an operand go, nor the place where a link leads one.
    let tree = case.src.dir("tree");
    tree.file("sub/file", "");
    there.link("sub", "deep/place");
    there.file("deep/place/only there", "");
    there.file("sub file/operand", "stays");
    there.dir("operand");
    let operand = case.from(there.path("sub file/operand"));
    let done = case
        .fastcp()
        .args(["-a", "--delete"])
        .args([&case.src("tree/"), &case.src("tree/sub"), &operand])
        .arg(case.dst("there"))
        .run();
    done.fails();
    assert!(there.has("deep/place") && there.has("sub file/operand"));

    fs::remove_dir_all(&there.0).expect("begin again");
    there.file("deep/beside", "");
    fs::remove_dir_all(tree.path("sub")).expect("begin again");
    tree.file("file", "");
    there.file("deep/x/inner", "");
    let Some(_mounted) = Mounted::small(&there.path("deep/x"), 1 << 20) else {
        return skip("root, for a mounted file system");
    };
    there.file("deep/x/stays", "");
    let done = case.copy(&["-a", "--delete"], "tree/", "there");
    done.exits(11).says("is never deleted: it is a mount point");
    assert!(there.has("deep/x/stays") && !there.has("deep/beside"));
}

fn names_that_the_destination_confuses_stay(case: &Case) {
    let at = case.dst.dir("caseless");
    let Some(_mounted) = Mounted::caseless(case, &at.0) else {
        return skip("root, and a file system without case");
    };
    let tree = case.src.dir("tree");
    tree.file("readme", "lower case");
    tree.file("sub/file", "");
    at.file("README", "upper case");
    at.file("SUB/FILE", "");
    at.file("SUB/other", "");
    case.copy(&["-r", "--delete"], "tree/", "caseless")
        .succeeds();
    assert_eq!(at.read("readme"), b"lower case");
    assert!(at.has("sub/file") && !at.has("sub/other"));
}

/// Partial files and journals beside entries belong to copies that may be resumed. In a directory
/// that goes they go too.
fn other_copies_files_stay(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("file", "");
    let there = case.dst.dir("there");
    let own = ".fastcp-0123456789abcdef.part";
    there.file(own, "stays");
    there.file(format!("only there/{own}"), "goes");
    case.copy(&["-a", "--delete"], "tree/", "there").succeeds();
    assert_eq!(there.names(), [own, "file"]);
    fs::remove_file(there.path(own)).expect("remove it");
}

/// The walk has seen the old name, and nobody has copied the new one.
fn what_is_renamed_during_the_copy_is_not_lost(case: &Case) {
    let tree = case.src.dir("tree");
    let there = case.dst.dir("there");
    for number in 0..3 {
        tree.file(format!("d/{number}"), "");
        tree.file(format!("kept/{number}"), "");
    }
    tree.file("big", noise(1, 6 * MIB));
    case.copy(&["-a", "--exclude=big"], "tree/", "there")
        .succeeds();
    for name in ["d/only there", "kept/only there", "only there"] {
        there.file(name, "");
    }
    let slow = held_back(case, "300K");
    let copying = case
        .copying(&["-a", "--delete", &slow], "tree/", "there")
        .start();
    until("it copies", || (there.partial_bytes() > 0).then_some(()));
    fs::rename(tree.path("d/1"), tree.path("d/renamed")).expect("rename");
    fs::rename(tree.path("d/2"), tree.path("moved")).expect("rename");
    let_go(case);
    let done = copying.wait();
    done.succeeds()
        .says(": directories changed during the copy");
    for name in ["d/1", "d/2", "d/only there", "only there"] {
        assert!(there.has(name), "{name}");
    }
    assert!(!there.has("kept/only there"));
    case.copy(&["-a", "--delete"], "tree/", "there").succeeds();
    assert_same(&tree.0, &there.0, Also::Nothing);
}

fn a_full_disk_deletes_nothing(case: &Case) {
    let at = case.dst.dir("small");
    let Some(_mounted) = Mounted::small(&at.0, 4 << 20) else {
        return skip("root, for a small disk");
    };
    let tree = case.src.dir("tree");
    tree.file("file", "");
    at.file("only there", "");
    case.copy(&["-a"], "tree/", "small").succeeds();
    // With -a the space is not checked beforehand, because files may be unchanged.
    let large = tree.file("large", noise(1, 6 * MIB));
    case.copy(&["-a", "--delete"], "tree/", "small")
        .exits(8)
        .says("nothing was deleted");
    assert!(at.has("only there"));
    fs::remove_file(large).expect("remove it");
    case.copy(&["-a", "--delete"], "tree/", "small").succeeds();
    assert!(!at.has("only there"));
    case.sweep();
}

/// Each kind at the source, and another one at the destination.
fn fill_with_other_kinds(tree: &Dir, there: &Dir) {
    for name in [
        "small",
        "over a link",
        "over a fifo",
        "linked",
        "dir/x",
        "dir 2/x",
    ] {
        tree.file(name, name);
    }
    tree.hard_link("linked too", "linked");
    tree.file("big", noise(2, MIB));
    tree.link("link", "small");
    let fifo = |dir: &Dir, name| {
        rustix::fs::mkfifoat(CWD, dir.path(name), Mode::RUSR).expect("make a FIFO");
    };
    fifo(tree, "fifo");
    for name in ["small", "big", "link", "fifo", "linked", "linked too"] {
        there.file(format!("{name}/deep/file"), "goes");
    }
    there.link("over a link", "linked");
    fifo(there, "over a fifo");
    // Its target stays.
    there.link("dir", "/");
    there.file("dir 2", "goes");
    there.file("only there", "goes");
}

fn entries_replace_others_of_another_kind(case: &Case) {
    let (tree, there) = (case.src.dir("tree"), case.dst.dir("tree"));
    fill_with_other_kinds(&tree, &there);
    let before = Tree::read(&there.0);
    let flags = ["-a", "--delete", "--itemize-changes"];
    let copy = |flags: &[&str]| case.copy(flags, "tree/", "tree");
    let lines = |done: done::Done| {
        let text = done.succeeds().stdout_text();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let planned = lines(copy(&[&flags[..], &["-n"]].concat()));
    assert!(
        before
            .differences(&Tree::read(&there.0), Also::ModesAndTimes)
            .is_empty()
    );
    assert!(
        planned.contains(&"*deleting   link/deep/file".to_owned()),
        "{planned:?}"
    );
    // More than the entries that make room.
    copy(&["-a", "--delete", "--max-delete=1"]).exits(11);
    assert!(there.has("big/deep/file") && there.has("only there"));
    fs::remove_dir_all(&there.0).expect("begin again");
    let there = case.dst.dir("tree");
    fs::remove_dir_all(&tree.0).expect("begin again");
    let tree = case.src.dir("tree");
    fill_with_other_kinds(&tree, &there);
    assert_eq!(lines(copy(&flags)), planned);
    assert_same(&tree.0, &there.0, Also::HardLinks);
    // Old versions are kept.
    fs::remove_dir_all(&there.0).expect("begin again");
    there.file("small/deep/file", "kept");
    there.file("dir", "kept too");
    copy(&["-a", "--delete", "--backup-dir=../old"]).succeeds();
    assert_same(&tree.0, &there.0, Also::HardLinks);
    assert_eq!(case.dst.read("old/small/deep/file"), b"kept");
    assert_eq!(case.dst.read("old/dir"), b"kept too");
    // The target of a link is not written in place.
    fs::remove_file(there.path("small")).expect("remove it");
    there.link("small", "big");
    copy(&["-a", "--delete", "--inplace"]).succeeds();
    assert_same(&tree.0, &there.0, Also::HardLinks);
}

fn a_directory_with_entries_stays_in_doubt(case: &Case) {
    let (tree, there) = (case.src.dir("tree"), case.dst.dir("tree"));
    tree.file("name", "a file");
    there.file("name/protected", "stays");
    there.file("only there", "stays");
    let reasons: [(&[&str], &str); 5] = [
        (&["--exclude=*.o"], "filter rules may protect"),
        (&["-b"], "backups of its entries would be inside it"),
        (&["--max-delete=0"], "would exceed --max-delete 0"),
        (&["--max-delete=50%"], "with --max-delete in percent"),
        (
            &["--no-clobber"],
            "is a directory, and a file does not replace it",
        ),
    ];
    for (flags, why) in reasons {
        let flags = [&["-a", "--delete"], flags].concat();
        let done = case.copy(&flags, "tree/", "tree");
        done.exits(11).says(why).says("nothing was deleted");
        assert!(
            there.has("name/protected") && there.has("only there"),
            "{why}"
        );
    }
    // An operand is no entry of a directory that is compared.
    case.copy(&["-a", "--delete"], "tree/name", "tree")
        .exits(11);
    assert!(there.has("name/protected"));
    // What exists stays, on purpose.
    case.copy(&["-a", "--delete", "--ignore-existing"], "tree/", "tree")
        .succeeds();
    assert!(there.has("name/protected") && !there.has("only there"));
}

/// The destination may have the only copy of it under another name.
fn an_entry_that_fails_deletes_nothing(case: &Case) {
    let (tree, there) = (case.src.dir("tree"), case.dst.dir("tree"));
    tree.file("new", "moved here");
    there.file("old", "moved here");
    let open = there.file("new", "written by another process");
    let writer = fs::File::options()
        .append(true)
        .open(open)
        .expect("open it");
    let copy = |flags: &[&str]| {
        let flags = [&["-a", "--delete"], flags].concat();
        case.copy(&flags, "tree/", "tree")
    };
    copy(&[])
        .exits(11)
        .says("nothing was deleted, because some entries");
    assert!(there.has("old"));
    drop(writer);
    // What the user wants to stay has not failed.
    copy(&["--no-clobber"])
        .exits(11)
        .never_says("nothing was deleted");
    assert!(!there.has("old"));

    // A directory that cannot be made, with all that it has.
    if !rustix::process::geteuid().is_root() {
        return skip("root, for a directory of another user");
    }
    fs::remove_file(there.path("new")).expect("remove it");
    tree.file("locked/sub/file", "moved here");
    there.file("old", "moved here");
    let locked = there.dir("locked");
    chown(&locked.0, Some(12345), None).expect("give it away");
    let run = case.copying(&["-a", "--delete"], "tree/", "tree");
    run.under(without_powers())
        .run()
        .exits(8)
        .says("nothing was deleted");
    assert!(there.has("old"));
}

fn an_empty_directory_that_the_user_named_deletes_nothing(case: &Case) {
    case.src.dir("mnt");
    case.src.dir("tree/inner");
    let there = case.dst.dir("there");
    let precious = ["mnt/precious", "tree/inner/goes"];
    precious.iter().for_each(|name| drop(there.file(name, "")));
    let list = case.scratch.file("list", "mnt/\n").display().to_string();
    let listed = ["-a", "--delete", "--files-from", &list];
    let recursive = [&listed[..], &["-r"]].concat();
    for (flags, source) in [
        (&["-a", "--relative", "--delete"][..], "./mnt"),
        (&listed, ""),
        (&recursive, ""),
    ] {
        let done = case.copy(flags, source, "there");
        done.exits(11)
            .says("the source of this directory is empty, or all of it is left out");
        assert!(there.has("mnt/precious"), "{flags:?}");
    }
    // Nor does it make room for another entry. Links fill the messages between the two.
    let links = (0..100).map(|number| format!("n{number}"));
    let links: Vec<String> = links.chain(["over".to_owned()]).collect();
    links
        .iter()
        .for_each(|name| drop(case.src.link(name, "nowhere")));
    there.file("over/precious", "");
    case.scratch
        .file("list", format!("mnt/\n{}\n", links.join("\n")));
    case.copy(&listed, "", "there")
        .exits(11)
        .says("this copy deletes no more entries");
    assert!(there.has("over/precious") && there.has("n99"));
    // One below it is an entry like others.
    case.copy(&["-a", "--relative", "--delete"], "./tree", "there")
        .succeeds();
    assert!(there.dir("tree/inner").names().is_empty());
    case.copy(
        &["-a", "--relative", "--delete", "--force"],
        "./mnt",
        "there",
    )
    .succeeds();
    assert!(!there.has("mnt/precious"));
}

fn read_only_directories_are_emptied_by_their_user(case: &Case) {
    let (tree, there) = (case.src.dir("tree"), case.dst.dir("tree"));
    let directories = ["b/e", "b", "c/f", "c"];
    directories.iter().for_each(|name| drop(tree.dir(name)));
    tree.file("b/kept", "");
    for name in ["b/1", "b/2", "b/own/x", "b/e/x", "c/x", "c/f/x"] {
        there.file(name, "goes");
    }
    for name in directories {
        tree.mode(name, 0o500);
        there.mode(name, 0);
    }
    for flags in [&["--backup-dir=../old"][..], &[]] {
        let flags = [&["-a", "--delete"], flags].concat();
        let run = case.copying(&flags, "tree/", "tree");
        run.under(without_powers()).run().succeeds();
        assert_same(&tree.0, &there.0, Also::ModesAndTimes);
    }
    assert_eq!(case.dst.read("old/b/e/x"), b"goes");
}
