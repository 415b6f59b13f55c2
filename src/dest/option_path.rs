//! Paths of directories that an option names (`--backup-dir`, `--link-dest`, `--copy-dest`): relative to
//! the destination directory, or absolute.
//!
//! A user who may write in the destination, or sends a copy into it, may leave a symbolic link
//! there that has the name of such a directory. So the walk follows no link in the destination, and
//! elsewhere only links of root and of this user. It opens each component from the handle of the
//! one before it, so nobody can replace a directory with a link in between.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, mkdirat};
use rustix::io::Errno;

use super::directory::CANNOT_CREATE;
use super::user_path::{FoundPath, LINKS_MAX, read_link, refused};
use super::{EntrySlot, Spec, sync_directory};
use crate::dir::{Confine, DEPTH_MAX, Dir, Handles, is_trusted};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Name, file_type};

/// Most components of a path, with those of the links that it leads through.
const COMPONENTS_MAX: usize = 8 * DEPTH_MAX;

/// The umask removes the permissions that the user does not want to give.
const MODE: u32 = 0o777;

/// The directory in which relative paths begin: that of the destination.
#[derive(Clone)]
pub(super) struct OptionBase {
    start: BaseStart,
    path: PathBuf,
    handles: Arc<Handles>,
}

#[derive(Clone)]
enum BaseStart {
    Confined(Arc<Confine>),
    Directory(Arc<Dir>),
    /// It is not made yet.
    Missing(EntrySlot),
    /// Nor is the directory above it.
    MissingAbove,
}

/// The entry at the end of a path.
pub(super) enum OptionDirectory {
    Directory(Arc<Dir>),
    /// Something else.
    Other,
    Missing,
}

/// The links that may be followed.
enum FollowedLinks {
    /// None, for a confined key.
    None,
    /// Those of trusted users outside the destination, which has this identity if it exists.
    Trusted(Option<(u64, u64)>),
}

/// A path on the way to its end.
struct OptionWalk {
    /// The directories that were entered; the last one is the present one. Never empty.
    entered: Vec<Arc<Dir>>,
    left: VecDeque<Vec<u8>>,
    links: FollowedLinks,
    followed: usize,
    /// Missing directories are made, and are durable.
    makes: bool,
    has_made: bool,
    handles: Arc<Handles>,
}

impl OptionBase {
    /// `is_directory`: the first root is one. Otherwise the destination may be the name of a file, and
    /// paths begin in the directory of that file.
    ///
    /// # Errors
    /// If the key may not reach the destination.
    pub(super) fn of(
        spec: &Spec,
        is_directory: bool,
        handles: &Arc<Handles>,
    ) -> Result<OptionBase> {
        let typed = spec.expanded()?;
        let (path, start) = match spec.reach(handles).find(&typed) {
            Ok(FoundPath::Directory(dir)) => (typed, BaseStart::Directory(dir)),
            Ok(FoundPath::Nothing(slot)) if is_directory => (typed, BaseStart::Missing(slot)),
            Ok(FoundPath::Nothing(slot) | FoundPath::Other(slot, _)) => {
                (slot.dir.path(), BaseStart::Directory(slot.dir))
            }
            Err(_) => (typed, BaseStart::MissingAbove),
        };
        let confined = |confine: &Arc<Confine>| BaseStart::Confined(confine.clone());
        Ok(OptionBase {
            start: spec.confine.as_ref().map_or(start, confined),
            path,
            handles: handles.clone(),
        })
    }

    /// `typed`, as the user would write it from elsewhere.
    pub(super) fn path_of(&self, typed: &[u8]) -> PathBuf {
        let typed = Path::new(OsStr::from_bytes(typed));
        match &self.start {
            BaseStart::Directory(_) => self.path.join(typed),
            _ => joined(&self.path, typed),
        }
    }

    /// True if `dir` is the directory in which relative paths begin.
    pub(super) fn is(&self, dir: &Arc<Dir>) -> bool {
        let is_it = |base: &Arc<Dir>| base.identity() == dir.identity();
        match &self.start {
            BaseStart::Directory(base) => is_it(base),
            BaseStart::Confined(confine) => {
                confine.directory(&self.path).is_ok_and(|dir| is_it(&dir))
            }
            BaseStart::Missing(_) | BaseStart::MissingAbove => false,
        }
    }

