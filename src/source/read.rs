//! The reading of a big file, range by range. The status of the file is compared before the first
//! byte and after the last, and a file that changed in between is not reported as complete. `pack`
//! reads small files. A block device of any size is read like a big file.

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
use super::found::{Changes, FoundFile, refresh};

/// An open big file or device, which several threads read at once.
pub struct SourceFile {
    found: FoundFile,
    medium: SourceMedium,
}

// There is one per open file, so boxing the larger variant would save nothing.
#[allow(clippy::large_enum_variant)]
enum SourceMedium {
    File {
        file: File,
        /// Its status before the first byte was read.
        stat: Stat,
        /// If set, the bytes read leave the page cache again, except those that were there before.
        before: Option<Before>,
    },
    Device(SourceDevice),
}

impl SourceFile {
    /// # Errors
    /// `Kind::Read` if it vanished or is unreadable; `Kind::Changed` if another file has its name.
    /// A new size is no error: see [`found`](SourceFile::found).
    pub fn open(found: &FoundFile, changes: Changes) -> Result<SourceFile> {
        let (file, stat) = found.open(changes)?;
        // Advice only: a file system that ignores it can be read as well.
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        let mut found = found.clone();
        refresh(&mut found.entry, &file, &stat, &found.keep);
        let before = None;
        let medium = SourceMedium::File { file, stat, before };
        Ok(SourceFile { found, medium })
    }

    /// Makes reads drop their bytes from the page cache again, if the copy brought them there.
    pub fn dropping_pages(mut self) -> SourceFile {
        if let SourceMedium::File { file, before, .. } = &mut self.medium {
            *before = Some(Before::default());
            cache::read_without_readahead(file);
        }
        self
    }

    /// Opens the block device that the walk found. `direct_io` bypasses the page cache.
    ///
    /// # Errors
    /// `Kind::Read`; `Kind::Usage` if the device does not support direct I/O.
    pub fn open_device(found: &FoundFile, direct_io: bool) -> Result<SourceFile> {
        let device = SourceDevice::open(&found.path(), direct_io)?;
        let mut found = found.clone();
        found.entry.size = device.size();
        let medium = SourceMedium::Device(device);
        Ok(SourceFile { found, medium })
    }

    /// The file that the walk found, with size, times and mode as of when it was opened.
    pub fn found(&self) -> &FoundFile {
        &self.found
    }

    /// Fills `buffer` with the `len` bytes at `offset`. `len` must fit into it.
    ///
    /// # Errors
    /// `Kind::Changed` if the file ends before that; `Kind::Read`.
    pub fn read(&self, offset: u64, len: usize, buffer: &mut Buffer) -> Result<()> {
        buffer.set_len(len);
        let room = &mut buffer.room()[..len];
        match &self.medium {
            SourceMedium::File { file, before, .. } => {
                let brings = self.brings(file, before, offset);
                let read = behind(file, brings, offset, len, || {
                    file.read_exact_at(room, offset)
                });
                read.map_err(|cause| self.found.cannot_read(cause))
            }
            SourceMedium::Device(device) => device.read(offset, room),
        }
    }

    /// Reads the bytes that still exist at `offset`, at most as many as fit into `room`. Returns
    /// fewer only at the end of the file.
    pub fn read_up_to(&self, offset: u64, room: &mut [u8]) -> Result<usize> {
        match &self.medium {
            SourceMedium::File { file, before, .. } => {
                let len = room.len();
                let brings = self.brings(file, before, offset);
                let read = behind(file, brings, offset, len, || read_up_to(file, offset, room));
                read.map_err(|cause| self.found.cannot_read(cause))
            }
            SourceMedium::Device(device) => device.read(offset, room).map(|()| room.len()),
        }
    }

    /// True if a read that must drop its pages brings new bytes into the cache.
    fn brings(&self, file: &File, before: &Option<Before>, offset: u64) -> bool {
        let size = self.found.entry.size;
        let was_cached = |before: &Before| before.was_cached(file, offset, size);
        before.as_ref().is_some_and(|before| !was_cached(before))
    }

