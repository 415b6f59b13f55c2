//! A chunk: what is read, encoded, sent, verified, written and retried as one. Either a range of
//! one file (a power of two of bytes at an aligned offset, the last one short; of a stream also up
//! to where its producer paused) or a pack of small files. The types say how far it has come:
//! `Chunk` → `EncodedChunk` → `SealedChunk` on the sender, `SealedChunk` → `EncodedChunk` → `Chunk`
//! → `VerifiedChunk` on the receiver.

pub mod claims;
pub mod pack;
pub mod pool;
pub mod ranges;
pub mod split;

use crate::digest::{self, Digest};
use crate::manifest::EntryId;
pub use pool::{Buffer, Pool};

/// Bytes in a chunk, the last of a file excepted. A power of two; one size per session.
pub const CHUNK_SIZE: usize = 1 << 20;

/// Parts of a chunk that may travel alone, where both ends know of them: a copy is cut finer at
/// first, while it is not known how it should go, and towards its end, or each stream would end with
/// a whole chunk to carry, some long after the others. A power of two.
pub const GRAINS: usize = 8;

/// Packs that may be put together into one that is compressed as a whole, where the link is slow: of
/// 75 MB of program text zstd 9 made 10.1 MB in units of 1 MiB and 8.9 in units of 4 MiB, LZMA 4 9.6
/// and 8.5. What comes of it fits into a frame and a buffer, or the packs travel by themselves.
pub const LARGE_PACK: usize = 4;

/// Chunks of a file that may go as one, where the link is slow. Of 30 MB of PostgreSQL's pages LZMA 4
/// made 8.02 MB in units of 1 MiB, 7.64 of 2, 7.31 of 4; zstd 9 9.86, 9.56, 9.47. Four of them
/// would seldom fit into a frame. A power of two.
pub const LARGE_PIECE: usize = 2;

/// Files up to this many bytes travel in packs.
pub const SMALL_FILE_MAX: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// A range of one file.
    Range,
    /// Many small files: a table and their contents.
    Pack,
    /// A range of zeros; nothing but the header travels.
    Zeros,
    /// A range of one file that the receiver may have; its digest alone travels.
    Digest,
}

/// Which bytes a chunk stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub kind: ChunkKind,
    /// Dense per session, from 0.
    pub chunk: u64,
    /// 0 for a pack.
    pub entry: EntryId,
    /// Bytes from the start of the file; 0 for a pack.
    pub offset: u64,
    /// Bytes after decoding. A `Zeros` chunk may stand for up to 2 GiB.
    pub raw_len: u32,
}

/// Raw bytes in the buffer's `data`.
pub struct Chunk {
    pub place: Place,
    pub buffer: Buffer,
}

/// As it travels but for the seal: `digest` of the raw bytes, `data` compressed by `codec`.
pub struct EncodedChunk {
    pub place: Place,
    pub digest: Digest,
    /// The codec's number on the wire.
    pub codec: u8,
    pub buffer: Buffer,
}

/// Raw bytes whose digest was found to be right. Only [`Chunk::verify`] makes one.
pub struct VerifiedChunk {
    place: Place,
    digest: Digest,
    buffer: Buffer,
}

impl Chunk {
    /// Recomputes the digest of a range; `whole` if the range is all of its file. A range of zeros
    /// has none, it is right when nothing came with it. The buffer comes back where it does not
    /// match. A pack is not a range: its own table says what it must hold; of a digest alone there
    /// are no bytes to verify.
    pub fn verify(self, digest: Digest, whole: bool) -> Result<VerifiedChunk, Buffer> {
        let data = self.buffer.data();
        let right = match self.place.kind {
            ChunkKind::Range => {
                data.len() == self.place.raw_len as usize
                    && digest::of_range(data, self.place.offset, whole) == digest
            }
            ChunkKind::Zeros => data.is_empty() && digest == digest::NONE,
            ChunkKind::Pack | ChunkKind::Digest => false,
        };
        if right {
            Ok(VerifiedChunk {
                place: self.place,
                digest,
                buffer: self.buffer,
            })
        } else {
            Err(self.buffer)
        }
    }
}

impl VerifiedChunk {
    pub fn place(&self) -> Place {
        self.place
    }

    pub fn digest(&self) -> Digest {
        self.digest
    }

    pub fn data(&self) -> &[u8] {
        self.buffer.data()
    }

    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}
