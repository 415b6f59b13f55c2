//! A large file that is being received. Several threads write chunks at their offsets, then
//! [`Partial::commit`] gives the file its name. A [`Partial`] that is dropped before that removes
//! its file; [`Partial::keep`] leaves it for a later run to resume. With `--inplace`, and for a
//! device that the user named, the chunks go directly into the existing file or device. If the
//! file is compared with an existing one, the partial file is made only when a byte differs
//! ([`equal`]).

mod equal;
mod holes;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use equal::{EqualSoFar, Made};
pub(super) use holes::write_sparse;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Stat, StatxFlags, fstat, ioctl_ficlone, statx};
use rustix::io::Errno;

use super::basis::Basis;
use super::device::Device;
use super::in_use::{is_in_use, refuse_in_use};
use super::inplace::InPlace;
use super::readback::Readback;
use super::room::is_removed_first;
use super::shared_inodes::{InodeUse, use_in_place};
use super::temporary::Temporary;
use super::{EarlierEntry, EntrySlot, ExistingEntry, Rules, commit, identity, space};
use crate::cache::{self, Behind};
use crate::chunk::VerifiedChunk;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, EntryKind, Inode, Timestamp, file_type};

/// Bytes of the existing file that a thread copies into a new one after each write.
const EQUAL_BYTES: u64 = 8 << 20;

pub struct Partial {
    target: PartialTarget,
    entry: Arc<Entry>,
    rules: Rules,
    /// Ranges that are not written yet may hold other bytes than zeros.
    dirty: bool,
    /// False if the content may differ from what an earlier run left.
    is_intact: bool,
    /// Final length in bytes.
    length: u64,
    /// With `--drop-cache`: ranges on their way to the disk, to be dropped from the page cache.
    behind: Option<Behind>,
    /// The kernel lets one thread at a time write to a file and has the others spin. Threads that
    /// sleep on this lock instead leave the processor to other work.
    turn: Mutex<()>,
    /// In a dry run: something differs from the existing file, and would be written.
    differs: AtomicBool,
}

enum PartialTarget {
    /// A temporary file beside the final name.
    Beside(Box<Temporary>),
    /// A temporary file beside the final name, once a byte differs from the existing file.
    Equal(Box<EqualSoFar>),
    /// The existing file under the final name (`--inplace`).
    InPlace(InPlace),
    /// The block device under the final name.
    Device(Device),
}

