//! The snapshot that a copy makes (`--snapshot`): the unfinished directory, the entries that this
//! run has announced there, and the completion of the snapshot at the end.
//!
//! Entries that an interrupted run has left are resumed. Those that this run does not announce are
//! removed, whatever their age. If that or another step fails, the snapshot stays unfinished.

use std::sync::Arc;

use super::announced_names::AnnouncedNames;
use super::journal_sync::sync_beside;
use super::open_directories::OpenDirectory;
use super::report::Report;
use super::reused::ReusedEntries;
use crate::dest::{self, EntrySlot, Landing, RootTarget, Rules, SnapshotStore};
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::journal::JournalPlace;
use crate::keep::NotKept;
use crate::manifest::{Entry, EntryId, EntryKind, NO_PARENT, file_type};
use crate::pipeline::context::Context;
use crate::report::TellUser;
use crate::snapshot::SnapshotTerms;
use crate::wire::message::{Message, OWN_NAMES_MAX, SnapshotReport};

/// The snapshot that this copy makes.
pub(super) struct SnapshotCopy {
    context: Arc<Context>,
    rules: Rules,
    tell: TellUser,
    store: SnapshotStore,
    terms: SnapshotTerms,
    /// Names of the roots in the directory of the snapshot.
    root_names: Vec<Vec<u8>>,
    announced: AnnouncedNames,
}

impl SnapshotCopy {
    /// `targets` are the roots in the directory of the snapshot.
    pub(super) fn new(
        store: SnapshotStore,
        terms: SnapshotTerms,
        targets: &[RootTarget],
        report: &Report,
        rules: Rules,
        tell: TellUser,
    ) -> SnapshotCopy {
        let names = targets.iter().filter_map(|target| match &target.landing {
            Landing::Name(slot) => Some(slot.name.as_bytes().to_vec()),
            _ => None,
        });
        SnapshotCopy {
            context: report.context.clone(),
            rules,
            tell,
            store,
            terms,
            root_names: names.collect(),
            announced: AnnouncedNames::default(),
        }
    }

    /// The directory of the snapshot under way.
    pub(super) fn partial(&self) -> &Arc<Dir> {
        self.store.partial()
    }

    /// True for the directory of the snapshot, if this run has made it.
    pub(super) fn has_made(&self, dir: &Dir) -> bool {
        self.store.is_new() && self.store.partial().identity() == dir.identity()
    }

    /// False if size and time of an existing file do not show that its content is on the disk.
    pub(super) fn is_certain(&self) -> bool {
        self.store.is_certain()
    }

    /// The place of the journal: beside the marks, so that it is no part of the snapshot.
    pub(super) fn journal(&self) -> JournalPlace {
        let names = self.root_names.iter().map(|name| &name[..]);
        JournalPlace::new(self.store.state().clone(), names)
    }

