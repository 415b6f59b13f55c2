//! A new version of a file that is equal to the existing file as far as it has arrived. The
//! receiver makes no file for it until a byte differs, so a copy of the same content writes
//! nothing.

use std::ffi::CStr;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use rustix::fs::{SeekFrom, Stat, fgetxattr_query, fstat, seek};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::super::basis::Basis;
use super::super::temporary::Temporary;
use super::super::unchanged::{self, UnchangedFile};
use super::super::{EarlierEntry, EntrySlot, Rules, attributes, commit, existing, make_durable};
use crate::chunk::ranges::RangeSet;
use crate::digest::Digest;
use crate::earlier::Reuse;
use crate::error::Result;
use crate::manifest::{Entry, Timestamp};

/// Bytes that are copied at a time.
const STEP: u64 = 1 << 20;

pub(super) struct EqualSoFar {
    pub slot: EntrySlot,
    old: File,
    /// The status of the existing file before it was compared.
    stat: Stat,
    made: OnceLock<Made>,
    /// Ranges that equal the existing file and were not copied into the new one.
    equal: Mutex<RangeSet>,
    /// Set if the existing file is that of an earlier copy.
    earlier: Option<EarlierEntry>,
    /// The new name is a link to it.
    is_linked: AtomicBool,
}

/// The file for the new version.
pub(super) struct Made {
    pub temporary: Box<Temporary>,
    /// It began as a clone of the existing file.
    pub is_clone: bool,
}

