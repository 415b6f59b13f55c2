//! Messages about entries: destination names, requested ranges, acknowledgements and ends.

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::digest::Digest;
use crate::limited_list;
use crate::manifest::{EntryId, Root, Totals};
use crate::mapping::MAPS_MAX;

use super::limits::{ROOTS_MAX, SPANS_MAX};
use super::ranges::{ByteRange, NumberRanges};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roots {
    #[serde(deserialize_with = "limited_list::deserialize::<ROOTS_MAX, _, _>")]
    pub roots: Vec<Root>,
    pub totals: Totals,
}

/// The space that each root needs at the destination, in the order of the roots that follow
/// (`--map`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootSpaces {
    /// One for the operand, and one for each part.
    #[serde(deserialize_with = "limited_list::deserialize::<SPACES_MAX, _, _>")]
    pub each: Vec<RootSpace>,
}

/// Bytes that the files of a root occupy, as in [`Totals`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootSpace {
    pub allocated: u64,
    pub largest: u64,
}

/// The operand and its parts.
const SPACES_MAX: usize = 1 + MAPS_MAX;

/// Sent instead of [`Roots`] if the totals come later, in a separate message. The sender sends
/// nothing else of the copy before them, or before the receiver has said that it needs none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncountedRoots {
    #[serde(deserialize_with = "limited_list::deserialize::<ROOTS_MAX, _, _>")]
    pub roots: Vec<Root>,
}

/// Sent by the receiver when it has resolved the destination of each root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootsResolved {
    /// Each root's name relative to the destination directory; empty where the root's contents go
    /// directly into that directory.
    #[serde(deserialize_with = "limited_list::deserialize::<ROOTS_MAX, _, _>")]
    pub names: Vec<Vec<u8>>,
    /// An earlier run left data, so the sender asks about small files before it sends them.
    pub resumes: bool,
    /// The destination must be written in order (a pipe). The sender makes no packs, and stays
    /// within `window` chunks of the first unacknowledged chunk.
    pub ordered: bool,
    /// Size of that window in chunks, which also applies to a pipe that is written to a file. At
    /// least 1.
    pub window: u32,
}

/// Most ranges in one [`WantKind`]: enough for a fragmented partial file, in some 3 MB.
pub const RANGES_MAX: usize = 1 << 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WantKind {
    /// The whole file.
    Fresh,
    /// Nothing: the file is already there, or it failed.
    Skip,
    /// Everything except these byte ranges. Each comes with its merged chaining value, as in a
    /// tree's frontier. Without a tree the ranges are whole chunks and the values are arbitrary.
    Have(
        #[serde(deserialize_with = "limited_list::deserialize::<RANGES_MAX, _, _>")]
        Vec<(ByteRange, Digest)>,
    ),
    /// Only the digest: `EntryEnd` with the root, no chunk.
    Digest,
    /// The whole file, but for these ranges the digests of chunks first (frame kind `Digest`).
    /// The existing data may be identical, although it is not known to come from this source.
    Compare(
        #[serde(deserialize_with = "limited_list::deserialize::<RANGES_MAX, _, _>")] Vec<ByteRange>,
    ),
    /// Nothing: the existing file is unchanged, by its size and time.
    Unchanged,
    /// Nothing: the existing entry stays, or a missing one is not made.
    Stays,
    /// As `Have`, and of the rest these ranges as in `Compare`. Sent only if both ends send patches.
    HaveAndCompare(
        #[serde(deserialize_with = "limited_list::deserialize::<RANGES_MAX, _, _>")]
        Vec<(ByteRange, Digest)>,
        #[serde(deserialize_with = "limited_list::deserialize::<RANGES_MAX, _, _>")] Vec<ByteRange>,
    ),
    /// Nothing, because this is a dry run: the file would be sent.
    WouldSend,
}

impl WantKind {
    /// The ranges that the receiver has, and those whose digests are sent first.
    pub fn ranges(&self) -> (&[(ByteRange, Digest)], &[ByteRange]) {
        match self {
            WantKind::Have(have) => (have, &[]),
            WantKind::Compare(compare) => (&[], compare),
            WantKind::HaveAndCompare(have, compare) => (have, compare),
            WantKind::Fresh
            | WantKind::Skip
            | WantKind::Digest
            | WantKind::Unchanged
            | WantKind::Stays
            | WantKind::WouldSend => (&[], &[]),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    pub entry: EntryId,
    pub kind: WantKind,
}

/// Everything in a directory but directories and files with several names, which are always
/// announced: the number of entries, and the sum of the first halves of their keyed hashes
/// ([`Entry::sum`](crate::manifest::Entry::sum)) as 128-bit numbers, wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectorySum {
    pub directory: EntryId,
    pub entries: u64,
    pub sum: [u8; 16],
}

/// Most entries in [`EntrySums`].
pub const SUMS_MAX: usize = 4096;

/// Bytes of an entry's hash in [`EntrySums`].
pub const SHORT_SUM: usize = 8;

/// Some entries of a directory whose sum differs, or that is large.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntrySums {
    pub directory: EntryId,
    /// From 0, for each directory.
    pub part: u32,
    /// The first [`SHORT_SUM`] bytes of the hash of each entry, at most [`SUMS_MAX`] of them.
    #[serde(with = "byte_strings")]
    pub sums: Vec<u8>,
}

/// The answer to a [`DirectorySum`] or to [`EntrySums`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumsAnswer {
    pub directory: EntryId,
    pub part: u32,
    /// Number of files that are unchanged.
    pub files: u64,
    pub found: SumsFound,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SumsFound {
    /// All entries are there, unchanged.
    Same,
    /// Some differ; the receiver asks for [`EntrySums`].
    Differ,
    /// No entry is there.
    New,
    /// One bit for each entry, the lowest bit of a byte first: set if the entry is not there or
    /// differs.
    Some(#[serde(with = "byte_strings")] Vec<u8>),
}

/// Ranges of a file that the receiver reported as present and later found damaged. The sender
/// sends each of them once. For a small file that the sender asked about, it is the whole file,
/// sent in a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub entry: EntryId,
    /// Byte ranges that begin and end at grains, at most [`RANGES_MAX`].
    #[serde(deserialize_with = "limited_list::deserialize::<RANGES_MAX, _, _>")]
    pub spans: Vec<ByteRange>,
}

/// Progress since the last `Ack`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Chunks whose data is verified and written.
    pub chunks: NumberRanges,
    /// Finished entries; a directory counts when it is created.
    pub entries: NumberRanges,
    /// Entries that failed with their directory, which a `Fault` reports.
    pub failed: NumberRanges,
}

/// The end of an entry: the sender has read a file to its end, or named all children of a
/// directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryEnd {
    pub entry: EntryId,
    /// Bytes of a file, or children of a directory.
    pub length: u64,
    /// BLAKE3 of a file. None for a directory, and for a file with holes if no digest was
    /// requested.
    pub root: Option<Digest>,
}

/// The end of the walk: every entry was announced or has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllSent {
    /// The highest entry number.
    pub last: EntryId,
    /// Numbers up to `last` that belong to no entry.
    #[serde(deserialize_with = "limited_list::deserialize::<SPANS_MAX, _, _>")]
    pub unused: Vec<ByteRange>,
}

/// The digest of a finished file, for the list that a client at neither end writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Relative to the destination.
    pub path: Vec<u8>,
    pub digest: Digest,
}
