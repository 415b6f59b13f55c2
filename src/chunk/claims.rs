//! The chunks of one file that may be written. A chunk can arrive twice, if its connection died
//! while the first copy was still in a kernel's buffer or with a worker. Both copies verify, each
//! with its own digest, but they differ if the source changed between the two reads. So only the
//! first copy may touch the file, and the file may not be renamed while a copy is being written.
//!
//! ```text
//! missing ── claim ──> claimed ── done ──> done
//!    ^                    │
//!    └───── release ──────┘      (the write failed)
//! ```
//!
//! Memory depends on fragmentation: finished chunks are a [`RangeSet`], and a claim is open only
//! while a worker writes.

use std::collections::BTreeMap;
use std::ops::Range;

use super::ranges::RangeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Write it, then call [`done`](Claims::done) or [`release`](Claims::release).
    Yours,
    /// Another copy of it is being written: drop this one without an acknowledgement.
    Taken,
    /// It was written before: drop this copy and acknowledge it.
    Done,
}

/// The piece is outside the file, not at a chunk's border, or cut differently than before. If it
/// came from a peer, the peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a chunk of this file")]
pub struct NotAChunk;

#[derive(Debug)]
pub struct Claims {
    /// Bytes.
    size: u64,
    /// Bytes that count; fewer than `size` if the file became shorter while it was read.
    end: u64,
    chunk_size: u64,
    /// Numbers of finished chunks within the file.
    done: RangeSet,
    /// End by start, in chunks as they were claimed.
    claimed: BTreeMap<u64, u64>,
    /// How many ranges were restored or forgotten. No sender causes the gaps between them.
    own_ranges: usize,
}

impl Claims {
    /// For a file of `size` bytes in chunks of `chunk_size`, not 0.
    pub fn new(size: u64, chunk_size: u64) -> Claims {
        assert!(chunk_size > 0);
        Claims {
            size,
            end: size,
            chunk_size,
            done: RangeSet::new(),
            claimed: BTreeMap::new(),
            own_ranges: 0,
        }
    }

    /// For a pipe: its end is not known yet, and its chunks may end at any byte.
    pub fn endless() -> Claims {
        Claims::new(u64::MAX, 1)
    }

    /// Limits the file to `end` bytes: chunks beyond count as done.
    pub fn end_at(&mut self, end: u64) {
        self.end = self.end.min(end);
    }

    /// Bytes that count.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Claims all chunks of a piece together: `len` bytes at `offset`, from the start of a chunk
    /// to the end of a chunk.
    ///
    /// # Errors
    /// Also if part of the piece was claimed or done, since no two plans of a session overlap.
    pub fn claim_range(&mut self, offset: u64, len: u64) -> Result<Claim, NotAChunk> {
        let chunks = self.chunks_of(offset, len)?;
        if offset >= self.end || self.done.contains_all(chunks.clone()) {
            return Ok(Claim::Done);
        }
        if let Some((&start, &end)) = self.claimed.range(..chunks.end).next_back()
            && chunks.start < end
        {
            let same = (start..end) == chunks;
            return if same {
                Ok(Claim::Taken)
            } else {
                Err(NotAChunk)
            };
        }
        if self.done.contains_any(chunks.clone()) {
            return Err(NotAChunk);
        }
        self.claimed.insert(chunks.start, chunks.end);
        Ok(Claim::Yours)
    }

    /// Marks the piece claimed at `offset` as written. Returns its length in bytes.
    ///
    /// # Errors
    /// If no claim starts there.
    pub fn done(&mut self, offset: u64) -> Result<u64, NotAChunk> {
        let chunks = self.unclaim(offset)?;
        self.done.insert(chunks.clone());
        Ok(self.bytes_of(chunks))
    }

    /// Marks `len` bytes at `offset` as written by an earlier session. Returns false if they were
    /// already marked.
    ///
    /// # Errors
    /// If this is not a run of whole chunks of the file.
    pub fn restore(&mut self, offset: u64, len: u64) -> Result<bool, NotAChunk> {
        let chunks = self.chunks_of(offset, len)?;
        self.own_ranges += 1;
        Ok(self.done.insert(chunks) > 0)
    }

