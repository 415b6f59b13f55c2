//! The journal of a copy: opened before the first byte, and removed or kept after the last.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use rustix::fs::{fstat, futimens};

use super::journal_sync::JournalSync;
use super::report::Report;
use crate::dest::{self, Directory, JournalName, user_key};
use crate::dir::Dir;
use crate::error::Result;
use crate::journal::record::Hash;
use crate::journal::{Journal, JournalPlace, Opening, WaitForLock};
use crate::report::TellUser;

pub(super) struct CopyJournal {
    tell: TellUser,
    /// Set when the destinations of the roots are known, if a journal is possible.
    journal: OnceLock<Journal>,
    /// Ensures that no entry gets the journal's name.
    name: OnceLock<JournalName>,
    sync: JournalSync,
    /// A later run may resume a file that this copy refuses, or must verify files.
    is_needed: AtomicBool,
}

impl CopyJournal {
    pub(super) fn new(tell: TellUser) -> CopyJournal {
        CopyJournal {
            tell,
            journal: OnceLock::new(),
            name: OnceLock::new(),
            sync: JournalSync::default(),
            is_needed: AtomicBool::new(false),
        }
    }

    pub(super) fn get(&self) -> Option<&Journal> {
        self.journal.get()
    }

    /// Opens the journal in the first of these places where that is possible. Without one, the copy
    /// continues. `same` are the hashes of the roots of copies that this one resumes.
    pub(super) fn open(
        &self,
        mut places: Vec<JournalPlace>,
        same: &[Hash],
        opening: &Opening,
        waiting: &WaitForLock,
    ) -> Result<()> {
        // A journal that could not be removed is not made.
        places.retain(|place| !dest::is_append_only(&place.dir));
        // An earlier session may have had to make its journal in another place than the best one.
        places.sort_by_cached_key(|place| !place.holds_copy_of(same, &opening.user));
        for place in places {
            if let Some(journal) = Journal::open(place, opening, waiting)? {
                let name = JournalName::reserve(journal.dir(), journal.name());
                // Roots land once, so neither cell was set before.
                let _ = self.name.set(name);
                let _ = self.journal.set(journal);
                break;
            }
        }
        Ok(())
    }

    /// Looks after the journal until the copy is over. `heard` counts the bytes from the other end;
    /// None if that end is in this process.
    pub(super) fn keep(&self, report: &Report, heard: Option<&AtomicU64>) {
        self.sync.keep(&self.journal, report, heard);
    }

    /// Ends [`keep`](CopyJournal::keep), but does not wait for a running sync.
    pub(super) fn end_sync(&self) {
        self.sync.end();
    }

    /// Waits for a running sync, which may report an error.
    pub(super) fn settle_sync(&self, is_ending: impl Fn() -> bool) {
        if !self.sync.settle(is_ending) {
            let line = "fastcp: the disk is still writing the copied data; later disk errors are \
                        not reported (--fsync waits for the disk)";
            (self.tell)(line);
        }
    }

    /// Has the journal stay at the end of the copy: a later run may resume a file that is refused, or
    /// must verify files that are in place.
    pub(super) fn need(&self) {
        self.is_needed.store(true, Relaxed);
    }

    /// True if the next run must verify files of this copy, given that something `has_failed` in this
    /// session: the disk has lost data, data may be lost that this session could not verify, or a
    /// file is half written in place.
    pub(super) fn leaves_doubt(&self, has_failed: bool) -> bool {
        let has_doubt = || self.get().is_some_and(Journal::has_doubt);
        self.sync.has_failed() || has_failed && has_doubt()
    }

    /// Removes the journal, unless a later run needs it: all else is in place. With `keeps_times`
    /// its directory keeps its times, if `is_landing` says that it is one of the copy.
    pub(super) fn done(&self, keeps_times: bool, is_landing: impl FnOnce(&Dir) -> bool) {
        let Some(journal) = self.get() else {
            return;
        };
        if self.is_needed.load(Relaxed) {
            return journal.release();
        }
        // The directory may already have its final times, which the removal changes.
        let dir = journal.dir().handle().ok().filter(|_| keeps_times);
        let before = dir.as_ref().and_then(|dir| fstat(&**dir).ok());
        self.remove(journal);
        if let (Some(dir), Some(stat)) = (dir, before)
            && is_landing(journal.dir())
        {
            // If this fails, only a time is wrong.
            let _ = futimens(&*dir, &dest::times_in(&stat));
        }
    }

    /// A journal that cannot be removed does no harm, so nothing fails; but the user has to remove
    /// it.
    fn remove(&self, journal: &Journal) {
        // The copy may have given its directory a mode that allows no removal.
        let _entered = Directory::enter(journal.dir().clone());
        if let Err(error) = journal.remove() {
            let line = format!(
                "fastcp: {}; the file is no longer needed, delete it by hand",
                error.in_place()
            );
            (self.tell)(&line);
        }
    }

    /// Removes the journal after an early end, or keeps it for a later run if that has a use for
    /// it. `is_kept`: the sender kept to the protocol.
    pub(super) fn put_away(&self, is_kept: bool) {
        let Some(journal) = self.get() else {
            return;
        };
        // One that tells of lost data, or of half written files, is needed by the next run.
        let is_useful = journal.is_useful() || journal.has_doubt();
        if !is_useful || !is_kept {
            self.remove(journal);
        } else if !user_key().is_kept {
            let line = "fastcp: another run cannot resume this copy: the receiving host has no \
                        writable ~/.local/state/fastcp for this user; set XDG_STATE_HOME there";
            (self.tell)(line);
        }
        journal.release();
    }
}
