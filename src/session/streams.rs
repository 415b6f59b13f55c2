//! Data connections of one half: each gets a task that sends from the shared queue or receives
//! into the workers'. A connection that is lost costs speed; the copy ends only with the last.

use std::io::{self, ErrorKind::UnexpectedEof};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Kind, Side};
use crate::pipeline::Ending;
use crate::pipeline::receiver::{Job, Receiver};
use crate::pipeline::sender::Sender;
use crate::route::direct::Connection;
use crate::session::request::Reporter;
use crate::stream::limit::Limit;
use crate::stream::recv::{RecvError, recv};
use crate::stream::send::{Sent, send};
use crate::wire::SealedChunk;
use crate::wire::frame::{FrameHeader, FrameLimits};

/// How long the last words of an end whose streams have closed may be on their way.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Proven connections on their way from a route to a half.
pub type Connections = mpsc::Receiver<Connection>;

impl Sent for Sender {
    fn taken(&self, stream: u16, header: &FrameHeader) {
        self.plans.taken(header.chunk, stream);
        let wire = u64::from(header.wire_len) + crate::wire::frame::HEADER_LEN as u64;
        self.progress
            .add_frame(header.codec.number(), u64::from(header.raw_len), wire);
    }
}

/// Sends on every connection that comes, until the queue of frames is closed.
pub async fn send_on(
    sender: Arc<Sender>,
    frames: async_channel::Receiver<SealedChunk>,
    mut connections: Connections,
    reporter: Option<Arc<dyn Reporter>>,
) {
    let limit = sender.options.rate_limit.and_then(Limit::new).map(Arc::new);
    let mut streams = JoinSet::new();
    let mut most = 0;
    let mut lost = None;
    loop {
        tokio::select! {
            Some(Connection { id, socket, expected }) = connections.recv() => {
                let (owner, frames, limit) = (sender.clone(), frames.clone(), limit.clone());
                // Connections are told apart by the order of their coming, since a stream that was
                // dialled again is another one.
                let number = most as u16;
                most += 1;
                streams.spawn(async move {
                    let ended = send(number, socket, expected, &frames, limit.as_deref(), &*owner).await;
                    (number, id, ended)
                });
                sender.progress.set_streams(streams.len() as u32);
            }
            Some(Ok((number, id, ended))) = streams.join_next() => {
                let Err(cause) = ended else {
                    lost = None;
                    continue;
                };
                let again = sender.plans.stream_died(number);
                if let Some(reporter) = &reporter {
                    reporter.detail(&format!(
                        "stream {} was lost ({cause}); {again} chunks are sent again", id.stream
                    ));
                }
                lost = Some(cause);
            }
            // No stream is left, and no other will come.
            else => {
                if let Some(cause) = lost {
                    end_later(sender.ending.clone(), all_lost(&cause));
                }
                return;
            }
        }
    }
}

/// Receives on every connection that comes.
pub async fn receive_on(
    receiver: Arc<Receiver>,
    mut connections: Connections,
    reporter: Option<Arc<dyn Reporter>>,
) {
    let limits = FrameLimits::new(receiver.chunk_size as u32);
    let progress = receiver.progress.clone();
    let mut streams = JoinSet::new();
    let mut most: u16 = 0;
    let mut most_at_once = 0;
    let mut lost = None;
    loop {
        tokio::select! {
            Some(Connection { id, socket, .. }) = connections.recv() => {
                let number = most;
                most = most.wrapping_add(1);
                let token = CancellationToken::new();
                receiver.lock_streams().insert(number, token.clone());
                let (receiver, limits) = (receiver.clone(), limits);
                streams.spawn(async move {
                    let ended = tokio::select! {
                        ended = receive(&receiver, number, socket, &limits) => ended.err(),
                        () = token.cancelled() => Some(damaged()),
                    };
                    receiver.lock_streams().remove(&number);
                    (id, ended)
                });
                most_at_once = most_at_once.max(streams.len());
                progress.set_streams(most_at_once as u32);
            }
            Some(Ok((id, ended))) = streams.join_next() => {
                let cause = ended.unwrap_or_else(|| io::Error::from(UnexpectedEof).into());
                if receiver.acks.is_finished() || matches!(cause, RecvError::Ending) {
                    continue;
                }
                if let Some(reporter) = &reporter {
                    reporter.detail(&format!("stream {} was lost ({cause})", id.stream));
                }
                lost = Some(cause);
            }
            // No stream is left, and no other will come.
            else => {
                if let Some(cause) = lost.filter(|_| !receiver.acks.is_finished()) {
                    end_later(receiver.ending.clone(), all_lost(&cause));
                }
                return;
            }
        }
    }
}

async fn receive(
    receiver: &Receiver,
    stream: u16,
    socket: TcpStream,
    limits: &FrameLimits,
) -> Result<(), RecvError> {
    recv(socket, limits, &receiver.pool, |frame| {
        receiver
            .jobs
            .try_send(Job::Frame { stream, frame })
            .map_err(|_| ())
    })
    .await
}

fn damaged() -> RecvError {
    io::Error::other("what came was not sealed with this session's key").into()
}

/// Hands frames from one half to the other in this process.
pub async fn pass_on(
    sender: Arc<Sender>,
    frames: async_channel::Receiver<SealedChunk>,
    receiver: Arc<Receiver>,
) {
    while let Ok(frame) = frames.recv().await {
        sender.plans.taken(frame.header().chunk, 0);
        if receiver
            .jobs
            .try_send(Job::Frame { stream: 0, frame })
            .is_err()
        {
            return;
        }
    }
}

fn all_lost(cause: &dyn std::fmt::Display) -> Error {
    Error::new(
        Kind::Lost,
        Side::Here,
        format!("all data connections were lost: {cause}"),
    )
}

/// Ends the copy for what happened to its streams, unless control tells the reason first: where
/// the other end has ended, its last words may still be on their way through ssh.
pub fn end_later(ending: Arc<Ending>, cause: Error) {
    tokio::spawn(async move {
        tokio::time::sleep(LAST_WORDS).await;
        ending.end(cause);
    });
}
