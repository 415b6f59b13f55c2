//! Plays a [`Script`] between a real client and real servers. Data connections go through a proxy
//! that applies the script's faults; so does the control of each session that the client starts.
//!
//! The client starts a shell script as its server. The script announces itself to the test and
//! joins its stdin and stdout to FIFOs. Behind them a real server runs for each session. Its
//! messages pass unchanged, except for the port where it listens: the proxy puts in its port.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastcp::wire::message::{Listen, Message};
use rustix::process::Pid;

use super::case::Case;
use super::chaos::{Broken, Cut, Flow, Script};
use super::offspring::dying_with_this_thread;
use super::peer::{Control, encode};
use super::pipe::Pipe;
use super::procs::{self, MARK};
use super::run::{Run, fastcp_binary};
use super::tree::Dir;

/// How long a server may take to notice that its client has gone: three quarters of the allowed
/// silence, and some more for a busy machine.
const SERVER_LIMIT: Duration = Duration::from_secs(30);

/// A proxy in front of servers, one for each session that the client starts.
pub(crate) struct Storm {
    shared: Arc<Shared>,
    taking: Option<std::thread::JoinHandle<()>>,
}

pub(super) struct Shared {
    script: Script,
    dir: Dir,
    home: PathBuf,
    mark: String,
    over: AtomicBool,
    connections: AtomicUsize,
    sessions: AtomicUsize,
    struck: AtomicUsize,
    /// Bytes that passed through data connections, in both directions.
    bytes: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

impl Storm {
    pub(crate) fn new(case: &Case, script: &Script) -> Storm {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("storm-{}", NEXT.fetch_add(1, SeqCst));
        let dir = case.scratch.dir(name);
        let calls = dir.path("calls");
        rustix::fs::mkfifoat(rustix::fs::CWD, &calls, 0o600.into()).expect("make a FIFO");
        let d = dir.0.display();
        dir.file(
            "far end",
            format!(
                "#!/bin/sh\nmkfifo '{d}'/$$.up '{d}'/$$.down && echo $$ >'{d}/calls' || exit 1\n\
                 exec 3<&0\ncat <&3 >'{d}'/$$.up &\nexec cat <'{d}'/$$.down 3<&-\n"
            ),
        );
        dir.mode("far end", 0o755);
        let shared = Arc::new(Shared {
            script: script.clone(),
            dir,
            home: case.home.0.clone(),
            mark: case.mark().to_owned(),
            over: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            struck: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            open: Mutex::default(),
        });
        // Opened for reading and writing, so that reads do not end while nobody else writes.
        let calls = File::options().read(true).write(true).open(calls);
        let calls = calls.expect("open a FIFO");
        let taking = {
            let shared = shared.clone();
            std::thread::spawn(move || shared.take_calls(calls))
        };
        Storm {
            shared,
            taking: Some(taking),
        }
    }

    /// fastcp with this server.
    pub(crate) fn fastcp(&self, case: &Case) -> Run {
        let script = format!("'{}'", self.shared.dir.path("far end").display());
        case.bare()
            .args(["--rsh", "local", "--remote-path", &script])
            // A login for another route is not a session, but would count as one.
            .args(["--route", "direct"])
    }

    /// Faults that have occurred so far.
    pub(crate) fn struck(&self) -> usize {
        self.shared.struck.load(SeqCst)
    }

    pub(crate) fn sessions(&self) -> usize {
        self.shared.sessions.load(SeqCst)
    }

    /// Data connections made so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }

    /// Bytes that data connections have carried so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(SeqCst)
    }

    /// Ends the storm after the client's exit, and waits for every server.
    pub(crate) fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let Some(taking) = self.taking.take() else {
            return;
        };
        self.shared.over.store(true, SeqCst);
        let calls = File::options()
            .append(true)
            .open(self.shared.dir.path("calls"));
        calls
            .and_then(|mut calls| calls.write_all(b"end\n"))
            .expect("wake who takes calls");
        taking.join().expect("every server ended in time");
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

impl Shared {
    fn take_calls(self: Arc<Self>, calls: File) {
        let mut sessions = Vec::new();
        for call in BufReader::new(calls).lines() {
            let call = call.expect("a FIFO reads");
            if call == "end" {
                break;
            }
            let shared = self.clone();
            let name = call.clone();
            sessions.push((call, std::thread::spawn(move || shared.session(&name))));
        }
        for socket in self.open.lock().expect("no panic while held").drain(..) {
            socket.shutdown(Shutdown::Both).ok();
        }
        for (call, session) in sessions {
            self.release(&call);
            session.join().expect("a session ends rightly");
        }
    }

    /// Ends an open of the FIFOs whose shell script has gone already.
    fn release(&self, call: &str) {
        for name in ["up", "down"] {
            let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
            let path = self.dir.path(format!("{call}.{name}"));
            let mut options = File::options();
            drop(
                options
                    .read(true)
                    .write(true)
                    .custom_flags(flags)
                    .open(path),
            );
        }
    }

