//! The limit on the bytes that a slow link holds for the copy.
//!
//! A congestion control that reacts to loss fills the queue in front of a slow link until packets
//! are dropped. The copy gains nothing from that: the link is as busy with a short queue. A long
//! one delays everybody else on the link, and each time it overflows a part of it is sent again:
//! cubic's window may grow by 50 % within one round trip, and behind a queue of 100 packets a round
//! trip at 1 Mbit/s takes 1.2 s. So where the round trip becomes long, this limit allows just
//! enough bytes in flight to keep the link busy.
//!
//! If the throughput falls under this limit, there are three possible reasons. First, the link has
//! become slower: then the queue grows, and more bytes in flight do not help. Second, the path has
//! become longer. Third, others fill the queue. In the last two cases more bytes in flight raise the
//! throughput. So the limit is raised for a moment. If that does not help, it is computed again for
//! the lower throughput. If it helps, the limit is lifted for a while, because under it others would
//! take the whole link. Then [`path`](super::path) tells the second case from the third.

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

/// The limit allows each connection at least so many bytes: two writes of whole segments, as
/// `transport::connection` makes them.
const HELD_LEAST: f64 = 4.0 * 1448.0;

/// Below this share of the wanted delay the limit is lifted: the link has become faster, or
/// something else is the bottleneck.
const DELAY_SHORT: u32 = 3;

/// The throughput counts over this span, or a round trip if that is longer; at first over the
/// shorter one, because slow start fills a queue within a second.
const SPAN_FIRST: Duration = Duration::from_millis(250);
const SPAN: Duration = Duration::from_secs(3);

/// Below these shares of the link's throughput it has fallen: at once, and over [`SPAN`].
const FULL_PART: f64 = 0.85;
const FULL_PART_LASTING: f64 = 0.93;

/// A raise of the limit, and the growth of the throughput that shows that the limit held the copy
/// back. With as many bytes of others in the queue, the raise makes a share of 0.50 one of 0.57.
const RAISED: f64 = 1.3;
const GREW: f64 = 1.1;

/// The raise has no effect until the bytes in flight have reached this share of the limit: the
/// kernel's congestion windows, which shrink under a limit, have to grow first.
const FILLED: f64 = 0.8;

/// The round trip under the limit may exceed the wanted one by this factor, and the bytes in flight
/// the limit. Below this share of the limit the bytes in flight say nothing.
const OVER: f64 = 1.25;
const USED: f64 = 0.6;

/// A lower throughput counts once it is measured over this span, and over a round trip.
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
    /// What the connections hold in any case.
    least: f64,
    /// When that was measured for the first time.
    measured: Duration,
    stage: Stage,
    /// When the throughput was last as high as before, or its fall was explained.
    explained: Duration,
}

#[derive(Clone, Copy)]
enum Stage {
    Settled,
    /// The throughput fell `to` this, and the limit is raised. `filled` is when the bytes in flight
    /// reached it.
    Raised {
        to: f64,
        since: Duration,
        filled: Option<Duration>,
    },
    /// `full` is such a lower throughput, and the round trip has not come down since.
    Doubtful,
}

impl Limit {
    fn new(now: Duration, wanted: Duration, full: f64, least: f64, stage: Stage) -> Limit {
        Limit {
            wanted,
            full,
            least,
            measured: now,
            stage,
            explained: now,
        }
    }

    fn bytes(&self) -> f64 {
        let bytes = (self.full * self.wanted.as_secs_f64()).max(self.least);
        match self.stage {
            Stage::Raised { .. } => RAISED * bytes,
            Stage::Settled | Stage::Doubtful => bytes,
        }
    }

    /// Takes the newest sample. Returns false if the limit holds the copy back.
    fn look(&mut self, now: Duration, network: &Network) -> bool {
        let round_trip = network.window.newest().round_trip;
        let last = |span: Duration| network.window.last(span.max(round_trip), network.workers);
        let used = network.window.newest().under_way_bytes as f64 / self.bytes();
        if let Stage::Raised { to, since, filled } = &mut self.stage {
            let (to, settles) = (*to, 2 * OTHERS.max(round_trip));
            if used >= FILLED {
                filled.get_or_insert(now);
            }
            let newest = last(OTHERS).map_or(to, |rates| rates.wire);
            if used < USED / RAISED {
                // There is little to send.
                self.stage = Stage::Settled;
                self.explained = now;
            } else if now >= *since + settles && newest > GREW * to {
                return false;
            } else if filled.is_some_and(|filled| now >= filled + settles) {
                *self = Limit::new(now, self.wanted, newest, self.least, Stage::Doubtful);
            }
            return true;
        }
        // The kernel may still hold bytes written before the limit, or the copy has little to send.
        let is_used = (USED..OVER).contains(&used);
        let newest = last(SPAN_FIRST).map_or(self.full, |rates| rates.wire);
        if newest > FULL_PART * self.full || !is_used {
            self.explained = now;
            if round_trip < self.wanted.mul_f64(OVER) {
                self.stage = Stage::Settled;
            }
            // A span that begins earlier shows the former throughput.
            let lasting = last(SPAN).filter(|_| is_used && now >= self.measured + SPAN);
            let Some(lasting) = lasting.map(|rates| rates.wire) else {
                return true;
            };
            if lasting < FULL_PART_LASTING * self.full {
                return self.has_fallen(now, lasting);
            }
            self.full = self.full.max(lasting);
            return true;
        }
        // Until the first sample after `explained` the throughput may have been the former one.
        match network.window.since(self.explained, network.workers) {
            Some(rates) if rates.seconds >= OTHERS.max(round_trip).as_secs_f64() => {
                self.has_fallen(now, rates.wire)
            }
            _ => true,
        }
    }

    /// Returns false if it has fallen for the second time.
    fn has_fallen(&mut self, now: Duration, to: f64) -> bool {
        if matches!(self.stage, Stage::Doubtful) {
            return false;
        }
        self.stage = Stage::Raised {
            to,
            since: now,
            filled: None,
        };
        true
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

    /// Takes the newest sample, which is from `now`; so many connections are in use.
    pub(super) fn look(&mut self, now: Duration, network: &Network, streams: u16) {
        let (round_trip, shortest) = (network.window.newest().round_trip, network.round_trip_min);
        let wanted = shortest + shortest / DELAY_PART + DELAY;
        let least = HELD_LEAST * f64::from(streams);
        let Some(limit) = &mut self.limit else {
            let is_slow = |rates: &Rates| rates.wire > 1.0 && rates.wire < RATE_MAX;
            let span = SPAN_FIRST.max(round_trip);
            let newest = network.window.last(span, network.workers);
            if let Some(newest) = newest.filter(is_slow)
                && round_trip > wanted
                && now >= self.shut_until
            {
                self.limit = Some(Limit::new(now, wanted, newest.wire, least, Stage::Settled));
            }
            return;
        };
        (limit.wanted, limit.least) = (wanted, least);
        if round_trip < shortest + (wanted - shortest) / DELAY_SHORT {
            self.limit = None;
            return;
        }
        if !limit.look(now, network) {
            self.limit = None;
            self.shut_until = now + self.shut_next;
            self.shut_next = (2 * self.shut_next).min(SHUT_MAX);
        }
    }
}
