//! Builds of neighbouring versions: what a client of version 1 said, byte for byte, is said again
//! to this build's far end, to a finished copy. The transcript was recorded with a known secret, so
//! that its keys, frames and counters are the same every time.
//!
//! `FASTCP_RECORD=1` records it anew, for as long as version 1 may still grow.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use fastcp::manifest::{Entry, Totals};
use fastcp::seal::Direction;
use fastcp::wire::hello::MAGIC;
use fastcp::wire::message::{AllSent, EntryEnd, Listen, Message, Role, Roots, SessionSecret};

use crate::hostile::client::{against_server_with, open, record_opening};
use crate::support::peer::*;
use crate::support::*;

/// As version 1 said it.
const HELLO: &str = "{\"protocol_min\":1,\"protocol_max\":1,\"build\":\"0.1.0\",\"features\":[],\
    \"suites\":[1,2,3],\"codecs\":[0,1,2,3],\"limits\":{\"chunk\":1048576,\"message\":8388608,\
    \"streams\":256,\"open_entries\":256},\"boot_id\":\"\",\"processors\":2}";

/// As a later one might, that still speaks version 1.
const NEWER_HELLO: &str = "{\"protocol_min\":1,\"protocol_max\":7,\"build\":\"3.2.1\",\
    \"features\":[\"time travel\"],\"suites\":[9,1,2,3],\"codecs\":[0,1,2,3,4],\"colour\":\"red\",\
    \"limits\":{\"chunk\":1048576,\"message\":8388608,\"streams\":256,\"open_entries\":256,\
    \"moons\":2}}";

const CONTENT: &[u8] = b"what a client of version 1 had to say\n";

fn transcript() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/transcripts/client-v1")
}

/// The client's side of a copy of one file, in the order in which it is said; a line that begins
/// with `await` is where it waits for a message of that kind.
fn recorded() -> String {
    let mut open = open(Role::Receiver {
        path: b"copy".to_vec(),
        sources: vec![b"f".to_vec()],
    });
    open.session = [1; 16];
    let secret = [2; 32];
    let mut keys = Keys::new(&open, secret, Direction::ToServer);
    let size = CONTENT.len() as u64;
    // The sender's file is of no machine in particular.
    let source = Entry {
        dev: 1,
        ino: 2,
        ..file(1, 0, "f", size)
    };
    let frame = keys.piece(1, 0, size, CONTENT);
    let end = EntryEnd {
        entry: 1,
        length: size,
        root: Some(blake3::hash(CONTENT).into()),
    };
    let (roots, totals) = (vec![root(1, "f", false)], Totals::default());
    let (last, unused) = (1, vec![]);
    let control = |messages: Vec<Message>| {
        let bytes: Vec<u8> = messages.iter().flat_map(encode).collect();
        format!("control {}\n", hex(&bytes))
    };
    [
        control(vec![
            Message::Open(open),
            Message::Secret(SessionSecret(secret)),
        ]),
        "await listen\n".to_owned(),
        format!("stream {}\n", hex(&record_opening(&keys))),
        "await opened\n".to_owned(),
        control(vec![Message::Roots(Roots { roots, totals })]),
        "await landed\n".to_owned(),
        control(vec![Message::Entries(vec![source])]),
        "await want\n".to_owned(),
        format!("stream {}\n", hex(&frame)),
        control(vec![
            Message::EntryEnd(vec![end]),
            Message::AllSent(AllSent { last, unused }),
        ]),
        "await done\n".to_owned(),
    ]
    .concat()
}

#[test]
fn a_client_of_version_1_is_served_by_this_build() {
    if std::env::var_os("FASTCP_RECORD").is_some() {
        std::fs::write(transcript(), recorded()).expect("record it");
    }
    let said = std::fs::read_to_string(transcript()).expect("it was recorded");
    for hello in [HELLO, NEWER_HELLO] {
        Case::run(Way::LocalPush, |case| {
            case.src.file("f", CONTENT);
            let code = against_server_with(case, &[], |control| {
                let heard = control.hear_hello().expect("a hello");
                assert!(heard.protocol_min <= 1, "version 1 is still spoken");
                control.bytes(MAGIC);
                control.bytes(format!("{hello}\n").as_bytes());
                replay(control, &said);
            });
            assert_eq!(code, Some(0));
            assert_eq!(case.home.read("copy"), CONTENT);
        });
    }
}

/// Says the client's part, waiting where it waited.
fn replay(control: &mut Control, said: &str) {
    let mut stream = None;
    for line in said.lines() {
        let (kind, rest) = line.split_once(' ').expect("two words");
        match (kind, rest) {
            ("control", bytes) => control.bytes(&unhex(bytes)),
            ("stream", bytes) => {
                let stream: &mut TcpStream = stream.as_mut().expect("it listens by now");
                stream.write_all(&unhex(bytes)).expect("it takes it");
            }
            ("await", "listen") => {
                let Message::Listen(Listen { port, .. }) = await_kind(control, rest) else {
                    panic!("something else");
                };
                stream = Some(TcpStream::connect(("127.0.0.1", port)).expect("connect"));
            }
            ("await", "opened") => {
                let mut answer = [0; 40];
                let stream = stream.as_mut().expect("it listens by now");
                stream.read_exact(&mut answer).expect("an answer");
            }
            ("await", _) => drop(await_kind(control, rest)),
            _ => panic!("what is {line}?"),
        }
    }
}

fn await_kind(control: &mut Control, kind: &str) -> Message {
    let is_it = |message: &Message| match message {
        Message::Listen(_) => kind == "listen",
        Message::Landed(_) => kind == "landed",
        Message::Want(_) => kind == "want",
        Message::Done(()) => kind == "done",
        _ => false,
    };
    let heard = control.hear_until(is_it);
    heard.unwrap_or_else(|| panic!("it ended without a {kind}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair| {
        let pair = std::str::from_utf8(pair).expect("text");
        u8::from_str_radix(pair, 16).expect("hexadecimal")
    };
    digits.map(byte).collect()
}
