//! The sources of data connections at the server: a listener, and further logins.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::control::Outgoing;
use crate::error::{Result, reason_of};
use crate::transport::backoff::chance;
use crate::transport::connection::handshake::Keyring;
use crate::transport::connections::ConnectionSet;
use crate::transport::routes::listener::Listener;
use crate::transport::routes::meeting_socket::Meeting;
use crate::transport::routes::{Connection, addresses};
use crate::wire::message::{Listen, Message, Open, Ports};

use super::roles::tell;
use crate::session::converse::say;
use crate::session::permit::Permit;

/// A port that is open before the client has said whether it wants one: the hello tells where, which
/// saves the client a round trip.
pub(super) struct EarlyListener {
    listener: Listener,
    /// The ports that it was chosen from.
    ports: Option<Ports>,
}

impl EarlyListener {
    /// None if there is no port: [`take_streams`] tries again, and reports that.
    pub(super) async fn open(permit: &Permit) -> Option<EarlyListener> {
        let ports = permit.ports;
        let listener = Listener::open(None, ports, chance().into()).await.ok()?;
        Some(EarlyListener { listener, ports })
    }

    /// Where it accepts connections.
    pub(super) fn place(&self) -> Listen {
        place(&self.listener)
    }
}

/// Opens the ways in that the client wants, and hands on connections until the session is over.
/// `early` is used if the client may want it, and closed otherwise.
pub(super) async fn take_streams(
    open: &Open,
    early: Option<EarlyListener>,
    control: &Outgoing,
    keyring: &Arc<Keyring>,
    connection_set: &Arc<ConnectionSet>,
    proven: mpsc::Sender<Connection>,
) -> Result<()> {
    let hand_on = move |connection| {
        // The channel has room for more than any client dials at once; further connections are
        // dropped.
        let _ = proven.try_send(connection);
        !proven.is_closed()
    };
    let early = early.filter(|early| open.listens && early.ports == open.ports);
    let mut listener = early.map(|early| early.listener);
    if open.listens {
        if listener.is_none() {
            listener = listen(open.ports).await;
        }
        let at = listener.as_ref().map_or_else(Listen::nowhere, place);
        say(control, Message::Listen(at)).await?;
    }
    // If the socket cannot be opened, a further login does not find it and reports that. Between
    // two servers there are no further logins.
    let meeting = Meeting::open(&keyring.session).ok();
    let meeting = meeting.filter(|_| !open.between);
    let (keyring, over) = (keyring.clone(), connection_set.clone());
    tokio::spawn(async move {
        let listening = async {
            match listener {
                Some(listener) => listener.run(keyring.clone(), hand_on.clone()).await,
                None => std::future::pending().await,
            }
        };
        let meeting = async {
            match meeting {
                Some(meeting) => meeting.run(keyring.clone(), hand_on.clone()).await,
                None => std::future::pending().await,
            }
        };
        // Both close with the session.
        tokio::select! {
            () = listening => {}
            () = meeting => {}
            () = over.closed() => {}
        }
    });
    Ok(())
}

/// Opens a listener; if there is no port, tells the user and returns None.
async fn listen(ports: Option<Ports>) -> Option<Listener> {
    match Listener::open(None, ports, chance().into()).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            let which = ports.map_or(String::new(), |Ports { first, last }| {
                format!(" of {first}-{last}")
            });
            // ssh forwards this to the user.
            let why = reason_of(&error);
            let line = format!("fastcp: cannot open a port{which} for streams: {why}");
            tell()(&line);
            None
        }
    }
}

fn place(listener: &Listener) -> Listen {
    Listen {
        addresses: addresses(),
        port: listener.port,
    }
}

/// Addresses at which the client may reach this host.
fn addresses() -> Vec<String> {
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let reached = addresses::of_login(&connection, addresses::SshEnd::Server);
    addresses::own(Some(reached.unwrap_or("127.0.0.1")))
}
