//! The news of a copy for its user: what failed, changed, or was deleted, and the snapshot that was
//! made.

use std::sync::Arc;

use parking_lot::Mutex;

use super::failures::Failures;
use super::itemized_list::ItemizedList;
use crate::manifest::NAME_MAX;
use crate::progress::Progress;
use crate::report::Reporter;
use crate::report::event::{CopyEvent, FileDone};
use crate::units::printable;
use crate::wire::message::{DeletedEntries, SnapshotReport};

/// Paths that are kept for the summary; further ones are only counted.
pub const DELETED_MAX: usize = 10_000;

/// The most bytes of these paths.
const DELETED_BYTES_MAX: usize = 8 << 20;

/// Bytes that are shown of a path: as many as Linux takes.
const PATH_SHOWN: usize = 4096;

/// The end that the user sees shows and keeps what both ends report; the other end is silent.
pub struct News {
    pub failures: Failures,
    /// What changes at the destination, for `--itemize-changes` and `--dry-run`.
    pub itemized: ItemizedList,
    reporter: Option<Arc<dyn Reporter>>,
    deleted: Mutex<Deleted>,
    /// Removed source files.
    removed: Mutex<Deleted>,
    snapshot: Mutex<Option<MadeSnapshot>>,
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
        // The number comes from a peer and must not overflow.
        self.count = self.count.saturating_add(other.count);
        let mut bytes: usize = self.paths.iter().map(String::len).sum();
        let fits = |path: &String| {
            bytes += path.len();
            bytes <= DELETED_BYTES_MAX
        };
        self.paths.extend(other.paths.into_iter().take_while(fits));
        self.paths.truncate(DELETED_MAX);
    }
}

/// A complete snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MadeSnapshot {
    /// Printable.
    pub name: String,
    pub linked: u64,
    pub copied: u64,
    /// Printable names of removed snapshots.
    pub removed: Vec<String>,
    pub is_clock_behind: bool,
}

impl News {
    /// The news that `reporter` shows to the user.
    pub fn new(reporter: Arc<dyn Reporter>, progress: Arc<Progress>) -> News {
        let (telling, leaving_out) = (reporter.clone(), reporter.clone());
        let failures = Failures::new(
            Box::new(move |error| telling.failure(error)),
            Box::new(move |error| leaving_out.left_out(error)),
            progress.clone(),
        );
        News {
            failures,
            itemized: ItemizedList::new(reporter.clone(), progress.clone()),
            reporter: Some(reporter),
            ..News::silent(progress)
        }
    }

    /// The news of an end that tells the other end.
    pub fn silent(progress: Arc<Progress>) -> News {
        News {
            failures: Failures::silent(progress),
            itemized: ItemizedList::default(),
            reporter: None,
            deleted: Mutex::default(),
            removed: Mutex::default(),
            snapshot: Mutex::default(),
        }
    }

    /// Files are in place. Never waits.
    pub fn files_done(&self, mut files: Vec<FileDone>) {
        if let Some(reporter) = &self.reporter {
            files
                .iter_mut()
                .for_each(|file| file.path.truncate(PATH_SHOWN));
            reporter.event(CopyEvent::Files(files));
        }
    }

    /// Entries were deleted at the destination (`--delete`).
    pub fn deleted(&self, entries: &DeletedEntries) {
        if let Some(reporter) = &self.reporter {
            note(&self.deleted, entries, |path| reporter.deleted(path));
        }
    }

    /// Files were removed at the source.
    pub fn removed(&self, entries: &DeletedEntries) {
        if let Some(reporter) = &self.reporter {
            let tell = |path: &[u8]| reporter.detail(&format!("removed {}", printable(path)));
            note(&self.removed, entries, tell);
        }
    }

    /// A snapshot was made.
    pub fn made_snapshot(&self, report: &SnapshotReport) {
        let Some(reporter) = &self.reporter else {
            return;
        };
        let name = |name: &[u8]| printable(&name[..name.len().min(NAME_MAX)]);
        let removed = report.removed.iter().take(DELETED_MAX);
        let removed = removed.map(|removed| name(removed));
        let made = MadeSnapshot {
            name: name(&report.name),
            linked: report.linked,
            copied: report.copied,
            removed: removed.collect(),
            is_clock_behind: report.is_clock_behind,
        };
        for name in &made.removed {
            reporter.detail(&format!("removed snapshot {name}"));
        }
        *self.snapshot.lock() = Some(made);
    }

    /// Takes the deleted entries, and the removed source files.
    pub fn take_deleted(&self) -> (Deleted, Deleted) {
        let take = |deleted: &Mutex<Deleted>| std::mem::take(&mut *deleted.lock());
        (take(&self.deleted), take(&self.removed))
    }

    pub fn take_snapshot(&self) -> Option<MadeSnapshot> {
        self.snapshot.lock().take()
    }
}

fn note(deleted: &Mutex<Deleted>, entries: &DeletedEntries, tell: impl Fn(&[u8])) {
    let shown = |path: &Vec<u8>| path.len().min(PATH_SHOWN);
    let paths = entries.paths.iter().map(|path| &path[..shown(path)]);
    paths.clone().for_each(&tell);
    deleted.lock().add(Deleted {
        count: entries.count,
        paths: paths.take(DELETED_MAX).map(printable).collect(),
    });
}
