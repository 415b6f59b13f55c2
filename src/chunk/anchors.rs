//! Anchors: the content-defined blocks of a range, by which the receiver finds content that has moved
//! within its existing file.
//!
//! [FastCDC](https://www.usenix.org/conference/atc16/technical-sessions/presentation/xia) cuts bytes
//! into blocks where a rolling hash of the bytes themselves says so. So the same content has the
//! same blocks, wherever it is in a file. The first and the last block of a range are exceptions,
//! since the range begins and ends anywhere in the content.
//!
//! ```text
//! for each block: 0 length u16 | 2 fingerprint, 8 bytes
//! ```
//!
//! Numbers are little-endian. The blocks follow one another and fill the range. A fingerprint is the
//! start of the block's BLAKE3. It only says where to look: the receiver verifies the whole range.

use std::ops::Range;

use fastcdc::v2020::FastCDC;

use crate::digest;

/// Fewest bytes of a block. If blocks were shorter, a sender could try out what an existing file
/// contains.
pub const BLOCK_MIN: usize = 2 << 10;

/// Bytes of a block, on average. Around each insertion, about as much content is not found.
pub const BLOCK_AVERAGE: usize = 8 << 10;

/// Most bytes of a block.
pub const BLOCK_MAX: usize = 32 << 10;

/// Bytes of an anchor.
pub const ANCHOR_LEN: usize = LENGTH + size_of::<Fingerprint>();

const LENGTH: usize = size_of::<u16>();

/// The start of a block's BLAKE3.
pub type Fingerprint = u64;

/// A block of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Bytes from the start of the range.
    pub block: Range<usize>,
    pub fingerprint: Fingerprint,
}

/// Anchors that do not fill their range.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("anchors that do not fill their range")]
pub struct BadAnchors;

/// The content-defined blocks of `data`. The last one ends with `data`.
pub fn blocks(data: &[u8]) -> impl Iterator<Item = Range<usize>> {
    FastCDC::new(data, BLOCK_MIN, BLOCK_AVERAGE, BLOCK_MAX)
        .map(|block| block.offset..block.offset + block.length)
}

pub fn fingerprint(block: &[u8]) -> Fingerprint {
    let digest = digest::of_range(block, 0, true);
    Fingerprint::from_le_bytes(std::array::from_fn(|n| digest[n]))
}

/// The anchors of `data` as they travel. None if it is shorter than a block.
pub fn write(data: &[u8]) -> Option<Vec<u8>> {
    let mut cut: Vec<Range<usize>> = blocks(data).collect();
    // The rest after the last boundary may be too short for a block.
    if let Some(last) = cut.pop_if(|last| last.len() < BLOCK_MIN) {
        cut.last_mut()?.end = last.end;
    }
    let row = |block: Range<usize>| {
        // At most `BLOCK_MAX + BLOCK_MIN`.
        let length = (block.len() as u16).to_le_bytes();
        let fingerprint = fingerprint(&data[block]).to_le_bytes();
        length.into_iter().chain(fingerprint)
    };
    Some(cut.into_iter().flat_map(row).collect())
}

/// The anchors of a range of `len` bytes.
///
/// # Errors
/// If a block is too short, or the blocks do not fill the range.
pub fn read(rows: &[u8], len: usize) -> Result<Vec<Anchor>, BadAnchors> {
    if !rows.len().is_multiple_of(ANCHOR_LEN) || rows.len() > most(len) {
        return Err(BadAnchors);
    }
    let mut anchors = Vec::with_capacity(rows.len() / ANCHOR_LEN);
    let mut at = 0;
    for row in rows.chunks_exact(ANCHOR_LEN) {
        let length: [u8; LENGTH] = std::array::from_fn(|n| row[n]);
        let length = usize::from(u16::from_le_bytes(length));
        if length < BLOCK_MIN {
            return Err(BadAnchors);
        }
        let fingerprint = Fingerprint::from_le_bytes(std::array::from_fn(|n| row[LENGTH + n]));
        let block = at..at + length;
        at = block.end;
        anchors.push(Anchor { block, fingerprint });
    }
    match at == len {
        true => Ok(anchors),
        false => Err(BadAnchors),
    }
}

/// Most bytes that the anchors of a range of `len` bytes have.
pub fn most(len: usize) -> usize {
    len / BLOCK_MIN * ANCHOR_LEN
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes without a pattern.
    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut noise = fastrand::Rng::with_seed(seed);
        std::iter::repeat_with(|| noise.u8(..)).take(len).collect()
    }

    /// Both ends have to cut in the same places, so a new version of the crate must not change them.
    #[test]
    fn the_places_of_boundaries_are_part_of_the_protocol() {
        let data: Vec<u8> = (0u32..20_000)
            .flat_map(|n| (n.wrapping_mul(2_654_435_761) ^ n >> 3).to_le_bytes())
            .collect();
        let ends: Vec<usize> = blocks(&data).map(|block| block.end).collect();
        assert_eq!(
            ends,
            [9617, 19608, 28320, 37370, 44666, 54632, 64691, 73764, 80000]
        );
        let rows = write(&data).unwrap();
        assert_eq!(
            rows[..ANCHOR_LEN],
            [145, 37, 225, 125, 170, 177, 37, 49, 32, 216]
        );
    }

    #[test]
    fn content_that_moved_has_the_same_blocks() {
        let old = noise(1, 256 << 10);
        let new = [&noise(2, 5001), &old[..old.len() - 5001]].concat();
        let of = |data: &[u8]| read(&write(data).unwrap(), data.len()).unwrap();
        let old = of(&old);
        let is_old = |anchor: &&Anchor| old.iter().any(|it| it.fingerprint == anchor.fingerprint);
        let new = of(&new);
        let found: usize = new.iter().filter(is_old).map(|it| it.block.len()).sum();
        assert!(found > 200 << 10, "{found} bytes of {new:?}");
    }

    #[test]
    fn anchors_that_do_not_fill_their_range_are_refused() {
        let row = |len: usize| [&(len as u16).to_le_bytes()[..], &[7; 8]].concat();
        let tried = |lens: &[usize], len| {
            let rows: Vec<u8> = lens.iter().flat_map(|len| row(*len)).collect();
            read(&rows, len).map(|_| ())
        };
        assert_eq!(tried(&[4000, 2096], 6096), Ok(()));
        assert_eq!(tried(&[65535], 65535), Ok(()));
        for (lens, len) in [
            (&[4000, 2047][..], 6047),
            (&[4000, 2096], 6097),
            (&[4000, 2096], 6095),
            (&[4000, 2096, 0], 6096),
            (&[0; 50_000], 1 << 20),
            (&[], 1),
        ] {
            assert_eq!(tried(lens, len), Err(BadAnchors), "{len}");
        }
        assert_eq!(read(&row(4096)[..9], 4096), Err(BadAnchors));
    }

    proptest! {
        #[test]
        fn anchors_fill_their_range(len in 0usize..70_000, kind in 0u64..3) {
            let data = match kind {
                0 => vec![0; len],
                seed => noise(seed, len),
            };
            match write(&data) {
                None => prop_assert!(len < BLOCK_MIN),
                Some(rows) => {
                    prop_assert!(rows.len() <= most(len));
                    let read = read(&rows, len).unwrap();
                    prop_assert!(read.iter().all(|it| it.fingerprint == fingerprint(&data[it.block.clone()])));
                }
            }
        }
    }
}
