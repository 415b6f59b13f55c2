//! The stages of a copy, with their threads, queues and back-pressure. [`sender`] turns plans into
//! frames, [`receiver`] turns frames into files. The connections themselves decide which of them
//! carries a frame.
//!
//! Three rules ensure that no two stages can wait for each other. No stage waits for a second
//! buffer of the pool while it holds one. The reader of a connection takes its buffer only when a
//! header has arrived. Chunks to be sent again wait in a separate list, which is never full.

pub mod acks;
pub mod answers;
mod arrival;
mod bell;
pub mod budget;
mod departure;
pub mod digest_list;
pub mod ending;
pub mod jobs;
pub mod keeper;
pub mod landing;
mod large_pack;
mod linked;
pub mod lzma_room;
mod names;
pub mod open_file;
mod opening;
mod pieces;
pub mod placer;
pub mod plan;
pub mod planner;
pub mod plans;
mod reading;
pub mod receiver;
pub mod resume;
pub mod sender;
mod sharing;
pub mod shelf;
pub mod shifts;
pub mod steering;
pub mod table;
pub mod tally;
mod unpack;
pub mod verify;

pub use budget::Budget;
pub use ending::Ending;
