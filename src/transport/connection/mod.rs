//! Data connections: the task that sends frames on one, the task that receives them, and the
//! handshake that proves who is at the other end. This module does not know about files.

pub mod duplex;
pub mod handshake;
pub mod kernel;
pub mod stall;
pub mod stats;

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{interval, sleep};

use self::duplex::{Duplex, ReadLink, WriteLink};
use self::handshake::ExpectedAnswer;
use self::stats::{ConnectionStats, Orders};
use super::frames::{Frame, Frames};
use super::rate_limit::RateLimiter;
use crate::chunk::Pool;
use crate::transport::frames::SealedChunk;
use crate::wire::frame::{BadFrame, FrameHeader, FrameLimits, HEADER_LEN};

/// Keepalive probes begin after this much silence; they detect a host that vanished.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Sets the options of a data connection: no delay, keepalive probes, and little unsent data in
/// the kernel. With little unsent data a connection is ready for a frame only when its network has
/// room, and a slow one does not hoard frames that a fast one could send. Dropping a connection
/// resets it: its chunks are sent again on others, and no kernel goes on sending to a dead link.
pub fn prepare(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    // Not every kernel has this option; without it the load of connections is only less even.
    let _ = socket.set_tcp_notsent_lowat(kernel::UNSENT_MIN);
    Ok(())
}

/// The owner of the chunks, which learns where each frame went.
pub trait Sent: Send + Sync {
    /// The connection has taken this frame; if it is lost now, the chunk must be sent again.
    /// Returns false if the frame must not be sent, because its chunk arrived through another
    /// connection.
    fn taken(&self, stream: u16, header: &FrameHeader) -> bool;
}

/// How often the task reads the kernel's facts about the connection.
const LOOK: Duration = Duration::from_secs(1);

/// The data in a full segment of Ethernet with time stamps. While a limit on held bytes is in
/// force, a connection writes whole segments of at most this size, at least [`SEGMENTS`] at once,
/// and looks this often for room.
const SEGMENT: u64 = 1448;
const SEGMENTS: u64 = 2;
const ROOM_LOOK_MIN: Duration = Duration::from_millis(5);
const ROOM_LOOK_MAX: Duration = Duration::from_millis(50);

/// Where a connection takes its frames from.
pub struct Supply {
    /// Shared by all connections.
    pub frames: Frames,
    /// A fallback connection takes frames only while this is true.
    pub gate: Option<watch::Receiver<bool>>,
}

impl Supply {
    /// The next frame; None when there are no more. While the connection is parked, leaves the rest
    /// to others, or has a closed gate, this waits.
    async fn next(
        &mut self,
        stats: &ConnectionStats,
        orders: &mut watch::Receiver<Orders>,
    ) -> Option<Frame> {
        loop {
            let rests = {
                let orders = orders.borrow_and_update();
                orders.is_parked || orders.is_yielding
            };
            let is_open = |gate: &mut watch::Receiver<bool>| *gate.borrow_and_update();
            let rests = rests || !self.gate.as_mut().is_none_or(is_open);
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
            written = write(&mut writer, frame.bytes(), limit, stats, &mut orders) => written?,
            ended = &mut ended => return Err(ended),
        }
    }
}

