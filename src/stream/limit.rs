//! The rate at which all streams together may send.

use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Bursts are a twentieth of a second, but at least a packet.
const BURSTS_PER_S: u32 = 20;
const BURST_MIN: u32 = 1448;

pub struct Limit {
    limiter: DefaultDirectRateLimiter,
    burst: NonZeroU32,
}

impl Limit {
    /// `rate` in bytes a second, up to 4 GiB a second; more is no limit.
    pub fn new(rate: u64) -> Option<Limit> {
        let rate = NonZeroU32::new(u32::try_from(rate).ok()?.max(1))?;
        let burst = NonZeroU32::new((rate.get() / BURSTS_PER_S).max(BURST_MIN))?;
        let limiter = RateLimiter::direct(Quota::per_second(rate).allow_burst(burst));
        Some(Limit { limiter, burst })
    }

    /// Waits until bytes may be sent; gives how many of `wanted`.
    pub async fn admit(&self, wanted: usize) -> usize {
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
