//! The syntax of an operand's path, before anything is looked up: how it ends, what a leading `~`
//! stands for, and which names a server may answer with.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::pattern;
use crate::dir::home;
use crate::manifest::{Name, Root};

/// The name that the copy of an operand has, if it is written there. None for the contents of a
/// directory.
pub fn name_in_copy(typed: &[u8]) -> Option<&[u8]> {
    let (stripped, ending) = split_ending(typed);
    (!typed.is_empty() && ending == PathEnding::Name).then(|| last_component(stripped))
}

/// True if a server may send an entry called `name` for the operand `typed`. The server expands
/// patterns, so the client compares the names that it sends with what the user typed.
pub fn may_be_named(typed: &[u8], name: &Name) -> bool {
    let (stripped, ending) = split_ending(typed);
    let last = last_component(stripped);
    // `~` and `~user` have the name of that home; nothing, `.` and `..` may have any name.
    let home = stripped.starts_with(b"~") && last.len() == stripped.len();
    typed.is_empty()
        || ending == PathEnding::Dots
        || home
        || pattern::component_matches(last, name.as_bytes())
}

/// True if a server may answer one operand with these roots. Their names must match the operand.
/// Contents, several roots or a directory are allowed only if the operand asks for them.
/// `scp`: a slash at its end does not ask for contents.
pub fn may_answer(typed: &[u8], roots: &[&Root], recursive: bool, scp: bool) -> bool {
    let (stripped, ending) = split_ending(typed);
    let contents = typed.is_empty() || ending.means_contents(scp);
    let several = pattern::is_pattern(stripped);
    let home = stripped.starts_with(b"~") && !stripped.contains(&b'/');
    let may_be = |root: &&Root| {
        may_be_named(typed, &root.name)
            && root.contents == contents
            && (recursive || !root.is_directory)
            // A file has no contents. And where any name is allowed, the server could choose the
            // name of a file that the user did not ask for.
            && (root.is_directory || !(contents || home))
    };
    (several || roots.len() <= 1) && roots.iter().all(may_be)
}

/// How a path ends, which decides whether the directory or its contents are meant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PathEnding {
    Name,
    Slash,
    /// `.`, `..` or only slashes; this is not the real name of the directory.
    Dots,
}

impl PathEnding {
    /// True if a directory with this ending stands for its contents. For `scp`, a slash alone does
    /// not mean that.
    pub(super) fn means_contents(self, scp: bool) -> bool {
        match self {
            PathEnding::Name => false,
            PathEnding::Slash => !scp,
            PathEnding::Dots => true,
        }
    }
}

/// `path` without trailing slashes, and how it ended.
pub(super) fn split_ending(path: &[u8]) -> (&[u8], PathEnding) {
    let len = path
        .iter()
        .rposition(|&byte| byte != b'/')
        .map_or(0, |last| last + 1);
    let stripped = &path[..len];
    let ending = match last_component(stripped) {
        b"" if path.is_empty() => PathEnding::Name,
        b"" => return (&path[..1], PathEnding::Dots),
        b"." | b".." => PathEnding::Dots,
        _ if len < path.len() => PathEnding::Slash,
        _ => PathEnding::Name,
    };
    (stripped, ending)
}

pub(super) fn last_component(stripped: &[u8]) -> &[u8] {
    stripped.rsplit(|&byte| byte == b'/').next().unwrap_or(b"")
}

/// Expands a leading `~` or `~user`; an empty operand means the contents of the home directory.
pub(super) fn with_home(typed: &[u8], base: &Path) -> Vec<u8> {
    if typed.is_empty() {
        return b".".to_vec();
    }
    let Some(after) = typed.strip_prefix(b"~") else {
        return typed.to_vec();
    };
    let user_len = after
        .iter()
        .position(|&byte| byte == b'/')
        .unwrap_or(after.len());
    let (user, rest) = after.split_at(user_len);
    let home = if !user.is_empty() {
        home::of(user)
    } else if base.as_os_str().is_empty() {
        home::own()
    } else {
        Some(base.to_owned())
    };
    match home {
        Some(home) => [home.as_os_str().as_bytes(), rest].concat(),
        None => typed.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_only_answer_with_names_that_were_asked_for() {
        let table: &[(&[u8], &[u8], bool)] = &[
            (b"a/b", b"b", true),
            (b"a/b", b"a", false),
            (b"b/", b"b", true),
            (b"b", b".ssh", false),
            (b"*.txt", b"x.txt", true),
            (b"*.txt", b"x.exe", false),
            (b"d/*", b".bashrc", false),
            (b"x\\ y", b"x y", true),
            (b"x\\ y", b"z", false),
            (b"f[1]", b"f[1]", true),
            (b"f[1]", b"f1", true),
            (b"f[1]", b"f2", false),
            (b"\xff*", b"\xffx", false),
            (b"~", b"anna", true),
            (b"~anna/", b"anna", true),
            (b"~/x", b"y", false),
            (b"..", b"y", true),
            (b"x/.", b"y", true),
            (b"/", b"root", true),
            (b"", b"anna", true),
        ];
        for (typed, answer, may) in table {
            let shown = String::from_utf8_lossy(typed);
            let name = Name::try_from(answer.to_vec()).unwrap();
            assert_eq!(may_be_named(typed, &name), *may, "{shown}");
        }
    }
}
