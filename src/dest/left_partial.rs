//! A partial file that a copy has left, for `--clean`: whether a process still writes it, whether
//! its name was made for this directory, and its removal.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::own_names::{is_made_for, unlock};
use super::partial::inode_of;
use super::resolve::Spec;
use super::temporary::same_file;
use super::user_path::FoundPath;
use crate::dir::{Confine, Dir, Handles, RECENT, age, is_ours};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Inode, file_type};

/// What a file with a partial file's name is.
pub enum FoundPartial {
    /// Nothing, or no regular file.
    Nothing,
    /// A file with several names, which no partial file has unless somebody has linked it.
    Linked,
    /// A process of this host is writing it.
    InUse,
    /// Of another user.
    OfUser(u32),
    Left(LeftPartial),
}

/// A file that no process of this host writes, as long as this exists.
pub struct LeftPartial {
    pub inode: Inode,
    /// It was written recently, and the lock of a process that writes it may not be seen here.
    pub may_be_in_use: bool,
    /// Its owner, which only root may find to be another user.
    pub owner: u32,
    /// The name shows which file it was made for, and that this is the directory of that file. Only
    /// this user can read it, as all partial files.
    pub is_named_for_here: bool,
    dir: Arc<Dir>,
    name: OsString,
    file: File,
}

impl LeftPartial {
    /// # Errors
    /// If the file cannot be looked at or opened.
    pub fn find(dir: &Arc<Dir>, name: &OsStr) -> io::Result<FoundPartial> {
        // Checked before the open, since opening a device or a FIFO has side effects.
        let stat = match dir.stat(name) {
            Err(cause) if is_gone(&cause) => return Ok(FoundPartial::Nothing),
            found => found?,
        };
        if file_type(&stat) != FileType::RegularFile {
            return Ok(FoundPartial::Nothing);
        }
        if stat.st_nlink > 1 {
            return Ok(FoundPartial::Linked);
        }
        let user = geteuid();
        if stat.st_uid != user.as_raw() && !user.is_root() {
            return Ok(FoundPartial::OfUser(stat.st_uid));
        }
        let open = |access| dir.open(name, access | OFlags::NONBLOCK, Mode::empty());
        // NFS locks only files that are open for writing.
        let opened = match open(OFlags::RDWR) {
            Err(cause)
                if matches!(
                    Errno::from_io_error(&cause),
                    Some(Errno::ACCESS | Errno::ROFS)
                ) =>
            {
                open(OFlags::RDONLY)
            }
            opened => opened,
        };
        let file = match opened {
            Err(cause) if is_gone(&cause) => return Ok(FoundPartial::Nothing),
            opened => File::from(opened?),
        };
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        let stat = fstat(&file)?;
        // Its copy may have ended, and named or removed it, since it was opened.
        if !is_plain(&stat) || !dir.stat(name).is_ok_and(|there| same_file(&there, &stat)) {
            unlock(&file);
            return Ok(FoundPartial::Nothing);
        }
        if locked == Err(Errno::AGAIN) {
            return Ok(FoundPartial::InUse);
        }
        let is_lock_enough = locked.is_ok() && dir.shares_locks();
        let is_private = is_ours(&stat) && stat.st_mode & 0o077 == 0;
        Ok(FoundPartial::Left(LeftPartial {
            inode: inode_of(&file)?,
            may_be_in_use: !is_lock_enough && age(&stat, SystemTime::now()) < RECENT,
            owner: stat.st_uid,
            is_named_for_here: is_private && is_made_for(dir, name),
            dir: dir.clone(),
            name: name.to_owned(),
            file,
        }))
    }

    /// Removes it, unless its name is that of another file by now.
    ///
    /// # Errors
    /// Of the file system.
    pub fn remove(self) -> io::Result<()> {
        self.dir.remove_name_of(&self.name, &self.file)
    }
}

impl Drop for LeftPartial {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

fn is_plain(stat: &Stat) -> bool {
    file_type(stat) == FileType::RegularFile && stat.st_nlink == 1
}

fn is_gone(cause: &io::Error) -> bool {
    Errno::from_io_error(cause) == Some(Errno::NOENT)
}

/// The directory that the user wants cleaned.
pub struct CleanedDirectory {
    pub dir: Arc<Dir>,
    spec: Spec,
}

impl CleanedDirectory {
    /// Opens the directory at the end of `path`. Links in it are followed unless it is confined.
    ///
    /// # Errors
    /// `Kind::Write` if there is none; `Kind::Usage` for anything but a directory, and if the key
    /// may not reach it.
    pub fn find(
        path: &[u8],
        (base, remote): (PathBuf, bool),
        confine: Option<Arc<Confine>>,
    ) -> Result<CleanedDirectory> {
        let spec = Spec {
            path: path.to_vec(),
            base,
            remote,
            no_target_directory: false,
            inplace: false,
            fsync: false,
            mkpath: false,
            dry_run: false,
            check: false,
            relative: false,
            is_beside: false,
            scp: None,
            confine,
        };
        let handles = Arc::new(Handles::default());
        let found = spec
            .expanded()
            .and_then(|path| Ok((spec.reach(&handles).find(&path)?, path)));
        let error = match found {
            Ok((FoundPath::Directory(dir), _)) => return Ok(CleanedDirectory { dir, spec }),
            Ok((FoundPath::Other(..), path)) => {
                let message = "is not a directory: --clean takes the directory in which copies \
                               have left files";
                Error::new(Kind::Usage, Side::Dest, message).at(path)
            }
            Ok((FoundPath::Nothing(_), path)) => {
                let message = "there is no such directory";
                Error::new(Kind::Write, Side::Dest, message).at(path)
            }
            Err(error) => error,
        };
        Err(spec.as_typed(error))
    }

    /// The error about a file or directory below this one, with its path as the user would type it.
    pub fn error(&self, below: &[u8], what: &str, cause: io::Error) -> Error {
        use std::os::unix::ffi::OsStrExt;
        let path = match below {
            b"" => self.dir.path(),
            below => self.dir.path().join(OsStr::from_bytes(below)),
        };
        let error = Error::io(Kind::Write, Side::Dest, path, what, cause);
        self.spec.as_typed(error)
    }
}
