//! The places of an existing file's content-defined blocks, by which content that has moved within
//! the file is found.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::basis::Basis;
use crate::chunk::anchors::{BLOCK_AVERAGE, Fingerprint, blocks, fingerprint};

/// Bytes that are read at a time.
const STEP: usize = 1 << 20;

/// About the most blocks of one file: those of 2 GiB. Of a larger file, one block in two, four and so
/// on is indexed. The others are found beside them.
const FILE_BLOCKS: u64 = 1 << 18;

/// Most blocks of all files together, some 20 MiB. Content of further files is not found.
const ALL_BLOCKS: usize = 1 << 19;

/// Blocks whose memory is reserved at a time.
const RESERVED: usize = 1 << 10;

/// The memory that all indexes of a receiver share.
#[derive(Clone)]
pub struct IndexRoom {
    /// Blocks.
    left: Arc<AtomicUsize>,
}

/// The blocks of some parts of an existing file.
pub struct BlockIndex {
    /// Offsets in the file.
    places: HashMap<Fingerprint, u64>,
    /// Bytes from the start of the file that are indexed or left out, up to the start of a block.
    end: u64,
    /// Bytes that were read.
    read: u64,
    /// Nothing more can be indexed.
    is_done: bool,
    /// One of so many fingerprints is kept; a power of two.
    every: u64,
    room: IndexRoom,
    /// Blocks.
    reserved: usize,
}

impl Default for IndexRoom {
    fn default() -> IndexRoom {
        IndexRoom {
            left: Arc::new(ALL_BLOCKS.into()),
        }
    }
}

impl BlockIndex {
    /// An index of a file of `len` bytes, of which nothing is indexed yet.
    pub fn new(len: u64, room: &IndexRoom) -> BlockIndex {
        let every = len / (FILE_BLOCKS * BLOCK_AVERAGE as u64);
        BlockIndex {
            places: HashMap::new(),
            end: 0,
            read: 0,
            is_done: false,
            every: (every + 1).next_power_of_two(),
            room: room.clone(),
            reserved: 0,
        }
    }

    /// Where the existing file has, or had, a block with this fingerprint.
    pub fn place(&self, fingerprint: Fingerprint) -> Option<u64> {
        self.places.get(&fingerprint).copied()
    }

    /// An index that has read as many bytes, and has no blocks.
    #[cfg(test)]
    pub fn at(read: u64, len: u64) -> BlockIndex {
        let mut index = BlockIndex::new(len, &IndexRoom::default());
        index.read = read;
        index
    }

    /// Bytes from the start of the file that are indexed or left out.
    #[cfg(test)]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of the existing file that were read, some of them twice.
    pub fn read_bytes(&self) -> u64 {
        self.read
    }

    /// Indexes some more of `old`, in `window`, and nothing before it any more. False if all of the
    /// window is indexed, or nothing more can be.
    pub fn extend(&mut self, old: &Basis, window: &Range<u64>) -> bool {
        self.end = self.end.max(window.start);
        if self.is_done || self.end >= window.end {
            return false;
        }
        let mut data = vec![0; STEP];
        // Unreadable data is not found.
        let there = old.read(&mut data, self.end).unwrap_or(0);
        self.read += there as u64;
        let data = &data[..there];
        let is_last = there < STEP || self.end + there as u64 == old.len();
        self.is_done = is_last;
        for block in blocks(data) {
            // More bytes may belong to it.
            if block.end == there && !is_last {
                self.end += block.start as u64;
                return true;
            }
            self.add(
                fingerprint(&data[block.clone()]),
                self.end + block.start as u64,
            );
        }
        self.end += there as u64;
        true
    }

    fn add(&mut self, fingerprint: Fingerprint, place: u64) {
        if !fingerprint.is_multiple_of(self.every) {
            return;
        }
        if self.places.len() == self.reserved {
            if !self.room.take() {
                self.is_done = true;
                return;
            }
            self.reserved += RESERVED;
        }
        // Of the same blocks, the first one.
        self.places.entry(fingerprint).or_insert(place);
    }
}

impl Drop for BlockIndex {
    fn drop(&mut self) {
        self.room.left.fetch_add(self.reserved, Relaxed);
    }
}

impl IndexRoom {
    fn take(&self) -> bool {
        let less = |left: usize| left.checked_sub(RESERVED);
        self.left.fetch_update(Relaxed, Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    fn basis(content: &[u8]) -> Basis {
        let mut file = tempfile::tempfile().expect("make it");
        file.write_all(content).expect("write");
        let file: File = file;
        Basis::other(file, content.len() as u64, false)
    }

    #[test]
    fn it_has_the_blocks_of_the_whole_file_in_steps() {
        let mut noise = fastrand::Rng::with_seed(1);
        let content: Vec<u8> = std::iter::repeat_with(|| noise.u8(..))
            .take(2 * STEP + 12_345)
            .collect();
        let (old, room) = (basis(&content), IndexRoom::default());
        let mut index = BlockIndex::new(old.len(), &room);
        assert!(index.extend(&old, &(0..1)));
        assert!(!index.extend(&old, &(0..1)), "no further than asked");
        while index.extend(&old, &(0..u64::MAX)) {}
        for block in blocks(&content) {
            let place = index.place(fingerprint(&content[block.clone()]));
            assert_eq!(place, Some(block.start as u64));
        }
        drop(index);
        assert_eq!(room.left.load(Relaxed), ALL_BLOCKS);
    }

    #[test]
    fn its_memory_is_bounded() {
        let index = BlockIndex::new(1 << 40, &IndexRoom::default());
        let kept = (1 << 40) / BLOCK_AVERAGE as u64 / index.every;
        assert!(kept <= FILE_BLOCKS, "{kept}");
        let room = IndexRoom::default();
        room.left.store(RESERVED, Relaxed);
        let mut index = BlockIndex::new(1 << 20, &room);
        (0..5000).for_each(|n| index.add(n, n));
        assert_eq!(index.places.len(), RESERVED);
    }
}
