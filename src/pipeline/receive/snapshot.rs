//! The receiver's part in a snapshot (`--snapshot`): the directory under way, which entries this run
//! has announced there, and the end, at which the snapshot becomes a complete one.
//!
//! What an interrupted run has left is resumed. What this run does not announce is removed, whatever
//! its age is. If that fails, or anything else, the snapshot stays under way.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::destination::CopyDestination;
use super::entries::Entries;
use super::entry_table::OpenDirectory;
use super::journal_sync::sync_beside;
use super::snapshot_copy::SnapshotCopy;
use crate::dest::{
    self, EarlierDirs, EntrySlot, Landing, RootTarget, SnapshotRun, SnapshotStore, Source, Spec,
};
use crate::dir::{Dir, Handles};
use crate::error::{Error, Kind, Result, Side};
use crate::journal::JournalPlace;
use crate::keep::NotKept;
use crate::manifest::{Entry, EntryId, EntryKind, NO_PARENT, file_type};
use crate::wire::message::{Message, OWN_NAMES_MAX, SnapshotReport};

impl Entries {
    /// Opens the snapshot directory, and resolves the roots in the snapshot under way.
    pub(super) fn land_snapshot(
        &self,
        spec: &Spec,
        sources: &[Source],
        destination: &CopyDestination,
        handles: &Arc<Handles>,
    ) -> Result<Vec<RootTarget>> {
        let Some(terms) = self.context().options.snapshot else {
            return Ok(Vec::new());
        };
        let sources: Vec<Source> = sources
            .iter()
            .map(|source| Source {
                follow_name: false,
                ..*source
            })
            .collect();
        if self.rules.dry_run {
            let view = SnapshotStore::look(spec, handles)?;
            let latest = EarlierDirs::of(view.latest.into_iter().collect());
            let mut targets = dest::would_resolve_in(&view.path, &sources)?;
            targets.iter_mut().for_each(|it| it.set_earlier(&latest));
            return Ok(targets);
        }
        let sessions = &destination.sessions;
        let run = SnapshotRun {
            session: sessions.own,
            before: &sessions.before,
            no_resume: self.context().options.no_resume,
            needs_empty: self.rules.closed,
            thins: terms.keep.is_some(),
            is_ending: &|| self.context().is_ending(),
        };
        let store = SnapshotStore::open(spec, &run, &self.rules, handles)?;
        let same_machine = destination.same_machine;
        let partial = store.partial();
        let resolved = dest::resolve_in(spec, partial, &sources, same_machine, handles);
        let mut targets = match resolved {
            Ok(targets) => targets,
            Err(error) => {
                store.withdraw();
                return Err(error);
            }
        };
        let latest = EarlierDirs::of(store.latest().cloned().into_iter().collect());
        for target in &mut targets {
            target.set_earlier(&latest);
            if let Landing::Name(slot) = &mut target.landing {
                slot.fresh = store.is_new();
            }
        }
        let names = targets.iter().filter_map(|target| match &target.landing {
            Landing::Name(slot) => Some(slot.name.as_bytes().to_vec()),
            _ => None,
        });
        let names = names.collect();
        let copy = SnapshotCopy::new(store, terms, names);
        // Roots land once, so it was not set before.
        let _ = self.snapshot.set(copy);
        Ok(targets)
    }

    /// The place of the journal: beside the marks, so that it is no part of the snapshot.
    pub(super) fn snapshot_journal(&self) -> Vec<JournalPlace> {
        let place = |snapshot: &SnapshotCopy| {
            let names = snapshot.root_names.iter().map(|name| &name[..]);
            JournalPlace::new(snapshot.store.state().clone(), names)
        };
        self.snapshot.get().map(place).into_iter().collect()
    }

    /// Notes that this run announces an entry, and removes an existing one that is in its way.
    pub(super) fn announce_in_snapshot(&self, entry: &Entry, slot: &EntrySlot) -> Result<()> {
        let Some(snapshot) = self.snapshot.get().filter(|_| !slot.fresh) else {
            return Ok(());
        };
        if entry.parent != NO_PARENT {
            snapshot.note(entry, slot)?;
        }
        let Some(old) = dest::status(slot)? else {
            return Ok(());
        };
        let wanted = match &entry.kind {
            EntryKind::Directory => rustix::fs::FileType::Directory,
            EntryKind::Symlink(_) => rustix::fs::FileType::Symlink,
            EntryKind::Special(special) => special.file_type(),
            EntryKind::File | EntryKind::HardLink(_) | EntryKind::Pipe => {
                rustix::fs::FileType::RegularFile
            }
        };
        if file_type(&old) == wanted {
            return Ok(());
        }
        let is_ending = || self.context().is_ending();
        dest::remove_tree(&slot.dir, slot.name.as_os_str(), &self.rules, &is_ending)
    }

