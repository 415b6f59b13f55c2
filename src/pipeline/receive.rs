//! The receiver, which turns frames into files in place. The crate's documentation lists the steps.
//!
//! Workers open, decode, verify and write chunks. The [`placer`](self::entry_writer) makes directories
//! and links and opens big files, in the order of their announcement. A chunk is acknowledged when
//! it is verified and its write has returned.

pub mod acks;
mod big_files;
pub mod entry_table;
pub mod entry_writer;
mod hard_links;
pub mod jobs;
pub mod journal_sync;
mod names;
pub mod open_file;
mod packs;
mod pipe;
mod ranges;
pub mod resume;
pub mod roots;
pub mod verify;

use std::collections::HashMap;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::acks::Acks;
use self::entry_table::{EntryTable, OpenDirectory};
use self::jobs::{Job, Jobs};
use self::journal_sync::JournalSync;
use self::names::NameClaim;
use self::open_file::{At, OpenFile};
use self::resume::{finished, identity_of_stream};
use self::roots::{Sessions, TellUser};
use self::verify::Checks;
use super::failures::Failures;
use super::worker_time::{Activity, WorkerClock, WorkerTime};
use crate::chunk::{Buffer, Chunk, ChunkKind, EncodedChunk, Pool};
use crate::codec::Decoder;
use crate::control::Outgoing;
use crate::dest::{self, EntrySlot, ExistingEntry, JournalName, Rules};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result, Side};
use crate::journal::Journal;
use crate::manifest::{Entry, EntryId};
use crate::pipe::Stop;
use crate::pipeline::Shutdown;
use crate::pipeline::digest_list::{DigestList, ListedPath};
use crate::progress::Progress;
use crate::seal::Opener;
use crate::wire::SealedChunk;
use crate::wire::message::{CopyOptions, Fault, Message};

/// The state that the threads and tasks of the receiving end share.
pub struct Receiver {
    pub options: CopyOptions,
    pub rules: Rules,
    pub chunk_size: u64,
    /// Pieces of files end at multiples of this, except at the end of a file.
    pub grain: u64,
    pub pool: Pool,
    /// Buffers for pieces that are larger than a chunk, in addition to the memory of the pool.
    pub large: Pool,
    /// Chunks of a pipe that may be on their way or unwritten at once.
    pub window: usize,
    /// Ends all waits for a consumer.
    pub stop: Stop,
    /// Gets the lines that a consumer writes to stderr.
    pub tell: TellUser,
    pub opener: Opener,
    pub sessions: Sessions,
    pub jobs: Jobs,
    /// Data from earlier sessions that waits to be read.
    pub checks: Checks,
    /// The sender reports which files were recently written, and sends damaged ranges again.
    pub sender_tells: bool,
    pub control: Outgoing,
    pub acks: Acks,
    pub shifts: Arc<WorkerTime>,
    pub tally: Arc<Failures>,
    pub progress: Arc<Progress>,
    pub ending: Arc<Shutdown>,
    pub digests: Option<Arc<DigestList>>,
    pub table: Mutex<EntryTable>,
    /// Set when the destinations of the roots are known, if a journal is possible.
    pub journal: OnceLock<Journal>,
    /// Ensures that no entry gets the journal's name.
    pub journal_name: OnceLock<JournalName>,
    pub keeper: JournalSync,
    /// Bytes of zeros that may still allocate disk blocks.
    pub fillable: AtomicU64,
    /// Bytes of the messages that wait for the placer.
    pub queued: AtomicUsize,
    /// Notified when the placer has handled one of them.
    pub emptied: Notify,
    /// By connection number: ends a connection that delivered a frame not sealed with the session's
    /// key.
    pub streams: Mutex<HashMap<u16, CancellationToken>>,
}

/// The private state of a worker.
pub struct Hands<'a> {
    decoder: Decoder,
    pub shift: WorkerClock<'a>,
}

