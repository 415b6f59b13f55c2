//! Directories of several sources that become one at the destination, for example a source `D` and
//! the directory `D` in another source `DIR/`. Their names are remembered, so that no file of one
//! source silently replaces that of another.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use super::names::folded;
use crate::dest::EntrySlot;
use crate::manifest::EntryId;

/// Names that are remembered, in all such directories, at 60 bytes each at most.
const NAMES_MAX: usize = 1 << 19;

/// What a directory of the copy has to do with those of other sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Merging {
    /// No other source can have entries in it.
    #[default]
    Alone,
    /// The first directory at its place; another source may add entries to it.
    First,
    /// A directory of another source came to this place before it.
    Second,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MergeClaim {
    Yours,
    /// Another source has it.
    Taken,
    /// Not all names were remembered, so it is unknown whether another source has this one.
    Unknown,
}

/// The names in directories that sources may share.
#[derive(Default)]
pub(super) struct MergedNames {
    /// By a hash of the directory and the name. Two names with one hash are as rare as damage that no
    /// checksum shows, and the second one is then refused.
    taken: HashMap<u64, Claimant>,
    /// Directories that have claimed a place, until they are opened.
    opening: HashMap<EntryId, Merging>,
    hashing: RandomState,
    has_left_some_out: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Claimant {
    pub id: EntryId,
    pub is_directory: bool,
}

impl MergedNames {
    /// Claims a place for an entry in a directory that is `Merging`. Two directories in one place are
    /// one; of two other entries the second gets none. A second call for the same entry has the same
    /// result. `confuses`: names that differ only in case are one place.
    pub(super) fn claim(
        &mut self,
        above: Merging,
        slot: &EntrySlot,
        confuses: bool,
        new: Claimant,
    ) -> MergeClaim {
        self.claim_within(NAMES_MAX, above, (slot, confuses), new)
    }

    fn claim_within(
        &mut self,
        most: usize,
        above: Merging,
        (slot, confuses): (&EntrySlot, bool),
        new: Claimant,
    ) -> MergeClaim {
        if above == Merging::Alone {
            return MergeClaim::Yours;
        }
        let key = self.key(slot, confuses);
        let mut becomes = Merging::First;
        match self.taken.get(&key) {
            Some(first) if first.id == new.id => {}
            Some(first) if first.is_directory && new.is_directory => becomes = Merging::Second,
            Some(_) => return MergeClaim::Taken,
            None if self.taken.len() < most => {
                self.taken.insert(key, new);
            }
            None if above == Merging::Second && self.has_left_some_out => {
                return MergeClaim::Unknown;
            }
            None => self.has_left_some_out = true,
        }
        if new.is_directory {
            self.opening.insert(new.id, becomes);
        }
        MergeClaim::Yours
    }

    /// What a directory is that is opened now.
    pub(super) fn open(&mut self, id: EntryId) -> Merging {
        self.opening.remove(&id).unwrap_or_default()
    }

    fn key(&self, slot: &EntrySlot, confuses: bool) -> u64 {
        let name = slot.name.as_bytes();
        let folded = confuses.then(|| folded(name));
        let place = (slot.dir.identity(), folded.as_deref().unwrap_or(name));
        self.hashing.hash_one(place)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::dir::Dir;
    use crate::manifest::Name;

    #[test]
    fn names_that_were_not_remembered_are_refused_only_where_another_source_was_before() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::root(temp.path(), &Arc::default()).unwrap();
        let slot = |text: &str| {
            let name = Name::try_from(text.as_bytes().to_vec()).unwrap();
            EntrySlot::new(dir.clone(), name)
        };
        let mut names = MergedNames::default();
        let mut claim = |above, text: &str, id, is_directory| {
            let new = Claimant { id, is_directory };
            names.claim_within(2, above, (&slot(text), false), new)
        };
        assert_eq!(claim(Merging::First, "d", 1, true), MergeClaim::Yours);
        assert_eq!(claim(Merging::First, "f", 2, false), MergeClaim::Yours);
        assert_eq!(claim(Merging::Second, "f", 3, false), MergeClaim::Taken);
        assert_eq!(claim(Merging::Second, "f", 3, true), MergeClaim::Taken);
        assert_eq!(claim(Merging::First, "f", 2, false), MergeClaim::Yours);
        // There is no room for more.
        assert_eq!(claim(Merging::First, "g", 4, false), MergeClaim::Yours);
        assert_eq!(claim(Merging::Second, "h", 5, false), MergeClaim::Unknown);
        assert_eq!(claim(Merging::Second, "d", 6, true), MergeClaim::Yours);
        assert_eq!(claim(Merging::Alone, "f", 7, false), MergeClaim::Yours);
        assert_eq!(names.open(1), Merging::First);
        assert_eq!(names.open(6), Merging::Second);
        assert_eq!(names.open(7), Merging::Alone);
    }

    #[test]
    fn names_that_differ_only_in_case_are_one_place_where_the_file_system_says_so() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::root(temp.path(), &Arc::default()).unwrap();
        for (confuses, second) in [(true, MergeClaim::Taken), (false, MergeClaim::Yours)] {
            let mut names = MergedNames::default();
            let mut claim = |text: &str, id| {
                let name = Name::try_from(text.as_bytes().to_vec()).unwrap();
                let slot = EntrySlot::new(dir.clone(), name);
                let new = Claimant {
                    id,
                    is_directory: false,
                };
                names.claim(Merging::First, &slot, confuses, new)
            };
            assert_eq!(claim("Ä.txt", 1), MergeClaim::Yours);
            assert_eq!(claim("ä.TXT", 2), second);
        }
    }
}
