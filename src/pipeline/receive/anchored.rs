//! The queue of pieces whose anchors have arrived. To find such a piece, a worker may have to read
//! much of the existing file. So only one worker at a time searches, and the others continue with
//! data.

use std::collections::VecDeque;

use crate::chunk::{Buffer, ChunkPlace, EncodedChunk};
use crate::digest::Digest;
use crate::locks::{OrderedMutex, place};

/// Bytes of the waiting pieces: as many pieces of 256 KiB as the sender has in flight. Further ones are
/// not looked for.
const WAITING_BYTES_MAX: usize = 1 << 20;

#[derive(Default)]
pub(super) struct AnchoredPieces {
    state: OrderedMutex<PiecesState, { place::ANCHORED }>,
}

#[derive(Default)]
struct PiecesState {
    /// A worker looks for a piece.
    is_looking: bool,
    waiting: VecDeque<AnchoredPiece>,
    /// Bytes of all that wait.
    bytes: usize,
}

/// A waiting piece. It holds no buffer, of which the connections need all.
struct AnchoredPiece {
    place: ChunkPlace,
    digest: Digest,
    codec: u8,
    rows: Box<[u8]>,
}

/// What happens to a piece that has come.
pub(super) enum PieceTurn {
    /// The caller looks for it, and then for the [next](AnchoredPieces::next) ones.
    Now(EncodedChunk),
    /// Another worker will look for it.
    Later,
    /// Too many wait.
    Never,
}

impl AnchoredPieces {
    pub(super) fn add(&self, encoded: EncodedChunk) -> PieceTurn {
        let mut state = self.state.lock();
        if !state.is_looking {
            state.is_looking = true;
            return PieceTurn::Now(encoded);
        }
        let piece = AnchoredPiece {
            place: encoded.place,
            digest: encoded.digest,
            codec: encoded.codec,
            rows: encoded.buffer.data().into(),
        };
        if state.bytes + piece.bytes() > WAITING_BYTES_MAX {
            return PieceTurn::Never;
        }
        state.bytes += piece.bytes();
        state.waiting.push_back(piece);
        PieceTurn::Later
    }

    /// The next piece that waits. None if there is none: the caller no longer looks for any.
    pub(super) fn next(&self, chunk_size: usize) -> Option<EncodedChunk> {
        let piece = {
            let mut state = self.state.lock();
            let Some(piece) = state.waiting.pop_front() else {
                state.is_looking = false;
                return None;
            };
            state.bytes -= piece.bytes();
            piece
        };
        // The worker must not wait for a buffer of the pool: frames that wait for this worker may hold
        // all of them.
        let mut buffer = Buffer::loose(chunk_size);
        buffer.room()[..piece.rows.len()].copy_from_slice(&piece.rows);
        buffer.set_len(piece.rows.len());
        Some(EncodedChunk {
            place: piece.place,
            digest: piece.digest,
            codec: piece.codec,
            buffer,
        })
    }
}

impl AnchoredPiece {
    fn bytes(&self) -> usize {
        size_of::<AnchoredPiece>() + self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::ChunkKind;

    const CHUNK_SIZE: usize = 1 << 20;

    fn piece(chunk: u64, rows: usize) -> EncodedChunk {
        let mut buffer = Buffer::loose(CHUNK_SIZE);
        buffer.room()[..rows].fill(chunk as u8);
        buffer.set_len(rows);
        EncodedChunk {
            place: ChunkPlace {
                chunk,
                entry: 1,
                offset: 0,
                raw_len: CHUNK_SIZE as u32,
                kind: ChunkKind::Anchors,
            },
            digest: [0; 32],
            codec: 0,
            buffer,
        }
    }

    #[test]
    fn one_worker_looks_and_the_others_leave_it_a_bounded_number_of_pieces() {
        let pieces = AnchoredPieces::default();
        assert!(matches!(pieces.add(piece(0, 320)), PieceTurn::Now(_)));
        let turns = (1..).map(|chunk| pieces.add(piece(chunk, 320)));
        let waiting = turns
            .take_while(|turn| matches!(turn, PieceTurn::Later))
            .count();
        assert!((1024..4096).contains(&waiting), "{waiting} wait");
        assert!(matches!(pieces.add(piece(0, CHUNK_SIZE)), PieceTurn::Never));
        for chunk in 1..=waiting as u64 {
            let next = pieces.next(CHUNK_SIZE).expect("one waits");
            assert_eq!(next.place.chunk, chunk);
            assert_eq!(next.buffer.data(), [chunk as u8; 320]);
        }
        assert!(pieces.next(CHUNK_SIZE).is_none());
        assert!(matches!(pieces.add(piece(0, 320)), PieceTurn::Now(_)));
    }
}
