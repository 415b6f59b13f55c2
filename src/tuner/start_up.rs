//! The number of connections in use while the link is unknown. It starts low, rises with each
//! round trip that shows no queue, and falls again if the link turns out to be slow.
//!
//! A remembered number only bounds the rise, since it may be that of another link. The rise costs
//! one round trip on a fast link. On a slow link each surplus connection sends a first window, which
//! takes long to carry.

use std::time::Duration;

use super::bounds::FAR_AWAY;
use super::intervals::next_sample;
use super::model::{LIMITED, LOSSY};
use super::network::{FULL_MOST, Network};
use super::queue::QueueDepth;
use super::sample::Sample;
use super::terms::{Congestion, Decision, first_streams, streams};
use super::window::Rates;

/// Connections in use from the start.
pub const AT_WORK_FIRST: u16 = 2;

/// The factor of the first step and of later steps. What the first connections show when their
/// first window is acknowledged also holds for a few more.
const FIRST_STEP: u16 = 4;
const STEP: u16 = 2;

/// Connections open for each one in use: they wait for the next round trips to show that they
/// help. The usual number at this distance is open in any case.
const READY: u16 = 4;

/// The first windows of all usual connections may form a queue of at most 1/[`LEAP`] of a round
/// trip: the link then holds about [`PART`] for each of them.
const LEAP: u32 = 8;

/// Each measured round trip changes the smoothed one by an eighth of the difference (RFC 6298).
/// After the acknowledgements of a first window the smoothed one has covered about half of the
/// difference.
const SMOOTHED: u32 = 2;

/// How often the tuner checks whether the first round trip is over.
const LOOK: Duration = Duration::from_millis(10);

/// Most of what a connection sends before the first acknowledgement: ten segments in Linux.
const FIRST_WINDOW: u64 = 10 << 10;

/// The share of the time in which connections have data to send if the link is the bottleneck.
const BUSY: f64 = 0.5;

/// Bytes that each connection should have in flight to recover from a lost packet without a pause:
/// about forty packets. A link that holds fewer bytes needs no further connection.
const PART: f64 = (64 << 10) as f64;

/// Bytes that each connection should have in flight before others join it in slow start. With
/// fewer, the kernel does not notice the queue in time (it needs sixteen segments in flight), and
/// all of them leave slow start by loss at once. 20 Mbit/s, 200 ms, 60 MB of database pages: 5.0 to
/// 6.0 s, and 6.4 s where eight or sixteen began together.
const WINDOW: u64 = 256 << 10;

/// A link may hold this many times its bandwidth-delay product: as much again in its queue.
const HOLDS: f64 = 2.0;

/// Under a rate limit each connection should carry this many bytes a second. At a lower rate a frame
/// takes seconds, and a copy that is interrupted loses an unfinished frame of each.
const LIMIT_PART: u64 = 256 << 10;

/// The rise from the first connections to as many as help, if the link can take them.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartUp {
    /// None once the rise is over.
    target: Option<u16>,
    /// The next step needs this many confirmed bytes: the bytes in flight at the last step have
    /// then been acknowledged and have shown whether there is a queue.
    confirmed_at: u64,
    /// When the rise ends at the latest; None: at the end of the copy's opening.
    until: Option<Duration>,
}

impl StartUp {
    /// A rise to the usual number of connections at this distance or to the remembered one.
    pub(super) fn to(target: u16) -> StartUp {
        StartUp {
            target: Some(target),
            confirmed_at: FIRST_WINDOW * u64::from(target.min(AT_WORK_FIRST)),
            until: None,
        }
    }

    /// The end of the rise if every round trip confirms it.
    pub(super) fn target(network: &Network) -> u16 {
        let near = network.start.round_trip < FAR_AWAY;
        let by_distance = first_streams(network.start.round_trip, network.start.forced.streams);
        let remembered = network.remembered_here().and_then(|it| it.streams);
        let wanted = match remembered {
            _ if network.start.forced.streams.is_some() => return by_distance,
            // On a local link one connection can be faster than two.
            Some(streams) if near => streams,
            Some(streams) => streams.max(by_distance),
            None => by_distance,
        };
        let most = StartUp::most_under_limit(network).unwrap_or(u16::MAX);
        wanted.min(most).min(network.streams_max())
    }

    /// The most connections of use under the rate limit in force; None without one.
    pub(super) fn most_under_limit(network: &Network) -> Option<u16> {
        let limit = network.rate_limit.now()?;
        let parts = u16::try_from(limit / LIMIT_PART).unwrap_or(u16::MAX);
        Some(parts.max(AT_WORK_FIRST))
    }

    /// Connections to use at first.
    pub(super) fn at_work_first(network: &Network) -> u16 {
        let target = StartUp::target(network);
        match network.start.forced.streams {
            Some(_) => target,
            None => target.min(AT_WORK_FIRST),
        }
    }

