//! The state of the cache: its chunks, the hosts that still want each, and which chunk is removed
//! when there is no room. Callers pass in the time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chunk::{CacheKey, CachedChunk};
use super::hosts::Hosts;
use crate::chunk::ranges::RangeSet;

/// Nobody waits for a host that has taken nothing for this long, and its chunks are removed if
/// others need the room. To keep up, a host must take half a megabyte a second.
const LIVELY: Duration = Duration::from_secs(3);

/// Limit on the time that a host waits for others: `HELD_FIRST`, plus its time divided by
/// `HELD_PART`. Hosts of about the same speed stay together, and the fastest loses a fifth at
/// most.
const HELD_FIRST: Duration = Duration::from_secs(2);
const HELD_PART: u32 = 5;

/// A host that is this many files ahead will not return to a file. Files are begun in about the
/// order in which they are met.
const FILES_BEHIND_MAX: u64 = 64;

/// The most files remembered, at some hundreds of bytes each. If a file is forgotten, so is which
/// hosts have had it.
const FILES_MAX: usize = 1 << 13;

/// How many chunks at either end of the order are considered for removal.
const LOOKED_AT: usize = 32;

pub(super) struct CacheState {
    hosts: Vec<CacheHost>,
    files: HashMap<CacheKey, CachedFile>,
    /// Keys of files, by the order in which they were first met.
    order: BTreeMap<u64, CacheKey>,
    next: u64,
    /// Finished chunks by file number and offset, which is about the order in which hosts come to
    /// them.
    made: BTreeSet<(u64, u64)>,
    /// Bytes of the chunks here, finished or being made, and the limit.
    filled: usize,
    room: usize,
}

#[derive(Clone)]
struct CacheHost {
    is_active: bool,
    /// It can use packs that others make.
    packs: bool,
    began: Instant,
    /// When it last took a chunk.
    took: Instant,
    /// The last file number and offset that it has reached.
    at: (u64, u64),
    /// How long it has waited for others, without the present wait.
    held: Duration,
    /// How many of its workers wait, and since when.
    waiting: u32,
    since: Instant,
}

struct CachedFile {
    number: u64,
    /// Hosts that take no more of it.
    done: Hosts,
    /// The bytes that each host has asked for, or already has.
    asked: Vec<RangeSet>,
    slots: BTreeMap<u64, CacheSlot>,
}

struct CacheSlot {
    len: u32,
    /// Hosts that still want it.
    pending: Hosts,
    /// None while it is being made.
    made: Option<Arc<CachedChunk>>,
}

pub(super) enum CacheLookup {
    Taken(Arc<CachedChunk>),
    Make,
    Alone,
    BeingMade,
    Full,
}

/// The assumed size in bytes of an unknown file in between: most files are small.
const FILE_GUESS: u64 = 1 << 20;

impl CacheState {
    pub(super) fn new(hosts: usize, room: usize) -> CacheState {
        let now = Instant::now();
        let host = CacheHost {
            is_active: false,
            packs: true,
            began: now,
            took: now,
            at: (0, 0),
            held: Duration::ZERO,
            waiting: 0,
            since: now,
        };
        CacheState {
            hosts: vec![host; hosts],
            files: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
            made: BTreeSet::new(),
            filled: 0,
            room,
        }
    }

    pub(super) fn join(&mut self, host: usize, now: Instant) {
        self.leave(host);
        for file in self.files.values_mut() {
            file.done.remove(host);
            file.asked[host] = RangeSet::new();
        }
        let waiting = self.hosts[host].waiting;
        self.hosts[host] = CacheHost {
            is_active: true,
            packs: true,
            began: now,
            took: now,
            at: (0, 0),
            held: Duration::ZERO,
            waiting,
            since: now,
        };
    }

    pub(super) fn leave(&mut self, host: usize) {
        self.hosts[host].is_active = false;
        let keys: Vec<CacheKey> = self.files.keys().copied().collect();
        for key in keys {
            self.release(host, key);
        }
    }

    pub(super) fn packs_differ(&mut self, host: usize) {
        self.hosts[host].packs = false;
        let packs: Vec<CacheKey> = self
            .files
            .keys()
            .filter(|key| key.is_pack())
            .copied()
            .collect();
        for key in packs {
            self.release(host, key);
        }
    }

    /// Records that a host sends a file, except the ranges in `had`.
    pub(super) fn begin(&mut self, host: usize, key: CacheKey, had: &RangeSet) {
        let file = self.file(key);
        file.done.remove(host);
        file.asked[host] = had.clone();
    }

