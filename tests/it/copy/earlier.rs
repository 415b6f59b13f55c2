//! `--link-dest` and `--copy-dest`: unchanged files of earlier copies are used again.

use std::os::unix::fs::MetadataExt;

use super::archive::CAPABILITY;
use crate::support::disk::Mounted;
use crate::support::*;

ways! { push, pull, between, here =>
    unchanged_entries_are_links_to_the_earlier_copy,
}

ways! { local_push =>
    files_are_copied_where_a_link_would_change_the_earlier_copy,
    only_what_differs_of_a_large_file_is_sent,
    no_link_gives_set_id_bits_that_a_copy_would_not_get,
    with_delete_entries_of_the_earlier_copy_replace_directories,
    delete_leaves_an_earlier_copy_in_the_destination,
    where_times_are_rounded_unchanged_files_are_links_too,
    what_has_the_same_content_gets_no_backup,
}

fn unchanged_entries_are_links_to_the_earlier_copy(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("sub/same", "same");
    tree.file("sub/name\nwith a line", "odd");
    tree.file("changed", "old");
    tree.file("becomes/dir", "x");
    tree.file("big", noise(1, 2 * MIB));
    tree.link("link", "target");
    tree.file("first", "two names");
    tree.hard_link("second", "first");
    case.copy(&["-a"], "tree/", "old").succeeds();
    let old = case.dst.path("old");
    let before = Tree::read(&old);

    tree.file("changed", "newer");
    std::fs::remove_dir_all(tree.path("becomes")).expect("remove it");
    tree.file("becomes", "a file");
    let flags = ["-a", "--link-dest=../none", "--link-dest=../old", "--json"];
    let planned = case.copy(&["-an", "--link-dest=../old"], "tree/", "new");
    let planned = planned.succeeds().stdout_text();
    assert!(
        planned.contains("f+++++++++ changed") && planned.contains("becomes"),
        "{planned}"
    );
    assert!(
        !planned.contains("big") && !planned.contains("same"),
        "{planned}"
    );
    assert!(!case.dst.has("new"));
    // A second run finds everything in place.
    for unchanged in [4, 6] {
        let done = case.copy(&flags, "tree/", "new");
        let done = done.succeeds().says("../none does not exist").stdout_text();
        assert!(
            done.contains(&format!("\"files_unchanged\":{unchanged},")),
            "{done}"
        );
        let (old, new) = (Dir(case.dst.path("old")), Dir(case.dst.path("new")));
        for path in [
            "sub/same",
            "sub/name\nwith a line",
            "big",
            "link",
            "first",
            "second",
        ] {
            assert_eq!(old.meta(path).ino(), new.meta(path).ino(), "{path}");
        }
        assert_eq!(new.meta("first").nlink(), 4);
        assert_ne!(old.meta("changed").ino(), new.meta("changed").ino());
        let same = Tree::read(&tree.0).differences(&Tree::read(&new.0), Also::ModesAndTimes);
        assert!(same.is_empty(), "{same:?}");
    }
    let kept = before.differences(&Tree::read(&old), Also::ModesAndTimes);
    assert!(kept.is_empty(), "{kept:?}");
}

