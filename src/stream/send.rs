//! Row 7: one stream takes the next frame from the queue that all share, whenever it is free.

use std::io;

use async_channel::Receiver;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stream::limit::Limit;
use crate::stream::opening::Expected;
use crate::wire::SealedChunk;
use crate::wire::frame::FrameHeader;

/// What the owner of the chunks is told.
pub trait Sent: Send + Sync {
    /// The stream has taken this frame; if it dies now, the chunk must be sent again.
    fn taken(&self, stream: u16, header: &FrameHeader);
}

/// Sends frames until the queue is closed or the connection is lost. The other end says nothing
/// on it in this version but its answer to the opening, where that is still `expected`: frames
/// are sealed, so a stranger who does not answer has nothing of them.
pub async fn send(
    stream: u16,
    mut socket: TcpStream,
    expected: Option<Expected>,
    frames: &Receiver<SealedChunk>,
    limit: Option<&Limit>,
    owner: &dyn Sent,
) -> io::Result<()> {
    let (mut reader, mut writer) = socket.split();
    let ended = wait_for_end(&mut reader, expected);
    tokio::pin!(ended);
    loop {
        let frame = tokio::select! {
            frame = frames.recv() => match frame {
                Ok(frame) => frame,
                Err(_) => return writer.shutdown().await,
            },
            ended = &mut ended => return Err(ended),
        };
        // No await lies between taking a frame and saying so: none can be lost unnoticed.
        owner.taken(stream, frame.header());
        tokio::select! {
            written = write(&mut writer, frame.bytes(), limit) => written?,
            ended = &mut ended => return Err(ended),
        }
    }
}

async fn write<W>(writer: &mut W, mut bytes: &[u8], limit: Option<&Limit>) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let Some(limit) = limit else {
        return writer.write_all(bytes).await;
    };
    while !bytes.is_empty() {
        let (now, later) = bytes.split_at(limit.admit(bytes.len()).await);
        writer.write_all(now).await?;
        bytes = later;
    }
    Ok(())
}

async fn wait_for_end(
    reader: &mut (impl AsyncRead + Unpin),
    expected: Option<Expected>,
) -> io::Error {
    if let Some(expected) = expected
        && let Err(error) = expected.answer(reader).await
    {
        return error;
    }
    match reader.read(&mut [0; 1]).await {
        Ok(0) => io::ErrorKind::UnexpectedEof.into(),
        Ok(_) => io::Error::other("the receiver spoke on a data stream"),
        Err(error) => error,
    }
}
