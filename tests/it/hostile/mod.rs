//! A peer that speaks the protocol and attacks, one test per attack. No attack changes anything
//! outside the destination, leaves an incomplete file under its final name, or leaves temporary
//! files. No process hangs or panics, and no raw text of the peer reaches the terminal.

pub(crate) mod client;
mod confined;
mod control;
mod corpus;
mod frames;
mod itemized;
mod links;
mod list_check;
mod memory;
mod mirror;
mod names;
mod neighbours;
mod patches;
mod pipes;
mod receiver;
mod secret;
mod texts;
mod unchanged;
mod wanted;
mod wire;

use crate::support::*;

/// A case in which the test plays the server. A directory outside the destination must stay
/// unchanged.
fn pull_case(body: impl FnOnce(&Case)) {
    Case::run(Way::LocalPull, |case| {
        let outside = case.scratch.dir("outside");
        outside.file("precious", "precious\n");
        let before = Tree::read(&outside.0);
        body(case);
        // A copy that ends early leaves files for a resume.
        case.sweep();
        let changed = before.differences(&Tree::read(&outside.0), Also::ModesAndTimes);
        assert!(changed.is_empty(), "outside: {changed:?}");
    });
}

/// Allows `content` at the destination: the final check compares with the source's contents.
fn known(case: &Case, content: &[u8]) {
    case.src
        .file(blake3::hash(content).to_hex().as_str(), content);
}
