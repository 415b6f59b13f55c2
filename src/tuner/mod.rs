//! The adaptive controller of a running copy: it chooses the compression method, the number of
//! connections and the number of chunks in flight. [`Sample`]s go in, [`Decision`]s come out.
//!
//! It runs at the sender. It does no I/O, reads no clock and starts no thread; the caller passes
//! in the time since the start of the copy. A connection is called a stream in names and messages.
//!
//! The tuner measures what a compression method costs and gains: it sends a few chunks by a
//! promising method (`Decision::scout`). `model` then predicts the copy's rate, which is that of
//! its slowest stage. The gain from more connections or another congestion control cannot be
//! predicted, so the tuner tries them. It changes one thing at a time, as a `trial`: it keeps a
//! change that gains 5 %, and otherwise reverts it and waits before the next attempt. Where
//! the link is the bottleneck, both a method and more connections may help. It tries methods
//! first, since their gain can be predicted.

mod bottleneck;
mod bounds;
mod connections;
mod decide;
mod experiment;
mod forecast;
mod intervals;
mod method;
mod model;
mod network;
mod path;
mod polite;
mod queue;
mod rate_limit;
mod remembered;
mod sample;
mod standing_queue;
mod start_up;
mod terms;
mod verdict;
mod window;

#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod sim;

use std::time::Duration;

pub use self::bounds::{QUEUE_MIN, SCOUT_EVERY, STREAMS_MAX};
pub use self::intervals::next_sample;
use crate::algorithms::Method;
use crate::chunk::{CHUNK_SIZE, LARGE_PACK};
use crate::outcome::{Remembered, Shares, Verdict};
pub use forecast::{best, forecast};
pub use method::{Facts, LADDER, RUNGS, rung};
pub use model::{Forecast, Measured};
pub use polite::{ConnectionSight, LOOK, POLITE_STREAMS, PoliteRate};
pub use remembered::{FILE_MAX, RememberedRoutes};
pub use sample::{MethodWork, ReceiverSample, Sample};
pub use terms::{Adjustment, Congestion, Decision, Forced, Start, first_streams};

use self::bounds::{FAR_AWAY, IN_FLIGHT_MAX, IN_FLIGHT_MIN, QUEUE_PER_STREAM, QUEUE_S};
use self::experiment::{Cooldowns, Experiment};
use self::network::Network;
use self::standing_queue::StandingQueue;
pub use self::start_up::AT_WORK_FIRST;
use self::start_up::StartUp;
use method::{LZMA, MIDDLE};
use path::Path;

/// A link whose rate limit is below this is certainly the bottleneck: one processor compresses
/// faster than the link carries the result.
const SLOW_BYTES_PER_S: u64 = 100_000_000;

/// How long the tuner avoids LZMA after workers were too slow for it.
const LZMA_SHUT: Duration = Duration::from_secs(30);

/// Packs may be merged on links below this, in bytes a second. A faster link is not the bottleneck
/// for data that compresses so well.
const LARGE_PACK_LINK: f64 = 12.5e6;

/// A large pack should take no longer than this to send. It should fill no more than this part of
/// a frame, since some packs compress less than others.
const LARGE_PACK_S: f64 = 1.5;
const LARGE_PACK_FILLED: f64 = 0.75;

/// The span over which the compression ratio for large packs is measured.
const LARGE_PACK_FACTS: Duration = Duration::from_secs(3);

/// The span of [`Tuner::shares`].
const SHARES_SPAN: Duration = Duration::from_secs(1);

/// A shorter copy has learnt nothing worth remembering.
const REMEMBER_AFTER_S: f64 = 3.0;

pub struct Tuner {
    network: Network,
    decision: Decision,
    trial: Option<Experiment>,
    holds: Cooldowns,
    rise: StartUp,
    /// When anything but the scout last changed.
    changed: Duration,
    path: Path,
    standing: StandingQueue,
    /// The last settings kept while no rate limit held the copy back, and the total time without
    /// one.
    unlimited: Option<(Decision, Duration)>,
    /// The rung measured beside the one in use, if any, and when this last changed.
    scouting: (Option<usize>, Duration),
    /// Until when LZMA is avoided, and for how long the next time.
    lzma_shut: (Duration, Duration),
    /// When each rung was last measured; zero for never.
    scouted: [Duration; RUNGS],
}

