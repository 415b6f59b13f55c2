//! A directory that is being walked: first the entries that a list names, then the entries that
//! reading the directory finds.

use std::io;
use std::sync::Arc;

use crate::dir::{Dir, DirReader};
use crate::file_list::ListRange;
use crate::manifest::EntryId;
use crate::mirror::NameSums;

pub(super) struct Level {
    pub id: EntryId,
    pub dir: Arc<Dir>,
    /// None if only listed entries are copied.
    reader: Option<DirReader>,
    /// Directories that are found by reading are entered.
    pub enters: bool,
    /// The user named it.
    pub is_named: bool,
    pub listed: Option<ListedLevel>,
    /// Device of the named directory above all of this, for `-x`.
    pub top_device: u64,
    /// Number of entries announced with this directory as their parent.
    pub children: u64,
    /// The names of its entries that are copied; None if they are not wanted, or if it cannot be
    /// read to its end.
    pub names: Option<NameSums>,
}

/// How a directory is walked.
pub(super) struct LevelTerms {
    /// All its entries are copied, not only listed ones.
    pub reads: bool,
    /// So are those of directories in it.
    pub enters: bool,
    /// The user named it: it is an operand, or listed.
    pub is_named: bool,
    pub listed: Option<ListedLevel>,
    pub top_device: u64,
    /// Sums of the names are kept.
    pub sums_names: bool,
}

/// The listed entries of a directory.
pub(super) struct ListedLevel {
    /// The directories in which they are, with the numbers of their bases.
    pub dirs: Vec<(u16, Arc<Dir>)>,
    pub all: ListRange,
    /// Those that are not visited yet.
    pub rest: ListRange,
}

impl Level {
    pub(super) fn new(id: EntryId, dir: Arc<Dir>, terms: LevelTerms) -> Level {
        let LevelTerms {
            reads,
            enters,
            is_named,
            listed,
            top_device,
            sums_names,
        } = terms;
        Level {
            id,
            reader: reads.then(|| DirReader::new(dir.clone())),
            enters,
            is_named,
            listed,
            top_device,
            dir,
            children: 0,
            names: (sums_names && reads).then(NameSums::default),
        }
    }

    /// True if all entries are copied, not only listed ones.
    pub(super) fn reads(&self) -> bool {
        self.reader.is_some()
    }

    pub(super) fn pause(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.pause();
        }
    }

    /// The next name that is found by reading.
    pub(super) fn next_name(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(reader) = &mut self.reader else {
            return Ok(None);
        };
        Ok(reader.next_name()?.map(|found| found.name))
    }
}
