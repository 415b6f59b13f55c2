//! The progress while a copy runs: the bar of a tree, and the lines of `--progress`.

use rustix::process::Signal;

use crate::support::procs::until;
use crate::support::pty::{Screen, Terminal};
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { push, pull, between => the_bar_of_a_tree_counts_its_files_and_names_their_paths }

ways! { pull => lines_come_at_the_interval_with_and_without_a_terminal }

ways! { push => a_line_says_which_login_it_waits_for }

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

fn lines_come_at_the_interval_with_and_without_a_terminal(case: &Case) {
    tree(case);
    let limit = held_back(case, "200K");
    let flags = ["-r", "--progress=1s", &limit];
    let to = |name: &str| {
        case.dst.dir(name);
        case.copying(&flags, "tree", name)
    };
    let terminal = Terminal::open(80, 24);
    let on_terminal = to("a").env("TERM", "xterm");
    let on_terminal = on_terminal.start_on(terminal.output(), terminal.slave());
    let quiet = to("b").arg("-q").start();
    let plain = to("c").start();
    let is_line = |line: &str| {
        let parts = [" of 6.29 MB (", "%), ", " of 3 files, ", "/s, ", " left"];
        line.starts_with("fastcp: ") && parts.iter().all(|part| line.contains(part))
    };
    let is_shown = |text: &str| text.lines().filter(|line| is_line(line)).count() >= 2;
    until("two lines are told", || {
        (is_shown(&plain.stderr.text()) && is_shown(&on_terminal.stdout.text())).then_some(())
    });
    let_go(case);
    quiet.wait().succeeds().is_silent();
    let told = plain.wait();
    told.succeeds();
    let lines = told.stderr.lines().count();
    let most = told.elapsed.as_secs() as usize;
    assert!(lines <= most, "{lines} in {:?}: {told}", told.elapsed);
    assert!(
        told.stderr.lines().all(|line| line.starts_with("fastcp: ")),
        "{told}"
    );
    let drawn = on_terminal.wait();
    assert!(!drawn.stdout_text().contains('\x1b'), "no bar: {drawn}");
    drawn.succeeds();
}

fn a_line_says_which_login_it_waits_for(case: &Case) {
    case.src.file("a", "one");
    let flags = ["-P", "1", "--retry-for=1h", "--progress=1s"];
    let run = case.copying(&flags, "a", "a").start();
    until("it tells when it logs in", || {
        let text = run.stderr.text();
        let line = "\nfastcp: logging in to far in 0:0";
        text.contains(line).then_some(())
    });
    run.signal(Signal::INT);
    run.wait().exits(130);
    for (flag, told) in [
        ("--progress=500ms", "from 1s to 1day"),
        ("--progress=10", "such as --progress=10s"),
    ] {
        case.copy(&[flag], "a", "a").exits(2).says(told);
    }
}
