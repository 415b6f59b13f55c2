//! Entries that failed: reported at once, and kept for the summary up to a limit.
//!
//! After a lost connection the next session tries them again. An entry that fails again is not
//! reported again, and one that succeeds does not count as failed.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use super::moved_operands::MovedOperands;
use crate::error::{Error, Kind};
use crate::progress::Progress;

/// Failures that are kept for the summary; further ones are only counted.
pub const FAILURES_MAX: usize = 10_000;

/// The most bytes of their paths and messages.
const FAILURES_BYTES_MAX: usize = 8 << 20;

/// Failures of earlier sessions that are remembered, in 8 bytes each. Further ones may be reported
/// twice.
const TOLD_MAX: usize = 100_000;

type TellFailure = dyn Fn(&Error) + Send + Sync;

/// The end that the user sees keeps the failures of both ends; the other end counts them silently.
pub struct Failures {
    tell: Option<Box<TellFailure>>,
    /// Prints messages that most users do not want.
    detail: Option<Box<TellFailure>>,
    failures: Mutex<FailureList>,
    progress: Arc<Progress>,
    /// Something has failed in this session.
    has_some: AtomicBool,
    /// Operands that are missing because the copy has moved them.
    pub moved: MovedOperands,
}

/// The failures beyond those that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoreFailures {
    pub number: u64,
    /// Their lowest and their highest exit code.
    codes: Option<(i32, i32)>,
}

#[derive(Default)]
struct FailureList {
    kept: Vec<Error>,
    /// Bytes of their texts.
    bytes: usize,
    more: MoreFailures,
    /// Hashes of the failures that earlier sessions reported.
    told: HashSet<u64>,
}

impl Failures {
    pub fn new(tell: Box<TellFailure>, detail: Box<TellFailure>, progress: Arc<Progress>) -> Self {
        Failures {
            tell: Some(tell),
            detail: Some(detail),
            failures: Mutex::default(),
            progress,
            has_some: AtomicBool::new(false),
            moved: MovedOperands::default(),
        }
    }

    /// For an end that sends its failures to the other end. It only counts them.
    pub fn silent(progress: Arc<Progress>) -> Self {
        Failures {
            tell: None,
            detail: None,
            failures: Mutex::default(),
            progress,
            has_some: AtomicBool::new(false),
            moved: MovedOperands::default(),
        }
    }

    pub fn add(&self, error: &Error) {
        if self.moved.has(error) {
            return;
        }
        self.has_some.store(true, Relaxed);
        let Some(tell) = &self.tell else {
            self.failures.lock().more.note(error);
            return;
        };
        self.progress.add_failed(1);
        let mut failures = self.failures.lock();
        let is_new = !failures.told.contains(&hash(error));
        let path = error.path.as_ref().map_or(0, |path| path.as_os_str().len());
        let bytes = failures.bytes + path + error.message.len();
        if failures.kept.len() < FAILURES_MAX && bytes <= FAILURES_BYTES_MAX {
            failures.bytes = bytes;
            failures.kept.push(error.clone());
        } else {
            failures.more.note(error);
            // `begin_again` remembers only the errors in `kept`.
            failures.remember(error);
        }
        drop(failures);
        if is_new {
            tell(error);
        }
    }

    /// A file that grew is copied up to an earlier length: a warning. It is printed once, and counts in
    /// each session.
    pub fn grew(&self, warning: &Error) {
        let Some(tell) = &self.tell else { return };
        self.progress.add_grown(1);
        let mut failures = self.failures.lock();
        let is_new = !failures.told.contains(&hash(warning));
        failures.remember(warning);
        drop(failures);
        if is_new {
            tell(warning);
        }
    }

    /// Prepares for another session, which tries everything again.
    pub fn begin_again(&self) {
        self.has_some.store(false, Relaxed);
        self.moved.begin_again();
        let mut failures = self.failures.lock();
        for error in std::mem::take(&mut failures.kept) {
            failures.remember(&error);
        }
        (failures.bytes, failures.more) = (0, MoreFailures::default());
    }

    /// True if something has failed in this session.
    pub fn has_some(&self) -> bool {
        self.has_some.load(Relaxed)
    }

    /// Reports something that is not a failure.
    pub fn detail(&self, error: &Error) {
        if let Some(detail) = &self.detail {
            detail(error);
        }
    }

    /// Removes and returns the failures that are kept, and what is known of the others.
    pub fn take(&self) -> (Vec<Error>, MoreFailures) {
        let failures = std::mem::take(&mut *self.failures.lock());
        (failures.kept, failures.more)
    }
}

impl MoreFailures {
    /// Counts a failure that is not kept.
    pub fn note(&mut self, error: &Error) {
        let code = error.kind.exit_code();
        self.add(MoreFailures {
            number: 1,
            codes: Some((code, code)),
        });
    }

    pub fn add(&mut self, other: MoreFailures) {
        self.number += other.number;
        self.codes = match (self.codes, other.codes) {
            (Some((low, high)), Some((other_low, other_high))) => {
                Some((low.min(other_low), high.max(other_high)))
            }
            (codes, other) => codes.or(other),
        };
    }

    /// The highest exit code; None without any failure.
    pub fn highest_exit_code(self) -> Option<i32> {
        self.codes.map(|(_, high)| high)
    }

    /// The exit code of a copy with these failures alone; 0 without any.
    pub fn exit_code(self) -> i32 {
        match self.codes {
            None => 0,
            Some((low, high)) if low == high => low,
            Some(_) => Kind::Entry.exit_code(),
        }
    }
}

impl FailureList {
    fn remember(&mut self, error: &Error) {
        if self.told.len() < TOLD_MAX {
            self.told.insert(hash(error));
        }
    }
}

fn hash(error: &Error) -> u64 {
    let mut hasher = DefaultHasher::new();
    (error.kind, &error.path, &error.message).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Side;

    #[test]
    fn a_failure_of_a_former_session_is_told_once_and_counts_only_if_it_comes_again() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = told.clone();
        let tell = move |error: &Error| telling.lock().push(error.clone());
        let failures = Failures::new(Box::new(tell), Box::new(|_| ()), Arc::default());
        let error = |name: &str| Error::new(Kind::Read, Side::Source, "vanished").at(name);
        failures.add(&error("a"));
        failures.add(&error("b"));
        failures.begin_again();
        failures.add(&error("b"));
        failures.add(&error("c"));
        assert_eq!(*told.lock(), [error("a"), error("b"), error("c")]);
        let none = MoreFailures::default();
        assert_eq!(failures.take(), (vec![error("b"), error("c")], none));
    }

    #[test]
    fn a_file_that_grew_is_told_once_and_counts_in_the_session_in_which_it_grew() {
        let told = Arc::new(Mutex::new(0));
        let telling = told.clone();
        let tell = move |_: &Error| *telling.lock() += 1;
        let progress = Arc::<Progress>::default();
        let failures = Failures::new(Box::new(tell), Box::new(|_| ()), progress.clone());
        let grew = Error::new(Kind::Grew, Side::Source, "grew").at("log");
        let grown = || progress.snapshot().grown;
        failures.grew(&grew);
        assert_eq!((grown(), *told.lock()), (1, 1));
        for counted in [0, 1] {
            if counted == 0 {
                progress.begin_again();
                failures.begin_again();
            } else {
                failures.grew(&grew);
            }
            assert_eq!((grown(), *told.lock()), (counted, 1));
        }
        assert!(!failures.has_some() && failures.take().0.is_empty());
    }
}
