//! What routes were tried, and how they fared.

use std::sync::{Mutex, MutexGuard};

use crate::route::Route;

/// One for each session.
#[derive(Default)]
pub struct Notes {
    failed: Mutex<Vec<(Route, String)>>,
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
        let failed = self.lock();
        let better: Vec<_> = failed
            .iter()
            .filter(|(failed, _)| *failed < route)
            .map(|(failed, why)| format!("{}: {why}", failed.name()))
            .collect();
        match better.is_empty() {
            true => route.name().to_owned(),
            false => format!("{} ({})", route.name(), better.join("; ")),
        }
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
