//! The early end of a copy. The first cause is kept, and all waiting tasks are notified once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::digest::Digest;
use crate::error::{Error, Kind, Side};

/// The most pipes of a copy that can be read only once.
const BEGUN_MAX: usize = 1 << 16;

/// The end of a copy, or of one of its sessions. The end of the copy also ends its sessions.
#[derive(Default)]
pub struct Shutdown {
    cause: Mutex<Option<Error>>,
    token: CancellationToken,
    copy: Option<Arc<Shutdown>>,
    is_once: AtomicBool,
    /// The only root has become the destination.
    is_destination: AtomicBool,
    /// Pipes that can be read only once and were begun, by name. Those that were read to the end
    /// have their length and digest.
    begun: Mutex<BTreeMap<Vec<u8>, Option<PipeFinished>>>,
}

/// The content of a pipe that was read from its first byte to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeFinished {
    /// Bytes.
    pub length: u64,
    pub digest: Option<Digest>,
}

impl Shutdown {
    /// The ending of a session of `copy`.
    pub fn of_session(copy: &Arc<Shutdown>) -> Shutdown {
        Shutdown {
            cause: Mutex::default(),
            token: copy.token.child_token(),
            copy: Some(copy.clone()),
            is_once: AtomicBool::new(false),
            is_destination: AtomicBool::new(false),
            begun: Mutex::default(),
        }
    }

    /// Ends the copy, or the session, for `cause`. If it is ending already, the first cause is
    /// kept, since later ones result from the teardown. Only a breach replaces a lost connection,
    /// because an end that broke the protocol may also drop the connection.
    pub fn end(&self, cause: Error) {
        let mut kept = self.cause.lock();
        let is_stronger = |kept: &Error| kept.kind == Kind::Lost && cause.kind == Kind::Breach;
        if kept.as_ref().is_none_or(is_stronger) && self.cause_of_copy().is_none() {
            *kept = Some(cause);
        }
        drop(kept);
        self.token.cancel();
    }

    pub fn cause(&self) -> Option<Error> {
        let own = self.cause.lock().clone();
        own.or_else(|| self.cause_of_copy())
    }

    /// The cause of an end that has come.
    pub fn error(&self) -> Error {
        let unknown = || {
            Error::new(
                Kind::Lost,
                Side::Here,
                "ended for an unknown reason; please report this bug",
            )
        };
        self.cause().unwrap_or_else(unknown)
    }

    fn cause_of_copy(&self) -> Option<Error> {
        self.copy.as_ref().and_then(|copy| copy.cause())
    }

    /// Notes that a pipe was read or written and that this cannot be repeated: no other session can
    /// resume after this one.
    pub fn set_once(&self) {
        self.is_once.store(true, Relaxed);
        if let Some(copy) = &self.copy {
            copy.set_once();
        }
    }

    /// Notes where the roots landed, by their names below the destination. A single root without a
    /// name has become the destination itself. A later session must not land inside it.
    pub fn set_landed(&self, names: &[Vec<u8>]) {
        if matches!(names, [name] if name.is_empty()) {
            self.is_destination.store(true, Relaxed);
            if let Some(copy) = &self.copy {
                copy.set_landed(names);
            }
        }
    }

    /// True if the only root has become the destination, in this session or an earlier one.
    pub fn is_destination(&self) -> bool {
        self.is_destination.load(Relaxed)
    }

    /// Begins one of several pipes that can be read only once, by name. Returns false if an earlier
    /// session of the copy has begun it, or if there are too many. Then this entry fails and the
    /// others continue.
    pub fn begin_once(&self, name: &[u8]) -> bool {
        let mut begun = self.begun();
        if begun.contains_key(name) || begun.len() >= BEGUN_MAX {
            return false;
        }
        begun.insert(name.to_vec(), None);
        true
    }

    /// True if this session or an earlier one of the copy has begun it.
    pub fn has_begun(&self, name: &[u8]) -> bool {
        self.begun().contains_key(name)
    }

    /// Notes that all of it was read.
    pub fn read_once(&self, name: &[u8], whole: PipeFinished) {
        self.begun().insert(name.to_vec(), Some(whole));
    }

    /// Its content, if all of it was read.
    pub fn once(&self, name: &[u8]) -> Option<PipeFinished> {
        self.begun().get(name).copied().flatten()
    }

    fn begun(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Option<PipeFinished>>> {
        let of_copy = self.copy.as_deref().unwrap_or(self);
        of_copy.begun.lock()
    }

    pub fn is_once(&self) -> bool {
        self.is_once.load(Relaxed)
    }

    pub fn is_ending(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until the copy or the session ends.
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
        let copy = Arc::new(Shutdown::default());
        let first = Shutdown::of_session(&copy);
        first.end(error("cut"));
        first.end(error("teardown"));
        assert_eq!(first.cause(), Some(error("cut")));
        assert!(!copy.is_ending(), "the next session may go on");
        let second = Shutdown::of_session(&copy);
        assert!(!second.is_ending());
        copy.end(error("Ctrl-C"));
        assert!(second.is_ending());
        second.end(error("teardown"));
        assert_eq!(second.cause(), Some(error("Ctrl-C")));
        assert_eq!(first.cause(), Some(error("cut")));
    }

    #[test]
    fn a_breach_counts_more_than_the_loss_of_the_connection() {
        let shutdown = Shutdown::default();
        let breach = |text: &str| Error::new(Kind::Breach, Side::Dest, text);
        shutdown.end(error("cut"));
        shutdown.end(breach("first"));
        shutdown.end(breach("second"));
        shutdown.end(error("teardown"));
        assert_eq!(shutdown.cause(), Some(breach("first")));
    }

    #[test]
    fn what_a_former_session_has_begun_is_not_begun_again() {
        let copy = Arc::new(Shutdown::default());
        assert!(Shutdown::of_session(&copy).begin_once(b"fifo"));
        let second = Shutdown::of_session(&copy);
        assert!(second.has_begun(b"fifo") && !second.has_begun(b"another"));
        assert!(!second.begin_once(b"fifo"));
        assert!(second.begin_once(b"another"));
        assert!(!second.is_once(), "the others go on");
        assert_eq!(second.once(b"fifo"), None);
        let whole = PipeFinished {
            length: 5,
            digest: Some([7; 32]),
        };
        second.read_once(b"fifo", whole);
        assert_eq!(Shutdown::of_session(&copy).once(b"fifo"), Some(whole));
    }
}
