//! The receiver's half of a codec. It accepts arbitrary input from a peer.

use zstd::bulk::Decompressor;

use super::lzma;
use crate::algorithms::Codec;
use crate::chunk::{Buffer, Chunk, EncodedChunk};

/// The chunk differs from its announcement.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("codec {0} is not known")]
    Codec(u8),
    #[error("a chunk of {found} bytes was announced as {announced}")]
    Length { announced: u32, found: usize },
    #[error("data compressed with {0:?} does not decode to the announced length")]
    Garbage(Codec),
}

/// Decompresses chunks; one per worker.
pub struct Decoder {
    /// The output buffer of the next chunk; it is then swapped with the input buffer.
    spare: Buffer,
    contexts: Contexts,
}

#[derive(Default)]
struct Contexts {
    zstd: Decompressor<'static>,
    inflate: Option<flate2::Decompress>,
}

impl Decoder {
    /// For chunks of up to `chunk_size` bytes plus the extra bytes of a pack.
    pub fn new(chunk_size: usize) -> Decoder {
        Decoder {
            spare: Buffer::loose(chunk_size),
            contexts: Contexts::default(),
        }
    }

    /// Returns exactly `place.raw_len` bytes.
    ///
    /// # Errors
    /// If the codec is unknown or the input does not decode to that length. The buffer then
    /// returns to its pool.
    pub fn decode(&mut self, encoded: EncodedChunk) -> Result<Chunk, DecodeError> {
        let EncodedChunk {
            place,
            codec,
            mut buffer,
            ..
        } = encoded;
        let codec = Codec::from_number(codec).ok_or(DecodeError::Codec(codec))?;
        let raw_len = place.raw_len as usize;
        let unlike = |found| DecodeError::Length {
            announced: place.raw_len,
            found,
        };
        if codec == Codec::None {
            // A range of zeros or a lone digest has no bytes.
            let expected = match place.kind {
                crate::chunk::ChunkKind::Zeros | crate::chunk::ChunkKind::Digest => 0,
                _ => raw_len,
            };
            if buffer.len() != expected {
                return Err(unlike(buffer.len()));
            }
            return Ok(Chunk { place, buffer });
        }
        if raw_len > self.spare.capacity() {
            return Err(unlike(buffer.len()));
        }
        let room = &mut self.spare.room()[..raw_len];
        self.contexts.fill(codec, buffer.data(), room)?;
        self.spare.set_len(raw_len);
        buffer.swap(&mut self.spare);
        Ok(Chunk { place, buffer })
    }

    /// The bytes of a patch: any number up to `place.raw_len`.
    ///
    /// # Errors
    /// As for [`decode`](Decoder::decode).
    pub fn decode_patch(&mut self, encoded: EncodedChunk) -> Result<Chunk, DecodeError> {
        let EncodedChunk {
            place,
            codec,
            mut buffer,
            ..
        } = encoded;
        let codec = Codec::from_number(codec).ok_or(DecodeError::Codec(codec))?;
        let most = place.raw_len as usize;
        if most.max(buffer.len()) > self.spare.capacity() {
            return Err(DecodeError::Length {
                announced: place.raw_len,
                found: buffer.len(),
            });
        }
        if codec != Codec::None {
            let room = &mut self.spare.room()[..most];
            let found = self.contexts.decode(codec, buffer.data(), room);
            self.spare
                .set_len(found.ok_or(DecodeError::Garbage(codec))?);
            buffer.swap(&mut self.spare);
        }
        Ok(Chunk { place, buffer })
    }

    /// Like [`decode`](Decoder::decode), into a buffer for more than a chunk. Uncompressed input
    /// is an error.
    ///
    /// # Errors
    /// As for [`decode`](Decoder::decode).
    pub fn decode_into(
        &mut self,
        encoded: EncodedChunk,
        mut into: Buffer,
    ) -> Result<Chunk, DecodeError> {
        let EncodedChunk {
            place,
            codec,
            buffer,
            ..
        } = encoded;
        let codec = Codec::from_number(codec).ok_or(DecodeError::Codec(codec))?;
        let raw_len = place.raw_len as usize;
        if codec == Codec::None || raw_len > into.capacity() {
            return Err(DecodeError::Length {
                announced: place.raw_len,
                found: buffer.len(),
            });
        }
        let room = &mut into.room()[..raw_len];
        self.contexts.fill(codec, buffer.data(), room)?;
        into.set_len(raw_len);
        let buffer = into;
        Ok(Chunk { place, buffer })
    }
}

impl Contexts {
    /// Fills all of `room`.
    fn fill(&mut self, codec: Codec, data: &[u8], room: &mut [u8]) -> Result<(), DecodeError> {
        let raw_len = room.len();
        match self.decode(codec, data, room) == Some(raw_len) {
            true => Ok(()),
            false => Err(DecodeError::Garbage(codec)),
        }
    }

    /// Returns the number of bytes in `room`; None for garbage, or if there is more.
    fn decode(&mut self, codec: Codec, data: &[u8], room: &mut [u8]) -> Option<usize> {
        match codec {
            Codec::None => None,
            Codec::Lz4 => lz4_flex::block::decompress_into(data, room).ok(),
            // In one call, so that zstd writes to `room`, looks back there and keeps no window of
            // a size that the peer would choose. Output beyond the end of `room` is an error.
            Codec::Zstd => self.zstd.decompress_to_buffer(data, room).ok(),
            Codec::Gzip => inflate(&mut self.inflate, data, room),
            Codec::Lzma => lzma::decompress(data, room),
        }
    }
}

/// Bytes written to `room`, if the compressed stream ends at the end of `data`.
fn inflate(kept: &mut Option<flate2::Decompress>, data: &[u8], room: &mut [u8]) -> Option<usize> {
    let inflate = kept.get_or_insert_with(|| flate2::Decompress::new(false));
    inflate.reset(false);
    let status = inflate.decompress(data, room, flate2::FlushDecompress::Finish);
    let ended = matches!(status, Ok(flate2::Status::StreamEnd));
    (ended && inflate.total_in() == data.len() as u64).then_some(inflate.total_out() as usize)
}
