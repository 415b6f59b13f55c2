//! Big files at the receiver, from the announcement until their chunks may be written.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::jobs::Job;
use super::open_file::{At, OpenFile};
use super::resume::{Restored, Resuming, identity_of};
use super::verify::Unread;
use crate::chunk::ranges::RangeSet;
use crate::dest::{self, EntrySlot, Partial};
use crate::error::{Error, Kind, Result, Side};
use crate::journal::record::{self, Hash};
use crate::manifest::{ANEW, Entry, EntryId, EntryKind};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::receive::{Receiver, changed};
use crate::units::printable;
use crate::wire::message::{EntryEnd, Message, Want, WantKind};

/// How long a write from the previous reading of a file may take to return.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);

/// The number of the first chunk of a repeated reading, if `entry` announces one.
pub fn anew(entry: &Entry) -> Option<u64> {
    let found = entry
        .extensions
        .iter()
        .find(|extension| extension.tag == ANEW)?;
    let bytes = found.bytes.as_slice().try_into().ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// The partial file of an entry, with its state for the journal and the table.
pub(in crate::pipeline) struct Written {
    pub partial: Partial,
    pub number: Option<u32>,
    pub young: bool,
    pub restored: Restored,
    /// Ranges were offered for which the sender may send only digests.
    pub offered: bool,
    pub first_chunk: u64,
    /// Ranges that earlier sessions wrote and that were not read since.
    pub unread: Option<RangeSet>,
    /// The end of the file, if the sender sends none.
    pub end: Option<EntryEnd>,
}

impl Written {
    pub fn new(partial: Partial, number: Option<u32>, young: bool, restored: Restored) -> Written {
        Written {
            partial,
            number,
            young,
            restored,
            offered: false,
            first_chunk: 0,
            unread: None,
            end: None,
        }
    }
}

/// A file whose source is read a second time.
pub struct Restart {
    entry: Entry,
    /// The number of the first chunk of the new reading.
    first_chunk: u64,
    /// The file with the chunks of the previous reading.
    old: Arc<OpenFile>,
}

impl Receiver {
    /// Opens the partial file of a big file or a pipe. Requests its content, or only its digest. If
    /// an earlier session left something, a worker checks that first.
    pub(in crate::pipeline) fn big_file(
        &self,
        entry: Entry,
        slot: EntrySlot,
        listed: Option<ListedPath>,
        path: Hash,
    ) -> Option<Want> {
        let (id, parent) = (entry.id, entry.parent);
        let is_known = self.journal().is_some_and(|journal| journal.knows(&path));
        let resuming = Resuming {
            entry,
            slot,
            listed,
            path,
        };
        if resuming.entry.kind == EntryKind::Stream {
            return self.stream_to_file(resuming);
        }
        let opened = match self.stands_already(&resuming.entry, &resuming.slot) {
            Ok(true) => Ok(self.compare_whole(resuming, None)),
            Ok(false) if is_known => {
                self.table.lock().set_resuming(id);
                // Fails only when the copy is ending.
                self.jobs.add(Job::Resume(Box::new(resuming)));
                return None;
            }
            Ok(false) => self.begin(resuming, 0),
            Err(error) => Err(error),
        };
        match opened {
            Ok(want) => Some(want),
            Err(error) => {
                self.fail(id, parent, &error);
                let kind = WantKind::Skip;
                Some(Want { entry: id, kind })
            }
        }
    }

    /// With `--no-clobber`: true if a file of the same size exists, so that the digests decide.
    fn stands_already(&self, entry: &Entry, slot: &EntrySlot) -> Result<bool> {
        if !self.rules.no_clobber {
            return Ok(false);
        }
        match dest::standing(slot)? {
            None => Ok(false),
            Some(standing)
                if standing.is_file && standing.size == entry.size && !self.rules.blind =>
            {
                Ok(true)
            }
            Some(_) => Err(dest::stays(slot, &self.rules)),
        }
    }

    /// Opens an empty partial file and requests all of the content.
    pub(in crate::pipeline) fn begin(&self, file: Resuming, first_chunk: u64) -> Result<Want> {
        let entry = Arc::new(file.entry.clone());
        let partial = Partial::create(&file.slot, entry.clone(), &self.rules)?;
        let young = self.is_young(&entry);
        let number = match self.journal() {
            Some(journal) => Some(journal.begin(&record::BegunFile {
                path: file.path,
                identity: identity_of(&entry),
                size: entry.size,
                inode: partial.inode()?,
                young,
                inplace: partial.is_inplace(),
            })),
            None => None,
        };
        let mut written = Written::new(partial, number, young, self.nothing_of(&entry));
        written.first_chunk = first_chunk;
        Ok(Want {
            entry: self.open(file, written),
            kind: WantKind::Fresh,
        })
    }

    /// Adds the file to the table, so that its chunks are accepted.
    pub(in crate::pipeline) fn open(&self, file: Resuming, written: Written) -> EntryId {
        let Written {
            partial,
            restored,
            number,
            ..
        } = written;
        let entry = partial.entry().clone();
        self.insert(OpenFile {
            at: At::Slot(file.slot),
            partial: Mutex::new(Some(Arc::new(partial))),
            claims: Mutex::new(restored.claims),
            tree: restored.tree.map(Mutex::new),
            stream: None,
            end: written.end.map_or_else(OnceLock::new, OnceLock::from),
            unread: written.unread.and_then(Unread::new),
            readback: OnceLock::new(),
            closing: AtomicBool::new(false),
            compare: false,
            known: None,
            listed: file.listed,
            path: file.path,
            number,
            young: written.young,
            offered: written.offered,
            first_chunk: written.first_chunk,
            entry,
        })
    }

    /// Requests only the digest of a file, to compare it with the existing file. `known` is the
    /// digest of the existing file, if it is known.
    pub(in crate::pipeline) fn compare_whole(
        &self,
        file: Resuming,
        known: Option<crate::digest::Digest>,
    ) -> Want {
        let nothing = self.nothing_of(&file.entry);
        let entry = self.insert(OpenFile {
            at: At::Slot(file.slot),
            partial: Mutex::new(None),
            claims: Mutex::new(nothing.claims),
            tree: None,
            stream: None,
            end: OnceLock::new(),
            unread: None,
            readback: OnceLock::new(),
            closing: AtomicBool::new(false),
            compare: true,
            known,
            listed: file.listed,
            path: file.path,
            number: None,
            young: false,
            offered: false,
            first_chunk: 0,
            entry: Arc::new(file.entry),
        });
        let kind = WantKind::Digest;
        Want { entry, kind }
    }

    pub(in crate::pipeline) fn insert(&self, file: OpenFile) -> EntryId {
        let id = file.entry.id;
        let name = printable(file.entry.name.as_bytes());
        let file = Arc::new(file);
        if self.table.lock().open(file.clone()) {
            self.progress.start_name(id, name);
        } else {
            // The sender has reported in the meantime that the entry failed.
            self.drop_partial(&file);
            self.finish_directories(None);
        }
        id
    }

    /// The source changed while it was read and is read again: a worker drops the written data and
    /// opens the file again. The placer does not do this, because a write may take long to return
    /// and all other entries wait for the placer.
    pub(in crate::pipeline) fn read_anew(&self, entry: Entry, first_chunk: u64) {
        let id = entry.id;
        let old = {
            let mut table = self.table.lock();
            let old = table.files.get(&id).cloned();
            // If the file failed here, a `Fault` informs the sender.
            let Some(old) = old.filter(|old| !old.closing.swap(true, AcqRel)) else {
                return;
            };
            // Late chunks find no file. If the entry fails at the sender before the worker opens it
            // again, it is accounted for as usual.
            table.files.remove(&id);
            table.set_resuming(id);
            old
        };
        let anew = Restart {
            entry,
            first_chunk,
            old,
        };
        // Fails only when the copy is ending.
        self.jobs.add(Job::Anew(Box::new(anew)));
    }

    /// Opens a file for its next reading; called on a worker.
    pub(in crate::pipeline) fn open_anew(&self, anew: Restart) {
        let Restart {
            entry,
            first_chunk,
            old,
        } = anew;
        let (id, parent) = (entry.id, entry.parent);
        let done = old.claims.lock().done_bytes();
        let fresh = || {
            let Some(slot) = old.at.slot().cloned() else {
                self.drop_partial(&old);
                return Err(changed(&old));
            };
            self.wait_for_writers(&old)?;
            let file = Resuming {
                entry,
                slot,
                listed: old.listed.clone(),
                path: old.path,
            };
            self.progress.end_name(id);
            self.begin(file, first_chunk)
        };
        let want = match fresh() {
            Ok(want) => {
                self.progress.add_again(done);
                want
            }
            Err(error) => {
                self.fail(id, parent, &error);
                let kind = WantKind::Skip;
                Want { entry: id, kind }
            }
        };
        self.say(Message::Want(vec![want]));
    }

    /// Waits until no thread writes to the file any more, then drops the written data. A late write
    /// must not mix with the writes of the new reading.
    fn wait_for_writers(&self, file: &OpenFile) -> Result<()> {
        let number = file.number;
        if let (Some(journal), Some(number)) = (self.journal(), number) {
            journal.dropped(number);
        }
        let partial = file.partial.lock().take();
        let Some(mut partial) = partial else {
            return Ok(());
        };
        let until = Instant::now() + WRITE_PATIENCE;
        loop {
            match Arc::try_unwrap(partial) {
                Ok(_removed) => return Ok(()),
                Err(held) if Instant::now() < until && !self.ending.is_ending() => partial = held,
                Err(_) => {
                    let message = "a write does not return";
                    let error = Error::new(Kind::Write, Side::Dest, message);
                    return Err(error.at(file.at.path()));
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
