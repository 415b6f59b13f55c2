//! `--mkpath`: the missing directories of the typed destination.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;

use super::directory::CANNOT_CREATE;
use super::sync_directory;
use super::user_path::Reach;
use crate::dir::{Confine, Dir};
use crate::error::{Error, Kind, Result, Side};

/// The umask removes the permissions that the user does not want to give.
const MODE: u32 = 0o777;

/// Makes the directories of `path` that are missing: all but its last component, or all of them if
/// `whole`. With `fsync` their names are durable.
///
/// # Errors
/// `Kind::Write` if one cannot be made.
pub(super) fn make(reach: Reach<'_>, path: &Path, whole: bool, fsync: bool) -> Result<()> {
    let dir = needed(path, whole);
    if dir.as_os_str().is_empty() {
        return Ok(());
    }
    match reach.confine {
        Some(confine) => make_confined(confine, dir, fsync),
        None => make_anywhere(reach, dir, fsync),
    }
}

/// The directory that must exist: that of the last component, or `path` itself if `whole`.
fn needed(path: &Path, whole: bool) -> &Path {
    match whole {
        true => path,
        false => path.parent().unwrap_or(Path::new("")),
    }
}

/// True if [`make`] would make a directory.
pub(super) fn is_missing(reach: Reach<'_>, path: &Path, whole: bool) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let dir = needed(path, whole);
    if dir.as_os_str().is_empty() {
        return false;
    }
    let is_not_found = |cause: std::io::Error| cause.kind() == ErrorKind::NotFound;
    let Some(confine) = reach.confine else {
        return dir.metadata().err().is_some_and(is_not_found);
    };
    // A path that leads outside is refused by what follows.
    let names = confine.names(dir.as_os_str().as_bytes());
    names.is_ok_and(|names| confine.enter(&names).err().is_some_and(is_not_found))
}

fn failed(path: &Path, cause: std::io::Error) -> Error {
    Error::io(Kind::Write, Side::Dest, path, CANNOT_CREATE, cause)
}

fn make_anywhere(reach: Reach<'_>, dir: &Path, fsync: bool) -> Result<()> {
    let mut made = PathBuf::new();
    for component in dir.components() {
        let above = made.clone();
        made.push(component);
        match DirBuilder::new().mode(MODE).create(&made) {
            Ok(()) if fsync => {
                let above = match above.as_os_str().is_empty() {
                    true => Path::new("."),
                    false => &above,
                };
                let above = Dir::named(above, reach.handles);
                sync_directory(&above.map_err(|cause| failed(&made, cause))?)?;
            }
            Ok(()) => {}
            // A file there, or a directory that may not be read, is reported by what follows.
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists || made.is_dir() => {}
            Err(cause) => return Err(failed(&made, cause)),
        }
    }
    Ok(())
}

/// Follows no link.
fn make_confined(confine: &Confine, path: &Path, fsync: bool) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    // A path that leads outside is refused by what follows.
    let Ok(names) = confine.names(path.as_os_str().as_bytes()) else {
        return Ok(());
    };
    let mut dir = confine.enter(&[]).map_err(|cause| failed(path, cause))?;
    for name in &names {
        let made = dir.handle().and_then(|above| {
            match mkdirat(&*above, name.as_os_str(), Mode::from_raw_mode(MODE)) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(cause) => Err(cause.into()),
            }
        });
        if made.map_err(|cause| failed(path, cause))? && fsync {
            sync_directory(&dir)?;
        }
        let Ok(child) = dir.child(name) else {
            // A file or link there is reported by what follows.
            return Ok(());
        };
        dir = child;
    }
    Ok(())
}
