//! The sender's messages that wait for the entry writer.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::Notify;

use crate::wire::message::Message;

/// Bytes of messages that may wait; beyond that, control is not read. A sender announces half of it
/// (`ANNOUNCED_BYTES_MAX`) before entries are in place; one of version 0.1 may announce 140 MB of
/// long symbolic links.
const BYTES_MAX: usize = 16 << 20;

pub struct Messages {
    put: async_channel::Sender<Message>,
    take: async_channel::Receiver<Message>,
    /// Bytes that wait or are being handled.
    bytes: AtomicUsize,
    /// Notified when a message was handled.
    handled: Notify,
}

impl Default for Messages {
    fn default() -> Messages {
        let (put, take) = async_channel::unbounded();
        Messages {
            put,
            take,
            bytes: AtomicUsize::new(0),
            handled: Notify::new(),
        }
    }
}

impl Messages {
    /// Never waits. The caller waits for [`room`](Messages::room) first.
    pub fn add(&self, message: Message) {
        self.bytes.fetch_add(message.weight(), Relaxed);
        // The queue is closed only when the copy ends.
        let _ = self.put.try_send(message);
    }

    pub fn is_full(&self) -> bool {
        self.bytes.load(Relaxed) > BYTES_MAX
    }

    /// Waits until there is room. This ends when the disk allows: the entry writer needs nothing
    /// from control.
    pub async fn room(&self) {
        while self.is_full() {
            self.handled.notified().await;
        }
    }

    /// Waits until all messages were handled.
    pub async fn all_handled(&self) {
        while self.bytes.load(Relaxed) > 0 {
            self.handled.notified().await;
        }
    }

    /// Hands each message to `handle`, until the queue is closed.
    pub fn take_all(&self, mut handle: impl FnMut(Message)) {
        while let Ok(message) = self.take.recv_blocking() {
            let weight = message.weight();
            handle(message);
            self.bytes.fetch_sub(weight, Relaxed);
            self.handled.notify_one();
        }
    }

    pub fn close(&self) {
        self.put.close();
    }
}
