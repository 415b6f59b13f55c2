//! A journal that is read back: the work of earlier sessions, up to the first damaged record.
//!
//! It takes about 50 bytes of memory per finished file or directory and 200 per unfinished file,
//! each up to a limit. Chunks are only counted; they are read again when their file is resumed.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use super::record::{
    self, ChecksumKey, Hash, JournalSession, JournalUserKey, LEN, Record, RecordBody,
};
use crate::manifest::Inode;

/// Number of records read at a time.
const STEP: usize = 1024;

/// Finished files that are remembered, about 25 MB at most; further files are sent again.
const FINISHED_MAX: usize = 1 << 19;

/// The same for the first directories, and twice for the newest ones.
const DIRECTORIES_MAX: usize = 1 << 17;

/// The same for unfinished files, and for half-written ones: far more than can be open at once.
const BEGUN_MAX: usize = 1 << 14;

/// A big file that was begun and not finished, or finished without a digest.
#[derive(Clone, Copy, Debug)]
pub struct UnfinishedFile {
    /// The number in the records of its chunks.
    pub number: u32,
    pub file: record::BegunFile,
    /// Number of recorded chunks, and their bytes.
    pub chunks: u64,
    pub bytes: u64,
    /// Index of the first and last record with its chunks, both included.
    pub(super) first: u64,
    pub(super) last: u64,
}

/// How far a record may be trusted without reading the bytes, from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    None,
    /// The bytes were written during this boot to this mount, and no lost write or damage is known.
    OfBoot,
    /// In addition, sessions of this command wrote them and then lost their connection.
    OfRun,
}

#[derive(Default)]
pub(super) struct Past {
    pub begun: HashMap<Hash, UnfinishedFile>,
    paths: HashMap<u32, Hash>,
    /// The index of the record of a finished file.
    finished: HashMap<Hash, u64>,
    /// Of these, files from before this record are not resumed.
    resumed_from: u64,
    /// Nor are those that this session found damaged.
    damaged: HashSet<Hash>,
    /// Existing files that a session began to write in place and that none has finished.
    half_written: HashSet<Hash>,
    pub directories: DirectoryRecords,
    /// From this record on, everything satisfies [`Trust::OfBoot`].
    pub since_mount: u64,
    /// From this record on, everything satisfies [`Trust::OfRun`].
    pub since_run: u64,
    /// When the process of the first session of this command started, in ticks since the boot.
    pub run_started: Option<u64>,
    /// The machine has stopped or the file system was mounted again since some session, or a session
    /// knows of a lost write or of damage.
    has_doubt: bool,
    pub last: Option<JournalSession>,
    /// The owner of the sessions, if all have the same one.
    pub owner: Option<Hash>,
    owners: u32,
    /// One more than the highest number of a file.
    pub next: u32,
    /// Number of whole records from the start, including the header.
    pub records: u64,
}

impl Past {
    /// Reads up to the first damaged record. `own` is the session that reads, `before` the earlier
    /// sessions of the same command.
    pub(super) fn read(
        file: &File,
        key: &ChecksumKey,
        own: &JournalSession,
        before: &[[u8; 16]],
    ) -> Past {
        let mut past = Past {
            records: 1,
            since_mount: u64::MAX,
            since_run: u64::MAX,
            ..Past::default()
        };
        // An unreadable journal counts as empty.
        let _ = records(file, key, 1..u64::MAX, |index, body| {
            past.records = index + 1;
            past.take(index, body, (own, before));
            ControlFlow::Continue(())
        });
        past
    }

