//! A receiver that lies about its data and about its listening address.

use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fastcp::error::{Kind, Side};
use fastcp::wire::message::{
    Ack, Data, Fault, Listen, Message, Missing, NumberRanges, RANGES_MAX, Want, WantKind,
};

use crate::support::fake_server::{FakeServer, push};
use crate::support::peer::*;
use crate::support::*;

/// A push of `what` in the source, to a receiver that has sent the names of the copies.
fn pushed(
    case: &Case,
    flags: &[&str],
    what: &str,
    script: impl FnOnce(&mut FakeServer) + Send,
) -> run::Done {
    let flags = [&["-r", "--streams", "2"], flags].concat();
    push(case, &flags, &case.src.path(what), |mut server| {
        server.listen();
        server.hear_roots();
        server.landed_as(vec![b"there".to_vec()]);
        script(&mut server);
        server.finish();
    })
}

fn push_case(body: impl FnOnce(&Case)) {
    Case::run(Way::LocalPush, |case| {
        case.src.file("big", noise(1, 3 * MIB));
        for n in 0..20 {
            case.src.file(format!("tree/{n}"), noise(n, 1000));
        }
        body(case);
    });
}

fn ack(chunks: &[(u64, u64)], entries: &[(u64, u64)]) -> Message {
    let spans = |pairs: &[(u64, u64)]| pairs.iter().map(|pair| span(pair.0, pair.1)).collect();
    Message::Ack(Ack {
        chunks: spans(chunks),
        entries: spans(entries),
        failed: NumberRanges::default(),
    })
}

/// Ranges to resume or compare that a file of three chunks does not have.
#[test]
fn ranges_that_cannot_be_end_the_copy() {
    const M: u64 = MIB as u64;
    let size = 3 * M;
    let table: &[&[(u64, u64)]] = &[
        &[(1, M)],
        &[(0, M - 1)],
        &[(0, M), (0, M)],
        &[(0, 2 * M), (M, 2 * M)],
        &[(2 * M, 4 * M)],
        &[(size, size + M)],
        &[(M, M)],
        &[(2 * M, M)],
        &[(u64::MAX - 5, u64::MAX)],
        &[(0, u64::MAX)],
    ];
    let mut kinds = Vec::new();
    for ranges in table {
        let spans: Vec<_> = ranges
            .iter()
            .map(|&(start, end)| span(start, end))
            .collect();
        let values = spans.iter().map(|span| (*span, [1; 32])).collect();
        kinds.extend([WantKind::Have(values), WantKind::Compare(spans)]);
    }
    // Whole chunks that together are no subtree of the file's digest.
    kinds.push(WantKind::Have(vec![(span(M, 3 * M), [1; 32])]));
    // More ranges than a file may have.
    let many = (0..RANGES_MAX as u64 + 1).map(|n| span(n * M, (n + 1) * M));
    kinds.push(WantKind::Compare(many.collect()));
    for kind in kinds {
        push_case(|case| {
            let done = pushed(case, &[], "big", |server| {
                server.drain();
                let announced = |message: &Message| matches!(message, Message::Entries(_));
                server.control.hear_until(announced);
                server.say(Message::Want(vec![Want { entry: 1, kind }]));
            });
            held_out(&done).exits(13).says("an invalid message");
        });
    }
}

/// Damage that begins within a chunk: a file could have as many such ranges as bytes.
#[test]
fn damage_that_begins_at_any_byte_ends_the_copy() {
    const M: u64 = MIB as u64;
    for missing in [span(1, M), span(M + 4096, 2 * M)] {
        push_case(|case| {
            let done = pushed(case, &[], "big", |server| {
                server.drain();
                let announced = |message: &Message| matches!(message, Message::Entries(_));
                server.control.hear_until(announced);
                let kind = WantKind::Have(vec![(span(0, 3 * M), [1; 32])]);
                server.say(Message::Want(vec![Want { entry: 1, kind }]));
                let spans = vec![missing];
                server.say(Message::Missing(Missing { entry: 1, spans }));
            });
            held_out(&done).exits(13).says("an invalid message");
        });
    }
}

#[test]
fn done_before_everything_was_sent_is_no_success() {
    for what in ["big", "tree"] {
        for acked in [None, Some(ack(&[(0, u64::MAX)], &[]))] {
            push_case(|case| {
                let done = pushed(case, &[], what, |server| {
                    if let Some(acked) = acked {
                        server.say(acked);
                    }
                    server.say(Message::Done(()));
                });
                held_out(&done).exits(13).says("an invalid message");
            });
        }
    }
}

