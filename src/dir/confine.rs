//! The one directory that a confined key may reach. Clients name paths below it by names alone: no
//! `..`, no other user's home, and no symbolic link, whoever created it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::{Dir, Handles};
use crate::manifest::{Name, NotAName};

/// The message for a name that [`is_reserved`].
pub const RESERVED: &str = "names that begin with .fastcp- are reserved for fastcp's own files: \
                            this key neither reads nor writes them";

/// True for a name that only fastcp itself gives to files, or that a file system which ignores case
/// may take for such a name. Some of these also ignore invisible characters, and take `ſ` for `s`.
pub fn is_reserved(name: &[u8]) -> bool {
    const BEGINNING: &str = ".FASTCP-";
    let name = String::from_utf8_lossy(name);
    let letters = name.chars().flat_map(char::to_uppercase);
    let letters = letters.filter(char::is_ascii);
    letters.take(BEGINNING.len()).eq(BEGINNING.chars())
}

/// True if a symbolic link with this text may lead out of a directory, when the link is `depth`
/// levels below it. A `..` after a name counts as leading out, because the name may be, or become,
/// another link. So no chain of links leads out if every link passes.
pub fn may_leave(text: &[u8], depth: usize) -> bool {
    let mut parts = text.split(|&byte| byte == b'/').peekable();
    if text.first() == Some(&b'/') {
        return true;
    }
    let mut up = 0;
    while let Some(&part) = parts.peek() {
        match part {
            b".." => up += 1,
            b"" | b"." => {}
            _ => break,
        }
        parts.next();
    }
    up > depth || parts.any(|part| part == b"..")
}

pub struct Confine {
    root: Arc<Dir>,
    path: PathBuf,
}

impl std::fmt::Debug for Confine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Confine").field(&self.path).finish()
    }
}

/// Why a path does not lead to anything below the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// It leads to a different place.
    Elsewhere,
    /// It contains a `..`.
    Above,
    /// It is not a valid file name.
    NoName,
    /// The name is reserved for partial files.
    Reserved,
}

impl Confine {
    /// Links in `path` are followed, because the administrator who wrote the key's rule chose it.
    pub fn new(path: &Path, handles: &Arc<Handles>) -> io::Result<Confine> {
        Ok(Confine {
            root: Dir::root(path, handles)?,
            path: path.to_owned(),
        })
    }

    /// The path as the key's rule has it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names from the directory down to the path `typed`. Relative paths and `~` start at the
    /// directory; an absolute path must begin with the directory's own.
    pub fn names(&self, typed: &[u8]) -> Result<Vec<Name>, Outside> {
        let below = match typed {
            b"~" => b"",
            [b'~', b'/', rest @ ..] => rest,
            [b'~', ..] => return Err(Outside::Elsewhere),
            [b'/', ..] => {
                let below = Path::new(OsStr::from_bytes(typed)).strip_prefix(&self.path);
                below
                    .map_err(|_| Outside::Elsewhere)?
                    .as_os_str()
                    .as_bytes()
            }
            _ => typed,
        };
        below
            .split(|&byte| byte == b'/')
            .filter(|&name| !matches!(name, b"" | b"."))
            .map(|name| match name {
                b".." => Err(Outside::Above),
                _ if is_reserved(name) => Err(Outside::Reserved),
                _ => Name::try_from(name.to_vec()).map_err(|_| Outside::NoName),
            })
            .collect()
    }

    /// Opens the directory at the end of `names`.
    ///
    /// # Errors
    /// ELOOP or ENOTDIR if one of them is a link or anything but a directory.
    pub fn enter(&self, names: &[Name]) -> io::Result<Arc<Dir>> {
        let mut dir = self.root.clone();
        for name in names {
            dir = dir.child(name)?;
        }
        Ok(dir)
    }

    /// Calls [`names`](Self::names) and [`enter`](Self::enter).
    pub fn directory(&self, typed: &Path) -> io::Result<Arc<Dir>> {
        let names = self.names(typed.as_os_str().as_bytes());
        self.enter(&names.map_err(|_| Errno::XDEV)?)
    }
}

