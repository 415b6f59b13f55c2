//! A chunk to be sent, and the files and pipes that chunks are made of.

use std::path::PathBuf;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;

use super::cache::Interest;
use super::comparison::ComparedRanges;
use super::offer::{ChunkOffer, OfferState};
use crate::algorithms::Method;
use crate::chunk::Buffer;
use crate::chunk::ranges::RangeSet;
use crate::chunk::split::{Cut, FilePiece};
use crate::digest::pipe::PipeTree;
use crate::digest::{Digest, Tree};
use crate::locks::{OrderedMutex, place};
use crate::manifest::{Entry, EntryId};
use crate::pipe::Stop;
use crate::pipeline::digest_list::ListedPath;
use crate::source::{FoundFile, PipeOrigin, SourceFile};
use crate::transport::frames::SealedChunk;
use crate::wire::message::RANGES_MAX;

/// The most ranges of a file that the receiver lacks after all, or has besides those: some 16 MB.
pub const MISSING_MAX: usize = 4 * RANGES_MAX;

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
    /// When the reading of its first piece began.
    pub began: OnceLock<Instant>,
    /// Read for this receiver alone, because it asked for ranges that other senders do not send.
    pub alone: AtomicBool,
    /// The receiver wants the digest only.
    pub digest_only: bool,
    /// The path below the destination, for a list of digests.
    pub listed: Option<ListedPath>,
    /// Held while the file is sent, if other senders may send it too.
    pub interest: Option<Interest>,
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
    /// All was read, and the file has grown since it was opened. If the bytes read stay the same, its
    /// end is sent.
    Grew,
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
    /// The user was told that it grew.
    pub grew: AtomicBool,
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
    /// never said that it has them, or if too many ranges are left.
    fn take_back(&self, missing: &RangeSet) -> Option<u64> {
        let mut had = self.had.lock();
        if !missing.iter().all(|range| had.contains_all(range)) {
            return None;
        }
        missing.iter().for_each(|range| {
            had.remove(range);
        });
        if had.fragments() > MISSING_MAX {
            return None;
        }
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

    /// The length of a file that may change, to be reported to the receiver now; None for others.
    pub fn end_live(&self) -> Option<u64> {
        let mut live = self.live.as_ref()?.lock();
        live.told = true;
        Some(live.length)
    }

    /// Changes the progress unless the reading is over. Returns the old progress.
    pub fn leave(&self, to: ReadProgress) -> ReadProgress {
        let mut progress = self.progress.lock();
        let was = *progress;
        let is_over = match was {
            ReadProgress::Goes => false,
            ReadProgress::Grew => to == ReadProgress::Grew,
            ReadProgress::Ended | ReadProgress::Again => true,
        };
        if !is_over {
            *progress = to;
        }
        was
    }

    /// True if the file grew, and nothing shows so far that it changed otherwise.
    pub fn has_grown(&self) -> bool {
        *self.progress.lock() == ReadProgress::Grew
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
            began: OnceLock::new(),
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
            grew: AtomicBool::new(false),
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

/// A chunk to be read and sent.
pub struct Plan {
    pub chunk: u64,
    pub what: PlannedContent,
    /// Digest of the first reading. Every later reading must have the same.
    pub digest: OnceLock<Digest>,
    /// How many times it arrived damaged.
    pub nacks: AtomicU8,
    offer: OfferState,
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
            offer: OfferState::default(),
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

    /// What the receiver is asked about the chunk before its bytes are sent.
    pub fn offer(&self) -> ChunkOffer<'_> {
        let compared = match &self.what {
            PlannedContent::Piece { file, piece } => Some((&file.comparison, piece)),
            PlannedContent::Pack(_) | PlannedContent::Large(_) | PlannedContent::Part(_) => None,
        };
        ChunkOffer {
            state: &self.offer,
            compared,
        }
    }

    /// The receiver refused the frame: it does not have the bytes of a digest or a patch, or the
    /// chunk arrived damaged. Returns true if it refused a digest or patch.
    pub fn refused(&self) -> bool {
        let was_offer = self.offer().refused();
        if !was_offer {
            self.nacks.fetch_add(1, Relaxed);
        }
        was_offer
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        self.offer().anchors_answered();
    }
}
