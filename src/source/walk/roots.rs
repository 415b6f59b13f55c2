//! The files and directories that the user named and that the walk has not reached.

use std::io;
use std::iter::Enumerate;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::vec::IntoIter;

use crate::dir::{Dir, Handles};
use crate::manifest::EntryId;
use crate::source::operand::NamedSource;

/// The entry number of the `nth` thing that the user named, counted from 0. The number stays unused
/// if that fails. A named file that is a further name of an earlier one is still announced last.
pub fn root_id(nth: usize) -> EntryId {
    nth as EntryId + 1
}

pub(super) struct WalkRoots {
    rest: Enumerate<IntoIter<Arc<NamedSource>>>,
    are_confined: bool,
    /// The directory of the last named file, because most operands share it.
    last_parent: Option<(PathBuf, Arc<Dir>)>,
}

impl WalkRoots {
    pub(super) fn new(roots: Vec<Arc<NamedSource>>) -> WalkRoots {
        WalkRoots {
            are_confined: roots.iter().any(|root| root.confine.is_some()),
            rest: roots.into_iter().enumerate(),
            last_parent: None,
        }
    }

    /// True if a key is confined to a directory, so that the names of partial files are refused.
    pub(super) fn are_confined(&self) -> bool {
        self.are_confined
    }

    pub(super) fn len(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn rest(&self) -> Vec<Arc<NamedSource>> {
        self.rest.clone().map(|(_, root)| root).collect()
    }

    pub(super) fn next(&mut self) -> Option<(EntryId, Arc<NamedSource>)> {
        let (nth, root) = self.rest.next()?;
        Some((root_id(nth), root))
    }

    /// Opens the directory of a named file.
    pub(super) fn parent_of(
        &mut self,
        root: &NamedSource,
        handles: &Arc<Handles>,
    ) -> io::Result<Arc<Dir>> {
        let parent = root.path.parent().unwrap_or(Path::new(""));
        let dir = match self.last_parent.take() {
            Some((path, dir)) if path == parent => dir,
            _ => root.open(parent, handles)?,
        };
        self.last_parent = Some((parent.to_owned(), dir.clone()));
        Ok(dir)
    }
}
