//! A dishonest client. On the server it may do whatever its user may do there. Even so, the
//! server neither crashes nor hangs, and stays within its destination.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fastcp::algorithms::{Compress, Suite};
use fastcp::manifest::{EntryKind, Name, Root, Totals};
use fastcp::mapping::Mapping;
use fastcp::seal::Direction;
use fastcp::transport::connection::handshake::ConnectionId;
use fastcp::wire::message::{
    CopyOptions, FileNames, Listen, MapTerms, Message, NamesSource, Open, RelativeTerms, Role,
    Roots, SessionSecret, UncountedRoots,
};

use crate::support::fake_server::{accept, in_runtime, welcome};
use crate::support::peer::*;
use crate::support::procs::MARK;
use crate::support::*;

/// How long a server may take to end after its client has gone.
const LIMIT: Duration = Duration::from_secs(30);

/// Plays `client` against a real server, closes control, and returns the server's exit code.
pub(crate) fn against_server(case: &Case, client: impl FnOnce(&mut Control)) -> Option<i32> {
    against_server_with(case, &[], client)
}

/// The same with additional arguments for the server.
pub(crate) fn against_server_with(
    case: &Case,
    arguments: &[&str],
    client: impl FnOnce(&mut Control),
) -> Option<i32> {
    let mut command = offspring::dying_with_this_thread(run::fastcp_binary());
    command
        .arg("--server")
        .args(arguments)
        .env_clear()
        .env("HOME", &case.home.0)
        .env(MARK, case.mark())
        .current_dir(&case.home.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("start a server");
    let pid = rustix::process::Pid::from_child(&child);
    let (over, watch) = mpsc::channel::<()>();
    let watching = std::thread::spawn(move || {
        let late = watch.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
        }
        late
    });
    let mut control = Control::new(
        child.stdout.take().expect("piped"),
        child.stdin.take().expect("piped"),
    );
    client(&mut control);
    control.hang_up();
    control.hear_out_raw();
    let mut said = String::new();
    child
        .stderr
        .take()
        .expect("piped")
        .read_to_string(&mut said)
        .expect("UTF-8");
    let status = child.wait().expect("wait for the server");
    drop(over);
    assert!(!watching.join().expect("no panic"), "did not end: {said}");
    assert!(!said.contains("panicked"), "{said}");
    status.code()
}

pub(crate) fn open(role: Role) -> Open {
    Open {
        role,
        options: CopyOptions {
            recursive: true,
            compress: Compress::None,
            threads: Some(2),
            memory: Some(32 << 20),
            timeout_s: 60,
            ..CopyOptions::default()
        },
        session: [5; 16],
        suite: Suite::Aes128Gcm.number(),
        streams: Some(2),
        remembered: None,
        chunk_size: 1 << 20,
        before: Vec::new(),
        listens: true,
        ports: None,
        between: false,
    }
}

pub(crate) fn receiver(case: &Case) -> Open {
    let path = case.dst.0.as_os_str().as_encoded_bytes().to_vec();
    open(Role::Receiver {
        path,
        sources: vec![b"tree".to_vec()],
    })
}

#[test]
fn a_list_that_breaks_the_rules_ends_the_session() {
    let names = |names: &[u8], is_last| {
        let names = names.to_vec();
        Message::FileNames(FileNames { names, is_last })
    };
    let long = [&[b'a'; 5000][..], b"\0"].concat();
    let other = Message::Credit(1);
    for (code, messages) in [
        (13, vec![names(b"./a", true)]),
        (13, vec![other; 100]),
        (2, vec![names(&long, true)]),
        // It reads nothing outside the source, and reports missing files.
        (
            5,
            vec![names(b"../../etc/passwd\0", false), names(b"", true)],
        ),
    ] {
        server_case(|case| {
            let operands = vec![case.src.0.as_os_str().as_encoded_bytes().to_vec()];
            let code_there = against_server(case, |control| {
                control.hear_hello();
                let mut hello = fastcp::session::host::hello();
                hello.relative = true;
                control.say_hello_as(&hello);
                control.say(Message::Open(open(Role::Sender { operands })));
                control.say(Message::Secret(SessionSecret([7; 32])));
                control.say(Message::Relative(RelativeTerms {
                    plain_parents: false,
                    names: NamesSource::Sent,
                }));
                messages
                    .iter()
                    .for_each(|message| control.say(message.clone()));
                if code == 5 {
                    let fault = |message: &Message| matches!(message, Message::Fault(_));
                    let fault = control.hear_until(fault);
                    let Some(Message::Fault(fault)) = fault else {
                        panic!("no error about the missing name");
                    };
                    assert!(fault.path.ends_with(b"src/etc/passwd"), "{fault:?}");
                }
            });
            assert_eq!(code_there, Some(code), "{messages:?}");
        });
    }
}

