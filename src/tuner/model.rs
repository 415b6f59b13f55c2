//! The model that predicts the copy's rate for each compression method: the rate of the slowest
//! stage.

use super::method::{DECODE_NS, Facts, RUNGS, TYPICAL, extrapolate};
use super::window::{Rates, Workers};

/// Measurements. Rates are in bytes a second, and infinite if not measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub link: f64,
    /// A worker's time for a byte besides compression.
    pub plain_ns: f64,
    pub workers_here: u16,
    pub workers_there: u16,
    /// Processors of the machine, if both ends run on one.
    pub processors: Option<u16>,
    /// The slower of source and destination.
    pub disks: f64,
}

/// A stage that is busy for this share of the time is the bottleneck.
pub(super) const LIMITED: f64 = 0.85;

/// A link with a higher share of retransmitted bytes loses packets, unless a queue overflows
/// there.
pub(super) const LOSSY: f64 = 2e-4;

/// A method must promise this much more than the one in use. It exceeds the required gain of 5 %,
/// so that small errors of the model do not cause repeated trials.
pub(super) const PROMISE: f64 = 1.06;

/// A method that promises this much is worth a few chunks to measure it.
const CURIOUS: f64 = 1.03;

/// For text, LZMA takes this much longer than for database pages, relative to zstd on the same
/// data.
const CAREFUL: f64 = 1.5;

/// The least cost of a byte for a worker besides compression: digest and encryption, 4.5 GB/s
/// each.
const PLAIN_NS_MIN: f64 = 0.3;

/// The capacity of each stage, as far as the tuner has measured it.
pub(super) struct Stages {
    /// Bytes a second on the wire; infinite while unknown.
    link: f64,
    /// A sending worker's time for a byte, without compression.
    here_ns: f64,
    /// A receiving worker's time for a byte, including decompression for the rung in use.
    there_ns: f64,
    workers: Workers,
    /// Processors that both ends share. Infinite while a copy runs: the measured cost of a byte
    /// then includes the time spent waiting for a processor.
    processors: f64,
    /// Workers are the bottleneck at one of the ends.
    is_busy: bool,
    /// Disks: bytes of content a second, infinite unless they are the bottleneck.
    disks: f64,
    rung: usize,
}

/// The predicted rate and costs of a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    pub bytes_per_s: f64,
    /// Bytes of content for each byte sent.
    pub ratio: f64,
    /// The cost of a byte for a worker at either end.
    pub here_ns: f64,
    pub there_ns: f64,
}

/// The best measured rung, and the rung worth measuring next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Choice {
    pub better: Option<usize>,
    pub scout: Option<usize>,
    /// `scout` promises more than `better`.
    pub is_scout_first: bool,
}

impl Stages {
    /// `link`: its throughput when it was recently the bottleneck, if known.
    pub(super) fn new(rates: &Rates, workers: Workers, rung: usize, link: Option<f64>) -> Stages {
        let per_byte = |share: f64, workers: f64, rate: f64| share * workers * 1e9 / rate.max(1.0);
        let plain = (rates.workers - rates.encode).max(0.0);
        let there = per_byte(rates.far_workers, workers.there, rates.acked);
        let disk = |busy: f64, rate: f64| if busy >= LIMITED { rate } else { f64::INFINITY };
        Stages {
            link: link.map_or(f64::INFINITY, |link| link.max(rates.wire)),
            here_ns: per_byte(plain, workers.here, rates.encoded).max(PLAIN_NS_MIN),
            there_ns: there.max(PLAIN_NS_MIN + DECODE_NS[rung]),
            workers,
            processors: f64::INFINITY,
            is_busy: rates.workers.max(rates.far_workers) >= LIMITED,
            disks: disk(rates.read, rates.goodput).min(disk(rates.write, rates.acked)),
            rung,
        }
    }

    /// Before a copy.
    pub(super) fn planned(measured: &Measured) -> Stages {
        let plain_ns = measured.plain_ns.max(PLAIN_NS_MIN);
        Stages {
            link: measured.link,
            here_ns: plain_ns,
            there_ns: plain_ns,
            workers: Workers {
                here: f64::from(measured.workers_here.max(1)),
                there: f64::from(measured.workers_there.max(1)),
            },
            processors: measured.processors.map_or(f64::INFINITY, f64::from),
            is_busy: false,
            disks: measured.disks,
            rung: 0,
        }
    }

    /// Bytes of content a second.
    fn goodput(&self, rung: usize, facts: Facts) -> f64 {
        let (here_ns, there_ns) = (self.here_ns(facts), self.there_ns(rung, facts));
        let Workers { here, there } = self.workers;
        let workers = (here * 1e9 / here_ns).min(there * 1e9 / there_ns);
        let processors = self.processors * 1e9 / (here_ns + there_ns);
        let link = self.link * facts.ratio;
        workers.min(processors).min(link).min(self.disks)
    }

    fn here_ns(&self, facts: Facts) -> f64 {
        self.here_ns + facts.ns_per_byte
    }

    fn there_ns(&self, rung: usize, facts: Facts) -> f64 {
        let decode = (DECODE_NS[rung] - DECODE_NS[self.rung]) * shrinking(facts, rung);
        (self.there_ns + decode).max(PLAIN_NS_MIN)
    }

    /// The predicted rate of a copy by this rung, with the costs that go into it.
    pub(super) fn forecast(&self, rung: usize, facts: Facts) -> Forecast {
        Forecast {
            bytes_per_s: self.goodput(rung, facts),
            ratio: facts.ratio,
            here_ns: self.here_ns(facts),
            there_ns: self.there_ns(rung, facts),
        }
    }

