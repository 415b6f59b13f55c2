//! The options that delete at the destination, with rsync's names.

use crate::error::{Error, Result};
use crate::mirror::{Mirror, MostDeleted};
use crate::session::{EndKind, Operand};

const EXISTING: &str = "Existing files";

#[derive(Debug, clap::Args)]
pub(super) struct MirrorArgs {
    /// At the end, delete what the source does not have
    #[arg(
        long,
        aliases = ["del", "delete-after", "delete-delay", "delete-during"],
        help_heading = EXISTING
    )]
    delete: bool,
    /// --delete, and delete what the rules leave out
    #[arg(long, help_heading = EXISTING)]
    delete_excluded: bool,
    /// Delete nothing if more than N entries (P%) would go
    #[arg(long, value_name = "N|P%", value_parser = most, help_heading = EXISTING)]
    max_delete: Option<MostDeleted>,
}

impl MirrorArgs {
    pub(super) fn deletes(&self) -> bool {
        self.delete || self.delete_excluded
    }

    /// Finds what only the destination has, for a dry run.
    pub(super) fn compare_names(&mut self) {
        self.delete = true;
    }

    /// # Errors
    /// Usage, if the options do not fit the copy. `is_recursive`: `-r` or `-a`; `one_file_system`:
    /// `-x`; `lists`: the user wants the paths of deleted entries.
    pub(super) fn mirror(
        &self,
        sources: &[Operand],
        dest: &Operand,
        is_recursive: bool,
        one_file_system: bool,
        lists: bool,
    ) -> Result<Mirror> {
        let deletes = self.deletes();
        let has_paths = sources.iter().all(|source| source.what == EndKind::Path);
        if !deletes && self.max_delete.is_some() {
            return Err(Error::usage(
                "--max-delete limits --delete, which is missing",
            ));
        }
        if deletes && !(is_recursive && has_paths && dest.what == EndKind::Path) {
            return Err(Error::usage(
                "--delete compares whole directories: it needs -r or -a, and a directory at each end",
            ));
        }
        Ok(Mirror {
            deletes,
            deletes_excluded: self.delete_excluded,
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
