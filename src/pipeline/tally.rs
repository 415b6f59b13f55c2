//! Entries that failed: told as they happen, kept for the summary up to a bound.

use std::sync::{Arc, Mutex};

use crate::error::Error;
use crate::progress::Progress;

/// Failures that are kept for the summary; the others are only counted.
pub const FAILURES_MAX: usize = 10_000;

type Tell = dyn Fn(&Error) + Send + Sync;

/// The end that the user sees keeps the tally of both; the other end's is silent.
pub struct Tally {
    tell: Option<Box<Tell>>,
    /// Told of what is worth a line only where the user wants many.
    detail: Option<Box<Tell>>,
    failures: Mutex<(Vec<Error>, u64)>,
    progress: Arc<Progress>,
}

impl Tally {
    pub fn new(tell: Box<Tell>, detail: Box<Tell>, progress: Arc<Progress>) -> Self {
        Tally {
            tell: Some(tell),
            detail: Some(detail),
            failures: Mutex::default(),
            progress,
        }
    }

    /// For an end that sends its failures to the other.
    pub fn silent(progress: Arc<Progress>) -> Self {
        Tally {
            tell: None,
            detail: None,
            failures: Mutex::default(),
            progress,
        }
    }

    pub fn add(&self, error: &Error) {
        let Some(tell) = &self.tell else { return };
        tell(error);
        self.progress.add_failed();
        let mut failures = self.failures.lock().expect("no panic while held");
        if failures.0.len() < FAILURES_MAX {
            failures.0.push(error.clone());
        } else {
            failures.1 += 1;
        }
    }

    /// Tells of what is no failure.
    pub fn detail(&self, error: &Error) {
        if let Some(detail) = &self.detail {
            detail(error);
        }
    }

    /// What failed, and how much more than that.
    pub fn take(&self) -> (Vec<Error>, u64) {
        std::mem::take(&mut *self.failures.lock().expect("no panic while held"))
    }
}
