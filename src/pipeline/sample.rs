//! Recorded ranges read again: which of them, and whether they are what was recorded.

use crate::dest::Partial;
use crate::digest;
use crate::journal::record::Chunk;

/// One in so many recorded chunks is read again before the others are believed,
const SAMPLE_PART: u64 = 100;
/// at least so many,
const SAMPLE_MIN: u64 = 8;
/// and at most so many bytes.
const SAMPLE_BYTES_MAX: u64 = 1 << 30;

/// Bytes of zeros that are read at a time.
pub const STEP: usize = 1 << 20;

/// Reads a recorded range and looks whether it is what was recorded.
pub fn holds(partial: &Partial, chunk: &Chunk, size: u64, buffer: &mut [u8]) -> bool {
    let inside = chunk
        .offset
        .checked_add(chunk.len)
        .is_some_and(|end| end <= size);
    if !inside || chunk.len == 0 {
        return false;
    }
    let Some(digest) = chunk.digest else {
        return holds_zeros(partial, chunk, buffer);
    };
    let Some(data) = buffer.get_mut(..chunk.len as usize) else {
        return false;
    };
    partial.read(data, chunk.offset).is_ok()
        && digest::of_range(data, chunk.offset, chunk.len == size) == digest
}

fn holds_zeros(partial: &Partial, chunk: &Chunk, buffer: &mut [u8]) -> bool {
    let (mut at, end) = (chunk.offset, chunk.offset + chunk.len);
    while at < end {
        let step = (end - at).min(buffer.len() as u64);
        let data = &mut buffer[..step as usize];
        if partial.read(data, at).is_err() || data.iter().any(|&byte| byte != 0) {
            return false;
        }
        at += step;
    }
    true
}

/// Picks chunks at random, each as likely as any other, as many as are to be picked.
pub struct Sample {
    wanted: u64,
    left: u64,
    state: u64,
}

impl Sample {
    pub fn new(chunks: u64, chunk_size: u64) -> Sample {
        let most = SAMPLE_BYTES_MAX / chunk_size;
        let mut seed = [0; 8];
        // Without a source of chance any chunks are as good as others.
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::NONBLOCK);
        Sample {
            wanted: (chunks / SAMPLE_PART).clamp(SAMPLE_MIN, most.max(SAMPLE_MIN)),
            left: chunks,
            state: u64::from_le_bytes(seed) | 1,
        }
    }

    /// Whether the next chunk is one of them. Knuth's algorithm S, with a xorshift for dice.
    pub fn picks(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let picked = self.left > 0 && self.state % self.left < self.wanted;
        self.wanted -= u64::from(picked);
        self.left = self.left.saturating_sub(1);
        picked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_as_large_as_it_is_to_be() {
        for (chunks, expected) in [(1, 1), (8, 8), (500, 8), (10_000, 100), (1 << 20, 1024)] {
            let mut sample = Sample::new(chunks, 1 << 20);
            let picked = (0..chunks).filter(|_| sample.picks()).count();
            assert_eq!(picked, expected, "of {chunks}");
        }
    }
}
