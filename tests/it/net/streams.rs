//! The transfer: connections, codecs, threads, memory, encryption, and faults on connections.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use fastcp::session::host;
use fastcp::wire::hello::Hello;
use fastcp::wire::message::Listen;

use crate::support::fake_server::{accept, push_as, welcome};
use crate::support::procs::{self, TcpState, until};
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { push, pull, here =>
    every_codec_gives_the_bytes_back,
    any_number_of_threads_copies,
}

ways! { push, pull =>
    any_number_of_streams_copies,
    a_stream_reset_in_the_middle_costs_speed_not_the_copy,
    strangers_at_the_data_port_do_no_harm,
    memory_stays_within_the_pool_and_64_mib,
    what_can_shrink_is_sent_shrunk,
    no_encrypt_is_loud,
    the_rate_is_limited,
    the_summary_tells_what_was_done,
}

ways! { pull => a_listener_on_the_wire_reads_nothing }

ways! { local_push =>
    the_hello_says_where_the_server_listens,
    a_server_that_has_received_all_ends_by_itself,
}

fn every_codec_gives_the_bytes_back(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("noise", noise(1, MIB + 1));
    tree.file("prose", prose(2, 2 * MIB + 1));
    // Chunks of which a part shrinks.
    let mixed = [noise(3, MIB / 4), prose(4, MIB), noise(5, MIB / 4)].concat();
    tree.file("mixed", mixed);
    tree.file("small", "small");
    for codec in [
        "auto", "none", "lz4", "zstd", "zstd:-5", "zstd:6", "gzip", "gzip:9", "lzma:1",
    ] {
        case.copy(&["-r", "--compress", codec], "tree/", codec)
            .succeeds();
        assert_same(&tree.0, case.dst.path(codec), Also::Nothing);
    }
    for codec in ["brotli", "lzma:10", "zstd:99", "zstd:", "gzip:0", ""] {
        case.copy(&["-r", "--compress", codec], "tree", "no")
            .exits(2);
    }
}

fn any_number_of_threads_copies(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("noise", noise(1, 5 * MIB));
    tree.file("prose", prose(2, 5 * MIB));
    for threads in ["1", "2", "7"] {
        case.copy(&["-r", "--threads", threads], "tree/", threads)
            .succeeds();
        assert_same(&tree.0, case.dst.path(threads), Also::Nothing);
    }
    case.copy(&["-r", "--threads", "0"], "tree", "no").exits(2);
}

fn any_number_of_streams_copies(case: &Case) {
    case.src.file("a", noise(1, 12 * MIB));
    case.src.file("empty", "");
    for streams in ["1", "3", "32"] {
        for name in ["a", "empty"] {
            case.copy(&["--streams", streams], name, streams).succeeds();
            assert_same(case.src.path(name), case.dst.path(streams), Also::Nothing);
        }
    }
    case.copy(&["--streams", "0"], "a", "no").exits(2);
}

/// Starts a copy that waits for the test. Returns once its connections carry data.
fn slow_copy(case: &Case, flags: &[&str]) -> run::Running {
    let slow = ["-W", "--streams", "4", &held_back(case, "300K")];
    let run = case.copying(&slow, "a", "a").args(flags).start();
    until("the streams are up", || {
        let ports = procs::tcp_ports(run.pid(), TcpState::Established);
        (ports.len() >= 4 && case.dst.has_partial()).then_some(())
    });
    run
}

