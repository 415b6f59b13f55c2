//! Rows 1 to 7: from the walk to frames on the streams' queue.
//!
//! One thread walks and plans; workers read, encode, frame and seal; streams take frames. Nothing
//! here waits for the network but through the queue of frames and the pool.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use tokio::sync::Notify;

use crate::chunk::{Buffer, Chunk, ChunkKind, EncodedChunk, Place, Pool};
use crate::codec::{Codec, Encoder};
use crate::control::Outgoing;
use crate::digest::{self, Digest};
use crate::error::{Error, Kind, Side};
use crate::pipeline::digest_list::DigestList;
use crate::pipeline::plan::{File, Member, Plan, What};
use crate::pipeline::plans::{Ended, NACKS_MAX, Plans};
use crate::pipeline::tally::Tally;
use crate::pipeline::{Budget, Ending};
use crate::progress::{Phase, Progress};
use crate::seal::Sealer;
use crate::source::{self, Found, SourceFile, Unpacked};
use crate::units::printable;
use crate::wire::SealedChunk;
use crate::wire::message::{CopyOptions, EntryEnd, Fault, Message};

/// Everything that the sending end of one copy shares between its threads and tasks.
pub struct Sender {
    pub plans: Plans,
    pub options: CopyOptions,
    pub chunk_size: usize,
    pub pool: Pool,
    pub sealer: Sealer,
    /// Frames that no stream has taken yet.
    pub frames: async_channel::Sender<SealedChunk>,
    pub control: Outgoing,
    pub tally: Arc<Tally>,
    pub progress: Arc<Progress>,
    pub ending: Arc<Ending>,
    pub digests: Option<Arc<DigestList>>,
    /// The receiver said that everything is in place.
    pub done: Notify,
}

/// Frames that wait for a stream, per stream: one being written and one behind it.
const FRAMES_PER_STREAM: usize = 2;

/// The queue between workers and streams.
pub fn frame_queue(
    budget: Budget,
) -> (
    async_channel::Sender<SealedChunk>,
    async_channel::Receiver<SealedChunk>,
) {
    async_channel::bounded(FRAMES_PER_STREAM * usize::from(budget.streams))
}

impl Sender {
    /// A worker: carries chunks from plan to frame until the copy ends.
    pub fn work(&self) {
        let mut encoder = Encoder::new(self.chunk_size);
        while let Ok(plan) = self.plans.next() {
            let Ok(buffer) = self.pool.take_blocking() else {
                return;
            };
            let Some(frame) = self.carry(&plan, buffer, &mut encoder) else {
                continue;
            };
            if self.frames.send_blocking(frame).is_err() {
                return;
            }
            if self.plans.is_all_taken() {
                self.progress.set_phase(Phase::Flushing);
            }
        }
    }

    /// Read, encode, frame, seal. None if nothing is to be sent (any more).
    fn carry(&self, plan: &Plan, buffer: Buffer, encoder: &mut Encoder) -> Option<SealedChunk> {
        if plan.nacks.load(Relaxed) >= NACKS_MAX {
            self.give_up(plan);
            return None;
        }
        let (chunk, digest) = match &plan.what {
            What::Piece { file, .. } => self.read_piece(plan, file, buffer)?,
            What::Pack(members) => self.read_pack(plan, members, buffer)?,
        };
        let encoded = match chunk.place.kind {
            ChunkKind::Zeros => {
                let Chunk { place, buffer } = chunk;
                EncodedChunk {
                    place,
                    digest,
                    codec: Codec::None.number(),
                    buffer,
                }
            }
            _ => encoder.encode(chunk, self.options.compress, digest),
        };
        Some(SealedChunk::seal(encoded, &self.sealer))
    }

    /// The chunk does not arrive whole, however often it is sent.
    fn give_up(&self, plan: &Plan) {
        let error = Error::new(Kind::Verify, Side::Dest, "arrived damaged again and again");
        match &plan.what {
            What::Piece { file, .. } => self.fail_file(file, error.at(file.found.path())),
            What::Pack(members) => {
                self.plans.settle_chunks(plan.chunk..plan.chunk + 1);
                for member in members.iter() {
                    self.fail_member(member, error.clone().at(member.found.path()));
                }
            }
        }
    }

    /// Reads one piece of a big file; in the first reading its digest joins the file's tree.
    fn read_piece(
        &self,
        plan: &Plan,
        file: &Arc<File>,
        mut buffer: Buffer,
    ) -> Option<(Chunk, Digest)> {
        let What::Piece { piece, .. } = &plan.what else {
            return None;
        };
        if file.failed.load(Relaxed) {
            self.plans.settle_chunks(plan.chunk..plan.chunk + 1);
            return None;
        }
        let entry = &file.found.entry;
        let mut place = Place {
            kind: piece.kind,
            chunk: plan.chunk,
            entry: entry.id,
            offset: piece.offset,
            raw_len: piece.len,
        };
        let whole = u64::from(piece.len) == entry.size;
        let digest = if piece.kind == ChunkKind::Zeros {
            buffer.set_len(0);
            // Its place is authenticated; what a tree needs is worked out below.
            [0; 32]
        } else {
            if let Err(error) = file
                .source
                .read(piece.offset, piece.len as usize, &mut buffer)
            {
                self.fail_file(file, error);
                return None;
            }
            let digest = digest::of_range(buffer.data(), piece.offset, whole);
            if is_zero(buffer.data()) {
                place.kind = ChunkKind::Zeros;
                buffer.set_len(0);
            }
            digest
        };
        if file.digest_only {
            // Nothing of it is sent, and what ends the entry must find it settled.
            self.plans.settle_chunks(plan.chunk..plan.chunk + 1);
        }
        let is_first = plan.digest.set(digest).is_ok();
        if is_first {
            self.cover(file, piece.kind, place, digest);
        } else if plan.digest.get() != Some(&digest) {
            self.fail_file(file, written(file.found.path()));
            return None;
        }
        if file.digest_only {
            return None;
        }
        Some((Chunk { place, buffer }, digest))
    }

