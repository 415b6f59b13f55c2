//! The journal of a copy: a record on disk of finished work, with which the same command resumes.
//!
//! # Location
//!
//! There is one journal per copy, at the receiver: `.fastcp-NAME-<16 hex digits>.journal` in the
//! directory in which the roots land. The digits are a BLAKE3 hash of that directory's inode and
//! the names of the roots. NAME is the name of the first root, so that people know whose journal it
//! is; it is missing if the roots fill the directory, as it was in all journals of earlier versions.
//! The journal lies beside a single file, beside a tree that gets a name of its own, or inside a
//! directory that the copy fills. The journal of a copy to a block device is in the user's state
//! directory (`dest::device_journal`), that of a snapshot in `.fastcp-snapshots`
//! (`dest::snapshots`). Every journal has mode 0600. The receiver makes it when it has found the
//! places of the roots, and removes it when the copy is complete. If a symbolic link, another
//! user's file or a file with several hard links has its name, the copy has no journal, and an
//! interrupted copy starts again from the beginning.
//!
//! # Format
//!
//! It is append-only: a header, then records of 96 bytes, each with its own checksum ([`record`]
//! has the format). The first record of a session names the process that writes, its boot and its
//! mount. A big file gets a number when it is begun, with hashes of its path below the roots and of
//! its source's identity, and the inode of its partial file. A chunk is recorded when its bytes are
//! verified and their write has returned, a file when it has its final name, a directory when it is
//! made. A session that starts again (`--no-resume`) says so in its first record. Then earlier
//! records of files only show which existing files are half written, and which ones fastcp placed.
//!
//! # Trust
//!
//! The checksums are keyed with a secret of the receiving user, so no file that a peer sends can
//! pass for a journal. Reading stops at the first damaged record; the records before it count. A
//! record says that bytes were written, not that they still exist: the caller reads all of them
//! again before a file gets its name. [`Journal::trusts`] says when the user may skip that:
//! everything was written during this boot and to this mount, and no lost write is known. Bytes
//! that sessions of the same command wrote or read under these conditions are not read a second
//! time ([`Journal::certain`]). Otherwise each attempt would read everything again, and might never
//! finish over a link that keeps failing.
//!
//! After a restart of the machine, a new mount or a lost write, the size and time of a file that
//! was written since the journal was made prove nothing ([`Journal::may_have_lost`]): a file system
//! may keep them and lose the content.
//!
//! # Locking
//!
//! The process locks the journal before it opens any partial file ([`lock`]). The writer touches the
//! journal every second while it hears from the other end. So a second fastcp fails at once if
//! the other copy is live, and waits for its end if that copy has lost its client. Where the lock
//! of another host is not seen (FUSE, some mounts of NFS), the touches show that copy.

mod left;
mod lock;
mod past;
mod process;
pub mod record;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

pub use left::{FoundJournal, LeftJournal};
pub use lock::WaitForLock;
use parking_lot::Mutex;
use past::Past;
pub use past::{Trust, UnfinishedFile};
use record::{
    ChecksumKey, Finished, Hash, JournalSession, JournalUserKey, LEN, MadeDirectory, RecordBody,
    WrittenRange,
};
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, StatxFlags, Timespec, Timestamps, fcntl_getfl, flock,
    fstat, statx, unlinkat,
};

use crate::chunk::ranges::RangeSet;
use crate::digest::Digest;
use crate::dir::own_name::{JOURNAL, own_name};
use crate::dir::{Dir, is_ours};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, Timestamp};

/// The place of a journal.
#[derive(Clone)]
pub struct JournalPlace {
    pub dir: Arc<Dir>,
    pub name: OsString,
}

