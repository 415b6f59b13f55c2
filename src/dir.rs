//! Directories held open by handle. Everything below an operand is opened from its parent's handle,
//! one component at a time. A symbolic link is followed only with `-L`, where the user listed a name
//! below a link that can be trusted, and at DEST/NAME if the user typed a source of that name. So
//! neither a hostile peer nor another user who replaces a directory with a link can redirect a copy.
//!
//! A `Dir` may close its handle and open it again through its parent, because a copy may know more
//! directories than it may hold open. The reopened directory must have the same inode.

pub mod acl;
pub mod attributes;
mod border;
mod confine;
pub mod home;
pub mod open_files;
pub mod own_name;
mod reader;
mod shared_locks;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use acl::Acl;
pub use confine::{Confine, Outside, RESERVED, is_reserved, may_leave};
pub use open_files::open_share;
use parking_lot::Mutex;
pub use reader::{DirReader, ReadName};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, openat, openat2, statat,
    unlinkat,
};
use rustix::io::Errno;
pub use shared_locks::RECENT;

use crate::manifest::{Name, file_type};

/// Directory handles that may be open at once, besides those of roots.
const OPEN_MAX: usize = 256;

/// The deepest directory that is opened, counted from a root. Opening a directory again recurses
/// through its parents, and so does dropping it; both take stack.
pub const DEPTH_MAX: usize = 1024;

/// The directories that hold a handle, oldest first.
#[derive(Default)]
pub struct Handles {
    open: Mutex<VecDeque<Weak<Dir>>>,
}

pub struct Dir {
    origin: DirOrigin,
    /// Number of directories between this one and its root.
    depth: usize,
    dev: u64,
    ino: u64,
    /// Search permission is enough: only known names in it are looked at.
    is_passed: bool,
    handle: Mutex<Option<Arc<OwnedFd>>>,
    handles: Arc<Handles>,
    /// As it was when it was first read.
    default_acl: OnceLock<Option<Acl>>,
}

/// Weighs the directories that a list of files holds: usually files of one directory follow each
/// other.
#[derive(Default)]
pub struct HeldDirs {
    last: Option<Arc<Dir>>,
}

impl HeldDirs {
    /// Approximate bytes of memory of a directory with its name. Zero for that of the last file.
    pub fn weight(&mut self, dir: &Arc<Dir>) -> usize {
        let last = self.last.replace(dir.clone());
        match last.is_some_and(|last| Arc::ptr_eq(&last, dir)) {
            true => 0,
            false => 256,
        }
    }
}

/// How a directory was reached, which is also how it is opened again.
enum DirOrigin {
    /// By its path. It keeps its handle, so the path is for messages only.
    Root(PathBuf),
    /// By its path, which is used again to open it again.
    Named(PathBuf),
    Child(Arc<Dir>, Name),
    /// As a child, through a link that the user wants followed.
    Linked(Arc<Dir>, Name),
}

impl DirOrigin {
    /// Opens the directory for reading, or with [`OFlags::PATH`].
    fn open(&self, access: OFlags) -> io::Result<OwnedFd> {
        match self {
            DirOrigin::Root(_) => {
                unreachable!("a root is not in `handles`, so nobody takes its handle")
            }
            DirOrigin::Named(path) => open_named(path),
            DirOrigin::Child(parent, name) => {
                let flags = access | directory_flags();
                open_beneath(parent.handle()?, name.as_os_str(), flags, Mode::empty())
            }
            DirOrigin::Linked(parent, name) => open_linked(parent.handle()?, name, access),
        }
    }
}

impl Dir {
    /// Opens a directory that the user named. Links in `path` are followed.
    pub fn root(path: &Path, handles: &Arc<Handles>) -> io::Result<Arc<Dir>> {
        let fd = open_path(path, OFlags::RDONLY)?;
        Dir::opened(fd, DirOrigin::Root(path.to_owned()), handles)
    }

    /// Like [`root`](Dir::root), for a directory that gets files: write and search permission are
    /// enough. Without read permission its handle only leads to names in it ([`OFlags::PATH`]).
    pub fn filled(path: &Path, handles: &Arc<Handles>) -> io::Result<Arc<Dir>> {
        Dir::opened(open_named(path)?, DirOrigin::Root(path.to_owned()), handles)
    }

