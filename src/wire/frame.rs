//! Frames: a header of 64 bytes, then a digest, the encoded chunk and the seal's tag.
//!
//! ```text
//!  0 version u8 | 1 kind u8 | 2 codec u8 | 3 suite u8 | 4 flags u32
//!  8 key epoch u32          | 12 dictionary u32
//! 16 counter u64            | 24 chunk u64
//! 32 entry u64              | 40 offset u64
//! 48 raw length u32         | 52 wire length u32
//! 56 reserved, 8 bytes: written as 0, ignored
//! 64 digest, 32 bytes ‖ encoded bytes ‖ tag, 16 bytes or none (suite); all: wire length
//! ```
//!
//! All numbers are little-endian. The header is sent in clear text and authenticated. The digest
//! is encrypted with the data, because it would tell an eavesdropper which known file this is.
//!
//! [`FrameHeader::parse`] is the only way from a peer's bytes to a header. Its result is within
//! [`FrameLimits`], so every length fits into a buffer of the pool. Other modules check the rest:
//! `pipeline::receive` that the entry exists and contains the range, `seal` that the peer sent the
//! frame.

#[cfg(test)]
mod tests;

use crate::algorithms::{Codec, Suite, TAG_LEN};
use crate::chunk::anchors;
use crate::chunk::pool::TAILROOM;
use crate::chunk::{ChunkKind, ChunkPlace, LARGE_PACK, LARGE_PIECE};
use crate::manifest::EntryId;

/// Bytes of a header.
pub const HEADER_LEN: usize = 64;

/// Bytes of the digest, which precedes the encoded data.
pub const DIGEST_LEN: usize = 32;

pub const VERSION: u8 = 1;

/// Most zeros in one frame. A hole of 1 TB takes 512 headers, and the length fits easily into 32
/// bits.
pub const ZEROS_MAX: u32 = 1 << 31;

/// Flags that a receiver must refuse if it does not know them; it ignores the others. This version
/// knows and sends none.
const MUST_UNDERSTAND: u32 = 0xFFFF_0000;

/// The kinds with their numbers on the wire. Version 0.1 also knew 3, 5 and 6, which no version has
/// sent.
const KINDS: [(ChunkKind, u8); 6] = [
    (ChunkKind::Range, 1),
    (ChunkKind::Pack, 2),
    (ChunkKind::Zeros, 4),
    (ChunkKind::Digest, 7),
    (ChunkKind::Patch, 8),
    (ChunkKind::Anchors, 9),
];

fn kind_of(number: u8) -> Option<ChunkKind> {
    let found = KINDS.iter().find(|(_, known)| *known == number);
    found.map(|(kind, _)| *kind)
}

fn number_of(kind: ChunkKind) -> u8 {
    let found = KINDS.iter().find(|(known, _)| *known == kind);
    found.expect("it has every kind").1
}

/// The session's limits on frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Bytes; a power of two.
    pub chunk_size: u32,
    /// Most bytes after a header, digest and tag included.
    pub frame_max: u32,
    /// Most bytes of a pack after decoding.
    pub pack_max: u32,
    /// The same of a range.
    pub range_max: u32,
}

impl FrameLimits {
    /// Limits that fill the buffers of a pool with this chunk size.
    pub fn new(chunk_size: u32) -> FrameLimits {
        FrameLimits {
            chunk_size,
            frame_max: chunk_size + TAILROOM as u32 + DIGEST_LEN as u32,
            pack_max: raw_max(chunk_size),
            range_max: chunk_size,
        }
    }

    /// The same limits, but with large packs and ranges allowed.
    pub fn with_large(self) -> FrameLimits {
        FrameLimits {
            pack_max: raw_max(LARGE_PACK as u32 * self.chunk_size),
            range_max: LARGE_PIECE as u32 * self.chunk_size,
            ..self
        }
    }
}

/// Most uncompressed bytes of a pack. Leaves room for a tag.
fn raw_max(chunk_size: u32) -> u32 {
    chunk_size + (TAILROOM - TAG_LEN) as u32
}

/// A parsed header. The fields have the order of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    pub kind: ChunkKind,
    pub codec: Codec,
    pub suite: Suite,
    pub epoch: u32,
    pub counter: u64,
    /// Numbered per session without gaps.
    pub chunk: u64,
    /// 0 for packs.
    pub entry: EntryId,
    /// Bytes from the start of the entry.
    pub offset: u64,
    /// Bytes after decoding; the number of zeros in a `Zeros` frame.
    pub raw_len: u32,
    /// Bytes after the header.
    pub wire_len: u32,
}

/// Why a header was refused, with the offending number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    #[error("a frame of version {0}, not {VERSION}")]
    Version(u8),
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    #[error("a frame in unknown codec {0}")]
    Codec(u8),
    #[error("a frame under unknown suite {0}")]
    Suite(u8),
    #[error("a frame with flags {0:#x} that must be understood and are not")]
    Flags(u32),
    #[error("a frame with dictionary {0}, none was agreed")]
    Dictionary(u32),
    #[error("a frame of kind {kind:?} for entry {entry}")]
    Entry { kind: ChunkKind, entry: EntryId },
    #[error("a frame of kind {kind:?} at offset {offset}")]
    Offset { kind: ChunkKind, offset: u64 },
    #[error("a frame of kind {kind:?} that stands for {raw_len} bytes")]
    RawLength { kind: ChunkKind, raw_len: u32 },
    #[error("a frame of kind {kind:?} that stands for {raw_len} bytes with {wire_len} on the wire")]
    WireLength {
        kind: ChunkKind,
        raw_len: u32,
        wire_len: u32,
    },
}