    /// Records that a host wants no more of a file. This is kept, since another host may come to
    /// the file much later.
    pub(super) fn end(&mut self, host: usize, key: CacheKey) {
        let file = self.file(key);
        file.done.add(host);
        file.asked[host] = RangeSet::new();
        self.release(host, key);
    }

    /// Removes a host from the chunks of a file that are kept for it.
    fn release(&mut self, host: usize, key: CacheKey) {
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        let (filled, lying, number) = (&mut self.filled, &mut self.made, file.number);
        file.slots.retain(|&offset, slot| {
            slot.pending.remove(host);
            // A chunk that is being made is removed when it is put here.
            let stays = !slot.pending.is_empty() || slot.made.is_none();
            if !stays {
                *filled -= slot.size();
                lying.remove(&(number, offset));
            }
            stays
        });
    }

    fn active(&self) -> Hosts {
        let mut active = Hosts::default();
        let all = self.hosts.iter().enumerate();
        all.filter(|(_, host)| host.is_active)
            .for_each(|(number, _)| active.add(number));
        active
    }

    fn file(&mut self, key: CacheKey) -> &mut CachedFile {
        if !self.files.contains_key(&key) {
            if self.files.len() >= FILES_MAX
                && let Some((oldest_number, oldest)) = self.order.pop_first()
                && let Some(file) = self.files.remove(&oldest)
            {
                self.filled -= file.slots.values().map(CacheSlot::size).sum::<usize>();
                for &offset in file.slots.keys() {
                    self.made.remove(&(oldest_number, offset));
                }
            }
            // Files are numbered from 1, since a host that has not begun is at 0.
            self.next += 1;
            self.order.insert(self.next, key);
            let file = CachedFile {
                number: self.next,
                done: Hosts::default(),
                asked: vec![RangeSet::new(); self.hosts.len()],
                slots: BTreeMap::new(),
            };
            self.files.insert(key, file);
        }
        self.files.get_mut(&key).expect("it is there or was made")
    }

    /// Records that a host has come to a chunk.
    pub(super) fn ask(&mut self, host: usize, key: CacheKey, offset: u64, len: u32) {
        let file = self.file(key);
        file.asked[host].insert(offset..offset.saturating_add(len.into()));
        let at = (file.number, offset);
        let host = &mut self.hosts[host];
        host.at = host.at.max(at);
    }

    /// How a host gets this chunk now.
    pub(super) fn look(
        &mut self,
        host: usize,
        key: CacheKey,
        (offset, len): (u64, u32),
        may_make: bool,
        now: Instant,
    ) -> CacheLookup {
        if !self.hosts[host].is_active {
            return CacheLookup::Alone;
        }
        if let Some(slot) = self.file(key).slots.get_mut(&offset) {
            let made = match &slot.made {
                _ if slot.len != len => return CacheLookup::Alone,
                None => return CacheLookup::BeingMade,
                Some(made) => made.clone(),
            };
            slot.pending.remove(host);
            if slot.pending.is_empty() {
                self.remove(key, offset);
            }
            self.hosts[host].took = now;
            return CacheLookup::Taken(made);
        }
        let pending = self.pending(host, key, offset);
        if !may_make || pending.is_empty() {
            return CacheLookup::Alone;
        }
        let number = self.file(key).number;
        let distance = self.distance(number, offset, pending);
        while self.filled + len as usize > self.room {
            if let Some((key, offset)) = self.least_wanted(distance, now) {
                self.remove(key, offset);
                continue;
            }
            let is_near = distance <= 2 * self.room as u64;
            let is_awaited = self.is_awaited(number, pending, now);
            return match is_near && is_awaited && self.bears(host, now) {
                true => CacheLookup::Full,
                false => CacheLookup::Alone,
            };
        }
        self.filled += len as usize;
        let slot = CacheSlot {
            len,
            pending,
            made: None,
        };
        self.file(key).slots.insert(offset, slot);
        CacheLookup::Make
    }

    /// Other hosts that want this chunk and have not come to it.
    fn pending(&mut self, host: usize, key: CacheKey, offset: u64) -> Hosts {
        let mut pending = self.active();
        pending.remove(host);
        let file = &self.files[&key];
        for other in pending.iter() {
            let is_past = self.is_past(other, file.number);
            let is_other = key.is_pack() && !self.hosts[other].packs;
            if is_past || is_other || file.done.has(other) || file.asked[other].contains(offset) {
                pending.remove(other);
            }
        }
        pending
    }