    /// True if any of the `len` bytes at `offset` are done.
    pub fn has_any(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len).div_ceil(self.chunk_size);
        self.done.contains_any(offset / self.chunk_size..end)
    }

    /// Marks finished bytes as missing, because their content is wrong. Claims stay open. Returns
    /// the missing range, in whole chunks.
    ///
    /// # Errors
    /// If the range is empty or outside the file.
    pub fn forget(&mut self, range: Range<u64>) -> Result<Range<u64>, NotAChunk> {
        if range.is_empty() || range.end > self.size {
            return Err(NotAChunk);
        }
        let chunks = range.start / self.chunk_size..range.end.div_ceil(self.chunk_size);
        self.own_ranges += 1;
        self.done.remove(chunks.clone());
        let start = chunks.start * self.chunk_size;
        Ok(start..start + self.bytes_of(chunks))
    }

    /// Finished bytes, as ranges in ascending order.
    pub fn done_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.done.iter().map(|chunks| {
            let start = chunks.start * self.chunk_size;
            start..start + self.bytes_of(chunks)
        })
    }

    /// Bytes from the start that are done without a gap.
    pub fn first_run(&self) -> u64 {
        let first = self.done_ranges().next().filter(|range| range.start == 0);
        first.map_or(0, |range| range.end)
    }

    /// Marks the piece claimed at `offset` as missing, because its write failed.
    ///
    /// # Errors
    /// If no claim starts there.
    pub fn release(&mut self, offset: u64) -> Result<(), NotAChunk> {
        self.unclaim(offset).map(|_| ())
    }

    /// True if everything is written and no write is in progress.
    pub fn is_complete(&self) -> bool {
        self.claimed.is_empty() && self.done.is_full(self.end.div_ceil(self.chunk_size))
    }

    /// The number of ranges of finished chunks, minus the ranges that earlier sessions left or damage
    /// made.
    pub fn scattered(&self) -> usize {
        self.done.fragments().saturating_sub(self.own_ranges)
    }

    pub fn done_bytes(&self) -> u64 {
        self.done.iter().map(|chunks| self.bytes_of(chunks)).sum()
    }

    fn unclaim(&mut self, offset: u64) -> Result<Range<u64>, NotAChunk> {
        if !offset.is_multiple_of(self.chunk_size) {
            return Err(NotAChunk);
        }
        let start = offset / self.chunk_size;
        let end = self.claimed.remove(&start).ok_or(NotAChunk)?;
        Ok(start..end)
    }

    fn chunks_of(&self, offset: u64, len: u64) -> Result<Range<u64>, NotAChunk> {
        let end = offset.checked_add(len).ok_or(NotAChunk)?;
        let starts_well = offset.is_multiple_of(self.chunk_size);
        let ends_well = end == self.size || end.is_multiple_of(self.chunk_size);
        if len == 0 || end > self.size || !starts_well || !ends_well {
            return Err(NotAChunk);
        }
        Ok(offset / self.chunk_size..end.div_ceil(self.chunk_size))
    }

    fn bytes_of(&self, chunks: Range<u64>) -> u64 {
        // The end of the last chunk may exceed `u64::MAX`.
        let end = chunks.end.saturating_mul(self.chunk_size).min(self.size);
        end - chunks.start * self.chunk_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Claims the one chunk at `offset`.
    fn claim(claims: &mut Claims, offset: u64) -> Result<Claim, NotAChunk> {
        let rest = claims.size.checked_sub(offset).ok_or(NotAChunk)?;
        claims.claim_range(offset, rest.min(claims.chunk_size))
    }

    #[test]
    fn a_second_copy_is_neither_written_nor_forgotten() {
        let mut claims = Claims::new(2500, 1000);
        assert_eq!(claim(&mut claims, 2000), Ok(Claim::Yours));
        assert_eq!(claim(&mut claims, 2000), Ok(Claim::Taken));
        assert_eq!(claims.done(2000), Ok(500));
        assert_eq!(claim(&mut claims, 2000), Ok(Claim::Done));
        assert_eq!(claims.done(2000), Err(NotAChunk));
        assert_eq!(claims.done_bytes(), 500);
    }

    #[test]
    fn a_failed_write_makes_a_chunk_missing_again() {
        let mut claims = Claims::new(1000, 1000);
        assert_eq!(claim(&mut claims, 0), Ok(Claim::Yours));
        claims.release(0).unwrap();
        assert!(!claims.is_complete());
        assert_eq!(claim(&mut claims, 0), Ok(Claim::Yours));
        claims.done(0).unwrap();
        assert!(claims.is_complete());
    }

    #[test]
    fn a_file_is_not_complete_while_a_claim_is_open() {
        let mut claims = Claims::new(3000, 1000);
        claims.claim_range(0, 2000).unwrap();
        claim(&mut claims, 2000).unwrap();
        claims.done(2000).unwrap();
        assert_eq!((claims.is_complete(), claims.claimed.len()), (false, 1));
        assert_eq!(claims.done(0), Ok(2000));
        assert_eq!((claims.is_complete(), claims.done_bytes()), (true, 3000));
        assert!(Claims::new(0, 1000).is_complete());
    }

    #[test]
    fn ranges_of_earlier_sessions_are_not_scattered() {
        let mut claims = Claims::new(9000, 1000);
        for offset in [0, 2000, 4000] {
            claims.restore(offset, 1000).unwrap();
        }
        assert_eq!(claims.scattered(), 0);
        claim(&mut claims, 6000).unwrap();
        claims.done(6000).unwrap();
        claim(&mut claims, 8000).unwrap();
        claims.done(8000).unwrap();
        assert_eq!(claims.scattered(), 2);
        claims.restore(1000, 5000).unwrap();
        claims.forget(3000..4000).unwrap();
        assert_eq!(claims.scattered(), 0);
    }

    #[test]
    fn a_piece_that_no_plan_has_is_refused() {
        let mut claims = Claims::new(u64::MAX, 1 << 20);
        claims.claim_range(1 << 20, 4 << 20).unwrap();
        for (offset, len) in [
            (0, 2 << 20),
            (1 << 20, 1 << 20),
            (4 << 20, 2 << 20),
            (2 << 20, 1 << 20),
            (0, 0),
            (5, 1 << 20),
            (0, 5),
            (u64::MAX, 1),
            (1 << 63, 1 << 63),
            (1 << 63, u64::MAX),
        ] {
            assert_eq!(
                claims.claim_range(offset, len),
                Err(NotAChunk),
                "{offset} {len}"
            );
        }
        assert_eq!(claim(&mut claims, u64::MAX), Err(NotAChunk));
        let last = u64::MAX - ((1 << 20) - 1);
        assert_eq!(claim(&mut claims, last), Ok(Claim::Yours));
        assert_eq!(claims.done(last), Ok((1 << 20) - 1));
    }

    #[test]
    fn a_file_that_became_shorter_is_complete_without_what_is_beyond() {
        let mut claims = Claims::new(5500, 1000);
        claims.claim_range(1000, 2000).unwrap();
        claim(&mut claims, 4000).unwrap();
        claims.end_at(1500);
        claims.end_at(3000);
        assert_eq!(claims.end(), 1500);
        assert_eq!(claim(&mut claims, 3000), Ok(Claim::Done));
        assert_eq!(claim(&mut claims, 0), Ok(Claim::Yours));
        claims.done(0).unwrap();
        claims.done(1000).unwrap();
        assert!(!claims.is_complete(), "one is being written still");
        claims.done(4000).unwrap();
        assert!(claims.is_complete());
        claims.end_at(0);
        assert!(claims.is_complete());
    }

    #[test]
    fn a_stream_is_complete_when_all_chunks_before_its_end_are_there() {
        let mut claims = Claims::endless();
        assert_eq!(claims.claim_range(1000, 200), Ok(Claim::Yours));
        assert_eq!(claims.claim_range(900, 200), Err(NotAChunk));
        assert_eq!(claims.claim_range(2000, 0), Err(NotAChunk));
        claims.done(1000).unwrap();
        claims.end_at(1200);
        assert!(!claims.is_complete());
        claims.claim_range(0, 1000).unwrap();
        claims.done(0).unwrap();
        assert_eq!(claims.claim_range(1000, 200), Ok(Claim::Done));
        assert!(claims.is_complete());
    }

    proptest! {
        #[test]
        fn no_chunk_is_given_to_two_writers(
            size in 0u64..5000,
            steps in prop::collection::vec((0u8..3, 0u64..6, 1u64..4), 0..60)
        ) {
            const C: u64 = 1000;
            let mut claims = Claims::new(size, C);
            let slots = size.div_ceil(C) as usize;
            // 0 missing, 1 claimed, 2 done
            let mut model = vec![0u8; slots];
            let mut open = BTreeMap::new();
            for (what, start, len) in steps {
                let offset = start * C;
                if what == 0 {
                    let len = (len * C).min(size.saturating_sub(offset));
                    if claims.claim_range(offset, len) == Ok(Claim::Yours) {
                        let end = (offset + len).div_ceil(C);
                        for slot in start..end {
                            prop_assert_eq!(std::mem::replace(&mut model[slot as usize], 1), 0);
                        }
                        open.insert(start, end);
                    }
                } else {
                    let found = open.remove(&start);
                    let done = what == 1;
                    let ok = if done { claims.done(offset).is_ok() } else { claims.release(offset).is_ok() };
                    prop_assert_eq!(ok, found.is_some());
                    for slot in found.map_or(0..0, |end| start..end) {
                        model[slot as usize] = if done { 2 } else { 0 };
                    }
                }
                prop_assert_eq!(claims.claimed.len(), open.len());
                prop_assert_eq!(claims.is_complete(), model.iter().all(|&state| state == 2));
            }
        }
    }
}
