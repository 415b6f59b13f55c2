//! Acknowledgements that the receiver has not sent yet. They are kept as sets that merge, so a
//! sender that is slow to read them costs neither memory nor waiting. The messages also carry how
//! this end spent its time.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::chunk::ranges::RangeSet;
use crate::control::Outgoing;
use crate::manifest::EntryId;
use crate::tuner::next_sample;
use crate::wire::message::{Ack, Busy, ByteRange, Message, NumberRanges};

/// Least time between two acknowledgements. News that arrives in between shares a message.
const INTERVAL: Duration = Duration::from_millis(2);

/// Most pending ranges of each kind. An honest sender waits for acknowledgements long before this.
/// A sender that reads none and continues to send loses some.
const FRAGMENTS_MAX: usize = 1 << 17;

/// Most ranges of arrived chunks. Chunks arrive roughly in order. Beyond this limit no repetition
/// is recognized.
const CAME_MAX: usize = 1 << 13;

#[derive(Default)]
pub struct Acks {
    pending: Mutex<Pending>,
    /// Chunks that have arrived, whole or damaged.
    came: Mutex<RangeSet>,
    news: Notify,
    finished: AtomicBool,
}

#[derive(Default)]
struct Pending {
    chunks: RangeSet,
    entries: RangeSet,
    failed: RangeSet,
    durable: RangeSet,
}

impl Acks {
    /// Notes that the chunk has arrived. Returns false if it is known to have arrived before.
    pub fn comes(&self, chunk: u64) -> bool {
        let mut came = self.came.lock();
        came.fragments() >= CAME_MAX || came.insert_one(chunk)
    }

    /// The chunk's bytes are verified and written.
    pub fn chunk(&self, chunk: u64) {
        self.add(|pending| &mut pending.chunks, chunk);
    }

    /// The entry is in place.
    pub fn entry(&self, entry: EntryId) {
        self.add(|pending| &mut pending.entries, entry);
    }

    /// The entry is durable. Call this before [`entry`](Acks::entry).
    pub fn durable(&self, entry: EntryId) {
        self.add(|pending| &mut pending.durable, entry);
    }

    /// The entry failed along with its directory, which a `Fault` has reported.
    pub fn failed(&self, entry: EntryId) {
        self.add(|pending| &mut pending.failed, entry);
    }

    fn add(&self, set: impl FnOnce(&mut Pending) -> &mut RangeSet, number: u64) {
        let mut pending = self.pending.lock();
        let set = set(&mut pending);
        if set.fragments() < FRAGMENTS_MAX {
            set.insert_one(number);
        }
        drop(pending);
        self.news.notify_one();
    }

    /// All pending acknowledgements as messages, in this order; None if there are none.
    pub fn take(&self) -> [Option<Message>; 2] {
        let mut pending = self.pending.lock();
        let durable = drain(&mut pending.durable);
        let ack = Ack {
            chunks: drain(&mut pending.chunks),
            entries: drain(&mut pending.entries),
            failed: drain(&mut pending.failed),
        };
        drop(pending);
        [
            (!durable.is_empty()).then_some(Message::Durable(durable)),
            (ack != Ack::default()).then_some(Message::Ack(ack)),
        ]
    }

    /// Everything is in place. The sender gets this message after the pending acknowledgements.
    pub fn finish(&self) {
        self.finished.store(true, Release);
        self.news.notify_one();
    }

    pub fn is_finished(&self) -> bool {
        self.finished.load(Acquire)
    }

    /// Sends messages until everything is in place or the connection closes. Calls `busy` as often
    /// as the sender's tuner takes a sample, and at the end.
    pub async fn run(&self, control: Outgoing, busy: impl Fn() -> Busy) {
        let (began, mut due) = (Instant::now(), Duration::ZERO);
        loop {
            self.news.notified().await;
            let finished = self.finished.load(Acquire);
            for message in self.take().into_iter().flatten() {
                if control.send(message).await.is_err() {
                    return;
                }
            }
            let now = began.elapsed();
            if finished || now >= due {
                due = now + next_sample(now);
                let _ = control.send(Message::Busy(busy())).await;
            }
            if finished {
                // Fails only if the connection is lost, which its reader reports.
                let _ = control.send(Message::Done(())).await;
                return;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

fn drain(set: &mut RangeSet) -> NumberRanges {
    let range = || set.pop_first();
    let span = |Range { start, end }| ByteRange { start, end };
    std::iter::from_fn(range).map(span).collect()
}
