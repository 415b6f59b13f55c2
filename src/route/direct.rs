//! The direct route: the server listens, the client dials, for push and pull alike, since ssh has
//! just gone that way, at the address that the ssh session itself reached.
//!
//! Whoever connects and cannot prove that it knows the session's secret is dropped after a short
//! wait; many such cannot keep the client out, since the oldest of them goes when they are many.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::stream::opening::{Expected, Keyring, StreamId};
use crate::stream::prepare;
use crate::wire::message::{ADDRESSES_MAX, Listen};

/// How long one address may take to answer a connection.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that have not proven themselves yet.
const UNPROVEN_MAX: usize = 32;

/// A connection whose other end knows the secret, or is still to prove it.
pub struct Connection {
    pub id: StreamId,
    pub socket: TcpStream,
    /// The answer to our opening, where frames may go behind that before the answer comes.
    pub expected: Option<Expected>,
    /// Where who dialled it learns what became of it.
    pub fate: Option<oneshot::Sender<Fate>>,
}

/// What became of a connection.
#[derive(Clone, Debug)]
pub struct Fate {
    /// The other end had shown that it knows the secret.
    pub was_proven: bool,
    /// It was of use: data went through it.
    pub carried: bool,
    pub cause: String,
}

/// A port that is open for data streams until it is dropped.
pub struct Listener {
    listener: TcpListener,
    pub listen: Listen,
}

impl Listener {
    /// Opens an ephemeral port on all addresses, and names the one that the client reached.
    ///
    /// # Errors
    /// Where neither IPv6 nor IPv4 can be listened on.
    pub async fn open() -> io::Result<Listener> {
        let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await?,
        };
        let port = listener.local_addr()?.port();
        let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
        let addresses = vec![reached_address(&connection)];
        Ok(Listener {
            listener,
            listen: Listen { addresses, port },
        })
    }

    /// Takes connections and hands on those that prove themselves, until `hand_on` says no more.
    pub async fn run(self, keyring: Arc<Keyring>, mut hand_on: impl FnMut(Connection) -> bool) {
        let mut unproven: JoinSet<io::Result<Connection>> = JoinSet::new();
        let mut oldest: std::collections::VecDeque<AbortHandle> = Default::default();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => {
                    let Ok((mut socket, _)) = accepted else {
                        // Out of descriptors or memory: others may give some back.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    };
                    oldest.retain(|task| !task.is_finished());
                    if oldest.len() >= UNPROVEN_MAX && let Some(task) = oldest.pop_front() {
                        task.abort();
                    }
                    let keyring = keyring.clone();
                    oldest.push_back(unproven.spawn(async move {
                        let id = keyring.welcome(&mut socket).await?;
                        prepare(&socket)?;
                        Ok(Connection { id, socket, expected: None, fate: None })
                    }));
                }
                Some(proven) = unproven.join_next() => {
                    if let Ok(Ok(connection)) = proven && !hand_on(connection) {
                        return;
                    }
                }
            }
        }
    }
}

/// The server's address in `SSH_CONNECTION` ("client port server port"); the loopback address
/// where the server was not started by sshd.
fn reached_address(connection: &str) -> String {
    let address = connection.split(' ').nth(2).unwrap_or_default();
    if address.is_empty() {
        Ipv4Addr::LOCALHOST.to_string()
    } else {
        address.to_owned()
    }
}

/// The server's addresses, as far as they read. A zone of a link-local address is the dialler's
/// own, so the server's is cut off.
pub fn announced(listen: &Listen) -> Vec<SocketAddr> {
    let plain = |text: &String| text.split('%').next()?.parse::<IpAddr>().ok();
    let addresses = listen
        .addresses
        .iter()
        .take(ADDRESSES_MAX)
        .filter_map(plain);
    addresses.map(|ip| (ip, listen.port).into()).collect()
}

/// What the user's name for the host stands for, as far as it was not tried. A name that only ssh
/// knows stands for nothing.
pub async fn named(host: &str, port: u16, tried: &[SocketAddr]) -> Vec<SocketAddr> {
    match timeout(DIAL_TIMEOUT, tokio::net::lookup_host((host, port))).await {
        Ok(Ok(found)) => found
            .filter(|at| !tried.contains(at))
            .take(ADDRESSES_MAX)
            .collect(),
        _ => Vec::new(),
    }
}

/// Dials one stream at the first of `addresses` that answers, each address being an attempt of its
/// own from `id.attempt` on. With `early` the listener's answer
/// is left to who sends on the connection.
pub async fn dial(
    addresses: &[SocketAddr],
    keyring: &Arc<Keyring>,
    id: StreamId,
    early: bool,
) -> io::Result<Connection> {
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no address to dial");
    for (nth, &address) in addresses.iter().enumerate() {
        // A failed attempt at one address is none at the next: the listener takes each once.
        let attempt = id.attempt.saturating_add(nth as u16);
        match dial_one(address, keyring, StreamId { attempt, ..id }, early).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn dial_one(
    address: SocketAddr,
    keyring: &Arc<Keyring>,
    id: StreamId,
    early: bool,
) -> io::Result<Connection> {
    let mut socket = timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await??;
    prepare(&socket)?;
    let mut expected = Some(keyring.open(&mut socket, id).await?);
    if !early && let Some(expected) = expected.take() {
        expected.answer(&mut socket).await?;
    }
    Ok(Connection {
        id,
        socket,
        expected,
        fate: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_ssh_reached_comes_first() {
        assert_eq!(reached_address("10.0.0.1 5000 10.0.0.2 22"), "10.0.0.2");
        assert_eq!(
            reached_address("fe80::1%eth0 5000 fe80::2%eth0 22"),
            "fe80::2%eth0"
        );
        assert_eq!(reached_address(""), "127.0.0.1");
    }
}