#[test]
fn acknowledgements_of_what_was_never_sent_end_the_copy_or_change_nothing() {
    let impossible = [
        ack(&[(5, 3)], &[]),
        ack(&[(u64::MAX, 0)], &[]),
        ack(&[], &[(1, u64::MAX)]),
        ack(&[], &[(2, 1)]),
        ack(&[], &[(0, 1)]),
        ack(&[], &[(40_000, 40_001)]),
        Message::Ack(Ack {
            failed: [span(1, 1 << 40)].into_iter().collect(),
            ..Ack::default()
        }),
        Message::Fault(Fault {
            kind: Kind::Write,
            errno: 0,
            side: Side::Dest,
            entry: 1 << 40,
            parent: 1,
            path: vec![],
            text: "no".into(),
        }),
    ];
    for said in impossible {
        push_case(|case| {
            let done = pushed(case, &[], "big", |server| server.say(said.clone()));
            held_out(&done).exits(13).says("an invalid message");
        });
    }
    let ignored = [
        ack(&[(100, u64::MAX)], &[]),
        ack(&[(7, 7)], &[]),
        Message::Nack(vec![99, u64::MAX]),
        Message::Want(vec![Want {
            entry: 77,
            kind: WantKind::Fresh,
        }]),
    ];
    for said in ignored {
        push_case(|case| {
            let done = pushed(case, &[], "big", |server| {
                server.say(said.clone());
                server.leave();
            });
            held_out(&done).exits(5);
        });
    }
}

#[test]
fn what_only_a_sender_says_ends_the_copy() {
    for said in [
        Message::Entries(vec![file(2, 1, "x", 1)]),
        Message::AllSent(fastcp::wire::message::AllSent {
            last: 1,
            unused: vec![],
        }),
        Message::Data(Data { bytes: vec![0; 64] }),
    ] {
        push_case(|case| {
            let done = pushed(case, &[], "tree", |server| server.say(said.clone()));
            held_out(&done).exits(13).says("an invalid message");
        });
    }
}

/// Repeatedly requests chunks that have arrived intact.
#[test]
fn a_chunk_is_sent_three_times_and_no_more() {
    push_case(|case| {
        let done = pushed(case, &["--compress", "none"], "big", |server| {
            server.drain();
            let Some(Message::Entries(entries)) = server
                .control
                .hear_until(|message| matches!(message, Message::Entries(_)))
            else {
                panic!("no entry was announced");
            };
            server.say(Message::Want(vec![Want {
                entry: entries[0].id,
                kind: WantKind::Fresh,
            }]));
            // A `Nack` counts only while its chunk is in flight, and a busy machine may be slow to
            // send it again.
            let mut to = server.control.take_writer();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Relaxed) {
                        to.write_all(&encode(&Message::Nack(vec![0, 1, 2]))).ok();
                        std::thread::park_timeout(Duration::from_millis(2));
                    }
                });
                let failed = |message: &Message| matches!(message, Message::Fault(_));
                server.control.hear_until(failed);
                over.store(true, Relaxed);
            });
            drop(to);
            server.leave();
        });
        readable(&done).says("failed verification 3 times").exits(5);
    });
}

/// An entry is sent once, however often and in whichever way the receiver requests it.
#[test]
fn an_entry_is_wanted_once() {
    push_case(|case| {
        let mut frames = None;
        let done = pushed(case, &["--compress", "none"], "big", |server| {
            let frames = frames.insert(server.frames());
            let entries = |message: &Message| matches!(message, Message::Entries(_));
            server.control.hear_until(entries);
            let kinds = [
                WantKind::Fresh,
                WantKind::Digest,
                WantKind::Have(vec![(span(0, u64::MAX), [0; 32]), (span(9, 3), [0; 32])]),
                WantKind::Fresh,
                WantKind::Skip,
                WantKind::Fresh,
            ];
            for kind in kinds {
                server.say(Message::Want(vec![Want { entry: 1, kind }]));
            }
            let mut came: Vec<_> = (0..3)
                .map(|_| frames.recv_timeout(Duration::from_secs(20)))
                .map(|frame| frame.expect("a chunk comes").offset)
                .collect();
            came.sort();
            assert_eq!(came, [0, MIB as u64, 2 * MIB as u64]);
            server.say(ack(&[(0, 3)], &[(1, 2)]));
            let sent = |message: &Message| matches!(message, Message::AllSent(_));
            server.control.hear_until(sent);
            server.say(Message::Done(()));
        });
        readable(&done).succeeds();
        let more = frames.expect("the client came").iter().count();
        assert_eq!(more, 0, "chunks came again");
    });
}

