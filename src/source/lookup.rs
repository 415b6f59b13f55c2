//! The search for single names in the directories of a source, after the walk. It finds the entries
//! of the destination that the source does not have (`--delete`).

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, fstat, statat};
use rustix::io::Errno;

use super::part::PartOf;
use super::walk::WalkChoice;
use crate::dir::{Dir, DirReader, Handles};
use crate::error::Result;
use crate::file_list::{FileList, ListRange};
use crate::manifest::{Name, Timestamp, file_type};
use crate::selection::Selector;

/// A directory below an operand, which may not exist.
pub struct LookupDirectory {
    /// The directory, if the source has it.
    dir: Option<Arc<Dir>>,
    choice: WalkChoice,
    follow_links: bool,
    /// Links on the way to these names are followed.
    ways: Option<(Arc<FileList>, ListRange)>,
}

/// Whether the source has an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It has one, of this type.
    Present {
        is_directory: bool,
    },
    Absent,
    /// The directory cannot be looked at.
    Unknown,
}

impl LookupDirectory {
    /// Begins at an operand; `name` is None if its contents are copied. The walk has followed links
    /// on the way to names in `list`. If it is `part` of another one, `name` is its name there.
    ///
    /// # Errors
    /// `Kind::Read` if filter rules cannot be read.
    pub fn of_root(
        dir: &Arc<Dir>,
        (name, part): (Option<&Name>, Option<&PartOf>),
        selector: &Arc<Selector>,
        follow_links: bool,
        list: Option<&Arc<FileList>>,
    ) -> Result<LookupDirectory> {
        let mut choice = WalkChoice::new(selector.clone());
        if let Some(part) = part.filter(|_| selector.has_rules()) {
            choice.enter_way(part, &Arc::new(Handles::default()))?;
        }
        choice.enter(name, dir)?;
        Ok(LookupDirectory {
            dir: Some(dir.clone()),
            choice,
            follow_links,
            ways: list.map(|list| (list.clone(), list.top().below)),
        })
    }

    /// Goes to the directory `name` in this one. Returns false if it cannot be opened for another
    /// reason than that it is missing. One that filter rules leave out is missing if `is_extra`, and
    /// cannot be opened otherwise.
    ///
    /// # Errors
    /// `Kind::Read` if filter rules cannot be read.
    pub fn enter(&mut self, name: &Name, is_extra: bool) -> Result<bool> {
        let is_way = self.enter_way(name);
        if self.choice.leaves_out_as(name, true) && !is_way {
            self.choice.enter_missing(name);
            self.dir = None;
            return Ok(is_extra);
        }
        let opened = match (&self.dir, self.follow_links || is_way) {
            (Some(dir), true) => dir.linked(name).map(Some),
            (Some(dir), false) => dir.child(name).map(Some),
            (None, _) => Ok(None),
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(cause) if is_missing(&cause) => None,
            Err(_) => return Ok(false),
        };
        match &opened {
            Some(dir) => self.choice.enter(Some(name), dir)?,
            None => self.choice.enter_missing(name),
        }
        self.dir = opened;
        Ok(true)
    }

    /// True if listed names lead through the directory `name`.
    fn enter_way(&mut self, name: &Name) -> bool {
        let Some((list, below)) = self.ways.take() else {
            return false;
        };
        let Some(child) = list.find(&below, name.as_bytes()) else {
            return false;
        };
        let is_way = !child.below.is_empty() || list.has_contents(&child.own);
        let below = child.below;
        self.ways = Some((list, below));
        is_way
    }

    pub fn exists(&self) -> bool {
        self.dir.is_some()
    }

    /// True if entries were added, renamed or removed since `time`, by the clock of this machine.
    pub fn has_changed_since(&self, time: Timestamp) -> bool {
        let Some(dir) = &self.dir else {
            return false;
        };
        let stat = dir.handle().and_then(|dir| Ok(fstat(&*dir)?));
        stat.is_ok_and(|stat| Timestamp::ctime(&stat).is_since(time, Timestamp::now()))
    }

