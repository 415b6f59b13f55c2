//! The chunk cache for a copy of one source to several hosts. It holds chunks that one sender has
//! read, digested and compressed, so that the others can send them too.
//!
//! The first sender that comes to a chunk makes it. The chunk stays here until each other host has
//! taken it or turns out not to need it. If the cache has no room for a chunk, each sender that
//! comes to it later reads it again. That costs more and gives the same bytes: the cache saves
//! work and decides nothing about content.
//!
//! A slow host holds the others back while the cache is full. They wait only while it keeps taking
//! chunks, and only for a limited part of the copy's time. A host that has stopped, or is gone,
//! holds nobody back.

mod chunk;
mod hosts;
mod state;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use chunk::{CacheKey, CachedChunk};
pub use hosts::HOSTS_MAX;
use parking_lot::Condvar;
use state::{CacheLookup, CacheState};

use crate::chunk::ranges::RangeSet;
use crate::locks::{OrderedMutex, place};

/// How long a worker waits for a chunk that another sender is making, which needs only the disk
/// and a processor. After that it reads the disk itself, which may be no faster.
const MAKING_MAX: Duration = Duration::from_secs(5);

/// How often a worker that waits for room checks whether it has waited long enough.
const STEP: Duration = Duration::from_millis(100);

pub struct ChunkCache {
    hosts: usize,
    state: OrderedMutex<CacheState, { place::CHUNK_CACHE }>,
    changed: Condvar,
}

/// The cache as one host sees it in one session.
#[derive(Clone)]
pub struct CacheShare {
    cache: Arc<ChunkCache>,
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
    cache: Arc<ChunkCache>,
    key: CacheKey,
    offset: u64,
    is_put: bool,
}

/// A file that is being sent to a host. Dropping it says that the host takes no more of the file.
pub struct Interest {
    share: CacheShare,
    key: CacheKey,
}

impl ChunkCache {
    /// For `hosts` hosts, none of which has joined, with `room` bytes.
    pub fn new(hosts: usize, room: usize) -> ChunkCache {
        ChunkCache {
            hosts,
            state: OrderedMutex::new(CacheState::new(hosts.min(HOSTS_MAX), room)),
            changed: Condvar::new(),
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut CacheState) -> T) -> T {
        let changed = change(&mut self.state.lock());
        self.changed.notify_all();
        changed
    }
}

impl CacheShare {
    pub fn new(cache: Arc<ChunkCache>, host: usize) -> CacheShare {
        CacheShare { cache, host }
    }

    /// The number of hosts of this copy.
    pub fn hosts(&self) -> usize {
        self.cache.hosts
    }

    /// Begins a session of this host. The host wants everything until it says otherwise.
    pub fn join(&self) {
        self.cache
            .change(|state| state.join(self.host, Instant::now()));
    }

    /// Says that this host asks about small files one by one, since it may have some. So its packs
    /// differ from those of other hosts.
    pub fn packs_differ(&self) {
        self.cache.change(|state| state.packs_differ(self.host));
    }

    /// Ends the session: nobody waits for this host, and nothing is kept for it.
    pub fn leave(&self) {
        self.cache.change(|state| state.leave(self.host));
    }

    /// Says that a file is being sent to this host, except the ranges in `had`.
    pub fn interest(&self, key: CacheKey, had: &RangeSet) -> Interest {
        self.cache.change(|state| state.begin(self.host, key, had));
        let share = self.clone();
        Interest { share, key }
    }

    /// Says that this host wants nothing of a file.
    pub fn skip(&self, key: CacheKey) {
        self.cache.change(|state| state.end(self.host, key));
    }

    /// Gets a chunk of `len` bytes at `offset`, which this sender needs now. Waits for a limited
    /// time while another sender makes it, or while the cache has no room. `may_make` is false if
    /// this host needs less than a chunk that others could send.
    pub fn chunk(&self, key: CacheKey, offset: u64, len: u32, may_make: bool) -> Got {
        let CacheShare { cache, host } = self;
        let began = Instant::now();
        let mut state = cache.state.lock();
        state.ask(*host, key, offset, len);
        loop {
            let now = Instant::now();
            let mut is_full = false;
            let wait = match state.look(*host, key, (offset, len), may_make, now) {
                CacheLookup::Taken(made) => {
                    drop(state);
                    cache.changed.notify_all();
                    return Got::Taken(made);
                }
                CacheLookup::Make => {
                    let cache = cache.clone();
                    let is_put = false;
                    return Got::Make(CacheTicket {
                        cache,
                        key,
                        offset,
                        is_put,
                    });
                }
                CacheLookup::Alone => return Got::Alone,
                CacheLookup::BeingMade => match MAKING_MAX.checked_sub(now - began) {
                    Some(left) => left,
                    None => return Got::Alone,
                },
                CacheLookup::Full => {
                    is_full = true;
                    STEP
                }
            };
            if is_full {
                state.wait_begins(*host, now);
            }
            state.wait_for(&cache.changed, wait);
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
        self.cache.change(|state| state.put(key, offset, made));
    }
}

impl Drop for CacheTicket {
    fn drop(&mut self) {
        if !self.is_put {
            let (key, offset) = (self.key, self.offset);
            self.cache.change(|state| state.cancel(key, offset));
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
