//! A data connection inside the control connection, used until another one works. Its frames are
//! sent in pieces, each a `Data` message, limited by the `Credit` that the receiver has granted.
//!
//! Control must not wait for data. So a piece is small and queues behind every other message, and
//! the window holds about a second of data. The reader of control only queues the pieces. It
//! detects a peer that exceeds its credit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};

use crate::control::Outgoing;
use crate::transport::connection::duplex::{Duplex, Piped};
use crate::wire::message::{DATA_MAX, Data, Message};

/// Bounds of the window, in bytes: what a link of 1 MB/s carries in a quarter of a second, and
/// twice ssh's own window.
const WINDOW_MIN: u64 = 256 << 10;
const WINDOW_MAX: u64 = 4 << 20;

/// The window holds twice the bytes received in this time.
const SPAN: Duration = Duration::from_millis(500);

/// The peer sent more than its credit allows.
#[derive(Debug, thiserror::Error)]
#[error("more data than its credit allows")]
pub struct CreditExceeded;

/// Control of the sending end.
pub struct Sending {
    /// Bytes of credit granted so far.
    credit: watch::Sender<u64>,
}

/// Starts a connection that sends as far as its credit allows.
pub fn sending(control: Outgoing) -> (Sending, Duplex) {
    let (near, far) = tokio::io::duplex(DATA_MAX);
    let (credit, given) = watch::channel(0);
    tokio::spawn(pump(far, control, given));
    (Sending { credit }, linked(near))
}

impl Sending {
    /// Takes the receiver's `Credit`.
    pub fn credit(&self, more: u64) {
        self.credit
            .send_modify(|credit| *credit = credit.saturating_add(more));
    }
}

fn linked(end: DuplexStream) -> Duplex {
    let (reader, writer) = tokio::io::split(end);
    Duplex::Piped(Piped::new(reader, writer, ()))
}

async fn pump(mut from: DuplexStream, control: Outgoing, mut given: watch::Receiver<u64>) {
    let mut sent = 0;
    loop {
        let more = given.wait_for(|credit| *credit > sent).await;
        let Ok(credit) = more.map(|credit| *credit) else {
            return until_unused(from).await;
        };
        let room = usize::try_from(credit - sent).unwrap_or(usize::MAX);
        let mut bytes = vec![0; room.min(DATA_MAX)];
        let Ok(read @ 1..) = from.read(&mut bytes).await else {
            return;
        };
        bytes.truncate(read);
        sent += read as u64;
        if control
            .send_data(Message::Data(Data { bytes }))
            .await
            .is_err()
        {
            return;
        }
    }
}

/// Control of the receiving end.
pub struct Receiving {
    /// Bounded by the granted credit.
    pieces: mpsc::UnboundedSender<Vec<u8>>,
    owed: Arc<Mutex<u64>>,
}

/// Starts a connection that receives, and grants credit for it.
pub fn receiving(control: Outgoing) -> (Receiving, Duplex) {
    let (near, far) = tokio::io::duplex(DATA_MAX);
    let (pieces, queue) = mpsc::unbounded_channel();
    let owed = Arc::new(Mutex::new(0));
    tokio::spawn(reader(queue, far, control, owed.clone()));
    (Receiving { pieces, owed }, linked(near))
}

impl Receiving {
    /// Takes the sender's `Data`; never waits.
    ///
    /// # Errors
    /// If the data exceeds the granted credit.
    pub fn take(&self, bytes: Vec<u8>) -> Result<(), CreditExceeded> {
        let mut owed = self.owed.lock();
        let len = bytes.len() as u64;
        if bytes.is_empty() || bytes.len() > DATA_MAX || len > *owed {
            return Err(CreditExceeded);
        }
        *owed -= len;
        // This fails only if the connection has ended; its task reports that.
        let _ = self.pieces.send(bytes);
        Ok(())
    }
}

async fn reader(
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    mut to: DuplexStream,
    control: Outgoing,
    owed: Arc<Mutex<u64>>,
) {
    let mut window = CreditWindow::new(Instant::now());
    let mut credit = window.first();
    loop {
        if credit > 0 {
            *owed.lock() += credit;
            if control.send(Message::Credit(credit)).await.is_err() {
                return;
            }
        }
        let Some(bytes) = queue.recv().await else {
            return until_unused(to).await;
        };
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        credit = window.taken(bytes.len() as u64, Instant::now());
    }
}

/// Waits until the other half is dropped. The session is over and its owner learns that elsewhere,
/// so the connection must not look lost.
async fn until_unused(mut end: DuplexStream) {
    let mut bytes = [0; 1024];
    while matches!(end.read(&mut bytes).await, Ok(1..)) {}
}

/// The number of bytes that may be in flight. Pure: time is passed in.
struct CreditWindow {
    size: u64,
    /// Bytes taken since credit was last granted.
    ungiven: u64,
    /// Bytes taken since the span began.
    in_span: u64,
    since: Instant,
}

impl CreditWindow {
    fn new(now: Instant) -> CreditWindow {
        CreditWindow {
            size: WINDOW_MIN,
            ungiven: 0,
            in_span: 0,
            since: now,
        }
    }

    /// The credit granted before any data arrives.
    fn first(&self) -> u64 {
        self.size
    }

    /// Counts taken bytes; returns the credit to grant.
    fn taken(&mut self, bytes: u64, now: Instant) -> u64 {
        self.ungiven += bytes;
        self.in_span += bytes;
        let mut more = 0;
        if now.saturating_duration_since(self.since) >= SPAN {
            // The window only grows: granted credit cannot be taken back.
            let wanted = (2 * self.in_span).clamp(WINDOW_MIN, WINDOW_MAX);
            more = wanted.saturating_sub(self.size);
            self.size += more;
            (self.in_span, self.since) = (0, now);
        }
        if more == 0 && self.ungiven < self.size / 4 {
            return 0;
        }
        more + std::mem::take(&mut self.ungiven)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_what_the_link_carries_and_credit_covers_what_was_taken() {
        let start = Instant::now();
        let mut window = CreditWindow::new(start);
        let mut given = window.first();
        let mut taken = 0;
        for tick in 1..=400u32 {
            let piece = (given - taken).min(DATA_MAX as u64);
            taken += piece;
            given += window.taken(piece, start + Duration::from_millis(10) * tick);
            assert!(given - taken <= WINDOW_MAX, "{given} of {taken}");
            assert!(given > taken);
        }
        // 6.5 MB/s: twice the bytes of half a second are more than `WINDOW_MAX`.
        assert_eq!(window.size, WINDOW_MAX);
        let mut slow = CreditWindow::new(start);
        for second in 1..100 {
            slow.taken(50_000, start + Duration::from_secs(second));
        }
        assert_eq!(slow.size, WINDOW_MIN);
    }

    #[tokio::test]
    async fn bytes_go_through_within_credit_and_more_is_a_breach() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (to_sender, _writer) = Outgoing::start(near);
        let (to_receiver, _other) = Outgoing::start(far);
        drop(to_sender);
        let (receiving, _link) = receiving(to_receiver);
        assert!(receiving.take(vec![0; 100]).is_err(), "before any credit");
        let first = async {
            while receiving.take(vec![0; DATA_MAX]).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let taken = tokio::time::timeout(Duration::from_secs(20), first).await;
        taken.expect("credit");
        for _ in 1..WINDOW_MIN / DATA_MAX as u64 {
            receiving.take(vec![0; DATA_MAX]).unwrap();
        }
        assert!(receiving.take(vec![0; 1]).is_err());
        assert!(receiving.take(Vec::new()).is_err());
    }
}
