//! The entries of the walk: which are in place or failed, and how much of the rest was announced.
//! The receiver holds an announced entry until it is in place or failed, so their number, their
//! bytes and their open directories are limited here. The receiver keeps almost nothing of small
//! files that it already has; [`KeptFiles`](super::kept::KeptFiles) counts those.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::chunk::ranges::RangeSet;
use crate::manifest::{Entry, EntryId, EntryKind, NO_PARENT, OPERAND_BYTES_MAX};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::entry_weights::EntryWeights;
use crate::source::FoundFile;
use crate::wire::message::EntryEnd;

/// Announced entries that are neither in place nor failed.
pub const UNSETTLED_ENTRIES_MAX: u64 = 1 << 15;

/// The most bytes that announced entries may take in the receiver's memory: some 20,000 short
/// entries, or 1,900 symbolic links with the longest texts.
pub const ANNOUNCED_BYTES_MAX: usize = 8 << 20;

/// The most directories announced after the lowest unsettled entry. The walk is depth first, so
/// only these and that entry's ancestors can still wait for children at the receiver.
pub const DIRECTORIES_MAX: usize = 1 << 14;

/// The most bytes of their entries. The receiver holds them until the directories are complete.
pub const DIRECTORY_BYTES_MAX: usize = 8 << 20;

/// Most ranges of failed entries that are remembered, in some 5 MB.
const FAILED_RANGES_MAX: usize = 1 << 17;

/// The least bytes of each kind, however many hosts get the copy.
const BYTES_MIN: usize = 1 << 20;

#[derive(Default)]
pub(super) struct AnnouncedEntries {
    /// Hosts that get the copy from this process, in sessions of their own, besides this one.
    others: usize,
    /// Entries that are in place or failed.
    settled: RangeSet,
    /// Failed entries, as long as a pack in flight or a further name may ask about them.
    failed: RangeSet,
    /// The highest number of the walk so far.
    highest: EntryId,
    /// Announced entries that are not settled.
    unsettled: EntryWeights,
    /// Directories from `floor` on.
    directories: EntryWeights,
    operands: AnnouncedOperands,
    /// All lower numbers are settled or belong to operands.
    floor: EntryId,
    /// Files of unknown size that had no room in their pack.
    outgrown: Vec<(FoundFile, Option<ListedPath>)>,
}

impl AnnouncedEntries {
    /// For a copy to `hosts` hosts, which share the limits of bytes.
    pub(super) fn of(hosts: usize) -> AnnouncedEntries {
        AnnouncedEntries {
            others: hosts.saturating_sub(1),
            ..AnnouncedEntries::default()
        }
    }

    /// The part of `bytes` for one of the hosts that get the copy.
    pub(super) fn share_of(&self, bytes: usize) -> usize {
        (bytes / (self.others + 1)).max(BYTES_MIN)
    }

    /// Begins the walk. Numbers below `first` belong to operands.
    pub(super) fn begin_walk(&mut self, first: EntryId) {
        self.floor = first;
        self.operands.unmet.insert(1..first);
        self.operands.first = first;
    }

    /// The walk has come to this entry.
    pub(super) fn meet(&mut self, entry: EntryId) {
        self.highest = self.highest.max(entry);
        self.operands.unmet.remove(entry..entry.saturating_add(1));
    }

    /// True if the walk has reached this number. The receiver cannot know of later entries.
    pub(super) fn is_met(&self, entry: EntryId) -> bool {
        entry <= self.highest
    }

    /// Counts entries that are about to be announced.
    pub(super) fn announce(&mut self, entries: &[Entry]) {
        for entry in entries {
            if !self.settled.contains(entry.id) {
                self.add(entry);
            }
        }
    }

    fn add(&mut self, entry: &Entry) {
        let is_new = self.unsettled.add(entry);
        if !is_new || entry.kind != EntryKind::Directory {
            return;
        }
        if entry.parent == NO_PARENT {
            self.operands.open.insert(entry.id, entry.heap_bytes());
        } else if entry.id >= self.floor {
            self.directories.add(entry);
        }
    }

