//! A chunk to be sent, and the files and pipes that chunks are made of.

use std::path::PathBuf;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::cache::Interest;
use crate::algorithms::Method;
use crate::chunk::anchors::{self, BLOCK_MIN};
use crate::chunk::ranges::RangeSet;
use crate::chunk::split::{Cut, FilePiece};
use crate::chunk::{Buffer, Chunk, ChunkKind};
use crate::digest::pipe::PipeTree;
use crate::digest::{Digest, Tree};
use crate::locks::{OrderedMutex, place};
use crate::manifest::{Entry, EntryId};
use crate::pipe::Stop;
use crate::pipeline::digest_list::ListedPath;
use crate::source::{FoundFile, PipeOrigin, SourceFile};
use crate::transport::frames::SealedChunk;
use crate::wire::message::DifferingChunk;

/// A big file that is being sent, or a device.
pub struct SendFile {
    pub found: FoundFile,
    pub source: SourceFile,
    pub cut: OrderedMutex<Cut, { place::FILE_CUT }>,
    pub comparison: ComparedRanges,
    /// How many ranges the receiver named.
    pub ranges: usize,
    pub digest: RootDigest,
    pub coverage: Coverage,
    pub reading: FileReading,
    /// Read for this receiver alone, because it asked for ranges that other senders do not send.
    pub alone: AtomicBool,
    /// The receiver wants the digest only.
    pub digest_only: bool,
    /// The path below the destination, for a list of digests.
    pub listed: Option<ListedPath>,
    /// Held while the file is sent, if other senders may send it too.
    pub interest: Option<Interest>,
}

/// The parts of a file whose digests are sent first, because the receiver may have them.
#[derive(Default)]
pub struct ComparedRanges {
    /// Bytes, in whole chunks.
    ranges: RangeSet,
    /// Bytes of a piece that is compared; a power of two up to a chunk.
    piece: u64,
    /// The receiver finds pieces by their anchors.
    has_anchors: bool,
    /// Pieces whose anchors were sent, and that the receiver has not answered.
    anchored: AtomicUsize,
    result: ComparisonResult,
    /// Pieces in a row of which the receiver had nothing.
    misses: AtomicU32,
    /// Pieces in a row of which the receiver had no more because of their anchors.
    anchor_misses: AtomicU32,
    /// The end of the last piece of which the receiver had some.
    hit_end: AtomicU64,
}

/// What is known of the comparisons of all files that are sent.
#[derive(Clone, Default)]
pub struct CopyComparisons(Arc<ComparisonCounts>);

#[derive(Default)]
struct ComparisonCounts {
    /// Chunks whose anchors were sent, and that the receiver has not answered.
    anchored: AtomicUsize,
    /// Files in a row of which the receiver had nothing.
    files_missed: AtomicU32,
}

impl CopyComparisons {
    /// The number of chunks whose anchors were sent, and that the receiver has not answered.
    pub fn anchored(&self) -> usize {
        self.0.anchored.load(Relaxed)
    }

    /// False if the receiver has nothing of the files that replace others.
    fn are_useful(&self) -> bool {
        self.0.files_missed.load(Relaxed) < FILES_MISSED
    }
}

/// Whether the receiver has some of a file. Counted when the file has been sent.
#[derive(Default)]
struct ComparisonResult {
    copy: CopyComparisons,
    has_some: AtomicBool,
    /// It has nothing of a piece.
    has_missed: AtomicBool,
}

impl ComparisonResult {
    fn of(copy: &CopyComparisons) -> ComparisonResult {
        ComparisonResult {
            copy: copy.clone(),
            has_some: AtomicBool::new(false),
            has_missed: AtomicBool::new(false),
        }
    }

    fn hit(&self) {
        self.has_some.store(true, Relaxed);
        self.copy.0.files_missed.store(0, Relaxed);
    }
}

impl Drop for ComparisonResult {
    fn drop(&mut self) {
        if *self.has_missed.get_mut() && !*self.has_some.get_mut() {
            self.copy.0.files_missed.fetch_add(1, Relaxed);
        }
    }
}

/// Bytes of a piece that is compared, if both ends know patches. If one of a hundred pages of 8 KiB
/// has changed, a quarter of such pieces differ, and three quarters of the pieces of 1 MiB would.
/// What differs is read and hashed once more at each end.
pub const COMPARED_PIECE: u64 = 256 << 10;

