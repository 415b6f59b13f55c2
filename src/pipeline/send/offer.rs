//! The offer of a chunk that the receiver may have: only its digest is sent at first, and the answers
//! decide what follows.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use super::comparison::ComparedRanges;
use crate::chunk::split::FilePiece;
use crate::chunk::{Chunk, ChunkKind, anchors};
use crate::wire::message::DifferingChunk;

/// If a patch has more than this part of a piece, the receiver may find more of it by its anchors.
const PATCH_FOR_ANCHORS: usize = 4;

/// The receiver says that it has another version of a chunk, but it did not get the chunk's digest.
#[derive(Debug)]
pub struct NotOffered;

/// The parts of a chunk that were sent, and the receiver's answers.
#[derive(Default)]
pub(super) struct OfferState {
    /// Its digest is sent first, because the receiver may have it.
    is_compared: OnceLock<bool>,
    /// Its anchors are sent with its digest.
    is_anchored: AtomicBool,
    /// And the receiver has not answered.
    awaits_answer: AtomicBool,
    /// The short digests of the receiver's pages, if it has another version of the chunk: the answers
    /// to an offer without anchors and to one with them.
    pages: [OnceLock<Vec<u8>>; 2],
    /// New bytes in the patch that would have been sent without the anchors.
    new_without: OnceLock<u32>,
    /// How many of its bytes the patch has.
    new: AtomicU32,
    /// How many times its digest or a patch was sent, without a refusal.
    offers: AtomicU32,
    /// The receiver refused the digest or the patch, so all bytes are sent.
    refused: AtomicBool,
}

/// The offer of one chunk.
pub struct ChunkOffer<'a> {
    pub(super) state: &'a OfferState,
    /// Set for a piece of a file.
    pub(super) compared: Option<(&'a ComparedRanges, &'a FilePiece)>,
}

impl<'a> ChunkOffer<'a> {
    /// True if the receiver may have the chunk, so that only the chunk's digest is sent now.
    pub fn is_open(&self) -> bool {
        let is_open = !self.state.refused.load(Relaxed) && self.answer().get().is_none();
        let may_be_there = || {
            let Some((comparison, piece)) = self.compared else {
                return false;
            };
            let is_compared = comparison.takes(piece);
            if is_compared && !comparison.is_useful() {
                // It is hardly where the last piece was, or unchanged.
                self.try_anchors();
            }
            is_compared
        };
        is_open && *self.state.is_compared.get_or_init(may_be_there)
    }

    /// Leaves only the digest of a chunk, and its anchors if they are sent with it.
    pub fn make(&self, chunk: &mut Chunk) {
        self.sent();
        let buffer = &mut chunk.buffer;
        let rows = self
            .is_anchored()
            .then(|| anchors::write(buffer.data()))
            .flatten();
        chunk.place.kind = match rows {
            Some(_) => ChunkKind::Anchors,
            None => ChunkKind::Digest,
        };
        let rows = rows.unwrap_or_default();
        buffer.room()[..rows.len()].copy_from_slice(&rows);
        buffer.set_len(rows.len());
    }

    /// True if its anchors are sent with its digest.
    fn is_anchored(&self) -> bool {
        self.state.is_anchored.load(Relaxed)
    }

    /// Begins to offer the chunk with its anchors. Returns false if they were sent before, or are not
    /// worth it.
    fn try_anchors(&self) -> bool {
        let Some((comparison, piece)) = self.compared else {
            return false;
        };
        let tries = comparison.takes_anchors(piece) && !self.state.is_anchored.swap(true, Relaxed);
        if tries {
            comparison.begin_anchored();
            self.state.awaits_answer.store(true, Relaxed);
        }
        tries
    }

    /// The receiver has answered to the anchors, or no answer will come.
    pub fn anchors_answered(&self) {
        if self.state.awaits_answer.swap(false, Relaxed)
            && let Some((comparison, _)) = self.compared
        {
            comparison.end_anchored();
        }
    }

