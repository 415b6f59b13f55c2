//! Large packs and large pieces: several packs, or chunks of a file, that are compressed as one
//! where the link is slow. If the result does not fit into a frame, the parts are sent separately,
//! each with a number of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ReadyChunk, Scheduler, SchedulerState, SmallFileMode};
use crate::chunk::split::FilePiece;
use crate::chunk::{ChunkKind, LARGE_PACK, LARGE_PIECE};
use crate::pipeline::send::plan::{PackMember, Plan, PlannedContent, SendFile};

#[derive(Default)]
pub(super) struct LargeChunks {
    /// How many packs the tuner wants to merge.
    pub packs: usize,
    /// The most large packs and pieces that may be read and compressed at once, limited by memory.
    pub at_work_max: usize,
    /// The receiver accepts large pieces.
    pub takes_pieces: bool,
    /// Chunk numbers of the large packs and pieces at work.
    at_work: BTreeSet<u64>,
}

impl Scheduler {
    /// Records that a large pack or piece is compressed, or will be taken apart.
    pub fn large_is_made(&self, chunk: u64) {
        self.state.lock().large.at_work.remove(&chunk);
    }

    /// Schedules the packs of a large pack separately. If the receiver has files from the large
    /// pack, it recognizes them.
    pub fn take_apart(&self, plan: &Plan) {
        let PlannedContent::Large(packs) = &plan.what else {
            return;
        };
        let mut state = self.state.lock();
        // Under one lock, or for a moment nothing would seem to be left to send.
        if state
            .settle_first(&mut (plan.chunk..plan.chunk + 1))
            .is_some()
        {
            let packs = packs.iter().rev().cloned();
            packs.for_each(|pack| state.fresh.push_front(ReadyChunk::Alone(pack)));
        }
        drop(state);
        self.wake();
    }

    /// Schedules the chunks of a large piece separately. The piece must not have been sent.
    pub fn take_piece_apart(&self, plan: &Plan, chunk_size: u32) {
        let PlannedContent::Piece { file, piece } = &plan.what else {
            return;
        };
        let end = piece.offset + u64::from(piece.len);
        let offsets = (piece.offset..end).step_by(chunk_size as usize);
        let parts = offsets.map(|offset| FilePiece {
            kind: ChunkKind::Range,
            offset,
            len: u64::from(chunk_size).min(end - offset) as u32,
        });
        let parts: Vec<FilePiece> = parts.collect();
        let mut state = self.state.lock();
        // Under one lock, or for a moment nothing would seem to be left to send.
        if state
            .settle_first(&mut (plan.chunk..plan.chunk + 1))
            .is_some()
        {
            let parts = parts.into_iter().rev();
            parts.for_each(|part| {
                state
                    .fresh
                    .push_front(ReadyChunk::Piece(file.clone(), part))
            });
        }
        drop(state);
        self.wake();
    }

    /// Ends merging, because the receiver had no memory for a large pack or it arrived damaged.
    pub fn end_large(&self) {
        self.state.lock().large.at_work_max = 0;
    }
}

impl SchedulerState {
    /// Merges this pack with the packs after it, as many as allowed. Towards the end fewer are
    /// merged, so that every worker gets a share.
    pub(super) fn put_together(&mut self, members: Arc<Vec<PackMember>>) -> PlannedContent {
        let is_pack = |fresh: &&ReadyChunk| matches!(fresh, ReadyChunk::Pack(_));
        let there = 1 + self.fresh.iter().take_while(is_pack).count();
        let part = if self.planned {
            there.div_ceil(2)
        } else {
            there
        };
        let LargeChunks {
            packs,
            at_work_max,
            at_work,
            ..
        } = &mut self.large;
        let packs = part.min(*packs).min(LARGE_PACK);
        if packs < 2 || at_work.len() >= *at_work_max {
            return PlannedContent::Pack(members);
        }
        at_work.insert(self.next_chunk);
        let more = self.fresh.drain(..packs - 1);
        let more = more.filter_map(|fresh| match fresh {
            ReadyChunk::Pack(members) => Some(members),
            ReadyChunk::Alone(_) | ReadyChunk::File(_) | ReadyChunk::Piece(..) => None,
        });
        PlannedContent::Large(std::iter::once(members).chain(more).collect())
    }
}

impl SchedulerState {
    /// The most chunks that the next piece of a file may have.
    pub(super) fn chunks_in_piece(&self, file: &SendFile) -> u64 {
        let LargeChunks {
            packs,
            at_work_max,
            at_work,
            takes_pieces,
        } = &self.large;
        let may_be_large = *takes_pieces
            && *packs >= LARGE_PIECE
            && at_work.len() < *at_work_max
            && self.landed != Some(SmallFileMode::Ordered)
            && file.may_be_large();
        if may_be_large { LARGE_PIECE as u64 } else { 1 }
    }

    /// Marks the next chunk as a large one at work.
    pub(super) fn begin_large(&mut self) {
        self.large.at_work.insert(self.next_chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NextTask, SmallFileMode};
    use super::*;

    /// Plans with this many packs to be merged by three, and at most one large pack at work.
    fn plans(packs: usize) -> Scheduler {
        let plans = Scheduler::of(8, 1, false);
        plans.start(SmallFileMode::Fresh, 8);
        plans.steer(32, 1, 3);
        let pack = || ReadyChunk::Pack(Arc::default());
        plans
            .state
            .lock()
            .fresh
            .extend(std::iter::repeat_with(pack).take(packs));
        plans
    }

    /// Returns the next chunk and how many packs it has.
    fn next(plans: &Scheduler) -> (Arc<Plan>, usize) {
        let Ok(NextTask::Chunk(plan)) = plans.next() else {
            panic!("a pack comes");
        };
        let packs = match &plan.what {
            PlannedContent::Large(packs) => packs.len(),
            _ => 1,
        };
        (plan, packs)
    }

    #[test]
    fn packs_go_as_one_while_there_is_memory_for_it() {
        let plans = plans(8);
        let (first, packs) = next(&plans);
        assert_eq!(packs, 3);
        assert_eq!(next(&plans).1, 1, "the other is at work");
        plans.large_is_made(first.chunk);
        assert_eq!(next(&plans).1, 3);
    }

    #[test]
    fn towards_the_end_fewer_go_as_one() {
        let plans = plans(4);
        plans.state.lock().planned = true;
        let sizes: Vec<usize> = std::iter::from_fn(|| {
            let is_left = !plans.state.lock().fresh.is_empty();
            is_left.then(|| {
                let (plan, packs) = next(&plans);
                plans.large_is_made(plan.chunk);
                packs
            })
        })
        .collect();
        assert_eq!(sizes, [2, 1, 1]);
    }

    #[test]
    fn one_that_is_taken_apart_goes_pack_by_pack_and_all_of_it() {
        let plans = plans(3);
        let (large, packs) = next(&plans);
        assert_eq!(packs, 3);
        plans.large_is_made(large.chunk);
        plans.take_apart(&large);
        plans.take_apart(&large);
        let apart: Vec<(u64, usize)> = (0..3)
            .map(|_| next(&plans))
            .map(|(it, n)| (it.chunk, n))
            .collect();
        assert_eq!(apart, [(1, 1), (2, 1), (3, 1)]);
        let state = plans.state.lock();
        assert!(state.fresh.is_empty() && !state.in_flight.contains_key(&0));
    }

    #[test]
    fn after_one_that_did_not_arrive_there_are_no_more() {
        let plans = plans(6);
        plans.end_large();
        assert_eq!(next(&plans).1, 1);
    }
}