    /// The present size in bytes.
    pub fn size_now(&self) -> Result<u64> {
        match &self.medium {
            SourceMedium::File { file, .. } => Ok(self.stat_now(file)?.st_size as u64),
            SourceMedium::Device(device) => device.size_now(),
        }
    }

    fn stat_now(&self, file: &File) -> Result<Stat> {
        fstat(file).map_err(|cause| self.found.cannot_read(cause.into()))
    }

    /// Checks that the file has not changed; to be called after the last byte was read.
    ///
    /// # Errors
    /// `Kind::Changed` if the status differs from that at the opening. Of a device only the size
    /// counts.
    pub fn unchanged(&self) -> Result<()> {
        match &self.medium {
            SourceMedium::File { file, stat, .. } => {
                self.found.compare(stat, &self.stat_now(file)?)
            }
            SourceMedium::Device(device) => device.unchanged(),
        }
    }

    /// The first range at or after `offset` that is not a hole; None if only a hole follows. If the
    /// file system does not report holes, everything is data.
    pub fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let size = self.found.entry.size;
        if offset >= size {
            return Ok(None);
        }
        let SourceMedium::File { file, .. } = &self.medium else {
            return Ok(Some(offset..size));
        };
        let start = match seek(file, SeekFrom::Data(offset)) {
            Ok(start) if start < size => start.max(offset),
            // The rest is a hole, or the file has shrunk, which `unchanged` reports.
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
}

/// Reads, and then drops the range from the page cache if the read `brings` it there.
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

/// The same for any file.
pub fn read_up_to(file: &File, offset: u64, room: &mut [u8]) -> io::Result<usize> {
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
    use crate::manifest::{Entry, EntryKind};
    use crate::source::found::trees::{append, files, one};
    use std::path::Path;

    #[test]
    fn a_file_that_changes_while_it_is_read_is_not_called_whole() {
        type Change = fn(&Path);
        let table: &[(Change, &str)] = &[
            (|path| append(path, b"more"), crate::source::GREW),
            (
                |path| drop(File::options().write(true).open(path).unwrap().set_len(3)),
                "shrank during the copy; --live copies files that are in use",
            ),
            (
                |path| std::fs::remove_file(path).unwrap(),
                "was removed or replaced during the copy",
            ),
            (
                |path| {
                    let file = File::options().write(true).open(path).unwrap();
                    file.set_modified(std::time::UNIX_EPOCH).unwrap();
                },
                "was written during the copy; --live copies files that are in use",
            ),
            (
                |path| std::fs::hard_link(path, path.with_extension("2")).unwrap(),
                "its content, owner, mode or link count changed during the copy",
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
    fn a_file_that_had_no_name_before_the_copy_is_not_called_removed() {
        let temp = tempfile::tempdir().unwrap();
        let (path, mut found) = one(temp.path(), b"0123456789");
        let file = SourceFile::open(&found, Changes::Told).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(file.unchanged().is_err());

        let nameless = tempfile::tempfile().unwrap();
        nameless.write_all_at(b"0123456789", 0).unwrap();
        let stat = fstat(&nameless).unwrap();
        let (id, parent, name) = (found.entry.id, found.entry.parent, found.name.clone());
        found.entry = Entry::from_stat(id, parent, name, EntryKind::File, &stat);
        found.compare(&stat, &fstat(&nameless).unwrap()).unwrap();
        nameless.write_all_at(b"more", 10).unwrap();
        let error = found.compare(&stat, &fstat(&nameless).unwrap());
        assert_eq!(error.unwrap_err().message, crate::source::GREW);
    }

    #[test]
    fn a_read_past_the_end_says_that_the_file_shrank() {
        let temp = tempfile::tempdir().unwrap();
        let (_, found) = one(temp.path(), b"0123456789");
        let file = SourceFile::open(&found, Changes::Told).unwrap();
        let error = file.read(5, 6, &mut Buffer::loose(1024)).unwrap_err();
        assert_eq!(error.kind, Kind::Changed);
        assert_eq!(
            error.message,
            "shrank during the copy; --live copies files that are in use"
        );
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
        let mut end = 0;
        for start in [2 * MIB, 5 * MIB] {
            let range = file.next_data(end).unwrap().unwrap();
            end = range.end;
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
