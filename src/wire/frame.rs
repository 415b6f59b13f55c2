//! Frames: a header of 64 bytes, then a digest, the encoded chunk and the seal's tag.
//!
//! ```text
//!  0 version u8 | 1 kind u8 | 2 codec u8 | 3 suite u8 | 4 flags u32
//!  8 key epoch u32          | 12 dictionary u32
//! 16 counter u64            | 24 chunk u64
//! 32 entry u64              | 40 offset u64
//! 48 raw length u32         | 52 wire length u32
//! 56 receiver u16           | 58 reserved, 6 bytes: written as 0, ignored
//! 64 digest, 32 bytes ‖ encoded bytes ‖ tag, 16 bytes or none by the suite: the wire length
//! ```
//!
//! All numbers are little-endian. The header is sent in clear text and authenticated. The digest
//! is encrypted with the data, because it would tell an eavesdropper which known file this is.
//!
//! [`FrameHeader::parse`] is the only way from a peer's bytes to a header. Its result is within
//! [`FrameLimits`], so every length fits into a buffer of the pool. Other modules check the rest:
//! `dest` that the entry exists and contains the range, `seal` that the peer sent the frame.

use crate::chunk::pool::TAILROOM;
use crate::chunk::{ChunkKind, ChunkPlace, LARGE_PACK, LARGE_PIECE};
use crate::codec::Codec;
use crate::manifest::EntryId;
use crate::seal::{Suite, TAG_LEN};

/// Bytes of a header.
pub const HEADER_LEN: usize = 64;

/// Bytes of the digest, which precedes the encoded data.
pub const DIGEST_LEN: usize = 32;

pub const VERSION: u8 = 1;

/// Most zeros in one frame. A hole of 1 TB takes 512 headers, and the length fits easily into 32
/// bits.
pub const ZEROS_MAX: u32 = 1 << 31;

/// Flags that a receiver must refuse if it does not know them. This version knows none.
const MUST_UNDERSTAND: u32 = 0xFFFF_0000;

/// The kind of a frame. The discriminant is the number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A chunk of one file.
    Range = 1,
    /// A pack of small files.
    Pack = 2,
    /// The blocks of a chunk that differ from the receiver's copy.
    Blocks = 3,
    /// A range of zeros, without data; the digest is [`NONE`](crate::digest::NONE).
    Zeros = 4,
    /// The last frame of this connection.
    End = 5,
    /// Acknowledges chunks that the receiver has written.
    Acks = 6,
    /// The digest of a chunk that the receiver may already have; no data.
    Digest = 7,
}

impl FrameKind {
    fn from_number(number: u8) -> Option<FrameKind> {
        use FrameKind::*;
        [Range, Pack, Blocks, Zeros, End, Acks, Digest]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
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

    /// Most uncompressed bytes of a frame that is not a range of a file. Leaves room for a tag.
    pub fn raw_max(&self) -> u32 {
        raw_max(self.chunk_size)
    }
}

fn raw_max(chunk_size: u32) -> u32 {
    chunk_size + (TAILROOM - TAG_LEN) as u32
}

/// A parsed header. The fields have the order of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    pub kind: FrameKind,
    pub codec: Codec,
    pub suite: Suite,
    /// A receiver may ignore unknown flags in the lower half.
    pub flags: u32,
    pub epoch: u32,
    pub counter: u64,
    /// Numbered per session without gaps; 0 where the frame is not a chunk.
    pub chunk: u64,
    /// 0 for packs and for frames that are not chunks.
    pub entry: EntryId,
    /// Bytes from the start of the entry.
    pub offset: u64,
    /// Bytes after decoding; the number of zeros in a `Zeros` frame.
    pub raw_len: u32,
    /// Bytes after the header.
    pub wire_len: u32,
    /// Index of the destination that this frame is for; 0 if there is only one.
    pub receiver: u16,
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
    Entry { kind: FrameKind, entry: EntryId },
    #[error("a frame of kind {kind:?} at offset {offset}")]
    Offset { kind: FrameKind, offset: u64 },
    #[error("a frame of kind {kind:?} that stands for {raw_len} bytes")]
    RawLength { kind: FrameKind, raw_len: u32 },
    #[error("a frame of kind {kind:?} that stands for {raw_len} bytes with {wire_len} on the wire")]
    WireLength {
        kind: FrameKind,
        raw_len: u32,
        wire_len: u32,
    },
}

