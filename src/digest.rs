//! The digest of each kind of data, and how the digests of chunks become the digest of their file.
//!
//! | of | digest |
//! |---|---|
//! | an entry of no bytes | the BLAKE3 of no bytes |
//! | a chunk that is its whole entry | its BLAKE3 (`whole`) |
//! | a chunk of a longer entry | the chaining value of its subtree in the entry's BLAKE3 |
//! | a chunk of a pipe that is no subtree, because the producer paused | its own BLAKE3 |
//! | a range of zeros as a chunk | none, [`NONE`]: its offset and length say everything |
//! | a pack | the BLAKE3 of its table, which contains the BLAKE3 of every file in it |
//!
//! A chunk's size is a power of two (the last may be shorter), and its offset a multiple of that.
//! So a chunk is a subtree of BLAKE3's own tree. [`Tree`] merges the values of chunks into the true
//! BLAKE3 of the file, as `b3sum` prints it, without reading the bytes again. A chaining value
//! depends on its offset, so the value of zeros cannot be reused: the root of a file with holes
//! requires hashing their zeros.

pub mod pipe;
mod tree;

use blake3::hazmat::{HasherExt, max_subtree_len};

pub use tree::Tree;

/// A BLAKE3 hash or chaining value.
pub type Digest = [u8; 32];

/// A placeholder where there is no digest.
pub const NONE: Digest = [0; 32];

/// The digest of a chunk of a file. With `whole`, the bytes are the entire file and this is its
/// root hash. Otherwise it is the chaining value of the subtree at `offset`. If no subtree at that
/// offset can be this long, and for no bytes, it is their own BLAKE3.
pub fn of_range(data: &[u8], offset: u64, whole: bool) -> Digest {
    if whole || data.is_empty() || !may_be_subtree(offset, data.len() as u64) {
        return blake3::hash(data).into();
    }
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset).update(data);
    hasher.finalize_non_root()
}

/// True if `len` bytes at `offset` have a chaining value.
fn may_be_subtree(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(blake3::CHUNK_LEN as u64)
        && max_subtree_len(offset).is_none_or(|most| len <= most)
}

/// Like [`of_range`] for `len` zeros. Takes a second per 4.5 GB or so.
pub fn of_zeros(offset: u64, len: u64, whole: bool) -> Digest {
    // Large enough for BLAKE3 to process many blocks at once, small enough for the CPU cache.
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

/// The result of adding a chunk's digest to a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    New,
    /// The chunk was already there, with the same value.
    Same,
    /// The chunk was there with another value, so the source changed between two reads. The first
    /// value stays.
    Differs,
    /// The chunk was there, but its value has been merged and can no longer be compared. If the new
    /// value differs, so will the roots of the two ends, because each end keeps its first value.
    Merged,
    /// Part of the range was already there, and stays. The rest was not, and nothing was added.
    Partly,
    /// The file has no chunk at this offset, or no subtree with exactly this range.
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
