//! Copies of `a` that are slow enough for a test to interrupt them.

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

pub(crate) fn wait_for_content(case: &Case) {
    // Enough that some of it has been acknowledged.
    until("the copy is under way", || {
        (case.dst.partial_bytes() > 6 << 20).then_some(())
    });
}