    /// Everything in these directories was announced.
    pub(super) fn end_directories(&mut self, ends: &[EntryEnd]) {
        for end in ends {
            self.operands.end(end.entry, self.highest);
        }
        self.operands.release(self.floor);
    }

    /// These entries are in place or failed.
    pub(super) fn settle(&mut self, range: Range<EntryId>) {
        self.settled.insert(range.clone());
        self.unsettled.remove_all(range);
        self.floor = self.settled.next_missing(self.floor);
        self.directories.remove_all(..self.floor);
        self.operands.release(self.floor);
    }

    /// No entry has a number in this range.
    pub(super) fn skip(&mut self, range: Range<EntryId>) {
        self.settled.insert(range);
    }

    /// True if every entry of the walk is in place or failed.
    pub(super) fn are_all_settled(&self) -> bool {
        self.settled.contains_all(1..self.highest + 1)
    }

    /// Stops counting the bytes of an entry that the receiver keeps almost nothing of.
    pub(super) fn lighten(&mut self, entry: EntryId) {
        self.unsettled.remove(entry);
    }

    /// True if the entry that the walk has come to may be announced. `kept` entries count by their bytes
    /// only.
    pub(super) fn has_room(&self, kept: u64) -> bool {
        let met = self.operands.met(self.highest);
        let unsettled = met.saturating_sub(self.settled.count() + kept);
        unsettled <= UNSETTLED_ENTRIES_MAX
            // Each gap takes memory here and at the receiver.
            && self.settled.fragments() as u64 <= UNSETTLED_ENTRIES_MAX
            && self.unsettled.bytes() < self.share_of(ANNOUNCED_BYTES_MAX)
            && self.directories.len() < DIRECTORIES_MAX
            && self.directories.bytes() < self.share_of(DIRECTORY_BYTES_MAX)
            && self.operands.ended_bytes < OPERAND_BYTES_MAX
    }

    /// Records failed entries, for their packs and for their hard links.
    pub(super) fn fail(&mut self, entries: Range<EntryId>) {
        self.failed.insert(entries);
        // The oldest are forgotten, unless they are still to be settled. All packs in flight have fewer
        // ranges. A further name of a forgotten file fails at the receiver.
        let is_settled = |oldest: Range<EntryId>| oldest.end <= self.floor;
        while self.failed.fragments() > FAILED_RANGES_MAX
            && self.failed.iter().next().is_some_and(is_settled)
        {
            self.failed.pop_first();
        }
    }

    pub(super) fn has_failed(&self, entry: EntryId) -> bool {
        self.failed.contains(entry)
    }

    /// Adds a file of unknown size that had no room in its pack.
    pub(super) fn outgrow(&mut self, found: FoundFile, listed: Option<ListedPath>) {
        self.outgrown.push((found, listed));
    }

    pub(super) fn has_outgrown(&self) -> bool {
        !self.outgrown.is_empty()
    }

    pub(super) fn take_outgrown(&mut self) -> Vec<(FoundFile, Option<ListedPath>)> {
        std::mem::take(&mut self.outgrown)
    }
}

/// The operands. They have the lowest numbers, but not all of them need to come first: the walk
/// announces no more large directories than the receiver has room for.
#[derive(Default)]
struct AnnouncedOperands {
    /// Those that the walk has not come to.
    unmet: RangeSet,
    /// The lowest number of the other entries.
    first: EntryId,
    /// [`Entry::heap_bytes`] of directories whose ends were not sent.
    open: HashMap<EntryId, usize>,
    /// The others of which entries may be unsettled: the highest number when the end was sent, and
    /// their bytes.
    ended: VecDeque<(EntryId, usize)>,
    ended_bytes: usize,
}

impl AnnouncedOperands {
    /// How many entries the walk has come to, if `highest` has the highest number.
    fn met(&self, highest: EntryId) -> u64 {
        match highest < self.first {
            true => highest,
            false => highest - self.unmet.count(),
        }
    }

    fn end(&mut self, directory: EntryId, highest: EntryId) {
        if let Some(bytes) = self.open.remove(&directory) {
            self.ended.push_back((highest, bytes));
            self.ended_bytes += bytes;
        }
    }

