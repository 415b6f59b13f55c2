//! A big file or a pipe that is being received, until it has its name, was written to a pipe, or
//! failed.

use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, fence};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::verify::Unread;
use crate::chunk::claims::Claims;
use crate::dest::{EntrySlot, OrderedSink, Partial, Readback};
use crate::digest::pipe::PipeTree;
use crate::digest::{Digest, Tree};
use crate::journal::record::Hash;
use crate::manifest::{Entry, EntryKind};
use crate::pipeline::digest_list::ListedPath;
use crate::wire::message::EntryEnd;

/// A big file or a pipe that is being received.
pub struct OpenFile {
    pub entry: Arc<Entry>,
    pub at: At,
    /// None once the file has its name or failed, while it is only compared, and if it is written
    /// to a pipe.
    pub partial: Mutex<Option<Arc<Partial>>>,
    pub claims: Mutex<Claims>,
    /// None for a source that is a pipe, and if the digest of the file is not needed.
    pub tree: Option<Mutex<Tree>>,
    /// The tree of a source that is a pipe.
    pub stream: Option<Mutex<PipeTree>>,
    /// Set when the sender has read all of the file.
    pub end: OnceLock<EntryEnd>,
    /// Ranges that earlier sessions wrote and that must be read before the file is complete.
    pub unread: Option<Unread>,
    /// For reading bytes that may exist already; None inside if the file cannot be opened for that.
    pub readback: OnceLock<Option<Readback>>,
    /// Set by the one thread that commits, compares, fails or discards the file.
    pub closing: AtomicBool,
    /// The file exists already; its digest is compared with the sender's.
    pub compare: bool,
    /// The digest of the existing file, if it is known without reading the file.
    pub known: Option<Digest>,
    pub listed: Option<ListedPath>,
    /// The hash of the path below the roots.
    pub path: Hash,
    /// The number of the file in the journal.
    pub number: Option<u32>,
    /// The source was recently written when it was announced.
    pub young: bool,
    /// Ranges were offered for which the sender may send only digests.
    pub offered: bool,
    /// Chunks with lower numbers belong to an earlier reading of the source and are dropped.
    pub first_chunk: u64,
}

/// The destination of a file.
pub enum At {
    /// A name in a directory.
    Slot(EntrySlot),
    /// A pipe; nothing is stored.
    Drain(Box<OrderedSink>, PathBuf),
}

impl At {
    /// The path as the user would write it; for messages.
    pub fn path(&self) -> PathBuf {
        match self {
            At::Slot(slot) => slot.path(),
            At::Drain(_, path) => path.clone(),
        }
    }

    pub fn slot(&self) -> Option<&EntrySlot> {
        match self {
            At::Slot(slot) => Some(slot),
            At::Drain(..) => None,
        }
    }

    pub fn drain(&self) -> Option<&OrderedSink> {
        match self {
            At::Slot(_) => None,
            At::Drain(drain, _) => Some(drain),
        }
    }
}

impl OpenFile {
    pub fn is_stream(&self) -> bool {
        self.entry.kind == EntryKind::Stream
    }

    /// The BLAKE3 of the whole file, once all of it has arrived; for a pipe, once its end is known
    /// too.
    pub fn root(&self) -> Option<Digest> {
        if let Some(stream) = &self.stream {
            let length = self.end.get()?.length;
            return stream.lock().root(length);
        }
        self.tree.as_ref()?.lock().root()
    }

    /// True if everything has arrived, earlier sessions' data was read, and no write is in
    /// progress.
    pub fn is_complete(&self) -> bool {
        // Whoever makes the last of three things true sees the other two: each is written before
        // this, by threads that share no lock.
        fence(SeqCst);
        if self.unread.as_ref().is_some_and(Unread::is_open) {
            return false;
        }
        let has_all = || self.claims.lock().is_complete();
        self.end.get().is_some() && (self.compare || has_all())
    }
}