#[test]
fn parts_that_break_the_rules_end_the_session() {
    let mapping = |from: &str, to: &str| Mapping {
        from: from.into(),
        to: to.into(),
    };
    let root = |operand: u32| Root {
        id: u64::from(operand) + 1,
        operand,
        name: Name::try_from(b"part".to_vec()).unwrap(),
        is_directory: true,
        contents: true,
        dev: 1,
        ino: 1,
    };
    let roots = |operands: &[u32]| {
        let roots = operands.iter().map(|operand| root(*operand)).collect();
        let totals = Totals::default();
        Some(Message::Roots(Roots { roots, totals }))
    };
    for (code, from, to, message) in [
        (2, "../etc", "to", None),
        (2, "a//b", "to", None),
        (2, "part", "", None),
        (13, "part", "to", roots(&[0])),
        (13, "part", "to", roots(&[1, 0])),
        (13, "part", "to", roots(&[0, 2])),
        (13, "part", "to", roots(&[0, 1, 1])),
    ] {
        server_case(|case| {
            let code_there = against_server(case, |control| {
                control.hear_hello();
                let mut hello = fastcp::session::host::hello();
                hello.maps = true;
                control.say_hello_as(&hello);
                control.say(Message::Open(receiver(case)));
                control.say(Message::Secret(SessionSecret([7; 32])));
                let maps = vec![mapping(from, to)];
                control.say(Message::Map(MapTerms { maps }));
                message
                    .iter()
                    .for_each(|message| control.say(message.clone()));
                control.hear_until(|message| matches!(message, Message::Abort(_)));
            });
            assert_eq!(code_there, Some(code), "{from} {to}: {message:?}");
            assert_eq!(case.dst.names(), [""; 0]);
        });
    }
}

/// Sends the hello and opens the session. Returns the server's listening address.
pub(crate) fn begin(control: &mut Control, open: Open) -> Option<Listen> {
    control.hear_hello();
    control.say_hello();
    control.say(Message::Open(open));
    control.say(Message::Secret(SessionSecret([7; 32])));
    let beats = |message: &Message| !matches!(message, Message::Heartbeat(_));
    match control.hear_until(beats)? {
        Message::Listen(listen) => Some(listen),
        Message::Abort(_) => None,
        other => panic!("instead of where it listens: {other:?}"),
    }
}

pub(crate) fn server_case(body: impl FnOnce(&Case)) {
    Case::run(Way::LocalPush, |case| {
        let outside = case.scratch.dir("outside");
        outside.file("precious", "precious\n");
        body(case);
        // A copy that ends early leaves files for a resume.
        case.sweep();
        assert_eq!(outside.names(), ["precious"]);
        assert_eq!(outside.read("precious"), b"precious\n");
    });
}

#[test]
fn a_client_that_talks_nonsense_ends_the_server() {
    let said: [&[u8]; 5] = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 100_000],
        b"\0fastcp\0hello {\"protocol_min\":9,\"protocol_max\":9}\n",
        b"\0fastcp\0hello garbage\n",
    ];
    for said in said {
        server_case(|case| {
            let code = against_server(case, |control| {
                control.hear_hello();
                control.bytes(said);
            });
            assert_ne!(code, Some(0));
        });
    }
    for seed in 0..5 {
        server_case(|case| {
            let code = against_server(case, |control| {
                control.hear_hello();
                control.say_hello();
                control.bytes(&noise(seed, 10_000));
            });
            assert_eq!(code, Some(13));
        });
    }
}

