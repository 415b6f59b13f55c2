//! The sources of a copy whose files keep their paths: a list of names, and the directories in which
//! the names begin.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::operand::{Lookup, NamedSource, expand, expand_links};
use super::operand_path::with_home;
use crate::dir::{Confine, Dir, Handles};
use crate::error::{Error, Kind, Result, Side};
use crate::file_list::{FileList, ListBuilder, ListForm};
use crate::manifest::{Name, file_type};
use crate::selection::Selector;
use crate::units::printable;

/// Names to copy, and where they are.
#[derive(Clone, Debug)]
pub struct ListedSource {
    pub list: Arc<FileList>,
    /// The directory of each of the list's bases.
    pub bases: Vec<ListBase>,
    /// `-r`: listed directories are copied with all that they have.
    pub recursive: bool,
    /// `--no-implied-dirs`
    pub plain_parents: bool,
}

/// A directory in which names of a list begin.
#[derive(Clone, Debug)]
pub struct ListBase {
    pub path: PathBuf,
    /// The directory in which it is, if access is restricted to that directory.
    pub confine: Option<Arc<Confine>>,
}

impl ListBase {
    pub(super) fn open(&self, handles: &Arc<Handles>) -> io::Result<Arc<Dir>> {
        match &self.confine {
            Some(confine) => confine.directory(&self.path),
            None => Dir::named(&self.path, handles),
        }
    }

    /// A name of the list as the user would write it.
    pub(super) fn path_of(&self, name: &[u8]) -> PathBuf {
        match name.is_empty() {
            true => self.path.clone(),
            false => self.path.join(OsStr::from_bytes(name)),
        }
    }
}

/// The names of `list` below the directory `typed` (`--files-from`). The first value is the
/// directory, whose contents are copied.
///
/// # Errors
/// If there is no such directory.
pub fn find_list(
    typed: &[u8],
    list: &Arc<FileList>,
    lookup: &Lookup,
) -> Result<(NamedSource, Vec<ListBase>)> {
    let (found, mut failed) = expand(typed, lookup, true, &Selector::default());
    if let Some(error) = failed.pop() {
        return Err(error);
    }
    let fail = |text: &str| {
        let shown = Path::new(OsStr::from_bytes(typed));
        Error::new(Kind::Usage, Side::Source, text).at(shown)
    };
    let Ok([source]) = <[NamedSource; 1]>::try_from(found) else {
        return Err(fail(
            "matches several files; --files-from needs one directory",
        ));
    };
    if !source.is_directory() {
        return Err(fail(
            "is not a directory; the names of --files-from are below SOURCE",
        ));
    }
    let base = |prefix: &Vec<u8>| ListBase {
        path: match prefix.is_empty() {
            true => source.path.clone(),
            false => source.path.join(OsStr::from_bytes(prefix)),
        },
        confine: lookup.confine.clone(),
    };
    let bases = list.bases().iter().map(base).collect();
    let source = NamedSource {
        contents: true,
        ..source
    };
    Ok((source, bases))
}

/// Operands whose files keep their paths (`--relative`), while they are looked up.
#[derive(Default)]
pub struct RelativeOperands {
    builder: ListBuilder,
    bases: Vec<PathBuf>,
}

impl RelativeOperands {
    /// Adds the files that an operand names. Returns the errors of those that cannot be copied.
    /// `keeps_links`: a link stays one, unless a slash follows it.
    pub fn add(
        &mut self,
        typed: &[u8],
        lookup: &Lookup,
        (recursive, keeps_links): (bool, bool),
    ) -> Vec<Error> {
        let typed = match (&lookup.confine, lookup.remote) {
            (Some(confine), _) => with_home(typed, confine.path()),
            (None, true) => with_home(typed, &lookup.base),
            (None, false) => typed.to_vec(),
        };
        let (found, mut failed) = match keeps_links {
            true => expand_links(&typed, lookup, recursive),
            false => expand(&typed, lookup, recursive, &Selector::default()),
        };
        for source in found {
            if let Err(error) = self.add_found(&typed, &source, lookup) {
                failed.push(error);
            }
        }
        failed
    }

