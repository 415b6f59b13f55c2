//! The first bytes of a data connection. The dialling end proves that it knows the session's
//! secret and names the stream; the listening end proves the same in its answer. A stranger learns
//! nothing and is dropped after a short wait.
//!
//! A recorded opening that is replayed opens nothing. A listener accepts each attempt of a stream
//! once, in order, and all frames behind the opening are sealed with keys that a stranger does not
//! have.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::seal::{Purpose, Secret, mac, verify_mac};

/// How long either end waits for the other's bytes. After this, a frame that was sent behind an
/// unanswered opening is sent again on another connection.
pub const OPENING_TIMEOUT: Duration = Duration::from_secs(5);

const MAGIC: &[u8; 8] = b"fastcp 1";
const ANSWER_MAGIC: &[u8; 8] = b"fastcp+1";

/// Magic, session, stream u16, attempt u16, role u8, 3 reserved bytes, MAC over all before.
const OPENING_LEN: usize = 64;
const MAC_AT: usize = OPENING_LEN - 32;

/// Magic, MAC over the opening.
const ANSWER_LEN: usize = 40;

/// Names a connection. An attempt is one dialling of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    pub stream: u16,
    pub attempt: u16,
}

/// What the dialling end does with the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DialRole {
    Sends = 1,
    Receives = 2,
}

/// What both ends of a session know about its connections.
pub struct Keyring {
    pub secret: Secret,
    pub session: [u8; 16],
    /// The role of the end that dials.
    pub role: DialRole,
    /// The last attempt of each stream: at most 64 Ki numbers, and only an end that knows the
    /// secret can add one.
    last: Mutex<HashMap<u16, u16>>,
}

impl Keyring {
    pub fn new(secret: Secret, session: [u8; 16], role: DialRole) -> Keyring {
        Keyring {
            secret,
            session,
            role,
            last: Mutex::default(),
        }
    }

    /// The keyring for connections of the same session that the other end dials. Openings made
    /// with one keyring are not valid for the other.
    pub fn facing(&self) -> Keyring {
        let secret = Secret::take(&mut self.secret.expose().to_owned());
        let role = match self.role {
            DialRole::Sends => DialRole::Receives,
            DialRole::Receives => DialRole::Sends,
        };
        Keyring::new(secret, self.session, role)
    }

    fn opening(&self, id: ConnectionId) -> [u8; OPENING_LEN] {
        let mut bytes = [0; OPENING_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(&self.session);
        bytes[24..26].copy_from_slice(&id.stream.to_le_bytes());
        bytes[26..28].copy_from_slice(&id.attempt.to_le_bytes());
        bytes[28] = self.role as u8;
        let mac = mac(&self.secret, Purpose::StreamOpening, &bytes[..MAC_AT]);
        bytes[MAC_AT..].copy_from_slice(&mac);
        bytes
    }

    fn answer(&self, opening: &[u8; OPENING_LEN]) -> [u8; ANSWER_LEN] {
        let mut bytes = [0; ANSWER_LEN];
        bytes[..8].copy_from_slice(ANSWER_MAGIC);
        bytes[8..].copy_from_slice(&mac(&self.secret, Purpose::StreamAnswer, opening));
        bytes
    }

    /// The stream that an opening names. None if a stranger made it, or if this or a later attempt
    /// of the stream was already accepted.
    fn accept(&self, opening: &[u8; OPENING_LEN]) -> Option<ConnectionId> {
        let mac = opening[MAC_AT..].try_into().expect("32 bytes");
        if !verify_mac(
            &self.secret,
            Purpose::StreamOpening,
            &opening[..MAC_AT],
            mac,
        ) {
            return None;
        }
        let stream = u16::from_le_bytes([opening[24], opening[25]]);
        let attempt = u16::from_le_bytes([opening[26], opening[27]]);
        let id = ConnectionId { stream, attempt };
        if *opening != self.opening(id) {
            return None;
        }
        let mut last = self.last.lock();
        if last.get(&stream).is_some_and(|&last| attempt <= last) {
            return None;
        }
        last.insert(stream, attempt);
        Some(id)
    }

    /// Sends the opening on a new connection; returns the value that checks the answer.
    pub async fn open(
        self: &Arc<Self>,
        writer: &mut (impl AsyncWrite + Unpin),
        id: ConnectionId,
    ) -> io::Result<ExpectedAnswer> {
        let opening = self.opening(id);
        timeout(OPENING_TIMEOUT, writer.write_all(&opening)).await??;
        Ok(ExpectedAnswer {
            keyring: self.clone(),
            opening,
        })
    }

    /// Waits for the opening on a connection that was just accepted, and answers it.
    pub async fn welcome(
        &self,
        link: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<ConnectionId> {
        let handshake = async {
            let mut opening = [0; OPENING_LEN];
            link.read_exact(&mut opening).await?;
            let id = self
                .accept(&opening)
                .ok_or_else(|| io::Error::other("a stranger"))?;
            link.write_all(&self.answer(&opening)).await?;
            Ok(id)
        };
        timeout(OPENING_TIMEOUT, handshake).await?
    }
}

/// The check of an answer that has not arrived yet.
pub struct ExpectedAnswer {
    keyring: Arc<Keyring>,
    opening: [u8; OPENING_LEN],
}

impl ExpectedAnswer {
    /// Waits for the answer and checks it.
    pub async fn answer(self, reader: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        let mut answer = [0; ANSWER_LEN];
        timeout(OPENING_TIMEOUT, reader.read_exact(&mut answer)).await??;
        let mac = answer[8..].try_into().expect("32 bytes");
        let secret = &self.keyring.secret;
        if answer[..8] == ANSWER_MAGIC[..]
            && verify_mac(secret, Purpose::StreamAnswer, &self.opening, mac)
        {
            Ok(())
        } else {
            Err(io::Error::other("the answer is not from fastcp"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyring(byte: u8) -> Keyring {
        Keyring::new(Secret::take(&mut [byte; 32]), [9; 16], DialRole::Sends)
    }

    #[test]
    fn an_opening_opens_once_and_only_for_who_knows_the_secret() {
        let listener = keyring(1);
        let id = ConnectionId {
            stream: 3,
            attempt: 1,
        };
        let opening = keyring(1).opening(id);
        assert_eq!(listener.accept(&keyring(2).opening(id)), None);
        for bit in 0..OPENING_LEN * 8 {
            let mut flipped = opening;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(listener.accept(&flipped), None, "bit {bit}");
        }
        assert_eq!(listener.accept(&opening), Some(id));
        assert_eq!(listener.accept(&opening), None, "a replay");
        let again = ConnectionId { attempt: 4, ..id };
        assert_eq!(listener.accept(&keyring(1).opening(again)), Some(again));
        let late = ConnectionId { attempt: 3, ..id };
        assert_eq!(listener.accept(&keyring(1).opening(late)), None, "too late");
    }
}
