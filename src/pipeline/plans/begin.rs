//! What is begun next: a pack, or a piece of a big file, as large as suits what is left.

use std::sync::Arc;

use super::{Fresh, Landed, Open, State, Work};
use crate::chunk::ChunkKind;
use crate::pipeline::plan::{File, What};

impl State {
    /// Begins the next of what is planned: a pack, or the next piece of a file.
    pub(super) fn begin(&mut self) -> Option<Work> {
        if let Some(plan) = self.parts.pop_front() {
            return Some(Work::Chunk(plan));
        }
        let fresh = self.fresh.pop_front().or_else(|| {
            let members = self.answered.take()?;
            Some(Fresh::Pack(Arc::new(members)))
        });
        match fresh? {
            Fresh::Pack(members) => {
                self.members_in_flight += members.len();
                Some(Work::Chunk(self.number(What::Pack(members))))
            }
            Fresh::File(file) => Some(self.begin_piece(file)),
        }
    }

    fn begin_piece(&mut self, file: Arc<File>) -> Work {
        let is_last = self.is_last();
        let mut cut = file.cut.lock().expect("no panic while held");
        let most = match file.may_be_cut_finer() {
            true if is_last => gradual(self.begun).min(guided(cut.rest(), self.streams)),
            true => gradual(self.begun),
            false => u64::MAX,
        };
        // Where the holes cannot be told, reading tells why.
        let size = file.found.entry.size;
        let next_data = |at| file.source.next_data(at).unwrap_or(Some(at..size));
        let piece = cut.next(most, next_data);
        let is_done = cut.is_done();
        drop(cut);
        let Some(piece) = piece else {
            return Work::End(file);
        };
        self.begun += match piece.kind {
            ChunkKind::Zeros => 0,
            _ => u64::from(piece.len),
        };
        if !is_done {
            self.fresh.push_front(Fresh::File(file.clone()));
        }
        Work::Chunk(self.number(What::Piece { file, piece }))
    }

    /// Nothing is to be begun behind what is being begun.
    fn is_last(&self) -> bool {
        let is_waiting = |open: &Open| matches!(open, Open::Announced(_) | Open::Stream(..));
        self.planned
            && !self.has_planned()
            && self.asked.is_empty()
            && self.landed != Some(Landed::Ordered)
            && !self.open.values().any(is_waiting)
    }
}

/// Bytes of the next piece where `begun` of them were begun: little is under way in the wrong way
/// when the link and the data show.
fn gradual(begun: u64) -> u64 {
    begun / 4
}

/// Bytes of the next piece when `rest` of them are left to be shared by so many streams: half of
/// a stream's part, so that none has much to carry when the others are done, however unevenly the
/// link serves them. Polychronopoulos and Kuck, "Guided self-scheduling", 1987.
fn guided(rest: u64, streams: u64) -> u64 {
    rest / (2 * streams.max(1))
}