    /// A match has as many components as the pattern, so that the place of `/./` is the same.
    fn add_found(&mut self, typed: &[u8], source: &NamedSource, lookup: &Lookup) -> Result<()> {
        let fail = |text: &str| {
            let shown = Path::new(OsStr::from_bytes(typed));
            Error::new(Kind::Usage, Side::Source, text).at(shown)
        };
        let path = source.path.as_os_str().as_bytes();
        let count = |path: &[u8]| path.split(|b| *b == b'/').filter(|c| !c.is_empty()).count();
        let cut = typed.windows(3).position(|bytes| bytes == b"/./");
        let kept = match cut {
            Some(at) => count(typed).saturating_sub(count(&typed[..at]) + 1),
            None => count(typed),
        };
        let (base, names) = split_last(path, kept);
        let names = names.split(|byte| *byte == b'/');
        let names: Vec<&[u8]> = names.filter(|name| !matches!(*name, b"" | b".")).collect();
        if names.contains(&&b".."[..]) {
            return Err(fail(
                "has .. in the path that --relative keeps: mark the start of that path with /./, as in \
                 ../a/./b",
            ));
        }
        let mut base = base;
        while let Some(shorter) = base.strip_suffix(b"/.").filter(|base| !base.is_empty()) {
            base = shorter;
        }
        let base = Path::new(OsStr::from_bytes(base));
        if let Some(confine) = &lookup.confine
            && confine.names(base.as_os_str().as_bytes()).is_err()
        {
            let own = printable(confine.path().as_os_str().as_bytes());
            return Err(fail(&format!(
                "this key reaches only {own} there: mark the start of the path that --relative keeps \
                 with /./, as in {own}/./a"
            )));
        }
        let known = self.bases.iter().position(|known| known == base);
        let number = known.unwrap_or_else(|| {
            self.bases.push(base.to_owned());
            self.bases.len() - 1
        });
        // The builder already has a base for the first one.
        let key = match number {
            0 => Vec::new(),
            number => number.to_le_bytes().to_vec(),
        };
        let number = self.builder.base(key).map_err(|why| fail(&why))?;
        let contents = source.contents;
        let added = self.builder.add_below(number, &names, contents);
        added.map_err(|why| fail(&why))
    }

    /// The list of all files, and a directory of which they are the contents. None if there are none.
    ///
    /// # Errors
    /// If that directory cannot be looked at.
    pub fn finish(self, lookup: &Lookup) -> Result<Option<(NamedSource, ListedOperands)>> {
        let Some(first) = self.bases.first() else {
            return Ok(None);
        };
        let base = |path: &PathBuf| ListBase {
            path: path.clone(),
            confine: lookup.confine.clone(),
        };
        let bases: Vec<ListBase> = self.bases.iter().map(base).collect();
        let opened = bases[0].open(&Arc::default());
        let stat = opened.and_then(|dir| Ok(rustix::fs::fstat(&*dir.handle()?)?));
        let stat =
            stat.map_err(|cause| Error::io(Kind::Read, Side::Source, first, "cannot open", cause))?;
        let name = first.file_name().map(|name| name.as_bytes().to_vec());
        let name = name.and_then(|name| Name::try_from(name).ok());
        let usual = || Name::try_from(b"root".to_vec()).ok();
        let Some(name) = name.or_else(usual) else {
            return Ok(None);
        };
        let source = NamedSource {
            path: first.clone(),
            name,
            contents: true,
            stat,
            confine: lookup.confine.clone(),
            part: None,
        };
        let list = Arc::new(self.builder.finish());
        Ok(Some((source, ListedOperands { list, bases })))
    }
}

/// Operands whose files keep their paths.
pub struct ListedOperands {
    pub list: Arc<FileList>,
    pub bases: Vec<ListBase>,
}

#[cfg(test)]
impl ListedOperands {
    fn all(&self) -> crate::file_list::ListRange {
        self.list.top().all()
    }
}

/// Divides `path` before its last `kept` components.
fn split_last(path: &[u8], kept: usize) -> (&[u8], &[u8]) {
    if kept == 0 {
        return (path, b"");
    }
    let mut left = kept;
    let mut in_name = false;
    for (at, byte) in path.iter().enumerate().rev() {
        match (*byte == b'/', in_name) {
            (false, _) => in_name = true,
            (true, true) => {
                in_name = false;
                left -= 1;
                if left == 0 {
                    let end = path[..at].iter().rposition(|byte| *byte != b'/');
                    let end = end.map_or(1, |last| last + 1);
                    return (&path[..end], &path[at + 1..]);
                }
            }
            (true, false) => {}
        }
    }
    (b"", path)
}