fn files_are_copied_where_a_link_would_change_the_earlier_copy(case: &Case) {
    let tree = case.src.dir("tree");
    for (path, size) in [("mode", 100), ("big mode", 2 * MIB), ("same", 100)] {
        tree.file(path, noise(size as u64, size));
    }
    case.copy(&["-a"], "tree/", "old").succeeds();
    let old = Dir(case.dst.path("old"));
    for path in ["mode", "big mode"] {
        old.mode(path, 0o640);
        tree.mode(path, 0o600);
    }
    let new = case.dst.path("new");
    let check = |flags: &[&str], to: &str, linked: &[&str]| {
        let done = case.copy(flags, "tree/", to).succeeds().stdout_text();
        assert!(done.contains("\"files_unchanged\":3,"), "{done}");
        for path in ["mode", "big mode", "same"] {
            let is_linked = old.meta(path).ino() == Dir(case.dst.path(to)).meta(path).ino();
            assert_eq!(is_linked, linked.contains(&path), "{path}");
        }
        for path in ["mode", "big mode"] {
            assert_eq!(old.mode_of(path), 0o640, "{path}");
            assert_eq!(Dir(case.dst.path(to)).mode_of(path), 0o600, "{path}");
        }
    };
    check(&["-a", "--link-dest=../old", "--json"], "new", &["same"]);
    // A link that exists already is not corrected in place.
    for path in ["mode", "big mode"] {
        std::fs::remove_file(new.join(path)).expect("remove it");
        std::fs::hard_link(old.path(path), new.join(path)).expect("link it");
    }
    check(&["-a", "--link-dest=../old", "--json"], "new", &["same"]);
    check(&["-a", "--copy-dest=../old", "--json"], "copied", &[]);
    // Contents decide, whatever the times are.
    for path in ["mode", "big mode", "same"] {
        tree.time(path, 1_000_000_000, 5);
        old.time(path, 1_000_000_000, 5);
    }
    old.file("same", noise(7, 100));
    old.time("same", 1_000_000_000, 5);
    let flags = ["-a", "--checksum", "--link-dest=../old", "--json"];
    case.copy(&flags, "tree/", "by content").succeeds();
    let by_content = Dir(case.dst.path("by content"));
    assert_same(&tree.0, &by_content.0, Also::ModesAndTimes);
    old.mode("big mode", 0o600);
    case.copy(&flags, "tree/", "by content 2").succeeds();
    let by_content = Dir(case.dst.path("by content 2"));
    for (path, is_linked) in [("big mode", true), ("mode", false), ("same", false)] {
        let same = old.meta(path).ino() == by_content.meta(path).ino();
        assert_eq!(same, is_linked, "{path}");
    }
    old.mode("big mode", 0o640);
    let flags = ["-a", "--link-dest=../old", "--inplace"];
    case.copy(&flags, "tree/", "new").exits(2).says("--inplace");
    case.copy(&["-r", "--link-dest=../old"], "tree/", "new")
        .exits(2)
        .says("add -a");
}

fn no_link_gives_set_id_bits_that_a_copy_would_not_get(case: &Case) {
    let tree = case.src.dir("tree");
    for (path, size) in [
        ("capable", 100),
        ("tool", 100),
        ("sub/tool", 100),
        ("big", MIB),
        ("same", 100),
    ] {
        tree.file(path, noise(size as u64, size));
    }
    case.copy(&["-rt"], "tree/", "old").succeeds();
    let (old, new) = (Dir(case.dst.path("old")), Dir(case.dst.path("new")));
    for (path, mode) in [("tool", 0o4755), ("sub/tool", 0o2755), ("big", 0o6755)] {
        old.mode(path, mode);
    }
    // Only root may set it.
    let _ = xattr::set(old.path("capable"), "security.capability", &CAPABILITY);
    case.copy(&["-rt", "--link-dest=../old"], "tree/", "new")
        .succeeds();
    for path in ["tool", "sub/tool", "big"] {
        assert_eq!(new.mode_of(path) & 0o6000, 0, "{path}");
        assert_ne!(old.mode_of(path) & 0o6000, 0, "{path}");
    }
    let capability = xattr::get(new.path("capable"), "security.capability");
    assert_eq!(capability.expect("read it"), None);
    assert_eq!(old.meta("same").ino(), new.meta("same").ino());
}

fn with_delete_entries_of_the_earlier_copy_replace_directories(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("small", "content");
    tree.file("big", noise(1, MIB));
    tree.link("link", "small");
    case.copy(&["-a"], "tree/", "old").succeeds();
    for (flag, to) in [
        ("--link-dest=../old", "linked"),
        ("--copy-dest=../old", "copied"),
    ] {
        let there = case.dst.dir(to);
        for name in ["small", "big", "link"] {
            there.file(format!("{name}/inside"), "goes");
        }
        let planned = case.copy(&["-an", "--delete", flag], "tree/", to);
        let planned = planned.succeeds().stdout_text();
        assert_eq!(planned.matches("*deleting").count(), 3, "{planned}");
        case.copy(&["-a", "--delete", flag], "tree/", to).succeeds();
        assert_same(&tree.0, &there.0, Also::ModesAndTimes);
    }
}

