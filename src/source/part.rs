//! A part of a source that goes to a separate place (`--map`).

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::dir::{Confine, Dir, Handles};
use crate::manifest::Name;

/// Where a part is below its source. Filter rules apply to it by its path from there.
#[derive(Debug)]
pub struct PartOf {
    pub(super) source: PathBuf,
    pub(super) confine: Option<Arc<Confine>>,
    /// The name of the source, unless its contents are copied.
    pub(super) name: Option<Name>,
    /// The directories between the source and the part.
    pub between: Vec<Name>,
}

impl PartOf {
    /// The directories from the source down to the parent of the part, each with the name that
    /// filter rules are compared with.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub(super) fn way(&self, handles: &Arc<Handles>) -> io::Result<Vec<(Option<Name>, Arc<Dir>)>> {
        let open = |path: &PathBuf| match &self.confine {
            Some(confine) => confine.directory(path),
            None => Dir::named(path, handles),
        };
        let mut path = self.source.clone();
        let mut way = vec![(self.name.clone(), open(&path)?)];
        for name in &self.between {
            path.push(name);
            way.push((Some(name.clone()), open(&path)?));
        }
        Ok(way)
    }
}

/// What the walk of a source leaves out: names in directories, by device and inode.
pub type Parts = HashSet<((u64, u64), Name)>;
