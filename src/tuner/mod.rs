//! Chooses, while the copy runs, how its chunks are compressed, over how many streams they go and
//! how many are under way: samples of what was seen go in, decisions come out.
//!
//! It runs at the sending end. It does no I/O, reads no clock and knows no thread; time is what
//! the caller says has passed since the start of the copy.
//!
//! What a method costs and brings is measured: a few chunks go by one that looks promising
//! (`Decision::scout`), and `model` says what the copy would then make, as the slowest of its
//! stages. What more streams or another congestion control bring nobody can tell before, so they
//! are tried. Whatever is changed is one change at a time, a `trial`: kept if it brought 5 %,
//! else taken back and left alone for a while. A method comes before streams, since both are an
//! answer to a link that is the limit and would chase each other.

mod forecast;
mod method;
mod model;
mod pace;
mod path;
mod polite;
mod queue;
mod rate_limit;
mod remembered;
mod rise;
mod sample;
mod steps;
mod streams;
mod trial;
mod verdict;
mod window;

#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod sim;

use std::time::Duration;

use crate::chunk::{CHUNK_SIZE, LARGE_PACK};
pub use forecast::{Measured, best, forecast};
pub use method::{Facts, LADDER, Method, RUNGS, rung};
pub use model::Forecast;
pub use pace::next_sample;
pub use polite::{LOOK, POLITE_STREAMS, PoliteRate, StreamSight};
pub use remembered::{FILE_MAX, Remembered, Routes};
pub use sample::{Coded, Far, Sample};
pub use verdict::{Limit, Shares, Verdict};

use method::{LZMA, MIDDLE};
use path::Path;
use rate_limit::RateLimit;
pub use rise::AT_WORK_FIRST;
use rise::Rise;
use trial::{Holds, Trial};
use window::{Window, Workers};

/// More streams than any link that was measured wanted.
pub const STREAMS_MAX: u16 = 256;

/// Chunks that are under way, read but not acknowledged. That many megabytes are sent again at
/// worst when every stream dies at once; the most fills 10 Gbit/s at 1.5 s. The fewest are enough
/// for what waits at the hands of both ends and for acknowledgements that come every 2 ms at
/// 2 GB/s; with many more, buffers go round that no cache holds (1 GB on loopback with 2
/// processors: 67,000 page faults with 1024, 21,000 with 64).
const IN_FLIGHT_MIN: u16 = 32;
const IN_FLIGHT_MAX: u16 = 2048;

/// Frames that may wait for a stream: what a link carries in a quarter of a second, but no more
/// than one being written and one behind it for each stream.
const QUEUE_S: f64 = 0.25;
const QUEUE_PER_STREAM: u16 = 2;

/// As many while nothing is known: what is made now may turn out to be made in the wrong way.
pub const QUEUE_MIN: u16 = 4;

/// While a method is measured, the first chunk and every so manieth after it go by it: an eighth
/// of the chunks shows within 250 ms on most links, and costs little where the method is slow.
pub const SCOUT_EVERY: u64 = 8;

/// From here on it is a distance rather than a room: slow start makes the link the limit at first
/// however fast it is, and streams are wanted for their windows.
const FAR_AWAY: Duration = Duration::from_millis(5);

/// A link that is limited to less than this is sure to be the limit: one processor compresses
/// faster than it carries what comes of it.
const SLOW_BYTES_PER_S: u64 = 100_000_000;

/// LZMA is left alone for so long after workers were too slow for it.
const LZMA_SHUT: Duration = Duration::from_secs(30);

/// Packs may go as one on links below this, in bytes a second: a faster one is not the limit for
/// what compresses so well.
const LARGE_PACK_LINK: f64 = 12.5e6;

/// A large pack is to be on its way for no longer than this, and not to fill more than this of a
/// frame, since some shrink less than others.
const LARGE_PACK_S: f64 = 1.5;
const LARGE_PACK_FILLED: f64 = 0.75;

/// How the content shrinks is seen over this.
const LARGE_PACK_FACTS: Duration = Duration::from_secs(3);

/// A copy shorter than this has learnt nothing.
const REMEMBER_AFTER_S: f64 = 3.0;

/// Round trips beyond this are queues somewhere; nothing waits ten times longer.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(600);

/// What is known before the first byte.
#[derive(Clone, Debug)]
pub struct Start {
    /// Measured by the hello.
    pub round_trip: Duration,
    /// Of the sending end, where this runs. Zero counts as one.
    pub processors_here: u16,
    pub processors_there: u16,
    /// Buffers of the smaller pool: streams and twice the workers must fit.
    pub slots: usize,
    /// The strongest level of zstd that memory allows.
    pub strongest: Method,
    /// Memory and the peer allow LZMA too.
    pub may_lzma: bool,
    /// The kernel lets this user choose bbr.
    pub may_bbr: bool,
    /// `--nice`: nothing that pushes others aside.
    pub nice: bool,
    pub remembered: Option<Remembered>,
    pub forced: Forced,
}

/// What the user said, which then is not the tuner's to change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forced {
    pub streams: Option<u16>,
    pub compress: Option<Method>,
    /// A name was given, which the caller sets, or none is to be chosen; [`Decision::congestion`]
    /// means nothing.
    pub congestion: bool,
    /// Workers at the sending end.
    pub threads: Option<u16>,
    /// Bytes a second on the wire, at the start: each [`Sample`] has what is in force then.
    pub rate_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// What the sockets came with.
    #[default]
    System,
    Bbr,
}

