//! A pack: many small files with their metadata in one chunk, so that a file needs no separate
//! round trip and no separate frame. Both halves are here.
//!
//! The buffer holds, in this order: the contents; the table (postcard of the `MemberRow`s, in the
//! same order as the contents); the table's length, u32 little-endian. The chunk's digest is the
//! BLAKE3 of the table. The table holds the BLAKE3 of each content, so that the chunk's digest
//! proves everything.
//!
//! If the receiver's hello allows it, the table may be in [`columns`] instead. The length then has
//! its highest bit set, and the chunk's digest is the BLAKE3 of the table and the contents'
//! digests.

mod columns;
mod read;
mod write;

use serde::{Deserialize, Serialize};

use super::pool::TAILROOM;
use super::{CHUNK_SIZE, LARGE_PACK, SMALL_FILE_MAX};
use crate::digest::Digest;
use crate::manifest::Entry;
pub use read::Pack;
pub use write::PackWriter;

/// Files in a pack that is not a large one; this bounds the cost of one bad pack.
pub const MEMBERS_MAX: usize = 1024;

/// Bytes of a table. A table of [`MEMBERS_MAX`] files with the longest names is shorter.
const TABLE_MAX: usize = 512 << 10;

/// The most files and table bytes that a peer may make this end decode at once: a large pack.
const MEMBERS_TAKEN: usize = LARGE_PACK * MEMBERS_MAX;
const TABLE_TAKEN: usize = LARGE_PACK * TABLE_MAX;

/// The most bytes of a record without its name and other fields of variable length: a digest, 21
/// numbers of up to 10 bytes, five lengths.
const RECORD_MAX: usize = 256;

/// The number of records, at most 10 bytes, and the table's length.
const FRAME: usize = 10 + LENGTH_LEN;
const LENGTH_LEN: usize = 4;

/// Flag in the table's length for a table in columns.
const BY_COLUMNS: u32 = 1 << 31;

/// Room after a full pack, reserved for the seal's tag and the growth by a codec.
const SPARE: usize = TAILROOM / 2;

#[derive(Serialize, Deserialize)]
struct MemberRow {
    entry: Entry,
    len: u32,
    digest: Digest,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a pack")]
pub struct NotAPack;

/// The format of a pack's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableForm {
    /// For every receiver.
    Records,
    /// For a receiver that supports it.
    Columns,
}

/// The files that go into one pack, decided before any is opened.
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
}

#[cfg(test)]
mod tests;
