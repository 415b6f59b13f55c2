//! The places of entries in earlier copies (`--link-dest`, `--copy-dest`, `--snapshot`). No symbolic
//! link is followed below an earlier copy.

use std::sync::Arc;

use crate::dir::Dir;
use crate::manifest::Name;

/// The same directory in each earlier copy that has it, in the order in which the user named them.
#[derive(Clone, Default)]
pub struct EarlierDirs(pub(super) Arc<[Arc<Dir>]>);

/// The same place in earlier copies.
#[derive(Clone, Default)]
pub struct EarlierPlace {
    pub(super) dirs: EarlierDirs,
    /// None: the directories themselves.
    pub(super) name: Option<Name>,
}

impl EarlierDirs {
    pub fn of(dirs: Vec<Arc<Dir>>) -> EarlierDirs {
        EarlierDirs(dirs.into())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Dir>> {
        self.0.iter()
    }

    pub fn first(&self) -> Option<&Arc<Dir>> {
        self.0.first()
    }

    /// The place of the entry `name` in these directories.
    pub fn place(&self, name: Name) -> EarlierPlace {
        EarlierPlace {
            dirs: self.clone(),
            name: Some(name),
        }
    }

    /// The place of these directories themselves.
    pub fn place_of_all(&self) -> EarlierPlace {
        EarlierPlace {
            dirs: self.clone(),
            name: None,
        }
    }
}

impl EarlierPlace {
    /// The directories in this place. One that cannot be opened is left out: its files are sent.
    pub fn directories(&self) -> EarlierDirs {
        let Some(name) = &self.name else {
            return self.dirs.clone();
        };
        let children = self.dirs.0.iter().filter_map(|dir| dir.child(name).ok());
        EarlierDirs::of(children.collect())
    }
}
