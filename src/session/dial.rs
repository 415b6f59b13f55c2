//! Dials the data streams of a session, on the client.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::error::{Error, Kind, Side};
use crate::route::direct::{self, Connection};
use crate::seal::Suite;
use crate::session::Seat;
use crate::session::streams::end_later;
use crate::ssh::Host;
use crate::stream::opening::{DialRole, Keyring, StreamId};
use crate::units::printable;
use crate::wire::message::Listen;

/// Who dials the streams of a session.
pub struct Dialler {
    pub host: Host,
    pub streams: u16,
    pub keyring: Arc<Keyring>,
    pub suite: Suite,
    pub proven: mpsc::Sender<Connection>,
    pub seat: Seat,
}

impl Dialler {
    /// Dials all streams; a copy starts with the first and ends only if none comes up. What the
    /// user called the host is looked up only where the server's own addresses do not answer.
    pub async fn run(self, at: Listen) {
        let mut tried = direct::announced(&at);
        let mut dialled = self.dial(&tried).await;
        if dialled.0 == 0 {
            let others = direct::named(&self.host.name, at.port, &tried).await;
            if !others.is_empty() {
                dialled = self.dial(&others).await;
                tried.extend(others);
            }
        }
        let (up, Some(error)) = dialled else { return };
        let tried: Vec<String> = tried.iter().map(ToString::to_string).collect();
        let (tried, streams) = (tried.join(", "), self.streams);
        if up > 0 {
            let detail = format!("{up} of {streams} streams connected to {tried}: {error}");
            return self.seat.reporter.detail(&detail);
        }
        let message = format!(
            "{}: logged in, but no data connection to {tried}: {error}; is there a firewall between?",
            printable(self.host.name.as_bytes())
        );
        let error = Error::new(Kind::Connect, Side::Here, message);
        end_later(self.seat.ending.clone(), error);
    }

    /// Dials all streams side by side; gives how many came up, and why one did not.
    async fn dial(&self, addresses: &[SocketAddr]) -> (u16, Option<io::Error>) {
        // Where there is one address, a frame may follow the opening without waiting for the
        // answer: it is sealed. One that only has a tag waits for the other end's proof.
        let may_be_early = self.keyring.role == DialRole::Sends && self.suite != Suite::Tag;
        let early = may_be_early && addresses.len() == 1;
        let mut dials = tokio::task::JoinSet::new();
        for stream in 0..self.streams {
            let (addresses, keyring) = (addresses.to_vec(), self.keyring.clone());
            let proven = self.proven.clone();
            let id = StreamId { stream, attempt: 0 };
            dials.spawn(async move {
                let connection = direct::dial(&addresses, &keyring, id, early).await?;
                // Fails only when the copy is ending.
                let _ = proven.send(connection).await;
                Ok::<_, io::Error>(())
            });
        }
        let (mut up, mut last) = (0, None);
        while let Some(dialled) = dials.join_next().await {
            match dialled {
                Ok(Ok(())) => up += 1,
                Ok(Err(error)) => last = Some(error),
                Err(_) => {}
            }
        }
        (up, last)
    }
}
