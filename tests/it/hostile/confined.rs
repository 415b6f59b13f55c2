//! A client with a stolen key that may only add files to a backup. It sends any message it likes,
//! but can read nothing, replace nothing and delete nothing.

use std::path::Path;

use fastcp::manifest::{EntryKind, Totals};
use fastcp::wire::message::{EntryEnd, Message, Open, Role, Roots, WantKind};

use super::client::{against_server_with, begin, open, server_case};
use crate::support::peer::*;
use crate::support::*;

/// The backup before the client connects.
fn backup(case: &Case) -> Dir {
    let dir = case.dst.dir("web1");
    dir.file("secret", "secret\n");
    dir.file("big", noise(1, 2 * MIB));
    dir.dir("sub");
    dir.file("sub/kept", "kept\n");
    dir.mode("sub", 0o750);
    dir.link("out", case.scratch.path("outside"));
    let fifo = dir.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).expect("make a FIFO");
    dir
}

/// Runs `body` against a server whose key may only add to `dir`; existing files must not change.
fn with_stolen_key(body: impl Fn(&Case, &Dir, &mut Control)) {
    server_case(|case| {
        let dir = backup(case);
        case.remember();
        let before = Tree::read(&dir.0);
        let own = dir.0.display().to_string();
        let arguments = ["--confine", &own, "--write-only", "--no-overwrite"];
        against_server_with(case, &arguments, |control| body(case, &dir, control));
        dir.sweep();
        let after = Tree::read(&dir.0);
        let lost = before.differences(&after, Also::Nothing);
        let lost: Vec<_> = lost
            .iter()
            .filter(|fault| !fault.starts_with("unexpected"))
            .collect();
        assert!(lost.is_empty(), "{lost:?}");
        assert_eq!(dir.read("secret"), b"secret\n");
        assert_eq!(dir.mode_of("sub"), 0o750);
    });
}

fn receiver(path: &str) -> Open {
    let (path, sources) = (path.as_bytes().to_vec(), vec![b"x".to_vec()]);
    open(Role::Receiver { path, sources })
}

#[test]
fn a_stolen_key_reads_nothing() {
    for operand in [
        "secret",
        "",
        ".",
        "~",
        "sub/kept",
        "out/precious",
        "/etc/passwd",
    ] {
        with_stolen_key(|_, _, control| {
            let operands = vec![operand.as_bytes().to_vec()];
            assert!(
                begin(control, open(Role::Sender { operands })).is_none(),
                "{operand}"
            );
        });
    }
    // Nor can it run a command.
    let command = b"cat secret > stolen".to_vec();
    let source = b"x".to_vec();
    for role in [
        Role::Producer {
            command: command.clone(),
        },
        Role::Consumer { command, source },
    ] {
        with_stolen_key(|_, _, control| {
            assert!(begin(control, open(role.clone())).is_none(), "{role:?}");
        });
    }
    // The server does not compare existing files with the client's data, whatever options the
    // client sends.
    with_stolen_key(|_, dir, control| {
        let mut open = receiver(&dir.0.display().to_string());
        open.options.no_clobber = true;
        open.options.digests = true;
        begin(control, open).expect("it listens");
        let roots = vec![root(1, "big", false)];
        let totals = Totals::default();
        control.say(Message::Roots(Roots { roots, totals }));
        control.say(Message::Entries(vec![file(1, 0, "big", 2 << 20)]));
        let refused = |message: &Message| matches!(message, Message::Fault(_));
        assert!(control.hear_until(refused).is_some());
        let want = control.hear_until(|message| matches!(message, Message::Want(_)));
        let Some(Message::Want(wants)) = want else {
            panic!("no answer");
        };
        assert!(
            wants.iter().all(|want| want.kind == WantKind::Skip),
            "{wants:?}"
        );
    });
}

#[test]
fn a_stolen_key_probes_no_other_place_and_leaves_nothing_in_its_own() {
    let tried = |message: &Message| matches!(message, Message::Tried(_));
    let answered = |message: &Message| tried(message) || matches!(message, Message::Abort(_));
    for path in ["/tmp", "out", "out/x", "../x", "fifo", "no/where"] {
        with_stolen_key(|_, _, control| {
            let path = path.as_bytes().to_vec();
            begin(control, open(Role::Probe { path })).expect("it listens");
            let answer = control.hear_until(answered);
            assert!(!answer.is_some_and(|answer| tried(&answer)));
        });
    }
    with_stolen_key(|_, _, control| {
        let path = b"secret".to_vec();
        begin(control, open(Role::Probe { path })).expect("it listens");
        assert!(control.hear_until(tried).is_some());
    });
}

#[test]
fn a_stolen_key_replaces_and_deletes_nothing() {
    type Spoil = fn(&mut Open);
    let spoils: [Spoil; 4] = [
        |_| (),
        |open| open.options.force = true,
        |open| open.options.no_resume = true,
        |open| open.options.preserve = true,
    ];
    for spoil in spoils {
        with_stolen_key(|_, dir, control| {
            let mut open = receiver(&dir.0.display().to_string());
            spoil(&mut open);
            begin(control, open).expect("it listens");
            let mut root = root(1, "x", true);
            root.contents = true;
            let (roots, totals) = (vec![root], Totals::default());
            control.say(Message::Roots(Roots { roots, totals }));
            let landed = |message: &Message| matches!(message, Message::Landed(_));
            assert!(control.hear_until(landed).is_some(), "it has landed");
            let mut sub = directory(2, 1, "sub");
            sub.mode = 0o777;
            control.say(Message::Entries(vec![
                directory(1, 0, "x"),
                sub,
                file(3, 1, "big", 10),
                symlink(4, 1, "secret", Path::new("/etc/passwd")),
                symlink(5, 2, "kept", Path::new("x")),
                entry(6, 1, "out", EntryKind::Directory, 0),
                entry(7, 2, "kept", EntryKind::HardLink(3), 0),
            ]));
            control.say(Message::EntryEnd(vec![EntryEnd {
                entry: 2,
                length: 2,
                root: None,
            }]));
            // A hard link to a file that was not placed fails alone, as if the file had vanished
            // at its source.
            let of_the_link =
                |message: &Message| matches!(message, Message::Fault(fault) if fault.entry == 7);
            assert!(control.hear_until(of_the_link).is_some());
        });
    }
    with_stolen_key(|_, dir, control| {
        let mut open = receiver(&dir.0.display().to_string());
        open.options.inplace = true;
        assert!(begin(control, open).is_none());
    });
}

#[test]
fn a_stolen_key_leads_nowhere_else() {
    for path in [
        "/tmp/x",
        "../x",
        "out/x",
        "out",
        "~root/x",
        "sub/../../x",
        "fifo",
        "/",
    ] {
        with_stolen_key(|_, _, control| {
            begin(control, receiver(path)).expect("it listens");
            let (roots, totals) = (vec![root(1, "x", false)], Totals::default());
            control.say(Message::Roots(Roots { roots, totals }));
            let landed =
                |message: &Message| matches!(message, Message::Landed(_) | Message::Abort(_));
            let answer = control.hear_until(landed);
            assert!(
                matches!(answer, Some(Message::Abort(_))),
                "{path}: {answer:?}"
            );
        });
    }
}