impl Outside {
    /// The end of a sentence for the user; `path` is the directory's.
    pub fn told(self, path: &Path) -> String {
        let path = crate::units::printable(path.as_os_str().as_bytes());
        match self {
            Outside::Elsewhere => format!("this key reaches only {path} there"),
            Outside::Above => {
                format!("this key reaches only {path} there; a path with .. is refused")
            }
            Outside::NoName => NotAName.to_string(),
            Outside::Reserved => RESERVED.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a file system that ignores case, each of these names leads to the same files.
    #[test]
    fn a_name_is_reserved_in_every_spelling() {
        for name in [
            ".fastcp-",
            ".fastcp-snapshots",
            ".FASTCP-snapshots",
            ".Fastcp-x.part",
            ".fa\u{17f}tcp-x.part",
            ".fa\u{fb06}cp-x.part",
            ".fast\u{200d}cp-x.part",
        ] {
            assert!(is_reserved(name.as_bytes()), "{name}");
        }
        for name in [".fastcp", "fastcp-x", "x.fastcp-x", ".f\u{e4}stcp-x", ""] {
            assert!(!is_reserved(name.as_bytes()), "{name}");
        }
        assert!(is_reserved(b".fastcp-\xff") && !is_reserved(b"\xff.fast"));
    }

    #[test]
    fn a_link_stays_inside_by_its_own_text_whatever_other_links_are() {
        for (text, depth) in [
            ("a", 0),
            ("a/b/./c", 0),
            ("..", 1),
            (".././../a", 2),
            ("./a//b", 0),
            ("a..b/..c", 0),
        ] {
            assert!(!may_leave(text.as_bytes(), depth), "{text}");
        }
        for (text, depth) in [
            ("/", 9),
            ("/etc/passwd", 9),
            ("..", 0),
            ("../../a", 1),
            ("a/..", 9),
            ("../a/../b", 9),
            (".//../..", 1),
        ] {
            assert!(may_leave(text.as_bytes(), depth), "{text}");
        }
    }

    #[test]
    fn every_way_that_is_typed_begins_in_the_directory_and_goes_down() {
        let temp = tempfile::tempdir().unwrap();
        let confine = Confine::new(temp.path(), &Arc::default()).unwrap();
        let names = |typed: &str| {
            let names = confine.names(typed.as_bytes())?;
            let names = names.iter().map(|name| name.as_bytes().to_vec());
            Ok(String::from_utf8(names.collect::<Vec<_>>().join(&b'/')).unwrap())
        };
        let own = temp.path().display().to_string();
        for (typed, meant) in [
            ("", ""),
            (".", ""),
            ("~", ""),
            ("~/a", "a"),
            ("a//./b/", "a/b"),
            (own.as_str(), ""),
            (&format!("{own}/a"), "a"),
        ] {
            assert_eq!(names(typed), Ok(meant.to_owned()), "{typed}");
        }
        let elsewhere = [
            "/",
            "/etc/passwd",
            "~root",
            "~root/x",
            &format!("{own}x"),
            &format!("{own}x/a"),
        ];
        for typed in elsewhere {
            assert_eq!(names(typed), Err(Outside::Elsewhere), "{typed}");
        }
        for typed in ["..", "a/../b", "~/..", &format!("{own}/..")] {
            assert_eq!(names(typed), Err(Outside::Above), "{typed}");
        }
        assert_eq!(names("a\0b"), Err(Outside::NoName));
    }

    #[test]
    fn no_link_is_followed_not_even_one_that_stays_inside() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("real/in")).unwrap();
        for (name, target) in [("inside", "real"), ("outside", "/etc")] {
            std::os::unix::fs::symlink(target, temp.path().join(name)).unwrap();
        }
        let confine = Confine::new(temp.path(), &Arc::default()).unwrap();
        assert!(confine.directory(Path::new("real/in")).is_ok());
        for typed in [
            "inside",
            "inside/in",
            "outside",
            "outside/ssh",
            "real/../..",
        ] {
            assert!(confine.directory(Path::new(typed)).is_err(), "{typed}");
        }
    }
}
