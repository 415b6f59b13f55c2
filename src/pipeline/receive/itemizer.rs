//! The receiver's record of what changes at the destination (`--itemize-changes`, `--dry-run`). A
//! change is found out before the entry is placed, and reported afterwards. Changes are collected
//! into messages for the user's end.

use std::collections::HashMap;
use std::mem::take;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::Stat;

use super::landed_names::{LandedNames, PATH_MAX};
use crate::dest::{self, Directory, EntrySlot, Rules};
use crate::error::Result;
use crate::itemize::{ItemAction, ItemChanges, ItemKind, ItemizedEntry};
use crate::manifest::{Entry, EntryId, EntryKind, LINKED_BYTES_MAX, linked_weight};
use crate::pipeline::context::Context;
use crate::pipeline::digest_list::ListedPath;
use crate::wire::message::{ItemizedEntries, Message};

/// Changes in one message, and about how many bytes they take.
const SAID_MAX: usize = 256;
const SAID_BYTES_MAX: usize = 64 << 10;

pub(super) struct Itemizer {
    context: Arc<Context>,
    rules: Rules,
    is_on: bool,
    /// The user wants each change, and not only the sums.
    lists: bool,
    names: Arc<LandedNames>,
    unsaid: Mutex<Unsaid>,
    /// Changes of files that are on their way. They are reported when the file is in place.
    under_way: Mutex<HashMap<EntryId, UnderWay>>,
    /// By device and inode: directories as they were before the copy put its journal there.
    before: Mutex<HashMap<(u64, u64), Stat>>,
    firsts: Mutex<LinkedFiles>,
}

/// The change of a file that is not in place yet.
struct UnderWay {
    /// Without the path: there may be 33,000 of them.
    item: ItemizedEntry,
    listed: Option<ListedPath>,
}

#[derive(Default)]
struct Unsaid {
    changes: ItemizedEntries,
    /// Bytes of memory.
    weight: usize,
}

/// Files that may get further names (hard links), by their entry number.
#[derive(Default)]
struct LinkedFiles {
    files: HashMap<EntryId, FirstName>,
    bytes: usize,
}

/// The first name of a file with several names.
#[derive(Clone, Debug)]
struct FirstName {
    path: Vec<u8>,
    /// Device and inode of the existing file that stays. None if the file is new.
    inode: Option<(u64, u64)>,
}

