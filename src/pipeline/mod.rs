//! The stages of a copy, with their threads, queues and back-pressure. [`send`] turns plans into
//! frames, [`receive`] turns frames into files. A free connection takes the next frame.
//!
//! Four rules ensure that no two stages can wait for each other. The sender's task that reads
//! control never waits for another stage; in a copy that lists changes it waits for the reader of
//! stdout. No stage waits for a second buffer of the pool while it holds one. The reader of a
//! connection takes its buffer only when a header has arrived. Chunks to be retransmitted wait in
//! a separate list, which is never full.

pub mod budget;
pub mod context;
pub mod digest_list;
mod entry_weights;
pub mod failures;
pub mod itemized_list;
pub mod leftovers;
pub mod list_check;
pub mod lzma_room;
pub mod moved_operands;
pub mod news;
pub mod receive;
pub mod send;
pub mod shutdown;
mod wait_queue;
pub mod worker_time;

pub use self::shutdown::Shutdown;
pub use budget::Budget;
