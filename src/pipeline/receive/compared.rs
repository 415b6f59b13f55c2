//! The comparison of a claimed piece with existing content: in its place, and where it may have moved
//! to.

use super::shifts::{Guess, PieceSource, Shifts, SoughtPiece};
use crate::chunk::anchors::Anchor;
use crate::chunk::patch::PAGE;
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
    /// Empty if no anchors came with the digest.
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
        buffer: Buffer,
        index_room: &IndexRoom,
        context: &Context,
    ) -> Result<Comparison> {
        let guess = self.shifts.guess(self.place.offset);
        let guess = guess.filter(|_| self.moved.is_some());
        let mut buffer = match self.guessed(buffer, guess.filter(|guess| !guess.is_doubted)) {
            Ok(verified) => return self.write(&verified),
            Err(buffer) => buffer,
        };
        self.read_place(&mut buffer, context)?;
        let mut buffer = match self.verified(buffer) {
            Ok(verified) => {
                self.shifts.is_in_place(self.place.offset);
                self.partial.write_equal(&verified, self.basis)?;
                return Ok(Comparison::Same { is_written: false });
            }
            // The sender need not know where they differ.
            Err(_) if self.partial.would_write() => {
                return Ok(Comparison::Same { is_written: false });
            }
            Err(buffer) => buffer,
        };
        if let Some(guess) = guess.filter(|guess| guess.is_doubted) {
            buffer = match self.guessed(buffer, Some(guess)) {
                Ok(verified) => return self.write(&verified),
                Err(buffer) => buffer,
            };
            self.read_place(&mut buffer, context)?;
        }
        let existing = buffer.len();
        // The answer may now describe other bytes than the one before.
        self.shifts.recall(self.place.offset);
        if let Some(old) = self.moved.filter(|_| !self.anchors.is_empty()) {
            let sources = self.found(old, index_room, context);
            if !sources.is_empty() {
                if !place_moved(self.bytes(&mut buffer), existing, old, &sources) {
                    // The buffer now mixes bytes of two places, and no page of it may be reported.
                    return Ok(Comparison::Differs(Vec::new()));
                }
                buffer.set_len(self.len());
                return match self.verified(buffer) {
                    Ok(verified) => self.write(&verified),
                    Err(buffer) => Ok(self.differs_from(&buffer, sources, context)),
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
        let pages = context.page_hasher.digests(&buffer.data()[..told]);
        Ok(Comparison::Differs(pages))
    }

    fn len(&self) -> usize {
        self.place.raw_len as usize
    }

    /// Room for the bytes of the piece.
    fn bytes<'b>(&self, buffer: &'b mut Buffer) -> &'b mut [u8] {
        &mut buffer.room()[..self.len()]
    }

    /// Reads the existing bytes in the piece's place.
    fn read_place(&self, buffer: &mut Buffer, context: &Context) -> Result<()> {
        let existing = match self.basis.read(self.bytes(buffer), self.place.offset) {
            Ok(existing) => existing,
            Err(cause) if context.options.dry_run => {
                return Err(self.partial.slot().unreadable(cause));
            }
            // Unreadable data is sent.
            Err(_) => 0,
        };
        buffer.set_len(existing);
        Ok(())
    }

    /// The piece, if the existing file has it in this place.
    fn guessed(&self, mut buffer: Buffer, guess: Option<Guess>) -> Result<VerifiedChunk, Buffer> {
        let (Some(old), Some(guess)) = (self.moved, guess) else {
            return Err(buffer);
        };
        let there = old.read(self.bytes(&mut buffer), guess.from);
        buffer.set_len(there.unwrap_or(0));
        let verified = self.verified(buffer);
        match &verified {
            Ok(_) => self.shifts.hit(self.place.offset, self.len() as u64, guess),
            Err(_) => self.shifts.missed(),
        }
        verified
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
    fn found(&self, old: &Basis, index_room: &IndexRoom, context: &Context) -> Vec<PieceSource> {
        let sought = SoughtPiece {
            old,
            offset: self.place.offset,
            anchors: self.anchors,
        };
        self.shifts
            .find(&sought, index_room, || !context.is_ending())
    }

    /// The answer for a piece of which some parts have moved.
    fn differs_from(
        &self,
        buffer: &Buffer,
        sources: Vec<PieceSource>,
        context: &Context,
    ) -> Comparison {
        // The digest of a short page is sent only if the sender knows the page.
        let told = match sources.last() {
            Some(last) if last.part.end == self.len() => self.len(),
            _ => self.len() / PAGE * PAGE,
        };
        let told = match self.shifts.remember(self.place.offset, sources) {
            true => told,
            false => 0,
        };
        Comparison::Differs(context.page_hasher.digests(&buffer.data()[..told]))
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
