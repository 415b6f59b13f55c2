//! Earlier copies (`--link-dest`, `--copy-dest`): directories whose unchanged files need not be sent
//! again.

use serde::{Deserialize, Serialize};

use crate::byte_strings;

/// Most earlier directories of one copy, as in rsync.
pub const EARLIER_MAX: usize = 20;

/// Most bytes of the path of one.
const PATH_MAX: usize = 4096;

/// The user's wishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierCopies {
    pub reuse: Reuse,
    /// As typed: relative to the destination directory, or absolute. The first that has a file
    /// counts. At least one, at most [`EARLIER_MAX`].
    pub directories: Vec<EarlierPath>,
}

/// The path of an earlier copy, as typed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierPath(#[serde(with = "byte_strings")] pub Vec<u8>);

/// How an unchanged file of an earlier copy is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reuse {
    /// As a hard link, if all metadata that is kept is equal. Otherwise as a copy.
    Link,
    Copy,
}

/// Why a copy cannot have such earlier copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEarlier {
    #[error("--link-dest, --copy-dest: at most {EARLIER_MAX} directories")]
    TooMany,
    #[error("--link-dest, --copy-dest: not a path: empty, too long, or with a NUL byte")]
    NoPath,
}

impl EarlierCopies {
    /// # Errors
    /// If there are too many, or one is not a path.
    pub fn check(&self) -> Result<(), BadEarlier> {
        if self.directories.is_empty() || self.directories.len() > EARLIER_MAX {
            return Err(BadEarlier::TooMany);
        }
        let is_path = |EarlierPath(path): &EarlierPath| {
            !path.is_empty() && path.len() <= PATH_MAX && !path.contains(&0)
        };
        match self.directories.iter().all(is_path) {
            true => Ok(()),
            false => Err(BadEarlier::NoPath),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_up_to_twenty_earlier_ones() {
        let of = |count: usize, path: &[u8]| EarlierCopies {
            reuse: Reuse::Link,
            directories: vec![EarlierPath(path.to_vec()); count],
        };
        assert_eq!(of(20, b"../old").check(), Ok(()));
        assert_eq!(of(21, b"../old").check(), Err(BadEarlier::TooMany));
        assert_eq!(of(0, b"").check(), Err(BadEarlier::TooMany));
        assert_eq!(of(1, b"").check(), Err(BadEarlier::NoPath));
        assert_eq!(of(1, b"a\0").check(), Err(BadEarlier::NoPath));
    }
}
