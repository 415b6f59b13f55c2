//! The rate of a polite copy (`--polite`): the bandwidth that other traffic leaves free, found
//! from the queueing delay alone.
//!
//! The model is LEDBAT (RFC 6817). The base is the shortest round trip of the last minutes. Any
//! excess over the base is queueing delay, no matter who causes it. The rate falls by a factor if
//! the delay exceeds a target, and rises while the delay is below half of it. As in LEDBAT++
//! (draft-irtf-iccrg-ledbat-plus-plus) the copy makes way after a minute with a queue, to measure
//! the base again. Four things differ:
//!
//! * One rate holds for all connections of the session together.
//! * The kernel's smoothed round trip is too slow: at the lowest rate few acknowledgements come,
//!   and the mean takes seconds to forget a queue that is gone. So the newest round trip is
//!   computed from the change of the mean.
//! * The copy remembers the highest rate that the link carried, and stays a little below it, where
//!   its own packets form no queue. A queue at that rate comes from others, and the copy yields: to
//!   half the rate, and to the lowest rate if that does not help. It yields at once, because TCP's
//!   slow start ends at the first queue: a new flow of another program would stay slow for many
//!   seconds.
//! * While no queue forms, each rise is larger than the one before. The link is full again within
//!   2 s after the others have gone.
//!
//! If the queue of the bottleneck holds less than the target, as in most switches of a local
//! network, the delay shows no other traffic. TCP's congestion control then shares the link.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::units;

/// The interval between looks at the connections.
pub const LOOK: Duration = Duration::from_millis(25);

/// Connections of a polite copy, unless the user asks for another number. Each sends packets in
/// pairs, and the pairs of many connections would form a queue on a slow link.
pub const POLITE_STREAMS: u16 = 2;

/// The queueing delay above which the rate falls. People who talk or type on the link notice 20
/// ms.
const TARGET: Duration = Duration::from_millis(8);

/// Packets that may always wait: at 5 Mbit/s each takes 2.4 ms. They raise the target up to
/// [`TARGET_MAX`].
const TARGET_PACKETS: f64 = 6.0;
const TARGET_MAX: Duration = Duration::from_millis(10);
const PACKET: f64 = 1500.0;

/// The first rate: packets in a round trip, as a new connection sends.
const FIRST_PACKETS: f64 = 10.0;

/// The lowest rate, relative to the remembered rate of the link, and at least in bytes a second.
/// That is five pairs of packets, which soon show that other traffic has ended.
const LOWEST_PART: f64 = 0.01;
const LOWEST: f64 = 16e3;

/// The share of the remembered rate at which the copy stays.
const CRUISE_PART: f64 = 0.97;
/// The share of it up to which the copy alone forms no queue.
const ALONE_PART: f64 = 0.98;
/// From this share on the copy waits this long between attempts to exceed the remembered rate, if
/// queues have confirmed that rate twice.
const NEAR_PART: f64 = 0.95;
const NEAR_WAIT: Duration = Duration::from_secs(2);

/// The remembered rate is a mean over this span. Packets go in pairs, so shorter spans show too
/// much.
const CARRIED_SPAN: Duration = Duration::from_millis(400);
/// When the copy yields, the remembered rate shrinks to this share, at most once in this time: the
/// link may have become slower.
const CARRIED_PART: f64 = 0.95;
const CARRIED_HOLDS: Duration = Duration::from_secs(10);

/// If less than this share of the remembered rate came through when a queue formed, others are
/// there.
const OTHERS_PART: f64 = 0.85;

/// A single short queue may be chance: a busy host or a radio link. The rate falls to this share,
/// and the copy yields if another queue follows within this time.
const DOUBT_PART: f64 = 0.5;
const DOUBT: Duration = Duration::from_secs(1);
/// The remembered rate also falls to this share: the link may carry a little less than was
/// measured.
const DOUBTED_PART: f64 = 0.98;

/// Rates whose ratio is below this are about the same.
const SAME: f64 = 1.1;

