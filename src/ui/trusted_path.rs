//! Paths of logs and reports: each is followed where no other user can have led it.
//!
//! Root may write a log in a directory in which others may write, such as /tmp. There, a link of
//! another user could lead the log into any file, and with it the names of files that others have
//! chosen. Linux can refuse such links and files by itself (`fs.protected_symlinks` and
//! `fs.protected_regular`), but not every system is set to that. So each name of the path is opened
//! from the directory before it, and what was looked at is what is opened.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;

use crate::dir::is_trusted;
use crate::manifest::file_type;
use crate::units::printable;

/// Links that are followed: as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// Attempts while others make, rename or remove the file.
const TRIES: usize = 16;

/// The type of /proc, by its magic number. Its links have no text that leads to their files.
const PROC: u64 = 0x9fa0;

/// Opens the file for appending, or makes it for this user alone.
///
/// # Errors
/// Of the file system, and if the path leads through a link of another user, or to another user's
/// file in a directory such as /tmp.
pub(super) fn open(path: &Path) -> io::Result<File> {
    for _ in 0..TRIES {
        match TrustedPath::begin(path)?.open() {
            // Another file has its name by now.
            Err(cause) if Errno::from_io_error(&cause) == Some(Errno::EXIST) => {}
            opened => return opened,
        }
    }
    Err(Errno::BUSY.into())
}

/// A name in a directory that no other user can have exchanged.
#[derive(Debug)]
pub(super) struct TrustedName {
    pub dir: OwnedFd,
    pub name: OsString,
    /// Of the entry with this name, if there is one. It is no symbolic link.
    pub stat: Option<Stat>,
}

/// The name that the path leads to; links are followed, also one that leads to nothing.
///
/// # Errors
/// Of the file system, if the path leads through a link of another user, and for /dev/stdout and
/// the like.
pub(super) fn find(path: &Path) -> io::Result<TrustedName> {
    let mut walk = TrustedPath::begin(path)?;
    let (name, last) = walk.find()?;
    let stat = match last {
        Last::Nothing => None,
        Last::Entry(stat) => Some(stat),
        Last::OpenFile => return Err(io::Error::other("it is an open file of this process")),
    };
    let dir = walk.dir;
    Ok(TrustedName { dir, name, stat })
}

/// The end of a path.
enum Last {
    Nothing,
    Entry(Stat),
    /// A link of /proc, which only the kernel can follow.
    OpenFile,
}

/// A path that is followed name by name.
struct TrustedPath {
    dir: OwnedFd,
    /// The path of `dir`, for messages.
    shown: PathBuf,
    /// The names that follow, the next one last.
    names: Vec<OsString>,
    links: usize,
}

impl TrustedPath {
    fn begin(path: &Path) -> io::Result<TrustedPath> {
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT.into());
        }
        // The working directory may be closed to this user.
        let start = if path.is_absolute() { "/" } else { "." };
        let mut walk = TrustedPath {
            dir: open_dir(start)?,
            shown: PathBuf::new(),
            names: Vec::new(),
            links: 0,
        };
        walk.goes_on(path.as_os_str().as_bytes())?;
        Ok(walk)
    }

    /// The names of `path` come next.
    fn goes_on(&mut self, path: &[u8]) -> io::Result<()> {
        if path.starts_with(b"/") {
            self.dir = open_dir("/")?;
            self.shown = PathBuf::from("/");
        }
        if path.ends_with(b"/") {
            // Only a directory has such a path.
            self.names.push(".".into());
        }
        let names = path.split(|byte| *byte == b'/').rev();
        let names = names.filter(|name| !name.is_empty());
        self.names
            .extend(names.map(|name| OsStr::from_bytes(name).to_owned()));
        Ok(())
    }

    fn open(mut self) -> io::Result<File> {
        let (name, last) = self.find()?;
        match last {
            Last::Nothing => self.make(&name),
            Last::Entry(stat) => self.open_file(&name, &stat),
            Last::OpenFile => Ok(self.at(&name, WRITING)?.into()),
        }
    }

    /// Follows the path to its last name; `dir` is then the directory of that name.
    fn find(&mut self) -> io::Result<(OsString, Last)> {
        while let Some(name) = self.names.pop() {
            let is_last = self.names.is_empty();
            let entry = match self.at(&name, OFlags::PATH | OFlags::NOFOLLOW) {
                Err(Errno::NOENT) if is_last => return Ok((name, Last::Nothing)),
                entry => entry?,
            };
            let stat = fstat(&entry)?;
            if file_type(&stat) == FileType::Symlink {
                let is_text = self.follow(&name, (&entry, &stat), is_last)?;
                if !is_text && is_last {
                    return Ok((name, Last::OpenFile));
                }
            } else if is_last {
                return Ok((name, Last::Entry(stat)));
            } else {
                self.dir = entry;
                self.shown.push(&name);
            }
        }
        Err(Errno::ISDIR.into())
    }

    /// Follows a link, unless only the kernel can and it is the last one. False if only the kernel
    /// can.
    fn follow(
        &mut self,
        name: &OsStr,
        (link, stat): (&OwnedFd, &Stat),
        is_last: bool,
    ) -> io::Result<bool> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        if !is_trusted(stat) {
            return Err(self.refused(
                name,
                format!(
                    "is a symbolic link of another user (uid {}); name the file that it leads to, \
                     or one in a directory in which only you can write",
                    stat.st_uid
                ),
            ));
        }
        if fstatfs(link)?.f_type as u64 == PROC {
            if !is_last {
                self.dir = self.at(name, OFlags::PATH)?;
                self.shown.push(name);
            }
            return Ok(false);
        }
        let text = readlinkat(link, "", Vec::new())?.into_bytes();
        self.goes_on(&text)?;
        Ok(true)
    }

    fn make(&self, name: &OsStr) -> io::Result<File> {
        let flags = WRITING | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(openat(&self.dir, name, flags, mode)?.into())
    }

    /// Opens the file with this status.
    ///
    /// # Errors
    /// EEXIST if another file has its name by now.
    fn open_file(&self, name: &OsStr, stat: &Stat) -> io::Result<File> {
        let above = fstat(&self.dir)?;
        let is_open_to_all = above.st_mode & 0o1002 == 0o1002;
        let is_plain = matches!(file_type(stat), FileType::RegularFile | FileType::Fifo);
        // As the kernel does, it takes the owner of the directory for trusted.
        if is_open_to_all && is_plain && !is_trusted(stat) && stat.st_uid != above.st_uid {
            return Err(self.refused(
                name,
                format!(
                    "belongs to another user (uid {}), in a directory in which everybody can \
                     write; name a file of your own",
                    stat.st_uid
                ),
            ));
        }
        let file = match self.at(name, WRITING | OFlags::NOFOLLOW) {
            Err(Errno::NOENT | Errno::LOOP) => return Err(Errno::EXIST.into()),
            file => file?,
        };
        let opened = fstat(&file)?;
        if (opened.st_dev, opened.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err(Errno::EXIST.into());
        }
        Ok(file.into())
    }

    fn at(&self, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat(&self.dir, name, flags | OFlags::CLOEXEC, Mode::empty())
    }

    fn refused(&self, name: &OsStr, why: String) -> io::Error {
        let path = self.shown.join(name).into_os_string().into_vec();
        io::Error::other(format!("{} {why}", printable(&path)))
    }
}

