//! A big file on its way: chunks are written at their offsets from several threads at once, then
//! it gets its name. Dropped before that it leaves nothing behind.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FileType, fallocate};
use rustix::io::Errno;

use super::temporary::Temporary;
use super::{Rules, Slot, commit, identity, space};
use crate::chunk::VerifiedChunk;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, file_type};

/// The grain of holes, in bytes: no common file system has a finer one.
const BLOCK: usize = 4096;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

pub struct Partial {
    temporary: Temporary,
    entry: Arc<Entry>,
    rules: Rules,
}

impl Partial {
    /// Makes an empty file of the entry's size beside its final name.
    ///
    /// # Errors
    /// Also where it is clear already that it could not get its name: a directory stands there, or
    /// a file whose owner could not be kept.
    pub fn create(slot: &Slot, entry: Arc<Entry>, rules: &Rules) -> Result<Partial> {
        let old = slot.stat()?;
        if let Some(old) = &old {
            commit::may_replace(slot, old)?;
        }
        let temporary = Temporary::create(slot)?;
        if let Some(old) = &old
            && file_type(old) == FileType::RegularFile
        {
            identity::rehearse(&temporary, old)?;
        }
        temporary.file.set_len(entry.size).map_err(|cause| {
            match Errno::from_io_error(&cause) {
                // A negative length, or beyond what a file may have here.
                Some(Errno::INVAL | Errno::FBIG) | None => {
                    let message = format!("{} bytes are too many for a file here", entry.size);
                    Error::new(Kind::Write, Side::Dest, message).at(slot.path())
                }
                Some(_) => space::write_error(slot, entry.size, cause),
            }
        })?;
        Ok(Partial {
            temporary,
            entry,
            rules: *rules,
        })
    }

    /// Writes a chunk at its offset. Blocks of zeros of a sparse source stay holes.
    pub fn write(&self, chunk: &VerifiedChunk) -> Result<()> {
        self.write_at(chunk.data(), chunk.place().offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        let file = &self.temporary.file;
        let written = if self.entry.is_sparse() {
            write_sparse(file, data, offset).map(drop)
        } else {
            file.write_all_at(data, offset)
        };
        written.map_err(|cause| self.write_error(cause))
    }

    /// A range of zeros: a hole if the source is sparse, else room that is really taken.
    pub fn write_zeros(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        if self.entry.is_sparse() || len == 0 {
            return Ok(());
        }
        let file = &self.temporary.file;
        match fallocate(file, FallocateFlags::ZERO_RANGE, offset, len) {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::INTR) => {}
            Err(cause) => return Err(self.write_error(cause.into())),
        }
        let mut at = offset;
        while at < offset + len {
            let step = (offset + len - at).min(ZEROS.len() as u64);
            file.write_all_at(&ZEROS[..step as usize], at)
                .map_err(|cause| self.write_error(cause))?;
            at += step;
        }
        Ok(())
    }

    /// Cuts off what is beyond `length`: the source became shorter while it was read.
    pub fn shorten(&self, length: u64) -> Result<()> {
        let cut = self.temporary.file.set_len(length.min(self.entry.size));
        cut.map_err(|cause| self.write_error(cause))
    }

    /// Gives the file its identity and its name. The caller has seen that every range is written.
    pub fn commit(self) -> Result<()> {
        commit::commit(self.temporary, &self.entry, &self.rules)
    }

