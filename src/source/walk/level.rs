//! A directory that is being read, name by name, in the order that the file system gives.

use std::io;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::dir::Dir;
use crate::manifest::EntryId;

/// A directory being read.
pub struct Level {
    pub id: EntryId,
    pub dir: Arc<Dir>,
    /// None before the first name, and after a pause.
    reader: Option<rustix::fs::Dir>,
    /// Where the reader is, for opening it again.
    position: i64,
    /// Entries announced as this directory's.
    pub children: u64,
}

impl Level {
    pub fn new(id: EntryId, dir: Arc<Dir>) -> Level {
        Level {
            id,
            dir,
            reader: None,
            position: 0,
            children: 0,
        }
    }

    /// Lets the reader's handle go; reading goes on where it was.
    pub fn pause(&mut self) {
        self.reader = None;
    }

    /// The next name but `.` and `..`.
    pub fn next_name(&mut self) -> io::Result<Option<Vec<u8>>> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                // A handle of its own, since two readers of one handle share their place.
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