/// How long a copy that has yielded does not rise, so that the others can finish slow start.
const YIELD_ROUND_TRIPS: u32 = 8;
const YIELD_MIN: Duration = Duration::from_millis(200);
const YIELD_MAX: Duration = Duration::from_millis(400);

/// Once the queue is gone, the copy sends this share of the rate at which the queue formed.
const SAFE_PART: f64 = 0.95;

/// A queue reduces the rate to between these shares of it.
const FALL_MIN: f64 = 0.25;
const FALL_MAX: f64 = 0.9;

/// A queue is draining if it is below this share of its length when the rate fell.
const DRAINING: f64 = 0.8;

/// By what share of itself the rate rises first, and at most. It rises more where the link might
/// carry more, and most where the rate is low, since that is little of the link.
const RISE_FIRST: f64 = 0.025;
const RISE_MAX: f64 = 1.0;
const RISE_UNSURE: f64 = 0.06;
const RISE_LOW: f64 = 3.0;
const LOW_PART: f64 = 0.125;

/// The factor from one rise to the next, below the remembered rate and above it.
const FASTER: f64 = 2.0;
const FASTER_ABOVE: f64 = 1.3;

/// The rate rises only if this share of it is used and the delay is below the target divided by
/// [`RISE_TARGET`].
const USED_PART: f64 = 0.7;
const RISE_TARGET: u32 = 2;

/// The polite rate does not exceed this share of a rate limit. The limit lets data through in
/// bursts, and its pauses would look as if others used the link. It exceeds 1 because the limit
/// does not count packet headers.
const LIMIT_PART: f64 = 1.05;

/// Bytes that may be missing from a span because packets go in pairs.
const PAIRS: f64 = 8.0 * PACKET;

/// After this long with a queue the copy makes way for a round trip. The kernel remembers the
/// shortest round trip for 5 minutes.
const MAKE_WAY_AFTER: Duration = Duration::from_secs(60);
const MAKE_WAY_PART: f64 = 0.7;
const NO_QUEUE: Duration = Duration::from_millis(2);

/// The weight of a new round trip in the kernel's mean (RFC 6298), and a number of
/// acknowledgements after which nothing remains of the mean before.
const WEIGHT: f64 = 0.125;
const ACKS_MAX: u32 = 1000;

/// The user is shown a rate that changed by this factor, and not more often than this.
const NEWS_FACTOR: f64 = 2.0;
const NEWS_APART: Duration = Duration::from_secs(2);

/// The kernel's figures for one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionSight {
    /// The number of the connection; after a reconnect it is another.
    pub number: u16,
    /// Smoothed.
    pub round_trip: Duration,
    /// The shortest of the last minutes; zero if unknown.
    pub round_trip_min: Duration,
    /// Segments from the receiver. They carry no data, so they are acknowledgements.
    pub acks: u32,
    pub acked_bytes: u64,
}

/// The controller of the polite rate; the caller passes in the time.
pub struct PoliteRate {
    /// Bytes a second.
    rate: f64,
    /// By what share of itself the rate rises next.
    rise: f64,
    changed: Duration,
    carried: CarriedRate,
    queue: QueueState,
    traffic: OwnTraffic,
    /// `--bwlimit`, in bytes a second.
    limit: Option<u64>,
    /// The rate last shown to the user, and when.
    told: Option<(f64, Duration)>,
}

/// The highest rate that the link carried. Comments here call it the remembered rate.
#[derive(Default)]
struct CarriedRate {
    /// Bytes a second; 0 at first.
    rate: f64,
    /// When it was measured or reduced.
    at: Duration,
    /// The remembered rate when a queue last formed; `is_sure` if the queue before formed at about
    /// the same rate.
    full: f64,
    is_sure: bool,
}

