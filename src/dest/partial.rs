//! A big file on its way: chunks are written at their offsets from several threads at once, then
//! it gets its name. Dropped before that it leaves nothing behind, kept it waits for a later run.
//! A device that the user named is written likewise, and has its name already.

mod holes;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, FileType, Stat, StatxFlags, fstat, statx};
use rustix::io::Errno;

pub(super) use holes::write_sparse;

use super::device::Device;
use super::in_use::refuse_in_use;
use super::inplace::InPlace;
use super::readback::Readback;
use super::temporary::Temporary;
use super::{Rules, Slot, Standing, commit, identity, space};
use crate::cache::{self, Behind};
use crate::chunk::VerifiedChunk;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, EntryKind, Inode, Timestamp, file_type};

pub struct Partial {
    target: Target,
    entry: Arc<Entry>,
    rules: Rules,
    /// What has not been written may hold anything but zeros.
    dirty: bool,
    /// Nothing shows that it is not what an earlier run left.
    is_intact: bool,
    /// Bytes that it has when it is whole.
    length: u64,
    /// What was written and is on its way to the disk, where it leaves the page cache then.
    behind: Option<Behind>,
    /// Systems let one write to a file at a time, and have the others spin for their turn: whoever
    /// sleeps instead leaves the processor to those that have other things to do.
    turn: Mutex<()>,
}

enum Target {
    /// Beside the final name.
    Beside(Box<Temporary>),
    /// What stands under the final name.
    InPlace(InPlace),
    /// The block device that is the final name.
    Device(Device),
}

