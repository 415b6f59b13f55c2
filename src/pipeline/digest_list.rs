//! The list that `--digests` writes: what `b3sum` prints, with paths relative to the destination,
//! so that `b3sum --check` run there accepts it. Where the destination is a server and the user is
//! elsewhere, it tells the client what belongs into the list.
//!
//! A list is UTF-8 (b3sum refuses any other, and a name with U+FFFD too): a name that is not is
//! left out and counted. Newlines and backslashes are escaped as b3sum does.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::control::Outgoing;
use crate::digest::Digest;
use crate::manifest::{Entry, EntryId};
use crate::wire::message::{FileDigest, Message};

/// Where a file stands: below which root, and its path from there (empty for the root itself).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub root: usize,
    pub below: Vec<u8>,
}

impl Listed {
    /// The place of `name` in this directory.
    pub fn child(&self, name: &[u8]) -> Listed {
        let mut below = self.below.clone();
        if !below.is_empty() {
            below.push(b'/');
        }
        below.extend_from_slice(name);
        Listed {
            root: self.root,
            below,
        }
    }
}

pub struct DigestList {
    out: Mutex<Out>,
    /// Names of the roots at the destination.
    landed: OnceLock<Vec<Vec<u8>>>,
    links: Mutex<Links>,
}

/// Further names of one file have its digest and no content of their own.
#[derive(Default)]
struct Links {
    /// Of files with several names, until the last of these is in place.
    firsts: HashMap<EntryId, First>,
    /// Further names that are not yet in place.
    waiting: BTreeMap<EntryId, (Listed, EntryId)>,
}

struct First {
    digest: Digest,
    /// Further names that are not yet in place.
    waiting: u32,
    /// No more of them come.
    had_last: bool,
}

enum Out {
    File(Lines),
    Client(Told),
}

struct Lines {
    writer: Writer,
    unlisted: Vec<Vec<u8>>,
    more_unlisted: u64,
}

/// What the client is told, some files at a time.
struct Told {
    control: Outgoing,
    waiting: Vec<FileDigest>,
    /// Of memory that they take, about.
    bytes: usize,
}

mod writer;

use writer::{QUEUE_BYTES, Writer};

/// Names that are kept to be told; more are counted.
const UNLISTED_KEPT: usize = 20;

/// Bytes of digests and paths that go in one message to a client: some 1000 files.
const TOLD_BYTES: usize = 64 << 10;

impl DigestList {
    pub fn create(path: &Path) -> io::Result<DigestList> {
        Ok(DigestList::to(Out::File(Lines {
            writer: Writer::start(File::create(path)?)?,
            unlisted: Vec::new(),
            more_unlisted: 0,
        })))
    }

    /// The client has the list; this end tells it of each file.
    pub fn at_client(control: Outgoing) -> DigestList {
        DigestList::to(Out::Client(Told {
            control,
            waiting: Vec::new(),
            bytes: 0,
        }))
    }

    fn to(out: Out) -> DigestList {
        DigestList {
            out: Mutex::new(out),
            landed: OnceLock::new(),
            links: Mutex::default(),
        }
    }

    /// Tells where the roots landed; comes before any file is in place.
    pub fn set_landed(&self, names: Vec<Vec<u8>>) {
        // A second telling changes nothing: the first is what the files went by.
        let _ = self.landed.set(names);
    }

    pub fn add(&self, listed: &Listed, digest: &Digest) {
        let names = self.landed.get().map_or(&[][..], |names| names);
        let root = names.get(listed.root).map_or(&[][..], |name| name);
        let path = match (root, &listed.below[..]) {
            (root, b"") => root.to_vec(),
            (b"", below) => below.to_vec(),
            (root, below) => [root, b"/", below].concat(),
        };
        self.add_path(path, digest);
    }

    /// Lists what stands at this path below the destination. A server waits until the client has
    /// room for what it is told.
    pub fn add_path(&self, path: Vec<u8>, digest: &Digest) {
        match &mut *self.lock() {
            Out::File(lines) => lines.add(path, digest),
            Out::Client(told) => told.add(path, digest),
        }
    }