/// The queue at the bottleneck.
#[derive(Default)]
struct QueueState {
    /// The queueing delay at which the rate fell, until that queue is gone.
    fell_at: Option<Duration>,
    /// The rate to use once that queue is gone.
    safe: f64,
    /// Until the first queue the capacity of the link is unknown.
    has_fallen: bool,
    yields_until: Duration,
    /// When a queue that may be chance was last seen.
    doubted: Duration,
    /// Consecutive looks with a queue.
    looks: u32,
    /// When there was last no queue.
    empty: Duration,
}

/// What the connections of the copy show.
struct OwnTraffic {
    /// The shortest round trip.
    base: Duration,
    before: BTreeMap<u16, ConnectionSight>,
    /// The present throughput, and that over a longer span.
    quick: ThroughputSpan,
    long: ThroughputSpan,
}

/// Measures throughput over a span.
#[derive(Default)]
struct ThroughputSpan {
    since: Duration,
    bytes: f64,
    /// Throughput of the span before, in bytes a second.
    rate: f64,
}

impl ThroughputSpan {
    /// True if the span ends now.
    fn ends(&mut self, now: Duration, least: Duration) -> bool {
        let passed = now.saturating_sub(self.since);
        if passed < least || passed.is_zero() {
            return false;
        }
        *self = ThroughputSpan {
            since: now,
            bytes: 0.0,
            rate: self.bytes / passed.as_secs_f64(),
        };
        true
    }
}

/// The result of one look at the connections.
#[derive(Clone, Copy)]
struct PoliteLook {
    now: Duration,
    round_trip: Duration,
    delay: Duration,
    /// The copy alone would have formed no queue.
    is_alone_clear: bool,
}

impl CarriedRate {
    fn measured(&mut self, now: Duration, rate: f64) {
        if rate >= self.rate {
            (self.rate, self.at) = (rate, now);
        }
    }

    /// A queue has formed that is no chance. Two of them at about the same rate make it sure.
    fn found_full(&mut self) {
        self.is_sure = self.rate < SAME * self.full;
        self.full = self.rate;
    }

    /// The copy yields, so the link may have become slower.
    fn shrink(&mut self, now: Duration) {
        if now >= self.at + CARRIED_HOLDS {
            self.rate *= CARRIED_PART;
            (self.at, self.is_sure) = (now, false);
        }
    }
}

impl OwnTraffic {
    /// Takes the present figures of all connections. Returns the shortest of their newest round trips;
    /// None if no connection got an acknowledgement.
    fn take(&mut self, streams: &[ConnectionSight]) -> Option<Duration> {
        let mins = streams.iter().map(|it| it.round_trip_min);
        self.base = mins.filter(|it| !it.is_zero()).min().unwrap_or(self.base);
        let mut newest: Option<Duration> = None;
        for sight in streams {
            // The span over which a new connection's bytes accumulated is unknown.
            let Some(before) = self.before.get(&sight.number) else {
                continue;
            };
            let bytes = sight.acked_bytes.saturating_sub(before.acked_bytes);
            let acks = sight.acks.wrapping_sub(before.acks);
            self.quick.bytes += bytes as f64;
            self.long.bytes += bytes as f64;
            if acks > 0 && bytes > 0 {
                let round_trip = unsmoothed(before.round_trip, sight.round_trip, acks);
                newest = Some(newest.map_or(round_trip, |it| it.min(round_trip)));
            }
        }
        self.before = streams.iter().map(|it| (it.number, *it)).collect();
        newest
    }
}

impl PoliteRate {
    /// `round_trip` may be a guess.
    pub fn new(round_trip: Duration) -> PoliteRate {
        let first = FIRST_PACKETS * PACKET / round_trip.as_secs_f64().max(1e-3);
        PoliteRate {
            rate: first.max(LOWEST),
            rise: RISE_LOW,
            changed: Duration::ZERO,
            carried: CarriedRate::default(),
            queue: QueueState::default(),
            traffic: OwnTraffic {
                base: round_trip,
                before: BTreeMap::new(),
                quick: ThroughputSpan::default(),
                long: ThroughputSpan::default(),
            },
            limit: None,
            told: None,
        }
    }

