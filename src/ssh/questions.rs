//! The queue of [`ask`](super::ask) programs, which ssh starts to ask the user. They wait here,
//! one after the other, until ssh's earlier messages are on the terminal.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::sync::Mutex;

/// The variable that tells the program where fastcp listens: the name of an abstract socket,
/// which leaves no file behind.
pub(super) const ADDRESS: &str = "FASTCP_ASK";

/// ssh's variables for the program that asks, and for when to use it. Before OpenSSH 8.4 the
/// second one has no effect, and ssh itself asks.
const PROGRAM: &str = "SSH_ASKPASS";
const REQUIRE: &str = "SSH_ASKPASS_REQUIRE";

/// Allows one question at a time on the terminal, from any ssh.
static TURN: Mutex<()> = Mutex::const_new(());

/// Listens for questions of one ssh and its jump hosts.
pub(super) struct Questions {
    listener: UnixListener,
    address: String,
    program: PathBuf,
}

impl Questions {
    /// None if ssh should ask in its usual way: without a terminal, if the user has set
    /// `SSH_ASKPASS_REQUIRE`, or if this program's file cannot be found.
    pub(super) fn expected() -> Option<Questions> {
        let has_terminal = io::stderr().is_terminal() && File::open("/dev/tty").is_ok();
        if !has_terminal || std::env::var_os(REQUIRE).is_some() {
            return None;
        }
        // If the file was replaced by an upgrade, this name ends in " (deleted)".
        let program = std::env::current_exe().ok()?;
        program.is_file().then_some(())?;
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).ok()?;
        let random = u128::from_ne_bytes(random);
        let address = format!("fastcp-{}-{random:032x}", std::process::id());
        let listener =
            std::os::unix::net::UnixListener::bind_addr(&named(OsStr::new(&address)).ok()?);
        let listener = listener.ok()?;
        listener.set_nonblocking(true).ok()?;
        Some(Questions {
            listener: UnixListener::from_std(listener).ok()?,
            address,
            program,
        })
    }

    /// Makes the ssh that `command` starts ask through this program.
    pub(super) fn offer(&self, command: &mut Command) {
        command
            .env(ADDRESS, &self.address)
            .env(PROGRAM, &self.program)
            .env(REQUIRE, "force");
    }

    /// The next program that waits to ask.
    pub(super) async fn next(&self) -> Question {
        loop {
            match self.listener.accept().await {
                Ok((socket, _)) if is_own(&socket) => return Question(socket),
                // A process of another user that guessed the name gets and delays nothing.
                Ok(_) => {}
                // Too many open files: the login's time limit ends it.
                Err(_) => std::future::pending().await,
            }
        }
    }
}

fn is_own(socket: &UnixStream) -> bool {
    let peer = socket.peer_cred().map(|peer| peer.uid());
    peer.is_ok_and(|uid| uid == rustix::process::geteuid().as_raw())
}

/// A program that waits for its turn to ask.
pub(super) struct Question(UnixStream);

impl Question {
    /// Lets the program ask once `hold` has cleared the terminal, and waits until it has asked.
    pub(super) async fn let_ask<G>(mut self, hold: impl Future<Output = G>) {
        let _turn = TURN.lock().await;
        let _held = hold.await;
        if self.0.write_all(b"\n").await.is_ok() {
            // The program sends nothing, and closes the socket when it ends.
            let _ = self.0.read(&mut [0]).await;
        }
    }
}

/// Connects the program that asks.
pub(super) fn connect(address: &OsStr) -> io::Result<std::os::unix::net::UnixStream> {
    std::os::unix::net::UnixStream::connect_addr(&named(address)?)
}

fn named(address: &OsStr) -> io::Result<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    std::os::unix::net::SocketAddr::from_abstract_name(address.as_bytes())
}
