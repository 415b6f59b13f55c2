//! The data that codecs are measured on: pieces of the user's file, or generated database pages.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cache;
use crate::chunk::CHUNK_SIZE;
use crate::error::{Error, Kind, Result, Side};

/// The most pieces to take, of one chunk each and evenly spaced, and the time limit for reading
/// them. A slow disk gives fewer pieces.
const PIECES: u64 = 16;
const PIECES_TIME: Duration = Duration::from_secs(1);

/// How long and how much is read in order to measure the read rate.
const READ_TIME: Duration = Duration::from_millis(800);
const READ_MAX: u64 = 1 << 30;

/// Generated pages are all alike: more of them would add no information.
const PAGES_LEN: usize = 8 << 20;
const PAGE: usize = 8192;

/// The approximate free room at the end of a page, as rows come and go.
const PAGE_REST: usize = 600;

pub struct CodecSample {
    /// At least one chunk; none is empty or longer than `CHUNK_SIZE`.
    pub chunks: Vec<Vec<u8>>,
    /// How fast the file was read; None for generated data.
    pub read: Option<Read>,
}

/// The rate of reading a file from its beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Read {
    pub bytes_per_s: f64,
    /// The part that was in the page cache before, from 0 to 1.
    pub cached: f64,
}

impl CodecSample {
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    /// Takes pieces of the file, and measures how fast it is read.
    ///
    /// # Errors
    /// `Kind::Read` if it cannot be read, is empty, or is not a regular file.
    pub fn of_file(path: &Path) -> Result<CodecSample> {
        let failed = |cause| Error::io(Kind::Read, Side::Source, path, "cannot read", cause);
        let refused = |message: &str| Error::new(Kind::Read, Side::Source, message).at(path);
        // A FIFO would wait for a writer.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(nix::libc::O_NONBLOCK);
        let file = options.open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(refused("is not a regular file, which --sample needs"));
        }
        if meta.len() == 0 {
            return Err(refused("is empty, so --sample cannot measure it"));
        }
        let read_len = meta.len().min(READ_MAX);
        let cached = cached(&file, read_len);
        let bytes_per_s = read_rate(&file, read_len).map_err(failed)?;
        let chunks = pieces(&file, meta.len()).map_err(failed)?;
        if chunks.is_empty() {
            return Err(refused("became empty while --sample read it"));
        }
        let read = Some(Read {
            bytes_per_s,
            cached,
        });
        Ok(CodecSample { chunks, read })
    }

    /// Generates pages of 8 KiB like a database's: rows of numbers, dates, names and a random key,
    /// and some free room.
    pub fn of_pages() -> CodecSample {
        const NAMES: [&str; 6] = ["Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances"];
        // The same bytes every time, so that the figures of two runs can be compared.
        let mut chance = blake3::Hasher::new().finalize_xof();
        let mut bytes = Vec::with_capacity(PAGES_LEN + PAGE);
        let mut row = 0u64;
        while bytes.len() < PAGES_LEN {
            let page_end = bytes.len() + PAGE;
            while bytes.len() < page_end - PAGE_REST {
                row += 1;
                let mut key = [0; 16];
                chance.fill(&mut key);
                bytes.extend_from_slice(&row.to_be_bytes());
                bytes.extend_from_slice(&key);
                let name = NAMES[usize::from(key[0]) % NAMES.len()];
                let (cents, day) = (u32::from(key[1]) * 37, key[2] % 28);
                let text = format!("{name}|2026-11-{day:02}|{cents}|shipped;");
                bytes.extend_from_slice(text.as_bytes());
            }
            bytes.resize(page_end, 0);
        }
        bytes.truncate(PAGES_LEN);
        CodecSample {
            chunks: bytes.chunks(CHUNK_SIZE).map(<[u8]>::to_vec).collect(),
            read: None,
        }
    }
}

/// The part of `len` bytes in the page cache, checked at `PIECES` places before anything is read.
fn cached(file: &File, len: u64) -> f64 {
    let places = (0..PIECES).map(|nth| nth * (len / PIECES));
    let there = places
        .filter(|&at| cache::is_cached(file, at..at + 1))
        .count();
    there as f64 / PIECES as f64
}

/// Bytes a second, read as a copy would: in order, a chunk at a time.
fn read_rate(file: &File, len: u64) -> std::io::Result<f64> {
    let mut buffer = vec![0; CHUNK_SIZE];
    let began = Instant::now();
    let mut at = 0;
    while at < len && began.elapsed() < READ_TIME {
        match file.read_at(&mut buffer, at)? {
            0 => break,
            got => at += got as u64,
        }
    }
    Ok(at as f64 / began.elapsed().as_secs_f64().max(1e-6))
}

fn pieces(file: &File, len: u64) -> std::io::Result<Vec<Vec<u8>>> {
    let began = Instant::now();
    let mut chunks = Vec::new();
    let chunk = CHUNK_SIZE as u64;
    let count = len.div_ceil(chunk).min(PIECES);
    // Spaced by whole chunks, as a copy cuts the file.
    let apart = len.div_ceil(chunk) / count * chunk;
    for nth in 0..count {
        if began.elapsed() > PIECES_TIME && !chunks.is_empty() {
            break;
        }
        let mut piece = vec![0; CHUNK_SIZE];
        let mut filled = 0;
        while filled < piece.len() {
            match file.read_at(&mut piece[filled..], nth * apart + filled as u64)? {
                0 => break,
                got => filled += got,
            }
        }
        piece.truncate(filled);
        if filled > 0 {
            chunks.push(piece);
        }
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_pieces_from_all_of_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a");
        let part = |nth: usize| vec![nth as u8; CHUNK_SIZE];
        std::fs::write(&path, (0..40).flat_map(part).collect::<Vec<_>>()).unwrap();
        let sample = CodecSample::of_file(&path).unwrap();
        let firsts: Vec<_> = sample.chunks.iter().map(|chunk| chunk[0]).collect();
        assert_eq!(firsts, (0..32).step_by(2).collect::<Vec<_>>());
        assert!(sample.read.unwrap().bytes_per_s > 0.0);
        std::fs::write(&path, "short").unwrap();
        assert_eq!(CodecSample::of_file(&path).unwrap().chunks, [b"short"]);
        std::fs::write(&path, "").unwrap();
        for bad in [&path, temp.path(), &temp.path().join("none")] {
            assert_eq!(CodecSample::of_file(bad).err().unwrap().kind, Kind::Read);
        }
    }

    #[test]
    fn pages_are_made_the_same_every_time() {
        let sample = CodecSample::of_pages();
        assert_eq!(sample.bytes(), PAGES_LEN as u64);
        assert!(sample.chunks == CodecSample::of_pages().chunks);
    }
}
