//! The journal of a copy: what was done so far, on disk, so that the same command resumes it.
//!
//! # Where
//!
//! There is one journal per copy, at the receiver: `.fastcp-<16 hex digits>.journal` in the
//! directory where the roots land. The digits are the BLAKE3 of the directory's inode and the landing
//! names. It lies beside a single file, beside the root of a tree that lands under a name, and
//! within a directory that is filled. It has mode 0600. It is made when the roots have landed and
//! removed when the copy is complete. A link, another user's file or one with a second name is not
//! used; then there is no journal, and an interrupted copy starts again from the beginning.
//!
//! # What
//!
//! It is append-only: a header and records of 96 bytes, each with its own checksum ([`record`] has
//! the format). A session begins with who writes it and where (boot, mount, process). A big file
//! that is begun gets a number, with a hash of its path below the roots, a hash of its source's
//! identity and the inode of its partial. A chunk is recorded when its bytes are verified and
//! their write has returned, a file when it has its final name, a directory when it is made.
//!
//! # What it is worth
//!
//! The checksums are keyed with a secret of the receiving user, so that no file that a peer sends
//! can pass for a journal. Reading stops at the first damaged record; what is before it counts.
//! A record says which bytes were written, not that they are still there: the caller reads all of
//! them again before a file gets its name. [`Journal::trusts`] tells where the user may skip that:
//! everything was written during this boot and to this mount, and no lost write is known. What
//! sessions of the same command wrote or read under these conditions is not read a second time
//! ([`Journal::certain`]): on a link that drops all the time a copy would never end.
//!
//! # Who
//!
//! The journal is locked before any partial is touched ([`lock`]). Its writer touches it every
//! second while it hears the other end, so that a second fastcp can tell a live copy, where it
//! fails at once, from one whose client is gone, for whose end it waits.

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
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, Timespec, Timestamps, flock, fstat, unlinkat,
};

use crate::chunk::ranges::RangeSet;
use crate::digest::Digest;
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
pub use lock::Waiting;
use past::Past;
pub use past::{Begun, Trust};
use record::{Body, Chunk, Directory, Finished, Hash, Key, LEN, Session, UserKey};

/// Where a journal is.
#[derive(Clone)]
pub struct Place {
    pub dir: Arc<Dir>,
    pub name: OsString,
}

impl Place {
    /// For roots that land under these names in `dir`; an empty one for what fills it.
    pub fn new<'a>(dir: Arc<Dir>, names: impl Iterator<Item = &'a [u8]>) -> Place {
        // Another one in every directory: what was left in a source and is copied with it does not
        // meet the journal of that copy.
        let number = dir.lasting_number().to_le_bytes();
        let names: Vec<&[u8]> = names.collect();
        let hash = hash([&number[..]].into_iter().chain(names));
        let digits: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!(".fastcp-{digits}.journal").into();
        Place { dir, name }
    }

    /// What the roots were in the copy that left a journal here, if one of this user did.
    pub fn roots(&self, user: &UserKey) -> Option<Hash> {
        let stat = self.dir.stat(&self.name).ok()?;
        if !lock::is_ours(&stat) {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = File::from(self.dir.open(&self.name, flags, Mode::empty()).ok()?);
        if !fstat(&file).is_ok_and(|stat| lock::is_ours(&stat)) {
            return None;
        }
        past::last_session(&file, user).map(|(session, _)| session.roots)
    }
}

/// Bytes that [`hash`] has room for at once: more than most lists take.
const HASHED_LEN: usize = 128;

/// 128 bits for a list of byte strings.
pub fn hash<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Hash {
    // In one call: a hasher's updates with so few bytes each take longer than the hash.
    let mut bytes = Vec::with_capacity(HASHED_LEN);
    for part in parts {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part);
    }
    let mut hash = [0; 16];
    hash.copy_from_slice(&blake3::hash(&bytes).as_bytes()[..16]);
    hash
}

