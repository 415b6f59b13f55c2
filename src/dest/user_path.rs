//! Paths as the user typed them: a leading `~`, symbolic links, and the entry at the end.
//!
//! Such a path may be anything that the system accepts. It may pass through symbolic links, even to
//! a name that does not exist yet. It resolves to a directory's handle and, unless it is a
//! directory, to one name in it. Names from a peer are never resolved here.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, fstatfs, readlinkat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::EntrySlot;
use crate::dir::{Confine, Dir, Handles, Outside, home, is_trusted};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{NAME_MAX, Name, NotAName, file_type};

/// Symbolic links that are followed in a row: as many as the kernel follows.
pub(super) const LINKS_MAX: usize = 40;

/// The entry at the end of a path.
pub(super) enum FoundPath {
    Directory(Arc<Dir>),
    /// Anything else; never a symbolic link.
    Other(EntrySlot, Stat),
    Nothing(EntrySlot),
}

/// Where a path may lead.
#[derive(Clone, Copy)]
pub(super) struct Reach<'a> {
    /// The directory that the path must stay in. None if only the user's permissions count.
    pub confine: Option<&'a Confine>,
    pub handles: &'a Arc<Handles>,
}

impl Reach<'_> {
    /// Resolves `path` to its end. Links are followed unless the path is confined.
    ///
    /// # Errors
    /// `Kind::Write` if the directory that holds the last name does not exist, or if a link of
    /// /proc leads to an open file without a name.
    pub(super) fn find(self, path: &Path) -> Result<FoundPath> {
        self.find_by(path, LinksOf::Anybody)
    }

    /// The same for the path of a name in the destination, where another user may have left a link:
    /// only links of trusted users are followed.
    ///
    /// # Errors
    /// Also `Kind::Refused` for a link of another user.
    pub(super) fn find_inside(self, path: &Path) -> Result<FoundPath> {
        self.find_by(path, LinksOf::Trusted)
    }

    fn find_by(self, path: &Path, links: LinksOf) -> Result<FoundPath> {
        if let Some(confine) = self.confine {
            return find_confined(confine, path);
        }
        let mut path = path.to_owned();
        let mut first: Option<FollowedLink> = None;
        let check = |first: Option<FollowedLink>, end| match first {
            Some(link) => link.check(end),
            None => Ok(()),
        };
        for _ in 0..=LINKS_MAX {
            let Some((above, name)) = split(&path)? else {
                let dir = open(&path, self.handles)?;
                check(first, Some(dir.identity()))?;
                return Ok(FoundPath::Directory(dir));
            };
            let slot = EntrySlot::new(open(&above, self.handles)?, name);
            let Some(stat) = slot.stat()? else {
                check(first, None)?;
                return Ok(FoundPath::Nothing(slot));
            };
            if file_type(&stat) == FileType::Symlink {
                let link = follow(slot, links)?;
                path = above.join(&link.text);
                first = first.or(link.end.is_some().then_some(link));
                continue;
            }
            check(first, Some((stat.st_dev, stat.st_ino)))?;
            return Ok(match file_type(&stat) {
                FileType::Directory => FoundPath::Directory(open(&path, self.handles)?),
                _ => FoundPath::Other(slot, stat),
            });
        }
        let cause = Errno::LOOP;
        Err(Error::io(Kind::Write, Side::Dest, path, "", cause))
    }

    /// The directory at the end of `path`. None if it has no name (`/`, `..`) or is something else.
    pub(super) fn name_of_directory(self, path: &Path) -> Option<EntrySlot> {
        if let Some(confine) = self.confine {
            let names = confine.names(path.as_os_str().as_bytes()).ok()?;
            let (name, above) = names.split_last()?;
            let slot = EntrySlot::new(confine.enter(above).ok()?, name.clone());
            let stat = slot.stat().ok()??;
            return (file_type(&stat) == FileType::Directory).then_some(slot);
        }
        let mut path = path.to_owned();
        for _ in 0..=LINKS_MAX {
            let (above, name) = split(&path).ok()??;
            let slot = EntrySlot::new(open(&above, self.handles).ok()?, name);
            match file_type(&slot.stat().ok()??) {
                FileType::Directory => return Some(slot),
                FileType::Symlink => path = above.join(follow(slot, LinksOf::Anybody).ok()?.text),
                _ => return None,
            }
        }
        None
    }
}

