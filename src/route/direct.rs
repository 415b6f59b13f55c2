//! Dials one end from the other: the server from the client (direct), since ssh has just gone that
//! way, or the client from the server (reverse).
//!
//! The addresses are tried in their order, each a moment after the one before, and what connects
//! first is taken if it proves itself. One that has done so is dialled alone from then on.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::Connection;
use crate::stream::link::Link;
use crate::stream::opening::{Keyring, StreamId};
use crate::stream::prepare;
use crate::wire::message::ADDRESSES_MAX;

/// How long one address may take to answer a connection.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// How much later than the address before it the next is tried (RFC 8305: 250 ms).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// What has come of dialling so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    #[default]
    Silent,
    /// Something took a connection.
    Connected,
    /// Every address has refused one.
    Refused,
}

/// Where the other end may be dialled, and what is known of that.
/// Times that an address is dialled where strangers answer. The far end names the addresses, and
/// may name those of others.
const STRANGE_MAX: u32 = 64;

pub struct Places {
    /// Of this host, from which is dialled.
    bind: Option<IpAddr>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    addresses: Vec<SocketAddr>,
    answer: Answer,
    proven: Option<SocketAddr>,
    /// Something answered there that did not prove itself, so many times.
    strange: HashMap<SocketAddr, u32>,
}

impl Places {
    pub fn new(mut addresses: Vec<SocketAddr>, bind: Option<IpAddr>) -> Places {
        addresses.retain(|address| can_go(bind, *address));
        let state = State {
            addresses,
            ..State::default()
        };
        Places {
            bind,
            state: Mutex::new(state),
        }
    }

    /// Adds what is not among them, behind the first, up to what a host is worth trying at.
    pub fn add(&self, more: Vec<SocketAddr>) {
        let mut state = self.lock();
        let at = state.addresses.len().min(1);
        for address in more.into_iter().rev() {
            let is_new = !state.addresses.contains(&address) && can_go(self.bind, address);
            if is_new && state.addresses.len() < ADDRESSES_MAX {
                state.addresses.insert(at, address);
            }
        }
    }

    pub fn all(&self) -> Vec<SocketAddr> {
        self.lock().addresses.clone()
    }

    pub fn answer(&self) -> Answer {
        self.lock().answer
    }

    /// One that has taken a connection may take the next.
    fn refused(&self) {
        let mut state = self.lock();
        if state.answer == Answer::Silent {
            state.answer = Answer::Refused;
        }
    }

    /// The addresses to try now: strange ones last.
    fn candidates(&self) -> Vec<SocketAddr> {
        let state = self.lock();
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
        self.lock().strange.contains_key(&address)
    }

    /// Who answered there knew the secret.
    pub fn set_proven(&self, address: SocketAddr) {
        let mut state = self.lock();
        state.proven = Some(address);
        state.strange.remove(&address);
    }

    /// Who answered there did not know the secret, or nothing of it came through.
    pub fn set_strange(&self, address: SocketAddr) {
        let mut state = self.lock();
        if state.proven == Some(address) {
            state.proven = None;
        }
        *state.strange.entry(address).or_default() += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

/// An address of one family is not reached from one of the other.
fn can_go(bind: Option<IpAddr>, to: SocketAddr) -> bool {
    bind.is_none_or(|bind| bind.is_ipv4() == to.is_ipv4())
}

/// A connection, and where it leads.
pub struct Dialled {
    pub connection: Connection,
    pub address: SocketAddr,
}

/// Dials one stream. Each opening takes an attempt's number, from `id.attempt` on: the listener
/// takes each once. Gives the number after those too. With `may_be_early` the answer is left to who
/// sends on the connection, where there is little doubt who will answer: the first address.
pub async fn dial(
    places: &Places,
    keyring: &Arc<Keyring>,
    mut id: StreamId,
    may_be_early: bool,
) -> (io::Result<Dialled>, u16) {
    let first = places.candidates().first().copied();
    let mut tried = Vec::new();
    // Ended with this function: who comes second is not waited for.
    let mut dials = JoinSet::new();
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no address to dial");
    let mut next_at = Instant::now();
    loop {
        // Others may have been added meanwhile.
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
        // It neither panics nor is ended here.
        let Ok((address, connected)) = connected else {
            continue;
        };
        let opened = match connected {
            Ok(socket) => {
                places.lock().answer = Answer::Connected;
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
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")),
    }
}

async fn open(
    mut socket: TcpStream,
    keyring: &Arc<Keyring>,
    id: StreamId,
    early: bool,
) -> io::Result<Connection> {
    prepare(&socket)?;
    let mut expected = Some(keyring.open(&mut socket, id).await?);
    if !early && let Some(expected) = expected.take() {
        expected.answer(&mut socket).await?;
    }
    Ok(Connection {
        id,
        link: Link::Tcp(socket),
        expected,
        fate: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::listener::Listener;
    use crate::seal::Secret;
    use crate::stream::opening::DialRole;
    use tokio::sync::mpsc;

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
        // Who knew the secret once is dialled again however often nothing comes through.
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
        let id = StreamId {
            stream: 3,
            attempt: 5,
        };
        let (dialled, next) = dial(&places, &keyring(1), id, true).await;
        let dialled = dialled.unwrap();
        assert_eq!((dialled.address, next), (peer, 7));
        assert_eq!(
            proven.recv().await.unwrap().id,
            StreamId { attempt: 6, ..id }
        );
        assert_eq!(places.answer(), Answer::Connected);
        let refused = Places::new(vec![nobody], None);
        assert_eq!(refused.answer(), Answer::Silent);
        assert!(dial(&refused, &keyring(1), id, true).await.0.is_err());
        assert_eq!(refused.answer(), Answer::Refused);
        // From now on it is dialled alone.
        let id = StreamId {
            stream: 4,
            attempt: 0,
        };
        let (dialled, next) = dial(&places, &keyring(1), id, false).await;
        assert_eq!((dialled.unwrap().address, next), (peer, 1));
        places.set_strange(peer);
        assert_eq!(places.candidates(), [nobody, stranger, peer]);
    }
}
