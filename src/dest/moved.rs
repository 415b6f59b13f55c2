//! An index of the large files at the destination, by size and modification time. If the source has
//! renamed or moved a file, the index has it under its old name.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, fstat};

use super::is_own_name;
use crate::chunk::SMALL_FILE_MAX;
use crate::dir::{Dir, DirReader, HeldDirs};
use crate::manifest::{Name, Timestamp, file_type};

/// Most bytes of files that are kept, of all directories: 200,000 files with names of 20 bytes.
const BYTES_MAX: usize = 24 << 20;

/// Approximate bytes of memory of a file without its name.
const FILE: usize = 100;

/// Directories inside each other that are looked into.
const DEPTH_MAX: usize = 64;

/// Large files below some directories. Of several with the same size, time and name, one.
#[derive(Default)]
pub struct FilesByTime {
    files: BTreeMap<(u64, Timestamp, Vec<u8>), Arc<Dir>>,
    bytes: usize,
    dirs: HeldDirs,
}

impl FilesByTime {
    /// Looks for files below `tops` until `is_over` is true. Unreadable files are left out and
    /// sent whole.
    pub fn read(tops: &[Arc<Dir>], is_over: impl Fn() -> bool) -> FilesByTime {
        let mut found = FilesByTime::default();
        for top in tops {
            if !found.read_below(top, &is_over) {
                break;
            }
        }
        found
    }

    /// Returns false if the search has ended.
    fn read_below(&mut self, top: &Arc<Dir>, is_over: impl Fn() -> bool) -> bool {
        let mut open = vec![DirReader::new(top.clone())];
        while let Some(reader) = open.last_mut() {
            if is_over() || self.bytes >= BYTES_MAX {
                return false;
            }
            let Ok(Some(read)) = reader.next_name() else {
                open.pop();
                continue;
            };
            let dir = reader.dir().clone();
            let may_be = [
                FileType::RegularFile,
                FileType::Directory,
                FileType::Unknown,
            ];
            let is_possible = may_be.contains(&read.file_type) && !is_own_name(&read.name);
            let Some(name) = is_possible
                .then(|| Name::try_from(read.name).ok())
                .flatten()
            else {
                continue;
            };
            let Ok(stat) = dir.stat(name.as_os_str()) else {
                continue;
            };
            match file_type(&stat) {
                FileType::RegularFile if stat.st_size as u64 > SMALL_FILE_MAX => {
                    self.bytes += FILE + name.as_bytes().len() + self.dirs.weight(&dir);
                    let name = name.as_bytes().to_vec();
                    let key = (stat.st_size as u64, Timestamp::mtime(&stat), name);
                    self.files.entry(key).or_insert(dir);
                }
                FileType::Directory if open.len() < DEPTH_MAX => {
                    if let Ok(child) = dir.child(&name) {
                        // One handle, however deep it is.
                        open.last_mut().into_iter().for_each(DirReader::pause);
                        open.push(DirReader::new(child));
                    }
                }
                _ => {}
            }
        }
        true
    }

    /// Opens a file with this size and time, if there is one and it can be read: if possible one with
    /// this name, since many files may have the time at which they were unpacked.
    pub fn open(&self, size: u64, time: Timestamp, name: &Name) -> Option<File> {
        let (name, dir) = self.find(size, time, name)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = File::from(dir.open(name, flags, Mode::empty()).ok()?);
        let stat = fstat(&file).ok()?;
        let is_it = file_type(&stat) == FileType::RegularFile && stat.st_size as u64 == size;
        is_it.then_some(file)
    }

    fn find(&self, size: u64, time: Timestamp, name: &Name) -> Option<(&OsStr, &Arc<Dir>)> {
        let key = |name: &[u8]| (size, time, name.to_vec());
        let alike = || self.files.range(key(b"")..).next();
        let found = self
            .files
            .get_key_value(&key(name.as_bytes()))
            .or_else(alike)?;
        let ((found_size, found_time, found_name), dir) = found;
        let is_alike = (*found_size, *found_time) == (size, time);
        is_alike.then(|| (OsStr::from_bytes(found_name), dir))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;
    use std::io::Read;

    use super::*;

    #[test]
    fn one_limit_is_for_all_directories() {
        let temp = tempfile::tempdir().expect("make it");
        let tops: Vec<Arc<Dir>> = (0..3)
            .map(|nth| {
                let top = temp.path().join(format!("{nth}"));
                fs::create_dir_all(top.join("a/b/c")).expect("make it");
                let large = File::create(top.join("a/b/c/large")).expect("make it");
                large
                    .set_len(SMALL_FILE_MAX + 1 + nth)
                    .expect("set its length");
                fs::write(top.join("a/after"), b"small").expect("write");
                Dir::root(&top, &Arc::default()).expect("open it")
            })
            .collect();
        assert_eq!(FilesByTime::read(&tops, || false).files.len(), 3);
        let looks = Cell::new(0);
        let is_over = || looks.replace(looks.get() + 1) >= 9;
        let found = FilesByTime::read(&tops, is_over);
        assert_eq!((found.files.len(), looks.get()), (1, 10));
    }

    #[test]
    fn of_files_with_one_size_and_time_the_one_with_the_same_name_is_found() {
        let temp = tempfile::tempdir().expect("make it");
        let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        for (nth, path) in ["a/1", "b/2", "c/3"].into_iter().enumerate() {
            let path = temp.path().join(path);
            fs::create_dir(path.parent().expect("it has one")).expect("make it");
            let content = vec![nth as u8; SMALL_FILE_MAX as usize + 1];
            fs::write(&path, content).expect("write");
            let file = File::options().write(true).open(&path).expect("open it");
            file.set_times(times).expect("set its times");
        }
        let top = Dir::root(temp.path(), &Arc::default()).expect("open it");
        let found = FilesByTime::read(&[top], || false);
        let first_byte = |size: u64, s: i64, name: &str| {
            let name = Name::try_from(name.as_bytes().to_vec()).expect("a name");
            let mut byte = [9];
            let mut file = found.open(size, Timestamp { s, ns: 0 }, &name)?;
            file.read_exact(&mut byte).expect("read");
            Some(byte[0])
        };
        let size = SMALL_FILE_MAX + 1;
        for (nth, name) in (0..).zip(["1", "2", "3"]) {
            assert_eq!(first_byte(size, 0, name), Some(nth));
        }
        assert_eq!(first_byte(size, 0, "new"), Some(0));
        assert_eq!(first_byte(size, 1, "1"), None);
        assert_eq!(first_byte(size - 1, 0, "1"), None);
    }
}
