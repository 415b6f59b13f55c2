//! The digest of a stream, whose length nobody knows before its end.
//!
//! A piece of a stream is never known to be all of it, so its digest is the chaining value at its
//! offset, always. The first piece is hashed both ways: if nothing follows it, its own BLAKE3 is
//! the stream's, else its chaining value is a part of it. The end of the stream tells which.

use std::collections::BTreeMap;

use blake3::hazmat::{Mode, merge_subtrees_non_root, merge_subtrees_root};

use super::{Added, Digest};

/// The digests of a stream's pieces on their way to its own. They come in any order; what cannot
/// be joined to the beginning yet is kept, so whoever adds bounds how far ahead it may be. Of what
/// is joined some 50 values at most are in memory.
#[derive(Default)]
pub struct StreamTree {
    /// From the beginning without a gap. Two neighbours of one length are merged when a further
    /// piece comes, no earlier: the last merge of all must be the root's.
    joined: Vec<Part>,
    /// Bytes from the beginning without a gap.
    end: u64,
    /// A piece has come after which none may: its length is no power of two.
    is_last: bool,
    /// By offset, with a gap before.
    ahead: BTreeMap<u64, Part>,
    /// Of the first piece, should it be all.
    whole: Option<Digest>,
}

#[derive(Clone, Copy)]
struct Part {
    offset: u64,
    len: u64,
    value: Digest,
}

impl Part {
    /// Whether a subtree of this length may begin here.
    fn is_subtree(&self) -> bool {
        let len = self.len.checked_next_power_of_two();
        self.len > 0 && len.is_some_and(|len| self.offset.is_multiple_of(len))
    }

    /// Whether another piece may follow this one.
    fn is_full(&self) -> bool {
        self.len.is_power_of_two() && self.len >= blake3::CHUNK_LEN as u64
    }
}

impl StreamTree {
    pub fn new() -> StreamTree {
        StreamTree::default()
    }

    /// The BLAKE3 of the first piece, for the case that it is all there is.
    pub fn set_whole(&mut self, digest: Digest) {
        self.whole = Some(digest);
    }

    /// The chaining value of the `len` bytes at `offset`, as [`of_range`](super::of_range) gives
    /// it with `whole` unset. `len` is a power of two from 1024, but for the last piece, and
    /// `offset` a multiple of it.
    ///
    /// `Outside`: no piece can lie there. `Same` and `Differs`: it waits already. `Merged`: it is
    /// part of what has been joined.
    pub fn add(&mut self, offset: u64, len: u64, value: Digest) -> Added {
        let part = Part { offset, len, value };
        let Some(end) = offset.checked_add(len).filter(|_| part.is_subtree()) else {
            return Added::Outside;
        };
        if offset < self.end {
            return if end <= self.end {
                Added::Merged
            } else {
                Added::Outside
            };
        }
        if let Some(known) = self.ahead.get(&offset) {
            return match (known.len == len, known.value == value) {
                (true, true) => Added::Same,
                (true, false) => Added::Differs,
                (false, _) => Added::Outside,
            };
        }
        let overlaps = |other: &Part| other.offset < end && offset < other.offset + other.len;
        let below = self.ahead.range(..offset).next_back();
        let above = self.ahead.range(offset..).next();
        if self.is_last || below.into_iter().chain(above).any(|(_, p)| overlaps(p)) {
            return Added::Outside;
        }
        self.ahead.insert(offset, part);
        while !self.is_last
            && let Some(next) = self.ahead.remove(&self.end)
        {
            self.join(next);
        }
        Added::New
    }

    /// Bytes from the beginning whose pieces are all there.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Values in memory.
    pub fn held(&self) -> usize {
        self.joined.len() + self.ahead.len()
    }

    /// The BLAKE3 of the stream, if `length` bytes are all of it. None while pieces are missing,
    /// where there are more, and where one piece is all but its own BLAKE3 was not given.
    pub fn root(&self, length: u64) -> Option<Digest> {
        if self.end != length || !self.ahead.is_empty() {
            return None;
        }
        let (first, rest) = match self.joined.split_first() {
            None => return Some(blake3::hash(b"").into()),
            Some((_, [])) => return self.whole,
            Some(found) => found,
        };
        // From the right, since every left part is a full subtree and what is right of it is less.
        let (last, between) = rest.split_last()?;
        let right = between.iter().rev().fold(last.value, |right, left| {
            merge_subtrees_non_root(&left.value, &right, Mode::Hash)
        });
        Some(merge_subtrees_root(&first.value, &right, Mode::Hash).into())
    }

