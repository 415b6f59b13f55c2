//! A copier of files between hosts: one command, parallel connections, every byte verified.
//!
//! # The life of a chunk
//!
//! These tables follow one chunk from the middle of a big file that is pushed over a direct
//! connection. Each row is a module, in the order in which the chunk reaches it. The tables
//! leave out counters, limits on memory, and steps that only an option adds. Names without a link
//! are private.
//!
//! First the sender announces the file, and the receiver asks for its content:
//!
//! | # | module | what it does |
//! |---|---|---|
//! | 1 | [`source::walk`] | [`Walk`](source::walk::Walk) finds the next entry below the operands |
//! | 2 | [`pipeline::send::walk`] | `entry` decides how to send it, `big_file` announces it |
//! | 3 | `pipeline::send::scheduler::entries` | waits for [room](pipeline::send::scheduler::Scheduler::wait_entry_room), then [`announce`](pipeline::send::scheduler::Scheduler::announce) keeps the open file |
//! | 4 | [`pipeline::send::read`], [`report`](pipeline::send::report) | [`open`](pipeline::send::read::SendReader::open) does rows 5 and 6, [`say_or_end`](pipeline::send::report::SendReport::say_or_end) row 8 |
//! | 5 | [`source::read`] | [`SourceFile::open`](source::SourceFile::open): the announcement describes the open file |
//! | 6 | [`source::found`] | [`FoundFile::open`](source::FoundFile::open) opens it beneath its directory and checks its identity |
//! | 7 | `pipeline::send::scheduler::announced` | its `announce`, called by that of row 3, counts the memory that the file takes at the receiver |
//! | 8 | [`control`] | [`Outgoing::send_blocking`](control::Outgoing::send_blocking) queues the message; a task writes it |
//! | 9 | [`wire::message`] | [`Message::encode`](wire::message::Message::encode): `Entries` |
//! | | | *— ssh —* |
//! | 10 | [`session::converse`] | [`converse`](session::converse::converse()) gives each message to the end of the copy |
//! | 11 | [`session::control_reader`] | [`ControlReader::next`](session::control_reader::ControlReader::next) handles heartbeats and `Abort` itself |
//! | 12 | `wire::message::check` | `check`: the length and the lists are bounded before they are decoded |
//! | 13 | [`pipeline::receive::messages`] | [`Messages::add`](pipeline::receive::messages::Messages::add) queues it for the entry writer |
//! | 14 | [`pipeline::receive::entry_writer`] | [`run`](pipeline::receive::entry_writer::run()), a thread, takes announcements in order |
//! | 15 | [`pipeline::receive::entries`] | [`locate`](pipeline::receive::entries::Entries::locate): the entry's place; [`check_name`](pipeline::receive::entries::Entries::check_name) |
//! | 16 | [`pipeline::receive::entry_table`] | [`locate`](pipeline::receive::entry_table::EntryTable::locate): below its parent |
//! | 17 | `pipeline::receive::names` | `claim`: no two entries with names that the file system confuses |
//! | 18 | `pipeline::receive::opening` | [`begin`](pipeline::receive::files::Files::begin) opens the file and accepts its chunks; gives `Want` |
//! | 19 | [`journal`] | [`knows`](journal::Journal::knows): is there anything to resume? If not, [`Journal::begin`](journal::Journal::begin) |
//! | 20 | `dest::partial` | [`Partial::create`](dest::Partial::create) |
//! | 21 | `dest::temporary` | `Temporary::create`: a file beside the final name |
//! | | | *— ssh: `Want` goes back through rows 8 to 13 —* |
//! | 22 | [`pipeline::send::control`] | [`answer`](pipeline::send::control::SendControl::answer); [`part`](pipeline::send::control::SendControl::part) makes a [`SendFile`](pipeline::send::plan::SendFile), and the module of row 3 [schedules](pipeline::send::scheduler::Scheduler::want) it |
//! | 23 | [`digest`] | [`Tree::new`](digest::Tree::new) |
//! | 24 | [`chunk::split`] | [`Cut::skipping`](chunk::split::Cut::skipping): existing ranges are not sent |
//!
//! A worker chooses the next chunk of the file:
//!
//! | # | module | what it does | gives |
//! |---|---|---|---|
//! | 25 | [`pipeline::send`] | [`Sender::work`](pipeline::send::Sender::work) asks for a plan; [`frame_for`](pipeline::send::Sender::frame_for) takes a buffer of the [pool](chunk::Pool) and does rows 30 to 38, [`push`](pipeline::send::Sender::push) rows 39 and 40 | `Buffer` |
//! | 26 | [`pipeline::send::scheduler`] | [`Scheduler::next`](pipeline::send::scheduler::Scheduler::next): retransmissions first | `NextTask` |
//! | 27 | `pipeline::send::scheduler::ready` | `next_piece` chooses the size of the piece | |
//! | 28 | [`chunk::split`] | [`Cut::next_up_to`](chunk::split::Cut::next_up_to): a range of data, or a hole | `FilePiece` |
//! | 29 | `pipeline::send::scheduler::in_flight` | `number`: the chunk's number, which never changes | [`Plan`](pipeline::send::plan::Plan) |
//!
//! The chunk's way from the read to the rename:
//!
//! | # | module | what it does | gives |
//! |---|---|---|---|
//! | 30 | [`pipeline::send::chunk_maker`] | [`chunk_for`](pipeline::send::chunk_maker::ChunkMaker::chunk_for) does rows 31 to 35 | |
//! | 31 | [`pipeline::send::read`] | [`read_piece`](pipeline::send::read::SendReader::read_piece): rows 32 and 33 | |
//! | 32 | [`source::read`] | [`SourceFile::read`](source::SourceFile::read): pread into the buffer | `Chunk` |
//! | 33 | [`digest`] | [`of_range`](digest::of_range) of the raw bytes; [`Tree::add_bytes`](digest::Tree::add_bytes): part of the file's digest | `Digest` |
//! | 34 | [`pipeline::send::encoder_control`] | [`next`](pipeline::send::encoder_control::EncoderControl::next): the method | |
//! | 35 | `codec::encode` | [`encode_if_worthwhile`](codec::Encoder::encode_if_worthwhile): compresses if a sample shrinks | `EncodedChunk` |
//! | 36 | [`transport::frames`] | [`SealedChunk::seal`](transport::frames::SealedChunk::seal): the frame, around the data | |
//! | 37 | [`wire::frame`] | [`FrameHeader::of`](wire::frame::FrameHeader::of): the fixed header | |
//! | 38 | [`seal`] | [`Sealer::seal`](seal::Sealer::seal): encrypts, header as associated data | `SealedChunk` |
//! | 39 | [`pipeline::send::encoder_control`] | [`when_there_is_room`](pipeline::send::encoder_control::EncoderControl::when_there_is_room) in the queue | |
//! | 40 | [`transport::frames`] | [`Frames::put`](transport::frames::Frames::put): the queue that all connections share | `Frame` |
//! | 41 | [`transport::connection`] | [`send`](transport::connection::send()), a task: a free connection takes the next frame, reports that (row 42), and writes the frame to the [socket](transport::connection::duplex::WriteLink) | bytes |
//! | 42 | [`session::data_connections`] | [`Sent::taken`](transport::connection::Sent::taken): row 26 learns which connection has the chunk, row 39 how many frames still wait | |
//! | | | *— network —* | |
//! | 43 | [`session::data_connections`] | `receive`, in a task of each connection: rows 44 to 46, then [`Receiver::take_frame`](pipeline::receive::Receiver::take_frame) | |
//! | 44 | [`transport::connection`] | [`recv`](transport::connection::recv): header, then a [buffer](chunk::Pool::take), then the rest; no free buffer stops the reading | `Buffer` |
//! | 45 | [`wire::frame`] | [`FrameHeader::parse`](wire::frame::FrameHeader::parse): within limits | |
//! | 46 | [`transport::frames`] | [`SealedChunk::receive`](transport::frames::SealedChunk::receive); [`open`](transport::frames::SealedChunk::open) on the worker | `SealedChunk` |
//! | 47 | [`pipeline::receive::jobs`] | [`Jobs::add`](pipeline::receive::jobs::Jobs::add); a worker calls [`Jobs::next`](pipeline::receive::jobs::Jobs::next) | `Job` |
//! | 48 | [`pipeline::receive`] | [`Receiver::work`](pipeline::receive::Receiver::work), a worker, calls [`frame`](pipeline::receive::Receiver::frame), which does rows 49 and 50 | |
//! | 49 | [`seal`] | [`Opener::open`](seal::Opener::open): only frames that the session's key sealed | `EncodedChunk` |
//! | 50 | [`pipeline::receive::ranges`] | [`RangeWriter::piece`](pipeline::receive::ranges::RangeWriter::piece): rows 51 to 57, the acknowledgement (row 62), then row 58 | |
//! | 51 | [`chunk::claims`] | [`claim_range`](chunk::claims::Claims::claim_range): one worker writes a range; later [`done`](chunk::claims::Claims::done) | |
//! | 52 | `codec::decode` | [`Decoder::decode`](codec::Decoder::decode): bounded by the announced raw length | `Chunk` |
//! | 53 | [`chunk`] | [`Chunk::verify`](chunk::Chunk::verify) | `VerifiedChunk` |
//! | 54 | [`digest`] | [`of_range`](digest::of_range) once more | |
//! | 55 | `dest::partial` | [`Partial::write`](dest::Partial::write): pwrite at its offset | |
//! | 56 | [`digest`] | [`Tree::add_bytes`](digest::Tree::add_bytes): part of the file's digest | |
//! | 57 | [`journal`] | [`Journal::chunk`](journal::Journal::chunk): the range is written | |
//! | 58 | [`pipeline::receive::open_file`] | [`is_complete`](pipeline::receive::open_file::OpenFile::is_complete): every range is written and verified, and the sender has read all | |
//! | 59 | [`pipeline::receive::files`] | after the last chunk, [`Files::close`](pipeline::receive::files::Files::close) compares the digests | |
//! | 60 | `dest::partial` | [`Partial::commit`](dest::Partial::commit) | |
//! | 61 | `dest::commit` | `commit`: metadata, sync, rename | |
//!
//! The acknowledgement goes back. When the file has ended, the sender sends its length and digest:
//!
//! | # | module | what it does |
//! |---|---|---|
//! | 62 | [`pipeline::receive::acks`] | [`Acks::run`](pipeline::receive::acks::Acks::run), a task, sends `Ack` (rows 8 to 13) |
//! | 63 | [`pipeline::send::control`] | [`acknowledged`](pipeline::send::control::SendControl::acknowledged) |
//! | 64 | [`pipeline::send::scheduler`] | [`settle_chunks`](pipeline::send::scheduler::Scheduler::settle_chunks): the chunk will not be retransmitted |
//! | 65 | [`pipeline::send::read`] | [`end_file`](pipeline::send::read::SendReader::end_file), when all was read: did it change? Sends `EntryEnd` (rows 8 to 13) |
//! | 66 | [`source::read`] | [`SourceFile::unchanged`](source::SourceFile::unchanged) |
//! | 67 | [`pipeline::receive::entry_writer`] | `entry_end` notes the length and the digest; if the last chunk came before, it queues `Job::Close`, and row 59 follows |
//!
//! One worker does rows 26 to 40 of a chunk and one does rows 48 to 61, without a handover, while
//! the chunk is in the CPU cache.
//!
//! Small files are not announced. They travel in packs, which contain their entries
//! (`pipeline::receive::packs`). If an earlier run may have finished some, the sender asks first.
//!
//! If a big file replaces another one, the receiver asks for a comparison with the old version (a
//! [`Basis`](dest::Basis), rows 18 and 22). The file is then cut into pieces of 256 KiB, and row 38
//! seals only the digest of row 33. The receiver reads the same range of the old version. If its
//! digest is the same, the piece is done; otherwise it sends the short digests of its
//! [pages](chunk::patch), and rows 26 to 52 bring a patch with the pages that differ. Row 53
//! verifies the whole range.
//!
//! If the receiver has nothing of a piece, or little, row 38 seals the digest once more with the
//! [anchors](chunk::anchors) of the piece. By these the receiver finds content that has moved
//! within the old version: `pipeline::receive::shifts` looks it up in an index of that version
//! ([`BlockIndex`](dest::BlockIndex)). The next pieces are then found without anchors. Only one
//! worker at a time searches (`pipeline::receive::anchored`).
//!
//! A pipe (stdin, a command, a FIFO) is planned while it is read: [`pipeline::send::pipe`] reads it
//! in order. The sender keeps each of its frames until the receiver acknowledges it. If the
//! destination is a pipe, an [`dest::OrderedSink`] puts the chunks back in order. A window bounds
//! the memory for kept frames and for chunks that wait for their turn.
//!
//! With several destinations, each host has its own sender. The first sender that reaches a chunk
//! reads and encodes it for all. The result stays in the [`pipeline::send::cache`] until the other
//! senders have taken it.
//!
//! The [`tuner`] decides while the copy runs how a chunk is compressed, how many connections there
//! are and how many chunks are in flight. [`session::tuning`] gives it measurements and carries out
//! its decisions.
//!
//! The [`journal`] makes an interrupted copy resumable. The next copy requests the missing ranges
//! at once. While they arrive, [`pipeline::receive::verify`] reads the existing ranges. It requests
//! a range again if it differs from the journal. A file gets its name when every range is verified.
//!
//! # Layers
//!
//! A module imports only modules on lower lines of this table, never one on its own line or above.
//! `tests/it/layers.rs` checks this.
//!
//! ```text
//! cli ............ arguments, exit codes                   only place for clap
//! ui ............. bars, plain lines, the summary          only place for indicatif
//! app ............ what one command does: copy, fan-out, relay, probe
//! session ........ one conversation: open, hello, resolve, copy, done
//! pipeline ....... the stages joined: queues, threads, back-pressure
//! transport ...... connections: routes, dialling, frames on sockets
//! ssh control .... the far end's process, typed messages   tokio starts here
//! wire source codec seal dest journal tuner .... one job each, independent of each other; no tokio
//! chunk .......... data and arithmetic: Chunk … VerifiedChunk, split, ranges, buffer pool
//! selection ...... which entries of a source are copied
//! file_list ...... names of files to copy, from a list
//! progress dir command device cache .. counters, directories, commands, block devices, page cache
//! program ........ this program, and builds for other machines, as installed on hosts
//! pipe threads ... waits that can be interrupted; threads that the system may refuse
//! mapping ........ parts of a source with separate places
//! manifest ....... entries: files, directories, links, devices
//! outcome ........ what a copy has done and found out
//! keep ........... metadata that is kept, existing files that stay
//! mirror backup .. what is deleted, and where old versions go
//! earlier snapshot .. earlier copies whose unchanged files are linked; dated copies
//! algorithms ..... compression and encryption, with their numbers on the wire
//! report ......... events for the user
//! itemize ........ what changes at the destination, in rsync's form
//! guide .......... the pages of --help TOPIC
//! disk_table ..... a table in a file, for more than memory should hold
//! error
//! units calendar digest byte_strings limited_list locks
//! ```
//!
//! # The control dialogue of a push
//!
//! The client sends and the server receives. Each line is a [`wire::message::Message`], except the
//! two hellos, which are lines of JSON ([`wire::hello`]). Both sides also send a `Heartbeat` every
//! second until the session is over: the client from `Open` on, the server from the client's hello
//! on.
//!
//! ```text
//! client, sender                                 server, receiver
//!
//! ssh starts the server ---------------------->
//!                       <---------------------- hello: the addresses and the port of a listener
//! hello                 ---------------------->
//! Open                  ----------------------> role, options, session, ways to connect
//! Secret                ----------------------> the session's key
//!                       <---------------------- Listen: the port of the hello, or another one
//!                       <---------------------- Credit: bytes of data that control may carry
//! Roots                 ----------------------> operands and totals
//! Entries               ----------------------> directories, links, big files, in order
//!                       <---------------------- Landed: where roots land, and if the copy resumes
//! Ask                   ----------------------> only if it resumes: which small files exist?
//!                       <---------------------- Want: all, nothing or some ranges of each file
//! frames                ======================> on the data connections
//!                       <---------------------- Ack: chunks and entries; Busy: for the tuner
//! EntryEnd              ----------------------> a file's length and digest; a directory's children
//! AllSent               ----------------------> the end of the walk
//!                       <---------------------- Ack, Busy, Done
//! closes control        ---------------------->
//!                       <---------------------- exits then, or after 20 ms without it
//! ```
//!
//! - The walk does not wait for answers, except about sums. Frames, questions about small files,
//!   and sums wait for `Landed`.
//! - If counting the sources takes long, the sender sends `Uncounted` instead of `Roots`, and the
//!   totals later (`Counted`). A receiver that has to check the free space waits for the totals;
//!   any other receiver sends `Landed` at once. The walk of the copy counts too, and may finish
//!   first.
//! - At any time, the receiver may send `Nack` (a chunk arrived damaged), `Differs` (the old
//!   version differs from the digest of a chunk; short digests of its pages), `Missing` (existing
//!   ranges are damaged), `Checked` (bytes of an earlier run that it has read) and `Fault` (an
//!   entry failed).
//! - With `-a` and the like, the client sends `Archive` after the secret. If the destination
//!   exists, the receiver sends `SumUp` before `Landed`. The sender then sends `DirectorySums` and
//!   `EntrySums`, and announces entries that differ, as the answers (`Summed`) say. At the end the
//!   receiver sends `NotKept`, if it could not keep some metadata.
//! - With `--delete` the sender says in which directories its sources are (`SourcePlaces`). A
//!   receiver on the same machine must not delete these directories. The sender also sends `Names` in
//!   each directory before the directory's `EntryEnd`. When everything is in place, the receiver
//!   sends its names in the directories that differ (`OwnNames`). The sender answers which of them
//!   the source lacks (`Extra`), and the receiver reports what it deletes (`Deleted`).
//! - With `--link-dest`, `--copy-dest` and `--snapshot` the receiver looks for unchanged entries in
//!   earlier copies too, and answers as if they existed. With `--snapshot` it reports the complete
//!   snapshot (`Snapshot`) before `Done`.
//! - With `--relative` and `--files-from` the client tells a sender where names come from
//!   (`Relative`), and sends the list that it has read (`FileNames`). All files are then entries of
//!   one root, the directory in which the names begin. The client checks that a server sends listed
//!   names only.
//! - With `--map` the client tells the sender the parts, and the receiver their places (`Map`). The
//!   only operand has the number 0, and each part is a further root with the next number. The space
//!   that each root needs (`RootSpaces`) precedes `Roots`.
//! - With sources on several hosts the client has a session with each host in turn, and its hello
//!   says so: the destination is a directory then.
//! - With `--scp` the client's hello says so: the sender then follows links to files, and the receiver
//!   chooses places and modes as scp does.
//! - With `--itemize-changes` the receiver sends the changes (`Itemized`). In a dry run
//!   (`--dry-run`) it only looks at existing entries, sends the changes that a copy would make, and
//!   answers `WouldSend` instead of requesting content. Frames are sent only with `--checksum`;
//!   they carry digests. The client's hello says whether `--dry-run` and `--itemize-changes` are
//!   given.
//! - With `--json`, `--log-file` and `--report` the client's hello says so, and the receiver sends
//!   the files that are in place (`FilesDone`).
//! - With `--check=LIST` there is no copy: the client sends lines of a list (`ListedDigests`), and
//!   the server answers each of them (`VerifiedFiles`). No data connection is made.
//! - With `--clean` there is no copy either: the server tells what it removes (`Leftovers`).
//! - The sender may send `Fault`, `Vanished` (with `--live`), `Grew` (a file that only grew is copied
//!   up to an earlier length), `Special` (skipped special files), `Unlinked` (hard links copied as
//!   separate files) and `Symlinks` (how many there are, and how many lead out of their tree). It
//!   sends `Tune` when it wants another number of connections, and `Data` while no data connection
//!   works. The client sends `Dial` to ask the server to connect to it.
//! - An end that fails sends `Abort` with the cause.
//! - In a pull the roles change. The server tells once a second what it does (`Activity`), for the
//!   report. It then sends `Roots`, and a `Conclusion` after `Done`:
//!   what limited the copy. In a push the client knows this itself.
//! - Between two servers the client puts each server's messages into a `Relay` for the other one
//!   ([`app::relay`]).
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | client, server | the process that the user started; the one that it started on a host |
//! | sender, receiver | the side that has the data; the side that gets it. Either may be the client |
//! | operand, root | `[user@]host:path` as typed; a file or directory that it names |
//! | landing | the place of an operand at the destination, which the receiver finds before the copy |
//! | entry, manifest | one file, directory, link or device; the list of them |
//! | sum | a hash of the metadata of entries, with which both ends compare a directory |
//! | source, destination | where the data comes from, where it goes: file system, pipe or device |
//! | chunk | the unit that is read, encoded, sent, verified, written and retried |
//! | piece, pack | a chunk that is a range of one file; a chunk of small files |
//! | basis, page, patch | the old version of a file; 4 KiB of it; the pages of a piece that differ |
//! | anchor | the fingerprint of a block of a piece, by which the receiver finds moved content |
//! | plan | a chunk to read and send |
//! | codec, encode, decode | compression, including none |
//! | seal, open | authenticated encryption of a chunk, and its reverse |
//! | frame | an encoded chunk as bytes on a connection |
//! | connection | one TCP (or ssh) connection that carries frames; "stream" for the user |
//! | pipe | a source or destination that is read or written once, in order |
//! | route | how connections come about: direct, reverse, through ssh, in-band (inside control) |
//! | control | typed messages over ssh's stdin and stdout |
//! | session | one conversation, from ssh login to done |
//! | end | the sender's or the receiver's part of a session, with its threads |
//! | scheduler | decides which chunk is sent next: ready, in flight, to be retransmitted |
//! | in flight, settled | begun and not acknowledged; acknowledged or failed |
//! | tuner, sample, decision | the adaptive controller, its input and its output |
//! | claim | a worker's right to write a range |
//! | range set, journal | which bytes are done; the same on disk |
//! | cache | encoded chunks kept for several destinations |
//! | probe | measures the link, the disks and the codecs |
//! | shutdown | the end of a copy or session, with the first cause |

#![doc = include_str!("concurrency.md")]

pub mod algorithms;
pub mod app;
pub mod backup;
pub mod byte_strings;
pub mod cache;
pub mod calendar;
pub mod chunk;
pub mod cli;
pub mod codec;
pub mod command;
pub mod control;
pub mod dest;
pub mod device;
pub mod digest;
pub mod dir;
pub mod disk_table;
pub mod earlier;
pub mod error;
pub mod file_list;
pub mod guide;
pub mod itemize;
pub mod journal;
pub mod keep;
pub mod limited_list;
pub mod locks;
pub mod manifest;
pub mod mapping;
pub mod mirror;
pub mod outcome;
pub mod pipe;
pub mod pipeline;
pub mod program;
pub mod progress;
pub mod report;
pub mod seal;
pub mod selection;
pub mod session;
pub mod snapshot;
pub mod source;
pub mod ssh;
pub mod threads;
pub mod transport;
pub mod tuner;
pub mod ui;
pub mod units;
pub mod wire;
