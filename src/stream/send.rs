//! Row 7: one stream takes the next frame from the queue that all share, whenever it is free.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_channel::{Receiver, RecvError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::interval;

use crate::stream::limit::Limit;
use crate::stream::meter::{Meter, Orders};
use crate::stream::opening::Expected;
use crate::stream::{kernel, linger};
use crate::wire::SealedChunk;
use crate::wire::frame::FrameHeader;

/// What the owner of the chunks is told.
pub trait Sent: Send + Sync {
    /// The stream has taken this frame; if it dies now, the chunk must be sent again.
    fn taken(&self, stream: u16, header: &FrameHeader);
}

/// How often the kernel is asked what has become of the bytes.
const LOOK: Duration = Duration::from_secs(1);

/// Sends frames until the queue is closed or the connection is lost. The other end says nothing
/// on it in this version but its answer to the opening, where that is still `expected`: frames
/// are sealed, so a stranger who does not answer has nothing of them.
pub async fn send(
    stream: u16,
    mut socket: TcpStream,
    expected: Option<Expected>,
    frames: &Receiver<Arc<SealedChunk>>,
    limit: Option<&Limit>,
    meter: &Meter,
    owner: &dyn Sent,
) -> io::Result<()> {
    let (mut reader, mut writer) = socket.split();
    let ended = wait_for_end(&mut reader, expected, meter);
    tokio::pin!(ended);
    let mut orders = meter.orders();
    loop {
        let frame = tokio::select! {
            frame = next(frames, meter, &mut orders) => match frame {
                Ok(frame) => frame,
                Err(_) => {
                    linger(writer.as_ref())?;
                    return writer.shutdown().await;
                }
            },
            ended = &mut ended => return Err(ended),
        };
        // No await lies between taking a frame and saying so: none can be lost unnoticed.
        owner.taken(stream, frame.header());
        tokio::select! {
            written = write(&mut writer, frame.bytes(), limit, meter) => written?,
            ended = &mut ended => return Err(ended),
        }
    }
}

/// The next frame. A stream that is parked waits until it is no longer.
async fn next(
    frames: &Receiver<Arc<SealedChunk>>,
    meter: &Meter,
    orders: &mut watch::Receiver<Orders>,
) -> Result<Arc<SealedChunk>, RecvError> {
    loop {
        let is_parked = orders.borrow_and_update().is_parked;
        // Who takes a frame at once has not waited.
        if !is_parked && let Ok(frame) = frames.try_recv() {
            return Ok(frame);
        }
        let _parked = is_parked.then(|| meter.park());
        let _waiting = (!is_parked).then(|| meter.start_waiting());
        tokio::select! {
            frame = frames.recv(), if !is_parked => return frame,
            // The meter holds the other end.
            _ = orders.changed() => {}
        }
    }
}

async fn write(
    writer: &mut WriteHalf<'_>,
    mut bytes: &[u8],
    limit: Option<&Limit>,
    meter: &Meter,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let admitted = match limit {
            Some(limit) => limit.admit(bytes.len()).await,
            None => bytes.len(),
        };
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
    reader: &mut ReadHalf<'_>,
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
    let mut congestion = None;
    let mut looks = interval(LOOK);
    let mut word = [0; 1];
    loop {
        let wanted = orders.borrow_and_update().congestion.clone();
        if wanted != congestion {
            // One that may not be chosen was not: the stream goes on as it is.
            if let Some(name) = &wanted {
                let _ = kernel::set_congestion(reader.as_ref(), name);
            }
            congestion = wanted;
        }
        tokio::select! {
            _ = looks.tick() => meter.set_kernel(kernel::facts(reader.as_ref())),
            _ = orders.changed() => meter.set_kernel(kernel::facts(reader.as_ref())),
            read = reader.read(&mut word) => return match read {
                Ok(0) => io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => io::Error::other("the receiver spoke on a data stream"),
                Err(error) => error,
            },
        }
    }
}
