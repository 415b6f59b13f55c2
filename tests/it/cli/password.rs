//! Questions that ssh asks on the terminal, and the order of its messages and questions.

use std::time::Duration;

use rustix::process::{Signal, geteuid};

use crate::support::host::PASSWORD;
use crate::support::inject::{self, Inject};
use crate::support::procs::until;
use crate::support::pty::{Screen, Terminal};
use crate::support::run::Running;
use crate::support::*;

ways! { push, pull => a_wrong_password_is_told_before_the_next_question }

ways! { push =>
    the_two_hosts_of_a_jump_are_asked_for_in_turn,
    several_hosts_that_ask_are_named_and_asked_for_in_turn,
    an_unknown_host_is_confirmed_by_what_one_sees,
    a_signal_to_fastcp_alone_gives_the_echo_back,
    who_asks_stays_the_users_choice,
}

const TOLD: &str = "Permission denied, please try again.";

/// False, with a message, if the test cannot use passwords.
fn has_passwords(case: &Case) -> bool {
    if !geteuid().is_root() {
        skip("root, who makes passwords");
        return false;
    }
    case.src.file("a", "one");
    case.host().ask_for_password();
    true
}

/// Starts the copy on the terminal.
fn on(terminal: &Terminal, run: Run) -> Running {
    let run = run.env("TERM", "xterm");
    run.start_on(terminal.output(), terminal.slave())
}

fn questions(run: &Running) -> usize {
    run.stdout.text().matches("password: ").count()
}

/// Types `answer` to the question with this number, once the terminal no longer echoes.
fn answer(terminal: &Terminal, run: &Running, number: usize, answer: &str) {
    until("ssh asks", || (questions(run) == number).then_some(()));
    until("typed text is hidden", || {
        (!terminal.echoes()).then_some(())
    });
    terminal.type_in(&format!("{answer}\n"));
}

/// The text that a person sees.
fn seen(run: &Running) -> Vec<String> {
    let mut screen = Screen::new(200);
    screen.draw(&run.stdout.so_far());
    screen.text()
}

fn a_wrong_password_is_told_before_the_next_question(case: &Case) {
    if !has_passwords(case) || !inject::permitted() {
        return skip("seccomp user notification");
    }
    // fastcp is slow to write ssh's messages to the terminal.
    let late = Inject::new().delay("write", Duration::from_millis(400));
    let late = late.on("/dev/pts/*");
    for inject in [None, Some(late)] {
        let terminal = Terminal::open(200, 24);
        let mut run = case.copying(&[], "a", "a");
        if let Some(inject) = &inject {
            run = run.inject(inject);
        }
        let run = on(&terminal, run);
        answer(&terminal, &run, 1, "wrong");
        answer(&terminal, &run, 2, "wrong");
        answer(&terminal, &run, 3, PASSWORD);
        let screen = run.stdout.clone();
        run.wait().succeeds();
        let text = screen.text();
        let parts: Vec<_> = text.split("password: ").collect();
        assert_eq!(parts.len(), 4, "{text}");
        for between in &parts[1..3] {
            assert_eq!(between.matches(TOLD).count(), 1, "{text:?}");
        }
        assert!(terminal.echoes(), "the echo is back");
        assert!(
            !text.contains("wrong") && !text.contains(PASSWORD),
            "{text}"
        );
        assert_eq!(case.dst.read("a"), b"one");
    }
}

fn the_two_hosts_of_a_jump_are_asked_for_in_turn(case: &Case) {
    if !has_passwords(case) {
        return;
    }
    let terminal = Terminal::open(200, 24);
    let run = on(&terminal, case.copying(&["-J", "far"], "a", "a"));
    answer(&terminal, &run, 1, "wrong");
    answer(&terminal, &run, 2, PASSWORD);
    answer(&terminal, &run, 3, PASSWORD);
    run.wait().succeeds();
    assert_eq!(case.dst.read("a"), b"one");
}

