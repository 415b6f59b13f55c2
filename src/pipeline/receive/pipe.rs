//! A pipe at the receiver, and a file that is written to a pipe: how each is opened when it is
//! announced, and how its chunks leave.

use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::open_file::{At, OpenFile};
use super::resume::{PipeThere, Resuming};
use crate::chunk::claims::Claims;
use crate::chunk::{ChunkKind, EncodedChunk, VerifiedChunk};
use crate::dest::{self, OrderedSink, Partial, SinkSpec};
use crate::digest;
use crate::digest::pipe::PipeTree;
use crate::error::{Kind, Result, Side};
use crate::journal::record::Hash;
use crate::manifest::{Entry, EntryKind};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::receive::{Hands, Receiver};
use crate::pipeline::send::pipe::begun_before;
use crate::pipeline::worker_time::Activity;
use crate::units::{printable, size};
use crate::wire::message::{Message, Want, WantKind};

impl Receiver {
    /// Opens the partial file of a pipe. The journal does not record its chunks, since a pipe
    /// cannot be resumed.
    pub(in crate::pipeline) fn stream_to_file(&self, file: Resuming) -> Option<Want> {
        let (id, parent) = (file.entry.id, file.entry.parent);
        if self.is_begun(&file.entry, &file.path) {
            return self.begun_stream(file);
        }
        let opened = || {
            if self.rules.no_clobber && dest::standing(&file.slot)?.is_some() {
                return Err(dest::stays(&file.slot, &self.rules));
            }
            let entry = Arc::new(file.entry);
            let partial = Partial::create(&file.slot, entry.clone(), &self.rules)?;
            Ok((entry, At::Slot(file.slot), Some(Arc::new(partial))))
        };
        match opened() {
            Ok(opened) => Some(self.begin_stream(opened, file.listed, file.path)),
            Err(error) => {
                self.fail(id, parent, &error);
                let kind = WantKind::Skip;
                Some(Want { entry: id, kind })
            }
        }
    }

    /// Opens the pipe that an entry is written to: starts the command, or waits for a FIFO's
    /// reader.
    pub(in crate::pipeline) fn leaving(
        &self,
        entry: Entry,
        exit: &SinkSpec,
        listed: Option<ListedPath>,
        path: Hash,
    ) -> Option<Want> {
        let (id, parent) = (entry.id, entry.parent);
        let tell = self.tell.clone();
        let on_line = move |line: &[u8]| tell(&String::from_utf8_lossy(line));
        let kind = match OrderedSink::open(exit, self.window, &self.stop, on_line) {
            Ok(drain) => {
                // Bytes that have left cannot be sent again.
                self.ending.set_once();
                let at = At::Drain(Box::new(drain), exit.path().to_owned());
                return Some(self.begin_stream((Arc::new(entry), at, None), listed, path));
            }
            Err(error) => {
                self.fail(id, parent, &error);
                WantKind::Skip
            }
        };
        Some(Want { entry: id, kind })
    }

    /// Decides whether an earlier session has begun this pipe, which cannot be read a second time.
    /// If it is the only root, this session becomes the last: no other one can resume the copy.
    fn is_begun(&self, entry: &Entry, path: &Hash) -> bool {
        if !entry.is_once() {
            return false;
        }
        if self.table.lock().has_one_root() {
            self.ending.set_once();
            return false;
        }
        !self.ending.begin_once(path) || entry.is_begun()
    }

    /// A pipe that an earlier session has begun to read is in place already, or fails alone.
    fn begun_stream(&self, file: Resuming) -> Option<Want> {
        let (id, parent) = (file.entry.id, file.entry.parent);
        let name = printable(file.entry.name.as_bytes());
        match self.stream_in_place(file) {
            Ok(PipeThere::Yes(file, size, digest)) => {
                let kind = WantKind::Skip;
                // Sent first, because the acknowledgement refers to the skipped entry.
                self.say(Message::Want(vec![Want { entry: id, kind }]));
                self.progress.add_resumed(size);
                self.found_in_place(*file, digest, None);
                None
            }
            // A file that cannot be checked does not count as in place.
            Ok(PipeThere::No(_)) | Err(_) => {
                self.fail(id, parent, &begun_before(Side::Source).at(name));
                let kind = WantKind::Skip;
                Some(Want { entry: id, kind })
            }
        }
    }