    fn take(
        &mut self,
        index: u64,
        body: RecordBody,
        (own, before): (&JournalSession, &[[u8; 16]]),
    ) {
        match body {
            RecordBody::Session(session) => {
                if session.starts_again {
                    self.start_again(index);
                }
                self.since_mount = match session.is_of_mount(own) {
                    true => self.since_mount.min(index),
                    false => u64::MAX,
                };
                let is_of_command = before.contains(&session.id);
                let is_of_run = session.is_of_mount(own) && is_of_command;
                self.since_run = match is_of_run {
                    true => self.since_run.min(index),
                    false => u64::MAX,
                };
                let is_of_boot = own.boot_id != [0; 16] && session.boot_id == own.boot_id;
                let started = self.run_started.unwrap_or(session.started);
                let is_known = is_of_command && is_of_boot && started != 0;
                self.run_started = is_known.then_some(started);
                self.has_doubt |= !session.may_be_of_mount(own);
                self.last = Some(session);
            }
            RecordBody::Owner(owner) => {
                self.owners = self.owners.saturating_add(1);
                let is_same = self.owners == 1 || self.owner == Some(owner);
                self.owner = is_same.then_some(owner);
            }
            RecordBody::Doubted => {
                (self.since_mount, self.since_run) = (u64::MAX, u64::MAX);
                self.has_doubt = true;
            }
            RecordBody::File(number, file) => {
                self.next = self.next.max(number.saturating_add(1));
                let begun = UnfinishedFile {
                    number,
                    file,
                    chunks: 0,
                    bytes: 0,
                    first: index,
                    last: index,
                };
                self.forget(&file.path);
                self.finished.remove(&file.path);
                if file.inplace {
                    self.begin_in_place(file.path);
                }
                if self.begun.len() < BEGUN_MAX {
                    self.begun.insert(file.path, begun);
                    self.paths.insert(number, file.path);
                }
            }
            RecordBody::Chunk(number, chunk) => {
                let begun = self
                    .paths
                    .get(&number)
                    .and_then(|path| self.begun.get_mut(path));
                if let Some(begun) = begun {
                    begun.chunks += 1;
                    begun.bytes = begun.bytes.saturating_add(chunk.len).min(begun.file.size);
                    begun.last = index;
                }
            }
            RecordBody::Checked { number, .. } => {
                let path = self.paths.get(&number);
                if let Some(begun) = path.and_then(|path| self.begun.get_mut(path)) {
                    begun.last = index;
                }
            }
            RecordBody::Finished(finished) => {
                self.half_written.remove(&finished.path);
                // Without a digest of the whole file, the digests of its chunks are still needed.
                if finished.digest.is_some() {
                    self.forget(&finished.path);
                }
                let is_known = self.finished.contains_key(&finished.path);
                if is_known || self.finished.len() < FINISHED_MAX {
                    self.finished.insert(finished.path, index);
                }
            }
            // The reader can see all records, synced or not.
            RecordBody::Synced(_) => {}
            RecordBody::Directory(directory) => self.directories.insert(directory.path, index),
            RecordBody::Dropped(number) => {
                if let Some(path) = self.paths.get(&number).copied() {
                    self.forget(&path);
                }
            }
        }
    }

    /// Discards what the sessions before the record `index` wrote of files. Their partial files are
    /// still to be removed, half-written files to be replaced, and directories to get their modes.
    pub(super) fn start_again(&mut self, index: u64) {
        self.resumed_from = index;
        for begun in self.begun.values_mut() {
            (begun.chunks, begun.bytes) = (0, 0);
        }
        (self.owner, self.owners) = (None, 0);
    }

    /// The index of the record of a finished file that may be resumed.
    pub(super) fn finished(&self, path: &Hash) -> Option<u64> {
        let index = self.placed(path)?;
        (index >= self.resumed_from && !self.damaged.contains(path)).then_some(index)
    }

    /// The same of any finished file.
    pub(super) fn placed(&self, path: &Hash) -> Option<u64> {
        self.finished.get(path).copied()
    }

    pub(super) fn has_finished(&self) -> bool {
        self.finished
            .keys()
            .any(|path| self.finished(path).is_some())
    }

    /// A finished file does not match its record.
    pub(super) fn found_damaged(&mut self, path: &Hash) {
        self.damaged.insert(*path);
    }

    /// The existing file with this path is half written from now on.
    pub(super) fn begin_in_place(&mut self, path: Hash) {
        if self.half_written.len() < BEGUN_MAX {
            self.half_written.insert(path);
        }
    }

    pub(super) fn end_in_place(&mut self, path: &Hash) {
        self.half_written.remove(path);
    }

    pub(super) fn is_half_written(&self, path: &Hash) -> bool {
        self.half_written.contains(path)
    }

    pub(super) fn has_half_written(&self) -> bool {
        !self.half_written.is_empty()
    }

    /// True if there is something to resume from. Without the record of a directory, the next copy
    /// would land inside the directory instead of resuming it.
    pub(super) fn has_any(&self) -> bool {
        !(self.finished.is_empty() && self.begun.is_empty() && self.directories.is_empty())
    }

    /// True if no data of earlier sessions is known to be lost, or may be.
    pub(super) fn is_certain(&self) -> bool {
        self.last.is_some() && !self.has_doubt
    }

    /// How far everything from the record `first` on may be trusted without reading it. `is_here`
    /// says whether the files are on the same device as the journal.
    pub(super) fn trust(&self, first: u64, is_here: bool) -> Trust {
        if is_here && first >= self.since_run {
            Trust::OfRun
        } else if is_here && first >= self.since_mount {
            Trust::OfBoot
        } else {
            Trust::None
        }
    }

    fn forget(&mut self, path: &Hash) {
        if let Some(begun) = self.begun.remove(path) {
            self.paths.remove(&begun.number);
        }
    }
}

/// The index of the record of each directory, as far as there is room. A copy goes through a tree
/// depth first. So the directories that were open when a run was killed are among the first ones,
/// which are high in the tree, or among the newest ones.
#[derive(Default)]
pub(super) struct DirectoryRecords {
    first: HashMap<Hash, u64>,
    /// The newest ones, and those before them.
    newest: [HashMap<Hash, u64>; 2],
}

