//! Announced entries that are neither in place nor failed. The receiver holds them until then, so
//! their bytes and their open directories are limited here. The receiver keeps almost nothing of
//! small files that it already has; [`Kept`](super::resumed_small_files::Kept) counts those.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::chunk::ranges::RangeSet;
use crate::manifest::{Entry, EntryId, EntryKind};
use crate::wire::message::entry_weight;

use super::Scheduler;

/// The most bytes that announced entries may take in the receiver's memory: some 20,000 short
/// entries, or 1,900 symbolic links with the longest texts.
const ANNOUNCED_BYTES_MAX: usize = 8 << 20;

/// The most directories announced after the lowest unsettled entry. The walk is depth first, so
/// only these and that entry's ancestors can still wait for children at the receiver.
const DIRECTORIES_MAX: usize = 1 << 14;

#[derive(Default)]
pub(super) struct AnnouncedEntries {
    /// Bytes of each entry.
    weights: BTreeMap<EntryId, u32>,
    bytes: usize,
    /// Directories from `floor` on, in order.
    directories: VecDeque<EntryId>,
    /// All lower numbers are settled or belong to operands.
    floor: EntryId,
}

impl Scheduler {
    /// Begins the walk. Numbers below `first` belong to operands.
    pub fn begin_walk(&self, first: EntryId) {
        self.state.lock().announced.floor = first;
    }

    /// Counts entries that are about to be announced.
    pub fn announcing(&self, entries: &[Entry]) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for entry in entries {
            if !state.settled.contains(entry.id) {
                state.announced.add(entry);
            }
        }
    }
}

impl AnnouncedEntries {
    fn add(&mut self, entry: &Entry) {
        let weight = u32::try_from(entry_weight(entry)).unwrap_or(u32::MAX);
        self.bytes += weight as usize;
        if let Some(before) = self.weights.insert(entry.id, weight) {
            self.bytes -= before as usize;
        } else if entry.kind == EntryKind::Directory && entry.id >= self.floor {
            self.directories.push_back(entry.id);
        }
    }

    /// Removes the entries in `range`, which are in place or failed. `settled` includes them.
    pub(super) fn settle(&mut self, range: Range<EntryId>, settled: &RangeSet) {
        while let Some((&id, _)) = self.weights.range(range.clone()).next() {
            let weight = self.weights.remove(&id).unwrap_or(0);
            self.bytes -= weight as usize;
        }
        self.floor = settled.next_missing(self.floor);
        while self.directories.front().is_some_and(|&id| id < self.floor) {
            self.directories.pop_front();
        }
    }

    /// Stops counting the bytes of an entry that the receiver keeps almost nothing of.
    pub(super) fn lighten(&mut self, entry: EntryId) {
        let weight = self.weights.remove(&entry).unwrap_or(0);
        self.bytes -= weight as usize;
    }

    pub(super) fn has_room(&self) -> bool {
        self.bytes < ANNOUNCED_BYTES_MAX && self.directories.len() < DIRECTORIES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Name, Timestamp};

    fn entry(id: EntryId, kind: EntryKind) -> Entry {
        let time = Timestamp::default();
        Entry {
            id,
            parent: 1,
            name: Name::try_from(b"x".to_vec()).unwrap(),
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            user: vec![],
            group: vec![],
            size: 0,
            allocated: 0,
            mtime: time,
            atime: time,
            ctime: time,
            birth: time,
            dev: 0,
            ino: 0,
            links: 1,
            rdev: 0,
            extensions: vec![],
        }
    }

    #[test]
    fn long_texts_fill_the_room_and_settled_ones_free_it() {
        let plans = Scheduler::default();
        let link = |id| entry(id, EntryKind::Symlink(vec![b'x'; 4000]));
        let mut last = 1;
        while plans.state.lock().announced.has_room() {
            last += 1;
            plans.announcing(&[link(last)]);
        }
        assert!((1500..2200).contains(&last), "{last}");
        plans.settle_entries(2..last);
        // An entry that is announced again counts once. One that has settled does not count.
        plans.announcing(&[link(last), link(2)]);
        let weight = entry_weight(&link(last));
        assert_eq!(plans.state.lock().announced.bytes, weight);
        plans.settle_entries(last..last + 1);
        assert_eq!(plans.state.lock().announced.bytes, 0);
    }

    #[test]
    fn directories_count_until_all_before_them_is_settled() {
        let plans = Scheduler::default();
        // Roots 1 and 2. The second is a hard link and comes last.
        plans.begin_walk(3);
        let last = 5 + 2 * DIRECTORIES_MAX as EntryId;
        for id in (3..last).step_by(2) {
            plans.announcing(&[entry(id, EntryKind::Directory)]);
            plans.settle_entries(id..id + 1);
            // 4, 6, ... are files in flight.
        }
        assert!(!plans.state.lock().announced.has_room());
        plans.settle_entries(4..5);
        assert!(plans.state.lock().announced.has_room());
        plans.settle_entries(3..last);
        assert!(plans.state.lock().announced.directories.is_empty());
    }
}
