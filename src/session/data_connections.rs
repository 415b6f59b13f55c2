//! Data connections of one end. Each has a task that sends from the shared queue or receives into
//! the workers' queue. The loss of one costs speed only. `heartbeat` ends the session if
//! none works for too long.

use std::io::ErrorKind::UnexpectedEof;
use std::io::{self};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::chunk::ChunkKind;
use crate::error::{Error, reason_of};
use crate::pipeline::Shutdown;
use crate::pipeline::receive::Receiver;
use crate::pipeline::send::Sender;
use crate::pipeline::send::scheduler::Taken;
use crate::report::Reporter;
use crate::seal::Unsealed;
use crate::transport::connection::duplex::Duplex;
use crate::transport::connection::stats::ConnectionStats;
use crate::transport::connection::{RecvError, Sent, Supply, recv, send};
use crate::transport::connections::{ConnectionSet, Registration};
use crate::transport::frames::{Frame, Frames};
use crate::transport::rate_limit::RateLimiter;
use crate::transport::routes::{Connection, ConnectionName, Fate, Route};
use crate::wire::frame::{FrameHeader, FrameLimits};

/// How long the last messages of an end whose connections have closed may be in transit.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A connection that carried this many bytes was useful. This is more than the bytes sent before
/// it turns out that nobody is there, and less than a chunk of any default size.
const CARRIED_MIN: u64 = 256 << 10;

/// How often the need for the in-band connection is checked.
const GATE_LOOK: Duration = Duration::from_millis(50);

/// Proven connections, passed from a route to an end.
pub type Connections = mpsc::Receiver<Connection>;

/// The pace at which an end sends.
#[derive(Clone, Default)]
pub struct SendPace {
    /// For all connections together.
    pub limit: Arc<RateLimiter>,
}

impl Sent for Sender {
    fn taken(&self, stream: u16, header: &FrameHeader) -> bool {
        let taken = self.scheduler.taken(header.chunk, stream);
        if taken == Taken::Settled {
            // Workers may wait for the room that this frame took.
            self.chunks.encoder_control.taken(0, 0, self.frames.len());
            return false;
        }
        let wire = u64::from(header.wire_len) + crate::wire::frame::HEADER_LEN as u64;
        // A digest says nothing about how well content shrinks.
        let (raw, framed) = match header.kind {
            ChunkKind::Range | ChunkKind::Pack => (u64::from(header.raw_len), wire),
            ChunkKind::Patch => (wire, wire),
            ChunkKind::Zeros => (0, wire),
            ChunkKind::Digest | ChunkKind::Anchors => (0, 0),
        };
        let waiting = self.frames.len();
        self.chunks.encoder_control.taken(raw, framed, waiting);
        let content = match header.kind {
            ChunkKind::Digest | ChunkKind::Anchors => 0,
            // The rest of its range is not in the frame.
            ChunkKind::Patch => wire,
            ChunkKind::Range | ChunkKind::Pack | ChunkKind::Zeros => u64::from(header.raw_len),
        };
        self.context
            .progress
            .add_frame(header.codec.number(), content, wire);
        if taken == Taken::Again {
            self.context.progress.add_sent_again(wire);
        }
        true
    }
}

/// Where the end of a connection is reported.
#[derive(Clone)]
struct LossReport {
    connection_set: Arc<ConnectionSet>,
    reporter: Option<Arc<dyn Reporter>>,
}

/// A connection that has ended, and why. `is_whole` is false if its data was invalid; it was then
/// not useful.
struct LostConnection {
    registration: Registration,
    fate: Option<tokio::sync::oneshot::Sender<Fate>>,
    cause: String,
    is_whole: bool,
}

impl LossReport {
    /// Reports a lost connection to the connection set, the dialler and, if there is a `line`, the
    /// user.
    fn lost(&self, connection: LostConnection, line: Option<&str>) {
        let LostConnection {
            registration,
            fate,
            cause,
            is_whole,
        } = connection;
        self.connection_set.set_cause(cause.clone());
        if let (Some(reporter), Some(line)) = (&self.reporter, line) {
            reporter.detail(line);
        }
        if let Some(fate) = fate {
            // This fails if nobody dials any more.
            let _ = fate.send(Fate {
                was_proven: registration.stats.is_proven(),
                carried: is_whole && registration.stats.bytes() >= CARRIED_MIN,
                cause,
            });
        }
    }
}

/// Waits for the next connection and adds it to the set. None when the session is over.
async fn next_connection(
    connections: &mut Connections,
    connection_set: &Arc<ConnectionSet>,
    tasks: &mut JoinSet<()>,
) -> Option<(Connection, Registration)> {
    loop {
        let connection = tokio::select! {
            Some(connection) = connections.recv() => connection,
            Some(_) = tasks.join_next() => continue,
            () = connection_set.closed() => return None,
        };
        if let Some(registration) = connection_set.join(connection.id) {
            return Some((connection, registration));
        }
    }
}

/// Sends on every connection that arrives, until the session is over.
pub async fn send_on(
    sender: Arc<Sender>,
    frames: Frames,
    mut connections: Connections,
    connection_set: Arc<ConnectionSet>,
    pace: SendPace,
    reporter: Option<Arc<dyn Reporter>>,
) {
    let report = LossReport {
        connection_set: connection_set.clone(),
        reporter,
    };
    // All tasks end with this function.
    let mut streams = JoinSet::new();
    while let Some((connection, registration)) =
        next_connection(&mut connections, &connection_set, &mut streams).await
    {
        sender.context.progress.set_streams(connection_set.most());
        let gate = (Route::of(connection.id.stream) == Some(Route::Inband)).then(|| {
            let (gate, is_open) = watch::channel(false);
            streams.spawn(mind(gate, connection_set.clone()));
            is_open
        });
        let supply = Supply {
            frames: frames.clone(),
            gate,
        };
        let (sender, limit) = (sender.clone(), pace.limit.clone());
        streams.spawn(send_frames(
            sender,
            connection,
            registration,
            supply,
            limit,
            report.clone(),
        ));
    }
}

