//! Makes the streams of one route, at the end that begins them, and again whenever one is lost,
//! until the session ends.
//!
//! A stream that carried data is dialled again after [`Backoff`]'s first wait, one that was of no
//! use after ever longer ones. Nothing else ends it, but where another login would be refused as
//! the last was: whether the copy can go on without streams is judged by who sees all of them
//! (`heartbeat`). Where none of this route ever came up it is told that there is no way by it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::route::direct::{self, Places};
use crate::route::login::{Failed, Logins};
use crate::route::{Connection, Fate, Named, Route};
use crate::seal::Suite;
use crate::session::backoff::{Backoff, chance};
use crate::session::request::Reporter;
use crate::session::roster::Roster;
use crate::stream::opening::{DialRole, Keyring, StreamId};
use crate::wire::message::ADDRESSES_MAX;

/// Streams that are dialled at the same time: fewer than a listener has room for while they have
/// not proven themselves.
const DIALS_AT_ONCE: usize = 24;

/// How often each stream is dialled before it is said that there is no way.
const FIRST_ROUNDS: u32 = 3;

/// Logins for one stream that may fail one after the other: sshd's log and those who watch it are
/// not to be filled.
const LOGINS_IN_VAIN: u32 = 6;

/// By what streams are made.
pub enum Way {
    Places(Arc<Places>),
    Logins(Box<Logins>),
}

/// Who makes the streams of a route.
pub struct Dialler {
    pub route: Route,
    pub way: Way,
    /// However many are wanted.
    pub streams_max: u16,
    pub keyring: Arc<Keyring>,
    pub suite: Suite,
    pub proven: mpsc::Sender<Connection>,
    pub roster: Arc<Roster>,
    pub reporter: Option<Arc<dyn Reporter>>,
    pub attempts: Attempts,
}

/// The next attempt of each stream, for who may begin to dial the same listener again: that takes
/// none twice.
#[derive(Clone, Default)]
pub struct Attempts(Arc<Mutex<HashMap<u16, u16>>>);

impl Attempts {
    fn next(&self, stream: u16) -> u16 {
        let next = self.0.lock().expect("no panic while held");
        next.get(&stream).copied().unwrap_or(0)
    }

    fn set_next(&self, stream: u16, attempt: u16) {
        let mut next = self.0.lock().expect("no panic while held");
        next.insert(stream, attempt);
    }
}

/// What all streams of the route share.
struct Lines {
    dialler: Dialler,
    dials: Semaphore,
    outcomes: mpsc::UnboundedSender<(u16, Outcome)>,
}

/// What became of one dial, or of all of a stream.
enum Outcome {
    Up,
    InVain(String),
    Over(String),
}

impl Dialler {
    /// Dials as many streams as are wanted, each again when it is lost, until it is dropped or the
    /// session is over; returns why there is no way, where all were dialled in vain.
    pub async fn run(self) -> String {
        self.roster.begin();
        let (roster, reporter) = (self.roster.clone(), self.reporter.clone());
        let streams_max = self.streams_max;
        // At most a word for each dial, and those take their time; it is read at once.
        let (outcomes, mut heard) = mpsc::unbounded_channel();
        let route = self.route;
        let lines = Arc::new(Lines {
            dialler: self,
            dials: Semaphore::new(DIALS_AT_ONCE),
            outcomes,
        });
        // Ended with this function.
        let mut tasks = JoinSet::new();
        let mut wanted = roster.wanted();
        let mut in_vain = Vec::new();
        let mut has_come_up = false;
        loop {
            let streams = (*wanted.borrow_and_update()).min(streams_max);
            for nth in in_vain.len()..usize::from(streams) {
                // There are at most as many as a number of a stream can say.
                tasks.spawn(keep(lines.clone(), nth as u16));
                in_vain.push(0);
            }
            let (nth, outcome) = tokio::select! {
                Some(outcome) = heard.recv() => outcome,
                // The roster holds the other end.
                _ = wanted.changed() => continue,
                () = roster.closed() => std::future::pending().await,
            };
            let (cause, rounds) = match outcome {
                Outcome::Up => {
                    has_come_up = true;
                    continue;
                }
                Outcome::InVain(cause) => (cause, 1),
                Outcome::Over(cause) => (cause, FIRST_ROUNDS),
            };
            roster.set_cause(cause.clone());
            in_vain[usize::from(nth)] += rounds;
            if !has_come_up && in_vain.iter().all(|&times| times >= FIRST_ROUNDS) {
                return cause;
            }
            if let Some(reporter) = reporter.as_ref().filter(|_| has_come_up) {
                let stream = Named(route.stream(nth));
                reporter.detail(&format!("stream {stream} was dialled in vain: {cause}"));
            }
        }
    }
}

