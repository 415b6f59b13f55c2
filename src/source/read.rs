//! Reads a big file, range by range. It is looked at before the first byte is read and after the
//! last, and one that changed in between is not called whole. Small files are for `pack`. A block
//! device is read like a big file, whatever its size.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, SeekFrom, Stat, fadvise, fstat, seek};
use rustix::io::Errno;

use crate::cache::{self, Before};
use crate::chunk::Buffer;
use crate::error::Result;

use super::device::SourceDevice;
use super::found::{Changes, Found, refresh};

/// A big file or a device, open, read by several threads at once.
pub struct SourceFile {
    found: Found,
    medium: Medium,
}

// One for each file that is open: a box for the larger would save nothing.
#[allow(clippy::large_enum_variant)]
enum Medium {
    File {
        file: File,
        /// Before the first byte was read.
        stat: Stat,
        /// What is read of it leaves the page cache again, but for what was there before.
        before: Option<Before>,
    },
    Device(SourceDevice),
}

impl SourceFile {
    /// # Errors
    /// `Kind::Read` where it vanished or may not be read, `Kind::Changed` where something else
    /// has its name. That its size is new is no error: see [`found`](SourceFile::found).
    pub fn open(found: &Found, changes: Changes) -> Result<SourceFile> {
        let (file, stat) = found.open(changes)?;
        // Advice only: a file system that takes none reads as well without.
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        let mut found = found.clone();
        refresh(&mut found.entry, &file, &stat);
        let before = None;
        let medium = Medium::File { file, stat, before };
        Ok(SourceFile { found, medium })
    }

    /// What is read of it leaves the page cache again, if the copy has brought it there.
    pub fn dropping_pages(mut self) -> SourceFile {
        if let Medium::File { file, before, .. } = &mut self.medium {
            *before = Some(Before::default());
            cache::read_without_readahead(file);
        }
        self
    }

    /// Opens the block device that was found, to be read past the page cache if `direct_io`.
    ///
    /// # Errors
    /// `Kind::Read`, `Kind::Usage` where it has no direct I/O.
    pub fn open_device(found: &Found, direct_io: bool) -> Result<SourceFile> {
        let device = SourceDevice::open(&found.path(), direct_io)?;
        let mut found = found.clone();
        found.entry.size = device.size();
        let medium = Medium::Device(device);
        Ok(SourceFile { found, medium })
    }

    /// What the walk found, with size, times and mode as they were when the file was opened.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Fills `buffer` with the `len` bytes at `offset`. `len` must fit into it.
    ///
    /// # Errors
    /// `Kind::Changed` where the file ends before, `Kind::Read`.
    pub fn read(&self, offset: u64, len: usize, buffer: &mut Buffer) -> Result<()> {
        buffer.set_len(len);
        let room = &mut buffer.room()[..len];
        match &self.medium {
            Medium::File { file, before, .. } => {
                let brings = self.brings(file, before, offset);
                let read = behind(file, brings, offset, len, || {
                    file.read_exact_at(room, offset)
                });
                read.map_err(|cause| self.found.cannot_read(cause))
            }
            Medium::Device(device) => device.read(offset, room),
        }
    }

    /// Reads what there is (still) of the bytes at `offset`, at most as many as there is room for;
    /// fewer only at the file's end.
    pub fn read_up_to(&self, offset: u64, room: &mut [u8]) -> Result<usize> {
        match &self.medium {
            Medium::File { file, before, .. } => {
                let len = room.len();
                let brings = self.brings(file, before, offset);
                let read = behind(file, brings, offset, len, || read_up_to(file, offset, room));
                read.map_err(|cause| self.found.cannot_read(cause))
            }
            Medium::Device(device) => device.read(offset, room).map(|()| room.len()),
        }
    }

    /// Whether a reading that drops its pages brings into the cache what was not there.
    fn brings(&self, file: &File, before: &Option<Before>, offset: u64) -> bool {
        let size = self.found.entry.size;
        let was_cached = |before: &Before| before.was_cached(file, offset, size);
        before.as_ref().is_some_and(|before| !was_cached(before))
    }

    /// Bytes as they are now.
    pub fn size_now(&self) -> Result<u64> {
        match &self.medium {
            Medium::File { file, .. } => Ok(self.stat_now(file)?.st_size as u64),
            Medium::Device(device) => device.size_now(),
        }
    }

    fn stat_now(&self, file: &File) -> Result<Stat> {
        fstat(file).map_err(|cause| self.found.cannot_read(cause.into()))
    }

    /// To be asked after the last byte was read.
    ///
    /// # Errors
    /// `Kind::Changed` where anything about the file is not as it was when it was opened; of a
    /// device nothing but its size is known.
    pub fn unchanged(&self) -> Result<()> {
        match &self.medium {
            Medium::File { file, stat, .. } => self.found.compare(stat, &self.stat_now(file)?),
            Medium::Device(device) => device.unchanged(),
        }
    }

