//! The dialler of one route: it makes the connections, and makes each again when it is lost, until
//! the session ends.
//!
//! A connection that carried data is dialled again after [`Backoff`]'s first wait. Otherwise
//! the waits grow. Dialling stops only if a login would be refused again, after too many failed
//! logins in a row, or when the attempt numbers run out. `heartbeat`, which sees all routes,
//! decides whether the copy can continue without connections. If no connection of this route
//! ever came up, [`Dialler::run`] returns the reason.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::backoff::{Backoff, chance};
use super::connection::handshake::{ConnectionId, DialRole, Keyring};
use super::connections::ConnectionSet;
use super::routes::direct::Places;
use super::routes::ssh_login::{Failed, FurtherLogins};
use super::routes::{Connection, ConnectionName, Fate, Route, direct};
use crate::algorithms::Suite;
use crate::error::reason_of;
use crate::report::Reporter;
use crate::wire::message::ADDRESSES_MAX;

/// Connections that are dialled at the same time. A listener has room for more that have not proven
/// themselves.
const DIALS_AT_ONCE: usize = 24;

/// How often each connection is dialled before the route counts as failed.
const FIRST_ROUNDS: u32 = 3;

/// Failed logins in a row for one connection. Each adds lines to sshd's log, which others may
/// watch.
const LOGINS_IN_VAIN: u32 = 6;

/// How connections are made.
pub enum Way {
    Places(Arc<Places>),
    Logins(Box<FurtherLogins>),
}

/// Makes the connections of a route.
pub struct Dialler {
    pub route: Route,
    pub way: Way,
    /// Most connections, however many are wanted.
    pub streams_max: u16,
    pub keyring: Arc<Keyring>,
    pub suite: Suite,
    pub proven: mpsc::Sender<Connection>,
    pub connection_set: Arc<ConnectionSet>,
    pub reporter: Option<Arc<dyn Reporter>>,
    pub attempts: Attempts,
}

/// The next attempt number of each stream. All diallers of a session share it, because the other end
/// accepts each number only once, even if it opens another port.
#[derive(Clone, Default)]
pub struct Attempts(Arc<Mutex<HashMap<u16, u16>>>);

impl Attempts {
    fn next(&self, stream: u16) -> u16 {
        let next = self.0.lock();
        next.get(&stream).copied().unwrap_or(0)
    }

    fn set_next(&self, stream: u16, attempt: u16) {
        let mut next = self.0.lock();
        next.insert(stream, attempt);
    }
}

/// State shared by all connections of the route.
struct DialState {
    dialler: Dialler,
    dials: Semaphore,
    outcomes: mpsc::UnboundedSender<(u16, DialOutcome)>,
}

/// The result of one dial, or the end of all dialling for a stream.
enum DialOutcome {
    Up,
    InVain(String),
    Over(String),
}

impl Dialler {
    /// Dials as many connections as are wanted, each again when it is lost, until this is
    /// dropped or the session is over. Returns the reason if all were dialled and none came up.
    pub async fn run(self) -> String {
        self.connection_set.begin();
        let (connection_set, reporter) = (self.connection_set.clone(), self.reporter.clone());
        let streams_max = self.streams_max;
        // Unbounded, but a dial adds at most two outcomes and takes time, and they are read at
        // once.
        let (outcomes, mut heard) = mpsc::unbounded_channel();
        let route = self.route;
        let lines = Arc::new(DialState {
            dialler: self,
            dials: Semaphore::new(DIALS_AT_ONCE),
            outcomes,
        });
        // The tasks end with this function.
        let mut tasks = JoinSet::new();
        let mut wanted = connection_set.wanted();
        let mut in_vain = Vec::new();
        let mut has_come_up = false;
        loop {
            let streams = (*wanted.borrow_and_update()).min(streams_max);
            for nth in in_vain.len()..usize::from(streams) {
                // There are at most as many as fit into a stream's number.
                tasks.spawn(keep(lines.clone(), nth as u16));
                in_vain.push(0);
            }
            let (nth, outcome) = tokio::select! {
                Some(outcome) = heard.recv() => outcome,
                // Never fails: the connection set holds the other end.
                _ = wanted.changed() => continue,
                () = connection_set.closed() => std::future::pending().await,
            };
            let (cause, rounds) = match outcome {
                DialOutcome::Up => {
                    has_come_up = true;
                    continue;
                }
                DialOutcome::InVain(cause) => (cause, 1),
                DialOutcome::Over(cause) => (cause, FIRST_ROUNDS),
            };
            connection_set.set_cause(cause.clone());
            in_vain[usize::from(nth)] += rounds;
            if !has_come_up && in_vain.iter().all(|&times| times >= FIRST_ROUNDS) {
                return cause;
            }
            if let Some(reporter) = reporter.as_ref().filter(|_| has_come_up) {
                let stream = ConnectionName(route.stream(nth));
                reporter.detail(&format!("stream {stream} could not be opened: {cause}"));
            }
        }
    }
}