    fn begin_stream(
        &self,
        (entry, at, partial): (Arc<Entry>, At, Option<Arc<Partial>>),
        listed: Option<ListedPath>,
        path: Hash,
    ) -> Want {
        let is_stream = entry.kind == EntryKind::Stream;
        let nothing = self.nothing_of(&entry);
        let claims = match is_stream {
            true => Claims::endless(),
            false => nothing.claims,
        };
        let entry = self.insert(OpenFile {
            at,
            partial: Mutex::new(partial),
            claims: Mutex::new(claims),
            tree: nothing.tree.filter(|_| !is_stream).map(Mutex::new),
            stream: is_stream.then(|| Mutex::new(PipeTree::new())),
            end: OnceLock::new(),
            unread: None,
            readback: OnceLock::new(),
            closing: AtomicBool::new(false),
            compare: false,
            known: None,
            listed,
            path,
            number: None,
            young: false,
            offered: false,
            first_chunk: 0,
            entry,
        });
        let kind = WantKind::Fresh;
        Want { entry, kind }
    }

    /// With `--spool`, after the connection was lost: keeps the bytes up to the first gap in a file
    /// beside the final name, and prints its path.
    pub(in crate::pipeline) fn spool(&self, file: &OpenFile) {
        let cause = self.ending.cause().map(|cause| cause.kind);
        let is_lost = matches!(cause, Some(Kind::Lost | Kind::Signal(_)));
        let partial = file.partial.lock().take();
        let Some(partial) = partial.filter(|_| self.options.spool && is_lost) else {
            return;
        };
        let first = file.claims.lock().first_run();
        // A stuck worker may still be writing to the partial file.
        let Some(partial) = Arc::into_inner(partial).filter(|_| first > 0) else {
            return;
        };
        match partial.spool(first) {
            Ok((path, len)) => {
                let path = printable(path.as_os_str().as_bytes());
                let len = size(len);
                (self.tell)(&format!(
                    "fastcp: {path} holds the first {len} of the stream"
                ));
            }
            Err(error) => self.tally.add(&error),
        }
    }

    /// Writes a claimed piece to a pipe. The piece stays claimed while it waits for those before
    /// it.
    pub(in crate::pipeline) fn drain_piece(
        &self,
        encoded: EncodedChunk,
        file: &Arc<OpenFile>,
        drain: &OrderedSink,
        hands: &mut Hands<'_>,
    ) {
        let place = encoded.place;
        let Some(chunk) = verified(encoded, file, hands) else {
            // The piece was claimed, so `release` cannot fail.
            let _ = file.claims.lock().release(place.offset);
            return self.damaged(place.chunk);
        };
        match place.kind {
            ChunkKind::Zeros => self.add_zeros_to_tree(file, place),
            _ => self.add_to_tree(file, place, &chunk),
        }
        hands.shift.turn_to(Activity::Disk);
        let put: Result<()> = drain.put(chunk, |written| {
            let place = written.place();
            let len = u64::from(place.raw_len);
            match place.kind {
                ChunkKind::Zeros => self.progress.add_skipped(len),
                _ => self.progress.add_bytes(len),
            }
            self.piece_done(file, place, None);
        });
        match put {
            Ok(()) => {}
            Err(error) if error.kind == Kind::Breach => self.ending.end(error),
            Err(error) => self.fail_file(file, error),
        }
    }
}

fn verified(
    encoded: EncodedChunk,
    file: &OpenFile,
    hands: &mut Hands<'_>,
) -> Option<VerifiedChunk> {
    // A sender that has read a range of zeros sends the digest of its bytes, but a `Zeros` chunk is
    // verified without a digest.
    let digest = match encoded.place.kind {
        ChunkKind::Zeros => digest::NONE,
        _ => encoded.digest,
    };
    let whole = u64::from(encoded.place.raw_len) == file.entry.size;
    hands.decode(encoded)?.verify(digest, whole).ok()
}
