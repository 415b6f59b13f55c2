//! Seeded trees of entries whose messages and results come in any order that the protocol allows:
//! no disk, network or clock.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::*;
use crate::manifest::EntryKind;
use crate::source::PipeSpec;

/// A tree, and what may happen next.
struct GrowingTree {
    random: Rng,
    table: EntryTable,
    /// The parent of each entry, by number, and whether the entry is a directory.
    entries: BTreeMap<EntryId, (EntryId, bool)>,
    /// Entries that are announced, in order, and directories whose end was sent.
    announced: BTreeSet<EntryId>,
    ended: BTreeSet<EntryId>,
    /// Entries whose result is known. A directory counts when all below it is settled.
    settled: BTreeSet<EntryId>,
    /// Directories that the table has returned, and that get their modes and times now.
    finishing: Vec<EntryId>,
    is_all_sent: bool,
    times_done: usize,
}

fn directory(id: EntryId, parent: EntryId) -> Entry {
    Entry {
        parent,
        kind: EntryKind::Directory,
        ..PipeSpec::Stdin.entry(id)
    }
}

impl GrowingTree {
    fn new(seed: u64) -> GrowingTree {
        let mut random = Rng::with_seed(seed);
        let mut entries = BTreeMap::new();
        let mut directories = vec![NO_PARENT];
        for id in 1..=random.u64(1..40) {
            let parent = directories[random.usize(..directories.len())];
            let is_directory = random.bool();
            if is_directory {
                directories.push(id);
            }
            entries.insert(id, (parent, is_directory));
        }
        GrowingTree {
            random,
            table: EntryTable::default(),
            entries,
            announced: BTreeSet::new(),
            ended: BTreeSet::new(),
            settled: BTreeSet::new(),
            finishing: Vec::new(),
            is_all_sent: false,
            times_done: 0,
        }
    }

    fn children(&self, of: EntryId) -> impl Iterator<Item = EntryId> {
        let children = self.entries.iter();
        let children = children.filter(move |(_, (parent, _))| *parent == of);
        children.map(|(id, _)| *id)
    }

    /// The table has returned this directory, or none.
    fn returned(&mut self, full: Option<OpenDirectory>) {
        let Some(full) = full else { return };
        let id = full.entry.id;
        assert!(self.ended.contains(&id), "before its end");
        let has_settled = |child: EntryId| self.settled.contains(&child);
        assert!(self.children(id).all(has_settled), "before its children");
        assert!(
            !self.finishing.contains(&id) && !has_settled(id),
            "once more"
        );
        self.finishing.push(id);
    }

    fn announce(&mut self, id: EntryId) {
        let (parent, is_directory) = self.entries[&id];
        self.announced.insert(id);
        match is_directory {
            true => {
                let added = directory(id, parent);
                self.table.add_directory(added, None, None);
            }
            // Some files wait for a look at what an earlier run left.
            false if self.random.bool() => self.table.set_resuming(id),
            false => {}
        }
    }

    fn settle(&mut self, id: EntryId) {
        let parent = self.entries[&id].0;
        self.settled.insert(id);
        let full = self.table.account(id, parent);
        self.returned(full);
        assert!(self.table.is_known(id) && self.table.is_accounted(id));
        assert!(!self.table.end_resuming(id), "it is not received again");
        if self.random.u8(..4) == 0 {
            assert!(self.table.account(id, parent).is_none(), "a second result");
        }
    }

    fn finish(&mut self, id: EntryId) {
        self.finishing.retain(|it| *it != id);
        self.settled.insert(id);
        self.table.directories.finished();
        let full = self.table.directories.child_settled(self.entries[&id].0);
        self.returned(full);
    }

    /// Does one thing that may happen now. False if nothing is left.
    fn step(&mut self) -> bool {
        let mut possible: Vec<(u8, EntryId)> = Vec::new();
        let next = self.announced.last().map_or(1, |last| last + 1);
        if self.entries.contains_key(&next) {
            possible.push((0, next));
        }
        for id in &self.announced {
            let (_, is_directory) = self.entries[id];
            let has_all = self.children(*id).all(|it| self.announced.contains(&it));
            match is_directory {
                true if has_all && !self.ended.contains(id) => possible.push((1, *id)),
                false if !self.settled.contains(id) => possible.push((2, *id)),
                _ => {}
            }
        }
        possible.extend(self.finishing.iter().map(|id| (3, *id)));
        let is_walked = self.announced.len() == self.entries.len();
        let directories = self.entries.iter().filter(|(_, (_, is))| *is);
        if is_walked && !self.is_all_sent && self.ended.len() == directories.count() {
            possible.push((4, 0));
        }
        if possible.is_empty() {
            return false;
        }
        match possible[self.random.usize(..possible.len())] {
            (0, id) => self.announce(id),
            (1, id) => {
                self.ended.insert(id);
                let children = self.children(id).count() as u64;
                let full = self.table.directories.end(id, children);
                self.returned(full);
            }
            (2, id) => self.settle(id),
            (3, id) => self.finish(id),
            _ => {
                self.is_all_sent = true;
                let last = self.entries.len() as u64;
                assert!(self.table.all_sent(last, std::iter::empty()));
            }
        }
        self.times_done += usize::from(self.table.take_done());
        let is_settled = self.settled.len() == self.entries.len();
        assert_eq!(self.times_done > 0, self.is_all_sent && is_settled);
        assert!(!self.table.is_stuck() && !self.table.is_scattered());
        true
    }
}

#[test]
fn a_copy_ends_once_when_all_is_settled_in_whatever_order() {
    for seed in 0..500 {
        let mut scenario = GrowingTree::new(seed);
        while scenario.step() {}
        assert_eq!(scenario.times_done, 1, "seed {seed}");
        assert_eq!(
            scenario.table.directories.name_memory.held(),
            0,
            "seed {seed}"
        );
    }
}

#[test]
fn a_directory_that_lacks_an_entry_is_found_when_nothing_more_can_come() {
    let mut table = EntryTable::default();
    table.add_directory(directory(1, NO_PARENT), None, None);
    assert!(table.directories.end(1, 2).is_none());
    assert!(table.account(2, 1).is_none(), "one of two");
    assert!(!table.is_stuck());
    assert!(table.all_sent(2, std::iter::empty()));
    assert!(table.is_stuck() && !table.take_done());
}

#[test]
fn entries_that_the_walk_left_out_are_not_waited_for() {
    let mut table = EntryTable::default();
    assert!(table.account(1, NO_PARENT).is_none());
    assert!(table.all_sent(9, std::iter::once(2..9)));
    assert!(!table.take_done(), "9 is missing");
    assert!(table.account(9, NO_PARENT).is_none());
    assert!(table.take_done() && !table.take_done(), "once");
}