impl JournalPlace {
    /// For roots that land under these names in `dir`; an empty name if they fill `dir` itself.
    pub fn new<'a>(dir: Arc<Dir>, names: impl Iterator<Item = &'a [u8]>) -> JournalPlace {
        // The name differs between directories. So a journal that was left in a source, and is
        // copied with it, does not collide with the journal of that copy.
        let number = dir.lasting_number().to_le_bytes();
        let names: Vec<&[u8]> = names.collect();
        let hash = hash([&number[..]].into_iter().chain(names.iter().copied()));
        let digits: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let first = names.first().copied().unwrap_or_default();
        let name = own_name(first, &digits, JOURNAL);
        // A journal of an earlier version keeps its name: its copy is resumed, or excludes this one
        // while it runs.
        let former = own_name(b"", &digits, JOURNAL);
        let has_former = former != name && dir.stat(&former).is_ok_and(|stat| is_ours(&stat));
        let name = if has_former { former } else { name };
        JournalPlace { dir, name }
    }

    /// True if this user's copy of roots with one of these hashes left a journal here.
    pub fn holds_copy_of(&self, roots: &[Hash], user: &JournalUserKey) -> bool {
        let file = self.open_own(OFlags::RDONLY);
        let last = file.and_then(|file| past::last_session(&file, user));
        last.is_some_and(|(session, _)| roots.contains(&session.roots))
    }

    /// The same, or true for a journal without any record: a power cut may come before they are on
    /// the disk.
    pub fn is_of(&self, roots: &[Hash], user: &JournalUserKey) -> bool {
        let Some(file) = self.open_own(OFlags::RDONLY) else {
            return false;
        };
        match past::last_session(&file, user) {
            Some((session, _)) => roots.contains(&session.roots),
            None => past::is_blank(&file),
        }
    }

    /// The journal, if it is this user's.
    fn open_own(&self, access: OFlags) -> Option<File> {
        let stat = self.dir.stat(&self.name).ok()?;
        if !is_ours(&stat) {
            return None;
        }
        let flags = access | OFlags::NONBLOCK;
        let file = File::from(self.dir.open(&self.name, flags, Mode::empty()).ok()?);
        let is_ours = fstat(&file).is_ok_and(|stat| is_ours(&stat));
        is_ours.then_some(file)
    }

    /// A handle that can sync the file system: that of the directory, unless it was opened without
    /// read permission. Then it is one of the journal, without its lock.
    fn disk(&self) -> std::io::Result<Arc<OwnedFd>> {
        let dir = self.dir.handle()?;
        if !fcntl_getfl(&*dir)?.contains(OFlags::PATH) {
            return Ok(dir);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let journal = self.dir.open(&self.name, flags, Mode::empty())?;
        Ok(Arc::new(journal))
    }
}

/// Earlier than all files.
const BEFORE_ALL: Timestamp = Timestamp { s: i64::MIN, ns: 0 };

/// File systems may round the time of a change down by so many seconds.
const TIME_STEP_S: i64 = 2;

/// Bytes that [`hash`] reserves at once: more than most lists need.
const HASHED_LEN: usize = 128;

/// A 128-bit hash of a list of byte strings.
pub fn hash<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Hash {
    // In one call: updating a hasher with so few bytes each takes longer than the hash itself.
    let mut bytes = Vec::with_capacity(HASHED_LEN);
    for part in parts {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part);
    }
    let mut hash = [0; 16];
    hash.copy_from_slice(&blake3::hash(&bytes).as_bytes()[..16]);
    hash
}

/// Identifies a source and its state. It changes when the source changes.
pub fn identity_of(entry: &Entry) -> Hash {
    let time = |time: Timestamp| [time.s as u64, u64::from(time.ns)];
    let ([m, m_ns], [c, c_ns]) = (time(entry.mtime), time(entry.ctime));
    let fields = [entry.dev, entry.ino, entry.size, m, m_ns, c, c_ns].map(u64::to_le_bytes);
    hash(fields.iter().map(|field| &field[..]))
}

/// The properties of a session that opens a journal.
#[derive(Clone, Copy)]
pub struct Opening {
    /// The secret of the receiving user.
    pub user: JournalUserKey,
    /// Earlier sessions had the same secret.
    pub is_user_lasting: bool,
    pub session: [u8; 16],
    /// The owner of the session; zero if the client did not say.
    pub owner: Hash,
    pub roots: Hash,
    /// In bytes.
    pub chunk_size: u32,
    /// Discard what earlier sessions wrote of files.
    pub afresh: bool,
    /// Discard it too if an earlier session had another owner, or an unknown one.
    pub own_only: bool,
}

