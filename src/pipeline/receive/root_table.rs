//! The roots of a copy, with the place for each of them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::names::folded;
use crate::dest::{EarlierPlace, Landing, RootTarget};
use crate::dir::Dir;
use crate::manifest::{Entry, EntryId, EntryKind, Name, Root};

/// The names of roots beside the contents of another root. True for a directory.
type RootNames = HashMap<Name, bool>;

/// A root by its entry number.
struct TableRoot {
    id: EntryId,
    /// Its index in `RootTable::targets`.
    number: u32,
    is_directory: bool,
}

#[derive(Default)]
pub struct RootTable {
    /// In order of their entry numbers.
    roots: Vec<TableRoot>,
    /// In order of the operands.
    targets: Vec<RootTarget>,
    /// The roots that get a name in a directory which the contents of another root fill; by that
    /// other root.
    beside: HashMap<EntryId, RootNames>,
    /// Directories among these roots.
    merging: HashSet<EntryId>,
    is_set: bool,
}

impl RootTable {
    /// `targets` are the destinations of the roots, in the same order.
    pub fn set(&mut self, roots: &[Root], targets: Vec<RootTarget>) {
        self.beside = names_beside(roots, &targets);
        self.merging = merging(roots, &self.beside);
        let numbered = (0..).zip(roots).take(targets.len());
        let numbered = numbered.map(|(number, root)| TableRoot {
            id: root.id,
            number,
            is_directory: root.is_directory,
        });
        self.roots = numbered.collect();
        self.roots.sort_by_key(|root| root.id);
        self.roots.dedup_by_key(|root| root.id);
        self.targets = targets;
        self.is_set = true;
    }

    pub fn is_set(&self) -> bool {
        self.is_set
    }

    pub fn count(&self) -> usize {
        self.roots.len()
    }

    fn get(&self, id: EntryId) -> Option<&TableRoot> {
        let found = self.roots.binary_search_by_key(&id, |root| root.id);
        found.ok().map(|at| &self.roots[at])
    }

    fn target(&self, root: &TableRoot) -> &RootTarget {
        &self.targets[root.number as usize]
    }

    /// False if a root differs from its announcement. The user may not expect that: a directory
    /// instead of a file, or a symbolic link although the named links are followed.
    pub fn fits(&self, entry: &Entry) -> bool {
        let Some(root) = self.get(entry.id) else {
            return true;
        };
        match entry.kind {
            EntryKind::Directory => root.is_directory,
            EntryKind::File | EntryKind::HardLink(_) | EntryKind::Pipe => !root.is_directory,
            EntryKind::Symlink(_) | EntryKind::Special(_) => false,
        }
    }

    /// The index of a root, from 0, and its place.
    pub(super) fn find(&self, id: EntryId) -> Option<(usize, &Landing)> {
        let root = self.get(id)?;
        Some((root.number as usize, &self.target(root).landing))
    }

    /// The names of other roots in the directory that gets the contents of `parent`. None if that is
    /// no root, or if there are no others.
    pub(super) fn beside(&self, parent: EntryId) -> Option<&HashMap<Name, bool>> {
        self.beside.get(&parent)
    }

    /// Whether the one of them with this name is a directory. `confuses`: or with a name that differs from
    /// it only in case. None if there is none.
    pub(super) fn beside_as(&self, parent: EntryId, name: &Name, confuses: bool) -> Option<bool> {
        named(self.beside(parent)?, name, confuses)
    }

    /// True for a root that is a directory beside the contents of another root, which may have a
    /// directory of the same name.
    pub(super) fn may_merge(&self, id: EntryId) -> bool {
        self.merging.contains(&id)
    }

    /// The place of a root in earlier copies.
    pub(super) fn earlier(&self, id: EntryId) -> EarlierPlace {
        let root = self.get(id).map(|root| self.target(root));
        root.map_or_else(EarlierPlace::default, |target| target.earlier.clone())
    }

    /// True if the entries up to `last` include all roots.
    pub(super) fn are_within(&self, last: EntryId) -> bool {
        self.roots.last().is_none_or(|root| root.id <= last)
    }

    pub(super) fn has_one_in(&self, range: &Range<EntryId>) -> bool {
        let next = self.roots.partition_point(|root| root.id < range.start);
        self.roots.get(next).is_some_and(|root| root.id < range.end)
    }

    /// True unless this directory only holds the names of roots. Asked of the directory of the copy's
    /// journal, and of a snapshot's.
    pub fn is_landing(&self, dir: &Dir) -> bool {
        let mut landings = self.targets.iter().map(|target| &target.landing);
        // A directory with a name may contain the journal if its parent allows no new file.
        landings.any(|landing| match landing {
            Landing::Directory(landing) => landing.identity() == dir.identity(),
            Landing::Name(slot) => slot.dir.identity() != dir.identity(),
            Landing::Exit(_) | Landing::Missing(_) => false,
        })
    }
}

fn named(names: &RootNames, name: &Name, confuses: bool) -> Option<bool> {
    if let Some(is_directory) = names.get(name) {
        return Some(*is_directory);
    }
    let folded = |name: &Name| folded(name.as_bytes());
    let mut others = names.iter().filter(|_| confuses);
    let found = others.find(|(other, _)| folded(other) == folded(name));
    found.map(|(_, is_directory)| *is_directory)
}

fn merging(roots: &[Root], beside: &HashMap<EntryId, RootNames>) -> HashSet<EntryId> {
    let is_beside = |root: &&Root| {
        let mut names = beside.values();
        !root.contents && names.any(|names| names.get(&root.name) == Some(&true))
    };
    roots.iter().filter(is_beside).map(|root| root.id).collect()
}

fn names_beside(roots: &[Root], targets: &[RootTarget]) -> HashMap<EntryId, RootNames> {
    let named = |dir: &Arc<Dir>| -> RootNames {
        let pairs = roots.iter().zip(targets);
        let pairs = pairs.filter_map(|(root, target)| match &target.landing {
            Landing::Name(slot) if slot.dir.identity() == dir.identity() => {
                Some((slot.name.clone(), root.is_directory))
            }
            _ => None,
        });
        pairs.collect()
    };
    // Of roots whose contents go into one directory, there is one.
    let filled = roots
        .iter()
        .zip(targets)
        .filter_map(|(root, target)| match &target.landing {
            Landing::Directory(dir) => Some((root.id, named(dir))),
            _ => None,
        });
    filled.filter(|(_, names)| !names.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_found_in_another_case_where_the_file_system_confuses_both() {
        let name = |text: &str| Name::try_from(text.as_bytes().to_vec()).unwrap();
        let names = RootNames::from([(name("D"), true), (name("f"), false)]);
        for confuses in [true, false] {
            let found = |text| named(&names, &name(text), confuses);
            assert_eq!((found("D"), found("f")), (Some(true), Some(false)));
            assert_eq!(found("F"), confuses.then_some(false));
            assert_eq!(found("g"), None);
        }
    }
}
