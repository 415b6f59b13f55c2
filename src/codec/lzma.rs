//! LZMA: what a link below some 50 Mbit/s is worth. On pages of PostgreSQL its level 4 makes a
//! fifth less of a chunk than zstd 19, in half the time; on program text it makes as much in the
//! same time.

use liblzma::stream::{Action, Filters, LzmaOptions, Status, Stream};

/// Bytes of memory that an encoder takes while it works on a chunk of 1 MiB and what a pack has on
/// top, at level 4 to 9, as `xz -vv` tells. Before and after a chunk it takes none.
pub const ENCODER_BYTES: usize = 16 << 20;

/// Bytes of memory for a large pack and an encoder at work on it, of whichever codec: LZMA takes 48
/// MiB with a dictionary of 4 MiB, as `xz -vv` tells, and more for one that is a little longer.
pub const LARGE_BYTES: usize = 64 << 20;

/// LZMA knows no shorter dictionary.
const DICTIONARY_MIN: usize = 4096;

/// A level that there is.
const LEVEL_MAX: u32 = 9;

/// Bytes written to `into`; None if there is no room for them.
pub(super) fn compress(data: &[u8], into: &mut [u8], level: u32) -> Option<usize> {
    let filters = filters(level.clamp(1, LEVEL_MAX), data.len())?;
    let stream = Stream::new_raw_encoder(&filters).ok()?;
    finish(stream, data, into)
}

/// Bytes written to `into`, if `data` ends where its stream does. `into` is as long as what was
/// compressed.
pub(super) fn decompress(data: &[u8], into: &mut [u8]) -> Option<usize> {
    // All levels are decoded alike.
    let filters = filters(1, into.len())?;
    let stream = Stream::new_raw_decoder(&filters).ok()?;
    finish(stream, data, into)
}

/// The peer has no say in them: so long a dictionary as the chunk, which both ends know.
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
