//! Peers that lie about lists of digests: a client that looks outside its directory, and a server
//! that answers what nobody asked.

use std::ffi::OsStr;

use fastcp::wire::message::{
    FoundContent, ListedDigest, ListedDigests, Message, Role, VerifiedFile, VerifiedFiles,
};

use super::client::{aborted, against_server_with, begin, open, server_case};
use crate::support::fake_server::against;
use crate::support::*;

const SECRET: &str = "only for those who may read\n";

fn verifier(path: &str) -> Role {
    let path = path.as_bytes().to_vec();
    Role::Verifier { path }
}

#[test]
fn a_confined_key_finds_nothing_out_about_other_files() {
    server_case(|case| {
        let dir = case.src.dir("shared");
        case.src.file("secret", SECRET);
        dir.file("inside", SECRET);
        dir.file(".fastcp-journal-1", SECRET);
        dir.link("link", "../secret");
        dir.link("way", "..");
        let own = dir.0.display().to_string();
        let outside = case.src.path("secret").display().to_string();
        let asked = [
            "inside",
            "./inside",
            "../secret",
            "sub/../../secret",
            &outside,
            "link",
            "way/secret",
            ".fastcp-journal-1",
        ];
        let digest = *blake3::hash(SECRET.as_bytes()).as_bytes();
        let listed = |(number, path): (u64, &&str)| ListedDigest {
            number,
            path: path.as_bytes().to_vec(),
            digest,
        };
        let files: Vec<_> = (0..).zip(&asked).map(listed).collect();
        let confine = ["--confine", &own, "--read-only"];
        against_server_with(case, &confine, |control| {
            begin(control, open(verifier(""))).expect("it listens");
            control.say(Message::ListedDigests(ListedDigests {
                files: files.clone(),
                is_last: true,
            }));
            let mut found = vec![None; asked.len()];
            while found.contains(&None) {
                let is_answer = |message: &Message| matches!(message, Message::VerifiedFiles(_));
                let Some(Message::VerifiedFiles(answer)) = control.hear_until(is_answer) else {
                    panic!("no answer: {found:?}");
                };
                for file in answer.files {
                    found[file.number as usize] = Some(file.found);
                }
            }
            let same = Some(FoundContent::Same(SECRET.len() as u64));
            assert!(found[..2].iter().all(|it| *it == same), "{found:?}");
            for (name, found) in asked.iter().zip(&found).skip(2) {
                assert!(
                    matches!(found, Some(FoundContent::Failed(_))),
                    "{name}: {found:?}"
                );
            }
        });
        for path in ["..", "way", &case.src.0.display().to_string()] {
            against_server_with(case, &confine, |control| {
                begin(control, open(verifier(path))).expect("it listens");
                assert!(aborted(control), "{path}");
            });
        }
        let confine = ["--confine", &own, "--write-only"];
        against_server_with(case, &confine, |control| {
            assert!(begin(control, open(verifier(""))).is_none());
        });
    });
}

#[test]
fn an_answer_that_nobody_asked_for_ends_the_check() {
    Case::run(Way::LocalPull, |case| {
        let digest = blake3::hash(b"a").to_hex();
        let list = case.scratch.file("sums", format!("{digest}  a\n"));
        let list = format!("--check={}", list.display());
        let answers = |numbers: &[u64]| {
            let found = |number: &u64| VerifiedFile {
                number: *number,
                found: FoundContent::Same(1),
            };
            Message::VerifiedFiles(VerifiedFiles {
                files: numbers.iter().map(found).collect(),
            })
        };
        for (message, code) in [
            (answers(&[1]), 0),
            (answers(&[2]), 13),
            (answers(&[1, 1]), 13),
            (Message::Done(()), 13),
        ] {
            let words = [OsStr::new(&list), "far:dir".as_ref()];
            let done = against(case, &words, |mut server| {
                let listed = |message: &Message| matches!(message, Message::ListedDigests(_));
                server.control.hear_until(listed);
                server.say(message.clone());
                server.control.hear_out();
            });
            done.exits(code).never_says("panicked");
        }
    });
}
