//! A message about a snapshot (`--snapshot`).

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::limited_list;

use super::OWN_NAMES_MAX;

/// The receiver has made a complete snapshot. Sent again when old ones are removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReport {
    #[serde(with = "byte_strings")]
    pub name: Vec<u8>,
    /// Entries that are hard links to those of the last snapshot.
    pub linked: u64,
    /// Unchanged files that were copied there, because the file system allows no more links.
    pub copied: u64,
    /// Names of removed snapshots (`--keep`).
    #[serde(deserialize_with = "limited_list::deserialize::<OWN_NAMES_MAX, _, _>")]
    pub removed: Vec<Vec<u8>>,
    /// None was removed, because a snapshot has a later date than the new one.
    pub is_clock_behind: bool,
}
