//! One chunk to be sent, and the files that chunks are made of.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use crate::chunk::Buffer;
use crate::chunk::ranges::RangeSet;
use crate::chunk::split::{Cut, Piece};
use crate::digest::stream::StreamTree;
use crate::digest::{Digest, Tree};
use crate::manifest::{Entry, EntryId};
use crate::pipe::Stop;
use crate::pipeline::digest_list::Listed;
use crate::pipeline::shelf::Interest;
use crate::source::{Found, Inlet, SourceFile};
use crate::tuner::Method;
use crate::wire::SealedChunk;

/// A big file that is being sent.
pub struct File {
    pub found: Found,
    pub source: SourceFile,
    pub cut: Mutex<Cut>,
    /// Bytes whose chunks go as digests first, since the receiver may have them.
    pub compare: RangeSet,
    /// None where nobody needs the digest of a file with holes, or of one that may change.
    pub tree: Option<Mutex<Tree>>,
    /// Ranges that the receiver named.
    pub ranges: usize,
    /// Bytes that the receiver has and that are not read, less those that it has asked for since.
    pub had: Mutex<RangeSet>,
    /// The root where there is no tree, as the receiver knew it.
    pub known: Option<Digest>,
    /// Ranges that others do not send too were asked for: it is read for this receiver alone.
    pub alone: AtomicBool,
    /// Bytes that were read (or skipped as holes) for the first time, with those that it has.
    pub covered: AtomicU64,
    /// Bytes that are where they belong.
    pub placed: AtomicU64,
    pub failed: AtomicBool,
    pub reading: Mutex<Reading>,
    /// It is being read for the second time.
    pub anew: bool,
    /// The receiver wants the digest and no bytes.
    pub digest_only: bool,
    /// Its path below the destination, for a list of digests.
    pub listed: Option<Listed>,
    /// Where it may change while it is read.
    pub live: Option<Mutex<Live>>,
    /// Held while it is sent, where others may send it too.
    pub interest: Option<Interest>,
}

/// How far the reading of a big file has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Goes,
    /// The receiver was told of the file's end.
    Ended,
    /// It is given up since the file changed, and another takes its place.
    Anew,
}

/// A file that may become shorter while it is read.
pub struct Live {
    /// Bytes up to the lowest end that a reader came to.
    pub length: u64,
    /// The receiver was told of the length.
    pub told: bool,
}

/// A small file that travels in a pack.
pub struct Member {
    pub found: Found,
    pub listed: Option<Listed>,
    /// Bytes: as the walk saw it, and once it was read as it was then.
    pub size: AtomicU64,
    /// What was read of it, once it was.
    pub digest: OnceLock<Digest>,
    /// It failed, was told of, and is left out when its pack is read again.
    pub failed: AtomicBool,
}

/// A stream that is being sent.
pub struct Stream {
    pub entry: Entry,
    /// As the user would write it; for messages.
    pub path: PathBuf,
    pub listed: Option<Listed>,
    pub tree: Mutex<StreamTree>,
    pub failed: AtomicBool,
    /// Ends what waits for its producer.
    pub stop: Stop,
    /// It is sent as it is: what the link carries is to be seen.
    pub is_test: bool,
    /// Others send the very same bytes.
    pub is_shared: bool,
    /// It cannot be read a second time and is all that is copied, so no session can go on where this
    /// one is lost.
    pub is_once: bool,
}

/// A chunk of a stream. It cannot be read again, so its frame is kept until it is acknowledged.
pub struct Part {
    pub stream: Arc<Stream>,
    pub offset: u64,
    pub len: u32,
    pub bytes: Mutex<Bytes>,
}

pub enum Bytes {
    Read(Buffer),
    Framed(Arc<SealedChunk>),
    /// They were given away, where nothing can be lost.
    Gone,
}

#[derive(Clone)]
pub enum What {
    Piece {
        file: Arc<File>,
        piece: Piece,
    },
    Pack(Arc<Vec<Member>>),
    /// Packs that go as one.
    Large(Vec<Arc<Vec<Member>>>),
    Part(Arc<Part>),
}

impl Stream {
    /// `alone` if nothing else is copied.
    pub fn new(entry: Entry, inlet: &Inlet, listed: Option<Listed>, alone: bool) -> Stream {
        Stream {
            entry,
            path: inlet.path(),
            listed,
            tree: Mutex::default(),
            failed: AtomicBool::new(false),
            stop: Stop::new(),
            is_test: inlet.is_test(),
            is_shared: matches!(inlet, Inlet::Tee(..)),
            is_once: alone && inlet.is_once(),
        }
    }
}

impl Part {
    /// The `len` bytes at `offset` as they lie in `buffer`.
    pub fn read(stream: &Arc<Stream>, offset: u64, len: usize, buffer: Buffer) -> Part {
        Part {
            stream: stream.clone(),
            offset,
            len: len as u32,
            bytes: Mutex::new(Bytes::Read(buffer)),
        }
    }
}

