//! What a copy that has not begun should make of the link, the processors and the disks: the model
//! by which a method is chosen while one runs, asked before.

use super::method::{Facts, Method, RUNGS, rung};
use super::model::{Forecast, PROMISE, Stages};

/// What was measured, in bytes a second; infinite where it was not.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub link: f64,
    /// A worker's time for a byte besides compression.
    pub plain_ns: f64,
    pub workers_here: u16,
    pub workers_there: u16,
    /// Of the machine, where both ends are on one.
    pub processors: Option<u16>,
    /// The slower of source and destination.
    pub disks: f64,
}

/// By a method that was measured to be as `facts` say. One that is not on the ladder is taken for
/// its strongest where it is decompressed.
pub fn forecast(measured: &Measured, method: Method, facts: Facts) -> Forecast {
    Stages::planned(measured).forecast(rung(method).unwrap_or(RUNGS - 1), facts)
}

/// The method that makes most, among those from the cheapest to the strongest: one that costs more
/// has to bring as much as the tuner would change for. None where there is none.
pub fn best(measured: &Measured, methods: &[(Method, Facts)]) -> Option<(Method, Forecast)> {
    let mut best: Option<(Method, Forecast)> = None;
    for &(method, facts) in methods {
        let promised = forecast(measured, method, facts);
        let is_better =
            |(_, other): &(_, Forecast)| promised.bytes_per_s > other.bytes_per_s * PROMISE;
        if best.as_ref().is_none_or(is_better) {
            best = Some((method, promised));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::method::{LADDER, TYPICAL};
    use super::*;

    fn methods() -> Vec<(Method, Facts)> {
        LADDER.into_iter().zip(TYPICAL).collect()
    }

    fn measured(link: f64, disks: f64) -> Measured {
        Measured {
            link,
            plain_ns: 0.5,
            workers_here: 4,
            workers_there: 4,
            processors: None,
            disks,
        }
    }

    #[test]
    fn the_least_of_the_stages_is_the_copy() {
        let (method, slow) = best(&measured(10e6, f64::INFINITY), &methods()).unwrap();
        assert_eq!(method, Method::Zstd(3), "6 and 9 bring less than they must");
        assert_eq!(slow.bytes_per_s, 10e6 * slow.ratio);
        let (method, disk) = best(&measured(1e9, 100e6), &methods()).unwrap();
        assert_eq!((method, disk.bytes_per_s), (Method::None, 100e6));
        let none = forecast(&measured(1e12, f64::INFINITY), Method::None, TYPICAL[0]);
        assert_eq!(none.bytes_per_s, 4.0 * 1e9 / none.here_ns);
        let one_machine = Measured {
            processors: Some(4),
            ..measured(1e12, f64::INFINITY)
        };
        let shared = forecast(&one_machine, Method::None, TYPICAL[0]);
        let both_ns = shared.here_ns + shared.there_ns;
        assert_eq!(shared.bytes_per_s, 4.0 * 1e9 / both_ns);
        assert!(best(&measured(1e9, 1e9), &[]).is_none());
    }
}
