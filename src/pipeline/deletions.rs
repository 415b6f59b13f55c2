//! What a copy has deleted at the destination (`--delete`), or removed at the source, for the user.

use parking_lot::Mutex;

use crate::units::printable;
use crate::wire::message::DeletedEntries;

/// Paths that are kept for the summary; further ones are only counted.
pub const DELETED_MAX: usize = 10_000;

type TellDeleted = dyn Fn(&[u8]) + Send + Sync;

/// The end that the user sees counts; that of the other end is silent.
#[derive(Default)]
pub struct Deletions {
    tell: Option<Box<TellDeleted>>,
    deleted: Mutex<Deleted>,
}

/// Deleted entries. Sessions after a lost connection add to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    pub count: u64,
    /// Printable, at most [`DELETED_MAX`].
    pub paths: Vec<String>,
}

impl Deleted {
    /// Adds what another copy has deleted.
    pub fn add(&mut self, other: Deleted) {
        self.count += other.count;
        self.paths.extend(other.paths);
        self.paths.truncate(DELETED_MAX);
    }
}

impl Deletions {
    /// `tell` gets the path of each deleted entry.
    pub fn new(tell: Box<TellDeleted>) -> Deletions {
        Deletions {
            tell: Some(tell),
            ..Deletions::default()
        }
    }

    /// Counts what either end has reported.
    pub fn add(&self, entries: &DeletedEntries) {
        let Some(tell) = &self.tell else {
            return;
        };
        for path in &entries.paths {
            tell(path);
            let mut deleted = self.deleted.lock();
            if deleted.paths.len() < DELETED_MAX {
                deleted.paths.push(printable(path));
            }
        }
        let mut deleted = self.deleted.lock();
        // The number comes from a peer and must not overflow.
        deleted.count = deleted.count.saturating_add(entries.count);
    }

    pub fn take(&self) -> Deleted {
        std::mem::take(&mut *self.deleted.lock())
    }
}
