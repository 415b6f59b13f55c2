//! The memory that announced entries take at the receiver. Both ends count it in the same way.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use crate::manifest::{Entry, EntryId};
use crate::wire::message::entry_weight;

#[derive(Default)]
pub(super) struct EntryWeights {
    each: BTreeMap<EntryId, u32>,
    bytes: usize,
}

impl EntryWeights {
    /// Counts an entry. False if it was counted already; then it has its new weight.
    pub(super) fn add(&mut self, entry: &Entry) -> bool {
        let weight = u32::try_from(entry_weight(entry)).unwrap_or(u32::MAX);
        self.bytes += weight as usize;
        let before = self.each.insert(entry.id, weight);
        self.bytes -= before.unwrap_or(0) as usize;
        before.is_none()
    }

    pub(super) fn remove(&mut self, entry: EntryId) {
        self.bytes -= self.each.remove(&entry).unwrap_or(0) as usize;
    }

    pub(super) fn remove_all(&mut self, entries: impl RangeBounds<EntryId> + Clone) {
        while let Some((&entry, _)) = self.each.range(entries.clone()).next() {
            self.remove(entry);
        }
    }

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.each.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