/// What a session says of itself.
#[derive(Clone, Copy)]
pub struct Opening {
    /// The secret of this user.
    pub user: UserKey,
    pub session: [u8; 16],
    /// Whose session it is; zero where the client did not say.
    pub owner: Hash,
    pub roots: Hash,
    /// Bytes.
    pub chunk_size: u32,
    /// What earlier sessions left is thrown away.
    pub afresh: bool,
    /// So is what a session of another owner left, or of an unknown one.
    pub own_only: bool,
}

pub struct Journal {
    place: Place,
    file: File,
    /// Device and inode of the journal itself.
    identity: (u64, u64),
    key: Key,
    past: Mutex<Past>,
    next: AtomicU32,
    /// It could not be written: nothing is any more.
    broken: AtomicBool,
    /// There is something to go on with.
    is_useful: AtomicBool,
}

impl Journal {
    /// Takes the lock, reads what is there and begins a session. None where there can be none.
    ///
    /// # Errors
    /// `Kind::Busy` where another fastcp writes there.
    pub fn open(place: Place, opening: &Opening, waiting: &Waiting) -> Result<Option<Journal>> {
        let Some(file) = lock::take(&place.dir, &place.name, &opening.user, waiting)? else {
            return Ok(None);
        };
        let Some((own, identity)) = session(&file, opening) else {
            return Ok(None);
        };
        let known = past::key(&file, &opening.user).filter(|_| !opening.afresh);
        let past = known.map(|key| (Past::read(&file, &key, &own, waiting.before), key));
        let (past, key) = past
            .filter(|(past, _)| {
                let is_cut_alike = |last: Session| last.chunk_size == opening.chunk_size;
                let is_own = past.owner == Some(opening.owner) && opening.owner != Hash::default();
                past.last.is_some_and(is_cut_alike) && (is_own || !opening.own_only)
            })
            .unzip();
        let past = past.unwrap_or_default();
        let header = Key::header(random(), &opening.user);
        let journal = Journal {
            key: key.clone().unwrap_or(header.1),
            next: AtomicU32::new(past.next),
            is_useful: AtomicBool::new(!past.finished.is_empty() || !past.begun.is_empty()),
            past: Mutex::new(past),
            broken: AtomicBool::new(false),
            place,
            file,
            identity,
        };
        let header = key.is_none().then_some(header.0);
        let journal = journal.begin_session(header, own, opening.owner);
        if journal.is_none() {
            // An empty file, or one whose past is worth nothing without a lock on it.
            return Ok(None);
        }
        Ok(journal)
    }

    /// Starts a session in the file, behind a new `header` where there is one. A journal that cannot
    /// be written is removed: the copy goes on without it, and nobody would come back for it.
    fn begin_session(
        mut self,
        header: Option<record::Record>,
        own: Session,
        owner: Hash,
    ) -> Option<Journal> {
        let cut = self.cut(header);
        let records = [Body::Session(own), Body::Owner(owner)].map(|body| body.encode(&self.key));
        self.append(records.as_flattened());
        if cut.is_err() || self.broken.load(Relaxed) {
            // What could not be written cannot be removed there either: no news for the user.
            let _ = self.remove();
            return None;
        }
        Some(self)
    }

    /// Leaves the whole records of former sessions, or only a new header.
    fn cut(&mut self, header: Option<record::Record>) -> std::io::Result<()> {
        let Some(header) = header else {
            let whole = self.past().records * LEN as u64;
            return self.file.set_len(whole);
        };
        self.file.set_len(0)?;
        self.file.write_all(&header)
    }

    /// A big file is begun; gives the number for its chunks.
    pub fn begin(&self, file: &record::File) -> u32 {
        let number = self.next.fetch_add(1, Relaxed);
        self.append(&Body::File(number, *file).encode(&self.key));
        number
    }

