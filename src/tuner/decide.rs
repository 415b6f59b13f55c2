//! The tuner's decision after a sample: it judges the change on trial, or considers another change.

use std::time::Duration;

use super::Tuner;
use super::bounds::ROUND_TRIP_MAX;
use super::connections::ConnectionChoice;
use super::experiment::{Change, Experiment, Judgement};
use super::intervals::{APART, Intervals};
use super::method::{Facts, LADDER, LZMA, MIDDLE, RUNGS, extrapolate, rung as rung_of};
use super::model::{LIMITED, LOSSY, Stages};
use super::network::GROWING;
use super::queue::QueueDepth;
use super::terms::{Decision, streams};
use super::window::Rates;
use crate::units;

/// The span over which the cost and ratio of the method in use are measured.
const FACTS: Duration = Duration::from_secs(2);

/// How long the tuner waits before it again measures a method that promised too little.
const SCOUTED: Duration = Duration::from_secs(2);

/// The longest measurement of a method, if too few of its chunks come by.
const SCOUT_MAX: Duration = Duration::from_secs(5);

/// How often the tuner measures a neighbour of the rung in use that promises nothing: the data may
/// have changed.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// The rate is still falling if it drops by this factor.
const FALLING: f64 = 1.05;

/// The longest time for which LZMA is avoided after workers were too slow for it.
const LZMA_SHUT_MAX: Duration = Duration::from_secs(600);

/// A link that has data to send for a smaller share of the time is far from full.
const IDLE: f64 = 0.5;

impl Tuner {
    /// Returns the reason of a change, if it made one.
    pub(super) fn judge(&mut self, now: Duration, mut trial: Experiment) -> Option<String> {
        let pace = Intervals::of(trial.round_trip);
        let Some(rates) = self.network.window.last(pace.quick, self.network.workers) else {
            self.trial = Some(trial);
            return None;
        };
        self.network.note_link(now, &rates);
        match trial.judge(now, pace, &rates, self.network.window.newest().frames) {
            Judgement::Wait => {
                self.trial = Some(trial);
                None
            }
            Judgement::Keep => {
                self.holds.forget(trial.change);
                self.changed = now;
                None
            }
            Judgement::KeepAndGoOn => {
                self.holds.forget(trial.change);
                self.changed = now;
                // Connections still in slow start have yet to show their gain.
                let is_growing = now <= pace.opening && self.network.is_growing(pace.quick, &rates);
                (!is_growing).then(|| self.consider_streams(now, &rates))?
            }
            Judgement::Revert => {
                self.holds.add(now, &trial);
                if matches!(trial.change, Change::Rung(rung) if rung >= LZMA) {
                    self.shut_lzma(now);
                }
                let (tried, base) = (self.decision, &trial.base);
                self.decision = trial.before;
                let (what, than) = self.undone(&trial, &tried);
                Some(format!(
                    "back to {what} ({}): {than} reached only {}",
                    units::rate(base.goodput),
                    units::rate(rates.goodput)
                ))
            }
        }
    }

    /// Looks for something to change, and returns the reason if it did.
    pub(super) fn consider(&mut self, now: Duration) -> Option<String> {
        let pace = self.network.pace();
        let quick = self.network.window.last(pace.quick, self.network.workers);
        if let Some(rates) = &quick {
            self.rise.again(now, &mut self.network, rates);
        }
        let fewer =
            quick.and_then(
                |rates| match self.connections().is_queue_certain(now, &rates) {
                    true => self
                        .rise
                        .shrink(now, &mut self.network, &mut self.decision, &rates),
                    false => None,
                },
            );
        if fewer.is_some() {
            return fewer;
        }
        let jumped =
            quick.and_then(|rates| self.jump(now, &rates).or_else(|| self.fall(now, &rates)));
        if jumped.is_some() {
            return jumped;
        }
        let span = pace.of_method(now);
        if now < self.changed + span {
            return None;
        }
        let rates = self.network.window.last(span, self.network.workers)?;
        let growing = self.network.is_growing(span, &rates);
        self.network.note_link(now, &rates);
        if !growing {
            self.holds.lift(now, &rates);
        }
        let in_opening = now <= pace.opening;
        // Where loss limits each connection, the link has yet to show its throughput.
        if in_opening && !growing && self.network.is_lossy(&rates) {
            let more = self.consider_streams(now, &rates);
            if more.is_some() {
                return more;
            }
        }
        // The lower rate would change the method, but more connections should compensate for the
        // loss.
        if !in_opening && self.begins_to_lose(pace, &rates) {
            let more = self.consider_streams(now, &self.rate_left(pace)?);
            if more.is_some() {
                return more;
            }
        }
        if let Some(reason) = self.consider_method(now, &rates, growing) {
            return Some(reason);
        }
        let rest = if in_opening { pace.quick } else { pace.sure };
        let rates = self.network.window.last(pace.quick, self.network.workers)?;
        let growing = self.network.is_growing(pace.quick, &rates);
        if now < self.changed + rest || (growing && !self.network.is_windows_full(&rates)) {
            return None;
        }
        if in_opening {
            return self.consider_streams(now, &rates);
        }
        let rates = self.network.window.last(pace.sure, self.network.workers)?;
        self.consider_streams(now, &rates)
    }