    /// Like [`root`](Dir::root), for one of many directories that are read. Its handle may be
    /// closed in between. A directory with search but no read permission opens too.
    pub fn named(path: &Path, handles: &Arc<Handles>) -> io::Result<Arc<Dir>> {
        let origin = DirOrigin::Named(path.to_owned());
        let dir = Dir::opened(open_named(path)?, origin, handles)?;
        handles.note(&dir);
        Ok(dir)
    }

    fn opened(fd: OwnedFd, origin: DirOrigin, handles: &Arc<Handles>) -> io::Result<Arc<Dir>> {
        let depth = match &origin {
            DirOrigin::Root(_) | DirOrigin::Named(_) => 0,
            DirOrigin::Child(parent, _) | DirOrigin::Linked(parent, _) => parent.depth + 1,
        };
        if depth > DEPTH_MAX {
            return Err(io::Error::other("nested too deeply"));
        }
        let stat = fstat(&fd)?;
        Ok(Arc::new(Dir {
            origin,
            depth,
            dev: stat.st_dev,
            ino: stat.st_ino,
            is_passed: false,
            handle: Mutex::new(Some(Arc::new(fd))),
            handles: handles.clone(),
            default_acl: OnceLock::new(),
        }))
    }

    /// Opens the directory `name` in this one.
    ///
    /// # Errors
    /// ENOTDIR or ELOOP if `name` is a link or anything but a directory.
    pub fn child(self: &Arc<Dir>, name: &Name) -> io::Result<Arc<Dir>> {
        let fd = open_beneath(
            self.handle()?,
            name.as_os_str(),
            directory_flags(),
            Mode::empty(),
        )?;
        let origin = DirOrigin::Child(self.clone(), name.clone());
        let child = Dir::opened(fd, origin, &self.handles)?;
        self.handles.note(&child);
        Ok(child)
    }

    /// Opens the directory that the link `name` in this one leads to, wherever that is. Only for
    /// users who asked for links to be followed.
    pub fn linked(self: &Arc<Dir>, name: &Name) -> io::Result<Arc<Dir>> {
        let fd = open_linked(self.handle()?, name, OFlags::RDONLY)?;
        let origin = DirOrigin::Linked(self.clone(), name.clone());
        let dir = Dir::opened(fd, origin, &self.handles)?;
        self.handles.note(&dir);
        Ok(dir)
    }

