//! The number of connections and their congestion control: what to try where the link is the
//! bottleneck.

use std::time::Duration;

use super::bounds::FAR_AWAY;
use super::experiment::{Change, Cooldowns};
use super::model::LIMITED;
use super::network::{GROWING, Network};
use super::path::Path;
use super::queue::QueueDepth;
use super::terms::{Congestion, Decision, streams};
use super::window::Rates;

/// The payload of a TCP segment on Ethernet.
const SEGMENT: f64 = 1448.0;

/// How many times the formula's rate lossy connections are assumed to carry. The formula gives the
/// long-term mean, and a copy does not last that long.
const CUBIC_SLACK: f64 = 3.0;

/// A change to try.
pub(super) struct Proposal {
    pub change: Change,
    pub decision: Decision,
    /// For the user.
    pub reason: String,
}

/// What the choice depends on.
#[derive(Clone, Copy)]
pub(super) struct ConnectionChoice<'a> {
    pub network: &'a Network,
    pub path: &'a Path,
    pub holds: &'a Cooldowns,
    /// In force now.
    pub decision: Decision,
}

impl ConnectionChoice<'_> {
    /// Another number of connections, or another congestion control, that may raise the rate.
    pub(super) fn propose(&self, now: Duration, rates: &Rates) -> Option<Proposal> {
        // Without traffic there is nothing to learn.
        if rates.wire < 1.0 {
            return None;
        }
        let linked = rates.link >= LIMITED && !self.network.is_rate_limited(rates);
        if self.network.is_fit(now, rates) {
            return None;
        }
        let (queue, lossy) = (
            self.network.has_queue(QueueDepth::Long),
            self.network.is_lossy(rates),
        );
        if linked && lossy && self.may_try_bbr(now, rates) {
            return Some(Proposal {
                change: Change::Congestion(Congestion::Bbr),
                decision: Decision {
                    congestion: Congestion::Bbr,
                    ..self.decision
                },
                reason: format!("bbr: {:.2} % packet loss", rates.loss * 100.0),
            });
        }
        if self.network.start.forced.streams.is_some() {
            return None;
        }
        // Behind a standing queue the link is full, and more connections would only take bandwidth
        // from others. A slow link makes windows small, so that they look full. Under bbr each
        // connection takes the free bandwidth by itself, however much is lost.
        let is_bbr = self.decision.congestion == Congestion::Bbr;
        let has_room = (!queue && !is_bbr)
            || (self.network.is_windows_full(rates) && !self.network.is_slow(rates))
            || self
                .path
                .is_longer_to_be_tried(self.network, self.decision.congestion, rates);
        if linked && has_room {
            let more = self.more_streams(now, rates, lossy);
            if more.is_some() {
                return more;
            }
        }
        let busy = rates.link.max(rates.workers).max(rates.far_workers) >= LIMITED;
        let near = self.network.round_trip_min < FAR_AWAY && !self.network.is_rate_limited(rates);
        let fewer = self.decision.streams / 2;
        let change = Change::FewerStreams(fewer);
        if near && busy && fewer > 0 && self.holds.is_open(now, change) {
            return Some(self.proposal(change, fewer, "fewer can be faster at a low latency"));
        }
        None
    }

    fn more_streams(&self, now: Duration, rates: &Rates, lossy: bool) -> Option<Proposal> {
        let full = self.network.is_windows_full(rates);
        let own = self.decision.streams;
        // Loss does not slow bbr down.
        let lossy = lossy && self.decision.congestion != Congestion::Bbr;
        // Where loss or its window limits each connection, many more connections are needed.
        let is_held_back = lossy || full;
        let is_doubtful =
            self.path
                .is_longer_to_be_tried(self.network, self.decision.congestion, rates);
        let is_full = !is_held_back && !is_doubtful && self.network.has_queue(QueueDepth::Slight);
        if is_full || !self.pays_off(rates, is_held_back) {
            return None;
        }
        let by = if is_held_back { 4 } else { 2 };
        let wanted = own.saturating_mul(by).min(self.network.streams_max());
        let change = match is_doubtful {
            true => Change::ToldByStreams(wanted),
            false => Change::MoreStreams(wanted),
        };
        if wanted <= own || !self.holds.is_open(now, change) {
            return None;
        }
        let why = match (lossy, full) {
            _ if is_doubtful => "the path may have become longer",
            (true, _) => "the path loses packets",
            (_, true) => "TCP windows are full",
            _ => "the network is the limit",
        };
        Some(self.proposal(change, wanted, why))
    }

    fn proposal(&self, change: Change, wanted: u16, why: &str) -> Proposal {
        Proposal {
            change,
            decision: Decision {
                streams: wanted,
                ..self.decision
            },
            reason: format!("{}: {why}", streams(wanted)),
        }
    }

    /// New connections start slowly, and the copy ends with the chunks they were given then. The
    /// copy must last long enough for them to become fast, and longer if they are only a trial.
    fn pays_off(&self, rates: &Rates, is_held_back: bool) -> bool {
        let sure = self.network.pace().sure.as_secs_f64();
        let least = if is_held_back { sure } else { 2.0 * sure };
        let rest = self.network.window.newest().rest_bytes;
        rest.is_none_or(|rest| rest as f64 >= least * rates.goodput)
    }

    /// Long round trips come from a queue, as far as trials of more connections can show.
    pub(super) fn is_queue_certain(&self, now: Duration, rates: &Rates) -> bool {
        let more = Change::ToldByStreams(self.decision.streams);
        let may_try =
            self.holds.is_open(now, more) && self.decision.streams < self.network.streams_max();
        !(may_try
            && self
                .path
                .may_be_longer(self.network, self.decision.congestion, rates))
    }

    /// Tries bbr only where connections are far below what their windows allow: it takes bandwidth
    /// from others.
    fn may_try_bbr(&self, now: Duration, rates: &Rates) -> bool {
        let windows = self.network.window.newest().window_rate();
        self.network.start.may_bbr
            && !self.network.start.nice
            && !self.network.start.forced.congestion
            && self.decision.congestion != Congestion::Bbr
            && windows.is_none_or(|most| rates.wire < most / 2.0)
            && self.holds.is_open(now, Change::Congestion(Congestion::Bbr))
    }

    /// The link's throughput if nothing changes. Slow start leaves connections with a higher rate
    /// than loss lets them keep, and they come down from it over many seconds.
    pub(super) fn lasting(&self, change: Change, rates: &Rates) -> f64 {
        let by_loss = matches!(change, Change::MoreStreams(_) | Change::Congestion(_))
            && self.decision.congestion == Congestion::System
            && self.network.is_lossy(rates);
        // The rate may have come down already.
        let sure = self
            .network
            .window
            .last(self.network.pace().sure, self.network.workers);
        let has_come_down = sure.is_some_and(|sure| rates.wire * GROWING < sure.wire);
        if !by_loss || has_come_down {
            return rates.wire;
        }
        // Loss from a queue that overflowed in slow start does not occur in the next span.
        let quick = self.network.pace().quick;
        let loss = match self.network.window.last(2 * quick, self.network.workers) {
            Some(both) => {
                let lost = |of: &Rates| of.loss * of.wire * of.seconds;
                let before = both.wire * both.seconds - rates.wire * rates.seconds;
                ((lost(&both) - lost(rates)) / before.max(1.0)).min(rates.loss)
            }
            None => 0.0,
        };
        let round_trip = self.network.window.newest().round_trip.as_secs_f64();
        let streams = f64::from(self.decision.streams);
        rates
            .wire
            .min(CUBIC_SLACK * streams * cubic(loss, round_trip))
    }
}