#[test]
fn an_opening_that_cannot_be_is_refused() {
    type Spoil = fn(&mut Open);
    let spoils: [Spoil; 11] = [
        |open| open.chunk_size = 0,
        |open| open.chunk_size = 1 << 31,
        |open| open.chunk_size = 3 << 20,
        |open| open.streams = Some(0),
        |open| open.streams = Some(u16::MAX),
        |open| open.suite = 0,
        |open| open.suite = 99,
        |open| open.options.memory = Some(0),
        |open| open.options.memory = Some(1 << 20),
        |open| {
            open.role = Role::Sender {
                operands: vec![b"/no/such/file".to_vec(); 3],
            };
            open.options.threads = Some(0);
            open.options.rate_limit = Some(0);
            open.suite = 0;
        },
        |open| open.options.compress = Compress::Zstd(i32::MAX),
    ];
    for (n, spoil) in spoils.iter().enumerate() {
        server_case(|case| {
            let mut open = receiver(case);
            spoil(&mut open);
            let code = against_server(case, |control| {
                let listens = begin(control, open).is_some();
                assert!(!listens || n == 10, "opening {n} was accepted");
            });
            assert!(
                code.is_some() && (code != Some(0) || n == 10),
                "{n}: {code:?}"
            );
        });
    }
    server_case(|case| {
        let code = against_server(case, |control| {
            control.hear_hello();
            control.say_hello();
            control.say(Message::Secret(SessionSecret([7; 32])));
            control.say(Message::Open(receiver(case)));
            assert!(matches!(control.hear(), Some(Message::Abort(_))));
        });
        assert_eq!(code, Some(13));
    });
    // More memory than any machine has is only a number until it is used.
    server_case(|case| {
        let mut open = receiver(case);
        open.options.memory = Some(u64::MAX);
        open.options.threads = Some(u16::MAX);
        open.options.rate_limit = Some(1);
        let code = against_server(case, |control| {
            assert!(begin(control, open).is_some());
        });
        assert_eq!(code, Some(5));
    });
}

#[test]
fn totals_are_told_once_and_after_roots_without_them() {
    let roots = || vec![root(1, "tree", true)];
    let totals = Totals::default();
    let whole = || {
        Message::Roots(Roots {
            roots: roots(),
            totals,
        })
    };
    let uncounted = || Message::Uncounted(UncountedRoots { roots: roots() });
    let counted = || Message::Counted(totals);
    for messages in [
        vec![counted()],
        vec![whole(), counted()],
        vec![uncounted(), counted(), counted()],
        vec![uncounted(), whole()],
        vec![uncounted(), Message::Entries(vec![directory(1, 0, "tree")])],
    ] {
        server_case(|case| {
            let code = against_server(case, |control| {
                begin(control, receiver(case)).expect("it listens");
                messages
                    .into_iter()
                    .for_each(|message| control.say(message));
                assert!(aborted(control));
            });
            assert_eq!(code, Some(13));
        });
    }
}

/// Sends the root directory of a copy and waits until it has landed.
pub(crate) fn land(control: &mut Control) {
    let roots = vec![root(1, "tree", true)];
    let totals = Totals::default();
    control.say(Message::Roots(Roots { roots, totals }));
    let landed = |message: &Message| matches!(message, Message::Landed(_));
    assert!(control.hear_until(landed).is_some(), "it has landed");
    control.say(Message::Entries(vec![directory(1, 0, "tree")]));
}

pub(crate) fn aborted(control: &mut Control) -> bool {
    let abort = |message: &Message| matches!(message, Message::Abort(_));
    control.hear_until(abort).is_some()
}

#[test]
fn a_server_keeps_to_its_destination() {
    for evil in [&b".."[..], b"", b"/etc", b"a/b", b"a\0b"] {
        server_case(|case| {
            let code = against_server(case, |control| {
                begin(control, receiver(case)).expect("it listens");
                land(control);
                let entries = Message::Entries(vec![entry(2, 1, "EVIL", EntryKind::Directory, 0)]);
                control.bytes(&with_name(&entries, "EVIL", evil));
                assert!(aborted(control));
            });
            assert_eq!(code, Some(13));
            assert!(case.dst.dir("tree").names().is_empty());
        });
    }
    server_case(|case| {
        let outside = case.scratch.path("outside");
        let code = against_server(case, |control| {
            begin(control, receiver(case)).expect("it listens");
            land(control);
            control.say(Message::Entries(vec![
                symlink(2, 1, "d", &outside),
                directory(3, 1, "d"),
                directory(4, 3, "made"),
                symlink(5, 3, "link", "x"),
            ]));
            let refused = |message: &Message| matches!(message, Message::Fault(_));
            assert!(control.hear_until(refused).is_some());
        });
        assert_eq!(code, Some(5));
    });
}

