//! Control as one end of a session hears it: the other end's heartbeats, what its tuner decides and
//! its last word are taken here, everything else is the session's.

use std::collections::VecDeque;

use tokio::io::AsyncRead;

use crate::control::Incoming;
use crate::error::Result;
use crate::pipeline::Ending;
use crate::session::heartbeat::Heart;
use crate::session::{cause_of, lost};
use crate::wire::message::Message;

/// Messages that may come while this end prepares its half: where streams are taken, roots that
/// could not be found. More are not read before it is done.
const KEPT_MAX: usize = 64;

pub struct Hearing<'a, R> {
    incoming: &'a mut Incoming<R>,
    /// None where both ends are in this process.
    heart: Option<&'a Heart>,
    ending: &'a Ending,
    kept: VecDeque<Message>,
}

impl<'a, R: AsyncRead + Unpin> Hearing<'a, R> {
    pub fn new(
        incoming: &'a mut Incoming<R>,
        heart: Option<&'a Heart>,
        ending: &'a Ending,
    ) -> Self {
        Hearing {
            incoming,
            heart,
            ending,
            kept: VecDeque::new(),
        }
    }

    /// The next message. May be dropped while it waits, and nothing is lost.
    ///
    /// # Errors
    /// What the other end ended for, if it says so; else that it was lost.
    pub async fn next(&mut self) -> Result<Message> {
        match self.kept.pop_front() {
            Some(message) => Ok(message),
            None => hear(self.incoming, self.heart).await,
        }
    }

    /// Does `work` and goes on hearing: the other end's heartbeats, and whether it ends.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let has_room = self.kept.len() < KEPT_MAX;
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = self.ending.wait() => return Err(cause_of(self.ending)),
                message = hear(self.incoming, self.heart), if has_room => {
                    self.kept.push_back(message?);
                }
            }
        }
    }

    pub fn ending(&self) -> &'a Ending {
        self.ending
    }
}

async fn hear<R: AsyncRead + Unpin>(
    incoming: &mut Incoming<R>,
    heart: Option<&Heart>,
) -> Result<Message> {
    loop {
        match incoming.next().await.map_err(lost)? {
            Message::Abort(fault) => return Err(fault.into_error()),
            Message::Heartbeat(heartbeat) => {
                if let Some(heart) = heart {
                    heart.hear(heartbeat);
                }
            }
            message => {
                if let (Message::Tune(tune), Some(heart)) = (&message, heart) {
                    heart.tune(tune);
                }
                return Ok(message);
            }
        }
    }
}
