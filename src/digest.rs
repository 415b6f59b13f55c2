//! What a digest stands for, and how the digests of chunks become the digest of their file.
//!
//! | of | digest |
//! |---|---|
//! | an entry of no bytes | its BLAKE3, of nothing |
//! | a chunk that is all of its entry | its BLAKE3 (`whole`) |
//! | a chunk of a longer entry, the last one short | the chaining value of that subtree of the entry's BLAKE3 |
//! | a chunk of a stream that is no subtree, since its producer paused there | its BLAKE3, as if it were all |
//! | a range of zeros as a chunk | none, [`NONE`]: where it lies and how long it is, is all there is to it |
//! | a pack | the BLAKE3 of its table, which holds the BLAKE3 of every file in it |
//!
//! A chunk is a power of two of bytes at a multiple of itself, so it is a subtree of BLAKE3's own
//! tree, and [`Tree`] merges the chunks' values into the true BLAKE3 of the file, what `b3sum`
//! prints, without a second look at the bytes. A chaining value depends on its offset, therefore
//! zeros have no value that could be kept and used again: those of a hole must be hashed like
//! any others where the root of a file with holes is asked for.

pub mod stream;
mod tree;

use blake3::hazmat::{HasherExt, max_subtree_len};

pub use tree::Tree;

/// A BLAKE3 hash or chaining value.
pub type Digest = [u8; 32];

/// In the place of a digest where there is none.
pub const NONE: Digest = [0; 32];

/// The digest of a chunk of a file: `whole` if these bytes are all of the file (its root hash),
/// else the chaining value of the subtree at `offset`; where no subtree can be so long there, and
/// for no bytes, their own BLAKE3.
pub fn of_range(data: &[u8], offset: u64, whole: bool) -> Digest {
    if whole || data.is_empty() || !may_be_subtree(offset, data.len() as u64) {
        return blake3::hash(data).into();
    }
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset).update(data);
    hasher.finalize_non_root()
}

/// Whether `len` bytes at `offset` have a chaining value of their own.
fn may_be_subtree(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(blake3::CHUNK_LEN as u64)
        && max_subtree_len(offset).is_none_or(|most| len <= most)
}

/// As [`of_range`] of `len` zeros. Takes a second for some 4.5 GB.
pub fn of_zeros(offset: u64, len: u64, whole: bool) -> Digest {
    // Large enough for BLAKE3 to work on many blocks at once, small enough to stay in cache.
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let whole = whole || len == 0 || !may_be_subtree(offset, len);
    let mut hasher = blake3::Hasher::new();
    if !whole {
        hasher.set_input_offset(offset);
    }
    let mut rest = len;
    while rest > 0 {
        let step = rest.min(ZEROS.len() as u64);
        hasher.update(&ZEROS[..step as usize]);
        rest -= step;
    }
    if whole {
        hasher.finalize().into()
    } else {
        hasher.finalize_non_root()
    }
}

/// What came of giving a chunk's digest to a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    New,
    /// It was there, with the same value.
    Same,
    /// It was there with another value: the chunk was read twice and the source changed between.
    /// The first value stays.
    Differs,
    /// It was there, but its value has been merged and cannot be compared any more. If this was
    /// another one, the roots of the two ends tell, for each end keeps its first.
    Merged,
    /// Some of it was there, which stays, and the rest was not: nothing was added.
    Partly,
    /// The file has no chunk at this offset, or no subtree that is this range.
    Outside,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_have_the_digest_of_their_bytes() {
        for (offset, len, whole) in [
            (0, 200_001, true),
            (0, 0, false),
            (4096, 4096, false),
            (4096, 4097, false),
            (100, 200, false),
        ] {
            let expected = of_range(&vec![0; len], offset, whole);
            assert_eq!(
                of_zeros(offset, len as u64, whole),
                expected,
                "{offset} {len}"
            );
        }
        assert_eq!(
            of_zeros(100, 200, false),
            *blake3::hash(&[0; 200]).as_bytes()
        );
    }
}