impl FrameHeader {
    /// The header of a chunk whose encoded size is `encoded_len` bytes. Flags and receiver are 0;
    /// the caller sets `epoch` and `counter` from the seal's ticket.
    pub fn of(place: &ChunkPlace, codec: Codec, encoded_len: usize, suite: Suite) -> FrameHeader {
        let kind = match place.kind {
            ChunkKind::Range => FrameKind::Range,
            ChunkKind::Pack => FrameKind::Pack,
            ChunkKind::Zeros => FrameKind::Zeros,
            ChunkKind::Digest => FrameKind::Digest,
        };
        let wire_len = DIGEST_LEN + encoded_len + suite.tag_len();
        FrameHeader {
            kind,
            codec,
            suite,
            flags: 0,
            epoch: 0,
            counter: 0,
            chunk: place.chunk,
            entry: place.entry,
            offset: place.offset,
            raw_len: place.raw_len,
            wire_len: u32::try_from(wire_len).expect("a chunk fits into a buffer"),
            receiver: 0,
        }
    }

    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = VERSION;
        bytes[1] = self.kind as u8;
        bytes[2] = self.codec.number();
        bytes[3] = self.suite.number();
        bytes[4..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.counter.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.chunk.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.entry.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.offset.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.raw_len.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.wire_len.to_le_bytes());
        bytes[56..58].copy_from_slice(&self.receiver.to_le_bytes());
        bytes
    }

    /// # Errors
    /// If the header has a value that this version does not know or that exceeds `limits`.
    pub fn parse(bytes: &[u8; HEADER_LEN], limits: &FrameLimits) -> Result<FrameHeader, BadFrame> {
        if bytes[0] != VERSION {
            return Err(BadFrame::Version(bytes[0]));
        }
        let header = FrameHeader {
            kind: FrameKind::from_number(bytes[1]).ok_or(BadFrame::Kind(bytes[1]))?,
            codec: Codec::from_number(bytes[2]).ok_or(BadFrame::Codec(bytes[2]))?,
            suite: Suite::from_number(bytes[3]).ok_or(BadFrame::Suite(bytes[3]))?,
            flags: u32_at(bytes, 4),
            epoch: u32_at(bytes, 8),
            counter: u64_at(bytes, 16),
            chunk: u64_at(bytes, 24),
            entry: u64_at(bytes, 32),
            offset: u64_at(bytes, 40),
            raw_len: u32_at(bytes, 48),
            wire_len: u32_at(bytes, 52),
            receiver: u16::from_le_bytes([bytes[56], bytes[57]]),
        };
        if header.flags & MUST_UNDERSTAND != 0 {
            return Err(BadFrame::Flags(header.flags));
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

    /// None for frames that are not chunks, and for `Blocks`, which no version sends yet.
    pub fn place(&self) -> Option<ChunkPlace> {
        let kind = match self.kind {
            FrameKind::Range => ChunkKind::Range,
            FrameKind::Pack => ChunkKind::Pack,
            FrameKind::Zeros => ChunkKind::Zeros,
            FrameKind::Digest => ChunkKind::Digest,
            FrameKind::Blocks | FrameKind::End | FrameKind::Acks => return None,
        };
        Some(ChunkPlace {
            kind,
            chunk: self.chunk,
            entry: self.entry,
            offset: self.offset,
            raw_len: self.raw_len,
        })
    }

    /// Checks that entry, offset and raw length are possible for the kind.
    fn check_place(&self, limits: &FrameLimits) -> Result<(), BadFrame> {
        use FrameKind::*;
        let kind = self.kind;
        let of_entry = matches!(kind, Range | Blocks | Zeros | Digest);
        if of_entry != (self.entry != 0) {
            let entry = self.entry;
            return Err(BadFrame::Entry { kind, entry });
        }
        let lengths = match kind {
            Range => 1..=limits.range_max,
            Blocks | Digest => 1..=limits.chunk_size,
            Pack => 1..=limits.pack_max,
            Acks => 1..=limits.raw_max(),
            Zeros => 1..=ZEROS_MAX,
            End => 0..=0,
        };
        if !lengths.contains(&self.raw_len) {
            let raw_len = self.raw_len;
            return Err(BadFrame::RawLength { kind, raw_len });
        }
        let grain = match kind {
            // A chunk of a pipe may begin where the producer paused. Offsets in files are checked
            // where the file is known.
            Range | Zeros => 1,
            _ => limits.chunk_size,
        };
        let fits = if of_entry {
            self.offset.is_multiple_of(grain.into())
                && self.offset.checked_add(u64::from(self.raw_len)).is_some()
        } else {
            self.offset == 0
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
                (FrameKind::Zeros | FrameKind::Digest | FrameKind::End, codec) => {
                    encoded == Some(0) && codec == Codec::None
                }
                // A list of blocks contains its own length.
                (FrameKind::Blocks, _) => {
                    encoded.is_some_and(|len| len <= limits.raw_max() as usize)
                }
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

#[cfg(test)]
mod tests;
