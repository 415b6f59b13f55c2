//! Big files and pipes at the sender, from their announcement until they are in place or have
//! failed: open files, and files that the receiver has from an earlier session and verifies. No
//! file is kept open for the latter. If the receiver finds damage, the file is opened and sent
//! again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::chunk::ranges::RangeSet;
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::EntryId;
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::plan::{MISSING_MAX, SendFile, SendPipe};
use crate::source::{FoundFile, SourceFile};

/// An announced big file or pipe.
enum AnnouncedFile {
    Announced(Unanswered),
    Sending(Arc<SendFile>),
    /// A pipe, and whether the receiver wants it.
    Pipe(Arc<SendPipe>, bool),
    /// Not wanted: the file is in place or has failed, as a later message will say.
    Skipped {
        size: u64,
    },
    /// The receiver found it damaged, and a worker is opening it.
    Reopening,
}

/// A big file that the receiver has not yet answered.
pub struct Unanswered {
    pub source: Box<SourceFile>,
    pub listed: Option<ListedPath>,
    /// It changed during the first reading, and this is the second one.
    pub is_read_again: bool,
}

/// A file that the receiver has and is verifying.
pub struct ResumedFile {
    pub found: FoundFile,
    pub listed: Option<ListedPath>,
    /// The digest according to the receiver.
    pub digest: Option<Digest>,
    /// A small file, which is sent in a pack if it is damaged.
    pub(super) is_small: bool,
    /// Ranges that the receiver has found damaged.
    missing: Option<RangeSet>,
}

/// The state of an entry when it was closed.
pub enum EntryAtClose {
    /// Announced, without an answer.
    Announced(Box<SourceFile>),
    Sending(Arc<SendFile>),
    Pipe(Arc<SendPipe>),
    /// The receiver did not want it. `size` is in bytes.
    Skipped {
        size: u64,
    },
    /// The receiver already had it.
    Held(Box<ResumedFile>),
}

impl EntryAtClose {
    /// True if all of it was sent and is in place, or if the receiver said that it has it.
    pub(super) fn is_whole(&self) -> bool {
        match self {
            EntryAtClose::Sending(file) => {
                file.digest_only || file.coverage.placed() >= file.found.entry.size
            }
            EntryAtClose::Skipped { .. } | EntryAtClose::Held(_) => true,
            EntryAtClose::Announced(_) | EntryAtClose::Pipe(_) => false,
        }
    }
}

/// A file that nobody reads any more. Dropping it closes the file.
pub enum Discarded {
    File(Arc<SendFile>),
    Source(Box<SourceFile>),
}

/// Tasks of the sender's care thread, limited by the number of files that may be open at once. It
/// closes files, which may wait for a disk or a server, and checks files that changed until they
/// stop changing.
pub struct Chores {
    pub discarded: Vec<Discarded>,
    /// Files that changed while they were read, each with the error.
    pub changed: Vec<(Arc<SendFile>, Error)>,
}

/// What a request for ranges of a resumed file leads to.
pub(super) enum Requested {
    /// The file will be opened again, perhaps because of an earlier request. With the number of its
    /// bytes that count as resumed from now on.
    Reopens(u64),
    /// A small file, which is sent in a pack.
    Packs(u64),
    /// The file is being sent: its ranges are cut again.
    Sending(Arc<SendFile>),
    /// It has failed in the meantime.
    Gone,
}

/// The receiver asked for bytes that it never said it has, or for too many ranges.
#[derive(Debug)]
pub struct NotHad;

#[derive(Default)]
pub(super) struct OpenFiles {
    /// Announced files and pipes that are neither in place nor failed.
    open: HashMap<EntryId, AnnouncedFile>,
    /// The most of them.
    max: usize,
    /// Finished files that are not yet closed, and how many of them a thread is closing.
    discarded: Vec<Discarded>,
    closing: usize,
    /// Files that changed during the reading, each with its error.
    changed: Vec<(Arc<SendFile>, Error)>,
    /// Files that grew during the reading, and that a worker will compare with what was read.
    grown: VecDeque<Arc<SendFile>>,
    /// Files that the receiver has and is verifying, except small ones that need no description.
    held: BTreeMap<EntryId, ResumedFile>,
    /// Big files that the receiver found damaged.
    reopen: VecDeque<EntryId>,
    /// Damaged ranges that the receiver named while their file was being opened.
    late: HashMap<EntryId, RangeSet>,
}

