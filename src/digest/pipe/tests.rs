//! Streams cut at any place, with their pieces in any order.

use super::super::NONE;
use super::*;
use proptest::prelude::*;

const C: usize = 4096;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + n * n) as u8).collect()
}

/// Number of values and byte pieces in memory.
fn held(tree: &PipeTree) -> usize {
    tree.joined.len() + tree.ahead.len() + tree.frayed.len()
}

/// Cuts at full chunks, and at these places too.
fn pieces(len: usize, cuts: &[usize]) -> Vec<Range<usize>> {
    let full = (0..=len).step_by(C).chain([0, len]);
    let mut at: Vec<usize> = full.chain(cuts.iter().map(|cut| cut % (len + 1))).collect();
    at.sort_unstable();
    at.dedup();
    at.windows(2).map(|two| two[0]..two[1]).collect()
}

fn piece(data: &[u8], range: &Range<usize>) -> PipePiece {
    let (part, offset) = (&data[range.clone()], range.start as u64);
    PipePiece::new(part, offset, of_range(part, offset, false))
}

fn root_of(data: &[u8], pieces: &[Range<usize>]) -> Option<Digest> {
    let mut tree = PipeTree::new();
    for range in pieces {
        tree.add(piece(data, range));
    }
    assert_eq!(tree.end(), data.len() as u64);
    tree.root(data.len() as u64)
}

#[test]
fn a_stream_of_any_telling_length_has_the_true_blake3() {
    let lens = [0, 1, 1023, 1024, 1025, C - 1, C, C + 1, 2 * C, 3 * C - 5];
    for len in lens.into_iter().chain([3 * C, 4 * C, 7 * C + 1, 64 * C]) {
        let data = bytes(len);
        let expected = Some(*blake3::hash(&data).as_bytes());
        for cuts in [&[][..], &[1024, 2048], &[1], &[500, 700, C + 5], &[len / 2]] {
            assert_eq!(
                root_of(&data, &pieces(len, cuts)),
                expected,
                "{len} {cuts:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn a_stream_in_pieces_of_any_order_has_the_true_blake3(
        len in 0usize..20 * C,
        cuts in proptest::collection::vec(any::<usize>(), 0..60),
        keys in proptest::collection::vec(any::<u32>(), 100),
    ) {
        let data = bytes(len);
        let mut pieces = pieces(len, &cuts);
        pieces.sort_by_key(|piece| keys[piece.start % 100]);
        prop_assert_eq!(root_of(&data, &pieces), Some(*blake3::hash(&data).as_bytes()));
    }

    #[test]
    fn zeros_are_pieces_like_any_others(
        start in 0usize..3 * C, len in 0usize..3 * C, rest in 0usize..C
    ) {
        let mut data = bytes(start + len + rest);
        data[start..start + len].fill(0);
        let mut tree = PipeTree::new();
        tree.add(piece(&data, &(start + len..data.len())));
        tree.add(PipePiece::of_zeros(start as u64, len as u64));
        tree.add(piece(&data, &(0..start)));
        let root = tree.root(data.len() as u64);
        prop_assert_eq!(root, Some(*blake3::hash(&data).as_bytes()));
    }
}

#[test]
fn a_length_that_is_not_the_streams_has_no_digest() {
    let data = bytes(2 * C + 10);
    let mut tree = PipeTree::new();
    tree.add(piece(&data, &(0..C)));
    tree.add(piece(&data, &(2 * C..2 * C + 10)));
    for len in [0, C, C + 1, 2 * C, 2 * C + 10] {
        assert_eq!(tree.root(len as u64), None, "{len}");
    }
    tree.add(piece(&data, &(C..2 * C)));
    assert!(tree.root(2 * C as u64 + 10).is_some());
    assert_eq!(tree.root(3 * C as u64), None);
    assert_eq!(tree.root(2 * C as u64), None);
}

#[test]
fn what_comes_twice_changes_nothing_and_takes_no_memory() {
    let mut tree = PipeTree::new();
    let part = |offset, len, value| Subtree { offset, len, value };
    assert_eq!(tree.add_part(part(8192, 4096, NONE)), Added::New);
    assert_eq!(tree.add_part(part(8192, 4096, NONE)), Added::Same);
    assert_eq!(tree.add_part(part(8192, 4096, [1; 32])), Added::Differs);
    for (offset, len) in [(8192, 1024), (9216, 1024), (0, 16384), (u64::MAX, 2)] {
        let added = tree.add_part(part(offset, len, NONE));
        assert_eq!(added, Added::Outside, "{offset} {len}");
    }
    assert_eq!(tree.add_part(part(0, 4096, NONE)), Added::New);
    assert_eq!(tree.add_part(part(1024, 1024, NONE)), Added::Merged);
    let before = held(&tree);
    for (offset, len) in [(5000, 100), (5000, 100), (5050, 60), (4900, 101), (100, 5)] {
        tree.add(PipePiece::of_zeros(offset, len));
    }
    assert_eq!(held(&tree), before + 1);
    tree.add(PipePiece::of_zeros(u64::MAX - 3, 100));
}

#[test]
fn a_long_stream_in_order_leaves_a_few_values_in_memory() {
    let mut tree = PipeTree::new();
    let value = [1; 32];
    for n in 0..100_000 {
        let (offset, len) = (n << 20, 1 << 20);
        tree.add_part(Subtree { offset, len, value });
        assert!(held(&tree) <= 50);
    }
}