    /// The path loses much more than a short while ago, and not because a queue overflows. `rates`
    /// are those of `pace.quick`.
    fn begins_to_lose(&self, pace: Intervals, rates: &Rates) -> bool {
        let is_limit = rates.link >= LIMITED && !self.network.has_queue(QueueDepth::Long);
        is_limit && rates.loss >= LOSSY && self.network.lost_less(2 * pace.sure, rates.loss)
    }

    /// The link's rates after loss has begun, by which more connections are judged. None while
    /// they are unknown: windows shrink by three tenths in a round trip.
    fn rate_left(&self, pace: Intervals) -> Option<Rates> {
        let sure = self.network.window.last(pace.sure, self.network.workers)?;
        let span = (pace.quick / 2).max(2 * APART);
        let (before, last) = self.network.window.halves(span, self.network.workers)?;
        if last.wire * GROWING < sure.wire {
            let is_falling = last.wire * FALLING < before.wire;
            return (!is_falling && !self.network.lost_less(span, last.loss)).then_some(last);
        }
        (!self.network.lost_less(pace.sure, last.loss)).then_some(sure)
    }

    /// A throughput measured under another rate limit no longer applies, and a trial cannot be
    /// judged across the change. Returns the reason of a change, if it made one.
    /// `most_before`: the most connections of use under the former limit.
    pub(super) fn on_rate_limit(
        &mut self,
        now: Duration,
        most_before: Option<u16>,
    ) -> Option<String> {
        self.network.link = None;
        self.holds.lift_all(now);
        self.changed = now;
        let back = self.trial.take().map(|trial| {
            let tried = std::mem::replace(&mut self.decision, trial.before);
            let back = self.undone(&trial, &tried).0;
            format!("back to {back}: the rate limit changed")
        });
        let at_work = &mut self.decision.streams;
        let fewer = (self.rise).follow_limit(now, &self.network, most_before, at_work);
        fewer.or(back)
    }

    /// The setting that a failed trial returned to, and the setting that it tried.
    fn undone(&self, trial: &Experiment, tried: &Decision) -> (String, String) {
        match trial.change {
            Change::Rung(_) => (trial.before.method.to_string(), tried.method.to_string()),
            Change::Congestion(_) => ("the system's congestion control".into(), "bbr".into()),
            _ => (streams(trial.before.streams), streams(tried.streams)),
        }
    }

    /// Settings found while the rate limit or other traffic held the copy back say nothing about the
    /// link. Only the last settings found without that are remembered, and none of a polite copy.
    pub(super) fn note_unlimited(&mut self, now: Duration) {
        let span = self.network.pace().quick;
        let is_free = |rates: Rates| !self.network.is_rate_limited(&rates);
        let last = self.network.window.last(span, self.network.workers);
        if !self.network.start.polite && last.is_none_or(is_free) {
            let before = self.unlimited.map_or(Duration::ZERO, |(_, spent)| spent);
            let since = now.saturating_sub(self.network.sampled);
            self.unlimited = Some((self.kept(), before + since));
        }
        self.network.sampled = now;
    }

