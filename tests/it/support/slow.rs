//! Copies of `a` that are slow enough to be met in the middle.

use super::procs::until;
use super::run::Running;
use super::{Case, noise};

/// With little memory, so that most of it is still to be read when it is met.
pub const SLOW: [&str; 5] = ["-l", "80000", "--memory", "16Mi", "--summary"];

/// A copy of `a`, of so many bytes, once content arrives.
pub fn started(case: &Case, bytes: usize, flags: &[&str]) -> Running {
    case.src.file("a", noise(1, bytes));
    let run = case.copying(&SLOW, "a", "a").args(flags).start();
    wait_for_content(case);
    run
}

pub fn wait_for_content(case: &Case) {
    // So much that some of it has been acknowledged.
    until("the copy is under way", || {
        (case.dst.partial_bytes() > 6 << 20).then_some(())
    });
}
