//! Files of critical and of random lengths, with their chunks in any order.

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

/// The root from chunks that are added in the order of the numbers in `order`.
fn root_by_chunks(data: &[u8], chunk_size: usize, order: &[u64]) -> Digest {
    let mut tree = Tree::new(data.len() as u64, chunk_size as u64);
    let whole = data.len() <= chunk_size;
    let mut chunks: Vec<_> = data.chunks(chunk_size).enumerate().collect();
    chunks.sort_by_key(|(n, _)| order[n % order.len()].wrapping_mul(*n as u64 + 1));
    for (n, chunk) in chunks {
        assert!(tree.nodes.len() <= data.len() / chunk_size / 2 + 1);
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
    assert_eq!(tree.nodes.len(), 0);
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

/// Chunk size of the tests with [`values`].
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
            // Half of the runs reach the end of the file, if they are long enough.
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
}

#[test]
fn chunks_in_order_leave_a_few_values_in_memory() {
    let mut tree = Tree::new(1 << 40, 1 << 20);
    for n in 0..100_000 {
        tree.add(n << 20, [1; 32]);
        assert!(tree.nodes.len() <= 20);
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

#[test]
fn bytes_of_which_a_part_is_known_fill_the_rest() {
    const C: usize = 4096;
    let data = bytes(7 * C + 5);
    let mut tree = Tree::new(data.len() as u64, C as u64);
    for known in [1, 6] {
        let chunk = &data[known * C..(known + 1) * C];
        tree.add(
            (known * C) as u64,
            of_range(chunk, (known * C) as u64, false),
        );
    }
    for (at, part) in [(0, &data[..4 * C]), (4 * C, &data[4 * C..])] {
        let at = at as u64;
        tree.add_bytes(at, part, of_range(part, at, false));
    }
    assert_eq!(tree.root(), Some(*blake3::hash(&data).as_bytes()));
}

#[test]
fn zeros_have_the_digest_of_their_bytes() {
    for (offset, len, whole) in [
        (0, 200_001, true),
        (0, 0, false),
        (4096, 4096, false),
        (4096, 4097, false),
        (100, 200, false),
    ] {
        let expected = of_range(&vec![0; len], offset, whole);
        assert_eq!(
            of_zeros(offset, len as u64, whole),
            expected,
            "{offset} {len}"
        );
    }
    assert_eq!(
        of_zeros(100, 200, false),
        *blake3::hash(&[0; 200]).as_bytes()
    );
}