    /// With `--live`, an entry has vanished: what an interrupted run has left of it is removed too.
    pub(super) fn vanished_in_snapshot(&self, id: EntryId, parent: EntryId) {
        if let Some(snapshot) = self.snapshot.get() {
            snapshot.forget(id, parent);
        }
    }

    /// All entries of a directory are in place: removes the other ones, which this run has not
    /// announced.
    pub(super) fn settle_in_snapshot(&self, open: &OpenDirectory) {
        let Some(snapshot) = self.snapshot.get() else {
            return;
        };
        let announced = snapshot.take(open.entry.id);
        let Some(directory) = &open.directory else {
            return;
        };
        let dir = directory.dir();
        if directory.with_content().is_some() {
            self.remove_unannounced(snapshot, dir, |name| announced.contains(name));
        }
        if open.place.depth == 0
            && let Err(error) = self.check_not_empty(open, dir)
        {
            self.context().report_fault(&error, 0, 0);
        }
    }

    fn remove_unannounced(
        &self,
        snapshot: &SnapshotCopy,
        dir: &Arc<Dir>,
        is_own: impl Fn(&[u8]) -> bool,
    ) {
        let is_top = dir.identity() == snapshot.store.partial().identity();
        let stays = |name: &[u8]| {
            let is_root = || snapshot.root_names.iter().any(|root| root == name);
            is_own(name) || is_top && is_root()
        };
        let is_ending = || self.context().is_ending();
        let removed = dest::remove_others(dir, stays, &self.rules, &is_ending);
        if let Err(error) = removed {
            self.context().report_fault(&error, 0, 0);
        }
    }

    /// A source that has become empty is more likely a disk that is not mounted.
    fn check_not_empty(&self, open: &OpenDirectory, dir: &Arc<Dir>) -> Result<()> {
        let Some(old) = open.earlier.first().filter(|_| !self.rules.force) else {
            return Ok(());
        };
        if dest::has_no_entries(dir)? && !dest::has_no_entries(old)? {
            let message = "nothing in the source directory is copied, but the last snapshot has entries, \
                           so this one is not completed (--force completes it anyway)";
            return Err(Error::new(Kind::Refused, Side::Dest, message).at(dir.path()));
        }
        Ok(())
    }

    /// Everything is in place: makes the snapshot a complete one, and removes old ones, unless
    /// something has failed.
    pub(super) fn complete_snapshot(&self) {
        let Some(snapshot) = self.snapshot.get() else {
            return;
        };
        if let [_, ..] = &snapshot.root_names[..] {
            let contents = self.table().roots.is_landing(snapshot.store.partial());
            // The contents of a root are in the same directory, which has been looked at.
            if !contents && !snapshot.store.is_new() {
                self.remove_unannounced(snapshot, snapshot.store.partial(), |_| false);
            }
        }
        if snapshot.terms.strict && self.has_not_kept() {
            let message = "the snapshot is not completed: some metadata was not kept (--strict)";
            let error = Error::new(Kind::Entry, Side::Dest, message);
            self.context().report_fault(&error, 0, 0);
        }
        if self.context().news.failures.has_some() || self.context().is_ending() {
            let line = "fastcp: the snapshot is not complete, because the copy has failed in \
                        part; run the same command again to resume it";
            (self.sessions.tell)(line);
            if self.context().news.failures.has_some() {
                snapshot.store.doubt();
            }
            return;
        }
        if let Err(error) = self.try_complete(snapshot) {
            self.context().report_fault(&error, 0, 0);
        }
    }

    fn has_not_kept(&self) -> bool {
        let here = self.rules.not_kept.get() != NotKept::default();
        here || self.context().progress.not_kept().get() != NotKept::default()
    }

    fn try_complete(&self, snapshot: &SnapshotCopy) -> Result<()> {
        let is_ending = || self.context().is_ending();
        let made = snapshot.store.complete(sync_beside, &is_ending)?;
        let report = SnapshotReport {
            name: made.to_string().into_bytes(),
            linked: self.reused.linked.load(Relaxed),
            copied: self.reused.copied.load(Relaxed),
            removed: Vec::new(),
            is_clock_behind: false,
        };
        self.tell_snapshot(report.clone());
        let Some(policy) = &snapshot.terms.keep else {
            return Ok(());
        };
        let thinned = snapshot.store.thin(policy, made, &self.rules, &is_ending)?;
        let names = thinned
            .removed
            .iter()
            .map(|name| name.to_string().into_bytes());
        self.tell_snapshot(SnapshotReport {
            removed: names.take(OWN_NAMES_MAX).collect(),
            is_clock_behind: thinned.is_clock_behind,
            ..report
        });
        thinned.failed.map_or(Ok(()), Err)
    }

    /// Tells both ends; one of them is the user's.
    fn tell_snapshot(&self, report: SnapshotReport) {
        self.context().news.made_snapshot(&report);
        self.context().say(Message::Snapshot(report));
    }
}
