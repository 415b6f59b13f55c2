//! The rate at which all streams together may send. It may be changed while they do.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Bursts are a twentieth of a second, but at least a packet.
const BURSTS_PER_S: u32 = 20;
const BURST_MIN: u32 = 1448;

/// No limit at first.
#[derive(Default)]
pub struct Limit(Mutex<Option<Arc<Rate>>>);

struct Rate {
    limiter: DefaultDirectRateLimiter,
    burst: NonZeroU32,
}

impl Limit {
    /// Sets the rate in bytes a second, up to 4 GiB a second; more is no limit, and so is None.
    /// What waits for the former rate waits no longer than a burst of it takes.
    pub fn set(&self, rate: Option<u64>) {
        *self.lock() = rate.and_then(Rate::new).map(Arc::new);
    }

    /// Waits until bytes may be sent; gives how many of `wanted`.
    pub async fn admit(&self, wanted: usize) -> usize {
        let rate = self.lock().clone();
        match rate {
            Some(rate) => rate.admit(wanted).await,
            None => wanted,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Rate>>> {
        self.0.lock().expect("no panic while held")
    }
}

impl Rate {
    fn new(rate: u64) -> Option<Rate> {
        let rate = NonZeroU32::new(u32::try_from(rate).ok()?.max(1))?;
        let burst = NonZeroU32::new((rate.get() / BURSTS_PER_S).max(BURST_MIN))?;
        let limiter = RateLimiter::direct(Quota::per_second(rate).allow_burst(burst));
        Some(Rate { limiter, burst })
    }

    async fn admit(&self, wanted: usize) -> usize {
        let wanted = u32::try_from(wanted)
            .unwrap_or(u32::MAX)
            .min(self.burst.get());
        let Some(admitted) = NonZeroU32::new(wanted) else {
            return 0;
        };
        self.limiter
            .until_n_ready(admitted)
            .await
            .expect("no more than a burst");
        wanted as usize
    }
}