    /// Connections to dial: those in use, and some for the next step of a rise.
    pub(super) fn ready(&self, network: &Network, at_work: u16) -> u16 {
        let usual = first_streams(network.start.round_trip, None);
        let next = at_work.saturating_mul(READY).max(usual);
        let target = self.target.unwrap_or(at_work);
        target.min(next).max(at_work)
    }

    /// The interval from `now` to the next sample.
    pub(super) fn next_sample(&self, now: Duration, network: &Network, at_work: u16) -> Duration {
        let apart = next_sample(now);
        if self.is_first_step(at_work) && now < network.pace().opening {
            apart.min(LOOK)
        } else {
            apart
        }
    }

    /// True before the first step of the copy's first rise, when only the first windows are on
    /// their way. A later rise goes up step by step.
    fn is_first_step(&self, at_work: u16) -> bool {
        let is_due = self.target.is_some_and(|target| target > at_work);
        is_due && at_work == AT_WORK_FIRST && self.until.is_none()
    }

    /// Starts all usual connections at once if the first windows were acknowledged so soon that
    /// the first windows of all of them would hardly form a queue. Slow start takes a round trip
    /// to double the bytes in flight, so each round trip of the rise would prolong slow start by
    /// one.
    pub(super) fn leap(&mut self, network: &Network, at_work: &mut u16, sample: &Sample) -> bool {
        if !self.is_first_step(*at_work) || sample.confirmed_bytes < self.confirmed_at {
            return false;
        }
        let usual = first_streams(network.start.round_trip, None);
        let streams = self.target.map_or(usual, |target| target.min(usual));
        let queue = sample.round_trip.saturating_sub(network.round_trip_min);
        let of_all = queue * SMOOTHED * u32::from(streams) / u32::from(AT_WORK_FIRST);
        if of_all > network.round_trip_min / LEAP {
            return false;
        }
        self.confirmed_at = sample.confirmed_bytes + confirming(sample);
        *at_work = streams;
        true
    }

    /// Puts more connections to use if the last round trip shows that the link has room. Returns
    /// true if the rise is in progress and nothing else should change.
    pub(super) fn rise(&mut self, now: Duration, network: &Network, at_work: &mut u16) -> bool {
        let Some(target) = self.target else {
            return false;
        };
        let newest = network.window.newest();
        let until = self.until.unwrap_or(network.pace().opening);
        if *at_work >= target || now > until || network.has_queue(QueueDepth::Clear) {
            self.target = None;
            return false;
        }
        let span = newest.round_trip.max(network.round_trip_min);
        let rates = network.window.last(span, network.workers);
        let is_busy = rates.is_some_and(|rates| rates.link >= BUSY);
        if !is_busy || newest.confirmed_bytes < self.confirmed_at {
            return is_busy;
        }
        // A larger remembered number was for a link that loses packets, or for small windows.
        let usual = first_streams(network.start.round_trip, None);
        let wants = |rates: Rates| rates.loss >= LOSSY || network.is_windows_full(&rates);
        if *at_work >= usual && !rates.is_some_and(wants) {
            return false;
        }
        // In a later rise the old connections grow slowly, and new ones are to find the new rate.
        let is_first = self.until.is_none();
        let is_lossy = rates.is_some_and(|rates| rates.loss >= LOSSY);
        let most_in_slow_start = match is_first && !is_lossy {
            true => windows(&newest),
            false => u16::MAX,
        };
        if *at_work >= most_in_slow_start {
            return true;
        }
        self.confirmed_at = newest.confirmed_bytes + confirming(&newest);
        let by = match self.is_first_step(*at_work) {
            true => FIRST_STEP,
            false => STEP,
        };
        let most = if *at_work < usual {
            target.min(usual)
        } else {
            target
        };
        *at_work = at_work.saturating_mul(by).min(most).min(most_in_slow_start);
        true
    }

    /// Parks connections that a slow link does not need: their bytes only wait in its queue. Two
    /// remain, since one alone leaves the link idle after its first losses.
    pub(super) fn shrink(
        &mut self,
        now: Duration,
        network: &mut Network,
        decision: &mut Decision,
        rates: &Rates,
    ) -> Option<String> {
        let is_slow = network.is_slow(rates) && rates.link >= LIMITED;
        let is_of_use = network.start.forced.streams.is_some()
            || network.is_rate_limited(rates)
            || decision.congestion == Congestion::Bbr;
        if !is_slow || is_of_use || !network.has_queue(QueueDepth::Clear) {
            return None;
        }
        let holds = HOLDS * rates.wire * network.round_trip_min.as_secs_f64();
        let fit = ((holds / PART) as u16).max(AT_WORK_FIRST);
        // The rate is not the same in every second.
        if decision.streams <= fit.saturating_add(fit / 4) {
            if let Some((wire, _)) = &mut network.full {
                *wire = rates.wire;
            }
            return None;
        }
        self.target = None;
        decision.streams = fit;
        network.full = Some((rates.wire, now));
        Some(format!("{}: the link is slow and saturated", streams(fit)))
    }

