//! The reader of one end's control messages. It handles heartbeats, the wanted number of
//! connections and an abort itself, and hands the other messages to the session.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use tokio::io::AsyncRead;

use crate::control::{ControlError, Incoming};
use crate::error::{Error, Kind, Result, Side};
use crate::pipeline::Shutdown;
use crate::session::heartbeat::Heart;
use crate::wire::message::{FileNames, Message, Tune};

/// Messages that may arrive while this end prepares itself: addresses to dial, operands that were
/// not found. Beyond this, none are read.
const KEPT_MAX: usize = 64;

/// Bytes of memory for kept messages. The last one may exceed it.
const KEPT_BYTES_MAX: usize = 1 << 20;

pub struct ControlReader<'a, R> {
    incoming: &'a mut Incoming<R>,
    /// None if both ends are in this process.
    heart: Option<&'a Heart>,
    shutdown: &'a Shutdown,
    kept: VecDeque<Message>,
    kept_bytes: usize,
    origin: MessageOrigin,
    /// The name of the host at the other end, for its errors.
    host: Option<String>,
}

/// Whose messages arrive on control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOrigin {
    /// The other end's.
    Peer,
    /// The client's, which is neither end of the copy; its envelopes hold the other end's messages.
    Between,
}

impl<'a, R: AsyncRead + Unpin> ControlReader<'a, R> {
    pub fn new(
        incoming: &'a mut Incoming<R>,
        heart: Option<&'a Heart>,
        shutdown: &'a Shutdown,
    ) -> Self {
        ControlReader {
            incoming,
            heart,
            shutdown,
            kept: VecDeque::new(),
            kept_bytes: 0,
            origin: MessageOrigin::Peer,
            host: None,
        }
    }

    /// For a client: errors of the server itself begin with the name of its host.
    pub fn of_host(self, host: &str) -> Self {
        ControlReader {
            host: Some(host.to_owned()),
            ..self
        }
    }

    /// For a server whose client is neither end of the copy.
    pub fn between(self) -> Self {
        ControlReader {
            origin: MessageOrigin::Between,
            ..self
        }
    }

    /// The next message. Cancel-safe: no message is lost if the future is dropped.
    ///
    /// # Errors
    /// The other end's reason to end, if it sends one; otherwise that it was lost.
    pub async fn next(&mut self) -> Result<Message> {
        match self.kept.pop_front() {
            Some(message) => {
                self.kept_bytes -= message.weight();
                Ok(message)
            }
            None => hear(self.incoming, self.heart, self.origin)
                .await
                .map_err(|error| named(error, self.host.as_deref())),
        }
    }

    /// The next part of the client's list of files. Other messages are kept.
    ///
    /// # Errors
    /// As for [`next`](Self::next); and if too many messages of other types come before it.
    pub async fn next_names(&mut self) -> Result<FileNames> {
        loop {
            let message = tokio::select! {
                biased;
                () = self.shutdown.wait() => return Err(self.shutdown.error()),
                message = hear(self.incoming, self.heart, self.origin) => message?,
            };
            if let Message::FileNames(names) = message {
                return Ok(names);
            }
            if self.kept.len() >= KEPT_MAX || self.kept_bytes >= KEPT_BYTES_MAX {
                return Err(breach("no list of files"));
            }
            self.kept_bytes += message.weight();
            self.kept.push_back(message);
        }
    }

    /// Awaits `work`, and keeps messages that arrive. Handles heartbeats and the end of the copy.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let has_room = self.kept.len() < KEPT_MAX && self.kept_bytes < KEPT_BYTES_MAX;
            self.pause(!has_room);
            tokio::select! {
                biased;
                done = &mut work => {
                    self.pause(false);
                    return Ok(done);
                }
                () = self.shutdown.wait() => return Err(self.shutdown.error()),
                message = hear(self.incoming, self.heart, self.origin), if has_room => {
                    let message = message.map_err(|error| named(error, self.host.as_deref()))?;
                    self.kept_bytes += message.weight();
                    self.kept.push_back(message);
                }
            }
        }
    }

    /// Control is not read for now, so the other end's silence means nothing.
    pub fn pause(&self, is_paused: bool) {
        if let Some(heart) = self.heart {
            heart.pause(is_paused);
        }
    }

    pub fn shutdown(&self) -> &'a Shutdown {
        self.shutdown
    }
}

async fn hear<R: AsyncRead + Unpin>(
    incoming: &mut Incoming<R>,
    heart: Option<&Heart>,
    origin: MessageOrigin,
) -> Result<Message> {
    loop {
        let message = match (incoming.next().await.map_err(lost)?, origin) {
            (Message::Relay(relay), MessageOrigin::Between) => match relay.message() {
                // Only the client sets the rate.
                Ok(Some(Message::Tune(tune))) => Message::Tune(Tune {
                    rate_limit: None,
                    ..tune
                }),
                Ok(Some(message)) if is_of_an_end(&message) => message,
                Ok(None) => continue,
                _ => return Err(breach("a relayed message of an unexpected type")),
            },
            // Shows only that the client is alive, as the counted bytes do already.
            (Message::Heartbeat(_), MessageOrigin::Between) => continue,
            (message, MessageOrigin::Between) if is_of_an_end(&message) && !is_tune(&message) => {
                return Err(breach("a message that only the other end may send"));
            }
            (message, _) => message,
        };
        match message {
            Message::Abort(fault) => return Err(fault.into_error()),
            Message::Heartbeat(heartbeat) => {
                if let Some(heart) = heart {
                    heart.hear(heartbeat);
                }
            }
            message => {
                match (&message, heart) {
                    (Message::Tune(tune), Some(heart)) => heart.tune(tune),
                    (
                        Message::Roots(_) | Message::Uncounted(_) | Message::Landed(_),
                        Some(heart),
                    ) => heart.peer_is_ready(),
                    _ => {}
                }
                return Ok(message);
            }
        }
    }
}

