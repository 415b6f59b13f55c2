//! Announced entries that are neither in place nor failed. Directories are in
//! [`OpenDirectories`](super::open_directories::OpenDirectories).

use crate::chunk::ranges::RangeSet;
use crate::manifest::{Entry, EntryId};
use crate::pipeline::entry_weights::EntryWeights;
use crate::pipeline::send::scheduler::ANNOUNCED_BYTES_MAX;

/// The most bytes that they may take: as many as the sender announces, and two messages.
const BYTES_MAX: usize = ANNOUNCED_BYTES_MAX + (2 << 20);

#[derive(Default)]
pub(super) struct UnsettledEntries {
    /// Files that wait for a worker to check or read their earlier data, or to open them again.
    pub(super) resuming: RangeSet,
    weights: EntryWeights,
}

impl UnsettledEntries {
    /// An entry was announced.
    pub(super) fn add(&mut self, entry: &Entry) {
        self.weights.add(entry);
    }

    /// An entry is in place or failed.
    pub(super) fn settle(&mut self, id: EntryId) {
        self.end_resuming(id);
        self.weights.remove(id);
    }

    pub(super) fn end_resuming(&mut self, id: EntryId) {
        self.resuming.remove(id..id.saturating_add(1));
    }

    /// True if they take more than a sender within its limits can cause.
    pub(super) fn are_too_many(&self) -> bool {
        self.weights.bytes() > BYTES_MAX
    }
}
