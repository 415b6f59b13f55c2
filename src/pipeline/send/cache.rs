//! The chunk cache for a copy of one source to several hosts. It holds chunks that one sender has
//! read, digested and compressed, so that the others can send them too.
//!
//! The first sender that comes to a chunk makes it. The chunk stays here until every other host
//! has taken it, or is known not to want it. If there is no room for a chunk, each sender that
//! comes to it later reads it again. That costs more and gives the same bytes: the shelf saves
//! work and decides nothing about content.
//!
//! A host that lags holds the others back while the shelf is full. They wait only while it takes
//! a chunk from time to time, and only for a limited part of the copy's time. A host that has
//! stopped, or is gone, holds nobody back.

mod hosts;
mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::chunk::pack::TableForm;
use crate::chunk::ranges::RangeSet;
use crate::chunk::{ChunkKind, EncodedChunk};
use crate::digest::Digest;
use crate::manifest::{Entry, Timestamp};
use state::{CacheState, Lookup};

/// The most hosts of one shelf. A set of them is the bits of a word.
pub const HOSTS_MAX: usize = 64;

/// How long a worker waits for a chunk that another sender is making, which needs only the disk
/// and a processor. After that it reads the disk itself, which may be no faster.
const MAKING_MAX: Duration = Duration::from_secs(5);

/// How often a worker that waits for room checks whether it has waited long enough.
const STEP: Duration = Duration::from_millis(100);

/// The device number in the key of a pack; no file has it.
const PACKS: u64 = u64::MAX - 1;

/// Identifies bytes: a file in its state when it was opened. A changed file has another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey {
    dev: u64,
    ino: u64,
    rdev: u64,
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
}

impl CacheKey {
    /// The one stream of a copy. No file has this key.
    pub const STREAM: CacheKey = CacheKey {
        dev: u64::MAX,
        ino: u64::MAX,
        rdev: 0,
        size: u64::MAX,
        mtime: (0, 0),
        ctime: (0, 0),
    };

    /// The key of a pack. It includes entry numbers, so equal keys mean equal packs in every
    /// session.
    pub fn of_pack<'a>(entries: impl Iterator<Item = &'a Entry>, form: TableForm) -> CacheKey {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[u8::from(form == TableForm::Columns)]);
        for entry in entries {
            let (key, name) = (CacheKey::of(entry), entry.name.as_bytes());
            for number in [entry.id, entry.parent, key.dev, key.ino, key.size] {
                hasher.update(&number.to_le_bytes());
            }
            for (s, ns) in [key.mtime, key.ctime] {
                hasher.update(&s.to_le_bytes());
                hasher.update(&ns.to_le_bytes());
            }
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name);
        }
        let hash = hasher.finalize();
        let part = |nth: usize| {
            let bytes = &hash.as_bytes()[8 * nth..][..8];
            u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
        };
        CacheKey {
            dev: PACKS,
            ino: part(0),
            rdev: part(1),
            size: 0,
            mtime: (0, 0),
            ctime: (0, 0),
        }
    }

    fn is_pack(&self) -> bool {
        self.dev == PACKS
    }

    pub fn of(entry: &Entry) -> CacheKey {
        let time = |time: Timestamp| (time.s, time.ns);
        CacheKey {
            dev: entry.dev,
            ino: entry.ino,
            rdev: entry.rdev,
            size: entry.size,
            mtime: time(entry.mtime),
            ctime: time(entry.ctime),
        }
    }
}

/// A chunk as it is sent, without its place and its seal, which each session adds.
#[derive(Debug)]
pub struct CachedChunk {
    pub digest: Digest,
    /// The codec's number on the wire.
    pub codec: u8,
    /// Bytes after decoding.
    pub raw_len: u32,
    /// All zeros, so no bytes are sent.
    pub is_zeros: bool,
    /// Digest and size of each file in a pack, in order.
    pub members: Vec<(Digest, u64)>,
    pub bytes: Box<[u8]>,
}

impl CachedChunk {
    pub fn of(encoded: &EncodedChunk) -> CachedChunk {
        CachedChunk {
            digest: encoded.digest,
            codec: encoded.codec,
            raw_len: encoded.place.raw_len,
            is_zeros: encoded.place.kind == ChunkKind::Zeros,
            members: Vec::new(),
            bytes: encoded.buffer.data().into(),
        }
    }
}

pub struct ChunkCache {
    state: Mutex<CacheState>,
    changed: Condvar,
}