/// After so many misses in a row, only some pieces are compared. Content that was changed throughout
/// would otherwise be read once more at each end, for nothing.
const MISSES: u32 = 16;

/// After so many misses in a row despite anchors, only the same few pieces are offered with anchors.
/// The start of a file may be new: this is more than an insertion of 4 MiB.
const ANCHOR_MISSES: u32 = 32;

/// Chunks of all files whose anchors were sent and that have no answer: half of those in flight, so
/// that other files go on. Beyond this, all bytes of a chunk are sent.
const ANCHORED_MAX: usize = 1024;

/// While so many pieces of a file are offered with their anchors, no other piece of it begins. So not
/// much is sent between the end of an insertion and the answer that the receiver has the rest.
const ANCHORED_OF_FILE: usize = 3;

/// After so many files in a row of which the receiver had nothing, only the start of the next one is
/// compared at first. Otherwise each piece of many files would be refused twice.
const FILES_MISSED: u32 = 8;

/// Then these are the fewest bytes between pieces that are compared.
const PROBES_APART_MIN: u64 = 4 << 20;

/// The most bytes between the starts of these pieces. Before that they are an eighth of the way from the
/// last piece of which the receiver had some. So after a long insertion, not much more than that is
/// sent.
const PROBES_APART: u64 = 16 << 20;

/// If a patch has more than this part of a piece, the receiver may find more of it by its anchors.
const PATCH_FOR_ANCHORS: usize = 4;

impl ComparedRanges {
    /// `ranges` are whole chunks, which are compared in pieces of `piece` bytes.
    /// The receiver has the first `start` bytes of the file already.
    pub fn of(ranges: RangeSet, piece: u64, start: u64, copy: &CopyComparisons) -> ComparedRanges {
        ComparedRanges {
            ranges,
            piece,
            result: ComparisonResult::of(copy),
            hit_end: AtomicU64::new(start),
            ..ComparedRanges::default()
        }
    }

    /// The same, for a receiver that finds pieces that have moved by their anchors.
    pub fn with_anchors(self) -> ComparedRanges {
        ComparedRanges {
            has_anchors: true,
            ..self
        }
    }

    /// True if nothing is compared.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The receiver had some of the piece that ends here.
    fn hit(&self, end: u64) {
        self.misses.store(0, Relaxed);
        self.result.hit();
        self.hit_end.fetch_max(end, Relaxed);
    }

    /// The receiver had some of a piece, or had no more of it, because of its anchors.
    fn anchors_helped(&self, helped: bool) {
        match helped {
            true => self.anchor_misses.store(0, Relaxed),
            false => {
                self.anchor_misses.fetch_add(1, Relaxed);
            }
        }
    }

    /// The receiver had nothing of a piece, or too little for a patch.
    fn missed(&self) {
        self.misses.fetch_add(1, Relaxed);
        self.result.has_missed.store(true, Relaxed);
    }

    /// The anchors of a piece are sent.
    fn begin_anchored(&self) {
        self.anchored.fetch_add(1, Relaxed);
        self.result.copy.0.anchored.fetch_add(1, Relaxed);
    }

    fn end_anchored(&self) {
        self.anchored.fetch_sub(1, Relaxed);
        self.result.copy.0.anchored.fetch_sub(1, Relaxed);
    }

    /// True if no other piece begins before the receiver has answered.
    pub fn awaits_answers(&self) -> bool {
        self.anchored.load(Relaxed) >= ANCHORED_OF_FILE
    }

    /// The most bytes of the next piece: a piece that will not be compared may be a whole chunk.
    pub fn piece_max(&self) -> u64 {
        match self.is_useful() {
            true => self.piece,
            false => u64::MAX,
        }
    }

    fn is_useful(&self) -> bool {
        self.misses.load(Relaxed) < MISSES && self.result.copy.are_useful()
    }

    /// True if the digest of this piece is sent first.
    fn takes(&self, piece: &FilePiece) -> bool {
        let end = piece.offset + u64::from(piece.len);
        let is_piece = !self.is_empty() && piece.offset.is_multiple_of(self.piece);
        let is_useful = self.is_useful() || self.is_probe(piece);
        is_piece && is_useful && self.ranges.contains_all(piece.offset..end)
    }

