//! The client's check of the paths that it requested with `--relative`. The host of the sources
//! expands `~` and patterns, so the client cannot know these paths exactly.

use super::pattern::{component_matches, is_pattern};
use crate::file_list::{FileList, ListBuilder};
use crate::manifest::Name;

/// Paths with patterns, or below a home directory that is not known here.
#[derive(Clone, Debug, Default)]
pub struct RequestedPaths(Vec<RequestedPath>);

#[derive(Clone, Debug)]
struct RequestedPath {
    names: Vec<Vec<u8>>,
    /// Any directories may come before the first name.
    below_home: bool,
}

/// The paths that these operands keep: those without patterns, and the others.
///
/// # Errors
/// A sentence, if they are too many.
pub fn requested_paths(
    operands: &[Vec<u8>],
    recursive: bool,
) -> Result<(FileList, RequestedPaths), String> {
    let mut literal = ListBuilder::default();
    let mut others = Vec::new();
    for typed in operands {
        let cut = typed.windows(3).position(|bytes| bytes == b"/./");
        let kept = cut.map_or(&typed[..], |at| &typed[at + 3..]);
        let mut names = kept.split(|byte| *byte == b'/').collect::<Vec<_>>();
        let below_home = cut.is_none() && names[0].starts_with(b"~");
        if below_home {
            names.remove(0);
        }
        names.retain(|name| !matches!(*name, b"" | b"."));
        // The other end refuses these.
        if names.contains(&&b".."[..]) || names.is_empty() && !recursive {
            continue;
        }
        match below_home || names.iter().any(|name| is_pattern(name)) {
            true => others.push(RequestedPath {
                names: names.into_iter().map(<[u8]>::to_vec).collect(),
                below_home,
            }),
            false => literal.add_below(0, &names, false)?,
        }
    }
    Ok((literal.finish(), RequestedPaths(others)))
}

impl RequestedPaths {
    /// All paths, each with none of its names.
    pub fn all(&self) -> Box<[(u32, u32)]> {
        (0..self.0.len()).map(|nth| (nth as u32, 0)).collect()
    }

    /// Those of the paths `begun` whose next name is `name`. The second value is true if one of them
    /// ends there.
    pub fn next(&self, begun: &[(u32, u32)], name: &Name) -> (Box<[(u32, u32)]>, bool) {
        let mut is_match = false;
        let mut longer = Vec::new();
        for &(nth, known) in begun {
            let Some(path) = self.0.get(nth as usize) else {
                continue;
            };
            let wanted = path.names.get(known as usize);
            if wanted.is_some_and(|wanted| component_matches(wanted, name.as_bytes())) {
                is_match |= path.names.len() == known as usize + 1;
                longer.push((nth, known + 1));
            }
            if path.below_home && known == 0 {
                // The home directory itself, or a directory above it.
                is_match |= path.names.is_empty();
                longer.push((nth, 0));
            }
        }
        (longer.into(), is_match)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_on_as_it_was_typed() {
        let may = |typed: &str, path: &str| {
            let (list, paths) = requested_paths(&[typed.as_bytes().to_vec()], true).unwrap();
            assert!(list.is_empty());
            let (mut begun, mut is_match) = (paths.all(), false);
            for name in path.split('/') {
                let name = Name::try_from(name.as_bytes().to_vec()).unwrap();
                (begun, is_match) = paths.next(&begun, &name);
            }
            (!begun.is_empty(), is_match)
        };
        for (typed, path, found) in [
            ("a/*/./f*", "f1", (true, true)),
            ("a/*/./f*", "a", (false, false)),
            ("a/*/f1", "a/.ssh", (false, false)),
            ("a/*/f1", "a/b", (true, false)),
            ("/a/b{c,d}/", "a/bd", (true, true)),
            ("~/x", "home/u/x", (true, true)),
            ("~/x", "home/u/y", (true, false)),
            ("~/./x*", "y", (false, false)),
        ] {
            assert_eq!(may(typed, path), found, "{typed} {path}");
        }
    }
}
