//! A file or a pipe that is being received: from the answer to its announcement until it has its
//! name, was written to a pipe, or failed.

use std::path::PathBuf;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize, fence};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;

use super::shifts::Shifts;
use crate::chunk::claims::Claims;
use crate::chunk::ranges::RangeSet;
use crate::chunk::{ChunkPlace, VerifiedChunk};
use crate::dest::{Basis, EntrySlot, OrderedSink, Partial};
use crate::digest::pipe::{PipePiece, PipeTree};
use crate::digest::{Digest, Tree};
use crate::error::{Error, Kind, Side};
use crate::journal::record::Hash;
use crate::locks::{OrderedMutex, place};
use crate::manifest::{Entry, EntryKind};
use crate::pipeline::digest_list::ListedPath;
use crate::wire::message::EntryEnd;

/// A file that the sender has announced, and its place.
pub struct IncomingFile {
    pub entry: Entry,
    pub slot: EntrySlot,
    pub listed: Option<ListedPath>,
    /// The hash of the path below the roots.
    pub path: Hash,
}

/// A file or a pipe that is being received.
pub struct OpenFile {
    pub entry: Arc<Entry>,
    pub listed: Option<ListedPath>,
    /// The hash of the path below the roots.
    pub path: Hash,
    /// When the first piece of it was written.
    pub began: OnceLock<Instant>,
    pub claims: OrderedMutex<Claims, { place::CLAIMS }>,
    pub tree: FileTree,
    /// Set when the sender has read all of the file.
    pub end: OnceLock<EntryEnd>,
    pub output: FileOutput,
    /// Between the finished pieces.
    pub(super) gaps: Gaps,
    /// Set by the one thread that commits, compares, fails or discards the file.
    closing: AtomicBool,
}

/// The number of gaps in one file, as a part of the number in all files.
pub(super) struct Gaps {
    own: AtomicUsize,
    all: Arc<AtomicUsize>,
}

/// The digest of a file, built from its chunks.
pub enum FileTree {
    /// The digest of the file is not needed.
    None,
    Tree(Mutex<Tree>),
    /// Of a source that is a pipe: its length is not known in advance.
    Pipe(Mutex<PipeTree>),
}

/// Where the content goes.
pub enum FileOutput {
    /// A file that gets its final name when it is complete, or, written in place, its final length.
    Partial(Box<PartialFile>),
    /// Nowhere: the digest of the existing file is compared with the sender's.
    Compared {
        slot: EntrySlot,
        /// The digest of the existing file, if it is known without reading the file.
        known: Option<Digest>,
    },
    /// A pipe; nothing is stored. With its path, for messages.
    Pipe(Box<OrderedSink>, PathBuf),
}

/// A partial file, with its state for the journal and the table.
pub struct PartialFile {
    pub slot: EntrySlot,
    /// None once the file has its name or failed.
    partial: OrderedMutex<Option<Arc<Partial>>, { place::PARTIAL }>,
    /// The number of the file in the journal, once it is made.
    pub number: OnceLock<u32>,
    /// The source was recently written when it was announced.
    pub young: bool,
    /// Existing content, with which the sender may compare its chunks by their digests.
    pub basis: Option<Basis>,
    /// An earlier session has left a part of it.
    pub is_resumed: bool,
    /// Where the content of `basis` has moved.
    pub shifts: Shifts,
    /// Chunks with lower numbers belong to an earlier reading of the source and are dropped.
    pub first_chunk: u64,
    /// Ranges that earlier sessions wrote and that must be read before the file is complete.
    pub unread: Option<Unread>,
}

/// Ranges of an open file that earlier sessions wrote and that were not read since.
pub struct Unread {
    /// Bytes.
    pub ranges: OrderedMutex<RangeSet, { place::UNREAD }>,
    /// False when all ranges have been handled.
    is_open: AtomicBool,
}

impl OpenFile {
    pub(super) fn new(
        entry: Arc<Entry>,
        (listed, path): (Option<ListedPath>, Hash),
        claims: Claims,
        tree: FileTree,
        output: FileOutput,
        gaps: Gaps,
    ) -> OpenFile {
        OpenFile {
            entry,
            listed,
            path,
            began: OnceLock::new(),
            claims: OrderedMutex::new(claims),
            tree,
            end: OnceLock::new(),
            output,
            gaps,
            closing: AtomicBool::new(false),
        }
    }

    /// True if the source is a pipe.
    pub fn is_pipe(&self) -> bool {
        self.entry.kind == EntryKind::Pipe
    }

    /// The path as the user would write it; for messages.
    pub fn path(&self) -> PathBuf {
        match &self.output {
            FileOutput::Partial(file) => file.slot.path(),
            FileOutput::Compared { slot, .. } => slot.path(),
            FileOutput::Pipe(_, path) => path.clone(),
        }
    }

    /// The place of the file; None if it is written to a pipe.
    pub fn slot(&self) -> Option<&EntrySlot> {
        match &self.output {
            FileOutput::Partial(file) => Some(&file.slot),
            FileOutput::Compared { slot, .. } => Some(slot),
            FileOutput::Pipe(..) => None,
        }
    }

    /// The pipe that the file is written to.
    pub fn sink(&self) -> Option<&OrderedSink> {
        match &self.output {
            FileOutput::Pipe(sink, _) => Some(sink),
            FileOutput::Partial(_) | FileOutput::Compared { .. } => None,
        }
    }