    /// True for a piece that is compared although those before it were not there.
    fn is_probe(&self, piece: &FilePiece) -> bool {
        let since = piece.offset.saturating_sub(self.hit_end.load(Relaxed));
        let least = match self.result.copy.are_useful() {
            true => self.piece,
            false => PROBES_APART_MIN,
        };
        let apart = (since / 8).clamp(least, PROBES_APART);
        piece.offset.is_multiple_of(apart.next_power_of_two())
    }

    /// True if this piece is offered with its anchors after another offer was refused.
    fn takes_anchors(&self, piece: &FilePiece) -> bool {
        let is_useful = self.anchor_misses.load(Relaxed) < ANCHOR_MISSES || self.is_probe(piece);
        let has_room = self.result.copy.anchored() < ANCHORED_MAX;
        self.has_anchors && has_room && is_useful && piece.len as usize >= BLOCK_MIN
    }
}

/// The digest of a big file.
pub enum RootDigest {
    /// Nobody needs the digest of a file with holes, or of a file that may change.
    Unneeded,
    Tree(Mutex<Tree>),
    /// The root according to the receiver.
    Known(Digest),
}

/// How much of a big file was read, and how much of it the receiver has.
pub struct Coverage {
    /// Bytes that the receiver has and that are not read. Ranges that it asks for later are
    /// removed.
    had: OrderedMutex<RangeSet, { place::FILE_HAD }>,
    /// Bytes read or skipped as holes, each once, plus the bytes that the receiver has.
    covered: AtomicU64,
    /// Bytes that are in place at the receiver.
    placed: AtomicU64,
}

/// The state of the reading of a big file.
pub struct FileReading {
    progress: Mutex<ReadProgress>,
    failed: AtomicBool,
    /// It is the second reading, or one of damaged ranges.
    is_again: bool,
    /// Set if the file may change while it is read.
    live: Option<Mutex<CurrentLength>>,
}

/// The progress of reading a big file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProgress {
    Goes,
    /// The file's end was sent to the receiver.
    Ended,
    /// Abandoned because the file changed. A second reading follows.
    Again,
}

/// The length of a file that may become shorter while it is read.
struct CurrentLength {
    /// The lowest end in bytes that a reader has found.
    length: u64,
    /// The length was sent to the receiver.
    told: bool,
}

/// A small file, which is sent in a pack.
pub struct PackMember {
    pub found: FoundFile,
    pub listed: Option<ListedPath>,
    /// Bytes: from the walk at first, then from the last reading.
    pub size: AtomicU64,
    /// Digest of the content, once it was read.
    pub digest: OnceLock<Digest>,
    /// Failed and reported, or sent outside its pack. Left out if the pack is read again.
    pub failed: AtomicBool,
}

/// A pipe that is being sent: a named pipe, a command's output, or a file that is read to its end.
pub struct SendPipe {
    pub entry: Entry,
    /// The path as the user would write it, for messages.
    pub path: PathBuf,
    pub listed: Option<ListedPath>,
    pub tree: OrderedMutex<PipeTree, { place::PIPE_TREE }>,
    pub failed: AtomicBool,
    /// Ends every wait for the producer.
    pub stop: Stop,
    /// A test of the link: zeros are sent as bytes, by default uncompressed.
    pub is_test: bool,
    /// Other senders send the same bytes.
    pub is_shared: bool,
    /// It cannot be read again and nothing else is copied, so no later session can resume.
    pub is_once: bool,
}

/// A chunk of a pipe. It cannot be read again, so its frame is kept until it is acknowledged.
pub struct PipePart {
    pub pipe: Arc<SendPipe>,
    pub offset: u64,
    pub len: u32,
    pub bytes: OrderedMutex<Bytes, { place::PIPE_PART }>,
}

pub enum Bytes {
    Read(Buffer),
    Framed(Arc<SealedChunk>),
    /// Moved into a frame, on a route that loses no frames.
    Gone,
}

#[derive(Clone)]
pub enum PlannedContent {
    Piece {
        file: Arc<SendFile>,
        piece: FilePiece,
    },
    Pack(Arc<Vec<PackMember>>),
    /// Several packs that are compressed as one.
    Large(Vec<Arc<Vec<PackMember>>>),
    Part(Arc<PipePart>),
}

