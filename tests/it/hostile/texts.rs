//! A peer's texts and errors for the user: texts are bounded and readable, and no reported error
//! ends with exit code 0.

use std::time::Duration;

use fastcp::error::{Kind, Side};
use fastcp::outcome::{Shares, Verdict};
use fastcp::wire::message::{Conclusion, Fault, MESSAGE_MAX, Message, Tune};

use super::{known, pull_case};
use crate::support::fake_server::{FakeServer, pull};
use crate::support::peer::*;
use crate::support::*;

const EVIL: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\nall is well\u{202e}\u{9b}31m";

fn fault(kind: Kind, text: impl Into<String>) -> Fault {
    Fault {
        kind,
        errno: 0,
        side: Side::Source,
        entry: 0,
        parent: 0,
        path: EVIL.into(),
        text: text.into(),
    }
}

/// A pull of a tree in which `script` sends the messages.
fn talk(case: &Case, script: impl FnOnce(&mut FakeServer) + Send) -> run::Done {
    pull(case, &["-r"], "/x/tree", |mut server| {
        server.begin(root(1, "tree", true));
        server.entries(vec![directory(1, 0, "tree")]);
        script(&mut server);
        server.finish();
    })
}

/// The rest of an otherwise correct copy.
fn finish(server: &mut FakeServer) {
    server.end(1, 0, None);
    server.all_sent(1);
}

#[test]
fn what_a_peer_says_reaches_no_terminal_raw() {
    pull_case(|case| {
        let done = talk(case, |server| {
            server.say(Message::Abort(fault(Kind::Read, EVIL)));
        });
        held_out(&done).exits(9).says("all is well");
        assert_eq!(done.stderr.lines().count(), 1, "{done}");
    });
    pull_case(|case| {
        let done = talk(case, |server| {
            server.say(Message::Fault(fault(Kind::Read, EVIL)));
            finish(server);
        });
        held_out(&done).exits(9).says("all is well");
    });
}

#[test]
fn long_texts_are_cut() {
    let long = "x".repeat(1000 << 10);
    let texts = [
        fault(Kind::Read, long.clone()),
        Fault {
            path: long.clone().into_bytes(),
            ..fault(Kind::Read, "short")
        },
        fault(Kind::Read, "\u{1b}".repeat(1000 << 10)),
    ];
    for text in texts {
        for abort in [false, true] {
            pull_case(|case| {
                let done = talk(case, |server| {
                    if abort {
                        return server.say(Message::Abort(text.clone()));
                    }
                    // More messages than the client keeps.
                    for _ in 0..20 {
                        server.say(Message::Fault(text.clone()));
                    }
                    finish(server);
                });
                done.exits(9).never_says("panicked");
                assert!(done.stderr.len() < 2_000_000, "{}", done.stderr.len());
                let peak = done.peak_rss_bytes() / MIB as u64;
                assert!(peak < 70, "took {peak} MiB");
            });
        }
    }
}

#[test]
fn a_text_of_ten_megabytes_is_not_even_read() {
    pull_case(|case| {
        let done = talk(case, |server| {
            let text = vec![b'x'; 10_000_000];
            server.control.bytes(&raw(20, text.len() as u32, &text));
        });
        held_out(&done).exits(13).says("an invalid message");
        const { assert!(MESSAGE_MAX < 10_000_000) };
    });
}

/// To the shell, an exit code of 256 is 0; so is that of signal -128.
#[test]
fn no_fault_makes_a_success() {
    for signal in [-128, 128, 384, i32::MAX, i32::MIN, 0, -1] {
        for abort in [false, true] {
            pull_case(|case| {
                let done = talk(case, |server| {
                    let fault = fault(Kind::Signal(signal), "interrupted");
                    if abort {
                        return server.say(Message::Abort(fault));
                    }
                    server.say(Message::Fault(fault));
                    finish(server);
                });
                held_out(&done).exits(5);
            });
        }
    }
}

/// A flood of faults about entries that do not exist.
#[test]
fn a_flood_of_faults_takes_no_memory() {
    pull_case(|case| {
        let done = talk(case, |server| {
            for round in 0..300u64 {
                let mut bytes = Vec::new();
                for n in 0..1000 {
                    let one = Fault {
                        entry: 10 + (round * 1000 + n) * 2,
                        parent: 1,
                        path: Vec::new(),
                        ..fault(Kind::Read, "x".repeat(100))
                    };
                    Message::Fault(one).encode(&mut bytes);
                }
                server.control.bytes(&bytes);
            }
            server.leave();
        });
        done.exits(13);
        let peak = done.peak_rss_bytes() / MIB as u64;
        assert!(peak < 200, "took {peak} MiB");
        // Each fault costs as little as the first.
        assert!(done.elapsed < Duration::from_secs(90), "{:?}", done.elapsed);
    });
}

#[test]
fn what_a_far_tuner_says_is_bounded_and_readable() {
    let text = format!("{EVIL}{}", "x".repeat(4096));
    let conclusion = Conclusion {
        verdict: Some(Verdict {
            limit: None,
            shares: Shares {
                network: f64::NAN,
                source_disk: f64::INFINITY,
                ..Shares::default()
            },
            sentence: text.clone(),
            hints: vec![text.clone(); 10],
        }),
        remembered: None,
    };
    pull_case(|case| {
        known(case, b"data");
        let flags = ["-r", "-v", "--summary", "--json"];
        let done = pull(case, &flags, "/x/tree", |mut server| {
            server.begin(root(1, "tree", true));
            server.entries(vec![directory(1, 0, "tree")]);
            for streams in [0, u16::MAX, 1] {
                server.say(Message::Tune(Tune {
                    streams: Some(streams),
                    rate_limit: None,
                    reason: text.clone(),
                }));
            }
            // A verdict is shown only for transfers that took a second.
            server.whole_file(file(2, 1, "f", 0), b"data");
            let placed = |message: &Message| matches!(message, Message::Ack(ack) if ack.entries.iter().any(|span| (span.start..span.end).contains(&2)));
            server.control.hear_until(placed);
            server.beat_for(Duration::from_millis(1500));
            server.end(1, 1, None);
            server.all_sent(2);
            let done = |message: &Message| matches!(message, Message::Done(()));
            server.control.hear_until(done);
            server.say(Message::Conclusion(conclusion));
            server.finish();
        });
        readable(&done).succeeds();
        let longest = done.stderr.lines().map(str::len).max();
        assert!(longest < Some(400), "{done}");
        assert_eq!(done.stderr.matches("all is well").count(), 3 + 1 + 3);
        let json = String::from_utf8(done.stdout.clone()).expect("JSON is UTF-8");
        assert!(json.contains(r#""network":0.0"#), "{json}");
        assert!(json.contains(r#""source_disk":1.0"#), "{json}");
    });
}
