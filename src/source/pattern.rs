//! File name patterns as a shell reads them (`*`, `?`, `[...]`, `{a,b}`, backslash), one component
//! at a time, expanded here so that no remote shell ever sees what the user typed.
//!
//! A name that begins with a dot is matched only by a pattern that does. A component that is not
//! UTF-8 or does not read as a pattern means itself, and one that exists as it stands does too.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet};

/// Paths that one pattern may stand for: beyond what any argument list holds, and a bound for
/// memory (about 500 bytes each).
pub const MATCHES_MAX: usize = 1_000_000;

/// Bytes of one component that are read as a pattern; a name has at most 255.
const PATTERN_MAX: usize = 1024;

/// One component.
struct Part<'a> {
    typed: &'a [u8],
    meaning: Meaning,
}

enum Meaning {
    /// Backslashes taken out.
    Literal(Vec<u8>),
    Pattern {
        matcher: GlobSet,
        hidden: bool,
    },
}

pub struct Match {
    pub path: PathBuf,
    /// Its last component stands so in the pattern.
    pub literal: bool,
}

/// The paths that a pattern stands for, sorted by their bytes, component by component.
#[derive(Default)]
pub struct Matches {
    pub paths: Vec<Match>,
    /// There were more than [`MATCHES_MAX`].
    pub too_many: bool,
    /// The first directory that could not be listed, which may be why there is no match.
    pub unreadable: Option<(PathBuf, io::Error)>,
}

/// True if `bytes` would read as more than a plain path.
pub fn is_pattern(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| b"*?[{\\".contains(byte))
}

/// True if the component `typed` stands for `name`.
pub fn component_matches(typed: &[u8], name: &[u8]) -> bool {
    typed == name || Part::of(typed).matches(name)
}

/// Expands `typed` relative to `base`; the paths begin as `typed` does, without `base`.
pub fn expand(base: &Path, typed: &[u8]) -> Matches {
    let start = match typed.first() {
        Some(b'/') => PathBuf::from("/"),
        _ => PathBuf::new(),
    };
    let parts: Vec<Part> = typed
        .split(|&byte| byte == b'/')
        .filter(|component| !component.is_empty())
        .map(Part::of)
        .collect();
    let mut matches = Matches::default();
    matches.find(base, start, &parts);
    matches
}

impl Matches {
    fn find(&mut self, base: &Path, mut at: PathBuf, mut parts: &[Part]) {
        while let [part, rest @ ..] = parts {
            let as_typed = at.join(OsStr::from_bytes(part.typed));
            match &part.meaning {
                Meaning::Literal(name) if name == part.typed => at = as_typed,
                Meaning::Literal(name) => {
                    at.push(OsStr::from_bytes(name));
                    if !exists(&base.join(&at)) && exists(&base.join(&as_typed)) {
                        at = as_typed;
                    }
                }
                Meaning::Pattern { .. } => {
                    let before = self.paths.len();
                    self.find_matching(base, &at, part, rest);
                    // As with scp, what no name matches is a name itself.
                    if self.paths.len() > before || !exists(&base.join(&as_typed)) {
                        return;
                    }
                    at = as_typed;
                }
            }
            parts = rest;
        }
        if exists(&base.join(&at)) {
            self.add(at, true);
        }
    }

    fn find_matching(&mut self, base: &Path, at: &Path, part: &Part, rest: &[Part]) {
        let names = match matching_names(&base.join(at), part) {
            Ok(names) => names,
            // What is not a directory, or is gone, holds no match: no fault of its own.
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
                self.find(base, path, rest);
            }
            if self.too_many {
                return;
            }
        }
    }

    fn add(&mut self, path: PathBuf, literal: bool) {
        self.too_many = self.paths.len() == MATCHES_MAX;
        if !self.too_many {
            self.paths.push(Match { path, literal });
        }
    }
}

impl Part<'_> {
    fn of(typed: &[u8]) -> Part<'_> {
        Part {
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
        // A set of one, since `Glob::compile_matcher` panics on what nests too deep.
        match glob.and_then(|glob| GlobSet::new([glob])) {
            Ok(matcher) => Meaning::Pattern {
                matcher,
                hidden: typed.starts_with(b".") || typed.starts_with(b"\\."),
            },
            Err(_) => Meaning::Literal(typed.to_vec()),
        }
    }
}

/// `a\ b` is `a b`; a backslash at the end stands for itself.
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

fn matching_names(dir: &Path, part: &Part) -> io::Result<Vec<Vec<u8>>> {
    let here = dir.as_os_str().is_empty();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(if here { Path::new(".") } else { dir })? {
        let name = entry?.file_name();
        if part.matches(name.as_bytes()) {
            names.push(name.as_bytes().to_vec());
            if names.len() > MATCHES_MAX {
                break;
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
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
        let matches = expand(base, typed).paths.into_iter();
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
}
