//! The options for reusing earlier copies: `--link-dest` and `--copy-dest` as in rsync, and
//! snapshots.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::earlier::{EarlierCopies, EarlierPath, Reuse};
use crate::error::{Error, Result};
use crate::snapshot::{Retention, SnapshotTerms};

const EXISTING: &str = "Existing files";

#[derive(Debug, clap::Args)]
pub(super) struct EarlierArgs {
    /// Make unchanged files hard links to those in DIR
    #[arg(long, value_name = "DIR", help_heading = EXISTING)]
    link_dest: Vec<OsString>,
    /// Like --link-dest, but copy the files from DIR
    #[arg(long, value_name = "DIR", help_heading = EXISTING, conflicts_with = "link_dest")]
    copy_dest: Vec<OsString>,
    /// Copy into DEST/DATE, linked to the last snapshot
    #[arg(long, help_heading = EXISTING)]
    snapshot: bool,
    /// After --snapshot, remove old snapshots except these
    #[arg(long, value_name = "7d,4w,12m", value_parser = Retention::parse, help_heading = EXISTING)]
    keep: Option<Retention>,
}

impl EarlierArgs {
    /// The option that was given.
    pub(super) fn flag(&self) -> Option<&'static str> {
        match (self.link_dest.is_empty(), self.copy_dest.is_empty()) {
            (false, _) => Some("--link-dest"),
            (true, false) => Some("--copy-dest"),
            (true, true) => None,
        }
    }

    pub(super) fn is_snapshot(&self) -> bool {
        self.snapshot
    }

    /// The wishes for a snapshot; None without the option.
    ///
    /// # Errors
    /// Usage, if `--keep` is alone.
    pub(super) fn snapshot(&self, strict: bool) -> Result<Option<SnapshotTerms>> {
        match (self.snapshot, self.keep) {
            (true, keep) => Ok(Some(SnapshotTerms { strict, keep })),
            (false, None) => Ok(None),
            (false, Some(_)) => Err(Error::usage(
                "--keep removes old snapshots after a new one: add --snapshot",
            )),
        }
    }

    /// The directories with earlier copies; None without the options.
    ///
    /// # Errors
    /// Usage, if there are too many, or one is not a path.
    pub(super) fn earlier(&self) -> Result<Option<EarlierCopies>> {
        let (reuse, typed) = match self.link_dest.is_empty() {
            false => (Reuse::Link, &self.link_dest),
            true => (Reuse::Copy, &self.copy_dest),
        };
        if typed.is_empty() {
            return Ok(None);
        }
        let path = |path: &OsString| EarlierPath(path.as_bytes().to_vec());
        let earlier = EarlierCopies {
            reuse,
            directories: typed.iter().map(path).collect(),
        };
        earlier
            .check()
            .map_err(|why| Error::usage(why.to_string()))?;
        Ok(Some(earlier))
    }
}
