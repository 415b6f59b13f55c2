//! How streams come about: by dialling the other host, by being dialled from there, inside further
//! ssh logins, or inside the one that there is. A route gives connections whose other end has
//! proven itself, and nothing else. (Where both ends are in this process there is none.)

pub mod addresses;
pub mod direct;
pub mod inband;
pub mod listener;
pub mod login;
pub mod meeting;
mod unproven;

use std::fmt;

use tokio::sync::oneshot;

use crate::stream::link::Link;
use crate::stream::opening::{Expected, StreamId};
use crate::wire::hello::STREAMS_MAX;

/// A way for streams. A discriminant is the upper byte of the numbers of its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Route {
    /// The client dials the server.
    Direct = 0,
    /// The server dials the client.
    Reverse = 1,
    /// A stream is a further ssh login.
    Ssh = 2,
    /// One stream, inside control.
    Inband = 3,
}

/// Streams of one route, as many as a byte counts.
const STREAMS_EACH: u16 = 1 << 8;
const _: () = assert!(STREAMS_MAX <= STREAMS_EACH);

impl Route {
    pub const ALL: [Route; 4] = [Route::Direct, Route::Reverse, Route::Ssh, Route::Inband];

    /// Which of its route's streams has this number.
    pub const fn nth(stream: u16) -> u16 {
        stream % STREAMS_EACH
    }

    /// The number of the route's `nth` stream, of at most 256.
    pub const fn stream(self, nth: u16) -> u16 {
        self as u16 * STREAMS_EACH + nth % STREAMS_EACH
    }

    /// The route of a stream by its number; None for a number that no stream has.
    pub fn of(stream: u16) -> Option<Route> {
        let nth = usize::from(stream / STREAMS_EACH);
        Route::ALL.get(nth).copied()
    }

    /// As `--route` and the summary have it.
    pub const fn name(self) -> &'static str {
        match self {
            Route::Direct => "direct",
            Route::Reverse => "reverse",
            Route::Ssh => "ssh",
            Route::Inband => "inside the ssh login",
        }
    }
}

/// A stream in messages: `3`, `3 (ssh)`.
pub struct Named(pub u16);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nth = self.0 % STREAMS_EACH;
        match Route::of(self.0) {
            None | Some(Route::Direct) => write!(f, "{nth}"),
            Some(route) => write!(f, "{nth} ({})", route.name()),
        }
    }
}

/// A connection whose other end knows the secret, or is still to prove it.
pub struct Connection {
    pub id: StreamId,
    pub link: Link,
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
        assert_eq!(Named(Route::Ssh.stream(3)).to_string(), "3 (ssh)");
    }
}
