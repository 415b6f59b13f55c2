//! fastcp copies files between hosts: one command, parallel streams, every byte verified.
//!
//! # The life of a chunk
//!
//! | # | where | does | gives |
//! |---|---|---|---|
//! | 1 | [`source::walk`] | walks the operands, one `Entry` each | `Entry` |
//! | 2 | [`chunk::split`] | cuts big files into ranges, packs small files together, skips holes | `ChunkPlan` |
//! | 3 | [`source::read`] | preads one plan into a pooled buffer | `Chunk` |
//! | 4 | [`codec`]`::encode` | digest of the raw bytes, then compression (none is a codec) | `EncodedChunk` |
//! | 5 | [`wire::frame`] | the fixed header, which says what the frame is | header |
//! | 6 | [`seal`]`::seal` | authenticated encryption with the header as associated data | `SealedChunk` |
//! | 7 | [`stream`]`::send` | whichever stream is free takes the next frame: one shared queue | bytes |
//! | | | *— network —* | |
//! | 8 | [`stream`]`::recv` | parses within limits into a pooled buffer | `SealedChunk` |
//! | 9 | [`seal`]`::open` | refuses what was not sealed with this session's key | `EncodedChunk` |
//! | 10 | [`codec`]`::decode` | bounded by the announced raw length | `Chunk` |
//! | 11 | [`chunk::Chunk::verify`] | recomputes the digest | `VerifiedChunk` |
//! | 12 | [`dest`]`::write` | pwrite at its offset | done range |
//! | 13 | [`dest`]`::commit` | all ranges in: whole-file digest, metadata, sync, final name | the file in place |
//!
//! A stream (a pipe, a command, a FIFO) has no plans: [`pipeline::planner`] reads it in order, each
//! of its frames is kept until it is acknowledged, and where the destination is one a
//! [`dest::Drain`] puts its chunks back in order, all inside a window that bounds memory.
//!
//! With several hosts each has rows 1 to 7 of its own, and whoever comes to a chunk first does rows 3
//! and 4 for all: what it makes lies on the [`pipeline::shelf`] until the others have taken it.
//!
//! How row 4 compresses which chunk, over how many streams row 7 goes and how many chunks are under
//! way is found out while the copy runs, by the [`tuner`]; [`session::tuning`] tells it how the copy
//! goes and does as it says.
//!
//! What row 12 has written is recorded in the [`journal`], so that a copy which is cut short goes on
//! where it was. The next one asks for the missing chunks at once, and [`pipeline::verify`] reads what
//! is there meanwhile: a range that is not what the journal says is asked for again, and row 13 waits
//! until all is verified.
//!
//! [`pipeline::sender`] strings 1–7 together, [`pipeline::receiver`] 8–13. One worker thread
//! carries a chunk through 3–6 and one through 9–12, without a hop, while it is warm in cache.
//!
//! # Layers
//!
//! A module imports lines below its own, never its own line, never above; `tests/it/layers.rs`
//! holds it to that.
//!
//! ```text
//! cli ............ what the user typed, exit codes               only place for clap
//! ui ............. bars, plain lines, the summary                only place for indicatif and the terminal
//! session ........ one conversation: open, hello, resolve, copy, done
//! pipeline ....... stages strung together: queues, threads, back-pressure
//! route .......... how streams come about
//! ssh control stream ... bytes leave the process                 tokio starts here
//! wire ........... bytes and meanings, no I/O                    serde lives here, in manifest and in octets
//! source codec seal dest journal tuner .... one job each, strangers to each other; no tokio
//! chunk .......... data and arithmetic: Chunk … VerifiedChunk, split, ranges, buffer pool
//! progress dir command device cache .. commands at either end, block devices, the page cache
//! program ........ this program, and those for other machines: as they are placed on hosts
//! pipe threads ... waits that can be ended; threads that the system may refuse
//! manifest ....... what an entry is
//! error
//! units digest octets
//! ```

pub mod cache;
pub mod chunk;
pub mod cli;
pub mod codec;
pub mod command;
pub mod control;
pub mod dest;
pub mod device;
pub mod digest;
pub mod dir;
pub mod error;
pub mod journal;
pub mod manifest;
pub mod octets;
pub mod pipe;
pub mod pipeline;
pub mod program;
pub mod progress;
pub mod route;
pub mod seal;
pub mod session;
pub mod source;
pub mod ssh;
pub mod stream;
pub mod threads;
pub mod tuner;
pub mod ui;
pub mod units;
pub mod wire;