impl SendPipe {
    /// `alone` if nothing else is copied.
    pub fn new(
        entry: Entry,
        origin: &PipeOrigin,
        listed: Option<ListedPath>,
        alone: bool,
    ) -> SendPipe {
        SendPipe {
            entry,
            path: origin.spec().path(),
            listed,
            tree: OrderedMutex::default(),
            failed: AtomicBool::new(false),
            stop: Stop::new(),
            is_test: origin.spec().is_test(),
            is_shared: origin.is_shared(),
            is_once: alone && origin.spec().is_once(),
        }
    }
}

impl PipePart {
    /// The `len` bytes at `offset`, which are in `buffer`.
    pub fn read(pipe: &Arc<SendPipe>, offset: u64, len: usize, buffer: Buffer) -> PipePart {
        PipePart {
            pipe: pipe.clone(),
            offset,
            len: len as u32,
            bytes: OrderedMutex::new(Bytes::Read(buffer)),
        }
    }
}

impl Coverage {
    /// The receiver has the bytes in `had`.
    fn new(had: RangeSet) -> Coverage {
        Coverage {
            covered: AtomicU64::new(had.count()),
            placed: AtomicU64::new(had.count()),
            had: OrderedMutex::new(had),
        }
    }

    /// The number of bytes that the receiver has and that are not read.
    pub fn had(&self) -> u64 {
        self.had.lock().count()
    }

    /// Adds bytes that were read, or skipped as a hole. Returns the new sum, with the bytes that
    /// the receiver has.
    pub fn add_read(&self, len: u64) -> u64 {
        self.covered.fetch_add(len, AcqRel) + len
    }

    /// The number of bytes that are in place at the receiver.
    pub fn placed(&self) -> u64 {
        self.placed.load(Relaxed)
    }

    pub fn add_placed(&self, len: u64) {
        self.placed.fetch_add(len, Relaxed);
    }

    /// The receiver does not have these ranges after all. Returns their bytes; None if the receiver
    /// never said that it has them.
    fn take_back(&self, missing: &RangeSet) -> Option<u64> {
        let mut had = self.had.lock();
        if !missing.iter().all(|range| had.contains_all(range)) {
            return None;
        }
        missing.iter().for_each(|range| {
            had.remove(range);
        });
        drop(had);
        let len = missing.count();
        self.covered.fetch_sub(len, AcqRel);
        self.placed.fetch_sub(len, Relaxed);
        Some(len)
    }
}

impl FileReading {
    /// `live` has the size of a file that may change while it is read.
    pub fn new(is_again: bool, live: Option<u64>) -> FileReading {
        let current = |length| CurrentLength {
            length,
            told: false,
        };
        FileReading {
            progress: Mutex::new(ReadProgress::Goes),
            failed: AtomicBool::new(false),
            is_again,
            live: live.map(|size| Mutex::new(current(size))),
        }
    }

    /// True if the file may change while it is read.
    pub fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// True if a change during this reading fails the file.
    pub fn is_last(&self) -> bool {
        self.is_again || self.is_live()
    }

    /// Notes that a file that may change has at most `length` bytes. True if the receiver was told
    /// that it has more.
    pub fn ends_at(&self, length: u64) -> bool {
        let Some(live) = &self.live else { return false };
        let mut live = live.lock();
        let is_shorter = length < live.length;
        live.length = length.min(live.length);
        is_shorter && live.told
    }

    /// The length of a file that may change, which the receiver is told now; None for other files.
    pub fn end_live(&self) -> Option<u64> {
        let mut live = self.live.as_ref()?.lock();
        live.told = true;
        Some(live.length)
    }

    /// Changes the progress unless the reading is over. Returns the old progress.
    pub fn leave(&self, to: ReadProgress) -> ReadProgress {
        let mut progress = self.progress.lock();
        let was = *progress;
        if was == ReadProgress::Goes {
            *progress = to;
        }
        was
    }

