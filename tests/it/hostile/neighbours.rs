//! Compatibility with protocol version 1. The tests replay a recorded client to this build's
//! server, and a recorded server to this build's client, until the copy is complete.
//!
//! The client's transcript is replayed byte for byte: it was recorded with a fixed secret, so its
//! keys, frames and counters never change. A client under test has a new secret each time. The
//! server's transcripts therefore fix only the control messages, and the test seals their frames
//! during the replay.
//!
//! `FASTCP_RECORD=1` records the transcripts again, for as long as version 1 may still be extended.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

use fastcp::manifest::{Entry, Totals};
use fastcp::seal::Direction;
use fastcp::wire::frame::{FrameHeader, FrameLimits, HEADER_LEN};
use fastcp::wire::hello::MAGIC;
use fastcp::wire::message::{
    Ack, AllSent, EntryEnd, Listen, Message, Open, Role, Roots, RootsResolved, SessionSecret,
};

use crate::hostile::client::{against_server_with, open, record_opening};
use crate::support::fake_server::{accept, against_control, welcome};
use crate::support::peer::*;
use crate::support::*;

/// The hello of version 1.
const HELLO: &str = "{\"protocol_min\":1,\"protocol_max\":1,\"build\":\"0.1.0\",\"features\":[],\
    \"suites\":[1,2,3],\"codecs\":[0,1,2,3],\"limits\":{\"chunk\":1048576,\"message\":8388608,\
    \"streams\":256,\"open_entries\":256},\"boot_id\":\"\",\"processors\":2}";

/// A possible hello of a later version that still speaks version 1.
const NEWER_HELLO: &str = "{\"protocol_min\":1,\"protocol_max\":7,\"build\":\"3.2.1\",\
    \"features\":[\"time travel\"],\"suites\":[9,1,2,3],\"codecs\":[0,1,2,3,4],\"colour\":\"red\",\
    \"limits\":{\"chunk\":1048576,\"message\":8388608,\"streams\":256,\"open_entries\":256,\
    \"moons\":2}}";

const CONTENT: &[u8] = b"what a client of version 1 had to say\n";

/// The recorded transcript of this name.
fn transcript(name: &str, record: impl FnOnce() -> String) -> String {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/hostile/transcripts");
    if std::env::var_os("FASTCP_RECORD").is_some() {
        std::fs::write(dir.join(name), record()).expect("record it");
    }
    std::fs::read_to_string(dir.join(name)).expect("it was recorded")
}

fn control(messages: &[Message]) -> String {
    let bytes: Vec<u8> = messages.iter().flat_map(encode).collect();
    format!("control {}\n", hex(&bytes))
}

/// The client's side of a copy of one file, in order. A line that begins with `await` waits for a
/// message of that kind.
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
    let (roots, totals) = (vec![root(1, "f", false)], Totals::default());
    [
        control(&[Message::Open(open), Message::Secret(SessionSecret(secret))]),
        "await listen\n".to_owned(),
        format!("stream {}\n", hex(&record_opening(&keys))),
        "await opened\n".to_owned(),
        control(&[Message::Roots(Roots { roots, totals })]),
        "await landed\n".to_owned(),
        control(&[Message::Entries(vec![source])]),
        "await want\n".to_owned(),
        format!("stream {}\n", hex(&frame)),
        sent(),
    ]
    .concat()
}

/// The last messages of a sender whose file has one chunk.
fn sent() -> String {
    let end = EntryEnd {
        entry: 1,
        length: CONTENT.len() as u64,
        root: Some(blake3::hash(CONTENT).into()),
    };
    let (last, unused) = (1, vec![]);
    let all = [
        Message::EntryEnd(vec![end]),
        Message::AllSent(AllSent { last, unused }),
    ];
    control(&all) + "await done\n"
}

#[test]
fn a_client_of_version_1_is_served_by_this_build() {
    let said = transcript("client-v1", recorded);
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

/// Sends the client's part and waits where the transcript waits.
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
            _ => panic!("unknown line: {line}"),
        }
    }
}

