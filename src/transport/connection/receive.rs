//! The receiving task of one connection: reads frames into pooled buffers, within limits.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use super::stats::ConnectionStats;
use crate::chunk::Pool;
use crate::wire::SealedChunk;
use crate::wire::frame::{BadFrame, FrameHeader, FrameLimits, HEADER_LEN};

#[derive(Debug, thiserror::Error)]
pub enum RecvError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    BadFrame(#[from] BadFrame),
    /// The copy is ending.
    #[error("the copy is ending")]
    Ending,
}

/// Hands on every frame until the connection ends between two frames or `hand_on` returns false.
/// It takes a buffer only after a header has arrived, so that an idle connection holds none.
pub async fn recv(
    mut reader: impl AsyncRead + Unpin,
    limits: &FrameLimits,
    pool: &Pool,
    stats: &ConnectionStats,
    mut hand_on: impl FnMut(SealedChunk) -> bool,
) -> Result<(), RecvError> {
    let mut header = [0; HEADER_LEN];
    loop {
        if !read_header(&mut reader, &mut header).await? {
            return Ok(());
        }
        stats.add(HEADER_LEN);
        let parsed = FrameHeader::parse(&header, limits)?;
        let buffer = {
            let _waiting = stats.start_waiting();
            pool.take().await.map_err(|_| RecvError::Ending)?
        };
        let mut frame = SealedChunk::receive(parsed, &header, buffer);
        read_payload(&mut reader, frame.payload_mut(), stats).await?;
        if !hand_on(frame) {
            return Err(RecvError::Ending);
        }
    }
}

/// Returns false if the connection ends between two frames.
async fn read_header(
    reader: &mut (impl AsyncRead + Unpin),
    header: &mut [u8; HEADER_LEN],
) -> io::Result<bool> {
    match reader.read(header).await? {
        0 => Ok(false),
        read => reader.read_exact(&mut header[read..]).await.map(|_| true),
    }
}

/// Counts bytes as they arrive, so that a long frame on a slow link shows progress.
async fn read_payload(
    reader: &mut (impl AsyncRead + Unpin),
    mut payload: &mut [u8],
    stats: &ConnectionStats,
) -> io::Result<()> {
    while !payload.is_empty() {
        match reader.read(payload).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                stats.add(read);
                payload = &mut payload[read..];
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_length_beyond_the_limit_takes_no_buffer() {
        let pool = Pool::new(1, 1 << 20);
        let mut header = [0; HEADER_LEN];
        header[0] = 1;
        header[1] = 1;
        header[52..56].copy_from_slice(&u32::MAX.to_le_bytes());
        let limits = FrameLimits::new(1 << 20);
        let end = recv(
            &header[..],
            &limits,
            &pool,
            &ConnectionStats::default(),
            |_| true,
        )
        .await;
        assert!(matches!(end, Err(RecvError::BadFrame(_))), "{end:?}");
        assert_eq!(pool.free(), 1);
    }
}
