//! Peers that lie about the entries of one end (`--delete`), or about durable copies
//! (`--remove-source-files`).

use fastcp::mirror::NAME_SUMS_MAX;
use fastcp::wire::message::{
    Ack, ByteRange, DeletedEntries, DirectoryNames, ExtraEntries, Message, OWN_NAMES_MAX,
    OWN_NAMES_WAITING, OwnEntry, OwnEntryIs, OwnNames, RemovedSources, RootsResolved,
};

use super::pull_case;
use crate::support::fake_server::{FakeServer, pull, push};
use crate::support::peer::*;
use crate::support::*;

fn names(directory: u64, sums: Vec<u64>) -> Message {
    let is_named = true;
    Message::Names(vec![DirectoryNames {
        directory,
        is_named,
        sums,
    }])
}

fn pulled(case: &Case, flags: &[&str], script: impl FnOnce(&mut FakeServer) + Send) -> run::Done {
    pull(case, flags, "/x/tree", |mut server| {
        server.begin(root(1, "tree", true));
        server.entries(vec![directory(1, 0, "tree")]);
        script(&mut server);
        server.finish();
    })
}

const MIRROR: [&str; 2] = ["-a", "--delete"];

#[test]
fn a_sender_that_breaks_the_protocol_deletes_nothing() {
    let kept = |count| Message::Extra(ExtraEntries::Some(vec![OwnEntryIs::AllExtra; count]));
    let cases: [(&[&str], Vec<Message>); 7] = [
        (&["-a"], vec![names(1, vec![0])]),
        (&MIRROR, vec![names(7, vec![0])]),
        (&MIRROR, vec![names(1, vec![1, 2, 3])]),
        (&MIRROR, vec![names(1, vec![0; 2 * NAME_SUMS_MAX])]),
        (&MIRROR, vec![kept(1)]),
        // The destination has one entry that the sums lack.
        (&MIRROR, vec![names(1, vec![1]), kept(2)]),
        (&MIRROR, vec![names(1, vec![1]), kept(0)]),
    ];
    for (flags, messages) in cases {
        pull_case(|case| {
            case.dst.file("tree/there", "there");
            let shown = format!("{flags:?} {messages:?}");
            let done = pulled(case, flags, |server| {
                let mut has_names = false;
                for message in messages {
                    if matches!(message, Message::Extra(_)) && has_names {
                        server.end(1, 0, None);
                        server.all_sent(1);
                        let asked = |it: &Message| matches!(it, Message::OwnNames(_));
                        server.control.hear_until(asked);
                    }
                    has_names |= matches!(message, Message::Names(_));
                    server.say(message);
                }
                server.end(1, 0, None);
                server.all_sent(1);
            });
            assert_eq!(held_out(&done).code, Some(13), "{shown}: {}", done.stderr);
            assert!(case.dst.has("tree/there"), "{shown}");
        });
    }
}

fn question(below: &str, names: &[&[u8]]) -> OwnNames {
    let entry = |name: &&[u8]| OwnEntry {
        name: name.to_vec(),
        is_directory: false,
    };
    OwnNames {
        root: 1,
        below: below.into(),
        is_extra: false,
        confuses: false,
        entries: names.iter().map(entry).collect(),
    }
}

fn pushed(case: &Case, flags: &[&str], script: impl FnOnce(&mut FakeServer) + Send) -> run::Done {
    case.src.file("tree/file", "file");
    case.src.file("secret", "not in the tree");
    push(case, flags, &case.src.path("tree"), |mut server| {
        server.listen();
        server.hear_roots();
        script(&mut server);
        server.finish();
    })
}

#[test]
fn a_receiver_asks_no_more_than_it_may() {
    let many = vec![&b"x"[..]; OWN_NAMES_MAX + 1];
    let one = question("", &[b"x"]);
    let cases: [(&[&str], Vec<Message>); 4] = [
        (&["-a"], vec![Message::OwnNames(vec![one.clone()])]),
        (&MIRROR, vec![Message::OwnNames(Vec::new())]),
        (&MIRROR, vec![Message::OwnNames(vec![question("", &many)])]),
        // The walk waits for the destinations of the roots, and answers nothing before.
        (
            &MIRROR,
            vec![Message::OwnNames(vec![one]); OWN_NAMES_WAITING + 1],
        ),
    ];
    for (flags, messages) in cases {
        Case::run(Way::LocalPush, |case| {
            let shown = format!("{flags:?}");
            let done = pushed(case, flags, |server| {
                messages.into_iter().for_each(|message| server.say(message));
            });
            assert_eq!(held_out(&done).code, Some(13), "{shown}: {}", done.stderr);
        });
    }
}

