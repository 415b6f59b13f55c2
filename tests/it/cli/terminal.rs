//! The output for the user, on a terminal and without one.

use std::time::Duration;

use crate::support::done::Done;
use crate::support::procs::until;
use crate::support::pty::{Screen, Terminal};
use crate::support::run::fastcp_binary;
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { push, pull =>
    a_bar_is_drawn_and_taken_away,
    a_resize_leaves_no_debris,
    without_a_terminal_success_is_silent,
    ten_errors_of_a_kind_are_printed_and_the_others_counted,
    it_works_with_nothing_in_the_environment,
}

ways! { push, pull, between =>
    v_explains_the_copy_and_ssh_speaks_from_the_third_on,
}

ways! { here =>
    q_tells_errors_only,
    control_characters_never_reach_the_terminal,
    a_command_cannot_wait_for_the_terminal,
}

/// Runs a copy of about two seconds on a terminal of 80 columns.
fn on_a_terminal(case: &Case, envs: &[(&str, &str)], flags: &[&str]) -> (Done, Vec<u8>) {
    case.src.file("größe", noise(1, 2 * MIB));
    let terminal = Terminal::open(80, 24);
    let mut run = case
        .copying(&["-l", "8000"], "größe", "x")
        .args(flags)
        .env("TERM", "xterm");
    for (name, value) in envs {
        run = run.env(name, value);
    }
    let done = run.start_on(terminal.output(), terminal.slave()).wait();
    done.succeeds();
    let drawn = done.stdout.clone();
    (done, drawn)
}