/// Resolves by names alone: a symbolic link is refused, on the way and at the end.
fn find_confined(confine: &Confine, path: &Path) -> Result<FoundPath> {
    let names = confine.names(path.as_os_str().as_bytes());
    let names = names.map_err(|outside| refused(confine, outside, path))?;
    let Some((name, above)) = names.split_last() else {
        let root = confine.enter(&[]);
        return Ok(FoundPath::Directory(
            root.map_err(|cause| cannot_open(path, cause))?,
        ));
    };
    let dir = confine.enter(above);
    let dir = dir.map_err(|cause| cannot_open(path.parent().unwrap_or(path), cause))?;
    let slot = EntrySlot::new(dir.clone(), name.clone());
    let Some(stat) = slot.stat()? else {
        return Ok(FoundPath::Nothing(slot));
    };
    match file_type(&stat) {
        FileType::Directory => {
            let dir = dir.child(name).map_err(|cause| cannot_open(path, cause))?;
            Ok(FoundPath::Directory(dir))
        }
        FileType::Symlink => {
            let message = "is a symbolic link, and this key may not follow links (--confine)";
            Err(Error::new(Kind::Usage, Side::Dest, message).at(path))
        }
        FileType::BlockDevice | FileType::CharacterDevice | FileType::Fifo => {
            let message = "is not a regular file, and this key may copy only files and directories (--confine)";
            Err(Error::new(Kind::Usage, Side::Dest, message).at(path))
        }
        _ => Ok(FoundPath::Other(slot, stat)),
    }
}

pub(super) fn refused(confine: &Confine, outside: Outside, path: &Path) -> Error {
    Error::new(Kind::Usage, Side::Dest, outside.told(confine.path())).at(path)
}

/// A symbolic link that may be followed.
struct FollowedLink {
    slot: EntrySlot,
    text: PathBuf,
    /// For a link of /proc: device and inode of the entry to which the kernel follows it. None if
    /// it leads nowhere.
    end: Option<(u64, u64)>,
}

impl FollowedLink {
    /// Compares the entry to which the text of a link of /proc has led with that of the kernel. They
    /// differ for a link (/dev/fd/3) to an open file that was removed, has never had a name, or
    /// belongs to another mount namespace: its text is no path that leads to the file.
    ///
    /// # Errors
    /// `Kind::Write` if they differ.
    fn check(&self, found: Option<(u64, u64)>) -> Result<()> {
        if self.end.is_none() || self.end == found {
            return Ok(());
        }
        let message = "leads to an open file that has no name here, such as a removed file or a \
                       pipe; copy to - instead, with stdout redirected to it";
        Err(Error::new(Kind::Write, Side::Dest, message).at(self.slot.path()))
    }
}

/// Whose links are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LinksOf {
    /// Anybody's, since the user typed them. But root would write wherever another user likes, so it
    /// follows only links that nobody else could have made.
    Anybody,
    /// Those of this user, of root and of the user who called sudo.
    Trusted,
}

/// Reads the link in `slot`. The kernel is asked first whether it would follow the link: it refuses
/// links that other users made in a directory like /tmp.
///
/// # Errors
/// `Kind::Refused` for a link of another user.
fn follow(slot: EntrySlot, of: LinksOf) -> Result<FollowedLink> {
    const PROC: u64 = 0x9fa0;
    let failed = |cause: io::Error| slot.error("cannot follow the link", cause);
    let dir = slot.dir.handle().map_err(failed)?;
    let name = slot.name.as_os_str();
    // Elsewhere another entry may be found, such as the root of a file system that is mounted now.
    let is_proc = fstatfs(&*dir).is_ok_and(|found| found.f_type as u64 == PROC);
    let end = match statat(&*dir, name, AtFlags::empty()) {
        Ok(end) => Some((end.st_dev, end.st_ino)),
        Err(Errno::NOENT) => None,
        Err(cause) => return Err(failed(cause.into())),
    };
    let (stat, text) = read_link(&slot.dir, &slot.name).map_err(failed)?;
    let (owner, is_root) = (stat.st_uid, geteuid().is_root());
    let is_ours = is_trusted(&stat) || is_root && caller_of_sudo() == Some(owner);
    if (is_root || of == LinksOf::Trusted) && !is_ours {
        let who = match is_root {
            true => "root does not follow",
            false => "fastcp does not follow in the destination",
        };
        return Err(slot.refused(format!(
            "is a symbolic link of another user (uid {owner}), which {who}: give the path that it \
             leads to"
        )));
    }
    Ok(FollowedLink {
        text: OsString::from_vec(text).into(),
        slot,
        end: end.filter(|_| is_proc),
    })
}

/// The status and the text of the symbolic link `name`: those of one link, even if another takes its
/// name.
pub(super) fn read_link(dir: &Arc<Dir>, name: &Name) -> io::Result<(Stat, Vec<u8>)> {
    let link = dir.open(name.as_os_str(), OFlags::PATH, Mode::empty())?;
    let stat = fstat(&link)?;
    Ok((stat, readlinkat(&link, "", Vec::new())?.into_bytes()))
}

/// The user who has become root with sudo, if any.
fn caller_of_sudo() -> Option<u32> {
    std::env::var("SUDO_UID").ok()?.parse().ok()
}

fn open(path: &Path, handles: &Arc<Handles>) -> Result<Arc<Dir>> {
    Dir::filled(path, handles).map_err(|cause| cannot_open(path, cause))
}

fn cannot_open(path: &Path, cause: io::Error) -> Error {
    let shown = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    match Errno::from_io_error(&cause) {
        Some(Errno::NOENT) => missing(shown),
        _ => Error::io(
            Kind::Write,
            Side::Dest,
            shown,
            "cannot open the destination directory",
            cause,
        ),
    }
}

