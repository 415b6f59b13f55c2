//! The sender's half of a codec: compresses a chunk, on request only if a sample shows that this
//! is worthwhile.

use zstd::bulk::Compressor;

use super::lzma;
use crate::algorithms::{Codec, Compress};
use crate::chunk::pool::TAILROOM;
use crate::chunk::{Buffer, Chunk, EncodedChunk};
use crate::digest::Digest;

/// The zstd level for samples, regardless of the chunk's method: fast, and good enough to tell
/// whether data shrinks.
const SAMPLE_LEVEL: i32 = 1;

/// The method of "auto" where no tuner measures the best one. Of the levels that run at over 200
/// MB/s per processor core it saves most (on database pages level 1 reached 2.5:1 at 263 MB/s,
/// level 3 2.7:1 at 150 MB/s).
pub const AUTO: Compress = Compress::Zstd(1);

/// Bytes of one sample; three are taken, together 5 % of a chunk. On incompressible data zstd is
/// about ten times faster than on other data, so that sampling costs almost nothing.
const SAMPLE: usize = 16 << 10;

/// A sample that stays above this part of its length is not worth compressing: the savings on the
/// wire are less than the cost in processor time at both ends and in memory copies. An assumption,
/// not measured. A sample has less history than a chunk, so the chunk then shrinks a little
/// better.
const WORTHWHILE: f64 = 0.92;

/// After this many stored chunks in a row, only one in this many is sampled: a film or an archive
/// rarely changes.
const RAW_RUN: u32 = 8;

/// Compresses chunks; one per worker.
pub struct Encoder {
    /// The output buffer. A compressed chunk is copied back, which takes a hundredth of the time
    /// of compressing it. (A second buffer to swap would be too short for LZ4, which needs a tenth
    /// more than its input.)
    scratch: Box<[u8]>,
    lz4: lz4_flex::block::CompressTable,
    zstd: Zstd,
    gzip: Option<(u32, flate2::Compress)>,
    /// Chunks in a row that were not worth compressing.
    raw_run: u32,
    /// The last chunk was worth compressing, so the next is compressed without a sample.
    shrinking: bool,
}

impl Encoder {
    /// For chunks of up to `chunk_size` bytes plus the extra bytes of a pack.
    pub fn new(chunk_size: usize) -> Encoder {
        let longest = chunk_size + TAILROOM;
        let bound = lz4_flex::block::get_maximum_output_size(longest)
            .max(zstd::zstd_safe::compress_bound(longest));
        Encoder {
            scratch: vec![0; bound].into(),
            lz4: lz4_flex::block::CompressTable::large(),
            zstd: Zstd::default(),
            gzip: None,
            raw_run: 0,
            shrinking: false,
        }
    }

    /// Compresses as requested. A chunk that does not shrink is returned unchanged with the codec
    /// "none". `digest` is that of the raw bytes and is only passed on.
    pub fn encode(&mut self, chunk: Chunk, compress: Compress, digest: Digest) -> EncodedChunk {
        let shrunk = self.compress(chunk.buffer.data(), compress);
        self.finish(chunk, shrunk, digest)
    }

    /// Compresses more than a chunk into at most `most` bytes of another buffer; None if it does
    /// not fit, or does not shrink. All memory used for this is freed afterwards.
    pub fn encode_large(
        chunk: &Chunk,
        compress: Compress,
        digest: Digest,
        mut into: Buffer,
        most: usize,
    ) -> Option<EncodedChunk> {
        let data = chunk.buffer.data();
        let most = most.min(data.len().saturating_sub(1));
        let room = &mut into.room()[..most];
        let (codec, len) = match compress {
            Compress::Zstd(level) => {
                let len = Zstd::default().compress(data, room, level)?;
                (Codec::Zstd, len)
            }
            Compress::Lzma(level) => (Codec::Lzma, lzma::compress(data, room, level)?),
            _ => return None,
        };
        into.set_len(len);
        Some(EncodedChunk {
            place: chunk.place,
            digest,
            codec: codec.number(),
            buffer: into,
        })
    }

    /// Like [`encode`](Encoder::encode), but stores the chunk if a sample or the preceding chunks
    /// show that compression is not worthwhile.
    pub fn encode_if_worthwhile(
        &mut self,
        chunk: Chunk,
        compress: Compress,
        digest: Digest,
    ) -> EncodedChunk {
        let shrunk = self.if_worthwhile(chunk.buffer.data(), compress);
        self.finish(chunk, shrunk, digest)
    }

    fn finish(
        &self,
        mut chunk: Chunk,
        shrunk: Option<(Codec, usize)>,
        digest: Digest,
    ) -> EncodedChunk {
        let data = chunk.buffer.data();
        let codec = match shrunk.filter(|(_, len)| *len < data.len()) {
            None => Codec::None,
            Some((codec, len)) => {
                chunk.buffer.room()[..len].copy_from_slice(&self.scratch[..len]);
                chunk.buffer.set_len(len);
                codec
            }
        };
        EncodedChunk {
            place: chunk.place,
            digest,
            codec: codec.number(),
            buffer: chunk.buffer,
        }
    }

    fn compress(&mut self, data: &[u8], compress: Compress) -> Option<(Codec, usize)> {
        match compress {
            Compress::None => None,
            Compress::Auto => self.if_worthwhile(data, AUTO),
            Compress::Lz4 => self.lz4(data),
            Compress::Zstd(level) => self.zstd(data, level),
            Compress::Gzip(level) => self.gzip(data, level),
            Compress::Lzma(level) => self.lzma(data, level),
        }
    }

