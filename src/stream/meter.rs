//! What a stream's own task counts while it runs, for who watches over it, and what it is told.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::stream::crowd::Crowd;
use crate::stream::kernel::KernelFacts;

pub struct Meter {
    bytes: AtomicU64,
    taken: AtomicU64,
    waits: AtomicBool,
    has_waited: AtomicBool,
    is_proven: AtomicBool,
    kernel: Mutex<Option<KernelFacts>>,
    orders: watch::Sender<Orders>,
    crowd: Arc<Crowd>,
}

/// What a stream that sends is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// There are more streams than are of use: it takes no frame, and stays.
    pub is_parked: bool,
    /// None: what its socket came with.
    pub congestion: Option<Arc<str>>,
    /// Bytes a second at most; None: there never was a limit.
    pub pace: Option<u64>,
    /// Goes up when the kernel is to be asked what it knows.
    pub looks: u64,
}

/// While it lives, the stream waits.
pub struct Waiting<'a>(&'a Meter);

/// While it lives, the stream does not count among those that there are.
pub struct Parked<'a>(&'a Meter);

impl Default for Meter {
    fn default() -> Meter {
        Meter::new(Arc::default(), Orders::default())
    }
}

impl Meter {
    pub fn new(crowd: Arc<Crowd>, orders: Orders) -> Meter {
        crowd.join();
        Meter {
            bytes: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            waits: AtomicBool::new(false),
            has_waited: AtomicBool::new(false),
            is_proven: AtomicBool::new(false),
            kernel: Mutex::default(),
            orders: watch::Sender::new(orders),
            crowd,
        }
    }

    /// Bytes of frames that went through, those of unfinished frames too.
    pub fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// The stream took a frame of so many bytes.
    pub fn take(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes of the frame that is being written, as far as they have not gone through.
    pub fn rest(&self) -> u64 {
        self.taken.load(Relaxed).saturating_sub(self.bytes())
    }

    /// The reader waits for a buffer, the writer for a frame.
    pub fn start_waiting(&self) -> Waiting<'_> {
        self.waits.store(true, Relaxed);
        self.has_waited.store(true, Relaxed);
        self.crowd.begin_to_wait();
        Waiting(self)
    }

    pub fn park(&self) -> Parked<'_> {
        self.crowd.leave();
        Parked(self)
    }

    /// True if the stream waits, or did since this was last asked.
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

    /// Changes what the stream is told, and wakes it if that is something else.
    pub fn order(&self, change: impl FnOnce(&mut Orders)) {
        self.orders.send_if_modified(|orders| {
            let before = orders.clone();
            change(orders);
            *orders != before
        });
    }

    pub fn is_parked(&self) -> bool {
        self.orders.borrow().is_parked
    }

    pub fn orders(&self) -> watch::Receiver<Orders> {
        self.orders.subscribe()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.crowd.leave();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waits.store(false, Relaxed);
        self.0.crowd.end_waiting();
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.crowd.join();
    }
}
