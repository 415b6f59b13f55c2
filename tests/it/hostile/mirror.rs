//! Peers that lie about what one end has and the other has not (`--delete`).

use fastcp::mirror::NAME_SUMS_MAX;
use fastcp::wire::message::{
    DirectoryNames, ExtraEntries, Message, OWN_NAMES_MAX, OWN_NAMES_WAITING, OwnEntry, OwnEntryIs,
    OwnNames, RootsResolved,
};

use super::pull_case;
use crate::support::fake_server::{FakeServer, pull, push};
use crate::support::peer::*;
use crate::support::*;

fn names(directory: u64, sums: Vec<u64>) -> Message {
    Message::Names(vec![DirectoryNames { directory, sums }])
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
