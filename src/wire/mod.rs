//! Wire formats of protocol version 1, without I/O. Lengths from a peer are checked here against
//! limits before memory is allocated for them.

pub mod frame;
pub mod greeting;
pub mod hello;
pub mod message;
pub mod progress_report;

/// The protocol versions that this build speaks.
pub const PROTOCOL_MIN: u16 = 1;
pub const PROTOCOL_MAX: u16 = 1;