impl Tuner {
    pub fn new(start: Start) -> (Tuner, Decision) {
        let network = Network::new(start);
        let mut tuner = Tuner {
            rise: StartUp::to(StartUp::target(&network)),
            decision: Decision {
                method: Method::None,
                scout: None,
                spare: None,
                streams: 1,
                ready: 1,
                in_flight: IN_FLIGHT_MIN,
                queue: QUEUE_MIN,
                packs: 1,
                congestion: network.start.congestion,
                rung: 0,
            },
            network,
            trial: None,
            holds: Cooldowns::default(),
            changed: Duration::ZERO,
            path: Path::default(),
            standing: StandingQueue::default(),
            unlimited: None,
            scouting: (None, Duration::ZERO),
            lzma_shut: (Duration::ZERO, LZMA_SHUT),
            scouted: [Duration::ZERO; RUNGS],
        };
        tuner.decision.streams = StartUp::at_work_first(&tuner.network);
        tuner.decision.ready = tuner.ready();
        match tuner.network.start.forced.compress {
            Some(method) => tuner.decision.method = method,
            None => {
                tuner.set_rung(tuner.first_rung());
                // On the very first chunks, so that the first sample has a result.
                let scout = tuner.decision.rung == 0 && tuner.strongest() >= MIDDLE;
                tuner.set_scout(Duration::ZERO, scout.then_some(MIDDLE));
                tuner.decision.spare = Some(match tuner.decision.rung {
                    0 => LADDER[tuner.strongest().min(MIDDLE)],
                    _ => LADDER[tuner.strongest().min(MIDDLE + 1)],
                });
            }
        }
        tuner.decision.in_flight = tuner.in_flight(0.0);
        tuner.decision.queue = tuner.queue(0.0);
        let decision = tuner.decision;
        (tuner, decision)
    }

    /// Takes a sample; [`Tuner::next_sample`] says when the next is due. A sample within 40 ms of
    /// the last only shows whether the first round trip is over. `now` is the time since the
    /// start; it never decreases.
    pub fn on_sample(&mut self, now: Duration, sample: &Sample) -> Option<Adjustment> {
        let before = self.decision;
        if self.network.note_first_round_trip(sample.round_trip) {
            self.rise = StartUp::to(StartUp::target(&self.network));
        }
        let at_work = &mut self.decision.streams;
        let has_leapt = self.rise.leap(&self.network, at_work, sample);
        if !self.network.window.push(now, sample) {
            return has_leapt.then(|| self.adjust(before, None)).flatten();
        }
        self.path
            .note_round_trip(&mut self.network, sample.round_trip);
        let streams = self.decision.streams;
        self.standing.look(now, &self.network, streams);
        let is_tried = self.trial.as_ref().is_some_and(Experiment::is_of_path);
        let longer = match self.standing.held_max() {
            Some(_) => {
                self.path.note_limited(now, &self.network);
                None
            }
            None => self.path.note(now, &self.network, is_tried),
        };
        if let Some(round_trip) = longer {
            self.on_longer_path(now, round_trip);
        }
        let most_under_limit = StartUp::most_under_limit(&self.network);
        let reason = if has_leapt {
            None
        } else if self.network.follow_limit(now, sample) {
            self.on_rate_limit(now, most_under_limit)
        } else {
            self.go_on(now)
        };
        self.note_unlimited(now);
        if reason.is_some() {
            self.changed = now;
        }
        self.adjust(before, reason)
    }

    /// Updates the values that depend on the decision.
    fn adjust(&mut self, before: Decision, reason: Option<String>) -> Option<Adjustment> {
        self.decision.ready = self.ready();
        let (frames_per_s, on_the_way) = self.network.frames();
        self.decision.in_flight = self.in_flight(on_the_way);
        self.decision.queue = self.queue(frames_per_s);
        self.decision.packs = self.packs();
        (self.decision != before).then_some(Adjustment {
            decision: self.decision,
            reason,
        })
    }

    /// Returns the reason of a change, if it made one.
    fn go_on(&mut self, now: Duration) -> Option<String> {
        let at_work = &mut self.decision.streams;
        if self.rise.rise(now, &self.network, at_work) {
            return None;
        }
        match self.trial.take() {
            Some(trial) => self.judge(now, trial),
            None => self.consider(now),
        }
    }

    /// Forgets the measurements of the former path, and starts a new rise.
    fn on_longer_path(&mut self, now: Duration, round_trip: Duration) {
        self.path.on_longer(&mut self.network, round_trip);
        // More connections on trial have shown it.
        self.trial = None;
        self.changed = now;
        self.rise.begin(now, &self.network);
    }

    /// Connections to dial: those in use, and some for the next step of a rise.
    fn ready(&self) -> u16 {
        self.rise.ready(&self.network, self.decision.streams)
    }

    /// The interval from `now` to the next sample.
    pub fn next_sample(&self, now: Duration) -> Duration {
        let at_work = self.decision.streams;
        self.rise.next_sample(now, &self.network, at_work)
    }

    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// The most bytes that the kernel and the link may hold for all connections together; None: no
    /// limit.
    pub fn held_max(&self) -> Option<u64> {
        self.standing.held_max()
    }

