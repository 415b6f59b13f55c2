//! The options for deleting at either end, and for backups, with rsync's names.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::backup::{BackupPlace, SUFFIX};
use crate::error::{Error, Result};
use crate::mirror::{Mirror, MostDeleted};
use crate::session::{EndKind, Operand};

const EXISTING: &str = "Existing files";

#[derive(Debug, clap::Args)]
pub(super) struct MirrorArgs {
    /// At the end, delete entries that SOURCE lacks
    #[arg(
        long,
        aliases = ["del", "delete-after", "delete-delay", "delete-during"],
        help_heading = EXISTING
    )]
    delete: bool,
    /// --delete, including entries that rules leave out
    #[arg(long, help_heading = EXISTING)]
    delete_excluded: bool,
    /// Delete nothing if more than N entries (P%) would go
    #[arg(long, value_name = "N|P%", value_parser = most, help_heading = EXISTING)]
    max_delete: Option<MostDeleted>,
    /// Keep replaced and deleted files as NAME~
    #[arg(short = 'b', long, help_heading = EXISTING)]
    backup: bool,
    /// Keep replaced and deleted files in DIR
    #[arg(long, value_name = "DIR", help_heading = EXISTING)]
    backup_dir: Option<OsString>,
    /// Suffix of backups [~; none with --backup-dir]
    #[arg(long, value_name = "SUFFIX", help_heading = EXISTING, allow_hyphen_values = true)]
    suffix: Option<OsString>,
    /// Remove each source file once its copy is on disk
    #[arg(long, help_heading = EXISTING)]
    remove_source_files: bool,
}

impl MirrorArgs {
    pub(super) fn deletes(&self) -> bool {
        self.delete || self.delete_excluded
    }

    /// Finds what only the destination has, for a dry run.
    pub(super) fn compare_names(&mut self) {
        self.delete = true;
    }

    pub(super) fn limits_deletion(&self) -> bool {
        self.max_delete.is_some()
    }

    pub(super) fn keeps_backups(&self) -> bool {
        self.backup || self.backup_dir.is_some()
    }

    pub(super) fn removes_sources(&self) -> bool {
        self.remove_source_files
    }

    pub(super) fn has_backup_dir(&self) -> bool {
        self.backup_dir.is_some()
    }

    /// True if several destinations on one host may have the same backup directory.
    pub(super) fn has_common_backup_dir(&self) -> bool {
        let Some(dir) = self.backup_dir.as_ref().map(|dir| dir.as_bytes()) else {
            return false;
        };
        let mut names = dir.split(|byte| *byte == b'/');
        matches!(dir, [b'/' | b'~', ..]) || names.any(|name| name == b"..")
    }

    /// Where old versions go; None if they are not kept.
    ///
    /// # Errors
    /// Usage, if no backup can be there.
    pub(super) fn backup(&self, dest: &Operand) -> Result<Option<BackupPlace>> {
        if !self.backup && self.backup_dir.is_none() {
            return match self.suffix {
                Some(_) => Err(Error::usage("--suffix names backups: add --backup")),
                None => Ok(None),
            };
        }
        if dest.what != EndKind::Path {
            return Err(Error::usage(
                "--backup keeps old versions of files, and a pipe or command has none",
            ));
        }
        let usual = match &self.backup_dir {
            Some(_) => b"",
            None => SUFFIX,
        };
        let bytes = |text: &OsString| text.as_bytes().to_vec();
        if self.backup_dir.as_ref().is_some_and(|dir| dir.is_empty()) {
            return Err(Error::usage("--backup-dir: the name is empty"));
        }
        let place = BackupPlace {
            suffix: self.suffix.as_ref().map_or(usual.to_vec(), bytes),
            directory: self.backup_dir.as_ref().map_or(Vec::new(), bytes),
        };
        place.check().map_err(|why| Error::usage(why.to_string()))?;
        Ok(Some(place))
    }

    /// # Errors
    /// Usage, if the options do not fit the copy. `is_recursive`: `-r` or `-a`; `one_file_system`:
    /// `-x`; `is_strict`: `--strict`; `lists`: the user wants the paths of deleted entries.
    pub(super) fn mirror(
        &self,
        sources: &[Operand],
        dest: &Operand,
        is_recursive: bool,
        (one_file_system, is_strict): (bool, bool),
        lists: bool,
    ) -> Result<Mirror> {
        let deletes = self.deletes();
        let has_paths = sources.iter().all(|source| source.what == EndKind::Path);
        if !deletes && self.max_delete.is_some() {
            return Err(Error::usage("--max-delete needs --delete"));
        }
        if deletes && !(is_recursive && has_paths && dest.what == EndKind::Path) {
            return Err(Error::usage(
                "--delete compares whole directories: it needs -r or -a, and a directory at each end",
            ));
        }
        if self.remove_source_files && !has_paths {
            return Err(Error::usage(
                "--remove-source-files removes files: SOURCE cannot be a pipe or command",
            ));
        }
        if self.remove_source_files && dest.what != EndKind::Path {
            return Err(Error::usage(
                "--remove-source-files needs a copy that is on disk, not in a pipe or command",
            ));
        }
        if self.remove_source_files && deletes {
            return Err(Error::usage(
                "--remove-source-files and --delete cannot be combined: the next run would delete \
                 what this one has moved",
            ));
        }
        Ok(Mirror {
            removes_sources: self.remove_source_files,
            removes_kept_only: is_strict,
            deletes,
            deletes_excluded: self.delete_excluded,
            // Known when the rules are read.
            may_protect: false,
            most: self.max_delete,
            one_file_system,
            lists,
        })
    }
}

/// `--max-delete`
fn most(text: &str) -> Result<MostDeleted, String> {
    let most = match text.strip_suffix('%') {
        Some(share) => share.parse().ok().filter(|share| *share <= 100),
        None => {
            return text
                .parse()
                .map(MostDeleted::Entries)
                .map_err(|_| expected());
        }
    };
    most.map(MostDeleted::Percent).ok_or_else(expected)
}

fn expected() -> String {
    "expected a number of entries, or a share such as 10%".to_owned()
}
