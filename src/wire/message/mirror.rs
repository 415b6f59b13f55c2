//! Messages about entries that only the destination has (`--delete`), and about removed sources
//! (`--remove-source-files`).

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::limited_list;
use crate::manifest::EntryId;
use crate::mirror::NAME_SUMS_MAX;

/// The names of all entries in a directory that the sender has read to its end. Sent before the
/// directory's `EntryEnd`. Entries of a directory without this message are not deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryNames {
    pub directory: EntryId,
    /// The user named it: it is an operand, or listed.
    pub is_named: bool,
    /// [`NameSums::sums`](crate::mirror::NameSums::sums).
    #[serde(deserialize_with = "limited_list::deserialize::<NAME_SUMS_MAX, _, _>")]
    pub sums: Vec<u64>,
}

/// Device and inode of the directory of an operand, or that contains one, and of those above it. The
/// receiver deletes none of them, if it is on the same machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePlaces(
    #[serde(deserialize_with = "limited_list::deserialize::<ABOVE_MAX, _, _>")] pub Vec<(u64, u64)>,
);

/// Most places in one message.
pub const ABOVE_MAX: usize = 1024;

/// The receiver asks which of these entries of one of its directories the source does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnNames {
    /// The entry number of the operand.
    pub root: EntryId,
    /// The names from the operand down to the directory, each followed by a slash.
    #[serde(with = "byte_strings")]
    pub below: Vec<u8>,
    /// The source does not have this directory, as an earlier answer said.
    pub is_extra: bool,
    /// Names that differ only in case, or in dots at the end, are the same there.
    pub confuses: bool,
    /// At least one, and at most [`OWN_NAMES_MAX`] in a message.
    #[serde(deserialize_with = "limited_list::deserialize::<OWN_NAMES_MAX, _, _>")]
    pub entries: Vec<OwnEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnEntry {
    #[serde(with = "byte_strings")]
    pub name: Vec<u8>,
    pub is_directory: bool,
}

/// Most names in one message, of all its directories.
pub const OWN_NAMES_MAX: usize = 4096;

/// Most such messages that await an answer.
pub const OWN_NAMES_WAITING: usize = 4;

/// The sender's answer to one message of [`OwnNames`], in the order of the questions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtraEntries {
    /// For each entry.
    Some(
        #[serde(deserialize_with = "limited_list::deserialize::<OWN_NAMES_MAX, _, _>")]
        Vec<OwnEntryIs>,
    ),
    /// Nothing may be deleted: the sender could not read all of the source.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnEntryIs {
    /// The source has it, or a filter rule protects it.
    Kept,
    /// The source does not have it now, but may have had it: its directory has changed during the
    /// copy, or cannot be looked at. It is kept too.
    Unsure,
    /// The source does not have it. If it is a directory, its entries may be protected.
    Extra,
    /// The same, and no rule protects any of its entries.
    AllExtra,
}

/// Files that the sender has removed at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedSources {
    /// With the paths as the user would write them.
    pub removed: DeletedEntries,
    /// No more are removed.
    pub is_last: bool,
}

/// Deleted entries, for the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedEntries {
    /// Their number, which may be larger than that of `paths`.
    pub count: u64,
    /// Below the destination; a directory's path ends in a slash.
    #[serde(deserialize_with = "limited_list::deserialize::<OWN_NAMES_MAX, _, _>")]
    pub paths: Vec<Vec<u8>>,
}
