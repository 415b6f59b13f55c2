//! A big file or a stream on its way at the receiver, until it has its name, has left, or failed.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use crate::chunk::claims::Claims;
use crate::dest::{Drain, Partial, Readback, Slot};
use crate::digest::stream::StreamTree;
use crate::digest::{Digest, Tree};
use crate::journal::record::Hash;
use crate::manifest::{Entry, EntryKind};
use crate::pipeline::digest_list::Listed;
use crate::pipeline::verify::Unread;
use crate::wire::message::EntryEnd;

/// A big file that is being received.
pub struct OpenFile {
    pub entry: Arc<Entry>,
    pub at: At,
    /// None once it has its name or failed, and for a file that is only compared.
    pub partial: Mutex<Option<Arc<Partial>>>,
    pub claims: Mutex<Claims>,
    /// None where nobody needs the digest of a file with holes, and for a stream.
    pub tree: Option<Mutex<Tree>>,
    /// That of a stream.
    pub stream: Option<Mutex<StreamTree>>,
    /// The sender has read all of it.
    pub end: OnceLock<EntryEnd>,
    /// What earlier sessions wrote, until it was read.
    pub unread: Option<Unread>,
    /// For reading what may be there; none where that cannot be.
    pub readback: OnceLock<Option<Readback>>,
    /// One thread commits, compares or fails it.
    pub closing: AtomicBool,
    /// It stands there already: its digest is compared with the sender's.
    pub compare: bool,
    /// The digest of what stands there, where that is known without reading it.
    pub known: Option<Digest>,
    pub listed: Option<Listed>,
    /// Of its path below the roots.
    pub path: Hash,
    /// By which the journal knows its chunks.
    pub number: Option<u32>,
    /// Its source had just been written when it was announced.
    pub young: bool,
    /// Ranges were offered of which the sender may send digests alone.
    pub offered: bool,
    /// Chunks below this number are of an earlier reading, and worth nothing.
    pub first_chunk: u64,
}

/// Where a file arrives.
pub enum At {
    /// Its name.
    Slot(Slot),
    /// It leaves there; nothing of it is kept.
    Drain(Box<Drain>, PathBuf),
}

impl At {
    /// As the user would write it; for messages.
    pub fn path(&self) -> PathBuf {
        match self {
            At::Slot(slot) => slot.path(),
            At::Drain(_, path) => path.clone(),
        }
    }

    pub fn slot(&self) -> Option<&Slot> {
        match self {
            At::Slot(slot) => Some(slot),
            At::Drain(..) => None,
        }
    }

    pub fn drain(&self) -> Option<&Drain> {
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

    /// The BLAKE3 of the whole, once all of it is there and its end was told.
    pub fn root(&self) -> Option<Digest> {
        if let Some(stream) = &self.stream {
            let length = self.end.get()?.length;
            return stream.lock().expect("no panic while held").root(length);
        }
        self.tree
            .as_ref()?
            .lock()
            .expect("no panic while held")
            .root()
    }

    /// All is there, what earlier sessions left was read, and nobody is writing any more.
    pub fn is_complete(&self) -> bool {
        if self.unread.as_ref().is_some_and(Unread::is_open) {
            return false;
        }
        let has_all = || {
            self.claims
                .lock()
                .expect("no panic while held")
                .is_complete()
        };
        self.end.get().is_some() && (self.compare || has_all())
    }
}
