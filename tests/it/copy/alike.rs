//! A destination whose file system treats two names as one, or lacks some kinds of entries. No
//! entry of a copy replaces another, and an impossible entry fails alone, with the reason.

use crate::support::disk::Mounted;
use crate::support::*;

ways! { push, pull, here =>
    entries_whose_names_differ_in_case_do_not_replace_each_other,
}

ways! { here =>
    sources_whose_names_differ_in_case_do_not_replace_each_other,
    a_link_fails_with_what_to_do_where_there_are_none,
}

/// Pairs of names that are one name on a file system that ignores case.
const PAIRS: [[&str; 2]; 3] = [["small", "SMALL"], ["big", "BIG"], ["dir", "DIR"]];

fn disk(case: &Case) -> Option<(Mounted, Dir)> {
    let disk = case.dst.dir("disk");
    let mounted = Mounted::caseless(case, &disk.0);
    if mounted.is_none() {
        skip("root and exfat-fuse");
    }
    Some((mounted?, disk))
}

fn entries_whose_names_differ_in_case_do_not_replace_each_other(case: &Case) {
    let Some((_mounted, disk)) = disk(case) else {
        return;
    };
    let tree = case.src.dir("tree");
    tree.file("small", "lower");
    tree.file("SMALL", "upper");
    tree.file("big", noise(1, 3 * MIB));
    tree.file("BIG", noise(2, 3 * MIB));
    tree.file("dir/one", "in dir");
    tree.file("DIR/one", "in DIR");
    tree.file("other", "alone");
    // From the second copy on, one of each pair exists already.
    for options in [&["-r"][..], &["-r", "--inplace"], &["-r"]] {
        let done = case.copying(options, "tree/", "disk").run();
        done.exits(11).says("ignores upper and lower case");
        let mut names: Vec<String> = vec!["other".into()];
        for [lower, upper] in PAIRS {
            let refused = |name| done.stderr.contains(&format!("/{name}: the file system"));
            assert!(refused(lower) != refused(upper), "one of them: {done}");
            let came = if refused(lower) { upper } else { lower };
            // It may have the name of the other entry of its pair, which existed before.
            let there = disk.names();
            let called = there.iter().find(|name| name.eq_ignore_ascii_case(came));
            assert_same(tree.path(came), disk.path(came), Also::Nothing);
            names.extend(called.cloned());
        }
        assert_eq!(disk.read("other"), b"alone");
        names.sort();
        assert_eq!(disk.names(), names, "nothing else is left");
    }
}

fn sources_whose_names_differ_in_case_do_not_replace_each_other(case: &Case) {
    let Some((_mounted, disk)) = disk(case) else {
        return;
    };
    case.src.file("1/name", "lower");
    case.src.file("2/NAME", "upper");
    let done = case.copy_all(&[], &["1/name", "2/NAME"], "disk");
    done.exits(11).says("ignores upper and lower case");
    assert_eq!(disk.names().len(), 1);
}

fn a_link_fails_with_what_to_do_where_there_are_none(case: &Case) {
    let Some((_mounted, disk)) = disk(case) else {
        return;
    };
    case.src.link("tree/link", "file");
    case.src.file("tree/file", "content");
    let done = case.copy(&["-r"], "tree", "disk");
    done.exits(8)
        .says("tree/link: symbolic links are not supported")
        .says("-L");
    assert_eq!(disk.read("tree/file"), b"content");
    assert_eq!(disk.dir("tree").names(), ["file"]);
    case.copy(&["-r", "-L"], "tree", "disk").succeeds();
    assert_eq!(disk.read("tree/link"), b"content");
}
