//! File name patterns with a shell's syntax (`*`, `?`, `[...]`, `{a,b}`, backslash), one component
//! at a time. They are expanded here so that no remote shell ever sees what the user typed.
//!
//! A pattern matches a name that begins with a dot only if the pattern begins with one too. A
//! component that is not UTF-8 or not a valid pattern stands for itself. So does a pattern that is
//! also the exact name of an existing file.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::dir::Confine;

/// Most paths that one pattern may expand to, as many as one copy takes operands. Each needs about 500
/// bytes of memory.
pub const MATCHES_MAX: usize = 1 << 17;

/// Most bytes of these paths.
const PATH_BYTES_MAX: usize = 16 << 20;

/// Longest component in bytes that is read as a pattern; a name has at most 255.
const PATTERN_MAX: usize = 1024;

/// One component of a path.
struct PatternPart<'a> {
    typed: &'a [u8],
    meaning: Meaning,
}

enum Meaning {
    /// A plain name, with backslashes removed.
    Literal(Vec<u8>),
    Pattern {
        matcher: GlobSet,
        hidden: bool,
    },
}

pub struct Match {
    pub path: PathBuf,
    /// The last component occurs in exactly this form in what the user typed.
    pub literal: bool,
}

/// The paths that a pattern expands to, sorted by their bytes, component by component.
#[derive(Default)]
pub struct Matches {
    pub paths: Vec<Match>,
    /// More than [`MATCHES_MAX`] paths matched, or longer ones than memory should hold.
    pub too_many: bool,
    path_bytes: usize,
    /// The first directory that could not be listed. It may be the reason why nothing matched.
    pub unreadable: Option<(PathBuf, io::Error)>,
}

/// True if `bytes` contains a character with a special meaning in patterns.
pub fn is_pattern(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| b"*?[{\\".contains(byte))
}

/// True if the component `typed` matches `name`.
///
/// ```
/// use fastcp::source::pattern::component_matches;
///
/// assert!(component_matches(b"*.log", b"app.log"));
/// assert!(!component_matches(b"*", b".hidden"));
/// assert!(component_matches(b"a\\*b", b"a*b"));
/// ```
pub fn component_matches(typed: &[u8], name: &[u8]) -> bool {
    typed == name || PatternPart::of(typed).matches(name)
}

/// Where patterns are looked up.
pub struct PatternRoot<'a> {
    /// The directory for relative patterns.
    pub base: &'a Path,
    /// A directory that no match may leave, neither by a `..`, in any spelling, nor by a link.
    pub confine: Option<&'a Confine>,
}

/// Expands `typed`. The paths begin as `typed` does, without the base.
pub fn expand(place: &PatternRoot<'_>, typed: &[u8]) -> Matches {
    let start = match typed.first() {
        Some(b'/') => PathBuf::from("/"),
        _ => PathBuf::new(),
    };
    let parts: Vec<PatternPart> = typed
        .split(|&byte| byte == b'/')
        .filter(|component| !component.is_empty())
        .map(PatternPart::of)
        .collect();
    let mut matches = Matches::default();
    matches.find(place, start, &parts);
    matches
}

impl Matches {
    fn find(&mut self, place: &PatternRoot<'_>, mut at: PathBuf, mut parts: &[PatternPart]) {
        while let [part, rest @ ..] = parts {
            let as_typed = at.join(OsStr::from_bytes(part.typed));
            match &part.meaning {
                Meaning::Literal(name) if name == part.typed => at = as_typed,
                Meaning::Literal(name) => {
                    at.push(OsStr::from_bytes(name));
                    if !place.has(&at) && place.has(&as_typed) {
                        at = as_typed;
                    }
                }
                Meaning::Pattern { .. } => {
                    let before = self.paths.len();
                    self.find_matching(place, &at, part, rest);
                    // As with scp, a pattern that matches nothing is taken as a name.
                    if self.paths.len() > before || !place.has(&as_typed) {
                        return;
                    }
                    at = as_typed;
                }
            }
            parts = rest;
        }
        if place.has(&at) {
            self.add(at, true);
        }
    }

    fn find_matching(
        &mut self,
        place: &PatternRoot<'_>,
        at: &Path,
        part: &PatternPart,
        rest: &[PatternPart],
    ) {
        let names = match place.matching(at, part) {
            Ok(names) => names,
            // A path that is no directory or has vanished contains no match; that is no error.
            Err(cause) if is_absent(&cause) => return,
            Err(cause) => {
                self.unreadable.get_or_insert((at.to_owned(), cause));
                return;
            }
        };
        for name in names {
            let path = at.join(OsStr::from_bytes(&name));
            if rest.is_empty() {
                self.add(path, false);
            } else {
                self.find(place, path, rest);
            }
            if self.too_many {
                return;
            }
        }
    }