    /// A server tells the client what is left; to be called before the client hears that everything
    /// is in place.
    pub fn tell_rest(&self) {
        if let Out::Client(told) = &mut *self.lock() {
            told.tell();
        }
    }

    /// Another session lists everything anew, what is in place already too: a source may have
    /// changed since.
    pub fn begin_again(&self) {
        *self.links() = Links::default();
        if let Out::File(lines) = &mut *self.lock() {
            lines.begin_again();
        }
    }

    /// Remembers the digest of a file that may have further names.
    pub fn remember(&self, entry: &Entry, digest: &Digest) {
        if entry.links > 1 {
            let first = First {
                digest: *digest,
                waiting: 0,
                had_last: false,
            };
            self.links().firsts.insert(entry.id, first);
        }
    }

    /// `link` is to be a further name of `first`.
    pub fn add_link(&self, link: &Entry, first: EntryId, listed: Listed) {
        let mut links = self.links();
        if let Some(first) = links.firsts.get_mut(&first) {
            first.waiting = first.waiting.saturating_add(1);
            first.had_last |= link.links <= 1;
        }
        links.waiting.insert(link.id, (listed, first));
    }

    /// The entries with these numbers are in place; so were the first names of the links among
    /// them before.
    pub fn links_placed(&self, entries: Range<EntryId>) {
        let mut links = self.links();
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

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().expect("no panic while held")
    }

    fn lock(&self) -> MutexGuard<'_, Out> {
        self.out.lock().expect("no panic while held")
    }

    /// Waits while more lines wait for the disk than should, unless that `is_over`. For threads.
    pub fn wait_room(&self, is_over: impl Fn() -> bool) {
        let queue = match &*self.lock() {
            Out::File(lines) => lines.writer.queue.clone(),
            Out::Client(_) => return,
        };
        queue.wait(|waiting| waiting.bytes <= QUEUE_BYTES || is_over());
    }

    /// True if every line is in the file and that is closed, or it cannot be. To be asked when no
    /// line comes any more.
    pub fn is_written(&self) -> bool {
        match &*self.lock() {
            Out::File(lines) => lines.writer.is_closed(),
            Out::Client(_) => true,
        }
    }

    /// Gives the names that could not be listed and how many more there were.
    ///
    /// # Errors
    /// Where a line could not be written, or has not been written yet.
    pub fn finish(&self) -> io::Result<(Vec<Vec<u8>>, u64)> {
        match &mut *self.lock() {
            Out::File(lines) => lines.finish(),
            Out::Client(_) => Ok((Vec::new(), 0)),
        }
    }
}

impl Lines {
    fn add(&mut self, path: Vec<u8>, digest: &Digest) {
        match line(&path, digest) {
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
            // A lost connection is its reader's to report.
            let _ = self.control.send_blocking(Message::FileDigests(files));
        }
    }
}

/// b3sum's line; None if no list can hold the name.
fn line(path: &[u8], digest: &Digest) -> Option<String> {
    let path = std::str::from_utf8(path)
        .ok()
        .filter(|path| !path.contains('\u{fffd}'))?;
    let hex = blake3::Hash::from_bytes(*digest).to_hex();
    let escaped = path
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\r', "\\r");
    let mark = if escaped == path { "" } else { "\\" };
    Some(format!("{mark}{hex}  {escaped}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_b3sum() {
        let hex = "00".repeat(32);
        assert_eq!(line(b"a b", &[0; 32]).unwrap(), format!("{hex}  a b\n"));
        assert_eq!(
            line(b"a\\b\nc", &[0; 32]).unwrap(),
            format!("\\{hex}  a\\\\b\\nc\n")
        );
        assert_eq!(line(b"\xff", &[0; 32]), None);
        assert_eq!(line("a\u{fffd}".as_bytes(), &[0; 32]), None);
    }
}
