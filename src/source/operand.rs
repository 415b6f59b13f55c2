//! The lookup of the operands that the user typed: `~`, patterns and trailing slashes, as in scp.
//! It follows links that the user named, except with `--relative`. A path that cannot be copied gets
//! an error, and the others are copied.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::dir::{Confine, Dir, Handles, Outside};
use crate::error::{Error, Kind, Side};
use crate::manifest::{EntryId, Name, Root, file_type};
use crate::pipe::is_closed_stdin;
use crate::selection::{DirectoryRules, Selector};

use super::device::{self, is_device};
use super::found::{DANGLING, special};
use super::operand_path::{PathEnding, last_component, split_ending, with_home};
use super::part::PartOf;
use super::pattern;
use super::pipe_spec::is_pipe;

/// Where operands are looked up.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The base of relative paths: the home directory on a remote host, the working directory on
    /// this one. Empty for the working directory of the process.
    pub base: PathBuf,
    /// `~` and patterns are expanded here; for local operands the user's shell has done that.
    pub remote: bool,
    /// The only directory that may be reached, if access is restricted.
    pub confine: Option<Arc<Confine>>,
    /// `--scp`: a slash at the end only says that a directory is meant, and nothing is copied but
    /// files and directories.
    pub scp: bool,
}

/// One file or directory that the user named or that a pattern matched.
#[derive(Clone, Debug)]
pub struct NamedSource {
    pub path: PathBuf,
    pub name: Name,
    /// The directory's contents are meant, not the directory itself: typed with a trailing slash,
    /// or as `.`, `..` or `/`.
    pub contents: bool,
    /// The status with links followed.
    pub stat: Stat,
    /// The directory in which it was found, if access is restricted to that directory.
    pub confine: Option<Arc<Confine>>,
    /// It is part of another one, with a separate place at the destination.
    pub part: Option<Arc<PartOf>>,
}

impl NamedSource {
    pub fn is_directory(&self) -> bool {
        file_type(&self.stat) == FileType::Directory
    }

    /// True for a FIFO or a character device, which can be read only once.
    pub fn is_pipe(&self) -> bool {
        is_pipe(file_type(&self.stat))
    }

    /// Opens `path`, which is the path of this or of its parent directory.
    pub(super) fn open(&self, path: &Path, handles: &Arc<Handles>) -> io::Result<Arc<Dir>> {
        match &self.confine {
            Some(confine) => confine.directory(path),
            None => Dir::named(path, handles),
        }
    }

    /// A warning to show the user before the copy.
    pub fn warning(&self) -> Option<String> {
        device::warning(&self.path, &self.stat)
    }

    /// The root as sent to the receiver.
    pub fn to_root(&self, id: EntryId, operand: u32) -> Root {
        Root {
            id,
            operand,
            name: self.name.clone(),
            is_directory: self.is_directory(),
            contents: self.contents,
            dev: self.stat.st_dev,
            ino: self.stat.st_ino,
        }
    }
}

/// Looks up `typed`, the path of an operand. Without `recursive`, directories are refused. What
/// `selector` leaves out is neither found nor an error.
pub fn expand(
    typed: &[u8],
    lookup: &Lookup,
    recursive: bool,
    selector: &Selector,
) -> (Vec<NamedSource>, Vec<Error>) {
    let search = OperandSearch {
        lookup,
        recursive,
        selector,
        keeps_links: false,
    };
    expand_by(typed, search)
}

/// The same, but a link without a slash after it is found itself, wherever it leads.
pub(super) fn expand_links(
    typed: &[u8],
    lookup: &Lookup,
    recursive: bool,
) -> (Vec<NamedSource>, Vec<Error>) {
    let search = OperandSearch {
        lookup,
        recursive,
        selector: &Selector::default(),
        keeps_links: true,
    };
    expand_by(typed, search)
}

fn expand_by(typed: &[u8], search: OperandSearch<'_>) -> (Vec<NamedSource>, Vec<Error>) {
    let lookup = search.lookup;
    let path = match &lookup.confine {
        Some(confine) => match confine.names(typed) {
            Ok(_) => with_home(typed, confine.path()),
            Err(outside) => return (Vec::new(), vec![refused(confine, outside, typed)]),
        },
        None if lookup.remote => with_home(typed, &lookup.base),
        None => typed.to_vec(),
    };
    let (stripped, ending) = split_ending(&path);
    let literal = OsStr::from_bytes(stripped);
    if !lookup.remote || !pattern::is_pattern(stripped) {
        let shown = OsStr::from_bytes(&path).as_ref();
        return match examine(literal.as_ref(), shown, ending, search) {
            Ok(named) => (named.into_iter().collect(), Vec::new()),
            Err(error) => (Vec::new(), vec![error]),
        };
    }
    expand_pattern(typed, stripped, ending, search)
}

