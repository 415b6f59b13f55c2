//! The names of a copy's entries in one directory. They show whether the file system could confuse
//! two of them, so that no entry silently replaces another of the same copy.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::dest::Spelling;
use crate::manifest::{EntryId, Name};

/// Names in a directory before fastcp checks how the directory treats names. Most directories
/// distinguish all names, and then no name is remembered.
const UNASKED_MAX: usize = 4096;

/// Names that are remembered at once, in all directories, at 40 bytes each at most.
const HELD_MAX: usize = 1 << 19;

/// With this many names remembered, a directory is checked before more of its names are remembered.
const UNASKED_HELD_MAX: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Names {
    /// None until the directory was checked.
    spelling: Option<Spelling>,
    /// Entries by a hash of their name. Names that a file system could confuse have the same hash.
    seen: HashMap<u64, EntryId>,
}

/// How many names are remembered, in all directories.
#[derive(Default)]
pub(super) struct NameMemory {
    held: usize,
    hashing: RandomState,
}

#[derive(Debug, PartialEq, Eq)]
pub enum NameClaim {
    Yours,
    /// The caller must check first how the directory treats names.
    Ask,
    /// Contains the reason.
    Refused(&'static str),
}

impl NameMemory {
    /// Claims this name for an entry in the directory with these names.
    pub(super) fn claim(&mut self, names: &mut Names, id: EntryId, name: &Name) -> NameClaim {
        let most = match names.spelling {
            Some(_) => HELD_MAX,
            None => UNASKED_HELD_MAX,
        };
        let (held, room) = (names.held(), most.saturating_sub(self.held));
        let claim = names.claim(id, name, &self.hashing, room);
        self.held += names.held() - held;
        claim
    }

    /// Sets how the directory with these names treats names.
    pub(super) fn asked(&mut self, names: &mut Names, spelling: Spelling) {
        let held = names.held();
        names.asked(spelling);
        self.held -= held - names.held();
    }

    /// No more entries go into the directory with these names.
    pub(super) fn forget(&mut self, names: &Names) {
        self.held -= names.held();
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held
    }
}

impl Names {
    /// Claims this name for an entry. `room` is how many more names may be remembered.
    fn claim(&mut self, id: EntryId, name: &Name, hashing: &RandomState, room: usize) -> NameClaim {
        let key = key(name.as_bytes(), hashing);
        let is_twin = self.seen.get(&key).is_some_and(|&other| other != id);
        let is_dotted = name.as_bytes().ends_with(b".");
        let is_full = room == 0 && !self.seen.contains_key(&key);
        let Some(spelling) = self.spelling else {
            if is_twin || is_dotted || is_full || self.seen.len() >= UNASKED_MAX {
                return NameClaim::Ask;
            }
            self.seen.insert(key, id);
            return NameClaim::Yours;
        };
        if is_dotted && spelling.drops_dots {
            return NameClaim::Refused(
                "the file system drops the dot at the end of this name; rename it, or copy it to \
                 a file system that keeps it",
            );
        }
        if !spelling.ignores_case {
            return NameClaim::Yours;
        }
        if is_twin {
            return NameClaim::Refused(
                "the file system ignores upper and lower case, and another entry of this copy has \
                 this name; rename one of them",
            );
        }
        if is_full {
            return NameClaim::Refused(
                "the file system ignores upper and lower case, and there are too many names to \
                 tell whether another entry has this one; copy the directory in parts",
            );
        }
        self.seen.insert(key, id);
        NameClaim::Yours
    }

    fn asked(&mut self, spelling: Spelling) {
        self.spelling = Some(spelling);
        if !spelling.ignores_case {
            self.seen = HashMap::new();
        }
    }

    /// Number of remembered names.
    fn held(&self) -> usize {
        self.seen.len()
    }
}

fn key(name: &[u8], hashing: &RandomState) -> u64 {
    hashing.hash_one(&folded(name)[..])
}

/// The same bytes for names that differ only in case. File systems know different letters: if one
/// distinguishes two names that are the same here, an entry is refused needlessly.
pub(super) fn folded(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(name) if !name.is_ascii() => {
            let upper = name.chars().flat_map(char::to_uppercase);
            let lower: String = upper.flat_map(char::to_lowercase).collect();
            lower.into_bytes()
        }
        _ => name.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text.as_bytes().to_vec()).unwrap()
    }

    fn claims(names: &mut Names, asked: Spelling, wanted: &[(EntryId, &str)]) -> Vec<bool> {
        let hashing = RandomState::new();
        let mut claim = |id, text: &str| match names.claim(id, &name(text), &hashing, HELD_MAX) {
            NameClaim::Ask => {
                names.asked(asked);
                names.claim(id, &name(text), &hashing, HELD_MAX) == NameClaim::Yours
            }
            claim => claim == NameClaim::Yours,
        };
        let wanted = wanted.iter().map(|&(id, text)| claim(id, text));
        wanted.collect()
    }

    const FAT: Spelling = Spelling {
        ignores_case: true,
        drops_dots: true,
    };

    #[test]
    fn the_second_of_two_names_is_refused_where_case_is_ignored() {
        let wanted = [
            (1, "a"),
            (2, "A"),
            (1, "a"),
            (2, "A"),
            (3, "b"),
            (4, "ÄB"),
            (5, "äb"),
        ];
        let got = claims(&mut Names::default(), FAT, &wanted);
        assert_eq!(got, [true, false, true, false, true, true, false]);
        let got = claims(&mut Names::default(), Spelling::default(), &wanted);
        assert_eq!(got, [true; 7]);
    }

    #[test]
    fn a_dot_at_the_end_is_refused_where_it_is_dropped() {
        let wanted = [(1, "a."), (2, "a"), (3, "b.c"), (4, "...")];
        let got = claims(&mut Names::default(), FAT, &wanted);
        assert_eq!(got, [false, true, true, false]);
        let got = claims(&mut Names::default(), Spelling::default(), &wanted);
        assert_eq!(got, [true; 4]);
    }

    #[test]
    fn a_directory_that_tells_names_apart_holds_none() {
        let mut names = Names::default();
        let wanted: Vec<_> = (1..=UNASKED_MAX as u64 + 9)
            .map(|id| (id, id.to_string()))
            .collect();
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(id, text)| (*id, text.as_str()))
            .collect();
        let got = claims(&mut names, Spelling::default(), &wanted);
        assert!(got.iter().all(|&yours| yours));
        assert_eq!(names.held(), 0);
        let mut names = Names::default();
        let got = claims(&mut names, FAT, &wanted);
        assert!(got.iter().all(|&yours| yours));
        assert_eq!(names.held(), wanted.len());
    }

    #[test]
    fn names_that_cannot_be_remembered_are_refused_only_where_they_could_be_mistaken() {
        let hashing = RandomState::new();
        for (spelling, yours) in [(FAT, false), (Spelling::default(), true)] {
            let mut names = Names::default();
            assert_eq!(names.claim(1, &name("a"), &hashing, 0), NameClaim::Ask);
            names.asked(spelling);
            let claim = names.claim(1, &name("a"), &hashing, 0);
            assert_eq!(claim == NameClaim::Yours, yours);
        }
    }
}