impl FrameHeader {
    /// The header of a chunk whose encoded size is `encoded_len` bytes. The caller sets `epoch` and
    /// `counter` from the seal's ticket.
    pub fn of(place: &ChunkPlace, codec: Codec, encoded_len: usize, suite: Suite) -> FrameHeader {
        let wire_len = DIGEST_LEN + encoded_len + suite.tag_len();
        FrameHeader {
            kind: place.kind,
            codec,
            suite,
            epoch: 0,
            counter: 0,
            chunk: place.chunk,
            entry: place.entry,
            offset: place.offset,
            raw_len: place.raw_len,
            wire_len: u32::try_from(wire_len).expect("a chunk fits into a buffer"),
        }
    }

    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = VERSION;
        bytes[1] = number_of(self.kind);
        bytes[2] = self.codec.number();
        bytes[3] = self.suite.number();
        bytes[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.counter.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.chunk.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.entry.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.offset.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.raw_len.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.wire_len.to_le_bytes());
        bytes
    }

    /// # Errors
    /// If the header has a value that this version does not know or that exceeds `limits`.
    pub fn parse(bytes: &[u8; HEADER_LEN], limits: &FrameLimits) -> Result<FrameHeader, BadFrame> {
        if bytes[0] != VERSION {
            return Err(BadFrame::Version(bytes[0]));
        }
        let header = FrameHeader {
            kind: kind_of(bytes[1]).ok_or(BadFrame::Kind(bytes[1]))?,
            codec: Codec::from_number(bytes[2]).ok_or(BadFrame::Codec(bytes[2]))?,
            suite: Suite::from_number(bytes[3]).ok_or(BadFrame::Suite(bytes[3]))?,
            epoch: u32_at(bytes, 8),
            counter: u64_at(bytes, 16),
            chunk: u64_at(bytes, 24),
            entry: u64_at(bytes, 32),
            offset: u64_at(bytes, 40),
            raw_len: u32_at(bytes, 48),
            wire_len: u32_at(bytes, 52),
        };
        let flags = u32_at(bytes, 4);
        if flags & MUST_UNDERSTAND != 0 {
            return Err(BadFrame::Flags(flags));
        }
        let dictionary = u32_at(bytes, 12);
        if dictionary != 0 {
            return Err(BadFrame::Dictionary(dictionary));
        }
        header.check_place(limits)?;
        header.check_wire_len(limits)?;
        Ok(header)
    }

    /// Bytes between the digest and the tag.
    pub fn encoded_len(&self) -> usize {
        (self.wire_len as usize).saturating_sub(DIGEST_LEN + self.suite.tag_len())
    }

    /// What the frame's chunk represents.
    pub fn place(&self) -> ChunkPlace {
        ChunkPlace {
            kind: self.kind,
            chunk: self.chunk,
            entry: self.entry,
            offset: self.offset,
            raw_len: self.raw_len,
        }
    }

    /// Checks that entry, offset and raw length are possible for the kind.
    fn check_place(&self, limits: &FrameLimits) -> Result<(), BadFrame> {
        use ChunkKind::*;
        let kind = self.kind;
        let of_entry = kind != Pack;
        if of_entry != (self.entry != 0) {
            let entry = self.entry;
            return Err(BadFrame::Entry { kind, entry });
        }
        let lengths = match kind {
            Range => 1..=limits.range_max,
            Digest | Anchors | Patch => 1..=limits.chunk_size,
            Pack => 1..=limits.pack_max,
            Zeros => 1..=ZEROS_MAX,
        };
        if !lengths.contains(&self.raw_len) {
            let raw_len = self.raw_len;
            return Err(BadFrame::RawLength { kind, raw_len });
        }
        // Offsets in files are checked where the file is known.
        let end = self.offset.checked_add(u64::from(self.raw_len));
        let fits = match kind {
            Pack => self.offset == 0,
            Range | Digest | Anchors | Patch | Zeros => end.is_some(),
        };
        if fits {
            Ok(())
        } else {
            let offset = self.offset;
            Err(BadFrame::Offset { kind, offset })
        }
    }

    /// Encoded data is never longer than raw data, and as long only where it is not compressed.
    /// So a valid raw length guarantees that the frame fits into a buffer.
    fn check_wire_len(&self, limits: &FrameLimits) -> Result<(), BadFrame> {
        let least = DIGEST_LEN + self.suite.tag_len();
        let encoded = (self.wire_len as usize).checked_sub(least);
        let raw = self.raw_len as usize;
        let right = self.wire_len <= limits.frame_max
            && match (self.kind, self.codec) {
                (ChunkKind::Zeros | ChunkKind::Digest, codec) => {
                    encoded == Some(0) && codec == Codec::None
                }
                (ChunkKind::Anchors, codec) => {
                    let most = anchors::most(raw);
                    encoded.is_some_and(|len| 0 < len && len <= most) && codec == Codec::None
                }
                // A patch is encoded from fewer bytes than those of its range.
                (ChunkKind::Patch, Codec::None) => encoded.is_some_and(|len| 0 < len && len <= raw),
                (_, Codec::None) => encoded == Some(raw),
                _ => encoded.is_some_and(|len| 0 < len && len < raw),
            };
        if right {
            return Ok(());
        }
        Err(BadFrame::WireLength {
            kind: self.kind,
            raw_len: self.raw_len,
            wire_len: self.wire_len,
        })
    }
}

fn u32_at(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|n| bytes[at + n]))
}

fn u64_at(bytes: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]))
}
