//! The options that use earlier copies again, with rsync's names.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::earlier::{EarlierCopies, EarlierPath, Reuse};
use crate::error::{Error, Result};

const EXISTING: &str = "Existing files";

#[derive(Debug, clap::Args)]
pub(super) struct EarlierArgs {
    /// Link unchanged files to those of an earlier copy
    #[arg(long, value_name = "DIR", help_heading = EXISTING)]
    link_dest: Vec<OsString>,
    /// Copy unchanged files from an earlier copy there
    #[arg(long, value_name = "DIR", help_heading = EXISTING, conflicts_with = "link_dest")]
    copy_dest: Vec<OsString>,
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