    /// Bytes a second, all connections together.
    pub fn rate(&self) -> u64 {
        self.rate as u64
    }

    /// Sets the rate limit from now on.
    pub fn limit(&mut self, bytes_per_s: Option<u64>) {
        self.limit = bytes_per_s;
    }

    /// Takes the present figures of all connections and returns the new rate. The caller calls it
    /// every [`LOOK`]; `now` never decreases.
    pub fn look(&mut self, now: Duration, streams: &[ConnectionSight]) -> u64 {
        let Some(round_trip) = self.traffic.take(streams) else {
            return self.rate();
        };
        self.count(now, round_trip);
        let is_steady = self.queue.fell_at.is_none() && self.is_shown(now, round_trip);
        let look = PoliteLook {
            now,
            round_trip,
            delay: round_trip.saturating_sub(self.traffic.base),
            is_alone_clear: is_steady && self.rate <= ALONE_PART * self.carried.rate,
        };
        if look.delay <= NO_QUEUE {
            self.queue.empty = now;
        }
        let most = match look.is_alone_clear {
            true => self.target() / 2,
            false => self.target(),
        };
        if look.delay > most {
            self.queue.looks += 1;
            self.fall(look);
        } else {
            self.queue.looks = 0;
            self.go_on(look);
        }
        self.rate()
    }

    /// A line for the user if the rate differs clearly from that of the last line.
    pub fn news(&mut self, now: Duration) -> Option<String> {
        let is_new = |(told, at): (f64, Duration)| {
            let by = (self.rate / told).max(told / self.rate);
            by >= NEWS_FACTOR && now >= at + NEWS_APART
        };
        if now < NEWS_APART || !self.told.is_none_or(is_new) {
            return None;
        }
        self.told = Some((self.rate, now));
        let rate = units::rate(self.rate);
        let is_low = self.rate < LOW_PART * self.carried.rate;
        let yields = is_low && (now < self.queue.yields_until || self.queue.fell_at.is_some());
        Some(match yields {
            true => format!("polite: {rate}, others use the link"),
            false => format!("polite: {rate}"),
        })
    }

    fn count(&mut self, now: Duration, round_trip: Duration) {
        let OwnTraffic { quick, long, .. } = &mut self.traffic;
        quick.ends(now, (2 * LOOK).max(round_trip / 2));
        if long.ends(now, CARRIED_SPAN) {
            self.carried.measured(now, long.rate);
        }
    }

    fn target(&self) -> Duration {
        let packets = TARGET_PACKETS * PACKET / self.carried.rate.max(PACKET);
        TARGET.max(Duration::from_secs_f64(packets).min(TARGET_MAX))
    }

    /// The present figures reflect the last change of the rate.
    fn is_shown(&self, now: Duration, round_trip: Duration) -> bool {
        now >= self.changed + round_trip + LOOK
    }

    /// Handles a look with a queue.
    fn fall(&mut self, look: PoliteLook) {
        let PoliteLook { now, delay, .. } = look;
        // One look may be chance, unless the queue is long.
        if self.queue.looks < 2 && delay < self.target() {
            return;
        }
        let through = self.traffic.quick.rate.min(self.rate);
        let safe = match self.queue.fell_at {
            None => SAFE_PART * through,
            Some(before) if delay < before.mul_f64(DRAINING) => {
                if self.is_shown(now, look.round_trip) {
                    self.queue.fell_at = Some(delay);
                    self.changed = now;
                }
                return;
            }
            Some(before) if !self.is_shown(now, look.round_trip) && delay < 2 * before => return,
            // The queue does not drain: others feed it.
            Some(_) => 0.0,
        };
        let is_first = self.queue.fell_at.is_none();
        // At first nothing is known of the link.
        let are_others = self.queue.has_fallen
            && (look.is_alone_clear || through < OTHERS_PART * self.carried.rate);
        let is_doubtful =
            through >= OTHERS_PART * self.carried.rate && now >= self.queue.doubted + DOUBT;
        let part = if are_others && is_first && is_doubtful {
            self.queue.doubted = now;
            self.carried.rate *= DOUBTED_PART;
            DOUBT_PART
        } else if are_others
            && now >= self.queue.yields_until
            && (is_first || now < self.queue.doubted + DOUBT)
        {
            self.yield_until(now);
            0.0
        } else {
            if is_first {
                self.carried.found_full();
            }
            // Drains the queue in about the time before the next fall.
            let period = (self.traffic.base + 2 * LOOK).as_secs_f64();
            (period / (period + delay.as_secs_f64())).clamp(FALL_MIN, FALL_MAX)
        };
        self.set(now, through * part);
        self.queue.safe = if part > 0.0 { safe } else { 0.0 };
        (self.queue.fell_at, self.queue.has_fallen) = (Some(delay), true);
        self.rise = RISE_FIRST;
    }

