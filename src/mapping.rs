//! Parts of a source that go to separate places at the destination (`--map FROM=TO`).

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::manifest::Name;
use crate::units::printable;

/// Most mappings of one copy. Each takes a root, and a few open directories.
pub const MAPS_MAX: usize = 64;

/// Most bytes of FROM and of TO, as in a path of the system.
const PATH_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// The part: names below SOURCE, with a slash between them.
    #[serde(with = "byte_strings")]
    pub from: Vec<u8>,
    /// Its place at the destination, as typed. A sender is not told.
    #[serde(with = "byte_strings")]
    pub to: Vec<u8>,
}

impl Mapping {
    /// The names from SOURCE down to the part. None if one is impossible, such as `..`.
    pub fn names(&self) -> Option<Vec<Name>> {
        let names = self.from.split(|byte| *byte == b'/');
        names
            .map(|name| Name::try_from(name.to_vec()).ok())
            .collect()
    }

    /// As a sender gets it.
    pub fn without_place(&self) -> Mapping {
        Mapping {
            from: self.from.clone(),
            to: Vec::new(),
        }
    }
}

/// Checks mappings, at both ends. `has_places`: a receiver must know where each part goes.
///
/// # Errors
/// The sentence for the user.
pub fn check(maps: &[Mapping], has_places: bool) -> Result<(), String> {
    if maps.len() > MAPS_MAX {
        return Err(format!("--map can be given at most {MAPS_MAX} times"));
    }
    let is_path = |path: &[u8]| path.len() <= PATH_MAX && !path.contains(&0);
    for map in maps {
        let from = printable(&map.from);
        if !is_path(&map.from) || map.names().is_none() {
            return Err(format!("--map: {from} is not a possible path below SOURCE"));
        }
        if !is_path(&map.to) || has_places && map.to.is_empty() {
            let to = printable(&map.to);
            return Err(format!(
                "--map {from}={to}: the path after = is empty, too long or invalid"
            ));
        }
    }
    for (nth, map) in maps.iter().enumerate() {
        let names = map.names().unwrap_or_default();
        for other in &maps[..nth] {
            let others = other.names().unwrap_or_default();
            let (one, two) = (printable(&other.from), printable(&map.from));
            if names == others {
                return Err(format!("--map: {two} is given twice"));
            }
            if names.starts_with(&others) || others.starts_with(&names) {
                return Err(format!(
                    "--map: one of {one} and {two} contains the other, so they cannot go to two places"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(from: &[&str]) -> Result<(), String> {
        let map = |from: &&str| Mapping {
            from: from.as_bytes().to_vec(),
            to: b"/x".to_vec(),
        };
        check(&from.iter().map(map).collect::<Vec<_>>(), true)
    }

    #[test]
    fn parts_are_apart_and_below_the_source() {
        for from in [&["a"][..], &["a", "ab", "b/a"], &["a/b", "a/c"]] {
            assert_eq!(checked(from), Ok(()), "{from:?}");
        }
        for from in [
            &[""][..],
            &["/a"],
            &["a/"],
            &["a//b"],
            &["../a"],
            &["a/./b"],
            &["a\0b"],
        ] {
            let why = checked(from).unwrap_err();
            assert!(why.contains("not a possible path"), "{from:?}: {why}");
        }
        assert!(checked(&["a", "a"]).unwrap_err().contains("twice"));
        for from in [["a", "a/b"], ["a/b/c", "a"]] {
            let why = checked(&from).unwrap_err();
            assert!(why.contains("contains the other"), "{from:?}: {why}");
        }
        let many = vec!["a"; MAPS_MAX + 1];
        assert!(checked(&many).unwrap_err().contains("at most"));
    }
}
