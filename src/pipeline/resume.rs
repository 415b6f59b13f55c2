//! The receiver's memory of earlier runs: what its journal says is believed here, or not.
//!
//! A source with another identity than was recorded, or one written so lately that its identity
//! does not tell, is compared chunk by chunk. Else what is recorded counts as done: after a sample
//! of it was read again, and all of it where the machine was started anew since, where the sample
//! was wrong, and where others could write (`--inplace`). All of this runs on workers.

mod restored;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::dest::{self, Partial, Slot, Standing};
use crate::digest::Digest;
use crate::error::Result;
use crate::journal::record::{self, Chunk, Finished, Hash};
use crate::journal::{self, Begun, Journal};
use crate::manifest::{Entry, Timestamp};
use crate::pipeline::digest_list::Listed;
use crate::pipeline::opening::Written;
use crate::pipeline::receiver::Receiver;
use crate::pipeline::sample::{STEP, Sample, holds};
use crate::wire::message::{Message, RANGES_MAX, Want, WantKind};
pub use restored::Restored;
use restored::span;

/// A source that was written this lately may be written again without its times showing it.
const YOUNG: Duration = Duration::from_secs(2);

/// Bytes that are read again between two words of it.
const TELL_EVERY: u64 = 16 << 20;

/// A big file of which the journal knows something.
pub struct Resuming {
    pub entry: Entry,
    pub slot: Slot,
    pub listed: Option<Listed>,
    pub path: Hash,
}

/// What tells a source from another, or from itself when it has changed.
pub fn identity_of(entry: &Entry) -> Hash {
    let time = |time: Timestamp| [time.s as u64, u64::from(time.ns)];
    let ([m, m_ns], [c, c_ns]) = (time(entry.mtime), time(entry.ctime));
    let fields = [entry.dev, entry.ino, entry.size, m, m_ns, c, c_ns].map(u64::to_le_bytes);
    journal::hash(fields.iter().map(|field| &field[..]))
}

/// A stream that is read once is known by the session that has read it.
pub fn identity_of_stream(session: &[u8; 16]) -> Hash {
    journal::hash([&session[..]].into_iter())
}

