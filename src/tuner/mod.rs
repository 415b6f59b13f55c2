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
//! change that gains 5 %, and otherwise reverts it and waits before the next attempt. It tries
//! methods before connections: both help where the link is the bottleneck, and they would chase
//! each other.

mod connections;
mod decide;
mod experiment;
mod forecast;
mod intervals;
mod method;
mod model;
mod path;
mod polite;
mod queue;
mod rate_limit;
mod remembered;
mod sample;
mod start_up;
mod verdict;
mod window;

#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod sim;

use std::time::Duration;

pub use self::intervals::next_sample;
use crate::chunk::{CHUNK_SIZE, LARGE_PACK};
pub use forecast::{best, forecast};
pub use method::{Facts, LADDER, Method, RUNGS, rung};
pub use model::{Forecast, Measured};
pub use polite::{ConnectionSight, LOOK, POLITE_STREAMS, PoliteRate};
pub use remembered::{FILE_MAX, Remembered, RememberedRoutes};
pub use sample::{MethodWork, ReceiverSample, Sample};
pub use verdict::{Bottleneck, Shares, Verdict};

use self::experiment::{Cooldowns, Experiment};
pub use self::start_up::AT_WORK_FIRST;
use self::start_up::StartUp;
use method::{LZMA, MIDDLE};
use path::Path;
use rate_limit::RateLimit;
use window::{SampleWindow, Workers};

/// More connections than any measured link needed.
pub const STREAMS_MAX: u16 = 256;

/// Bounds on the chunks in flight: read but not acknowledged. A chunk is 1 MiB, so at worst that
/// many megabytes are retransmitted when every connection dies at once. The maximum fills 10
/// Gbit/s at a round trip of 1.5 s. The minimum suffices for the workers of both ends and for
/// acknowledgements every 2 ms at 2 GB/s. With many more, the buffers in use exceed the
/// processor's cache (1 GB on loopback with 2 processors: 67,000 page faults with 1024, 21,000
/// with 64).
const IN_FLIGHT_MIN: u16 = 32;
const IN_FLIGHT_MAX: u16 = 2048;

/// Seconds of the link's throughput that may queue as frames, and the most frames that may queue
/// for each connection: one being written and one behind it.
const QUEUE_S: f64 = 0.25;
const QUEUE_PER_STREAM: u16 = 2;

/// Queued frames while the link is unknown: their method may turn out to be the wrong one.
pub const QUEUE_MIN: u16 = 4;

/// While the tuner measures a method, the first chunk and then one in this many uses it. An eighth
/// of the chunks gives a result within 250 ms on most links, and costs little if the method is
/// slow.
pub const SCOUT_EVERY: u64 = 8;

/// From this round trip on a link counts as far rather than local. On a far link, slow start is
/// the first bottleneck however fast the link is, and a high rate needs the windows of several
/// connections.
const FAR_AWAY: Duration = Duration::from_millis(5);

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

/// A shorter copy has learnt nothing worth remembering.
const REMEMBER_AFTER_S: f64 = 3.0;

/// Longer round trips are caused by queues; no decision waits for ten longer ones.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(600);

/// Facts known before the first byte.
#[derive(Clone, Debug)]
pub struct Start {
    /// Measured by the hello message.
    pub round_trip: Duration,
    /// Processors of the sender, where the tuner runs. Zero counts as one.
    pub processors_here: u16,
    pub processors_there: u16,
    /// Buffers in the smaller pool. The connections and twice the workers must fit.
    pub slots: usize,
    /// The strongest zstd level that memory allows.
    pub strongest: Method,
    /// Memory and the peer also allow LZMA.
    pub may_lzma: bool,
    /// The kernel lets this user choose bbr.
    pub may_bbr: bool,
    /// `--nice`: use nothing that takes bandwidth from others.
    pub nice: bool,
    pub remembered: Option<Remembered>,
    pub forced: Forced,
}

/// The user's choices, which the tuner does not change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forced {
    pub streams: Option<u16>,
    pub compress: Option<Method>,
    /// The user named a congestion control, which the caller sets, or none may be chosen;
    /// [`Decision::congestion`] then means nothing.
    pub congestion: bool,
    /// Workers at the sender.
    pub threads: Option<u16>,
    /// Bytes a second on the wire, at the start; each [`Sample`] has the limit then in force.
    pub rate_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// The sockets' default.
    #[default]
    System,
    Bbr,
}

