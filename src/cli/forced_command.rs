//! Arguments of a forced command in `authorized_keys`. They restrict what the key may do.

use std::path::PathBuf;

use crate::session::{Permit, PermittedAccess};
use crate::wire::message::Ports;

/// What a forced command allows the key that it stands before.
#[derive(Debug, clap::Args)]
pub(super) struct Permits {
    /// Access to nothing outside this directory.
    #[arg(long, hide = true, requires = "server", value_name = "DIR")]
    confine: Option<PathBuf>,
    #[arg(long, hide = true, requires = "server", conflicts_with = "write_only")]
    read_only: bool,
    #[arg(long, hide = true, requires = "server")]
    write_only: bool,
    /// Existing files are not replaced.
    #[arg(long, hide = true, requires = "server")]
    no_overwrite: bool,
    /// `--delete` may delete what the source does not have.
    #[arg(long, hide = true, requires = "server", conflicts_with = "write_only")]
    allow_delete: bool,
    /// `--remove-source-files` may remove copied files.
    #[arg(long, hide = true, requires = "server", conflicts_with = "write_only")]
    allow_remove_source_files: bool,
    /// `--snapshot` may add snapshots.
    #[arg(long, hide = true, requires = "confine", conflicts_with = "read_only")]
    allow_snapshot: bool,
    /// `--keep` may remove old ones.
    #[arg(long, hide = true, requires = "allow_snapshot")]
    allow_thinning: bool,
    /// Symbolic links may lead out of the directory.
    #[arg(long, hide = true, requires = "confine")]
    allow_outside_links: bool,
}

impl Permits {
    /// `ports` are those of the forced command, if it has any, and so is `no_syslog`.
    pub(super) fn to_permit(&self, ports: Option<Ports>, no_syslog: bool) -> Permit {
        Permit {
            // A relative directory starts at the current one.
            confine: self
                .confine
                .as_ref()
                .map(|dir| std::path::absolute(dir).unwrap_or(dir.clone())),
            access: match (self.read_only, self.write_only) {
                (true, _) => PermittedAccess::Read,
                (_, true) => PermittedAccess::Write,
                _ => PermittedAccess::Full,
            },
            no_overwrite: self.no_overwrite,
            deletes: self.allow_delete,
            snapshots: self.allow_snapshot,
            thins: self.allow_thinning,
            removes_sources: self.allow_remove_source_files,
            outside_links: self.allow_outside_links,
            ports,
            no_syslog,
        }
    }
}
