//! Compression ratio and cost of each codec on a sample, with all workers busy.

use std::time::{Duration, Instant};

use super::sample::CodecSample;
use crate::algorithms::{Method, Suite};
use crate::chunk::{Buffer, CHUNK_SIZE, Chunk, ChunkKind, ChunkPlace};
use crate::codec::Encoder;
use crate::digest;
use crate::pipeline::send::encoder_control;
use crate::seal::{Direction, Sealer, Secret};
use crate::transport::frames::SealedChunk;
use crate::tuner::Facts;

/// How long one codec is measured; a started chunk is finished.
const TIME: Duration = Duration::from_millis(300);

/// The bytes and times of one worker, or the sum over all.
#[derive(Clone, Copy, Default)]
struct CodecWork {
    raw: u64,
    made: u64,
    plain: Duration,
    codec: Duration,
}

/// Encodes the sample's chunks with `method` as a copy does: a chunk whose own sample does not
/// shrink stays uncompressed. Also returns a worker's other cost, for the digest and the seal, in
/// nanoseconds per byte.
pub(super) fn measure(
    sample: &CodecSample,
    method: Method,
    workers: usize,
    suite: Suite,
) -> (Facts, f64) {
    let until = Instant::now() + TIME;
    let workers = workers.max(1);
    let order = order(sample.chunks.len());
    let works: Vec<CodecWork> = std::thread::scope(|scope| {
        // As many threads as the system starts. Without any, nothing is measured.
        let working: Vec<_> = (0..workers)
            .map_while(|nth| {
                let endless = order.iter().cycle().skip(nth).step_by(workers);
                let chunks = endless.map(|&at| &sample.chunks[at][..]);
                let thread = std::thread::Builder::new();
                let work = move || work(chunks, method, suite, until);
                thread.spawn_scoped(scope, work).ok()
            })
            .collect();
        // A worker that panicked has reported it and counts as idle.
        let done = working.into_iter().filter_map(|work| work.join().ok());
        done.collect()
    });
    let mut all = CodecWork::default();
    for work in works {
        all.raw += work.raw;
        all.made += work.made;
        all.plain += work.plain;
        all.codec += work.codec;
    }
    let per_byte = |time: Duration| time.as_nanos() as f64 / all.raw.max(1) as f64;
    let facts = Facts {
        ns_per_byte: if method == Method::None {
            0.0
        } else {
            per_byte(all.codec)
        },
        ratio: (all.raw as f64 / all.made.max(1) as f64).max(1.0),
    };
    (facts, per_byte(all.plain))
}

/// An order of `count` chunks in which the first few are from all parts of the sample: a slow
/// codec sees only those. The step is near the golden ratio, whose multiples stay apart.
fn order(count: usize) -> Vec<usize> {
    let is_free_of =
        |step: &usize| (2..=*step).all(|by| !step.is_multiple_of(by) || !count.is_multiple_of(by));
    let near = (count as f64 * 0.618) as usize;
    let step = (near.max(1)..).find(is_free_of).unwrap_or(1);
    (0..count).map(|nth| nth * step % count).collect()
}

/// The loop of one worker.
fn work<'a>(
    chunks: impl Iterator<Item = &'a [u8]>,
    method: Method,
    suite: Suite,
    until: Instant,
) -> CodecWork {
    let sealer = Sealer::new(&Secret::random(), Direction::ToServer, suite);
    let mut encoder = Encoder::new(CHUNK_SIZE);
    let mut buffer = Buffer::loose(CHUNK_SIZE);
    let mut done = CodecWork::default();
    for (number, data) in (0u64..).zip(chunks) {
        buffer.room()[..data.len()].copy_from_slice(data);
        buffer.set_len(data.len());
        let place = ChunkPlace {
            kind: ChunkKind::Range,
            chunk: number,
            entry: 1,
            offset: number * CHUNK_SIZE as u64,
            raw_len: data.len() as u32,
        };
        let began = Instant::now();
        let digest = digest::of_range(buffer.data(), place.offset, false);
        let digested = Instant::now();
        let chunk = Chunk { place, buffer };
        let compress = encoder_control::compress(method);
        let encoded = encoder.encode_if_worthwhile(chunk, compress, digest);
        let encoded_at = Instant::now();
        done.raw += data.len() as u64;
        done.made += encoded.buffer.len() as u64;
        buffer = SealedChunk::seal(encoded, &sealer).into_buffer();
        done.codec += encoded_at - digested;
        done.plain += (digested - began) + encoded_at.elapsed();
        if Instant::now() >= until {
            break;
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_few_chunks_are_from_everywhere_and_none_is_left_out() {
        assert_eq!(order(1), [0]);
        for count in 1..40 {
            let mut all = order(count);
            let spread = all.iter().take(3).max().copied();
            assert!(count < 4 || spread > Some(count / 2), "{all:?}");
            all.sort();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn pages_shrink_by_every_codec_and_chance_by_none() {
        let pages = CodecSample::of_pages();
        let mut noise = vec![0; CHUNK_SIZE];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        let noise = CodecSample {
            chunks: vec![noise],
            read: None,
        };
        let (plain, _) = measure(&pages, Method::None, 1, Suite::Tag);
        assert_eq!((plain.ratio, plain.ns_per_byte), (1.0, 0.0));
        for method in [Method::Lz4, Method::Zstd(1)] {
            let (facts, plain_ns) = measure(&pages, method, 2, Suite::preferred());
            assert!(facts.ratio > 1.5 && facts.ns_per_byte > 0.0, "{facts:?}");
            assert!(plain_ns > 0.0);
            assert_eq!(measure(&noise, method, 2, Suite::Tag).0.ratio, 1.0);
        }
    }
}
