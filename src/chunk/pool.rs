//! The buffer pool: a fixed number of buffers of one size, which bounds the memory of all chunks. A
//! thread or task that finds no free buffer waits.
//!
//! The pool reuses the buffer that was returned last. A slow copy therefore touches few buffers,
//! and a fast one finds them in cache. A buffer's memory is allocated on first use.

use std::sync::Arc;

use parking_lot::Mutex;

/// Room before the data for a frame's header and digest. A frame then leaves in one write, and the
/// data is aligned to a page.
pub const HEADROOM: usize = 4096;

/// Room after a chunk's bytes: the seal's tag, a pack's table, the worst-case growth by a codec.
pub const TAILROOM: usize = 64 << 10;

pub struct Buffer {
    /// HEADROOM, then data, then room.
    bytes: Box<[u8]>,
    /// Bytes of valid data.
    len: usize,
    home: Option<Arc<PoolShared>>,
    /// Memory lent by a pool, if the buffer uses the memory of several pool buffers.
    lent: Option<Lent>,
}

#[derive(Clone)]
pub struct Pool {
    shared: Arc<PoolShared>,
    permits: async_channel::Receiver<()>,
}

struct PoolShared {
    free: Mutex<Vec<Box<[u8]>>>,
    permit: async_channel::Sender<()>,
    capacity: usize,
}

/// Memory of a pool that is used for another purpose. Dropping this returns it.
pub struct Lent {
    shared: Arc<PoolShared>,
    slots: usize,
}

/// The pool was closed during the wait: the copy is ending.
#[derive(Debug, thiserror::Error)]
#[error("the buffer pool is closed")]
pub struct PoolClosed;

impl Pool {
    /// `slots` buffers with room for `chunk_size` bytes and their head- and tailroom.
    pub fn new(slots: usize, chunk_size: usize) -> Pool {
        let (permit, permits) = async_channel::bounded(slots);
        for _ in 0..slots {
            permit.try_send(()).expect("as many permits as room");
        }
        let shared = PoolShared {
            free: Mutex::new(Vec::with_capacity(slots)),
            permit,
            capacity: chunk_size + TAILROOM,
        };
        Pool {
            shared: Arc::new(shared),
            permits,
        }
    }

    /// Bytes of one slot.
    pub fn slot_size(chunk_size: usize) -> usize {
        HEADROOM + chunk_size + TAILROOM
    }

    /// Waits for a free buffer; for async tasks.
    pub async fn take(&self) -> Result<Buffer, PoolClosed> {
        self.permits.recv().await.map_err(|_| PoolClosed)?;
        Ok(self.get())
    }

    /// Waits for a free buffer; for threads.
    pub fn take_blocking(&self) -> Result<Buffer, PoolClosed> {
        self.permits.recv_blocking().map_err(|_| PoolClosed)?;
        Ok(self.get())
    }

    /// Wakes all waiting callers with [`PoolClosed`].
    pub fn close(&self) {
        self.permits.close();
    }

    pub fn free(&self) -> usize {
        self.permits.len()
    }

    /// Lends the memory of `slots` free buffers for another purpose, until the result is dropped.
    /// None if fewer buffers are free.
    pub fn lend(&self, slots: usize) -> Option<Lent> {
        let mut lent = Lent {
            shared: self.shared.clone(),
            slots: 0,
        };
        while lent.slots < slots {
            self.permits.try_recv().ok()?;
            lent.slots += 1;
        }
        let mut free = self.shared.free.lock();
        // Frees the memory of used buffers, which now belongs to the borrower.
        free.truncate(self.permits.len());
        drop(free);
        Some(lent)
    }

    fn get(&self) -> Buffer {
        let free = self.shared.free.lock().pop();
        // Zeroed memory comes from the system untouched, so this costs no page before it is used.
        let bytes =
            free.unwrap_or_else(|| vec![0; HEADROOM + self.shared.capacity].into_boxed_slice());
        Buffer {
            bytes,
            len: 0,
            home: Some(self.shared.clone()),
            lent: None,
        }
    }
}

impl Buffer {
    /// A buffer outside any pool, for a worker's spare and for tests.
    pub fn loose(chunk_size: usize) -> Buffer {
        Buffer {
            bytes: vec![0; HEADROOM + chunk_size + TAILROOM].into(),
            len: 0,
            home: None,
            lent: None,
        }
    }

    /// A buffer for `size` bytes in memory lent by a pool, which gets it back when the buffer is
    /// dropped.
    pub fn of_lent(size: usize, lent: Lent) -> Buffer {
        let mut buffer = Buffer::loose(size);
        buffer.lent = Some(lent);
        buffer
    }

    /// The most bytes of data that fit.
    pub fn capacity(&self) -> usize {
        self.bytes.len() - HEADROOM
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` must not exceed `capacity`.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "data of {len} bytes in a buffer of {}",
            self.capacity()
        );
        self.len = len;
    }

    pub fn data(&self) -> &[u8] {
        &self.bytes[HEADROOM..HEADROOM + self.len]
    }

    /// All the room for data, regardless of `len`.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[HEADROOM..]
    }

    /// `before` bytes of headroom, the data and `after` bytes of room after it, in one piece.
    pub fn around(&self, before: usize, after: usize) -> &[u8] {
        &self.bytes[HEADROOM - before..HEADROOM + self.len + after]
    }

    pub fn around_mut(&mut self, before: usize, after: usize) -> &mut [u8] {
        &mut self.bytes[HEADROOM - before..HEADROOM + self.len + after]
    }

    /// Exchanges the memory of two buffers, which then returns to the other's pool. A worker
    /// decodes into its spare buffer and swaps the result into the chunk's buffer.
    pub fn swap(&mut self, other: &mut Buffer) {
        debug_assert_eq!(self.bytes.len(), other.bytes.len());
        std::mem::swap(&mut self.bytes, &mut other.bytes);
        std::mem::swap(&mut self.len, &mut other.len);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        for _ in 0..self.slots {
            // Fails only when the pool is closed and nobody waits any more.
            let _ = self.shared.permit.try_send(());
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let bytes = std::mem::take(&mut self.bytes);
            home.free.lock().push(bytes);
            // Fails only when the pool is closed and nobody waits any more.
            let _ = home.permit.try_send(());
        }
    }
}