    /// The bottleneck of the whole copy so far.
    pub fn verdict(&self) -> Verdict {
        verdict::verdict(
            &self.network.window.whole(self.network.workers),
            &self.network.window.newest(),
            &self.network.start,
            self.kept(),
            self.network.rate_limit.held_back(
                self.network.sampled,
                &self.network.window.newest(),
                self.network.workers,
            ),
        )
    }

    /// How busy each stage was in about the last second.
    pub fn shares(&self) -> Shares {
        let workers = self.network.workers;
        let window = &self.network.window;
        let last = window.last(SHARES_SPAN, workers);
        bottleneck::shares(&last.unwrap_or_else(|| window.whole(workers)))
    }

    /// For the next copy between these two hosts; None before anything is known.
    pub fn remembered(&self) -> Option<Remembered> {
        let forced = &self.network.start.forced;
        let learnt = self
            .unlimited
            .filter(|(_, spent)| spent.as_secs_f64() >= REMEMBER_AFTER_S)
            .map(|(decision, _)| decision);
        (self.network.window.whole(self.network.workers).seconds >= REMEMBER_AFTER_S).then(|| {
            Remembered {
                round_trip_us: self.network.round_trip_min.as_micros() as u64,
                streams: learnt
                    .filter(|_| forced.streams.is_none())
                    .map(|it| it.streams),
                method: learnt
                    .filter(|_| forced.compress.is_none())
                    .map(|it| it.method),
            }
        })
    }

    /// The decision without the change on trial.
    fn kept(&self) -> Decision {
        self.trial
            .as_ref()
            .map_or(self.decision, |trial| trial.before)
    }

    /// The cheapest method, unless the link is certainly the bottleneck at first. Never LZMA:
    /// under LZMA the tuner cannot see that a link is faster than it was last time.
    fn first_rung(&self) -> usize {
        let is_slow = |rate| rate < SLOW_BYTES_PER_S;
        let by_distance = if self.network.start.round_trip >= FAR_AWAY
            || self.network.start.forced.rate_limit.is_some_and(is_slow)
        {
            MIDDLE
        } else {
            0
        };
        let wanted = self
            .network
            .remembered_here()
            .and_then(|it| rung(it.method?));
        wanted.unwrap_or(by_distance).min(self.strongest())
    }

    /// The highest rung below LZMA that may be used.
    fn strongest(&self) -> usize {
        match self.network.start.strongest {
            Method::Zstd(level) => (0..LZMA)
                .rev()
                .find(|at| !matches!(LADDER[*at], Method::Zstd(other) if other > level))
                .unwrap_or(0),
            method => rung(method).unwrap_or(0),
        }
    }

    /// Memory suffices for this rung, and the peer supports it.
    fn may_use(&self, now: Duration, rung: usize) -> bool {
        let may_lzma = self.network.start.may_lzma && now >= self.lzma_shut.0;
        rung <= self.strongest() || (rung >= LZMA && (may_lzma || rung == self.decision.rung))
    }

    fn set_rung(&mut self, rung: usize) {
        self.decision.rung = rung;
        self.decision.method = LADDER[rung];
    }

    /// Room for twice the link's capacity and a chunk or two for every worker and connection. A
    /// power of two that never decreases, so that the number seldom changes.
    fn in_flight(&self, on_the_way: f64) -> u16 {
        let hands = 2 * usize::from(self.decision.streams) + 2 * self.network.workers.here as usize;
        let wanted = hands + (2.0 * on_the_way).min(f64::from(IN_FLIGHT_MAX)) as usize;
        let wanted = wanted.next_power_of_two().min(usize::from(IN_FLIGHT_MAX)) as u16;
        wanted.max(self.decision.in_flight)
    }

    /// As many packs as a slow link carries soon, and as still fit into a frame once compressed.
    fn packs(&self) -> u16 {
        let ratio = match self
            .network
            .window
            .last(LARGE_PACK_FACTS, self.network.workers)
        {
            Some(rates) => rates.ratio,
            None => self.network.window.whole(self.network.workers).ratio,
        };
        let Some((link, _)) = self
            .network
            .link
            .filter(|(link, _)| *link < LARGE_PACK_LINK)
        else {
            return 1;
        };
        let carried = link * LARGE_PACK_S * ratio / CHUNK_SIZE as f64;
        let fit = LARGE_PACK_FILLED * ratio;
        carried.min(fit).clamp(1.0, LARGE_PACK as f64) as u16
    }

    /// Frames that the link carries while the workers or a disk pause, as a power of two.
    fn queue(&self, frames_per_s: f64) -> u16 {
        let most = QUEUE_PER_STREAM * self.decision.streams;
        let wanted = (QUEUE_S * frames_per_s).min(f64::from(most)) as u16;
        wanted
            .next_power_of_two()
            .clamp(QUEUE_MIN, most.max(QUEUE_MIN))
    }
}
