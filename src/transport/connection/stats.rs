//! Counters of one connection, which its task updates and the connection set reads, and the orders
//! for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use tokio::sync::watch;

use super::kernel::{self, KernelFacts};
use crate::locks::{OrderedMutex, place};
use crate::transport::idle_time::IdleTime;

pub struct ConnectionStats {
    bytes: AtomicU64,
    taken: AtomicU64,
    waits: AtomicBool,
    has_waited: AtomicBool,
    is_proven: AtomicBool,
    unsent_max: AtomicU32,
    kernel: OrderedMutex<Option<KernelFacts>, { place::KERNEL_FACTS }>,
    orders: watch::Sender<Orders>,
    idle_time: Arc<IdleTime>,
}

/// Orders for a sending connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// There are more connections than are useful: this one stays open but takes no frames.
    pub is_parked: bool,
    /// The last frames of the copy are left to faster connections.
    pub is_yielding: bool,
    /// None: the default of its socket.
    pub congestion: Option<Arc<str>>,
    /// The most bytes a second; None: there never was a limit.
    pub pace: Option<u64>,
    /// The most bytes that the kernel and the link may hold for it; None: no limit.
    pub held_max: Option<u64>,
    /// Incremented to make the task read the kernel's facts.
    pub looks: u64,
}

/// While it exists, the connection counts as waiting.
pub struct WaitMark<'a>(&'a ConnectionStats);

/// While it exists, the connection does not count in the idle time.
pub struct Parked<'a>(&'a ConnectionStats);

impl Default for ConnectionStats {
    fn default() -> ConnectionStats {
        ConnectionStats::new(Arc::default(), Orders::default())
    }
}

impl ConnectionStats {
    pub fn new(idle_time: Arc<IdleTime>, orders: Orders) -> ConnectionStats {
        idle_time.join();
        ConnectionStats {
            bytes: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            waits: AtomicBool::new(false),
            has_waited: AtomicBool::new(false),
            is_proven: AtomicBool::new(false),
            unsent_max: AtomicU32::new(kernel::UNSENT_MIN),
            kernel: OrderedMutex::default(),
            orders: watch::Sender::new(orders),
            idle_time,
        }
    }

    /// Adds bytes of frames that were sent or received, including those of unfinished frames.
    pub fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// The connection took a frame of this many bytes.
    pub fn take(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Relaxed);
    }

    /// Unwritten bytes of the frame that is being written.
    pub fn rest(&self) -> u64 {
        self.taken.load(Relaxed).saturating_sub(self.bytes())
    }

    /// A receiving connection waits for a buffer, a sending one for a frame.
    pub fn start_waiting(&self) -> WaitMark<'_> {
        self.waits.store(true, Relaxed);
        self.has_waited.store(true, Relaxed);
        self.idle_time.begin_to_wait();
        WaitMark(self)
    }

    pub fn park(&self) -> Parked<'_> {
        self.idle_time.leave();
        Parked(self)
    }

    /// True if the connection waits, or has waited since the last call.
    pub fn take_waits(&self) -> bool {
        let has_waited = self.has_waited.swap(false, Relaxed);
        has_waited || self.waits.load(Relaxed)
    }

    /// True if the connection waits now: for a buffer if it receives, for a frame if it sends.
    pub fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// The other end has proved that it knows the session's secret.
    pub fn set_proven(&self) {
        self.is_proven.store(true, Relaxed);
    }

    pub fn is_proven(&self) -> bool {
        self.is_proven.load(Relaxed)
    }

    pub fn set_kernel(&self, facts: Option<KernelFacts>) {
        *self.kernel.lock() = facts;
    }

    pub fn kernel(&self) -> Option<KernelFacts> {
        *self.kernel.lock()
    }

    /// The bound on unsent bytes in the socket's buffer.
    pub fn unsent_max(&self) -> u32 {
        self.unsent_max.load(Relaxed)
    }

    /// The most bytes to write at once. The kernel takes a whole write, up to 64 KiB, if it holds
    /// less than the bound; a new or slow connection would then hold many times the lowest bound.
    pub fn write_max(&self) -> usize {
        match self.unsent_max() {
            kernel::UNSENT_MIN => kernel::UNSENT_MIN as usize,
            _ => usize::MAX,
        }
    }

    pub fn set_unsent_max(&self, bytes: u32) {
        self.unsent_max.store(bytes, Relaxed);
    }

    /// Changes the orders, and wakes the task if they differ.
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

impl Drop for ConnectionStats {
    fn drop(&mut self) {
        self.idle_time.leave();
    }
}

impl Drop for WaitMark<'_> {
    fn drop(&mut self) {
        self.0.waits.store(false, Relaxed);
        self.0.idle_time.end_waiting();
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.idle_time.join();
    }
}
