//! Rows 8 to 13: from frames to files in place.
//!
//! Workers open, decode, verify and write; the [`placer`](super::placer) makes directories and
//! links and opens big files, in the order in which they were announced. A chunk is acknowledged
//! when it is verified and its write has returned.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::chunk::claims::Claim;
use crate::chunk::{ChunkKind, EncodedChunk, Place, Pool, VerifiedChunk};
use crate::codec::Decoder;
use crate::control::Outgoing;
use crate::dest::{self, Rules};
use crate::digest::{self, Digest};
use crate::error::{Error, Kind, Side};
use crate::journal::Journal;
use crate::manifest::{Entry, EntryId};
use crate::pipeline::Ending;
use crate::pipeline::acks::Acks;
use crate::pipeline::digest_list::{DigestList, Listed};
use crate::pipeline::keeper::Keeper;
use crate::pipeline::plans::{NACKS_MAX, UNACKED_MAX};
use crate::pipeline::resume::{Resuming, finished};
use crate::pipeline::table::{Node, OpenFile, Table};
use crate::pipeline::tally::Tally;
use crate::progress::Progress;
use crate::seal::Opener;
use crate::wire::SealedChunk;
use crate::wire::message::{CopyOptions, Fault, Message};

/// Work for the workers. Frames are bounded by the pool, the others by open entries.
pub enum Job {
    Frame {
        stream: u16,
        frame: SealedChunk,
    },
    /// A pack whose directories were not known when it came.
    Pack(VerifiedChunk),
    /// A file of which an earlier run may have left something.
    Resume(Box<Resuming>),
    Close(Arc<OpenFile>),
}

/// Gaps between the pieces of one file: each is a chunk that its sender still waits for.
const PIECES_SCATTERED_MAX: usize = 4 * UNACKED_MAX;

/// What became of a piece that was claimed.
enum Piece {
    Written,
    /// It is to be sent again.
    Damaged,
    /// Its file has failed meanwhile.
    Late,
}

/// Everything that the receiving end of one copy shares between its threads and tasks.
pub struct Receiver {
    pub options: CopyOptions,
    pub rules: Rules,
    pub chunk_size: u64,
    pub pool: Pool,
    pub opener: Opener,
    pub jobs: async_channel::Sender<Job>,
    pub control: Outgoing,
    pub acks: Acks,
    pub tally: Arc<Tally>,
    pub progress: Arc<Progress>,
    pub ending: Arc<Ending>,
    pub digests: Option<Arc<DigestList>>,
    pub table: Mutex<Table>,
    /// Set when it is known where the roots land, if there can be one.
    pub journal: OnceLock<Journal>,
    pub keeper: Keeper,
    /// The sender broke the protocol: what came of it is not kept.
    pub breached: AtomicBool,
    /// Bytes of the messages that wait for the placer.
    pub queued: AtomicUsize,
    /// Ends a stream on which something came that was not sealed with the session's key.
    pub streams: Mutex<HashMap<u16, CancellationToken>>,
}

impl Receiver {
    /// A worker: carries chunks from frame to file until the queue is closed.
    pub fn work(&self, jobs: &async_channel::Receiver<Job>) {
        let mut decoder = Decoder::new(self.chunk_size as usize);
        while let Ok(job) = jobs.recv_blocking() {
            if self.ending.is_ending() {
                continue; // What is queued is dropped, and its buffers with it.
            }
            match job {
                Job::Frame { stream, frame } => self.frame(stream, frame, &mut decoder),
                Job::Pack(chunk) => self.pack(chunk),
                Job::Resume(resuming) => self.resume(*resuming),
                Job::Close(file) => self.close(&file),
            }
        }
    }

    fn frame(&self, stream: u16, frame: SealedChunk, decoder: &mut Decoder) {
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
        match encoded.place.kind {
            ChunkKind::Pack => self.encoded_pack(encoded, decoder),
            ChunkKind::Range | ChunkKind::Zeros => self.piece(encoded, decoder),
            ChunkKind::Digest => self.compared(encoded),
        }
    }

