//! A set of numbers kept as ranges, such as acknowledged or finished chunks. Adjacent ranges
//! merge, so the memory depends on the number of ranges, not on the number of elements.

use std::collections::BTreeMap;
use std::ops::Range;

/// Half-open ranges of `u64`, neither touching nor overlapping.
///
/// ```
/// use fastcp::chunk::ranges::RangeSet;
///
/// let mut done = RangeSet::new();
/// done.insert(0..4);
/// assert_eq!(done.insert(2..8), 4, "the others were there");
/// done.insert(10..12);
/// assert!(done.iter().eq([0..8, 10..12]));
/// assert!(done.missing(12).eq([8..10]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// End by start.
    ranges: BTreeMap<u64, u64>,
    count: u64,
}

impl RangeSet {
    pub fn new() -> RangeSet {
        RangeSet::default()
    }

    /// Returns how many of `range`'s numbers are new. An empty or reversed range has none.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let Range { mut start, mut end } = range;
        let mut known = 0;
        // From the last range that starts at or before `end`, down to one that ends before
        // `start`.
        while let Some((&other_start, &other_end)) = self.ranges.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            known += other_end - other_start;
            self.ranges.remove(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.ranges.insert(start, end);
        let new = (end - start) - known;
        self.count += new;
        new
    }

    /// Removes all numbers of `range`. Returns how many were in the set.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let mut removed = 0;
        while let Some((&start, &end)) = self.ranges.range(..range.end).next_back() {
            if range.is_empty() || end <= range.start {
                break;
            }
            self.ranges.remove(&start);
            if start < range.start {
                self.ranges.insert(start, range.start);
            }
            if range.end < end {
                self.ranges.insert(range.end, end);
            }
            removed += end.min(range.end) - start.max(range.start);
        }
        self.count -= removed;
        removed
    }

    /// Returns true if `number` is new. `u64::MAX`, which no correct peer uses, is never inserted.
    pub fn insert_one(&mut self, number: u64) -> bool {
        self.insert(number..number.saturating_add(1)) > 0
    }

    /// Removes and returns the range with the lowest numbers. The set may keep some memory for
    /// later use.
    pub fn pop_first(&mut self) -> Option<Range<u64>> {
        let (start, end) = self.ranges.pop_first()?;
        self.count -= end - start;
        Some(start..end)
    }

    pub fn contains(&self, number: u64) -> bool {
        self.range_of(number).is_some()
    }

    /// The lowest number from `from` on that is not in the set.
    pub fn next_missing(&self, from: u64) -> u64 {
        self.range_of(from).map_or(from, |range| range.end)
    }

    /// True for an empty range.
    pub fn contains_all(&self, range: Range<u64>) -> bool {
        range.is_empty()
            || self
                .range_of(range.start)
                .is_some_and(|found| range.end <= found.end)
    }

    pub fn contains_any(&self, range: Range<u64>) -> bool {
        !range.is_empty()
            && self
                .ranges
                .range(..range.end)
                .next_back()
                .is_some_and(|(_, &end)| range.start < end)
    }

    /// Numbers in the set.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number of ranges, which determines the set's memory and its size on the wire.
    pub fn fragments(&self) -> usize {
        self.ranges.len()
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// True if the set contains all of `0..n`.
    pub fn is_full(&self, n: u64) -> bool {
        self.contains_all(0..n)
    }

    /// The parts of `0..n` that are not in the set, in ascending order.
    pub fn missing(&self, n: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = 0;
        self.iter()
            .take_while(move |range| range.start < n)
            .chain(std::iter::once(n..n))
            .map(move |range| {
                let gap = at..range.start;
                at = range.end;
                gap
            })
            .filter(|gap| !gap.is_empty())
    }

    fn range_of(&self, number: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.ranges.range(..=number).next_back()?;
        (number < end).then_some(start..end)
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> RangeSet {
        let mut set = RangeSet::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

impl Extend<Range<u64>> for RangeSet {
    fn extend<I: IntoIterator<Item = Range<u64>>>(&mut self, ranges: I) {
        ranges.into_iter().for_each(|range| {
            self.insert(range);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const N: u64 = 60;

    proptest! {
        #[test]
        fn a_range_set_is_a_set_of_numbers(
            inserts in prop::collection::vec((0..N, 0..12u64), 0..30), probe in 0..N, len in 0..12u64
        ) {
            let (mut set, mut model) = (RangeSet::new(), BTreeSet::new());
            for (start, len) in inserts {
                let before = model.len();
                model.extend(start..start + len);
                prop_assert_eq!(set.insert(start..start + len), (model.len() - before) as u64);
            }
            prop_assert_eq!(set.count(), model.len() as u64);
            prop_assert!(set.iter().flatten().eq(model.iter().copied()));
            prop_assert!(set.missing(N).flatten().eq((0..N).filter(|n| !model.contains(n))));
            for (one, next) in set.iter().zip(set.iter().skip(1)) {
                prop_assert!(one.end < next.start, "neighbours are merged");
            }
            let range = probe..probe + len;
            prop_assert_eq!(set.contains(probe), model.contains(&probe));
            prop_assert_eq!(set.contains_all(range.clone()), range.clone().all(|n| model.contains(&n)));
            prop_assert_eq!(set.contains_any(range.clone()), range.clone().any(|n| model.contains(&n)));
            prop_assert_eq!(set.is_full(probe), (0..probe).all(|n| model.contains(&n)));
            prop_assert_eq!(set.iter().collect::<RangeSet>(), set.clone());
            let mut rest = set.clone();
            let removed = range.clone().filter(|n| model.contains(n)).count() as u64;
            prop_assert_eq!(rest.remove(range.clone()), removed);
            prop_assert_eq!(rest.count(), set.count() - removed);
            let left = model.iter().copied().filter(|n| !range.contains(n));
            prop_assert!(rest.iter().flatten().eq(left));
            let taken: Vec<_> = std::iter::from_fn(|| set.pop_first()).collect();
            prop_assert!(taken.into_iter().flatten().eq(model));
            prop_assert_eq!(set, RangeSet::new());
        }
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges)]
    fn the_ends_of_the_numbers_are_ordinary() {
        let mut set = RangeSet::new();
        assert_eq!(set.insert(5..3), 0);
        assert_eq!(set.insert(u64::MAX - 1..u64::MAX), 1);
        assert_eq!(set.insert(0..u64::MAX), u64::MAX - 1);
        assert!(set.is_full(u64::MAX) && !set.contains(u64::MAX));
        assert_eq!((set.fragments(), set.missing(u64::MAX).count()), (1, 0));
    }
}
