//! A client with a stolen key that may only add files to a backup. It sends any message it likes,
//! but can read nothing, replace nothing and delete nothing.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fastcp::earlier::{EarlierCopies, EarlierPath, Reuse};
use fastcp::keep::{Keep, UnchangedBy, Update};
use fastcp::manifest::{EntryKind, Timestamp, Totals};
use fastcp::snapshot::{Retention, SnapshotTerms};
use fastcp::wire::message::{
    Archive, EntryEnd, Message, Open, Role, Roots, SessionSecret, Want, WantKind,
};

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

/// It may add a snapshot. It says that files of the last one have other modes, and that links and
/// directories are in their places.
#[test]
fn a_stolen_key_changes_no_snapshot() {
    server_case(|case| {
        let bk = case.dst.dir("bk");
        let old = bk.dir("2026-11-22T020000Z");
        old.file("f", "content");
        old.file("g", "content");
        old.file("sub/h", "content");
        bk.link("latest", "2026-11-22T020000Z");
        bk.file(".fastcp-snapshots/2026-11-22T020000Z", "");
        // What an interrupted run has left shares files with it.
        let partial = bk.dir(".fastcp-snapshot-partial");
        std::fs::hard_link(old.path("g"), partial.path("g")).expect("link it");
        partial.link("sub", "../2026-11-22T020000Z/sub");
        case.remember();
        let before = Tree::read(&old.0);
        let meta = old.meta("f");
        let own = case.dst.0.display().to_string();
        let key = ["--confine", &own, "--write-only", "--no-overwrite"];
        let play = |more: &[&str], spoil: &dyn Fn(&mut Archive), is_refused: bool| {
            let mut archive = Archive {
                keep: Keep::modes_and_times(),
                update: Update {
                    unchanged_by: UnchangedBy::SizeAndTime,
                    ..Update::default()
                },
                snapshot: Some(SnapshotTerms {
                    strict: false,
                    keep: None,
                }),
                ..Archive::default()
            };
            spoil(&mut archive);
            against_server_with(case, &[&key[..], more].concat(), |control| {
                control.hear_hello();
                let mut hello = fastcp::session::host::hello();
                hello.archives = true;
                control.say_hello_as(&hello);
                control.say(Message::Open(receiver("bk")));
                control.say(Message::Secret(SessionSecret([7; 32])));
                control.say(Message::Archive(archive));
                let mut root = root(1, "x", true);
                root.contents = true;
                let (roots, totals) = (vec![root], Totals::default());
                control.say(Message::Roots(Roots { roots, totals }));
                let over =
                    |message: &Message| matches!(message, Message::Landed(_) | Message::Abort(_));
                let answer = control.hear_until(over);
                let landed = matches!(answer, Some(Message::Landed(_)));
                assert_eq!(landed, !is_refused, "{answer:?}");
                if is_refused {
                    return;
                }
                let of = |id, parent, name, mode| {
                    let mut entry = file(id, parent, name, 7);
                    entry.mode = mode;
                    entry.mtime = Timestamp {
                        s: meta.mtime(),
                        ns: meta.mtime_nsec() as u32,
                    };
                    entry
                };
                let mut sub = directory(4, 1, "sub");
                sub.mode = 0o777;
                control.say(Message::Entries(vec![directory(1, 0, "x"), sub]));
                control.say(Message::Ask(vec![
                    of(2, 1, "f", 0o777),
                    of(3, 1, "g", 0o777),
                    of(5, 4, "h", 0o777),
                    of(6, 1, "f", 0o644),
                    of(7, 1, "f", 0o777),
                ]));
                let want = |message: &Message| matches!(message, Message::Want(_));
                let Some(Message::Want(wants)) = control.hear_until(want) else {
                    panic!("no answer");
                };
                // Content that it may not read is copied for nobody.
                let sent = |want: &Want| want.kind == WantKind::Fresh;
                assert!(
                    wants.iter().filter(|want| want.entry != 6).all(sent),
                    "{wants:?}"
                );
            });
            let changed = before.differences(&Tree::read(&old.0), Also::ModesAndTimes);
            assert!(changed.is_empty(), "{changed:?}");
            assert_eq!(old.mode_of("sub"), 0o755);
        };
        play(&[], &|_| (), true);
        let allowed = ["--allow-snapshot"];
        play(&allowed, &|_| (), false);
        let earlier = EarlierCopies {
            reuse: Reuse::Copy,
            directories: vec![EarlierPath(b"2026-11-22T020000Z".to_vec())],
        };
        let keep = Retention::parse("1d").expect("a policy");
        let spoils: [&dyn Fn(&mut Archive); 6] = [
            &|archive| archive.earlier = Some(earlier.clone()),
            &|archive| (archive.earlier, archive.snapshot) = (Some(earlier.clone()), None),
            &|archive| archive.mirror.deletes = true,
            &|archive| archive.mirror.removes_sources = true,
            &|archive| archive.update.unchanged_by = UnchangedBy::Content,
            &|archive| {
                archive.snapshot = Some(SnapshotTerms {
                    strict: false,
                    keep: Some(keep),
                });
            },
        ];
        for spoil in spoils {
            play(&allowed, spoil, true);
        }
        assert_eq!(
            bk.names().iter().filter(|name| name.ends_with('Z')).count(),
            1
        );
        for own in [".fastcp-snapshots", ".fastcp-snapshot-partial"] {
            std::fs::remove_dir_all(bk.path(own)).expect("remove it");
        }
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
