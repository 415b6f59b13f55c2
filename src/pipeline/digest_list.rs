//! The list that `--digests` writes, in the format of `b3sum`. Its paths are relative to the
//! destination, so `b3sum --check` accepts it there. If the destination is a server and the list is
//! at the client, the server sends the client the lines.
//!
//! A list is UTF-8: b3sum accepts no other encoding, and no name with U+FFFD. Names that do not fit
//! are left out and counted. Newlines and backslashes are escaped as by b3sum.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use crate::control::Outgoing;
use crate::digest::{Digest, line};
use crate::locks::{OrderedMutex, place};
use crate::manifest::{Entry, EntryId};
use crate::wire::message::{FileDigest, Message};

/// The place of a file in the list: the index of its root, and the path below it (empty for the
/// root itself).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPath {
    pub root: usize,
    pub below: Vec<u8>,
}

impl ListedPath {
    /// The place of `name` in this directory.
    pub fn child(&self, name: &[u8]) -> ListedPath {
        let mut below = self.below.clone();
        if !below.is_empty() {
            below.push(b'/');
        }
        below.extend_from_slice(name);
        ListedPath {
            root: self.root,
            below,
        }
    }
}

pub struct DigestList {
    out: OrderedMutex<Out, { place::LIST }>,
    /// Names of the roots at the destination.
    landed: OnceLock<Vec<Vec<u8>>>,
    links: OrderedMutex<Links, { place::LINKS }>,
}

/// Further names of a file (hard links). They have its digest and no content.
#[derive(Default)]
struct Links {
    /// Files with several names, until the last name is in place.
    firsts: HashMap<EntryId, LinkDigest>,
    /// Further names that are not yet in place, each with its first name.
    waiting: BTreeMap<EntryId, (ListedPath, EntryId)>,
}

struct LinkDigest {
    digest: Digest,
    /// Number of further names that are not yet in place.
    waiting: u32,
    /// No more further names follow.
    had_last: bool,
}

enum Out {
    File(ListState),
    Client(Told),
}

struct ListState {
    writer: ListWriter,
    unlisted: Vec<Vec<u8>>,
    more_unlisted: u64,
}

/// Lines for the client, which are sent in groups.
struct Told {
    control: Outgoing,
    waiting: Vec<FileDigest>,
    /// Approximate bytes of memory that they take.
    bytes: usize,
}

mod writer;

use writer::{ListWriter, QUEUE_BYTES};

/// Names left out that are kept for a message; further ones are only counted.
const UNLISTED_KEPT: usize = 20;

/// Bytes of digests and paths in one message to a client: some 1000 files.
const TOLD_BYTES: usize = 64 << 10;

impl DigestList {
    pub fn create(path: &Path) -> io::Result<DigestList> {
        Ok(DigestList::to(Out::File(ListState {
            writer: ListWriter::start(File::create(path)?)?,
            unlisted: Vec::new(),
            more_unlisted: 0,
        })))
    }

    /// For a server whose client writes the list: it sends the client each line.
    pub fn at_client(control: Outgoing) -> DigestList {
        DigestList::to(Out::Client(Told {
            control,
            waiting: Vec::new(),
            bytes: 0,
        }))
    }

    fn to(out: Out) -> DigestList {
        DigestList {
            out: OrderedMutex::new(out),
            landed: OnceLock::new(),
            links: OrderedMutex::default(),
        }
    }

    /// Sets the names of the roots at the destination, before any file is in place.
    pub fn set_landed(&self, names: Vec<Vec<u8>>) {
        // A second call changes nothing, since files were listed under the first names.
        let _ = self.landed.set(names);
    }

    pub fn add(&self, listed: &ListedPath, digest: &Digest) {
        let names = self.landed.get().map_or(&[][..], |names| names);
        let root = names.get(listed.root).map_or(&[][..], |name| name);
        let path = match (root, &listed.below[..]) {
            (root, b"") => root.to_vec(),
            (b"", below) => below.to_vec(),
            (root, below) => [root, b"/", below].concat(),
        };
        self.add_path(path, digest);
    }

    /// Lists the file at this path below the destination. A server waits until the connection to
    /// the client has room.
    pub fn add_path(&self, path: Vec<u8>, digest: &Digest) {
        match &mut *self.out.lock() {
            Out::File(lines) => lines.add(path, digest),
            Out::Client(told) => told.add(path, digest),
        }
    }

