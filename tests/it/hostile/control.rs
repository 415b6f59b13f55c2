//! Invalid and false messages on control, and connections that close too early.

use std::io::Write;
use std::time::Duration;

use fastcp::wire::hello::Hello;
use fastcp::wire::message::{AllSent, EntryEnd, MESSAGE_MAX, Message, Relay};

use super::{known, pull_case};
use crate::support::fake_server::{FakeServer, against_control, pull};
use crate::support::peer::*;
use crate::support::*;

/// A pull whose server sends `said` once the root has landed, and waits for the client's end.
fn told(case: &Case, said: &[u8]) -> run::Done {
    pull(case, &["-r"], "/x/tree", |mut server| {
        server.begin(root(1, "tree", true));
        server.entries(vec![directory(1, 0, "tree")]);
        server.control.bytes(said);
        server.finish();
    })
}

#[test]
fn garbage_on_control_ends_the_copy() {
    let four_billion = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let said = [
        // Types that do not exist, and a body that cannot be decoded.
        raw(0, 0, &[]),
        raw(22, 0, &[]),
        raw(0x7fff, 3, b"abc"),
        raw(7, 3, b"abc"),
        raw(7, 0, &[]),
        // Lengths beyond the limit.
        raw(7, MESSAGE_MAX + 1, &[]),
        raw(7, u32::MAX, &[]),
        raw(0xffff, u32::MAX, &[]),
        // A list of 2^32 elements, and a text of the same length.
        raw(7, 5, &four_billion),
        raw(5, 5, &four_billion),
        raw(12, 5, &four_billion),
        raw(13, 6, &[&[1], &four_billion[..]].concat()),
        raw(
            11,
            10,
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ),
        raw(19, 9, &[&[5, 0, 1, 0][..], &four_billion].concat()),
        // Bytes after a body.
        raw(14, 1, &[0]),
    ];
    for said in said {
        pull_case(|case| {
            let done = told(case, &said);
            held_out(&done).exits(13).says("an invalid message");
            assert!(case.dst.dir("tree").names().is_empty(), "{said:?}");
            let peak = done.peak_rss_bytes() / MIB as u64;
            assert!(peak < 70, "took {peak} MiB");
        });
    }
}

#[test]
fn noise_on_control_ends_the_copy() {
    for seed in 0..8 {
        pull_case(|case| {
            held_out(&told(case, &noise(seed, 3000))).exits(13);
        });
    }
}

/// A version that does not know a skippable type of message skips it.
#[test]
fn an_unknown_message_that_may_be_skipped_is_skipped() {
    pull_case(|case| {
        let mut said = raw(0x8001, 5, b"later");
        Message::EntryEnd(vec![EntryEnd {
            entry: 1,
            length: 0,
            root: None,
        }])
        .encode(&mut said);
        Message::AllSent(AllSent {
            last: 1,
            unused: vec![],
        })
        .encode(&mut said);
        told(case, &said).succeeds();
    });
}

/// Messages nested a million deep, deeper than any stack.
#[test]
fn messages_within_messages_end_the_copy() {
    pull_case(|case| {
        let nested = raw(21, 4_000_000, &vec![20; 4_000_000]);
        held_out(&told(case, &nested)).exits(13);
    });
    pull_case(|case| {
        let done = told(case, &encode(&relayed(Message::Done(()))));
        held_out(&done).exits(13).says("an invalid message");
    });
}

fn relayed(message: Message) -> Message {
    let body = encode(&message).split_off(fastcp::wire::message::HEADER_LEN);
    Message::Relay(Relay { number: 14, body })
}

/// Messages that only a client or only a receiver may send.
#[test]
fn messages_out_of_place_end_the_copy() {
    let said = [
        Message::Done(()),
        Message::Want(vec![]),
        Message::Nack(vec![1]),
        Message::Ack(Default::default()),
        Message::Landed(fastcp::wire::message::RootsResolved {
            names: vec![],
            resumes: false,
            ordered: false,
            window: 64,
        }),
        Message::Credit(5),
        Message::Data(fastcp::wire::message::Data { bytes: vec![1] }),
    ];
    for said in said {
        pull_case(|case| {
            let done = told(case, &encode(&said));
            held_out(&done).exits(13).says("an invalid message");
        });
    }
}

#[test]
fn entries_before_the_roots_end_the_copy() {
    pull_case(|case| {
        let done = pull(case, &["-r"], "/x/tree", |mut server| {
            server.entries(vec![directory(1, 0, "tree")]);
            server.finish();
        });
        held_out(&done).exits(13).says("an invalid message");
        assert!(case.dst.names().is_empty());
    });
}

