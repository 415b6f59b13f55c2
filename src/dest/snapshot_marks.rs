//! The directory with the marks of snapshots, which shows that the directory above it holds snapshots.

use std::sync::Arc;

use rustix::fs::{FileType, Stat};
use rustix::process::geteuid;

use crate::dir::Dir;
use crate::error::{Error, Kind, Side};
use crate::manifest::file_type;

pub(super) const STATE: &str = ".fastcp-snapshots";

/// True if the directory holds snapshots.
pub fn holds_snapshots(dir: &Arc<Dir>) -> bool {
    dir.stat(STATE.as_ref()).is_ok_and(|stat| is_state(&stat))
}

/// True for a directory with marks that this user or root has made. Another user's closes nothing:
/// anybody may make one in `/tmp`.
pub(super) fn is_state(stat: &Stat) -> bool {
    let owners = [geteuid().as_raw(), 0];
    file_type(stat) == FileType::Directory && owners.contains(&stat.st_uid)
}

/// The error for a directory with snapshots that a key may not change.
pub fn closed(dir: &Arc<Dir>) -> Error {
    let message = "holds snapshots, and this key may only add one with --snapshot";
    refused(dir, message)
}

pub(super) fn refused(dir: &Arc<Dir>, message: &str) -> Error {
    Error::new(Kind::Refused, Side::Dest, message).at(dir.path())
}
