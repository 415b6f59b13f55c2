//! Sealed chunks: frames with a chunk inside, as connections carry them.
//!
//! The frame is built around the data in its buffer. So no data is moved, and one write sends it:
//!
//! ```text
//! …headroom │ header 64 │ digest 32 │ encoded bytes │ tag │ …tailroom
//!                                   └ data of the buffer
//! ```

use super::frame::{DIGEST_LEN, FrameHeader, HEADER_LEN};
use crate::chunk::{Buffer, EncodedChunk};
use crate::codec::Codec;
use crate::seal::{Opener, Sealer, TAG_LEN, Unsealed};

/// A frame in a buffer.
pub struct SealedChunk {
    header: FrameHeader,
    buffer: Buffer,
}

impl SealedChunk {
    /// Seals a chunk in its own buffer.
    ///
    /// # Panics
    /// If the codec is unknown, or the encoder left no room for the tag.
    pub fn seal(encoded: EncodedChunk, sealer: &Sealer) -> SealedChunk {
        let EncodedChunk {
            place,
            digest,
            codec,
            mut buffer,
        } = encoded;
        let codec = Codec::from_number(codec).expect("an encoder names a codec that there is");
        let suite = sealer.suite();
        let mut header = FrameHeader::of(&place, codec, buffer.len(), suite);
        let ticket = sealer.reserve(header.wire_len as usize);
        (header.epoch, header.counter) = (ticket.epoch, ticket.counter);
        let header_bytes = header.to_bytes();
        let frame = buffer.around_mut(HEADER_LEN + DIGEST_LEN, suite.tag_len());
        frame[..HEADER_LEN].copy_from_slice(&header_bytes);
        let (payload, tag) = frame[HEADER_LEN..].split_at_mut(DIGEST_LEN + header.encoded_len());
        payload[..DIGEST_LEN].copy_from_slice(&digest);
        let sealed = sealer.seal(ticket, &header_bytes, payload);
        tag.copy_from_slice(&sealed[..suite.tag_len()]);
        SealedChunk { header, buffer }
    }

    /// Prepares for the rest of a frame whose header has arrived. `header` is the parsed form of
    /// `header_bytes`. The caller reads the other bytes into [`payload_mut`](Self::payload_mut),
    /// and must not trust any of them before [`open`](Self::open).
    ///
    /// # Panics
    /// If `buffer` comes from a pool for which the header's limits were not made.
    pub fn receive(
        header: FrameHeader,
        header_bytes: &[u8; HEADER_LEN],
        mut buffer: Buffer,
    ) -> SealedChunk {
        buffer.set_len(header.encoded_len());
        // The received bytes, not re-encoded ones: the seal covers exactly these.
        buffer.around_mut(HEADER_LEN + DIGEST_LEN, 0)[..HEADER_LEN].copy_from_slice(header_bytes);
        SealedChunk { header, buffer }
    }

    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// The frame's bytes on the wire.
    pub fn bytes(&self) -> &[u8] {
        let tag_len = self.header.suite.tag_len();
        self.buffer.around(HEADER_LEN + DIGEST_LEN, tag_len)
    }