    /// The first range at or after `offset` that is not a hole; None where nothing but a hole
    /// follows. Where the file system does not tell, all is data.
    pub fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let size = self.found.entry.size;
        if offset >= size {
            return Ok(None);
        }
        let Medium::File { file, .. } = &self.medium else {
            return Ok(Some(offset..size));
        };
        let start = match seek(file, SeekFrom::Data(offset)) {
            Ok(start) if start < size => start.max(offset),
            // The rest is a hole, or the file has shrunk, which `unchanged` will say.
            Ok(_) | Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some(offset..size)),
            Err(cause) => return Err(self.found.cannot_read(cause.into())),
        };
        let end = match seek(file, SeekFrom::Hole(start)) {
            Ok(end) if end > start => end.min(size),
            _ => size,
        };
        Ok(Some(start..end))
    }

    /// All ranges that are not holes, in order.
    pub fn data_ranges(&self) -> impl Iterator<Item = Result<Range<u64>>> + '_ {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let next = self.next_data(offset).transpose()?;
            // After an error there is nothing to go on from.
            offset = next.as_ref().map_or(u64::MAX, |range| range.end);
            Some(next)
        })
    }
}

/// Reads, and drops what that `brings` into the page cache.
pub(super) fn behind<T>(
    file: &File,
    brings: bool,
    offset: u64,
    len: usize,
    read: impl FnOnce() -> T,
) -> T {
    let read = read();
    if brings && len > 0 {
        cache::drop_read(file, offset..offset + len as u64);
    }
    read
}

pub(super) fn read_up_to(file: &File, offset: u64, room: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < room.len() {
        match file.read_at(&mut room[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::source::found::trees::{append, files, one};
    use std::path::Path;

    #[test]
    fn a_file_that_changes_while_it_is_read_is_not_called_whole() {
        type Change = fn(&Path);
        let table: &[(Change, &str)] = &[
            (|path| append(path, b"more"), crate::source::GREW),
            (
                |path| drop(File::options().write(true).open(path).unwrap().set_len(3)),
                "shrank while it was copied",
            ),
            (
                |path| std::fs::remove_file(path).unwrap(),
                "was removed or replaced while it was copied",
            ),
            (
                |path| {
                    let file = File::options().write(true).open(path).unwrap();
                    file.set_modified(std::time::UNIX_EPOCH).unwrap();
                },
                "was written while it was copied",
            ),
            (
                |path| std::fs::hard_link(path, path.with_extension("2")).unwrap(),
                "it or its owner, mode or names changed while it was copied",
            ),
        ];
        for (change, message) in table {
            let temp = tempfile::tempdir().unwrap();
            let (path, found) = one(temp.path(), b"0123456789");
            let file = SourceFile::open(&found, Changes::Told).unwrap();
            let mut buffer = Buffer::loose(1024);
            file.read(2, 8, &mut buffer).unwrap();
            assert_eq!(buffer.data(), b"23456789");
            file.unchanged().unwrap();
            change(&path);
            let error = file.unchanged().unwrap_err();
            assert_eq!(
                (error.kind, error.message.as_str()),
                (Kind::Changed, *message)
            );
        }
    }

    #[test]
    fn a_read_past_the_end_says_that_the_file_shrank() {
        let temp = tempfile::tempdir().unwrap();
        let (_, found) = one(temp.path(), b"0123456789");
        let file = SourceFile::open(&found, Changes::Told).unwrap();
        let error = file.read(5, 6, &mut Buffer::loose(1024)).unwrap_err();
        assert_eq!(error.kind, Kind::Changed);
        assert_eq!(error.message, "shrank while it was copied");
    }

    #[test]
    fn what_took_a_files_name_is_not_read() {
        let temp = tempfile::tempdir().unwrap();
        let (path, found) = one(temp.path(), b"x");
        append(&path, b"yz");
        let entry = SourceFile::open(&found, Changes::Told)
            .unwrap()
            .found()
            .entry
            .clone();
        assert_eq!(
            (found.entry.size, entry.size),
            (1, 3),
            "the same file, grown"
        );

        let kind = || SourceFile::open(&found, Changes::Told).err().unwrap().kind;
        std::fs::rename(&path, temp.path().join("away")).unwrap();
        assert_eq!(kind(), Kind::Read);
        std::fs::write(&path, b"x").unwrap();
        assert_eq!(kind(), Kind::Changed);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("away", &path).unwrap();
        assert_eq!(kind(), Kind::Changed);
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert_eq!(kind(), Kind::Changed);
    }

    #[test]
    fn holes_are_told_from_data() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        let file = File::create(&path).unwrap();
        const MIB: u64 = 1 << 20;
        file.write_all_at(b"data", 2 * MIB).unwrap();
        file.write_all_at(b"data", 5 * MIB).unwrap();
        file.set_len(9 * MIB).unwrap();
        let found = files(temp.path()).remove(0);
        assert!(found.entry.is_sparse());
        let file = SourceFile::open(&found, Changes::Told).unwrap();
        let ranges: Vec<_> = file.data_ranges().map(Result::unwrap).collect();
        assert_eq!(ranges.len(), 2);
        for (range, start) in ranges.iter().zip([2 * MIB, 5 * MIB]) {
            assert!(range.start <= start && range.end >= start + 4);
            assert!(range.end - range.start <= 64 << 10, "a block or a few");
        }
        assert_eq!(
            file.next_data(6 * MIB).unwrap(),
            None,
            "the hole at the end"
        );
        assert_eq!(file.next_data(u64::MAX).unwrap(), None);

        std::fs::write(&path, b"dense").unwrap();
        let dense = SourceFile::open(&files(temp.path())[0], Changes::Told).unwrap();
        assert_eq!(dense.next_data(1).unwrap(), Some(1..5));
    }
}