    /// The entry at the end of `typed`.
    ///
    /// # Errors
    /// `Kind::Refused` if the path leads through a link that is not followed; `Kind::Usage` if it leads
    /// out of the directory of a confined key.
    pub(super) fn find(&self, typed: &[u8]) -> Result<OptionDirectory> {
        let mut walk = self.walk(typed, false)?;
        walk.go_to_end()
    }

    /// Makes the directory `typed`, and those above it that are missing. Their names are durable. None
    /// if it exists.
    ///
    /// # Errors
    /// As [`find`](Self::find), and if one cannot be made.
    pub(super) fn make(&self, typed: &[u8]) -> Result<Option<Arc<Dir>>> {
        let mut walk = self.walk(typed, true)?;
        match walk.go_to_end()? {
            OptionDirectory::Directory(dir) if walk.has_made => Ok(Some(dir)),
            _ => Ok(None),
        }
    }

    fn walk(&self, typed: &[u8], makes: bool) -> Result<OptionWalk> {
        let by_names = |base: &Path| joined(base, Path::new(OsStr::from_bytes(typed)));
        let (start, path, links) = match &self.start {
            BaseStart::Confined(confine) => {
                let path = by_names(&self.path);
                let names = confine.names(path.as_os_str().as_bytes());
                let names = names.map_err(|outside| refused(confine, outside, &path))?;
                let names: PathBuf = names.iter().map(|name| name.as_os_str()).collect();
                let root = confine.enter(&[]);
                let root = root.map_err(|cause| cannot_open(confine.path(), cause))?;
                (root, names, FollowedLinks::None)
            }
            BaseStart::Directory(dir) => {
                let path = PathBuf::from(OsStr::from_bytes(typed));
                (
                    dir.clone(),
                    path,
                    FollowedLinks::Trusted(Some(dir.identity())),
                )
            }
            // This copy may have made it.
            BaseStart::Missing(slot) => match slot.dir.child(&slot.name) {
                Ok(dir) => {
                    let path = PathBuf::from(OsStr::from_bytes(typed));
                    let links = FollowedLinks::Trusted(Some(dir.identity()));
                    (dir, path, links)
                }
                Err(_) => {
                    let path = by_names(Path::new(slot.name.as_os_str()));
                    (slot.dir.clone(), path, FollowedLinks::Trusted(None))
                }
            },
            BaseStart::MissingAbove => (
                open("", &self.handles)?,
                by_names(&self.path),
                FollowedLinks::Trusted(None),
            ),
        };
        let start = match path.is_absolute() {
            true => open("/", &self.handles)?,
            false => start,
        };
        Ok(OptionWalk {
            entered: vec![start],
            left: parts(path.as_os_str().as_bytes()).collect(),
            links,
            followed: 0,
            makes,
            has_made: false,
            handles: self.handles.clone(),
        })
    }
}

impl OptionWalk {
    fn go_to_end(&mut self) -> Result<OptionDirectory> {
        for _ in 0..COMPONENTS_MAX {
            let here = self.here();
            let Some(part) = self.left.pop_front() else {
                return Ok(OptionDirectory::Directory(here));
            };
            if part == b".." {
                self.go_up(&here)?;
                continue;
            }
            let name = Name::try_from(part).map_err(|_| {
                let cause = Errno::NAMETOOLONG;
                cannot_open(&here.path(), cause.into())
            })?;
            if let Some(end) = self.enter(&here, name)? {
                return Ok(end);
            }
        }
        Err(cannot_open(&self.here().path(), Errno::LOOP.into()))
    }

    fn here(&self) -> Arc<Dir> {
        self.entered[self.entered.len() - 1].clone()
    }

    /// Goes back to the directory from which the walk entered `here`, even if `here` was moved
    /// since.
    fn go_up(&mut self, here: &Arc<Dir>) -> Result<()> {
        self.entered.pop();
        if self.entered.is_empty() {
            let above = here.above();
            let above = above.map_err(|cause| cannot_open(&here.path().join(".."), cause))?;
            self.entered.push(above);
        }
        Ok(())
    }

