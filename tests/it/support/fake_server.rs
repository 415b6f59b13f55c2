//! A dishonest server: it runs in place of the server of the client under test.
//!
//! The client starts a shell script that joins its stdin and stdout to two FIFOs of the test.
//! Every wait ends: a client that exits closes the FIFOs, and one that hangs is killed at its
//! run's time limit.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fastcp::digest::Digest;
use fastcp::manifest::{Entry, EntryId, Root, Totals};
use fastcp::seal::Direction;
use fastcp::session::host;
use fastcp::transport::connection::handshake::Keyring;
use fastcp::wire::frame::{FrameHeader, FrameLimits, HEADER_LEN};
use fastcp::wire::hello::Hello;
use fastcp::wire::message::{
    AllSent, EntryEnd, Heartbeat, Listen, Message, Open, Role, Roots, RootsResolved,
};

use super::case::Case;
use super::inject::Inject;
use super::peer::{Control, Keys};
use super::run::{Done, Run};

/// How long a peer waits for a connection, or for bytes on one.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that the client under test has started, after the opening of the session.
pub(crate) struct FakeServer {
    pub control: Control,
    pub open: Open,
    pub keys: Keys,
    pub streams: Vec<TcpStream>,
    listener: TcpListener,
}

impl FakeServer {
    /// None if the client left before the end of the opening.
    fn open(mut control: Control, hello: &Hello) -> Option<FakeServer> {
        control.say_hello_as(hello);
        control.hear_hello()?;
        let Message::Open(open) = control.hear()? else {
            panic!("the client opens another way");
        };
        let Message::Secret(secret) = control.hear()? else {
            panic!("the client opens another way");
        };
        let direction = match open.role {
            Role::Sender { .. } | Role::Producer { .. } | Role::Verifier { .. } => {
                Direction::ToClient
            }
            Role::Receiver { .. }
            | Role::Consumer { .. }
            | Role::Probe { .. }
            | Role::Cleaner { .. } => Direction::ToServer,
        };
        Some(FakeServer {
            keys: Keys::new(&open, secret.0, direction),
            control,
            open,
            streams: Vec::new(),
            listener: TcpListener::bind("127.0.0.1:0").expect("a port"),
        })
    }

    pub(crate) fn say(&mut self, message: Message) {
        self.control.say(message);
    }

    /// Sends the address where it listens, and accepts every stream that the client opens.
    pub(crate) fn listen(&mut self) {
        let port = self.listener.local_addr().expect("bound").port();
        self.say(Message::Listen(Listen {
            addresses: vec!["127.0.0.1".into()],
            port,
        }));
        for _ in 0..self.open.streams.unwrap_or(1) {
            let Some(socket) = accept(&self.listener) else {
                return;
            };
            self.streams.extend(welcome(&self.keys.keyring, socket));
        }
    }

    pub(crate) fn roots(&mut self, roots: Vec<Root>) {
        let totals = Totals::default();
        self.say(Message::Roots(Roots { roots, totals }));
    }

    /// Waits until the client has sent its roots.
    pub(crate) fn hear_roots(&mut self) {
        // The totals come later on a busy machine.
        let roots =
            |message: &Message| matches!(message, Message::Roots(_) | Message::Uncounted(_));
        self.control.hear_until(roots);
    }

    /// Sends the names under which the roots land.
    pub(crate) fn landed_as(&mut self, names: Vec<Vec<u8>>) {
        self.say(Message::Landed(RootsResolved {
            names,
            resumes: false,
            ordered: false,
            window: 64,
        }));
    }

