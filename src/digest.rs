//! What a digest stands for, and how the digests of chunks become the digest of their file.
//!
//! | of | digest |
//! |---|---|
//! | an entry of no bytes | its BLAKE3, of nothing |
//! | a chunk that is all of its entry | its BLAKE3 (`whole`) |
//! | a chunk of a longer entry, the last one short | the chaining value of that subtree of the entry's BLAKE3 |
//! | a range of zeros as a chunk | none, [`NONE`]: where it lies and how long it is, is all there is to it |
//! | a pack | the BLAKE3 of its table, which holds the BLAKE3 of every file in it |
//!
//! A chunk is a power of two of bytes at a multiple of itself, so it is a subtree of BLAKE3's own
//! tree, and [`Tree`] merges the chunks' values into the true BLAKE3 of the file, what `b3sum`
//! prints, without a second look at the bytes. A chaining value depends on its offset, therefore
//! zeros have no value that could be kept and used again: those of a hole must be hashed like
//! any others where the root of a file with holes is asked for.

pub mod stream;

use std::collections::BTreeMap;
use std::ops::Range;

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

/// A BLAKE3 hash or chaining value.
pub type Digest = [u8; 32];

/// In the place of a digest where there is none.
pub const NONE: Digest = [0; 32];

/// The digest of a chunk of a file: `whole` if these bytes are all of the file (its root hash),
/// else the chaining value of the subtree at `offset`. No bytes have the root hash of nothing.
///
/// # Panics
/// Where `offset` is not a multiple of 1024, or `data` is longer than a subtree at `offset` can be.
pub fn of_range(data: &[u8], offset: u64, whole: bool) -> Digest {
    if whole || data.is_empty() {
        return blake3::hash(data).into();
    }
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset).update(data);
    hasher.finalize_non_root()
}

/// As [`of_range`] of `len` zeros. Takes a second for some 4.5 GB.
pub fn of_zeros(offset: u64, len: u64, whole: bool) -> Digest {
    // Large enough for BLAKE3 to work on many blocks at once, small enough to stay in cache.
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
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
    if whole || len == 0 {
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

/// The digests of a file's chunks on their way to the file's own. Two neighbours are merged as soon
/// as both are there, so what is held is the frontier: a few values for chunks that come nearly in
/// order, never more than half as many as there are chunks.
pub struct Tree {
    size: u64,
    chunk_size: u64,
    /// Chunks in the file.
    chunks: u64,
    /// By first chunk; no two overlap. A value without a right neighbour is the next level's as
    /// it is.
    nodes: BTreeMap<u64, Node>,
    root: Option<Digest>,
}

struct Node {
    /// Level 0 are the chunks; at level n are `1 << n` of them, or fewer at the file's end.
    level: u32,
    value: Digest,
}

impl Tree {
    /// For a file of `size` bytes in chunks of `chunk_size`, a power of two from 1024.
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

    /// The digest of the chunk at `offset`, as [`of_range`] gives it (whole for an only chunk).
    /// In any order; a second one for the same chunk changes nothing.
    pub fn add(&mut self, offset: u64, digest: Digest) -> Added {
        if offset >= self.size || !offset.is_multiple_of(self.chunk_size) {
            return Added::Outside;
        }
        self.add_node(0, offset / self.chunk_size, digest)
    }

    /// As [`add`](Tree::add) for `len` bytes at `offset` that are one subtree of the file: a power
    /// of two of chunks at a multiple of itself, or what there is of such a run up to the file's
    /// end. Its value is what [`frontier`](Tree::frontier) gives, for all of the file the root.
    pub fn add_subtree(&mut self, offset: u64, len: u64, value: Digest) -> Added {
        match self.subtree(offset, len) {
            Some((level, first)) => self.add_node(level, first, value),
            None => Added::Outside,
        }
    }

    /// All values that are held, each with the bytes it stands for, in their order. Given to
    /// [`add_subtree`](Tree::add_subtree) of another tree they make it what this one is.
    pub fn frontier(&self) -> impl Iterator<Item = (Range<u64>, Digest)> + '_ {
        let whole = self.root.filter(|_| self.size > 0);
        let of_node = |(&first, node): (&u64, &Node)| {
            let chunks = self.chunks_below(node.level, first);
            let end = chunks.end.saturating_mul(self.chunk_size).min(self.size);
            (first * self.chunk_size..end, node.value)
        };
        let whole = whole.map(|root| (0..self.size, root));
        whole.into_iter().chain(self.nodes.iter().map(of_node))
    }

    /// Adds the chunks of a hole; those that are there already stay. Hashes all its bytes, a
    /// second for some 4.5 GB. `Outside` unless it begins at a chunk and ends with one; else `New`.
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

    /// The file's BLAKE3, once all of its chunks are there.
    pub fn root(&self) -> Option<Digest> {
        self.root
    }

    /// Values in memory.
    pub fn held(&self) -> usize {
        self.nodes.len()
    }

    fn add_node(&mut self, level: u32, first: u64, value: Digest) -> Added {
        if let Some(known) = self.find(level, first, value) {
            return known;
        }
        self.merge(level, first >> level, value);
        Added::New
    }

    /// Level and first chunk of the subtree that is this range of bytes.
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

    /// What is known of a node: its value is on the frontier, or it is part of one that is, or
    /// some of its own parts are.
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
            // The last chunk may have come up to a higher level alone.
            Some(compare(held == chunks, node.value, value))
        } else {
            Some(Added::Partly)
        }
    }

    /// Goes up from a node for as long as the neighbours are there.
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
                    self.nodes.insert(position << level, Node { level, value });
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

    /// The value of a node, if it is on the frontier.
    fn take(&mut self, level: u32, position: u64) -> Option<Digest> {
        let first = position << level;
        let node = self.nodes.get(&first).filter(|node| node.level == level);
        let value = node?.value;
        self.nodes.remove(&first);
        Some(value)
    }

    /// Values in a level when all are there.
    fn width(&self, level: u32) -> u64 {
        self.chunks.div_ceil(1 << level)
    }
}

