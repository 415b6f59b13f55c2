//! What interrupted copies leave: names that tell whose it is, and who resumes it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::support::cut_short::aged;
use crate::support::inject::{self, Inject};
use crate::support::*;

ways! { local_push, here => a_leftover_has_the_name_of_its_file }

ways! { local_push => a_slash_or_the_names_of_earlier_versions_keep_the_resume }

const SIZE: usize = 3 * MIB;

/// Runs the copy until its first large file lacks only its name.
#[track_caller]
fn interrupted(case: &Case, flags: &[&str], from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    let kill = Inject::new().kill("rename").on("*.part");
    let flags = [&["--retries", "0"][..], flags].concat();
    let done = case.copying(&flags, from, to).inject(&kill).run();
    assert_ne!(done.code, Some(0), "{done}");
    kill.assert_struck(1);
}

/// Runs the copy to its end; it uses what is there.
#[track_caller]
fn resumed(case: &Case, flags: &[&str], from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    let flags = [&["--summary"][..], flags].concat();
    let done = case.copy(&flags, from, to);
    done.succeeds().says(" of it already there and verified");
}

fn tree(case: &Case) -> Dir {
    let tree = case.src.dir("tree");
    tree.file("sub/big", noise(1, SIZE));
    // The file that a killed run has given the mode of others is not resumed.
    tree.mode("sub/big", 0o600);
    tree
}

fn a_slash_or_the_names_of_earlier_versions_keep_the_resume(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = tree(case);
    case.src.file("a", noise(2, SIZE));
    case.src.mode("a", 0o600);
    aged();
    case.dst.dir("into");
    case.dst.dir("filled/tree");
    for (first, then) in [
        (("tree", "into"), ("tree/", "into/tree")),
        (("tree/", "filled/tree"), ("tree", "filled")),
        (("tree", "new"), ("tree/", "new")),
        (("tree/", "other"), ("tree", "other")),
    ] {
        interrupted(case, &["-r"], first.0, first.1);
        resumed(case, &["-r"], then.0, then.1);
    }
    for place in ["into/tree", "filled/tree", "new", "other"] {
        assert_same(&tree.0, case.dst.path(place), Also::Nothing);
    }
    // They had no name in theirs.
    let there = case.dst.dir("there");
    let rename = || {
        for name in there.names() {
            let former = name.replace(".fastcp-a-", ".fastcp-");
            fs::rename(there.path(&name), there.path(former)).expect("rename it");
        }
    };
    interrupted(case, &[], "a", "there");
    rename();
    resumed(case, &[], "a", "there");
    assert_eq!(there.names(), ["a"]);
}

/// Also for names that no text has, and for the longest ones.
fn a_leftover_has_the_name_of_its_file(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let long = ["x".repeat(79), "é".repeat(88)].concat();
    let names: [(&[u8], &[u8]); 4] = [
        (b"orders.db", b"orders.db-"),
        (b"\xff\xfe", b"\xff\xfe-"),
        (b"a\nb\x1b[2J", b"a_b_[2J-"),
        (long.as_bytes(), &[b'x'; 79]),
    ];
    for (name, shown) in names {
        let name = OsStr::from_bytes(name);
        fs::write(case.src.path(name), noise(1, SIZE)).expect("write");
        interrupted(case, &[], name, name);
        let left: Vec<PathBuf> = fs::read_dir(&case.dst.0)
            .expect("read it")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        let begins = [b".fastcp-", shown].concat();
        assert_eq!(left.len(), 2, "{left:?}");
        for path in &left {
            let own = path.file_name().expect("a name").as_bytes();
            assert!(own.starts_with(&begins), "{path:?}");
        }
        case.copy(&[], name, name).succeeds();
        assert_same(case.src.path(name), case.dst.path(name), Also::Nothing);
        fs::remove_file(case.dst.path(name)).expect("remove it");
    }
}
