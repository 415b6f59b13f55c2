//! A directory that is being read by the walk.

use std::sync::Arc;

use crate::dir::{Dir, DirReader};
use crate::manifest::EntryId;
use crate::mirror::NameSums;

pub(super) struct Level {
    pub id: EntryId,
    pub dir: Arc<Dir>,
    pub reader: DirReader,
    /// Number of entries announced with this directory as their parent.
    pub children: u64,
    /// The names of its entries that are copied; None if they are not wanted, or if it cannot be
    /// read to its end.
    pub names: Option<NameSums>,
}

impl Level {
    /// With `sums_names`, sums of the names are kept.
    pub(super) fn new(id: EntryId, dir: Arc<Dir>, sums_names: bool) -> Level {
        Level {
            id,
            reader: DirReader::new(dir.clone()),
            dir,
            children: 0,
            names: sums_names.then(NameSums::default),
        }
    }
}