    pub fn partial_file(&self) -> Option<&PartialFile> {
        match &self.output {
            FileOutput::Partial(file) => Some(file),
            FileOutput::Compared { .. } | FileOutput::Pipe(..) => None,
        }
    }

    /// The partial file, for as long as a worker writes to it or reads it.
    pub fn partial(&self) -> Option<Arc<Partial>> {
        self.partial_file()?.partial.lock().clone()
    }

    /// Removes and returns the partial file. Its removal from the disk may take long; no lock is
    /// held during that.
    pub fn take_partial(&self) -> Option<Arc<Partial>> {
        self.partial_file()?.partial.lock().take()
    }

    /// The number of the file in the journal.
    pub fn number(&self) -> Option<u32> {
        self.partial_file()?.number.get().copied()
    }

    /// Begins to close the file. Returns false if another thread has begun.
    pub fn begin_close(&self) -> bool {
        !self.closing.swap(true, AcqRel)
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Acquire)
    }

    /// Adds a verified chunk to the digest of the file.
    pub fn add_to_tree(&self, place: ChunkPlace, chunk: &VerifiedChunk) {
        match &self.tree {
            FileTree::None => {}
            FileTree::Tree(tree) => {
                // Parts of this piece may have been found intact, and arrived again together with
                // a damaged part.
                let mut tree = tree.lock();
                tree.add_bytes(place.offset, chunk.data(), chunk.digest());
            }
            FileTree::Pipe(tree) => {
                let piece = PipePiece::new(chunk.data(), place.offset, chunk.digest());
                tree.lock().add(piece);
            }
        }
    }

    /// Adds a range of zeros to the digest of the file.
    pub fn add_zeros_to_tree(&self, place: ChunkPlace) {
        let len = u64::from(place.raw_len);
        match &self.tree {
            FileTree::None => {}
            FileTree::Tree(tree) => {
                tree.lock().add_zeros(place.offset, len);
            }
            FileTree::Pipe(tree) => {
                let piece = PipePiece::of_zeros(place.offset, len);
                tree.lock().add(piece);
            }
        }
    }

    /// Adds a range to the digest of the file by its own digest; None if it is all zeros.
    pub fn add_range_to_tree(&self, offset: u64, len: u64, digest: Option<Digest>) {
        let FileTree::Tree(tree) = &self.tree else {
            return;
        };
        let mut tree = tree.lock();
        match digest {
            Some(digest) => tree.add_subtree(offset, len, digest),
            None => tree.add_zeros(offset, len),
        };
    }

    /// The BLAKE3 of the whole file, once all of it has arrived; for a pipe, once its end is known
    /// too.
    pub fn root(&self) -> Option<Digest> {
        match &self.tree {
            FileTree::None => None,
            FileTree::Tree(tree) => tree.lock().root(),
            FileTree::Pipe(tree) => tree.lock().root(self.end.get()?.length),
        }
    }

    /// True if everything has arrived, earlier sessions' data was read, and no write is in
    /// progress.
    pub fn is_complete(&self) -> bool {
        // The thread that makes the last of three things true sees the other two: each is written
        // before this, by threads that share no lock.
        fence(SeqCst);
        let unread = self.partial_file().and_then(|file| file.unread.as_ref());
        if unread.is_some_and(Unread::is_open) {
            return false;
        }
        let is_compared = matches!(self.output, FileOutput::Compared { .. });
        let has_all = || self.claims.lock().is_complete();
        self.end.get().is_some() && (is_compared || has_all())
    }

    /// The error if the content differs from the announced file.
    pub fn changed(&self) -> Error {
        let what = "the source changed during the copy: the digests of the whole file differ";
        Error::new(Kind::Changed, Side::Dest, what).at(self.path())
    }
}

impl Gaps {
    pub(super) fn new(all: &Arc<AtomicUsize>) -> Gaps {
        Gaps {
            own: AtomicUsize::new(0),
            all: all.clone(),
        }
    }

    /// Sets the number in this file, under a lock that the caller has. Returns the number in all files.
    pub(super) fn set(&self, gaps: usize) -> usize {
        let before = self.own.swap(gaps, Relaxed);
        // Wraps around where there are fewer now.
        let change = gaps.wrapping_sub(before);
        self.all.fetch_add(change, Relaxed).wrapping_add(change)
    }
}

impl Drop for Gaps {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl FileTree {
    pub fn of(tree: Option<Tree>) -> FileTree {
        tree.map_or(FileTree::None, |tree| FileTree::Tree(Mutex::new(tree)))
    }
}

impl PartialFile {
    /// `young`: the source was recently written.
    pub fn new(slot: EntrySlot, partial: Partial, number: Option<u32>, young: bool) -> PartialFile {
        PartialFile {
            slot,
            partial: OrderedMutex::new(Some(Arc::new(partial))),
            number: number.map_or_else(OnceLock::new, OnceLock::from),
            young,
            basis: None,
            is_resumed: false,
            shifts: Shifts::default(),
            first_chunk: 0,
            unread: None,
        }
    }
}

impl Unread {
    /// None if there is nothing to read.
    pub fn new(ranges: RangeSet) -> Option<Unread> {
        let is_open = AtomicBool::new(true);
        let ranges = (!ranges.is_empty()).then_some(ranges)?;
        Some(Unread {
            ranges: OrderedMutex::new(ranges),
            is_open,
        })
    }

    pub fn is_open(&self) -> bool {
        self.is_open.load(Acquire)
    }

    /// All ranges have been handled.
    pub fn close(&self) {
        self.is_open.store(false, Release);
    }
}
