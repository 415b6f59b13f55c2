//! Tests of what each of two hosts learns about the other.

use std::process::Stdio;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::process::{Child, Command};

use super::super::{converse, in_login, ways};
use super::*;
use crate::error::Kind;
use crate::itemize::ItemizedEntry;
use crate::manifest::{Name, Totals};
use crate::outcome::CopyActivity;
use crate::report::Reporter;
use crate::report::event::CopyEvent;
use crate::session::request::{CopyOptions, EndKind, Host, Operand};
use crate::transport::connections::Flow;
use crate::wire::message::{
    Ack, AllSent, Busy, Data, ItemizedEntries, Listen, Roots, UncountedRoots,
};

/// The failures that the user was told of.
struct KeptFailures(Arc<Mutex<Vec<Error>>>);

impl Reporter for KeptFailures {
    fn failure(&self, error: &Error) {
        self.0.lock().push(error.clone());
    }
    fn left_out(&self, _: &Error) {}
    fn notice(&self, _: &str) {}
    fn waiting(&self, _: &Error) {}
    fn installing(&self, _: &str) {}
    fn detail(&self, _: &str) {}
    fn itemized(&self, _: &ItemizedEntry) {}
    fn deleted(&self, _: &[u8]) {}
    fn event(&self, _: CopyEvent) {}
    fn changes_waiting(&self) -> usize {
        0
    }
    fn status(&self) {}
}

fn operand(host: &str, path: &str) -> Operand {
    Operand {
        typed: format!("{host}:{path}").into(),
        host: Some(Host {
            user: None,
            name: host.into(),
            port: None,
        }),
        what: EndKind::Path,
        path: path.into(),
    }
}

fn request() -> Request {
    let (from, to) = (operand("db1", "/secret/a"), operand("db2", "b"));
    Request::local(vec![from], to, CopyOptions::default())
}

/// A client, and the failures that were reported to it.
fn client() -> (ClientContext, Arc<Mutex<Vec<Error>>>) {
    let told: Arc<Mutex<Vec<Error>>> = Arc::default();
    let reporter = Arc::new(KeptFailures(told.clone()));
    let client = ClientContext::new(Arc::default(), reporter);
    (client, told)
}

#[test]
fn a_fault_goes_on_without_its_path_and_words() {
    let (request, (client, told)) = (request(), client());
    let exchange = Exchange::new(&request, &client, &[]);
    let error = Error::new(Kind::Read, Side::Source, "no key for me@db1").at("/secret/a");
    let fault = Fault::of(&error, 3, 1);
    for said in [
        exchange.of_sender(Message::Fault(fault.clone())),
        exchange.of_receiver(Message::Fault(fault)),
    ] {
        let Ok(RelayStep::Pass(Message::Fault(passed))) = said else {
            panic!("it is for the other");
        };
        assert_eq!((passed.entry, passed.parent), (3, 1));
        assert!(passed.path.is_empty() && passed.text.is_empty());
    }
    assert_eq!(*told.lock(), [error.clone(), error]);
}

#[test]
fn a_sender_does_not_learn_the_places_of_the_copy() {
    let (request, (client, _)) = (request(), client());
    let exchange = Exchange::new(&request, &client, &[]);
    let landed = RootsResolved {
        names: vec![b"b".to_vec(), b"/secret/wal".to_vec()],
        resumes: true,
        ordered: false,
        window: 7,
    };
    let said = exchange.of_receiver(Message::Landed(landed));
    let Ok(RelayStep::Pass(Message::Landed(passed))) = said else {
        panic!("it is for the sender");
    };
    assert!(passed.names.is_empty());
    assert_eq!((passed.resumes, passed.window), (true, 7));
}

