//! A small file whose content is in memory: one call creates, writes and names it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::device::Device;
use super::in_use::refuse_in_use;
use super::inplace::InPlace;
use super::nameless::Nameless;
use super::partial::write_sparse;
use super::shared_inodes::{InodeUse, use_in_place};
use super::temporary::Temporary;
use super::{EntrySlot, ExistingEntry, Rules, commit, existing, make_durable, space};
use crate::cache::Behind;
use crate::error::Result;
use crate::manifest::Entry;

/// Writes `content`, whose digest was verified, as `entry` says. Returns its status at the
/// destination, or None if the same content existed there already (`--no-clobber`).
///
/// In a fresh directory on most local file systems this takes five system calls: openat, pwrite,
/// fstat, linkat, close.
pub fn place_small(
    slot: &EntrySlot,
    entry: &Entry,
    content: &[u8],
    rules: &Rules,
) -> Result<Option<ExistingEntry>> {
    if slot.device.is_some() {
        let device = Device::open(slot, content.len() as u64, rules)?;
        device.write(content, 0)?;
        return device.finish().map(Some);
    }
    let old = if slot.fresh { None } else { slot.stat()? };
    let is_there = old.is_some();
    if let Some(old) = old {
        commit::may_replace(slot, &old)?;
        if rules.no_clobber {
            return match !rules.blind && existing::same_content(slot, content)? {
                true if rules.fsync => make_durable(slot).map(|()| None),
                true => Ok(None),
                false => Err(existing::stays(slot, rules)),
            };
        }
        use_in_place(slot, &old, InodeUse::Written, rules)?;
        refuse_in_use(slot, &old, rules)?;
        if let Some(file) = InPlace::open(slot, Some(&old), rules)? {
            let written = file.file.write_all_at(content, 0);
            let written = written.and_then(|()| drop_written(&file.file, content, rules));
            written.map_err(|cause| space::write_error(slot, content.len() as u64, cause))?;
            let stat = file.commit(entry, content.len() as u64, rules)?;
            return Ok(Some(ExistingEntry::of(&stat)));
        }
    }
    let write = |file: &File| {
        let written = write(file, entry, content);
        let written = written.and_then(|()| drop_written(file, content, rules));
        written.map_err(|cause| space::write_error(slot, content.len() as u64, cause))
    };
    if !is_there && let Some(nameless) = Nameless::create(slot, entry, rules)? {
        write(&nameless.file)?;
        if let Some(stat) = nameless.commit(entry, rules)? {
            return Ok(Some(ExistingEntry::of(&stat)));
        }
    }
    let temporary = Temporary::create(slot)?;
    write(&temporary.file)?;
    let stat = commit::commit(temporary, entry, rules)?;
    Ok(Some(ExistingEntry::of(&stat)))
}

/// With `--drop-cache`: writes the content back to the disk and drops it from the page cache.
fn drop_written(file: &File, content: &[u8], rules: &Rules) -> io::Result<()> {
    if !rules.drop_cache {
        return Ok(());
    }
    let behind = Behind::default();
    behind.wrote(file, 0..content.len() as u64)?;
    behind.finish(file)
}

fn write(file: &File, entry: &Entry, content: &[u8]) -> io::Result<()> {
    if !entry.is_sparse() {
        return file.write_all_at(content, 0);
    }
    let end = write_sparse(file, content, 0)?;
    if end < content.len() as u64 {
        file.set_len(content.len() as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::testing::*;
    use super::*;
    use crate::error::Kind;

    #[test]
    fn no_clobber_keeps_the_same_content_and_refuses_other() {
        let temp = tempfile::tempdir().unwrap();
        let no_clobber = Rules {
            no_clobber: true,
            ..rules()
        };
        let place = |content: &[u8]| {
            let entry = file(content.len() as u64, 0o644);
            place_small(&slot(temp.path(), "a"), &entry, content, &no_clobber)
        };
        assert!(place(b"one").unwrap().is_some(), "copied");
        let before = std::fs::metadata(temp.path().join("a")).unwrap().ino();
        assert!(place(b"one").unwrap().is_none(), "kept");
        assert_eq!(place(b"two").unwrap_err().kind, Kind::Refused);
        let after = std::fs::metadata(temp.path().join("a")).unwrap().ino();
        assert_eq!(before, after);
        assert_eq!(std::fs::read(temp.path().join("a")).unwrap(), b"one");
        assert_eq!(names(temp.path()), ["a"]);
    }

    #[test]
    fn a_small_sparse_file_keeps_its_size_and_its_holes() {
        let temp = tempfile::tempdir().unwrap();
        let mut content = vec![0; 200_000];
        content[100_000] = 1;
        let mut entry = file(200_000, 0o644);
        entry.allocated = 4096;
        place_small(&slot(temp.path(), "a"), &entry, &content, &rules()).unwrap();
        assert_eq!(std::fs::read(temp.path().join("a")).unwrap(), content);
        let taken = std::fs::metadata(temp.path().join("a")).unwrap().blocks() * 512;
        assert!(taken <= 16 << 10, "{taken}");
    }

    #[test]
    fn an_empty_file_is_a_file() {
        let temp = tempfile::tempdir().unwrap();
        place_small(&slot(temp.path(), "a"), &file(0, 0o644), b"", &rules()).unwrap();
        assert_eq!(std::fs::read(temp.path().join("a")).unwrap(), b"");
    }
}