    fn add(&mut self, path: PathBuf, literal: bool) {
        self.path_bytes += path.as_os_str().len();
        self.too_many = self.paths.len() == MATCHES_MAX || self.path_bytes > PATH_BYTES_MAX;
        if !self.too_many {
            self.paths.push(Match { path, literal });
        }
    }
}

impl PatternPart<'_> {
    fn of(typed: &[u8]) -> PatternPart<'_> {
        PatternPart {
            typed,
            meaning: Meaning::of(typed),
        }
    }

    fn matches(&self, name: &[u8]) -> bool {
        match &self.meaning {
            Meaning::Literal(literal) => literal == name,
            Meaning::Pattern { matcher, hidden } => {
                (*hidden || !name.starts_with(b".")) && matcher.is_match(OsStr::from_bytes(name))
            }
        }
    }
}

impl Meaning {
    fn of(typed: &[u8]) -> Meaning {
        let text = match std::str::from_utf8(typed) {
            Ok(text) if is_pattern(typed) && typed.len() <= PATTERN_MAX => text,
            _ => return Meaning::Literal(typed.to_vec()),
        };
        if !typed.iter().any(|byte| b"*?[{".contains(byte)) {
            return Meaning::Literal(unescaped(typed));
        }
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .backslash_escape(true)
            .empty_alternates(true)
            .allow_unclosed_class(true)
            .build();
        // A set of one pattern, because `Glob::compile_matcher` panics on too deep nesting.
        match glob.and_then(|glob| GlobSet::new([glob])) {
            Ok(matcher) => Meaning::Pattern {
                matcher,
                hidden: typed.starts_with(b".") || typed.starts_with(b"\\."),
            },
            Err(_) => Meaning::Literal(typed.to_vec()),
        }
    }
}

/// Removes backslashes: `a\ b` becomes `a b`. A backslash at the end stands for itself.
fn unescaped(typed: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(typed.len());
    let mut bytes = typed.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => out.push(bytes.next().copied().unwrap_or(b'\\')),
            other => out.push(other),
        }
    }
    out
}