    fn session(self: Arc<Self>, call: &str) {
        let number = self.sessions.fetch_add(1, SeqCst);
        let up = File::open(self.dir.path(format!("{call}.up")));
        let down = File::options()
            .write(true)
            .open(self.dir.path(format!("{call}.down")));
        let (Ok(up), Ok(down)) = (up, down) else {
            return;
        };
        let mut server = self.start_server();
        let (stdin, stdout) = (server.stdin.take(), server.stdout.take());
        let from_server = Control::new(stdout.expect("piped"), stdin.expect("piped"));
        let mute = Arc::new(AtomicBool::new(false));
        self.relay(number, up, down, from_server, &mute);
        let pid = Pid::from_child(&server);
        if !procs::ended_within(pid, SERVER_LIMIT) {
            let state = procs::describe_group(pid);
            server.kill().ok();
            server.wait().ok();
            panic!("a server outlived its client\n{state}");
        }
        server.wait().expect("it is our child");
    }

    fn start_server(&self) -> Child {
        let mut command = dying_with_this_thread(fastcp_binary());
        command
            .arg("--server")
            .env_clear()
            .env("HOME", &self.home)
            .env(MARK, &self.mark)
            .current_dir(&self.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn().expect("start a server")
    }

    /// Passes control in both directions until it ends or the script ends it.
    fn relay(
        self: &Arc<Self>,
        session: usize,
        mut up: File,
        down: File,
        mut server: Control,
        mute: &Arc<AtomicBool>,
    ) {
        let mut to_server = server.take_writer();
        let lifting = {
            let (mute, shared) = (mute.clone(), self.clone());
            std::thread::spawn(move || {
                let mut block = [0; 16 << 10];
                while let Ok(len @ 1..) = up.read(&mut block) {
                    if mute.load(SeqCst) {
                        shared.hold(|| false);
                        break;
                    }
                    if to_server.write_all(&block[..len]).is_err() {
                        break;
                    }
                }
            })
        };
        self.lower(session, down, &mut server, mute);
        // Both directions close when the server has gone or the script demands it. The client's
        // own end then closes the other FIFO.
        drop(server);
        lifting.join().expect("no panic");
    }

    /// Passes the server's messages on, one by one.
    fn lower(
        self: &Arc<Self>,
        session: usize,
        mut down: File,
        server: &mut Control,
        mute: &Arc<AtomicBool>,
    ) {
        let mut cut = self.script.cut_of(session);
        let mut passed = 0;
        let hello = match server.hear_hello() {
            Some(_) => fastcp::session::host::hello().to_line(),
            None => return,
        };
        let mut next = Some(hello);
        while let Some(bytes) = next {
            match cut {
                Some(Cut { at, how, .. }) if at < passed + bytes.len() => {
                    cut = None;
                    self.strike();
                    match how {
                        Broken::Closed => {
                            down.write_all(&bytes[..at.saturating_sub(passed)]).ok();
                            return;
                        }
                        Broken::Mute => {
                            mute.store(true, SeqCst);
                            // Until the client gives up: then its shell script closes the FIFO.
                            self.hold(|| is_deserted(&down));
                            return;
                        }
                        Broken::Stall(time) => self.pause(time),
                    }
                }
                _ => {}
            }
            if down.write_all(&bytes).is_err() {
                return;
            }
            passed += bytes.len();
            next = server
                .hear()
                .map(|message| encode(&self.redirected(message)));
        }
    }

    fn redirected(self: &Arc<Self>, message: Message) -> Message {
        let Message::Listen(listen) = message else {
            return message;
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (shared, server) = (self.clone(), listen.port);
        std::thread::spawn(move || shared.take_connections(&listener, server));
        Message::Listen(Listen { port, ..listen })
    }

    fn take_connections(self: Arc<Self>, listener: &TcpListener, server: u16) {
        listener.set_nonblocking(true).expect("a listener");
        while !self.over.load(SeqCst) {
            let Ok((client, _)) = listener.accept() else {
                std::thread::park_timeout(Duration::from_millis(5));
                continue;
            };
            client.set_nonblocking(false).expect("a socket");
            let number = self.connections.fetch_add(1, SeqCst);
            let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                continue;
            };
            for (from, to, flow) in [
                (&client, &server, Flow::ToServer),
                (&server, &client, Flow::ToClient),
            ] {
                let handle = |socket: &TcpStream| socket.try_clone().expect("another handle");
                let (from, to) = (handle(from), handle(to));
                self.open
                    .lock()
                    .expect("no panic while held")
                    .push(handle(&from));
                let shared = self.clone();
                let faults = self.script.on(number, flow);
                std::thread::spawn(move || Pipe { from, to, shared }.pass(faults));
            }
        }
    }

    /// Counts a fault that occurs.
    pub(super) fn strike(&self) {
        self.struck.fetch_add(1, SeqCst);
    }

    /// Counts bytes that pass through a data connection.
    pub(super) fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, SeqCst);
    }

    pub(super) fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        self.hold(|| Instant::now() >= until);
    }

    /// Waits until `done`, or until the storm is over.
    pub(super) fn hold(&self, done: impl Fn() -> bool) {
        while !self.over.load(SeqCst) && !done() {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

/// True if nobody reads this FIFO any more.
fn is_deserted(fifo: &File) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(fifo, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
