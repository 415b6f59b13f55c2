//! Events of a copy as plain data, for the records of `--json`, `--log-file` and
//! `--report`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::digest::Digest;
use crate::error::Side;

/// What a session reports. Other events come from the methods of
/// [`Reporter`](crate::report::Reporter).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEvent {
    LoggedIn(Login),
    /// The route that the data takes from now on.
    Route(String),
    /// The connection is lost, or a login has failed, and another login follows.
    Retry(LoginRetry),
    /// Files that have their final names.
    Files(Vec<FileDone>),
}

/// A server that has said hello. All texts are printable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Login {
    pub end: HostEnd,
    /// As typed.
    pub host: String,
    /// The name by which the host knows itself. It and `user` are empty if its fastcp is older or
    /// the key limited.
    pub name: String,
    pub user: String,
    pub version: String,
}

/// The part of a host in a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostEnd {
    Source,
    Dest,
}

impl From<HostEnd> for Side {
    fn from(end: HostEnd) -> Side {
        match end {
            HostEnd::Source => Side::Source,
            HostEnd::Dest => Side::Dest,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRetry {
    /// As typed.
    pub host: String,
    pub cause: String,
    /// Until the next login.
    pub wait: Duration,
}

/// A file that has its final name at the destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDone {
    /// Below the destination, with the name of DEST if that is the file itself.
    #[serde(with = "byte_strings")]
    pub path: Vec<u8>,
    /// Bytes of content.
    pub size: u64,
    /// BLAKE3 of the content, if it was computed for this name, by this copy or an earlier run.
    pub digest: Option<Digest>,
    pub result: FileResult,
}

/// How a file came to its place. On the wire it is the variant's index, so the order must not
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileResult {
    /// Its content was sent, or its changed parts.
    Copied,
    /// An earlier run, or a session before a lost connection, had left all of it or parts of it.
    Resumed,
    /// The existing file has the same content, or the same size and time.
    Unchanged,
    /// It is a link to a file of an earlier copy, or a copy of one (`--link-dest`, `--copy-dest`,
    /// `--snapshot`).
    Reused,
    /// It is a further name (hard link) of a file of this copy.
    Linked,
}

impl FileResult {
    pub fn name(self) -> &'static str {
        match self {
            FileResult::Copied => "copied",
            FileResult::Resumed => "resumed",
            FileResult::Unchanged => "unchanged",
            FileResult::Reused => "reused",
            FileResult::Linked => "linked",
        }
    }
}

impl FileDone {
    /// Approximate bytes of memory.
    pub fn weight(&self) -> usize {
        size_of::<FileDone>() + self.path.len()
    }
}