    pub fn look_for(&self, name: &Name) -> Presence {
        let Some(dir) = &self.dir else {
            return Presence::Absent;
        };
        let stat = match dir.stat(name.as_os_str()) {
            Ok(stat) => stat,
            Err(cause) if is_missing(&cause) => return Presence::Absent,
            Err(_) => return Presence::Unknown,
        };
        let mut found = file_type(&stat);
        if found == FileType::Symlink && self.follow_links {
            let followed = dir
                .handle()
                .and_then(|dir| Ok(statat(&*dir, name.as_os_str(), AtFlags::empty())?));
            match followed {
                Ok(stat) => found = file_type(&stat),
                Err(_) => return Presence::Unknown,
            }
        }
        Presence::Present {
            is_directory: found == FileType::Directory,
        }
    }

    /// True if the filter rules leave out an entry of this directory.
    pub fn leaves_out(&self, name: &Name, is_directory: bool) -> bool {
        self.choice.leaves_out_as(name, is_directory)
    }

    /// True if a filter rule protects an entry at the destination. `excluded_too`: with
    /// `--delete-excluded`.
    pub fn protects(&self, name: &Name, is_directory: bool, excluded_too: bool) -> bool {
        self.choice.protects(name, is_directory, excluded_too)
    }

    /// The names in this directory, for a destination that confuses some of them.
    ///
    /// # Errors
    /// If it cannot be read, or has too many names.
    pub fn similar_names(&self) -> io::Result<SimilarNames> {
        let mut similar = SimilarNames::default();
        let Some(dir) = &self.dir else {
            return Ok(similar);
        };
        let mut reader = DirReader::new(dir.clone());
        while let Some(found) = reader.next_name()? {
            if similar.hashes.len() >= SIMILAR_NAMES_MAX {
                return Err(Errno::TOOBIG.into());
            }
            similar.add(&found.name);
        }
        Ok(similar)
    }
}

/// Most names that are compared without regard to case, in some 20 MB.
const SIMILAR_NAMES_MAX: usize = 1 << 20;

/// Names without regard to case and to dots and blanks at the end.
#[derive(Default)]
pub struct SimilarNames {
    /// Hashes of the names. Two names with the same hash count as similar.
    hashes: HashSet<u64>,
    hashing: RandomState,
    /// Some have characters beyond ASCII, which have several spellings.
    has_others: bool,
}

impl SimilarNames {
    fn add(&mut self, name: &[u8]) {
        match self.hash(name) {
            Some(hash) => drop(self.hashes.insert(hash)),
            None => self.has_others = true,
        }
    }

    /// None if the name has characters beyond ASCII.
    fn hash(&self, name: &[u8]) -> Option<u64> {
        let ends = |byte: &u8| !matches!(byte, b'.' | b' ');
        let len = name.iter().rposition(ends).map_or(0, |last| last + 1);
        let folded = || name[..len].to_ascii_lowercase();
        name.is_ascii().then(|| self.hashing.hash_one(folded()))
    }

    /// True if the destination could have one of the names under this one.
    pub fn may_have(&self, name: &Name) -> bool {
        let hash = self.hash(name.as_bytes());
        self.has_others || hash.is_some_and(|hash| self.hashes.contains(&hash))
    }
}

fn is_missing(cause: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(cause),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_file_system_could_confuse_are_similar() {
        let mut similar = SimilarNames::default();
        for name in ["README", "a. .", "\u{e9}"] {
            similar.add(name.as_bytes());
        }
        let may = |similar: &SimilarNames, name: &str| {
            similar.may_have(&Name::try_from(name.as_bytes().to_vec()).unwrap())
        };
        for name in ["readme", "A", "e\u{301}"] {
            assert!(may(&similar, name), "{name}");
        }
        // Beyond ASCII, more names than these may be the same.
        assert!(may(&similar, "b"));
        similar.has_others = false;
        for name in ["readm", "b"] {
            assert!(!may(&similar, name), "{name}");
        }
        assert!(!SimilarNames::default().may_have(&Name::try_from(vec![0xc3, 0xa9]).unwrap()));
    }
}
