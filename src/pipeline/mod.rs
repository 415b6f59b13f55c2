//! Stages strung together: threads, queues and back-pressure. [`sender`] carries a chunk from plan
//! to frame, [`receiver`] from frame to file; which stream a frame took is the streams' affair.
//!
//! No stage takes a second pool buffer while it holds one, a stream's reader takes its buffer when
//! a header has come, and what must be sent again waits in a list of its own that never fills:
//! with that no two stages can wait for each other.

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
