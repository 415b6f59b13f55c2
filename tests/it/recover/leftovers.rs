//! What interrupted copies leave: who resumes it.

use std::ffi::OsStr;

use crate::support::cut_short::aged;
use crate::support::inject::{self, Inject};
use crate::support::*;

ways! { local_push => a_slash_after_the_source_keeps_the_resume }

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

fn a_slash_after_the_source_keeps_the_resume(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = tree(case);
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
}
