//! Files that earlier runs left at the receiver, according to its journal, and how they are
//! resumed.
//!
//! If the source has another identity than recorded, or had recently been written, it is compared
//! chunk by chunk. Otherwise the receiver reports at once what exists, so that the missing chunks
//! arrive without delay. It reads and verifies the existing data at the same time
//! ([`verify`](super::verify)). A sender of an older version cannot be asked for more afterwards,
//! so it gets the report only when everything was read.

mod restored;

use std::ops::ControlFlow;
use std::sync::Arc;

use super::big_files::Written;
use super::entry_table::Location;
use super::verify::{FinishedBefore, FinishedSmallFile, holds};
use crate::chunk::ranges::RangeSet;
use crate::dest::{self, EntrySlot, ExistingEntry, Partial};
use crate::digest::Digest;
use crate::error::Result;
use crate::journal::record::{self, Finished, Hash};
use crate::journal::{self, Journal, Trust, UnfinishedFile};
use crate::manifest::{Entry, EntryKind, Timestamp};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::receive::Receiver;
use crate::source::is_just_written;
use crate::wire::message::{EntryEnd, Message, RANGES_MAX, Want, WantKind};
pub use restored::{Restored, span};

/// A file that the journal knows.
pub struct Resuming {
    pub entry: Entry,
    pub slot: EntrySlot,
    pub listed: Option<ListedPath>,
    pub path: Hash,
}

/// Identifies a source and its state. It changes when the source changes.
pub fn identity_of(entry: &Entry) -> Hash {
    let time = |time: Timestamp| [time.s as u64, u64::from(time.ns)];
    let ([m, m_ns], [c, c_ns]) = (time(entry.mtime), time(entry.ctime));
    let fields = [entry.dev, entry.ino, entry.size, m, m_ns, c, c_ns].map(u64::to_le_bytes);
    journal::hash(fields.iter().map(|field| &field[..]))
}

/// Identifies a pipe that is read once, by the session that has read it.
pub fn identity_of_stream(session: &[u8; 16]) -> Hash {
    journal::hash([&session[..]].into_iter())
}

/// Identifies the file at the destination, to recognize it later.
pub fn placed(standing: &ExistingEntry) -> Hash {
    let mtime = standing.mtime;
    let fields = [standing.ino, standing.size, mtime.s as u64, mtime.ns.into()];
    let fields = fields.map(u64::to_le_bytes);
    journal::hash(fields.iter().map(|field| &field[..]))
}

/// The record of a file that has its final name.
pub fn finished(
    path: Hash,
    entry: &Entry,
    young: bool,
    standing: &ExistingEntry,
    digest: Option<Digest>,
) -> Finished {
    Finished {
        path,
        identity: identity_of(entry),
        placed: placed(standing),
        digest,
        young,
    }
}

/// The state of a small file that the sender asks about.
pub enum Asked {
    Missing,
    InPlace(Box<FinishedBefore>),
    /// In place, if reading it shows that it matches its record.
    Unread(Box<FinishedBefore>),
}

/// A finished file that exists as recorded.
struct FinishedFile {
    finished: Finished,
    standing: ExistingEntry,
    /// It may be trusted without reading it.
    trusted: bool,
}