impl OpenFiles {
    /// `max` limits the big files open at once, and is at least one.
    pub(super) fn of(max: u32) -> OpenFiles {
        OpenFiles {
            max: (max as usize).max(1),
            ..OpenFiles::default()
        }
    }

    /// True if another file may be announced. A file that is not closed yet still has a descriptor.
    pub(super) fn has_room(&self) -> bool {
        self.open.len() + self.discarded.len() + self.closing < self.max
    }

    /// True if all are settled.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.held.is_empty()
    }

    /// True if it is open.
    pub(super) fn contains(&self, entry: EntryId) -> bool {
        self.open.contains_key(&entry)
    }

    /// Those in `entries`, and files that the receiver has.
    pub(super) fn within(&self, entries: Range<EntryId>) -> impl Iterator<Item = EntryId> {
        let held = self.held.range(entries.clone()).map(|(id, _)| *id);
        let open = self.open.keys().copied();
        open.filter(move |id| entries.contains(id)).chain(held)
    }

    /// True if every open file is wanted and being sent.
    pub(super) fn are_all_sending(&self) -> bool {
        let is_sending = |open: &AnnouncedFile| {
            matches!(open, AnnouncedFile::Sending(_) | AnnouncedFile::Pipe(..))
        };
        self.open.values().all(is_sending)
    }

    /// True if a file waits for the receiver's answer, or to be opened.
    pub(super) fn has_waiting(&self) -> bool {
        self.open.values().any(|open| match open {
            AnnouncedFile::Announced(_)
            | AnnouncedFile::Pipe(_, false)
            | AnnouncedFile::Reopening => true,
            AnnouncedFile::Sending(_)
            | AnnouncedFile::Pipe(_, true)
            | AnnouncedFile::Skipped { .. } => false,
        })
    }

    /// True if a file waits for the receiver's answer, or a pipe may bring more.
    pub(super) fn may_bring_more(&self) -> bool {
        self.open
            .values()
            .any(|open| matches!(open, AnnouncedFile::Announced(_) | AnnouncedFile::Pipe(..)))
    }

    pub(super) fn announce(
        &mut self,
        entry: EntryId,
        source: SourceFile,
        listed: Option<ListedPath>,
    ) {
        self.announce_reading(entry, source, listed, false);
    }

    /// For a second reading. Returns false if the file is no longer being sent.
    pub(super) fn announce_again(
        &mut self,
        entry: EntryId,
        source: SourceFile,
        listed: Option<ListedPath>,
    ) -> bool {
        let is_sent = self.sending(entry).is_some();
        if is_sent {
            self.announce_reading(entry, source, listed, true);
        }
        is_sent
    }

    fn announce_reading(
        &mut self,
        entry: EntryId,
        source: SourceFile,
        listed: Option<ListedPath>,
        is_read_again: bool,
    ) {
        let announced = Unanswered {
            source: Box::new(source),
            listed,
            is_read_again,
        };
        self.open.insert(entry, AnnouncedFile::Announced(announced));
    }

    /// Removes an announced file, whose answer has come. None if it was not announced.
    pub(super) fn take_announced(&mut self, entry: EntryId) -> Option<Unanswered> {
        match self.open.remove(&entry)? {
            AnnouncedFile::Announced(announced) => Some(announced),
            other => {
                self.open.insert(entry, other);
                None
            }
        }
    }

    pub(super) fn send(&mut self, entry: EntryId, file: Arc<SendFile>) {
        self.open.insert(entry, AnnouncedFile::Sending(file));
    }

    fn sending(&self, entry: EntryId) -> Option<&Arc<SendFile>> {
        match self.open.get(&entry)? {
            AnnouncedFile::Sending(file) => Some(file),
            _ => None,
        }
    }

    /// True if this reading of the file is being sent.
    pub(super) fn is_sending(&self, file: &Arc<SendFile>) -> bool {
        let sent = self.sending(file.found.entry.id);
        sent.is_some_and(|sent| Arc::ptr_eq(sent, file))
    }

    /// The number of ranges that the receiver named, over all files that are being sent.
    pub(super) fn ranges(&self) -> usize {
        let ranges = |open: &AnnouncedFile| match open {
            AnnouncedFile::Sending(file) => file.ranges,
            _ => 0,
        };
        self.open.values().map(ranges).sum()
    }

    /// An announced file is not wanted. Keeps only its size. Returns the source; None if it was not
    /// announced.
    pub(super) fn skip(&mut self, entry: EntryId) -> Option<Box<SourceFile>> {
        let Unanswered { source, .. } = self.take_announced(entry)?;
        let size = source.found().entry.size;
        self.open.insert(entry, AnnouncedFile::Skipped { size });
        Some(source)
    }

    /// The receiver has all `size` bytes of an announced file, which is closed. Returns the file;
    /// None if it was not announced with this size.
    pub(super) fn take_had(
        &mut self,
        entry: EntryId,
        size: u64,
    ) -> Option<(FoundFile, Option<ListedPath>)> {
        let announced = self.take_announced(entry)?;
        if announced.source.found().entry.size != size {
            self.open.insert(entry, AnnouncedFile::Announced(announced));
            return None;
        }
        let found = announced.source.found().clone();
        self.discarded.push(Discarded::Source(announced.source));
        Some((found, announced.listed))
    }

    /// Keeps the description of a file that the receiver has.
    pub(super) fn hold(
        &mut self,
        (found, listed): (FoundFile, Option<ListedPath>),
        digest: Option<Digest>,
        is_small: bool,
    ) {
        let held = ResumedFile {
            found,
            listed,
            digest,
            is_small,
            missing: None,
        };
        self.held.insert(held.found.entry.id, held);
    }

    /// Removes the description of a file that the receiver has.
    pub(super) fn take_held(&mut self, entry: EntryId) -> Option<ResumedFile> {
        self.held.remove(&entry)
    }

    /// The receiver asks for ranges that it said it has.
    pub(super) fn request(
        &mut self,
        entry: EntryId,
        ranges: &RangeSet,
    ) -> Result<Requested, NotHad> {
        if let Some(held) = self.held.get_mut(&entry) {
            let all = held.missing.get_or_insert_default();
            let is_first = all.is_empty();
            let size = held.found.entry.size;
            let are_new = ranges
                .iter()
                .all(|range| range.end <= size && !all.contains_any(range));
            all.extend(ranges.iter());
            let are_new = are_new && all.fragments() <= MISSING_MAX;
            let had = if is_first { size } else { 0 };
            let is_packed = held.is_small && is_first;
            if is_first && !held.is_small {
                self.reopen.push_back(entry);
            }
            return match (are_new, is_packed) {
                (false, _) => Err(NotHad),
                (true, true) => Ok(Requested::Packs(had)),
                (true, false) => Ok(Requested::Reopens(had)),
            };
        }
        if let Some(file) = self.sending(entry) {
            return Ok(Requested::Sending(file.clone()));
        }
        // If it is being opened, the ranges wait. Otherwise the request is out of date.
        if !matches!(self.open.get(&entry), Some(AnnouncedFile::Reopening)) {
            return Ok(Requested::Gone);
        }
        let late = self.late.entry(entry).or_default();
        late.extend(ranges.iter());
        if late.fragments() > MISSING_MAX {
            return Err(NotHad);
        }
        Ok(Requested::Reopens(0))
    }

    /// True if a damaged file may be opened. The limit on open files is the same as for
    /// announcements.
    pub(super) fn may_reopen(&self) -> bool {
        self.has_to_reopen() && self.open.len() < self.max
    }

    pub(super) fn has_to_reopen(&self) -> bool {
        !self.reopen.is_empty()
    }

    /// The next damaged file to be opened, and its ranges to be sent.
    pub(super) fn next_to_reopen(&mut self) -> Option<(ResumedFile, RangeSet)> {
        while self.may_reopen() {
            let entry = self.reopen.pop_front()?;
            // It may have failed at the receiver in the meantime.
            let Some(mut held) = self.held.remove(&entry) else {
                continue;
            };
            let missing = held.missing.take().unwrap_or_default();
            self.open.insert(entry, AnnouncedFile::Reopening);
            return Some((held, missing));
        }
        None
    }

    /// A damaged file was opened. Returns the ranges that were named in the meantime; None if it
    /// has failed at the receiver.
    pub(super) fn reopened(&mut self, entry: EntryId, file: &Arc<SendFile>) -> Option<RangeSet> {
        if !matches!(self.open.get(&entry), Some(AnnouncedFile::Reopening)) {
            return None;
        }
        self.send(entry, file.clone());
        Some(self.late.remove(&entry).unwrap_or_default())
    }

    pub(super) fn announce_pipe(&mut self, pipe: Arc<SendPipe>) {
        self.open
            .insert(pipe.entry.id, AnnouncedFile::Pipe(pipe, false));
    }

    /// The receiver wants this pipe. Returns false if it is not open.
    pub(super) fn want_pipe(&mut self, entry: EntryId) -> bool {
        let Some(AnnouncedFile::Pipe(_, wanted)) = self.open.get_mut(&entry) else {
            return false;
        };
        *wanted = true;
        true
    }

    /// True if this pipe waits for the receiver's answer.
    pub(super) fn is_pipe_waiting(&self, entry: EntryId) -> bool {
        matches!(self.open.get(&entry), Some(AnnouncedFile::Pipe(_, false)))
    }

    /// Ends all waits for the producers of pipes.
    pub(super) fn stop_pipes(&self) {
        for open in self.open.values() {
            if let AnnouncedFile::Pipe(pipe, _) = open {
                pipe.stop.set();
            }
        }
    }

    /// Closes an entry that is in place or failed. None if it is not open.
    pub(super) fn close(&mut self, entry: EntryId) -> Option<EntryAtClose> {
        let Some(open) = self.open.remove(&entry) else {
            let held = self.held.remove(&entry)?;
            return Some(EntryAtClose::Held(Box::new(held)));
        };
        Some(match open {
            AnnouncedFile::Announced(announced) => EntryAtClose::Announced(announced.source),
            AnnouncedFile::Skipped { size } => EntryAtClose::Skipped { size },
            AnnouncedFile::Sending(file) => EntryAtClose::Sending(file),
            AnnouncedFile::Pipe(pipe, _) => {
                // Ends any wait for the producer. At the end of a pipe there is none.
                pipe.stop.set();
                EntryAtClose::Pipe(pipe)
            }
            AnnouncedFile::Reopening => {
                self.late.remove(&entry);
                EntryAtClose::Skipped { size: 0 }
            }
        })
    }

    /// Gives a file to the thread that closes files.
    pub(super) fn discard(&mut self, file: Discarded) {
        self.discarded.push(file);
    }

    /// Gives a changed file to the thread that waits until it can be read again.
    pub(super) fn read_again(&mut self, file: Arc<SendFile>, error: Error) {
        self.changed.push((file, error));
    }

    /// Gives a file that grew to the next worker.
    pub(super) fn compare_grown(&mut self, file: Arc<SendFile>) {
        self.grown.push_back(file);
    }

    pub(super) fn has_grown(&self) -> bool {
        !self.grown.is_empty()
    }

    pub(super) fn next_grown(&mut self) -> Option<Arc<SendFile>> {
        self.grown.pop_front()
    }

    pub(super) fn has_chores(&self) -> bool {
        !self.discarded.is_empty() || !self.changed.is_empty()
    }

    pub(super) fn take_chores(&mut self) -> Chores {
        let discarded = std::mem::take(&mut self.discarded);
        self.closing += discarded.len();
        let changed = std::mem::take(&mut self.changed);
        Chores { discarded, changed }
    }

    /// So many discarded files are closed.
    pub(super) fn were_closed(&mut self, files: usize) {
        self.closing -= files;
    }

    /// Removes all files, which the caller closes.
    pub(super) fn take_all(&mut self) -> OpenFiles {
        OpenFiles {
            open: std::mem::take(&mut self.open),
            discarded: std::mem::take(&mut self.discarded),
            grown: std::mem::take(&mut self.grown),
            ..OpenFiles::default()
        }
    }
}
