//! How a copy ends before its time: the first cause is kept, everyone is told once.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio_util::sync::CancellationToken;

use crate::digest::Digest;
use crate::error::{Error, Kind};

/// The end of a copy, or of one of its sessions: what ends the copy ends its session too.
#[derive(Default)]
pub struct Ending {
    cause: Mutex<Option<Error>>,
    token: CancellationToken,
    copy: Option<Arc<Ending>>,
    is_once: AtomicBool,
    /// What was begun to be read once, by name, and what it was if it was read to its end.
    begun: Mutex<BTreeMap<Vec<u8>, Option<Whole>>>,
}

/// What was read once from its first byte to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Bytes.
    pub length: u64,
    pub digest: Option<Digest>,
}

impl Ending {
    /// The ending of a session of the copy that ends with `copy`.
    pub fn of_session(copy: &Arc<Ending>) -> Ending {
        Ending {
            cause: Mutex::default(),
            token: copy.token.child_token(),
            copy: Some(copy.clone()),
            is_once: AtomicBool::new(false),
            begun: Mutex::default(),
        }
    }

    /// Ends the copy, or the session, for `cause`, unless it is ending already: what comes later
    /// is teardown. Only a breach counts more than a lost connection, which an end that broke the
    /// protocol may leave behind.
    pub fn end(&self, cause: Error) {
        let mut kept = self.cause.lock().expect("no panic while held");
        let is_stronger = |kept: &Error| kept.kind == Kind::Lost && cause.kind == Kind::Breach;
        if kept.as_ref().is_none_or(is_stronger) && self.cause_of_copy().is_none() {
            *kept = Some(cause);
        }
        drop(kept);
        self.token.cancel();
    }

    pub fn cause(&self) -> Option<Error> {
        let own = self.cause.lock().expect("no panic while held").clone();
        own.or_else(|| self.cause_of_copy())
    }

    fn cause_of_copy(&self) -> Option<Error> {
        self.copy.as_ref().and_then(|copy| copy.cause())
    }

    /// Something was read or written that cannot be once more (a pipe): no other session can go on
    /// where this one ends.
    pub fn set_once(&self) {
        self.is_once.store(true, Relaxed);
        if let Some(copy) = &self.copy {
            copy.set_once();
        }
    }

    /// Begins one thing of many that cannot be begun a second time, by its name. False if a former
    /// session of the copy has begun it: it fails, and the others go on.
    pub fn begin_once(&self, name: &[u8]) -> bool {
        let mut begun = self.begun();
        let is_new = !begun.contains_key(name);
        begun.entry(name.to_vec()).or_default();
        is_new
    }

    /// True of what this session or a former one of the copy has begun.
    pub fn has_begun(&self, name: &[u8]) -> bool {
        self.begun().contains_key(name)
    }

    /// All of it was read.
    pub fn read_once(&self, name: &[u8], whole: Whole) {
        self.begun().insert(name.to_vec(), Some(whole));
    }

    /// What was read of it, if that was all.
    pub fn once(&self, name: &[u8]) -> Option<Whole> {
        self.begun().get(name).copied().flatten()
    }

    fn begun(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Option<Whole>>> {
        let of_copy = self.copy.as_deref().unwrap_or(self);
        of_copy.begun.lock().expect("no panic while held")
    }

    pub fn is_once(&self) -> bool {
        self.is_once.load(Relaxed)
    }

    pub fn is_ending(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until someone ends it.
    pub async fn wait(&self) {
        self.token.cancelled().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Side;

    fn error(text: &str) -> Error {
        Error::new(Kind::Lost, Side::Here, text)
    }

    #[test]
    fn the_first_cause_is_kept_and_a_session_ends_with_its_copy() {
        let copy = Arc::new(Ending::default());
        let first = Ending::of_session(&copy);
        first.end(error("cut"));
        first.end(error("teardown"));
        assert_eq!(first.cause(), Some(error("cut")));
        assert!(!copy.is_ending(), "the next session may go on");
        let second = Ending::of_session(&copy);
        assert!(!second.is_ending());
        copy.end(error("Ctrl-C"));
        assert!(second.is_ending());
        second.end(error("teardown"));
        assert_eq!(second.cause(), Some(error("Ctrl-C")));
        assert_eq!(first.cause(), Some(error("cut")));
    }

    #[test]
    fn a_breach_counts_more_than_the_loss_of_the_connection() {
        let ending = Ending::default();
        let breach = |text: &str| Error::new(Kind::Breach, Side::Dest, text);
        ending.end(error("cut"));
        ending.end(breach("first"));
        ending.end(breach("second"));
        ending.end(error("teardown"));
        assert_eq!(ending.cause(), Some(breach("first")));
    }

    #[test]
    fn what_a_former_session_has_begun_is_not_begun_again() {
        let copy = Arc::new(Ending::default());
        assert!(Ending::of_session(&copy).begin_once(b"fifo"));
        let second = Ending::of_session(&copy);
        assert!(second.has_begun(b"fifo") && !second.has_begun(b"another"));
        assert!(!second.begin_once(b"fifo"));
        assert!(second.begin_once(b"another"));
        assert!(!second.is_once(), "the others go on");
        assert_eq!(second.once(b"fifo"), None);
        let whole = Whole {
            length: 5,
            digest: Some([7; 32]),
        };
        second.read_once(b"fifo", whole);
        assert_eq!(Ending::of_session(&copy).once(b"fifo"), Some(whole));
    }
}
