//! Connections from one end to the other: from the client to the server (direct), the way that ssh
//! connects, or from the server to the client (reverse).
//!
//! The addresses are tried in order, each a moment after the one before. The first that connects
//! and proves itself is taken. A proven address is then the only one that is dialled.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Connection, NO_ANSWER};
use crate::transport::connection::duplex::Duplex;
use crate::transport::connection::handshake::{ConnectionId, Keyring};
use crate::transport::connection::prepare;
use crate::wire::message::ADDRESSES_MAX;

/// How long one address may take to accept a connection.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The delay between the attempts of two addresses (RFC 8305: 250 ms).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// The result of dialling so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DialAnswer {
    #[default]
    Silent,
    /// At least one address accepted a connection.
    Connected,
    /// No address accepted a connection: each refused it or timed out.
    Refused,
}

/// Times that an address is dialled if strangers answer there. The far end names the addresses,
/// and may name addresses of other hosts.
const STRANGE_MAX: u32 = 64;

/// Addresses at which the other end may be dialled, and the results of earlier dials.
pub struct Places {
    /// The address of this host to dial from.
    bind: Option<IpAddr>,
    state: Mutex<DialProgress>,
}

#[derive(Default)]
struct DialProgress {
    addresses: Vec<SocketAddr>,
    answer: DialAnswer,
    proven: Option<SocketAddr>,
    /// How often a connection to this address was not proven.
    strange: HashMap<SocketAddr, u32>,
}

impl Places {
    pub fn new(mut addresses: Vec<SocketAddr>, bind: Option<IpAddr>) -> Places {
        addresses.retain(|address| can_go(bind, *address));
        let state = DialProgress {
            addresses,
            ..DialProgress::default()
        };
        Places {
            bind,
            state: Mutex::new(state),
        }
    }

    /// Adds new addresses behind the first one, up to `ADDRESSES_MAX` in total.
    pub fn add(&self, more: Vec<SocketAddr>) {
        let mut state = self.state.lock();
        let at = state.addresses.len().min(1);
        for address in more.into_iter().rev() {
            let is_new = !state.addresses.contains(&address) && can_go(self.bind, address);
            if is_new && state.addresses.len() < ADDRESSES_MAX {
                state.addresses.insert(at, address);
            }
        }
    }

    pub fn all(&self) -> Vec<SocketAddr> {
        self.state.lock().addresses.clone()
    }

    pub fn answer(&self) -> DialAnswer {
        self.state.lock().answer
    }

    /// Notes that all dials failed, unless an address accepted a connection before: it may do so
    /// again.
    fn refused(&self) {
        let mut state = self.state.lock();
        if state.answer == DialAnswer::Silent {
            state.answer = DialAnswer::Refused;
        }
    }

    /// The addresses to try now: strange ones last.
    fn candidates(&self) -> Vec<SocketAddr> {
        let state = self.state.lock();
        match state.proven {
            Some(proven) => vec![proven],
            None => {
                let times = |address: &SocketAddr| state.strange.get(address).copied().unwrap_or(0);
                let tried = |address: &&SocketAddr| times(address) < STRANGE_MAX;
                let strange = |address: &&SocketAddr| times(address) > 0;
                let addresses = state.addresses.iter().filter(tried);
                let (last, first): (Vec<_>, Vec<_>) = addresses.partition(strange);
                first.into_iter().chain(last).copied().collect()
            }
        }
    }

    fn is_strange(&self, address: SocketAddr) -> bool {
        self.state.lock().strange.contains_key(&address)
    }

    /// The other end at this address proved that it knows the secret.
    pub fn set_proven(&self, address: SocketAddr) {
        let mut state = self.state.lock();
        state.proven = Some(address);
        state.strange.remove(&address);
    }

    /// No proof arrived from the other end at this address.
    pub fn set_strange(&self, address: SocketAddr) {
        let mut state = self.state.lock();
        if state.proven == Some(address) {
            state.proven = None;
        }
        *state.strange.entry(address).or_default() += 1;
    }
}

/// False if the two addresses are of different families.
fn can_go(bind: Option<IpAddr>, to: SocketAddr) -> bool {
    bind.is_none_or(|bind| bind.is_ipv4() == to.is_ipv4())
}

/// A connection, and the address of its other end.
pub struct Dialled {
    pub connection: Connection,
    pub address: SocketAddr,
}

