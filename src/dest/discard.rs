//! /dev/null as the destination of a link test: counts verified chunks in any order and drops them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{FileType, Stat, major, minor};

use crate::chunk::VerifiedChunk;
use crate::manifest::file_type;

/// The device number of /dev/null on Linux, whatever its name is.
const NULL: (u32, u32) = (1, 3);

#[derive(Default)]
pub struct Discard {
    taken: AtomicU64,
}

/// True for /dev/null.
pub fn is_sink(stat: &Stat) -> bool {
    file_type(stat) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == NULL
}

impl Discard {
    /// Counts a chunk. Nothing is kept, so nothing can fail.
    pub fn write(&self, chunk: &VerifiedChunk) {
        let len = u64::from(chunk.place().raw_len);
        self.taken.fetch_add(len, Relaxed);
    }

    /// Bytes so far, including those of chunks that arrived twice.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dev_null_is_known_by_its_number() {
        let is = |path: &str| is_sink(&rustix::fs::stat(path).unwrap());
        assert!(is("/dev/null"));
        assert!(!is("/dev/zero") && !is("/"));
    }
}