/// How the copy proceeds from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// For chunks whose sample shrinks.
    pub method: Method,
    /// One chunk in [`SCOUT_EVERY`] uses this method, to measure it.
    pub scout: Option<Method>,
    /// Until the link is known, chunks that would have to wait for a connection use this method,
    /// which costs no time there. It is stronger on a far link: those are slow at first and often
    /// remain so.
    pub spare: Option<Method>,
    /// Connections in use, 1 to [`STREAMS_MAX`]. Surplus ones are parked, not closed.
    pub streams: u16,
    /// Connections to have open: those in use and those that may soon be.
    pub ready: u16,
    /// The most chunks in flight: read and not yet acknowledged.
    pub in_flight: u16,
    /// Frames that may wait for a connection. They were encoded by an earlier decision.
    pub queue: u16,
    /// Packs to merge into a large one: more than 1 where the link is slow, and as many as it
    /// carries within [`LARGE_PACK_S`] once compressed.
    pub packs: u16,
    pub congestion: Congestion,
    /// Index of `method` on the ladder; meaningless if the user chose the method.
    rung: usize,
}

impl Decision {
    /// For a test of the link alone: no compression, and the maximum number of chunks in flight.
    pub fn of_link_test(streams: u16) -> Decision {
        Decision {
            method: Method::None,
            scout: None,
            spare: None,
            streams,
            ready: streams,
            in_flight: IN_FLIGHT_MAX,
            queue: QUEUE_PER_STREAM * streams,
            packs: 1,
            congestion: Congestion::System,
            rung: 0,
        }
    }
}

/// A decision that differs from the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjustment {
    pub decision: Decision,
    /// What changed and why, in one line; None for the first rise in connections, and where only
    /// the method under measurement or the number of chunks in flight changed.
    pub reason: Option<String>,
}

pub struct Tuner {
    start: Start,
    workers: Workers,
    decision: Decision,
    window: SampleWindow,
    trial: Option<Experiment>,
    holds: Cooldowns,
    rise: StartUp,
    /// The throughput of a slow link when it was full, in bytes a second, and when that was.
    full: Option<(f64, Duration)>,
    /// When anything but the scout last changed.
    changed: Duration,
    /// The shortest round trip since the path last became longer.
    round_trip_min: Duration,
    path: Path,
    rate_limit: RateLimit,
    /// The last settings kept while no rate limit held the copy back, and the total time without
    /// one.
    unlimited: Option<(Decision, Duration)>,
    /// When the last sample was taken.
    sampled: Duration,
    /// The link's throughput when it was last the bottleneck, and when that was.
    link: Option<(f64, Duration)>,
    /// The rung measured beside the one in use, if any, and when this last changed.
    scouting: (Option<usize>, Duration),
    /// Until when LZMA is avoided, and for how long the next time.
    lzma_shut: (Duration, Duration),
    /// When each rung was last measured; zero for never.
    scouted: [Duration; RUNGS],
}

/// How many connections to dial before any of them is up. `round_trip` may be a guess. A
/// remembered number counts only after a round trip has shown the present state of the link.
pub fn first_streams(round_trip: Duration, forced: Option<u16>) -> u16 {
    // On a local link each further connection costs wake-ups: 1 GB on loopback with 2 busy
    // processors took 2.4 s with 1 connection, 2.6 with 2, 2.9 with 4 and 3.4 with 8. Two rarely
    // fail at once.
    let by_distance = match round_trip.as_millis() {
        ..5 => 2,
        5..100 => 8,
        _ => 16,
    };
    forced.unwrap_or(by_distance).clamp(1, STREAMS_MAX)
}