/// How operands are looked up, and which of them are copied.
#[derive(Clone, Copy)]
struct OperandSearch<'a> {
    lookup: &'a Lookup,
    recursive: bool,
    selector: &'a Selector,
    keeps_links: bool,
}

impl OperandSearch<'_> {
    /// True if the user's rules and bounds do not leave out the entry at `path`.
    fn takes(self, path: &Path, stat: &Stat) -> bool {
        let name = last_component(path.as_os_str().as_bytes());
        self.selector
            .takes(&DirectoryRules::default(), b"", name, stat)
    }
}

fn expand_pattern(
    typed: &[u8],
    stripped: &[u8],
    ending: PathEnding,
    search: OperandSearch<'_>,
) -> (Vec<NamedSource>, Vec<Error>) {
    let lookup = search.lookup;
    let typed: &Path = OsStr::from_bytes(typed).as_ref();
    let place = pattern::PatternRoot {
        base: &lookup.base,
        confine: lookup.confine.as_deref(),
    };
    let matches = pattern::expand(&place, stripped);
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    let mut is_left_out = false;
    for one in &matches.paths {
        if !is_within(&one.path, lookup) {
            continue;
        }
        // A pattern that ends in a slash matches directories only.
        if ending != PathEnding::Name && !is_directory(&one.path, lookup) {
            continue;
        }
        match examine(&one.path, &one.path, ending, search) {
            Ok(None) => is_left_out = true,
            // A pattern must not make the copy wait for a FIFO's writer, nor copy whole disks.
            Ok(Some(named)) if !one.literal && is_special(&named.stat) => {
                let what = special(file_type(&named.stat)).unwrap_or("special");
                let message = format!("is {what}; it is copied only if you name it");
                let error = Error::new(Kind::Entry, Side::Source, message);
                failed.push(error.at(&one.path));
            }
            Ok(Some(named)) => found.push(named),
            Err(error) => failed.push(error),
        }
    }
    if matches.too_many {
        let limit = pattern::MATCHES_MAX;
        let error = Error::new(
            Kind::Usage,
            Side::Source,
            format!("matches too many names ({limit} at most); copy the directory instead"),
        );
        return (Vec::new(), vec![error.at(typed)]);
    }
    if found.is_empty() && failed.is_empty() && !is_left_out {
        failed.push(match matches.unreadable {
            Some((dir, cause)) if is_within(&dir, lookup) => Error::io(
                Kind::Read,
                Side::Source,
                dir,
                "cannot read the directory",
                cause,
            ),
            _ => Error::io(Kind::Read, Side::Source, typed, "", Errno::NOENT),
        });
    }
    (found, failed)
}

/// True if a confined key may know of the path: a pattern may match names beyond a link.
fn is_within(path: &Path, lookup: &Lookup) -> bool {
    let Some(confine) = &lookup.confine else {
        return true;
    };
    let names = confine.names(path.as_os_str().as_bytes());
    let above = names.map(|names| confine.enter(&names[..names.len().saturating_sub(1)]));
    matches!(above, Ok(Ok(_)))
}

fn is_directory(path: &Path, lookup: &Lookup) -> bool {
    let stat = status(&lookup.base.join(path), lookup);
    stat.is_ok_and(|stat| file_type(&stat) == FileType::Directory)
}

pub(super) fn refused(confine: &Confine, outside: Outside, typed: &[u8]) -> Error {
    let message = outside.told(confine.path());
    Error::new(Kind::Usage, Side::Source, message).at(Path::new(OsStr::from_bytes(typed)))
}

/// The status of a path. Links are followed unless access is confined.
pub(super) fn status(full: &Path, lookup: &Lookup) -> io::Result<Stat> {
    let Some(confine) = &lookup.confine else {
        return Ok(rustix::fs::stat(full)?);
    };
    let names = confine.names(full.as_os_str().as_bytes());
    let names = names.map_err(|_| Errno::XDEV)?;
    match names.split_last() {
        Some((name, above)) => confine.enter(above)?.stat(name.as_os_str()),
        None => Ok(rustix::fs::fstat(&*confine.enter(&[])?.handle()?)?),
    }
}

/// Why a confined key may not copy a file, even though it is in the key's directory.
pub(super) fn beyond_a_key(stat: &Stat) -> Option<&'static str> {
    match file_type(stat) {
        FileType::Symlink => {
            Some("is a symbolic link, and this key may not follow links (--confine)")
        }
        _ if is_device(stat) => {
            Some("is a device, and this key may copy only files and directories (--confine)")
        }
        other if is_pipe(other) => {
            Some("is a FIFO, and this key may copy only files and directories (--confine)")
        }
        _ => None,
    }
}