/// Dials one stream. Each opening uses a new attempt number, from `id.attempt` on, because the
/// listener accepts each number only once. Also returns the next unused number. With
/// `may_be_early`, a connection to the first address is returned before the answer arrives, unless
/// strangers have answered there; the sender then checks the answer.
pub async fn dial(
    places: &Places,
    keyring: &Arc<Keyring>,
    mut id: ConnectionId,
    may_be_early: bool,
) -> (io::Result<Dialled>, u16) {
    let first = places.candidates().first().copied();
    let mut tried = Vec::new();
    // Dropped on return, which cancels the other dials.
    let mut dials = JoinSet::new();
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no address to dial");
    let mut next_at = Instant::now();
    loop {
        // Other addresses may have been added.
        let untried = places
            .candidates()
            .into_iter()
            .find(|it| !tried.contains(it));
        let connected = tokio::select! {
            () = sleep_until(next_at), if untried.is_some() || !dials.is_empty() => {
                if let Some(address) = untried {
                    tried.push(address);
                    let bind = places.bind;
                    dials.spawn(async move { (address, connect(address, bind).await) });
                }
                next_at = Instant::now() + NEXT_ADDRESS;
                continue;
            }
            Some(connected) = dials.join_next() => connected,
            else => {
                places.refused();
                return (Err(last), id.attempt);
            }
        };
        // A dial neither panics nor is cancelled here.
        let Ok((address, connected)) = connected else {
            continue;
        };
        let opened = match connected {
            Ok(socket) => {
                places.state.lock().answer = DialAnswer::Connected;
                let early = may_be_early && first == Some(address) && !places.is_strange(address);
                let opened = open(socket, keyring, id, early).await;
                id.attempt = id.attempt.saturating_add(1);
                match &opened {
                    Ok(connection) if connection.expected.is_none() => places.set_proven(address),
                    Ok(_) => {}
                    Err(_) => places.set_strange(address),
                }
                opened
            }
            Err(error) => Err(error),
        };
        match opened {
            Ok(connection) => {
                let dialled = Dialled {
                    connection,
                    address,
                };
                return (Ok(dialled), id.attempt);
            }
            Err(error) => last = error,
        }
        next_at = Instant::now();
    }
}

async fn connect(address: SocketAddr, bind: Option<IpAddr>) -> io::Result<TcpStream> {
    let connecting = async {
        let Some(bind) = bind else {
            return TcpStream::connect(address).await;
        };
        let socket = match bind {
            IpAddr::V4(_) => TcpSocket::new_v4()?,
            IpAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.bind((bind, 0).into())?;
        socket.connect(address).await
    };
    match timeout(DIAL_TIMEOUT, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, NO_ANSWER)),
    }
}

async fn open(
    mut socket: TcpStream,
    keyring: &Arc<Keyring>,
    id: ConnectionId,
    early: bool,
) -> io::Result<Connection> {
    prepare(&socket)?;
    let mut expected = Some(keyring.open(&mut socket, id).await?);
    if !early && let Some(expected) = expected.take() {
        expected.answer(&mut socket).await?;
    }
    Ok(Connection {
        id,
        link: Duplex::Tcp(socket),
        expected,
        fate: None,
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::seal::Secret;
    use crate::transport::connection::handshake::DialRole;
    use crate::transport::routes::listener::Listener;

    fn keyring(secret: u8) -> Arc<Keyring> {
        let secret = Secret::take(&mut [secret; 32]);
        Arc::new(Keyring::new(secret, [9; 16], DialRole::Sends))
    }

    async fn listener(keyring: Arc<Keyring>) -> (SocketAddr, mpsc::UnboundedReceiver<Connection>) {
        let here = IpAddr::from([127, 0, 0, 1]);
        let listener = Listener::open(Some(here), None, 0).await.unwrap();
        let at = (here, listener.port).into();
        let (hand_on, proven) = mpsc::unbounded_channel();
        tokio::spawn(listener.run(keyring, move |connection| hand_on.send(connection).is_ok()));
        (at, proven)
    }

    #[test]
    fn where_strangers_answer_is_not_dialled_for_ever() {
        let [one, other] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let places = Places::new(vec![one, other], None);
        for _ in 0..STRANGE_MAX {
            assert!(places.candidates().contains(&one));
            places.set_strange(one);
        }
        assert_eq!(places.candidates(), [other]);
        // A proven address is dialled again after a failure.
        places.set_proven(other);
        places.set_strange(other);
        assert_eq!(places.candidates(), [other]);
    }

    #[tokio::test]
    async fn the_address_that_proves_itself_is_found_behind_those_that_do_not() {
        let stranger = listener(keyring(2)).await.0;
        let (peer, mut proven) = listener(keyring(1)).await;
        let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let places = Places::new(vec![nobody, stranger, peer], None);
        let id = ConnectionId {
            stream: 3,
            attempt: 5,
        };
        let (dialled, next) = dial(&places, &keyring(1), id, true).await;
        let dialled = dialled.unwrap();
        assert_eq!((dialled.address, next), (peer, 7));
        assert_eq!(
            proven.recv().await.unwrap().id,
            ConnectionId { attempt: 6, ..id }
        );
        assert_eq!(places.answer(), DialAnswer::Connected);
        let refused = Places::new(vec![nobody], None);
        assert_eq!(refused.answer(), DialAnswer::Silent);
        assert!(dial(&refused, &keyring(1), id, true).await.0.is_err());
        assert_eq!(refused.answer(), DialAnswer::Refused);
        // From now on the proven address is the only one.
        let id = ConnectionId {
            stream: 4,
            attempt: 0,
        };
        let (dialled, next) = dial(&places, &keyring(1), id, false).await;
        assert_eq!((dialled.unwrap().address, next), (peer, 1));
        places.set_strange(peer);
        assert_eq!(places.candidates(), [nobody, stranger, peer]);
    }
}
