//! Messages about files that copies have left (`--clean`).

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use crate::byte_strings;
use crate::limited_list;

/// A file with a name of fastcp's own files, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Below the directory that the user named.
    #[serde(with = "byte_strings")]
    pub path: Vec<u8>,
    /// Bytes that it occupies.
    pub bytes: u64,
    /// Time since it was last written.
    pub age_s: u64,
    pub fate: LeftoverFate,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeftoverFate {
    /// Removed; in a dry run, it would be.
    Removed,
    /// A running copy uses it.
    InUse,
    /// It belongs to the user with this number.
    OfUser(u32),
    /// Nothing shows that this user's fastcp has made it.
    Unsigned,
    /// It could not be looked at or removed, or this is a directory that could not be read.
    Failed(Fault),
    /// It was written recently, perhaps by a running copy whose lock is not seen there.
    MaybeInUse,
}

/// Leftovers, as they are found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftovers {
    #[serde(deserialize_with = "limited_list::deserialize::<LEFTOVERS_MAX, _, _>")]
    pub files: Vec<Leftover>,
    pub is_last: bool,
}

/// Most files in one message.
pub const LEFTOVERS_MAX: usize = 1024;

impl Leftover {
    /// Approximate bytes of memory.
    pub fn weight(&self) -> usize {
        let inside = match &self.fate {
            LeftoverFate::Failed(fault) => fault.path.len() + fault.text.len(),
            _ => 0,
        };
        size_of::<Leftover>() + self.path.len() + inside
    }
}
