//! A proxy between the two real ends of a copy. It applies a fault of the test's choice to each
//! data connection. Control passes through unchanged, except for the hello and the port where the
//! server listens: the proxy puts in its port.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastcp::wire::message::{Listen, Message};

use super::case::Case;
use super::fake_server::against_control;
use super::offspring::dying_with_this_thread;
use super::peer::Control;
use super::procs::MARK;
use super::run::{Done, fastcp_binary};

/// The fault of one connection. Positions are bytes in the direction of the data, including the
/// opening or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Both ends get a reset after this many bytes.
    Reset(usize),
    /// Both ends see an orderly close after this many bytes.
    Close(usize),
    /// The byte at this position is changed.
    Flip(usize),
    /// From here on noise replaces the bytes.
    Noise(usize),
    /// From here on bytes arrive twice, as if an attacker recorded and replayed them.
    Replay(usize),
    /// After this many bytes no byte passes any more, and neither end gets an error.
    BlackHole(usize),
    /// After this many bytes the reader sees a close, and the writer notices nothing.
    HalfClose(usize),
    /// This many bytes a second pass.
    Throttle(usize),
    /// Every byte arrives a second late.
    Late,
    /// The proxy accepts the connection and never sends a byte.
    Silent,
    /// The proxy accepts the connection and closes it at once.
    Refused,
}

/// The direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    ToServer,
    ToClient,
}

/// How long a connection without a fault waits for the faults of the others: a copy takes one that is
/// silent for longer for a lost one.
const FAULTS_FIRST: Duration = Duration::from_secs(2);

struct Proxy {
    listener: TcpListener,
    server: u16,
    faults: Vec<Fault>,
    flow: Flow,
    struck: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    open: Mutex<Vec<TcpStream>>,
}

/// The result of a copy through a proxy.
pub(crate) struct Proxied {
    pub done: Done,
    /// How many faults took place.
    pub struck: usize,
}

/// Copies with the real server behind a proxy. The nth connection gets the nth fault; connections
/// after the last fault get none. `words` follow the options that find the server.
pub(crate) fn copy(case: &Case, words: &[&OsStr], is_push: bool, faults: &[Fault]) -> Proxied {
    let struck = Arc::new(AtomicUsize::new(0));
    let flow = if is_push {
        Flow::ToServer
    } else {
        Flow::ToClient
    };
    let mut command = dying_with_this_thread(fastcp_binary());
    command
        .arg("--server")
        .env_clear()
        .env("HOME", &case.home.0)
        .env(MARK, case.mark())
        .current_dir(&case.home.0);
    let faults = faults.to_vec();
    let counter = struck.clone();
    let done = against_control(case, words, move |client| {
        relay(client, &mut command, faults, flow, counter);
    });
    Proxied {
        done,
        struck: struck.load(SeqCst),
    }
}

fn relay(
    client: Control,
    command: &mut Command,
    faults: Vec<Fault>,
    flow: Flow,
    struck: Arc<AtomicUsize>,
) {
    let mut server = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("start a server");
    let stdin = server.stdin.take().expect("piped");
    let mut from_server = Control::new(server.stdout.take().expect("piped"), stdin);
    let (up, mut to_client) = client.split();
    let to_server = from_server.take_writer();
    let lifting = std::thread::spawn(move || {
        let (mut up, mut to_server) = (up, to_server);
        std::io::copy(&mut up, &mut to_server).ok();
    });
    if from_server.hear_hello().is_some() {
        to_client
            .write_all(&fastcp::session::host::hello().to_line())
            .ok();
    }
    let over = Arc::new(AtomicBool::new(false));
    let mut proxy = None;
    while let Some(message) = from_server.hear() {
        let message = match message {
            Message::Listen(listen) => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
                let port = listener.local_addr().expect("bound").port();
                let one = Arc::new(Proxy {
                    listener,
                    server: listen.port,
                    faults: faults.clone(),
                    flow,
                    struck: struck.clone(),
                    over: over.clone(),
                    open: Mutex::default(),
                });
                proxy = Some((one.clone(), port));
                std::thread::spawn(move || one.run());
                Message::Listen(Listen { port, ..listen })
            }
            message => message,
        };
        if to_client.write_all(&super::peer::encode(&message)).is_err() {
            break;
        }
    }
    over.store(true, SeqCst);
    drop(to_client);
    if let Some((proxy, port)) = proxy {
        // Wakes the proxy, which then sees that the copy is over.
        TcpStream::connect(("127.0.0.1", port)).ok();
        for socket in proxy.open.lock().expect("no panic while held").drain(..) {
            socket.shutdown(Shutdown::Both).ok();
        }
    }
    lifting.join().expect("no panic");
    server.wait().expect("wait for the server");
}

