//! The next chunk to begin: a pack, or a piece of a big file, in a size that suits the data left.

use std::sync::Arc;

use super::{AnnouncedFile, NextTask, ReadyChunk, Scheduler, SchedulerState, SmallFileMode};
use crate::chunk::ChunkKind;
use crate::pipeline::send::plan::{PlannedContent, SendFile};

/// What a worker gets.
pub(super) enum NextChunk {
    Work(NextTask),
    /// The worker must look for the data of this file from this offset on.
    Look(Arc<SendFile>, u64),
}

impl Scheduler {
    /// Looks for the next data of a file. No lock is held, since the disk may take its time.
    pub(super) fn look(&self, file: Arc<SendFile>, from: u64) {
        let found = &file.source.found().entry;
        // If the file system cannot report holes, the reading reports why.
        let (id, rest) = (found.id, Some(from..found.size));
        let data = file.source.next_data(from).unwrap_or(rest);
        let mut cut = file.cut.lock();
        // In the meantime the receiver may have asked for earlier ranges.
        if cut.unknown_from() == Some(from) {
            cut.set_data(data);
        }
        drop(cut);
        let mut state = self.state.lock();
        state.looking -= 1;
        // In the meantime the file may have failed, or may be read again from its start.
        let is_sent = |open: &AnnouncedFile| matches!(open, AnnouncedFile::Sending(sent) if Arc::ptr_eq(sent, &file));
        if state.open.get(&id).is_some_and(is_sent) && !state.is_planned(&file) {
            state.fresh.push_front(ReadyChunk::File(file.clone()));
        }
        drop(state);
        self.wake();
    }
}

impl SchedulerState {
    /// Begins the next planned chunk. None if nothing is planned.
    pub(super) fn begin(&mut self) -> Option<NextChunk> {
        if let Some(plan) = self.parts.pop_front() {
            return Some(NextChunk::Work(NextTask::Chunk(plan)));
        }
        let fresh = self.fresh.pop_front();
        let fresh = fresh.or_else(|| self.damaged_pack()).or_else(|| {
            let members = self.answered.take()?;
            Some(ReadyChunk::Pack(Arc::new(members)))
        });
        Some(match fresh? {
            ReadyChunk::Pack(members) => {
                let what = self.put_together(members);
                self.begin_pack(what)
            }
            ReadyChunk::Alone(members) => self.begin_pack(PlannedContent::Pack(members)),
            ReadyChunk::File(file) => self.begin_piece(file),
            ReadyChunk::Piece(file, piece) => NextChunk::Work(NextTask::Chunk(
                self.number(PlannedContent::Piece { file, piece }),
            )),
        })
    }

    fn begin_pack(&mut self, what: PlannedContent) -> NextChunk {
        self.members_in_flight += what.members().count();
        NextChunk::Work(NextTask::Chunk(self.number(what)))
    }

    fn begin_piece(&mut self, file: Arc<SendFile>) -> NextChunk {
        let is_last = self.is_last();
        let mut cut = file.cut.lock();
        if let Some(from) = cut.unknown_from() {
            drop(cut);
            self.looking += 1;
            return NextChunk::Look(file, from);
        }
        let most = match file.may_be_cut_finer() {
            true if is_last => gradual(self.begun).min(guided(cut.rest(), self.streams)),
            true => gradual(self.begun),
            false => u64::MAX,
        };
        let longest = self.chunks_in_piece(&file) * cut.chunk_size();
        let piece = cut.next_up_to(longest, most, |_| None);
        let chunk_size = cut.chunk_size();
        let is_done = cut.is_done();
        drop(cut);
        let Some(piece) = piece else {
            return NextChunk::Work(NextTask::End(file));
        };
        self.begun += match piece.kind {
            ChunkKind::Zeros => 0,
            _ => u64::from(piece.len),
        };
        if piece.kind == ChunkKind::Range && u64::from(piece.len) > chunk_size {
            self.begin_large();
        }
        if !is_done {
            self.fresh.push_front(ReadyChunk::File(file.clone()));
        }
        NextChunk::Work(NextTask::Chunk(
            self.number(PlannedContent::Piece { file, piece }),
        ))
    }

    /// True if nothing else is left to begin.
    fn is_last(&self) -> bool {
        let is_waiting = |open: &AnnouncedFile| {
            matches!(open, AnnouncedFile::Announced(_) | AnnouncedFile::Pipe(..))
        };
        self.planned
            && !self.has_planned()
            && self.looking == 0
            && self.asked.is_empty()
            && self.landed != Some(SmallFileMode::Ordered)
            && !self.open.values().any(is_waiting)
    }
}

/// The size in bytes of the next piece, when `begun` bytes have begun. Pieces start small, so that
/// few bytes are in flight with the wrong settings when the link and the data become known.
fn gradual(begun: u64) -> u64 {
    begun / 4
}

/// The size in bytes of the next piece, when `rest` bytes are left for these connections: half of
/// a connection's share. So no connection has much left to carry when the others are done, however
/// unevenly the link serves them. Polychronopoulos and Kuck, "Guided self-scheduling", 1987.
fn guided(rest: u64, streams: u64) -> u64 {
    rest / (2 * streams.max(1))
}
