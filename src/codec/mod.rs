//! Compression codecs, including none: between a chunk's raw bytes and the bytes sent.
//!
//! An [`Encoder`] never makes a chunk larger: a chunk that does not shrink gets the codec
//! "none" and stays in its buffer. A [`Decoder`] trusts no input: the output has exactly the
//! announced length, and the room for it is allocated beforehand. Neither adds a checksum, since
//! every chunk has a digest. Each worker of the sender has an encoder, each of the receiver a
//! decoder. They keep their tables and contexts from chunk to chunk. After the first few chunks
//! they allocate nothing, except for LZMA and for large packs and pieces.

mod decode;
mod encode;
mod lzma;

pub use decode::{DecodeError, Decoder};
pub use encode::{AUTO, Encoder};
pub use lzma::{ENCODER_BYTES as LZMA_BYTES, LARGE_BYTES};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Codec, Compress};
    use crate::chunk::{Buffer, Chunk, ChunkKind, ChunkPlace, EncodedChunk};
    use proptest::prelude::*;

    const SIZE: usize = 64 << 10;

    fn chunk(data: &[u8]) -> Chunk {
        let mut buffer = Buffer::loose(SIZE);
        buffer.room()[..data.len()].copy_from_slice(data);
        buffer.set_len(data.len());
        let place = ChunkPlace {
            kind: ChunkKind::Range,
            chunk: 3,
            entry: 1,
            offset: 0,
            raw_len: data.len() as u32,
        };
        Chunk { place, buffer }
    }

    fn random(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    fn rows(len: usize) -> Vec<u8> {
        let rows = (0..).map(|n| format!("{n};customer {};{}\n", n * 7919 % 1000, n % 3));
        rows.flat_map(String::into_bytes).take(len).collect()
    }

    const ALL: [Compress; 7] = [
        Compress::Auto,
        Compress::None,
        Compress::Lz4,
        Compress::Zstd(1),
        Compress::Zstd(-5),
        Compress::Gzip(6),
        Compress::Lzma(4),
    ];

    #[test]
    fn what_was_encoded_decodes_and_a_chunk_never_grows() {
        let (mut encoder, mut decoder) = (Encoder::new(SIZE), Decoder::new(SIZE));
        let texts = [
            rows(SIZE),
            rows(1),
            rows(100),
            rows(SIZE + 5000),
            random(SIZE),
            random(SIZE + crate::chunk::pool::TAILROOM),
            random(17),
            vec![0; SIZE],
            vec![],
        ];
        for (text, compress) in texts.iter().flat_map(|text| ALL.map(|how| (text, how))) {
            let encoded = encoder.encode(chunk(text), compress, [9; 32]);
            assert!(encoded.buffer.len() <= text.len());
            assert_eq!(encoded.digest, [9; 32]);
            let as_it_is = encoded.codec == Codec::None.number();
            assert_eq!(as_it_is, encoded.buffer.len() == text.len());
            let decoded = decoder.decode(encoded).unwrap();
            assert!(
                decoded.buffer.data() == text,
                "{compress:?} of {} bytes",
                text.len()
            );
        }
    }

    #[test]
    fn what_is_longer_than_a_chunk_goes_into_one_or_not_at_all() {
        let mut decoder = Decoder::new(SIZE);
        let large = |text: &[u8]| {
            let mut buffer = Buffer::loose(4 * SIZE);
            buffer.room()[..text.len()].copy_from_slice(text);
            buffer.set_len(text.len());
            let place = ChunkPlace {
                raw_len: text.len() as u32,
                ..chunk(b"").place
            };
            Chunk { place, buffer }
        };
        let text = rows(4 * SIZE);
        for compress in [Compress::Zstd(3), Compress::Lzma(1)] {
            let into = || Buffer::loose(SIZE);
            let made = |text: &[u8], most| {
                Encoder::encode_large(&large(text), compress, [9; 32], into(), most)
            };
            let encoded = made(&text, SIZE).expect("it shrinks");
            let length = encoded.buffer.len();
            assert!(
                made(&text, length - 1).is_none(),
                "no room for the last byte"
            );
            assert!(made(&random(4 * SIZE), SIZE).is_none());
            // Two packs that are not full: all of it would fit, and a little more.
            assert!(made(&random(SIZE / 2), SIZE).is_none());
            let again = made(&text, SIZE).expect("as before");
            assert!(decoder.decode(again).is_err(), "longer than a chunk");
            let decoded = decoder
                .decode_into(encoded, Buffer::loose(4 * SIZE))
                .unwrap();
            assert!(decoded.buffer.data() == text, "{compress:?}");
            let short = made(&text, SIZE).expect("as before");
            assert!(decoder.decode_into(short, Buffer::loose(2 * SIZE)).is_err());
        }
    }

    #[test]
    fn each_codec_compresses_rows_under_its_number() {
        let mut encoder = Encoder::new(SIZE);
        let codecs = ALL.map(|compress| {
            let encoded = encoder.encode(chunk(&rows(SIZE)), compress, [0; 32]);
            assert!(compress == Compress::None || encoded.buffer.len() < SIZE / 2);
            encoded.codec
        });
        assert_eq!(codecs, [2, 0, 1, 2, 2, 3, 4]);
    }

    #[test]
    fn an_announced_length_that_is_wrong_by_one_is_an_error() {
        let (mut encoder, mut decoder) = (Encoder::new(SIZE), Decoder::new(SIZE));
        for compress in ALL {
            for wrong in [-1, 1] {
                let mut encoded = encoder.encode(chunk(&rows(SIZE)), compress, [0; 32]);
                encoded.place.raw_len = encoded.place.raw_len.wrapping_add_signed(wrong);
                assert!(decoder.decode(encoded).is_err(), "{compress:?} {wrong}");
            }
            let mut encoded = encoder.encode(chunk(&rows(SIZE)), compress, [0; 32]);
            encoded.place.raw_len = u32::MAX;
            assert!(matches!(
                decoder.decode(encoded),
                Err(DecodeError::Length { .. })
            ));
        }
    }

    #[test]
    fn what_did_not_shrink_leaves_the_encoder_whole() {
        let (noise, rows) = (random(SIZE), rows(SIZE));
        for compress in ALL {
            let (mut encoder, mut decoder) = (Encoder::new(SIZE), Decoder::new(SIZE));
            for data in [&noise[..], &rows, &noise, &noise[..1], &rows] {
                let encoded = encoder.encode(chunk(data), compress, [0; 32]);
                // Exactly the output of a new encoder.
                let fresh = Encoder::new(SIZE).encode(chunk(data), compress, [0; 32]);
                assert_eq!(encoded.codec, fresh.codec, "{compress:?}");
                assert!(encoded.buffer.data() == fresh.buffer.data(), "{compress:?}");
                let decoded = decoder.decode(encoded).unwrap();
                assert!(decoded.buffer.data() == data, "{compress:?}");
            }
        }
    }

    #[test]
    fn a_bomb_stops_at_the_announced_length() {
        let (mut encoder, mut decoder) = (Encoder::new(SIZE), Decoder::new(SIZE));
        for compress in [
            Compress::Lz4,
            Compress::Zstd(1),
            Compress::Gzip(1),
            Compress::Lzma(1),
        ] {
            let mut encoded = encoder.encode(chunk(&[0; SIZE]), compress, [0; 32]);
            encoded.place.raw_len = 1000;
            assert!(matches!(
                decoder.decode(encoded),
                Err(DecodeError::Garbage(_))
            ));
        }
    }

    #[test]
    fn bytes_behind_the_end_are_an_error() {
        let (mut encoder, mut decoder) = (Encoder::new(SIZE), Decoder::new(SIZE));
        for compress in ALL {
            let mut encoded = encoder.encode(chunk(&rows(SIZE)), compress, [0; 32]);
            let len = encoded.buffer.len();
            encoded.buffer.room()[len..len + 5].fill(0);
            encoded.buffer.set_len(len + 5);
            assert!(decoder.decode(encoded).is_err(), "{compress:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_or_a_chunk_of_the_announced_length(
            codec in 0u8..7, data in prop::collection::vec(any::<u8>(), 0..300),
            raw_len in 0u32..5000, cut in prop::option::of((0usize..4, any::<u16>(), any::<u8>()))
        ) {
            let (mut encoder, mut decoder) = (Encoder::new(SIZE), Decoder::new(SIZE));
            let encoded = match cut {
                // Valid except for one byte.
                Some((which, at, byte)) => {
                    let how = [
                        Compress::Lz4,
                        Compress::Zstd(1),
                        Compress::Gzip(1),
                        Compress::Lzma(1),
                    ][which];
                    let mut encoded = encoder.encode(chunk(&rows(4000)), how, [0; 32]);
                    let at = usize::from(at) % encoded.buffer.len();
                    encoded.buffer.room()[at] ^= byte;
                    encoded
                }
                None => {
                    let Chunk { mut place, buffer } = chunk(&data);
                    place.raw_len = raw_len;
                    EncodedChunk { place, digest: [0; 32], codec, buffer }
                }
            };
            let announced = encoded.place.raw_len as usize;
            if let Ok(decoded) = decoder.decode(encoded) {
                prop_assert_eq!(decoded.buffer.len(), announced);
            }
        }
    }
}
