//! The directories of earlier copies, as the user named them, and copies of their files.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::earlier::EarlierDirs;
use super::local_copy::{LocalCopy, NotCopied};
use super::option_path::{OptionBase, OptionDirectory};
use super::partial::replaceable;
use super::reuse::EarlierEntry;
use super::temporary::Temporary;
use super::{EntrySlot, ExistingEntry, Rules, Spec, commit, space};
use crate::dir::Handles;
use crate::earlier::{EarlierCopies, EarlierPath};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::Entry;
use crate::units::printable;

impl EarlierEntry {
    /// Copies the file to `slot`, with the metadata of `entry`. None if it cannot be read, has
    /// changed, or if the copy `is_ending`.
    ///
    /// # Errors
    /// Of the file system, at the new place.
    pub fn copy_to(
        &self,
        slot: &EntrySlot,
        entry: &Entry,
        rules: &Rules,
        is_ending: &dyn Fn() -> bool,
        make_room: &dyn Fn() -> Result<()>,
    ) -> Result<Option<ExistingEntry>> {
        let Some(from) = self.open() else {
            return Ok(None);
        };
        replaceable(slot, entry, rules)?;
        let temporary = Temporary::create(slot)?;
        let copy = LocalCopy {
            from: &from,
            before: &self.status(),
            into: &temporary.file,
            is_sparse: entry.is_sparse(),
            is_ending,
        };
        match copy.run() {
            Ok(()) => {}
            Err(NotCopied::Write(cause)) => {
                return Err(space::write_error(slot, entry.size, cause));
            }
            Err(NotCopied::Changed | NotCopied::Ending | NotCopied::Read(_)) => return Ok(None),
        }
        make_room()?;
        let stat = commit::commit(temporary, entry, rules)?;
        Ok(Some(ExistingEntry::of(&stat)))
    }
}

/// The earlier copies that exist. `is_directory`: the first root is a directory. Warns the user of a
/// missing copy; it is no error, because the first copy of a series has no earlier one.
///
/// # Errors
/// `Kind::Usage` if one is not a directory, or a key may not reach it; `Kind::Refused` if it is behind a
/// symbolic link that is not followed.
pub fn earlier_copies(
    spec: &Spec,
    earlier: &EarlierCopies,
    is_directory: bool,
    handles: &Arc<Handles>,
    tell: &dyn Fn(&str),
) -> Result<EarlierDirs> {
    let base = OptionBase::of(spec, is_directory, handles)?;
    let mut found = Vec::new();
    for EarlierPath(path) in &earlier.directories {
        match base.find(path)? {
            OptionDirectory::Directory(dir) => found.push(dir),
            OptionDirectory::Missing => tell(&is_missing(path, &base.path_of(path))),
            OptionDirectory::Other => {
                let message = "is not a directory, so it is no earlier copy";
                let error = Error::new(Kind::Usage, Side::Dest, message);
                return Err(error.at(base.path_of(path)));
            }
        }
    }
    Ok(EarlierDirs::of(found))
}

fn is_missing(typed: &[u8], whole: &Path) -> String {
    format!(
        "fastcp: the earlier copy {} does not exist ({}), so fastcp does not use it",
        printable(typed),
        printable(whole.as_os_str().as_bytes())
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::testing::*;
    use super::*;
    use crate::keep::{Keep, UnchangedBy, Update};
    use crate::manifest::Timestamp;

    #[test]
    fn an_equal_file_is_linked_and_one_with_another_mode_copied() {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["old", "new"] {
            std::fs::create_dir(temp.path().join(dir)).unwrap();
        }
        std::fs::write(temp.path().join("old/f"), b"content").unwrap();
        let rules = Rules {
            keep: Keep::modes_and_times(),
            update: Update {
                unchanged_by: UnchangedBy::SizeAndTime,
                ..Update::default()
            },
            ..rules()
        };
        let old = slot(&temp.path().join("old"), "f");
        let stat = old.dir.stat("f".as_ref()).unwrap();
        let mut entry = file(7, stat.st_mode & 0o7777);
        entry.mtime = Timestamp::mtime(&stat);
        let place = EarlierDirs::of(vec![old.dir.clone()]).place(name("f"));
        let found = place.find(&entry, &rules).expect("the earlier file");
        assert!(found.is_equal());
        let new = slot(&temp.path().join("new"), "f");
        assert!(found.link_to(&new, &rules).unwrap().is_some());
        let meta = |path: &str| std::fs::metadata(temp.path().join(path)).unwrap();
        assert_eq!(meta("old/f").ino(), meta("new/f").ino());

        entry.mode = 0o600;
        let found = place.find(&entry, &rules).expect("the earlier file");
        assert!(!found.is_equal());
        let copied = found
            .copy_to(&new, &entry, &rules, &|| false, &|| Ok(()))
            .unwrap();
        assert!(copied.is_some());
        assert_ne!(meta("old/f").ino(), meta("new/f").ino());
        assert_eq!(meta("new/f").mode() & 0o777, 0o600);
        assert_eq!(meta("new/f").mtime(), meta("old/f").mtime());
        assert_eq!(meta("old/f").mode() & 0o7777, stat.st_mode & 0o7777);
        entry.size = 8;
        assert!(place.find(&entry, &rules).is_none());
    }
}
