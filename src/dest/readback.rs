//! Bytes that an earlier session wrote, read from the disk and not from the page cache. After a
//! failed write-back the cache may hold data that the disk does not.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, Stat, seek};
use rustix::io::Errno;

use super::{EntrySlot, ExistingEntry, existing};
use crate::cache;
use crate::digest::Digest;
use crate::error::Result;

/// Bytes of a whole file that are read and hashed at a time.
const STEP: u64 = 1 << 20;

/// The error where [`Readback::prepare`] says so.
pub(super) const NOT_ON_DISK: &str = "not all of it is on the disk yet";

/// A file opened a second time, so that write errors seen here are still reported to the writer.
pub struct Readback {
    file: File,
    /// False if the writer shares this open file, and would miss the errors seen here.
    is_own: bool,
}

impl Readback {
    /// Opens a file or device a second time.
    pub(super) fn of(file: &File) -> io::Result<Readback> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        match File::open(path) {
            Ok(file) => Ok(Readback::new(file, true)),
            // Without /proc the open file is shared.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                Ok(Readback::new(file.try_clone()?, false))
            }
            Err(cause) => Err(cause),
        }
    }

    /// Opens the regular file in `slot`. None if its status is not `expected`.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn of_standing(slot: &EntrySlot, expected: &ExistingEntry) -> Result<Option<Readback>> {
        let failed = |cause| slot.unreadable(cause);
        let opened = existing::open_checked(slot, failed)?;
        let is_it = |(_, stat): &(File, Stat)| ExistingEntry::of(stat) == *expected;
        Ok(opened
            .filter(is_it)
            .map(|(file, _)| Readback::new(file, true)))
    }

    fn new(file: File, is_own: bool) -> Readback {
        // Data read ahead of a range would be dropped before it is used.
        cache::read_without_readahead(&file);
        Readback { file, is_own }
    }

    /// Makes the disk fetch `range`, which is read soon. False if the disk is known not to have
    /// taken the data written there.
    pub fn prepare(&self, range: &Range<u64>) -> bool {
        let is_written = match self.is_own {
            true => cache::through_to_disk(&self.file, range),
            false => {
                cache::drop_read(&self.file, range.clone());
                true
            }
        };
        cache::read_soon(&self.file, range);
        is_written
    }

    /// The same for a range that should be a hole: it is not read ahead.
    pub fn prepare_hole(&self, range: &Range<u64>) -> bool {
        match self.is_own {
            true => cache::through_to_disk(&self.file, range),
            false => true,
        }
    }

    /// Reads all of `into`, from a range that was [prepared](Readback::prepare).
    pub fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    /// Drops the range from the page cache.
    pub fn drop_cache(&self, range: Range<u64>) {
        cache::drop_read(&self.file, range);
    }

    /// The part of `range` that may hold data, without a hole at its start. None if all is a hole.
    pub fn data_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        match seek(&self.file, SeekFrom::Data(range.start)) {
            Ok(data) if data >= range.end => None,
            Ok(data) => Some(data.max(range.start)..range.end),
            // There is no data up to the end of the file.
            Err(Errno::NXIO) => {
                let end = self.file.metadata().map_or(0, |meta| meta.len());
                (end < range.end).then_some(range)
            }
            // The file system or the device does not report holes.
            Err(_) => Some(range),
        }
    }

    /// Makes the disk fetch the first bytes of a file of `size` bytes, for
    /// [`digest`](Readback::digest). Returns the same as [`prepare`](Readback::prepare).
    pub fn begin(&self, size: u64) -> bool {
        self.prepare(&(0..size.min(STEP)))
    }

    /// The BLAKE3 hash of the whole file; `is_written` is the result of [`begin`](Readback::begin).
    /// None if the disk did not take all of it or it has another size. `goes_on` gets the number of
    /// bytes after each step; if it returns false, the result is None too.
    pub fn digest(
        &self,
        size: u64,
        mut is_written: bool,
        mut goes_on: impl FnMut(u64) -> bool,
    ) -> io::Result<Option<Digest>> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; size.min(STEP) as usize];
        let step = |at: u64| at..size.min(at + STEP);
        let mut at = 0;
        while at < size {
            let (now, next) = (step(at), step(step(at).end));
            if !next.is_empty() {
                is_written &= self.prepare(&next);
            }
            let data = &mut buffer[..(now.end - now.start) as usize];
            self.read(data, now.start)?;
            hasher.update(data);
            at = now.end;
            if !goes_on(now.end - now.start) {
                return Ok(None);
            }
        }
        let has_size = self.file.metadata()?.len() == size;
        Ok((is_written && has_size).then(|| *hasher.finalize().as_bytes()))
    }
}
