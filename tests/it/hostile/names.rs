//! Hostile names of roots and of entries.

use std::ffi::OsString;

use fastcp::chunk::pack::{PackWriter, TableForm};
use fastcp::chunk::{Buffer, ChunkKind, ChunkPlace};
use fastcp::manifest::{Entry, EntryKind, Root};
use fastcp::wire::message::{Message, Roots};

use super::pull_case;
use crate::support::fake_server::pull;
use crate::support::peer::*;

/// Byte strings that cannot be file names.
fn no_names() -> Vec<Vec<u8>> {
    [
        &b".."[..],
        b".",
        b"",
        b"/etc/passwd",
        b"../../outside/precious",
        b"a/b",
        b"a\0b",
        &[b'n'; 256],
    ]
    .map(<[u8]>::to_vec)
    .to_vec()
}

#[test]
fn an_entry_with_a_name_that_is_none_ends_the_copy() {
    for evil in no_names() {
        for (kind, size) in [
            (EntryKind::File, 1),
            (EntryKind::Directory, 0),
            (EntryKind::Symlink(b"x".to_vec()), 0),
            (EntryKind::HardLink(1), 0),
        ] {
            pull_case(|case| {
                let done = pull(case, &["-r"], "/x/tree", |mut server| {
                    server.begin(root(1, "tree", true));
                    server.entries(vec![directory(1, 0, "tree")]);
                    let message = Message::Entries(vec![entry(2, 1, "EVIL", kind.clone(), size)]);
                    let bytes = with_name(&message, "EVIL", &evil);
                    server.control.bytes(&bytes);
                    server.finish();
                });
                held_out(&done).exits(13).says("an invalid message");
                assert!(case.dst.dir("tree").names().is_empty());
            });
        }
    }
}

#[test]
fn an_entry_that_was_not_requested_ends_the_copy_and_is_not_made() {
    type Entries = Vec<Entry>;
    let sent = |flags: &[&str], source: &str, entries: Entries, packed: Option<Entries>| {
        pull_case(|case| {
            let list = case.scratch.file("list", "a/b\n").display().to_string();
            let is_list = !flags.contains(&"--relative");
            let list = ["--files-from", &list];
            let flags = [flags, if is_list { &list } else { &[] }].concat();
            let done = pull(case, &flags, source, |mut server| {
                if is_list {
                    let names = |message: &Message| matches!(message, Message::FileNames(_));
                    let names = server.control.hear_until(names);
                    let Some(Message::FileNames(names)) = names else {
                        panic!("no list");
                    };
                    assert_eq!((&names.names[..], names.is_last), (&b"./a/b\0"[..], true));
                }
                let top = Root {
                    contents: true,
                    ..root(1, "x", true)
                };
                server.begin(top);
                server.entries(vec![directory(1, 0, "x"), directory(2, 1, "a")]);
                server.entries(entries.clone());
                if let Some(members) = &packed {
                    let evil = |member: &Entry| (member.clone(), &b"evil"[..]);
                    let members: Vec<_> = members.iter().map(evil).collect();
                    let frame = server.keys.pack(&members);
                    server.send(0, &frame);
                }
                server.finish();
            });
            held_out(&done)
                .exits(13)
                .says("an entry that was not requested");
            let a = case.dst.path("a");
            let names = |dir: &std::path::Path| -> Vec<_> {
                let read = std::fs::read_dir(dir).into_iter().flatten();
                read.map(|entry| entry.expect("an entry").file_name())
                    .collect()
            };
            assert!(case.dst.names().iter().all(|name| name == "a"));
            let below = names(&a);
            assert!(below.iter().all(|name| name == "b"), "{below:?}");
            assert!(names(&a.join("b")).is_empty());
        });
    };
    sent(&[], "/x", vec![symlink(3, 2, "c", "x")], None);
    sent(&["-r"], "/x", vec![directory(3, 1, ".ssh")], None);
    sent(
        &[],
        "/x",
        vec![directory(3, 2, "b"), file(4, 3, "x", 1)],
        None,
    );
    sent(&[], "/x", vec![symlink(3, 1, "a", "x")], None);
    let pack = vec![file(3, 2, "b", 4), file(4, 2, "c", 4)];
    sent(&["--streams", "1"], "/x", vec![], Some(pack.clone()));
    let relative = ["--relative", "--streams", "1"];
    sent(&relative, "/y/./a/b*", vec![], Some(pack));
    sent(&["--relative"], "a/b", vec![directory(3, 1, ".ssh")], None);
    let below = vec![directory(3, 2, "b"), file(4, 3, "x", 1)];
    sent(&["--relative"], "a/b", below, None);
}

