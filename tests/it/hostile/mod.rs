//! A peer that speaks the protocol and lies, one test per trick. Whatever it says, nothing is
//! touched outside the destination, nothing stands under a final name that is not whole, nothing is
//! left behind, no process hangs or panics, and what it says reaches no terminal raw.

pub mod client;
mod confined;
mod control;
mod frames;
mod links;
mod memory;
mod names;
mod pipes;
mod receiver;
mod secret;
mod texts;

use crate::support::*;

/// A case whose far end is played by the test, with something outside of the destination that must
/// stay as it is.
fn pull_case(body: impl FnOnce(&Case)) {
    Case::run(Way::LocalPull, |case| {
        let outside = case.scratch.dir("outside");
        outside.file("precious", "precious\n");
        let before = Tree::read(&outside.0);
        body(case);
        // A copy that ends early is there to be gone on with.
        case.sweep();
        let changed = before.differences(&Tree::read(&outside.0), Also::ModesAndTimes);
        assert!(changed.is_empty(), "outside: {changed:?}");
    });
}

/// Contents that may be found at the destination are those of the source.
fn known(case: &Case, content: &[u8]) {
    case.src
        .file(blake3::hash(content).to_hex().as_str(), content);
}
