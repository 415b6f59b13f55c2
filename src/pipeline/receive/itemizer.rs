//! The receiver's record of what changes at the destination (`--itemize-changes`, `--dry-run`). It
//! collects the changes into messages for the user's end.

use std::collections::HashMap;
use std::mem::take;
use std::sync::OnceLock;

use parking_lot::Mutex;
use rustix::fs::Stat;

use crate::itemize::{ItemAction, ItemChanges, ItemKind, ItemizedEntry};
use crate::manifest::{Entry, EntryId, EntryKind, LINKED_BYTES_MAX, linked_weight};
use crate::pipeline::context::Context;
use crate::pipeline::digest_list::ListedPath;
use crate::wire::message::{CopyOptions, ItemizedEntries, Message};

/// Changes in one message, and about how many bytes they take.
const SAID_MAX: usize = 256;
const SAID_BYTES_MAX: usize = 64 << 10;

/// Longest path or target in a message, in bytes; the rest is left out.
const PATH_MAX: usize = 256 << 10;

pub(super) struct Itemizer {
    is_on: bool,
    /// The user wants each change, and not only the sums.
    lists: bool,
    /// Names of the roots at the destination.
    landed: OnceLock<Vec<Vec<u8>>>,
    unsaid: Mutex<Unsaid>,
    /// Changes of files that are on their way. They are reported when the file is in place.
    under_way: Mutex<HashMap<EntryId, ItemizedEntry>>,
    /// By device and inode: directories as they were before the copy put its journal there.
    before: Mutex<HashMap<(u64, u64), Stat>>,
    firsts: Mutex<LinkedFiles>,
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
pub(super) struct FirstName {
    pub path: Vec<u8>,
    /// Device and inode of the existing file that stays. None if the file is new.
    pub inode: Option<(u64, u64)>,
}

impl Itemizer {
    pub(super) fn new(options: &CopyOptions) -> Itemizer {
        Itemizer {
            is_on: options.itemizes || options.dry_run,
            lists: options.itemizes,
            landed: OnceLock::new(),
            unsaid: Mutex::default(),
            under_way: Mutex::default(),
            before: Mutex::default(),
            firsts: Mutex::default(),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Names of the roots at the destination, in their order.
    pub(super) fn set_landed(&self, names: Vec<Vec<u8>>) {
        // Roots land once, so it was not set before.
        let _ = self.landed.set(names);
    }

    /// Keeps the status of a directory from before the copy.
    pub(super) fn remember(&self, identity: (u64, u64), stat: Stat) {
        self.before.lock().insert(identity, stat);
    }

    pub(super) fn status_before(&self, identity: (u64, u64)) -> Option<Stat> {
        self.before.lock().get(&identity).copied()
    }

    /// The path below the destination.
    pub(super) fn path(&self, listed: Option<&ListedPath>) -> Vec<u8> {
        let Some(listed) = listed else {
            return Vec::new();
        };
        let names = self.landed.get();
        let root = names.and_then(|names| names.get(listed.root));
        let root = root.map_or(&b""[..], |name| name);
        let between: &[u8] = match root.is_empty() || listed.below.is_empty() {
            true => b"",
            false => b"/",
        };
        [root, between, &listed.below].concat()
    }

    /// A change of an entry. `target` is for hard links.
    pub(super) fn item(
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
        let mut path = self.path(listed);
        let mut target = match &entry.kind {
            EntryKind::Symlink(text) => text.clone(),
            _ => target.unwrap_or_default(),
        };
        path.truncate(PATH_MAX);
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
    pub(super) fn add(&self, context: &Context, item: ItemizedEntry) {
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
            say(context, full.changes);
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
        if let Some(item) = self.under_way.lock().get_mut(&id) {
            item.action = ItemAction::Corrected;
            item.size = 0;
            item.changes.value = false;
            item.changes.time_of_copy = false;
        }
    }

    /// Keeps the change of a file that is on its way.
    pub(super) fn begin(&self, id: EntryId, item: ItemizedEntry) {
        self.under_way.lock().insert(id, item);
    }

    /// The file is in place.
    pub(super) fn placed(&self, context: &Context, id: EntryId) {
        if !self.is_on {
            return;
        }
        let item = self.under_way.lock().remove(&id);
        if let Some(item) = item {
            self.add(context, item);
            self.flush(context);
        }
    }

    /// Nothing changes: the file has failed, or was in place already.
    pub(super) fn forget(&self, id: EntryId) {
        if self.is_on {
            self.under_way.lock().remove(&id);
        }
    }

    /// Sends the collected changes.
    pub(super) fn flush(&self, context: &Context) {
        if !self.is_on {
            return;
        }
        let unsaid = take(&mut *self.unsaid.lock());
        if unsaid.changes != ItemizedEntries::default() {
            say(context, unsaid.changes);
        }
    }

    /// Notes the first name of a file that gets hard links.
    pub(super) fn add_first(&self, entry: &Entry, path: &[u8], inode: Option<(u64, u64)>) {
        let is_file = entry.kind == EntryKind::File;
        if !self.is_on || !is_file || entry.links <= 1 {
            return;
        }
        let weight = linked_weight(path.len());
        let mut firsts = self.firsts.lock();
        // Beyond this, links are shown without the name that they lead to.
        if firsts.bytes + weight > 2 * LINKED_BYTES_MAX {
            return;
        }
        firsts.bytes += weight;
        let path = path.to_vec();
        firsts.files.insert(entry.id, FirstName { path, inode });
    }

    /// The first name of the file that `entry` is a further name of, if it is known.
    pub(super) fn first(&self, first: EntryId, entry: &Entry) -> Option<FirstName> {
        let mut firsts = self.firsts.lock();
        if entry.links > 1 {
            return firsts.files.get(&first).cloned();
        }
        let found = firsts.files.remove(&first)?;
        firsts.bytes -= linked_weight(found.path.len());
        Some(found)
    }
}

/// Shows changes if the user sees this end; otherwise the other end passes them on.
fn say(context: &Context, changes: ItemizedEntries) {
    if !context.news.itemized.is_shown() {
        return context.say(Message::Itemized(changes));
    }
    context.news.itemized.room_blocking(|| context.is_ending());
    context.news.itemized.add(&changes);
}
