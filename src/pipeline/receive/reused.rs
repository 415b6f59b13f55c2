//! Unchanged entries of earlier copies: they are linked or copied at the destination instead of
//! being sent (`--link-dest`, `--copy-dest`, `--snapshot`).

use std::sync::atomic::Ordering::Relaxed;

use super::entries::Entries;
use super::open_file::IncomingFile;
use crate::dest::{self, EarlierDirs, EarlierEntry, EntrySlot, ExistingEntry};
use crate::earlier::Reuse;
use crate::error::Result;
use crate::itemize::ItemAction;
use crate::manifest::{Entry, EntryKind};

impl Entries {
    /// The same directory in earlier copies.
    pub(super) fn earlier_directories(&self, entry: &Entry) -> EarlierDirs {
        if self.rules.earlier.is_none() {
            return EarlierDirs::default();
        }
        let place = self.table().earlier(entry);
        place.directories()
    }

    /// The entry of an earlier copy that can be used for this one. A link or special file is used
    /// only as a hard link.
    pub(super) fn find_earlier(&self, entry: &Entry) -> Option<EarlierEntry> {
        let reuse = self.rules.earlier?;
        let place = self.table().earlier(entry);
        let found = place.find(entry, &self.rules)?;
        let is_file = entry.kind == EntryKind::File;
        (is_file || reuse == Reuse::Link && found.is_equal()).then_some(found)
    }

    /// Makes `slot` a hard link to an entry of an earlier copy. None if it has to be copied or sent.
    ///
    /// # Errors
    /// Of the file system, at the new place.
    pub(super) fn link_earlier(
        &self,
        slot: &EntrySlot,
        entry: &Entry,
        found: &EarlierEntry,
    ) -> Result<Option<ExistingEntry>> {
        let is_link = self.rules.earlier == Some(Reuse::Link) && found.is_equal();
        if !is_link || !self.may_link(slot, entry)? {
            return Ok(None);
        }
        let linked = found.link_to(slot, &self.rules)?;
        if linked.is_some() {
            self.reused.linked.fetch_add(1, Relaxed);
            found.count_not_kept(entry, &self.rules);
        }
        Ok(linked)
    }

    /// Accounts for a file that is in place as a link to an earlier copy, or as a copy of one.
    pub(super) fn found_reused(&self, file: IncomingFile, existing: &ExistingEntry) {
        let inode = (existing.dev, existing.ino);
        self.report
            .itemizer
            .note_first(&file.entry, file.listed.as_ref(), Some(inode));
        self.found_unchanged(file, existing);
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

    /// Copies a file of an earlier copy to its new place. None if it has to be sent.
    ///
    /// # Errors
    /// Of the file system, at the new place.
    pub(super) fn copy_earlier(
        &self,
        file: &IncomingFile,
        found: &EarlierEntry,
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
        let item = self
            .report
            .itemizer
            .change_of_new(ItemAction::Made, entry, listed.as_ref());
        let is_ending = || self.context().is_ending();
        let copied = found.copy_to(slot, entry, &self.rules, &is_ending)?;
        if copied.is_some() {
            if self.rules.earlier == Some(Reuse::Link) && found.is_equal() {
                self.reused.copied.fetch_add(1, Relaxed);
            }
            if let Some(item) = item {
                self.report.itemizer.add(item);
            }
        }
        Ok(copied)
    }
}