/// Dials one stream again and again.
async fn keep(lines: Arc<DialState>, nth: u16) {
    let stream = lines.dialler.route.stream(nth);
    let mut backoff = Backoff::default();
    let attempts = &lines.dialler.attempts;
    let mut attempt = attempts.next(stream);
    let mut failed = 0;
    loop {
        // A dial that is cut short may have used a number for each address.
        attempts.set_next(stream, attempt.saturating_add(ADDRESSES_MAX as u16 + 1));
        let (dialled, next) = lines.dial(ConnectionId { stream, attempt }).await;
        attempts.set_next(stream, next);
        // Attempt numbers increase up to the largest that an opening can hold. A stream that was
        // lost every second for hours may have used them all; the other streams continue.
        let is_last = next == u16::MAX;
        attempt = next;
        let fate = match dialled {
            Ok((connection, place)) => {
                failed = 0;
                let Some(fate) = lines.hand_on(connection, nth).await else {
                    return;
                };
                lines.learn(place, &fate);
                fate
            }
            Err(Failed::ForGood(cause)) => return lines.tell(nth, DialOutcome::Over(cause)),
            Err(Failed::Once(cause)) => {
                failed += 1;
                if failed >= lines.dialler.dials_in_vain_max() {
                    return lines.tell(nth, DialOutcome::Over(cause));
                }
                Fate {
                    was_proven: false,
                    carried: false,
                    cause,
                }
            }
        };
        lines.tell(
            nth,
            match fate.was_proven {
                // If the answer was not awaited, only now is it known that the connection was up.
                true => DialOutcome::Up,
                false => DialOutcome::InVain(fate.cause),
            },
        );
        if fate.carried {
            backoff = Backoff::default();
        }
        if is_last {
            return;
        }
        tokio::time::sleep(backoff.wait(chance())).await;
    }
}

impl Dialler {
    fn dials_in_vain_max(&self) -> u32 {
        match self.way {
            Way::Places(_) => u32::MAX,
            Way::Logins(_) => LOGINS_IN_VAIN,
        }
    }
}

impl DialState {
    /// Dials a stream. Also returns the next attempt number.
    async fn dial(
        &self,
        id: ConnectionId,
    ) -> (Result<(Connection, Option<SocketAddr>), Failed>, u16) {
        let Dialler { way, keyring, .. } = &self.dialler;
        let after = id.attempt.saturating_add(1);
        match way {
            Way::Logins(logins) => {
                let dialled = logins.dial(keyring, id).await;
                (dialled.map(|connection| (connection, None)), after)
            }
            Way::Places(places) => {
                let _turn = self.dials.acquire().await;
                // Sealed frames may follow the opening before the answer comes. Frames with only a
                // tag wait until the other end has proved that it knows the secret.
                let sends = keyring.role == DialRole::Sends;
                let early = sends && self.dialler.suite != Suite::Tag;
                let (dialled, next) = direct::dial(places, keyring, id, early).await;
                let dialled = dialled
                    .map(|dialled| (dialled.connection, Some(dialled.address)))
                    .map_err(|error| Failed::Once(reason_of(&error)));
                (dialled, next.max(after))
            }
        }
    }

    /// Hands a connection to its end and waits for its fate. None when the session is over.
    async fn hand_on(&self, mut connection: Connection, nth: u16) -> Option<Fate> {
        if connection.expected.is_none() {
            self.tell(nth, DialOutcome::Up);
        }
        let (fate, ended) = oneshot::channel();
        connection.fate = Some(fate);
        self.dialler.proven.send(connection).await.ok()?;
        ended.await.ok()
    }

    /// Notes whether the address led to the other end.
    fn learn(&self, place: Option<SocketAddr>, fate: &Fate) {
        if let (Way::Places(places), Some(place)) = (&self.dialler.way, place) {
            match fate.was_proven {
                true => places.set_proven(place),
                false => places.set_strange(place),
            }
        }
    }

    fn tell(&self, nth: u16, outcome: DialOutcome) {
        // Fails only when `run` has ended, which ends this task too.
        let _ = self.outcomes.send((nth, outcome));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::seal::Secret;
    use crate::transport::connections::Flow;

    /// The answer to the first dial is not awaited, so only its fate shows that it was up.
    #[tokio::test]
    async fn where_a_stream_was_up_once_it_is_dialled_in_vain_for_as_long_as_it_takes() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap();
        let (proven, mut connections) = mpsc::channel(1);
        let secret = Secret::take(&mut [1; 32]);
        let dialler = Dialler {
            route: Route::Direct,
            way: Way::Places(Arc::new(Places::new(vec![place], None))),
            streams_max: 1,
            keyring: Arc::new(Keyring::new(secret, [9; 16], DialRole::Sends)),
            suite: Suite::Aes128Gcm,
            proven,
            connection_set: ConnectionSet::new(Flow::Out),
            reporter: None,
            attempts: Attempts::default(),
        };
        let dialling = tokio::spawn(dialler.run());
        let connection: Connection = connections.recv().await.unwrap();
        assert!(connection.expected.is_some());
        drop(listener);
        let fate = Fate {
            was_proven: true,
            carried: true,
            cause: "reset".to_owned(),
        };
        connection.fate.unwrap().send(fate).unwrap();
        // Long enough for as many dials as are tried if no connection ever came up.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!dialling.is_finished());
    }
}