    /// Reads the frames of every stream in the background, and gives their headers.
    pub(crate) fn frames(&self) -> mpsc::Receiver<FrameHeader> {
        let (headers, heard) = mpsc::channel();
        let limits = FrameLimits::new(self.open.chunk_size);
        for stream in &self.streams {
            let mut stream = stream.try_clone().expect("another handle");
            let headers = headers.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; HEADER_LEN];
                while stream.read_exact(&mut bytes).is_ok() {
                    let header = FrameHeader::parse(&bytes, &limits);
                    let header = header.expect("the end under test is honest");
                    let mut rest = vec![0; header.wire_len as usize];
                    if stream.read_exact(&mut rest).is_err() || headers.send(header).is_err() {
                        return;
                    }
                }
            });
        }
        heard
    }

    /// Reads every stream in the background and ignores the bytes.
    pub(crate) fn drain(&mut self) {
        for stream in &self.streams {
            let mut stream = stream.try_clone().expect("another handle");
            std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
    }

    /// Listens without the session's keys: it sends `answer` on each stream. Returns the number
    /// of bytes that it received.
    pub(crate) fn listen_as_stranger(&mut self, answer: &[u8]) -> usize {
        let port = self.listener.local_addr().expect("bound").port();
        self.say(Message::Listen(Listen {
            addresses: vec!["127.0.0.1".into()],
            port,
        }));
        let mut heard = Vec::new();
        for _ in 0..self.open.streams.unwrap_or(1) {
            let Some(mut socket) = accept(&self.listener) else {
                break;
            };
            socket.write_all(answer).ok();
            socket.shutdown(std::net::Shutdown::Write).ok();
            socket.read_to_end(&mut heard).ok();
        }
        heard.len()
    }

    /// Waits until the client's roots have landed; false if the client left first.
    pub(crate) fn landed(&mut self) -> bool {
        let landed = |message: &Message| matches!(message, Message::Landed(_));
        self.control.hear_until(landed).is_some()
    }

    /// An honest beginning: streams, and one root that has landed.
    pub(crate) fn begin(&mut self, root: Root) {
        self.listen();
        self.roots(vec![root]);
        self.landed();
    }

    pub(crate) fn entries(&mut self, entries: Vec<Entry>) {
        self.say(Message::Entries(entries));
    }

    pub(crate) fn end(&mut self, entry: EntryId, length: u64, root: Option<Digest>) {
        self.say(Message::EntryEnd(vec![EntryEnd {
            entry,
            length,
            root,
        }]));
    }

    pub(crate) fn all_sent(&mut self, last: EntryId) {
        self.say(Message::AllSent(AllSent {
            last,
            unused: Vec::new(),
        }));
    }

    /// Sends bytes on a stream.
    pub(crate) fn send(&mut self, stream: usize, bytes: &[u8]) {
        if let Some(socket) = self.streams.get_mut(stream) {
            socket.write_all(bytes).ok();
        }
    }

    /// Waits until the client has sent a request for data; false if the client left first.
    pub(crate) fn wanted(&mut self) -> bool {
        let want = |message: &Message| matches!(message, Message::Want(_));
        self.control.hear_until(want).is_some()
    }

    /// Sends a whole file, honestly.
    pub(crate) fn whole_file(&mut self, entry: Entry, content: &[u8]) {
        let (id, size) = (entry.id, content.len() as u64);
        self.entries(vec![Entry { size, ..entry }]);
        self.wanted();
        for (n, data) in content.chunks(self.keys.chunk_size).enumerate() {
            let frame = self
                .keys
                .piece(id, (n * self.keys.chunk_size) as u64, size, data);
            self.send(n % self.streams.len().max(1), &frame);
        }
        self.end(id, size, Some(blake3::hash(content).into()));
    }

    /// Sends only heartbeats for this long, or until nobody reads them.
    pub(crate) fn beat_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let beat = Message::Heartbeat(Heartbeat::default());
        while Instant::now() < until && self.control.is_heard(&beat) {
            std::thread::park_timeout(Duration::from_secs(1));
        }
    }

    /// Closes streams and control in the middle of a copy.
    pub(crate) fn leave(&mut self) {
        self.streams.clear();
        self.control.hang_up();
    }

    /// Stays until the client leaves; true if the client sent `Done` first.
    pub(crate) fn finish(&mut self) -> bool {
        let done = |message: &Message| matches!(message, Message::Done(()));
        let done = self.control.hear_until(done).is_some();
        self.streams.clear();
        self.control.hear_out();
        done
    }
}

