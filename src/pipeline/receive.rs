//! The receiver, which turns frames into files in place. The crate's documentation lists the steps.
//!
//! Each part knows only the parts to its right:
//!
//! ```text
//! entry writer ┐
//! workers      ├─> ranges, packs, resume ──> files ──> entries ──> report
//! verifiers    ┘
//! ```
//!
//! Workers open, decode, verify and write chunks. The [`entry_writer`] makes directories and links
//! and opens big files, in the order of their announcement. Verifiers read what earlier runs wrote.
//! [`Files`] has the files that are being received, [`Entries`] knows where entries go and which
//! are in place, [`Report`] tells the sender and the user. A chunk is acknowledged when it is
//! verified and its write has returned.

pub mod acks;
mod anchored;
mod announced_names;
mod arrived;
pub mod checks;
mod compared;
mod copy_journal;
pub mod destination;
mod done_files;
pub mod entries;
pub mod entry_table;
pub mod entry_writer;
pub mod files;
mod hard_links;
mod itemizer;
pub mod jobs;
pub mod journal_sync;
mod landed_names;
mod merged;
pub mod messages;
mod mirror;
mod moved;
mod names;
pub mod open_directories;
pub mod open_file;
mod opening;
pub mod packs;
pub mod ranges;
mod recorded;
pub mod report;
mod requested;
mod restored;
pub mod resume;
mod reused;
mod root_table;
mod roots;
mod shifts;
mod snapshot;
mod sums;
mod unsettled;
pub mod verify;
pub mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::anchored::{AnchoredPieces, PieceTurn};
use self::destination::Sessions;
use self::entries::Entries;
use self::files::Files;
use self::jobs::Job;
use self::messages::Messages;
use self::packs::PackPlacer;
use self::ranges::RangeWriter;
use self::report::Report;
use self::resume::Resume;
use self::worker::Worker;
use super::context::Context;
use super::worker_time::{Activity, WorkerTime};
use crate::chunk::{ChunkKind, EncodedChunk};
use crate::dest::Rules;
use crate::seal::Opener;
use crate::transport::frames::SealedChunk;
use crate::wire::message::Message;

/// The receiving end.
pub struct Receiver {
    pub context: Arc<Context>,
    /// The sender's messages that wait for the entry writer.
    pub messages: Messages,
    pub worker_time: Arc<WorkerTime>,
    opener: Opener,
    entries: Arc<Entries>,
    files: Arc<Files>,
    ranges: RangeWriter,
    anchored: AnchoredPieces,
    packs: PackPlacer,
    resume: Resume,
    /// By connection number: ends a connection that delivered a frame not sealed with the session's
    /// key.
    connections: Mutex<HashMap<u16, CancellationToken>>,
}

impl Receiver {
    pub fn new(context: Context, opener: Opener, rules: Rules, sessions: Sessions) -> Receiver {
        let context = Arc::new(context);
        let entries = Entries::new(Report::new(context.clone(), &rules), rules, sessions);
        let entries = Arc::new(entries);
        let files = Arc::new(Files::new(entries.clone()));
        Receiver {
            context,
            messages: Messages::default(),
            worker_time: Arc::default(),
            opener,
            ranges: RangeWriter::new(files.clone()),
            anchored: AnchoredPieces::default(),
            packs: PackPlacer::new(entries.clone()),
            resume: Resume::new(files.clone()),
            entries,
            files,
            connections: Mutex::default(),
        }
    }

    /// Runs a worker, which turns frames into file content until the copy ends.
    pub fn work(&self) {
        let mut worker = Worker::new(self.context.chunk_size, self.worker_time.begin());
        while let Some(job) = self.files.jobs.next() {
            if self.context.is_ending() {
                continue; // Drops the queued jobs with their buffers.
            }
            let doing = match job {
                Job::Frame { .. } => Activity::Rest,
                _ => Activity::Disk,
            };
            worker.clock.turn_to(doing);
            match job {
                Job::Frame { connection, frame } => self.frame(connection, frame, &mut worker),
                Job::Pack(chunk) => self.packs.pack(chunk),
                Job::Resume(file) => self.resume.resume(*file),
                Job::Restart(restart) => self.files.restart(*restart),
                Job::Close(file) => self.files.close(&file),
                Job::Remove(failed) => self.files.remove(*failed),
            }
            worker.clock.turn_to(Activity::Nothing);
        }
    }