    fn yield_until(&mut self, now: Duration) {
        let time = YIELD_ROUND_TRIPS * self.traffic.base;
        self.queue.yields_until = now + time.clamp(YIELD_MIN, YIELD_MAX);
        self.carried.shrink(now);
    }

    /// Handles a look without a queue, or with a negligible one.
    fn go_on(&mut self, look: PoliteLook) {
        let PoliteLook { now, delay, .. } = look;
        if !self.is_shown(now, look.round_trip) || now < self.queue.yields_until {
            return;
        }
        if self.queue.fell_at.take().is_some() {
            let is_low = self.rate < LOW_PART * self.carried.rate;
            self.rise = if is_low { RISE_LOW } else { RISE_FIRST };
            if self.queue.safe > self.rate {
                return self.set(now, self.queue.safe);
            }
        }
        if now >= self.queue.empty + MAKE_WAY_AFTER {
            self.queue.empty = now;
            self.queue.safe = self.rate;
            self.queue.fell_at = Some(delay);
            return self.set(now, MAKE_WAY_PART * self.rate);
        }
        let used = self.traffic.quick.rate + PAIRS / (look.round_trip + LOOK).as_secs_f64();
        if used >= USED_PART * self.rate && delay <= self.target() / RISE_TARGET {
            self.rise(now);
        }
    }

    fn rise(&mut self, now: Duration) {
        let is_near = self.carried.rate > 0.0 && self.rate >= NEAR_PART * self.carried.rate;
        let waits = self.carried.is_sure && now < self.changed + NEAR_WAIT;
        if is_near && self.rise <= RISE_FIRST && waits {
            return;
        }
        let cruise = CRUISE_PART * self.carried.rate;
        let rate = self.rate * (1.0 + self.rise);
        if self.queue.has_fallen && self.rate < cruise && rate > cruise {
            self.rise = if self.carried.is_sure {
                RISE_FIRST
            } else {
                RISE_UNSURE
            };
            return self.set(now, cruise);
        }
        let faster = if self.rate < cruise {
            FASTER
        } else {
            FASTER_ABOVE
        };
        self.rise = (faster * self.rise).min(RISE_MAX);
        self.set(now, rate);
    }

    fn set(&mut self, now: Duration, rate: f64) {
        let most = self.limit.map_or(f64::MAX, |it| LIMIT_PART * it as f64);
        self.rate = rate
            .max(LOWEST.max(LOWEST_PART * self.carried.rate))
            .min(most);
        self.changed = now;
    }
}

