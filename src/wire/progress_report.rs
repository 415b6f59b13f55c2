//! Progress of a copy between two remote hosts, which the sender reports to the client.

use serde::{Deserialize, Serialize};

use crate::outcome::Counts;

/// Sent several times a second, and once at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressReport {
    pub counts: Counts,
    /// A few of the files that are being copied.
    pub names: Vec<String>,
    /// The sender has sent everything; the receiver writes, syncs and renames.
    pub is_flushing: bool,
    /// By route.
    pub ways: [RouteFacts; 4],
    /// Why a connection last ended or could not be made; empty where none did.
    pub cause: String,
}

/// State of the data connections of one route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteFacts {
    /// Connections whose other end is authenticated and that show no sign of being dead.
    pub sound: u16,
    /// Connections that have carried more bytes than fit into one packet.
    pub up: u16,
    /// Bytes that the route has carried.
    pub carried: u64,
}