    /// The bytes after the header: digest, encoded data and tag.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let tag_len = self.header.suite.tag_len();
        self.buffer.around_mut(DIGEST_LEN, tag_len)
    }

    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// # Errors
    /// If the frame was not sealed with the session's key and suite.
    pub fn open(mut self, opener: &Opener) -> Result<EncodedChunk, Unsealed> {
        let digest = self.unseal(opener)?;
        Ok(EncodedChunk {
            place: self.header.place(),
            digest,
            codec: self.header.codec.number(),
            buffer: self.buffer,
        })
    }

    fn unseal(&mut self, opener: &Opener) -> Result<[u8; DIGEST_LEN], Unsealed> {
        let FrameHeader {
            suite,
            epoch,
            counter,
            ..
        } = self.header;
        if suite != opener.suite() {
            return Err(Unsealed);
        }
        let frame = self
            .buffer
            .around_mut(HEADER_LEN + DIGEST_LEN, suite.tag_len());
        let (header, rest) = frame.split_at_mut(HEADER_LEN);
        let (payload, tag_bytes) =
            rest.split_at_mut(self.header.wire_len as usize - suite.tag_len());
        let mut tag = [0; TAG_LEN];
        tag[..tag_bytes.len()].copy_from_slice(tag_bytes);
        opener.open(epoch, counter, header, payload, &tag)?;
        Ok(std::array::from_fn(|n| payload[n]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{ChunkKind, ChunkPlace};
    use crate::seal::{Direction, Secret, Suite};
    use crate::wire::frame::FrameLimits;

    const SIZE: usize = 4096;
    const SUITES: [Suite; 4] = [
        Suite::None,
        Suite::Aes128Gcm,
        Suite::ChaCha20Poly1305,
        Suite::Tag,
    ];

    fn encoded(text: &[u8]) -> EncodedChunk {
        let mut buffer = Buffer::loose(SIZE);
        buffer.room()[..text.len()].copy_from_slice(text);
        buffer.set_len(text.len());
        let place = ChunkPlace {
            kind: ChunkKind::Range,
            chunk: 7,
            entry: 2,
            offset: 3 * SIZE as u64,
            raw_len: text.len() as u32,
        };
        EncodedChunk {
            place,
            digest: [6; 32],
            codec: 0,
            buffer,
        }
    }

    /// The frame that a peer receives after `bytes` were sent.
    fn receive(bytes: &[u8]) -> SealedChunk {
        let (header_bytes, rest) = bytes.split_first_chunk().unwrap();
        let limits = FrameLimits::new(SIZE as u32);
        let header = FrameHeader::parse(header_bytes, &limits).unwrap();
        let mut frame = SealedChunk::receive(header, header_bytes, Buffer::loose(SIZE));
        frame.payload_mut().copy_from_slice(rest);
        frame
    }

    #[test]
    fn a_chunk_crosses_the_wire_under_each_suite() {
        for suite in SUITES {
            let secret = Secret::random();
            let sealer = Sealer::new(&secret, Direction::ToServer, suite);
            let opener = Opener::new(&secret, Direction::ToServer, suite);
            for text in [&b"some bytes"[..], &[8; SIZE]] {
                let place = encoded(text).place;
                let sent = SealedChunk::seal(encoded(text), &sealer);
                assert_eq!(sent.bytes().len(), 64 + 32 + text.len() + suite.tag_len());
                let chunk = receive(sent.bytes()).open(&opener).unwrap();
                assert_eq!(
                    (chunk.place, chunk.digest, chunk.codec),
                    (place, [6; 32], 0)
                );
                assert_eq!(chunk.buffer.data(), text);
            }
        }
    }

    #[test]
    fn the_digest_does_not_travel_in_clear() {
        let sealer = Sealer::new(&Secret::random(), Direction::ToServer, Suite::preferred());
        let sent = SealedChunk::seal(encoded(b"some bytes"), &sealer);
        assert!(!sent.bytes().windows(8).any(|bytes| bytes == [6; 8]));
    }

    #[test]
    fn a_frame_that_was_changed_on_the_way_is_refused_reserved_bytes_too() {
        for suite in SUITES.into_iter().filter(|suite| *suite != Suite::None) {
            let secret = Secret::random();
            let sealer = Sealer::new(&secret, Direction::ToServer, suite);
            let opener = Opener::new(&secret, Direction::ToServer, suite);
            let sent = SealedChunk::seal(encoded(b"some bytes"), &sealer);
            // Flags, epoch, chunk, entry, reserved twice, digest, data, tag.
            for at in [4, 8, 24, 33, 57, 63, 64, 96, sent.bytes().len() - 1] {
                let mut bytes = sent.bytes().to_vec();
                bytes[at] ^= 1;
                let opened = receive(&bytes).open(&opener).err();
                assert_eq!(opened, Some(Unsealed), "byte {at}");
            }
        }
    }

    #[test]
    fn a_frame_that_calls_itself_unsealed_is_not_believed() {
        let secret = Secret::random();
        let plain = Sealer::new(&secret, Direction::ToServer, Suite::None);
        let opener = Opener::new(&secret, Direction::ToServer, Suite::Aes128Gcm);
        let sent = SealedChunk::seal(encoded(b"some bytes"), &plain);
        let opened = receive(sent.bytes()).open(&opener).err();
        assert_eq!(opened, Some(Unsealed));
    }
}