/// Looks at one path. `shown` is the path as the user knows it. None if the user leaves it out.
fn examine(
    path: &Path,
    shown: &Path,
    ending: PathEnding,
    search: OperandSearch<'_>,
) -> Result<Option<NamedSource>, Error> {
    let OperandSearch {
        lookup, recursive, ..
    } = search;
    let full = lookup.base.join(path);
    let fail = |kind, text: &str| Error::new(kind, Side::Source, text).at(shown);
    if is_closed_stdin(&full) {
        return Err(fail(Kind::Read, "standard input is closed"));
    }
    let looked = match search.keeps_links && ending == PathEnding::Name {
        true if lookup.confine.is_none() => rustix::fs::lstat(&full).map_err(io::Error::from),
        _ => status(&full, lookup),
    };
    let stat = looked.map_err(|cause| {
        let is_missing = Errno::from_io_error(&cause) == Some(Errno::NOENT);
        // A confined key follows no links, so a link that leads nowhere is no special case.
        let dangling =
            is_missing && lookup.confine.is_none() && std::fs::symlink_metadata(&full).is_ok();
        let what = if dangling { DANGLING } else { "" };
        Error::io(Kind::Read, Side::Source, shown, what, cause)
    })?;
    let is_directory = file_type(&stat) == FileType::Directory;
    // Contents have no name that a rule could match.
    if ending == PathEnding::Name && !search.takes(&full, &stat) {
        return Ok(None);
    }
    if lookup.confine.is_some()
        && let Some(what) = beyond_a_key(&stat)
    {
        return Err(fail(Kind::Usage, what));
    }
    if let Some(what) = special(file_type(&stat)).filter(|_| lookup.scp) {
        let message = format!("is {what}, and scp copies only files and directories (--scp)");
        return Err(fail(Kind::Entry, &message));
    }
    if let Some(what) = special(file_type(&stat)).filter(|_| !is_special(&stat)) {
        return Err(fail(
            Kind::Entry,
            &format!("is {what}, which cannot be copied"),
        ));
    }
    if is_directory && !recursive {
        return Err(fail(
            Kind::Usage,
            "is a directory (copy directories with -r)",
        ));
    }
    if !is_directory && ending != PathEnding::Name {
        return Err(Error::io(
            Kind::Read,
            Side::Source,
            shown,
            "",
            Errno::NOTDIR,
        ));
    }
    let name = name_of(&full, ending, lookup).map_err(|cause| {
        Error::io(
            Kind::Read,
            Side::Source,
            shown,
            "cannot determine its name",
            cause,
        )
    })?;
    Ok(Some(NamedSource {
        path: full,
        name,
        contents: ending.means_contents(lookup.scp),
        stat,
        confine: lookup.confine.clone(),
        part: None,
    }))
}

/// True for types that are copied only if they are named.
fn is_special(stat: &Stat) -> bool {
    is_pipe(file_type(stat)) || is_device(stat)
}