impl Hands<'_> {
    /// None if the chunk differs from its announcement.
    pub fn decode(&mut self, encoded: EncodedChunk) -> Option<Chunk> {
        self.shift.turn_to(Activity::Codec);
        let chunk = self.decoder.decode(encoded).ok();
        self.shift.turn_to(Activity::Rest);
        chunk
    }

    /// Like [`decode`](Hands::decode), for more than a chunk.
    pub fn decode_into(&mut self, encoded: EncodedChunk, into: Buffer) -> Option<Chunk> {
        self.shift.turn_to(Activity::Codec);
        let chunk = self.decoder.decode_into(encoded, into).ok();
        self.shift.turn_to(Activity::Rest);
        chunk
    }
}

impl Receiver {
    /// Runs a worker, which turns frames into file content until the copy ends.
    pub fn work(&self) {
        let mut hands = Hands {
            decoder: Decoder::new(self.chunk_size as usize),
            shift: self.shifts.begin(),
        };
        while let Some(job) = self.jobs.next() {
            if self.ending.is_ending() {
                continue; // What is queued is dropped, and its buffers with it.
            }
            let doing = match job {
                Job::Frame { .. } => Activity::Rest,
                _ => Activity::Disk,
            };
            hands.shift.turn_to(doing);
            match job {
                Job::Frame { stream, frame } => self.frame(stream, frame, &mut hands),
                Job::Pack(chunk) => self.pack(chunk),
                Job::Resume(resuming) => self.resume(*resuming),
                Job::Anew(anew) => self.open_anew(*anew),
                Job::Close(file) => self.close(&file),
            }
            hands.shift.turn_to(Activity::Nothing);
        }
    }

    fn frame(&self, stream: u16, frame: SealedChunk, hands: &mut Hands<'_>) {
        let (codec, wire_len) = (frame.header().codec.number(), frame.bytes().len());
        let Ok(encoded) = frame.open(&self.opener) else {
            // The frame is not from our peer, or was damaged on the way. The other chunks of this
            // connection are sent again on other connections.
            if let Some(stream) = self.lock_streams().get(&stream) {
                stream.cancel();
            }
            return;
        };
        let raw_len = match encoded.place.kind {
            ChunkKind::Zeros | ChunkKind::Digest => 0,
            _ => u64::from(encoded.place.raw_len),
        };
        self.progress.add_frame(codec, raw_len, wire_len as u64);
        if !self.acks.comes(encoded.place.chunk) {
            self.progress.add_sent_again(wire_len as u64);
        }
        match encoded.place.kind {
            ChunkKind::Pack => self.encoded_pack(encoded, hands),
            ChunkKind::Range | ChunkKind::Zeros => self.piece(encoded, hands),
            ChunkKind::Digest => {
                hands.shift.turn_to(Activity::Disk);
                self.compared(encoded);
            }
        }
    }

    /// A file has its final name.
    pub(super) fn file_placed(
        &self,
        entry: &Entry,
        listed: Option<&ListedPath>,
        digest: impl Fn() -> Digest,
    ) {
        self.progress.add_files(1);
        self.progress.end_name(entry.id);
        if let (Some(list), Some(listed)) = (&self.digests, listed) {
            let digest = digest();
            list.add(listed, &digest);
            list.remember(entry, &digest);
            list.wait_room(|| self.ending.is_ending());
        }
        self.acks.entry(entry.id);
        self.settle(entry.id, entry.parent);
    }

    /// All of a file has arrived: gives it its name if the digests agree.
    pub(super) fn close(&self, file: &Arc<OpenFile>) {
        if file.closing.swap(true, AcqRel) {
            return;
        }
        match self.finish(file) {
            Ok((digest, standing)) => {
                if let Some(slot) = file.at.slot() {
                    self.remember_linked(&file.entry, slot, standing.as_ref());
                }
                self.file_placed(&file.entry, file.listed.as_ref(), || {
                    digest.unwrap_or_default()
                });
            }
            Err(error) => {
                if let Some(drain) = file.at.drain() {
                    drain.abandon();
                }
                self.fail(file.entry.id, file.entry.parent, &error);
            }
        }
    }