impl PatternRoot<'_> {
    /// True if something has this path, including a link that leads nowhere.
    fn has(&self, path: &Path) -> bool {
        let Some(confine) = self.confine else {
            return std::fs::symlink_metadata(self.base.join(path)).is_ok();
        };
        let Ok(names) = confine.names(path.as_os_str().as_bytes()) else {
            return false;
        };
        match names.split_last() {
            Some((name, above)) => {
                let dir = confine.enter(above);
                dir.and_then(|dir| dir.stat(name.as_os_str())).is_ok()
            }
            None => true,
        }
    }

    /// The matching names in a directory, sorted.
    fn matching(&self, dir: &Path, part: &PatternPart) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut take = |name: &[u8]| {
            if part.matches(name) {
                names.push(name.to_vec());
            }
            names.len() <= MATCHES_MAX
        };
        match self.confine {
            Some(confine) => list_confined(confine, dir, take)?,
            None => {
                let full = self.base.join(dir);
                let here = full.as_os_str().is_empty();
                for entry in std::fs::read_dir(if here { Path::new(".") } else { &full })? {
                    if !take(entry?.file_name().as_bytes()) {
                        break;
                    }
                }
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// Lists a directory, reached by handle from the confining directory down, until `take` returns
/// false. A directory outside the reach of the key has no names.
fn list_confined(
    confine: &Confine,
    dir: &Path,
    mut take: impl FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    let Ok(names) = confine.names(dir.as_os_str().as_bytes()) else {
        return Ok(());
    };
    let dir = match confine.enter(&names) {
        Ok(dir) => dir,
        // A component is a link.
        Err(cause) if Errno::from_io_error(&cause) == Some(Errno::LOOP) => return Ok(()),
        Err(cause) => return Err(cause),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd = dir.open(".".as_ref(), flags, Mode::empty())?;
    let mut reader = rustix::fs::Dir::new(fd)?;
    while let Some(entry) = reader.read() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && !take(name) {
            break;
        }
    }
    Ok(())
}

fn is_absent(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(names: &[&[u8]]) -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        for name in names {
            let path = temp.path().join(OsStr::from_bytes(name));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"").unwrap();
        }
        temp
    }

    fn expanded(base: &Path, typed: &[u8]) -> Vec<Vec<u8>> {
        let place = PatternRoot {
            base,
            confine: None,
        };
        let matches = expand(&place, typed).paths.into_iter();
        matches
            .map(|one| one.path.as_os_str().as_bytes().to_vec())
            .collect()
    }

    #[test]
    fn patterns_mean_what_a_shell_means() {
        let temp = tree(&[
            b"a1",
            b"a2",
            b"b1",
            b".hidden",
            b"d/x.gz",
            b"d/y.gz",
            b"e/x.gz",
            b"e/.x.gz",
            b"a b",
            b"bra[1]",
            b"bra1",
            b"odd[1]",
            b"star*",
            b"star2",
            b"b\\s",
            b"\xff1",
            b"\xfe1",
            b"new\nline",
        ]);
        let table: &[(&[u8], &[&[u8]])] = &[
            (b"a?", &[b"a1", b"a2"]),
            (b"[ab]1", &[b"a1", b"b1"]),
            (b"[!a]1", &[b"b1", b"\xfe1", b"\xff1"]),
            (b"{b,a}1", &[b"a1", b"b1"]),
            (b"a{1,2}", &[b"a1", b"a2"]),
            (b"*/x.gz", &[b"d/x.gz", b"e/x.gz"]),
            (b"[de]/*.gz", &[b"d/x.gz", b"d/y.gz", b"e/x.gz"]),
            (b"./d//y*", &[b"./d/y.gz"]),
            (b"d/../a1*", &[b"d/../a1"]),
            (b".h*", &[b".hidden"]),
            (b"*hidden", &[]),
            (b"e/.*", &[b"e/.x.gz"]),
            (b"a\\ b", &[b"a b"]),
            (b"a\\*", &[]),
            (b"bra[1]", &[b"bra1"]),
            (b"odd[1]", &[b"odd[1]"]),
            (b"bra\\[1]*", &[b"bra[1]"]),
            (b"star*", &[b"star*", b"star2"]),
            (b"star[*]", &[b"star*"]),
            (b"b\\s", &[b"b\\s"]),
            (b"\xff*", &[]),
            (b"new*", &[b"new\nline"]),
            (b"a1/*", &[]),
            (b"gone/*", &[]),
            (b"{a", &[]),
            (b"[", &[]),
        ];
        for (typed, wanted) in table {
            let found = expanded(temp.path(), typed);
            assert_eq!(found, *wanted, "{}", String::from_utf8_lossy(typed));
        }
    }

    #[test]
    fn a_pattern_that_nests_too_deep_means_itself() {
        let typed = [b"{".repeat(400), b"a*".to_vec(), b"}".repeat(400)].concat();
        assert!(component_matches(&typed, &typed));
        assert!(!component_matches(&typed, b"abc"));
    }

    #[test]
    fn an_absolute_pattern_is_not_sought_below_the_base() {
        let temp = tree(&[b"one"]);
        let typed = [temp.path().as_os_str().as_bytes(), b"/o*"].concat();
        let found = expanded(Path::new("/nowhere"), &typed);
        assert_eq!(found, [temp.path().join("one").as_os_str().as_bytes()]);
    }

    /// Outside the confined directory, a listing may take minutes or trigger a mount.
    #[test]
    fn a_confined_pattern_never_looks_outside_however_it_is_written() {
        let temp = tree(&[b"in/a", b"in/d/b", b"out/secret"]);
        std::os::unix::fs::symlink("../out", temp.path().join("in/link")).unwrap();
        let inside = temp.path().join("in");
        // An old access time, so that reading the directory would change it.
        let out = temp.path().join("out");
        let old = std::fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH);
        std::fs::File::open(&out).unwrap().set_times(old).unwrap();
        let confine = Confine::new(&inside, &std::sync::Arc::default()).unwrap();
        let place = PatternRoot {
            base: &inside,
            confine: Some(&confine),
        };
        let found = |typed: &[u8]| -> Vec<Vec<u8>> {
            let paths = expand(&place, typed).paths.into_iter();
            paths
                .map(|one| one.path.as_os_str().as_bytes().to_vec())
                .collect()
        };
        assert_eq!(found(b"*"), [&b"a"[..], b"d", b"link"]);
        assert_eq!(found(b"*/*"), [b"d/b"]);
        for typed in [
            &b"\\.\\./out/*"[..],
            b"../out/*",
            b"d/\\.\\./\\.\\./out/*",
            b"link/*",
            b"{..,d}/out/*",
            b"l*/s*",
            b"/*/*",
        ] {
            assert_eq!(found(typed), [] as [Vec<u8>; 0]);
        }
        let read = std::fs::metadata(&out).unwrap().accessed().unwrap();
        assert_eq!(read, std::time::UNIX_EPOCH, "it was listed");
    }
}