    /// A piece of a big file: claimed, decoded, verified, written, acknowledged.
    fn piece(&self, encoded: EncodedChunk, decoder: &mut Decoder) {
        let (place, digest) = (encoded.place, encoded.digest);
        let Some(file) = self.claimed(place) else {
            return;
        };
        let written = self.write_piece(encoded, &file, decoder);
        if !matches!(written, Ok(Piece::Written)) {
            // It was claimed above, so it can be released. Before it is asked for again: what
            // comes while it is claimed is dropped.
            let _ = file
                .claims
                .lock()
                .expect("no panic while held")
                .release(place.offset);
        }
        match written {
            Ok(Piece::Written) => {}
            Ok(Piece::Damaged) => return self.damaged(place.chunk),
            Ok(Piece::Late) => return,
            Err(error) => return self.fail_file(&file, error),
        }
        let len = u64::from(place.raw_len);
        if place.kind == ChunkKind::Zeros {
            if let Some(tree) = &file.tree {
                tree.lock()
                    .expect("no panic while held")
                    .add_zeros(place.offset, len);
            }
            self.progress.add_skipped(len);
        } else {
            self.progress.add_bytes(len);
        }
        let digest = (place.kind != ChunkKind::Zeros).then_some(digest);
        self.piece_done(&file, place, digest);
    }

    /// The file of a piece, if the piece is this worker's to write.
    fn claimed(&self, place: Place) -> Option<Arc<OpenFile>> {
        // Of an entry that is in place, failed or unknown: dropped. Its sender needs no answer.
        let file = self.lock().files.get(&place.entry).cloned()?;
        if place.chunk < file.first_chunk {
            return None;
        }
        let claim = file
            .claims
            .lock()
            .expect("no panic while held")
            .claim_range(place.offset, u64::from(place.raw_len));
        match claim {
            Ok(Claim::Yours) => return Some(file),
            Ok(Claim::Taken) => {}
            Ok(Claim::Done) => self.acks.chunk(place.chunk),
            Err(_) => self.breach("a range that the file does not have"),
        }
        None
    }

    /// A piece that was claimed is there: recorded, then acknowledged.
    fn piece_done(&self, file: &Arc<OpenFile>, place: Place, digest: Option<Digest>) {
        if let (Some(journal), Some(number)) = (self.journal(), file.number) {
            journal.chunk(number, place.offset, u64::from(place.raw_len), digest);
        }
        let is_scattered = {
            let mut claims = file.claims.lock().expect("no panic while held");
            let _ = claims.done(place.offset);
            claims.fragments() > PIECES_SCATTERED_MAX
        };
        if is_scattered {
            return self.breach("it sends a file in more pieces at once than it may");
        }
        self.acks.chunk(place.chunk);
        self.lock().chunk_done(place.chunk);
        if file.is_complete() {
            self.close(file);
        }
    }

    /// The digest of a piece that may be there: if it is, the piece is done, else it is to be sent.
    fn compared(&self, encoded: EncodedChunk) {
        let EncodedChunk {
            place,
            digest,
            mut buffer,
            ..
        } = encoded;
        let Some(file) = self.claimed(place) else {
            return;
        };
        let partial = file.partial.lock().expect("no panic while held").clone();
        let len = place.raw_len as usize;
        let fits = len as u64 <= self.chunk_size && len <= buffer.capacity();
        let same = partial
            .filter(|_| file.offered && fits)
            .is_some_and(|partial| {
                buffer.set_len(len);
                let data = &mut buffer.room()[..len];
                partial.read(data, place.offset).is_ok()
                    && digest::of_range(data, place.offset, len as u64 == file.entry.size) == digest
            });
        if !same {
            // It was claimed above, so it can be released.
            let _ = file
                .claims
                .lock()
                .expect("no panic while held")
                .release(place.offset);
            return match file.offered && fits {
                true => self.say(Message::Nack(vec![place.chunk])),
                false => self.breach("a digest that was not asked for"),
            };
        }
        drop(buffer);
        if let Some(tree) = &file.tree {
            tree.lock()
                .expect("no panic while held")
                .add(place.offset, digest);
        }
        self.progress.add_resumed(len as u64);
        self.piece_done(&file, place, Some(digest));
    }

    /// Verifies and writes what was claimed. The partial is held only while there is a claim, so
    /// that whoever commits the file, when no claim is open, holds it alone.
    fn write_piece(
        &self,
        encoded: EncodedChunk,
        file: &OpenFile,
        decoder: &mut Decoder,
    ) -> Result<Piece, Error> {
        let (place, digest) = (encoded.place, encoded.digest);
        let partial = file.partial.lock().expect("no panic while held").clone();
        let Some(partial) = partial else {
            return Ok(Piece::Late);
        };
        if place.kind == ChunkKind::Zeros {
            partial.write_zeros(place.offset, u64::from(place.raw_len))?;
            return Ok(Piece::Written);
        }
        let whole = u64::from(place.raw_len) == file.entry.size;
        let chunk = decoder.decode(encoded).ok();
        let Some(chunk) = chunk.and_then(|chunk| chunk.verify(digest, whole).ok()) else {
            return Ok(Piece::Damaged);
        };
        partial.write(&chunk)?;
        self.add_to_tree(file, place, &chunk);
        Ok(Piece::Written)
    }

