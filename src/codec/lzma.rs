//! LZMA: worthwhile on links below about 50 Mbit/s. On PostgreSQL pages, level 4 makes a chunk a
//! fifth smaller than zstd 19, in half the time; on program text it reaches the same size in the
//! same time.

use liblzma::stream::{Action, Filters, LzmaOptions, Status, Stream};

/// Memory in bytes of an encoder for a chunk of 1 MiB plus the extra bytes of a pack, at levels 4
/// to 9 (reported by `xz -vv`). It is allocated and freed for each chunk.
pub const ENCODER_BYTES: usize = 16 << 20;

/// Memory in bytes of a large pack and an encoder for it, for any codec. LZMA takes 48 MiB with a
/// dictionary of 4 MiB (reported by `xz -vv`), and more for a slightly longer one.
pub const LARGE_BYTES: usize = 64 << 20;

/// The shortest dictionary that LZMA supports.
const DICTIONARY_MIN: usize = 4096;

/// The highest level.
const LEVEL_MAX: u32 = 9;

/// Bytes written to `into`; None if there is no room for them.
pub(super) fn compress(data: &[u8], into: &mut [u8], level: u32) -> Option<usize> {
    let filters = filters(level.clamp(1, LEVEL_MAX), data.len())?;
    let stream = Stream::new_raw_encoder(&filters).ok()?;
    finish(stream, data, into)
}

/// Bytes written to `into`, if the compressed stream ends at the end of `data`. `into` is as long
/// as the uncompressed data.
pub(super) fn decompress(data: &[u8], into: &mut [u8]) -> Option<usize> {
    // Decoding is the same for all levels.
    let filters = filters(1, into.len())?;
    let stream = Stream::new_raw_decoder(&filters).ok()?;
    finish(stream, data, into)
}

/// The filter chain, on which the peer has no influence: the dictionary is as long as the chunk.
fn filters(level: u32, chunk_len: usize) -> Option<Filters> {
    let mut options = LzmaOptions::new_preset(level).ok()?;
    options.dict_size(u32::try_from(chunk_len.max(DICTIONARY_MIN)).ok()?);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    Some(filters)
}

fn finish(mut stream: Stream, data: &[u8], into: &mut [u8]) -> Option<usize> {
    let status = stream.process(data, into, Action::Finish).ok()?;
    let ended = status == Status::StreamEnd && stream.total_in() == data.len() as u64;
    ended.then_some(stream.total_out() as usize)
}