pub(super) fn missing(path: &Path) -> Error {
    Error {
        errno: Errno::NOENT.raw_os_error(),
        ..Error::new(
            Kind::Write,
            Side::Dest,
            "destination directory does not exist (see --mkpath)",
        )
        .at(path)
    }
}

/// The last name of `path` and the path before it, which may be empty. None if the path can only be
/// a directory: `/`, `.`, `..`, or empty. Slashes at the end are ignored.
fn split(path: &Path) -> Result<Option<(PathBuf, Name)>> {
    let bytes = path.as_os_str().as_bytes();
    let bytes = &bytes[..bytes.len() - bytes.iter().rev().take_while(|&&b| b == b'/').count()];
    let (above, last) = match bytes.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&bytes[..slash + 1], &bytes[slash + 1..]),
        None => (&bytes[..0], bytes),
    };
    if matches!(last, b"" | b"." | b"..") {
        return Ok(None);
    }
    let name = Name::try_from(last.to_vec()).map_err(|_| {
        let message = if last.len() > NAME_MAX {
            format!("name too long: {} bytes, at most {NAME_MAX}", last.len())
        } else {
            NotAName.to_string()
        };
        Error::new(Kind::Write, Side::Dest, message).at(path)
    })?;
    Ok(Some((
        PathBuf::from(OsStr::from_bytes(without_last_slash(above))),
        name,
    )))
}

/// For messages: `dir` rather than `dir/`.
fn without_last_slash(path: &[u8]) -> &[u8] {
    match path {
        [rest @ .., b'/'] if !rest.is_empty() => rest,
        _ => path,
    }
}

/// True if `typed` can only mean a directory.
pub(super) fn means_directory(typed: &[u8]) -> bool {
    let last = typed.rsplit(|&byte| byte == b'/').next().unwrap_or(typed);
    matches!(last, b"" | b"." | b"..")
}

/// The path of `typed` below the directory that the key is confined to.
pub(super) fn expand_confined(confine: &Confine, typed: &[u8]) -> Result<PathBuf> {
    let names = confine
        .names(typed)
        .map_err(|outside| refused(confine, outside, Path::new(OsStr::from_bytes(typed))))?;
    Ok(names
        .iter()
        .fold(confine.path().to_owned(), |path, name| path.join(name)))
}

/// Expands `~`, `~/x`, `~user` and `~user/x` as a shell does. Any other path stays unchanged.
pub(super) fn expand_tilde(typed: &[u8]) -> Result<PathBuf> {
    let [b'~', rest @ ..] = typed else {
        return Ok(PathBuf::from(OsStr::from_bytes(typed)));
    };
    let end = rest.iter().position(|&byte| byte == b'/');
    let (user, path) = rest.split_at(end.unwrap_or(rest.len()));
    let home = if user.is_empty() {
        home::own()
    } else {
        home::of(user)
    };
    let Some(home) = home else {
        let who = crate::units::printable(user);
        let message = match user {
            b"" => "the home directory of this user is unknown; give an absolute path".into(),
            _ => format!("there is no user {who}; for a file of that name write ./~{who}"),
        };
        return Err(
            Error::new(Kind::Usage, Side::Dest, message).at(Path::new(OsStr::from_bytes(typed)))
        );
    };
    let mut whole = home.into_os_string();
    whole.push(OsStr::from_bytes(path));
    Ok(whole.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_at_its_last_name() {
        let cases: [(&str, Option<(&str, &str)>); 9] = [
            ("a", Some(("", "a"))),
            ("a/b//", Some(("a", "b"))),
            ("/a", Some(("/", "a"))),
            ("/", None),
            ("", None),
            ("a/.", None),
            ("..", None),
            ("./a", Some((".", "a"))),
            ("a/../b", Some(("a/..", "b"))),
        ];
        for (path, expected) in cases {
            let found = split(Path::new(path)).unwrap();
            let found = found.map(|(above, name)| {
                let name = String::from_utf8(name.into()).unwrap();
                (above.to_str().unwrap().to_owned(), name)
            });
            let expected = expected.map(|(above, name)| (above.to_owned(), name.to_owned()));
            assert_eq!(found, expected, "{path}");
        }
        let long = "x".repeat(NAME_MAX + 1);
        let message = split(Path::new(&long)).unwrap_err().message;
        assert!(message.starts_with("name too long"), "{message}");
        assert!(split(Path::new("a\0b")).is_err());
    }

    #[test]
    fn a_tilde_is_a_home_only_where_a_shell_would_say_so() {
        let home = home::own().unwrap();
        let of = |typed: &str| expand_tilde(typed.as_bytes()).unwrap();
        assert_eq!(of("~"), home);
        assert_eq!(of("~/x/"), home.join("x/"));
        assert_eq!(of("~root/x"), home::of(b"root").unwrap().join("x"));
        assert_eq!(of("a/~"), Path::new("a/~"));
        let unknown = expand_tilde(b"~nobody-of-this-name/x").unwrap_err();
        assert_eq!(unknown.kind, Kind::Usage);
    }
}
