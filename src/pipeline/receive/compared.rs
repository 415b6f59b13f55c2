//! The comparison of a claimed piece with existing content: in its place, and where it may have moved
//! to.

use super::shifts::{PieceSource, Shifts, SoughtPiece};
use crate::chunk::anchors::Anchor;
use crate::chunk::patch::{PAGE, page_digests};
use crate::chunk::{Buffer, Chunk, ChunkPlace, VerifiedChunk};
use crate::dest::{Basis, IndexRoom, Partial};
use crate::digest::Digest;
use crate::error::Result;
use crate::pipeline::context::Context;

/// The result of a comparison with a digest.
pub(super) enum Comparison {
    /// The piece is in its place. `is_written`: it was not there before.
    Same { is_written: bool },
    /// With the short digests of the existing pages.
    Differs(Vec<u8>),
    /// Its file has failed in the meantime, or the copy ends.
    Late,
}

/// A piece whose digest has come.
pub(super) struct ComparedPiece<'a> {
    pub partial: &'a Partial,
    pub basis: &'a Basis,
    /// The existing content, if it is looked for in other places too.
    pub moved: Option<&'a Basis>,
    pub shifts: &'a Shifts,
    /// None if they did not come with the digest.
    pub anchors: &'a [Anchor],
    pub place: ChunkPlace,
    pub digest: Digest,
    /// It is all of its file.
    pub is_whole: bool,
}

impl ComparedPiece<'_> {
    /// Reads existing bytes into `buffer`. If they match the digest, they are in their place
    /// afterwards.
    pub(super) fn compare(
        &self,
        mut buffer: Buffer,
        room: &IndexRoom,
        context: &Context,
    ) -> Result<Comparison> {
        if let Some(old) = self.moved
            && let Some(from) = self.shifts.guess(self.place.offset)
            && from != self.place.offset
        {
            let there = old.read(self.room(&mut buffer), from).unwrap_or(0);
            buffer.set_len(there);
            buffer = match self.verified(buffer) {
                Ok(verified) => return self.write(&verified),
                Err(buffer) => buffer,
            };
            self.shifts.missed();
        }
        let existing = match self.basis.read(self.room(&mut buffer), self.place.offset) {
            Ok(existing) => existing,
            Err(cause) if context.options.dry_run => {
                return Err(self.partial.slot().unreadable(cause));
            }
            // What cannot be read is sent.
            Err(_) => 0,
        };
        buffer.set_len(existing);
        let mut buffer = match self.verified(buffer) {
            Ok(verified) => {
                self.partial.write_equal(&verified, self.basis)?;
                return Ok(Comparison::Same { is_written: false });
            }
            // The sender need not know where they differ.
            Err(_) if self.partial.would_write() => {
                return Ok(Comparison::Same { is_written: false });
            }
            Err(buffer) => buffer,
        };
        // The sender may be told of other bytes than before.
        self.shifts.recall(self.place.offset);
        if let Some(old) = self.moved.filter(|_| !self.anchors.is_empty()) {
            let sources = self.found(old, room, context);
            let parts = self.room(&mut buffer);
            if !sources.is_empty() && place_moved(parts, existing, old, &sources) {
                buffer.set_len(self.len());
                return match self.verified(buffer) {
                    Ok(verified) => self.write(&verified),
                    Err(buffer) => Ok(self.differs_from(&buffer, sources)),
                };
            }
        }
        // A short page counts only if both versions end in it. Otherwise a sender could choose of how
        // few bytes it gets the digest, and guess them.
        let is_end = self.place.offset + existing as u64 == self.basis.len();
        let told = match existing == self.len() && is_end {
            true => existing,
            false => existing / PAGE * PAGE,
        };
        Ok(Comparison::Differs(page_digests(&buffer.data()[..told])))
    }

    fn len(&self) -> usize {
        self.place.raw_len as usize
    }

    fn room<'b>(&self, buffer: &'b mut Buffer) -> &'b mut [u8] {
        &mut buffer.room()[..self.len()]
    }

    /// The bytes of `buffer`, if they are those of the piece.
    fn verified(&self, buffer: Buffer) -> Result<VerifiedChunk, Buffer> {
        let place = self.place;
        Chunk { place, buffer }.verify(self.digest, self.is_whole)
    }

    /// Writes bytes that the existing file has in another place.
    fn write(&self, verified: &VerifiedChunk) -> Result<Comparison> {
        self.partial.write(verified)?;
        Ok(Comparison::Same { is_written: true })
    }

    /// The parts of the piece that `old` has, by their anchors.
    fn found(&self, old: &Basis, room: &IndexRoom, context: &Context) -> Vec<PieceSource> {
        let sought = SoughtPiece {
            old,
            offset: self.place.offset,
            anchors: self.anchors,
        };
        self.shifts.find(&sought, room, || !context.is_ending())
    }

    /// The answer for a piece of which some parts have moved.
    fn differs_from(&self, buffer: &Buffer, sources: Vec<PieceSource>) -> Comparison {
        // The digest of a short page is told only if the sender knows the page.
        let told = match sources.last() {
            Some(last) if last.part.end == self.len() => self.len(),
            _ => self.len() / PAGE * PAGE,
        };
        let told = match self.shifts.remember(self.place.offset, sources) {
            true => told,
            false => 0,
        };
        Comparison::Differs(page_digests(&buffer.data()[..told]))
    }
}

/// Replaces parts of a piece, whose first `existing` bytes are those of the old version in this place,
/// by bytes of the old version from other places. Pages that do not exist become zeros. False if
/// the old version cannot be read.
pub(super) fn place_moved(
    room: &mut [u8],
    existing: usize,
    old: &Basis,
    sources: &[PieceSource],
) -> bool {
    room[existing / PAGE * PAGE..].fill(0);
    sources.iter().all(|PieceSource { part, from }| {
        let there = old.read(&mut room[part.clone()], *from);
        there.is_ok_and(|there| there == part.len())
    })
}
