//! The sending task of one connection: takes the next frame from the shared queue whenever it is
//! free.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::interval;

use super::duplex::{Duplex, ReadLink, WriteLink};
use super::handshake::ExpectedAnswer;
use super::stats::{ConnectionStats, Orders};
use crate::transport::frames::{Frame, Frames};
use crate::transport::rate_limit::RateLimiter;
use crate::wire::frame::FrameHeader;

/// The owner of the chunks, which learns where each frame went.
pub trait Sent: Send + Sync {
    /// The connection has taken this frame; if it is lost now, the chunk must be sent again.
    /// Returns false if the frame must not be sent, because its chunk arrived through another
    /// connection.
    fn taken(&self, stream: u16, header: &FrameHeader) -> bool;
}

/// How often the task reads the kernel's facts about the connection.
const LOOK: Duration = Duration::from_secs(1);

/// Where a connection takes its frames from.
pub struct Supply {
    /// Shared by all connections.
    pub frames: Frames,
    /// A fallback connection takes frames only while this is true.
    pub gate: Option<watch::Receiver<bool>>,
}

impl Supply {
    /// The next frame; None when there are no more. While the connection is parked or its gate is
    /// closed, this waits.
    async fn next(
        &mut self,
        stats: &ConnectionStats,
        orders: &mut watch::Receiver<Orders>,
    ) -> Option<Frame> {
        loop {
            let is_parked = orders.borrow_and_update().is_parked;
            let is_open = |gate: &mut watch::Receiver<bool>| *gate.borrow_and_update();
            let rests = is_parked || !self.gate.as_mut().is_none_or(is_open);
            // A connection that gets a frame at once has not waited.
            if !rests && let Some(frame) = self.frames.try_take() {
                return Some(frame);
            }
            let _parked = rests.then(|| stats.park());
            let _waiting = (!rests).then(|| stats.start_waiting());
            tokio::select! {
                frame = self.frames.take(), if !rests => return frame,
                // This cannot fail: the statistics hold the sender.
                _ = orders.changed() => {}
                // The gate's sender ends with the session; this task then ends too.
                changed = changed(&mut self.gate) => changed.ok()?,
            }
        }
    }
}

/// Never completes if there is no gate.
async fn changed(gate: &mut Option<watch::Receiver<bool>>) -> Result<(), watch::error::RecvError> {
    match gate {
        Some(gate) => gate.changed().await,
        None => std::future::pending().await,
    }
}

/// Sends frames until there are no more or the connection is lost. In this version the other end
/// sends nothing but its answer to the opening, if that is still `expected`. Frames may precede
/// the answer: they are sealed, so a stranger cannot read them.
pub async fn send(
    stream: u16,
    mut link: Duplex,
    expected: Option<ExpectedAnswer>,
    mut supply: Supply,
    limit: &RateLimiter,
    stats: &ConnectionStats,
    owner: &dyn Sent,
) -> io::Result<()> {
    let (mut reader, mut writer) = link.split();
    let ended = wait_for_end(&mut reader, expected, stats);
    tokio::pin!(ended);
    let mut orders = stats.orders();
    loop {
        let frame = tokio::select! {
            frame = supply.next(stats, &mut orders) => match frame {
                Some(frame) => frame,
                None => return writer.finish().await,
            },
            ended = &mut ended => return Err(ended),
        };
        // There is no await between taking a frame and reporting it, so no frame is lost
        // unnoticed.
        if !owner.taken(stream, frame.header()) {
            continue;
        }
        stats.take(frame.bytes().len());
        tokio::select! {
            written = write(&mut writer, frame.bytes(), limit, stats) => written?,
            ended = &mut ended => return Err(ended),
        }
    }
}

async fn write(
    writer: &mut WriteLink<'_>,
    mut bytes: &[u8],
    limit: &RateLimiter,
    stats: &ConnectionStats,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let admitted = limit.admit(bytes.len()).await;
        let (mut now, later) = bytes.split_at(admitted);
        while !now.is_empty() {
            match writer.write(now).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => {
                    stats.add(written);
                    now = &now[written..];
                }
            }
        }
        bytes = later;
    }
    Ok(())
}

async fn wait_for_end(
    reader: &mut ReadLink<'_>,
    expected: Option<ExpectedAnswer>,
    stats: &ConnectionStats,
) -> io::Error {
    if let Some(expected) = expected
        && let Err(error) = expected.answer(reader).await
    {
        return error;
    }
    stats.set_proven();
    let mut orders = stats.orders();
    let (mut congestion, mut pace, mut unsent_max) = (None, None, 0);
    let mut looks = interval(LOOK);
    let mut word = [0; 1];
    loop {
        let Orders {
            congestion: wanted,
            pace: wanted_pace,
            ..
        } = orders.borrow_and_update().clone();
        if let Some(rate) = wanted_pace.filter(|_| wanted_pace != pace) {
            if let Err(error) = reader.set_pace(rate) {
                return error;
            }
            pace = wanted_pace;
        }
        if wanted != congestion {
            // A congestion control that this user may not choose is ignored; the connection keeps
            // its own.
            if let Some(name) = &wanted {
                let _ = reader.set_congestion(name);
            }
            congestion = wanted;
        }
        tokio::select! {
            _ = looks.tick() => look(reader, stats, &mut unsent_max),
            _ = orders.changed() => look(reader, stats, &mut unsent_max),
            read = reader.read(&mut word) => return match read {
                Ok(0) => io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => io::Error::other("the receiver spoke on a data stream"),
                Err(error) => error,
            },
        }
    }
}

/// Stores the kernel's facts in the statistics and adjusts the bound on unsent bytes.
fn look(reader: &ReadLink<'_>, stats: &ConnectionStats, unsent_max: &mut u32) {
    let facts = reader.kernel();
    stats.set_kernel(facts);
    if let Some(facts) = facts
        && facts.unsent_max() != *unsent_max
    {
        *unsent_max = facts.unsent_max();
        reader.bound_unsent(*unsent_max);
    }
}