    /// Sends the remaining lines to the client. To be called before the client hears that
    /// everything is in place.
    pub fn tell_rest(&self) {
        if let Out::Client(told) = &mut *self.out.lock() {
            told.tell();
        }
    }

    /// Starts the list again for another session, which lists all files, because a source may have
    /// changed.
    pub fn begin_again(&self) {
        *self.links.lock() = Links::default();
        if let Out::File(lines) = &mut *self.out.lock() {
            lines.begin_again();
        }
    }

    /// Remembers the digest of a file that may have further names.
    pub fn remember(&self, entry: &Entry, digest: &Digest) {
        if entry.links > 1 {
            let first = LinkDigest {
                digest: *digest,
                waiting: 0,
                had_last: false,
            };
            self.links.lock().firsts.insert(entry.id, first);
        }
    }

    /// Notes that `link` will be a further name of `first`.
    pub fn add_link(&self, link: &Entry, first: EntryId, listed: ListedPath) {
        let mut links = self.links.lock();
        if let Some(first) = links.firsts.get_mut(&first) {
            first.waiting = first.waiting.saturating_add(1);
            first.had_last |= link.links <= 1;
        }
        links.waiting.insert(link.id, (listed, first));
    }

    /// Lists the further names among these entries, which are in place now. Their first names were
    /// in place before.
    pub fn links_placed(&self, entries: Range<EntryId>) {
        let mut links = self.links.lock();
        let placed: Vec<EntryId> = links.waiting.range(entries).map(|(&id, _)| id).collect();
        for id in placed {
            let Some((listed, first)) = links.waiting.remove(&id) else {
                continue;
            };
            let Some(known) = links.firsts.get_mut(&first) else {
                continue;
            };
            known.waiting = known.waiting.saturating_sub(1);
            let digest = known.digest;
            if known.had_last && known.waiting == 0 {
                links.firsts.remove(&first);
            }
            self.add(&listed, &digest);
        }
    }

    /// Blocks while more lines wait for the disk than `QUEUE_BYTES`, unless `is_over` or the list
    /// has failed.
    pub fn wait_room(&self, is_over: impl Fn() -> bool) {
        let queue = match &*self.out.lock() {
            Out::File(lines) => lines.writer.queue.clone(),
            Out::Client(_) => return,
        };
        queue.wait(|waiting| waiting.bytes <= QUEUE_BYTES || waiting.error.is_some() || is_over());
    }

    /// True if every line was written and the file is closed, or if that is impossible. To be
    /// called when no more lines are added.
    pub fn is_written(&self) -> bool {
        match &*self.out.lock() {
            Out::File(lines) => lines.writer.is_closed(),
            Out::Client(_) => true,
        }
    }

    /// Returns the names that could not be listed, and the number of further ones.
    ///
    /// # Errors
    /// If a line could not be written, or has not been written yet.
    pub fn finish(&self) -> io::Result<(Vec<Vec<u8>>, u64)> {
        match &mut *self.out.lock() {
            Out::File(lines) => lines.finish(),
            Out::Client(_) => Ok((Vec::new(), 0)),
        }
    }
}

impl ListState {
    fn add(&mut self, path: Vec<u8>, digest: &Digest) {
        match line::format(&path, digest) {
            Some(line) => self.writer.put(line),
            None if self.unlisted.len() < UNLISTED_KEPT => self.unlisted.push(path),
            None => self.more_unlisted += 1,
        }
    }

    fn begin_again(&mut self) {
        self.unlisted.clear();
        self.more_unlisted = 0;
        self.writer.begin_again();
    }

    fn finish(&mut self) -> io::Result<(Vec<Vec<u8>>, u64)> {
        self.writer.finish()?;
        Ok((std::mem::take(&mut self.unlisted), self.more_unlisted))
    }
}

impl Told {
    fn add(&mut self, path: Vec<u8>, digest: &Digest) {
        self.bytes += size_of::<FileDigest>() + path.len();
        let digest = *digest;
        self.waiting.push(FileDigest { path, digest });
        if self.bytes >= TOLD_BYTES {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.bytes = 0;
        if !self.waiting.is_empty() {
            let files = std::mem::take(&mut self.waiting);
            // If the connection is lost, its reader reports that.
            let _ = self.control.send_blocking(Message::FileDigests(files));
        }
    }
}