#[test]
fn nothing_is_no_answer_to_a_list() {
    for flags in [&["--relative"][..], &["--files-from"]] {
        pull_case(|case| {
            let list = case.scratch.file("list", "a/b\n").display().to_string();
            let list = (flags[0] == "--files-from").then_some(&list[..]);
            let flags = flags.iter().copied().chain(list).collect::<Vec<_>>();
            let done = pull(case, &flags, "/x", |mut server| {
                server.listen();
                server.control.say(Message::Roots(Roots {
                    roots: Vec::new(),
                    totals: Default::default(),
                }));
                server.finish();
            });
            held_out(&done)
                .exits(13)
                .says("neither a file nor an error");
        });
    }
}

#[test]
fn a_root_with_a_name_that_is_none_ends_the_copy() {
    for evil in no_names() {
        pull_case(|case| {
            let done = pull(case, &["-r"], "/x/*", |mut server| {
                server.listen();
                let roots = vec![root(1, "EVIL", true)];
                let message = Message::Roots(Roots {
                    roots,
                    totals: Default::default(),
                });
                let bytes = with_name(&message, "EVIL", &evil);
                server.control.bytes(&bytes);
                server.finish();
            });
            held_out(&done).exits(13).says("an invalid message");
            assert!(case.dst.names().is_empty());
        });
    }
}

#[test]
fn a_pack_with_a_name_that_is_none_is_not_unpacked() {
    for evil in no_names() {
        pull_case(|case| {
            let done = pull(case, &["-r", "--streams", "1"], "/x/tree", |mut server| {
                server.begin(root(1, "tree", true));
                server.entries(vec![directory(1, 0, "tree")]);
                let mut buffer = Buffer::loose(server.keys.chunk_size);
                let mut writer = PackWriter::new(&mut buffer, TableForm::Records);
                let member = file(2, 1, "EVIL", 4);
                writer
                    .room(&member)
                    .expect("it fits")
                    .copy_from_slice(b"evil");
                writer.push(member);
                writer.finish();
                // Contents, table, the table's length.
                let table = &buffer.data()[4..buffer.len() - 4];
                let mut table = table.to_vec();
                replace_name(&mut table, "EVIL", &evil);
                let digest = blake3::hash(&table).into();
                let len = (table.len() as u32).to_le_bytes();
                let pack = [b"evil", &table[..], &len].concat();
                let place = ChunkPlace {
                    kind: ChunkKind::Pack,
                    ..server.keys.place(0, 0, pack.len())
                };
                let frame = server.keys.frame(place, digest, &pack);
                // Once more than the three times that a damaged chunk may arrive.
                for _ in 0..4 {
                    server.send(0, &frame);
                    let nack = |message: &Message| matches!(message, Message::Nack(_));
                    server.control.hear_until(nack);
                }
                server.finish();
            });
            held_out(&done).exits(6);
            assert!(case.dst.dir("tree").names().is_empty());
        });
    }
}

/// Each case: options, the operand as typed, and the server's roots.
#[test]
fn roots_that_were_not_asked_for_are_refused() {
    let contents = |root: Root| Root {
        contents: true,
        ..root
    };
    let of_operand = |operand, root: Root| Root { operand, ..root };
    let cases: Vec<(&[&str], &str, Vec<Root>)> = vec![
        (&[], "/x/f", vec![root(1, "g", false)]),
        (&[], "/x/f", vec![root(1, ".bashrc", false)]),
        (&[], "/x/f", vec![root(1, "F", false)]),
        (&[], "/x/f", vec![root(1, "f", false), root(2, "f", false)]),
        (&[], "/x/f", vec![root(1, "f", false), root(2, "g", false)]),
        (&[], "/x/f", vec![root(1, "f", true)]),
        (&[], "/x/*.c", vec![root(1, "a.h", false)]),
        (
            &[],
            "/x/*.c",
            vec![root(1, "a.c", false), root(2, "h", false)],
        ),
        (&[], "/x/*", vec![root(1, ".bashrc", false)]),
        (&[], "/x/f", vec![contents(root(1, "f", false))]),
        (&["-r"], "/x/f", vec![contents(root(1, "f", true))]),
        (&["-r"], "/x/f/", vec![root(1, "f", true)]),
        (&["-r"], "/x/*", vec![contents(root(1, "f", true))]),
        (&["-r"], "/x/..", vec![root(1, "f", true)]),
        (&["-r"], "/x/..", vec![contents(root(1, "f", false))]),
        (&["-r"], "~", vec![root(1, ".bashrc", false)]),
        (&[], "~", vec![root(1, ".bashrc", false)]),
        (&["-r"], "", vec![root(1, "f", true)]),
        (&["-r"], "", vec![contents(root(1, ".bashrc", false))]),
        (&[], "/x/f", vec![of_operand(1, root(1, "f", false))]),
        (&[], "/x/f", vec![of_operand(u32::MAX, root(1, "f", false))]),
    ];
    for (flags, operand, roots) in cases {
        pull_case(|case| {
            let done = pull(case, flags, operand, |mut server| {
                server.listen();
                server.roots(roots.clone());
                if server.landed() {
                    // The client accepted the roots: send as much as it takes.
                    for root in roots.iter().filter(|root| !root.is_directory) {
                        let named = root.name.as_os_str().to_str().expect("ours");
                        server.whole_file(file(root.id, 0, named, 0), b"evil");
                    }
                    server.all_sent(roots.len() as u64);
                }
                server.finish();
            });
            held_out(&done).exits(13).says("was not requested");
            assert_eq!(case.dst.names(), [""; 0], "{operand} {flags:?}");
        });
    }
}

