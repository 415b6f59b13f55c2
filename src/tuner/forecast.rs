//! A forecast of a copy's rate before it starts, from the measured link, processors and disks. It
//! uses the model that chooses a method while a copy runs.

use super::method::{Facts, RUNGS, rung};
use super::model::{Forecast, Measured, PROMISE, Stages};
use crate::algorithms::Method;

/// Predicts a copy by a method with the measured `facts`. Decompression by a method that is not on
/// the ladder is assumed to cost as much as for the strongest rung.
pub fn forecast(measured: &Measured, method: Method, facts: Facts) -> Forecast {
    Stages::planned(measured).forecast(rung(method).unwrap_or(RUNGS - 1), facts)
}

/// The fastest of `methods`, which are ordered from the cheapest to the strongest. A costlier
/// method must gain as much as the tuner requires for a change. None if `methods` is empty.
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
