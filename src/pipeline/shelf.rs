//! What copies of one source to several hosts share: chunks that one of them has read, digested and
//! compressed, for the others to send too.
//!
//! Whoever comes to a chunk first makes it, and it lies here until everyone who is to have it has
//! taken it, or is known not to want it. What the shelf has no room for is read again by whoever
//! comes later, which is dearer and as right: nothing here decides about a byte, only about work.
//!
//! A host that lags behind holds the others back while the shelf is full, for as long as it takes
//! something from time to time and in all for no more than a part of the copy's time. One that
//! stands still, or is gone, holds nobody.

mod hosts;
mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::chunk::pack::TableForm;
use crate::chunk::ranges::RangeSet;
use crate::chunk::{ChunkKind, EncodedChunk};
use crate::digest::Digest;
use crate::manifest::{Entry, Timestamp};
use state::{Look, State};

/// Hosts that may share one shelf: sets of them are the bits of a word.
pub const HOSTS_MAX: usize = 64;

/// How long a worker waits for a chunk that another is making, who waits for nothing but the disk
/// and a processor: beyond it the disk is read a second time, which may do no better.
const MAKING_MAX: Duration = Duration::from_secs(5);

/// How often a worker that waits for room looks whether it has waited long enough.
const STEP: Duration = Duration::from_millis(100);

/// In the place of the device, which no file is on.
const PACKS: u64 = u64::MAX - 1;

/// Which bytes: a file as it was when it was opened. One that has changed is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    dev: u64,
    ino: u64,
    rdev: u64,
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
}

impl Key {
    /// The one stream of a copy, which no file can be taken for.
    pub const STREAM: Key = Key {
        dev: u64::MAX,
        ino: u64::MAX,
        rdev: 0,
        size: u64::MAX,
        mtime: (0, 0),
        ctime: (0, 0),
    };

    /// Of small files that travel together: with the same numbers, so that they are the same to
    /// every session.
    pub fn of_pack<'a>(entries: impl Iterator<Item = &'a Entry>, form: TableForm) -> Key {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[u8::from(form == TableForm::Columns)]);
        for entry in entries {
            let (key, name) = (Key::of(entry), entry.name.as_bytes());
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
        Key {
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

    pub fn of(entry: &Entry) -> Key {
        let time = |time: Timestamp| (time.s, time.ns);
        Key {
            dev: entry.dev,
            ino: entry.ino,
            rdev: entry.rdev,
            size: entry.size,
            mtime: time(entry.mtime),
            ctime: time(entry.ctime),
        }
    }
}

/// A chunk as it travels but for its place and its seal, which are each session's own.
#[derive(Debug)]
pub struct Made {
    pub digest: Digest,
    /// The codec's number on the wire.
    pub codec: u8,
    /// Bytes that it stands for.
    pub raw_len: u32,
    /// Nothing but zeros: no bytes travel.
    pub is_zeros: bool,
    /// Digest and size of a pack's files, in their order.
    pub members: Vec<(Digest, u64)>,
    pub bytes: Box<[u8]>,
}

impl Made {
    pub fn of(encoded: &EncodedChunk) -> Made {
        Made {
            digest: encoded.digest,
            codec: encoded.codec,
            raw_len: encoded.place.raw_len,
            is_zeros: encoded.place.kind == ChunkKind::Zeros,
            members: Vec::new(),
            bytes: encoded.buffer.data().into(),
        }
    }
}

pub struct Shelf {
    state: Mutex<State>,
    changed: Condvar,
}

/// One host's end of the shelf, in one session.
#[derive(Clone)]
pub struct Share {
    shelf: Arc<Shelf>,
    host: usize,
}

/// What a worker does about a chunk.
pub enum Got {
    /// Another has made it.
    Taken(Arc<Made>),
    /// Make it, for the others too.
    Make(Ticket),
    /// Make it, for this host alone.
    Alone,
}

/// Who holds it makes a chunk that others may wait for. Dropped, it tells them that there is none.
pub struct Ticket {
    shelf: Arc<Shelf>,
    key: Key,
    offset: u64,
    is_put: bool,
}

/// A file that a host is sending. Dropped, it tells that the host takes no more of it.
pub struct Interest {
    share: Share,
    key: Key,
}

impl Shelf {
    /// For so many hosts, of which none has begun; with room for so many bytes.
    pub fn new(hosts: usize, room: usize) -> Shelf {
        Shelf {
            state: Mutex::new(State::new(hosts.min(HOSTS_MAX), room)),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }
}

impl Share {
    pub fn new(shelf: Arc<Shelf>, host: usize) -> Share {
        Share { shelf, host }
    }

    /// A session of this host begins: until it says otherwise it is to have all that there is.
    pub fn join(&self) {
        self.shelf
            .change(|state| state.join(self.host, Instant::now()));
    }

    /// This host asks for small files one by one, since it may have some: its packs are others.
    pub fn packs_differ(&self) {
        self.shelf.change(|state| state.packs_differ(self.host));
    }

    /// The session is over: nobody waits for this host any more, and nothing here for it.
    pub fn leave(&self) {
        self.shelf.change(|state| state.leave(self.host));
    }

    /// This host is sending a file, but for what it has of it.
    pub fn interest(&self, key: Key, had: &RangeSet) -> Interest {
        self.shelf.change(|state| state.begin(self.host, key, had));
        let share = self.clone();
        Interest { share, key }
    }

    /// This host wants nothing of a file.
    pub fn skip(&self, key: Key) {
        self.shelf.change(|state| state.end(self.host, key));
    }

    /// Gets a chunk of `len` bytes at `offset`, which this host is to send now. Waits while another
    /// makes it, and while there is no room for it: both for a bounded time. `may_make` is false of
    /// a host that needs less than a chunk which others could send.
    pub fn chunk(&self, key: Key, offset: u64, len: u32, may_make: bool) -> Got {
        let Share { shelf, host } = self;
        let began = Instant::now();
        let mut state = shelf.lock();
        state.ask(*host, key, offset, len);
        loop {
            let now = Instant::now();
            let mut is_full = false;
            let wait = match state.look(*host, key, (offset, len), may_make, now) {
                Look::Taken(made) => {
                    drop(state);
                    shelf.changed.notify_all();
                    return Got::Taken(made);
                }
                Look::Make => {
                    let shelf = shelf.clone();
                    let is_put = false;
                    return Got::Make(Ticket {
                        shelf,
                        key,
                        offset,
                        is_put,
                    });
                }
                Look::Alone => return Got::Alone,
                Look::BeingMade => match MAKING_MAX.checked_sub(now - began) {
                    Some(left) => left,
                    None => return Got::Alone,
                },
                Look::Full => {
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

impl Ticket {
    pub fn put(mut self, made: Made) {
        self.is_put = true;
        let (key, offset) = (self.key, self.offset);
        self.shelf.change(|state| state.put(key, offset, made));
    }
}

impl Drop for Ticket {
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