    /// Marks the file as failed. Returns false if it had failed before.
    pub fn fail(&self) -> bool {
        !self.failed.swap(true, Relaxed)
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// True if the file has failed, or will be read again from the start.
    pub fn is_given_up(&self) -> bool {
        let progress = *self.progress.lock();
        self.has_failed() || progress == ReadProgress::Again
    }
}

impl SendFile {
    /// A file that is on no list and needs no digest. The receiver has the bytes in `had`, which
    /// `cut` skips.
    pub fn new(
        found: FoundFile,
        source: SourceFile,
        had: RangeSet,
        cut: Cut,
        reading: FileReading,
    ) -> SendFile {
        SendFile {
            cut: OrderedMutex::new(cut),
            comparison: ComparedRanges::default(),
            ranges: 0,
            digest: RootDigest::Unneeded,
            coverage: Coverage::new(had),
            reading,
            alone: AtomicBool::new(false),
            digest_only: false,
            listed: None,
            interest: None,
            found,
            source,
        }
    }

    /// True if it may be cut into pieces of any size: it is neither compared with the receiver's file
    /// nor shared with other senders.
    pub fn may_be_cut_finer(&self) -> bool {
        self.comparison.is_empty() && self.interest.is_none()
    }

    /// True if two of its chunks may be sent as one: chunks are neither compared nor shared, all
    /// of them are sent, and the file may not change.
    pub fn may_be_large(&self) -> bool {
        self.may_be_cut_finer() && !self.reading.is_live() && !self.digest_only
    }

    /// The BLAKE3 of the whole file, once everything was read.
    pub fn root(&self) -> Option<Digest> {
        match &self.digest {
            RootDigest::Unneeded => None,
            RootDigest::Tree(tree) => tree.lock().root(),
            RootDigest::Known(root) => Some(*root),
        }
    }

    /// The receiver does not have these ranges after all, so they will be cut and sent. Returns
    /// their bytes; None if the receiver never said that it has them.
    pub fn take_back(&self, missing: &RangeSet) -> Option<u64> {
        let len = self.coverage.take_back(missing)?;
        self.alone.store(true, Relaxed);
        self.cut.lock().add(missing);
        Some(len)
    }
}

impl PackMember {
    pub fn new(found: FoundFile, listed: Option<ListedPath>) -> PackMember {
        PackMember {
            size: AtomicU64::new(found.entry.size),
            found,
            listed,
            digest: OnceLock::new(),
            failed: AtomicBool::new(false),
        }
    }

    /// Bytes of variable length in its row of a pack's table.
    pub fn row_len(&self) -> usize {
        let entry = &self.found.entry;
        let extensions = entry.extensions.iter().map(|one| one.bytes.len() + 16);
        let names = entry.name.as_bytes().len() + entry.user.len() + entry.group.len();
        names + extensions.sum::<usize>()
    }
}

impl PlannedContent {
    /// True if it is more than a chunk or a pack.
    pub fn is_large(&self, chunk_size: usize) -> bool {
        match self {
            PlannedContent::Piece { piece, .. } => piece.is_larger_than(chunk_size),
            PlannedContent::Large(_) => true,
            PlannedContent::Pack(_) | PlannedContent::Part(_) => false,
        }
    }

    /// The files of a pack or large pack; none for other chunks.
    pub fn members(&self) -> impl Iterator<Item = &PackMember> {
        let packs = match self {
            PlannedContent::Pack(members) => std::slice::from_ref(members),
            PlannedContent::Large(packs) => packs,
            PlannedContent::Piece { .. } | PlannedContent::Part(_) => &[],
        };
        packs.iter().flat_map(|members| members.iter())
    }
}

/// The receiver says that it has another version of a chunk whose digest it was not sent.
#[derive(Debug)]
pub struct NotOffered;

/// A chunk to be read and sent.
pub struct Plan {
    pub chunk: u64,
    pub what: PlannedContent,
    /// Digest of the first reading. Every later reading must have the same.
    pub digest: OnceLock<Digest>,
    /// How many times it arrived damaged.
    pub nacks: AtomicU8,
    /// Its digest is sent first, because the receiver may have it.
    is_compared: OnceLock<bool>,
    /// Its anchors are sent with its digest.
    is_anchored: AtomicBool,
    /// And the receiver has not answered.
    awaits_answer: AtomicBool,
    /// The short digests of the receiver's pages, if it has another version of the chunk: the answers
    /// to an offer without anchors and to one with them.
    pages: [OnceLock<Vec<u8>>; 2],
    /// How many bytes a patch has that could be made without the anchors.
    new_without: AtomicU32,
    /// How many of its bytes the patch has.
    pub new: AtomicU32,
    /// How many times its digest or a patch was sent, without a refusal.
    offers: AtomicU32,
    /// The receiver refused the digest or the patch, so all bytes are sent.
    refused: AtomicBool,
    /// How a large piece was compressed, so that it fits into a frame when it is sent again.
    pub method: OnceLock<Method>,
    /// It was read and is all zeros, which are not sent.
    pub zeros: AtomicBool,
}

impl Plan {
    pub fn new(chunk: u64, what: PlannedContent) -> Plan {
        Plan {
            chunk,
            what,
            digest: OnceLock::new(),
            nacks: AtomicU8::new(0),
            is_compared: OnceLock::new(),
            is_anchored: AtomicBool::new(false),
            awaits_answer: AtomicBool::new(false),
            pages: Default::default(),
            new_without: AtomicU32::new(u32::MAX),
            new: AtomicU32::new(0),
            offers: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            method: OnceLock::new(),
            zeros: AtomicBool::new(false),
        }
    }

