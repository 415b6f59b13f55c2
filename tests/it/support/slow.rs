//! Copies that are slow enough for a test to act in the middle of them.

use super::procs::until;
use super::run::Running;
use super::{Case, noise};

/// With little memory, so that the sender still has most of the file to read.
pub(crate) const SLOW: [&str; 5] = ["-l", "80000", "--memory", "16Mi", "--summary"];

/// Starts a copy of `a` with `bytes` bytes, and returns when content arrives.
pub(crate) fn started(case: &Case, bytes: usize, flags: &[&str]) -> Running {
    case.src.file("a", noise(1, bytes));
    let run = case.copying(&SLOW, "a", "a").args(flags).start();
    wait_for_content(case);
    run
}

/// The option for a copy that stays slow until [`let_go`]: the test acts in time, however late the
/// machine runs it.
pub(crate) fn held_back(case: &Case, rate: &str) -> String {
    let file = case.scratch.file("rate", rate);
    format!("--bwlimit=@{}", file.display())
}

/// Ends the limit of [`held_back`]. fastcp reads the file once a second.
pub(crate) fn let_go(case: &Case) {
    case.scratch.file("rate", "0");
}

pub(crate) fn wait_for_content(case: &Case) {
    // Enough that some of it has been acknowledged.
    until("the copy is under way", || {
        (case.dst.partial_bytes() > 6 << 20).then_some(())
    });
}