    fn join(&mut self, part: Part) {
        while let [.., left, right] = &self.joined[..]
            && left.len == right.len
            && left.offset.is_multiple_of(2 * left.len)
        {
            let merged = Part {
                offset: left.offset,
                len: 2 * left.len,
                value: merge_subtrees_non_root(&left.value, &right.value, Mode::Hash),
            };
            self.joined.truncate(self.joined.len() - 2);
            self.joined.push(merged);
        }
        self.end += part.len;
        self.is_last = !part.is_full();
        self.joined.push(part);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NONE, of_range};
    use super::*;
    use proptest::prelude::*;

    const C: usize = 4096;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n / 7 + n * n) as u8).collect()
    }

    /// Cuts at full chunks; each of those whose bit in `split` is set is cut in half down to 1 KiB.
    fn pieces(len: usize, split: u64) -> Vec<std::ops::Range<usize>> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < len {
            let full = (at + C).min(len);
            if split >> (at / C % 64) & 1 == 1 {
                for step in (at..full).step_by(1024) {
                    pieces.push(step..(step + 1024).min(full));
                }
            } else {
                pieces.push(at..full);
            }
            at = full;
        }
        pieces
    }

    fn root_of(data: &[u8], pieces: &[std::ops::Range<usize>]) -> Option<Digest> {
        let mut tree = StreamTree::new();
        for piece in pieces {
            let part = &data[piece.clone()];
            if piece.start == 0 {
                tree.set_whole(of_range(part, 0, true));
            }
            let (offset, len) = (piece.start as u64, piece.len() as u64);
            let value = of_range(part, offset, false);
            assert_eq!(tree.add(offset, len, value), Added::New);
            let again = tree.add(offset, len, value);
            assert!(matches!(again, Added::Same | Added::Merged));
        }
        assert_eq!(tree.end(), data.len() as u64);
        tree.root(data.len() as u64)
    }

    #[test]
    fn a_stream_of_any_telling_length_has_the_true_blake3() {
        let lens = [0, 1, 1024, 1025, C - 1, C, C + 1, 2 * C, 3 * C - 5, 3 * C];
        for len in lens.into_iter().chain([4 * C, 7 * C + 1, 64 * C]) {
            let data = bytes(len);
            let expected = Some(*blake3::hash(&data).as_bytes());
            assert_eq!(root_of(&data, &pieces(len, 0)), expected, "{len} bytes");
            let halved = pieces(len, 0b1011);
            assert_eq!(root_of(&data, &halved), expected, "{len} bytes, halved");
        }
    }

    proptest! {
        #[test]
        fn a_stream_in_pieces_of_any_order_has_the_true_blake3(
            len in 0usize..20 * C,
            split: u64,
            keys in proptest::collection::vec(any::<u32>(), 100),
        ) {
            let data = bytes(len);
            let mut pieces = pieces(len, split);
            pieces.sort_by_key(|piece| keys[piece.start / 1024 % 100]);
            prop_assert_eq!(root_of(&data, &pieces), Some(*blake3::hash(&data).as_bytes()));
        }
    }

    #[test]
    fn a_length_that_is_not_the_streams_has_no_digest() {
        let mut tree = StreamTree::new();
        tree.add(0, C as u64, [1; 32]);
        tree.add(2 * C as u64, 10, [2; 32]);
        for len in [0, C, C + 1, 2 * C, 2 * C + 10] {
            assert_eq!(tree.root(len as u64), None, "{len}");
        }
        tree.add(C as u64, C as u64, [3; 32]);
        assert!(tree.root(2 * C as u64 + 10).is_some());
        assert_eq!(tree.root(3 * C as u64), None);
    }

    #[test]
    fn pieces_that_no_stream_has_are_told() {
        let mut tree = StreamTree::new();
        for (offset, len) in [
            (0, 0),
            (512, 1024),
            (1024, 2048),
            (u64::MAX, 2),
            (1024, 1500),
        ] {
            assert_eq!(
                tree.add(offset, len, NONE),
                Added::Outside,
                "{offset} {len}"
            );
        }
        assert_eq!(tree.add(8192, 4096, NONE), Added::New);
        assert_eq!(tree.add(8192, 4096, [1; 32]), Added::Differs);
        assert_eq!(tree.add(8192, 1024, NONE), Added::Outside, "another length");
        assert_eq!(tree.add(9216, 1024, NONE), Added::Outside, "inside");
        assert_eq!(tree.add(0, 16384, NONE), Added::Outside, "around");
        assert_eq!(tree.add(0, 1500, NONE), Added::New);
        assert_eq!(
            tree.add(2048, 1024, NONE),
            Added::Outside,
            "after a last one"
        );
    }

    #[test]
    fn a_long_stream_in_order_leaves_a_few_values_in_memory() {
        let mut tree = StreamTree::new();
        for n in 0..100_000 {
            tree.add(n << 20, 1 << 20, [1; 32]);
            assert!(tree.held() <= 50);
        }
    }
}
