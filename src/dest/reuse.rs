//! Entries of earlier copies that have the content of new ones. Such an entry is never changed: it is
//! given one more name, or it is read.

use std::cell::Cell;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, lgetxattr_query, linkat, readlinkat, statat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::attributes::Marked;
use super::changed::may_give_to;
use super::earlier::EarlierPlace;
use super::existing::content_of;
use super::in_use::refuse_in_use_elsewhere;
use super::link::{has_content_of, has_no_links, refuse_outside, replace};
use super::temporary::same_file;
use super::unchanged::{differs_in, has_more_rights, is_rounded};
use super::{EntrySlot, ExistingEntry, Rules, backup, commit, sync_directory};
use crate::chunk::SMALL_FILE_MAX;
use crate::dir::Dir;
use crate::error::Result;
use crate::keep::{Keep, NotKept, UnchangedBy};
use crate::manifest::{Entry, EntryKind, Name, Timestamp, file_type};

/// An entry of an earlier copy with the content of the new one.
pub struct EarlierEntry {
    pub(super) slot: EntrySlot,
    stat: Stat,
    /// All metadata that is kept is equal too.
    is_equal: bool,
}

impl EarlierPlace {
    /// The entry of an earlier copy that has the content of `entry`: one with equal metadata if
    /// there is one. None for a directory. Entries without a readable status are left out.
    pub fn find(&self, entry: &Entry, rules: &Rules) -> Option<EarlierEntry> {
        let name = self.name.as_ref()?;
        let mut other = None;
        for dir in self.dirs.0.iter() {
            let slot = EntrySlot::new(dir.clone(), name.clone());
            let Ok(stat) = dir.stat(name.as_os_str()) else {
                continue;
            };
            if !has_content(&slot, &stat, entry, rules) {
                continue;
            }
            let mut found = EarlierEntry {
                slot,
                stat,
                is_equal: false,
            };
            // An entry that cannot be compared is not linked.
            found.is_equal = found.is_equal_to(entry, rules);
            if found.is_equal {
                return Some(found);
            }
            other.get_or_insert(found);
        }
        other
    }

    /// The first regular file in this place with the entry's size, whose content may be equal.
    pub fn find_of_size(&self, entry: &Entry) -> Option<EarlierEntry> {
        let name = self.name.as_ref()?;
        self.dirs.0.iter().find_map(|dir| {
            let stat = dir.stat(name.as_os_str()).ok()?;
            let is_it = file_type(&stat) == FileType::RegularFile
                && stat.st_size as u64 == entry.size
                && !entry.is_made_up()
                && !entry.is_device();
            is_it.then(|| EarlierEntry {
                slot: EntrySlot::new(dir.clone(), name.clone()),
                stat,
                is_equal: false,
            })
        })
    }

    /// The first regular file in this place, with its length in bytes, to compare a new version with
    /// it.
    pub fn file(&self) -> Option<(File, u64)> {
        let name = self.name.as_ref()?;
        self.dirs.0.iter().find_map(|dir| {
            let stat = dir.stat(name.as_os_str()).ok()?;
            if file_type(&stat) != FileType::RegularFile || stat.st_size == 0 {
                return None;
            }
            open(dir, name).ok()
        })
    }
}