impl Opening {
    /// True if the session discards what those of `past` wrote of files.
    fn starts_again(&self, past: &Past) -> bool {
        let is_cut_alike = |last: JournalSession| last.chunk_size == self.chunk_size;
        let is_own = past.owner == Some(self.owner) && self.owner != Hash::default();
        let may_resume = past.last.is_some_and(is_cut_alike) && (is_own || !self.own_only);
        self.afresh || !may_resume
    }
}

pub struct Journal {
    place: JournalPlace,
    /// The directory of the journal, or another handle of the journal; it stays open.
    disk: Arc<OwnedFd>,
    file: File,
    /// Device and inode of the journal itself.
    identity: (u64, u64),
    key: ChecksumKey,
    past: Mutex<Past>,
    next: AtomicU32,
    /// Nothing more is written: a write failed, or the journal was released.
    broken: AtomicBool,
    /// The journal contains something to resume from.
    is_useful: AtomicBool,
    /// When the journal was made, if data that earlier sessions wrote since then may be lost.
    lost_since: Option<Timestamp>,
}

impl Journal {
    /// Takes the lock, reads the records and begins a session. None if no journal is possible here.
    ///
    /// # Errors
    /// `Kind::Busy` if another fastcp writes there.
    pub fn open(
        place: JournalPlace,
        opening: &Opening,
        waiting: &WaitForLock,
    ) -> Result<Option<Journal>> {
        let Some((file, existed)) = lock::take(&place.dir, &place.name, &opening.user, waiting)?
        else {
            return Ok(None);
        };
        let (Some((mut own, identity)), Ok(disk)) = (session(&file, opening), place.disk()) else {
            return Ok(None);
        };
        let known = past::key(&file, &opening.user);
        let past = known.map(|key| (Past::read(&file, &key, &own, waiting.before), key));
        let is_certain = match &past {
            Some((past, _)) => past.is_certain(),
            // It lost its records, and the data that they were about too.
            None => !opening.is_user_lasting,
        };
        let lost_since = (existed && !is_certain).then(|| born(&file));
        let (past, key) = past.filter(|(past, _)| past.last.is_some()).unzip();
        let mut past = past.unwrap_or_default();
        own.starts_again = key.is_some() && opening.starts_again(&past);
        if own.starts_again {
            past.start_again(past.records);
        }
        let header = ChecksumKey::header(random(), &opening.user);
        let journal = Journal {
            key: key.clone().unwrap_or(header.1),
            next: AtomicU32::new(past.next),
            is_useful: AtomicBool::new(past.has_any()),
            past: Mutex::new(past),
            broken: AtomicBool::new(false),
            lost_since,
            disk,
            place,
            file,
            identity,
        };
        let header = key.is_none().then_some(header.0);
        let journal = journal.begin_session(header, own, opening.owner);
        if journal.is_none() {
            // `begin_session` has removed the file, as far as that was possible.
            return Ok(None);
        }
        Ok(journal)
    }

    /// Starts a session in the file, after a new `header` if there is one. Removes a journal that
    /// cannot be written, because the copy continues without it and would not remove it at its end.
    fn begin_session(
        mut self,
        header: Option<record::Record>,
        own: JournalSession,
        owner: Hash,
    ) -> Option<Journal> {
        let cut = self.cut(header);
        // Without the earlier records, a later session needs this one.
        let doubt = self.lost_since.filter(|_| header.is_some());
        let doubt = doubt.map(|_| RecordBody::Doubted);
        let bodies = [RecordBody::Session(own), RecordBody::Owner(owner)];
        let bodies = bodies.into_iter().chain(doubt);
        let records = bodies.flat_map(|body| body.encode(&self.key));
        self.append(&records.collect::<Vec<u8>>());
        if cut.is_err() || self.broken.load(Relaxed) {
            // A file that cannot be written may not be removable either; the user need not know.
            let _ = self.remove();
            return None;
        }
        Some(self)
    }

