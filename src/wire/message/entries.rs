//! What is copied: where it lands, what of it is wanted, what of it is done and where it ends.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::manifest::{EntryId, Root, Totals};

use super::Spans;
use super::limits::{self, ROOTS_MAX, SPANS_MAX};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roots {
    #[serde(deserialize_with = "limits::list::<ROOTS_MAX, _, _>")]
    pub roots: Vec<Root>,
    pub totals: Totals,
}

/// The receiver has found where each root lands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landed {
    /// Per root its name relative to the destination directory; empty where its contents land
    /// in that directory itself.
    #[serde(deserialize_with = "limits::list::<ROOTS_MAX, _, _>")]
    pub names: Vec<Vec<u8>>,
    /// Some of it is there from an earlier run: small files are asked about before they are sent.
    pub resumes: bool,
    /// Everything leaves in order there (a pipe): nothing goes into packs, and no chunk is sent
    /// that is so many or more after the first without an acknowledgement.
    pub ordered: bool,
    /// How many those are, also for chunks of a stream that lands as a file. At least 1.
    pub window: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// Most ranges in one [`WantKind`]: all of a file that a copy left in pieces, in some 3 MB.
pub const RANGES_MAX: usize = 1 << 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WantKind {
    /// All of it.
    Fresh,
    /// None of it: it is there, or it failed.
    Skip,
    /// All but these ranges of bytes, whose merged chaining values are given, as a tree's frontier
    /// has them; of a file without a tree whole chunks with any value.
    Have(#[serde(deserialize_with = "limits::list::<RANGES_MAX, _, _>")] Vec<(Span, Digest)>),
    /// Its digest alone: `EntryEnd` with the root, no chunk.
    Digest,
    /// All of it, but of these ranges the digests of chunks first (frame kind `Digest`): what was
    /// there may be the same although its source is not known to be.
    Compare(#[serde(deserialize_with = "limits::list::<RANGES_MAX, _, _>")] Vec<Span>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    pub entry: EntryId,
    pub kind: WantKind,
}

/// Ranges of a file that the receiver said it has and that turned out to be damaged. They are to be
/// sent, each once. Of a small file that the sender asked about it is all of it, which comes in a
/// pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub entry: EntryId,
    /// Bytes, from a grain to a grain; at most [`RANGES_MAX`] of them.
    #[serde(deserialize_with = "limits::list::<RANGES_MAX, _, _>")]
    pub spans: Vec<Span>,
}

/// What is done since the last `Ack`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Chunks whose bytes are verified and written.
    pub chunks: Spans,
    /// Entries that are in place; directories as soon as they are made.
    pub entries: Spans,
    /// Entries that failed along with their directory, of which a `Fault` tells.
    pub failed: Spans,
}

/// No more is announced of an entry: a file's content was read to its end, or a directory's
/// children were all named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryEnd {
    pub entry: EntryId,
    /// Bytes of a file, children of a directory.
    pub length: u64,
    /// The BLAKE3 of a file; None for a directory and for a file with holes that nobody asked for.
    pub root: Option<Digest>,
}

/// The walk is over: every entry was announced or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllSent {
    /// The last number that was given to an entry.
    pub last: EntryId,
    /// Numbers up to it that no entry has.
    #[serde(deserialize_with = "limits::list::<SPANS_MAX, _, _>")]
    pub unused: Vec<Span>,
}

/// A file that is in place, for the list of digests of a client that is at neither end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Below the destination.
    pub path: Vec<u8>,
    pub digest: Digest,
}
