//! The message about changes at the destination (`--itemize-changes`, `--dry-run`).

use serde::{Deserialize, Serialize};

use crate::itemize::ItemizedEntry;
use crate::limited_list;

/// Changes that a receiver has made, or would make, since the last such message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemizedEntries {
    /// In a dry run: number of files that would be sent, and their bytes.
    pub files: u64,
    pub bytes: u64,
    /// In a dry run: number of files whose content was compared and is the same.
    pub unchanged: u64,
    #[serde(deserialize_with = "limited_list::deserialize::<ITEMIZED_MAX, _, _>")]
    pub entries: Vec<ItemizedEntry>,
}

/// Most entries in one message.
pub const ITEMIZED_MAX: usize = 1024;
