//! The digest of a pipe, whose length is unknown before its end.
//!
//! No piece of a pipe is known to be the whole pipe, so the digest of a piece is the chaining
//! value at its offset. The first piece is hashed both ways. If nothing follows it, its own BLAKE3
//! is the digest of the pipe; otherwise its chaining value is part of that digest.
//!
//! A piece may end anywhere if the producer pauses. The complete BLAKE3 subtrees in it are then
//! hashed once more, for the tree of the whole pipe. The bytes at its ends, less than a kilobyte
//! each, wait for their neighbours.

use std::collections::BTreeMap;
use std::ops::Range;

use blake3::hazmat::{Mode, merge_subtrees_non_root, merge_subtrees_root};

use super::{Added, Digest, of_range, of_zeros};

/// Length in bytes of the smallest subtree.
const GRAIN: u64 = blake3::CHUNK_LEN as u64;

/// Combines the digests of a pipe's pieces into the digest of the pipe. The pieces may arrive
/// in any order. Pieces after a gap are kept, so the caller must limit how far ahead they may be.
/// The joined pieces take at most about 50 values.
#[derive(Default)]
pub struct PipeTree {
    /// The subtrees from the beginning up to the first gap. Two neighbours of the same length are
    /// merged only when a further part arrives, because the last merge must be that of the root.
    joined: Vec<Subtree>,
    /// Number of joined bytes.
    end: u64,
    /// Keyed by offset; a gap precedes them.
    ahead: BTreeMap<u64, Subtree>,
    /// Keyed by offset: bytes of incomplete subtrees of [`GRAIN`].
    frayed: BTreeMap<u64, Vec<u8>>,
    /// The BLAKE3 of the first part, in case nothing follows.
    whole: Option<Digest>,
}

/// A full subtree, or the last of the pipe.
#[derive(Clone, Copy)]
struct Subtree {
    offset: u64,
    len: u64,
    value: Digest,
}

/// A piece of a pipe, prepared for the tree: its full subtrees, and the bytes at its ends.
pub struct PipePiece {
    full: Vec<Subtree>,
    frayed: Vec<(u64, Vec<u8>)>,
    whole: Option<Digest>,
}

impl PipePiece {
    /// The bytes at `offset`. `value` is their digest from [`of_range`] with `whole` unset.
    pub fn new(data: &[u8], offset: u64, value: Digest) -> PipePiece {
        let at = |range: &Range<u64>| {
            &data[(range.start - offset) as usize..(range.end - offset) as usize]
        };
        let len = data.len() as u64;
        PipePiece::cut(
            offset,
            len,
            |range, whole| match whole {
                true => blake3::hash(at(range)).into(),
                false if range.end - range.start == len => value,
                false => of_range(at(range), range.start, false),
            },
            |range| at(range).to_vec(),
        )
    }

    /// `len` zeros at `offset`. Hashes all of them, a second per 4.5 GB or so.
    pub fn of_zeros(offset: u64, len: u64) -> PipePiece {
        PipePiece::cut(
            offset,
            len,
            |range, whole| of_zeros(range.start, range.end - range.start, whole),
            |range| vec![0; (range.end - range.start) as usize],
        )
    }

    fn cut(
        offset: u64,
        len: u64,
        value: impl Fn(&Range<u64>, bool) -> Digest,
        bytes: impl Fn(&Range<u64>) -> Vec<u8>,
    ) -> PipePiece {
        let mut piece = PipePiece {
            full: Vec::new(),
            frayed: Vec::new(),
            whole: None,
        };
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let step = step(at, end - at);
            let range = at..at + step;
            if step.is_power_of_two() && step >= GRAIN && at.is_multiple_of(step) {
                if at == 0 && step == len {
                    piece.whole = Some(value(&range, true));
                }
                piece.full.push(Subtree {
                    offset: at,
                    len: step,
                    value: value(&range, false),
                });
            } else {
                piece.frayed.push((at, bytes(&range)));
            }
            at = range.end;
        }
        piece
    }
}

/// Length of the longest full subtree at `at` in `len` bytes, or of the bytes within a [`GRAIN`].
fn step(at: u64, len: u64) -> u64 {
    let into = at % GRAIN;
    if into > 0 || len < GRAIN {
        return len.min(GRAIN - into);
    }
    let longest = 1 << len.ilog2();
    match at {
        0 => longest,
        _ => longest.min(1 << at.trailing_zeros()),
    }
}

impl PipeTree {
    pub fn new() -> PipeTree {
        PipeTree::default()
    }

    /// Adds a piece. No byte may come twice: the first value stays, but the pipe may get no
    /// digest.
    pub fn add(&mut self, piece: PipePiece) {
        if self.whole.is_none() {
            self.whole = piece.whole;
        }
        for part in piece.full {
            self.add_part(part);
        }
        for (offset, bytes) in piece.frayed {
            self.fray(offset, bytes);
        }
    }