/// A client whose connection is lost leaves no partial file.
#[test]
fn a_client_that_goes_leaves_no_partial() {
    server_case(|case| {
        against_server(case, |control| {
            begin(control, receiver(case)).expect("it listens");
            land(control);
            control.say(Message::Entries(vec![file(2, 1, "f", 1 << 20)]));
            let want = |message: &Message| matches!(message, Message::Want(_));
            assert!(control.hear_until(want).is_some());
            assert!(!case.dst.dir("tree").partials().is_empty());
        });
        assert!(case.dst.dir("tree").names().is_empty());
    });
}

/// A hundred strangers replay a recorded opening, and none of them gets a stream. Other strangers
/// that stay silent do not keep the client out.
#[test]
fn a_recorded_opening_opens_nothing_and_strangers_keep_nobody_out() {
    server_case(|case| {
        let content = noise(1, MIB);
        case.src.file("f", &content);
        let code = against_server(case, |control| {
            let open = receiver(case);
            let mut keys = Keys::new(&open, [7; 32], Direction::ToServer);
            let port = begin(control, open).expect("it listens").port;
            let connect = || TcpStream::connect(("127.0.0.1", port)).expect("connect");
            let opening = record_opening(&keys);
            let silent: Vec<_> = (0..50).map(|_| connect()).collect();
            let mut stream = connect();
            stream.write_all(&opening).expect("say it");
            let mut answer = [0; 40];
            stream.read_exact(&mut answer).expect("an answer");
            let replayed: Vec<_> = (0..100)
                .map(|_| {
                    let mut stranger = connect();
                    stranger.write_all(&opening).ok();
                    stranger
                })
                .collect();
            for mut stranger in replayed {
                let mut told = Vec::new();
                stranger.read_to_end(&mut told).ok();
                assert!(told.is_empty(), "a stranger was told {} bytes", told.len());
            }
            land(control);
            let size = content.len() as u64;
            control.say(Message::Entries(vec![file(2, 1, "f", size)]));
            let want = |message: &Message| matches!(message, Message::Want(_));
            control.hear_until(want);
            let frame = keys.piece(2, 0, size, &content);
            stream.write_all(&frame).expect("send a frame");
            let root = Some(blake3::hash(&content).into());
            for (entry, length, root) in [(2, size, root), (1, 1, None)] {
                let end = fastcp::wire::message::EntryEnd {
                    entry,
                    length,
                    root,
                };
                control.say(Message::EntryEnd(vec![end]));
            }
            control.say(Message::AllSent(fastcp::wire::message::AllSent {
                last: 2,
                unused: vec![],
            }));
            let done = |message: &Message| matches!(message, Message::Done(()));
            assert!(control.hear_until(done).is_some());
            drop(silent);
        });
        assert_eq!(code, Some(0));
        assert_eq!(case.dst.read("tree/f"), content);
    });
}

/// The client that listens on another port knows the attempts of each stream at the earlier one.
#[test]
fn a_server_that_is_told_another_port_dials_with_new_numbers() {
    server_case(|case| {
        against_server(case, |control| {
            let open = Open {
                streams: Some(1),
                ..receiver(case)
            };
            let keys = Keys::new(&open, [7; 32], Direction::ToServer);
            let facing = keys.keyring.facing();
            begin(control, open).expect("it listens");
            let streams: Vec<_> = (0..2)
                .map(|_| {
                    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
                    control.say(Message::Dial(Listen {
                        addresses: vec!["127.0.0.1".to_owned()],
                        port: listener.local_addr().expect("bound").port(),
                    }));
                    welcome(&facing, accept(&listener).expect("it dials"))
                })
                .collect();
            assert!(streams.iter().all(Option::is_some), "{streams:?}");
        });
    });
}

/// The client's first bytes on a stream, as an eavesdropper would record them.
pub(crate) fn record_opening(keys: &Keys) -> [u8; 64] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("bound");
    let keyring = Arc::clone(&keys.keyring);
    let saying = std::thread::spawn(move || {
        in_runtime(async {
            let mut socket = tokio::net::TcpStream::connect(at).await.expect("connect");
            let id = ConnectionId {
                stream: 0,
                attempt: 0,
            };
            keyring.open(&mut socket, id).await.expect("say it");
        });
    });
    let (mut socket, _) = listener.accept().expect("accept");
    let mut opening = [0; 64];
    socket.read_exact(&mut opening).expect("an opening");
    saying.join().expect("no panic");
    opening
}
