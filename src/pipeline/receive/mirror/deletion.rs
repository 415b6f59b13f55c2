//! One pass over the entries that only the destination has: it counts or deletes them.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::mem::take;

use super::super::merged::Merging;
use super::super::report::Report;
use crate::dest::{self, Directory, EntrySlot, Remover, Rules};
use crate::error::{Error, Result};
use crate::manifest::Timestamp;
use crate::mirror::MostDeleted;
use crate::wire::message::DeletedEntries;

/// Paths of deleted entries in one message, and about how many bytes they take.
const TOLD_MAX: usize = 256;
const TOLD_BYTES_MAX: usize = 64 << 10;

/// Most directories that operands may share and whose entries are counted, in some 13 MB. Entries of
/// further ones are not counted, so that `--max-delete` in percent allows less.
const SHARED_MAX: usize = 1 << 18;

/// The error of `--check` where a directory at the destination cannot be read.
pub(super) const UNREAD_IN_CHECK: &str =
    "cannot read the directory, so extra entries in it may be missing from this list";

/// Counts entries, or deletes them. In a dry run, entries to delete are only reported.
pub(super) struct DeletionPass {
    /// Another pass will delete, if this one does not count too many.
    pub only_counts: bool,
    pub rules: Rules,
    /// Device and inode of the entries that are never deleted.
    protected: HashSet<(u64, u64)>,
    /// The same of directories that are, or contain, earlier copies.
    earlier: HashMap<(u64, u64), EarlierPart>,
    /// Entries younger than this stay.
    pub began: Timestamp,
    pub count: DeletionCount,
    told: UntoldDeletions,
}

/// What a directory at the destination is for the earlier copies (`--link-dest`, `--copy-dest`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlierPart {
    /// An earlier copy, all of which stays.
    Whole,
    /// It contains one, and maybe other entries.
    Above,
}

impl DeletionPass {
    pub(super) fn new(
        only_counts: bool,
        rules: Rules,
        protected: HashSet<(u64, u64)>,
        earlier: HashMap<(u64, u64), EarlierPart>,
        began: Timestamp,
        count: DeletionCount,
    ) -> DeletionPass {
        DeletionPass {
            only_counts,
            rules,
            protected,
            earlier,
            began,
            count,
            told: UntoldDeletions::default(),
        }
    }

    /// What a directory is for the earlier copies, if it is anything for them.
    pub(super) fn part_of_earlier(&self, slot: &EntrySlot) -> Option<EarlierPart> {
        if self.earlier.is_empty() {
            return None;
        }
        let there = dest::existing(slot).ok().flatten()?;
        self.earlier.get(&(there.dev, there.ino)).copied()
    }

    /// True if the destination changes.
    pub(super) fn changes(&self) -> bool {
        !self.only_counts && !self.rules.dry_run
    }

    /// Reports an error. A pass that only counts is followed by one that meets it again.
    pub(super) fn failed(&self, report: &Report, error: &Error) {
        if !self.only_counts {
            report.context.report_fault(error, 0, 0);
        }
    }

    /// Everything was counted. The next pass deletes.
    ///
    /// # Errors
    /// The message for the user if that is more than `most`.
    pub(super) fn allow(&mut self, most: MostDeleted) -> Result<(), String> {
        self.count = self.count.allow(most)?;
        self.only_counts = false;
        Ok(())
    }

    /// Removes the tree in `slot`. `is_nested`: it is in a directory that only the destination has.
    /// Returns whether all of it was removed, and whether anything was.
    pub(super) fn remove_tree(
        &mut self,
        report: &Report,
        slot: &EntrySlot,
        path: Vec<u8>,
        is_nested: bool,
    ) -> (bool, bool) {
        let before = self.count.deleted;
        let is_all = self.with_remover(report, |remover| remover.remove_tree(slot, path));
        let deleted = self.count.deleted - before;
        let top = u64::from(!is_nested && is_all);
        self.count.nested += deleted.saturating_sub(top);
        if !is_all {
            self.count.stops();
        }
        (is_all, deleted > 0)
    }

    /// Opens a directory of which some entries may be deleted.
    pub(super) fn open_directory(
        &mut self,
        report: &Report,
        slot: &EntrySlot,
    ) -> Result<Directory> {
        self.with_remover(report, |remover| remover.open_directory(slot))
    }