    /// `Outside`: no part can be at this place. `Same` and `Differs`: the part is already waiting.
    /// `Merged`: it is among the joined parts.
    fn add_part(&mut self, part: Subtree) -> Added {
        let Subtree { offset, len, value } = part;
        let Some(end) = offset.checked_add(len) else {
            return Added::Outside;
        };
        if offset < self.end {
            return if end <= self.end {
                Added::Merged
            } else {
                Added::Outside
            };
        }
        if let Some(known) = self.ahead.get(&offset) {
            return match (known.len == len, known.value == value) {
                (true, true) => Added::Same,
                (true, false) => Added::Differs,
                (false, _) => Added::Outside,
            };
        }
        let overlaps = |other: &Subtree| other.offset < end && offset < other.offset + other.len;
        let below = self.ahead.range(..offset).next_back();
        let above = self.ahead.range(offset..).next();
        if below.into_iter().chain(above).any(|(_, p)| overlaps(p)) {
            return Added::Outside;
        }
        self.ahead.insert(offset, part);
        while let Some(next) = self.ahead.remove(&self.end) {
            self.end += next.len;
            join(&mut self.joined, next);
        }
        Added::New
    }

    /// Keeps bytes of one smallest subtree until the subtree is complete.
    fn fray(&mut self, offset: u64, bytes: Vec<u8>) {
        let start = offset - offset % GRAIN;
        let end = offset + bytes.len() as u64;
        let below = self.frayed.range(..offset).next_back();
        let above = self.frayed.range(offset..).next();
        let is_free = below.is_none_or(|(at, kept)| at + kept.len() as u64 <= offset)
            && above.is_none_or(|(at, _)| end <= *at);
        if !is_free || start < self.end {
            return;
        }
        self.frayed.insert(offset, bytes);
        if self.run(start) < GRAIN {
            return;
        }
        let rest = self.frayed.split_off(&start);
        let (mut block, mut after) = (Vec::with_capacity(GRAIN as usize), BTreeMap::new());
        for (at, bytes) in rest {
            if at < start + GRAIN {
                block.extend(bytes);
            } else {
                after.insert(at, bytes);
            }
        }
        self.frayed.append(&mut after);
        if start == 0 {
            self.whole = Some(blake3::hash(&block).into());
        }
        self.add_part(Subtree {
            offset: start,
            len: GRAIN,
            value: of_range(&block, start, false),
        });
    }

    /// Number of kept bytes from `start` up to the first gap, at most [`GRAIN`].
    fn run(&self, start: u64) -> u64 {
        let mut end = start;
        for (&at, bytes) in self.frayed.range(start..start.saturating_add(GRAIN)) {
            if at != end {
                break;
            }
            end += bytes.len() as u64;
        }
        end - start
    }

    /// Number of bytes from the beginning up to the first missing piece.
    pub fn end(&self) -> u64 {
        self.end + self.run(self.end)
    }

    /// The BLAKE3 of the pipe if it has `length` bytes. None if it has fewer or more so far.
    pub fn root(&self, length: u64) -> Option<Digest> {
        if self.end() != length || !self.ahead.is_empty() {
            return None;
        }
        let tail: Vec<u8> = self.frayed.values().flatten().copied().collect();
        if self.end + tail.len() as u64 != length {
            return None;
        }
        let mut joined = self.joined.clone();
        if joined.is_empty() {
            return Some(blake3::hash(&tail).into());
        }
        if !tail.is_empty() {
            let (offset, len) = (self.end, tail.len() as u64);
            let value = of_range(&tail, offset, false);
            join(&mut joined, Subtree { offset, len, value });
        }
        let (first, rest) = joined.split_first()?;
        let Some((last, between)) = rest.split_last() else {
            return self.whole;
        };
        // From the right, because each left part is full and those to the right of it are shorter.
        let right = between.iter().rev().fold(last.value, |right, left| {
            merge_subtrees_non_root(&left.value, &right, Mode::Hash)
        });
        Some(merge_subtrees_root(&first.value, &right, Mode::Hash).into())
    }
}

/// Appends a part to the joined ones.
fn join(joined: &mut Vec<Subtree>, part: Subtree) {
    while let [.., left, right] = &joined[..]
        && left.len == right.len
        && left.offset.is_multiple_of(2 * left.len)
    {
        let merged = Subtree {
            offset: left.offset,
            len: 2 * left.len,
            value: merge_subtrees_non_root(&left.value, &right.value, Mode::Hash),
        };
        joined.truncate(joined.len() - 2);
        joined.push(merged);
    }
    joined.push(part);
}

#[cfg(test)]
mod tests;
