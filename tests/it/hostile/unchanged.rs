//! Peers that lie about unchanged files: answers that nobody asked for, sums of directories that are
//! not compared, and malformed metadata, or metadata that was not requested.

use fastcp::manifest::{ATTRIBUTES, ATTRIBUTES_MAX, EntryKind, Extension, SpecialFile};
use fastcp::wire::message::{
    DirectorySum, EntrySums, Message, RootsResolved, SUMS_MAX, SumsAnswer, SumsFound, Want,
    WantKind,
};

use super::{known, pull_case};
use crate::support::fake_server::{FakeServer, pull, push};
use crate::support::peer::*;
use crate::support::*;

fn pushed(case: &Case, flags: &[&str], script: impl FnOnce(&mut FakeServer) + Send) -> run::Done {
    case.src.file("tree/small", "small");
    case.src.file("tree/big", noise(1, 3 * MIB));
    let flags = [&["--streams", "2"], flags].concat();
    push(case, &flags, &case.src.path("tree"), |mut server| {
        server.listen();
        server.hear_roots();
        script(&mut server);
        server.finish();
    })
}

fn landed(resumes: bool) -> Message {
    Message::Landed(RootsResolved {
        names: vec![b"there".to_vec()],
        resumes,
        ordered: false,
        window: 64,
    })
}

fn summed(directory: u64, part: u32, found: SumsFound) -> Message {
    Message::Summed(SumsAnswer {
        directory,
        part,
        files: 1,
        found,
    })
}

#[test]
fn answers_that_were_not_asked_for_end_the_copy() {
    let want = |kind| Message::Want(vec![Want { entry: 3, kind }]);
    let key = Message::SumUp([1; 32]);
    let long = SumsFound::Some(vec![0; SUMS_MAX / 8 + 1]);
    let scripts: [(&[&str], Vec<Message>); 8] = [
        (&["-r"], vec![landed(true), want(WantKind::Unchanged)]),
        (&["-r"], vec![landed(true), want(WantKind::Stays)]),
        (&["-r"], vec![landed(false), summed(1, 0, SumsFound::Same)]),
        (&["-a"], vec![landed(true), summed(1, 0, SumsFound::Same)]),
        (&["-a"], vec![landed(true), key.clone()]),
        (
            &["-a"],
            vec![key.clone(), landed(true), summed(7, 0, SumsFound::Same)],
        ),
        (
            &["-a"],
            vec![key.clone(), landed(true), summed(1, 9, SumsFound::New)],
        ),
        (&["-a"], vec![key, landed(true), summed(1, 0, long)]),
    ];
    for (flags, messages) in scripts {
        Case::run(Way::LocalPush, |case| {
            let shown = format!("{flags:?} {messages:?}");
            let done = pushed(case, flags, |server| {
                server.drain();
                let is_about_sums = messages.iter().any(|it| matches!(it, Message::SumUp(_)));
                for message in messages {
                    if matches!(message, Message::Summed(_)) && is_about_sums {
                        // The walk has asked by then.
                        let asked = |it: &Message| matches!(it, Message::DirectorySums(_));
                        server.control.hear_until(asked);
                    }
                    server.say(message);
                }
            });
            assert_eq!(held_out(&done).code, Some(13), "{shown}: {}", done.stderr);
        });
    }
}

fn pulled(case: &Case, flags: &[&str], script: impl FnOnce(&mut FakeServer) + Send) -> run::Done {
    pull(case, flags, "/x/tree", |mut server| {
        server.begin(root(1, "tree", true));
        server.entries(vec![directory(1, 0, "tree")]);
        script(&mut server);
        server.finish();
    })
}

#[test]
fn sums_that_are_not_compared_end_the_copy() {
    let sum = |directory| DirectorySum {
        directory,
        entries: 1,
        sum: [1; 16],
    };
    let some = |directory, len| {
        Message::EntrySums(EntrySums {
            directory,
            part: 0,
            sums: vec![1; len],
        })
    };
    let messages: [(&str, Message); 7] = [
        ("-r", Message::DirectorySums(vec![sum(1)])),
        ("-r", some(1, 8)),
        ("-a", Message::DirectorySums(vec![sum(9)])),
        ("-a", Message::DirectorySums(vec![sum(1); 300])),
        ("-a", some(9, 8)),
        ("-a", some(1, 7)),
        ("-a", some(1, 8 * (SUMS_MAX + 1))),
    ];
    for (flag, message) in messages {
        pull_case(|case| {
            case.dst.file("tree/there", "there");
            let shown = format!("{flag} {:?}", std::mem::discriminant(&message));
            let done = pulled(case, &[flag], |server| server.say(message));
            assert_eq!(held_out(&done).code, Some(13), "{shown}: {}", done.stderr);
        });
    }
}

/// The entry fails, or gets less; nothing else happens.
#[test]
fn metadata_that_is_none_fails_its_entry() {
    let attributes = |bytes: Vec<u8>| Extension {
        tag: ATTRIBUTES,
        bytes,
    };
    for bytes in [vec![255; 9], vec![1, 0, 0], vec![0; ATTRIBUTES_MAX + 1]] {
        pull_case(|case| {
            known(case, b"evil");
            let done = pulled(case, &["-a"], |server| {
                let mut evil = file(2, 1, "evil", 0);
                evil.extensions.push(attributes(bytes));
                server.whole_file(evil, b"evil");
                server.end(1, 1, None);
                server.all_sent(2);
            });
            held_out(&done).fails();
            assert!(!case.dst.has("tree/evil"));
        });
    }
    pull_case(|case| {
        let done = pulled(case, &["-r"], |server| {
            let mut device = file(2, 1, "device", 0);
            device.kind = EntryKind::Special(SpecialFile::BlockDevice);
            server.entries(vec![device]);
            server.end(1, 1, None);
            server.all_sent(2);
        });
        held_out(&done).fails();
        assert!(!case.dst.has("tree/device"), "only -a makes devices");
    });
}
