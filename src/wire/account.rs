//! How a copy between two hosts goes, as its sender tells the client, which has neither end itself.

use serde::{Deserialize, Serialize};

use crate::progress::Counts;

/// Comes several times a second, and before the last word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub counts: Counts,
    /// Of files that are under way, a few.
    pub names: Vec<String>,
    /// Everything was sent; the receiver writes, syncs and renames.
    pub is_flushing: bool,
    /// By route.
    pub ways: [WayFacts; 4],
    /// Why a stream ended, or could not be dialled, last; empty where none did.
    pub cause: String,
}

/// How the streams of one route are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayFacts {
    /// Streams whose other end has proven itself, and of which nothing says that they are dead.
    pub sound: u16,
    /// Streams by which more has come through than fits into a packet.
    pub up: u16,
    /// Bytes.
    pub carried: u64,
}
