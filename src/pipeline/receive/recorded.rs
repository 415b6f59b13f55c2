//! The journal's records of finished files, compared with the files on disk. A file is trusted, or
//! it is read and compared with its record.

use std::ops::{ControlFlow, Range};

use super::entries::Entries;
use super::open_file::IncomingFile;
use crate::chunk::LARGE_PIECE;
use crate::chunk::ranges::RangeSet;
use crate::dest::{self, EntrySlot, ExistingEntry, Readback, Standing};
use crate::digest::{Digest, of_range};
use crate::error::Result;
use crate::journal::record::{Finished, Hash, WrittenRange};
use crate::journal::{self, Trust, UnfinishedFile, identity_of};
use crate::manifest::Entry;
use crate::pipeline::context::Context;

/// Bytes that are read between two reports of progress.
pub(super) const REPORT_EVERY: u64 = 16 << 20;

/// Bytes of zeros that are read at a time.
const STEP: usize = 1 << 20;

/// A file that an earlier session finished.
pub struct FinishedBefore {
    pub file: IncomingFile,
    pub finished: Finished,
    pub existing: ExistingEntry,
    /// The record with its chunks, in case the journal has no digest of the whole file.
    pub begun: Option<UnfinishedFile>,
    /// The sender asked about this file: if it is damaged, it arrives in a pack.
    pub is_small: bool,
}

/// A finished file that exists as recorded.
pub(super) struct FinishedFile {
    pub finished: Finished,
    pub existing: ExistingEntry,
    /// It may be trusted without reading it.
    pub trusted: bool,
    /// An earlier session of this command has finished it.
    pub is_of_run: bool,
}

/// A file whose first bytes the disk is fetching.
pub struct PrefetchedFile {
    disk: Readback,
    /// False if the disk is known not to have taken the data.
    is_written: bool,
}

impl FinishedFile {
    /// This is `file`, a small one.
    pub(super) fn small(self, file: IncomingFile) -> FinishedBefore {
        FinishedBefore {
            file,
            finished: self.finished,
            existing: self.existing,
            begun: None,
            is_small: true,
        }
    }
}

impl FinishedBefore {
    /// None if the file cannot be opened, or is not the recorded one any more.
    pub fn open(&self) -> Option<PrefetchedFile> {
        let disk = Readback::of_standing(&self.file.slot, &self.existing).ok()??;
        let is_written = disk.begin(self.file.entry.size);
        Some(PrefetchedFile { disk, is_written })
    }
}

/// Identifies a pipe that is read once, by the session that has read it.
pub(super) fn identity_of_pipe(session: &[u8; 16]) -> Hash {
    journal::hash([&session[..]].into_iter())
}

/// Identifies the file at the destination, to recognize it later.
fn identity_in_place(existing: &ExistingEntry) -> Hash {
    let mtime = existing.mtime;
    let fields = [existing.ino, existing.size, mtime.s as u64, mtime.ns.into()];
    let fields = fields.map(u64::to_le_bytes);
    journal::hash(fields.iter().map(|field| &field[..]))
}

/// The record of a file that has its final name.
pub(super) fn finished(
    path: Hash,
    entry: &Entry,
    young: bool,
    existing: &ExistingEntry,
    digest: Option<Digest>,
) -> Finished {
    Finished {
        path,
        identity: identity_of(entry),
        placed: identity_in_place(existing),
        digest,
        young,
    }
}

/// What happens to the file with this path, given what exists in `slot` and what the journal knows
/// of that: neither size nor time keeps a file that is half written, or whose content may be lost.
///
/// # Errors
/// If the destination cannot be looked at.
pub(super) fn standing(
    entries: &Entries,
    (slot, path): (&EntrySlot, &Hash),
    entry: &Entry,
) -> Result<Standing> {
    let standing = entries.standing(slot, entry)?;
    let journal = entries.journal();
    let Some(journal) = journal.filter(|_| !matches!(standing, Standing::Copied)) else {
        return Ok(standing);
    };
    let is_half_written = journal.is_half_written(path);
    let is_copied = match &standing {
        Standing::Copied | Standing::Unchanged(_) => is_half_written,
        // A file that the user has put there since stays.
        Standing::Stays if is_half_written || journal.may_have_lost_any() => {
            let existing = dest::existing(slot)?.filter(|existing| existing.is_file);
            existing.is_some_and(|existing| {
                let placed = journal.placed_before(path, existing.dev);
                let is_doubtful = placed.is_some_and(|(finished, trust)| {
                    trust == Trust::None && finished.placed == identity_in_place(&existing)
                });
                is_half_written || is_doubtful
            })
        }
        Standing::Stays => false,
    };
    Ok(match is_copied {
        true => Standing::Copied,
        false => standing,
    })
}

/// The finished file of this source, if it still exists and the source is the same. None too if it
/// lacks metadata that this copy keeps: another command, with other options, has finished it.
///
/// # Errors
/// If the destination cannot be looked at.
pub(super) fn find_finished(
    entries: &Entries,
    file: &IncomingFile,
    has_chunks: bool,
) -> Result<Option<FinishedFile>> {
    let identity = identity_of(&file.entry);
    let found = find_finished_by(entries, file, |finished| {
        finished.identity == identity && !finished.young
    })?;
    // Without any digest it would be unknown whether the file is intact.
    let found = found.filter(|found| found.finished.digest.is_some() || has_chunks);
    if let Some(found) = &found
        && !found.is_of_run
        && !dest::has_metadata(&file.slot, &file.entry, &entries.rules)?
    {
        note_placed(entries, file, &found.existing);
        return Ok(None);
    }
    Ok(found)
}

