//! Bytes and their meanings, version 1 of the protocol; no I/O. What a peer sends is checked here
//! against limits before memory is taken for it.

pub mod account;
pub mod frame;
pub mod greeting;
pub mod hello;
pub mod message;
pub mod sealed;

pub use sealed::SealedChunk;

/// The protocol versions that this build speaks.
pub const PROTOCOL_MIN: u16 = 1;
pub const PROTOCOL_MAX: u16 = 1;