/// The name that a copy of `full` gets.
fn name_of(full: &Path, ending: PathEnding, lookup: &Lookup) -> io::Result<Name> {
    let confined = lookup.confine.as_deref();
    let bytes = if let (Some(confine), PathEnding::Dots) = (confined, ending) {
        // The path has no `..` and no links, so its last component is the directory's real name.
        let names = confine.names(full.as_os_str().as_bytes());
        let names = names.map_err(|_| Errno::XDEV)?;
        return match names.last() {
            Some(name) => Ok(name.clone()),
            None => Name::try_from(last_component(confine.path().as_os_str().as_bytes()).to_vec())
                .or_else(|_| Name::try_from(b"root".to_vec()))
                .map_err(|_| Errno::NAMETOOLONG.into()),
        };
    } else if ending == PathEnding::Dots {
        let real = full.canonicalize()?;
        // The root of the file system has no name; only its contents are ever copied.
        real.file_name()
            .map_or(b"root".to_vec(), |name| name.as_bytes().to_vec())
    } else {
        last_component(full.as_os_str().as_bytes()).to_vec()
    };
    Name::try_from(bytes).map_err(|_| Errno::NAMETOOLONG.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::operand_path::may_be_named;

    fn fixture() -> (tempfile::TempDir, Lookup) {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        std::fs::create_dir(at("dir")).unwrap();
        std::fs::write(at("dir/in"), b"in").unwrap();
        std::fs::write(at("file"), b"file").unwrap();
        std::fs::write(at("file[1]"), b"").unwrap();
        std::os::unix::fs::symlink("dir", at("dirlink")).unwrap();
        std::os::unix::fs::symlink("file", at("filelink")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), 0o600.into()).unwrap();
        drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
        let base = temp.path().to_owned();
        let lookup = Lookup {
            base,
            remote: true,
            confine: None,
            scp: false,
        };
        (temp, lookup)
    }

    #[test]
    fn what_is_typed_says_what_is_meant() {
        let (temp, lookup) = fixture();
        let own = temp.path().file_name().unwrap().as_bytes();
        // typed, name, (directory, contents)
        type Meant = (bool, bool);
        let table: &[(&[u8], &[u8], Meant)] = &[
            (b"file", b"file", (false, false)),
            (b"filelink", b"filelink", (false, false)),
            (b"file[1]", b"file[1]", (false, false)),
            (b"f[i]le", b"file", (false, false)),
            (b"dir", b"dir", (true, false)),
            (b"dir//", b"dir", (true, true)),
            (b"dirlink", b"dirlink", (true, false)),
            (b"dir/in", b"in", (false, false)),
            (b"d*r/in", b"in", (false, false)),
            (b"di*r/", b"dir", (true, true)),
            (b"dir/.", b"dir", (true, true)),
            (b"dir/..", own, (true, true)),
            (b"", own, (true, true)),
            (b".", own, (true, true)),
            (b"~", own, (true, false)),
            (b"~/", own, (true, true)),
            (b"~/dir", b"dir", (true, false)),
            (b"/", b"root", (true, true)),
            (b"~root", b"root", (true, false)),
        ];
        for (typed, wanted, (directory, contents)) in table {
            let shown = String::from_utf8_lossy(typed);
            let (found, failed) = expand(typed, &lookup, true, &Selector::default());
            assert!(failed.is_empty(), "{shown}: {failed:?}");
            assert_eq!(found.len(), 1, "{shown}");
            assert_eq!(found[0].name.as_bytes(), *wanted, "{shown}");
            assert_eq!(found[0].is_directory(), *directory, "{shown}");
            assert_eq!(found[0].contents, *contents, "{shown}");
            assert!(may_be_named(typed, &found[0].name), "{shown}");
        }
    }

    #[test]
    fn scp_takes_no_content_for_a_slash_and_nothing_but_files_and_directories() {
        let (_temp, lookup) = fixture();
        let lookup = Lookup {
            scp: true,
            ..lookup
        };
        for (typed, contents) in [
            ("dir/", false),
            ("dirlink//", false),
            ("di*/", false),
            (".", true),
            ("dir/..", true),
            ("", true),
        ] {
            let (found, failed) = expand(typed.as_bytes(), &lookup, true, &Selector::default());
            assert!(failed.is_empty() && !found.is_empty(), "{typed}");
            assert!(found.iter().all(|one| one.contents == contents), "{typed}");
        }
        for typed in ["fifo", "/dev/null", "file/"] {
            let (found, failed) = expand(typed.as_bytes(), &lookup, true, &Selector::default());
            assert!(found.is_empty() && failed.len() == 1, "{typed}");
        }
    }

    #[test]
    fn what_cannot_be_copied_is_said_and_does_not_stop_the_rest() {
        let (_temp, lookup) = fixture();
        let table: &[(&[u8], Kind, &str)] = &[
            (
                b"dir",
                Kind::Usage,
                "is a directory (copy directories with -r)",
            ),
            (b"gone", Kind::Read, "no such file or directory"),
            (b"gon*", Kind::Read, "no such file or directory"),
            (b"file/", Kind::Read, "not a directory"),
            (b"file/x", Kind::Read, "not a directory"),
            (
                b"socket",
                Kind::Entry,
                "is a socket, which cannot be copied",
            ),
            (
                b"~no-such-user-here/x",
                Kind::Read,
                "no such file or directory",
            ),
            (
                b"dangling",
                Kind::Read,
                "is a dangling link: no such file or directory",
            ),
        ];
        for (typed, kind, message) in table {
            let (found, failed) = expand(typed, &lookup, false, &Selector::default());
            assert!(found.is_empty());
            assert_eq!(failed.len(), 1);
            assert_eq!(
                (failed[0].kind, failed[0].message.as_str()),
                (*kind, *message)
            );
            assert_eq!(
                failed[0].path.as_deref(),
                Some(OsStr::from_bytes(typed).as_ref())
            );
        }
        let (found, failed) = expand(b"f*", &lookup, false, &Selector::default());
        assert_eq!(found.len(), 3, "file, file[1] and filelink");
        assert_eq!(failed.len(), 1, "the FIFO");
    }

    #[test]
    fn a_local_operand_is_taken_as_it_stands() {
        let (_temp, mut lookup) = fixture();
        lookup.remote = false;
        for typed in [b"f*".as_slice(), b"~", b"", b"a\\ b"] {
            assert!(
                expand(typed, &lookup, true, &Selector::default())
                    .0
                    .is_empty()
            );
        }
        assert_eq!(
            expand(b"file[1]", &lookup, true, &Selector::default())
                .0
                .len(),
            1
        );
    }
}