    fn frame(&self, connection: u16, frame: SealedChunk, worker: &mut Worker<'_>) {
        let options = &self.context.options;
        if options.dry_run && !options.dry_run_reads() {
            return self.entries.report.breach("data in a dry run");
        }
        let (codec, wire_len) = (frame.header().codec.number(), frame.bytes().len());
        let Ok(encoded) = frame.open(&self.opener) else {
            // The frame is not from our peer, or was damaged on the way. The other chunks of this
            // connection are sent again on other connections.
            if let Some(connection) = self.connections.lock().get(&connection) {
                connection.cancel();
            }
            return;
        };
        let raw_len = match encoded.place.kind {
            ChunkKind::Zeros | ChunkKind::Digest | ChunkKind::Anchors => 0,
            // The rest of its range is not in the frame.
            ChunkKind::Patch => wire_len as u64,
            ChunkKind::Range | ChunkKind::Pack => u64::from(encoded.place.raw_len),
        };
        let progress = &self.context.progress;
        progress.add_frame(codec, raw_len, wire_len as u64);
        // What follows a digest is not sent again.
        let is_digest = matches!(encoded.place.kind, ChunkKind::Digest | ChunkKind::Anchors);
        if !is_digest && !self.entries.report.acks.comes(encoded.place.chunk) {
            progress.add_sent_again(wire_len as u64);
        }
        match encoded.place.kind {
            // Nothing that is compared in a dry run is in a pack.
            ChunkKind::Pack if options.dry_run => {
                self.entries.report.breach("data in a dry run");
            }
            ChunkKind::Pack => self.packs.encoded_pack(encoded, worker),
            ChunkKind::Range | ChunkKind::Zeros => self.ranges.piece(encoded, worker),
            ChunkKind::Digest => {
                worker.clock.turn_to(Activity::Disk);
                self.ranges.compared(encoded);
            }
            ChunkKind::Anchors => {
                worker.clock.turn_to(Activity::Disk);
                self.anchored(encoded);
            }
            ChunkKind::Patch => self.ranges.patched(encoded, worker),
        }
    }

    /// Looks for a piece by its anchors, unless another worker does that.
    fn anchored(&self, encoded: EncodedChunk) {
        let chunk = encoded.place.chunk;
        let mut next = match self.anchored.add(encoded) {
            PieceTurn::Now(encoded) => Some(encoded),
            PieceTurn::Later => None,
            PieceTurn::Never => return self.context.say(Message::Nack(vec![chunk])),
        };
        while let Some(encoded) = next {
            if self.context.is_ending() {
                return;
            }
            self.ranges.compared(encoded);
            next = self.anchored.next(self.context.chunk_size);
        }
    }

    /// Queues a frame for the workers. Returns false once the copy ends. `connection` is the number
    /// of the connection that it came on.
    pub fn take_frame(&self, connection: u16, frame: SealedChunk) -> bool {
        self.files.jobs.add(Job::Frame { connection, frame })
    }

    /// `token` ends the connection with this number.
    pub fn add_connection(&self, number: u16, token: CancellationToken) {
        self.connections.lock().insert(number, token);
    }

    pub fn remove_connection(&self, number: u16) {
        self.connections.lock().remove(&number);
    }

    /// Acknowledgements and the end of the copy, for the sender.
    pub fn acks(&self) -> &acks::Acks {
        &self.entries.report.acks
    }

    /// Runs a thread that reads what earlier sessions wrote, until the copy ends.
    pub fn verify(&self) {
        self.resume.verify();
    }

    /// Looks after the journal until the copy is over.
    pub fn keep_journal(&self) {
        let Entries {
            journal,
            report,
            sessions,
            ..
        } = &*self.entries;
        journal.keep(report, sessions.heard.as_deref());
    }

    /// Ends all waits of this end's threads and tasks.
    pub fn close(&self) {
        self.files.stop.set();
        self.entries.journal.end_sync();
        self.context.pool.close();
        self.ranges.close();
        self.messages.close();
        self.files.jobs.close();
        self.resume.checks.close();
    }

    /// Ends the search for moved files. Returns its thread, if there is one.
    pub fn end_search(&self) -> Option<JoinHandle<()>> {
        self.entries.moved.close()
    }

    /// Cleans up; call this when no thread of this end runs any more. After an early end, keeps the
    /// files that can be resumed.
    pub fn put_away(&self) {
        self.files.put_away();
        self.entries.end_mirror();
        // Dropping the table removes partial files. The lock is not held during that.
        let left = self.entries.table().take();
        drop(left);
    }
}