    /// Switches to LZMA without measuring it if a link is slow and has a queue. A frame may take
    /// seconds there, and measuring first takes several frames. The trial is reverted if it gains
    /// too little.
    fn jump(&mut self, now: Duration, rates: &Rates) -> Option<String> {
        let is_limit = rates.link >= LIMITED
            && self.network.is_slow(rates)
            && self.network.has_queue(QueueDepth::Clear);
        let rung = self.decision.rung;
        if !is_limit || rung >= LZMA || self.network.start.forced.compress.is_some() {
            return None;
        }
        let is_open = |other: &usize| {
            self.may_use(now, *other) && self.holds.is_open(now, Change::Rung(*other))
        };
        let stages = Stages::new(rates, self.network.workers, rung, Some(rates.wire));
        // On a slow link a chunk of any one method is rare.
        let whole = self.network.window.whole(self.network.workers).facts;
        let lately = self.facts(now);
        let facts = std::array::from_fn(|rung| lately[rung].or(whole[rung]));
        let to = stages.jump(&facts, (LZMA..RUNGS).filter(is_open))?;
        self.network.link = Some((rates.wire, now));
        self.begin(now, Change::Rung(to), rates);
        self.set_rung(to);
        self.decision.spare = None;
        self.set_scout(now, None);
        Some(format!("{}: the link is slow and saturated", LADDER[to]))
    }

    /// Leaves a method for slow links in one step if workers are the bottleneck and the link waits
    /// for them: the link has become faster, or the processors are busy with other work.
    fn fall(&mut self, now: Duration, rates: &Rates) -> Option<String> {
        let rung = self.decision.rung;
        let rested = now >= self.changed + self.network.pace().quick;
        if rung <= MIDDLE + 1 || !rested || self.network.start.forced.compress.is_some() {
            return None;
        }
        self.network.note_link(now, rates);
        if rates.workers < LIMITED || rates.link >= LIMITED {
            return None;
        }
        let to = match self.network.link {
            None if rates.link < IDLE => MIDDLE,
            Some((link, _)) if rung >= LZMA => {
                let cheap = extrapolate(MIDDLE + 1, rung, self.facts(now)[rung]?);
                if rates.goodput >= link * cheap.ratio {
                    return None;
                }
                let below = MIDDLE + 1..=self.strongest();
                let stages = Stages::new(rates, self.network.workers, rung, Some(link));
                self.shut_lzma(now);
                // The best of the methods that keep up.
                let best = stages.jump(&self.facts(now), below);
                best.unwrap_or(MIDDLE + 1)
            }
            _ => return None,
        };
        let from = self.decision.method;
        self.set_rung(to);
        self.set_scout(now, None);
        Some(format!(
            "{}: the processors are too slow for {from}",
            LADDER[to]
        ))
    }

    /// Avoids LZMA for a while, and for twice as long the next time.
    fn shut_lzma(&mut self, now: Duration) {
        let (_, length) = self.lzma_shut;
        self.lzma_shut = (now + length, (2 * length).min(LZMA_SHUT_MAX));
    }

    fn consider_method(&mut self, now: Duration, rates: &Rates, growing: bool) -> Option<String> {
        if self.network.start.forced.compress.is_some() {
            return None;
        }
        let facts = self.facts(now);
        // In slow start the link is slower than it will be.
        let highest = if growing { MIDDLE } else { RUNGS - 1 };
        let rung = self.decision.rung;
        let open: [bool; RUNGS] = std::array::from_fn(|other| {
            self.may_use(now, other)
                && other <= highest.max(rung)
                && self.holds.is_open(now, Change::Rung(other))
        });
        let link = self.network.link.map(|(carried, _)| carried);
        let choice = Stages::new(rates, self.network.workers, rung, link).choose(&facts, open);
        // On a far link it helps as long as slow start is the bottleneck.
        if rung == 0 || !growing {
            self.decision.spare = None;
        }
        if self.decision.spare.is_none() {
            let measured = facts.map(|facts| facts.is_some());
            self.scout(now, choice.scout, rates, open, &measured);
        }
        // Measures the most promising method first, unless that takes too long.
        if choice.is_scout_first && self.scouting.0 == choice.scout {
            return None;
        }
        // `fall` handles the way down from LZMA.
        let to = choice.better.filter(|to| rung < LZMA || *to >= LZMA)?;
        let of = facts[to]?;
        self.begin(now, Change::Rung(to), rates);
        self.set_rung(to);
        self.decision.spare = None;
        self.set_scout(now, None);
        let limit = if to > rung {
            "the network"
        } else {
            "a processor"
        };
        Some(format!(
            "{}: {limit} is the limit; {:.2}:1 at {} per worker",
            LADDER[to],
            of.ratio,
            units::rate(1e9 / of.ns_per_byte.max(0.01)),
        ))
    }

