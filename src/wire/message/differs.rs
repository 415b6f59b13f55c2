//! The receiver's answer to the digest of a chunk that it has in another version.

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::chunk::patch::{PAGE, PAGE_DIGEST_LEN};

/// A chunk that the receiver has in another version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferingChunk {
    pub chunk: u64,
    /// The short digests of the pages that it has at the chunk's place, one after another. Pages
    /// beyond them do not exist.
    #[serde(with = "byte_strings")]
    pub pages: Vec<u8>,
}

impl DifferingChunk {
    /// True if the digests may be those of a chunk of `len` bytes.
    pub fn fits(&self, len: u32) -> bool {
        let most = (len as usize).div_ceil(PAGE) * PAGE_DIGEST_LEN;
        self.pages.len() <= most && self.pages.len().is_multiple_of(PAGE_DIGEST_LEN)
    }
}
