//! Chunks that are ready to begin: packs, the rest of each big file, and parts of pipes. A big file
//! is cut into pieces of a size that suits the data left. On a slow link several packs, or several
//! chunks of a file, become one, which compresses better. If the result does not fit into a frame,
//! its parts are sent separately, each with a separate number.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::chunk::split::{FilePiece, Gathering};
use crate::chunk::{ChunkKind, LARGE_PACK, LARGE_PIECE};
use crate::manifest::EntryId;
use crate::pipeline::send::plan::{PackMember, Plan, PlannedContent, SendFile};

enum ReadyChunk {
    Pack(Arc<Vec<PackMember>>),
    /// A part of a large pack, sent separately.
    Alone(Arc<Vec<PackMember>>),
    File(Arc<SendFile>),
    /// A part of a large piece, sent separately.
    Piece(Arc<SendFile>, FilePiece),
}

impl ReadyChunk {
    fn can_begin(&self) -> bool {
        match self {
            ReadyChunk::File(file) => !file.comparison.awaits_answers(),
            ReadyChunk::Pack(_) | ReadyChunk::Alone(_) | ReadyChunk::Piece(..) => true,
        }
    }
}

/// The next step of a worker.
pub(super) enum NextStep {
    /// Begin a chunk with this content.
    Begin(PlannedContent),
    /// Only the end of this file is to be sent.
    End(Arc<SendFile>),
    /// Look for the data of this file from this offset on.
    Look(Arc<SendFile>, u64),
}

/// What the size of the next chunk depends on.
pub(super) struct NextTerms {
    /// The number that it gets.
    pub number: u64,
    /// Nothing else is left to begin.
    pub is_last: bool,
    /// The walk is over.
    pub is_planned: bool,
    /// Chunks leave the receiver in order.
    pub is_ordered: bool,
}

#[derive(Default)]
pub(super) struct ReadyChunks {
    fresh: VecDeque<ReadyChunk>,
    /// Parts of pipes that were read and that no worker has taken yet.
    parts: VecDeque<Arc<Plan>>,
    /// Small files that the receiver wants, not yet in a full pack.
    gathered: Gathering<PackMember>,
    /// Workers that are looking for a file's next data.
    looking: usize,
    /// Bytes of the pieces begun so far, without holes.
    begun: u64,
    /// Connections that share the frames; 0 if unknown.
    connections: u64,
    large: LargeChunks,
}

/// How packs and pieces are merged.
#[derive(Default)]
struct LargeChunks {
    /// How many packs the tuner wants to merge.
    packs: usize,
    /// The most large packs and pieces that may be read and compressed at once, limited by memory.
    at_work_max: usize,
    /// The receiver accepts large pieces.
    takes_pieces: bool,
    /// Chunk numbers of the large packs and pieces at work.
    at_work: BTreeSet<u64>,
}

impl ReadyChunks {
    /// `large_max` limits the large packs and pieces that are compressed at once. There are large
    /// pieces only if `takes_pieces`.
    pub(super) fn of(large_max: usize, takes_pieces: bool) -> ReadyChunks {
        let mut ready = ReadyChunks::default();
        ready.large.at_work_max = large_max;
        ready.large.takes_pieces = takes_pieces;
        ready
    }

    /// Sets the tuner's decisions: how many connections share the rest, and how many packs are
    /// merged.
    pub(super) fn steer(&mut self, connections: u16, packs: u16) {
        self.share_among(connections);
        self.large.packs = packs.into();
    }

    pub(super) fn share_among(&mut self, connections: u16) {
        self.connections = connections.into();
    }

    /// Packs and files that are planned and not begun.
    pub(super) fn len(&self) -> usize {
        self.fresh.len()
    }

    /// True if there is something to begin in any order, now or after a look.
    pub(super) fn has_any(&self) -> bool {
        self.has_parts() || self.looking > 0 || self.has_planned()
    }

    /// True if something is planned, besides parts of pipes.
    fn has_planned(&self) -> bool {
        !self.fresh.is_empty() || !self.gathered.is_empty()
    }

    /// True if some of it can begin now.
    pub(super) fn can_begin(&self) -> bool {
        self.has_fresh() || !self.gathered.is_empty()
    }

