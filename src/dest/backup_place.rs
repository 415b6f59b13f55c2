//! The place of backups: the backup directory, and which directories stand for which paths below the
//! destination.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backup::{ABOVE_MAX, Backups, DestinationWay, Landed, joined};
use super::option_path::{OptionBase, OptionDirectory};
use super::root::{Landing, RootTarget};
use super::snapshots::refuse_path_in_snapshots;
use super::{Rules, Spec};
use crate::dir::{Dir, Handles};
use crate::error::{Error, Kind, Result, Side};

type Ways = HashMap<(u64, u64), Vec<DestinationWay>>;

/// `--backup-dir`
struct BackupDirectory {
    base: OptionBase,
    typed: Vec<u8>,
}

impl Backups {
    /// Notes where the copy lands, and finds the backup directory if it exists. It is made with the
    /// first backup. `is_directory`: the first root is one.
    ///
    /// # Errors
    /// `Kind::Usage` for a device or pipe, which has no backup; if the backup directory is something
    /// else, or contains a directory that the copy goes into; or if a key may not reach it.
    pub fn land(
        &self,
        spec: &Spec,
        targets: &[RootTarget],
        is_directory: bool,
        rules: &Rules,
        handles: &Arc<Handles>,
    ) -> Result<()> {
        if spec.inplace {
            return Err(Error::usage(INPLACE_AND_BACKUP));
        }
        for target in targets {
            let landing = &target.landing;
            if landing.device().is_some() || matches!(landing, Landing::Exit(_)) {
                let message = "is a device or pipe, so no backup is possible: leave out --backup";
                return Err(usage(&landing.path(), message));
            }
        }
        let directory = BackupDirectory {
            base: OptionBase::of(spec, is_directory, handles)?,
            typed: self.place().directory.clone(),
        };
        let path = directory.path();
        if rules.closed && !self.are_beside() {
            refuse_path_in_snapshots(&path, spec, handles)?;
        }
        let root = match self.are_beside() {
            true => None,
            false => directory.find()?,
        };
        if let Some(root) = &root {
            if directory.base.is(root) {
                return Err(usage(&path, IS_DESTINATION));
            }
            if contains_a_landing(root, targets) {
                return Err(usage(&path, IS_ABOVE));
            }
        }
        let mut ways = HashMap::new();
        targets.iter().for_each(|target| add_way(&mut ways, target));
        let landed = Landed {
            path,
            make: Box::new(move || directory.make()),
            ways,
        };
        self.set_landed(landed, root);
        Ok(())
    }
}

/// True if some root lands in `directory`, or below it: backups could replace its files there.
fn contains_a_landing(directory: &Arc<Dir>, targets: &[RootTarget]) -> bool {
    let mut seen = HashSet::new();
    let dirs = targets.iter().filter_map(|target| target.landing.dir());
    let mut new = dirs.filter(|dir| seen.insert(dir.identity()));
    new.any(|dir| {
        dir.with_those_above(ABOVE_MAX)
            .contains(&directory.identity())
    })
}

/// Notes which directories stand for which paths below the destination.
fn add_way(ways: &mut Ways, target: &RootTarget) {
    let (dir, name, below) = match &target.landing {
        Landing::Directory(dir) => (dir, None, &target.listed[..]),
        // A directory that becomes the destination.
        Landing::Name(slot) if target.listed.is_empty() => {
            (&slot.dir, Some(slot.name.as_bytes()), &b""[..])
        }
        Landing::Name(slot) => (&slot.dir, None, &b""[..]),
        Landing::Exit(_) | Landing::Missing(_) => return,
    };
    let (top, mut way) = dir.below();
    way = joined(&way, name.unwrap_or_default());
    let ways = ways.entry(top.identity()).or_default();
    let new = DestinationWay {
        from: way,
        below: below.to_vec(),
    };
    if !ways.contains(&new) {
        ways.push(new);
    }
}

impl BackupDirectory {
    fn path(&self) -> PathBuf {
        self.base.path_of(&self.typed)
    }

    /// The backup directory; None if it does not exist.
    fn find(&self) -> Result<Option<Arc<Dir>>> {
        match self.base.find(&self.typed)? {
            OptionDirectory::Directory(dir) => Ok(Some(dir)),
            OptionDirectory::Missing => Ok(None),
            OptionDirectory::Other => Err(usage(&self.path(), "is not a directory (--backup-dir)")),
        }
    }

    /// Makes it, since it did not exist when the copy landed, and opens it. A backup may be the last
    /// copy of a file, so its name is durable even without `--fsync`.
    ///
    /// # Errors
    /// `Kind::Refused` if it exists now: it may be a directory of the copy, spelled differently.
    fn make(&self) -> Result<Arc<Dir>> {
        let exists = || Error::new(Kind::Refused, Side::Dest, APPEARED).at(self.path());
        self.base.make(&self.typed)?.ok_or_else(exists)
    }
}

fn usage(path: &Path, message: &str) -> Error {
    Error::new(Kind::Usage, Side::Dest, message).at(path)
}

/// The refusal of `--inplace` with backups.
pub const INPLACE_AND_BACKUP: &str =
    "--inplace leaves no old version to keep: leave out --inplace or --backup";

const APPEARED: &str = "was made during this copy, by the copy itself or by another process, so \
                        fastcp keeps no backup there: choose another --backup-dir, or copy again";

const IS_ABOVE: &str = "contains the directory that the copy goes into, so backups could replace its \
                        files: choose another --backup-dir";

const IS_DESTINATION: &str = "is the destination itself: choose another --backup-dir";