    /// True for a piece of this file or a part of this pipe.
    pub fn is_of(&self, entry: EntryId) -> bool {
        match &self.what {
            PlannedContent::Piece { file, .. } => file.found.entry.id == entry,
            PlannedContent::Part(part) => part.pipe.entry.id == entry,
            PlannedContent::Pack(_) | PlannedContent::Large(_) => false,
        }
    }

    /// True if only its digest is to be sent, because the receiver may have the chunk.
    pub fn is_offer(&self) -> bool {
        let is_open = !self.refused.load(Relaxed) && self.answer().get().is_none();
        let may_be_there = || {
            let PlannedContent::Piece { file, piece } = &self.what else {
                return false;
            };
            let is_compared = file.comparison.takes(piece);
            if is_compared && !file.comparison.is_useful() {
                // It is hardly where the last piece was, or unchanged.
                self.try_anchors();
            }
            is_compared
        };
        is_open && *self.is_compared.get_or_init(may_be_there)
    }

    /// Leaves only the digest of a chunk, and its anchors if they are sent with it.
    pub fn make_offer(&self, chunk: &mut Chunk) {
        self.offered();
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
        self.is_anchored.load(Relaxed)
    }

    /// Begins to offer the chunk with its anchors. Returns false if they were sent before, or are not
    /// worth it.
    fn try_anchors(&self) -> bool {
        let PlannedContent::Piece { file, piece } = &self.what else {
            return false;
        };
        let tries = file.comparison.takes_anchors(piece) && !self.is_anchored.swap(true, Relaxed);
        if tries {
            file.comparison.begin_anchored();
            self.awaits_answer.store(true, Relaxed);
        }
        tries
    }

    /// The receiver has answered to the anchors, or no answer will come.
    pub fn anchors_answered(&self) {
        if self.awaits_answer.swap(false, Relaxed)
            && let PlannedContent::Piece { file, .. } = &self.what
        {
            file.comparison.end_anchored();
        }
    }

    /// The same for a chunk of `len` bytes of which a patch would have `new` bytes; None if the patch
    /// is too long.
    pub fn tries_anchors(&self, len: usize, new: Option<usize>) -> bool {
        let is_long = new.is_none_or(|new| new > len / PATCH_FOR_ANCHORS);
        let tries = is_long && self.try_anchors();
        if let (true, Some(new)) = (tries, new) {
            self.new_without.store(new as u32, Relaxed);
        }
        tries
    }

    /// The receiver's answer to the last kind of offer.
    fn answer(&self) -> &OnceLock<Vec<u8>> {
        &self.pages[usize::from(self.is_anchored())]
    }

    /// The short digests of the receiver's pages, if only what differs is to be sent.
    pub fn pages(&self) -> Option<&[u8]> {
        let pages = self.answer().get();
        let pages = pages.filter(|_| !self.refused.load(Relaxed));
        pages.map(Vec::as_slice)
    }

    /// Counts a frame with the digest, or with a patch. There may be several if connections
    /// die.
    pub fn offered(&self) {
        self.offers.fetch_add(1, Relaxed);
    }

