//! The chunks that the receiver has written, is writing, or keeps until their directories are
//! known.

use std::collections::HashSet;

use crate::chunk::VerifiedChunk;
use crate::chunk::ranges::RangeSet;
use crate::manifest::EntryId;

/// Most ranges of written chunks. If a file fails while it is sent, its gaps remain. This limits
/// memory (some 8 MB), and no honest copy comes near it.
const SCATTERED_MAX: usize = 1 << 18;

/// What to do with a pack that arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum PackClaim {
    Yours,
    /// Another worker is writing it and will acknowledge it.
    Taken,
    Done,
}

#[derive(Default)]
pub struct ArrivedChunks {
    /// Numbers of written chunks. It has packs so that duplicates are recognized, and chunks of
    /// files so that the set has no gaps.
    done: RangeSet,
    /// Packs that are being written.
    claimed: HashSet<u64>,
    /// Files of packs that are being placed.
    placing: HashSet<EntryId>,
    /// Packs whose directories are not known yet.
    parked: Vec<VerifiedChunk>,
}

impl ArrivedChunks {
    pub fn claim_pack(&mut self, chunk: u64) -> PackClaim {
        if self.done.contains(chunk) {
            PackClaim::Done
        } else if self.claimed.insert(chunk) {
            PackClaim::Yours
        } else {
            PackClaim::Taken
        }
    }

    pub fn unclaim_pack(&mut self, chunk: u64) {
        self.claimed.remove(&chunk);
    }

    /// Claims a file of a pack. False if another worker is placing it: a large pack that is taken apart
    /// may have arrived whole too.
    pub fn claim_file(&mut self, id: EntryId) -> bool {
        self.placing.insert(id)
    }

    /// An entry is in place, or has failed.
    pub fn has_result(&mut self, id: EntryId) {
        self.placing.remove(&id);
    }

    /// A chunk was written.
    pub fn done(&mut self, chunk: u64) {
        self.claimed.remove(&chunk);
        self.done.insert_one(chunk);
    }

    /// Keeps a claimed pack until its directories are known.
    pub fn park(&mut self, pack: VerifiedChunk) {
        self.parked.push(pack);
    }

    pub fn take_parked(&mut self) -> Vec<VerifiedChunk> {
        std::mem::take(&mut self.parked)
    }

    /// True if no pack is being written or waits.
    pub fn is_idle(&self) -> bool {
        self.claimed.is_empty()
    }

    /// True if there is more than a sender within its limits can cause.
    pub fn is_scattered(&self) -> bool {
        self.done.fragments() > SCATTERED_MAX
    }
}
