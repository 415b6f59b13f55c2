//! The routes of a session that were tried or failed, for the summary.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use crate::transport::routes::{NO_ANSWER, Route};

/// One for each session.
#[derive(Default)]
pub struct Notes {
    failed: Mutex<Vec<(Route, String)>>,
    tried: [AtomicBool; Route::ALL.len()],
}

impl Notes {
    /// The route for the summary, with the reasons why no better one was used. `carried` has the
    /// bytes of each route. Empty if nothing was carried.
    pub fn label(&self, carried: [u64; Route::ALL.len()]) -> String {
        let most = Route::ALL.into_iter().rev().max_by_key(|route| {
            // Data goes through control only for lack of another route.
            let is_real = *route != Route::Inband;
            (
                is_real && carried[*route as usize] > 0,
                carried[*route as usize],
            )
        });
        let Some(route) = most.filter(|route| carried[*route as usize] > 0) else {
            return String::new();
        };
        let better = Route::ALL.into_iter().filter(|better| *better < route);
        let better: Vec<_> = better
            .filter_map(|better| {
                let why = self.why_not(better, carried, route)?;
                Some(format!("{}: {why}", better.name()))
            })
            .collect();
        match better.is_empty() {
            true => route.name().to_owned(),
            false => format!("{} ({})", route.name(), better.join("; ")),
        }
    }

    /// Why a better route was not used. An attempt that still waits at the end counts as "no
    /// answer", unless all data went through control: such a copy is too short for an answer.
    fn why_not(
        &self,
        better: Route,
        carried: [u64; Route::ALL.len()],
        used: Route,
    ) -> Option<String> {
        let failed = self.failed.lock();
        let told = failed.iter().find(|(failed, _)| *failed == better);
        let is_silent = self.tried[better as usize].load(Relaxed)
            && carried[better as usize] == 0
            && used != Route::Inband;
        match told {
            Some((_, why)) => Some(why.clone()),
            None => is_silent.then(|| NO_ANSWER.to_owned()),
        }
    }

    /// Notes that this route waits for an answer.
    pub fn tried(&self, route: Route) {
        self.tried[route as usize].store(true, Relaxed);
    }

    /// Notes why a route failed. The last reason counts.
    pub fn failed(&self, route: Route, why: &str) {
        let mut failed = self.failed.lock();
        failed.retain(|(other, _)| *other != route);
        failed.push((route, why.to_owned()));
        failed.sort();
    }

    pub fn has(&self, route: Route) -> bool {
        self.failed
            .lock()
            .iter()
            .any(|(failed, _)| *failed == route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_told_with_the_reason_why_no_better_one_was_used() {
        let notes = Notes::default();
        notes.tried(Route::Direct);
        assert_eq!(notes.label([9, 0, 0, 0]), "direct");
        assert_eq!(notes.label([0, 0, 9, 0]), "ssh (direct: no answer)");
        assert_eq!(notes.label([0, 0, 0, 9]), "inside the ssh login");
        notes.failed(Route::Direct, "refused");
        let told = notes.label([0, 0, 9, 1]);
        assert_eq!(told, "ssh (direct: refused)");
        notes.tried(Route::Reverse);
        let told = notes.label([0, 0, 9, 0]);
        assert_eq!(told, "ssh (direct: refused; reverse: no answer)");
    }
}