impl EqualSoFar {
    /// None if there is no file of the entry's size.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn open(slot: &EntrySlot, entry: &Entry) -> Result<Option<(EqualSoFar, Basis)>> {
        if slot.fresh {
            return Ok(None);
        }
        let opened = existing::open_checked(slot, |cause| slot.unreadable(cause))?;
        let same_size = opened.filter(|(_, stat)| stat.st_size as u64 == entry.size);
        let Some((old, stat)) = same_size else {
            return Ok(None);
        };
        let reader = old.try_clone().map_err(|cause| slot.unreadable(cause))?;
        let basis = Basis::equal(reader, entry.size, false);
        let equal = EqualSoFar {
            slot: slot.clone(),
            old,
            stat,
            made: OnceLock::new(),
            equal: Mutex::default(),
            earlier: None,
            is_linked: AtomicBool::new(false),
        };
        Ok(Some((equal, basis)))
    }

    /// The same with the file of an earlier copy, which has the entry's size.
    pub(super) fn of_earlier(
        slot: &EntrySlot,
        size: u64,
        earlier: EarlierEntry,
    ) -> Option<(EqualSoFar, Basis)> {
        let old = earlier.open()?;
        let basis = Basis::equal(old.try_clone().ok()?, size, false);
        let equal = EqualSoFar {
            slot: slot.clone(),
            stat: earlier.status(),
            old,
            made: OnceLock::new(),
            equal: Mutex::default(),
            earlier: Some(earlier),
            is_linked: AtomicBool::new(false),
        };
        Some((equal, basis))
    }

    /// Links the new name to the file of an earlier copy, which has all of the new content. False if
    /// that is not possible, so that it has to be copied.
    ///
    /// # Errors
    /// Of the file system, at the new name.
    fn link(
        &self,
        earlier: &EarlierEntry,
        entry: &Entry,
        rules: &Rules,
        root: Option<&Digest>,
    ) -> Result<bool> {
        if rules.earlier != Some(Reuse::Link) || !earlier.is_equal_to(entry, rules) {
            return Ok(false);
        }
        self.check_whole(root)?;
        let is_linked = earlier.link_to(&self.slot, rules)?.is_some();
        self.is_linked.store(is_linked, Relaxed);
        Ok(is_linked)
    }

    /// True if the existing file is, or becomes, the new one, which has the digest `root`.
    ///
    /// # Errors
    /// If it cannot be looked at or linked, or has changed since it was compared.
    pub(super) fn settles(
        &self,
        entry: &Entry,
        rules: &Rules,
        root: Option<&Digest>,
    ) -> Result<bool> {
        if let Some(earlier) = &self.earlier {
            return self.link(earlier, entry, rules, root);
        }
        let stays = self.has_name()? && self.may_stay(entry, rules)?;
        if stays {
            self.check_whole(root)?;
        }
        Ok(stays)
    }

    /// True if the existing file is that which the new one replaces.
    pub(super) fn is_replaced(&self) -> bool {
        self.earlier.is_none()
    }

    /// Device and inode of the existing file.
    pub(super) fn inode(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// The new file, if there is one.
    pub(super) fn made(&self) -> Option<&Made> {
        self.made.get()
    }

    /// The new file, which `make` makes first if there is none.
    pub(super) fn made_or(&self, make: impl FnOnce(&File, &Stat) -> Result<Made>) -> Result<&Made> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let mut equal = self.equal.lock();
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let made = make(&self.old, &self.stat)?;
        if made.is_clone {
            *equal = RangeSet::new();
        }
        Ok(self.made.get_or_init(|| made))
    }

    /// Notes that this range is equal. False if it has to be written.
    pub(super) fn keeps(&self, range: Range<u64>) -> bool {
        let mut equal = self.equal.lock();
        match self.made.get() {
            Some(made) => made.is_clone,
            None => {
                equal.insert(range);
                true
            }
        }
    }

    /// True if the existing file has only zeros in this range.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn has_zeros(&self, range: Range<u64>) -> Result<bool> {
        let mut room = vec![0; STEP.min(range.end - range.start) as usize];
        let mut at = range.start;
        while at < range.end {
            match seek(&self.old, SeekFrom::Data(at)) {
                Ok(data) => at = at.max(data),
                // There is no data behind it.
                Err(Errno::NXIO) => return Ok(true),
                // All of it is read.
                Err(_) => {}
            }
            if at >= range.end {
                break;
            }
            let step = &mut room[..STEP.min(range.end - at) as usize];
            match self.old.read_exact_at(step, at) {
                Ok(()) if step.iter().all(|byte| *byte == 0) => at += step.len() as u64,
                Ok(()) => return Ok(false),
                // It has become shorter.
                Err(cause) if cause.kind() == ErrorKind::UnexpectedEof => return Ok(false),
                Err(cause) => return Err(self.slot.unreadable(cause)),
            }
        }
        Ok(true)
    }

    /// True if the existing file has these bytes.
    pub(super) fn has(&self, data: &[u8], offset: u64) -> bool {
        let mut there = vec![0; data.len()];
        self.old.read_exact_at(&mut there, offset).is_ok() && there == data
    }

    /// Some bytes that must still be copied into the new file, with their offset. None if there are
    /// no more.
    ///
    /// # Errors
    /// If the existing file cannot be read, or has changed since it was compared.
    pub(super) fn take_pending(&self) -> Result<Option<(u64, Vec<u8>)>> {
        let range = {
            let mut equal = self.equal.lock();
            let Some(first) = equal.iter().next() else {
                return Ok(None);
            };
            let range = first.start..first.end.min(first.start + STEP);
            equal.remove(range.clone());
            range
        };
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = self.old.read_exact_at(&mut bytes, range.start);
        read.map_err(|cause| self.slot.unreadable(cause))?;
        self.check_old()?;
        Ok(Some((range.start, bytes)))
    }

    /// Fails if the size or the modification time of the old file shows a change since the
    /// comparison.
    pub(super) fn check_old(&self) -> Result<()> {
        let now = fstat(&self.old).map_err(|cause| self.slot.no_status(cause))?;
        match is_same(&now, &self.stat) {
            true => Ok(()),
            false => Err(self.changed()),
        }
    }

    /// `file` has all of the new content, which has the digest `root`: it is the existing file, or has
    /// parts of it. It is read only if the ctime of the existing file has changed since it was
    /// compared: somebody may have written to it and set back its time of modification. No error
    /// follows from the ctime alone. A chmod changes it, and so does a link to the file or the
    /// removal of one of its names, by this copy or another. Without a digest (a sparse source,
    /// `--live`) the time of modification decides.
    pub(super) fn check_content(&self, file: &File, root: Option<&Digest>) -> Result<()> {
        let now = fstat(&self.old).map_err(|cause| self.slot.no_status(cause))?;
        let Some(root) = root.filter(|_| Timestamp::ctime(&now) != Timestamp::ctime(&self.stat))
        else {
            return Ok(());
        };
        let digest = existing::digest_of_file(file);
        match digest.map_err(|cause| self.slot.unreadable(cause))? == *root {
            true => Ok(()),
            false => Err(self.changed()),
        }
    }

    /// The same for an existing file of which nothing differs.
    pub(super) fn check_whole(&self, root: Option<&Digest>) -> Result<()> {
        self.check_old()?;
        self.check_content(&self.old, root)
    }

    fn changed(&self) -> crate::error::Error {
        let what = "was changed by another process during the copy; copy it again";
        self.slot.refused(what)
    }

    /// True if the existing file still has its name.
    fn has_name(&self) -> Result<bool> {
        let now = self.slot.stat()?;
        Ok(now.is_some_and(|now| (now.st_dev, now.st_ino) == self.inode()))
    }

    /// True if the existing file can stay: a correction of its metadata is possible and changes no
    /// other name of it, and it has no rights that a new file would not get.
    pub(super) fn may_stay(&self, entry: &Entry, rules: &Rules) -> Result<bool> {
        let stat = &self.stat;
        let len_of = |name: &CStr| fgetxattr_query(&self.old, name);
        if unchanged::has_more_rights(stat, rules, len_of) {
            return Ok(false);
        }
        let is_shared = rules.is_shared(entry, stat);
        let user = geteuid();
        let may_correct = !is_shared && (user.is_root() || user.as_raw() == stat.st_uid);
        let changes = || -> Result<bool> {
            Ok(rules.touches() || unchanged::differs(&self.slot, entry, stat, rules)?)
        };
        Ok(may_correct || !changes()?)
    }

    /// Corrects the metadata of the existing file, which has all of the new content. Returns its
    /// status.
    fn stay(&self, entry: &Entry, rules: &Rules) -> Result<Stat> {
        let slot = &self.slot;
        if self.is_linked.load(Relaxed) {
            return fstat(&self.old).map_err(|cause| slot.no_status(cause));
        }
        self.check_old()?;
        unchanged::correct(slot, entry, &UnchangedFile::of(self.stat), rules)?;
        if rules.touches() {
            attributes::touch(&self.old);
        }
        commit::settle(slot, &self.old, rules)?;
        if rules.fsync {
            // The run that made it may not have made its name durable.
            make_durable(slot)?;
        }
        fstat(&self.old).map_err(|cause| slot.no_status(cause))
    }

    /// Gives the new file its name, or leaves the existing one in its place. Returns its status.
    pub(super) fn commit(mut self, entry: &Entry, rules: &Rules) -> Result<Stat> {
        match self.made.take() {
            Some(made) => commit::commit(*made.temporary, entry, rules),
            None => self.stay(entry, rules),
        }
    }

    pub(super) fn into_made(self) -> Option<Box<Temporary>> {
        self.made.into_inner().map(|made| made.temporary)
    }
}

fn is_same(now: &Stat, before: &Stat) -> bool {
    (now.st_dev, now.st_ino, now.st_size) == (before.st_dev, before.st_ino, before.st_size)
        && Timestamp::mtime(now) == Timestamp::mtime(before)
}
