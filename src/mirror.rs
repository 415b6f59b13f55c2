//! Mirroring (`--delete`): what the user allows to be deleted at either end, and sums of names, by
//! which a receiver finds the entries that the source does not have.

use serde::{Deserialize, Serialize};

/// Which entries are deleted: at the destination after everything else is in place, at the source
/// before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// `--delete`: entries that the source does not have.
    pub deletes: bool,
    /// `--delete-excluded`: also entries that the filter rules leave out.
    pub deletes_excluded: bool,
    /// Filter rules may protect entries that the source does not have.
    pub may_protect: bool,
    /// `--max-delete`: if more would be deleted, nothing is.
    pub most: Option<MostDeleted>,
    /// `-x`: nothing is deleted on other file systems than that of an operand's destination.
    pub one_file_system: bool,
    /// `--remove-source-files`: files of the source that are copied.
    pub removes_sources: bool,
    /// `--strict`: only those of which all metadata was kept.
    pub removes_kept_only: bool,
    /// The user wants the path of each deleted entry.
    pub lists: bool,
}

/// The largest number of deleted entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MostDeleted {
    Entries(u64),
    /// Of the destination's entries, from 0 to 100.
    Percent(u8),
}

impl MostDeleted {
    /// True if `deleted` of `entries` entries are too many.
    pub fn is_exceeded(self, deleted: u64, entries: u64) -> bool {
        deleted > self.of(entries)
    }

    /// The number, if there are `entries`.
    pub fn of(self, entries: u64) -> u64 {
        match self {
            MostDeleted::Entries(most) => most,
            MostDeleted::Percent(percent) => {
                let most = u128::from(entries) * u128::from(percent) / 100;
                u64::try_from(most).unwrap_or(u64::MAX)
            }
        }
    }
}

impl std::fmt::Display for MostDeleted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MostDeleted::Entries(most) => write!(f, "{most}"),
            MostDeleted::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Names in one sum, about.
const NAMES_IN_SUM: usize = 32;

/// Most sums of a directory, in 8 bytes each; a power of two.
pub const NAME_SUMS_MAX: usize = 4096;

/// Sums of the names in a directory. A hash of each name is added to one of several sums, so that
/// two ends can tell which few of their names may differ. Equal sums of different names are as
/// unlikely as equal 64-bit hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameSums {
    names: usize,
    /// The hash of each name, or [`NAME_SUMS_MAX`] sums if there are more names.
    hashes: Vec<u64>,
}

impl NameSums {
    pub fn add(&mut self, name: &[u8]) {
        let hash = hash(name);
        if self.names < NAME_SUMS_MAX {
            self.hashes.push(hash);
        } else {
            if self.names == NAME_SUMS_MAX {
                self.hashes = sums(&self.hashes, NAME_SUMS_MAX);
            }
            add(&mut self.hashes, hash);
        }
        self.names += 1;
    }

    pub fn len(&self) -> usize {
        self.names
    }

    pub fn is_empty(&self) -> bool {
        self.names == 0
    }

    /// As many sums as suit the number of names: a power of two.
    pub fn sums(&self) -> Vec<u64> {
        let count = (self.names / NAMES_IN_SUM).next_power_of_two();
        self.to(count.min(NAME_SUMS_MAX))
    }

    /// `count` sums, at most [`NAME_SUMS_MAX`] and a power of two.
    fn to(&self, count: usize) -> Vec<u64> {
        if self.names <= NAME_SUMS_MAX {
            return sums(&self.hashes, count);
        }
        let mut folded = vec![0u64; count];
        for (nth, sum) in self.hashes.iter().enumerate() {
            folded[nth % count] = folded[nth % count].wrapping_add(*sum);
        }
        folded
    }

    /// The names here that an end with these sums may not have. None if their number is not
    /// possible.
    pub fn differing(&self, other: &[u64]) -> Option<DifferingNames> {
        let is_possible = other.len().is_power_of_two() && other.len() <= NAME_SUMS_MAX;
        let own = is_possible.then(|| self.to(other.len()))?;
        // No name adds up to 0.
        let differ = own
            .iter()
            .zip(other)
            .map(|(own, other)| *own != 0 && own != other);
        Some(DifferingNames(Some(differ.collect())))
    }
}

/// The names in a directory that the other end may not have.
#[derive(Clone, Debug)]
pub struct DifferingNames(Option<Box<[bool]>>);

impl DifferingNames {
    pub fn all() -> DifferingNames {
        DifferingNames(None)
    }

    /// False if both ends have this name.
    pub fn may_have(&self, name: &[u8]) -> bool {
        let Some(differ) = &self.0 else {
            return true;
        };
        differ[place(hash(name), differ.len())]
    }

    pub fn is_none(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|differ| !differ.contains(&true))
    }

    /// Bytes of memory.
    pub fn weight(&self) -> usize {
        self.0.as_ref().map_or(0, |differ| differ.len())
    }
}

fn hash(name: &[u8]) -> u64 {
    let digest = blake3::hash(name);
    let (first, _) = digest.as_bytes().split_at(8);
    u64::from_le_bytes(first.try_into().unwrap_or_default())
}

fn sums(hashes: &[u64], count: usize) -> Vec<u64> {
    let mut sums = vec![0; count];
    hashes.iter().for_each(|hash| add(&mut sums, *hash));
    sums
}

fn add(sums: &mut [u64], hash: u64) {
    let place = place(hash, sums.len());
    sums[place] = sums[place].wrapping_add(hash);
}

/// `count` is a power of two, so the places of fewer sums follow from those of more.
fn place(hash: u64, count: usize) -> usize {
    hash as usize % count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: impl Iterator<Item = usize>) -> NameSums {
        let mut sums = NameSums::default();
        names.for_each(|nth| sums.add(format!("file {nth}").as_bytes()));
        sums
    }

    #[test]
    fn the_few_names_that_differ_are_found_among_any_number() {
        for count in [0, 1, 31, 32, 100, 4095, 4096, 4097, 100_000] {
            let source = of(0..count);
            let same = of((0..count).rev()).differing(&source.sums()).unwrap();
            assert!(same.is_none(), "{count}");
            // Two more here, one missing.
            let own = of((1..count.max(1)).chain(count + 5..count + 7));
            let differ = own.differing(&source.sums()).unwrap();
            for extra in count + 5..count + 7 {
                assert!(differ.may_have(format!("file {extra}").as_bytes()));
            }
            let shared = 1..count.max(1);
            let may = |nth: &usize| differ.may_have(format!("file {nth}").as_bytes());
            let asked = shared.filter(may).count();
            let most = 3 * (4 * NAMES_IN_SUM).max(count * 2 / NAME_SUMS_MAX);
            assert!(asked <= most, "{asked} of {count}");
        }
    }

    #[test]
    fn impossible_numbers_of_sums_are_refused() {
        let own = of(0..3);
        assert!(own.differing(&[]).is_none());
        assert!(own.differing(&[1, 2, 3]).is_none());
        assert!(own.differing(&vec![0; 2 * NAME_SUMS_MAX]).is_none());
    }

    #[test]
    fn a_share_is_compared_without_rounding() {
        let share = MostDeleted::Percent(10);
        assert!(!share.is_exceeded(10, 100) && share.is_exceeded(11, 100));
        assert!(share.is_exceeded(1, 0) && !share.is_exceeded(0, 0));
        assert!(!MostDeleted::Entries(1).is_exceeded(1, 9));
        assert!(MostDeleted::Entries(0).is_exceeded(1, 9));
    }
}
