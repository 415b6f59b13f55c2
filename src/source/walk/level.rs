//! A directory that is being read, name by name, in the order in which the file system lists it.

use std::io;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::dir::Dir;
use crate::manifest::EntryId;

/// A directory being read.
pub(super) struct Level {
    pub id: EntryId,
    pub dir: Arc<Dir>,
    /// None before the first name and after a pause.
    reader: Option<rustix::fs::Dir>,
    /// The reader's position, to continue there after it is opened again.
    position: i64,
    /// Number of entries announced with this directory as their parent.
    pub children: u64,
}

impl Level {
    pub(super) fn new(id: EntryId, dir: Arc<Dir>) -> Level {
        Level {
            id,
            dir,
            reader: None,
            position: 0,
            children: 0,
        }
    }

    /// Closes the reader's handle; the next call continues at the same position.
    pub(super) fn pause(&mut self) {
        self.reader = None;
    }

    /// The next name except `.` and `..`.
    pub(super) fn next_name(&mut self) -> io::Result<Option<Vec<u8>>> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                // A separate handle, because two readers of one handle share their position.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let fd = self.dir.open(".".as_ref(), flags, Mode::empty())?;
                let mut reader = rustix::fs::Dir::new(fd)?;
                if self.position != 0 {
                    reader.seek(self.position)?;
                }
                none.insert(reader)
            }
        };
        while let Some(entry) = reader.read() {
            let entry = entry?;
            self.position = entry.offset();
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                return Ok(Some(name.to_vec()));
            }
        }
        Ok(None)
    }
}