    /// Cuts the file after the last whole record, or down to a new header.
    fn cut(&mut self, header: Option<record::Record>) -> std::io::Result<()> {
        let Some(header) = header else {
            let whole = self.past.lock().records * LEN as u64;
            return self.file.set_len(whole);
        };
        self.file.set_len(0)?;
        self.file.write_all(&header)
    }

    /// Records that a big file is begun; returns the number for its chunks.
    pub fn begin(&self, file: &record::BegunFile) -> u32 {
        if file.inplace {
            self.past.lock().begin_in_place(file.path);
        }
        let number = self.next.fetch_add(1, Relaxed);
        self.append(&RecordBody::File(number, *file).encode(&self.key));
        number
    }

    /// Records that a range is verified and its write has returned. `digest` is None for zeros.
    pub fn chunk(&self, number: u32, offset: u64, len: u64, digest: Option<Digest>) {
        let chunk = WrittenRange {
            offset,
            len,
            digest,
        };
        self.append(&RecordBody::Chunk(number, chunk).encode(&self.key));
        self.is_useful.store(true, Relaxed);
    }

    /// Records that these files have their final names, in one write.
    pub fn finished(&self, files: &[Finished]) {
        if files.is_empty() {
            return;
        }
        let records = files
            .iter()
            .flat_map(|file| RecordBody::Finished(*file).encode(&self.key));
        self.append(&records.collect::<Vec<u8>>());
        self.is_useful.store(true, Relaxed);
        let mut past = self.past.lock();
        files.iter().for_each(|file| past.end_in_place(&file.path));
    }

    /// Records that the directory was made, or made writable.
    pub fn directory(&self, directory: MadeDirectory) {
        self.append(&RecordBody::Directory(directory).encode(&self.key));
        // Without this record the next copy would land inside the directory instead of resuming it.
        self.is_useful.store(true, Relaxed);
    }

    /// Records that the bytes written of the file are gone.
    pub fn dropped(&self, number: u32) {
        self.append(&RecordBody::Dropped(number).encode(&self.key));
    }

    /// Records a lost write or damaged bytes, so that later sessions read everything.
    pub fn doubted(&self) {
        self.append(&RecordBody::Doubted.encode(&self.key));
    }

