//! Peers that lie in dry runs and about changes at the destination.

use fastcp::itemize::{ItemAction, ItemChanges, ItemKind, ItemizedEntry};
use fastcp::report::event::{FileDone, FileResult};
use fastcp::session::host;
use fastcp::wire::message::{
    Data, FILES_DONE_MAX, FilesDone, ITEMIZED_MAX, ItemizedEntries, Message, RootsResolved, Want,
    WantKind,
};

use super::pull_case;
use crate::support::fake_server::{FakeServer, against_control, pull, push};
use crate::support::peer::*;
use crate::support::*;

fn item(path: &[u8], target: &[u8]) -> ItemizedEntry {
    ItemizedEntry {
        action: ItemAction::Made,
        kind: ItemKind::Symlink,
        changes: ItemChanges::of_new(),
        size: 0,
        path: path.to_vec(),
        target: target.to_vec(),
    }
}

fn itemized(entries: Vec<ItemizedEntry>) -> Message {
    Message::Itemized(ItemizedEntries {
        files: u64::MAX,
        bytes: u64::MAX,
        unchanged: u64::MAX,
        entries,
    })
}

fn landed() -> Message {
    Message::Landed(RootsResolved {
        names: vec![b"there".to_vec()],
        resumes: false,
        ordered: false,
        window: 64,
    })
}

fn pushed(case: &Case, flags: &[&str], script: impl FnOnce(&mut FakeServer) + Send) -> run::Done {
    case.src.file("tree/small", "small");
    case.src.file("tree/big", noise(1, 3 * MIB));
    push(case, flags, &case.src.path("tree"), |mut server| {
        // In a dry run nothing is dialled.
        if !flags.contains(&"-rn") {
            server.listen();
        }
        server.hear_roots();
        script(&mut server);
        server.finish();
    })
}

#[test]
fn changes_and_answers_that_were_not_asked_for_end_the_copy() {
    let want = |kind| vec![landed(), Message::Want(vec![Want { entry: 2, kind }])];
    let many = vec![item(b"a", b""); ITEMIZED_MAX + 1];
    let done = |count| {
        let file = FileDone {
            path: b"a".to_vec(),
            size: 1,
            digest: None,
            result: FileResult::Copied,
        };
        let files = vec![file; count];
        vec![Message::FilesDone(FilesDone { files })]
    };
    let cases: [(&[&str], Vec<Message>); 8] = [
        (&["-r"], done(1)),
        (&["-r", "--json"], done(FILES_DONE_MAX + 1)),
        (&["-r"], vec![itemized(vec![item(b"a", b"")])]),
        (&["-r", "--itemize-changes"], vec![itemized(many)]),
        (&["-r"], want(WantKind::WouldSend)),
        (&["-rn"], want(WantKind::Fresh)),
        (&["-rn"], want(WantKind::Digest)),
        (&["-rn"], want(WantKind::Have(vec![(span(0, 5), [1; 32])]))),
    ];
    for (flags, messages) in cases {
        Case::run(Way::LocalPush, |case| {
            let done = pushed(case, flags, |server| {
                server.drain();
                for message in messages {
                    server.say(message);
                }
            });
            assert_eq!(held_out(&done).code, Some(13), "{flags:?}: {}", done.stderr);
        });
    }
}

/// A receiver that says that it resumes nothing would get packs at once.
#[test]
fn a_dry_run_asks_about_each_file_whatever_the_receiver_says() {
    Case::run(Way::LocalPush, |case| {
        let mut has_asked = false;
        let done = pushed(case, &["-rn"], |server| {
            server.say(landed());
            let asked = |message: &Message| matches!(message, Message::Ask(_) | Message::Data(_));
            has_asked = matches!(server.control.hear_until(asked), Some(Message::Ask(_)));
            server.leave();
        });
        held_out(&done);
        assert!(has_asked);
    });
}

#[test]
fn names_of_changes_reach_the_terminal_harmless() {
    Case::run(Way::LocalPush, |case| {
        let mut names = vec![item(b"\x1b[31mred", b"\x9b\r\n>f+++++++++ lie")];
        names.extend(vec![item(&[b'x'; 9000], b""); 3]);
        let done = pushed(case, &["-rn"], |server| {
            server.say(landed());
            server.say(itemized(names));
            server.leave();
        });
        held_out(&done);
        let told = done.stdout_text();
        assert!(
            !told.contains(|c: char| c.is_control() && c != '\n'),
            "{told}"
        );
        assert_eq!(told.lines().count(), 4, "{told}");
    });
}

#[test]
fn a_sender_that_sends_data_in_a_dry_run_writes_nothing() {
    pull_case(|case| {
        case.dst.file("there", "there");
        let before = Tree::read(&case.dst.0);
        let done = pull(case, &["-rn"], "/x/tree", |mut server| {
            server.roots(vec![root(1, "tree", true)]);
            server.landed();
            server.entries(vec![directory(1, 0, "tree")]);
            server.entries(vec![file(2, 1, "f", 5)]);
            server.wanted();
            let bytes = server.keys.piece(2, 0, 5, b"bytes");
            server.say(Message::Data(Data { bytes }));
            server.finish();
        });
        assert_eq!(held_out(&done).code, Some(13), "{}", done.stderr);
        let after = Tree::read(&case.dst.0);
        assert!(before.differences(&after, Also::ModesAndTimes).is_empty());
    });
}

/// A receiver of an older version would copy.
#[test]
fn an_older_peer_gets_nothing() {
    for (flag, reason) in [
        ("-n", "would copy in a dry run"),
        ("--itemize-changes", "--itemize-changes"),
    ] {
        Case::run(Way::LocalPush, |case| {
            let source = case.src.file("a", "a");
            let mut older = host::hello();
            older.features.retain(|one| one != "dry-run-and-check");
            let words = [flag.as_ref(), source.as_os_str(), "far:there".as_ref()];
            let done = against_control(case, &words, |mut control| {
                control.say_hello_as(&older);
                control.hear_hello();
                let heard = control.hear();
                let is_told = matches!(heard, Some(Message::Open(_)));
                assert!(!is_told, "{flag}: it was told to copy");
            });
            done.exits(4).says(reason).says("is older");
        });
    }
}