fn a_stream_reset_in_the_middle_costs_speed_not_the_copy(case: &Case) {
    if !procs::may_tamper() {
        return skip("the right to call pidfd_getfd");
    }
    case.src.file("a", noise(1, 6 * MIB));
    let run = slow_copy(case, &[]);
    let sockets = procs::tcp_sockets(run.pid(), TcpState::Established);
    let reset = sockets[..3].iter().filter(|socket| socket.reset()).count();
    assert!(reset > 0, "the copy was over before it could be disturbed");
    let_go(case);
    run.wait().succeeds();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn strangers_at_the_data_port_do_no_harm(case: &Case) {
    case.src.file("a", noise(1, 6 * MIB));
    let run = slow_copy(case, &[]);
    let servers = case.servers();
    let mut ports = servers
        .iter()
        .flat_map(|server| procs::tcp_ports(server.pid, TcpState::Listening));
    let port = ports.next().expect("the server listens");
    let strangers: Vec<_> = (0..50)
        .map(|number| {
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("connect");
            if number % 2 == 0 {
                stranger.write_all(&noise(number, 4096)).ok();
            }
            stranger
        })
        .collect();
    let_go(case);
    run.wait().succeeds();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
    for mut stranger in strangers {
        let mut told = Vec::new();
        stranger.read_to_end(&mut told).ok();
        assert!(told.is_empty(), "a stranger was told {} bytes", told.len());
    }
}

fn memory_stays_within_the_pool_and_64_mib(case: &Case) {
    case.src.file("all", "");
    for piece in 0..20 {
        // In pieces: the peak memory of a child includes that of the process which forked it.
        let content = if piece % 2 == 0 {
            noise(piece, 16 * MIB)
        } else {
            prose(piece, 16 * MIB)
        };
        case.src.append("all", content);
    }
    case.host().measure();
    let flags = ["--memory", "64Mi", "--streams", "16"];
    let done = case.copying(&flags, "all", "all").measured().run();
    done.succeeds();
    case.host().wait_for_logins();
    let limit = 128 * MIB as u64;
    let (client, server) = (done.peak_rss_bytes(), case.host().peak_rss_bytes());
    // A figure below what any program takes to start would mean that nothing was measured.
    assert!(
        client > MIB as u64 && server > MIB as u64,
        "{client} and {server} bytes"
    );
    assert!(client <= limit, "the client took {} MiB", client >> 20);
    assert!(server <= limit, "the server took {} MiB", server >> 20);
    assert_same(case.src.path("all"), case.dst.path("all"), Also::Nothing);

    case.copy(&["--memory", "1K"], "all", "no").exits(2);
    case.copy(&["--memory", "lots"], "all", "no").exits(2);
}

fn what_can_shrink_is_sent_shrunk(case: &Case) {
    case.src.file("a", prose(1, 8 * MIB));
    let done = case.copy(&["-l", "8000", "--summary"], "a", "a");
    done.succeeds();
    let sent = done.wire_bytes();
    assert!((1..4 * MIB).contains(&sent), "{sent} bytes");
}

fn the_rate_is_limited(case: &Case) {
    case.src.file("a", noise(1, 4 * MIB));
    let done = case.copy(&["-l", "16000"], "a", "a");
    done.succeeds();
    // 4 MiB at 2 MB/s take 2.1 s, but the start may come as a burst.
    let took = done.elapsed;
    assert!(took > Duration::from_millis(1500), "took {took:?}");
    assert!(took < Duration::from_secs(30), "took {took:?}");
}

fn no_encrypt_is_loud(case: &Case) {
    case.src.file("a", noise(1, 3 * MIB));
    let done = case.copy(&["--no-encrypt"], "a", "a");
    done.succeeds().says("encrypt");
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn a_listener_on_the_wire_reads_nothing(case: &Case) {
    if !procs::may_tamper() {
        return skip("the right to call pidfd_getfd");
    }
    let line = b"the same words as in every other line";
    case.src.file("a", prose(1, 8 * MIB));
    for (flags, readable) in [
        (&["--compress", "none"][..], false),
        (&["--compress", "none", "--no-encrypt"], true),
    ] {
        let run = slow_copy(case, flags);
        // A stopped client does not read, so the test can look at the data that arrives in its
        // sockets.
        run.signal(Signal::STOP);
        let found = until_some_bytes_lie_there(&run)
            .windows(line.len())
            .any(|window| window == line);
        run.signal(Signal::CONT);
        let_go(case);
        assert_eq!(found, readable, "with {flags:?}");
        run.wait().succeeds();
    }
}

fn until_some_bytes_lie_there(run: &run::Running) -> Vec<u8> {
    until("bytes lie in the client's sockets", || {
        let bytes: Vec<u8> = procs::tcp_sockets(run.pid(), TcpState::Established)
            .iter()
            .flat_map(procs::Socket::peek)
            .collect();
        (bytes.len() > 100_000).then_some(bytes)
    })
}

fn the_summary_tells_what_was_done(case: &Case) {
    case.src.file("tree/a", prose(1, 4 * MIB));
    case.src.file("tree/b", "small");
    // Without these flags, so short a copy on so fast a link might send uncompressed data.
    let flags = ["-r", "--streams", "3", "--compress", "zstd", "--summary"];
    // On a busy machine another route might be up first.
    let flags = [&flags[..], &["--route=direct"]].concat();
    let done = case.copy(&flags, "tree", "");
    done.succeeds();
    for word in ["2 files", "4.19 MB", "direct", "zstd", " streams", "/s"] {
        done.says(word);
    }
}

fn the_hello_says_where_the_server_listens(case: &Case) {
    let source = case.src.file("file", "content");
    let saying = |port| Hello {
        listen: Some(Listen {
            addresses: vec!["127.0.0.1".into()],
            port,
        }),
        ..host::hello()
    };
    let open = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        (listener, port)
    };
    let (listener, port) = open();
    let mut has_come = false;
    push_as(case, &saying(port), &[], &source, |mut server| {
        // The server has not answered the request.
        let opened = accept(&listener).and_then(|socket| welcome(&server.keys.keyring, socket));
        has_come = opened.is_some();
        server.leave();
    })
    .never_says("panicked");
    assert!(has_come);

    // The answer counts, if it names another port. There each stream has a new number.
    let (listener, port) = open();
    let mut streams = 0;
    push_as(case, &saying(port), &[], &source, |mut server| {
        let early = (0..8).map(|_| welcome(&server.keys.keyring, accept(&listener)?));
        let early: Vec<_> = early.collect();
        assert!(early.iter().all(Option::is_some), "{early:?}");
        server.listen();
        streams = server.streams.len();
        server.leave();
    })
    .never_says("panicked");
    assert_eq!(streams, 8);
}

/// The client need not wait for the server to see that the client has closed its input.
fn a_server_that_has_received_all_ends_by_itself(case: &Case) {
    case.src.file("file", "content");
    let up = case.scratch.path("up");
    rustix::fs::mkfifoat(rustix::fs::CWD, &up, 0o600.into()).expect("make a FIFO");
    let script = format!(
        "#!/bin/sh\nexec 3<&0\n\
         {{ cat <&3; while kill -0 $$ 2>/dev/null; do sleep 0.1; done; }} >'{0}' &\n\
         exec '{1}' \"$@\" <'{0}' 3<&-\n",
        up.display(),
        run::fastcp_binary().display(),
    );
    let script = case.scratch.file("open for ever", script);
    case.scratch.mode("open for ever", 0o755);
    let timed = |flags: &[&str]| {
        let begun = Instant::now();
        case.copy(flags, "file", "there").succeeds();
        begun.elapsed()
    };
    let quoted = format!("'{}'", script.display());
    // Otherwise it waits 5 s for the end of its input. The machine may be busy, so there are a few
    // tries.
    let ends_by_itself = (0..5).any(|_| {
        let as_usual = timed(&[]);
        let held = timed(&["--remote-path", &quoted]);
        eprintln!("{held:?}, {as_usual:?}");
        held < as_usual + Duration::from_secs(4)
    });
    assert!(ends_by_itself, "five times late");
}
