//! What happens to each entry, for the user (`--itemize-changes`, `--dry-run`): found out before
//! the entry is placed, and reported afterwards.

use rustix::fs::Stat;

use super::entries::Entries;
use crate::dest::{self, Directory, EntrySlot};
use crate::error::Result;
use crate::itemize::{ItemAction, ItemChanges, ItemizedEntry};
use crate::manifest::{Entry, EntryId};
use crate::pipeline::digest_list::ListedPath;

impl Entries {
    /// The change to the entry in `slot`; with `is_sent` a file's content is written. None if the
    /// user does not want to know.
    ///
    /// # Errors
    /// If the existing entry cannot be looked at.
    pub(super) fn change(
        &self,
        slot: &EntrySlot,
        entry: &Entry,
        listed: Option<&ListedPath>,
        is_sent: bool,
    ) -> Result<Option<ItemizedEntry>> {
        let itemizer = &self.report.itemizer;
        if !itemizer.is_on() {
            return Ok(None);
        }
        let changes = match &slot.device {
            None => {
                let old = dest::status(slot)?;
                dest::changes(slot, entry, old.as_ref(), is_sent, &self.rules)?
            }
            Some(_) => {
                let written = ItemChanges {
                    time_of_copy: true,
                    ..ItemChanges::default()
                };
                (ItemAction::Sent, written)
            }
        };
        Ok(Some(itemizer.item(entry, listed, changes, None)))
    }

    /// The same for a new entry, in a place where nothing exists.
    pub(super) fn change_of_new(
        &self,
        action: ItemAction,
        entry: &Entry,
        listed: Option<&ListedPath>,
    ) -> Option<ItemizedEntry> {
        let itemizer = &self.report.itemizer;
        let change = (action, ItemChanges::of_new());
        let item = || itemizer.item(entry, listed, change, None);
        itemizer.is_on().then(item)
    }

    /// The same for a directory. `old` is its status before the copy, if it existed.
    pub(super) fn change_of_directory(
        &self,
        directory: &Directory,
        old: Option<&Stat>,
        entry: &Entry,
        listed: Option<&ListedPath>,
    ) -> Result<Option<ItemizedEntry>> {
        let itemizer = &self.report.itemizer;
        if !itemizer.is_on() {
            return Ok(None);
        }
        let Some(old) = old.filter(|_| !directory.made()) else {
            return Ok(self.change_of_new(ItemAction::Made, entry, listed));
        };
        if entry.is_plain() {
            return Ok(None);
        }
        let dir = directory.dir();
        let changes = dest::changes_of_directory(dir, entry, old, &self.rules)?;
        let change = (ItemAction::Corrected, changes);
        Ok(Some(itemizer.item(entry, listed, change, None)))
    }

    /// The same for a hard link to the file with the number `first`, which is at `inode` if that is
    /// known. None too if the entry is such a link already. Without a slot nothing is there.
    pub(super) fn change_of_link(
        &self,
        slot: Option<&EntrySlot>,
        entry: &Entry,
        (first, inode): (EntryId, Option<(u64, u64)>),
        listed: Option<&ListedPath>,
    ) -> Result<Option<ItemizedEntry>> {
        let itemizer = &self.report.itemizer;
        if !itemizer.is_on() {
            return Ok(None);
        }
        let first = itemizer.first(first, entry);
        let inode = inode.or(first.as_ref().and_then(|first| first.inode));
        let target = first.map(|first| first.path);
        let Some(slot) = slot else {
            let change = (ItemAction::Linked, ItemChanges::of_new());
            return Ok(Some(itemizer.item(entry, listed, change, target)));
        };
        let old = dest::status(slot)?;
        if inode.is_some() && inode == old.map(|old| (old.st_dev, old.st_ino)) {
            return Ok(None);
        }
        let change = dest::changes(slot, entry, old.as_ref(), false, &self.rules)?;
        Ok(Some(itemizer.item(entry, listed, change, target)))
    }

    /// Reports a change that was made. `inode` is that of an existing file that stays.
    pub(super) fn itemize(
        &self,
        item: Option<ItemizedEntry>,
        entry: &Entry,
        inode: Option<(u64, u64)>,
    ) {
        let itemizer = &self.report.itemizer;
        if let Some(item) = item {
            itemizer.add_first(entry, &item.path, inode);
            itemizer.add(self.context(), item);
        }
    }

    /// Reports a change of a file whose first name is noted later.
    pub(super) fn say_change(&self, item: Option<ItemizedEntry>) {
        if let Some(item) = item {
            self.report.itemizer.add(self.context(), item);
        }
    }

    /// Keeps a change until the file is in place.
    pub(super) fn itemize_later(&self, item: Option<ItemizedEntry>, entry: &Entry) {
        let itemizer = &self.report.itemizer;
        if let Some(item) = item {
            itemizer.add_first(entry, &item.path, None);
            itemizer.begin(entry.id, item);
        }
    }
}