/// The server's side of a copy of one file to it. At `listen` the server sends its port and accepts
/// a connection; at `await frame` it waits for a frame.
fn recorded_receiver() -> String {
    let landed = RootsResolved {
        names: vec![b"there".to_vec()],
        resumes: false,
        ordered: false,
        window: 64,
    };
    let ack = Ack {
        chunks: [span(0, 1)].into_iter().collect(),
        entries: [span(1, 2)].into_iter().collect(),
        ..Ack::default()
    };
    [
        "listen\nawait roots\n".to_owned(),
        control(&[Message::Landed(landed)]),
        "await frame\nawait all-sent\n".to_owned(),
        control(&[Message::Ack(ack), Message::Done(())]),
    ]
    .concat()
}

/// The server's side of a copy from it. `frame` is followed by the file's content, which the test
/// seals with the client's secret.
fn recorded_sender() -> String {
    let size = CONTENT.len() as u64;
    let (roots, totals) = (vec![root(1, "f", false)], Totals::default());
    [
        "listen\n".to_owned(),
        control(&[Message::Roots(Roots { roots, totals })]),
        "await landed\n".to_owned(),
        control(&[Message::Entries(vec![file(1, 0, "f", size)])]),
        "await want\n".to_owned(),
        format!("frame {}\n", hex(CONTENT)),
        sent(),
    ]
    .concat()
}

#[test]
fn a_far_end_of_version_1_serves_this_build() {
    let push = transcript("receiver-v1", recorded_receiver);
    let pull = transcript("sender-v1", recorded_sender);
    for hello in [HELLO, NEWER_HELLO] {
        Case::run(Way::LocalPush, |case| {
            let from = case.src.file("f", CONTENT);
            let to = case.dst.path("copy");
            for (said, direction, operands) in [
                (
                    &push,
                    Direction::ToServer,
                    [from.as_os_str(), "far:there".as_ref()],
                ),
                (
                    &pull,
                    Direction::ToClient,
                    ["far:f".as_ref(), to.as_os_str()],
                ),
            ] {
                let words = ["--streams".as_ref(), "1".as_ref(), operands[0], operands[1]];
                let done = against_control(case, &words, |mut control| {
                    control.bytes(MAGIC);
                    control.bytes(format!("{hello}\n").as_bytes());
                    let heard = control.hear_hello().expect("a hello");
                    assert!(heard.protocol_min <= 1, "version 1 is still spoken");
                    replay_server(&mut control, direction, said);
                });
                done.succeeds();
            }
            assert_eq!(case.dst.read("copy"), CONTENT);
        });
    }
}

/// Sends the server's part and waits where the transcript waits.
fn replay_server(control: &mut Control, direction: Direction, said: &str) {
    let (Some(Message::Open(open)), Some(Message::Secret(secret))) =
        (control.hear(), control.hear())
    else {
        panic!("the client opens another way");
    };
    let Open { chunk_size, .. } = open;
    let mut keys = Keys::new(&open, secret.0, direction);
    let mut stream = None;
    for line in said.lines() {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (kind, rest) {
            ("control", bytes) => control.bytes(&unhex(bytes)),
            ("listen", _) => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
                control.say(Message::Listen(Listen {
                    addresses: vec!["127.0.0.1".into()],
                    port: listener.local_addr().expect("bound").port(),
                }));
                let socket = accept(&listener).expect("it is dialled");
                stream = Some(welcome(&keys.keyring, socket).expect("an honest opening"));
            }
            ("frame", content) => {
                let content = unhex(content);
                let frame = keys.piece(1, 0, content.len() as u64, &content);
                let stream: &mut TcpStream = stream.as_mut().expect("it was dialled");
                stream.write_all(&frame).expect("it takes it");
            }
            ("await", "frame") => {
                let stream = stream.as_mut().expect("it was dialled");
                let mut header = [0; HEADER_LEN];
                stream.read_exact(&mut header).expect("a frame");
                let header = FrameHeader::parse(&header, &FrameLimits::new(chunk_size));
                let header = header.expect("of version 1");
                assert!(header.raw_len as usize >= CONTENT.len());
                let mut rest = vec![0; header.wire_len as usize];
                stream.read_exact(&mut rest).expect("all of it");
            }
            ("await", _) => drop(await_kind(control, rest)),
            _ => panic!("unknown line: {line}"),
        }
    }
    control.hear_out();
}

fn await_kind(control: &mut Control, kind: &str) -> Message {
    let is_it = |message: &Message| match message {
        Message::Listen(_) => kind == "listen",
        Message::Landed(_) => kind == "landed",
        Message::Roots(_) => kind == "roots",
        Message::Want(_) => kind == "want",
        Message::AllSent(_) => kind == "all-sent",
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
