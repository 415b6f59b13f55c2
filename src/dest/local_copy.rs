//! The content of a file, copied into a new file on this host. It is cloned where the file system
//! can, else the kernel copies it. Holes stay holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, Stat, copy_file_range, fstat, ioctl_ficlone, seek};
use rustix::io::Errno;

use super::partial::write_sparse;

/// Bytes that are copied between two looks at whether the whole copy is ending.
const STEP: usize = 8 << 20;

/// Bytes that are read at a time where the kernel does not copy.
const BUFFER_LEN: usize = 1 << 20;

/// Why a new file does not have the content.
#[derive(Debug)]
pub(super) enum NotCopied {
    /// The file was written while it was read.
    Changed,
    /// The whole copy is ending.
    Ending,
    Read(io::Error),
    Write(io::Error),
}

/// How a file is copied.
pub(super) struct LocalCopy<'a> {
    pub from: &'a File,
    /// The status of `from` when it was opened.
    pub before: &'a Stat,
    /// A new file, which is empty.
    pub into: &'a File,
    /// Blocks of zeros become holes too.
    pub is_sparse: bool,
    pub is_ending: &'a dyn Fn() -> bool,
}

impl LocalCopy<'_> {
    /// # Errors
    /// [`NotCopied`]; then `into` has a part of the content.
    pub(super) fn run(&self) -> Result<(), NotCopied> {
        if ioctl_ficlone(self.into, self.from).is_err() {
            self.copy()?;
        }
        if (self.is_ending)() {
            return Err(NotCopied::Ending);
        }
        let after = fstat(self.from).map_err(|cause| NotCopied::Read(cause.into()))?;
        let state = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
        match state(&after) == state(self.before) {
            true => Ok(()),
            false => Err(NotCopied::Changed),
        }
    }

    fn copy(&self) -> Result<(), NotCopied> {
        let size = self.before.st_size as u64;
        let emptied = self.into.set_len(0).and_then(|()| self.into.set_len(size));
        emptied.map_err(NotCopied::Write)?;
        let unreadable = |cause: Errno| NotCopied::Read(cause.into());
        let mut at = 0;
        while at < size {
            let data = match seek(self.from, SeekFrom::Data(at)) {
                Ok(data) => data,
                // Only a hole follows.
                Err(Errno::NXIO) => return Ok(()),
                // The file system knows no holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
                Err(cause) => return Err(unreadable(cause)),
            };
            let end = match seek(self.from, SeekFrom::Hole(data)) {
                Ok(end) => end,
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO) => size,
                Err(cause) => return Err(unreadable(cause)),
            };
            let end = end.min(size);
            match self.is_sparse {
                true => self.read_and_write(data, end)?,
                false => self.copy_range(data, end)?,
            }
            at = end;
        }
        Ok(())
    }

    fn copy_range(&self, start: u64, end: u64) -> Result<(), NotCopied> {
        let (mut read, mut written) = (start, start);
        while read < end {
            self.check_ending()?;
            let len = usize::try_from(end - read).unwrap_or(STEP).min(STEP);
            match copy_file_range(
                self.from,
                Some(&mut read),
                self.into,
                Some(&mut written),
                len,
            ) {
                Ok(1..) | Err(Errno::INTR) => {}
                Err(cause @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                    return Err(NotCopied::Write(cause.into()));
                }
                // The kernel does not copy between these two, or does not say which of them fails.
                // Some file systems copy nothing with this call, without an error.
                Ok(0) | Err(_) => return self.read_and_write(read, end),
            }
        }
        Ok(())
    }

    fn read_and_write(&self, mut at: u64, end: u64) -> Result<(), NotCopied> {
        let mut buffer = vec![0; BUFFER_LEN];
        while at < end {
            self.check_ending()?;
            let most = usize::try_from(end - at).unwrap_or(BUFFER_LEN);
            let len = match self.from.read_at(&mut buffer[..most.min(BUFFER_LEN)], at) {
                Ok(0) => return Err(NotCopied::Changed),
                Ok(len) => len,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(NotCopied::Read(cause)),
            };
            let written = match self.is_sparse {
                true => write_sparse(self.into, &buffer[..len], at).map(drop),
                false => self.into.write_all_at(&buffer[..len], at),
            };
            written.map_err(NotCopied::Write)?;
            at += len as u64;
        }
        Ok(())
    }

    fn check_ending(&self) -> Result<(), NotCopied> {
        match (self.is_ending)() {
            true => Err(NotCopied::Ending),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn copied(from: &File, into: &File, is_sparse: bool) -> Result<(), NotCopied> {
        let before = fstat(from).unwrap();
        let copy = LocalCopy {
            from,
            before: &before,
            into,
            is_sparse,
            is_ending: &|| false,
        };
        copy.run()
    }

    #[test]
    fn content_and_holes_are_copied() {
        let from = tempfile::tempfile().unwrap();
        let data = vec![7; 100_000];
        from.write_all_at(&data, 0).unwrap();
        from.write_all_at(&data, 9 << 20).unwrap();
        // Zeros that are no hole.
        from.write_all_at(&vec![0; 1 << 20], 3 << 20).unwrap();
        from.set_len(20 << 20).unwrap();
        for is_sparse in [false, true] {
            let into = tempfile::tempfile().unwrap();
            let before = fstat(&from).unwrap();
            let copy = LocalCopy {
                from: &from,
                before: &before,
                into: &into,
                is_sparse,
                is_ending: &|| false,
            };
            copy.copy().unwrap();
            let (mut old, mut new) = (vec![0; 20 << 20], vec![1; 20 << 20]);
            from.read_exact_at(&mut old, 0).unwrap();
            into.read_exact_at(&mut new, 0).unwrap();
            assert!(old == new);
            let most = if is_sparse { 1 << 20 } else { 3 << 20 };
            assert!(into.metadata().unwrap().blocks() * 512 < most);
        }
    }

    #[test]
    fn an_error_says_which_file_has_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("f");
        std::fs::write(&path, b"content").unwrap();
        let into = tempfile::tempfile().unwrap();
        // Neither can be read from or written to through the other's handle.
        let unreadable = File::options().append(true).open(&path).unwrap();
        for is_sparse in [false, true] {
            let refused = copied(&unreadable, &into, is_sparse);
            assert!(matches!(refused, Err(NotCopied::Read(_))), "{refused:?}");
            let readable = File::open(&path).unwrap();
            let refused = copied(&readable, &readable, is_sparse);
            assert!(matches!(refused, Err(NotCopied::Write(_))), "{refused:?}");
        }
        let full = File::options().write(true).open("/dev/full").unwrap();
        let readable = File::open(&path).unwrap();
        let before = fstat(&readable).unwrap();
        let copy = LocalCopy {
            from: &readable,
            before: &before,
            into: &full,
            is_sparse: false,
            is_ending: &|| false,
        };
        let refused = copy.copy_range(0, 7);
        assert!(matches!(refused, Err(NotCopied::Write(_))), "{refused:?}");
    }

    #[test]
    fn a_file_that_changes_is_not_copied() {
        let (from, into) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.write_all_at(&[7; 5000], 0).unwrap();
        let before = fstat(&from).unwrap();
        for len in [4000, 6000] {
            from.set_len(len).unwrap();
            let copy = LocalCopy {
                from: &from,
                before: &before,
                into: &into,
                is_sparse: false,
                is_ending: &|| false,
            };
            let refused = copy.run();
            assert!(matches!(refused, Err(NotCopied::Changed)), "{refused:?}");
        }
    }

    #[test]
    fn a_copy_that_is_ending_copies_no_more() {
        let (from, into) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.write_all_at(&vec![7; 3 * STEP], 0).unwrap();
        let before = fstat(&from).unwrap();
        let looks = std::cell::Cell::new(0);
        let copy = LocalCopy {
            from: &from,
            before: &before,
            into: &into,
            is_sparse: false,
            is_ending: &|| looks.replace(looks.get() + 1) > 0,
        };
        assert!(matches!(
            copy.copy_range(0, 3 * STEP as u64),
            Err(NotCopied::Ending)
        ));
        let mut end = [1; 1];
        into.read_at(&mut end, 2 * STEP as u64).unwrap();
        assert_ne!(end, [7]);
    }
}
