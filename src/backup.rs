//! Backups (`--backup`): where the old versions of replaced and deleted files go.

use serde::{Deserialize, Serialize};

use crate::byte_strings;

/// The suffix without `--suffix` and `--backup-dir`, as in rsync.
pub const SUFFIX: &[u8] = b"~";

/// Bytes of the longest name on Linux.
const NAME_MAX: usize = 255;

/// Most bytes of the path of a backup directory.
const PATH_MAX: usize = 4096;

/// The user's wishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupPlace {
    /// `--suffix`: follows the name of the file. Empty only with a directory.
    #[serde(with = "byte_strings")]
    pub suffix: Vec<u8>,
    /// `--backup-dir`, as typed: relative to the destination directory, or absolute. Empty: each
    /// backup is beside its file.
    #[serde(with = "byte_strings")]
    pub directory: Vec<u8>,
}

/// Why a backup cannot have such a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPlace {
    #[error("--suffix: a suffix must not contain a slash")]
    Slash,
    #[error("--suffix: an empty suffix needs --backup-dir")]
    NoSuffix,
    #[error("--suffix: too long for a file name")]
    LongSuffix,
    #[error("--backup-dir: not a path: empty, too long, or with a NUL byte")]
    NoPath,
}

impl BackupPlace {
    /// True if backups are beside their files.
    pub fn is_beside(&self) -> bool {
        self.directory.is_empty()
    }

    /// True for the name of a backup beside its file.
    pub fn is_backup(&self, name: &[u8]) -> bool {
        self.is_beside() && name.len() > self.suffix.len() && name.ends_with(&self.suffix)
    }

    /// # Errors
    /// If no backup can have this place.
    pub fn check(&self) -> Result<(), BadPlace> {
        if self.suffix.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(BadPlace::Slash);
        }
        if self.suffix.is_empty() && self.is_beside() {
            return Err(BadPlace::NoSuffix);
        }
        if self.suffix.len() >= NAME_MAX {
            return Err(BadPlace::LongSuffix);
        }
        if self.directory.contains(&0) || self.directory.len() > PATH_MAX {
            return Err(BadPlace::NoPath);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_a_name_with_something_before_the_suffix() {
        let place = |suffix: &[u8], directory: &[u8]| BackupPlace {
            suffix: suffix.to_vec(),
            directory: directory.to_vec(),
        };
        let beside = place(SUFFIX, b"");
        assert!(beside.is_backup(b"a~") && !beside.is_backup(b"~") && !beside.is_backup(b"a"));
        assert!(!place(SUFFIX, b"old").is_backup(b"a~"));
        for (bad, why) in [
            (place(b"", b""), BadPlace::NoSuffix),
            (place(b"a/b", b"old"), BadPlace::Slash),
            (place(&[b'x'; 255], b""), BadPlace::LongSuffix),
            (place(b"~", b"a\0"), BadPlace::NoPath),
        ] {
            assert_eq!(bad.check(), Err(why));
        }
        assert_eq!(place(b"", b"old").check(), Ok(()));
    }
}