    /// Notes that this run announces an entry, and removes an existing one that is in its way.
    pub(super) fn announce(&self, entry: &Entry, slot: &EntrySlot) -> Result<()> {
        if slot.fresh {
            return Ok(());
        }
        if entry.parent != NO_PARENT {
            self.announced.note(entry, slot)?;
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
        let is_ending = || self.context.is_ending();
        dest::remove_tree(&slot.dir, slot.name.as_os_str(), &self.rules, &is_ending)
    }

    /// With `--live`, an entry has vanished: what an interrupted run has left of it is removed too.
    pub(super) fn vanished(&self, id: EntryId, parent: EntryId) {
        self.announced.forget(id, parent);
    }

    /// All entries of a directory are in place: removes the other ones, which this run has not
    /// announced.
    pub(super) fn settle(&self, open: &OpenDirectory) {
        let announced = self.announced.take(open.entry.id);
        let Some(directory) = &open.directory else {
            return;
        };
        let dir = directory.dir();
        if directory.with_content().is_some() {
            self.remove_unannounced(dir, |name| announced.contains(name));
        }
        if open.place.depth == 0
            && let Err(error) = self.check_not_empty(open, dir)
        {
            self.context.report_fault(&error, 0, 0);
        }
    }

    fn remove_unannounced(&self, dir: &Arc<Dir>, is_own: impl Fn(&[u8]) -> bool) {
        let stays = |name: &[u8]| is_own(name) || self.is_root(dir, name);
        let is_ending = || self.context.is_ending();
        let removed = dest::remove_others(dir, stays, &self.rules, &is_ending);
        if let Err(error) = removed {
            self.context.report_fault(&error, 0, 0);
        }
    }

    /// True for the name of a root, if `dir` is the directory of the snapshot.
    fn is_root(&self, dir: &Dir, name: &[u8]) -> bool {
        let is_top = dir.identity() == self.store.partial().identity();
        is_top && self.root_names.iter().any(|root| root == name)
    }

    /// A source that has become empty is more likely a disk that is not mounted.
    fn check_not_empty(&self, open: &OpenDirectory, dir: &Arc<Dir>) -> Result<()> {
        let Some(old) = open.earlier.first().filter(|_| !self.rules.force) else {
            return Ok(());
        };
        let is_root = |name: &[u8]| self.is_root(dir, name);
        if dest::has_no_entries(dir, is_root)? && !dest::has_no_entries(old, is_root)? {
            let message = "the source of this directory is empty, or all of it is left out (is the \
                           source's disk mounted?), but the last snapshot has entries, so this one is \
                           not completed (--force completes it anyway)";
            return Err(Error::new(Kind::Refused, Side::Dest, message).at(dir.path()));
        }
        Ok(())
    }

    /// Everything is in place: makes the snapshot a complete one, and removes old ones, unless
    /// something has failed. `has_contents`: the contents of a root are in the same directory, which
    /// has been looked at.
    pub(super) fn complete(&self, has_contents: bool, reused: &ReusedEntries) {
        if !self.root_names.is_empty() && !has_contents && !self.store.is_new() {
            self.remove_unannounced(self.store.partial(), |_| false);
        }
        if self.context.news.failures.has_some() {
            (self.tell)(
                "fastcp: the snapshot is not completed, because of the other errors; correct their \
                 causes, then run the same command again to resume it",
            );
            self.store.doubt();
            return;
        }
        // The client counts this as a failure.
        if self.terms.strict && self.has_not_kept() {
            (self.tell)(
                "fastcp: the snapshot is not completed: some metadata was not kept (--strict)",
            );
            self.store.doubt();
            return;
        }
        if let Err(error) = self.try_complete(reused) {
            self.context.report_fault(&error, 0, 0);
        }
    }

    fn has_not_kept(&self) -> bool {
        let here = self.rules.not_kept.get() != NotKept::default();
        here || self.context.progress.not_kept().get() != NotKept::default()
    }

    fn try_complete(&self, reused: &ReusedEntries) -> Result<()> {
        let is_ending = || self.context.is_ending();
        let made = self.store.complete(sync_beside, &is_ending)?;
        let report = SnapshotReport {
            name: made.to_string().into_bytes(),
            linked: reused.linked(),
            copied: reused.copied(),
            removed: Vec::new(),
            is_clock_behind: false,
        };
        self.tell_made(report.clone());
        let Some(policy) = &self.terms.keep else {
            return Ok(());
        };
        let thinned = self.store.thin(policy, made, &self.rules, &is_ending)?;
        let names = thinned
            .removed
            .iter()
            .map(|name| name.to_string().into_bytes());
        self.tell_made(SnapshotReport {
            removed: names.take(OWN_NAMES_MAX).collect(),
            is_clock_behind: thinned.is_clock_behind,
            ..report
        });
        thinned.failed.map_or(Ok(()), Err)
    }

    /// Tells both ends; one of them is the user's.
    fn tell_made(&self, report: SnapshotReport) {
        self.context.news.made_snapshot(&report);
        self.context.say(Message::Snapshot(report));
    }
}