/// The next connection; None if no connection comes within [`PATIENCE`].
pub(crate) fn accept(listener: &TcpListener) -> Option<TcpStream> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec::try_from(PATIENCE).expect("a short time");
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    let ready = poll(&mut fds, Some(&limit)).expect("poll a listener");
    let (socket, _) = (ready > 0).then(|| listener.accept().ok())??;
    socket.set_read_timeout(Some(PATIENCE)).ok()?;
    socket.set_write_timeout(Some(PATIENCE)).ok()?;
    Some(socket)
}

/// Accepts the opening of a stream and answers it.
pub(crate) fn welcome(keyring: &Keyring, socket: TcpStream) -> Option<TcpStream> {
    in_runtime(async {
        socket.set_nonblocking(true).ok()?;
        let mut socket = tokio::net::TcpStream::from_std(socket).ok()?;
        keyring.welcome(&mut socket).await.ok()?;
        let socket = socket.into_std().ok()?;
        socket.set_nonblocking(false).ok()?;
        Some(socket)
    })
}

/// Runs the library's asynchronous socket code.
pub(crate) fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work)
}

/// The FIFOs between a fake server and the client that started it.
struct Fifos {
    up: PathBuf,
    down: PathBuf,
    script: PathBuf,
}

impl Fifos {
    fn make(case: &Case) -> Fifos {
        let dir = case.scratch.dir(format!("peer-{}", unique()));
        let fifos = Fifos {
            up: dir.path("up"),
            down: dir.path("down"),
            script: dir.path("far end"),
        };
        for path in [&fifos.up, &fifos.down] {
            rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o600.into()).expect("make a FIFO");
        }
        let (up, down) = (fifos.up.display(), fifos.down.display());
        dir.file(
            "far end",
            format!(
                "#!/bin/sh\ncase \" $* \" in *' -G '*) exit 1; esac\n\
                 exec 3<&0\ncat <&3 >'{up}' &\nexec cat <'{down}' 3<&-\n"
            ),
        );
        dir.mode("far end", 0o755);
        fifos
    }

    /// Waits until the client has started the script.
    fn join(&self) -> Control {
        let open = |result: std::io::Result<File>| result.expect("open a FIFO");
        let from = open(File::open(&self.up));
        let to = open(File::options().write(true).open(&self.down));
        Control::new(from, to)
    }

    /// Ends a wait in [`join`](Fifos::join) for a script that the client never started.
    fn release(&self) {
        for path in [&self.up, &self.down] {
            let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
            let opened = File::options()
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(path);
            drop(opened);
        }
    }
}

fn unique() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Runs the client under test with `words` after the options that find the server. `peer` plays
/// the server and gets control before any byte was sent on it. Streams are direct.
pub(crate) fn against_control(
    case: &Case,
    words: &[&OsStr],
    peer: impl FnOnce(Control) + Send,
) -> Done {
    let words = [&["--route".as_ref(), "direct".as_ref()], words].concat();
    by_any_route(case, &words, None, peer)
}

/// Like [`pull`], with these faults in the client's system calls.
pub(crate) fn pull_with(
    case: &Case,
    inject: &Inject,
    flags: &[&str],
    peer: impl FnOnce(FakeServer) + Send,
) -> Done {
    let words = ["--route", "direct", "--streams", "8"].iter().chain(flags);
    let mut words: Vec<&OsStr> = words.map(OsStr::new).collect();
    words.extend(["far:/x/tree".as_ref(), case.dst.0.as_os_str()]);
    with_faults(case, inject, &words, peer)
}

/// Like [`push`], with these faults in the client's system calls.
pub(crate) fn push_with(
    case: &Case,
    inject: &Inject,
    source: &Path,
    peer: impl FnOnce(FakeServer) + Send,
) -> Done {
    let words = ["--route", "direct", "--streams", "8", "-r"];
    let mut words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
    words.extend([source.as_os_str(), "far:there".as_ref()]);
    with_faults(case, inject, &words, peer)
}

fn with_faults(
    case: &Case,
    inject: &Inject,
    words: &[&OsStr],
    peer: impl FnOnce(FakeServer) + Send,
) -> Done {
    by_any_route(case, words, Some(inject), |control| {
        if let Some(server) = FakeServer::open(control, &host::hello()) {
            peer(server);
        }
    })
}

