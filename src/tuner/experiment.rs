//! Changes on trial, and changes that did not pay and are on hold.

use std::time::Duration;

use super::intervals::Intervals;
use super::method::RUNGS;
use super::model::{LIMITED, LOSSY};
use super::terms::{Congestion, Decision};
use super::window::Rates;

/// The gain that a change must bring.
const GAIN: f64 = 0.05;

/// A change with this gain is kept after [`Intervals::quick`] already.
const GREAT_GAIN: f64 = 0.25;

/// On an uneven link the gain must exceed [`GAIN`] by two standard errors, at most this much.
const UNEVEN_MAX: f64 = 0.15;

/// How long a trial waits for queued frames of the former method.
const DRAIN: Duration = Duration::from_secs(5);

/// A change that did not pay is on hold for this long, then twice as long and so on up to the
/// maximum: a trial costs something too.
const HOLD: Duration = Duration::from_secs(30);
const HOLD_MAX: Duration = Duration::from_secs(600);

/// If the rate has since moved by this factor, conditions are different and the change may be
/// tried again. It must wait at least [`MOVED_AFTER`]: the rate may still be recovering from the
/// trial.
const MOVED: f64 = 1.3;
const MOVED_AFTER: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    Rung(usize),
    MoreStreams(u16),
    /// More connections that show whether the path is longer or has a queue.
    ToldByStreams(u16),
    FewerStreams(u16),
    Congestion(Congestion),
}

const KINDS: usize = RUNGS + 4;

impl Change {
    fn kind(self) -> usize {
        match self {
            Change::Rung(rung) => rung,
            Change::MoreStreams(_) => RUNGS,
            Change::FewerStreams(_) => RUNGS + 1,
            Change::Congestion(_) => RUNGS + 2,
            Change::ToldByStreams(_) => RUNGS + 3,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Experiment {
    pub change: Change,
    /// The round trip that sets the trial's duration.
    pub round_trip: Duration,
    /// The decision to return to if the trial fails.
    pub before: Decision,
    pub base: Rates,
    /// The link's throughput without the change, in bytes a second: the measured rate, unless that
    /// was higher than can last.
    pub lasting: f64,
    /// Standard error of the rate before, relative to it.
    pub unevenness: f64,
    pub began: Duration,
    /// When connections have taken this many frames, they have taken the last frame of the former
    /// method.
    pub drained: u64,
    pub drained_at: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Judgement {
    Wait,
    Keep,
    /// The gain was so large that more of the same may help.
    KeepAndGoOn,
    Revert,
}

impl Experiment {
    /// More connections are to show whether the path is longer.
    pub(super) fn is_of_path(&self) -> bool {
        matches!(self.change, Change::ToldByStreams(_))
    }

    /// Judges by the `rates` of the last `pace.quick` and the number of `frames` that connections
    /// have taken.
    pub(super) fn judge(
        &mut self,
        now: Duration,
        pace: Intervals,
        rates: &Rates,
        frames: u64,
    ) -> Judgement {
        if self.drained_at.is_none() && (frames >= self.drained || now >= self.began + DRAIN) {
            self.drained_at = Some(now);
        }
        let sure = now >= self.began + pace.sure;
        let in_opening = now <= pace.opening;
        let sure_of_rung = sure || (in_opening && now >= self.began + pace.quick);
        match self.change {
            Change::Rung(rung) => match self.drained_at {
                Some(at) if sure_of_rung && now >= at + pace.quick => {
                    match self.judge_rung(rung, rates) {
                        // The trial of connections waited for this one and is wanted early in a
                        // copy.
                        Judgement::Keep if in_opening => Judgement::KeepAndGoOn,
                        judgement => judgement,
                    }
                }
                _ => Judgement::Wait,
            },
            // A longer path is recognised before that, which ends the trial. Any other gain was
            // taken from other traffic.
            Change::ToldByStreams(_) if sure => Judgement::Revert,
            Change::ToldByStreams(_) => Judgement::Wait,
            _ => {
                let gain = self.gain(rates);
                if now >= self.began + pace.quick && gain >= 1.0 + GREAT_GAIN {
                    Judgement::KeepAndGoOn
                } else if !sure {
                    Judgement::Wait
                } else if gain >= 1.0 + GAIN + (2.0 * self.unevenness).min(UNEVEN_MAX) {
                    Judgement::Keep
                } else {
                    Judgement::Revert
                }
            }
        }
    }

    /// If the link was the bottleneck, its throughput counts, since the data may have changed.
    fn gain(&self, rates: &Rates) -> f64 {
        if self.base.link >= LIMITED {
            rates.wire / self.lasting.max(1.0)
        } else {
            rates.goodput / self.base.goodput.max(1.0)
        }
    }

    /// A stronger method is right as long as the link stays the bottleneck, and a cheaper one as
    /// long as processors do, however the link or the data changed since.
    fn judge_rung(&self, rung: usize, rates: &Rates) -> Judgement {
        let gain = rates.goodput / self.base.goodput.max(1.0);
        let processors = rates.workers.max(rates.far_workers);
        let stronger = rung > self.before.rung;
        let still = if stronger { rates.link } else { processors } >= LIMITED;
        if gain >= 1.0 + GAIN || (still && (stronger || gain >= 1.0 - GAIN)) {
            Judgement::Keep
        } else {
            Judgement::Revert
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Cooldown {
    since: Duration,
    until: Duration,
    length: Duration,
    wire: f64,
    goodput: f64,
    /// The path lost packets. Behind busy processors, less loss is the only sign of a better link.
    lossy: bool,
}

/// Changes that did not pay.
#[derive(Debug, Default)]
pub(super) struct Cooldowns([Option<Cooldown>; KINDS]);

impl Cooldowns {
    pub(super) fn add(&mut self, now: Duration, trial: &Experiment) {
        let hold = &mut self.0[trial.change.kind()];
        let length = hold.map_or(HOLD, |hold| (hold.length * 2).min(HOLD_MAX));
        *hold = Some(Cooldown {
            since: now,
            until: now + length,
            length,
            wire: trial.base.wire,
            goodput: trial.base.goodput,
            lossy: trial.base.loss >= LOSSY,
        });
    }

    pub(super) fn is_open(&self, now: Duration, change: Change) -> bool {
        self.0[change.kind()].is_none_or(|hold| now >= hold.until)
    }

    /// Ends the holds whose rate has moved: they no longer apply. If such a change fails again,
    /// its next hold is still the longer one.
    pub(super) fn lift(&mut self, now: Duration, rates: &Rates) {
        let moved = |then: f64, is: f64| is > then * MOVED || is * MOVED < then;
        for hold in self.0.iter_mut().flatten() {
            let moved = moved(hold.wire, rates.wire)
                || moved(hold.goodput, rates.goodput)
                || (hold.lossy && rates.loss < LOSSY / 2.0);
            if moved && now >= hold.since + MOVED_AFTER {
                hold.until = now;
            }
        }
    }

    /// Ends all holds, as if the rate had moved.
    pub(super) fn lift_all(&mut self, now: Duration) {
        for hold in self.0.iter_mut().flatten() {
            hold.until = now;
        }
    }

    pub(super) fn forget(&mut self, change: Change) {
        self.0[change.kind()] = None;
    }
}
