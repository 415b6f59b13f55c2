//! Routes: the ways to make connections. Either end dials the other, or data goes through further
//! ssh logins or inside the existing one. A route produces connections whose other end has proved
//! itself, and does nothing else. A copy within one process needs no route.

pub mod addresses;
pub mod choice;
pub mod direct;
pub mod in_band;
pub mod listener;
pub mod meeting_socket;
pub mod ssh_login;
mod unproven;

use std::fmt;
use std::time::Duration;

use tokio::sync::oneshot;

use super::connection::duplex::Duplex;
use super::connection::handshake::{ConnectionId, ExpectedAnswer};
use crate::error::{Error, Kind, Side};
use crate::wire::hello::STREAMS_MAX;

/// A way to make connections. A discriminant is the upper byte of the numbers of its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Route {
    /// The client dials the server.
    Direct = 0,
    /// The server dials the client.
    Reverse = 1,
    /// Each connection is a further ssh login.
    Ssh = 2,
    /// One connection, inside control.
    Inband = 3,
}

/// The most streams of one route: as many as a byte counts.
const STREAMS_EACH: u16 = 1 << 8;
const _: () = assert!(STREAMS_MAX <= STREAMS_EACH);

impl Route {
    pub const ALL: [Route; 4] = [Route::Direct, Route::Reverse, Route::Ssh, Route::Inband];

    /// The number of the route's `nth` stream, of at most 256.
    pub const fn stream(self, nth: u16) -> u16 {
        self as u16 * STREAMS_EACH + nth % STREAMS_EACH
    }

    /// The route of a stream; None if no stream has this number.
    pub fn of(stream: u16) -> Option<Route> {
        let nth = usize::from(stream / STREAMS_EACH);
        Route::ALL.get(nth).copied()
    }

    /// The name in `--route` and in the summary.
    pub const fn name(self) -> &'static str {
        match self {
            Route::Direct => "direct",
            Route::Reverse => "reverse",
            Route::Ssh => "ssh",
            Route::Inband => "inside the ssh login",
        }
    }
}

/// A stream's name in messages: `3`, `3 (ssh)`.
pub struct ConnectionName(pub u16);

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nth = self.0 % STREAMS_EACH;
        match Route::of(self.0) {
            None | Some(Route::Direct) => write!(f, "{nth}"),
            Some(route) => write!(f, "{nth} ({})", route.name()),
        }
    }
}

/// A connection whose other end has proved that it knows the secret, or must still do so.
pub struct Connection {
    pub id: ConnectionId,
    pub link: Duplex,
    /// The expected answer to this end's opening, if frames may be sent before it arrives.
    pub expected: Option<ExpectedAnswer>,
    /// Tells the dialler the connection's fate.
    pub fate: Option<oneshot::Sender<Fate>>,
}

/// The end of a connection.
#[derive(Clone, Debug)]
pub struct Fate {
    /// The other end had proved that it knows the secret.
    pub was_proven: bool,
    /// It was useful: data went through it.
    pub carried: bool,
    pub cause: String,
}

/// ssh works, but no data came through. `why` completes "logged in, but". `host` is the other end,
/// if the client is one.
pub fn blocked(host: Option<&str>, why: impl fmt::Display) -> Error {
    let host = host.map_or_else(String::new, |host| format!("{host}: "));
    let message = format!("{host}logged in, but {why} (a firewall? see --ports and --route)");
    Error::new(Kind::Connect, Side::Here, message)
}

/// The reason why no connection to `host` is possible: it cannot open a port.
pub fn no_port(host: &str) -> String {
    format!("no stream: {host} cannot open a port")
}

/// All connections were lost, and no other came up within `time`.
pub fn cut_off(time: Duration, cause: &str) -> Error {
    let seconds = time.as_secs();
    let message =
        format!("all streams were lost and none could be restored within {seconds} s: {cause}");
    Error::new(Kind::Lost, Side::Here, message)
}

/// The reason if nothing is known but silence.
pub const NO_ANSWER: &str = "no answer";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_of_one_route_by_its_number() {
        for route in Route::ALL {
            for nth in [0, 7, 255] {
                assert_eq!(Route::of(route.stream(nth)), Some(route));
            }
        }
        assert_eq!(Route::of(4 << 8), None);
        assert_eq!(ConnectionName(Route::Ssh.stream(3)).to_string(), "3 (ssh)");
    }
}