    /// Returns the digest. Also returns the status of the file under its final name, if this copy
    /// put it there.
    fn finish(&self, file: &OpenFile) -> Result<(Option<Digest>, Option<ExistingEntry>), Error> {
        let Some(end) = file.end.get() else {
            return Err(
                Error::new(Kind::Lost, Side::Dest, "ended before its time").at(file.at.path())
            );
        };
        if let (true, At::Slot(slot)) = (file.compare, &file.at) {
            let digest = self.finish_compared(file, slot, end.root)?;
            return Ok((digest, None));
        }
        let root = file.root();
        if file.is_stream() && (root.is_none() || root != end.root) {
            let message = "differs from the sent data: the digests of the whole file differ";
            return Err(Error::new(Kind::Verify, Side::Dest, message).at(file.at.path()));
        }
        let length = file.claims.lock().end();
        if (end.length != file.entry.size && !self.options.live && !file.is_stream())
            || (root.is_some() && end.root.is_some() && root != end.root)
        {
            return Err(changed(file));
        }
        if let Some(drain) = file.at.drain() {
            return drain.finish(length).map(|()| (root, None));
        }
        let partial = file.partial.lock().take();
        // No claim is open, so no worker holds the partial file any more.
        let mut partial = partial.and_then(Arc::into_inner).ok_or_else(|| {
            Error::new(Kind::Lost, Side::Dest, "is still being written").at(file.at.path())
        })?;
        if length != file.entry.size {
            partial.end_at(length)?;
        }
        let standing = partial.commit()?;
        if let Some(journal) = self.journal().filter(|_| self.may_meet_again(file)) {
            let digest = root.or(end.root);
            let mut record = finished(file.path, &file.entry, file.young, &standing, digest);
            if file.is_stream() {
                record.identity = identity_of_stream(&self.sessions.own);
            }
            journal.finished(&[record]);
        }
        Ok((root, Some(standing)))
    }

    /// True if a later session may find the file in place. A pipe that can be read again is read
    /// again in that session. If the only root is a pipe that cannot be read again, there is no
    /// later session.
    fn may_meet_again(&self, file: &OpenFile) -> bool {
        !file.is_stream() || file.entry.is_once() && !self.table.lock().has_one_root()
    }

    fn finish_compared(
        &self,
        file: &OpenFile,
        slot: &EntrySlot,
        root: Option<Digest>,
    ) -> Result<Option<Digest>, Error> {
        if let Some(known) = file.known {
            return match root == Some(known) {
                true => Ok(root),
                false => Err(changed(file)),
            };
        }
        let same = root.is_some() && dest::digest_of(slot)? == root;
        self.progress.add_skipped(file.entry.size);
        if same {
            if self.rules.fsync {
                dest::make_durable(slot)?;
            }
            Ok(root)
        } else {
            Err(dest::stays(slot, &self.rules))
        }
    }

    /// A file is in place and its further names may follow. Without `standing`, its present status
    /// is used.
    pub(super) fn remember_linked(
        &self,
        entry: &Entry,
        slot: &EntrySlot,
        standing: Option<&ExistingEntry>,
    ) {
        if entry.links <= 1 {
            return;
        }
        let inode = match standing {
            _ if slot.dir.lasting_number() == 0 => None,
            Some(standing) => Some((standing.dev, standing.ino)),
            None => match dest::standing(slot) {
                Ok(Some(standing)) => Some((standing.dev, standing.ino)),
                // Its further names do not find the file either.
                Ok(None) | Err(_) => return,
            },
        };
        self.table.lock().linked.placed(entry, slot, inode);
    }

    pub(super) fn fail_file(&self, file: &OpenFile, error: Error) {
        if !file.closing.swap(true, AcqRel) {
            self.drop_partial(file);
            self.fail(file.entry.id, file.entry.parent, &error);
        }
    }

    /// Drops the partial file, which is removed when the last worker that writes to it is done.
    pub(super) fn drop_partial(&self, file: &OpenFile) {
        if let (Some(journal), Some(number)) = (self.journal(), file.number) {
            journal.dropped(number);
        }
        // Its removal may take long; the lock is not held during that.
        let partial = file.partial.lock().take();
        drop(partial);
        if let Some(drain) = file.at.drain() {
            drain.abandon();
        }
    }