    /// Like [`child`](Dir::child), or [`linked`](Dir::linked) if `through_link`, for a directory in
    /// which only known names are looked at: search permission is enough.
    pub fn passed(self: &Arc<Dir>, name: &Name, through_link: bool) -> io::Result<Arc<Dir>> {
        let origin = match through_link {
            true => DirOrigin::Linked(self.clone(), name.clone()),
            false => DirOrigin::Child(self.clone(), name.clone()),
        };
        let fd = match origin.open(OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                origin.open(OFlags::PATH)?
            }
            other => other?,
        };
        let mut dir = Dir::opened(fd, origin, &self.handles)?;
        if let Some(dir) = Arc::get_mut(&mut dir) {
            dir.is_passed = true;
        }
        self.handles.note(&dir);
        Ok(dir)
    }

    /// The open handle. It stays valid while the caller keeps the `Arc`.
    pub fn handle(self: &Arc<Dir>) -> io::Result<Arc<OwnedFd>> {
        if let Some(fd) = self.handle.lock().as_ref() {
            return Ok(fd.clone());
        }
        let fd = match self.origin.open(OFlags::RDONLY) {
            Err(error) if self.is_passed && error.kind() == io::ErrorKind::PermissionDenied => {
                self.origin.open(OFlags::PATH)?
            }
            other => other?,
        };
        let stat = fstat(&fd)?;
        if (stat.st_dev, stat.st_ino) != (self.dev, self.ino) {
            return Err(io::Error::other(
                "the directory was replaced during the copy",
            ));
        }
        let fd = Arc::new(fd);
        *self.handle.lock() = Some(fd.clone());
        self.handles.note(self);
        Ok(fd)
    }

    /// Opens `name` in this directory. O_NOFOLLOW and O_CLOEXEC are added to `flags`.
    pub fn open(self: &Arc<Dir>, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        open_beneath(
            self.handle()?,
            name,
            flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            mode,
        )
    }

    /// Removes the name of a file, unless it is that of another file by now.
    ///
    /// # Errors
    /// Of the file system.
    pub fn remove_name_of(self: &Arc<Dir>, name: &OsStr, file: &File) -> io::Result<()> {
        let (own, there) = (fstat(file)?, self.stat(name)?);
        if (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino) {
            unlinkat(&*self.handle()?, name, AtFlags::empty())?;
        }
        Ok(())
    }

    /// The status of `name` itself; a link is not followed.
    pub fn stat(self: &Arc<Dir>, name: &OsStr) -> io::Result<Stat> {
        Ok(statat(&*self.handle()?, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The status of the entry at the end of `path`, one or more names below this directory. The last
    /// one is not followed if it is a link; those before it are if `follows`.
    pub fn stat_below(self: &Arc<Dir>, path: &[u8], follows: bool) -> io::Result<Stat> {
        if follows {
            let path = OsStr::from_bytes(path);
            return Ok(statat(&*self.handle()?, path, AtFlags::SYMLINK_NOFOLLOW)?);
        }
        let (way, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&[][..], path),
        };
        self.descend(way)?.stat(OsStr::from_bytes(name))
    }

    /// The inode number, which identifies this directory across runs; 0 if the file system may
    /// change it.
    pub fn lasting_number(self: &Arc<Dir>) -> u64 {
        match kind(self) {
            Some(kind) if !NUMBERED_ANEW.contains(&kind) => self.ino,
            _ => 0,
        }
    }

    /// False if closing a file in this directory writes nothing, so that close cannot fail.
    pub fn may_write_at_close(self: &Arc<Dir>) -> bool {
        !kind(self).is_some_and(|kind| QUIET_AT_CLOSE.contains(&kind))
    }

    /// The default ACL that files made in this directory inherit, if there is one.
    pub fn default_acl(self: &Arc<Dir>) -> Option<&Acl> {
        let read = || Acl::of(&*self.handle().ok()?, acl::DEFAULT);
        self.default_acl.get_or_init(read).as_ref()
    }

    /// Number of directories between this one and the one that was opened by its path.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Device and inode.
    pub fn identity(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// Device and inode of this directory and of those above it, up to the root of the file system
    /// tree, or as many as can be looked at.
    pub fn with_those_above(self: &Arc<Dir>, most: usize) -> Vec<(u64, u64)> {
        let mut found = vec![self.identity()];
        let mut next = self.handle().and_then(|fd| open_above(&fd, OFlags::PATH));
        while let Ok(fd) = next {
            let Ok(stat) = fstat(&fd) else { break };
            let identity = (stat.st_dev, stat.st_ino);
            // The root is its own parent.
            if found.last() == Some(&identity) || found.len() >= most {
                break;
            }
            found.push(identity);
            next = open_above(&fd, OFlags::PATH);
        }
        found
    }

    /// The directory that contains this one. Search permission is enough.
    pub fn above(self: &Arc<Dir>) -> io::Result<Arc<Dir>> {
        let below = self.handle()?;
        let fd = match open_above(&below, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                open_above(&below, OFlags::PATH)?
            }
            other => other?,
        };
        Dir::opened(fd, DirOrigin::Root(self.path().join("..")), &self.handles)
    }

    /// The directory this many names above this one; None if it was opened by its path.
    pub fn up(self: &Arc<Dir>, names: usize) -> Option<Arc<Dir>> {
        let mut dir = self;
        for _ in 0..names {
            match &dir.origin {
                DirOrigin::Root(_) | DirOrigin::Named(_) => return None,
                DirOrigin::Child(parent, _) | DirOrigin::Linked(parent, _) => dir = parent,
            }
        }
        Some(dir.clone())
    }

    /// The directory from which this one was reached. For a directory that the user named: itself.
    pub fn top(self: &Arc<Dir>) -> &Arc<Dir> {
        let mut dir = self;
        while let DirOrigin::Child(parent, _) | DirOrigin::Linked(parent, _) = &dir.origin {
            dir = parent;
        }
        dir
    }

    /// [`top`](Dir::top), and the path from there, with `/` between names.
    pub fn below(self: &Arc<Dir>) -> (&Arc<Dir>, Vec<u8>) {
        match &self.origin {
            DirOrigin::Root(_) | DirOrigin::Named(_) => (self, Vec::new()),
            DirOrigin::Child(parent, name) | DirOrigin::Linked(parent, name) => {
                let (top, way) = parent.below();
                (top, extended(way, name))
            }
        }
    }

    /// The nearest directory, this one or one above it, that was not opened as a child, and the path
    /// from there, with `/` between names. [`descend`](Dir::descend) leads back.
    pub fn below_anchor(self: &Arc<Dir>) -> (&Arc<Dir>, Vec<u8>) {
        match &self.origin {
            DirOrigin::Root(_) | DirOrigin::Named(_) | DirOrigin::Linked(..) => (self, Vec::new()),
            DirOrigin::Child(parent, name) => {
                let (anchor, way) = parent.below_anchor();
                (anchor, extended(way, name))
            }
        }
    }

    /// Opens the directory with this path below this one, in which only known names are looked at.
    /// No link is followed.
    pub fn descend(self: &Arc<Dir>, way: &[u8]) -> io::Result<Arc<Dir>> {
        let mut names = way.split(|byte| *byte == b'/').filter(|_| !way.is_empty());
        names.try_fold(self.clone(), |dir, name| {
            let name = Name::try_from(name.to_vec()).map_err(|_| Errno::NAMETOOLONG)?;
            dir.passed(&name, false)
        })
    }

    /// As the user would write it, for messages.
    pub fn path(&self) -> PathBuf {
        match &self.origin {
            DirOrigin::Root(path) | DirOrigin::Named(path) => path.clone(),
            DirOrigin::Child(parent, name) | DirOrigin::Linked(parent, name) => {
                parent.path().join(name)
            }
        }
    }
}

impl Handles {
    fn note(&self, dir: &Arc<Dir>) {
        let evicted = {
            let mut open = self.open.lock();
            open.push_back(Arc::downgrade(dir));
            open.retain(|dir| dir.strong_count() > 0);
            if open.len() > open_share(8, OPEN_MAX) {
                open.pop_front()
            } else {
                None
            }
        };
        if let Some(dir) = evicted.and_then(|dir| dir.upgrade()) {
            *dir.handle.lock() = None;
        }
    }
}

/// File systems that assign inode numbers at run time, by their statfs(2) magic numbers: FAT,
/// exFAT, FUSE, overlayfs, and SMB (because of some servers).
const NUMBERED_ANEW: [u64; 6] = [
    0x4d44,
    0x2011_bab0,
    0x6573_5546,
    0x794c_7630,
    0xff53_4d42,
    0xfe53_4d42,
];

/// File systems that write nothing when a file is closed: ext2 to ext4, XFS, Btrfs, F2FS and tmpfs.
/// Network file systems and FUSE may write at that time.
const QUIET_AT_CLOSE: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// Number of devices whose file system type is remembered.
const DEVICES_MAX: usize = 1024;

/// The directory's file system type, as in [`NUMBERED_ANEW`]; None if it cannot be read.
fn kind(dir: &Arc<Dir>) -> Option<u64> {
    static KNOWN: Mutex<BTreeMap<u64, Option<u64>>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock();
    if let Some(&kind) = known().get(&dir.dev) {
        return kind;
    }
    let found = dir.handle().and_then(|fd| Ok(fstatfs(&*fd)?));
    let kind = found.ok().map(|found| found.f_type as u64);
    let mut known = known();
    if known.len() < DEVICES_MAX {
        known.insert(dir.dev, kind);
    }
    kind
}

/// Time since the file was last written. A time in the future comes from another clock and counts as
/// now.
pub fn age(stat: &Stat, now: SystemTime) -> Duration {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or_default();
    let since = Duration::new(seconds, stat.st_mtime_nsec as u32);
    let written = SystemTime::UNIX_EPOCH.checked_add(since);
    let age = written.and_then(|written| now.duration_since(written).ok());
    age.unwrap_or_default()
}

/// True for a regular file of this user with one name.
pub fn is_ours(stat: &Stat) -> bool {
    file_type(stat) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1
}

/// True for an entry of root or of this user: nobody else could have planted it.
pub fn is_trusted(stat: &Stat) -> bool {
    let owner = stat.st_uid;
    owner == 0 || owner == rustix::process::geteuid().as_raw()
}

/// A path and one more name.
fn extended(mut way: Vec<u8>, name: &Name) -> Vec<u8> {
    if !way.is_empty() {
        way.push(b'/');
    }
    way.extend_from_slice(name.as_bytes());
    way
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn open_path(path: &Path, access: OFlags) -> io::Result<OwnedFd> {
    let here = path.as_os_str().is_empty();
    let path = if here { Path::new(".") } else { path };
    let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn open_above(dir: &OwnedFd, access: OFlags) -> io::Result<OwnedFd> {
    let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(dir, "..", flags, Mode::empty())?)
}

fn open_named(path: &Path) -> io::Result<OwnedFd> {
    match open_path(path, OFlags::RDONLY) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_path(path, OFlags::PATH)
        }
        other => other,
    }
}

