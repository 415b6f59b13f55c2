//! A change that has yet to show that it pays, and those that did not.

use std::time::Duration;

use super::method::RUNGS;
use super::model::{LIMITED, LOSSY};
use super::pace::Pace;
use super::window::Rates;
use super::{Congestion, Decision};

/// What a change must bring.
const GAIN: f64 = 0.05;

/// What brings this much needs no longer look.
const GREAT_GAIN: f64 = 0.25;

/// On an uneven link it must bring two standard errors more, up to this.
const UNEVEN_MAX: f64 = 0.15;

/// Frames of the former method that are still queued are waited for this long.
const DRAIN: Duration = Duration::from_secs(5);

/// What did not pay is not tried again for so long, then twice and so on up to the longest:
/// a trial costs something too.
const HOLD: Duration = Duration::from_secs(30);
const HOLD_MAX: Duration = Duration::from_secs(600);

/// A rate that moved by this factor since is another world, in which it may be tried again,
/// though not at once: the rate may still be on its way back from the trial.
const MOVED: f64 = 1.3;
const MOVED_AFTER: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    Rung(usize),
    MoreStreams(u16),
    /// They show whether the path is longer or a queue stands.
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
pub(super) struct Trial {
    pub change: Change,
    /// How long it takes to show what it brings goes by this.
    pub round_trip: Duration,
    /// What it goes back to.
    pub before: Decision,
    pub base: Rates,
    /// What the link would have carried without the change, bytes a second: what it did, unless
    /// that was more than can last.
    pub lasting: f64,
    /// Standard error of the rate before.
    pub unevenness: f64,
    pub began: Duration,
    /// Frames that streams will have taken when the last of the former method is gone.
    pub drained: u64,
    pub drained_at: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Judgement {
    Wait,
    Keep,
    /// It brought so much that more of it may.
    KeepAndGoOn,
    Revert,
}

impl Trial {
    /// More streams are to show whether the path is longer.
    pub fn is_of_path(&self) -> bool {
        matches!(self.change, Change::ToldByStreams(_))
    }

    /// `rates` of the last `pace.quick`, `frames` that streams have taken.
    pub fn judge(&mut self, now: Duration, pace: Pace, rates: &Rates, frames: u64) -> Judgement {
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
                        // Streams waited for it, and are wanted soon at first.
                        Judgement::Keep if in_opening => Judgement::KeepAndGoOn,
                        judgement => judgement,
                    }
                }
                _ => Judgement::Wait,
            },
            // A path that is longer is found to be before that, and ends the trial. What they brought
            // otherwise they took from others.
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

    /// Where the link was the limit what it carries counts, since data may have changed.
    fn gain(&self, rates: &Rates) -> f64 {
        if self.base.link >= LIMITED {
            rates.wire / self.lasting.max(1.0)
        } else {
            rates.goodput / self.base.goodput.max(1.0)
        }
    }

    /// A stronger method is right as long as the link stays the limit, and a cheaper one as long
    /// as processors do, whatever the link or the data did meanwhile.
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
struct Hold {
    since: Duration,
    until: Duration,
    length: Duration,
    wire: f64,
    goodput: f64,
    /// Behind busy processors a link that got better shows in nothing else.
    lossy: bool,
}

/// Changes that did not pay.
#[derive(Debug, Default)]
pub(super) struct Holds([Option<Hold>; KINDS]);

impl Holds {
    pub fn add(&mut self, now: Duration, trial: &Trial) {
        let hold = &mut self.0[trial.change.kind()];
        let length = hold.map_or(HOLD, |hold| (hold.length * 2).min(HOLD_MAX));
        *hold = Some(Hold {
            since: now,
            until: now + length,
            length,
            wire: trial.base.wire,
            goodput: trial.base.goodput,
            lossy: trial.base.loss >= LOSSY,
        });
    }

    pub fn is_open(&self, now: Duration, change: Change) -> bool {
        self.0[change.kind()].is_none_or(|hold| now >= hold.until)
    }

    /// Where the rate has moved since, what was learnt is worth nothing any more. If it does not
    /// pay there either the next hold is the longer one all the same.
    pub fn lift(&mut self, now: Duration, rates: &Rates) {
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

    /// All may be tried again, as where the rate has moved.
    pub fn lift_all(&mut self, now: Duration) {
        for hold in self.0.iter_mut().flatten() {
            hold.until = now;
        }
    }

    pub fn forget(&mut self, change: Change) {
        self.0[change.kind()] = None;
    }
}