    /// Refuses a name that this copy may not use, or that the file system could confuse with
    /// another entry's name. A second call for the same entry has the same result.
    pub(super) fn check_name(&self, entry: &Entry, slot: &EntrySlot) -> Result<()> {
        self.rules.check_name(slot)?;
        let claim = || {
            self.table
                .lock()
                .claim_name(entry.id, entry.parent, &slot.name)
        };
        let mut claimed = claim();
        if claimed == NameClaim::Ask {
            let spelling = dest::spelling(&slot.dir);
            self.table.lock().set_spelling(entry.parent, spelling);
            claimed = claim();
        }
        match claimed {
            NameClaim::Refused(why) => {
                Err(Error::new(Kind::Refused, Side::Dest, why).at(slot.path()))
            }
            // The directory was checked above, so `Ask` does not occur.
            NameClaim::Yours | NameClaim::Ask => Ok(()),
        }
    }

    /// An entry failed here. Tells the sender; the end that the user sees also prints the error.
    pub(super) fn fail(&self, id: EntryId, parent: EntryId, error: &Error) {
        self.tally.add(error);
        self.progress.end_name(id);
        self.say(Message::Fault(Fault::of(error, id, parent)));
        self.settle(id, parent);
    }

    pub(super) fn lost_with_directory(&self, entry: &Entry) {
        self.progress.add_failed(1);
        self.acks.failed(entry.id);
        self.settle(entry.id, entry.parent);
    }

    /// Accounts for an entry, and finishes the directories that are complete as a result.
    pub(super) fn settle(&self, id: EntryId, parent: EntryId) {
        let full = self.table.lock().account(id, parent);
        self.finish_directories(full);
    }

    pub(super) fn finish_directories(&self, mut full: Option<OpenDirectory>) {
        while let Some(OpenDirectory {
            directory, entry, ..
        }) = full
        {
            if let Some(directory) = directory
                && let Err(error) = directory.finish(&entry, &self.rules)
            {
                self.tally.add(&error);
                self.say(Message::Fault(Fault::of(&error, 0, 0)));
            }
            let mut table = self.table.lock();
            table.finished();
            full = table.child_settled(entry.parent);
        }
        let mut table = self.table.lock();
        if table.take_done() {
            drop(table);
            self.settle_keeper();
            self.journal_done();
            if let Some(list) = &self.digests {
                list.tell_rest();
            }
            self.acks.finish();
        } else if table.is_stuck() {
            self.breach("a directory with fewer entries than announced");
        } else if table.is_scattered() {
            self.breach("it sends more at once than allowed");
        }
    }

    /// Waits for a running sync, which may report an error. With `--fsync` each file has reported
    /// its own errors.
    fn settle_keeper(&self) {
        if self.rules.fsync {
            return self.keeper.end();
        }
        if !self.keeper.settle(|| self.ending.is_ending()) {
            let line = "fastcp: the disk is still writing the copied data; later disk errors are \
                        not reported (--fsync waits for the disk)";
            (self.sessions.tell)(line);
        }
    }

    /// Ends the copy, because the sender broke the protocol.
    pub(super) fn breach(&self, what: &str) {
        let message = format!("the sender broke the protocol: {what}");
        self.ending
            .end(Error::new(Kind::Breach, Side::Dest, message));
    }

    /// Sends a message to the sender. If the connection is lost, its reader reports that.
    pub(super) fn say(&self, message: Message) {
        let _ = self.control.send_blocking(message);
    }

    pub fn lock_streams(&self) -> MutexGuard<'_, HashMap<u16, CancellationToken>> {
        self.streams.lock()
    }
}

pub(super) fn changed(file: &OpenFile) -> Error {
    let what = "changed while it was copied: the digests of the whole file differ";
    Error::new(Kind::Changed, Side::Source, what).at(file.at.path())
}