fn open_linked(parent: Arc<OwnedFd>, name: &Name, access: OFlags) -> io::Result<OwnedFd> {
    let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(
        parent.as_fd(),
        name.as_os_str(),
        flags,
        Mode::empty(),
    )?)
}

/// Opens one component. Uses openat2 if the kernel has it (5.6) and permits it. Otherwise
/// O_NOFOLLOW on a single component gives the same guarantee.
fn open_beneath(dir: Arc<OwnedFd>, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(dir.as_fd(), name, flags, mode, resolve) {
        Err(Errno::NOSYS | Errno::PERM) => {}
        other => return Ok(other?),
    }
    if name.as_encoded_bytes().contains(&b'/') || name == ".." {
        return Err(Errno::XDEV.into());
    }
    Ok(openat(dir.as_fd(), name, flags | OFlags::NOFOLLOW, mode)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn a_directory_opens_again_after_its_handle_was_let_go() {
        let temp = tempfile::tempdir().unwrap();
        let handles = Arc::new(Handles::default());
        let root = Dir::root(temp.path(), &handles).unwrap();
        let dirs: Vec<_> = (0..OPEN_MAX + 10)
            .map(|n| {
                let name = name(&format!("d{n}"));
                std::fs::create_dir(temp.path().join(&name)).unwrap();
                root.child(&name).unwrap()
            })
            .collect();
        assert!(
            dirs[0].handle.lock().is_none(),
            "the oldest handle was let go"
        );
        dirs[0]
            .open("f".as_ref(), OFlags::WRONLY | OFlags::CREATE, Mode::RUSR)
            .unwrap();
        assert!(temp.path().join("d0/f").exists());
        *dirs[1].handle.lock() = None;
        std::fs::rename(temp.path().join("d1"), temp.path().join("away")).unwrap();
        std::fs::create_dir(temp.path().join("d1")).unwrap();
        assert!(
            dirs[1].handle().is_err(),
            "another inode under the same name is refused"
        );
    }

    #[test]
    fn a_named_and_a_linked_directory_open_again() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", temp.path().join("link")).unwrap();
        let root = Dir::named(temp.path(), &Arc::new(Handles::default())).unwrap();
        let linked = root.linked(&name("link")).unwrap();
        *root.handle.lock() = None;
        *linked.handle.lock() = None;
        linked
            .open("f".as_ref(), OFlags::WRONLY | OFlags::CREATE, Mode::RUSR)
            .unwrap();
        assert!(temp.path().join("real/f").exists());
        assert_eq!(linked.path(), temp.path().join("link"));
    }

    #[test]
    fn a_link_is_not_entered_and_dots_do_not_leave() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", temp.path().join("link")).unwrap();
        let root = Dir::root(temp.path(), &Arc::new(Handles::default())).unwrap();
        assert!(root.child(&name("link")).is_err());
        let up = root.open("../x".as_ref(), OFlags::WRONLY | OFlags::CREATE, Mode::RUSR);
        assert!(up.is_err());
        assert!(
            root.open("link".as_ref(), OFlags::RDONLY, Mode::empty())
                .is_err()
        );
    }
}
