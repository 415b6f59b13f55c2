//! The progress while a copy runs.

use crate::support::procs::until;
use crate::support::pty::{Screen, Terminal};
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { push, pull, between => the_bar_of_a_tree_counts_its_files_and_names_their_paths }

/// A tree with files that are not packed.
fn tree(case: &Case) {
    for (n, name) in ["top", "deep/er/big", "deep/er/b\x1bad"].iter().enumerate() {
        case.src
            .file(format!("tree/{name}"), noise(n as u64, 2 * MIB));
    }
}

fn the_bar_of_a_tree_counts_its_files_and_names_their_paths(case: &Case) {
    tree(case);
    let terminal = Terminal::open(80, 24);
    let run = case
        .copying(&["-r", &held_back(case, "200K")], "tree", "")
        .env("TERM", "xterm")
        .start_on(terminal.output(), terminal.slave());
    let seen = until("the files are named", || {
        let mut screen = Screen::new(80);
        screen.draw(&run.stdout.so_far());
        let text = screen.text();
        let has = |part: &str| text.iter().any(|line| line.contains(part));
        let names = [
            "  tree/top",
            "  tree/deep/er/big",
            "  tree/deep/er/b\\x1bad",
        ];
        (names.iter().all(|name| has(name)) && has(" of 3 files")).then_some(screen)
    });
    assert!(!seen.wrapped, "{:?}", seen.text());
    let_go(case);
    run.wait().succeeds();
}
