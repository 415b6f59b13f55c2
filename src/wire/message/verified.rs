//! Messages about the files of a list of digests (`--check=LIST`).

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use crate::byte_strings;
use crate::digest::Digest;
use crate::limited_list;

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedDigest {
    /// The number of the line, which the answer repeats.
    pub number: u64,
    /// Below the directory that the user named.
    #[serde(with = "byte_strings")]
    pub path: Vec<u8>,
    pub digest: Digest,
}

/// Lines of the list, for the server that reads the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedDigests {
    #[serde(deserialize_with = "limited_list::deserialize::<LISTED_MAX, _, _>")]
    pub files: Vec<ListedDigest>,
    pub is_last: bool,
}

/// What the server found at the place of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FoundContent {
    /// A file of so many bytes with the digest of the line.
    Same(u64),
    /// Another content, or no regular file.
    Differs,
    Missing,
    /// It could not be read.
    Failed(Fault),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedFile {
    pub number: u64,
    pub found: FoundContent,
}

/// Answers, in any order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedFiles {
    #[serde(deserialize_with = "limited_list::deserialize::<LISTED_MAX, _, _>")]
    pub files: Vec<VerifiedFile>,
}

/// Most files in one message.
pub const LISTED_MAX: usize = 1024;

impl ListedDigest {
    /// Approximate bytes of memory.
    pub fn weight(&self) -> usize {
        size_of::<ListedDigest>() + self.path.len()
    }
}

impl VerifiedFile {
    /// Approximate bytes of memory.
    pub fn weight(&self) -> usize {
        let inside = match &self.found {
            FoundContent::Failed(fault) => fault.path.len() + fault.text.len(),
            FoundContent::Same(_) | FoundContent::Differs | FoundContent::Missing => 0,
        };
        size_of::<VerifiedFile>() + inside
    }
}
