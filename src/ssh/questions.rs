//! Where the programs wait that ssh starts to ask the user ([`ask`](super::ask)), one after the
//! other, until everything that ssh said before is on the terminal.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::sync::Mutex;

/// Tells the program that ssh starts where fastcp listens: the name of an abstract socket, which
/// leaves nothing behind.
pub const ADDRESS: &str = "FASTCP_ASK";

/// ssh's variables for the program that asks, and for when it is used. Before OpenSSH 8.4 the
/// second one has no effect, and ssh asks by itself.
const PROGRAM: &str = "SSH_ASKPASS";
const REQUIRE: &str = "SSH_ASKPASS_REQUIRE";

/// One terminal, one question at a time, whichever ssh asks it.
static TURN: Mutex<()> = Mutex::const_new(());

/// The questions of one ssh and its jump hosts.
pub struct Questions {
    listener: UnixListener,
    address: String,
    program: PathBuf,
}

impl Questions {
    /// None where ssh asks as it always did: without a terminal, where the user has chosen who
    /// asks, and where this program cannot be started again by its name.
    pub fn expected() -> Option<Questions> {
        let has_terminal = io::stderr().is_terminal() && File::open("/dev/tty").is_ok();
        if !has_terminal || std::env::var_os(REQUIRE).is_some() {
            return None;
        }
        // After an upgrade this name ends in " (deleted)".
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
    pub fn offer(&self, command: &mut Command) {
        command
            .env(ADDRESS, &self.address)
            .env(PROGRAM, &self.program)
            .env(REQUIRE, "force");
    }

    /// The next program that waits.
    pub async fn next(&self) -> Question {
        loop {
            match self.listener.accept().await {
                Ok((socket, _)) if is_own(&socket) => return Question(socket),
                // Another user who has guessed the name learns and delays nothing.
                Ok(_) => {}
                // Too many open files: ssh's own limit of time ends the login.
                Err(_) => std::future::pending().await,
            }
        }
    }
}

fn is_own(socket: &UnixStream) -> bool {
    let peer = socket.peer_cred().map(|peer| peer.uid());
    peer.is_ok_and(|uid| uid == rustix::process::geteuid().as_raw())
}

/// A program that waits for its turn.
pub struct Question(UnixStream);

impl Question {
    /// Lets it ask once `hold` has cleared the terminal, and waits until it has.
    pub async fn let_ask<G>(mut self, hold: impl Future<Output = G>) {
        let _turn = TURN.lock().await;
        let _held = hold.await;
        if self.0.write_all(b"\n").await.is_ok() {
            // It sends nothing, and closes the socket at its end.
            let _ = self.0.read(&mut [0]).await;
        }
    }
}

/// For the program that asks.
pub fn connect(address: &OsStr) -> io::Result<std::os::unix::net::UnixStream> {
    std::os::unix::net::UnixStream::connect_addr(&named(address)?)
}

fn named(address: &OsStr) -> io::Result<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    std::os::unix::net::SocketAddr::from_abstract_name(address.as_bytes())
}