    /// Enters the directory `name`, or follows a link. Returns the result if the path ends early.
    fn enter(&mut self, here: &Arc<Dir>, name: Name) -> Result<Option<OptionDirectory>> {
        // Only known names are looked at in the directories before the last one.
        let opened = match self.left.is_empty() {
            true => here.child(&name),
            false => here.passed(&name, false),
        };
        let path = here.path().join(&name);
        let cause = match opened {
            Ok(dir) => {
                self.entered.push(dir);
                return Ok(None);
            }
            Err(cause) => cause,
        };
        match here.stat(name.as_os_str()).map(|stat| file_type(&stat)) {
            Ok(FileType::Symlink) => self.follow(here, &name, &path).map(|()| None),
            Ok(FileType::Directory) => Err(cannot_open(&path, cause)),
            Ok(_) => Ok(Some(OptionDirectory::Other)),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => match self.makes {
                true => self.make(here, name, &path).map(|()| None),
                false => Ok(Some(OptionDirectory::Missing)),
            },
            Err(cause) => Err(cannot_open(&path, cause)),
        }
    }

    /// Makes the directory `name`, which is then entered.
    fn make(&mut self, here: &Arc<Dir>, name: Name, path: &Path) -> Result<()> {
        let made = here.handle().and_then(|dir| {
            match mkdirat(&*dir, name.as_os_str(), Mode::from_raw_mode(MODE)) {
                Ok(()) => Ok(true),
                // Another process was faster.
                Err(Errno::EXIST) => Ok(false),
                Err(cause) => Err(cause.into()),
            }
        });
        let made =
            made.map_err(|cause| Error::io(Kind::Write, Side::Dest, path, CANNOT_CREATE, cause))?;
        if made {
            sync_directory(here)?;
        }
        self.has_made |= made && self.left.is_empty();
        self.left.push_front(name.into());
        Ok(())
    }

    fn follow(&mut self, here: &Arc<Dir>, name: &Name, path: &Path) -> Result<()> {
        let refused = |message: &str| {
            let error = Error::new(Kind::Refused, Side::Dest, message);
            Err(error.at(path))
        };
        let FollowedLinks::Trusted(destination) = self.links else {
            return refused("is a symbolic link, and this key may not follow links (--confine)");
        };
        let is_destination = |dir: &Arc<Dir>| Some(dir.identity()) == destination;
        if self.entered.iter().any(is_destination) {
            return refused(IN_DESTINATION);
        }
        self.followed += 1;
        if self.followed > LINKS_MAX {
            return Err(cannot_open(path, Errno::LOOP.into()));
        }
        let (stat, text) = read_link(here, name).map_err(|cause| cannot_open(path, cause))?;
        if !is_trusted(&stat) {
            let owner = stat.st_uid;
            return refused(&format!(
                "is a symbolic link of another user (uid {owner}), {GIVE_IT}"
            ));
        }
        if text.first() == Some(&b'/') {
            self.entered = vec![open("/", &self.handles)?];
        }
        for part in parts(&text).rev() {
            self.left.push_front(part);
        }
        Ok(())
    }
}

/// The components of a path that lead anywhere.
fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/');
    let parts = parts.filter(|part| !matches!(*part, b"" | b"."));
    parts.map(<[u8]>::to_vec)
}

/// The path `typed` from `base` on. `..` removes a name, because `base` does not exist or no link in it
/// is followed.
fn joined(base: &Path, typed: &Path) -> PathBuf {
    if typed.is_absolute() {
        return typed.to_owned();
    }
    let mut path = base.to_owned();
    for part in typed.components() {
        match part {
            Component::ParentDir if path.file_name().is_some() => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

fn open(path: &str, handles: &Arc<Handles>) -> Result<Arc<Dir>> {
    let path = Path::new(path);
    Dir::root(path, handles).map_err(|cause| cannot_open(path, cause))
}

fn cannot_open(path: &Path, cause: io::Error) -> Error {
    let what = "cannot open this directory (of --link-dest, --copy-dest or --backup-dir)";
    Error::io(Kind::Write, Side::Dest, path, what, cause)
}

/// The end of a message about a link.
const GIVE_IT: &str = "which is not followed: give the path of the directory that it leads to";

const IN_DESTINATION: &str = "is a symbolic link in the destination, where a copy or another user may \
                              have left it, so it is not followed: give the path of the directory \
                              that it leads to";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_from_a_missing_directory_is_one_of_names() {
        let of = |base: &str, typed: &str| joined(Path::new(base), Path::new(typed));
        assert_eq!(of("/a/new", "../old"), Path::new("/a/old"));
        assert_eq!(of("/a/new", "./old"), Path::new("/a/new/old"));
        assert_eq!(of("/a/new", "/x/old"), Path::new("/x/old"));
        assert_eq!(of("new", "../../old"), Path::new("../old"));
    }
}