    /// Adds what was read to the file's tree; when that was the last of it, ends the entry.
    fn cover(&self, file: &Arc<File>, kind: ChunkKind, place: Place, digest: Digest) {
        let len = u64::from(place.raw_len);
        if let Some(tree) = &file.tree {
            let mut tree = tree.lock().expect("no panic while held");
            match kind {
                ChunkKind::Zeros => tree.add_zeros(place.offset, len),
                _ => tree.add(place.offset, digest),
            };
        }
        if file.covered.fetch_add(len, AcqRel) + len != file.found.entry.size {
            return;
        }
        if let Err(error) = file.source.unchanged() {
            self.fail_file(file, error);
            return;
        }
        let root = file.root();
        let end = EntryEnd {
            entry: file.found.entry.id,
            length: file.found.entry.size,
            root,
        };
        self.say(Message::EntryEnd(vec![end]));
    }

    /// Reads the members of a pack, those left out that failed before.
    fn read_pack(
        &self,
        plan: &Plan,
        members: &[Member],
        mut buffer: Buffer,
    ) -> Option<(Chunk, Digest)> {
        if let Some(first) = members.first() {
            self.progress
                .start_name(first.found.entry.id, printable(first.found.name.as_bytes()));
        }
        let live: Vec<&Member> = members.iter().filter(|m| !m.failed.load(Relaxed)).collect();
        let founds = live.iter().map(|member| &member.found);
        let read = source::read_pack(founds, &mut buffer);
        if read.packed.is_empty() {
            // Before the receiver hears of it: it may be done then, and so must we be.
            self.plans.settle_chunks(plan.chunk..plan.chunk + 1);
        }
        for (index, why) in read.left_out {
            match why {
                Unpacked::Failed(error) => self.fail_member(live[index], error),
                Unpacked::Grew => self.send_alone(live[index]),
            }
        }
        for &(index, digest) in &read.packed {
            if *live[index].digest.get_or_init(|| digest) != digest {
                self.fail_member(live[index], written(live[index].found.path()));
            }
        }
        let place = Place {
            kind: ChunkKind::Pack,
            chunk: plan.chunk,
            entry: 0,
            offset: 0,
            raw_len: read.raw_len,
        };
        if read.packed.is_empty() {
            return None;
        }
        Some((Chunk { place, buffer }, read.digest))
    }

    /// A member that has outgrown its pack goes as a big file.
    fn send_alone(&self, member: &Member) {
        if member.failed.swap(true, Relaxed) {
            return;
        }
        match SourceFile::open(&member.found) {
            Ok(source) => {
                let entry = source.found().entry.clone();
                self.plans
                    .announce_now(entry.id, source, member.listed.clone());
                self.say(Message::Entries(vec![entry]));
            }
            Err(error) => self.fail(&member.found, error),
        }
    }
}

impl Sender {
    /// Tells the receiver; a connection that is lost is its reader's to report.
    fn say(&self, message: Message) {
        let _ = self.control.send_blocking(message);
    }

    pub(super) fn say_or_end(&self, message: Message) -> Result<(), Ended> {
        self.control.send_blocking(message).map_err(|_| Ended)
    }

    /// This end failed a big file: tells both.
    fn fail_file(&self, file: &File, error: Error) {
        if !file.failed.swap(true, Relaxed) {
            self.plans.close(file.found.entry.id);
            self.fail(&file.found, error);
        }
    }

    fn fail_member(&self, member: &Member, error: Error) {
        if !member.failed.swap(true, Relaxed) {
            self.fail(&member.found, error);
        }
    }

    pub(super) fn fail(&self, found: &Found, error: Error) {
        let entry = &found.entry;
        self.tally.add(&error);
        self.plans.entry_failed(entry.id);
        self.progress.end_name(entry.id);
        self.say(Message::Fault(Fault::of(&error, entry.id, entry.parent)));
    }

    /// Something failed that the receiver never heard of, and need not but to tell the user.
    pub(super) fn fail_unannounced(&self, error: &Error) {
        self.tally.add(error);
        self.say(Message::Fault(Fault::of(error, 0, 0)));
    }
}

fn written(path: impl AsRef<Path>) -> Error {
    Error::new(
        Kind::Changed,
        Side::Source,
        "was written while it was copied",
    )
    .at(path)
}

fn is_zero(data: &[u8]) -> bool {
    // The comparison of a slice with itself, shifted by one, is a memcmp: as fast as memory.
    data.first() == Some(&0) && data[1..] == data[..data.len() - 1]
}