/// The long-term rate in bytes a second of a connection with this loss: RFC 9438, section 5.1
/// (cubic's window with C 0.4 and beta 0.7).
fn cubic(loss: f64, round_trip_s: f64) -> f64 {
    1.054 * (round_trip_s / loss.max(1e-9)).powf(0.75) * SEGMENT / round_trip_s.max(1e-3)
}

#[cfg(test)]
mod tests {
    use super::super::sim::{WORLD, World, start};
    use super::super::{Forced, Sample, Tuner};
    use super::*;
    use crate::algorithms::Method;

    #[test]
    fn loss_holds_cubic_to_what_the_formula_says() {
        // 0.1 % at 150 ms: a window of 45 segments.
        let window = cubic(1e-3, 0.15) * 0.15 / SEGMENT;
        assert!((44.0..47.0).contains(&window), "{window}");
        // Without loss the formula sets no limit.
        assert!(cubic(0.0, 0.15) > 1e9);
    }

    /// The most connections in use on a link of 1 Gbit/s that is full for 5 s, for a copy of this
    /// many bytes with this round trip.
    fn most_streams(bytes: Option<u64>, round_trip: Duration) -> u16 {
        let mut start = start(&World { rtt: 0.15, ..WORLD });
        start.forced = Forced {
            compress: Some(Method::None),
            ..Forced::default()
        };
        let (mut tuner, first) = Tuner::new(start);
        let mut most = first.streams;
        for at in (1..=100).map(|step| Duration::from_millis(50) * step) {
            let carried = (125e6 * at.as_secs_f64()) as u64;
            let sample = Sample {
                acked_bytes: carried,
                rest_bytes: bytes.map(|bytes| bytes.saturating_sub(carried)),
                raw_bytes: carried,
                wire_bytes: carried,
                carried_bytes: carried,
                confirmed_bytes: carried,
                frames: carried >> 20,
                link_busy: at,
                round_trip,
                ..Sample::default()
            };
            if let Some(adjustment) = tuner.on_sample(at, &sample) {
                most = most.max(adjustment.decision.streams);
            }
        }
        most
    }

    #[test]
    fn streams_are_only_tried_where_there_is_room_and_something_left_to_send() {
        let idle = Duration::from_millis(150);
        assert_eq!(most_streams(None, idle), 32);
        assert_eq!(most_streams(Some(1 << 40), idle), 32);
        assert_eq!(most_streams(Some(300_000_000), idle), 16, "over in 2.4 s");
        assert_eq!(most_streams(None, Duration::from_millis(190)), 16, "full");
    }
}
