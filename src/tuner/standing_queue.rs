//! The limit on the bytes that a slow link holds for the copy.
//!
//! A congestion control that reacts to loss fills the queue in front of a slow link until packets
//! are dropped. The copy gains nothing from that: the link is as busy with a short queue. A long
//! one delays everybody else on the link, and each time it overflows a part of it is sent again:
//! cubic's window may grow by half within one round trip, and behind a queue of 100 packets a
//! round trip at 1 Mbit/s takes 1.2 s. So where the round trip becomes long, the copy holds only
//! what the link carries in a time that is long enough to keep it busy.
//!
//! If the throughput falls under the limit, there are three possible reasons. The link may have
//! become slower: the limit is computed again, and the throughput stays. Otherwise the path has
//! become longer, or others fill the queue. Under the limit they would get the whole link, so it is
//! lifted for a while, and [`path`](super::path) tells one from the other.

use std::time::Duration;

use super::network::Network;
use super::window::Rates;

/// The limit applies to links below this rate, in bytes a second. On a faster one a queue of 100
/// packets delays others by less than half a second, and overflows by few packets.
const RATE_MAX: f64 = 300e3;

/// The round trip under the limit: this much longer than the shortest one. Half a round trip and
/// some packets keep the link busy while the connections share the limit unevenly.
const DELAY: Duration = Duration::from_millis(300);
const DELAY_PART: u32 = 2;

/// Below this share of the wanted delay the limit is lifted: the link has become faster, or
/// something else is the bottleneck.
const DELAY_SHORT: u32 = 3;

/// The throughput counts over this span, or a round trip if that is longer; at first over the
/// shorter one, because slow start fills a queue within a second.
const SPAN_FIRST: Duration = Duration::from_millis(250);
const SPAN: Duration = Duration::from_secs(3);

/// With less than this share of the link's throughput, others use it.
const FULL_PART: f64 = 0.85;

/// The round trip under the limit may exceed the wanted one by this factor, and the bytes in flight
/// the limit. Below this share of the limit the bytes in flight say nothing.
const OVER: f64 = 1.25;
const USED: f64 = 0.6;

/// A lower throughput counts once it has lasted for this long, and for a round trip.
const OTHERS: Duration = Duration::from_millis(500);

/// How long the limit is not used after others filled the queue; twice as long each time.
const SHUT: Duration = Duration::from_secs(30);
const SHUT_MAX: Duration = Duration::from_secs(600);

pub(super) struct StandingQueue {
    limit: Option<Limit>,
    shut_until: Duration,
    shut_next: Duration,
}

#[derive(Clone, Copy)]
struct Limit {
    /// The wanted round trip.
    wanted: Duration,
    /// The highest throughput under it, in bytes a second.
    full: f64,
    /// `full` was measured again, and the round trip has not come down since.
    is_doubtful: bool,
    /// When the throughput was last as high as before, or its fall was explained.
    explained: Duration,
}

impl Limit {
    fn bytes(&self) -> f64 {
        self.full * self.wanted.as_secs_f64()
    }
}

impl Default for StandingQueue {
    fn default() -> StandingQueue {
        StandingQueue {
            limit: None,
            shut_until: Duration::ZERO,
            shut_next: SHUT,
        }
    }
}

impl StandingQueue {
    /// The most bytes that the kernel and the link may hold for all connections together; None if
    /// there is no limit.
    pub(super) fn held_max(&self) -> Option<u64> {
        self.limit.map(|limit| limit.bytes() as u64)
    }

    /// Takes the newest sample, which is from `now`.
    pub(super) fn look(&mut self, now: Duration, network: &Network) {
        let (round_trip, shortest) = (network.window.newest().round_trip, network.round_trip_min);
        let wanted = shortest + shortest / DELAY_PART + DELAY;
        let rates = |least: Duration| network.window.last(least.max(round_trip), network.workers);
        let newest = rates(SPAN_FIRST);
        let Some(limit) = &mut self.limit else {
            let is_slow = |rates: &Rates| rates.wire > 1.0 && rates.wire < RATE_MAX;
            if let Some(newest) = newest.filter(is_slow)
                && round_trip > wanted
                && now >= self.shut_until
            {
                self.limit = Some(Limit {
                    wanted,
                    full: newest.wire,
                    is_doubtful: false,
                    explained: now,
                });
            }
            return;
        };
        limit.wanted = wanted;
        if round_trip < shortest + (wanted - shortest) / DELAY_SHORT {
            self.limit = None;
            return;
        }
        let is_short = round_trip < wanted.mul_f64(OVER);
        let newest = newest.map_or(limit.full, |rates| rates.wire);
        // The kernel may still hold what was written before the limit, or there is little to send.
        let held = network.window.newest().under_way_bytes as f64 / limit.bytes();
        if newest > FULL_PART * limit.full || !(USED..OVER).contains(&held) {
            limit.explained = now;
            limit.full = rates(SPAN).map_or(limit.full, |rates| limit.full.max(rates.wire));
            limit.is_doubtful &= !is_short;
        } else if now > limit.explained + OTHERS.max(round_trip) {
            if limit.is_doubtful {
                self.limit = None;
                self.shut_until = now + self.shut_next;
                self.shut_next = (2 * self.shut_next).min(SHUT_MAX);
                return;
            }
            limit.is_doubtful = true;
            limit.full = newest;
            limit.explained = now;
        }
    }
}
