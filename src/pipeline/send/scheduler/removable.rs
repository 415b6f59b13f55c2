//! Files of the source that are removed once their copies are on disk (`--remove-source-files`). A
//! file waits here from its announcement until the receiver says that it is in place. It is removed
//! only if the receiver also says that it is durable, and if this end has sent it or the receiver
//! had it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::error::{Error, Kind, Side};
use crate::manifest::EntryId;
use crate::source::CopiedFile;
use crate::units::plural;

/// Most files that wait, or that are to be removed. Beyond this the walk waits.
const FILES_MAX: usize = 1 << 16;

/// Most bytes of files with several names that wait for the end of the walk.
const LINKED_BYTES_MAX: usize = 24 << 20;

/// Files that are handed over at once.
const BATCH_MAX: usize = 64;

struct WaitingFile {
    file: CopiedFile,
    /// The receiver says that its copy is durable.
    is_durable: bool,
    /// All of it was sent, or the receiver said that it has it.
    is_sent: bool,
    /// It is in place.
    is_settled: bool,
}

#[derive(Default)]
pub(super) struct RemovableFiles {
    waiting: BTreeMap<EntryId, WaitingFile>,
    ready: VecDeque<CopiedFile>,
    /// Files with several names. They wait for the end of the walk, which needs their link counts
    /// unchanged.
    linked: VecDeque<CopiedFile>,
    linked_bytes: usize,
    /// Files for which there was no room there.
    left_out: u64,
}

/// The files to remove next, and those that stay.
#[derive(Default)]
pub struct Removals {
    pub files: Vec<CopiedFile>,
    /// Files that stay although their copies are in place.
    pub staying: Vec<Error>,
    /// Nothing follows.
    pub are_last: bool,
}

impl RemovableFiles {
    /// Adds a file that is about to be announced, or sent a second time.
    pub(super) fn add(&mut self, id: EntryId, file: CopiedFile, is_sent: bool) {
        let waiting = WaitingFile {
            file,
            is_durable: false,
            is_sent,
            is_settled: false,
        };
        self.waiting.insert(id, waiting);
    }

    /// The file changed, and is read a second time.
    pub(super) fn refresh(&mut self, id: EntryId, file: CopiedFile) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.file = file;
        }
    }

    /// It is not removed after all.
    pub(super) fn will_stay(&mut self, id: EntryId) {
        self.waiting.remove(&id);
    }

    /// All of it was sent, or the receiver has it.
    pub(super) fn sent(&mut self, id: EntryId) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.is_sent = true;
            self.finish(id);
        }
    }

    /// The copies of these entries are durable.
    pub(super) fn durable(&mut self, range: Range<EntryId>) {
        let waiting = self.waiting.range_mut(range);
        waiting.for_each(|(_, waiting)| waiting.is_durable = true);
    }

    /// These entries are in place or failed. Those of which no durable copy exists stay.
    pub(super) fn settle(&mut self, range: Range<EntryId>, has_failed: impl Fn(EntryId) -> bool) {
        if range.is_empty() || self.waiting.is_empty() {
            return;
        }
        let ids: Vec<EntryId> = self.waiting.range(range).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(waiting) = self.waiting.get_mut(&id) {
                waiting.is_settled = true;
                match waiting.is_durable && !has_failed(id) {
                    true => self.finish(id),
                    false => drop(self.waiting.remove(&id)),
                }
            }
        }
    }

    fn finish(&mut self, id: EntryId) {
        let is_ready = |it: &WaitingFile| it.is_durable && it.is_sent && it.is_settled;
        if !self.waiting.get(&id).is_some_and(is_ready) {
            return;
        }
        let Some(WaitingFile { file, .. }) = self.waiting.remove(&id) else {
            return;
        };
        if !file.is_linked() {
            self.ready.push_back(file);
        } else if self.linked_bytes < LINKED_BYTES_MAX {
            self.linked_bytes += file.bytes();
            self.linked.push_back(file);
        } else {
            self.left_out += 1;
        }
    }

    /// True if no file waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() + self.ready.len() < FILES_MAX
    }

    /// True if some may be removed. `is_planned`: the walk is over.
    pub(super) fn has_some(&self, is_planned: bool) -> bool {
        !self.ready.is_empty() || is_planned && !self.linked.is_empty()
    }

    /// The next files to be removed. `is_done`: every entry is in place or failed.
    pub(super) fn take(&mut self, is_planned: bool, is_done: bool) -> Removals {
        let mut removals = Removals::default();
        while removals.files.len() < BATCH_MAX {
            let next = match self.ready.pop_front() {
                None if is_planned => self.linked.pop_front(),
                next => next,
            };
            match next {
                Some(file) => removals.files.push(file),
                None => break,
            }
        }
        removals.are_last = is_done && !self.has_some(is_planned);
        if removals.are_last {
            let left = std::mem::take(&mut self.waiting).into_values();
            let left = left.filter(|it| it.is_durable && it.is_settled);
            let why = "it was not sent as a whole in this run; compare it and the copy with --check, \
                       then remove it by hand";
            removals.staying.extend(left.map(|it| it.file.stays(why)));
            if self.left_out > 0 {
                let files = plural(self.left_out, "more file", "more files");
                let message = format!(
                    "not removed after the copy: {files} with several hard links, too many to \
                     remember; copy again"
                );
                let error = Error::new(Kind::Entry, Side::Source, message);
                removals.staying.push(error);
            }
        }
        removals
    }
}