    /// Starts another rise if a slow link that was full carries clearly more and has no queue: it
    /// has become faster. New connections find the new rate sooner than old ones, which have left
    /// slow start.
    pub(super) fn again(&mut self, now: Duration, network: &mut Network, rates: &Rates) {
        let is_faster = |(wire, _): &(f64, Duration)| rates.wire > wire * FULL_MOST;
        if !network.full.as_ref().is_some_and(is_faster) || network.has_queue(QueueDepth::Clear) {
            return;
        }
        network.full = None;
        self.begin(now, network);
    }

    /// Parks connections that a new rate limit does not need, or starts another rise if the limit
    /// `before` did not allow as many. Returns the reason of a change.
    pub(super) fn follow_limit(
        &mut self,
        now: Duration,
        network: &Network,
        before: Option<u16>,
        at_work: &mut u16,
    ) -> Option<String> {
        if network.start.forced.streams.is_some() {
            return None;
        }
        let most = StartUp::most_under_limit(network).unwrap_or(u16::MAX);
        self.target = self.target.map(|target| target.min(most));
        if *at_work > most {
            *at_work = most;
            return Some(format!("{}: the rate limit is low", streams(most)));
        }
        if before.is_some_and(|before| *at_work >= before && most > before) {
            self.begin(now, network);
        }
        None
    }

    /// Starts another rise, for as long as a copy's opening takes.
    pub(super) fn begin(&mut self, now: Duration, network: &Network) {
        *self = StartUp {
            target: Some(StartUp::target(network)),
            confirmed_at: network.window.newest().confirmed_bytes,
            until: Some(now + network.pace().opening),
        };
    }
}

/// How many connections the bytes in flight give a [`WINDOW`] each.
fn windows(sample: &Sample) -> u16 {
    match sample.under_way_bytes {
        // Unknown.
        0 => u16::MAX,
        bytes => u16::try_from(bytes / WINDOW).unwrap_or(u16::MAX),
    }
}

/// Most of the bytes in flight; there is no need to wait for the last of them.
fn confirming(sample: &Sample) -> u64 {
    sample.under_way_bytes / 4 * 3
}

#[cfg(test)]
mod tests {
    use super::super::Tuner;
    use super::super::sim::{WORLD, World, start};
    use super::*;

    fn tuner(round_trip_ms: u64) -> Tuner {
        let rtt = round_trip_ms as f64 / 1e3;
        Tuner::new(start(&World { rtt, ..WORLD })).0
    }

    /// Connections in use after one sample in which the first windows were acknowledged.
    fn after_the_first_windows(round_trip_ms: u64, is_ms: f64) -> u16 {
        let mut tuner = tuner(round_trip_ms);
        let sample = Sample {
            confirmed_bytes: AT_WORK_FIRST as u64 * FIRST_WINDOW,
            round_trip: Duration::from_secs_f64(is_ms / 1e3),
            ..Sample::default()
        };
        let adjustment = tuner.on_sample(Duration::from_millis(15), &sample);
        adjustment.map_or(AT_WORK_FIRST, |it| it.decision.streams)
    }

    #[test]
    fn a_first_round_trip_without_a_queue_puts_all_usual_streams_to_work() {
        // 1 Gbit/s, as measured; and the time that ten segments of each of two connections take at
        // 5 Mbit/s.
        assert_eq!(after_the_first_windows(150, 150.4), 16);
        assert_eq!(after_the_first_windows(50, 50.2), 8);
        assert_eq!(after_the_first_windows(150, 162.0), AT_WORK_FIRST);
        assert_eq!(after_the_first_windows(300, 312.0), AT_WORK_FIRST);
        // Before they are acknowledged nothing is known.
        let mut tuner = tuner(150);
        let sample = Sample {
            confirmed_bytes: FIRST_WINDOW,
            round_trip: Duration::from_millis(150),
            ..Sample::default()
        };
        assert_eq!(tuner.on_sample(Duration::from_millis(15), &sample), None);
        assert_eq!(tuner.next_sample(Duration::from_millis(15)), LOOK);
    }

    #[test]
    fn in_slow_start_connections_join_when_each_has_a_window_in_flight() {
        let streams = |under_way_bytes: u64| {
            let mut tuner = tuner(200);
            let mut streams = AT_WORK_FIRST;
            for at in (1..=16).map(|step| Duration::from_millis(50) * step) {
                let carried = (2e6 * at.as_secs_f64()) as u64;
                let sample = Sample {
                    raw_bytes: carried,
                    wire_bytes: carried,
                    carried_bytes: carried,
                    confirmed_bytes: carried,
                    frames: carried >> 18,
                    link_busy: at,
                    // The first windows took 15 ms, so not all connections begin at once.
                    round_trip: Duration::from_millis(215),
                    under_way_bytes,
                    ..Sample::default()
                };
                if let Some(adjustment) = tuner.on_sample(at, &sample) {
                    streams = adjustment.decision.streams;
                }
            }
            streams
        };
        assert_eq!(streams(WINDOW), AT_WORK_FIRST);
        assert_eq!(streams(3 * WINDOW), 3);
        assert!(streams(0) > 3, "unknown");
    }
}
