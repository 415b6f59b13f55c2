//! A limit on the rate at which all connections together send: a token bucket. The rate may change
//! during the copy.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A burst is the bytes of a twentieth of a second, but at least a few packets.
const BURSTS_PER_S: u64 = 20;
const BURST_MIN: u64 = PIECES * 1448;

/// A burst is admitted in this many pieces. A caller that asked for a whole burst at once could
/// not catch up after a late wakeup; that cost 3 % of the rate.
const PIECES: u64 = 4;

/// A rate limit; initially none.
#[derive(Default)]
pub struct RateLimiter {
    bucket: Mutex<Option<Arc<Bucket>>>,
    admitted_bytes: AtomicU64,
}

impl RateLimiter {
    /// Sets the rate in bytes a second; None is no limit. A write that already waits finishes its
    /// wait at the old rate, for one piece.
    pub fn set(&self, rate: Option<u64>) {
        let mut current = self.bucket.lock();
        // Several copies share the limit and set the same rate: a new bucket would allow another
        // burst.
        if current.as_ref().map(|bucket| bucket.bytes_per_s) != rate {
            *current = rate.map(|rate| Arc::new(Bucket::new(rate, Instant::now())));
        }
    }

    /// The current rate, in bytes a second.
    pub fn rate(&self) -> Option<u64> {
        self.bucket.lock().as_ref().map(|bucket| bucket.bytes_per_s)
    }

    /// Bytes admitted so far, by all copies that share this limit.
    pub fn admitted_bytes(&self) -> u64 {
        self.admitted_bytes.load(Relaxed)
    }

    /// Waits until some of `wanted` bytes may be sent; returns how many.
    pub async fn admit(&self, wanted: usize) -> usize {
        let bucket = self.bucket.lock().clone();
        let admitted = match bucket {
            Some(bucket) => {
                let (admitted, at) = bucket.take(wanted as u64, Instant::now());
                tokio::time::sleep_until(at).await;
                admitted as usize
            }
            None => wanted,
        };
        self.admitted_bytes.fetch_add(admitted as u64, Relaxed);
        admitted
    }
}

/// A token bucket, kept as the generic cell rate algorithm keeps it: by one time instead of a
/// number of tokens (ITU-T I.371).
struct Bucket {
    bytes_per_s: u64,
    /// The most bytes that are admitted at once.
    piece: u64,
    /// The time that a burst takes at the rate.
    burst: Duration,
    /// When all admitted bytes would be sent, if each was sent at the rate.
    sent_at: Mutex<Instant>,
}

impl Bucket {
    fn new(rate: u64, now: Instant) -> Bucket {
        let rate = rate.max(1);
        let burst = (rate / BURSTS_PER_S).max(BURST_MIN);
        Bucket {
            bytes_per_s: rate,
            piece: burst / PIECES,
            burst: time_of(burst, rate),
            sent_at: Mutex::new(now),
        }
    }

    /// Admits some of `wanted` bytes: how many, and the time from which they may be sent.
    fn take(&self, wanted: u64, now: Instant) -> (u64, Instant) {
        let admitted = wanted.min(self.piece);
        let mut sent_at = self.sent_at.lock();
        *sent_at = (*sent_at).max(now) + time_of(admitted, self.bytes_per_s);
        (admitted, now.max(*sent_at - self.burst))
    }
}

fn time_of(bytes: u64, bytes_per_s: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s);
    // A few packets at one byte a second are the longest.
    Duration::from_nanos(nanos as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_same_rate_again_allows_no_second_burst() {
        let limit = RateLimiter::default();
        assert_eq!((limit.rate(), limit.admit(7).await), (None, 7));
        limit.set(Some(6_000_000));
        let before = limit.bucket.lock().clone().expect("a rate");
        limit.set(Some(6_000_000));
        let after = limit.bucket.lock().clone().expect("a rate");
        assert!(Arc::ptr_eq(&before, &after));
        assert_eq!((limit.rate(), limit.admit(5).await), (Some(6_000_000), 5));
        assert_eq!(limit.admitted_bytes(), 12);
        limit.set(None);
        assert_eq!(limit.rate(), None);
    }

    /// With several callers, one of which comes late each time.
    #[test]
    fn any_rate_is_kept_to_a_thousandth() {
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
            let began = Instant::now();
            let bucket = Bucket::new(rate, began);
            let (mut bytes, mut now) = (0, began);
            for caller in 0..20_000u32 {
                let (admitted, at) = bucket.take(u64::MAX, now);
                assert!((1..=bucket.piece).contains(&admitted), "{rate}: {admitted}");
                bytes += admitted;
                let late = bucket.burst / if caller % 8 == 0 { 2 } else { 1000 };
                now = at.max(now + late);
            }
            let carried = bytes as f64 / (now - began).as_secs_f64();
            let wrong = (carried / rate as f64 - 1.0).abs();
            assert!(wrong < 0.001, "{carried} for {rate}");
        }
    }

    #[test]
    fn a_pause_allows_one_burst_and_no_more() {
        let began = Instant::now();
        let bucket = Bucket::new(1_000_000, began);
        let later = began + Duration::from_secs(60);
        let at_once = (0..100).map(|_| bucket.take(u64::MAX, later));
        let at_once = at_once.filter(|&(_, at)| at == later);
        let bytes: u64 = at_once.map(|(admitted, _)| admitted).sum();
        assert_eq!(bytes, 50_000);
    }
}