    /// The range is verified, and its write has returned. `digest` is none for zeros.
    pub fn chunk(&self, number: u32, offset: u64, len: u64, digest: Option<Digest>) {
        let chunk = Chunk {
            offset,
            len,
            digest,
        };
        self.append(&Body::Chunk(number, chunk).encode(&self.key));
        self.is_useful.store(true, Relaxed);
    }

    /// These files have their names. One write for all.
    pub fn finished(&self, files: &[Finished]) {
        if files.is_empty() {
            return;
        }
        let records = files
            .iter()
            .flat_map(|file| Body::Finished(*file).encode(&self.key));
        self.append(&records.collect::<Vec<u8>>());
        self.is_useful.store(true, Relaxed);
    }

    /// The directory is made, or opened up.
    pub fn directory(&self, directory: Directory) {
        self.append(&Body::Directory(directory).encode(&self.key));
        // Without it the next copy would land in the directory instead of going on with it.
        self.is_useful.store(true, Relaxed);
    }

    /// What was written of the file is gone.
    pub fn dropped(&self, number: u32) {
        self.append(&Body::Dropped(number).encode(&self.key));
    }

    /// A write was lost, or what is recorded was found damaged: a later session reads everything.
    pub fn doubted(&self) {
        self.append(&Body::Doubted.encode(&self.key));
    }