fn delete_leaves_an_earlier_copy_in_the_destination(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("sub/same", "content");
    case.dst.dir("there/only there");
    case.copy(&["-a"], "tree/", "there/only there/old")
        .succeeds();
    let there = case.dst.dir("there");
    let inode = || there.meta("only there/old/sub/same").ino();
    let before = inode();
    for flag in ["--link-dest", "--copy-dest"] {
        there.file("only there/extra", "goes");
        there.file("gone/extra", "goes");
        let flags = ["-a", "--delete", "--max-delete=90%"];
        let earlier = format!("{flag}=only there/old");
        let copy = [&flags[..], &[&earlier]].concat();
        case.copy(&copy, "tree/", "there").succeeds();
        assert_eq!(there.names(), ["only there", "sub"]);
        assert_eq!(there.dir("only there").names(), ["old"]);
        assert_same(&tree.0, there.path("only there/old"), Also::ModesAndTimes);
        assert_eq!(inode(), before);
    }
    // Without the option it is a directory like any other.
    case.copy(&["-a", "--delete"], "tree/", "there").succeeds();
    assert_eq!(there.names(), ["sub"]);
}

fn only_what_differs_of_a_large_file_is_sent(case: &Case) {
    let tree = case.src.dir("tree");
    let mut content = noise(5, 4 * MIB);
    tree.file("big", &content);
    case.copy(&["-a"], "tree/", "old").succeeds();
    content[MIB] ^= 1;
    tree.file("big", &content);
    // On several streams a late piece is sent again.
    let flags = [
        "-a",
        "--link-dest=../old",
        "--summary",
        "--streams=1",
        "--route=direct",
    ];
    let done = case.copy(&flags, "tree/", "new");
    let wire = done.succeeds().wire_bytes();
    assert!(wire < MIB / 4, "{wire} bytes");
    assert!(Dir(case.dst.path("new")).read("big") == content);
    assert!(Dir(case.dst.path("old")).read("big") != content);
}

/// An ext4 with small inodes keeps whole seconds.
fn where_times_are_rounded_unchanged_files_are_links_too(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("file", "content");
    tree.file("big", noise(1, 2 * MIB));
    for name in ["file", "big"] {
        tree.time(name, 1_500_000_000, 123_456_789);
    }
    let at = case.dst.dir("disk");
    let Some(_disk) = Mounted::with_whole_seconds(case, &at.0) else {
        return skip("root, ext4 and a loop device");
    };
    case.copy(&["-a"], "tree/", "disk/old").succeeds();
    assert_eq!(at.meta("old/file").mtime_nsec(), 0);
    case.copy(&["-a", "--link-dest=../old"], "tree/", "disk/new")
        .succeeds();
    for name in ["file", "big"] {
        let inode = |of: &str| at.dir(of).meta(name).ino();
        assert_eq!(inode("old"), inode("new"), "{name}");
    }
    // Nor does a file with two names here become a separate one.
    at.hard_link("new/second", "new/file");
    case.copy(&["-a"], "tree/", "disk/new").succeeds();
    assert_eq!(at.meta("new/second").ino(), at.meta("new/file").ino());
}

fn what_has_the_same_content_gets_no_backup(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("file", "content");
    tree.link("link", "target");
    for to in ["old", "new"] {
        case.copy(&["-a"], "tree/", to).succeeds();
    }
    let new = Dir(case.dst.path("new"));
    new.time("file", 1_400_000_000, 0);
    new.file("file~", "before");
    let flags = ["-a", "-b", "--link-dest=../old"];
    case.copy(&flags, "tree/", "new").succeeds();
    assert_eq!(new.names(), ["file", "file~", "link"]);
    assert_eq!(new.read("file~"), b"before");
    tree.file("file", "changed");
    std::fs::remove_file(tree.path("link")).expect("remove it");
    tree.link("link", "elsewhere");
    case.copy(&["-a"], "tree/", "old").succeeds();
    case.copy(&flags, "tree/", "new").succeeds();
    assert_eq!(new.names(), ["file", "file~", "link", "link~"]);
    assert_eq!(new.read("file~"), b"content");
}