/// Notes that fastcp has placed this file, which is not the version from before the copy.
fn note_placed(entries: &Entries, file: &IncomingFile, existing: &ExistingEntry) {
    if let Some(backups) = &entries.rules.backup {
        backups.note_placed(&file.slot, existing.ino);
    }
}

/// The existing file at the destination, if it is the finished file that was recorded and its
/// record satisfies `is_of`.
///
/// # Errors
/// If the destination cannot be looked at.
pub(super) fn find_finished_by(
    entries: &Entries,
    file: &IncomingFile,
    is_of: impl Fn(&Finished) -> bool,
) -> Result<Option<FinishedFile>> {
    let Some(journal) = entries.journal() else {
        return Ok(None);
    };
    let Some(existing) = dest::existing(&file.slot)?.filter(|existing| existing.is_file) else {
        return Ok(None);
    };
    let Some((finished, trust)) = journal.finished_before(&file.path, existing.dev) else {
        return Ok(None);
    };
    let is_placed = finished.placed == identity_in_place(&existing);
    let is_of_run = trust == Trust::OfRun;
    if is_placed && is_of_run {
        note_placed(entries, file, &existing);
    }
    let is_same = is_placed && is_of(&finished);
    let is_listing = entries.context().options.digests;
    if !is_same || is_listing && finished.digest.is_none() {
        return Ok(None);
    }
    let trusted = match trust {
        Trust::None => false,
        Trust::OfBoot => entries.sessions.trusts,
        Trust::OfRun => true,
    };
    Ok(Some(FinishedFile {
        finished,
        existing,
        trusted,
        is_of_run,
    }))
}

/// Reads a finished file and compares it with its record. An unreadable file does not match. One that
/// does not match gets no backup.
pub(super) fn is_as_recorded(entries: &Entries, placed: &FinishedBefore) -> bool {
    let disk = placed.open();
    disk.is_some_and(|disk| reads_as_recorded(entries, placed, &disk))
}

/// The same for a file that was opened before.
pub(super) fn reads_as_recorded(
    entries: &Entries,
    placed: &FinishedBefore,
    whole: &PrefetchedFile,
) -> bool {
    let PrefetchedFile { disk, is_written } = whole;
    let size = placed.file.entry.size;
    let checked = |len| {
        entries.report.checked(len, REPORT_EVERY);
        !entries.context().is_ending()
    };
    let is_as_recorded = match (placed.finished.digest, &placed.begun) {
        (Some(digest), _) => {
            let found = disk.digest(size, *is_written, checked);
            if entries.rules.drop_cache {
                disk.drop_cache(0..size);
            }
            matches!(found, Ok(found) if found == Some(digest))
        }
        (None, Some(begun)) => has_chunks(entries, disk, begun, size, checked),
        (None, None) => false,
    };
    if !is_as_recorded {
        note_placed(entries, &placed.file, &placed.existing);
    }
    is_as_recorded
}

/// True if the recorded chunks cover the whole file and match it.
fn has_chunks(
    entries: &Entries,
    disk: &Readback,
    begun: &UnfinishedFile,
    size: u64,
    mut checked: impl FnMut(u64) -> bool,
) -> bool {
    let Some(journal) = entries.journal() else {
        return false;
    };
    let mut buffer = vec![0; buffer_len(entries.context())];
    let mut found = RangeSet::new();
    journal.replay(begun, |chunk| {
        let Some(end) = chunk.offset.checked_add(chunk.len) else {
            return ControlFlow::Break(());
        };
        let range = chunk.offset..end;
        let is_new = !found.contains_all(range.clone());
        if is_new {
            let is_written = match chunk.digest {
                Some(_) => disk.prepare(&range),
                None => disk.prepare_hole(&range),
            };
            // A damaged range may have been sent again and therefore recorded twice.
            if is_written && holds(disk, &chunk, size, &mut buffer) {
                found.insert(range);
            }
        }
        match checked(chunk.len) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    found.is_full(size)
}

/// Bytes of a buffer for [`holds`]: the longest piece that is recorded with a digest.
pub(super) fn buffer_len(context: &Context) -> usize {
    STEP.max(LARGE_PIECE * context.chunk_size)
}

/// Reads a recorded range of a file of `size` bytes and compares it with the record.
pub(super) fn holds(disk: &Readback, chunk: &WrittenRange, size: u64, buffer: &mut [u8]) -> bool {
    let range = chunk.offset..chunk.offset.saturating_add(chunk.len);
    if chunk.len == 0 || range.end > size {
        return false;
    }
    let Some(digest) = chunk.digest else {
        return holds_zeros(disk, range, buffer);
    };
    let Some(data) = buffer.get_mut(..chunk.len as usize) else {
        return false;
    };
    let is_read = disk.read(data, chunk.offset).is_ok();
    is_read && of_range(data, chunk.offset, chunk.len == size) == digest
}

fn holds_zeros(disk: &Readback, mut range: Range<u64>, buffer: &mut [u8]) -> bool {
    while let Some(data) = disk.data_in(range.clone()) {
        let step = (data.end - data.start).min(buffer.len() as u64);
        let found = &mut buffer[..step as usize];
        if disk.read(found, data.start).is_err() || found.iter().any(|&byte| byte != 0) {
            return false;
        }
        range.start = data.start + step;
        if range.is_empty() {
            break;
        }
    }
    true
}
