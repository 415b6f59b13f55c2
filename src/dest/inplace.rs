//! An existing file that is written in place (`--inplace`). It keeps its owner and all its names. A
//! copy that ends early leaves it partly new.

use std::fs::File;

use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fstat, futimens};

use super::attributes::{self, Marked};
use super::shared_inodes::refuse_link;
use super::{EntrySlot, Rules, commit, hints, is_own_name, times_of};
use crate::error::Result;
use crate::manifest::{Entry, file_type};

pub(super) struct InPlace {
    pub slot: EntrySlot,
    pub file: File,
    /// Bytes of the old version.
    pub old_len: u64,
}

impl InPlace {
    /// None without `--inplace`, or if no file exists: a new one is made as usual.
    ///
    /// # Errors
    /// `Kind::Refused` for a symbolic link: the user did not choose its target.
    pub(super) fn open(
        slot: &EntrySlot,
        old: Option<&Stat>,
        rules: &Rules,
    ) -> Result<Option<InPlace>> {
        // It may be the partial file of a killed run, which another copy may resume.
        let is_own = is_own_name(slot.name.as_bytes());
        let Some(old) = old.filter(|_| rules.inplace && !is_own) else {
            return Ok(None);
        };
        refuse_link(slot, old, rules)?;
        let option = rules.option_in_place();
        let what = format!("cannot write into it ({option})");
        let cannot = |cause| hints::name_error(slot, &what, cause);
        // A resume also reads the file; one that may only be written is sent again from the start.
        let open = |access| {
            let flags = access | OFlags::NONBLOCK;
            slot.dir.open(slot.name.as_os_str(), flags, Mode::empty())
        };
        let fd = open(OFlags::RDWR).or_else(|_| open(OFlags::WRONLY));
        let file = File::from(fd.map_err(cannot)?);
        let stat = fstat(&file).map_err(|cause| cannot(cause.into()))?;
        if file_type(&stat) != FileType::RegularFile {
            return Err(slot.refused("is no longer a regular file"));
        }
        // The kernel removes them at the first byte, but not if root writes it.
        if !rules.set_id && stat.st_mode & 0o6000 != 0 {
            let removed = fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o1777));
            removed.map_err(|cause| {
                let what = "cannot remove its set-id bits, which this key may not keep";
                slot.error(&format!("{what} ({option})"), cause)
            })?;
        }
        Ok(Some(InPlace {
            slot: slot.clone(),
            file,
            old_len: stat.st_size as u64,
        }))
    }

    /// Extends the file to `size` bytes at once. A longer file is cut at the end.
    pub(super) fn grow(&self, size: u64) -> std::io::Result<()> {
        if self.file.metadata()?.len() < size {
            self.file.set_len(size)?;
        }
        Ok(())
    }

    /// Sets the length and the metadata that is kept when the content is complete. Returns the status.
    pub(super) fn commit(self, entry: &Entry, length: u64, rules: &Rules) -> Result<Stat> {
        let (slot, file) = (&self.slot, &self.file);
        let stat = || fstat(file).map_err(|cause| slot.no_status(cause));
        let present = stat()?.st_size as u64;
        // It was extended when it was opened, unless the source is a pipe.
        if present < length.min(entry.size) {
            return Err(slot.refused("was cut by another process during the copy; copy it again"));
        }
        if present != length {
            let cut = file.set_len(length);
            cut.map_err(|cause| slot.error("cannot truncate it", cause))?;
        }
        // Before the file gets its times: they would show the next copy that its content is right.
        commit::settle(slot, file, rules)?;
        let (keep, mut now) = (&rules.keep, stat()?);
        let marked = Marked::open(file);
        attributes::give_before_mode(&marked, slot, entry, &mut now, rules)?;
        if keep.perms {
            let mode = rules.mode_to_give(entry, &now);
            fchmod(file, Mode::from_raw_mode(mode))
                .map_err(|cause| slot.error("cannot set the mode", cause))?;
        }
        attributes::give_after_mode(&marked, slot, entry, rules)?;
        if keep.times {
            futimens(file, &times_of(entry))
                .map_err(|cause| slot.error("cannot set the times", cause))?;
        } else if rules.touches() {
            // Perhaps no page differed, so none was written.
            attributes::touch(file);
        }
        // The metadata reaches the disk too.
        commit::settle(slot, file, rules)?;
        let written = stat()?;
        let named = slot.stat()?.map(|stat| (stat.st_dev, stat.st_ino));
        if named != Some((written.st_dev, written.st_ino)) {
            let message =
                "was removed or replaced by another process during the copy; copy it again";
            return Err(slot.refused(message));
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, metadata, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::super::testing;
    use super::*;

    /// Otherwise the holder of a confined key could write a set-id program of root.
    #[test]
    fn set_id_bits_are_gone_before_a_confined_key_writes() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("su");
        write(&path, "old").unwrap();
        let slot = testing::slot(temp.path(), "su");
        let mode_with = |set_id: bool| {
            set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
            let rules = Rules {
                inplace: true,
                set_id,
                ..testing::rules()
            };
            let old = slot.stat().unwrap();
            assert!(
                InPlace::open(&slot, old.as_ref(), &rules)
                    .unwrap()
                    .is_some()
            );
            metadata(&path).unwrap().permissions().mode() & 0o7777
        };
        assert_eq!(mode_with(true), 0o6755);
        assert_eq!(mode_with(false), 0o755);
    }
}