/// A FIFO that nobody reads is an error, and no wait.
const WRITING: OFlags = OFlags::WRONLY
    .union(OFlags::APPEND)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

fn open_dir(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use rustix::process::geteuid;

    use super::*;

    fn append(path: &Path) -> io::Result<()> {
        open(path)?.write_all(b"line\n")
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_log_is_made_for_its_user_alone_and_an_existing_one_keeps_its_mode() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        append(&at("new")).unwrap();
        assert_eq!(mode(&at("new")), 0o600);
        std::fs::write(at("old"), "before\n").unwrap();
        set_mode(&at("old"), 0o644);
        std::fs::create_dir(at("dir")).unwrap();
        symlink("../dir/..//old", at("dir/link")).unwrap();
        symlink(at("dir"), at("way")).unwrap();
        append(&at("way/link")).unwrap();
        let text = std::fs::read_to_string(at("old")).unwrap();
        assert_eq!(text, "before\nline\n");
        assert_eq!(mode(&at("old")), 0o644);
        // A link may lead to a file that is made.
        symlink("made", at("to")).unwrap();
        append(&at("to")).unwrap();
        assert_eq!(mode(&at("made")), 0o600);
        symlink("loop", at("loop")).unwrap();
        let cause = |path: &Path| Errno::from_io_error(&open(path).unwrap_err());
        assert_eq!(cause(&at("loop")), Some(Errno::LOOP));
        assert_eq!(cause(&at("dir/")), Some(Errno::ISDIR));
        assert_eq!(cause(Path::new("/")), Some(Errno::ISDIR));
        assert_eq!(cause(&at("none/log")), Some(Errno::NOENT));
        assert_eq!(cause(Path::new("")), Some(Errno::NOENT));
        // As a shell gives it for `>(command)`.
        let (reader, writer) = io::pipe().unwrap();
        append(Path::new(&format!("/proc/self/fd/{}", writer.as_raw_fd()))).unwrap();
        drop(writer);
        assert_eq!(io::read_to_string(reader).unwrap(), "line\n");
    }

    #[test]
    fn nothing_of_another_user_leads_a_log_astray() {
        const OTHER: Option<u32> = Some(54_321);
        if !geteuid().is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        std::fs::create_dir(at("tmp")).unwrap();
        set_mode(&at("tmp"), 0o1777);
        std::fs::create_dir(at("own")).unwrap();
        std::fs::write(at("own/secret"), "").unwrap();
        symlink("../own/secret", at("tmp/link")).unwrap();
        symlink("../own/new", at("tmp/to-new")).unwrap();
        symlink(at("own"), at("tmp/way")).unwrap();
        for link in ["tmp/link", "tmp/to-new", "tmp/way"] {
            lchown(at(link), OTHER, OTHER).unwrap();
        }
        for path in ["tmp/link", "tmp/to-new", "tmp/way/log"] {
            let told = open(&at(path)).unwrap_err().to_string();
            let link = at(path.trim_end_matches("/log"));
            let why = "is a symbolic link of another user (uid 54321); name the file that";
            assert!(
                told.starts_with(&format!("{} {why}", link.display())),
                "{told}"
            );
        }
        assert_eq!(std::fs::read_dir(at("own")).unwrap().count(), 1);
        assert_eq!(std::fs::read(at("own/secret")).unwrap(), b"");

        std::fs::write(at("tmp/log"), "").unwrap();
        append(&at("tmp/log")).unwrap();
        lchown(at("tmp/log"), OTHER, OTHER).unwrap();
        let told = open(&at("tmp/log")).unwrap_err().to_string();
        assert!(
            told.contains("belongs to another user (uid 54321), in a"),
            "{told}"
        );
        // In a directory of that user, or one that not everybody may write to.
        lchown(at("tmp"), OTHER, OTHER).unwrap();
        append(&at("tmp/log")).unwrap();
        lchown(at("tmp"), Some(0), Some(0)).unwrap();
        set_mode(&at("tmp"), 0o755);
        append(&at("tmp/log")).unwrap();
    }
}