/// The shelf as one host sees it in one session.
#[derive(Clone)]
pub struct CacheShare {
    shelf: Arc<ChunkCache>,
    host: usize,
}

/// How a worker gets a chunk.
pub enum Got {
    /// Another sender made it.
    Taken(Arc<CachedChunk>),
    /// Make it, and offer it to the others.
    Make(CacheTicket),
    /// Make it for this host alone.
    Alone,
}

/// The right to make a chunk that others may wait for. Dropping it without a chunk tells them that
/// there will be none.
pub struct CacheTicket {
    shelf: Arc<ChunkCache>,
    key: CacheKey,
    offset: u64,
    is_put: bool,
}

/// A file that a host is sending. Dropping it says that the host takes no more of the file.
pub struct Interest {
    share: CacheShare,
    key: CacheKey,
}

impl ChunkCache {
    /// For `hosts` hosts, none of which has joined, with `room` bytes.
    pub fn new(hosts: usize, room: usize) -> ChunkCache {
        ChunkCache {
            state: Mutex::new(CacheState::new(hosts.min(HOSTS_MAX), room)),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().expect("no panic while held")
    }

    fn change<T>(&self, change: impl FnOnce(&mut CacheState) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }
}

impl CacheShare {
    pub fn new(shelf: Arc<ChunkCache>, host: usize) -> CacheShare {
        CacheShare { shelf, host }
    }

    /// Begins a session of this host. The host wants everything until it says otherwise.
    pub fn join(&self) {
        self.shelf
            .change(|state| state.join(self.host, Instant::now()));
    }

    /// Says that this host asks about small files one by one, since it may have some. So its packs
    /// differ from those of other hosts.
    pub fn packs_differ(&self) {
        self.shelf.change(|state| state.packs_differ(self.host));
    }

    /// Ends the session: nobody waits for this host, and nothing is kept for it.
    pub fn leave(&self) {
        self.shelf.change(|state| state.leave(self.host));
    }

    /// Says that this host is sending a file, except the ranges in `had`.
    pub fn interest(&self, key: CacheKey, had: &RangeSet) -> Interest {
        self.shelf.change(|state| state.begin(self.host, key, had));
        let share = self.clone();
        Interest { share, key }
    }

    /// Says that this host wants nothing of a file.
    pub fn skip(&self, key: CacheKey) {
        self.shelf.change(|state| state.end(self.host, key));
    }

    /// Gets a chunk of `len` bytes at `offset`, which this host is to send now. Waits for a
    /// limited time while another sender makes it, or while there is no room for it. `may_make` is
    /// false if this host needs less than a chunk that others could send.
    pub fn chunk(&self, key: CacheKey, offset: u64, len: u32, may_make: bool) -> Got {
        let CacheShare { shelf, host } = self;
        let began = Instant::now();
        let mut state = shelf.lock();
        state.ask(*host, key, offset, len);
        loop {
            let now = Instant::now();
            let mut is_full = false;
            let wait = match state.look(*host, key, (offset, len), may_make, now) {
                Lookup::Taken(made) => {
                    drop(state);
                    shelf.changed.notify_all();
                    return Got::Taken(made);
                }
                Lookup::Make => {
                    let shelf = shelf.clone();
                    let is_put = false;
                    return Got::Make(CacheTicket {
                        shelf,
                        key,
                        offset,
                        is_put,
                    });
                }
                Lookup::Alone => return Got::Alone,
                Lookup::BeingMade => match MAKING_MAX.checked_sub(now - began) {
                    Some(left) => left,
                    None => return Got::Alone,
                },
                Lookup::Full => {
                    is_full = true;
                    STEP
                }
            };
            if is_full {
                state.wait_begins(*host, now);
            }
            let waited = shelf.changed.wait_timeout(state, wait);
            state = waited.expect("no panic while held").0;
            if is_full {
                state.wait_ends(*host, Instant::now());
            }
        }
    }
}

impl CacheTicket {
    pub fn put(mut self, made: CachedChunk) {
        self.is_put = true;
        let (key, offset) = (self.key, self.offset);
        self.shelf.change(|state| state.put(key, offset, made));
    }
}

impl Drop for CacheTicket {
    fn drop(&mut self) {
        if !self.is_put {
            let (key, offset) = (self.key, self.offset);
            self.shelf.change(|state| state.cancel(key, offset));
        }
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.share.skip(self.key);
    }
}

#[cfg(test)]
mod tests;