    /// Bytes of the journal so far: taken before a sync, recorded after it.
    pub fn position(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.len())
    }

    pub fn synced(&self, position: u64) {
        self.append(&Body::Synced(position).encode(&self.key));
    }

    /// Its writer hears the other end.
    pub fn touch(&self) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        // Where that fails a second fastcp waits for our end instead of failing at once.
        let _ = rustix::fs::futimens(&self.file, &times);
    }

    fn append(&self, records: &[u8]) {
        if self.broken.load(Relaxed) {
            return;
        }
        // One write for all of it, so that those of several threads do not mix.
        match (&self.file).write(records) {
            Ok(written) if written == records.len() => {}
            // What is recorded stays good; what follows a torn record does not count.
            _ => self.broken.store(true, Relaxed),
        }
    }

    /// What was begun of the file with this path, once.
    pub fn take_begun(&self, path: &Hash) -> Option<Begun> {
        self.past().begun.remove(path)
    }

    /// The file with this path as it was finished, and how far its content may be believed without
    /// reading it, where the file is on `dev`.
    pub fn finished_before(&self, path: &Hash, dev: u64) -> Option<(Finished, Trust)> {
        let (index, trust) = {
            let past = self.past();
            let index = *past.finished.get(path)?;
            (index, past.trust(index, dev == self.identity.0))
        };
        match self.record(index)? {
            Body::Finished(finished) if finished.path == *path => Some((finished, trust)),
            _ => None,
        }
    }

    /// True if what is recorded of the file may be believed without reading it: all of it was
    /// written during this boot, to this mount, which is the journal's own.
    pub fn trusts(&self, begun: &Begun) -> bool {
        let is_here = begun.file.inode.dev == self.identity.0;
        self.past().trust(begun.first, is_here) >= Trust::OfBoot
    }

    /// Ranges of the file that former sessions of this command wrote, or read and found as recorded:
    /// they need not be read again.
    pub fn certain(&self, begun: &Begun) -> RangeSet {
        let since = self.past().since_run.max(begun.first);
        let mut certain = RangeSet::new();
        if begun.file.inode.dev != self.identity.0 || since > begun.last {
            return certain;
        }
        // What cannot be read is not there.
        let _ = past::records(&self.file, &self.key, since..begun.last + 1, |_, body| {
            match body {
                Body::Chunk(number, Chunk { offset, len, .. }) if number == begun.number => {
                    certain.insert(offset..offset.saturating_add(len));
                }
                Body::Checked { number, start, end } if number == begun.number => {
                    certain.insert(start..end);
                }
                _ => {}
            }
            ControlFlow::Continue(())
        });
        certain
    }

    /// What former sessions recorded of a range of this file was read, and was as recorded.
    pub fn checked(&self, number: u32, range: Range<u64>) {
        let Range { start, end } = range;
        self.append(&Body::Checked { number, start, end }.encode(&self.key));
    }

    /// What was recorded of a finished file is worth nothing any more.
    pub fn forget_finished(&self, path: &Hash) {
        self.past().finished.remove(path);
    }

    /// The directory with this path, if this copy has made it or opened it up.
    pub fn directory_before(&self, path: &Hash) -> Option<Directory> {
        let index = *self.past().directories.get(path)?;
        match self.record(index)? {
            Body::Directory(directory) if directory.path == *path => Some(directory),
            _ => None,
        }
    }

    fn record(&self, index: u64) -> Option<Body> {
        let mut record = [0; LEN];
        let offset = index * LEN as u64;
        self.file.read_exact_at(&mut record, offset).ok()?;
        Body::decode(&record, &self.key)
    }

    /// The recorded chunks of a file in the order of their writing. As many as `begun.chunks`,
    /// unless the journal cannot be read any more.
    pub fn replay(&self, begun: &Begun, mut each: impl FnMut(Chunk) -> ControlFlow<()>) {
        let range = begun.first..begun.last + 1;
        // What cannot be read is not there.
        let _ = past::records(&self.file, &self.key, range, |_, body| match body {
            Body::Chunk(number, chunk) if number == begun.number => each(chunk),
            _ => ControlFlow::Continue(()),
        });
    }

    /// Former sessions have begun or finished the file with this path.
    pub fn knows(&self, path: &Hash) -> bool {
        let past = self.past();
        past.begun.contains_key(path) || past.finished.contains_key(path)
    }

    /// Files were finished by former sessions.
    pub fn has_finished(&self) -> bool {
        !self.past().finished.is_empty()
    }

    /// Bytes that are recorded of unfinished files.
    pub fn begun_bytes(&self) -> u64 {
        let past = self.past();
        let unfinished = past.begun.values();
        let unfinished = unfinished.filter(|begun| !past.finished.contains_key(&begun.file.path));
        unfinished.fold(0, |sum: u64, begun| sum.saturating_add(begun.bytes))
    }

    /// There is something that a further session can go on with.
    pub fn is_useful(&self) -> bool {
        self.is_useful.load(Relaxed)
    }

    pub fn dir(&self) -> &Arc<Dir> {
        &self.place.dir
    }

    pub fn name(&self) -> &OsStr {
        &self.place.name
    }

    /// The copy has come to its end. What stands under the name and is not this journal stays.
    ///
    /// # Errors
    /// `Kind::Write` where it stays: the next copy to this place finds it to be of no use.
    pub fn remove(&self) -> Result<()> {
        let Place { dir, name } = &self.place;
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

    /// Lets another session have it, although threads of this one may be stuck with it.
    pub fn release(&self) {
        self.broken.store(true, Relaxed);
        // A file system without locks has none to give back.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().expect("no panic while held")
    }
}

impl Drop for Journal {
    /// A child of this process that has not yet started its program has the file too: closing it
    /// here would not end the lock.
    fn drop(&mut self) {
        self.release();
    }
}

/// This process as a writer of `file`, and the file's device and inode.
fn session(file: &File, opening: &Opening) -> Option<(Session, (u64, u64))> {
    let stat = fstat(file).ok()?;
    let session = Session {
        boot_id: process::boot_id(),
        id: opening.session,
        dev: stat.st_dev,
        mount: process::mount(file),
        pid: process::own_pid(),
        uid: rustix::process::geteuid().as_raw(),
        started: process::started(process::own_pid()),
        roots: opening.roots,
        chunk_size: opening.chunk_size,
    };
    Some((session, (stat.st_dev, stat.st_ino)))
}

/// Random, but where there is no chance to be had: two journals with one key are no danger, their
/// records are only less certain to be told apart.
fn random() -> [u8; 16] {
    let mut random = [0; 16];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
    random
}
