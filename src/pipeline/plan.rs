//! One chunk to be sent, and the files that chunks are made of.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use crate::chunk::split::{Cut, Piece};
use crate::digest::{Digest, Tree};
use crate::pipeline::digest_list::Listed;
use crate::source::{Found, SourceFile};

/// A big file that is being sent.
pub struct File {
    pub found: Found,
    pub source: SourceFile,
    pub cut: Mutex<Cut>,
    /// None where nobody needs the digest of a file with holes.
    pub tree: Option<Mutex<Tree>>,
    /// Bytes that were read (or skipped as holes) for the first time.
    pub covered: AtomicU64,
    pub failed: AtomicBool,
    /// The receiver wants the digest and no bytes.
    pub digest_only: bool,
    /// Its path below the destination, for a list of digests.
    pub listed: Option<Listed>,
}

/// A small file that travels in a pack.
pub struct Member {
    pub found: Found,
    pub listed: Option<Listed>,
    /// What was read of it, once it was.
    pub digest: OnceLock<Digest>,
    /// It failed, was told of, and is left out when its pack is read again.
    pub failed: AtomicBool,
}

#[derive(Clone)]
pub enum What {
    Piece { file: Arc<File>, piece: Piece },
    Pack(Arc<Vec<Member>>),
}

impl File {
    /// The BLAKE3 of the whole, once all was read.
    pub fn root(&self) -> Option<Digest> {
        self.tree
            .as_ref()?
            .lock()
            .expect("no panic while held")
            .root()
    }
}

/// One chunk to be read and sent.
pub struct Plan {
    pub chunk: u64,
    pub what: What,
    /// Of the first reading, which every further one must equal.
    pub digest: OnceLock<Digest>,
    /// Times that it arrived damaged.
    pub nacks: AtomicU8,
}