async fn write(
    writer: &mut WriteLink<'_>,
    mut bytes: &[u8],
    limit: &RateLimiter,
    stats: &ConnectionStats,
    orders: &mut watch::Receiver<Orders>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let admitted = limit.admit(bytes.len()).await;
        let (mut now, later) = bytes.split_at(admitted);
        while !now.is_empty() {
            let room = room(writer, stats, orders).await.min(now.len());
            match writer.write(&now[..room]).await? {
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

/// Waits until the connection holds less than [`Orders::held_max`]; returns how many bytes to
/// write at once.
async fn room(
    writer: &WriteLink<'_>,
    stats: &ConnectionStats,
    orders: &mut watch::Receiver<Orders>,
) -> usize {
    loop {
        let held_max = orders.borrow_and_update().held_max;
        // Without a limit the kernel is not asked: every write passes here.
        let Some(most) = held_max else {
            return stats.write_max();
        };
        let Some(facts) = writer.kernel() else {
            return stats.write_max();
        };
        // The kernel sends what it gets at once, the last part of a segment as a small packet. At
        // 1 Mbit/s a quarter of all packets were half full, and the copy took 1 % longer.
        let segment = facts.segment.clamp(1, SEGMENT);
        let least = SEGMENTS * segment;
        let room = most.max(2 * least).saturating_sub(facts.held);
        let room = room.min(stats.write_max() as u64);
        if room >= least {
            return (room / segment * segment) as usize;
        }
        let later = facts.takes(least).clamp(ROOM_LOOK_MIN, ROOM_LOOK_MAX);
        tokio::select! {
            () = sleep(later) => {}
            // This cannot fail: the statistics hold the sender.
            _ = orders.changed() => {}
        }
    }
}

async fn wait_for_end(
    reader: &mut ReadLink<'_>,
    expected: Option<ExpectedAnswer>,
    stats: &ConnectionStats,
) -> io::Error {
    // The kernel knows the round trip since the connect; the answer takes another one.
    look(reader, stats);
    if let Some(expected) = expected
        && let Err(error) = expected.answer(reader).await
    {
        return error;
    }
    stats.set_proven();
    let mut orders = stats.orders();
    let (mut congestion, mut pace) = (None, None);
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
            _ = looks.tick() => look(reader, stats),
            _ = orders.changed() => look(reader, stats),
            read = reader.read(&mut word) => return match read {
                Ok(0) => io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => io::Error::other("the receiver sent data on a stream that only it reads"),
                Err(error) => error,
            },
        }
    }
}

/// Stores the kernel's facts in the statistics and adjusts the bound on unsent bytes.
fn look(reader: &ReadLink<'_>, stats: &ConnectionStats) {
    let facts = reader.kernel();
    stats.set_kernel(facts);
    if let Some(facts) = facts
        && facts.unsent_max() != stats.unsent_max()
    {
        stats.set_unsent_max(facts.unsent_max());
        reader.bound_unsent(facts.unsent_max());
    }
}

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
    use std::sync::Arc;

    use super::handshake::{ConnectionId, DialRole, Keyring};
    use super::*;
    use crate::seal::Secret;

    #[tokio::test]
    async fn the_round_trip_of_the_connect_is_known_before_the_answer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut link = Duplex::Tcp(TcpStream::connect(address).await.unwrap());
        // It does not answer.
        let (_peer, _) = listener.accept().await.unwrap();
        let secret = Secret::take(&mut [1; 32]);
        let keyring = Arc::new(Keyring::new(secret, [9; 16], DialRole::Sends));
        let id = ConnectionId {
            stream: 0,
            attempt: 0,
        };
        let expected = keyring.open(&mut link, id).await.unwrap();
        let stats = ConnectionStats::default();
        let (mut reader, _writer) = link.split();
        let ended = wait_for_end(&mut reader, Some(expected), &stats).await;
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        assert!(!stats.is_proven());
        let facts = stats.kernel().expect("a look before the answer");
        assert!(!facts.round_trip.is_zero());
    }

    #[tokio::test]
    async fn a_connection_holds_no_more_than_it_may_until_the_limit_is_lifted() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        // It reads nothing, so the written bytes stay in the kernel.
        let (_peer, _) = listener.accept().await.unwrap();
        let mut link = Duplex::Tcp(socket);
        let (reader, mut writer) = link.split();
        let stats = ConnectionStats::default();
        let limit = RateLimiter::default();
        let mut orders = stats.orders();
        stats.order(|orders| orders.held_max = Some(40_000));
        let first = room(&writer, &stats, &mut orders).await;
        assert_eq!(first, 11 * 1448, "whole segments");
        let bytes = vec![1; 64 << 20];
        let write = write(&mut writer, &bytes, &limit, &stats, &mut orders);
        let look = async {
            let held = || reader.kernel().unwrap().held;
            let mut before = None;
            while before != Some(stats.bytes()) {
                before = Some(stats.bytes());
                sleep(Duration::from_millis(300)).await;
            }
            assert!(held() <= 40_000, "{}", held());
            stats.order(|orders| orders.held_max = None);
            while held() <= 100_000 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = write => unreachable!("nobody reads"),
            () = look => {}
            () = sleep(Duration::from_secs(60)) => panic!("it holds no more"),
        }
    }

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
