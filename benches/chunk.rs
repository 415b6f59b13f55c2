//! A worker's steps for one chunk of 1 MiB, without disk and network: digest, encode and seal at
//! the sender, open, decode and verify at the receiver. Also a frame's header alone.
//!
//! `cargo bench --bench chunk` runs all, `cargo bench --bench chunk -- sender/rows` some. Rates are
//! in uncompressed bytes, per core.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use fastcp::algorithms::{Codec, Compress, Suite};
use fastcp::chunk::{Buffer, CHUNK_SIZE, Chunk, ChunkKind, ChunkPlace};
use fastcp::codec::{Decoder, Encoder};
use fastcp::digest;
use fastcp::seal::{Direction, Opener, Sealer, Secret};
use fastcp::transport::frames::SealedChunk;
use fastcp::wire::frame::{FrameHeader, FrameLimits};

const CODECS: [(&str, Compress); 4] = [
    ("none", Compress::None),
    ("lz4", Compress::Lz4),
    ("zstd1", Compress::Zstd(1)),
    ("auto", Compress::Auto),
];

fn place() -> ChunkPlace {
    ChunkPlace {
        kind: ChunkKind::Range,
        chunk: 5,
        entry: 1,
        offset: 4 * CHUNK_SIZE as u64,
        raw_len: CHUNK_SIZE as u32,
    }
}

/// Random bytes that depend on `seed` only, so every run has the same ones.
fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// Pages of 8 KiB like those of a database: rows of numbers, dates, names and a random key, and
/// some free space. zstd level 1 compresses them about 2.5 times.
fn rows() -> Vec<u8> {
    const NAMES: [&str; 6] = ["Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances"];
    let noise = random(1, CHUNK_SIZE);
    let mut bytes = Vec::with_capacity(CHUNK_SIZE + 8192);
    let mut n = 0;
    while bytes.len() < CHUNK_SIZE {
        let page_end = bytes.len() + 8192;
        while bytes.len() < page_end - 600 {
            n += 1;
            let key = &noise[n * 16 % (CHUNK_SIZE - 16)..][..16];
            bytes.extend_from_slice(&(n as u64).to_be_bytes());
            bytes.extend_from_slice(key);
            let name = NAMES[usize::from(key[0]) % NAMES.len()];
            let (cents, day) = (u32::from(key[1]) * 37, key[2] % 28);
            let row = format!("{name}|2026-11-{day:02}|{cents}|shipped by parcel service;");
            bytes.extend_from_slice(row.as_bytes());
        }
        bytes.resize(page_end, 0);
    }
    bytes.truncate(CHUNK_SIZE);
    bytes
}

/// The steps of the sender's worker between reading and sending.
fn send(
    data: &[u8],
    mut buffer: Buffer,
    encoder: &mut Encoder,
    how: Compress,
    sealer: &Sealer,
) -> SealedChunk {
    buffer.room()[..data.len()].copy_from_slice(data);
    buffer.set_len(data.len());
    let place = place();
    let digest = digest::of_range(buffer.data(), place.offset, false);
    let encoded = encoder.encode(Chunk { place, buffer }, how, digest);
    SealedChunk::seal(encoded, sealer)
}

fn chunks(c: &mut Criterion) {
    let secret = Secret::random();
    let limits = FrameLimits::new(CHUNK_SIZE as u32);
    for (kind, data) in [("random", random(0, CHUNK_SIZE)), ("rows", rows())] {
        for (name, how) in CODECS {
            let suite = Suite::preferred();
            let sealer = Sealer::new(&secret, Direction::ToServer, suite);
            let opener = Opener::new(&secret, Direction::ToServer, suite);
            let mut encoder = Encoder::new(CHUNK_SIZE);
            let mut decoder = Decoder::new(CHUNK_SIZE);
            let mut spare = Some(Buffer::loose(CHUNK_SIZE));

            let mut group = c.benchmark_group("sender");
            group.throughput(Throughput::Bytes(CHUNK_SIZE as u64));
            group.bench_function(format!("{kind}/{name}"), |b| {
                b.iter(|| {
                    let buffer = spare.take().expect("given back");
                    let sealed = send(&data, buffer, &mut encoder, how, &sealer);
                    spare = Some(black_box(sealed).into_buffer());
                });
            });
            group.finish();

            let buffer = spare.take().expect("given back");
            let frame = send(&data, buffer, &mut encoder, how, &sealer)
                .bytes()
                .to_vec();
            let mut group = c.benchmark_group("receiver");
            group.throughput(Throughput::Bytes(CHUNK_SIZE as u64));
            group.bench_function(format!("{kind}/{name}"), |b| {
                let arrive = || {
                    let (header_bytes, rest) = frame.split_first_chunk().expect("a header");
                    let header = FrameHeader::parse(header_bytes, &limits).expect("is right");
                    let mut sealed =
                        SealedChunk::receive(header, header_bytes, Buffer::loose(CHUNK_SIZE));
                    sealed.payload_mut().copy_from_slice(rest);
                    sealed
                };
                let work = |sealed: SealedChunk| {
                    let encoded = sealed.open(&opener).expect("opens");
                    let digest = encoded.digest;
                    let chunk = decoder.decode(encoded).expect("decodes");
                    chunk
                        .verify(digest, false)
                        .map_err(|_| "digest")
                        .expect("verifies")
                };
                b.iter_batched(arrive, work, BatchSize::PerIteration);
            });
            group.finish();
        }
    }
}

fn headers(c: &mut Criterion) {
    let limits = FrameLimits::new(CHUNK_SIZE as u32);
    let header = FrameHeader::of(&place(), Codec::Zstd, 400_000, Suite::Aes128Gcm);
    let bytes = header.to_bytes();
    c.bench_function("header/write", |b| b.iter(|| black_box(&header).to_bytes()));
    c.bench_function("header/parse", |b| {
        b.iter(|| FrameHeader::parse(black_box(&bytes), &limits));
    });
}

criterion_group!(benches, chunks, headers);
criterion_main!(benches);