impl Itemizer {
    pub(super) fn new(context: Arc<Context>, rules: Rules, names: Arc<LandedNames>) -> Itemizer {
        let options = &context.options;
        Itemizer {
            is_on: options.itemizes || options.dry_run,
            lists: options.itemizes,
            context,
            rules,
            names,
            unsaid: Mutex::default(),
            under_way: Mutex::default(),
            before: Mutex::default(),
            firsts: Mutex::default(),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Keeps the status of a directory from before the copy.
    pub(super) fn remember(&self, identity: (u64, u64), stat: Stat) {
        self.before.lock().insert(identity, stat);
    }

    pub(super) fn status_before(&self, identity: (u64, u64)) -> Option<Stat> {
        self.before.lock().get(&identity).copied()
    }

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
        if !self.is_on {
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
        Ok(Some(self.item(entry, listed, changes, None)))
    }

    /// The same for a new entry, in a place where nothing exists.
    pub(super) fn change_of_new(
        &self,
        action: ItemAction,
        entry: &Entry,
        listed: Option<&ListedPath>,
    ) -> Option<ItemizedEntry> {
        let change = (action, ItemChanges::of_new());
        let item = || self.item(entry, listed, change, None);
        self.is_on.then(item)
    }

    /// The same for a directory. `old` is its status before the copy, if it existed.
    pub(super) fn change_of_directory(
        &self,
        directory: &Directory,
        old: Option<&Stat>,
        entry: &Entry,
        listed: Option<&ListedPath>,
    ) -> Result<Option<ItemizedEntry>> {
        if !self.is_on {
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
        Ok(Some(self.item(entry, listed, change, None)))
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
        if !self.is_on {
            return Ok(None);
        }
        let first = self.first(first, entry);
        let inode = inode.or(first.as_ref().and_then(|first| first.inode));
        let target = first.map(|first| first.path);
        let Some(slot) = slot else {
            let change = (ItemAction::Linked, ItemChanges::of_new());
            return Ok(Some(self.item(entry, listed, change, target)));
        };
        let old = dest::status(slot)?;
        if inode.is_some() && inode == old.map(|old| (old.st_dev, old.st_ino)) {
            return Ok(None);
        }
        let change = dest::changes(slot, entry, old.as_ref(), false, &self.rules)?;
        Ok(Some(self.item(entry, listed, change, target)))
    }

    /// Reports a change that was made. `inode` is that of an existing file that stays.
    pub(super) fn report(
        &self,
        item: Option<ItemizedEntry>,
        entry: &Entry,
        inode: Option<(u64, u64)>,
    ) {
        if let Some(item) = item {
            self.add_first(entry, &item.path, inode);
            self.add(item);
        }
    }

    /// Keeps a change until the file is in place.
    pub(super) fn report_later(
        &self,
        item: Option<ItemizedEntry>,
        entry: &Entry,
        listed: Option<&ListedPath>,
    ) {
        if let Some(mut item) = item {
            self.add_first(entry, &item.path, None);
            item.path = Vec::new();
            let listed = listed.cloned();
            let under_way = UnderWay { item, listed };
            self.under_way.lock().insert(entry.id, under_way);
        }
    }

    /// The path below the destination.
    fn path(&self, listed: Option<&ListedPath>) -> Vec<u8> {
        self.names.path(listed)
    }

    /// A change of an entry. `target` is for hard links.
    fn item(
        &self,
        entry: &Entry,
        listed: Option<&ListedPath>,
        (action, changes): (ItemAction, ItemChanges),
        target: Option<Vec<u8>>,
    ) -> ItemizedEntry {
        let kind = match &entry.kind {
            EntryKind::File | EntryKind::HardLink(_) | EntryKind::Pipe => ItemKind::File,
            EntryKind::Directory => ItemKind::Directory,
            EntryKind::Symlink(_) => ItemKind::Symlink,
            EntryKind::Special(special) if special.is_device() => ItemKind::Device,
            EntryKind::Special(_) => ItemKind::Special,
        };
        let path = self.path(listed);
        let mut target = match &entry.kind {
            EntryKind::Symlink(text) => text.clone(),
            _ => target.unwrap_or_default(),
        };
        target.truncate(PATH_MAX);
        let is_sent = action == ItemAction::Sent;
        ItemizedEntry {
            action,
            kind,
            changes,
            size: if is_sent { entry.size } else { 0 },
            path,
            target,
        }
    }

    /// Reports a change. One that corrects nothing is left out.
    pub(super) fn add(&self, item: ItemizedEntry) {
        if item.action == ItemAction::Corrected && item.changes.is_none() || !self.lists {
            return;
        }
        let mut unsaid = self.unsaid.lock();
        unsaid.weight += item.weight();
        unsaid.changes.entries.push(item);
        let is_full = unsaid.changes.entries.len() >= SAID_MAX || unsaid.weight >= SAID_BYTES_MAX;
        if is_full {
            let full = take(&mut *unsaid);
            drop(unsaid);
            self.say(full.changes);
        }
    }

    /// Counts a file that would be sent.
    pub(super) fn would_send(&self, bytes: u64) {
        let mut unsaid = self.unsaid.lock();
        unsaid.changes.files += 1;
        unsaid.changes.bytes = unsaid.changes.bytes.saturating_add(bytes);
    }

    /// Counts a file whose content was compared and is the same.
    pub(super) fn unchanged(&self) {
        self.unsaid.lock().changes.unchanged += 1;
    }

    /// A file that is on its way turned out to have the same content as the existing file with this
    /// device and inode, so only metadata changes.
    pub(super) fn is_unchanged(&self, id: EntryId, inode: (u64, u64)) {
        if let Some(first) = self.firsts.lock().files.get_mut(&id) {
            first.inode = Some(inode);
        }
        if let Some(UnderWay { item, .. }) = self.under_way.lock().get_mut(&id) {
            item.action = ItemAction::Corrected;
            item.size = 0;
            item.changes.value = false;
            item.changes.time_of_copy = false;
        }
    }

    /// The file is in place.
    pub(super) fn placed(&self, id: EntryId) {
        if !self.is_on {
            return;
        }
        let under_way = self.under_way.lock().remove(&id);
        if let Some(UnderWay { mut item, listed }) = under_way {
            item.path = self.path(listed.as_ref());
            self.add(item);
            self.flush();
        }
    }

    /// Nothing changes: the file has failed, or was in place already.
    pub(super) fn forget(&self, id: EntryId) {
        if self.is_on {
            self.under_way.lock().remove(&id);
        }
    }

    /// Sends the collected changes.
    pub(super) fn flush(&self) {
        if !self.is_on {
            return;
        }
        let unsaid = take(&mut *self.unsaid.lock());
        if unsaid.changes != ItemizedEntries::default() {
            self.say(unsaid.changes);
        }
    }

    /// Notes the first name of a file that gets hard links. `inode` as in
    /// [`report`](Itemizer::report).
    pub(super) fn note_first(
        &self,
        entry: &Entry,
        listed: Option<&ListedPath>,
        inode: Option<(u64, u64)>,
    ) {
        if self.is_on {
            self.add_first(entry, &self.path(listed), inode);
        }
    }

    fn add_first(&self, entry: &Entry, path: &[u8], inode: Option<(u64, u64)>) {
        let is_file = entry.kind == EntryKind::File;
        if !self.is_on || !is_file || entry.links <= 1 {
            return;
        }
        let weight = linked_weight(path.len());
        let mut firsts = self.firsts.lock();
        // Beyond this, links are shown without the name that they lead to.
        if firsts.bytes + weight > LINKED_BYTES_MAX {
            return;
        }
        firsts.bytes += weight;
        let path = path.to_vec();
        firsts.files.insert(entry.id, FirstName { path, inode });
    }

    /// The first name of the file that `entry` is a further name of, if it is known.
    fn first(&self, first: EntryId, entry: &Entry) -> Option<FirstName> {
        let mut firsts = self.firsts.lock();
        if entry.links > 1 {
            return firsts.files.get(&first).cloned();
        }
        let found = firsts.files.remove(&first)?;
        firsts.bytes -= linked_weight(found.path.len());
        Some(found)
    }

    /// Shows changes if the user sees this end; otherwise the other end passes them on.
    fn say(&self, changes: ItemizedEntries) {
        let context = &self.context;
        if !context.news.itemized.is_shown() {
            return context.say(Message::Itemized(changes));
        }
        context.news.itemized.room_blocking(|| context.is_ending());
        context.news.itemized.add(&changes);
    }
}
