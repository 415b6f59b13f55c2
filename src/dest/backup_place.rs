//! The place of backups: the backup directory, and which directories stand for which paths below the
//! destination.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::backup::{ABOVE_MAX, Backups, DestinationWay, Landed, joined};
use super::root::{Landing, RootTarget};
use super::user_path::FoundPath;
use super::{Spec, mkpath};
use crate::dir::{Dir, Handles};
use crate::error::{Error, Kind, Result, Side};

type Ways = HashMap<(u64, u64), Vec<DestinationWay>>;

/// `--backup-dir`
struct BackupDirectory {
    spec: Spec,
    handles: Arc<Handles>,
    path: PathBuf,
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
        handles: &Arc<Handles>,
    ) -> Result<()> {
        if spec.inplace {
            return Err(Error::usage(
                "--inplace leaves no old version to keep (--backup)",
            ));
        }
        for target in targets {
            let landing = &target.landing;
            if landing.device().is_some() || matches!(landing, Landing::Exit(_)) {
                let message = "is a device or pipe, which has no backup: leave out --backup";
                return Err(usage(&landing.path(), message));
            }
        }
        let typed = spec.expanded()?;
        let reach = spec.reach(handles);
        let base = match reach.find(&typed) {
            Ok(FoundPath::Other(slot, _)) => slot.dir.path(),
            Ok(FoundPath::Nothing(slot)) if !is_directory => slot.dir.path(),
            _ => typed,
        };
        let directory = BackupDirectory {
            spec: spec.clone(),
            handles: handles.clone(),
            path: base.join(OsStr::from_bytes(&self.place().directory)),
        };
        let root = match self.are_beside() {
            true => None,
            false => directory.find()?,
        };
        if let Some(root) = &root {
            let is_it = |dir: &Arc<Dir>| dir.identity() == root.identity();
            if matches!(reach.find(&base), Ok(FoundPath::Directory(dir)) if is_it(&dir)) {
                return Err(usage(&directory.path, IS_DESTINATION));
            }
            if contains_a_landing(root, targets) {
                return Err(usage(&directory.path, IS_ABOVE));
            }
        }
        let mut ways = HashMap::new();
        targets.iter().for_each(|target| add_way(&mut ways, target));
        let landed = Landed {
            path: directory.path.clone(),
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
    /// The backup directory; None if it does not exist.
    fn find(&self) -> Result<Option<Arc<Dir>>> {
        if let Some(confine) = &self.spec.confine {
            let names = confine.names(self.path.as_os_str().as_bytes());
            names.map_err(|outside| usage(&self.path, &outside.told(confine.path())))?;
        }
        match self.spec.reach(&self.handles).find(&self.path) {
            Ok(FoundPath::Directory(dir)) => Ok(Some(dir)),
            Ok(FoundPath::Other(..)) => Err(usage(&self.path, "is not a directory (--backup-dir)")),
            Ok(FoundPath::Nothing(_)) => Ok(None),
            Err(error) if error.errno == Errno::NOENT.raw_os_error() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes it, since it did not exist when the copy landed, and opens it. A backup may be the last
    /// copy of a file, so its name is durable even without `--fsync`.
    ///
    /// # Errors
    /// `Kind::Refused` if it exists now: it may be a directory of the copy, spelled differently.
    fn make(&self) -> Result<Arc<Dir>> {
        let reach = self.spec.reach(&self.handles);
        if !mkpath::make_new(reach, &self.path, true)? {
            return Err(Error::new(Kind::Refused, Side::Dest, APPEARED).at(&self.path));
        }
        let missing = || {
            let cause = Errno::NOENT;
            let what = "cannot open the backup directory";
            Error::io(Kind::Write, Side::Dest, &self.path, what, cause)
        };
        self.find()?.ok_or_else(missing)
    }
}

fn usage(path: &Path, message: &str) -> Error {
    Error::new(Kind::Usage, Side::Dest, message).at(path)
}

const APPEARED: &str = "was made during this copy, by the copy itself or by another process, so nothing \
                        is kept there: choose another --backup-dir, or copy again";

const IS_ABOVE: &str = "contains the directory that the copy goes into, so backups could replace its \
                        files: choose another --backup-dir";

const IS_DESTINATION: &str = "is the destination itself, not a directory for backups";