/// Dials one stream again and again.
async fn keep(lines: Arc<Lines>, nth: u16) {
    let stream = lines.dialler.route.stream(nth);
    let mut backoff = Backoff::default();
    let attempts = &lines.dialler.attempts;
    let mut attempt = attempts.next(stream);
    let mut failed = 0;
    loop {
        // Who is ended in the middle may have spent one at each address.
        attempts.set_next(stream, attempt.saturating_add(ADDRESSES_MAX as u16 + 1));
        let (dialled, next) = lines.dial(StreamId { stream, attempt }).await;
        attempts.set_next(stream, next);
        // Attempts are counted up, and not beyond what an opening can say. Where all are spent,
        // after hours in which the stream was lost every second, the others go on.
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
            Err(Failed::ForGood(cause)) => return lines.tell(nth, Outcome::Over(cause)),
            Err(Failed::Once(cause)) => {
                failed += 1;
                if failed >= lines.dialler.dials_in_vain_max() {
                    return lines.tell(nth, Outcome::Over(cause));
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
                // One whose answer was not waited for is known to have been up only now.
                true => Outcome::Up,
                false => Outcome::InVain(fate.cause),
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

impl Lines {
    /// Dials a stream; gives the next attempt's number too.
    async fn dial(&self, id: StreamId) -> (Result<(Connection, Option<SocketAddr>), Failed>, u16) {
        let Dialler { way, keyring, .. } = &self.dialler;
        let after = id.attempt.saturating_add(1);
        match way {
            Way::Logins(logins) => {
                let dialled = logins.dial(keyring, id).await;
                (dialled.map(|connection| (connection, None)), after)
            }
            Way::Places(places) => {
                let _turn = self.dials.acquire().await;
                // A frame may follow the opening without waiting for the answer: it is sealed. One
                // that only has a tag waits for the other end's proof.
                let sends = keyring.role == DialRole::Sends;
                let early = sends && self.dialler.suite != Suite::Tag;
                let (dialled, next) = direct::dial(places, keyring, id, early).await;
                let dialled = dialled
                    .map(|dialled| (dialled.connection, Some(dialled.address)))
                    .map_err(|error| Failed::Once(error.to_string()));
                (dialled, next.max(after))
            }
        }
    }

    /// Hands a connection on, and waits for what becomes of it; None when the session is over.
    async fn hand_on(&self, mut connection: Connection, nth: u16) -> Option<Fate> {
        if connection.expected.is_none() {
            self.tell(nth, Outcome::Up);
        }
        let (fate, ended) = oneshot::channel();
        connection.fate = Some(fate);
        self.dialler.proven.send(connection).await.ok()?;
        ended.await.ok()
    }

    /// What became of a connection tells of the place that it led to.
    fn learn(&self, place: Option<SocketAddr>, fate: &Fate) {
        if let (Way::Places(places), Some(place)) = (&self.dialler.way, place) {
            match fate.was_proven {
                true => places.set_proven(place),
                false => places.set_strange(place),
            }
        }
    }

    fn tell(&self, nth: u16, outcome: Outcome) {
        // Its reader ends only with all of this.
        let _ = self.outcomes.send((nth, outcome));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::seal::Secret;
    use crate::session::roster::Flow;

    /// The answer of the first is not waited for: that it was up is known by what became of it.
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
            roster: Roster::new(Flow::Out),
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
        // In less than this it is dialled as often as is tried where none was ever up.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!dialling.is_finished());
    }
}