/// `value` is the node's own if `alone`, else one that it was merged into.
fn compare(alone: bool, value: Digest, digest: Digest) -> Added {
    match (alone, value == digest) {
        (false, _) => Added::Merged,
        (true, true) => Added::Same,
        (true, false) => Added::Differs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new()
            .update(&len.to_le_bytes())
            .finalize_xof()
            .fill(&mut bytes);
        bytes
    }

    /// The root by way of chunks that come in the order of `order`'s numbers.
    fn root_by_chunks(data: &[u8], chunk_size: usize, order: &[u64]) -> Digest {
        let mut tree = Tree::new(data.len() as u64, chunk_size as u64);
        let whole = data.len() <= chunk_size;
        let mut chunks: Vec<_> = data.chunks(chunk_size).enumerate().collect();
        chunks.sort_by_key(|(n, _)| order[n % order.len()].wrapping_mul(*n as u64 + 1));
        for (n, chunk) in chunks {
            assert!(tree.held() <= data.len() / chunk_size / 2 + 1);
            let offset = (n * chunk_size) as u64;
            let digest = of_range(chunk, offset, whole);
            assert_eq!(tree.root(), None);
            assert_eq!(tree.add(offset, digest), Added::New);
            assert!(matches!(
                tree.add(offset, digest),
                Added::Same | Added::Merged
            ));
            assert!(matches!(
                tree.add(offset, [7; 32]),
                Added::Differs | Added::Merged
            ));
        }
        assert_eq!(tree.held(), 0);
        tree.root().expect("all chunks are there")
    }

    #[test]
    fn chunks_of_telling_lengths_merge_into_the_true_blake3() {
        const C: usize = 4096;
        for len in [
            0,
            1,
            1024,
            1025,
            C - 1,
            C,
            C + 1,
            2 * C,
            3 * C - 5,
            3 * C + 1,
            64 * C + 1,
        ] {
            let data = bytes(len);
            assert_eq!(
                root_by_chunks(&data, C, &[3, 1, 2]),
                *blake3::hash(&data).as_bytes(),
                "{len} bytes"
            );
        }
        const BIG: usize = 1 << 20;
        for len in [BIG - 1, BIG, BIG + 1, 3 * BIG - 5] {
            let data = bytes(len);
            assert_eq!(
                root_by_chunks(&data, BIG, &[5, 1]),
                *blake3::hash(&data).as_bytes(),
                "{len} bytes"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn chunks_in_any_order_merge_into_the_true_blake3(
            len in 0usize..150_000, log in 10u32..15, order in prop::collection::vec(any::<u64>(), 1..50)
        ) {
            let data = bytes(len);
            prop_assert_eq!(root_by_chunks(&data, 1 << log, &order), *blake3::hash(&data).as_bytes());
        }
    }

    /// Chunks of [`SPLIT`] bytes with their values.
    const SPLIT: u64 = 1024;

    fn values(data: &[u8]) -> Vec<(u64, Digest)> {
        let whole = data.len() as u64 <= SPLIT;
        let chunks = data
            .chunks(SPLIT as usize)
            .zip((0..).step_by(SPLIT as usize));
        chunks
            .map(|(chunk, offset)| (offset, of_range(chunk, offset, whole)))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn a_frontier_moves_to_another_tree_and_the_rest_makes_it_whole(
            len in 0usize..80_000, done in prop::collection::vec(any::<bool>(), 80)
        ) {
            let data = bytes(len);
            let (done, rest): (Vec<_>, Vec<_>) =
                values(&data).into_iter().partition(|(offset, _)| done[(offset / SPLIT) as usize]);
            let mut before = Tree::new(len as u64, SPLIT);
            for (offset, value) in &done {
                prop_assert_eq!(before.add(*offset, *value), Added::New);
            }
            let mut after = Tree::new(len as u64, SPLIT);
            let (mut covered, mut at) = (0, 0);
            for (range, value) in before.frontier() {
                prop_assert!(at <= range.start, "in order, and none overlaps");
                at = range.end;
                let size = range.end - range.start;
                covered += size;
                prop_assert_eq!(after.add_subtree(range.start, size, value), Added::New);
                prop_assert_eq!(after.add_subtree(range.start, size, value), Added::Same);
            }
            let bytes_of = |offset: u64| SPLIT.min(len as u64 - offset);
            prop_assert_eq!(covered, done.iter().map(|(offset, _)| bytes_of(*offset)).sum::<u64>());
            prop_assert!(after.frontier().eq(before.frontier()));
            for (offset, value) in rest {
                prop_assert_eq!(after.add(offset, value), Added::New);
            }
            prop_assert_eq!(after.root(), Some(*blake3::hash(&data).as_bytes()));
        }

        #[test]
        fn only_a_subtree_that_overlaps_nothing_is_added(
            chunks in 1u64..40, rest in 0..SPLIT, runs in prop::collection::vec((0u64..44, 0u64..44, 0..SPLIT), 1..20)
        ) {
            let size = chunks * SPLIT - rest;
            let mut tree = Tree::new(size, SPLIT);
            let mut held = vec![false; chunks as usize];
            for (first, count, odd) in runs {
                // Half of them reach the file's end where they are long enough.
                let (offset, odd) = (first * SPLIT, odd * u64::from(odd % 4 == 3));
                let len = (count * SPLIT + odd).min(if odd == 0 { size.saturating_sub(offset) } else { u64::MAX });
                let end = offset + len;
                let level = len.div_ceil(SPLIT).next_power_of_two();
                let is_subtree = len > 0
                    && end <= size
                    && (end == size || end % SPLIT == 0)
                    && first % level == 0
                    && (end == size || len == level * SPLIT);
                let range = (first.min(chunks) as usize)..(end.div_ceil(SPLIT).min(chunks) as usize);
                let some = held[range.clone()].iter().any(|held| *held);
                let all = held[range.clone()].iter().all(|held| *held);
                match tree.add_subtree(offset, len, [1; 32]) {
                    Added::New => {
                        prop_assert!(is_subtree && !some);
                        held[range].fill(true);
                    }
                    Added::Outside => prop_assert!(!is_subtree),
                    Added::Partly => prop_assert!(is_subtree && some && !all),
                    Added::Same | Added::Differs | Added::Merged => {
                        prop_assert!(is_subtree && some);
                    }
                }
            }
        }
    }

    #[test]
    fn a_frontier_of_few_values_stands_for_a_large_file() {
        let mut tree = Tree::new(u64::MAX, 1 << 20);
        assert_eq!(tree.add_subtree(0, 1 << 63, [1; 32]), Added::New);
        assert_eq!(tree.add_subtree(0, 1 << 62, [1; 32]), Added::Merged);
        let (start, len) = (1 << 63, u64::MAX - (1 << 63));
        assert_eq!(tree.add_subtree(start, len - 1, [1; 32]), Added::Outside);
        assert_eq!(tree.add(u64::MAX - 5, [2; 32]), Added::Outside);
        assert_eq!(tree.add(u64::MAX - ((1 << 20) - 1), [2; 32]), Added::New);
        assert_eq!(tree.add_subtree(start, len, [1; 32]), Added::Partly);
        assert_eq!(tree.frontier().count(), 2);
    }

    #[test]
    fn a_file_with_a_hole_has_the_digest_of_its_zeros() {
        const C: usize = 4096;
        let mut data = bytes(9 * C + 100);
        data[2 * C..7 * C].fill(0);
        let mut tree = Tree::new(data.len() as u64, C as u64);
        for n in [0, 1, 9, 8, 7] {
            let chunk = &data[n * C..data.len().min((n + 1) * C)];
            tree.add((n * C) as u64, of_range(chunk, (n * C) as u64, false));
        }
        assert_eq!(
            tree.add_zeros(2 * C as u64, 5 * C as u64 + 1),
            Added::Outside
        );
        assert_eq!(tree.add_zeros(2 * C as u64, 5 * C as u64), Added::New);
        assert_eq!(tree.root(), Some(*blake3::hash(&data).as_bytes()));
        assert_eq!(
            of_zeros(0, 200_001, true),
            *blake3::hash(&vec![0; 200_001]).as_bytes()
        );
        assert_eq!(of_zeros(0, 0, false), *blake3::hash(b"").as_bytes());
    }

    #[test]
    fn chunks_in_order_leave_a_few_values_in_memory() {
        let mut tree = Tree::new(1 << 40, 1 << 20);
        for n in 0..100_000 {
            tree.add(n << 20, [1; 32]);
            assert!(tree.held() <= 20);
        }
    }

    #[test]
    fn an_offset_that_is_no_chunks_is_told() {
        let mut tree = Tree::new(10_000, 4096);
        for offset in [1, 4095, 12_288, u64::MAX, 1 << 63] {
            assert_eq!(tree.add(offset, NONE), Added::Outside);
        }
        assert_eq!(tree.add_zeros(u64::MAX - 4095, u64::MAX), Added::Outside);
    }
}