    /// True if a pack or file can begin now. Some files wait for answers, few at a time.
    pub(super) fn has_fresh(&self) -> bool {
        self.fresh.iter().any(ReadyChunk::can_begin)
    }

    pub(super) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    pub(super) fn is_looking(&self) -> bool {
        self.looking > 0
    }

    /// True if nothing is left to begin after the next chunk or file.
    pub(super) fn is_last(&self) -> bool {
        self.fresh.len() <= 1 && self.gathered.is_empty() && self.looking == 0
    }

    pub(super) fn add_pack(&mut self, members: Vec<PackMember>) {
        self.fresh.push_back(ReadyChunk::Pack(Arc::new(members)));
    }

    /// Adds a small file to the pack that is being gathered. Returns true if the pack is full.
    pub(super) fn gather(&mut self, member: PackMember) -> bool {
        let (size, name_len) = (member.found.entry.size, member.row_len());
        let full = self.gathered.add(member, size, name_len);
        let is_full = full.is_some();
        full.into_iter().for_each(|pack| self.add_pack(pack));
        is_full
    }

    pub(super) fn add_file(&mut self, file: Arc<SendFile>) {
        self.fresh.push_back(ReadyChunk::File(file));
    }

    /// Adds a part of a pipe, which has its number already.
    pub(super) fn add_part(&mut self, part: Arc<Plan>) {
        self.parts.push_back(part);
    }

    pub(super) fn pop_part(&mut self) -> Option<Arc<Plan>> {
        self.parts.pop_front()
    }

    /// True if the rest of a file is planned. Planned twice, it would end early.
    pub(super) fn is_planned(&self, file: &Arc<SendFile>) -> bool {
        let is_this =
            |fresh: &ReadyChunk| matches!(fresh, ReadyChunk::File(it) if Arc::ptr_eq(it, file));
        self.fresh.iter().any(is_this)
    }

    /// A worker has looked for a file's data. `goes_on` if the file is still being sent.
    pub(super) fn looked(&mut self, file: &Arc<SendFile>, goes_on: bool) {
        self.looking -= 1;
        if goes_on && !self.is_planned(file) {
            self.fresh.push_front(ReadyChunk::File(file.clone()));
        }
    }

    /// Drops all that is planned of a big file or pipe.
    pub(super) fn forget(&mut self, entry: EntryId) {
        let is_of = |fresh: &ReadyChunk| match fresh {
            ReadyChunk::File(file) | ReadyChunk::Piece(file, _) => file.found.entry.id == entry,
            ReadyChunk::Pack(_) | ReadyChunk::Alone(_) => false,
        };
        self.fresh.retain(|fresh| !is_of(fresh));
        self.parts.retain(|plan| !plan.is_of(entry));
    }

    /// Removes the packs that have not begun.
    pub(super) fn take_packs(&mut self) -> Vec<Arc<Vec<PackMember>>> {
        let fresh = self.fresh.drain(..).filter_map(|fresh| match fresh {
            ReadyChunk::Pack(members) | ReadyChunk::Alone(members) => Some(members),
            ReadyChunk::File(_) | ReadyChunk::Piece(..) => None,
        });
        fresh.collect()
    }

    /// Removes all that is planned, which may hold files open.
    pub(super) fn take_all(&mut self) -> ReadyChunks {
        ReadyChunks {
            fresh: std::mem::take(&mut self.fresh),
            parts: std::mem::take(&mut self.parts),
            ..ReadyChunks::default()
        }
    }

    /// What begins next. None if nothing is planned.
    pub(super) fn next(&mut self, terms: &NextTerms) -> Option<NextStep> {
        let first = self.fresh.iter().position(ReadyChunk::can_begin);
        let fresh = first.and_then(|first| self.fresh.remove(first));
        let fresh = fresh.or_else(|| {
            let members = self.gathered.take()?;
            Some(ReadyChunk::Pack(Arc::new(members)))
        });
        Some(match fresh? {
            ReadyChunk::Pack(members) => NextStep::Begin(self.merged(members, terms)),
            ReadyChunk::Alone(members) => NextStep::Begin(PlannedContent::Pack(members)),
            ReadyChunk::File(file) => self.next_piece(file, terms),
            ReadyChunk::Piece(file, piece) => {
                NextStep::Begin(PlannedContent::Piece { file, piece })
            }
        })
    }

