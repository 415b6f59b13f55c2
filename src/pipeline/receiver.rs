//! Rows 8 to 13: from frames to files in place.
//!
//! Workers open, decode, verify and write; the [`placer`](super::placer) makes directories and
//! links and opens big files, in the order in which they were announced. A chunk is acknowledged
//! when it is verified and its write has returned.

use std::collections::HashMap;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::chunk::{Buffer, Chunk, ChunkKind, EncodedChunk, Pool};
use crate::codec::Decoder;
use crate::control::Outgoing;
use crate::dest::{self, JournalName, Rules, Slot, Standing};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result, Side};
use crate::journal::Journal;
use crate::manifest::{Entry, EntryId};
use crate::pipe::Stop;
use crate::pipeline::Ending;
use crate::pipeline::acks::Acks;
use crate::pipeline::digest_list::{DigestList, Listed};
use crate::pipeline::jobs::{Job, Jobs};
use crate::pipeline::keeper::Keeper;
use crate::pipeline::landing::{Sessions, Tell};
use crate::pipeline::names::Claim;
use crate::pipeline::open_file::{At, OpenFile};
use crate::pipeline::resume::{finished, identity_of_stream};
use crate::pipeline::shifts::{Doing, Shift, Shifts};
use crate::pipeline::table::{Node, Table};
use crate::pipeline::tally::Tally;
use crate::pipeline::verify::Checks;
use crate::progress::Progress;
use crate::seal::Opener;
use crate::wire::SealedChunk;
use crate::wire::message::{CopyOptions, Fault, Message};

/// Everything that the receiving end of one copy shares between its threads and tasks.
pub struct Receiver {
    pub options: CopyOptions,
    pub rules: Rules,
    pub chunk_size: u64,
    /// What pieces of files end at multiples of.
    pub grain: u64,
    pub pool: Pool,
    /// For pieces that are larger than a chunk, beyond the memory of the pool.
    pub large: Pool,
    /// Chunks of a stream that may be on their way, or here and not written, at once.
    pub window: usize,
    /// Ends what waits for a consumer.
    pub stop: Stop,
    /// Gets the lines that a consumer says.
    pub tell: Tell,
    pub opener: Opener,
    pub sessions: Sessions,
    pub jobs: Jobs,
    /// What earlier sessions left is read.
    pub checks: Checks,
    /// The sender says which files were just written, and sends ranges again that are found damaged.
    pub sender_tells: bool,
    pub control: Outgoing,
    pub acks: Acks,
    pub shifts: Arc<Shifts>,
    pub tally: Arc<Tally>,
    pub progress: Arc<Progress>,
    pub ending: Arc<Ending>,
    pub digests: Option<Arc<DigestList>>,
    pub table: Mutex<Table>,
    /// Set when it is known where the roots land, if there can be one.
    pub journal: OnceLock<Journal>,
    /// No entry gets the journal's name.
    pub journal_name: OnceLock<JournalName>,
    pub keeper: Keeper,
    /// Bytes of zeros that may still take room on the disk.
    pub fillable: AtomicU64,
    /// Bytes of the messages that wait for the placer.
    pub queued: AtomicUsize,
    /// The placer has done with one of them.
    pub emptied: Notify,
    /// Ends a stream on which something came that was not sealed with the session's key.
    pub streams: Mutex<HashMap<u16, CancellationToken>>,
}

/// What a worker has to itself.
pub struct Hands<'a> {
    decoder: Decoder,
    pub shift: Shift<'a>,
}

impl Hands<'_> {
    /// None if it is not what it was announced as.
    pub fn decode(&mut self, encoded: EncodedChunk) -> Option<Chunk> {
        self.shift.turn_to(Doing::Codec);
        let chunk = self.decoder.decode(encoded).ok();
        self.shift.turn_to(Doing::Rest);
        chunk
    }

    /// The same, of what is longer than a chunk.
    pub fn decode_into(&mut self, encoded: EncodedChunk, into: Buffer) -> Option<Chunk> {
        self.shift.turn_to(Doing::Codec);
        let chunk = self.decoder.decode_into(encoded, into).ok();
        self.shift.turn_to(Doing::Rest);
        chunk
    }
}