/// A configuration with two names for one host, which ssh treats as two hosts.
fn two_names(case: &Case) -> String {
    let read = |path| std::fs::read_to_string(path).expect("read");
    let config = read(case.host().ssh_config());
    let (one, rest) = config.split_once("Host *").expect("what holds for all");
    let known = case.scratch.path("known");
    let mut text = format!("Host *\n\tUserKnownHostsFile \"{}\"\n", known.display());
    let mut keys = String::new();
    let key = read(case.host().ssh_config().with_file_name("known_hosts"));
    for name in ["one", "two"] {
        text += &one.replace("far", name);
        text += &format!("\tHostKeyAlias {name}\n");
        let (_, key) = key.split_once(' ').expect("a name and a key");
        keys += &format!("{name} {key}");
    }
    case.scratch.file("known", keys);
    let config = case.scratch.file("config", format!("{text}Host *{rest}"));
    config.display().to_string()
}

fn several_hosts_that_ask_are_named_and_asked_for_in_turn(case: &Case) {
    if !has_passwords(case) {
        return;
    }
    let config = two_names(case);
    let (from, dst) = (case.src.path("a"), case.dst.0.display());
    let from = from.display();
    let also = format!("{from} one:{dst}/also1 --also two:{dst}/also2");
    let between = format!("one:{from} two:{dst}/between");
    for words in [also, between] {
        let terminal = Terminal::open(200, 24);
        let run = case.bare().args(["-F", &config]).args(words.split(' '));
        let run = on(&terminal, run);
        until("ssh asks", || (questions(&run) == 1).then_some(()));
        // Which of two destinations asks first is random.
        let (first, second) = match run.stdout.text().contains("@one's") {
            true => ("one", "two"),
            false => ("two", "one"),
        };
        for (nth, name, typed) in [
            (1, first, "wrong"),
            (2, first, PASSWORD),
            (3, second, "wrong"),
            (4, second, PASSWORD),
        ] {
            until("ssh asks", || (questions(&run) == nth).then_some(()));
            let asked = format!("@{name}'s password: ");
            let text = run.stdout.text();
            assert!(text.ends_with(&asked), "{asked:?} is not last: {text:?}");
            // The other login does not ask at the same time.
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(questions(&run), nth, "{:?}", run.stdout.text());
            answer(&terminal, &run, nth, typed);
        }
        run.wait().succeeds();
    }
    for name in ["also1", "also2", "between"] {
        assert_eq!(case.dst.read(name), b"one");
    }
}

fn an_unknown_host_is_confirmed_by_what_one_sees(case: &Case) {
    case.src.file("a", "one");
    let known = case.scratch.path("known_hosts").display().to_string();
    let flags = [
        "-o",
        &format!("UserKnownHostsFile={known}"),
        "-o",
        "StrictHostKeyChecking=ask",
    ];
    let terminal = Terminal::open(200, 24);
    let run = on(&terminal, case.copying(&flags, "a", "a"));
    until("ssh asks", || {
        run.stdout.text().contains("[fingerprint])? ").then_some(())
    });
    assert!(terminal.echoes());
    terminal.type_in("what\n");
    until("ssh asks again", || {
        run.stdout
            .text()
            .contains("or the fingerprint: ")
            .then_some(())
    });
    terminal.type_in("yes\n");
    let screen = run.stdout.clone();
    run.wait().succeeds();
    assert!(screen.text().contains("[fingerprint])? what"));
    assert!(case.scratch.has("known_hosts"));
}

fn a_signal_to_fastcp_alone_gives_the_echo_back(case: &Case) {
    if !has_passwords(case) {
        return;
    }
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let terminal = Terminal::open(200, 24);
        let run = on(&terminal, case.copying(&[], "a", "a"));
        until("ssh asks", || (questions(&run) == 1).then_some(()));
        until("typed text is hidden", || {
            (!terminal.echoes()).then_some(())
        });
        run.signal(signal);
        let lines = seen(&run);
        run.wait().exits(code);
        assert!(terminal.echoes(), "the echo is back: {lines:?}");
    }
}

fn who_asks_stays_the_users_choice(case: &Case) {
    if !has_passwords(case) {
        return;
    }
    case.scratch.file(
        "own",
        format!("#!/bin/sh\necho asked >&2\necho '{PASSWORD}'\n"),
    );
    case.scratch.mode("own", 0o755);
    let terminal = Terminal::open(200, 24);
    let run = case.copying(&[], "a", "a");
    let run = run.env("SSH_ASKPASS", case.scratch.path("own"));
    let run = on(&terminal, run.env("SSH_ASKPASS_REQUIRE", "force"));
    let screen = run.stdout.clone();
    run.wait().succeeds();
    assert!(screen.text().contains("asked"));
    assert!(!screen.text().contains("password:"));
}
