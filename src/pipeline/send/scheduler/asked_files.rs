//! Small files that the receiver is asked about, because an earlier session may have finished them.
//! The files that it wants go into packs. Files that it finds damaged later are packed as well.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::kept::{KeptFiles, Sum};
use crate::manifest::EntryId;
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::plan::PackMember;
use crate::source::FoundFile;

#[derive(Default)]
pub(super) struct AskedFiles {
    /// Files that the receiver was asked about and has not answered.
    asked: BTreeMap<EntryId, PackMember>,
    /// Files that the receiver has and is verifying, described briefly.
    kept: KeptFiles,
    /// Files that the receiver found damaged, each once.
    damaged: VecDeque<EntryId>,
}

impl AskedFiles {
    /// Adds files that the receiver is about to be asked about.
    pub(super) fn ask(&mut self, members: Vec<PackMember>) {
        let members = members.into_iter();
        self.asked
            .extend(members.map(|member| (member.found.entry.id, member)));
    }

    pub(super) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Those in `entries` that were asked about.
    pub(super) fn asked_within(&self, entries: Range<EntryId>) -> impl Iterator<Item = EntryId> {
        self.asked.range(entries).map(|(id, _)| *id)
    }

    /// Removes a file that was asked about.
    pub(super) fn take_asked(&mut self, entry: EntryId) -> Option<PackMember> {
        self.asked.remove(&entry)
    }

    /// The receiver has all `size` bytes of a file that it was asked about. Returns the file;
    /// None if it was not asked about a file of this size.
    pub(super) fn take_had(
        &mut self,
        entry: EntryId,
        size: u64,
    ) -> Option<(FoundFile, Option<ListedPath>)> {
        let is_it = self.asked.get(&entry)?.found.entry.size == size;
        let member = is_it.then(|| self.asked.remove(&entry)).flatten()?;
        Some((member.found, member.listed))
    }

    /// Keeps a file that the receiver has. False if more must be known about it than is kept here.
    pub(super) fn keep(&mut self, found: &FoundFile) -> bool {
        self.kept.add(found)
    }

    /// The size in bytes of a kept file.
    pub(super) fn kept_size(&self, entry: EntryId) -> Option<u64> {
        self.kept.size(entry)
    }

    /// The receiver asks for a kept file. Returns false if it has done so before.
    pub(super) fn request(&mut self, entry: EntryId) -> bool {
        let is_new = self.kept.set_damaged(entry);
        if is_new {
            self.damaged.push_back(entry);
        }
        is_new
    }

    /// The receiver asks for a small file that is described elsewhere.
    pub(super) fn add_damaged(&mut self, entry: EntryId) {
        self.damaged.push_back(entry);
    }

    pub(super) fn has_damaged(&self) -> bool {
        !self.damaged.is_empty()
    }

    /// The next damaged file, and its description if it is kept here.
    pub(super) fn next_damaged(&mut self) -> Option<(EntryId, Option<FoundFile>)> {
        let entry = self.damaged.pop_front()?;
        Some((entry, self.kept.take(entry)))
    }

    /// Removes kept files that are in place or failed.
    pub(super) fn settle(&mut self, entries: Range<EntryId>) -> Sum {
        self.kept.settle(entries)
    }

    /// The number of kept files.
    pub(super) fn kept_count(&self) -> u64 {
        self.kept.count()
    }

    pub(super) fn has_room(&self) -> bool {
        self.kept.has_room()
    }

    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.bytes()
    }
}
