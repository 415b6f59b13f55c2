//! Row 7: one stream takes the next frame from the queue that all share, whenever it is free.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::interval;

use crate::stream::frames::{Frame, Frames};
use crate::stream::limit::Limit;
use crate::stream::link::{Link, ReadLink, WriteLink};
use crate::stream::meter::{Meter, Orders};
use crate::stream::opening::Expected;
use crate::wire::frame::FrameHeader;

/// What the owner of the chunks is told.
pub trait Sent: Send + Sync {
    /// The stream has taken this frame; if it dies now, the chunk must be sent again. False where
    /// the frame is not to be sent: its chunk has arrived by another stream.
    fn taken(&self, stream: u16, header: &FrameHeader) -> bool;
}

/// How often the kernel is asked what has become of the bytes.
const LOOK: Duration = Duration::from_secs(1);

/// What a stream sends.
pub struct Supply {
    /// Shared by all streams.
    pub frames: Frames,
    /// A stream that is for lack of better ones takes a frame only while this says so.
    pub gate: Option<watch::Receiver<bool>>,
}

impl Supply {
    /// The next frame; None when there are no more. A stream that is parked, or whose gate is
    /// closed, waits until that is over.
    async fn next(&mut self, meter: &Meter, orders: &mut watch::Receiver<Orders>) -> Option<Frame> {
        loop {
            let is_parked = orders.borrow_and_update().is_parked;
            let is_open = |gate: &mut watch::Receiver<bool>| *gate.borrow_and_update();
            let rests = is_parked || !self.gate.as_mut().is_none_or(is_open);
            // Who takes a frame at once has not waited.
            if !rests && let Some(frame) = self.frames.try_take() {
                return Some(frame);
            }
            let _parked = rests.then(|| meter.park());
            let _waiting = (!rests).then(|| meter.start_waiting());
            tokio::select! {
                frame = self.frames.take(), if !rests => return frame,
                // The meter holds the other end.
                _ = orders.changed() => {}
                // It goes with the session, and so does this.
                changed = changed(&mut self.gate) => changed.ok()?,
            }
        }
    }
}

/// Never where there is no gate.
async fn changed(gate: &mut Option<watch::Receiver<bool>>) -> Result<(), watch::error::RecvError> {
    match gate {
        Some(gate) => gate.changed().await,
        None => std::future::pending().await,
    }
}

/// Sends frames until there are no more or the connection is lost. The other end says nothing
/// on it in this version but its answer to the opening, where that is still `expected`: frames
/// are sealed, so a stranger who does not answer has nothing of them.
pub async fn send(
    stream: u16,
    mut link: Link,
    expected: Option<Expected>,
    mut supply: Supply,
    limit: &Limit,
    meter: &Meter,
    owner: &dyn Sent,
) -> io::Result<()> {
    let (mut reader, mut writer) = link.split();
    let ended = wait_for_end(&mut reader, expected, meter);
    tokio::pin!(ended);
    let mut orders = meter.orders();
    loop {
        let frame = tokio::select! {
            frame = supply.next(meter, &mut orders) => match frame {
                Some(frame) => frame,
                None => return writer.finish().await,
            },
            ended = &mut ended => return Err(ended),
        };
        // No await lies between taking a frame and saying so: none can be lost unnoticed.
        if !owner.taken(stream, frame.header()) {
            continue;
        }
        meter.take(frame.bytes().len());
        tokio::select! {
            written = write(&mut writer, frame.bytes(), limit, meter) => written?,
            ended = &mut ended => return Err(ended),
        }
    }
}

async fn write(
    writer: &mut WriteLink<'_>,
    mut bytes: &[u8],
    limit: &Limit,
    meter: &Meter,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let admitted = limit.admit(bytes.len()).await;
        let (mut now, later) = bytes.split_at(admitted);
        while !now.is_empty() {
            match writer.write(now).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => {
                    meter.add(written);
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
    expected: Option<Expected>,
    meter: &Meter,
) -> io::Error {
    if let Some(expected) = expected
        && let Err(error) = expected.answer(reader).await
    {
        return error;
    }
    meter.set_proven();
    let mut orders = meter.orders();
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
            // One that may not be chosen was not: the stream goes on as it is.
            if let Some(name) = &wanted {
                let _ = reader.set_congestion(name);
            }
            congestion = wanted;
        }
        tokio::select! {
            _ = looks.tick() => look(reader, meter, &mut unsent_max),
            _ = orders.changed() => look(reader, meter, &mut unsent_max),
            read = reader.read(&mut word) => return match read {
                Ok(0) => io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => io::Error::other("the receiver spoke on a data stream"),
                Err(error) => error,
            },
        }
    }
}

/// Tells what the kernel knows of the connection, and keeps what waits in its buffer within bounds.
fn look(reader: &ReadLink<'_>, meter: &Meter, unsent_max: &mut u32) {
    let facts = reader.kernel();
    meter.set_kernel(facts);
    if let Some(facts) = facts
        && facts.unsent_max() != *unsent_max
    {
        *unsent_max = facts.unsent_max();
        reader.bound_unsent(*unsent_max);
    }
}