/// How the copy is to go on from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// For chunks whose sample shrinks.
    pub method: Method,
    /// One chunk in [`SCOUT_EVERY`] goes by this one, to measure it.
    pub scout: Option<Method>,
    /// Until the link is known: chunks that would have to wait for a stream go by this one, which
    /// costs no time there. Far away, where links are slow at first and often for good, a stronger
    /// one than in a room.
    pub spare: Option<Method>,
    /// At work, 1 to [`STREAMS_MAX`]. Those too many are parked, not closed.
    pub streams: u16,
    /// That are to be there: those at work and those that may soon be.
    pub ready: u16,
    /// Chunks read and not yet acknowledged, at most.
    pub in_flight: u16,
    /// Frames that may wait for a stream. What waits was made by the method before.
    pub queue: u16,
    /// Packs that go as one: more than 1 where the link is slow, and as many as it carries within
    /// [`LARGE_PACK_S`] when they are compressed.
    pub packs: u16,
    pub congestion: Congestion,
    /// `method`'s place on the ladder; meaningless if it was forced.
    rung: usize,
}

impl Decision {
    /// For what only shows the link: nothing is compressed, and no more is waited for than memory
    /// makes necessary.
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
    /// What changed and why, in one line; None where only what is measured or under way changed.
    pub reason: Option<String>,
}

pub struct Tuner {
    start: Start,
    workers: Workers,
    decision: Decision,
    window: Window,
    trial: Option<Trial>,
    holds: Holds,
    rise: Rise,
    /// What a slow link carried when it was full, in bytes a second, and when that was.
    full: Option<(f64, Duration)>,
    /// When anything but the scout changed last.
    changed: Duration,
    /// The shortest that was seen, since the path last became longer.
    round_trip_min: Duration,
    path: Path,
    rate_limit: RateLimit,
    /// The last settings that stood while no rate limit held the copy back, and for how long any
    /// did.
    unlimited: Option<(Decision, Duration)>,
    /// When the last sample was taken.
    sampled: Duration,
    /// What the link carried when it was last the limit, and when that was.
    link: Option<(f64, Duration)>,
    /// The rung that is measured beside the one in use, and since when that one alone was.
    scouting: (Option<usize>, Duration),
    /// Until when LZMA is left alone, and for how long the next time.
    lzma_shut: (Duration, Duration),
    /// When each rung was last measured; zero for never.
    scouted: [Duration; RUNGS],
}

/// How many streams to dial before any of them is up. `round_trip` may be a guess. What was
/// remembered counts once a round trip has shown what the link is now.
pub fn first_streams(round_trip: Duration, forced: Option<u16>) -> u16 {
    // Near at hand one stream after another costs wake-ups: 1 GB on loopback with 2 busy processors
    // took 2.4 s with 1 stream, 2.6 with 2, 2.9 with 4 and 3.4 with 8. Two are not lost at once.
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
            window: Window::default(),
            trial: None,
            holds: Holds::default(),
            rise: Rise::to(1),
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
        tuner.rise = Rise::to(tuner.rise_target());
        tuner.decision.streams = tuner.at_work_first();
        tuner.decision.ready = tuner.ready();
        match tuner.start.forced.compress {
            Some(method) => tuner.decision.method = method,
            None => {
                tuner.set_rung(tuner.first_rung());
                // On the very first chunks, so that the first sample tells.
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

    /// To be called every [`Tuner::next_sample`]; what comes within 40 ms of the last only shows
    /// whether the first round trip is over.
    /// `now` is the time since the start, and never less than the last time.
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

    /// Follows what was decided with all that depends on it.
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

    /// Gives the reason of a change, if it made one.
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

    /// What was the limit of the whole copy so far.
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

    /// The decision without what is still on trial.
    fn kept(&self) -> Decision {
        self.trial
            .as_ref()
            .map_or(self.decision, |trial| trial.before)
    }

    /// The cheapest, unless the link is sure to be the limit at first. Never LZMA, by which a link
    /// that is faster than it was last time is not even seen to be.
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

    /// What was learnt where these hosts were as far apart as they are now.
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

    /// There is memory for this rung, and the peer knows it.
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

    /// Room for what the link holds twice over, and a chunk or two at every hand. Powers of two,
    /// and never less than before, so that it is seldom another number.
    fn in_flight(&self, on_the_way: f64) -> u16 {
        let hands = 2 * usize::from(self.decision.streams) + 2 * self.workers.here as usize;
        let wanted = hands + (2.0 * on_the_way).min(f64::from(IN_FLIGHT_MAX)) as usize;
        let wanted = wanted.next_power_of_two().min(usize::from(IN_FLIGHT_MAX)) as u16;
        wanted.max(self.decision.in_flight)
    }

    /// As many as a slow link carries soon, of those that still fit into a frame when they are
    /// compressed.
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

    /// What the link carries while the workers or a disk pause, as a power of two.
    fn queue(&self, frames_per_s: f64) -> u16 {
        let most = QUEUE_PER_STREAM * self.decision.streams;
        let wanted = (QUEUE_S * frames_per_s).min(f64::from(most)) as u16;
        wanted
            .next_power_of_two()
            .clamp(QUEUE_MIN, most.max(QUEUE_MIN))
    }
}