    /// All entries below `floor` are settled.
    fn release(&mut self, floor: EntryId) {
        while let Some(&(highest, bytes)) = self.ended.front()
            && highest < floor
        {
            self.ended.pop_front();
            self.ended_bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Name;
    use crate::wire::message::entry_weight;

    fn entry(id: EntryId, kind: EntryKind) -> Entry {
        Entry::new(id, 1, Name::try_from(b"x".to_vec()).unwrap(), kind)
    }

    #[test]
    fn long_texts_fill_the_room_and_settled_ones_free_it() {
        let mut announced = AnnouncedEntries::default();
        let link = |id| entry(id, EntryKind::Symlink(vec![b'x'; 4000]));
        let mut last = 1;
        while announced.has_room(0) {
            last += 1;
            announced.meet(last);
            announced.announce(&[link(last)]);
        }
        assert!((1500..2200).contains(&last), "{last}");
        announced.settle(2..last);
        // An entry that is announced again counts once. One that has settled does not count.
        announced.announce(&[link(last), link(2)]);
        let weight = entry_weight(&link(last));
        assert_eq!(announced.unsettled.bytes(), weight);
        announced.settle(last..last + 1);
        assert_eq!(announced.unsettled.bytes(), 0);
    }

    #[test]
    fn directories_count_until_all_before_them_is_settled() {
        let mut announced = AnnouncedEntries::default();
        // Roots 1 and 2. The second is a hard link and comes last.
        announced.begin_walk(3);
        let last = 5 + 2 * DIRECTORIES_MAX as EntryId;
        for id in (3..last).step_by(2) {
            announced.meet(id);
            announced.announce(&[entry(id, EntryKind::Directory)]);
            announced.settle(id..id + 1);
            // 4, 6, ... are files in flight.
        }
        assert!(!announced.has_room(last));
        announced.settle(4..5);
        assert!(announced.has_room(last));
        announced.settle(3..last);
        assert_eq!(announced.directories.len(), 0);
        assert_eq!(announced.directories.bytes(), 0);
    }

    #[test]
    fn directories_of_operands_count_until_all_that_was_announced_is_settled() {
        let mut announced = AnnouncedEntries::default();
        announced.begin_walk(1000);
        let operand = |id| {
            let mut operand = entry(id, EntryKind::Directory);
            operand.parent = NO_PARENT;
            operand.user = vec![b'u'; OPERAND_BYTES_MAX / 4];
            operand
        };
        let end = |id| EntryEnd {
            entry: id,
            length: 0,
            root: None,
        };
        // Each has one file, which is not in place yet.
        for id in 1..4 {
            announced.meet(id);
            announced.announce(&[operand(id)]);
            announced.settle(id..id + 1);
            announced.meet(999 + id);
            announced.end_directories(&[end(id)]);
        }
        assert!(announced.has_room(0));
        assert_eq!(announced.operands.met(announced.highest), 6);
        for id in 4..6 {
            announced.meet(id);
            announced.announce(&[operand(id)]);
        }
        assert!(announced.has_room(0), "the walk limits those");
        announced.end_directories(&[end(4)]);
        assert!(!announced.has_room(0));
        announced.settle(1000..1001);
        assert!(announced.has_room(0));
        announced.settle(4..6);
        announced.settle(1001..1003);
        assert_eq!(announced.operands.ended_bytes, 0);
        announced.end_directories(&[end(5)]);
        assert_eq!(announced.operands.ended_bytes, 0);
    }

    #[test]
    fn the_oldest_failed_entries_are_forgotten_when_they_are_settled() {
        let mut announced = AnnouncedEntries::default();
        announced.begin_walk(1);
        let all = 2 * FAILED_RANGES_MAX as u64;
        // Every second entry fails. The first of them is settled last.
        for id in (1..2 * all).step_by(2) {
            announced.fail(id..id + 1);
            announced.settle(id + (id == 1) as u64..id + 2);
        }
        assert!(announced.has_failed(1));
        assert_eq!(announced.failed.fragments() as u64, all);
        announced.settle(1..2);
        announced.fail(2 * all + 1..2 * all + 2);
        assert_eq!(announced.failed.fragments(), FAILED_RANGES_MAX);
        assert!(!announced.has_failed(1));
        assert!(announced.has_failed(2 * all - 1));
    }
}