    /// The rung whose guessed rate is highest; None if that is not clearly above the rate of the
    /// rung in use.
    pub(super) fn jump(
        &self,
        facts: &[Option<Facts>; RUNGS],
        open: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        let own = self.goodput(self.rung, facts[self.rung]?);
        let careful = |rung| {
            let Facts { ns_per_byte, ratio } = guess(rung, facts);
            let ns_per_byte = ns_per_byte * CAREFUL;
            (rung, self.goodput(rung, Facts { ns_per_byte, ratio }))
        };
        let (rung, promised) = open.map(careful).max_by(|a, b| a.1.total_cmp(&b.1))?;
        (promised > own * PROMISE).then_some(rung)
    }

    /// Chooses among the `open` rungs. While the link is unknown and workers are busy, it goes at
    /// most one rung down, since the link might become the bottleneck further down. If workers
    /// have time, it does not go down.
    pub(super) fn choose(&self, facts: &[Option<Facts>; RUNGS], open: [bool; RUNGS]) -> Choice {
        let Some(own) = facts[self.rung] else {
            // No recent chunk used this rung: small files, holes.
            return Choice::default();
        };
        let own = self.goodput(self.rung, own);
        let mut choice = Choice::default();
        let (mut best, mut curious) = (own * PROMISE, own * CURIOUS);
        let lowest = match (self.link.is_finite(), self.is_busy) {
            (true, _) => 0,
            (false, true) => self.rung.saturating_sub(1),
            (false, false) => self.rung,
        };
        for rung in (lowest..RUNGS).filter(|rung| *rung != self.rung && open[*rung]) {
            match facts[rung] {
                Some(measured) => {
                    let promised = self.goodput(rung, measured);
                    if promised > best {
                        (best, choice.better) = (promised, Some(rung));
                    }
                }
                None => {
                    let promised = self.goodput(rung, guess(rung, facts));
                    if promised > curious {
                        (curious, choice.scout) = (promised, Some(rung));
                    }
                }
            }
        }
        choice.is_scout_first = choice.scout.is_some() && curious > best;
        choice
    }
}

/// Extrapolates from the nearest measured rung.
fn guess(rung: usize, facts: &[Option<Facts>; RUNGS]) -> Facts {
    let measured = (1..RUNGS).filter_map(|known| Some((known, facts[known]?)));
    match measured.min_by_key(|(known, _)| known.abs_diff(rung)) {
        Some((known, facts)) => extrapolate(rung, known, facts),
        None => TYPICAL[rung],
    }
}

/// The share of the data that shrinks, estimated from the method's ratio here and on database
/// pages.
fn shrinking(facts: Facts, rung: usize) -> f64 {
    let typical = 1.0 - 1.0 / TYPICAL[rung].ratio;
    if typical <= 0.0 {
        1.0
    } else {
        ((1.0 - 1.0 / facts.ratio) / typical).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: [bool; RUNGS] = [true; RUNGS];
    const WORKERS: Workers = Workers {
        here: 4.0,
        there: 4.0,
    };

    fn stages(link: Option<f64>, rung: usize) -> Stages {
        let rates = Rates {
            encoded: 1e9,
            acked: 1e9,
            workers: 0.3,
            ..Rates::default()
        };
        Stages::new(&rates, WORKERS, rung, link)
    }

    #[test]
    fn the_slower_the_link_the_stronger_the_method() {
        let facts = TYPICAL.map(Some);
        let best = |link: f64| stages(Some(link), 0).choose(&facts, OPEN).better;
        assert_eq!(best(3e9), None);
        assert_eq!(best(700e6), Some(1));
        assert_eq!(best(300e6), Some(2));
        assert_eq!(best(190e6), Some(3));
        assert_eq!(best(30e6), Some(5));
    }

    #[test]
    fn what_does_not_shrink_stays_as_it_is() {
        let flat = TYPICAL.map(|facts| {
            Some(Facts {
                ratio: 1.0,
                ..facts
            })
        });
        assert_eq!(stages(Some(1e6), 0).choose(&flat, OPEN), Choice::default());
    }

    #[test]
    fn what_looks_better_is_measured_before_it_is_used() {
        let mut facts = [None; RUNGS];
        facts[0] = Some(TYPICAL[0]);
        let choice = stages(Some(30e6), 0).choose(&facts, OPEN);
        assert_eq!(
            choice,
            Choice {
                better: None,
                scout: Some(5),
                is_scout_first: true,
            }
        );
        facts[5] = Some(Facts {
            ratio: 1.0,
            ns_per_byte: 1.0,
        });
        assert_eq!(
            stages(Some(30e6), 0).choose(&facts, OPEN),
            Choice::default()
        );
    }

    #[test]
    fn busy_processors_behind_an_unknown_link_step_down_by_one() {
        let rates = Rates {
            encoded: 1e9,
            workers: 1.0,
            encode: 0.9,
            ..Rates::default()
        };
        let better = |rates: &Rates| {
            let stages = Stages::new(rates, WORKERS, 3, None);
            stages.choose(&TYPICAL.map(Some), OPEN).better
        };
        assert_eq!(better(&rates), Some(2));
        let rates = Rates {
            workers: 0.5,
            encode: 0.4,
            ..rates
        };
        assert_eq!(better(&rates), None, "something else holds it up");
    }
}
