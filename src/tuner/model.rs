//! What each method would bring: the slowest stage's rate is the copy's.

use super::forecast::Measured;
use super::method::{DECODE_NS, Facts, RUNGS, TYPICAL, extrapolate};
use super::window::{Rates, Workers};

/// A stage that is busy for this share of the time is the limit.
pub(super) const LIMITED: f64 = 0.85;

/// A link on which more than this is sent again loses some, unless a queue overflows there.
pub(super) const LOSSY: f64 = 2e-4;

/// A method must promise this much more than the one in use. Above the 5 % that it must then
/// bring, so that what the model gets wrong by little is not tried over and over.
pub(super) const PROMISE: f64 = 1.06;

/// One that promises this much is worth a few chunks to find out.
const CURIOUS: f64 = 1.03;

/// Text takes so much more time than a database's pages, by LZMA and measured by what zstd takes.
const CAREFUL: f64 = 1.5;

/// What a byte costs a worker besides compression, at the least: digest and seal, 4.5 GB/s each.
const PLAIN_NS_MIN: f64 = 0.3;

/// What each stage can do with a byte of content, as far as it has been seen.
pub(super) struct Stages {
    /// Bytes a second on the wire; infinite as long as nothing says otherwise.
    link: f64,
    /// A worker's time for a byte, compression not counted.
    here_ns: f64,
    /// Decompression counted, that of the rung in use.
    there_ns: f64,
    workers: Workers,
    /// Those that both ends share. Infinite while a copy runs: what a byte then costs a worker has
    /// the waiting for a processor in it.
    processors: f64,
    /// Workers are the limit at one of the ends.
    is_busy: bool,
    /// Disks: bytes of content a second, infinite unless they are the limit.
    disks: f64,
    rung: usize,
}

/// What a copy should make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    pub bytes_per_s: f64,
    /// Bytes of content for one that travels.
    pub ratio: f64,
    /// What a byte costs a worker at either end.
    pub here_ns: f64,
    pub there_ns: f64,
}

/// The better rung, and the one that should be measured to know.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Choice {
    pub better: Option<usize>,
    pub scout: Option<usize>,
    /// The latter promises more than the former.
    pub is_scout_first: bool,
}

impl Stages {
    /// `link`: what it carried when it was the limit, if it was so lately.
    pub fn new(rates: &Rates, workers: Workers, rung: usize, link: Option<f64>) -> Stages {
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
    pub fn planned(measured: &Measured) -> Stages {
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

    /// What the copy makes by this rung, and of what that is the least.
    pub fn forecast(&self, rung: usize, facts: Facts) -> Forecast {
        Forecast {
            bytes_per_s: self.goodput(rung, facts),
            ratio: facts.ratio,
            here_ns: self.here_ns(facts),
            there_ns: self.there_ns(rung, facts),
        }
    }

    /// The rung that promises most by what is guessed of it; none where that is not clearly more than
    /// the one in use makes.
    pub fn jump(
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

    /// Among the rungs that are `open`. Without a figure for the link one rung down is as far as
    /// a step goes, further down it might become the limit; and none where workers have time.
    pub fn choose(&self, facts: &[Option<Facts>; RUNGS], open: [bool; RUNGS]) -> Choice {
        let Some(own) = facts[self.rung] else {
            // Nothing went this way lately: small files, holes.
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

/// From the nearest rung that was measured.
fn guess(rung: usize, facts: &[Option<Facts>; RUNGS]) -> Facts {
    let measured = (1..RUNGS).filter_map(|known| Some((known, facts[known]?)));
    match measured.min_by_key(|(known, _)| known.abs_diff(rung)) {
        Some((known, facts)) => extrapolate(rung, known, facts),
        None => TYPICAL[rung],
    }
}

/// How much of the data shrinks, by what the method makes of it and what it makes of a database.
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