/// By this machine's clock, whatever the source's is: one that is ahead makes every file young,
/// which costs a comparison. A device always is, and what is made as it is read: nothing tells when
/// they were written.
pub fn is_young(entry: &Entry) -> bool {
    if entry.is_device() || entry.is_made_up() {
        return true;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = now.unwrap_or_default().saturating_sub(YOUNG).as_secs() as i64;
    entry.mtime.s >= since || entry.ctime.s >= since
}

/// What stands at the destination, so that it can be known again.
fn placed(standing: &Standing) -> Hash {
    let mtime = standing.mtime;
    let fields = [standing.ino, standing.size, mtime.s as u64, mtime.ns.into()];
    let fields = fields.map(u64::to_le_bytes);
    journal::hash(fields.iter().map(|field| &field[..]))
}

/// The record of a file that has its name.
pub fn finished(
    path: Hash,
    entry: &Entry,
    young: bool,
    standing: &Standing,
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

impl Receiver {
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.get()
    }

    /// Goes on with a big file; on a worker.
    pub(super) fn resume(&self, resuming: Resuming) {
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
        if self.is_in_place(journal, &resuming)? {
            return Ok(self.in_place(journal, resuming));
        }
        let Some(begun) = journal.take_begun(&resuming.path) else {
            return self.begin(resuming, 0).map(Some);
        };
        let entry = Arc::new(resuming.entry.clone());
        let file = &begun.file;
        let found = Partial::resume(
            &resuming.slot,
            entry.clone(),
            &self.rules,
            &file.inode,
            file.inplace,
        )?;
        let Some(partial) = found.filter(|_| begun.chunks > 0) else {
            return self.begin(resuming, 0).map(Some);
        };
        let young = is_young(&entry);
        if file.identity != identity_of(&entry) || file.young {
            return self
                .compare(journal, begun, resuming, partial, young)
                .map(Some);
        }
        let restored = self.restore(journal, &begun, &partial, &entry);
        let have = restored.have().filter(|have| !have.is_empty());
        let Some(have) = have else {
            drop(partial);
            return self.begin(resuming, 0).map(Some);
        };
        self.progress.add_resumed(restored.claims.done_bytes());
        let written = Written {
            partial,
            number: Some(begun.number),
            young,
            restored,
            offered: false,
            first_chunk: 0,
        };
        Ok(Some(Want {
            entry: self.open(resuming, written),
            kind: WantKind::Have(have),
        }))
    }

    /// Says that a file is there. A list of digests at the other end needs its digest too.
    fn in_place(&self, journal: &Journal, file: Resuming) -> Option<Want> {
        if self.options.digests && self.digests.is_none() {
            let size = file.entry.size;
            let finished = journal.finished_before(&file.path, 0);
            let digest = finished.and_then(|(finished, _)| finished.digest)?;
            self.progress.add_resumed(size);
            let mut want = self.compare_whole(file, Some(digest));
            want.kind = WantKind::Have(vec![(span(0..size), digest)]);
            return Some(want);
        }
        let kind = WantKind::Skip;
        let entry = file.entry.id;
        self.say(Message::Want(vec![Want { entry, kind }]));
        self.skip(&file.entry, file.slot);
        None
    }

    /// What was written of a source that may be another now: its chunks are compared.
    fn compare(
        &self,
        journal: &Journal,
        begun: Begun,
        resuming: Resuming,
        partial: Partial,
        young: bool,
    ) -> Result<Want> {
        let entry = partial.entry().clone();
        let mut ranges = Restored::finest(entry.size, self.chunk_size, false);
        journal.replay(&begun, |chunk, _| {
            // What does not lie in the file as it is now is of no use.
            ranges.add(&chunk);
            ControlFlow::Continue(())
        });
        let spans = ranges.whole_chunks(self.chunk_size);
        let spans = spans.take(RANGES_MAX).map(span).collect();
        let number = journal.begin(&record::File {
            path: resuming.path,
            identity: identity_of(&entry),
            size: entry.size,
            inode: partial.inode()?,
            young,
            inplace: partial.is_inplace(),
        });
        let written = Written {
            restored: self.nothing_of(&entry),
            partial,
            number: Some(number),
            young,
            offered: true,
            first_chunk: 0,
        };
        Ok(Want {
            entry: self.open(resuming, written),
            kind: WantKind::Compare(spans),
        })
    }

    /// True if the file was finished by an earlier run and nothing has happened to it since.
    pub(super) fn is_in_place(&self, journal: &Journal, file: &Resuming) -> Result<bool> {
        let identity = identity_of(&file.entry);
        let standing = self.stands_since(journal, file, |finished| {
            finished.identity == identity && !finished.young
        })?;
        Ok(standing.is_some())
    }

    /// A stream that is read once: what stands there since a former session of this command has
    /// put it in place, if nothing has happened to it.
    pub(super) fn stream_in_place(&self, file: &Resuming) -> Result<Option<Standing>> {
        let Some(journal) = self.journal() else {
            return Ok(None);
        };
        let former = &self.sessions.before;
        self.stands_since(journal, file, |finished| {
            let is_its = |session: &[u8; 16]| finished.identity == identity_of_stream(session);
            former.iter().any(is_its)
        })
    }

    /// What stands there since a record that `is_of` the source was written.
    fn stands_since(
        &self,
        journal: &Journal,
        file: &Resuming,
        is_of: impl Fn(&Finished) -> bool,
    ) -> Result<Option<Standing>> {
        let Some(standing) = dest::standing(&file.slot)?.filter(|standing| standing.is_file) else {
            return Ok(None);
        };
        let Some((finished, certain)) = journal.finished_before(&file.path, standing.dev) else {
            return Ok(None);
        };
        let same = is_of(&finished) && finished.placed == placed(&standing);
        if !same || self.options.digests && finished.digest.is_none() {
            return Ok(None);
        }
        // Its name may have outlived its content.
        let is_whole =
            certain || finished.digest.is_some() && dest::digest_of(&file.slot)? == finished.digest;
        if is_whole && let (Some(list), Some(listed)) = (&self.digests, &file.listed) {
            let digest = finished.digest.unwrap_or_default();
            list.add(listed, &digest);
            list.remember(&file.entry, &digest);
        }
        Ok(is_whole.then_some(standing))
    }

    /// Accounts for a file that is in place.
    pub(super) fn skip(&self, entry: &Entry, slot: Slot) {
        // The run that has placed it may not have made it durable.
        if self.rules.fsync
            && let Err(error) = dest::make_durable(&slot)
        {
            return self.fail(entry.id, entry.parent, &error);
        }
        self.progress.add_resumed(entry.size);
        self.progress.add_resumed_files(1);
        self.progress.add_files(1);
        if entry.links > 1 {
            self.lock().links.insert(entry.id, slot);
        }
        self.acks.entry(entry.id);
        self.settle(entry.id, entry.parent);
    }

    pub(super) fn nothing_of(&self, entry: &Entry) -> Restored {
        Restored::nothing(entry.size, self.grain, self.needs_tree(entry))
    }

    /// Chunks of a file that changes are read at different times: their root says nothing.
    fn needs_tree(&self, entry: &Entry) -> bool {
        (!entry.is_sparse() && !self.options.live) || self.options.digests
    }

    /// Reads the journal's chunks of a file again and believes them, or not.
    fn restore(
        &self,
        journal: &Journal,
        begun: &Begun,
        partial: &Partial,
        entry: &Entry,
    ) -> Restored {
        let size = entry.size;
        let mut buffer = vec![0; STEP.max(self.chunk_size as usize)];
        let mut told = 0;
        let mut holds = |chunk: &Chunk| {
            let is_there = holds(partial, chunk, size, &mut buffer);
            let checked = self.progress.add_checked(chunk.len);
            // The other end may be the one that shows it.
            if checked - told >= TELL_EVERY {
                told = checked;
                self.say(Message::Checked(checked));
            }
            is_there
        };
        let mut sample = Sample::new(begun.chunks, self.chunk_size);
        let nothing = || Restored::finest(size, self.chunk_size, self.needs_tree(entry));
        let mut restored = nothing();
        let mut all_right = true;
        journal.replay(begun, |chunk, certain| {
            let checked = !certain || partial.is_inplace() || sample.picks();
            all_right =
                !self.ending.is_ending() && (!checked || holds(&chunk)) && restored.add(&chunk);
            match all_right {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        if all_right || self.ending.is_ending() {
            return restored.in_grains(self.grain);
        }
        restored = nothing();
        journal.replay(begun, |chunk, _| {
            if self.ending.is_ending() {
                return ControlFlow::Break(());
            }
            if holds(&chunk) {
                restored.add(&chunk);
            }
            ControlFlow::Continue(())
        });
        restored.in_grains(self.grain)
    }
}