/// What is written to.
enum Medium<'a> {
    File(&'a File),
    Device(&'a Device),
}

impl Partial {
    /// Makes an empty file of the entry's size beside its final name, or opens what stands there.
    ///
    /// # Errors
    /// Also where it is clear already that it could not get its name: a directory stands there, or
    /// a file whose owner could not be kept, or one that is in use.
    pub fn create(slot: &Slot, entry: Arc<Entry>, rules: &Rules) -> Result<Partial> {
        if slot.device.is_some() {
            let device = Device::open(slot, entry.size, rules)?;
            return Ok(Partial::new(Target::Device(device), entry, rules, true));
        }
        let old = replaceable(slot, rules)?;
        let partial = match InPlace::open(slot, old.as_ref(), rules)? {
            Some(file) => Partial::new(Target::InPlace(file), entry, rules, true),
            None => {
                let temporary = Box::new(Temporary::create(slot)?);
                rehearse(&temporary, old.as_ref())?;
                Partial::new(Target::Beside(temporary), entry, rules, false)
            }
        };
        partial.fit()?;
        Ok(partial)
    }

    /// Resumes what an earlier run left for this slot, if it is `inode`, was written `inplace` as
    /// this is to be, and nobody else can have written it. `size` is what it was made with.
    ///
    /// # Errors
    /// As [`create`](Partial::create).
    pub fn resume(
        slot: &Slot,
        entry: Arc<Entry>,
        rules: &Rules,
        (inode, size): (&Inode, u64),
        inplace: bool,
    ) -> Result<Option<Partial>> {
        if slot.device.is_some() {
            let device = Device::reopen(slot, entry.size, rules)?;
            let is_it = inplace && device.inode().is(inode);
            let partial = || Partial::new(Target::Device(device), entry, rules, true);
            return Ok(is_it.then(partial));
        }
        let old = replaceable(slot, rules)?;
        let target = match InPlace::open(slot, old.as_ref(), rules)? {
            Some(file) if inplace && inode_of(&file.file).is_ok_and(|found| found.is(inode)) => {
                Target::InPlace(file)
            }
            Some(_) => return Ok(None),
            None if inplace => return Ok(None),
            None => {
                let is_it =
                    |file: &File, _: &Stat| inode_of(file).is_ok_and(|found| found.is(inode));
                let Some(temporary) = Temporary::reopen(slot, is_it)? else {
                    return Ok(None);
                };
                rehearse(&temporary, old.as_ref())?;
                Target::Beside(Box::new(temporary))
            }
        };
        let mut partial = Partial::new(target, entry, rules, true);
        partial.is_intact = match &partial.target {
            Target::Beside(temporary) => {
                let file = &temporary.file;
                let has_size = file.metadata().is_ok_and(|meta| meta.len() == size);
                cache::take_write_error(file) && has_size
            }
            // An error of an earlier writer is not one of this copy.
            Target::InPlace(file) => {
                cache::take_write_error(&file.file);
                false
            }
            Target::Device(_) => false,
        };
        partial.fit()?;
        Ok(Some(partial))
    }

    fn new(target: Target, entry: Arc<Entry>, rules: &Rules, dirty: bool) -> Partial {
        Partial {
            target,
            length: entry.size,
            entry,
            rules: *rules,
            dirty,
            behind: rules.drop_cache.then(Behind::default),
            is_intact: true,
            turn: Mutex::new(()),
        }
    }

    /// Gives it the entry's size.
    fn fit(&self) -> Result<()> {
        let size = self.entry.size;
        let fitted = match &self.target {
            Target::Beside(temporary) => temporary.file.set_len(size),
            Target::InPlace(file) => file.grow(size),
            // Seen to when it was opened.
            Target::Device(_) => Ok(()),
        };
        fitted.map_err(|cause| match Errno::from_io_error(&cause) {
            // A negative length, or beyond what a file may have here.
            Some(Errno::INVAL | Errno::FBIG) | None => {
                let message = format!("{size} bytes are too many for a file here");
                Error::new(Kind::Write, Side::Dest, message).at(self.slot().path())
            }
            Some(_) => space::write_error(self.slot(), size, cause),
        })
    }

    /// What is written to.
    pub fn inode(&self) -> Result<Inode> {
        let inode = match self.medium() {
            Medium::File(file) => inode_of(file),
            Medium::Device(device) => Ok(device.inode()),
        };
        inode.map_err(|cause| self.slot().error("cannot look at what is written", cause))
    }

    /// What an earlier run left may be believed without reading it: it has the size that it was
    /// made with, no write to it is known to be lost, and nobody else writes to it.
    pub fn is_intact(&self) -> bool {
        self.is_intact
    }

    pub fn is_inplace(&self) -> bool {
        !matches!(self.target, Target::Beside(_))
    }

    /// For reading what is on the disk.
    pub fn readback(&self) -> io::Result<Readback> {
        match self.medium() {
            Medium::File(file) => Readback::of(file),
            Medium::Device(device) => Readback::of_device(&device.slot.path()),
        }
    }

    /// A later run can resume it.
    pub fn keep(self) {
        if let Target::Beside(mut temporary) = self.target {
            temporary.keep();
        }
    }

    /// Stays as what a stream came to, of which nothing beyond `end` is worth anything. Gives where
    /// it lies and its length.
    pub fn spool(self, end: u64) -> Result<(PathBuf, u64)> {
        let file = match self.medium() {
            Medium::File(file) => file,
            // What was there before the stream may be of worth to somebody; its length is fixed.
            Medium::Device(device) => return Ok((device.slot.path(), end)),
        };
        let kept = file.metadata().and_then(|meta| {
            let len = meta.len().min(end);
            file.set_len(len).map(|()| len)
        });
        let len = kept.map_err(|cause| self.write_error(cause))?;
        let path = self.slot().path();
        match self.target {
            Target::Beside(mut temporary) => {
                let name = temporary.keep_for_user();
                Ok((path.with_file_name(name), len))
            }
            Target::InPlace(_) | Target::Device(_) => Ok((path, len)),
        }
    }

    /// Writes a chunk at its offset. Blocks of zeros of a sparse source stay holes.
    pub fn write(&self, chunk: &VerifiedChunk) -> Result<()> {
        self.write_at(chunk.data(), chunk.place().offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        let file = match self.medium() {
            Medium::File(file) => file,
            Medium::Device(device) => return device.write(data, offset),
        };
        let turn = self.turn.lock().expect("no panic while held");
        // Where something else may be, a hole is one only when it has been made.
        let has_holes = self.entry.is_sparse()
            && (!self.dirty || holes::punch(file, offset, data.len() as u64).is_ok());
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

    /// A range of zeros: a hole if the source is sparse or nothing `may_fill` the range, else room
    /// that is really taken.
    pub fn write_zeros(&self, offset: u64, len: u64, may_fill: bool) -> Result<()> {
        self.check_range(offset, len)?;
        let is_hole = self.entry.is_sparse();
        let file = match self.medium() {
            Medium::File(file) => file,
            Medium::Device(device) => return device.write_zeros(offset, len, is_hole),
        };
        let is_hole = is_hole || !may_fill;
        let has_hole = || is_hole && (!self.dirty || holes::punch(file, offset, len).is_ok());
        if len == 0 || has_hole() {
            return Ok(());
        }
        holes::fill(file, offset, len).map_err(|cause| self.write_error(cause))
    }

    /// It has `length` bytes: the source became shorter while it was read, or is a stream whose
    /// end has come.
    pub fn end_at(&mut self, length: u64) -> Result<()> {
        self.length = match self.entry.kind {
            EntryKind::Stream => length,
            _ => length.min(self.entry.size),
        };
        let cut = match &self.target {
            Target::Beside(temporary) => temporary.file.set_len(self.length),
            // Cut when all of it is there.
            Target::InPlace(_) | Target::Device(_) => Ok(()),
        };
        cut.map_err(|cause| self.write_error(cause))
    }

    /// Gives the file its identity and its name. The caller has seen that every range is written.
    /// Returns what stands under the name now.
    pub fn commit(self) -> Result<Standing> {
        self.keep_from_an_empty_pipe()?;
        if let (Some(behind), Medium::File(file)) = (&self.behind, self.medium()) {
            let finished = behind.finish(file);
            finished.map_err(|cause| self.write_error(cause))?;
        }
        let stat = match self.target {
            Target::Beside(temporary) => commit::commit(*temporary, &self.entry, &self.rules)?,
            Target::InPlace(file) => file.commit(&self.entry, self.length, &self.rules)?,
            Target::Device(device) => return device.finish(),
        };
        Ok(Standing::of(&stat))
    }

    /// In `producer | fastcp - DEST` only the shell knows whether the producer has failed, and one
    /// that fails at once leaves an empty pipe.
    fn keep_from_an_empty_pipe(&self) -> Result<()> {
        let is_empty = self.entry.is_once() && self.length == 0;
        if !is_empty || self.rules.allow_empty || matches!(self.target, Target::Device(_)) {
            return Ok(());
        }
        match self.slot().stat()? {
            Some(old) if file_type(&old) == FileType::RegularFile && old.st_size > 0 => {
                let message = "nothing came from the pipe, and this file is not empty: it was left \
                               as it was (--allow-empty replaces it)";
                Err(self.slot().refused(message))
            }
            _ => Ok(()),
        }
    }

    pub fn slot(&self) -> &Slot {
        match &self.target {
            Target::Beside(temporary) => &temporary.slot,
            Target::InPlace(file) => &file.slot,
            Target::Device(device) => &device.slot,
        }
    }

    fn medium(&self) -> Medium<'_> {
        match &self.target {
            Target::Beside(temporary) => Medium::File(&temporary.file),
            Target::InPlace(file) => Medium::File(&file.file),
            Target::Device(device) => Medium::Device(device),
        }
    }

    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// A range beyond the announced size breaks the protocol; a stream has none.
    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.entry.size || self.entry.kind == EntryKind::Stream => Ok(()),
            _ => {
                let message = "the other side sent bytes beyond the end of the file";
                Err(Error::new(Kind::Lost, Side::Dest, message).at(self.slot().path()))
            }
        }
    }

    fn write_error(&self, cause: io::Error) -> Error {
        space::write_error(self.slot(), self.entry.size, cause)
    }
}

/// What stands under the name, if that may be replaced or written.
fn replaceable(slot: &Slot, rules: &Rules) -> Result<Option<Stat>> {
    let old = slot.stat()?;
    if let Some(old) = &old {
        commit::may_replace(slot, old)?;
        refuse_in_use(slot, old, rules)?;
    }
    Ok(old)
}

/// Sees before the content is sent whether the owner of what is there can be kept.
fn rehearse(temporary: &Temporary, old: Option<&Stat>) -> Result<()> {
    match old {
        Some(old) if file_type(old) == FileType::RegularFile => identity::rehearse(temporary, old),
        _ => Ok(()),
    }
}

pub(super) fn inode_of(file: impl AsFd) -> io::Result<Inode> {
    let told = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    let birth = match told {
        Ok(told) if told.stx_mask & StatxFlags::BTIME.bits() != 0 => Timestamp {
            s: told.stx_btime.tv_sec,
            ns: told.stx_btime.tv_nsec,
        },
        // An old kernel, or a file system that does not keep it.
        _ => Timestamp::default(),
    };
    let stat = fstat(&file)?;
    Ok(Inode {
        dev: stat.st_dev,
        ino: stat.st_ino,
        birth,
    })
}

#[cfg(test)]
mod tests;
