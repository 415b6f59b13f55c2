//! Observers of a session's processes and files, though not of its memory, find no secret.

use fastcp::wire::message::Message;

use super::client::{against_server, begin, land, receiver, server_case};
use crate::support::peer::*;
use crate::support::*;

/// The secret that [`begin`] sends.
const SECRET: [u8; 32] = [7; 32];

fn is_in(place: &[u8]) -> bool {
    let text: String = SECRET.iter().map(|byte| format!("{byte:02x}")).collect();
    let has = |needle: &[u8]| place.windows(needle.len()).any(|window| window == needle);
    has(&SECRET) || has(text.as_bytes())
}

#[test]
fn a_secret_is_in_no_command_line_no_environment_and_no_file() {
    assert!(is_in(&encode(&secret())), "it would be found");
    server_case(|case| {
        against_server(case, |control| {
            begin(control, receiver(case)).expect("it listens");
            land(control);
            control.say(Message::Entries(vec![file(2, 1, "f", 1 << 20)]));
            let want = |message: &Message| matches!(message, Message::Want(_));
            assert!(control.hear_until(want).is_some());
            let server = case.servers().pop().expect("it runs");
            let proc = Dir(format!("/proc/{}", server.pid.as_raw_pid()).into());
            let environment = proc.read("environ");
            assert!(!environment.is_empty(), "the mark is in it");
            assert!(!is_in(&environment) && !is_in(&proc.read("cmdline")));
            let (partials, journals) = {
                let tree = case.dst.dir("tree");
                (tree.partials(), case.dst.journals())
            };
            assert!(!partials.is_empty() && !journals.is_empty());
            for path in partials.into_iter().chain(journals) {
                let content = std::fs::read(&path).expect("read a file");
                assert!(!is_in(&content), "{path:?}");
            }
            assert_eq!(case.home.names(), [".local"]);
            let state = case.home.dir(".local/state/fastcp");
            assert_eq!(state.names(), ["key"]);
            assert!(!is_in(&state.read("key")));
        });
    });
}

fn secret() -> Message {
    Message::Secret(fastcp::wire::message::SessionSecret(SECRET))
}