impl File {
    /// Leaves a reading that goes on still. Gives what it was.
    pub fn leave_reading(&self, to: Reading) -> Reading {
        let mut reading = self.reading.lock().expect("no panic while held");
        let was = *reading;
        if was == Reading::Goes {
            *reading = to;
        }
        was
    }

    /// It has failed, or is to be read again from its start.
    pub fn is_given_up(&self) -> bool {
        let reading = *self.reading.lock().expect("no panic while held");
        self.failed.load(Relaxed) || reading == Reading::Anew
    }

    /// No chunk of it is looked at whole: neither compared with what is there, nor shared.
    pub fn may_be_cut_finer(&self) -> bool {
        self.compare.is_empty() && self.interest.is_none()
    }

    /// Its chunks may go two as one: nobody looks at each, and it does not change.
    pub fn may_be_large(&self) -> bool {
        self.may_be_cut_finer() && self.live.is_none() && !self.digest_only
    }

    /// The BLAKE3 of the whole, once all was read.
    pub fn root(&self) -> Option<Digest> {
        let root = |tree: &Mutex<Tree>| tree.lock().expect("no panic while held").root();
        self.tree.as_ref().map_or(self.known, root)
    }

    /// Bytes that the receiver has.
    pub fn had(&self) -> u64 {
        self.had.lock().expect("no panic while held").count()
    }

    /// The receiver does not have these ranges after all: they are to be cut and sent. Gives how
    /// many bytes those are; None where it did not say that it has them.
    pub fn take_back(&self, missing: &RangeSet) -> Option<u64> {
        let mut had = self.had.lock().expect("no panic while held");
        if !missing.iter().all(|range| had.contains_all(range)) {
            return None;
        }
        missing.iter().for_each(|range| {
            had.remove(range);
        });
        drop(had);
        let len = missing.count();
        self.alone.store(true, Relaxed);
        self.covered.fetch_sub(len, AcqRel);
        self.placed.fetch_sub(len, Relaxed);
        self.cut.lock().expect("no panic while held").add(missing);
        Some(len)
    }
}

impl Member {
    pub fn new(found: Found, listed: Option<Listed>) -> Member {
        Member {
            size: AtomicU64::new(found.entry.size),
            found,
            listed,
            digest: OnceLock::new(),
            failed: AtomicBool::new(false),
        }
    }
}

impl What {
    /// The files of a pack, none of anything else.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        let packs = match self {
            What::Pack(members) => std::slice::from_ref(members),
            What::Large(packs) => packs,
            What::Piece { .. } | What::Part(_) => &[],
        };
        packs.iter().flat_map(|members| members.iter())
    }
}

/// One chunk to be read and sent.
pub struct Plan {
    pub chunk: u64,
    pub what: What,
    /// Of the first reading, which every further one must equal.
    pub digest: OnceLock<Digest>,
    /// Times that it arrived damaged.
    pub nacks: AtomicU8,
    /// Times that its digest went alone and was not refused.
    offers: AtomicU32,
    /// Its digest was refused: all of it goes.
    refused: AtomicBool,
    /// How a large piece was compressed, so that it fits into a frame the next time too.
    pub method: OnceLock<Method>,
    /// It was read and is nothing but zeros, which do not travel.
    pub zeros: AtomicBool,
}

impl Plan {
    pub fn new(chunk: u64, what: What) -> Plan {
        Plan {
            chunk,
            what,
            digest: OnceLock::new(),
            nacks: AtomicU8::new(0),
            offers: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            method: OnceLock::new(),
            zeros: AtomicBool::new(false),
        }
    }

    /// True of a piece of this file, or a part of this stream.
    pub fn is_of(&self, entry: EntryId) -> bool {
        match &self.what {
            What::Piece { file, .. } => file.found.entry.id == entry,
            What::Part(part) => part.stream.entry.id == entry,
            What::Pack(_) | What::Large(_) => false,
        }
    }

    /// Its digest is to go alone, since the receiver may have the chunk.
    pub fn is_offer(&self) -> bool {
        match &self.what {
            What::Piece { file, piece } if !file.compare.is_empty() => {
                let range: Range<u64> = piece.offset..piece.offset + u64::from(piece.len);
                !self.refused.load(Relaxed) && file.compare.contains_all(range)
            }
            _ => false,
        }
    }

    /// Its digest goes alone, perhaps a second time since a stream died.
    pub fn offered(&self) {
        self.offers.fetch_add(1, Relaxed);
    }

    /// True if its digest was taken for the chunk.
    pub fn was_had(&self) -> bool {
        self.offers.load(Relaxed) > 0 && !self.refused.load(Relaxed)
    }

    /// The receiver could make nothing of it: a digest of what it does not have, of which each is
    /// refused once, or a damaged chunk.
    pub fn refused(&self) {
        self.refused.store(true, Relaxed);
        let one_less = |offers: u32| offers.checked_sub(1);
        if self
            .offers
            .fetch_update(Relaxed, Relaxed, one_less)
            .is_err()
        {
            self.nacks.fetch_add(1, Relaxed);
        }
    }
}
