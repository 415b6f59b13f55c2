//! Reads a directory name by name, in the order in which the file system lists it.

use std::io;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};

use super::Dir;

pub struct DirReader {
    dir: Arc<Dir>,
    /// None before the first name and after a pause.
    reader: Option<rustix::fs::Dir>,
    /// The reader's position, to continue there after it is opened again.
    position: i64,
}

/// A name in a directory.
pub struct ReadName {
    pub name: Vec<u8>,
    /// Some file systems do not tell it.
    pub file_type: FileType,
}

impl DirReader {
    pub fn new(dir: Arc<Dir>) -> DirReader {
        DirReader {
            dir,
            reader: None,
            position: 0,
        }
    }

    pub fn dir(&self) -> &Arc<Dir> {
        &self.dir
    }

    /// Closes the reader's handle; the next call continues at the same position.
    pub fn pause(&mut self) {
        self.reader = None;
    }

    /// The next name except `.` and `..`.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn next_name(&mut self) -> io::Result<Option<ReadName>> {
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
                return Ok(Some(ReadName {
                    name: name.to_vec(),
                    file_type: entry.file_type(),
                }));
            }
        }
        Ok(None)
    }
}
