//! A limit on the rate at which all connections together send. It may change during the copy.

use std::num::NonZeroU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// A burst is the bytes of a twentieth of a second, but at least a few packets.
const BURSTS_PER_S: u64 = 20;
const BURST_MIN: u64 = PIECES * 1448;

/// A burst is admitted in this many pieces. A caller that asked for a whole burst at once could
/// not catch up after a late wakeup; that cost 3 % of the rate.
const PIECES: u64 = 4;

/// Bytes are counted in units, at most this many a second. The limiter rounds the time of a unit
/// to whole nanoseconds; with units of one byte, 60 MB/s would be wrong by 4 %.
const UNITS_PER_S: u64 = 2_000_000;

/// A rate limit; initially none.
#[derive(Default)]
pub struct Limit {
    rate: Mutex<Option<Arc<Rate>>>,
    admitted_bytes: AtomicU64,
}

struct Rate {
    bytes_per_s: u64,
    limiter: DefaultDirectRateLimiter,
    /// Bytes in a unit.
    unit: u64,
    /// Bytes that are admitted at once.
    piece: u64,
}

impl Limit {
    /// Sets the rate in bytes a second; None is no limit. A write that already waits finishes its
    /// wait at the old rate, for one piece.
    pub fn set(&self, rate: Option<u64>) {
        let mut current = self.lock();
        // Several copies share the limit and set the same rate: a new limiter would allow another
        // burst.
        if current.as_ref().map(|rate| rate.bytes_per_s) != rate {
            *current = rate.and_then(Rate::new).map(Arc::new);
        }
    }

    /// The current rate, in bytes a second.
    pub fn rate(&self) -> Option<u64> {
        self.lock().as_ref().map(|rate| rate.bytes_per_s)
    }

    /// Bytes admitted so far, by all copies that share this limit.
    pub fn admitted_bytes(&self) -> u64 {
        self.admitted_bytes.load(Relaxed)
    }

    /// Waits until some of `wanted` bytes may be sent; returns how many.
    pub async fn admit(&self, wanted: usize) -> usize {
        let rate = self.lock().clone();
        let admitted = match rate {
            Some(rate) => rate.admit(wanted).await,
            None => wanted,
        };
        self.admitted_bytes.fetch_add(admitted as u64, Relaxed);
        admitted
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Rate>>> {
        self.rate.lock().expect("no panic while held")
    }
}

/// The limiter's quota for a rate, and the bytes of a unit and of a burst.
fn quota(rate: u64) -> Option<(Quota, u64, u64)> {
    let rate = rate.max(1);
    let unit = (rate / UNITS_PER_S).max(1);
    let nanos = (u128::from(unit) * 1_000_000_000 + u128::from(rate / 2)) / u128::from(rate);
    let burst = (rate / BURSTS_PER_S).max(BURST_MIN);
    // At most some hundred thousand units.
    let units = NonZeroU32::new(u32::try_from(burst / unit).ok()?)?;
    let quota = Quota::with_period(Duration::from_nanos(u64::try_from(nanos).ok()?))?;
    Some((quota.allow_burst(units), unit, burst))
}

impl Rate {
    fn new(rate: u64) -> Option<Rate> {
        let (quota, unit, burst) = quota(rate)?;
        Some(Rate {
            bytes_per_s: rate,
            limiter: RateLimiter::direct(quota),
            unit,
            piece: burst / PIECES,
        })
    }

    async fn admit(&self, wanted: usize) -> usize {
        let admitted = (wanted as u64).min(self.piece);
        let units = u32::try_from(admitted.div_ceil(self.unit)).unwrap_or(u32::MAX);
        let Some(units) = NonZeroU32::new(units) else {
            return 0;
        };
        let ready = self.limiter.until_n_ready(units).await;
        ready.expect("a piece is less than a burst");
        admitted as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_same_rate_again_allows_no_second_burst() {
        let limit = Limit::default();
        assert_eq!((limit.rate(), limit.admit(7).await), (None, 7));
        limit.set(Some(6_000_000));
        let before = limit.lock().clone().expect("a rate");
        limit.set(Some(6_000_000));
        let after = limit.lock().clone().expect("a rate");
        assert!(Arc::ptr_eq(&before, &after));
        assert_eq!((limit.rate(), limit.admit(5).await), (Some(6_000_000), 5));
        assert_eq!(limit.admitted_bytes(), 12);
        limit.set(None);
        assert_eq!(limit.rate(), None);
    }

    #[test]
    fn any_rate_is_kept_to_a_hundredth() {
        let rates = [
            1,
            100,
            123_457,
            6_000_000,
            59_999_999,
            700_000_000,
            40 << 30,
        ];
        for rate in rates {
            let (quota, unit, burst) = quota(rate).expect("a rate");
            let told = unit as f64 / quota.replenish_interval().as_secs_f64();
            let wrong = (told / rate as f64 - 1.0).abs();
            assert!(wrong < 0.01, "{told} for {rate}");
            let piece = (burst / PIECES).div_ceil(unit);
            assert!(piece <= quota.burst_size().get().into(), "{rate}");
        }
    }
}
