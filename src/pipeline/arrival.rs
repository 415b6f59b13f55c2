//! A stream at the receiver, and a file that leaves again: what it is opened as when it is
//! announced, and its chunks on their way out.

use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use crate::chunk::claims::Claims;
use crate::chunk::{ChunkKind, EncodedChunk, VerifiedChunk};
use crate::dest::{self, Drain, Exit, Partial};
use crate::digest;
use crate::digest::stream::StreamTree;
use crate::error::{Kind, Result, Side};
use crate::journal::record::Hash;
use crate::manifest::{Entry, EntryKind};
use crate::pipeline::departure::begun_before;
use crate::pipeline::digest_list::Listed;
use crate::pipeline::open_file::{At, OpenFile};
use crate::pipeline::receiver::{Hands, Receiver};
use crate::pipeline::resume::{Resuming, StreamThere};
use crate::pipeline::shifts::Doing;
use crate::units::{printable, size};
use crate::wire::message::{Message, Want, WantKind};

impl Receiver {
    /// Opens the partial of a stream. Nothing of it is recorded: it cannot be gone on with.
    pub(super) fn stream_to_file(&self, file: Resuming) -> Option<Want> {
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

    /// Opens what an entry leaves by: a command is started, a FIFO's reader waited for.
    pub(super) fn leaving(
        &self,
        entry: Entry,
        exit: &Exit,
        listed: Option<Listed>,
        path: Hash,
    ) -> Option<Want> {
        let (id, parent) = (entry.id, entry.parent);
        let tell = self.tell.clone();
        let on_line = move |line: &[u8]| tell(&String::from_utf8_lossy(line));
        let kind = match Drain::open(exit, self.window, &self.stop, on_line) {
            Ok(drain) => {
                // What has left cannot be taken back for another try.
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

    /// A stream that cannot be read a second time: if it is all that is copied, no session can go
    /// on where this one is lost. Else true if a former session has begun it.
    fn is_begun(&self, entry: &Entry, path: &Hash) -> bool {
        if !entry.is_once() {
            return false;
        }
        if self.lock().has_one_root() {
            self.ending.set_once();
            return false;
        }
        !self.ending.begin_once(path) || entry.is_begun()
    }

    /// What a former session has begun to read is in place since then, or fails alone.
    fn begun_stream(&self, file: Resuming) -> Option<Want> {
        let (id, parent) = (file.entry.id, file.entry.parent);
        let name = printable(file.entry.name.as_bytes());
        match self.stream_in_place(file) {
            Ok(StreamThere::Yes(file, size, digest)) => {
                let kind = WantKind::Skip;
                // First, since the acknowledgement is of what is skipped.
                self.say(Message::Want(vec![Want { entry: id, kind }]));
                self.progress.add_resumed(size);
                self.found_in_place(*file, digest, None);
                None
            }
            // What cannot be looked at is not known to be there.
            Ok(StreamThere::No(_)) | Err(_) => {
                self.fail(id, parent, &begun_before(Side::Source).at(name));
                let kind = WantKind::Skip;
                Some(Want { entry: id, kind })
            }
        }
    }

    fn begin_stream(
        &self,
        (entry, at, partial): (Arc<Entry>, At, Option<Arc<Partial>>),
        listed: Option<Listed>,
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
            stream: is_stream.then(|| Mutex::new(StreamTree::new())),
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

    /// The connection was lost: with `--spool` what has come from the beginning without a gap stays
    /// beside the name, and the user is told where.
    pub(super) fn spool(&self, file: &OpenFile) {
        let cause = self.ending.cause().map(|cause| cause.kind);
        let is_lost = matches!(cause, Some(Kind::Lost | Kind::Signal(_)));
        let partial = file.partial.lock().expect("no panic while held").take();
        let Some(partial) = partial.filter(|_| self.options.spool && is_lost) else {
            return;
        };
        let first = file.claims.lock().expect("no panic while held").first_run();
        // One that a worker is stuck with may be written still.
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

    /// A piece that was claimed and is to leave. It stays claimed while it waits for those before
    /// it.
    pub(super) fn drain_piece(
        &self,
        encoded: EncodedChunk,
        file: &Arc<OpenFile>,
        drain: &Drain,
        hands: &mut Hands<'_>,
    ) {
        let place = encoded.place;
        let Some(chunk) = verified(encoded, file, hands) else {
            // It was claimed, so it can be released.
            let _ = file
                .claims
                .lock()
                .expect("no panic while held")
                .release(place.offset);
            return self.damaged(place.chunk);
        };
        match place.kind {
            ChunkKind::Zeros => self.add_zeros_to_tree(file, place),
            _ => self.add_to_tree(file, place, &chunk),
        }
        hands.shift.turn_to(Doing::Disk);
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
    // Of a range that its sender has read, and found to be zeros, the digest is that of the bytes.
    let digest = match encoded.place.kind {
        ChunkKind::Zeros => digest::NONE,
        _ => encoded.digest,
    };
    let whole = u64::from(encoded.place.raw_len) == file.entry.size;
    hands.decode(encoded)?.verify(digest, whole).ok()
}