    /// Asks for a chunk again, unless its sender goes on where an honest one gives it up.
    pub(super) fn damaged(&self, chunk: u64) {
        if self.lock().count_damage(chunk) > NACKS_MAX {
            let error = Error::new(Kind::Verify, Side::Dest, "arrived damaged again and again");
            return self.ending.end(error);
        }
        self.say(Message::Nack(vec![chunk]));
    }

    fn add_to_tree(&self, file: &OpenFile, place: Place, chunk: &VerifiedChunk) {
        if let Some(tree) = &file.tree {
            tree.lock()
                .expect("no panic while held")
                .add(place.offset, chunk.digest());
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
        }
        self.acks.entry(entry.id);
        self.settle(entry.id, entry.parent);
    }

    /// All of a file is there: it gets its name if the digests agree.
    fn close(&self, file: &Arc<OpenFile>) {
        if file.closing.swap(true, AcqRel) {
            return;
        }
        match self.finish(file) {
            Ok(digest) => {
                if file.entry.links > 1 {
                    self.lock().links.insert(file.entry.id, file.slot.clone());
                }
                self.file_placed(&file.entry, file.listed.as_ref(), || {
                    digest.unwrap_or_default()
                });
            }
            Err(error) => self.fail(file.entry.id, file.entry.parent, &error),
        }
    }

    fn finish(&self, file: &OpenFile) -> Result<Option<Digest>, Error> {
        let Some(end) = file.end.get() else {
            return Err(
                Error::new(Kind::Lost, Side::Dest, "ended before its time").at(file.slot.path())
            );
        };
        if file.compare {
            return self.finish_compared(file, end.root);
        }
        let root = file.root();
        let length = file.claims.lock().expect("no panic while held").end();
        if (end.length != file.entry.size && !self.options.live)
            || (root.is_some() && end.root.is_some() && root != end.root)
        {
            return Err(changed(file));
        }
        let partial = file.partial.lock().expect("no panic while held").take();
        // No claim is open, so no worker holds it any more.
        let partial = partial.and_then(Arc::into_inner).ok_or_else(|| {
            Error::new(Kind::Lost, Side::Dest, "is written still").at(file.slot.path())
        })?;
        let partial = match length < file.entry.size {
            true => partial.shortened(length)?,
            false => partial,
        };
        let standing = partial.commit()?;
        if let Some(journal) = self.journal() {
            let digest = root.or(end.root);
            let record = finished(file.path, &file.entry, file.young, &standing, digest);
            journal.finished(&[record]);
        }
        Ok(root)
    }

    fn finish_compared(
        &self,
        file: &OpenFile,
        root: Option<Digest>,
    ) -> Result<Option<Digest>, Error> {
        if let Some(known) = file.known {
            return match root == Some(known) {
                true => Ok(root),
                false => Err(changed(file)),
            };
        }
        let same = root.is_some() && dest::digest_of(&file.slot)? == root;
        self.progress.add_skipped(file.entry.size);
        if same {
            Ok(root)
        } else {
            Err(dest::exists_with_other_content(&file.slot))
        }
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
    }

    /// An entry failed here: tells the user, or the end that does.
    pub(super) fn fail(&self, id: EntryId, parent: EntryId, error: &Error) {
        self.tally.add(error);
        self.progress.end_name(id);
        self.say(Message::Fault(Fault::of(error, id, parent)));
        self.settle(id, parent);
    }

    pub(super) fn lost_with_directory(&self, entry: &Entry) {
        self.progress.add_failed();
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
            self.journal_done();
            self.acks.finish();
        } else if table.is_stuck() {
            self.breach("a directory that has less in it than was said");
        } else if table.is_scattered() {
            self.breach("it sends more at once than it may");
        }
    }

    /// The sender said what no sender says: the copy ends.
    pub(super) fn breach(&self, what: &str) {
        self.breached.store(true, Relaxed);
        let message = format!("the sender broke the protocol: {what}");
        self.ending.end(Error::new(Kind::Lost, Side::Dest, message));
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

fn changed(file: &OpenFile) -> Error {
    let what = "changed while it was copied: the digests of the whole differ";
    Error::new(Kind::Changed, Side::Source, what).at(file.slot.path())
}