    fn if_worthwhile(&mut self, data: &[u8], compress: Compress) -> Option<(Codec, usize)> {
        if compress == Compress::None {
            return None;
        }
        let run = self.raw_run;
        let look = run < RAW_RUN || run.is_multiple_of(RAW_RUN);
        let shrunk = if self.shrinking || (look && self.is_worthwhile(data)) {
            self.compress(data, compress)
        } else {
            None
        };
        let len = shrunk.map_or(data.len(), |(_, len)| len);
        self.shrinking = is_shorter(len, data.len());
        self.raw_run = if len < data.len() {
            0
        } else {
            run.wrapping_add(1)
        };
        shrunk
    }

    fn is_worthwhile(&mut self, data: &[u8]) -> bool {
        let last = data.len().saturating_sub(SAMPLE);
        if data.len() <= 3 * SAMPLE {
            // Compressing it costs no more than a sample.
            return true;
        }
        let shrunk: Option<usize> = [0, last / 2, last]
            .into_iter()
            .map(|at| {
                self.zstd
                    .compress(&data[at..at + SAMPLE], &mut self.scratch, SAMPLE_LEVEL)
            })
            .sum();
        shrunk.is_some_and(|len| is_shorter(len, 3 * SAMPLE))
    }

    fn lz4(&mut self, data: &[u8]) -> Option<(Codec, usize)> {
        let len = lz4_flex::block::compress_into_with_table(data, &mut self.scratch, &mut self.lz4);
        Some((Codec::Lz4, len.ok()?))
    }

    fn zstd(&mut self, data: &[u8], level: i32) -> Option<(Codec, usize)> {
        let len = self.zstd.compress(data, &mut self.scratch, level)?;
        Some((Codec::Zstd, len))
    }

    fn lzma(&mut self, data: &[u8], level: u32) -> Option<(Codec, usize)> {
        // No more room than the input: a longer output is useless.
        let len = lzma::compress(data, &mut self.scratch[..data.len()], level)?;
        Some((Codec::Lzma, len))
    }

    fn gzip(&mut self, data: &[u8], level: u32) -> Option<(Codec, usize)> {
        let level = level.clamp(1, 9);
        if self.gzip.as_ref().is_none_or(|(made, _)| *made != level) {
            let made = flate2::Compress::new(flate2::Compression::new(level), false);
            self.gzip = Some((level, made));
        }
        let (_, deflate) = self.gzip.as_mut()?;
        deflate.reset();
        // No more room than the input: a longer output is useless.
        let room = &mut self.scratch[..data.len()];
        let status = deflate.compress(data, room, flate2::FlushCompress::Finish);
        match status {
            Ok(flate2::Status::StreamEnd) => Some((Codec::Gzip, deflate.total_out() as usize)),
            _ => {
                // zlib-rs 0.6.8 at level 1 panics when an unfinished stream is reset.
                self.gzip = None;
                None
            }
        }
    }
}

fn is_shorter(len: usize, raw_len: usize) -> bool {
    (len as f64) < WORTHWHILE * raw_len as f64
}

/// A context, and its current level.
#[derive(Default)]
struct Zstd {
    context: Compressor<'static>,
    level: Option<i32>,
}

impl Zstd {
    fn compress(&mut self, data: &[u8], into: &mut [u8], level: i32) -> Option<usize> {
        if self.level != Some(level) {
            self.context.set_compression_level(level).ok()?;
            self.level = Some(level);
        }
        self.context.compress_to_buffer(data, into).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn what_does_not_shrink_is_soon_looked_at_only_now_and_then() {
        let mut encoder = Encoder::new(1 << 20);
        let (film, text) = (random(1 << 20), vec![b'x'; 1 << 20]);
        for _ in 0..RAW_RUN {
            assert_eq!(encoder.compress(&film, Compress::Auto), None);
        }
        assert!(
            encoder.compress(&film, Compress::Auto).is_none(),
            "chunk 8 is sampled"
        );
        for _ in 1..RAW_RUN {
            assert_eq!(
                encoder.compress(&text, Compress::Auto),
                None,
                "not looked at"
            );
        }
        assert!(
            encoder.compress(&text, Compress::Auto).is_some(),
            "chunk 16 is sampled"
        );
        assert!(
            encoder.compress(&text, Compress::Auto).is_some(),
            "and every one after it"
        );
    }

    #[test]
    fn a_chunk_that_does_not_shrink_behind_one_that_did_goes_as_it_is() {
        let mut encoder = Encoder::new(1 << 20);
        assert!(
            encoder
                .compress(&vec![b'x'; 1 << 20], Compress::Auto)
                .is_some()
        );
        let film = random(1 << 20);
        let tried = encoder.compress(&film, Compress::Auto);
        assert!(
            tried.is_some_and(|(_, len)| len >= film.len()),
            "compressed unseen"
        );
        assert_eq!(
            encoder.compress(&film, Compress::Auto),
            None,
            "and not again"
        );
    }

    #[test]
    fn a_sample_looks_at_the_end_too() {
        let mut encoder = Encoder::new(1 << 20);
        let mut half = random(1 << 20);
        half[400 << 10..].fill(b'x');
        assert!(encoder.is_worthwhile(&half));
        assert!(!encoder.is_worthwhile(&random(1 << 20)));
    }
}