    /// Bytes of the journal so far. To be taken before a sync and recorded after it.
    pub fn position(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.len())
    }

    pub fn synced(&self, position: u64) {
        self.append(&RecordBody::Synced(position).encode(&self.key));
    }

    /// Shows that the writer still hears from the other end.
    pub fn touch(&self) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        // If that fails, a second fastcp waits for this one to end instead of failing at once.
        let _ = rustix::fs::futimens(&self.file, &times);
    }

    fn append(&self, records: &[u8]) {
        if self.broken.load(Relaxed) {
            return;
        }
        // In one write, so that the records of several threads do not mix.
        match (&self.file).write(records) {
            Ok(written) if written == records.len() => {}
            // Earlier records stay valid. Records after a torn one do not count.
            _ => self.broken.store(true, Relaxed),
        }
    }

    /// Removes and returns the record of an unfinished file with this path.
    pub fn take_begun(&self, path: &Hash) -> Option<UnfinishedFile> {
        self.past.lock().begun.remove(path)
    }

    /// The record of a finished file with this path, and how far its content may be trusted without
    /// reading it, if the file is on `dev`.
    pub fn finished_before(&self, path: &Hash, dev: u64) -> Option<(Finished, Trust)> {
        self.finished_record(path, dev, Past::finished)
    }

    /// The same of a file that is not resumed, but was put in place by an earlier session.
    pub fn placed_before(&self, path: &Hash, dev: u64) -> Option<(Finished, Trust)> {
        self.finished_record(path, dev, Past::placed)
    }

    fn finished_record(
        &self,
        path: &Hash,
        dev: u64,
        find: impl FnOnce(&Past, &Hash) -> Option<u64>,
    ) -> Option<(Finished, Trust)> {
        let (index, trust) = {
            let past = self.past.lock();
            let index = find(&past, path)?;
            (index, past.trust(index, dev == self.identity.0))
        };
        match self.record(index)? {
            RecordBody::Finished(finished) if finished.path == *path => Some((finished, trust)),
            _ => None,
        }
    }

    /// True if the recorded bytes of the file may be trusted without reading them: all of them were
    /// written during this boot and to this mount, on which the journal lies too.
    pub fn trusts(&self, begun: &UnfinishedFile) -> bool {
        let is_here = begun.file.inode.dev == self.identity.0;
        self.past.lock().trust(begun.first, is_here) >= Trust::OfBoot
    }

    /// Ranges of the file that need not be read again: earlier sessions of this command wrote them,
    /// or read them and found them to match.
    pub fn certain(&self, begun: &UnfinishedFile) -> RangeSet {
        let since = self.past.lock().since_run.max(begun.first);
        let mut certain = RangeSet::new();
        if begun.file.inode.dev != self.identity.0 || since > begun.last {
            return certain;
        }
        // An unreadable journal counts as empty.
        let _ = past::records(&self.file, &self.key, since..begun.last + 1, |_, body| {
            match body {
                RecordBody::Chunk(number, WrittenRange { offset, len, .. })
                    if number == begun.number =>
                {
                    certain.insert(offset..offset.saturating_add(len));
                }
                RecordBody::Checked { number, start, end } if number == begun.number => {
                    certain.insert(start..end);
                }
                _ => {}
            }
            ControlFlow::Continue(())
        });
        certain
    }

    /// Records that a range from earlier sessions was read and matches its records.
    pub fn checked(&self, number: u32, range: Range<u64>) {
        let Range { start, end } = range;
        self.append(&RecordBody::Checked { number, start, end }.encode(&self.key));
    }

    /// When this command began, if earlier sessions of it wrote this journal.
    pub fn run_began(&self) -> Option<Timestamp> {
        self.past.lock().run_started.map(process::time_of)
    }

    /// Forgets that a finished file could be resumed: it was found damaged.
    pub fn forget_finished(&self, path: &Hash) {
        self.past.lock().found_damaged(path);
    }

    /// The record of the directory with this path, if this copy has made it or made it writable.
    pub fn directory_before(&self, path: &Hash) -> Option<MadeDirectory> {
        let index = self.past.lock().directories.get(path)?;
        match self.record(index)? {
            RecordBody::Directory(directory) if directory.path == *path => Some(directory),
            _ => None,
        }
    }

    fn record(&self, index: u64) -> Option<RecordBody> {
        let mut record = [0; LEN];
        let offset = index * LEN as u64;
        self.file.read_exact_at(&mut record, offset).ok()?;
        RecordBody::decode(&record, &self.key)
    }

    /// The recorded chunks of a file, in the order in which they were written. There are
    /// `begun.chunks` of them, unless the journal cannot be read any more.
    pub fn replay(
        &self,
        begun: &UnfinishedFile,
        mut each: impl FnMut(WrittenRange) -> ControlFlow<()>,
    ) {
        let range = begun.first..begun.last + 1;
        // An unreadable journal counts as empty.
        let _ = past::records(&self.file, &self.key, range, |_, body| match body {
            RecordBody::Chunk(number, chunk) if number == begun.number => each(chunk),
            _ => ControlFlow::Continue(()),
        });
    }

    /// True if data that earlier sessions wrote may be lost: the machine has stopped since, the file
    /// system was mounted again, or a write failed.
    pub fn may_have_lost_any(&self) -> bool {
        self.lost_since.is_some()
    }

    /// True if that may be data of a file whose status changed last at this time. Then its size and
    /// time of modification do not show that its content is on the disk.
    pub fn may_have_lost(&self, changed: Timestamp) -> bool {
        let reaches = |since: Timestamp| changed.s.saturating_add(TIME_STEP_S) >= since.s;
        self.lost_since.is_some_and(reaches)
    }

    /// True if earlier sessions have begun or finished the file with this path.
    pub fn knows(&self, path: &Hash) -> bool {
        let past = self.past.lock();
        past.begun.contains_key(path) || past.finished(path).is_some()
    }

    /// True if the existing file with this path is half written in place, whatever its size and time.
    pub fn is_half_written(&self, path: &Hash) -> bool {
        self.past.lock().is_half_written(path)
    }

    /// True if the size and time of some files may not show that their content is wrong.
    pub fn has_doubt(&self) -> bool {
        self.may_have_lost_any() || self.past.lock().has_half_written()
    }

    /// True if earlier sessions have finished any file.
    pub fn has_finished(&self) -> bool {
        self.past.lock().has_finished()
    }

    /// Recorded bytes of unfinished files.
    pub fn begun_bytes(&self) -> u64 {
        let past = self.past.lock();
        let unfinished = past.begun.values();
        let unfinished = unfinished.filter(|begun| past.finished(&begun.file.path).is_none());
        unfinished.fold(0, |sum: u64, begun| sum.saturating_add(begun.bytes))
    }

    /// True if there is something that a later session can resume from.
    pub fn is_useful(&self) -> bool {
        self.is_useful.load(Relaxed)
    }

    pub fn dir(&self) -> &Arc<Dir> {
        &self.place.dir
    }

    /// A handle of its file system that is older than all data of this session, and has no
    /// lock.
    pub fn disk(&self) -> &OwnedFd {
        &self.disk
    }

    pub fn name(&self) -> &OsStr {
        &self.place.name
    }

    /// Removes the journal at the end of the copy. Another file under its name stays.
    ///
    /// # Errors
    /// `Kind::Write` if it cannot be removed. The next copy to this place ignores it.
    pub fn remove(&self) -> Result<()> {
        let JournalPlace { dir, name } = &self.place;
        let is_this = |name: &OsStr| {
            let stat = dir.stat(name);
            stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity)
        };
        if !is_this(name) {
            return Ok(());
        }
        let removed = dir
            .handle()
            .and_then(|dir| Ok(unlinkat(&*dir, name, AtFlags::empty())?));
        removed.map_err(|cause| {
            let what = "cannot remove the journal of this copy";
            Error::io(Kind::Write, Side::Dest, dir.path().join(name), what, cause)
        })
    }

    /// Lets another session take the journal, even if threads of this one are stuck.
    pub fn release(&self) {
        self.broken.store(true, Relaxed);
        // On a file system without locks this fails, and nothing has to be unlocked.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Drop for Journal {
    /// Unlocks explicitly: a child of this process that has not yet called exec also holds the
    /// file, so closing it here would not release the lock.
    fn drop(&mut self) {
        self.release();
    }
}