    fn is_past(&self, host: usize, number: u64) -> bool {
        self.hosts[host].at.0 > number + FILES_BEHIND_MAX
    }

    /// The approximate number of bytes that the nearest of `hosts` has to go to a chunk.
    fn distance(&self, number: u64, offset: u64, hosts: Hosts) -> u64 {
        let to = |host: usize| match self.hosts[host].at {
            (at, _) if at > number => 0,
            (at, done) if at == number => offset.saturating_sub(done),
            (at, _) => offset.saturating_add((number - at) * FILE_GUESS),
        };
        hosts.iter().map(to).min().unwrap_or(u64::MAX)
    }

    /// True if one of `hosts` may soon come for a chunk of this file.
    fn is_awaited(&self, number: u64, hosts: Hosts, now: Instant) -> bool {
        hosts.iter().any(|number_of| {
            let host = &self.hosts[number_of];
            let silent = now.saturating_duration_since(host.took);
            silent < LIVELY && !self.is_past(number_of, number)
        })
    }

    /// The chunk to remove to make room for one at `distance`: a chunk that nobody comes for, or
    /// else the one furthest ahead, if it is further than `distance`. Hosts come to chunks in
    /// about the order of files. So hosts have passed the first chunks, and the last ones are the
    /// furthest ahead. Chunks in between are not considered, because this runs for each chunk
    /// while all hosts wait.
    fn least_wanted(&self, distance: u64, now: Instant) -> Option<(CacheKey, u64)> {
        let mut furthest = None;
        let mut most = distance;
        let first = self.made.iter().take(LOOKED_AT);
        let last = self.made.iter().rev().take(LOOKED_AT);
        for &(number, offset) in first.chain(last) {
            let Some(&key) = self.order.get(&number) else {
                continue;
            };
            let slot = self
                .files
                .get(&key)
                .and_then(|file| file.slots.get(&offset));
            let Some(slot) = slot else { continue };
            if !self.is_awaited(number, slot.pending, now) {
                return Some((key, offset));
            }
            let its = self.distance(number, offset, slot.pending);
            if its > most {
                (furthest, most) = (Some((key, offset)), its);
            }
        }
        furthest
    }

    /// True while a host may still wait for others.
    fn bears(&self, host: usize, now: Instant) -> bool {
        let host = &self.hosts[host];
        let going_on = match host.waiting {
            0 => Duration::ZERO,
            _ => now.saturating_duration_since(host.since),
        };
        let bound = HELD_FIRST + now.saturating_duration_since(host.began) / HELD_PART;
        host.held + going_on < bound
    }

    pub(super) fn wait_begins(&mut self, host: usize, now: Instant) {
        let host = &mut self.hosts[host];
        if host.waiting == 0 {
            host.since = now;
        }
        host.waiting += 1;
    }

    pub(super) fn wait_ends(&mut self, host: usize, now: Instant) {
        let host = &mut self.hosts[host];
        host.waiting -= 1;
        if host.waiting == 0 {
            host.held += now.saturating_duration_since(host.since);
        }
    }

    /// Stores a finished chunk.
    pub(super) fn put(&mut self, key: CacheKey, offset: u64, made: CachedChunk) {
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        let Some(slot) = file.slots.get_mut(&offset) else {
            return;
        };
        self.filled -= slot.size();
        slot.made = Some(Arc::new(made));
        self.filled += slot.size();
        let is_wanted = !slot.pending.is_empty();
        self.made.insert((file.number, offset));
        if !is_wanted {
            self.remove(key, offset);
        }
    }

    /// Records that a chunk will not be made after all.
    pub(super) fn cancel(&mut self, key: CacheKey, offset: u64) {
        let slot = self
            .files
            .get(&key)
            .and_then(|file| file.slots.get(&offset));
        if slot.is_some_and(|slot| slot.made.is_none()) {
            self.remove(key, offset);
        }
    }

    fn remove(&mut self, key: CacheKey, offset: u64) {
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        self.made.remove(&(file.number, offset));
        if let Some(slot) = file.slots.remove(&offset) {
            self.filled -= slot.size();
        }
    }
}

impl CacheSlot {
    /// Bytes. A chunk that is being made counts with its uncompressed length.
    fn size(&self) -> usize {
        let made = self.made.as_ref();
        let made = made.map(|made| made.bytes.len() + size_of_val(&made.members[..]));
        made.unwrap_or(self.len as usize)
    }
}

#[cfg(test)]
impl CacheState {
    pub(super) fn filled(&self) -> usize {
        self.filled
    }
}
