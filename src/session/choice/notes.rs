//! What routes were tried, and how they fared.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use crate::route::Route;

/// One for each session.
#[derive(Default)]
pub struct Notes {
    failed: Mutex<Vec<(Route, String)>>,
    tried: [AtomicBool; Route::ALL.len()],
}

impl Notes {
    /// The route in the summary, from the bytes that each has carried: why it is not the best is
    /// told too. Empty where nothing was carried.
    pub fn label(&self, carried: [u64; Route::ALL.len()]) -> String {
        let most = Route::ALL.into_iter().rev().max_by_key(|route| {
            // What goes inside control does so for lack of others.
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

    /// Why a better route than the one in use is not. A copy may be over before it is given up; and
    /// where all went inside control, before it had time to answer.
    fn why_not(
        &self,
        better: Route,
        carried: [u64; Route::ALL.len()],
        used: Route,
    ) -> Option<String> {
        let failed = self.lock();
        let told = failed.iter().find(|(failed, _)| *failed == better);
        let is_silent = self.tried[better as usize].load(Relaxed)
            && carried[better as usize] == 0
            && used != Route::Inband;
        match told {
            Some((_, why)) => Some(why.clone()),
            None => is_silent.then(|| "no answer".to_owned()),
        }
    }

    /// It is waited for an answer.
    pub fn tried(&self, route: Route) {
        self.tried[route as usize].store(true, Relaxed);
    }

    /// The last word on a route counts.
    pub fn failed(&self, route: Route, why: &str) {
        let mut failed = self.lock();
        failed.retain(|(other, _)| *other != route);
        failed.push((route, why.to_owned()));
        failed.sort();
    }

    pub fn has(&self, route: Route) -> bool {
        self.lock().iter().any(|(failed, _)| *failed == route)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Route, String)>> {
        self.failed.lock().expect("no panic while held")
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
