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

pub mod line;
pub mod pipe;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;

use blake3::hazmat::{
    HasherExt, Mode, max_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};

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

/// The BLAKE3 of a small file, all of which is read at once. None unless it has exactly `size` bytes.
///
/// # Errors
/// If it cannot be read.
pub fn of_small(file: impl Read, size: u64) -> io::Result<Option<Digest>> {
    let mut bytes = Vec::with_capacity(size as usize + 1);
    file.take(size + 1).read_to_end(&mut bytes)?;
    let is_whole = bytes.len() as u64 == size;
    Ok(is_whole.then(|| of_range(&bytes, 0, true)))
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

/// Combines the digests of a file's chunks into the digest of the file. Two neighbours are merged
/// as soon as both are there, so only the frontier is kept. That is a few values for chunks that
/// arrive nearly in order, and never more than half the number of chunks.
///
/// ```
/// use fastcp::digest::{Tree, of_range};
///
/// let file = vec![7; 5000];
/// let mut tree = Tree::new(5000, 2048);
/// for offset in [4096, 0, 2048] {
///     let chunk = &file[offset..5000.min(offset + 2048)];
///     tree.add(offset as u64, of_range(chunk, offset as u64, false));
/// }
/// assert_eq!(tree.root(), Some(*blake3::hash(&file).as_bytes()));
/// ```
pub struct Tree {
    size: u64,
    chunk_size: u64,
    /// Number of chunks in the file.
    chunks: u64,
    /// Keyed by first chunk; no two overlap. A value without a right neighbour moves up unchanged.
    nodes: BTreeMap<u64, TreeNode>,
    root: Option<Digest>,
}

struct TreeNode {
    /// Level 0 is a single chunk; level n covers `1 << n` chunks, or fewer at the file's end.
    level: u32,
    value: Digest,
}

impl Tree {
    /// For a file of `size` bytes in chunks of `chunk_size`, a power of two and at least 1024.
    pub fn new(size: u64, chunk_size: u64) -> Tree {
        assert!(chunk_size.is_power_of_two() && chunk_size >= blake3::CHUNK_LEN as u64);
        Tree {
            size,
            chunk_size,
            chunks: size.div_ceil(chunk_size),
            nodes: BTreeMap::new(),
            root: (size == 0).then(|| blake3::hash(b"").into()),
        }
    }

    /// Adds the digest of the chunk at `offset` from [`of_range`] (`whole` for an
    /// only chunk). Chunks may come in any order. A second digest for the same chunk changes
    /// nothing.
    pub fn add(&mut self, offset: u64, digest: Digest) -> Added {
        if offset >= self.size || !offset.is_multiple_of(self.chunk_size) {
            return Added::Outside;
        }
        self.add_node(0, offset / self.chunk_size, digest)
    }

    /// Like [`add`](Tree::add) for `len` bytes at `offset` that form a subtree of the file: a power
    /// of two of chunks, or fewer at the file's end, at a multiple of that. The value is as from
    /// [`frontier`](Tree::frontier); for the whole file it is the root.
    pub fn add_subtree(&mut self, offset: u64, len: u64, value: Digest) -> Added {
        match self.subtree(offset, len) {
            Some((level, first)) => self.add_node(level, first, value),
            None => Added::Outside,
        }
    }

    /// All values in memory in order, each with its range of bytes. Adding them to an empty tree
    /// with [`add_subtree`](Tree::add_subtree) gives a copy of this one.
    pub fn frontier(&self) -> impl Iterator<Item = (Range<u64>, Digest)> + '_ {
        let whole = self.root.filter(|_| self.size > 0);
        let of_node = |(&first, node): (&u64, &TreeNode)| {
            let chunks = self.chunks_below(node.level, first);
            let end = chunks.end.saturating_mul(self.chunk_size).min(self.size);
            (first * self.chunk_size..end, node.value)
        };
        let whole = whole.map(|root| (0..self.size, root));
        whole.into_iter().chain(self.nodes.iter().map(of_node))
    }

    /// Adds the chunks of a hole; existing chunks stay. Hashes all its bytes, a second per 4.5 GB
    /// or so. Returns `Outside` unless the hole begins and ends at chunk boundaries, otherwise
    /// `New`.
    pub fn add_zeros(&mut self, offset: u64, len: u64) -> Added {
        let end = offset.saturating_add(len);
        let ends_well =
            end == self.size || (end < self.size && end.is_multiple_of(self.chunk_size));
        if len == 0 || !ends_well || !offset.is_multiple_of(self.chunk_size) {
            return Added::Outside;
        }
        let mut at = offset;
        while at < end {
            let step = self.chunk_size.min(end - at);
            self.add(at, of_zeros(at, step, self.chunks == 1));
            at += step;
        }
        Added::New
    }

    /// Adds the subtree of `data` at `offset`, whose value is `value`. If the tree has some of its
    /// chunks already (they were read in an earlier session), adds the others one by one.
    pub fn add_bytes(&mut self, offset: u64, data: &[u8], value: Digest) {
        if self.add_subtree(offset, data.len() as u64, value) != Added::Partly {
            return;
        }
        let step = self.chunk_size;
        for (at, part) in (offset..)
            .step_by(step as usize)
            .zip(data.chunks(step as usize))
        {
            self.add(at, of_range(part, at, false));
        }
    }

    /// The file's BLAKE3, once all chunks are there.
    pub fn root(&self) -> Option<Digest> {
        self.root
    }

    fn add_node(&mut self, level: u32, first: u64, value: Digest) -> Added {
        if let Some(known) = self.find(level, first, value) {
            return known;
        }
        self.merge(level, first >> level, value);
        Added::New
    }

    /// Level and first chunk of the subtree with exactly this range of bytes.
    fn subtree(&self, offset: u64, len: u64) -> Option<(u32, u64)> {
        let end = offset.checked_add(len).filter(|end| *end <= self.size)?;
        let starts_well = offset.is_multiple_of(self.chunk_size);
        if len == 0 || !starts_well || !(end == self.size || end.is_multiple_of(self.chunk_size)) {
            return None;
        }
        let first = offset / self.chunk_size;
        let level = len
            .div_ceil(self.chunk_size)
            .next_power_of_two()
            .trailing_zeros();
        let chunks = first..end.div_ceil(self.chunk_size);
        let is_subtree = first.is_multiple_of(1 << level);
        (is_subtree && self.chunks_below(level, first) == chunks).then_some((level, first))
    }

    /// The chunks of the node of `level` that begins with the chunk `first`.
    fn chunks_below(&self, level: u32, first: u64) -> Range<u64> {
        first..first.saturating_add(1 << level).min(self.chunks)
    }

    /// The state of a node: its value is on the frontier, or it belongs to a node on the frontier,
    /// or some of its chunks do.
    fn find(&self, level: u32, first: u64, value: Digest) -> Option<Added> {
        let chunks = self.chunks_below(level, first);
        if let Some(root) = self.root {
            return Some(compare(chunks == (0..self.chunks), root, value));
        }
        let (&start, node) = self.nodes.range(..chunks.end).next_back()?;
        let held = self.chunks_below(node.level, start);
        if held.end <= chunks.start {
            None
        } else if held.start <= chunks.start && chunks.end <= held.end {
            // The last chunk may have moved up to a higher level by itself.
            Some(compare(held == chunks, node.value, value))
        } else {
            Some(Added::Partly)
        }
    }

    /// Merges upwards from a node as long as the neighbour is there.
    fn merge(&mut self, mut level: u32, mut position: u64, mut value: Digest) {
        loop {
            let width = self.width(level);
            if width == 1 {
                self.root = Some(value);
                return;
            }
            let neighbour = position ^ 1;
            if neighbour < width {
                let Some(other) = self.take(level, neighbour) else {
                    self.nodes
                        .insert(position << level, TreeNode { level, value });
                    return;
                };
                let (left, right) = if position < neighbour {
                    (value, other)
                } else {
                    (other, value)
                };
                value = if width == 2 {
                    merge_subtrees_root(&left, &right, Mode::Hash).into()
                } else {
                    merge_subtrees_non_root(&left, &right, Mode::Hash)
                };
            }
            level += 1;
            position /= 2;
        }
    }

    /// Removes and returns the value of a node, if it is on the frontier.
    fn take(&mut self, level: u32, position: u64) -> Option<Digest> {
        let first = position << level;
        let node = self.nodes.get(&first).filter(|node| node.level == level);
        let value = node?.value;
        self.nodes.remove(&first);
        Some(value)
    }

    /// Number of values in a complete level.
    fn width(&self, level: u32) -> u64 {
        self.chunks.div_ceil(1 << level)
    }
}

/// `value` is the node's own value if `alone`, otherwise a value that the node was merged into.
fn compare(alone: bool, value: Digest, digest: Digest) -> Added {
    match (alone, value == digest) {
        (false, _) => Added::Merged,
        (true, true) => Added::Same,
        (true, false) => Added::Differs,
    }
}
