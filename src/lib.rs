//! A copier of files between hosts: one command, parallel connections, every byte verified.
//!
//! # The life of a chunk
//!
//! | # | where | does | gives |
//! |---|---|---|---|
//! | 1 | [`source::walk`] | walks the operands, one `Entry` each | `Entry` |
//! | 2 | [`chunk::split`] | ranges of big files, packs of small ones; skips holes | `ChunkPlan` |
//! | 3 | [`source::read`] | preads one plan into a pooled buffer | `Chunk` |
//! | 4 | [`codec`]`::encode` | digest of the raw bytes, then compression, if any | `EncodedChunk` |
//! | 5 | [`wire::frame`] | the fixed header, which describes the frame | header |
//! | 6 | [`seal`]`::seal` | authenticated encryption, header as associated data | `SealedChunk` |
//! | 7 | [`transport::connection::send`] | one shared queue: a free connection takes the next frame | bytes |
//! | | | *— network —* | |
//! | 8 | [`transport::connection::receive`] | parses within limits into a pooled buffer | `SealedChunk` |
//! | 9 | [`seal`]`::open` | rejects frames not sealed with this session's key | `EncodedChunk` |
//! | 10 | [`codec`]`::decode` | bounded by the announced raw length | `Chunk` |
//! | 11 | [`chunk::Chunk::verify`] | recomputes the digest | `VerifiedChunk` |
//! | 12 | [`dest`]`::write` | pwrite at its offset | done range |
//! | 13 | [`dest`]`::commit` | after the last range: digest, metadata, sync, rename | the file |
//!
//! A pipe (stdin, a command, a FIFO) has no plans: [`pipeline::send::walk`] reads it in order. The
//! sender keeps each of its frames until the receiver acknowledges it. If the destination is a
//! pipe, an [`dest::OrderedSink`] puts the chunks back in order. A window bounds the memory of both.
//!
//! With several hosts, each host has its own rows 1 to 7. The first host to reach a chunk does
//! rows 3 and 4 for all. The result stays on the [`pipeline::send::cache`] until the other hosts have
//! taken it.
//!
//! The [`tuner`] decides while the copy runs how row 4 compresses a chunk, how many connections
//! row 7 uses and how many chunks are in flight. [`session::tuning`] feeds it measurements and
//! carries out its decisions.
//!
//! The [`journal`] records the ranges that row 12 wrote, so that an interrupted copy can resume.
//! The next copy requests the missing chunks at once, while [`pipeline::receive::verify`] reads the ranges
//! already written. It requests a range again if the content is not what the journal says. Row 13
//! waits until every range is verified.
//!
//! [`pipeline::send`] joins rows 1–7 and [`pipeline::receive`] rows 8–13. One worker thread
//! does rows 3–6 of a chunk and one does rows 9–12, without a handover, while the chunk is in the
//! CPU cache.
//!
//! # Layers
//!
//! A module imports only modules on lower lines of this table, never one on its own line or above.
//! `tests/it/layers.rs` checks this.
//!
//! ```text
//! cli ............ arguments, exit codes                   only place for clap
//! ui ............. bars, plain lines, the summary          only place for indicatif, terminal
//! app ............ what one command does: copy, fan-out, relay, probe
//! session ........ one conversation: open, hello, resolve, copy, done
//! pipeline ....... the stages joined: queues, threads, back-pressure
//! transport ...... connections: routes, dialling, frames on sockets
//! ssh control .... the far end's process, typed messages   tokio starts here
//! wire ........... message and frame formats, no I/O       serde here, in manifest and byte_strings
//! source codec seal dest journal tuner .... one job each, independent of each other; no tokio
//! chunk .......... data and arithmetic: Chunk … VerifiedChunk, split, ranges, buffer pool
//! progress dir command device cache .. commands at either end, block devices, the page cache
//! program ........ this program, and builds for other machines, as installed on hosts
//! pipe threads ... waits that can be interrupted; threads that the system may refuse
//! manifest ....... entries: files, directories, links, devices
//! report ......... events for the user
//! guide .......... the pages of --help TOPIC
//! error
//! units digest byte_strings
//! ```

pub mod app;
pub mod byte_strings;
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
pub mod guide;
pub mod journal;
pub mod manifest;
pub mod pipe;
pub mod pipeline;
pub mod program;
pub mod progress;
pub mod report;
pub mod seal;
pub mod session;
pub mod source;
pub mod ssh;
pub mod threads;
pub mod transport;
pub mod tuner;
pub mod ui;
pub mod units;
pub mod wire;
