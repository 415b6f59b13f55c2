//! Dials the data streams of a session, on the client, and again whenever one is lost, until the
//! session ends.
//!
//! A stream that carried data is dialled again after [`Backoff`]'s first wait, one that was of no
//! use after ever longer ones. Nothing else ends it: whether the copy can go on without streams is
//! judged by who sees all of them (`heartbeat`). Only where none ever came up it is told at once
//! that no data connection can be had.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{OnceCell, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::error::{Error, Kind, Side};
use crate::route::direct::{self, Connection, Fate};
use crate::seal::Suite;
use crate::session::Seat;
use crate::session::backoff::{Backoff, chance};
use crate::session::roster::Roster;
use crate::session::streams::end_later;
use crate::ssh::Host;
use crate::stream::opening::{DialRole, Keyring, StreamId};
use crate::units::printable;
use crate::wire::message::Listen;

/// Streams that are dialled at the same time: fewer than a listener has room for while they have
/// not proven themselves.
const DIALS_AT_ONCE: usize = 24;

/// How often each stream is dialled before it is said that there is no way.
const FIRST_ROUNDS: u32 = 3;

/// Who dials the streams of a session.
pub struct Dialler {
    pub host: Host,
    pub keyring: Arc<Keyring>,
    pub suite: Suite,
    pub proven: mpsc::Sender<Connection>,
    pub roster: Arc<Roster>,
    pub seat: Seat,
}

/// What all streams know of the way to the other end.
struct Way {
    host: String,
    port: u16,
    announced: Vec<SocketAddr>,
    /// What the user called the host is looked up only where the server's own addresses do not
    /// answer.
    named: OnceCell<Vec<SocketAddr>>,
    keyring: Arc<Keyring>,
    suite: Suite,
    dials: Semaphore,
    proven: mpsc::Sender<Connection>,
    /// Told of each stream that came up (None) or was dialled in vain.
    outcomes: mpsc::UnboundedSender<(u16, Option<String>)>,
}

impl Dialler {
    /// Dials as many streams as are wanted, each again when it is lost; returns when the session is
    /// over, or when all were dialled in vain.
    pub async fn run(self, at: Listen) {
        self.roster.begin();
        // At most a word for each dial, and those take their time; it is read at once.
        let (outcomes, mut heard) = mpsc::unbounded_channel();
        let way = Arc::new(Way {
            host: self.host.name.clone(),
            port: at.port,
            announced: direct::announced(&at),
            named: OnceCell::new(),
            keyring: self.keyring.clone(),
            suite: self.suite,
            dials: Semaphore::new(DIALS_AT_ONCE),
            proven: self.proven.clone(),
            outcomes,
        });
        // Ended with this function.
        let mut lines = JoinSet::new();
        let mut wanted = self.roster.wanted();
        let mut in_vain = Vec::new();
        let mut has_come_up = false;
        loop {
            let streams = *wanted.borrow_and_update();
            for stream in in_vain.len()..usize::from(streams) {
                // There are at most as many as a number of a stream can say.
                lines.spawn(keep(way.clone(), stream as u16));
                in_vain.push(0);
            }
            let (stream, failed) = tokio::select! {
                Some(outcome) = heard.recv() => outcome,
                // The roster holds the other end.
                _ = wanted.changed() => continue,
                () = self.roster.closed() => return,
            };
            let Some(cause) = failed else {
                has_come_up = true;
                continue;
            };
            self.roster.set_cause(cause.clone());
            in_vain[usize::from(stream)] += 1;
            if has_come_up || self.roster.was_ever_proven() {
                let detail = format!("stream {stream} was dialled in vain: {cause}");
                self.seat.reporter.detail(&detail);
            } else if in_vain.iter().all(|&times| times >= FIRST_ROUNDS) {
                return end_later(self.seat.ending.clone(), self.no_way(&way, &cause));
            }
        }
    }

    fn no_way(&self, way: &Way, cause: &str) -> Error {
        let named = way.named.get().into_iter().flatten();
        let tried = way.announced.iter().chain(named).map(ToString::to_string);
        let tried = tried.collect::<Vec<_>>().join(", ");
        let message = format!(
            "{}: logged in, but no data connection to {tried}: {cause}; is there a firewall between?",
            printable(self.host.name.as_bytes())
        );
        Error::new(Kind::Connect, Side::Here, message)
    }
}

/// Dials one stream again and again.
async fn keep(way: Arc<Way>, stream: u16) {
    let mut backoff = Backoff::default();
    let mut attempt: u16 = 0;
    loop {
        let (dialled, next) = way.dial(StreamId { stream, attempt }).await;
        // Attempts are counted up, and not beyond what an opening can say. Where all are spent,
        // after hours in which the stream was lost every second, the others go on.
        let is_last = next == u16::MAX;
        attempt = next;
        let fate = match dialled {
            Ok(connection) => way.hand_on(connection).await,
            Err(error) => Some(Fate {
                was_proven: false,
                carried: false,
                cause: error.to_string(),
            }),
        };
        let Some(fate) = fate else { return };
        if !fate.was_proven {
            // Its reader ends only with all of this.
            let _ = way.outcomes.send((stream, Some(fate.cause)));
        }
        if fate.carried {
            backoff = Backoff::default();
        }
        if is_last {
            return;
        }
        tokio::time::sleep(backoff.wait(chance())).await;
    }
}

impl Way {
    /// Dials a stream; gives the next attempt's number too.
    async fn dial(&self, id: StreamId) -> (io::Result<Connection>, u16) {
        let _turn = self.dials.acquire().await;
        let announced = self.dial_at(&self.announced, id).await;
        let next = following(id.attempt, self.announced.len());
        if announced.is_ok() {
            return (announced, next);
        }
        let look_up = || direct::named(&self.host, self.port, &self.announced);
        let named = self.named.get_or_init(look_up).await;
        if named.is_empty() {
            return (announced, next);
        }
        let id = StreamId {
            attempt: next,
            ..id
        };
        let dialled = self.dial_at(named, id).await;
        (dialled, following(next, named.len()))
    }

    async fn dial_at(&self, addresses: &[SocketAddr], id: StreamId) -> io::Result<Connection> {
        // Where there is one address, a frame may follow the opening without waiting for the
        // answer: it is sealed. One that only has a tag waits for the other end's proof.
        let may_be_early = self.keyring.role == DialRole::Sends && self.suite != Suite::Tag;
        let early = may_be_early && addresses.len() == 1;
        direct::dial(addresses, &self.keyring, id, early).await
    }

    /// Hands a connection on, and waits for what becomes of it; None when the session is over.
    async fn hand_on(&self, mut connection: Connection) -> Option<Fate> {
        if connection.expected.is_none() {
            let _ = self.outcomes.send((connection.id.stream, None));
        }
        let (fate, ended) = oneshot::channel();
        connection.fate = Some(fate);
        self.proven.send(connection).await.ok()?;
        ended.await.ok()
    }
}

fn following(attempt: u16, addresses: usize) -> u16 {
    attempt.saturating_add(addresses.max(1) as u16)
}
