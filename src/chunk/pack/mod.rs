//! A pack: many small files in one chunk, with their metadata, so that a file costs no round trip
//! and no frame of its own. Both halves are here.
//!
//! In the buffer stand the contents, one after another; the table, postcard of the `Member`s in
//! the same order; and the table's length, u32 little-endian. The digest of the chunk is the
//! table's BLAKE3, and the table holds the BLAKE3 of each content, so that one proves all.
//!
//! A receiver whose hello says so takes a table by [`columns`] too: the length then has its highest
//! bit set, and the digest of the chunk is the BLAKE3 of the table and of the contents' digests.

mod columns;
mod read;
mod write;

use serde::{Deserialize, Serialize};

use super::pool::TAILROOM;
use super::{CHUNK_SIZE, LARGE_PACK, SMALL_FILE_MAX};
use crate::digest::Digest;
use crate::manifest::Entry;
pub use read::{NotAPack, Pack};
pub use write::PackWriter;

/// Files in a pack that is not a large one: what one bad pack costs.
pub const MEMBERS_MAX: usize = 1024;

/// Bytes of a table. Full of the longest names it stays below.
const TABLE_MAX: usize = 512 << 10;

/// Files and bytes of a table in what a peer may make us decode at once: a large pack.
const MEMBERS_TAKEN: usize = LARGE_PACK * MEMBERS_MAX;
const TABLE_TAKEN: usize = LARGE_PACK * TABLE_MAX;

/// A record's bytes at most, without its name and what else has no fixed length: a digest, 21
/// numbers of up to 10 bytes, five lengths.
const RECORD_MAX: usize = 256;

/// The number of records, at most 10 bytes, and the table's length.
const FRAME: usize = 10 + LENGTH_LEN;
const LENGTH_LEN: usize = 4;

/// Set in the length of a table by columns.
const BY_COLUMNS: u32 = 1 << 31;

/// Room behind a full pack that is left to the seal's tag and to what a codec adds.
const SPARE: usize = TAILROOM / 2;

/// Most bytes of a pack: planned as a chunk, it may grow until it is sent.
pub const PACK_MAX: usize = CHUNK_SIZE + TAILROOM - SPARE;

#[derive(Serialize, Deserialize)]
struct Member {
    entry: Entry,
    len: u32,
    digest: Digest,
}

/// How a pack's table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableForm {
    /// For every receiver.
    Records,
    /// For one that takes it.
    Columns,
}

/// Which files go into one pack, decided before any is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct PackPlan {
    members: usize,
    contents: u64,
    table: usize,
}

impl PackPlan {
    /// True if a file of `size` bytes with a name of `name_len` bytes still fits.
    pub fn fits(&self, name_len: usize, size: u64) -> bool {
        let table = self.table + RECORD_MAX + name_len + FRAME;
        self.members < MEMBERS_MAX
            && size <= SMALL_FILE_MAX
            && table <= TABLE_MAX
            && self.contents + size + table as u64 <= CHUNK_SIZE as u64
    }

    pub fn add(&mut self, name_len: usize, size: u64) {
        self.members += 1;
        self.contents += size;
        self.table += RECORD_MAX + name_len;
    }

    pub fn is_empty(&self) -> bool {
        self.members == 0
    }

    pub fn members(&self) -> usize {
        self.members
    }

    /// Bytes of content.
    pub fn contents(&self) -> u64 {
        self.contents
    }
}

#[cfg(test)]
mod tests;