#[test]
fn landing_places_of_nonsense_harm_no_list_of_digests() {
    let names: [Vec<Vec<u8>>; 6] = [
        vec![],
        vec![b"a".to_vec(); 1000],
        vec![b"x\n0000  forged\x1b[2J".to_vec()],
        vec![b"\xff\x1b[2J".to_vec()],
        vec![vec![0xff; 100_000]],
        vec![b"../../elsewhere".to_vec()],
    ];
    for names in names {
        push_case(|case| {
            let list = case.scratch.path("list");
            let flags = ["--digests", list.to_str().expect("ours")];
            let flags = [&["-r", "--streams", "2"], &flags[..]].concat();
            let names = names.clone();
            let done = push(case, &flags, &case.src.path("tree"), |mut server| {
                server.listen();
                server.drain();
                server.hear_roots();
                server.landed_as(names);
                let all = |message: &Message| matches!(message, Message::AllSent(_));
                server.control.hear_until(all);
                // The receiver claims to have everything, which the sender cannot check.
                server.say(ack(&[(0, 1000)], &[(1, 22)]));
                server.say(Message::Done(()));
                server.finish();
            });
            readable(&done);
            let forged = |line: &str| line.starts_with("0000");
            let text = String::from_utf8(case.scratch.read("list")).expect("UTF-8");
            assert!(!text.lines().any(forged), "{text}");
        });
    }
}

/// Addresses with no listener, or with another program.
#[test]
fn a_port_where_nobody_listens_is_said() {
    let at = |addresses: &[&str], port| Listen {
        addresses: addresses.iter().map(|text| text.to_string()).collect(),
        port,
    };
    let places = [
        at(&["127.0.0.1"], 1),
        at(&["127.0.0.1"], 0),
        at(&[], 1),
        at(&["not an address", "\u{1b}[2J", "%", ""], 1),
        at(&["127.0.0.1"; 5000], 1),
    ];
    for place in places {
        push_case(|case| {
            let done = push(case, &[], &case.src.path("big"), |mut server| {
                server.say(Message::Listen(place.clone()));
                server.hear_roots();
                server.landed_as(vec![b"there".to_vec()]);
                server.finish();
            });
            held_out(&done).exits(3).says("no stream");
        });
    }
}

#[test]
fn somebody_else_at_the_data_port_gets_nothing_and_is_told_from_the_server() {
    let answers = [&b""[..], &[b'x'; 40], b"fastcp+1"];
    // At the same time: each client dials for ten seconds before it gives up.
    at_once(answers, |answer| {
        push_case(|case| {
            let done = push(
                case,
                &["--no-encrypt"],
                &case.src.path("big"),
                |mut server| {
                    let heard = server.listen_as_stranger(answer);
                    // Openings, but not one byte of the file.
                    assert!(
                        heard <= 64 * usize::from(server.open.streams.unwrap_or(1)),
                        "{heard} bytes"
                    );
                    server.finish();
                },
            );
            held_out(&done).exits(3).says("no stream");
        });
    });
}

/// The client does not wait forever for a silent server with an open connection.
#[test]
fn a_silent_far_end_is_given_up() {
    push_case(|case| {
        let flags = ["--timeout", "5s", "--retries", "0"];
        let done = push(case, &flags, &case.src.path("big"), |mut server| {
            server.listen();
            server.finish();
        });
        held_out(&done).exits(5).says("nothing was heard from");
    });
}

/// A receiver may not send on a stream that it receives data on.
#[test]
fn a_stream_that_talks_back_is_dropped() {
    push_case(|case| {
        let flags = ["--timeout", "5s", "--retries", "0"];
        let done = pushed(case, &flags, "big", |server| {
            for stream in &mut server.streams {
                stream.write_all(&noise(1, 100_000)).ok();
            }
            server.beat_for(Duration::from_secs(25));
        });
        held_out(&done).exits(5).says("streams were lost");
    });
}