/// Sends on one connection until it ends.
async fn send_frames(
    sender: Arc<Sender>,
    connection: Connection,
    registration: Registration,
    supply: Supply,
    limit: Arc<RateLimiter>,
    report: LossReport,
) {
    let Connection {
        id,
        link,
        expected,
        fate,
    } = connection;
    let (number, stats) = (registration.number, &registration.stats);
    let sent = send(number, link, expected, supply, &limit, stats, &*sender);
    let token = registration.token();
    let ended = tokio::select! {
        ended = sent => ended,
        () = token.cancelled() => Err(why(&registration)),
    };
    let Err(cause) = ended else { return };
    let cause = reason_of(&cause);
    let again = match sender.scheduler.connection_lost(number) {
        1 => "1 chunk is".to_owned(),
        again => format!("{again} chunks are"),
    };
    let stream = ConnectionName(id.stream);
    let line = format!("stream {stream} was lost ({cause}); {again} sent again");
    let lost = LostConnection {
        registration,
        fate,
        cause,
        is_whole: true,
    };
    // At the end of a copy the receiver closes all of them.
    let is_news = !sender.scheduler.has_nothing_to_carry();
    report.lost(lost, is_news.then_some(&line));
}

/// Opens the gate of the in-band connection while no other connection is sound.
async fn mind(gate: watch::Sender<bool>, connection_set: Arc<ConnectionSet>) {
    loop {
        gate.send_replace(!connection_set.has_sound());
        tokio::time::sleep(GATE_LOOK).await;
    }
}

/// Receives on every connection that arrives, until the session is over.
pub async fn receive_on(
    receiver: Arc<Receiver>,
    mut connections: Connections,
    connection_set: Arc<ConnectionSet>,
    reporter: Option<Arc<dyn Reporter>>,
) {
    let limits = FrameLimits::new(receiver.context.chunk_size as u32).with_large();
    let report = LossReport {
        connection_set: connection_set.clone(),
        reporter,
    };
    // All tasks end with this function.
    let mut streams = JoinSet::new();
    while let Some((connection, registration)) =
        next_connection(&mut connections, &connection_set, &mut streams).await
    {
        receiver.context.progress.set_streams(connection_set.most());
        registration.stats.set_proven();
        let receiver = receiver.clone();
        let report = report.clone();
        streams.spawn(async move {
            receive_frames(&receiver, connection, registration, &limits, &report).await;
        });
    }
}

/// Receives on one connection until it ends.
async fn receive_frames(
    receiver: &Receiver,
    connection: Connection,
    registration: Registration,
    limits: &FrameLimits,
    report: &LossReport,
) {
    let Connection { id, link, fate, .. } = connection;
    let token = registration.token();
    receiver.add_connection(registration.number, token.clone());
    let (cause, is_whole) = tokio::select! {
        ended = receive(receiver, &registration, link, limits) => {
            let is_whole = !matches!(ended, Err(RecvError::BadFrame(_)));
            (reason(ended), is_whole)
        }
        () = token.cancelled() => (why(&registration), registration.why().is_some()),
    };
    receiver.remove_connection(registration.number);
    if receiver.acks().is_finished() {
        return;
    }
    let cause = reason_of(&cause);
    let line = format!("stream {} was lost ({cause})", ConnectionName(id.stream));
    let lost = LostConnection {
        registration,
        fate,
        cause,
        is_whole,
    };
    report.lost(lost, Some(&line));
}

/// Why a connection was ended from outside: it is dead, or its data was refused.
fn why(registration: &Registration) -> io::Error {
    match registration.why() {
        Some(dead) => io::Error::other(dead),
        None => io::Error::other(Unsealed),
    }
}

fn reason(ended: Result<(), RecvError>) -> io::Error {
    match ended {
        Ok(()) => UnexpectedEof.into(),
        Err(RecvError::Io(error)) => error,
        Err(other) => io::Error::other(other.to_string()),
    }
}

async fn receive(
    receiver: &Receiver,
    registration: &Registration,
    link: Duplex,
    limits: &FrameLimits,
) -> Result<(), RecvError> {
    let (stream, stats): (u16, &ConnectionStats) = (registration.number, &registration.stats);
    recv(link, limits, &receiver.context.pool, stats, |frame| {
        receiver.take_frame(stream, frame)
    })
    .await
}

/// Passes frames from one end to the other within this process, at most at the limit's rate.
pub async fn pass_on(
    sender: Arc<Sender>,
    frames: Frames,
    receiver: Arc<Receiver>,
    limit: Arc<RateLimiter>,
) {
    while let Some(frame) = frames.take().await {
        sender.scheduler.taken(frame.header().chunk, 0);
        let len = u64::from(frame.header().raw_len);
        sender.chunks.encoder_control.taken(len, len, frames.len());
        let mut wanted = frame.bytes().len();
        while wanted > 0 {
            wanted -= limit.admit(wanted).await;
        }
        // No connection, no loss: a local copy never keeps frames.
        let Frame::Own(frame) = frame else {
            return;
        };
        if !receiver.take_frame(0, frame) {
            return;
        }
    }
}

/// Ends the copy because of its connections, unless control reports the reason first: if the other
/// end has ended, its last messages may still be in transit through ssh.
pub fn end_later(shutdown: Arc<Shutdown>, cause: Error) {
    tokio::spawn(async move {
        tokio::time::sleep(LAST_WORDS).await;
        shutdown.end(cause);
    });
}
