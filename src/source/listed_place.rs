//! The directory below which the files of a list of digests are, and the opening of these files.
//! It opens regular files alone: a device, a FIFO or a socket is not touched.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::operand::{Lookup, refused};
use super::operand_path::with_home;
use crate::dir::{Confine, Dir, Handles, RESERVED, is_reserved};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Name, file_type};

/// A directory, opened.
pub struct ListedPlace {
    dir: Arc<Dir>,
    /// As the user would write it.
    path: PathBuf,
    /// No link is followed below it.
    is_confined: bool,
}

/// The file at the place of a name.
pub enum ListedFile {
    Regular(File, Stat),
    /// A directory, a device, a FIFO or a socket.
    Other,
    Missing,
}

/// Names that no list may have, because they may lead out of the directory.
const LEADS_OUT: &str = "a name in the list must lead below the directory: it may neither begin \
                         with a slash nor have ..";

impl ListedPlace {
    /// Opens the directory at `typed`, or the directory of the file that is there.
    ///
    /// # Errors
    /// `Kind::Read` if there is none; `Kind::Usage` if the key may not reach it.
    pub fn find(typed: &[u8], lookup: &Lookup) -> Result<ListedPlace> {
        let path = match &lookup.confine {
            Some(confine) => match confine.names(typed) {
                Ok(_) => with_home(typed, confine.path()),
                Err(outside) => return Err(refused(confine, outside, typed)),
            },
            None if lookup.remote => with_home(typed, &lookup.base),
            None => typed.to_vec(),
        };
        let path = PathBuf::from(OsStr::from_bytes(&path));
        let confine = lookup.confine.as_deref();
        let place = |path: &Path| {
            let (path, is_confined) = (path.to_owned(), confine.is_some());
            let dir = open(&path, confine)?;
            Ok(ListedPlace {
                dir,
                path,
                is_confined,
            })
        };
        let place = match (place(&path), path.parent(), path.file_name()) {
            (Err(Errno::NOTDIR), Some(above), Some(name)) => {
                let place = place(above);
                let is_file = |place: &ListedPlace| {
                    let file = place.look(name.as_bytes());
                    matches!(file, Ok(ListedFile::Regular(..)))
                };
                place.and_then(|place| Some(place).filter(is_file).ok_or(Errno::NOTDIR))
            }
            (place, ..) => place,
        };
        place.map_err(|cause| {
            let what = "cannot open this directory, below which the list names files";
            Error::io(Kind::Read, Side::Source, &path, what, cause)
        })
    }

    /// A name of the list as the user would write it.
    pub fn path_of(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    /// Opens the file with this name below the directory. Links are followed, unless the directory
    /// is that of a confined key.
    ///
    /// # Errors
    /// `Kind::Usage` if the name leads out; `Kind::Read`.
    pub fn open(&self, name: &[u8]) -> Result<ListedFile> {
        if name.first() == Some(&b'/') || name.split(|byte| *byte == b'/').any(|it| it == b"..") {
            return Err(
                Error::new(Kind::Usage, Side::Source, LEADS_OUT).at(OsStr::from_bytes(name))
            );
        }
        if self.is_confined && name.split(|byte| *byte == b'/').any(is_reserved) {
            return Err(Error::new(Kind::Usage, Side::Source, RESERVED).at(self.path_of(name)));
        }
        match self.look(name) {
            Ok(file) => Ok(file),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(ListedFile::Missing),
            // A socket, which has taken the place of a file.
            Err(Errno::NXIO) => Ok(ListedFile::Other),
            Err(Errno::LOOP) if self.is_confined => {
                let message = "is a symbolic link, and this key may not follow links (--confine)";
                Err(Error::new(Kind::Read, Side::Source, message).at(self.path_of(name)))
            }
            Err(cause) => {
                let path = self.path_of(name);
                Err(Error::io(
                    Kind::Read,
                    Side::Source,
                    path,
                    "cannot read",
                    cause,
                ))
            }
        }
    }

    fn look(&self, name: &[u8]) -> Result<ListedFile, Errno> {
        // The status comes first: opening some devices has effects.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match self.is_confined {
            true => {
                let (dir, last) = self.enter(name)?;
                let stat = dir.stat(last).map_err(errno)?;
                match file_type(&stat) {
                    FileType::RegularFile => dir.open(last, flags, Mode::empty()).map_err(errno)?,
                    FileType::Symlink => return Err(Errno::LOOP),
                    _ => return Ok(ListedFile::Other),
                }
            }
            false => {
                let (dir, path) = (self.dir.handle().map_err(errno)?, OsStr::from_bytes(name));
                let stat = statat(&*dir, path, AtFlags::empty())?;
                if file_type(&stat) != FileType::RegularFile {
                    return Ok(ListedFile::Other);
                }
                openat(&*dir, path, flags, Mode::empty())?
            }
        };
        let stat = fstat(&fd)?;
        match file_type(&stat) {
            FileType::RegularFile => Ok(ListedFile::Regular(File::from(fd), stat)),
            _ => Ok(ListedFile::Other),
        }
    }

    /// The directory that has the last component of `name`, and that component.
    fn enter<'a>(&self, name: &'a [u8]) -> Result<(Arc<Dir>, &'a OsStr), Errno> {
        let names = name.split(|byte| *byte == b'/');
        let mut names = names.filter(|name| !matches!(*name, b"" | b".")).peekable();
        let mut dir = self.dir.clone();
        loop {
            let name = names.next().ok_or(Errno::NOENT)?;
            if names.peek().is_none() {
                return Ok((dir, OsStr::from_bytes(name)));
            }
            let name = Name::try_from(name.to_vec()).map_err(|_| Errno::NAMETOOLONG)?;
            dir = match dir.passed(&name, false).map_err(errno) {
                // The kernel says so of a link too.
                Err(Errno::NOTDIR) if is_link(&dir, &name) => return Err(Errno::LOOP),
                passed => passed?,
            };
        }
    }
}

fn is_link(dir: &Arc<Dir>, name: &Name) -> bool {
    let stat = dir.stat(name.as_os_str());
    stat.is_ok_and(|stat| file_type(&stat) == FileType::Symlink)
}

fn open(path: &Path, confine: Option<&Confine>) -> Result<Arc<Dir>, Errno> {
    let opened = match confine {
        Some(confine) => confine.directory(path),
        None => Dir::root(path, &Arc::<Handles>::default()),
    };
    opened.map_err(errno)
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