    pub fn slot(&self) -> &Slot {
        &self.temporary.slot
    }

    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// A range beyond the announced size breaks the protocol.
    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.entry.size => Ok(()),
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

/// Writes what is not zeros, in runs as long as there are; returns the end of the last one (0 if
/// none). For files whose unwritten ranges read as zeros.
pub(super) fn write_sparse(file: &File, data: &[u8], offset: u64) -> io::Result<u64> {
    // The first block is short where the offset is not aligned.
    let first = (BLOCK - (offset % BLOCK as u64) as usize).min(data.len());
    let mut end = 0;
    let mut run = 0..0;
    let mut block = 0..first;
    while !block.is_empty() {
        if !is_zero(&data[block.clone()]) {
            if run.end != block.start {
                end = write_run(file, data, offset, run)?.max(end);
                run = block.clone();
            }
            run.end = block.end;
        }
        block = block.end..(block.end + BLOCK).min(data.len());
    }
    Ok(write_run(file, data, offset, run)?.max(end))
}

fn write_run(
    file: &File,
    data: &[u8],
    offset: u64,
    run: std::ops::Range<usize>,
) -> io::Result<u64> {
    if run.is_empty() {
        return Ok(0);
    }
    let end = offset + run.end as u64;
    file.write_all_at(&data[run.clone()], offset + run.start as u64)?;
    Ok(end)
}

/// `block` is no longer than ZEROS. Comparing with zeros compiles to memcmp, which looks at the
/// first bytes first.
fn is_zero(block: &[u8]) -> bool {
    block == &ZEROS[..block.len()]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::testing::*;
    use super::*;

    const SIZE: u64 = 4 << 20;

    fn sparse(size: u64) -> Arc<Entry> {
        let mut entry = file(size, 0o644);
        entry.allocated = 0;
        Arc::new(entry)
    }

    #[test]
    fn holes_of_a_sparse_source_stay_holes_and_zeros_of_another_take_room() {
        let temp = tempfile::tempdir().unwrap();
        let mut data = vec![0; 1 << 20];
        data[5000] = 1;
        data[70_000] = 2;
        let dense = Arc::new(file(SIZE, 0o644));
        for (name, entry) in [("sparse", sparse(SIZE)), ("dense", dense)] {
            let partial = Partial::create(&slot(temp.path(), name), entry, &rules()).unwrap();
            partial.write_at(&data, 1 << 20).unwrap();
            partial.write_zeros(2 << 20, 1 << 20).unwrap();
            partial.write_at(&[3; 100], SIZE - 100).unwrap();
            partial.commit().unwrap();
        }
        let read = |name| std::fs::read(temp.path().join(name)).unwrap();
        assert_eq!(read("sparse"), read("dense"));
        assert_eq!(&read("sparse")[1 << 20..2 << 20], data);
        let taken = |name| std::fs::metadata(temp.path().join(name)).unwrap().blocks() * 512;
        assert!(taken("sparse") <= 64 << 10, "{}", taken("sparse"));
        assert!(taken("dense") >= 2 << 20, "{}", taken("dense"));
    }

    #[test]
    fn runs_of_zeros_at_odd_offsets_come_out_right() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("f");
        let mut expected = vec![0; 30_000];
        for at in [0, 4095, 4096, 12_287, 20_480, 29_999] {
            expected[at] = 9;
        }
        for offset in [0, 1, 4095, 4096, 4097] {
            let file = File::create(&path).unwrap();
            let end = write_sparse(&file, &expected[offset..], offset as u64).unwrap();
            assert_eq!(end, 30_000);
            assert_eq!(
                &std::fs::read(&path).unwrap()[offset..],
                &expected[offset..]
            );
        }
    }

    #[test]
    fn nothing_is_left_of_a_dropped_partial_and_nothing_is_written_beyond_its_end() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "a");
        let partial = Partial::create(&slot, Arc::new(file(10, 0o644)), &rules()).unwrap();
        assert_eq!(names(temp.path()).len(), 1);
        for (offset, len) in [(0, 11), (10, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(partial.write_zeros(offset, len).is_err());
        }
        drop(partial);
        assert_eq!(names(temp.path()), [""; 0]);
        for size in [u64::MAX, 1 << 63] {
            let huge = Partial::create(&slot, sparse(size), &rules());
            let message = huge.err().expect("refused").message;
            assert!(message.contains("too many"), "{message}");
        }
        assert_eq!(names(temp.path()), [""; 0]);
    }
}