impl Tuner {
    pub fn new(start: Start) -> (Tuner, Decision) {
        let here = start.forced.threads.unwrap_or(start.processors_here).max(1);
        let mut tuner = Tuner {
            workers: Workers {
                here: f64::from(here),
                there: f64::from(start.processors_there.max(1)),
            },
            decision: Decision {
                method: Method::None,
                scout: None,
                spare: None,
                streams: 1,
                ready: 1,
                in_flight: IN_FLIGHT_MIN,
                queue: QUEUE_MIN,
                packs: 1,
                congestion: Congestion::System,
                rung: 0,
            },
            window: SampleWindow::default(),
            trial: None,
            holds: Cooldowns::default(),
            rise: StartUp::to(1),
            full: None,
            changed: Duration::ZERO,
            round_trip_min: start.round_trip,
            path: Path::default(),
            rate_limit: RateLimit::new(start.forced.rate_limit),
            unlimited: None,
            sampled: Duration::ZERO,
            link: None,
            scouting: (None, Duration::ZERO),
            lzma_shut: (Duration::ZERO, LZMA_SHUT),
            scouted: [Duration::ZERO; RUNGS],
            start,
        };
        tuner.rise = StartUp::to(tuner.rise_target());
        tuner.decision.streams = tuner.at_work_first();
        tuner.decision.ready = tuner.ready();
        match tuner.start.forced.compress {
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
        let has_leapt = self.leap(sample);
        if !self.window.push(now, sample) {
            return has_leapt.then(|| self.adjust(before, None)).flatten();
        }
        self.note_round_trip(sample.round_trip);
        self.note_path(now);
        let reason = if has_leapt {
            None
        } else if self.rate_limit.follow(now, sample, self.workers) {
            self.on_rate_limit(now)
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
        let (frames_per_s, on_the_way) = self.frames();
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
        if self.rise(now) {
            return None;
        }
        match self.trial.take() {
            Some(trial) => self.judge(now, trial),
            None => self.consider(now),
        }
    }

    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// The bottleneck of the whole copy so far.
    pub fn verdict(&self) -> Verdict {
        Verdict::new(
            &self.window.whole(self.workers),
            &self.window.newest(),
            &self.start,
            self.kept(),
            self.rate_limit
                .held_back(self.sampled, &self.window.newest(), self.workers),
        )
    }

    /// For the next copy between these two hosts; None before anything is known.
    pub fn remembered(&self) -> Option<Remembered> {
        let forced = &self.start.forced;
        let learnt = self
            .unlimited
            .filter(|(_, spent)| spent.as_secs_f64() >= REMEMBER_AFTER_S)
            .map(|(decision, _)| decision);
        (self.window.whole(self.workers).seconds >= REMEMBER_AFTER_S).then(|| Remembered {
            round_trip_us: self.round_trip_min.as_micros() as u64,
            streams: learnt
                .filter(|_| forced.streams.is_none())
                .map(|it| it.streams),
            method: learnt
                .filter(|_| forced.compress.is_none())
                .map(|it| it.method),
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
        let by_distance = if self.start.round_trip >= FAR_AWAY
            || self.start.forced.rate_limit.is_some_and(is_slow)
        {
            MIDDLE
        } else {
            0
        };
        let wanted = self.remembered_here().and_then(|it| rung(it.method?));
        wanted.unwrap_or(by_distance).min(self.strongest())
    }

    /// What an earlier copy learnt, if the round trip is about the same now.
    fn remembered_here(&self) -> Option<Remembered> {
        self.start
            .remembered
            .filter(|it| it.is_of(self.start.round_trip))
    }

    /// The highest rung below LZMA that may be used.
    fn strongest(&self) -> usize {
        match self.start.strongest {
            Method::Zstd(level) => (0..LZMA)
                .rev()
                .find(|at| !matches!(LADDER[*at], Method::Zstd(other) if other > level))
                .unwrap_or(0),
            method => rung(method).unwrap_or(0),
        }
    }

    /// Memory suffices for this rung, and the peer supports it.
    fn may_use(&self, now: Duration, rung: usize) -> bool {
        let may_lzma = self.start.may_lzma && now >= self.lzma_shut.0;
        rung <= self.strongest() || (rung >= LZMA && (may_lzma || rung == self.decision.rung))
    }

    fn streams_max(&self) -> u16 {
        let room = self
            .start
            .slots
            .saturating_sub(2 * self.workers.here as usize);
        (room.min(usize::from(STREAMS_MAX)) as u16).max(1)
    }

    fn set_rung(&mut self, rung: usize) {
        self.decision.rung = rung;
        self.decision.method = LADDER[rung];
    }

    /// Room for twice the link's capacity and a chunk or two for every worker and connection. A
    /// power of two that never decreases, so that the number seldom changes.
    fn in_flight(&self, on_the_way: f64) -> u16 {
        let hands = 2 * usize::from(self.decision.streams) + 2 * self.workers.here as usize;
        let wanted = hands + (2.0 * on_the_way).min(f64::from(IN_FLIGHT_MAX)) as usize;
        let wanted = wanted.next_power_of_two().min(usize::from(IN_FLIGHT_MAX)) as u16;
        wanted.max(self.decision.in_flight)
    }

    /// As many packs as a slow link carries soon, and as still fit into a frame once compressed.
    fn packs(&self) -> u16 {
        let ratio = match self.window.last(LARGE_PACK_FACTS, self.workers) {
            Some(rates) => rates.ratio,
            None => self.window.whole(self.workers).ratio,
        };
        let Some((link, _)) = self.link.filter(|(link, _)| *link < LARGE_PACK_LINK) else {
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