    /// Facts of the rung in use and of the rung measured beside it, over the same span, since the
    /// data may change at any time. Other rungs are unknown.
    fn facts(&self, now: Duration) -> [Option<Facts>; RUNGS] {
        let (scouted, since) = self.scouting;
        let span = match scouted {
            Some(_) => now.saturating_sub(since).min(SCOUT_MAX),
            None => FACTS,
        };
        let seen = self.network.window.last(span, self.network.workers);
        let seen = seen.unwrap_or_else(|| self.network.window.whole(self.network.workers));
        let spare = self.decision.spare.and_then(rung_of);
        let known = |rung: usize| {
            rung == 0 || [Some(self.decision.rung), scouted, spare].contains(&Some(rung))
        };
        std::array::from_fn(|rung| seen.facts[rung].filter(|_| known(rung)))
    }

    /// Has the most promising method measured, or now and then the next one up or down.
    fn scout(
        &mut self,
        now: Duration,
        promising: Option<usize>,
        rates: &Rates,
        open: [bool; RUNGS],
        measured: &[bool; RUNGS],
    ) {
        let rung = self.decision.rung;
        if let (Some(scouted), since) = self.scouting {
            let done = measured[scouted] && measured[rung];
            if !done && now < since + SCOUT_MAX {
                return;
            }
            self.scouted[scouted] = now;
        }
        let rested = |rung: usize, rest: Duration| match self.scouted[rung] {
            Duration::ZERO => true,
            at => now >= at + rest,
        };
        let neighbour = if rates.link >= LIMITED {
            rung + 1
        } else {
            rung.saturating_sub(1)
        };
        let look = (1..RUNGS).contains(&neighbour) && open[neighbour];
        let scout = promising
            .filter(|rung| rested(*rung, SCOUTED))
            .or((look && rested(neighbour, LOOK_AGAIN)).then_some(neighbour));
        self.set_scout(now, scout);
    }

    pub(super) fn set_scout(&mut self, now: Duration, rung: Option<usize>) {
        self.scouting = (rung, now);
        self.decision.scout = rung.map(|rung| LADDER[rung]);
    }

    fn connections(&self) -> ConnectionChoice<'_> {
        ConnectionChoice {
            network: &self.network,
            path: &self.path,
            holds: &self.holds,
            decision: self.decision,
        }
    }

    /// Begins to try another number of connections or another congestion control, if that may help.
    fn consider_streams(&mut self, now: Duration, rates: &Rates) -> Option<String> {
        let proposal = self.connections().propose(now, rates)?;
        self.begin(now, proposal.change, rates);
        self.decision = proposal.decision;
        Some(proposal.reason)
    }

    /// Starts a trial; the caller calls this before it changes the decision.
    pub(super) fn begin(&mut self, now: Duration, change: Change, base: &Rates) {
        let newest = self.network.window.newest();
        let round_trip =
            match self
                .path
                .is_longer_to_be_tried(&self.network, self.decision.congestion, base)
            {
                true => newest.round_trip,
                false => self.network.round_trip_min,
            };
        self.trial = Some(Experiment {
            change,
            round_trip: round_trip.min(ROUND_TRIP_MAX),
            before: self.decision,
            base: *base,
            lasting: self.connections().lasting(change, base),
            unevenness: self.network.window.unevenness(self.network.pace().sure),
            began: now,
            drained: newest.frames + u64::from(newest.queued),
            drained_at: None,
        });
    }
}