/// Nothing outside the operand is looked at, whatever the receiver asks.
#[test]
fn a_receiver_learns_nothing_beyond_the_operand() {
    use OwnEntryIs::{AllExtra, Kept, Unsure};
    let asked = [
        (question("", &[b"file", b"gone"]), vec![Kept, AllExtra]),
        (question("../", &[b"secret", b"gone"]), vec![Unsure; 2]),
        (question("gone/", &[b"gone"]), vec![Unsure]),
        (question("file", &[b"gone"]), vec![Unsure]),
        (question("", &[b"..", b"gone"]), vec![Unsure; 2]),
        (question("", &[b"../secret"]), vec![Unsure]),
        (
            OwnNames {
                root: u64::MAX,
                ..question("", &[b"gone"])
            },
            vec![Unsure],
        ),
    ];
    Case::run(Way::LocalPush, |case| {
        let done = pushed(case, &MIRROR, |server| {
            server.drain();
            server.say(Message::Landed(RootsResolved {
                names: vec![b"there".to_vec()],
                resumes: false,
                ordered: false,
                window: 64,
            }));
            for (question, expected) in asked {
                let shown = format!("{question:?}");
                server.say(Message::OwnNames(vec![question]));
                let answer = |it: &Message| matches!(it, Message::Extra(_));
                let heard = server.control.hear_until(answer);
                let expected = Message::Extra(ExtraEntries::Some(expected));
                assert_eq!(heard, Some(expected), "{shown}");
            }
            // Nothing is in place, so this ends the copy.
            server.say(Message::Done(()));
        });
        held_out(&done).fails();
    });
}

const REMOVING: [&str; 5] = [
    "-r",
    "--remove-source-files",
    "--streams",
    "2",
    "--retries=0",
];

/// Pushes a small and a big file, without their answers.
fn pushed_to_remove(
    case: &Case,
    flags: &[&str],
    script: impl FnOnce(&mut FakeServer) + Send,
) -> run::Done {
    case.src.file("tree/small", "small");
    case.src.file("tree/big", noise(1, 3 * MIB));
    push(case, flags, &case.src.path("tree"), |mut server| {
        server.listen();
        server.hear_roots();
        server.say(Message::Landed(RootsResolved {
            names: vec![b"there".to_vec()],
            resumes: false,
            ordered: false,
            window: 64,
        }));
        script(&mut server);
        server.finish();
    })
}

fn ranges(start: u64, end: u64) -> fastcp::wire::message::NumberRanges {
    [ByteRange { start, end }].into_iter().collect()
}

#[test]
fn a_receiver_that_did_not_get_a_file_has_it_not_removed() {
    Case::run(Way::LocalPush, |case| {
        let done = pushed_to_remove(case, &REMOVING, |server| {
            let frames = server.frames();
            let all = |it: &Message| matches!(it, Message::AllSent(_));
            server.control.hear_until(all);
            // The directory, both files; only the small one is on its way.
            let entries = ranges(1, 4);
            server.say(Message::Durable(entries.clone()));
            server.say(Message::Ack(Ack {
                entries,
                ..Ack::default()
            }));
            let pack = frames.recv().expect("the small file");
            server.say(Message::Ack(Ack {
                chunks: ranges(pack.chunk, pack.chunk + 1),
                ..Ack::default()
            }));
            let removed = |it: &Message| matches!(it, Message::SourcesRemoved(it) if it.is_last);
            let fault = server
                .control
                .hear_until(|it| matches!(it, Message::Fault(_)));
            assert!(fault.is_some());
            assert!(server.control.hear_until(removed).is_some());
            server.say(Message::Done(()));
        });
        done.exits(7).says("it was not sent as a whole");
        assert!(case.src.has("tree/big") && !case.src.has("tree/small"));
    });
}

#[test]
fn copies_that_nobody_has_asked_about_end_the_copy() {
    let removed = |is_last| {
        Message::SourcesRemoved(RemovedSources {
            removed: DeletedEntries {
                count: 1,
                paths: Vec::new(),
            },
            is_last,
        })
    };
    for (flags, entries) in [
        (&["-r"][..], ranges(1, 2)),
        (&REMOVING[..], ranges(900, 901)),
    ] {
        Case::run(Way::LocalPush, |case| {
            let done = pushed_to_remove(case, flags, |server| {
                server.drain();
                server.say(Message::Durable(entries));
            });
            done.fails().says("the receiver").never_says("panicked");
            assert!(case.src.has("tree/small") && case.src.has("tree/big"));
        });
    }
    pull_case(|case| {
        let done = pulled(case, &["-a"], |server| server.say(removed(true)));
        done.fails().says("the sender").never_says("panicked");
    });
}