#[test]
fn the_roots_are_said_once() {
    pull_case(|case| {
        let done = pull(case, &[], "/x/*", |mut server| {
            server.begin(root(1, "a", false));
            server.roots(vec![root(1, "b", false)]);
            server.finish();
        });
        held_out(&done).exits(13).says("an invalid message");
    });
}

/// The user asked for a file; a directory, a symlink or a hard link arrives.
#[test]
fn a_root_is_what_it_was_announced_as() {
    let kinds = [
        EntryKind::Directory,
        EntryKind::Symlink(b"/etc/passwd".to_vec()),
        EntryKind::HardLink(7),
    ];
    for kind in kinds {
        pull_case(|case| {
            let done = pull(case, &[], "/x/f", |mut server| {
                server.begin(root(1, "f", false));
                server.entries(vec![entry(1, 0, "f", kind.clone(), 0)]);
                server.end(1, 0, None);
                server.all_sent(1);
                server.finish();
            });
            held_out(&done).exits(13).says("an invalid message");
            assert!(case.dst.names().is_empty(), "{kind:?}");
        });
    }
    for kind in [EntryKind::File, EntryKind::Symlink(b"/etc".to_vec())] {
        for there in [false, true] {
            pull_case(|case| {
                if there {
                    case.dst.dir("tree");
                }
                let done = pull(case, &["-r"], "/x/tree", |mut server| {
                    server.begin(root(1, "tree", true));
                    server.entries(vec![entry(1, 0, "tree", kind.clone(), 0)]);
                    server.all_sent(1);
                    server.finish();
                });
                held_out(&done).exits(13).says("an invalid message");
                let is_there = case.dst.has("tree");
                assert!(is_there == there && (!there || case.dst.meta("tree").is_dir()));
            });
        }
    }
}

/// A copy fails if the server does not send a root that the user asked for by name.
#[test]
fn a_root_that_never_comes_is_no_success() {
    for last in [0, 1, 2, u64::MAX - 1, u64::MAX] {
        pull_case(|case| {
            let done = pull(case, &[], "/x/f", |mut server| {
                server.begin(root(1, "f", false));
                server.say(Message::AllSent(fastcp::wire::message::AllSent {
                    last,
                    unused: vec![span(1, u64::MAX)],
                }));
                server.control.hear();
            });
            held_out(&done).exits(13);
            assert!(case.dst.names().is_empty());
        });
    }
    pull_case(|case| {
        let done = pull(case, &[], "/x/f", |mut server| {
            server.listen();
            server.roots(vec![]);
            server.landed();
            server.all_sent(0);
            server.finish();
        });
        held_out(&done).exits(13).says("/x/f");
        assert!(case.dst.names().is_empty());
    });
}

#[test]
fn a_name_that_a_terminal_would_act_on_is_told_readably() {
    pull_case(|case| {
        let evil = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\u{202e}x\u{9b}31m";
        case.dst
            .dir(OsString::from("tree/").into_string().unwrap() + evil);
        let done = pull(case, &["-r"], "/x/tree", |mut server| {
            server.begin(root(1, "tree", true));
            server.entries(vec![directory(1, 0, "tree"), symlink(2, 1, evil, "x")]);
            server.end(1, 1, None);
            server.all_sent(2);
            server.finish();
        });
        held_out(&done).says("\\x1b");
    });
}
