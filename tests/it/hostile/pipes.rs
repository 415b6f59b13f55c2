//! Hostile messages about a pipe: what an end of a pipe of unknown length may send.

use std::ffi::OsStr;

use fastcp::manifest::{Entry, EntryKind, Root};
use fastcp::wire::message::{Message, RootsResolved, Want, WantKind};

use super::pull_case;
use crate::support::fake_server::{FakeServer, against, pull, push};
use crate::support::peer::*;
use crate::support::*;

fn stream(named: &str) -> Entry {
    entry(1, 0, named, EntryKind::Pipe, 0)
}

fn nameless() -> Root {
    Root {
        contents: true,
        ..root(1, "-", false)
    }
}

/// One chunk of the pipe's data: `MIB` bytes of noise.
fn part(server: &mut FakeServer, n: usize) {
    let data = noise(n as u64, MIB);
    let frame = server.keys.piece(1, (n * MIB) as u64, u64::MAX, &data);
    server.send(0, &frame);
}

#[test]
fn a_stream_that_is_not_what_its_end_says_gets_no_name() {
    let whole: Vec<u8> = (0..3).flat_map(|n| noise(n, MIB)).collect();
    let two = blake3::hash(&whole[..2 * MIB]).into();
    for (length, digest) in [
        (3 * MIB, None),
        (3 * MIB, Some([7; 32])),
        (2 * MIB, Some(two)),
        (2 * MIB + 5, Some(two)),
        (0, Some(blake3::hash(b"").into())),
    ] {
        pull_case(|case| {
            let done = pull(case, &[], "/x/f", |mut server| {
                server.begin(root(1, "f", false));
                server.entries(vec![stream("f")]);
                server.wanted();
                (0..3).for_each(|n| part(&mut server, n));
                // The last chunk has arrived: an earlier end does not make the data shorter.
                let third = |message: &Message| match message {
                    Message::Ack(ack) => ack.chunks.iter().any(|span| span.end >= 3),
                    _ => false,
                };
                server.control.hear_until(third);
                server.end(1, length as u64, digest);
                server.all_sent(1);
                server.finish();
            });
            held_out(&done)
                .exits(6)
                .says("digests of the whole file differ");
            assert!(case.dst.names().is_empty());
        });
    }
}

/// A producer that pauses makes chunks of any length; no two of them may overlap.
#[test]
fn odd_pieces_of_a_stream_are_taken_and_pieces_that_overlap_are_not() {
    let data = noise(1, MIB);
    let apart = [(700_000, MIB), (7, 5000), (0, 7), (5000, 700_000)];
    let overlapping = [(700_000, MIB), (7, 5000), (0, 8), (5000, 700_000)];
    for (pieces, code) in [(apart, 0), (overlapping, 13)] {
        pull_case(|case| {
            case.src.file("f", &data);
            let done = pull(case, &[], "/x/f", |mut server| {
                server.begin(root(1, "f", false));
                server.entries(vec![stream("f")]);
                server.wanted();
                for (start, end) in pieces {
                    let part = &data[start..end];
                    let frame = server.keys.piece(1, start as u64, u64::MAX, part);
                    server.send(0, &frame);
                }
                let whole = blake3::hash(&data).into();
                server.end(1, MIB as u64, Some(whole));
                server.all_sent(1);
                server.finish();
            });
            done.exits(code).never_says("panicked");
            assert_eq!(case.dst.has("f"), code == 0);
        });
    }
}

#[test]
fn chunks_beyond_the_window_are_not_kept() {
    pull_case(|case| {
        let flags = ["--memory", "24Mi", "--streams", "1", "far:/x/f", "-"];
        let words: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
        let done = against(case, &words, |mut server| {
            server.listen();
            server.roots(vec![root(1, "f", false)]);
            let landed = |message: &Message| matches!(message, Message::Landed(_));
            let Some(Message::Landed(RootsResolved { window, .. })) =
                server.control.hear_until(landed)
            else {
                return;
            };
            server.entries(vec![stream("f")]);
            server.wanted();
            // All but the first chunk, so that every other chunk would have to wait for it.
            (1..window as usize + 2).for_each(|n| part(&mut server, n));
            server.finish();
        });
        held_out(&done)
            .exits(13)
            .says("more chunks than the window has room for");
        assert!(done.stdout.is_empty());
    });
}

#[test]
fn a_command_brings_no_name_of_its_own() {
    for roots in [
        vec![root(1, "evil", false)],
        vec![root(1, "evil", true)],
        vec![nameless(), nameless()],
    ] {
        pull_case(|case| {
            let dest = case.dst.path("");
            let words = ["--from-command", "x", "far:"].map(OsStr::new);
            let words = [&words[..], &[dest.as_os_str()]].concat();
            let done = against(case, &words, |mut server| {
                server.listen();
                server.roots(roots);
                server.finish();
            });
            held_out(&done).exits(13).says("was not requested");
            assert!(case.dst.names().is_empty());
        });
    }
}

#[test]
fn a_receiver_of_a_stream_cannot_ask_for_parts_of_it() {
    let said = [
        Message::Landed(RootsResolved {
            names: vec![b"there".to_vec()],
            resumes: false,
            ordered: true,
            window: 0,
        }),
        Message::Want(vec![Want {
            entry: 1,
            kind: WantKind::Have(vec![(span(0, MIB as u64), [1; 32])]),
        }]),
        Message::Want(vec![Want {
            entry: 1,
            kind: WantKind::Digest,
        }]),
    ];
    for said in said {
        Case::run(Way::LocalPush, |case| {
            let done = push(
                case,
                &["--from-command", "sleep 100"],
                "-".as_ref(),
                |mut server| {
                    server.listen();
                    server.hear_roots();
                    let announced = |message: &Message| matches!(message, Message::Entries(_));
                    server.control.hear_until(announced);
                    server.say(said);
                    server.finish();
                },
            );
            held_out(&done).exits(13).says("an invalid message");
        });
    }
}