    /// The same for a chunk of `len` bytes of which a patch would have `new` bytes; None if the patch
    /// is too long.
    pub fn tries_anchors(&self, len: usize, new: Option<usize>) -> bool {
        let is_long = new.is_none_or(|new| new > len / PATCH_FOR_ANCHORS);
        let tries = is_long && self.try_anchors();
        if let (true, Some(new)) = (tries, new) {
            // The anchors are tried once, so it was not set before.
            let _ = self.state.new_without.set(new as u32);
        }
        tries
    }

    /// The receiver's answer to the last kind of offer.
    fn answer(&self) -> &'a OnceLock<Vec<u8>> {
        &self.state.pages[usize::from(self.is_anchored())]
    }

    /// The short digests of the receiver's pages, if only the differing pages are sent.
    pub fn pages(&self) -> Option<&'a [u8]> {
        let pages = self.answer().get();
        let pages = pages.filter(|_| !self.state.refused.load(Relaxed));
        pages.map(Vec::as_slice)
    }

    /// Counts a frame with the digest, or with a patch. There may be several if connections
    /// die.
    pub fn sent(&self) {
        self.state.offers.fetch_add(1, Relaxed);
    }

    /// The number of its bytes that the receiver had, out of `len`.
    fn had(&self, len: u64) -> u64 {
        match self.state.offers.load(Relaxed) > 0 && !self.state.refused.load(Relaxed) {
            true => len.saturating_sub(self.state.new.load(Relaxed).into()),
            false => 0,
        }
    }

    /// The chunk, of `len` bytes, is in place. Returns how many of them the receiver had.
    pub fn placed(&self, len: u64) -> u64 {
        let had = self.had(len);
        let Some((comparison, piece)) = self.compared else {
            return had;
        };
        if had > 0 {
            comparison.hit(piece.offset + len);
        }
        if self.is_anchored() && !self.state.refused.load(Relaxed) {
            let new = self.state.new_without.get();
            let without = new.map_or(0, |&new| len.saturating_sub(new.into()));
            comparison.anchors_helped(had > without);
        }
        had
    }

    /// The receiver has another version of the chunk, with these pages. Returns false if nothing has
    /// to be sent because of this. A second answer to a digest that was sent twice brings all bytes,
    /// since the receiver drops a patch that arrives while it compares.
    ///
    /// # Errors
    /// If no digest was sent, or they are no pages of the chunk.
    pub fn differs(&self, differing: DifferingChunk) -> Result<bool, NotOffered> {
        let Some((_, piece)) = self.compared else {
            return Err(NotOffered);
        };
        if self.state.is_compared.get() != Some(&true) || !differing.fits(piece.len) {
            return Err(NotOffered);
        }
        let was_offer = self.take_offer();
        self.anchors_answered();
        let is_news =
            !self.state.refused.load(Relaxed) && self.answer().set(differing.pages).is_ok();
        if !is_news {
            self.state.refused.store(true, Relaxed);
        }
        Ok(is_news || was_offer)
    }

    /// The patch has so many bytes.
    pub fn set_new(&self, new: usize) {
        self.state.new.store(new as u32, Relaxed);
    }

    /// All bytes are sent, because too many of them differ.
    pub fn give_up_patch(&self) {
        self.state.refused.store(true, Relaxed);
        self.missed();
    }

    /// The receiver refused a frame. Each sent digest and patch can be refused once. Returns true if
    /// it refused one of those: it does not have the bytes.
    pub(super) fn refused(&self) -> bool {
        let was_offer = self.take_offer();
        if was_offer && self.is_open() && self.try_anchors() {
            return true;
        }
        self.anchors_answered();
        self.state.refused.store(true, Relaxed);
        if was_offer {
            self.missed();
        }
        was_offer
    }

    /// The receiver had nothing of the chunk.
    fn missed(&self) {
        if let Some((comparison, _)) = self.compared {
            comparison.missed();
            if self.is_anchored() {
                comparison.anchors_helped(false);
            }
        }
    }

    /// False if no sent digest or patch is without an answer.
    fn take_offer(&self) -> bool {
        let one_less = |offers: u32| offers.checked_sub(1);
        let taken = self.state.offers.fetch_update(Relaxed, Relaxed, one_less);
        taken.is_ok()
    }
}
