//! The loop of a session: it hands the peer's messages to this end of the copy until the copy is
//! complete or fails.

use std::sync::Arc;

use crate::control::Outgoing;
use crate::error::{Error, Kind, Result, Side};
use crate::pipeline::failures::MoreFailures;
use crate::pipeline::news::News;
use crate::progress::Progress;
use crate::session::control_reader::ControlReader;
use crate::session::endpoint::{ReceivingEnd, SendingEnd};
use crate::wire::message::Message;

/// This end of the copy.
pub enum RunningEnd {
    Sending(SendingEnd),
    Receiving(ReceivingEnd),
}

impl RunningEnd {
    fn take(&self, message: Message) -> Result<()> {
        match self {
            RunningEnd::Sending(end) => end.take(message),
            RunningEnd::Receiving(end) => {
                end.take(message);
                Ok(())
            }
        }
    }

    /// This end, if its queue has no room for more messages.
    fn full(&self) -> Option<&ReceivingEnd> {
        match self {
            RunningEnd::Receiving(end) if end.is_full() => Some(end),
            RunningEnd::Receiving(_) | RunningEnd::Sending(_) => None,
        }
    }

    /// The changes that the user sees, if they have no room for more.
    fn full_list(&self) -> Option<Arc<News>> {
        let news = self.news();
        news.itemized.is_full().then(|| news.clone())
    }

    fn news(&self) -> &Arc<News> {
        match self {
            RunningEnd::Sending(end) => &end.sender.context.news,
            RunningEnd::Receiving(end) => &end.receiver.context.news,
        }
    }

    fn progress(&self) -> &Progress {
        match self {
            RunningEnd::Sending(end) => &end.sender.context.progress,
            RunningEnd::Receiving(end) => &end.receiver.context.progress,
        }
    }

    /// The failed entries that a server has counted so far.
    pub fn failed(&self) -> MoreFailures {
        self.news().failures.take().1
    }

    /// Works off queued messages before `error` counts as the cause: they may have a better one.
    pub async fn work_off(&self, error: &Error) {
        if let (RunningEnd::Receiving(end), Kind::Lost) = (self, error.kind) {
            end.work_off().await;
        }
    }

    async fn done(&mut self) {
        match self {
            RunningEnd::Sending(end) => end.done().await,
            RunningEnd::Receiving(end) => end.done().await,
        }
    }

    pub async fn stop(self) {
        match self {
            RunningEnd::Sending(end) => end.stop().await,
            RunningEnd::Receiving(end) => end.stop().await,
        }
    }
}

/// Hands messages to `end` until all is in place or the copy ends. `ways` takes messages about
/// connections; `check` sees the others before the end does.
pub async fn converse<R: tokio::io::AsyncRead + Unpin>(
    control_reader: &mut ControlReader<'_, R>,
    end: &mut RunningEnd,
    mut ways: impl FnMut(Message) -> Result<()>,
    mut check: impl FnMut(&Message) -> Result<()>,
) -> Result<()> {
    let shutdown = control_reader.shutdown();
    loop {
        if let Some(full) = end.full() {
            // A sender of this version never fills the queue. Control is read again when there is
            // room.
            control_reader.pause(true);
            tokio::select! {
                () = full.room() => {}
                () = shutdown.wait() => return Err(shutdown.error()),
            }
            control_reader.pause(false);
        }
        if let Some(news) = end.full_list() {
            control_reader.pause(true);
            tokio::select! {
                () = news.itemized.room() => {}
                () = shutdown.wait() => return Err(shutdown.error()),
            }
            control_reader.pause(false);
        }
        let message = tokio::select! {
            biased;
            () = end.done() => return Ok(()),
            () = shutdown.wait() => return Err(shutdown.error()),
            message = control_reader.next() => message?,
        };
        match message {
            Message::Listen(_)
            | Message::Dial(_)
            | Message::Data(_)
            | Message::Credit(_)
            | Message::Tune(_)
            | Message::Tried(_) => ways(message)?,
            Message::Activity(activity) => {
                let progress = end.progress();
                progress.set_activity(activity.harmless());
            }
            message => {
                check(&message)?;
                end.take(message)?;
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