    /// The number of its bytes that the receiver had, out of `len`.
    fn had(&self, len: u64) -> u64 {
        match self.offers.load(Relaxed) > 0 && !self.refused.load(Relaxed) {
            true => len.saturating_sub(self.new.load(Relaxed).into()),
            false => 0,
        }
    }

    /// The chunk, of `len` bytes, is in place. Returns how many of them the receiver had.
    pub fn placed(&self, len: u64) -> u64 {
        let had = self.had(len);
        let PlannedContent::Piece { file, piece } = &self.what else {
            return had;
        };
        if had > 0 {
            file.comparison.hit(piece.offset + len);
        }
        if self.is_anchored() && !self.refused.load(Relaxed) {
            let without = len.saturating_sub(self.new_without.load(Relaxed).into());
            file.comparison.anchors_helped(had > without);
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
        let PlannedContent::Piece { piece, .. } = &self.what else {
            return Err(NotOffered);
        };
        if self.is_compared.get() != Some(&true) || !differing.fits(piece.len) {
            return Err(NotOffered);
        }
        let was_offer = self.take_offer();
        self.anchors_answered();
        let is_news = !self.refused.load(Relaxed) && self.answer().set(differing.pages).is_ok();
        if !is_news {
            self.refused.store(true, Relaxed);
        }
        Ok(is_news || was_offer)
    }

    /// All bytes are sent, because too many of them differ.
    pub fn give_up_patch(&self) {
        self.refused.store(true, Relaxed);
        self.missed();
    }

    /// The receiver refused the frame: it does not have the bytes of a digest or a patch, or the
    /// chunk arrived damaged. Each sent digest and patch can be refused once. Returns true if it
    /// refused one of those.
    pub fn refused(&self) -> bool {
        let was_offer = self.take_offer();
        if was_offer && self.is_offer() && self.try_anchors() {
            return true;
        }
        self.anchors_answered();
        self.refused.store(true, Relaxed);
        match was_offer {
            true => self.missed(),
            false => {
                self.nacks.fetch_add(1, Relaxed);
            }
        }
        was_offer
    }

    /// The receiver had nothing of the chunk.
    fn missed(&self) {
        if let PlannedContent::Piece { file, .. } = &self.what {
            file.comparison.missed();
            if self.is_anchored() {
                file.comparison.anchors_helped(false);
            }
        }
    }

    /// False if no sent digest or patch is without an answer.
    fn take_offer(&self) -> bool {
        let one_less = |offers: u32| offers.checked_sub(1);
        let taken = self.offers.fetch_update(Relaxed, Relaxed, one_less);
        taken.is_ok()
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        self.anchors_answered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 32 << 20;

    /// The pieces of a file that are compared, of which the receiver has nothing.
    fn offers(copy: &CopyComparisons, has: impl Fn(u64) -> bool) -> Vec<u64> {
        let whole = std::iter::once(0..SIZE).collect();
        let compared = ComparedRanges::of(whole, COMPARED_PIECE, 0, copy);
        let piece = |offset| FilePiece {
            kind: ChunkKind::Range,
            offset,
            len: COMPARED_PIECE as u32,
        };
        let offsets = (0..SIZE).step_by(COMPARED_PIECE as usize);
        let taken = |offset: &u64| {
            let takes = compared.takes(&piece(*offset));
            match has(*offset) {
                _ if !takes => {}
                true => compared.hit(offset + COMPARED_PIECE),
                false => compared.missed(),
            }
            takes
        };
        offsets.filter(taken).collect()
    }

    #[test]
    fn after_some_files_of_which_nothing_is_there_only_the_start_of_the_next_is_compared() {
        let copy = CopyComparisons::default();
        for _ in 0..FILES_MISSED {
            assert!(offers(&copy, |_| false).len() > MISSES as usize);
        }
        let few = [
            0,
            4 << 20,
            8 << 20,
            12 << 20,
            16 << 20,
            20 << 20,
            24 << 20,
            28 << 20,
        ];
        assert_eq!(offers(&copy, |_| false), few);
        // The first piece that is there brings back the comparison of the rest.
        let offered = offers(&copy, |offset| offset >= 8 << 20);
        assert_eq!(
            offered.len() as u64,
            3 + (SIZE - (8 << 20)) / COMPARED_PIECE - 1
        );
        assert!(offers(&copy, |_| false).len() > MISSES as usize);
    }
}
