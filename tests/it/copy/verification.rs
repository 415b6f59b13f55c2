//! `--digests`: a list that `b3sum --check` accepts, with the correct BLAKE3 digest of each file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::support::host::find_program;
use crate::support::*;

ways! { push, pull, here, between =>
    the_list_names_every_file_with_its_blake3,
    a_single_file_is_listed_by_its_name_at_the_destination,
}

fn the_list_names_every_file_with_its_blake3(case: &Case) {
    let tree = case.src.dir("tree");
    for size in [
        0,
        1,
        1024,
        1025,
        MIB - 1,
        MIB,
        MIB + 1,
        3 * MIB - 5,
        4 * MIB,
    ] {
        tree.file(format!("sizes/{size}"), noise(size as u64, size));
    }
    tree.file("back\\slash and\nnewline", "odd");
    tree.file("with spaces", "odd too");
    tree.sparse(
        "sparse",
        20 * MIB as u64 + 17,
        &[(5 * MIB as u64, b"in the middle")],
    );
    tree.sparse("hole", 3 * MIB as u64, &[]);
    tree.hard_link("zz second name", "with spaces");
    tree.link("link", "with spaces");
    tree.file(OsStr::from_bytes(b"not-utf8-\xff"), "left out");
    let list = case.scratch.path("list");
    let done = case.copy(
        &["-r", "--digests", list.to_str().expect("ASCII")],
        "tree",
        "x",
    );
    done.succeeds().says("1 ").says("utf-8");

    let text = String::from_utf8(case.scratch.read("list")).expect("the list is UTF-8");
    let listed = parse(&text);
    let wanted: BTreeMap<_, _> = Tree::read(&tree.0)
        .0
        .into_iter()
        .filter(|(_, node)| matches!(node.what, tree::What::File { .. }))
        .filter_map(|(path, _)| Some((path.to_str()?.to_owned(), path)))
        .map(|(name, path)| {
            let digest = blake3::hash(&tree.read(path)).to_string();
            (name, digest)
        })
        .collect();
    let missing: Vec<_> = wanted
        .iter()
        .filter(|line| !listed.contains_key(line.0))
        .collect();
    assert!(missing.is_empty(), "not listed: {missing:?}");
    assert_eq!(listed, wanted);
    if let Some(b3sum) = find_program("b3sum") {
        Run::new(b3sum, case.dst.path("x"))
            .arg("--check")
            .arg(&list)
            .run()
            .succeeds();
    }
}

fn a_single_file_is_listed_by_its_name_at_the_destination(case: &Case) {
    case.src.file("a", noise(1, 2 * MIB + 1));
    let list = case.scratch.path("list");
    case.copy(&["--digests", list.to_str().expect("ASCII")], "a", "b")
        .succeeds();
    let text = String::from_utf8(case.scratch.read("list")).expect("the list is UTF-8");
    let hash = blake3::hash(&case.src.read("a")).to_string();
    assert_eq!(parse(&text), BTreeMap::from([("b".to_owned(), hash)]));
}

/// Maps each name to its digest. In a line that starts with a backslash the name is escaped.
fn parse(list: &str) -> BTreeMap<String, String> {
    list.lines()
        .map(|line| {
            let (escaped, line) = line
                .strip_prefix('\\')
                .map_or((false, line), |rest| (true, rest));
            let (digest, name) = line.split_once("  ").expect("two spaces");
            let name = if escaped {
                name.replace("\\n", "\n").replace("\\\\", "\\")
            } else {
                name.to_owned()
            };
            (name, digest.to_owned())
        })
        .collect()
}