/// The open file or device that chunks are written to.
enum DestMedium<'a> {
    File(&'a File),
    Device(&'a Device),
}

impl Partial {
    /// Makes an empty file of the entry's size beside its final name. Opens the existing file or
    /// device instead with `--inplace`, or if the user named a device.
    ///
    /// # Errors
    /// Also fails if the file could not get its name later: a directory has that name, the owner of
    /// the existing file cannot be kept, or that file is in use.
    pub fn create(slot: &EntrySlot, entry: Arc<Entry>, rules: &Rules) -> Result<Partial> {
        if rules.dry_run {
            return Err(slot.refused("is about to be written in a dry run; please report this bug"));
        }
        if slot.device.is_some() {
            let device = Device::open(slot, entry.size, rules)?;
            return Ok(Partial::new(
                PartialTarget::Device(device),
                entry,
                rules,
                true,
            ));
        }
        let old = replaceable(slot, &entry, rules)?;
        let partial = match InPlace::open(slot, old.as_ref(), rules)? {
            Some(file) => Partial::new(PartialTarget::InPlace(file), entry, rules, true),
            None => {
                let mut temporary = Box::new(Temporary::create(slot)?);
                rehearse(&mut temporary, old.as_ref(), rules)?;
                Partial::new(PartialTarget::Beside(temporary), entry, rules, false)
            }
        };
        partial.fit()?;
        Ok(partial)
    }

    /// A file that is made only if it differs from the existing file, with that file to compare it
    /// with. None if there is none of the entry's size, or if it cannot stay.
    ///
    /// # Errors
    /// As [`create`](Partial::create).
    pub fn equal(
        slot: &EntrySlot,
        entry: &Arc<Entry>,
        rules: &Rules,
    ) -> Result<Option<(Partial, Basis)>> {
        let makes = rules.inplace || rules.drop_cache;
        if slot.device.is_some() || makes && !rules.dry_run {
            return Ok(None);
        }
        // A dry run only reads it.
        if !rules.dry_run {
            let Some(old) = replaceable(slot, entry, rules)? else {
                return Ok(None);
            };
            // With `--force` another process may go on writing to it.
            if rules.force && is_in_use(slot, &old)? {
                return Ok(None);
            }
        }
        let opened = match EqualSoFar::open(slot, entry) {
            Err(error) if rules.dry_run => return Err(error),
            // Without it, the file is sent whole.
            opened => opened.ok().flatten(),
        };
        Ok(opened.map(|(equal, basis)| {
            let target = PartialTarget::Equal(Box::new(equal));
            (Partial::new(target, entry.clone(), rules, false), basis)
        }))
    }

    /// A file that is made only if it differs from that of an earlier copy, to which it is linked
    /// otherwise. None if that cannot be read.
    ///
    /// # Errors
    /// As [`create`](Partial::create).
    pub fn equal_to_earlier(
        slot: &EntrySlot,
        entry: &Arc<Entry>,
        rules: &Rules,
        earlier: EarlierEntry,
    ) -> Result<Option<(Partial, Basis)>> {
        replaceable(slot, entry, rules)?;
        let opened = EqualSoFar::of_earlier(slot, entry.size, earlier);
        Ok(opened.map(|(equal, basis)| {
            let target = PartialTarget::Equal(Box::new(equal));
            (Partial::new(target, entry.clone(), rules, false), basis)
        }))
    }

    /// Resumes the file `inode` that an earlier run made with `size` bytes; `inplace` says whether
    /// that run wrote in place. None if the file is not in this slot, if this copy differs in
    /// `--inplace`, or if another user may have written the file. A partial file that this copy
    /// does not need because of `--inplace` is removed.
    ///
    /// # Errors
    /// As [`create`](Partial::create).
    pub fn resume(
        slot: &EntrySlot,
        entry: Arc<Entry>,
        rules: &Rules,
        (inode, size): (&Inode, u64),
        inplace: bool,
    ) -> Result<Option<Partial>> {
        if slot.device.is_some() {
            let device = Device::reopen(slot, entry.size, rules)?;
            let is_it = inplace && device.inode().is(inode);
            let partial = || Partial::new(PartialTarget::Device(device), entry, rules, true);
            return Ok(is_it.then(partial));
        }
        let old = replaceable(slot, &entry, rules)?;
        let is_it = |file: &File, _: &Stat| inode_of(file).is_ok_and(|found| found.is(inode));
        let target = match InPlace::open(slot, old.as_ref(), rules)? {
            Some(file) if inplace && inode_of(&file.file).is_ok_and(|found| found.is(inode)) => {
                PartialTarget::InPlace(file)
            }
            Some(_) if inplace => return Ok(None),
            // No other run would remove the file that the earlier one made beside it.
            Some(_) => {
                drop(Temporary::reopen(slot, is_it));
                return Ok(None);
            }
            None if inplace => return Ok(None),
            None => {
                let Some(mut temporary) = Temporary::reopen(slot, is_it)? else {
                    return Ok(None);
                };
                rehearse(&mut temporary, old.as_ref(), rules)?;
                PartialTarget::Beside(Box::new(temporary))
            }
        };
        let mut partial = Partial::new(target, entry, rules, true);
        partial.is_intact = match &partial.target {
            PartialTarget::Beside(temporary) => {
                let file = &temporary.file;
                let has_size = file.metadata().is_ok_and(|meta| meta.len() == size);
                cache::take_write_error(file) && has_size
            }
            // Clears the write error of an earlier writer, so that this copy does not report it.
            PartialTarget::InPlace(file) => {
                cache::take_write_error(&file.file);
                false
            }
            PartialTarget::Device(_) | PartialTarget::Equal(_) => false,
        };
        partial.fit()?;
        Ok(Some(partial))
    }

    fn new(target: PartialTarget, entry: Arc<Entry>, rules: &Rules, dirty: bool) -> Partial {
        Partial {
            target,
            length: entry.size,
            entry,
            rules: rules.clone(),
            dirty,
            behind: rules.drop_cache.then(Behind::default),
            is_intact: true,
            turn: Mutex::new(()),
            differs: AtomicBool::new(false),
        }
    }

    /// Gives the file the entry's size; a file that is written in place is only extended.
    fn fit(&self) -> Result<()> {
        let size = self.entry.size;
        let fitted = match &self.target {
            PartialTarget::Beside(temporary) => temporary.file.set_len(size),
            PartialTarget::InPlace(file) => file.grow(size),
            // The size was checked when the device was opened. Another file is made later.
            PartialTarget::Device(_) | PartialTarget::Equal(_) => Ok(()),
        };
        fitted.map_err(|cause| self.cannot_fit(cause))
    }

    fn cannot_fit(&self, cause: io::Error) -> Error {
        let size = self.entry.size;
        match Errno::from_io_error(&cause) {
            // The size is negative as a file offset, or larger than this file system allows.
            Some(Errno::INVAL | Errno::FBIG) | None => {
                let message = format!("the file system allows no file of {size} bytes");
                Error::new(Kind::Write, Side::Dest, message).at(self.slot().path())
            }
            Some(_) => space::write_error(self.slot(), size, cause),
        }
    }

    /// Makes the file for the new version, whose equal ranges are copied later unless it can be a
    /// clone of the old version.
    fn make(&self, old: &File, stat: &Stat) -> Result<Made> {
        let slot = self.slot();
        let mut temporary = Box::new(Temporary::create(slot)?);
        let is_replaced = match &self.target {
            PartialTarget::Equal(equal) => equal.is_replaced(),
            _ => true,
        };
        let replaced = Some(stat).filter(|_| is_replaced);
        rehearse(&mut temporary, replaced, &self.rules)?;
        let size = self.entry.size;
        let fitted = temporary.file.set_len(size);
        fitted.map_err(|cause| self.cannot_fit(cause))?;
        let cloned = clone_into(&temporary.file, old, size);
        let is_clone = cloned.map_err(|cause| self.write_error(cause))?;
        Ok(Made {
            temporary,
            is_clone,
        })
    }

    /// Device and inode of the existing file, if no byte differed from it in a dry run and a copy would
    /// leave it there. `root` is the digest of the source.
    ///
    /// # Errors
    /// If it cannot be read, or has changed since it was compared.
    pub fn same_inode(&self, root: Option<&Digest>) -> Result<Option<(u64, u64)>> {
        let equal = match &self.target {
            PartialTarget::Equal(equal) if !self.differs.load(Relaxed) => equal,
            _ => return Ok(None),
        };
        equal.check_whole(root)?;
        let stays = self.rules.check || equal.may_stay(&self.entry, &self.rules)?;
        Ok(stays.then(|| equal.inode()))
    }

    /// Notes, in a dry run, that bytes would be written. False in a copy, which writes them.
    pub fn would_write(&self) -> bool {
        let is_dry = self.rules.dry_run;
        self.differs.fetch_or(is_dry, Relaxed);
        is_dry
    }

    /// True in a dry run if the existing file has these bytes.
    fn is_old(&self, data: &[u8], offset: u64) -> bool {
        let equal = match &self.target {
            PartialTarget::Equal(equal) if self.rules.dry_run => equal,
            _ => return false,
        };
        equal.has(data, offset)
    }

    /// False as long as no byte differs from the existing file, for which no file is made.
    pub fn is_made(&self) -> bool {
        match &self.target {
            PartialTarget::Equal(equal) => equal.made().is_some(),
            _ => true,
        }
    }

    /// Identifies the file or device that is written.
    pub fn inode(&self) -> Result<Inode> {
        let inode = match self.medium()? {
            DestMedium::File(file) => inode_of(file),
            DestMedium::Device(device) => Ok(device.inode()),
        };
        inode.map_err(|cause| self.slot().no_status(cause))
    }

    /// True if the content that an earlier run left can be trusted unread: the file has its
    /// original size, no write to it is known to be lost, and nobody else writes to it.
    pub fn is_intact(&self) -> bool {
        self.is_intact
    }

    pub fn is_inplace(&self) -> bool {
        matches!(
            self.target,
            PartialTarget::InPlace(_) | PartialTarget::Device(_)
        )
    }

    /// The old version of this file, to compare the new one with it. If the file `is_new` and the
    /// file system can clone files, the old version is cloned into it, so that only the differences
    /// have to be written. None if there is no old version, or if it cannot be read.
    ///
    /// # Errors
    /// If the clone cannot get the new version's length.
    pub fn basis(&mut self, is_new: bool) -> Result<Option<Basis>> {
        let drops_pages = self.rules.drop_cache;
        let size = self.entry.size;
        let basis = match &self.target {
            PartialTarget::Beside(temporary) => {
                let Some(old) = Basis::replaced(&temporary.slot, drops_pages) else {
                    return Ok(None);
                };
                match is_new {
                    true => Some(self.clone_basis(old)?),
                    false => Some(old),
                }
            }
            PartialTarget::Equal(_) => None,
            PartialTarget::InPlace(target) => {
                let readback = self.readback().ok();
                readback.map(|readback| Basis::target(readback, target.old_len.min(size)))
            }
            PartialTarget::Device(_) => {
                let readback = self.readback().ok();
                readback.map(|readback| Basis::target(readback, size))
            }
        };
        self.dirty |= basis.as_ref().is_some_and(Basis::is_target);
        Ok(basis.filter(|basis| !basis.is_empty()))
    }

    /// Another file, of `len` bytes, that probably has much of the content. Used as the old version,
    /// and cloned into the file if that `is_new`.
    ///
    /// # Errors
    /// As [`basis`](Partial::basis).
    pub fn other_basis(&mut self, file: File, len: u64, is_new: bool) -> Result<Basis> {
        let other = Basis::other(file, len, self.rules.drop_cache);
        let basis = match is_new {
            true => self.clone_basis(other)?,
            false => other,
        };
        self.dirty |= basis.is_target();
        Ok(basis)
    }

    /// Clones the old version into this file, which is new and empty, if the file system can. The
    /// clone is then the basis.
    fn clone_basis(&self, old: Basis) -> Result<Basis> {
        let size = self.entry.size;
        let (PartialTarget::Beside(temporary), Some(from)) = (&self.target, old.file()) else {
            return Ok(old);
        };
        // Before the clone: a file that is no basis must still have zeros where nothing is written.
        let Some(file) = handle_to_read(&temporary.file) else {
            return Ok(old);
        };
        let cloned = clone_into(&temporary.file, from, size);
        let is_clone = cloned.map_err(|cause| self.write_error(cause))?;
        let len = old.len().min(size);
        let drops_pages = self.rules.drop_cache;
        Ok(match is_clone {
            true => Basis::cloned(file, len, old, drops_pages),
            false => old,
        })
    }

    /// What an earlier session wrote of this file, to compare the source with it. None if it cannot
    /// be read.
    pub fn written_basis(&self) -> Option<Basis> {
        let readback = self.readback().ok()?;
        Some(Basis::written(readback, self.entry.size))
    }

    /// Opens the file or device once more, to read the bytes that are on the disk.
    pub fn readback(&self) -> io::Result<Readback> {
        match self.present_medium() {
            Some(DestMedium::File(file)) => Readback::of(file),
            Some(DestMedium::Device(device)) => device.readback(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Leaves the partial file for a later run to resume.
    pub fn keep(self) {
        let temporary = match self.target {
            PartialTarget::Beside(temporary) => Some(temporary),
            PartialTarget::Equal(equal) => equal.into_made(),
            PartialTarget::InPlace(_) | PartialTarget::Device(_) => None,
        };
        if let Some(mut temporary) = temporary {
            temporary.keep();
        }
    }

    /// Leaves the first `end` bytes of an interrupted pipe for the user, since the rest is
    /// worthless. Returns the path of the file and its length.
    pub fn spool(self, end: u64) -> Result<(PathBuf, u64)> {
        let file = match self.medium()? {
            DestMedium::File(file) => file,
            // A device's length is fixed, and its old content beyond `end` may be valuable.
            DestMedium::Device(device) => return Ok((device.slot.path(), end)),
        };
        let kept = file.metadata().and_then(|meta| {
            let len = meta.len().min(end);
            file.set_len(len).map(|()| len)
        });
        let len = kept.map_err(|cause| self.write_error(cause))?;
        let path = self.slot().path();
        match self.target {
            PartialTarget::Beside(mut temporary) => {
                let name = temporary.keep_for_user();
                Ok((path.with_file_name(name), len))
            }
            // A pipe is compared with nothing.
            PartialTarget::Equal(_) | PartialTarget::InPlace(_) | PartialTarget::Device(_) => {
                Ok((path, len))
            }
        }
    }

    /// Writes a chunk at its offset. Blocks of zeros of a sparse source stay holes.
    pub fn write(&self, chunk: &VerifiedChunk) -> Result<()> {
        let (data, offset) = (chunk.data(), chunk.place().offset);
        // A digest that was damaged on its way is followed by the bytes.
        if self.is_old(data, offset) || self.would_write() {
            return Ok(());
        }
        self.write_at(data, offset)?;
        self.copy_equal(EQUAL_BYTES)
    }

    /// Ranges that are not written yet may hold other bytes than zeros.
    fn is_dirty(&self) -> bool {
        let made = match &self.target {
            PartialTarget::Equal(equal) => equal.made(),
            _ => None,
        };
        self.dirty || made.is_some_and(|made| made.is_clone)
    }

    /// A chunk that equals the range of `basis` at its offset. Writes it unless it is in its place, or
    /// the old version may stay.
    pub fn write_equal(&self, chunk: &VerifiedChunk, basis: &Basis) -> Result<()> {
        let offset = chunk.place().offset;
        let range = offset..offset + chunk.data().len() as u64;
        let is_there = match &self.target {
            PartialTarget::Equal(equal) => equal.keeps(range),
            _ => basis.is_target(),
        };
        match is_there {
            true => Ok(()),
            false => self.write(chunk),
        }
    }

    /// Writes a chunk of which these parts differ from `basis`, in bytes from its start.
    pub fn write_differing(
        &self,
        chunk: &VerifiedChunk,
        parts: &[Range<usize>],
        basis: &Basis,
    ) -> Result<()> {
        if self.would_write() {
            return Ok(());
        }
        let has_rest = match &self.target {
            PartialTarget::Equal(equal) => self.made(equal)?.is_clone,
            _ => basis.is_target(),
        };
        if !has_rest {
            return self.write(chunk);
        }
        let (data, offset) = (chunk.data(), chunk.place().offset);
        parts
            .iter()
            .try_for_each(|part| self.write_at(&data[part.clone()], offset + part.start as u64))?;
        // The rest was compared in the old file, and is in the clone only if that has not changed.
        match &self.target {
            PartialTarget::Equal(equal) => equal.check_old(),
            _ => Ok(()),
        }
    }

    /// The file for a new version that differs from the old one.
    fn made<'a>(&self, equal: &'a EqualSoFar) -> Result<&'a Made> {
        equal.made_or(|old, stat| self.make(old, stat))
    }

    /// Copies at most `most` bytes of ranges that equal the existing file into the new one, which the
    /// threads that write to it share.
    fn copy_equal(&self, most: u64) -> Result<()> {
        let PartialTarget::Equal(equal) = &self.target else {
            return Ok(());
        };
        let mut copied = 0;
        while copied < most
            && let Some((offset, bytes)) = equal.take_pending()?
        {
            copied += bytes.len() as u64;
            self.write_at(&bytes, offset)?;
        }
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        let file = match self.medium()? {
            DestMedium::File(file) => file,
            DestMedium::Device(device) => return device.write(data, offset),
        };
        let turn = self.turn.lock();
        // Where the file may hold old bytes, a hole has to be punched.
        let has_holes = self.entry.is_sparse()
            && (!self.is_dirty() || holes::punch(file, offset, data.len() as u64).is_ok());
        let written = if has_holes {
            write_sparse(file, data, offset).map(drop)
        } else {
            file.write_all_at(data, offset)
        };
        drop(turn);
        written.map_err(|cause| self.write_error(cause))?;
        if let Some(behind) = &self.behind {
            let wrote = behind.wrote(file, offset..offset + data.len() as u64);
            wrote.map_err(|cause| self.write_error(cause))?;
        }
        Ok(())
    }

    /// Writes zeros. The range becomes a hole if the source is sparse or `may_fill` is false; else
    /// its blocks are allocated. A device gets holes only for a sparse source.
    pub fn write_zeros(&self, offset: u64, len: u64, may_fill: bool) -> Result<()> {
        self.check_range(offset, len)?;
        if let PartialTarget::Equal(equal) = &self.target
            && equal.made().is_none()
            && self.had_zeros(equal, offset..offset + len)?
            && equal.keeps(offset..offset + len)
        {
            return Ok(());
        }
        if self.would_write() {
            return Ok(());
        }
        let is_hole = self.entry.is_sparse();
        let file = match self.medium()? {
            DestMedium::File(file) => file,
            DestMedium::Device(device) => return device.write_zeros(offset, len, is_hole),
        };
        let is_hole = is_hole || !may_fill;
        let has_hole = || is_hole && (!self.is_dirty() || holes::punch(file, offset, len).is_ok());
        if len == 0 || has_hole() {
            return Ok(());
        }
        holes::fill(file, offset, len).map_err(|cause| self.write_error(cause))
    }

    /// True if the existing file has only zeros in this range. A copy writes a range that cannot be
    /// read.
    ///
    /// # Errors
    /// In a dry run, if it cannot be read.
    fn had_zeros(&self, equal: &EqualSoFar, range: Range<u64>) -> Result<bool> {
        match equal.has_zeros(range) {
            Err(_) if !self.rules.dry_run => Ok(false),
            known => known,
        }
    }

    /// Sets the final length, if the source became shorter during the copy or is a pipe that ended.
    pub fn end_at(&mut self, length: u64) -> Result<()> {
        self.length = match self.entry.kind {
            EntryKind::Pipe => length,
            _ => length.min(self.entry.size),
        };
        let cut = match &self.target {
            PartialTarget::Beside(temporary) => temporary.file.set_len(self.length),
            PartialTarget::Equal(equal) => {
                let made = self.made(equal)?;
                self.copy_equal(u64::MAX)?;
                made.temporary.file.set_len(self.length)
            }
            // A file in place is cut at the commit; a device keeps its length.
            PartialTarget::InPlace(_) | PartialTarget::Device(_) => Ok(()),
        };
        cut.map_err(|cause| self.write_error(cause))
    }

    /// Gives the file its metadata and its name; returns its status there, and true if it is the
    /// existing file, which stays because all of it is equal. The caller has made sure that every
    /// range is written. `root` is the digest of the whole content, if it is known.
    pub fn commit(self, root: Option<&Digest>) -> Result<(ExistingEntry, bool)> {
        self.keep_from_an_empty_pipe()?;
        self.finish_equal(root)?;
        let stays = !self.is_made();
        if let (Some(behind), Some(DestMedium::File(file))) = (&self.behind, self.present_medium())
        {
            let finished = behind.finish(file);
            finished.map_err(|cause| self.write_error(cause))?;
        }
        self.settle_while_private()?;
        let stat = match self.target {
            PartialTarget::Beside(temporary) => {
                commit::commit(*temporary, &self.entry, &self.rules)?
            }
            PartialTarget::Equal(equal) => equal.commit(&self.entry, &self.rules)?,
            PartialTarget::InPlace(file) => file.commit(&self.entry, self.length, &self.rules)?,
            PartialTarget::Device(device) => return Ok((device.finish()?, false)),
        };
        Ok((ExistingEntry::of(&stat), stays))
    }

    /// Writes the new file to the disk, where that may take long, before it gets its owner and mode: if
    /// this process is killed later, no run resumes the file.
    fn settle_while_private(&self) -> Result<()> {
        let slot = self.slot();
        let may_take_long = self.rules.fsync || slot.dir.may_write_at_close();
        match self.present_medium() {
            Some(DestMedium::File(file)) if may_take_long && !self.is_inplace() => {
                commit::settle(slot, file, &self.rules)
            }
            _ => Ok(()),
        }
    }

    /// Copies what equals the existing file and is not in the new one yet. Makes the new file if the
    /// existing one cannot stay although all of it is equal.
    fn finish_equal(&self, root: Option<&Digest>) -> Result<()> {
        let PartialTarget::Equal(equal) = &self.target else {
            return Ok(());
        };
        if equal.made().is_none() && equal.settles(&self.entry, &self.rules, root)? {
            return Ok(());
        }
        let made = self.made(equal)?;
        self.copy_equal(u64::MAX)?;
        equal.check_old()?;
        equal.check_content(&made.temporary.file, root)
    }

    /// An empty pipe does not replace a file with content: a producer that fails at once leaves
    /// one. In `producer | fastcp - DEST` only the shell knows whether the producer failed.
    fn keep_from_an_empty_pipe(&self) -> Result<()> {
        let is_empty = self.entry.is_once() && self.length == 0;
        if !is_empty || self.rules.allow_empty || matches!(self.target, PartialTarget::Device(_)) {
            return Ok(());
        }
        match self.slot().stat()? {
            Some(old) if file_type(&old) == FileType::RegularFile && old.st_size > 0 => {
                let message = "the pipe was empty and this file is not, so it was not replaced \
                               (--allow-empty replaces it)";
                Err(self.slot().refused(message))
            }
            _ => Ok(()),
        }
    }

    pub fn slot(&self) -> &EntrySlot {
        match &self.target {
            PartialTarget::Beside(temporary) => &temporary.slot,
            PartialTarget::Equal(equal) => &equal.slot,
            PartialTarget::InPlace(file) => &file.slot,
            PartialTarget::Device(device) => &device.slot,
        }
    }

    /// The file or device to write to. Creates the file if it does not exist yet.
    fn medium(&self) -> Result<DestMedium<'_>> {
        Ok(match &self.target {
            PartialTarget::Beside(temporary) => DestMedium::File(&temporary.file),
            PartialTarget::Equal(equal) => DestMedium::File(&self.made(equal)?.temporary.file),
            PartialTarget::InPlace(file) => DestMedium::File(&file.file),
            PartialTarget::Device(device) => DestMedium::Device(device),
        })
    }

    /// The file or device to write to; None if the file does not exist yet.
    fn present_medium(&self) -> Option<DestMedium<'_>> {
        self.is_made().then(|| self.medium().ok()).flatten()
    }

    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// A range beyond the announced size breaks the protocol; a pipe announces no size.
    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.entry.size || self.entry.kind == EntryKind::Pipe => Ok(()),
            _ => {
                let what = "bytes beyond the end of the file";
                Err(Error::breach(Side::Dest, "the sender", what).at(self.slot().path()))
            }
        }
    }

    fn write_error(&self, cause: io::Error) -> Error {
        space::write_error(self.slot(), self.entry.size, cause)
    }
}

