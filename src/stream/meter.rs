//! What a stream's own task counts while it runs, for who watches over it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::stream::kernel::KernelFacts;

#[derive(Default)]
pub struct Meter {
    bytes: AtomicU64,
    waits: AtomicBool,
    has_waited: AtomicBool,
    is_proven: AtomicBool,
    kernel: Mutex<Option<KernelFacts>>,
}

/// While it lives, the stream's reader waits for a buffer.
pub struct Waiting<'a>(&'a Meter);

impl Meter {
    /// Bytes of frames that went through, those of unfinished frames too.
    pub fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub fn start_waiting(&self) -> Waiting<'_> {
        self.waits.store(true, Relaxed);
        self.has_waited.store(true, Relaxed);
        Waiting(self)
    }

    /// True if the reader waits for a buffer, or did since this was last asked.
    pub fn take_waits(&self) -> bool {
        let has_waited = self.has_waited.swap(false, Relaxed);
        has_waited || self.waits.load(Relaxed)
    }

    /// The reader waits for a buffer now.
    pub fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// The other end has shown that it knows the session's secret.
    pub fn set_proven(&self) {
        self.is_proven.store(true, Relaxed);
    }

    pub fn is_proven(&self) -> bool {
        self.is_proven.load(Relaxed)
    }

    pub fn set_kernel(&self, facts: Option<KernelFacts>) {
        *self.kernel.lock().expect("no panic while held") = facts;
    }

    pub fn kernel(&self) -> Option<KernelFacts> {
        *self.kernel.lock().expect("no panic while held")
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waits.store(false, Relaxed);
    }
}
