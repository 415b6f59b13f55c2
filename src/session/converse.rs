//! The loop of a conversation: hands the peer's messages to the running end of a copy until all is
//! in place or the copy ends.

use crate::control::Outgoing;
use crate::error::{Error, Kind, Result, Side};
use crate::session::control_reader::ControlReader;
use crate::session::endpoint::{ReceivingEnd, SendingEnd};
use crate::wire::message::Message;

/// One end's half of the copy.
pub enum RunningEnd {
    Sending(SendingEnd),
    Receiving(ReceivingEnd),
}

impl RunningEnd {
    fn take(&self, message: Message) -> Result<()> {
        match self {
            RunningEnd::Sending(half) => half.take(message),
            RunningEnd::Receiving(half) => {
                half.take(message);
                Ok(())
            }
        }
    }

    /// This half, if its queue has no room for more messages.
    fn full(&self) -> Option<&ReceivingEnd> {
        match self {
            RunningEnd::Receiving(half) if half.is_full() => Some(half),
            RunningEnd::Receiving(_) | RunningEnd::Sending(_) => None,
        }
    }

    /// Works off queued messages before `error` counts as the cause: they may have a better one.
    pub async fn work_off(&self, error: &Error) {
        if let (RunningEnd::Receiving(half), Kind::Lost) = (self, error.kind) {
            half.work_off().await;
        }
    }

    async fn done(&mut self) {
        match self {
            RunningEnd::Sending(half) => half.done().await,
            RunningEnd::Receiving(half) => half.done().await,
        }
    }

    pub async fn stop(self) {
        match self {
            RunningEnd::Sending(half) => half.stop().await,
            RunningEnd::Receiving(half) => half.stop().await,
        }
    }
}

/// Hands messages to `half` until all is in place or the copy ends. `ways` takes messages about
/// connections; `check` sees the others before the half does.
pub async fn converse<R: tokio::io::AsyncRead + Unpin>(
    hearing: &mut ControlReader<'_, R>,
    half: &mut RunningEnd,
    mut ways: impl FnMut(Message) -> Result<()>,
    mut check: impl FnMut(&Message) -> Result<()>,
) -> Result<()> {
    let ending = hearing.ending();
    loop {
        if let Some(full) = half.full() {
            // A sender of this version never fills the queue. Control is read again when there is
            // room.
            hearing.pause(true);
            tokio::select! {
                () = full.room() => {}
                () = ending.wait() => return Err(ending.error()),
            }
            hearing.pause(false);
        }
        let message = tokio::select! {
            biased;
            () = half.done() => return Ok(()),
            () = ending.wait() => return Err(ending.error()),
            message = hearing.next() => message?,
        };
        match message {
            Message::Listen(_)
            | Message::Dial(_)
            | Message::Data(_)
            | Message::Credit(_)
            | Message::Tune(_)
            | Message::Tried(_) => ways(message)?,
            message => {
                check(&message)?;
                half.take(message)?;
            }
        }
    }
}

/// Sends a message.
///
/// # Errors
/// `Kind::Lost` if control has ended.
pub async fn say(control: &Outgoing, message: Message) -> Result<()> {
    let said = control.send(message).await;
    said.map_err(|error| Error::new(Kind::Lost, Side::Here, error.to_string()))
}