impl Receiver {
    /// A worker: carries chunks from frame to file until the copy ends.
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
                Job::Frame { .. } => Doing::Rest,
                _ => Doing::Disk,
            };
            hands.shift.turn_to(doing);
            match job {
                Job::Frame { stream, frame } => self.frame(stream, frame, &mut hands),
                Job::Pack(chunk) => self.pack(chunk),
                Job::Resume(resuming) => self.resume(*resuming),
                Job::Anew(anew) => self.open_anew(*anew),
                Job::Close(file) => self.close(&file),
            }
            hands.shift.turn_to(Doing::Nothing);
        }
    }

    fn frame(&self, stream: u16, frame: SealedChunk, hands: &mut Hands<'_>) {
        let (codec, wire_len) = (frame.header().codec.number(), frame.bytes().len());
        let Ok(encoded) = frame.open(&self.opener) else {
            // Not from our peer, or damaged on the way: its other chunks come again elsewhere.
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
                hands.shift.turn_to(Doing::Disk);
                self.compared(encoded);
            }
        }
    }

    /// A file has its name.
    pub(super) fn file_placed(
        &self,
        entry: &Entry,
        listed: Option<&Listed>,
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

    /// All of a file is there: it gets its name if the digests agree.
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

    /// Gives its digest, and what stands under its name where this copy has put it there.
    fn finish(&self, file: &OpenFile) -> Result<(Option<Digest>, Option<Standing>), Error> {
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
            let message = "is not what was sent: the digests of the whole differ";
            return Err(Error::new(Kind::Verify, Side::Dest, message).at(file.at.path()));
        }
        let length = file.claims.lock().expect("no panic while held").end();
        if (end.length != file.entry.size && !self.options.live && !file.is_stream())
            || (root.is_some() && end.root.is_some() && root != end.root)
        {
            return Err(changed(file));
        }
        if let Some(drain) = file.at.drain() {
            return drain.finish(length).map(|()| (root, None));
        }
        let partial = file.partial.lock().expect("no panic while held").take();
        // No claim is open, so no worker holds it any more.
        let mut partial = partial.and_then(Arc::into_inner).ok_or_else(|| {
            Error::new(Kind::Lost, Side::Dest, "is written still").at(file.at.path())
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

    /// A further session may find it in place. What is read like a stream and can be read again is
    /// read again then; and where a stream that cannot be is all there is, there is no such session.
    fn may_meet_again(&self, file: &OpenFile) -> bool {
        !file.is_stream() || file.entry.is_once() && !self.lock().has_one_root()
    }

    fn finish_compared(
        &self,
        file: &OpenFile,
        slot: &Slot,
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

    /// A file is in place, whose further names may come. Without `standing` it is what stands there
    /// now.
    pub(super) fn remember_linked(&self, entry: &Entry, slot: &Slot, standing: Option<&Standing>) {
        if entry.links <= 1 {
            return;
        }
        let inode = match standing {
            _ if slot.dir.lasting_number() == 0 => None,
            Some(standing) => Some((standing.dev, standing.ino)),
            None => match dest::standing(slot) {
                Ok(Some(standing)) => Some((standing.dev, standing.ino)),
                // Its further names find nothing either.
                Ok(None) | Err(_) => return,
            },
        };
        self.lock().linked.placed(entry, slot, inode);
    }

    pub(super) fn fail_file(&self, file: &OpenFile, error: Error) {
        if !file.closing.swap(true, AcqRel) {
            self.drop_partial(file);
            self.fail(file.entry.id, file.entry.parent, &error);
        }
    }

    /// The temporary goes with the last worker that writes to it.
    pub(super) fn drop_partial(&self, file: &OpenFile) {
        if let (Some(journal), Some(number)) = (self.journal(), file.number) {
            journal.dropped(number);
        }
        drop(file.partial.lock().expect("no panic while held").take());
        if let Some(drain) = file.at.drain() {
            drain.abandon();
        }
    }

    /// Refuses a name that this copy may not give, or that the file system takes for that of another
    /// entry. Asked again it says the same.
    pub(super) fn check_name(&self, entry: &Entry, slot: &Slot) -> Result<()> {
        self.rules.check_name(slot)?;
        let claim = || self.lock().claim_name(entry.id, entry.parent, &slot.name);
        let mut claimed = claim();
        if claimed == Claim::Ask {
            let spelling = dest::spelling(&slot.dir);
            self.lock().set_spelling(entry.parent, spelling);
            claimed = claim();
        }
        match claimed {
            Claim::Refused(why) => Err(Error::new(Kind::Refused, Side::Dest, why).at(slot.path())),
            // What it makes of names is known now.
            Claim::Yours | Claim::Ask => Ok(()),
        }
    }

    /// An entry failed here: tells the user, or the end that does.
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

    /// Accounts for an entry, and finishes the directories that have all their children then.
    pub(super) fn settle(&self, id: EntryId, parent: EntryId) {
        let full = self.lock().account(id, parent);
        self.finish_directories(full);
    }

    pub(super) fn finish_directories(&self, mut full: Option<Node>) {
        while let Some(Node {
            directory, entry, ..
        }) = full
        {
            if let Some(directory) = directory
                && let Err(error) = directory.finish(&entry, &self.rules)
            {
                self.tally.add(&error);
                self.say(Message::Fault(Fault::of(&error, 0, 0)));
            }
            let mut table = self.lock();
            table.finished();
            full = table.child_settled(entry.parent);
        }
        let table = self.lock();
        if table.is_done() {
            drop(table);
            self.settle_keeper();
            self.journal_done();
            if let Some(list) = &self.digests {
                list.tell_rest();
            }
            self.acks.finish();
        } else if table.is_stuck() {
            self.breach("a directory that has less in it than was said");
        } else if table.is_scattered() {
            self.breach("it sends more at once than it may");
        }
    }

    /// Waits for a sync beside the copy, which may tell of an error. With `--fsync` each file has
    /// told of its own.
    fn settle_keeper(&self) {
        if self.rules.fsync {
            return self.keeper.end();
        }
        if !self.keeper.settle(|| self.ending.is_ending()) {
            let line = "fastcp: the disk is still writing what was copied; an error that it meets \
                        from now on is not told (--fsync waits for the disk)";
            (self.sessions.tell)(line);
        }
    }

    /// The sender said what no sender says: the copy ends.
    pub(super) fn breach(&self, what: &str) {
        let message = format!("the sender broke the protocol: {what}");
        self.ending
            .end(Error::new(Kind::Breach, Side::Dest, message));
    }

    /// Tells the sender; a connection that is lost is its reader's to report.
    pub(super) fn say(&self, message: Message) {
        let _ = self.control.send_blocking(message);
    }

    pub fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no panic while held")
    }

    pub fn lock_streams(&self) -> MutexGuard<'_, HashMap<u16, CancellationToken>> {
        self.streams.lock().expect("no panic while held")
    }
}

pub(super) fn changed(file: &OpenFile) -> Error {
    let what = "changed while it was copied: the digests of the whole differ";
    Error::new(Kind::Changed, Side::Source, what).at(file.at.path())
}
