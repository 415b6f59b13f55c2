//! A chunk in the cache, and the key of its file.

use crate::chunk::pack::TableForm;
use crate::chunk::{ChunkKind, EncodedChunk};
use crate::digest::Digest;
use crate::manifest::{Entry, Timestamp};

/// The device number in the key of a pack; no file has it.
pub(super) const PACKS: u64 = u64::MAX - 1;

/// Identifies bytes: a file in its state when it was opened. A changed file has another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey {
    pub(super) dev: u64,
    pub(super) ino: u64,
    pub(super) rdev: u64,
    pub(super) size: u64,
    pub(super) mtime: (i64, u32),
    pub(super) ctime: (i64, u32),
}

impl CacheKey {
    /// The one pipe of a copy. No file has this key.
    pub const PIPE: CacheKey = CacheKey {
        dev: u64::MAX,
        ino: u64::MAX,
        rdev: 0,
        size: u64::MAX,
        mtime: (0, 0),
        ctime: (0, 0),
    };

    /// The key of a pack. It includes entry numbers, so equal keys mean equal packs in every
    /// session.
    pub fn of_pack<'a>(entries: impl Iterator<Item = &'a Entry>, form: TableForm) -> CacheKey {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[u8::from(form == TableForm::Columns)]);
        for entry in entries {
            let (key, name) = (CacheKey::of(entry), entry.name.as_bytes());
            for number in [entry.id, entry.parent, key.dev, key.ino, key.size] {
                hasher.update(&number.to_le_bytes());
            }
            for (s, ns) in [key.mtime, key.ctime] {
                hasher.update(&s.to_le_bytes());
                hasher.update(&ns.to_le_bytes());
            }
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name);
        }
        let hash = hasher.finalize();
        let part = |nth: usize| {
            let bytes = &hash.as_bytes()[8 * nth..][..8];
            u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
        };
        CacheKey {
            dev: PACKS,
            ino: part(0),
            rdev: part(1),
            size: 0,
            mtime: (0, 0),
            ctime: (0, 0),
        }
    }

    pub(super) fn is_pack(&self) -> bool {
        self.dev == PACKS
    }

    pub fn of(entry: &Entry) -> CacheKey {
        let time = |time: Timestamp| (time.s, time.ns);
        CacheKey {
            dev: entry.dev,
            ino: entry.ino,
            rdev: entry.rdev,
            size: entry.size,
            mtime: time(entry.mtime),
            ctime: time(entry.ctime),
        }
    }
}

/// An encoded chunk, without its place and its seal, which each session adds.
#[derive(Debug)]
pub struct CachedChunk {
    pub digest: Digest,
    /// The codec's number on the wire.
    pub codec: u8,
    /// Bytes after decoding.
    pub raw_len: u32,
    /// All zeros, so no bytes are sent.
    pub is_zeros: bool,
    /// Digest and size of each file in a pack, in order.
    pub members: Vec<(Digest, u64)>,
    pub bytes: Box<[u8]>,
}

impl CachedChunk {
    pub fn of(encoded: &EncodedChunk) -> CachedChunk {
        CachedChunk {
            digest: encoded.digest,
            codec: encoded.codec,
            raw_len: encoded.place.raw_len,
            is_zeros: encoded.place.kind == ChunkKind::Zeros,
            members: Vec::new(),
            bytes: encoded.buffer.data().into(),
        }
    }
}