/// True if the file in `slot`, which an earlier run has placed, has the metadata that this copy would
/// give it, as far as this user may and the file system keeps times, and gives no more rights. A file
/// that this copy must not change needs nothing.
///
/// # Errors
/// If the file cannot be looked at.
pub fn has_metadata(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<bool> {
    if rules.untouched || rules.no_clobber {
        return Ok(true);
    }
    let Some(stat) = slot.stat()? else {
        return Ok(false);
    };
    let placed = EarlierEntry {
        slot: slot.clone(),
        stat,
        is_equal: false,
    };
    Ok(placed.is_equal_to(entry, rules))
}

/// The regular file `name`, opened without a wait for the other end of a pipe.
fn open(dir: &Arc<Dir>, name: &Name) -> io::Result<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = File::from(dir.open(name.as_os_str(), flags, Mode::empty())?);
    let stat = fstat(&file)?;
    match file_type(&stat) {
        FileType::RegularFile => Ok((file, stat.st_size as u64)),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// True if the earlier entry with the status `old` has the content of `entry`, as the rules find that
/// out.
fn has_content(slot: &EntrySlot, old: &Stat, entry: &Entry, rules: &Rules) -> bool {
    match &entry.kind {
        EntryKind::File => {
            let is_possible = file_type(old) == FileType::RegularFile
                && old.st_size as u64 == entry.size
                && !entry.is_made_up()
                && !entry.is_device();
            let time = Timestamp::mtime(old);
            is_possible
                && match rules.update.unchanged_by {
                    UnchangedBy::Nothing => false,
                    UnchangedBy::Size => true,
                    UnchangedBy::SizeAndTime => {
                        time == entry.mtime || is_rounded(slot, entry.mtime, time)
                    }
                    UnchangedBy::Content => entry.content().is_some_and(|content| {
                        let name = slot.name.as_os_str();
                        entry.size <= SMALL_FILE_MAX
                            && content_of(&slot.dir, name, entry.size)
                                .is_ok_and(|found| found == Some(content))
                    }),
                }
        }
        EntryKind::Symlink(text) => {
            let is_link = file_type(old) == FileType::Symlink;
            is_link
                && slot.dir.handle().is_ok_and(|dir| {
                    readlinkat(&*dir, slot.name.as_os_str(), Vec::new())
                        .is_ok_and(|there| there.as_bytes() == text)
                })
        }
        EntryKind::Special(special) => {
            file_type(old) == special.file_type()
                && (!special.is_device() || old.st_rdev == entry.rdev)
        }
        EntryKind::Directory | EntryKind::HardLink(_) | EntryKind::Pipe => false,
    }
}

impl EarlierEntry {
    /// An entry that was found equal by its sum, with its device and inode. None if it is not there
    /// any more, or if a link to it is not the new entry.
    pub(crate) fn equal(
        dir: &Arc<Dir>,
        name: &Name,
        inode: (u64, u64),
        rules: &Rules,
    ) -> Option<Self> {
        let stat = dir.stat(name.as_os_str()).ok()?;
        let found = EarlierEntry {
            slot: EntrySlot::new(dir.clone(), name.clone()),
            stat,
            is_equal: true,
        };
        let is_it = (stat.st_dev, stat.st_ino) == inode;
        (is_it && !found.has_more_rights(rules)).then_some(found)
    }

    /// The file itself, to read it. None if it has changed, or cannot be read.
    pub(super) fn open(&self) -> Option<File> {
        let (file, _) = open(&self.slot.dir, &self.slot.name).ok()?;
        self.is_as_found(&file).then_some(file)
    }

    pub(super) fn status(&self) -> Stat {
        self.stat
    }

    /// True if all its metadata that is kept is that of `entry`, and it gives no more rights.
    pub(super) fn is_equal_to(&self, entry: &Entry, rules: &Rules) -> bool {
        let keep = self.possible(entry, rules);
        // Without the right to give it another owner, a new file would be this user's.
        let has_owner = keep.owner || !rules.keep.owner || self.stat.st_uid == geteuid().as_raw();
        has_owner
            && !differs_in(&keep, &self.slot, entry, &self.stat, rules).unwrap_or(true)
            && !self.has_more_rights(rules)
    }

    /// True if a copy would not get all of its rights.
    fn has_more_rights(&self, rules: &Rules) -> bool {
        let Ok(dir) = self.slot.dir.handle() else {
            return true;
        };
        let path = Marked::through_proc(&dir.as_fd()).join(&self.slot.name);
        let len_of = |name: &CStr| lgetxattr_query(&path, name);
        has_more_rights(&self.stat, rules, len_of)
    }

    /// What the rules keep, without an owner or group that this user may not give to a file.
    fn possible(&self, entry: &Entry, rules: &Rules) -> Keep {
        let mut keep = rules.keep;
        let user = geteuid();
        keep.owner &= user.is_root() || entry.uid == user.as_raw();
        keep.group &= self.stat.st_gid == entry.gid || may_give_to(entry.gid);
        keep
    }

    /// Counts an owner, group or set-id bit of `entry` that a link to this entry does not have.
    pub fn count_not_kept(&self, entry: &Entry, rules: &Rules) {
        rules.count_set_id(entry, self.stat.st_mode);
        let owners = rules.keep.owner && self.stat.st_uid != entry.uid;
        let groups = rules.keep.group && self.stat.st_gid != entry.gid;
        if owners || groups {
            rules.not_kept.add(&NotKept {
                owners: owners.into(),
                groups: groups.into(),
                ..NotKept::default()
            });
        }
    }

    /// True if a link to it is the new entry.
    pub fn is_equal(&self) -> bool {
        self.is_equal
    }

    /// Makes `slot` a hard link to it, and replaces an existing entry. None if the system does not allow
    /// another link to it, or if it has gone.
    ///
    /// # Errors
    /// Of the file system, at the new place.
    pub fn link_to(&self, slot: &EntrySlot, rules: &Rules) -> Result<Option<ExistingEntry>> {
        let failed =
            |cause: io::Error| slot.error("cannot create the hard link to the earlier copy", cause);
        let Ok(from) = self.slot.dir.handle() else {
            return Ok(None);
        };
        let to = slot.dir.handle().map_err(failed)?;
        let is_other = Cell::new(false);
        let make = |name: &OsStr| {
            linkat(
                &*from,
                self.slot.name.as_os_str(),
                &*to,
                name,
                AtFlags::empty(),
            )?;
            let made = statat(&*to, name, AtFlags::SYMLINK_NOFOLLOW)?;
            // A new link may have the inode number of an entry that was removed.
            let checked = refuse_outside(&to, name, slot, rules);
            checked.inspect_err(|_| is_other.set(true))?;
            if same_file(&made, &self.stat) {
                return Ok(());
            }
            // Another process has replaced the earlier file.
            is_other.set(true);
            let now = statat(
                &*from,
                self.slot.name.as_os_str(),
                AtFlags::SYMLINK_NOFOLLOW,
            )?;
            // If they differ, a process has put another entry under the new name, which stays.
            if same_file(&made, &now) {
                unlinkat(&*to, name, AtFlags::empty())?;
            }
            Err(Errno::STALE)
        };
        // The text of a link is checked before the link has its new name.
        let is_checked = rules.links_inside && file_type(&self.stat) == FileType::Symlink;
        let direct = match is_checked {
            true => Err(Errno::EXIST),
            false => make(slot.name.as_os_str()),
        };
        let made = match direct {
            Err(Errno::EXIST) => match slot.stat()? {
                Some(old) if same_file(&old, &self.stat) => Ok(()),
                Some(_) if rules.no_clobber => return Ok(None),
                Some(old) => {
                    let kind = file_type(&self.stat);
                    let is_special = !matches!(kind, FileType::RegularFile | FileType::Symlink);
                    if !is_special || file_type(&old) == FileType::Directory {
                        commit::may_replace(slot, &old)?;
                    }
                    refuse_in_use_elsewhere(slot, &old, rules)?;
                    let is_same = has_content_of(slot, &old, &self.slot, &self.stat, rules);
                    let old = (!is_same).then_some(&old);
                    let kept = backup::keep_old(slot, old, rules)?;
                    let made = replace(slot, &to, make);
                    backup::settle(kept, made.is_ok())?;
                    made.map_err(io::Error::from)
                }
                None => replace(slot, &to, make).map_err(io::Error::from),
            },
            other => other.map_err(io::Error::from),
        };
        match made {
            Ok(()) => {}
            Err(_) if is_other.get() => return Ok(None),
            Err(cause) if has_no_links(&cause) => return Ok(None),
            Err(cause) if Errno::from_io_error(&cause) == Some(Errno::NOENT) => return Ok(None),
            Err(cause) => return Err(failed(cause)),
        }
        if rules.fsync {
            sync_directory(&slot.dir)?;
        }
        Ok(Some(ExistingEntry::of(&self.stat)))
    }

    pub(super) fn is_as_found(&self, file: impl AsFd) -> bool {
        fstat(file).is_ok_and(|now| {
            same_file(&now, &self.stat)
                && now.st_size == self.stat.st_size
                && Timestamp::mtime(&now) == Timestamp::mtime(&self.stat)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::testing::{self, name, names};
    use super::*;

    /// Another session of a confined key has replaced the link by one that has its inode number.
    #[test]
    fn no_link_to_an_earlier_copy_leads_out_from_its_new_place() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("old")).unwrap();
        symlink("../x", temp.path().join("old/link")).unwrap();
        let top = Dir::root(temp.path(), &Arc::default()).unwrap();
        let old = EntrySlot::new(top.child(&name("old")).unwrap(), name("link"));
        let found = EarlierEntry {
            stat: old.stat().unwrap().unwrap(),
            slot: old,
            is_equal: true,
        };
        let slot = EntrySlot::new(top, name("link"));
        let rules = Rules {
            links_inside: true,
            ..testing::rules()
        };
        let is_linked = |rules: &Rules| found.link_to(&slot, rules).unwrap().is_some();
        assert!(!is_linked(&rules));
        assert_eq!(names(temp.path()), ["old"]);
        fs::write(temp.path().join("link"), "there").unwrap();
        assert!(!is_linked(&rules));
        assert_eq!(fs::read(temp.path().join("link")).unwrap(), b"there");
        assert_eq!(names(temp.path()), ["link", "old"]);
        assert!(is_linked(&testing::rules()));
    }
}