impl Proxy {
    fn run(self: Arc<Self>) {
        let mut number = 0;
        while let Ok((client, _)) = self.listener.accept() {
            if self.over.load(SeqCst) {
                return;
            }
            let fault = self.faults.get(number).copied().unwrap_or(Fault::None);
            number += 1;
            let keep = client.try_clone().expect("another handle");
            self.open.lock().expect("no panic while held").push(keep);
            if matches!(fault, Fault::Silent | Fault::Refused) {
                self.struck.fetch_add(1, SeqCst);
                if fault == Fault::Refused {
                    client.shutdown(Shutdown::Both).ok();
                }
                continue;
            }
            let Ok(server) = TcpStream::connect(("127.0.0.1", self.server)) else {
                continue;
            };
            for (from, to, flow) in [
                (&client, &server, Flow::ToServer),
                (&server, &client, Flow::ToClient),
            ] {
                let from = from.try_clone().expect("another handle");
                let to = to.try_clone().expect("another handle");
                let has_data = flow == self.flow;
                let fault = if has_data { fault } else { Fault::None };
                let proxy = self.clone();
                std::thread::spawn(move || proxy.pass(from, to, fault, has_data));
            }
        }
    }

    /// Reads on while bytes wait: the path has a long delay, not a low rate.
    fn pass_late(&self, mut from: TcpStream, mut to: TcpStream) {
        let (sender, late) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
        self.struck.fetch_add(1, SeqCst);
        std::thread::spawn(move || {
            for (due, bytes) in late {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
            to.shutdown(Shutdown::Write).ok();
        });
        let mut block = [0; 16 << 10];
        while let Ok(len @ 1..) = from.read(&mut block) {
            let due = Instant::now() + Duration::from_secs(1);
            if sender.send((due, block[..len].to_vec())).is_err() {
                break;
            }
        }
    }

    /// A busy machine may hold up a connection with a fault, and the others would then carry the whole
    /// copy.
    fn wait_for_faults(&self, until: Instant) {
        let faults = self.faults.iter().filter(|fault| **fault != Fault::None);
        let faults = faults.count();
        while self.struck.load(SeqCst) < faults && Instant::now() < until && !self.over.load(SeqCst)
        {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, fault: Fault, has_data: bool) {
        if fault == Fault::Late {
            return self.pass_late(from, to);
        }
        let mut block = [0; 16 << 10];
        let mut passed = 0;
        let mut waits_until = None;
        while let Ok(len @ 1..) = from.read(&mut block) {
            // The opening, or its answer, does not wait.
            if has_data && fault == Fault::None && passed > 0 {
                let until = || Instant::now() + FAULTS_FIRST;
                self.wait_for_faults(*waits_until.get_or_insert_with(until));
            }
            let bytes = &mut block[..len];
            match fault {
                Fault::Reset(at) | Fault::Close(at) if at < passed + len => {
                    to.write_all(&bytes[..at.saturating_sub(passed)]).ok();
                    self.struck.fetch_add(1, SeqCst);
                    for socket in [&from, &to] {
                        if matches!(fault, Fault::Reset(_)) {
                            rustix::net::connect_unspec(socket).ok();
                        }
                        socket.shutdown(Shutdown::Both).ok();
                    }
                    return;
                }
                Fault::BlackHole(at) if at < passed + len => {
                    to.write_all(&bytes[..at.saturating_sub(passed)]).ok();
                    self.struck.fetch_add(1, SeqCst);
                    while !self.over.load(SeqCst) && from.read(&mut block).is_ok_and(|len| len > 0)
                    {
                    }
                    return;
                }
                Fault::HalfClose(at) if at < passed + len => {
                    to.write_all(&bytes[..at.saturating_sub(passed)]).ok();
                    self.struck.fetch_add(1, SeqCst);
                    to.shutdown(Shutdown::Write).ok();
                    while from.read(&mut block).is_ok_and(|len| len > 0) {}
                    return;
                }
                Fault::Throttle(bytes_per_s) => {
                    self.struck.fetch_add(usize::from(passed == 0), SeqCst);
                    let time = Duration::from_secs(len as u64) / bytes_per_s as u32;
                    std::thread::sleep(time);
                }
                Fault::Flip(at) if (passed..passed + len).contains(&at) => {
                    bytes[at - passed] ^= 0x40;
                    self.struck.fetch_add(1, SeqCst);
                }
                Fault::Noise(at) if at < passed + len => {
                    let noise = super::tree::noise(passed as u64, len);
                    let from = at.saturating_sub(passed);
                    bytes[from..].copy_from_slice(&noise[from..]);
                    self.struck.fetch_add(1, SeqCst);
                }
                Fault::Replay(at) if at < passed + len => {
                    to.write_all(bytes).ok();
                    self.struck.fetch_add(1, SeqCst);
                }
                _ => {}
            }
            if to.write_all(bytes).is_err() {
                break;
            }
            passed += len;
            if fault == Fault::None {
                // Else this connection might carry the whole copy.
                std::thread::park_timeout(Duration::from_micros(200));
            }
        }
        to.shutdown(Shutdown::Write).ok();
    }
}