/// Makes `file`, which has `size` bytes of zeros, a clone of the old version with that size. False if
/// the file system cannot clone; `file` is then as it was.
fn clone_into(file: &File, old: &File, size: u64) -> io::Result<bool> {
    match ioctl_ficlone(file, old) {
        Ok(()) => {
            file.set_len(size)?;
            return Ok(true);
        }
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) => return Ok(false),
        // It may have failed half-way.
        Err(_) => {}
    }
    file.set_len(0)?;
    file.set_len(size)?;
    Ok(false)
}

/// A second handle for writing would hold the lock, and would count as a writer after the rename.
fn handle_to_read(file: &File) -> Option<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// Status of the existing entry; an error if it may not be replaced or written. None if it is removed
/// before the new file gets its name.
pub(super) fn replaceable(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<Option<Stat>> {
    let old = slot.stat()?;
    let old = old.filter(|old| !is_removed_first(entry, old, rules));
    if let Some(old) = &old {
        commit::may_replace(slot, old)?;
        // Checked first: a file that this copy itself writes would look open in another process.
        use_in_place(slot, old, InodeUse::Written, rules)?;
        refuse_in_use(slot, old, rules)?;
    }
    Ok(old)
}

/// Checks, before the content is sent, whether the owner of the existing file can be kept.
fn rehearse(temporary: &mut Temporary, old: Option<&Stat>, rules: &Rules) -> Result<()> {
    match old {
        Some(old) if file_type(old) == FileType::RegularFile => {
            identity::rehearse(temporary, old, &rules.keep)
        }
        _ => Ok(()),
    }
}

pub(super) fn inode_of(file: impl AsFd) -> io::Result<Inode> {
    let told = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    let birth = told.ok().as_ref().and_then(Timestamp::birth);
    let stat = fstat(&file)?;
    Ok(Inode {
        dev: stat.st_dev,
        ino: stat.st_ino,
        birth: birth.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