    fn with_remover<T>(&mut self, report: &Report, act: impl FnOnce(&mut Remover) -> T) -> T {
        let context = &report.context;
        let (only_counts, only_looks) = (self.only_counts, self.rules.dry_run);
        let (limit, deleted) = (self.count.limit, Cell::new(self.count.deleted));
        let (count, told) = (&mut self.count, &mut self.told);
        act(&mut Remover {
            only_counts: only_counts || only_looks,
            only_looks,
            rules: &self.rules,
            protected: &self.protected,
            is_ending: &|| context.is_ending(),
            began: self.began,
            may_remove: &|| limit.is_none_or(|limit| deleted.get() < limit),
            removed: &mut |path| {
                count.deleted += 1;
                deleted.set(count.deleted);
                if !only_counts {
                    told.add(report, path);
                }
            },
            // An error is reported only by the pass that deletes.
            failed: &mut |error| {
                if !only_counts {
                    context.report_fault(error, 0, 0);
                }
            },
        })
    }

    /// A directory was removed, after its entries.
    pub(super) fn removed(&mut self, report: &Report, path: &[u8], is_nested: bool) {
        self.count.deleted += 1;
        self.count.nested += u64::from(is_nested);
        if !self.only_counts {
            self.told.add(report, path);
        }
    }

    /// Tells the user about the deleted entries.
    pub(super) fn tell(&mut self, report: &Report) {
        take(&mut self.told).say(report);
    }
}

/// The number of entries in the directories of the copy.
#[derive(Default)]
pub(super) struct EntryCount {
    /// In directories of one operand.
    alone: u64,
    /// In each directory that operands may share, by device and inode.
    shared: HashMap<(u64, u64), u64>,
}

impl EntryCount {
    /// Counts the entries in a directory. Each operand that shares it counts them when its own are in
    /// place; the highest number includes those of all operands.
    pub(super) fn add(&mut self, (directory, entries): ((u64, u64), u64), merging: Merging) {
        if merging == Merging::Alone {
            self.alone += entries;
        } else if self.shared.len() < SHARED_MAX || self.shared.contains_key(&directory) {
            let counted = self.shared.entry(directory).or_default();
            *counted = entries.max(*counted);
        }
    }

    pub(super) fn sum(&self) -> u64 {
        self.alone + self.shared.values().sum::<u64>()
    }
}

/// How many entries are deleted, and how many may be.
#[derive(Default)]
pub(super) struct DeletionCount {
    /// Number of entries in the directories of the copy.
    entries: u64,
    /// Number of entries that were deleted before, to make room for others.
    made_room: u64,
    deleted: u64,
    /// Deleted entries of directories that only the destination has.
    nested: u64,
    /// Most entries to delete.
    limit: Option<u64>,
    /// More were to be deleted.
    pub was_limited: bool,
}

impl DeletionCount {
    pub(super) fn new(entries: u64, made_room: u64) -> DeletionCount {
        DeletionCount {
            entries,
            made_room,
            ..DeletionCount::default()
        }
    }

    /// True if nothing more may be deleted. Notes that more was to be.
    pub(super) fn stops(&mut self) -> bool {
        let is_at_limit = self.limit.is_some_and(|limit| self.deleted >= limit);
        self.was_limited |= is_at_limit;
        is_at_limit
    }

    /// Ends the count of all entries, and begins the count of deleted ones.
    ///
    /// # Errors
    /// The message for the user if that is more than `most`.
    fn allow(&self, most: MostDeleted) -> Result<DeletionCount, String> {
        let deleted = self.deleted + self.made_room;
        let all = self.entries + self.nested + self.made_room;
        if most.is_exceeded(deleted, all) {
            let nothing = nothing(self.made_room);
            return Err(format!(
                "{nothing} is deleted: --max-delete allows {most}, and the copy would delete {deleted} \
                 of {all} entries"
            ));
        }
        Ok(DeletionCount {
            limit: Some(most.of(all).saturating_sub(self.made_room)),
            ..DeletionCount::new(self.entries, self.made_room)
        })
    }
}

/// The beginning of a message that says that no entry, or no further one, is deleted.
pub(super) fn nothing(made_room: u64) -> &'static str {
    match made_room {
        0 => "nothing",
        _ => "nothing more",
    }
}

/// Deleted entries that the user has not heard of.
#[derive(Default)]
pub(super) struct UntoldDeletions {
    deleted: DeletedEntries,
    bytes: usize,
}

impl UntoldDeletions {
    pub(super) fn add(&mut self, report: &Report, path: &[u8]) {
        self.deleted.count += 1;
        if report.context.options.mirror.lists {
            self.bytes += path.len() + size_of::<Vec<u8>>();
            self.deleted.paths.push(path.to_vec());
        }
        if self.deleted.paths.len() >= TOLD_MAX || self.bytes >= TOLD_BYTES_MAX {
            take(self).say(report);
        }
    }

    pub(super) fn say(self, report: &Report) {
        if self.deleted.count > 0 {
            report.deleted(self.deleted);
        }
    }
}