#[test]
fn what_an_end_does_not_say_is_passed_to_nobody() {
    let (request, (client, _)) = (request(), client());
    let exchange = Exchange::new(&request, &client, &[]);
    let dial = Message::Dial(Listen {
        addresses: vec!["10.0.0.1".into()],
        port: 22,
    });
    let relay = Message::Relay(Relay::of(&dial).unwrap());
    for message in [
        dial.clone(),
        relay.clone(),
        Message::Done(()),
        Message::Ack(Ack::default()),
        Message::Credit(1),
        Message::Enough(()),
        Message::Busy(Busy::default()),
    ] {
        let said = exchange.of_sender(message.clone());
        assert!(matches!(said, Ok(RelayStep::OutOfPlace)), "{message:?}");
    }
    let all = AllSent {
        last: 1,
        unused: Vec::new(),
    };
    for message in [
        dial,
        relay,
        Message::AllSent(all),
        Message::Entries(Vec::new()),
        Message::Data(Data { bytes: vec![1] }),
        Message::Account(ProgressReport::default()),
        Message::Activity(CopyActivity::default()),
        Message::Conclusion(Conclusion::default()),
        Message::FileDigests(Vec::new()),
        Message::Itemized(ItemizedEntries::default()),
    ] {
        let said = exchange.of_receiver(message.clone());
        assert!(matches!(said, Ok(RelayStep::OutOfPlace)), "{message:?}");
    }
}

#[test]
fn a_sender_passes_on_nothing_that_was_not_asked_for() {
    let (request, (client, _)) = (request(), client());
    for (name, is_asked_for) in [("a", true), (".bashrc", false)] {
        let root = Root {
            id: 1,
            operand: 0,
            name: Name::try_from(name.as_bytes().to_vec()).unwrap(),
            is_directory: false,
            contents: false,
            dev: 1,
            ino: 1,
        };
        let roots = vec![root];
        let uncounted = Message::Uncounted(UncountedRoots {
            roots: roots.clone(),
        });
        let totals = Totals::default();
        for message in [uncounted, Message::Roots(Roots { roots, totals })] {
            let exchange = Exchange::new(&request, &client, &[]);
            let said = exchange.of_sender(message.clone());
            assert_eq!(said.is_ok(), is_asked_for, "{name}");
            // Nor does it say them again and again.
            let again = exchange.of_sender(message);
            assert!(matches!(again, Ok(RelayStep::OutOfPlace)), "{name}");
        }
    }
}

/// A server that says these messages after some seconds.
fn server(dir: &std::path::Path, after_s: u32, messages: &[Message]) -> Child {
    let mut bytes = Vec::new();
    messages
        .iter()
        .for_each(|message| message.encode(&mut bytes));
    let path = dir.join(after_s.to_string());
    std::fs::write(&path, bytes).unwrap();
    let line = format!("sleep {after_s}; cat {}; exec sleep 60", path.display());
    let mut command = Command::new("sh");
    command.args(["-c", &line]).stdout(Stdio::piped());
    command.kill_on_drop(true).spawn().unwrap()
}

#[tokio::test]
async fn the_last_counts_of_a_slow_sender_are_waited_for() {
    let (request, (client, _)) = (request(), client());
    let exchange = Exchange::new(&request, &client, &[]);
    let temp = tempfile::tempdir().unwrap();
    let account = ProgressReport {
        counts: Counts {
            files: 3,
            ..Counts::default()
        },
        ..ProgressReport::default()
    };
    let last = [
        Message::Account(account),
        Message::Conclusion(Conclusion::default()),
    ];
    let mut sender = server(temp.path(), 3, &last);
    let mut receiver = server(temp.path(), 0, &[Message::Done(())]);
    let [mut from_sender, mut from_receiver] =
        [&mut sender, &mut receiver].map(|it| Incoming::new(it.stdout.take().unwrap()));
    let (control, _writer) = Outgoing::start(tokio::io::sink());
    let line = |end, incoming| {
        let (inband, _connections) = in_login(Flow::In, false, &control);
        RelayLine {
            end,
            incoming,
            ways: ways(inband, tokio::sync::oneshot::channel().0),
            to: control.clone(),
        }
    };
    let sending = line(RelaySide::Sender, &mut from_sender);
    let receiving = line(RelaySide::Receiver, &mut from_receiver);
    let over = converse(&exchange, sending, receiving).await;
    assert!(over.is_ok());
    assert_eq!(client.progress.snapshot().files, 3);
}