impl DirectoryRecords {
    fn insert(&mut self, path: Hash, index: u64) {
        if self.first.len() < DIRECTORIES_MAX || self.first.contains_key(&path) {
            self.first.insert(path, index);
            return;
        }
        if self.newest[0].len() >= DIRECTORIES_MAX {
            self.newest[1] = std::mem::take(&mut self.newest[0]);
        }
        self.newest[0].insert(path, index);
    }

    pub(super) fn get(&self, path: &Hash) -> Option<u64> {
        let mut all = self.newest.iter().chain([&self.first]);
        all.find_map(|records| records.get(path)).copied()
    }

    fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

/// Reads `range` of a journal's records up to the first damaged one, or until `each` breaks.
pub(super) fn records(
    file: &File,
    key: &ChecksumKey,
    range: std::ops::Range<u64>,
    mut each: impl FnMut(u64, RecordBody) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut block = vec![0; STEP * LEN];
    let mut index = range.start;
    while index < range.end {
        let wanted = (range.end - index).min(STEP as u64) as usize * LEN;
        let got = read_full(file, &mut block[..wanted], index * LEN as u64)?;
        for record in block[..got].chunks_exact(LEN) {
            let record: &Record = record.try_into().expect("a chunk of this length");
            let Some(body) = RecordBody::decode(record, key) else {
                return Ok(());
            };
            if each(index, body).is_break() {
                return Ok(());
            }
            index += 1;
        }
        if got < wanted {
            return Ok(());
        }
    }
    Ok(())
}

fn read_full(file: &File, block: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < block.len() {
        match file.read_at(&mut block[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(len) => got += len,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(got)
}

/// The key, if the file has the header of a journal of this version and this user.
pub(super) fn key(file: &File, user: &JournalUserKey) -> Option<ChecksumKey> {
    let mut header = [0; LEN];
    file.read_exact_at(&mut header, 0).ok()?;
    ChecksumKey::read(&header, user)
}

/// True if not even the header is on the disk.
pub(super) fn is_blank(file: &File) -> bool {
    let mut header = [0; LEN];
    read_full(file, &mut header, 0).is_ok() && header == [0; LEN]
}

/// The last session and its owner, as far as the journal can be read.
pub(super) fn last_session(file: &File, user: &JournalUserKey) -> Option<(JournalSession, Hash)> {
    let mut last = None;
    let key = key(file, user)?;
    // An unreadable journal counts as empty.
    let _ = records(file, &key, 1..u64::MAX, |_, body| {
        match body {
            RecordBody::Session(session) => last = Some((session, Hash::default())),
            RecordBody::Owner(of) => {
                if let Some((_, owner)) = &mut last {
                    *owner = of;
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    last
}

/// The work of a copy that did not end.
pub(super) struct UnfinishedWork {
    /// The partial files that were begun and neither finished nor dropped, whatever the session.
    pub partials: Vec<Inode>,
    /// The next run has to know more than these: files that it verifies or that are half written in
    /// place, and directories that the copy has made.
    pub is_needed: bool,
    pub last: Option<JournalSession>,
}

pub(super) fn unfinished(file: &File, key: &ChecksumKey) -> UnfinishedWork {
    let (mut is_needed, mut last) = (false, None);
    let mut begun = HashMap::<Hash, (u32, Inode)>::new();
    let mut paths = HashMap::<u32, Hash>::new();
    // An unreadable journal counts as empty.
    let _ = records(file, key, 1..u64::MAX, |_, body| {
        match body {
            RecordBody::File(number, file) => {
                is_needed |= file.inplace;
                if let Some((former, _)) = begun.remove(&file.path) {
                    paths.remove(&former);
                }
                if !file.inplace && begun.len() < BEGUN_MAX {
                    begun.insert(file.path, (number, file.inode));
                    paths.insert(number, file.path);
                }
            }
            RecordBody::Finished(finished) => {
                is_needed = true;
                if let Some((number, _)) = begun.remove(&finished.path) {
                    paths.remove(&number);
                }
            }
            RecordBody::Directory(..) | RecordBody::Doubted => is_needed = true,
            RecordBody::Session(session) => last = Some(session),
            RecordBody::Dropped(number) => {
                if let Some(path) = paths.remove(&number) {
                    begun.remove(&path);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    UnfinishedWork {
        partials: begun.into_values().map(|(_, inode)| inode).collect(),
        is_needed,
        last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_newest_directories_are_remembered() {
        let path = |number: u64| {
            let mut path = [0; 16];
            path[..8].copy_from_slice(&number.to_le_bytes());
            path
        };
        let max = DIRECTORIES_MAX as u64;
        let all = 3 * max + 1;
        let mut records = DirectoryRecords::default();
        (0..all).for_each(|number| records.insert(path(number), number));
        let is_known = |number: u64| records.get(&path(number)) == Some(number);
        assert!((0..max).all(is_known), "the first ones");
        assert!((all - max..all).all(is_known), "the newest ones");
        let known = (0..all).filter(|number| is_known(*number)).count();
        assert!(known <= 3 * DIRECTORIES_MAX, "{known}");
    }
}
