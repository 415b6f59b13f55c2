//! A chunk: the unit that is read, encoded, sent, verified, written and retried. A chunk is either
//! a range of one file or a pack of small files. The length of a range is a power of two, and its
//! offset a multiple of the length. The last range of a file may be shorter, and so may a range of a
//! pipe whose producer paused. The types tell the stage: `Chunk` → `EncodedChunk` → `SealedChunk` on
//! the sender, `SealedChunk` → `EncodedChunk` → `Chunk` → `VerifiedChunk` on the receiver.

pub mod anchors;
pub mod claims;
pub mod pack;
pub mod patch;
pub mod pool;
pub mod ranges;
pub mod split;

use crate::digest::{self, Digest};
use crate::manifest::EntryId;
pub use pool::{Buffer, Pool};

/// Bytes in a chunk, except the last of a file. A power of two; one size per session.
pub const CHUNK_SIZE: usize = 1 << 20;

/// Parts of a chunk that may be sent separately if both ends support it; a power of two. A copy
/// uses smaller pieces at the start, until the tuner knows the link, and towards the end.
/// Otherwise each connection would end with a whole chunk, and some would finish long after the
/// others.
pub const GRAINS: usize = 8;

/// Packs that may be merged into one large pack, compressed as a whole, where the link is slow. Of
/// 75 MB of program text zstd 9 made 10.1 MB in units of 1 MiB and 8.9 MB in units of 4 MiB; LZMA
/// 4 made 9.6 MB and 8.5 MB. If the result does not fit into one frame and one buffer, the packs
/// are sent separately.
pub const LARGE_PACK: usize = 4;

/// Chunks of a file that may go as one, where the link is slow. Of 30 MB of PostgreSQL's pages LZMA
/// 4 made 8.02 MB in units of 1 MiB, 7.64 of 2, 7.31 of 4; zstd 9 9.86, 9.56, 9.47. Four of them
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
    /// A range of zeros; only the header is sent.
    Zeros,
    /// A range of one file that the receiver may already have; only its digest is sent.
    Digest,
    /// The same, with the [anchors] of the range: the receiver may have it in another place.
    Anchors,
    /// A range of one file, of which only what differs from the receiver's existing file is sent.
    Patch,
}

/// The bytes that a chunk represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    pub kind: ChunkKind,
    /// Chunk number, consecutive within a session, from 0.
    pub chunk: u64,
    /// 0 for a pack.
    pub entry: EntryId,
    /// Bytes from the start of the file; 0 for a pack.
    pub offset: u64,
    /// Bytes after decoding. A `Zeros` chunk may represent up to 2 GiB.
    pub raw_len: u32,
}

/// A chunk with its raw bytes in the buffer.
pub struct Chunk {
    pub place: ChunkPlace,
    pub buffer: Buffer,
}

/// A chunk ready to be sealed: `digest` of the raw bytes, `buffer` compressed by `codec`.
pub struct EncodedChunk {
    pub place: ChunkPlace,
    pub digest: Digest,
    /// The codec's number on the wire.
    pub codec: u8,
    pub buffer: Buffer,
}

/// Raw bytes whose digest is correct. Only [`Chunk::verify`] and [`Chunk::verify_pack`] make one.
pub struct VerifiedChunk {
    place: ChunkPlace,
    digest: Digest,
    buffer: Buffer,
}

impl Chunk {
    /// Recomputes the digest of a range; `whole` if the range is all of its file. A range of zeros
    /// has no digest and is valid if it has no bytes. A pack, a lone digest and a patch always fail: a
    /// pack needs [`Chunk::verify_pack`], a lone digest has no bytes to verify, and a patch must be
    /// applied first.
    ///
    /// # Errors
    /// Returns the buffer if the digest does not match.
    pub fn verify(self, digest: Digest, whole: bool) -> Result<VerifiedChunk, Buffer> {
        let data = self.buffer.data();
        let right = match self.place.kind {
            ChunkKind::Range => {
                data.len() == self.place.raw_len as usize
                    && digest::of_range(data, self.place.offset, whole) == digest
            }
            ChunkKind::Zeros => data.is_empty() && digest == digest::NONE,
            ChunkKind::Pack | ChunkKind::Digest | ChunkKind::Anchors | ChunkKind::Patch => false,
        };
        self.verified(digest, right)
    }

    fn verified(self, digest: Digest, right: bool) -> Result<VerifiedChunk, Buffer> {
        if !right {
            return Err(self.buffer);
        }
        Ok(VerifiedChunk {
            place: self.place,
            digest,
            buffer: self.buffer,
        })
    }
}

impl VerifiedChunk {
    pub fn place(&self) -> ChunkPlace {
        self.place
    }

    pub fn digest(&self) -> Digest {
        self.digest
    }

    pub fn data(&self) -> &[u8] {
        self.buffer.data()
    }
}
