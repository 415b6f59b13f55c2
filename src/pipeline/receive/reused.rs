//! Unchanged entries of earlier copies: they are linked or copied at the destination instead of
//! being sent (`--link-dest`, `--copy-dest`, `--snapshot`).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::open_file::IncomingFile;
use super::report::Report;
use crate::dest::{self, EarlierEntry, EarlierPlace, EntrySlot, ExistingEntry, Rules};
use crate::earlier::Reuse;
use crate::error::Result;
use crate::itemize::ItemAction;
use crate::manifest::{Entry, EntryKind};

pub(super) struct ReusedEntries {
    rules: Rules,
    /// Number of entries that became links to earlier ones.
    linked: AtomicU64,
    /// Number of entries that were copied from earlier ones, because the file system allows no more
    /// links to these.
    copied: AtomicU64,
}

impl ReusedEntries {
    pub(super) fn new(rules: Rules) -> ReusedEntries {
        ReusedEntries {
            rules,
            linked: AtomicU64::new(0),
            copied: AtomicU64::new(0),
        }
    }

    pub(super) fn linked(&self) -> u64 {
        self.linked.load(Relaxed)
    }

    pub(super) fn copied(&self) -> u64 {
        self.copied.load(Relaxed)
    }

    /// The entry in this place that can be used for `entry`. A link or special file is used only as a
    /// hard link.
    pub(super) fn find(&self, place: &EarlierPlace, entry: &Entry) -> Option<EarlierEntry> {
        let found = place.find(entry, &self.rules)?;
        let is_file = entry.kind == EntryKind::File;
        (is_file || self.is_linked(&found)).then_some(found)
    }

    /// True if the new entry becomes a link to this one, and no copy of it.
    pub(super) fn is_linked(&self, found: &EarlierEntry) -> bool {
        self.rules.earlier == Some(Reuse::Link) && found.is_equal()
    }

    /// Makes `slot` a hard link to an entry of an earlier copy. None if it has to be copied or sent.
    ///
    /// # Errors
    /// Of the file system, at the new place.
    pub(super) fn link(
        &self,
        slot: &EntrySlot,
        entry: &Entry,
        found: &EarlierEntry,
    ) -> Result<Option<ExistingEntry>> {
        if !self.is_linked(found) || !self.may_link(slot, entry)? {
            return Ok(None);
        }
        let linked = found.link_to(slot, &self.rules)?;
        if linked.is_some() {
            self.add_linked(1);
            found.count_not_kept(entry, &self.rules);
        }
        Ok(linked)
    }

    /// Counts entries that were used again as links.
    pub(super) fn add_linked(&self, entries: u64) {
        self.linked.fetch_add(entries, Relaxed);
    }

    /// False for a special file that this copy may not make.
    ///
    /// # Errors
    /// If the copy may not make a symbolic link with this text.
    pub(super) fn may_link(&self, slot: &EntrySlot, entry: &Entry) -> Result<bool> {
        let rules = &self.rules;
        match entry.kind {
            EntryKind::Symlink(_) => dest::check_symlink(slot, entry, rules).map(|_| true),
            EntryKind::Special(special) if special.is_device() => {
                Ok(rules.keep.devices && rules.set_id)
            }
            EntryKind::Special(_) => Ok(rules.keep.specials),
            _ => Ok(true),
        }
    }

    /// Copies a file of an earlier copy to its new place. Calls `make_room` just before the copy gets
    /// its name. None if it has to be sent.
    ///
    /// # Errors
    /// Of the file system, at the new place.
    pub(super) fn copy(
        &self,
        file: &IncomingFile,
        found: &EarlierEntry,
        report: &Report,
        make_room: &dyn Fn() -> Result<()>,
    ) -> Result<Option<ExistingEntry>> {
        let IncomingFile {
            entry,
            slot,
            listed,
            ..
        } = file;
        // With other rights, the copy could show content that the key does not know.
        if self.rules.blind && !found.is_equal() {
            return Ok(None);
        }
        let itemizer = &report.itemizer;
        let item = itemizer.change_of_new(ItemAction::Made, entry, listed.as_ref());
        let is_ending = || report.context.is_ending();
        let copied = found.copy_to(slot, entry, &self.rules, &is_ending, make_room)?;
        if copied.is_some() {
            if self.is_linked(found) {
                self.copied.fetch_add(1, Relaxed);
            }
            if let Some(item) = item {
                itemizer.add(item);
            }
        }
        Ok(copied)
    }
}