    fn next_piece(&mut self, file: Arc<SendFile>, terms: &NextTerms) -> NextStep {
        let mut cut = file.cut.lock();
        if let Some(from) = cut.unknown_from() {
            drop(cut);
            self.looking += 1;
            return NextStep::Look(file, from);
        }
        let most = match file.may_be_cut_finer() {
            true if terms.is_last => gradual(self.begun).min(guided(cut.rest(), self.connections)),
            true => gradual(self.begun),
            false if file.comparison.is_empty() => u64::MAX,
            false => file.comparison.piece_max(),
        };
        let chunk_size = cut.chunk_size();
        let may_be_large =
            !terms.is_ordered && file.may_be_large() && self.large.may_merge_chunks();
        let chunks = if may_be_large { LARGE_PIECE as u64 } else { 1 };
        let piece = cut.next_up_to(chunks * chunk_size, most, |_| None);
        let is_done = cut.is_done();
        drop(cut);
        let Some(piece) = piece else {
            return NextStep::End(file);
        };
        self.begun += match piece.kind {
            ChunkKind::Zeros => 0,
            _ => u64::from(piece.len),
        };
        if piece.kind == ChunkKind::Range && u64::from(piece.len) > chunk_size {
            self.large.at_work.insert(terms.number);
        }
        if !is_done {
            self.fresh.push_front(ReadyChunk::File(file.clone()));
        }
        NextStep::Begin(PlannedContent::Piece { file, piece })
    }

    /// Merges this pack with the packs after it, as many as allowed. Towards the end fewer are
    /// merged, so that every worker gets a share.
    fn merged(&mut self, members: Arc<Vec<PackMember>>, terms: &NextTerms) -> PlannedContent {
        let is_pack = |fresh: &&ReadyChunk| matches!(fresh, ReadyChunk::Pack(_));
        let there = 1 + self.fresh.iter().take_while(is_pack).count();
        let part = match terms.is_planned {
            true => there.div_ceil(2),
            false => there,
        };
        let packs = part.min(self.large.packs).min(LARGE_PACK);
        if packs < 2 || !self.large.has_room() {
            return PlannedContent::Pack(members);
        }
        self.large.at_work.insert(terms.number);
        let more = self.fresh.drain(..packs - 1);
        let more = more.filter_map(|fresh| match fresh {
            ReadyChunk::Pack(members) => Some(members),
            ReadyChunk::Alone(_) | ReadyChunk::File(_) | ReadyChunk::Piece(..) => None,
        });
        PlannedContent::Large(std::iter::once(members).chain(more).collect())
    }

    /// Records that a large pack or piece is compressed, or will be taken apart.
    pub(super) fn large_is_made(&mut self, chunk: u64) {
        self.large.at_work.remove(&chunk);
    }

    /// Plans the packs of a large pack separately, or the chunks of a large piece.
    pub(super) fn take_apart(&mut self, plan: &Plan, chunk_size: u32) {
        match &plan.what {
            PlannedContent::Large(packs) => {
                for pack in packs.iter().rev() {
                    self.fresh.push_front(ReadyChunk::Alone(pack.clone()));
                }
            }
            PlannedContent::Piece { file, piece } => {
                let end = piece.offset + u64::from(piece.len);
                let offsets = (piece.offset..end).step_by(chunk_size as usize);
                let parts = offsets.map(|offset| FilePiece {
                    kind: ChunkKind::Range,
                    offset,
                    len: u64::from(chunk_size).min(end - offset) as u32,
                });
                for part in parts.collect::<Vec<_>>().into_iter().rev() {
                    self.fresh.push_front(ReadyChunk::Piece(file.clone(), part));
                }
            }
            PlannedContent::Pack(_) | PlannedContent::Part(_) => {}
        }
    }

    /// Ends merging, because the receiver had no memory for a large pack or it arrived damaged.
    pub(super) fn end_large(&mut self) {
        self.large.at_work_max = 0;
    }
}

impl LargeChunks {
    fn has_room(&self) -> bool {
        self.at_work.len() < self.at_work_max
    }

    /// True if several chunks of a file may become one.
    fn may_merge_chunks(&self) -> bool {
        self.takes_pieces && self.packs >= LARGE_PIECE && self.has_room()
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
fn guided(rest: u64, connections: u64) -> u64 {
    rest / (2 * connections.max(1))
}