/// Like [`against`], but the client looks for a route.
pub(crate) fn against_free(
    case: &Case,
    words: &[&OsStr],
    peer: impl FnOnce(FakeServer) + Send,
) -> Done {
    by_any_route(case, words, None, |control| {
        if let Some(server) = FakeServer::open(control, &host::hello()) {
            peer(server);
        }
    })
}

fn by_any_route(
    case: &Case,
    words: &[&OsStr],
    inject: Option<&Inject>,
    peer: impl FnOnce(Control) + Send,
) -> Done {
    let fifos = Fifos::make(case);
    let script = format!("'{}'", fifos.script.display());
    let run = case
        .bare()
        .args(["--rsh", "local", "--remote-path", &script])
        // A peer plays only one session.
        .args(["--retries", "0"])
        .args(words)
        // Many attacks try to make the client use much memory.
        .measured();
    let run = match inject {
        Some(inject) => run.inject(inject),
        None => run,
    };
    played(&fifos, run, peer)
}

/// Starts the client, and plays the far end that it starts.
fn played(fifos: &Fifos, run: Run, peer: impl FnOnce(Control) + Send) -> Done {
    std::thread::scope(|scope| {
        let (gone, client_gone) = mpsc::channel::<()>();
        let playing = scope.spawn(|| {
            let control = fifos.join();
            drop(gone);
            peer(control);
        });
        let running = run.start();
        let done = running.wait();
        // If the client never started its server, the peer still waits for it.
        let deadline = Instant::now() + PATIENCE;
        while client_gone.try_recv() == Err(mpsc::TryRecvError::Empty) && Instant::now() < deadline
        {
            fifos.release();
            std::thread::park_timeout(Duration::from_millis(2));
        }
        if let Err(panic) = playing.join() {
            eprintln!("{done}");
            std::panic::resume_unwind(panic);
        }
        done
    })
}

/// Like [`against_control`], with a server that has sent its hello and opened a session.
pub(crate) fn against(case: &Case, words: &[&OsStr], peer: impl FnOnce(FakeServer) + Send) -> Done {
    against_as(case, &host::hello(), words, peer)
}

fn against_as(
    case: &Case,
    hello: &Hello,
    words: &[&OsStr],
    peer: impl FnOnce(FakeServer) + Send,
) -> Done {
    // A peer needs a fixed number of streams.
    let words = [&["--streams".as_ref(), "8".as_ref()], words].concat();
    against_control(case, &words, |control| {
        if let Some(server) = FakeServer::open(control, hello) {
            peer(server);
        }
    })
}

/// Pulls `operand` (the part after the colon) into the case's destination, which is an empty
/// directory unless the test has filled it.
pub(crate) fn pull(
    case: &Case,
    flags: &[&str],
    operand: &str,
    peer: impl FnOnce(FakeServer) + Send,
) -> Done {
    let operand = format!("far:{operand}");
    let mut words: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
    words.extend([operand.as_ref(), case.dst.0.as_os_str()]);
    against(case, &words, peer)
}

/// Like [`pull`], by a client whose command line is scp's: the peer takes the place of ssh.
pub(crate) fn pull_as_scp(
    case: &Case,
    operand: &str,
    peer: impl FnOnce(FakeServer) + Send,
) -> Done {
    let fifos = Fifos::make(case);
    let run = case.bare().args(["--scp", "-rS"]).arg(&fifos.script);
    let run = run.arg(format!("far:{operand}")).arg(&case.dst.0);
    played(&fifos, run, |control| {
        if let Some(server) = FakeServer::open(control, &host::hello()) {
            peer(server);
        }
    })
}

/// Pushes `source` to the peer, in whole chunks.
pub(crate) fn push(
    case: &Case,
    flags: &[&str],
    source: &Path,
    peer: impl FnOnce(FakeServer) + Send,
) -> Done {
    push_as(case, &host::hello().without_grains(), flags, source, peer)
}

/// Like [`push`], with this hello from the peer.
pub(crate) fn push_as(
    case: &Case,
    hello: &Hello,
    flags: &[&str],
    source: &Path,
    peer: impl FnOnce(FakeServer) + Send,
) -> Done {
    let mut words: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
    words.extend([source.as_os_str(), "far:there".as_ref()]);
    against_as(case, hello, &words, peer)
}