/// The session record of this process as a writer of `file`, and the file's device and inode.
fn session(file: &File, opening: &Opening) -> Option<(JournalSession, (u64, u64))> {
    let stat = fstat(file).ok()?;
    let session = JournalSession {
        boot_id: process::boot_id(),
        id: opening.session,
        dev: stat.st_dev,
        mount: process::mount(file),
        pid: process::own_pid(),
        uid: rustix::process::geteuid().as_raw(),
        started: process::started(process::own_pid()),
        roots: opening.roots,
        chunk_size: opening.chunk_size,
        starts_again: false,
    };
    Some((session, (stat.st_dev, stat.st_ino)))
}

/// When the journal was made; before all files if that is not known.
fn born(file: &File) -> Timestamp {
    let told = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    let birth = told.ok().as_ref().and_then(Timestamp::birth);
    birth
        .filter(|birth| is_past(*birth, Timestamp::now()))
        .unwrap_or(BEFORE_ALL)
}

/// False for a time of a clock that was set back since: files were written later, and have earlier
/// times.
fn is_past(time: Timestamp, now: Timestamp) -> bool {
    time.s <= now.s
}

/// Random bytes, or zeros if the system has none yet. Two journals with the same key do no harm:
/// their records are only harder to distinguish.
fn random() -> [u8; 16] {
    let mut random = [0; 16];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
    random
}
