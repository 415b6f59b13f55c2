//! A limit on the memory that queued messages or lines take together.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

/// Tasks and threads wait here for free bytes.
pub struct Room {
    all: usize,
    free: Mutex<usize>,
    for_threads: Condvar,
    for_tasks: Notify,
}

/// The bytes of one message; released on drop.
pub struct RoomShare {
    bytes: usize,
    room: Arc<Room>,
}

impl Room {
    pub fn new(all: usize) -> Arc<Room> {
        Arc::new(Room {
            all,
            free: Mutex::new(all),
            for_threads: Condvar::new(),
            for_tasks: Notify::new(),
        })
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> usize {
        self.all - *self.free.lock()
    }

    /// Never waits. None if too few bytes are free.
    pub fn try_take(self: &Arc<Room>, bytes: usize) -> Option<RoomShare> {
        self.take_from(&mut self.free.lock(), bytes)
    }

    pub async fn take(self: &Arc<Room>, bytes: usize) -> RoomShare {
        loop {
            let mut freed = std::pin::pin!(self.for_tasks.notified());
            // From here on no release can be missed.
            freed.as_mut().enable();
            if let Some(share) = self.try_take(bytes) {
                return share;
            }
            freed.await;
        }
    }

    /// For threads outside the runtime.
    pub fn take_blocking(self: &Arc<Room>, bytes: usize) -> RoomShare {
        let mut free = self.free.lock();
        loop {
            if let Some(share) = self.take_from(&mut free, bytes) {
                return share;
            }
            self.for_threads.wait(&mut free);
        }
    }

    /// A message larger than the limit takes all of it.
    fn take_from(self: &Arc<Room>, free: &mut usize, bytes: usize) -> Option<RoomShare> {
        let bytes = bytes.min(self.all);
        *free = free.checked_sub(bytes)?;
        Some(RoomShare {
            bytes,
            room: self.clone(),
        })
    }
}

impl Drop for RoomShare {
    fn drop(&mut self) {
        *self.room.free.lock() += self.bytes;
        self.room.for_threads.notify_all();
        self.room.for_tasks.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_no_room_gets_it_when_a_message_was_written() {
        let room = Room::new(100);
        let large = room.try_take(1000).expect("alone it fits");
        assert!(room.try_take(1).is_none());
        let (for_task, for_thread) = (room.clone(), room.clone());
        let task = tokio::spawn(async move { drop(for_task.take(60).await) });
        let thread = std::thread::spawn(move || drop(for_thread.take_blocking(60)));
        tokio::task::yield_now().await;
        drop(large);
        task.await.expect("no panic");
        let joined = tokio::task::spawn_blocking(|| thread.join()).await;
        joined.expect("no panic").expect("no panic");
        assert!(room.try_take(100).is_some());
    }
}