#[test]
fn an_end_before_everything_came_is_no_success() {
    let content = noise(1, 2 * MIB);
    // Missing entries, an unsent file, a half-sent file, an unfinished directory.
    for what in 0..5 {
        pull_case(|case| {
            known(case, &content);
            let done = pull(case, &["-r", "--streams", "2"], "/x/tree", |mut server| {
                server.begin(root(1, "tree", true));
                server.entries(vec![directory(1, 0, "tree")]);
                let last = match what {
                    0 => 9,
                    1 | 2 => {
                        server.entries(vec![file(2, 1, "f", content.len() as u64)]);
                        server.wanted();
                        let size = content.len() as u64;
                        if what == 2 {
                            let piece = server.keys.piece(2, 0, size, &content[..MIB]);
                            server.send(0, &piece);
                        }
                        server.end(2, size, Some(blake3::hash(&content).into()));
                        2
                    }
                    3 => {
                        server.entries(vec![directory(2, 1, "d")]);
                        2
                    }
                    _ => {
                        server.entries(vec![symlink(2, 1, "l", "x")]);
                        // It announces more children than ever arrive.
                        server.end(1, 5, None);
                        2
                    }
                };
                if what < 3 {
                    server.end(1, 1, None);
                }
                server.all_sent(last);
                let unasked = |message: &Message| matches!(message, Message::Done(()));
                if what < 4 {
                    std::thread::park_timeout(Duration::from_millis(200));
                    server.leave();
                }
                assert!(server.control.hear_until(unasked).is_none(), "done: {what}");
            });
            // While the rest may still arrive, the failure is a lost connection.
            held_out(&done).exits(if what < 3 { 5 } else { 13 });
            assert!(!case.dst.has("tree/f"));
        });
    }
}

/// The server dies in the order most like an orderly end: first it stops reading control, then it
/// closes the rest.
#[test]
fn a_far_end_that_dies_is_no_success() {
    for n in 0..6 {
        pull_case(|case| {
            let content = noise(1, 3 * MIB);
            let done = pull(case, &["-r", "--streams", "2"], "/x/tree", |mut server| {
                server.begin(root(1, "tree", true));
                server.entries(vec![directory(1, 0, "tree")]);
                server.entries(vec![file(2, 1, "f", content.len() as u64)]);
                server.wanted();
                let FakeServer {
                    control,
                    mut streams,
                    mut keys,
                    ..
                } = server;
                let control = control.deafen();
                // The client acknowledges each, but nobody reads that.
                for at in 0..2 {
                    let data = &content[at * MIB..(at + 1) * MIB];
                    let piece = keys.piece(2, (at * MIB) as u64, content.len() as u64, data);
                    streams[0].write_all(&piece).ok();
                    std::thread::park_timeout(Duration::from_millis(50 * n));
                }
                let symlinks = (3..40).map(|id| {
                    encode(&Message::Entries(vec![symlink(
                        id,
                        1,
                        &format!("l{id}"),
                        "x",
                    )]))
                });
                for one in symlinks {
                    (&control).write_all(&one).ok();
                    std::thread::park_timeout(Duration::from_millis(n));
                }
                drop((control, streams));
            });
            held_out(&done).exits(5);
            assert!(!case.dst.has("tree/f"));
        });
    }
}

#[test]
fn another_version_of_the_protocol_is_told_with_both() {
    pull_case(|case| {
        let words = ["far:/x/f".as_ref(), case.dst.0.as_os_str()];
        let done = against_control(case, &words, |mut control| {
            let hello = Hello {
                protocol_min: 40,
                protocol_max: 41,
                build: "9.9\u{1b}[2J".into(),
                ..fastcp::session::host::hello()
            };
            control.bytes(&hello.to_line());
            control.hear_out_raw();
        });
        held_out(&done)
            .exits(4)
            .says("protocol 40 to 41")
            .says("protocol 1 to 1");
    });
}

#[test]
fn noise_before_the_hello_is_skipped_and_endless_noise_is_refused() {
    pull_case(|case| {
        let words = ["far:/x/f".as_ref(), case.dst.0.as_os_str()];
        let done = against_control(case, &words, |mut control| {
            // No newline, and the beginning of a hello.
            for _ in 0..100 {
                control.bytes(b"Welcome!\x1b]0;owned\x07 \0fastcp\0hel");
            }
            control.say_hello();
            control.hear_hello();
            control.bytes(&raw(0, 0, &[]));
            control.hear_out_raw();
        });
        held_out(&done).exits(13);
    });
    let long_line = [b"\0fastcp\0hello {", &[b' '; 100_000][..]].concat();
    let never = vec![b'\0'; 1 << 20];
    for said in [
        never,
        long_line,
        b"\0fastcp\0hello []\n".to_vec(),
        b"\0fastcp\0hello {}\n".to_vec(),
    ] {
        pull_case(|case| {
            let words = ["far:/x/f".as_ref(), case.dst.0.as_os_str()];
            let done = against_control(case, &words, |mut control| {
                control.bytes(&said);
                control.hear_out_raw();
            });
            held_out(&done).exits(4);
        });
    }
}
