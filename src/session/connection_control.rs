//! Reactions to the other end's messages about connections: where it listens, where to dial, and
//! the in-band connection.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::algorithms::Suite;
use crate::control::Outgoing;
use crate::error::{Error, Result, Side};
use crate::transport::connection::duplex::Duplex;
use crate::transport::connection::handshake::{ConnectionId, Keyring};
use crate::transport::connections::{ConnectionSet, Flow};
use crate::transport::dial::{Attempts, Dialler, Way};
use crate::transport::rate_limit::RateLimiter;
use crate::transport::routes::addresses::SshEnd;
use crate::transport::routes::direct::Places;
use crate::transport::routes::in_band::{Receiving, Sending, receiving, sending};
use crate::transport::routes::{Connection, Route, addresses};
use crate::wire::message::{Listen, Message};

/// The in-band connection, from the time it is offered.
pub struct Inband {
    flow: Flow,
    /// If false, the other end's offer is ignored.
    is_wanted: bool,
    control: Outgoing,
    proven: mpsc::Sender<Connection>,
    end: Mutex<InbandEnds>,
    hold: Mutex<HeldConnection>,
}

/// A connection that this end sends on, but not yet.
#[derive(Default)]
struct HeldConnection {
    holds: bool,
    link: Option<Duplex>,
}

#[derive(Default)]
enum InbandEnds {
    #[default]
    None,
    Sending(Sending),
    Receiving(Receiving),
}

impl Inband {
    pub fn new(
        flow: Flow,
        is_wanted: bool,
        control: Outgoing,
        proven: mpsc::Sender<Connection>,
    ) -> Arc<Inband> {
        Arc::new(Inband {
            flow,
            is_wanted,
            control,
            proven,
            end: Mutex::default(),
            hold: Mutex::default(),
        })
    }

    /// Sends nothing on it before it is offered: other connections have a head start.
    pub fn hold(&self) {
        self.hold.lock().holds = true;
    }

    /// If this end receives, lets the other end send on it. Otherwise starts to send, if the other
    /// end has allowed it. Further calls change nothing.
    pub fn offer(&self) {
        let link = {
            let mut hold = self.hold.lock();
            hold.holds = false;
            hold.link.take()
        };
        if let Some(link) = link {
            self.hand_on(link);
        }
        let mut end = self.end.lock();
        if self.flow == Flow::In && matches!(*end, InbandEnds::None) {
            let (receiving, link) = receiving(self.control.clone());
            *end = InbandEnds::Receiving(receiving);
            self.hand_on(link);
        }
    }

    /// Takes the other end's permission to send.
    fn credit(&self, bytes: u64) -> Result<()> {
        let mut end = self.end.lock();
        match &*end {
            InbandEnds::Sending(sending) => sending.credit(bytes),
            InbandEnds::None if self.flow == Flow::Out && !self.is_wanted => {}
            InbandEnds::None if self.flow == Flow::Out => {
                let (sending, link) = sending(self.control.clone());
                sending.credit(bytes);
                *end = InbandEnds::Sending(sending);
                let mut hold = self.hold.lock();
                match hold.holds {
                    true => hold.link = Some(link),
                    false => self.hand_on(link),
                }
            }
            _ => return Err(breach("unexpected credit")),
        }
        Ok(())
    }

    fn data(&self, bytes: Vec<u8>) -> Result<()> {
        match &*self.end.lock() {
            InbandEnds::Receiving(receiving) => receiving
                .take(bytes)
                .map_err(|error| breach(&error.to_string())),
            _ => Err(breach("unexpected data")),
        }
    }

    fn hand_on(&self, link: Duplex) {
        let stream = Route::Inband.stream(0);
        // The channel has room for more connections than there can be, or its reader has ended.
        let _ = self.proven.try_send(Connection {
            id: ConnectionId { stream, attempt: 0 },
            link,
            expected: None,
            fate: None,
        });
    }
}

/// The parts of an end that messages can control.
pub struct ConnectionControl {
    pub inband: Arc<Inband>,
    /// At the client: receives the server's port.
    pub listen: Option<oneshot::Sender<Listen>>,
    /// At the server, which dials on request.
    pub reverse: Option<Reverse>,
    pub limit: Arc<RateLimiter>,
}

impl ConnectionControl {
    /// Handles a message about connections.
    ///
    /// # Errors
    /// If this end may not get such a message.
    pub fn take(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Credit(bytes) => return self.inband.credit(bytes),
            Message::Data(data) => return self.inband.data(data.bytes),
            // Uses only the first one: a server listens once.
            Message::Listen(at) => {
                if let Some(listen) = self.listen.take() {
                    // Nobody waits for it if the user wants another route.
                    let _ = listen.send(at);
                }
            }
            Message::Dial(at) => match &mut self.reverse {
                Some(reverse) => reverse.dial(&at),
                None => return Err(breach("an address to connect to")),
            },
            // Only the user limits a client.
            Message::Tune(tune) if self.reverse.is_some() => {
                if let Some(rate) = tune.rate_limit {
                    self.limit.set((rate > 0).then_some(rate));
                }
            }
            Message::Tune(_) => {}
            _ => return Err(breach("an unexpected type")),
        }
        Ok(())
    }
}

/// How a server dials the other end on request.
pub struct Reverse {
    /// The route's name.
    pub route: Route,
    pub streams_max: u16,
    pub keyring: Arc<Keyring>,
    pub suite: Suite,
    pub proven: mpsc::Sender<Connection>,
    pub connection_set: Arc<ConnectionSet>,
    /// With a limited key, this server may dial only the address that logged in.
    pub is_confined: bool,
    /// The other end is the client that logged in.
    pub is_client: bool,
    pub attempts: Attempts,
    /// The current dialling; ends with this.
    pub dialling: Option<(Arc<Places>, AbortOnDropHandle<()>)>,
}

impl Reverse {
    /// Dials the other end there, and stops earlier dialling. Another server keeps its single
    /// port, so its message may add addresses.
    fn dial(&mut self, at: &Listen) {
        let places = self.places(at);
        if let Some((known, dialling)) = &self.dialling
            && !self.is_client
            && !places.is_empty()
            && !dialling.is_finished()
        {
            return known.add(places);
        }
        self.dialling = None;
        if places.is_empty() {
            if !self.is_client {
                self.connection_set.end(self.route);
            }
            return;
        }
        let places = Arc::new(Places::new(places, None));
        let dialler = Dialler {
            route: self.route,
            way: Way::Places(places.clone()),
            streams_max: self.streams_max,
            keyring: self.keyring.clone(),
            suite: self.suite,
            proven: self.proven.clone(),
            connection_set: self.connection_set.clone(),
            reporter: None,
            attempts: self.attempts.clone(),
        };
        let connection_set = self.connection_set.clone();
        let dialling = AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::select! {
                // The client decides whether to try another route.
                _in_vain = dialler.run() => {}
                () = connection_set.closed() => {}
            }
        }));
        self.dialling = Some((places, dialling));
    }

    fn places(&self, at: &Listen) -> Vec<SocketAddr> {
        let mut places = addresses::announced(at);
        let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
        let client = addresses::of_login(&connection, SshEnd::Client);
        if let Some(client) = client.filter(|_| self.is_client) {
            addresses::prefer(&mut places, at, client);
        }
        if self.is_confined {
            let client = client.and_then(|client| addresses::with_zone(client, at.port));
            places.retain(|place| Some(*place) == client);
        }
        places
    }
}

fn breach(what: &str) -> Error {
    Error::breach(Side::Here, "the other end", what)
}