/// Reads a list of files on this host, for a client on another one.
///
/// # Errors
/// If it cannot be read, is too long, or is outside the directory of a confined key.
pub fn read_list(typed: &[u8], form: ListForm, lookup: &Lookup) -> Result<FileList> {
    let shown = Path::new(OsStr::from_bytes(typed));
    let fail = |cause: io::Error| {
        let what = "cannot read the list of files";
        Error::io(Kind::Read, Side::Source, shown, what, cause)
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match &lookup.confine {
        Some(confine) => {
            let names = confine.names(typed).map_err(|outside| {
                let message = outside.told(confine.path());
                Error::new(Kind::Usage, Side::Source, message).at(shown)
            })?;
            let Some((name, above)) = names.split_last() else {
                return Err(fail(Errno::ISDIR.into()));
            };
            let dir = confine.enter(above);
            dir.and_then(|dir| dir.open(name.as_os_str(), flags, Mode::empty()))
        }
        None => {
            let path = with_home(typed, &lookup.base);
            let path = lookup.base.join(OsStr::from_bytes(&path));
            rustix::fs::open(path, flags, Mode::empty()).map_err(Into::into)
        }
    };
    let file = opened.map_err(fail)?;
    let stat = rustix::fs::fstat(&file).map_err(|cause| fail(cause.into()))?;
    // A FIFO must not make the server wait.
    match file_type(&stat) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(fail(Errno::ISDIR.into())),
        _ => return Err(fail(io::Error::other("not a regular file"))),
    }
    let shown = format!("--files-from {}", printable(typed));
    FileList::read(File::from(file), form, &shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_divided_by_the_number_of_its_components() {
        for (path, kept, base, names) in [
            ("a/b/c", 1, "a/b", "c"),
            ("a/b/c", 3, "", "a/b/c"),
            ("/a/b", 2, "/", "a/b"),
            ("/a/b", 1, "/a", "b"),
            ("/a//./b/", 1, "/a//.", "b/"),
            ("/a/.", 0, "/a/.", ""),
            ("a/.", 0, "a/.", ""),
            ("/", 0, "/", ""),
        ] {
            let (found, rest) = split_last(path.as_bytes(), kept);
            let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            assert_eq!(
                (shown(found), shown(rest)),
                (base.into(), names.into()),
                "{path}"
            );
        }
    }

    #[test]
    fn operands_keep_the_path_after_the_mark() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("a/b/c")).unwrap();
        std::fs::write(temp.path().join("a/b/f1"), "").unwrap();
        std::fs::write(temp.path().join("a/b/f2"), "").unwrap();
        let own = temp.path().to_str().unwrap();
        let lookup = Lookup {
            base: temp.path().to_owned(),
            remote: true,
            confine: None,
            scp: false,
        };
        let meant = |typed: &str| {
            let mut operands = RelativeOperands::default();
            let failed = operands.add(typed.as_bytes(), &lookup, (true, true));
            if let Some(error) = failed.first() {
                return error.message.clone();
            }
            let (_, listed) = operands.finish(&lookup).unwrap().unwrap();
            let mut rest = ListedOperands::all(&listed);
            let mut shown = Vec::new();
            while let Some((base, name)) = listed.list.next_name(&mut rest) {
                let base = listed.bases[usize::from(base)].path.display().to_string();
                let base = base.replace(own, "~");
                shown.push(format!("{base}|{}", String::from_utf8_lossy(name)));
            }
            shown.join(" ")
        };
        for (typed, found) in [
            ("a/b/f1", "~|a/b/f1"),
            ("a/./b", "~/a|b"),
            ("a/b/./", "~/a/b|"),
            ("./a/./b/f*", "~/./a|b/f1 ~/./a|b/f2"),
            ("a/*/./f1", "~/a/b|f1"),
            ("~/a/./b/c/", "~/a|b/c"),
            ("", "~|"),
        ] {
            assert_eq!(meant(typed), found, "{typed}");
        }
        let absolute = meant(&format!("{own}/a/b"));
        assert_eq!(absolute, format!("/|{}/a/b", &own[1..]));
        assert!(meant("a/../a/b").contains("mark the start of that path with /./"));
        assert!(meant("a/../a/./b") == "~/a/../a|b");
    }
}