/// The mean of the round trips that moved the smoothed one from `before` to `after`.
fn unsmoothed(before: Duration, after: Duration, acks: u32) -> Duration {
    let kept = (1.0 - WEIGHT).powi(acks.min(ACKS_MAX) as i32);
    let mean = (after.as_secs_f64() - kept * before.as_secs_f64()) / (1.0 - kept);
    // Not every segment brings a new round trip.
    Duration::from_secs_f64(mean.clamp(0.0, 60.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_newest_round_trip_comes_out_of_two_smoothed_ones() {
        let mut smoothed: f64 = 230.0;
        for acks in 1..=6u32 {
            smoothed = 0.875 * smoothed + 0.125 * 30.0;
            let after = Duration::from_secs_f64(smoothed / 1e3);
            let newest = unsmoothed(230 * MS, after, acks);
            assert!(newest.abs_diff(30 * MS) < MS, "{acks}: {newest:?}");
        }
        assert_eq!(unsmoothed(230 * MS, 10 * MS, 1), Duration::ZERO);
        assert_eq!(unsmoothed(9 * MS, 40 * MS, u32::MAX), 40 * MS);
    }

    /// Feeds figures of connections that carry the full rate, with this queueing delay on top of
    /// 30 ms.
    fn go(polite: &mut PoliteRate, from: Duration, looks: u32, delay: Duration) -> Duration {
        let mut now = from;
        for _ in 0..looks {
            now += LOOK;
            let before = polite.traffic.before.get(&0).copied().unwrap_or_default();
            let acked = polite.rate * LOOK.as_secs_f64();
            let sight = ConnectionSight {
                number: 0,
                round_trip: 30 * MS + delay,
                round_trip_min: 30 * MS,
                acks: before.acks + 200,
                acked_bytes: before.acked_bytes + acked as u64,
            };
            polite.look(now, &[sight]);
        }
        now
    }

    #[test]
    fn it_falls_to_the_lowest_rate_beside_a_queue_that_stays_and_rises_when_that_is_gone() {
        let mut polite = PoliteRate::new(30 * MS);
        let now = go(&mut polite, Duration::ZERO, 40, Duration::ZERO);
        let fast = polite.rate();
        assert!(fast > 5_000_000, "{fast}");
        let now = go(&mut polite, now, 100, 150 * MS);
        let slow = polite.rate();
        assert!(slow <= fast / 50, "{slow} of {fast}");
        let now = go(&mut polite, now, 4, 5 * MS);
        assert_eq!(polite.rate(), slow, "a short queue is no reason to rise");
        go(&mut polite, now, 60, Duration::ZERO);
        assert!(polite.rate() > fast / 4, "{} of {fast}", polite.rate());
    }

    #[test]
    fn a_rate_that_is_not_used_does_not_rise() {
        let mut polite = PoliteRate::new(30 * MS);
        let first = polite.rate();
        for look in 1..400 {
            let sight = ConnectionSight {
                round_trip: 30 * MS,
                round_trip_min: 30 * MS,
                acks: look,
                acked_bytes: u64::from(look) * 1000,
                ..ConnectionSight::default()
            };
            polite.look(LOOK * look, &[sight]);
        }
        assert!(polite.rate() < 3 * first, "{} of {first}", polite.rate());
    }

    #[test]
    fn a_rate_limit_is_the_most_until_it_is_lifted() {
        let mut polite = PoliteRate::new(30 * MS);
        polite.limit(Some(2_000_000));
        let now = go(&mut polite, Duration::ZERO, 100, Duration::ZERO);
        assert_eq!(polite.rate(), 2_100_000);
        polite.limit(None);
        go(&mut polite, now, 100, Duration::ZERO);
        assert!(polite.rate() > 20_000_000, "{}", polite.rate());
    }

    #[test]
    fn the_user_hears_of_large_changes_alone() {
        let mut polite = PoliteRate::new(30 * MS);
        let second = Duration::from_secs(1);
        assert_eq!(polite.news(second), None);
        polite.rate = 1e6;
        assert_eq!(
            polite.news(2 * second).as_deref(),
            Some("polite: 1.00 MB/s")
        );
        polite.rate = 1.9e6;
        assert_eq!(polite.news(9 * second), None);
        polite.rate = 2e4;
        (polite.carried.rate, polite.queue.fell_at) = (1e6, Some(150 * MS));
        let told = polite.news(10 * second);
        assert_eq!(
            told.as_deref(),
            Some("polite: 20.0 KB/s, others use the link")
        );
        polite.rate = 1e6;
        assert_eq!(polite.news(11 * second), None, "too soon");
    }
}