fn a_bar_is_drawn_and_taken_away(case: &Case) {
    let (done, drawn) = on_a_terminal(case, &[], &[]);
    let text = String::from_utf8_lossy(&drawn);
    for part in ["größe", "%", "MB", "/s"] {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
    // Each redraw writes the name again: ten times a second, and a few times at the start and the
    // end.
    let redraws = text.split("größe").count();
    let most = 10 * usize::try_from(done.elapsed.as_secs()).expect("short") + 20;
    assert!(redraws <= most, "{redraws} in {:?}", done.elapsed);
    let mut screen = Screen::new(80);
    screen.draw(&drawn);
    assert!(!screen.wrapped, "{text:?}");

    let (_, ascii) = on_a_terminal(case, &[("LC_ALL", "C")], &[]);
    assert!(ascii.is_ascii(), "{:?}", String::from_utf8_lossy(&ascii));
    let (_, plain) = on_a_terminal(case, &[("NO_COLOR", "1")], &[]);
    assert!(!has_colour(&plain), "{:?}", String::from_utf8_lossy(&plain));
    let (_, dumb) = on_a_terminal(case, &[("TERM", "dumb")], &[]);
    assert!(
        !dumb.contains(&0x1b),
        "{:?}",
        String::from_utf8_lossy(&dumb)
    );
    let (_, quiet) = on_a_terminal(case, &[], &["-q"]);
    assert!(quiet.is_empty(), "{:?}", String::from_utf8_lossy(&quiet));
}

/// True if a control sequence ends in `m` and does more than reset.
fn has_colour(drawn: &[u8]) -> bool {
    let text = String::from_utf8_lossy(drawn);
    text.split("\x1b[").skip(1).any(|part| {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
        part[end..].starts_with('m') && part[..end].split(';').any(|n| n.len() == 2)
    })
}

fn a_resize_leaves_no_debris(case: &Case) {
    let name = "a name that is longer than a narrow terminal is wide, so that it has to be cut";
    case.src.file(name, noise(1, 4 * MIB));
    let terminal = Terminal::open(80, 24);
    let run = case
        .copying(&[&held_back(case, "200K")], name, "x")
        .env("TERM", "xterm")
        .start_on(terminal.output(), terminal.slave());
    until("a bar is drawn", || {
        run.stdout.text().contains('%').then_some(())
    });
    terminal.resize(40, 24);
    // Frames that were on their way at the resize are wide, however late they are read.
    let is_narrow = |frame: &&str| {
        let mut screen = Screen::new(40);
        screen.draw(frame.as_bytes());
        frame.contains('%') && !screen.wrapped
    };
    let before = until("a bar is narrow", || {
        let text = run.stdout.text();
        let all = frames(&text);
        // The last one may not be complete.
        let whole = all.len() - 1;
        all[..whole].last().is_some_and(is_narrow).then_some(whole)
    });
    until("it is drawn again", || {
        (frames(&run.stdout.text()).len() > before + 4).then_some(())
    });
    let_go(case);
    let done = run.wait();
    done.succeeds();
    // The summary at the end may be wide.
    let text = done.stdout_text();
    let all = frames(&text);
    let mut screen = Screen::new(40);
    for frame in &all[before..all.len() - 1] {
        screen.draw(frame.as_bytes());
    }
    assert!(!screen.wrapped, "{text:?}");
}

/// The output in frames. Each frame ends with the sequence that erases everything below.
fn frames(text: &str) -> Vec<&str> {
    text.split_inclusive("\x1b[J").collect()
}

fn without_a_terminal_success_is_silent(case: &Case) {
    case.src.file("tree/a", noise(1, 3 * MIB));
    case.copy(&["-r"], "tree", "").succeeds().is_silent();
    for flag in ["--summary", "-v"] {
        let done = case.copy(&["-r", flag], "tree", "");
        done.succeeds().says("1 file");
        assert!(done.stdout.is_empty());
        assert!(!done.stderr.contains(['\x1b', '\r']), "{done}");
    }
}

fn v_explains_the_copy_and_ssh_speaks_from_the_third_on(case: &Case) {
    case.src.file("tree/a", noise(1, MIB));
    case.src.link("tree/l", "a");
    let copy = |flag: &str, to: &str| {
        case.dst.dir(to);
        let done = case.copy(&["-r", flag], "tree", to);
        done.succeeds().says("1 file, 1.05 MB in");
        done.says(": started fastcp ").says("fastcp: route: ");
        assert!(done.stdout.is_empty());
        done
    };
    let one = copy("-v", "one");
    one.never_says("copied").never_says("debug1:");
    let two = copy("-vv", "two");
    two.says("fastcp: copied tree/a (1.05 MB)\n")
        .says("fastcp: made tree/\n")
        .says("fastcp: made tree/l -> a\n")
        .never_says("debug1:");
    copy("-vvv", "three")
        .says("fastcp: copied tree/a (")
        .says("debug1:")
        .never_says("debug2:");
    copy("-vvvv", "four").says("debug2:");
    // Nothing is named twice, and nothing that was there.
    case.copy(&["-a", "-vv"], "tree", "two").succeeds();
    let again = case.copy(&["-a", "--verbose", "--verbose"], "tree", "two");
    again.succeeds().never_says("tree/a").never_says("copied");
    let both = case.copy(&["-r", "-vv", "--itemize-changes"], "tree", "one");
    both.succeeds().never_says("copied");
    assert!(both.stdout_text().contains("tree/a\n"), "{both}");
}

fn ten_errors_of_a_kind_are_printed_and_the_others_counted(case: &Case) {
    const ALL: usize = 300;
    for n in 0..ALL {
        case.src.link(format!("tree/{n}"), "nowhere");
    }
    case.src.file("tree/file", "x");
    let host = if case.way == Way::Pull { "far: " } else { "" };
    let rest = format!(
        "fastcp: {host}missing or unreadable: {} more (-v prints all)",
        ALL - 10
    );
    for flags in [&["-rL"][..], &["-rLq", "--json"]] {
        let done = case.copy(flags, "tree", "copy");
        done.exits(9);
        let lines: Vec<_> = done.stderr.lines().collect();
        assert_eq!(lines.len(), 11, "{done}");
        assert_eq!(lines[10], rest);
        let record = format!("\"failed\":{ALL},");
        assert_eq!(done.stdout_text().contains(&record), flags.len() > 1);
    }
    for flags in ["-rLv", "-rLvq"] {
        let done = case.copy(&[flags], "tree", "copy");
        done.exits(9).never_says("-v prints all");
        assert_eq!(done.stderr.matches("no such file").count(), ALL, "{done}");
    }
    assert_eq!(case.dst.read("copy/file"), b"x");
}

fn it_works_with_nothing_in_the_environment(case: &Case) {
    case.src.file("a", noise(1, MIB));
    let run = case.copying(&[], "a", "a");
    run.without_env("HOME")
        .without_env("USER")
        .without_env("LC_ALL")
        .run()
        .succeeds()
        .is_silent();
    // The same with standard input closed.
    case.copying(&[], "a", "b")
        .under(["sh", "-c", "exec \"$@\" <&-", "sh"])
        .run()
        .succeeds()
        .is_silent();
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
}

fn q_tells_errors_only(case: &Case) {
    case.src.file("a", "one");
    case.copy(&["-q", "--no-encrypt"], "a", "a")
        .succeeds()
        .is_silent();
    case.copy(&["-q"], "nothing", "a").exits(9).says("nothing");
}

fn control_characters_never_reach_the_terminal(case: &Case) {
    let name = "evil\x1b]0;title\x07\r\u{202e}name";
    case.src.file(name, noise(1, MIB));
    case.dst.dir(format!("{name}/in the way"));
    let failed = case.copy(&["--no-target-directory"], name, name);
    failed.fails();
    case.dst.dir("new");
    let named = case.copy(&["-vv"], name, "new");
    named.succeeds().says("fastcp: copied evil");
    for done in [failed, named] {
        for bad in ['\x1b', '\x07', '\r', '\u{202e}'] {
            assert!(!done.stderr.contains(bad), "{bad:?} in {done}");
        }
    }
}

/// The terminal stops a background process that asks for a password: one that changes its modes.
fn a_command_cannot_wait_for_the_terminal(case: &Case) {
    let terminal = Terminal::open(80, 24);
    let asks = "exec </dev/tty && stty -echo && echo x";
    let run = case.fastcp().args(["--from-command", asks]);
    let run = run.arg(case.dst("x")).limit(Duration::from_secs(20));
    let done = run.start_on(terminal.output(), terminal.slave()).wait();
    done.exits(10);
    assert!(done.stdout_text().contains("/dev/tty"), "{done}");
    assert!(!case.dst.has("x"));
}

#[test]
fn help_is_short_and_tells_the_flags_and_exit_codes() {
    let help = Run::new(fastcp_binary(), "/").args(["--help", "all"]).run();
    help.succeeds();
    let text = help.stdout_text();
    for flag in [
        "-P",
        "-i",
        "-F",
        "-J",
        "-o",
        "-S",
        "-4",
        "-6",
        "-B",
        "-A",
        "-c",
        "-q",
        "-v",
        "-r",
        "-p",
        "-l",
        "-L",
        "--streams",
        "--compress",
        "--threads",
        "--memory",
        "--no-encrypt",
        "--no-clobber",
        "--no-target-directory",
        "--digests",
        "--fsync",
        "--summary",
        "--remote-path",
        "--rsh",
        "--version",
    ] {
        assert!(text.contains(flag), "{flag} is not in --help");
    }
    for code in ["128+n", "11", "12", "13 internal error", "15 stopped"] {
        assert!(text.contains(code), "exit code {code} is not in --help");
    }
    for flag in [
        "-r, --recursive",
        "-p, --preserve",
        "-P, --port",
        "-i, --identity",
        "-q, --quiet",
        "-v, --verbose",
        "-V, --version",
    ] {
        assert!(text.contains(flag), "{flag} is not in --help");
    }
    // Without a topic it fits a terminal of 24 lines, below the command and above the prompt.
    for flag in ["--help", "-h"] {
        let help = Run::new(fastcp_binary(), "/").arg(flag).run();
        let short = help.succeeds().stdout_text();
        assert_eq!(short.lines().count(), 23, "{short}");
        assert!(
            short.ends_with("--help TOPIC: scp, rsync, pipes ...\n"),
            "{short}"
        );
    }
    assert!(!text.contains("--server"));

    let version = Run::new(fastcp_binary(), "/").arg("--version").run();
    version.succeeds();
    let text = version.stdout_text();
    let short = Run::new(fastcp_binary(), "/").arg("-V").run();
    assert_eq!(short.succeeds().stdout_text(), text);
    assert!(
        text.contains(env!("CARGO_PKG_VERSION")) && text.contains("protocol 1"),
        "{text}"
    );
}

#[test]
fn an_empty_tree_takes_no_time() {
    Case::run(Way::Here, |case| {
        case.src.dir("tree");
        // The machine may be busy: the shortest time counts.
        let is_quick = (0..8).any(|_| {
            let done = case.copy(&["-r"], "tree", "");
            done.succeeds();
            std::fs::remove_dir(case.dst.path("tree")).expect("remove the copy");
            done.elapsed < Duration::from_secs(2)
        });
        assert!(is_quick, "it took two seconds or more each time");
    });
}