/// True for messages that one end of a copy sends to the other, even if a client relays them.
pub fn is_of_an_end(message: &Message) -> bool {
    match message {
        Message::Roots(_)
        | Message::RootSpaces(_)
        | Message::Uncounted(_)
        | Message::Counted(_)
        | Message::Landed(_)
        | Message::Entries(_)
        | Message::Ask(_)
        | Message::Want(_)
        | Message::Missing(_)
        | Message::Differs(_)
        | Message::Ack(_)
        | Message::Nack(_)
        | Message::EntryEnd(_)
        | Message::AllSent(_)
        | Message::Done(())
        | Message::Heartbeat(_)
        | Message::Tune(_)
        | Message::Fault(_)
        | Message::Vanished(_)
        | Message::Grew(_)
        | Message::Busy(_)
        | Message::Special(_)
        | Message::Unlinked(_)
        | Message::Symlinks(_)
        | Message::Stayed(_)
        | Message::NotKept(_)
        | Message::Names(_)
        | Message::OwnNames(_)
        | Message::Extra(_)
        | Message::SourcePlaces(_)
        | Message::Deleted(_)
        | Message::Snapshot(_)
        | Message::Durable(_)
        | Message::SourcesRemoved(_)
        | Message::Itemized(_)
        | Message::FilesDone(_)
        | Message::SumUp(_)
        | Message::DirectorySums(_)
        | Message::EntrySums(_)
        | Message::Summed(_)
        | Message::Checked(_) => true,
        Message::Open(_)
        | Message::Secret(_)
        | Message::Select(_)
        | Message::Archive(_)
        | Message::Relative(_)
        | Message::Map(_)
        | Message::FileNames(_)
        | Message::Listen(_)
        | Message::Dial(_)
        | Message::Digests(_)
        | Message::Data(_)
        | Message::Credit(_)
        | Message::Abort(_)
        | Message::Relay(_)
        | Message::Enough(())
        | Message::Conclusion(_)
        | Message::Tried(_)
        | Message::Account(_)
        | Message::Activity(_)
        | Message::FileDigests(_)
        | Message::ListedDigests(_)
        | Message::VerifiedFiles(_)
        | Message::Leftovers(_) => false,
    }
}

/// A client's `Tune` sets the rate; the other end's sets the number of connections.
fn is_tune(message: &Message) -> bool {
    matches!(message, Message::Tune(_))
}

/// Adds the host to an error of the server. A lost connection and a signal are reported with the
/// host in any case.
pub fn named(error: Error, host: Option<&str>) -> Error {
    let is_named = error.kind == Kind::Lost || error.kind.is_wanted();
    match (host, &error.path) {
        (Some(host), Some(path)) if error.side == Side::Here && !is_named => {
            let path = [host.as_bytes(), b":", path.as_os_str().as_bytes()].concat();
            error.at(OsStr::from_bytes(&path))
        }
        (Some(host), None) if error.side == Side::Here && !is_named => Error {
            message: format!("{host}: {}", error.message),
            ..error
        },
        _ => error,
    }
}

/// Control ended in the middle of a copy.
pub fn lost(error: ControlError) -> Error {
    match error {
        ControlError::BadMessage(bad) => Error::breach(Side::Here, "the other end", bad),
        error => Error::new(Kind::Lost, Side::Here, error.to_string()),
    }
}

pub fn breach(what: &str) -> Error {
    Error::breach(Side::Here, "the client", what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::{Listen, Relay};

    /// The result of messages at a server whose client is neither end of the copy.
    async fn heard(messages: &[Message]) -> Result<Message> {
        let mut bytes = Vec::new();
        for message in messages {
            message.encode(&mut bytes);
        }
        let mut incoming = Incoming::new(&bytes[..]);
        let shutdown = Shutdown::default();
        let mut control_reader = ControlReader::new(&mut incoming, None, &shutdown).between();
        control_reader.next().await
    }

    fn relayed(message: &Message) -> Message {
        Message::Relay(Relay::of(message).expect("it is short"))
    }

    #[tokio::test]
    async fn words_of_the_other_host_are_no_orders() {
        let done = Message::Done(());
        assert_eq!(heard(&[relayed(&done)]).await.unwrap(), done);
        let alive = Message::Heartbeat(Default::default());
        assert_eq!(heard(&[alive, relayed(&done)]).await.unwrap(), done);
        let dial = Message::Dial(Listen {
            addresses: Vec::new(),
            port: 1,
        });
        assert_eq!(heard(std::slice::from_ref(&dial)).await.unwrap(), dial);
        let tune = Message::Tune(Tune {
            streams: None,
            rate_limit: Some(1),
            reason: String::new(),
        });
        assert_eq!(heard(std::slice::from_ref(&tune)).await.unwrap(), tune);
        let powerless = heard(&[relayed(&tune)]).await.unwrap();
        assert!(matches!(
            powerless,
            Message::Tune(Tune {
                rate_limit: None,
                ..
            })
        ));
        for order in [
            relayed(&dial),
            relayed(&relayed(&done)),
            relayed(&Message::Credit(1)),
            relayed(&Message::Enough(())),
            // The client may not send the other end's messages.
            done,
        ] {
            let error = heard(std::slice::from_ref(&order)).await.unwrap_err();
            assert_eq!(error.kind, Kind::Breach, "{order:?}");
        }
    }
}