impl Receiver {
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.get()
    }

    /// True if a later write to the source might not show in its times. A newer sender reports this
    /// by the clock that made the times. For an older sender, this machine's clock is used. Nothing
    /// shows a write to a device, or a change of content that the kernel generates.
    pub(in crate::pipeline) fn is_young(&self, entry: &Entry) -> bool {
        if entry.is_device() || entry.is_made_up() {
            return true;
        }
        match self.sender_tells {
            true => entry.is_young(),
            false => is_just_written(entry),
        }
    }

    /// Resumes a big file; called on a worker.
    pub(in crate::pipeline) fn resume(&self, resuming: Resuming) {
        let (id, parent) = (resuming.entry.id, resuming.entry.parent);
        match self.try_resume(resuming) {
            Ok(None) => {}
            Ok(Some(want)) => self.say(Message::Want(vec![want])),
            Err(error) => {
                self.fail(id, parent, &error);
                let kind = WantKind::Skip;
                let skip = Want { entry: id, kind };
                self.say(Message::Want(vec![skip]));
            }
        }
    }

    fn try_resume(&self, resuming: Resuming) -> Result<Option<Want>> {
        let Some(journal) = self.journal() else {
            return self.begin(resuming, 0).map(Some);
        };
        let begun = journal.take_begun(&resuming.path);
        let resuming = match self.resume_placed(resuming, begun)? {
            PlacedOrNot::Placed(want) => return Ok(want),
            PlacedOrNot::Not(resuming) => *resuming,
        };
        let Some(begun) = begun else {
            return self.begin(resuming, 0).map(Some);
        };
        let entry = Arc::new(resuming.entry.clone());
        let file = &begun.file;
        let found = Partial::resume(
            &resuming.slot,
            entry.clone(),
            &self.rules,
            (&file.inode, file.size),
            file.inplace,
        )?;
        let Some(partial) = found.filter(|_| begun.chunks > 0) else {
            return self.begin(resuming, 0).map(Some);
        };
        let young = self.is_young(&entry);
        if file.identity != identity_of(&entry) || file.young {
            return self
                .compare(journal, begun, resuming, partial, young)
                .map(Some);
        }
        // Other programs may have changed a file that is written in place.
        let is_intact = partial.is_intact() && !partial.is_inplace();
        if !is_intact {
            journal.doubted();
        }
        let trusted = self.sessions.trusts && journal.trusts(&begun) && is_intact;
        let restored = match self.sender_tells {
            true => self.recorded(journal, &begun, &entry),
            false => self.read_first(journal, &begun, &partial, &entry),
        };
        let told = restored.in_grains(self.grain);
        let have = told.have().filter(|have| !have.is_empty());
        let Some(have) = have else {
            if self.ending.is_ending() {
                // It was not read to its end, so nothing is known of it: the next run may use it.
                partial.keep();
                return Ok(None);
            }
            drop(partial);
            return self.begin(resuming, 0).map(Some);
        };
        self.progress.add_resumed(told.claims.done_bytes());
        let mut written = Written::new(partial, Some(begun.number), young, told);
        let kind = WantKind::Have(have);
        if !self.sender_tells {
            let entry = self.open(resuming, written);
            return Ok(Some(Want { entry, kind }));
        }
        let unread: RangeSet = written.restored.claims.done_ranges().collect();
        if unread.count() == entry.size {
            // The sender keeps nothing open for this file and sends no end of it.
            let tree = written.restored.tree.as_ref();
            written.end = Some(EntryEnd {
                entry: entry.id,
                length: entry.size,
                root: tree.and_then(|tree| tree.root()),
            });
        }
        // Only data that is read from now on goes into the digest.
        written.restored = self.finest(&entry).claimed(unread.iter());
        written.unread = Some(unread);
        let id = self.open(resuming, written);
        // Sent first, because a report of damage refers to these ranges.
        self.say(Message::Want(vec![Want { entry: id, kind }]));
        let file = self.table.lock().files.get(&id).cloned();
        if let Some(file) = file {
            let certain = match trusted {
                true => std::iter::once(0..entry.size).collect(),
                // Other programs may have changed a file that is written in place.
                false if is_intact => journal.certain(&begun),
                false => RangeSet::new(),
            };
            self.verify_later(file, begun, certain);
        }
        Ok(None)
    }

    /// An empty [`Restored`] for a file, whose records may be of parts of this session's chunks.
    fn finest(&self, entry: &Entry) -> Restored {
        Restored::finest(entry.size, self.chunk_size, self.needs_tree(entry))
    }

    /// Resumes a big file that an earlier session finished. Returns the request to send, if any, or
    /// the file if it is not in place.
    fn resume_placed(&self, file: Resuming, begun: Option<UnfinishedFile>) -> Result<PlacedOrNot> {
        let found = self.is_placed(&file, begun.is_some())?;
        let Some(FinishedFile {
            finished,
            standing,
            trusted,
        }) = found
        else {
            return Ok(PlacedOrNot::Not(Box::new(file)));
        };
        let (id, size, digest) = (file.entry.id, file.entry.size, finished.digest);
        let have = WantKind::Have(vec![(span(0..size), digest.unwrap_or_default())]);
        let placed = FinishedBefore {
            file,
            finished,
            standing,
            begun,
            is_small: false,
        };
        if self.sender_tells && size > 0 {
            let kind = have;
            // Sent first, because the later messages refer to this answer.
            self.say(Message::Want(vec![Want { entry: id, kind }]));
            match trusted {
                true => self.placed_stays(placed),
                false => self.verify_placed_later(placed),
            }
            return Ok(PlacedOrNot::Placed(None));
        }
        if !trusted && !self.is_as_recorded(&placed) {
            return Ok(PlacedOrNot::Not(Box::new(placed.file)));
        }
        let FinishedBefore { file, standing, .. } = placed;
        // The other end writes a list of digests and needs the digest of this file.
        if let (true, None, Some(digest)) = (self.options.digests, &self.digests, digest) {
            self.progress.add_resumed(size);
            let mut want = self.compare_whole(file, Some(digest));
            want.kind = have;
            return Ok(PlacedOrNot::Placed(Some(want)));
        }
        let kind = WantKind::Skip;
        self.say(Message::Want(vec![Want { entry: id, kind }]));
        self.found_in_place(file, digest, Some(&standing));
        Ok(PlacedOrNot::Placed(None))
    }

    /// The record of a finished file, if the file still exists and the source is the same.
    fn is_placed(&self, file: &Resuming, has_chunks: bool) -> Result<Option<FinishedFile>> {
        let identity = identity_of(&file.entry);
        let found = self.standing_since(file, |finished| {
            finished.identity == identity && !finished.young
        })?;
        // Without any digest it would be unknown whether the file is intact.
        Ok(found.filter(|found| found.finished.digest.is_some() || has_chunks))
    }

    /// The existing file at the destination, if it is the finished file that was recorded.
    fn standing_since(
        &self,
        file: &Resuming,
        is_of: impl Fn(&Finished) -> bool,
    ) -> Result<Option<FinishedFile>> {
        let Some(journal) = self.journal() else {
            return Ok(None);
        };
        let Some(standing) = dest::standing(&file.slot)?.filter(|standing| standing.is_file) else {
            return Ok(None);
        };
        let Some((finished, trust)) = journal.finished_before(&file.path, standing.dev) else {
            return Ok(None);
        };
        let is_same = is_of(&finished) && finished.placed == placed(&standing);
        if !is_same || self.options.digests && finished.digest.is_none() {
            return Ok(None);
        }
        let trusted = match trust {
            Trust::None => false,
            Trust::OfBoot => self.sessions.trusts,
            Trust::OfRun => true,
        };
        Ok(Some(FinishedFile {
            finished,
            standing,
            trusted,
        }))
    }

    /// Checks a small file that the sender asks about. If the sender can send damaged files
    /// afterwards, the file is read later, otherwise now.
    pub(in crate::pipeline) fn resume_small(&self, file: Resuming) -> Asked {
        // A file that cannot be checked is sent, and fails then for the same reason.
        let Ok(Some(found)) = self.is_placed(&file, false) else {
            return Asked::Missing;
        };
        let trusted = found.trusted || file.entry.size == 0;
        let placed = FinishedBefore {
            file,
            finished: found.finished,
            standing: found.standing,
            begun: None,
            is_small: true,
        };
        if !trusted && self.sender_tells {
            return Asked::Unread(Box::new(placed));
        }
        if !trusted && !self.is_as_recorded(&placed) {
            return Asked::Missing;
        }
        Asked::InPlace(Box::new(placed))
    }

    /// The description of a small file that was in place when the sender asked, to read it now.
    /// None if its directory is not known any more.
    pub(in crate::pipeline) fn describe(&self, small: FinishedSmallFile) -> Option<Resuming> {
        let FinishedSmallFile {
            id,
            parent,
            name,
            size,
            has_links,
        } = small;
        let table = self.table.lock();
        let path = table.path_of(id, parent, &name)?;
        let Location::Slot(slot, listed) = table.spot(id, parent, &name, false) else {
            return None;
        };
        drop(table);
        let time = Timestamp::default();
        let entry = Entry {
            id,
            parent,
            name,
            kind: EntryKind::File,
            mode: 0,
            uid: 0,
            gid: 0,
            user: Vec::new(),
            group: Vec::new(),
            size: size.into(),
            allocated: size.into(),
            mtime: time,
            atime: time,
            ctime: time,
            birth: time,
            dev: 0,
            ino: 0,
            links: 1 + u64::from(has_links),
            rdev: 0,
            extensions: Vec::new(),
        };
        Some(Resuming {
            entry,
            slot,
            listed,
            path,
        })
    }

    /// The record and the status of a small file that was in place when the sender asked. None if
    /// it is not in place any more.
    pub(in crate::pipeline) fn still_stands(
        &self,
        file: &Resuming,
    ) -> Option<(Finished, ExistingEntry)> {
        // Its source was compared when the sender asked. A file that cannot be checked is sent, and
        // fails then for the same reason.
        let found = self.standing_since(file, |_| true).ok()??;
        Some((found.finished, found.standing))
    }

    /// Requests a comparison of the chunks that were written from a source that may have changed.
    fn compare(
        &self,
        journal: &Journal,
        begun: UnfinishedFile,
        resuming: Resuming,
        partial: Partial,
        young: bool,
    ) -> Result<Want> {
        let entry = partial.entry().clone();
        let mut ranges = Restored::finest(entry.size, self.chunk_size, false);
        journal.replay(&begun, |chunk| {
            // A chunk outside the present file is useless.
            ranges.add(&chunk);
            ControlFlow::Continue(())
        });
        let spans = ranges.whole_chunks(self.chunk_size);
        let spans = spans.take(RANGES_MAX).map(span).collect();
        let number = journal.begin(&record::BegunFile {
            path: resuming.path,
            identity: identity_of(&entry),
            size: entry.size,
            inode: partial.inode()?,
            young,
            inplace: partial.is_inplace(),
        });
        let nothing = self.nothing_of(&entry);
        let mut written = Written::new(partial, Some(number), young, nothing);
        written.offered = true;
        Ok(Want {
            entry: self.open(resuming, written),
            kind: WantKind::Compare(spans),
        })
    }

    /// Checks whether a pipe that cannot be read again is in place: an earlier session of this
    /// command finished the file, and it is unchanged.
    pub(in crate::pipeline) fn stream_in_place(&self, file: Resuming) -> Result<PipeThere> {
        let former = &self.sessions.before;
        let found = self.standing_since(&file, |finished| {
            let is_its = |session: &[u8; 16]| finished.identity == identity_of_stream(session);
            former.iter().any(is_its)
        })?;
        let Some(found) = found else {
            return Ok(PipeThere::No(Box::new(file)));
        };
        let FinishedFile {
            finished,
            standing,
            trusted,
        } = found;
        let (mut file, size) = (file, standing.size);
        // The size of a pipe is unknown before it was read.
        file.entry.size = size;
        let placed = FinishedBefore {
            file,
            finished,
            standing,
            begun: None,
            is_small: false,
        };
        let is_there = trusted || self.is_as_recorded(&placed);
        let mut file = placed.file;
        file.entry.size = 0;
        Ok(match is_there {
            true => PipeThere::Yes(Box::new(file), size, finished.digest),
            false => PipeThere::No(Box::new(file)),
        })
    }

    /// Accounts for a file that is in place.
    pub(in crate::pipeline) fn found_in_place(
        &self,
        file: Resuming,
        digest: Option<Digest>,
        standing: Option<&ExistingEntry>,
    ) {
        let Resuming {
            entry,
            slot,
            listed,
            ..
        } = file;
        // The earlier run may not have made the file durable.
        if self.rules.fsync
            && let Err(error) = dest::make_durable(&slot)
        {
            return self.fail(entry.id, entry.parent, &error);
        }
        if let (Some(list), Some(listed), Some(digest)) = (&self.digests, &listed, &digest) {
            list.add(listed, digest);
            list.remember(&entry, digest);
        }
        self.progress.add_resumed(entry.size);
        self.progress.add_resumed_files(1);
        self.progress.add_files(1);
        self.remember_linked(&entry, &slot, standing);
        self.acks.entry(entry.id);
        self.settle(entry.id, entry.parent);
    }

    pub(in crate::pipeline) fn nothing_of(&self, entry: &Entry) -> Restored {
        Restored::nothing(entry.size, self.grain, self.needs_tree(entry))
    }

    /// If a file changes during the copy, its chunks are from different times and their common
    /// digest is useless.
    fn needs_tree(&self, entry: &Entry) -> bool {
        (!entry.is_sparse() && !self.options.live) || self.options.digests
    }

    /// The part of a file that exists according to the journal.
    fn recorded(&self, journal: &Journal, begun: &UnfinishedFile, entry: &Entry) -> Restored {
        let mut restored = self.finest(entry);
        journal.replay(begun, |chunk| {
            restored.add(&chunk);
            match self.ending.is_ending() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        restored
    }

    /// The same part, but only ranges that were just read and match their records.
    fn read_first(
        &self,
        journal: &Journal,
        begun: &UnfinishedFile,
        partial: &Partial,
        entry: &Entry,
    ) -> Restored {
        let mut restored = self.finest(entry);
        let Ok(disk) = partial.readback() else {
            return restored;
        };
        let mut buffer = vec![0; (1 << 20).max(self.recorded_max())];
        journal.replay(begun, |chunk| {
            if self.ending.is_ending() {
                return ControlFlow::Break(());
            }
            let range = chunk.offset..chunk.offset.saturating_add(chunk.len);
            if disk.prepare(&range) && holds(&disk, &chunk, entry.size, &mut buffer) {
                restored.add(&chunk);
            }
            self.tell_checked(chunk.len, 16 << 20);
            ControlFlow::Continue(())
        });
        restored
    }
}

/// The result for a file that an earlier session may have finished.
enum PlacedOrNot {
    Placed(Option<Want>),
    Not(Box<Resuming>),
}

/// Whether a pipe that cannot be read again is in place.
pub enum PipeThere {
    /// With its size in bytes and its digest.
    Yes(Box<Resuming>, u64, Option<Digest>),
    No(Box<Resuming>),
}
