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
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::control::Outgoing;
use crate::digest::{self, Digest, line};
use crate::dir::Dir;
use crate::error::{Error, Kind, Side, reason_of};
use crate::locks::{OrderedMutex, place};
use crate::manifest::{Entry, EntryId};
use crate::wire::message::{FileDigest, Message};

/// The place of an entry in the list. All entries of a directory share the path that leads to it,
/// which can be as long as 200 KB.
#[derive(Clone)]
pub struct ListedPath {
    /// The index of its root.
    pub root: usize,
    above: ListedAbove,
    /// Empty for the root itself.
    name: Vec<u8>,
}

#[derive(Clone)]
enum ListedAbove {
    /// The entry is the root.
    Nothing,
    Directory(Arc<ListedPath>),
    /// A directory at the source, which knows its path.
    Source(Arc<Dir>),
}

impl ListedPath {
    pub fn of_root(root: usize) -> ListedPath {
        ListedPath {
            root,
            above: ListedAbove::Nothing,
            name: Vec::new(),
        }
    }

    /// The place of `name` in this directory.
    pub fn child(self: &Arc<ListedPath>, name: &[u8]) -> ListedPath {
        ListedPath {
            root: self.root,
            above: ListedAbove::Directory(self.clone()),
            name: name.to_vec(),
        }
    }

    /// The place of `name` in a directory at the source, below that of the root.
    pub fn in_source(root: usize, directory: Arc<Dir>, name: &[u8]) -> ListedPath {
        ListedPath {
            root,
            above: ListedAbove::Source(directory),
            name: name.to_vec(),
        }
    }

    /// The path below the root, with `/` between names; empty for the root itself.
    pub fn below(&self) -> Vec<u8> {
        let mut below = match &self.above {
            ListedAbove::Nothing => return Vec::new(),
            ListedAbove::Directory(above) => above.below(),
            ListedAbove::Source(dir) => dir.below().1,
        };
        if !below.is_empty() {
            below.push(b'/');
        }
        below.extend_from_slice(&self.name);
        below
    }
}

pub struct DigestList {
    /// None at a server whose client writes the list.
    file: Option<PathBuf>,
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
    /// Further files with several names are in [`MoreLinks`].
    has_more: bool,
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

/// Most files in `Links::firsts`, in some 13 MB: as many as a hash table with 2^18 places takes.
const FIRSTS_MAX: usize = (1 << 18) / 8 * 7;

/// Lines for the client, which are sent in groups.
struct Told {
    control: Outgoing,
    waiting: Vec<FileDigest>,
    /// Approximate bytes of memory that they take.
    bytes: usize,
    more_links: MoreLinks,
    /// The first error of `more_links`.
    error: Option<io::Error>,
}

mod more_links;
mod writer;

use more_links::{LinkStep, MoreLinks};
use writer::{ListWriter, QUEUE_BYTES};

/// Names left out that are kept for a message; further ones are only counted.
const UNLISTED_KEPT: usize = 20;

/// Bytes of digests and paths in one message to a client: some 1000 files.
const TOLD_BYTES: usize = 64 << 10;

impl DigestList {
    /// Opens the file at `path`. It keeps its content until there is a line, or the copy is
    /// complete.
    pub fn create(path: &Path) -> io::Result<DigestList> {
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(false);
        let out = Out::File(ListState {
            writer: ListWriter::start(options.open(path)?)?,
            unlisted: Vec::new(),
            more_unlisted: 0,
        });
        Ok(DigestList::to(out, Some(path.to_owned())))
    }

    /// For a server whose client writes the list: it sends the client each line.
    pub fn at_client(control: Outgoing) -> DigestList {
        let out = Out::Client(Told {
            control,
            waiting: Vec::new(),
            bytes: 0,
            more_links: MoreLinks::default(),
            error: None,
        });
        DigestList::to(out, None)
    }

    /// An error about the list.
    pub fn error(&self, what: &str, cause: &io::Error) -> Error {
        let message = format!("{what} (--digests): {}", reason_of(cause));
        match &self.file {
            Some(file) => Error::new(Kind::Write, Side::Here, message).at(file),
            None => Error::new(Kind::Write, Side::Dest, message),
        }
    }

    fn to(out: Out, file: Option<PathBuf>) -> DigestList {
        DigestList {
            file,
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
        self.add_path(self.path(listed), digest);
    }

    /// The path below the destination.
    fn path(&self, listed: &ListedPath) -> Vec<u8> {
        let names = self.landed.get().map_or(&[][..], |names| names);
        let root = names.get(listed.root).map_or(&[][..], |name| name);
        match (root, &listed.below()[..]) {
            (root, b"") => root.to_vec(),
            (b"", below) => below.to_vec(),
            (root, below) => [root, b"/", below].concat(),
        }
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
    ///
    /// # Errors
    /// If lines are missing.
    pub fn tell_rest(&self) -> io::Result<()> {
        match &mut *self.out.lock() {
            Out::File(_) => Ok(()),
            Out::Client(told) => {
                told.tell();
                told.error.take().map_or(Ok(()), Err)
            }
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
        if entry.links <= 1 {
            return;
        }
        let mut links = self.links.lock();
        if links.firsts.len() >= FIRSTS_MAX {
            links.has_more = true;
            return self.out.lock().link(LinkStep::Keep(entry.id, *digest));
        }
        let first = LinkDigest {
            digest: *digest,
            waiting: 0,
            had_last: false,
        };
        links.firsts.insert(entry.id, first);
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
                if links.has_more {
                    let find = LinkStep::Find(first, self.path(&listed));
                    self.out.lock().link(find);
                }
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
    /// called when no more lines are added. A list without lines replaces an older one only if the
    /// copy `is_complete`.
    pub fn is_written(&self, is_complete: bool) -> bool {
        match &*self.out.lock() {
            Out::File(lines) => lines.writer.is_closed(is_complete),
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

impl Out {
    fn link(&mut self, step: LinkStep) {
        match self {
            Out::File(lines) => lines.link(step),
            Out::Client(told) => told.link(step),
        }
    }
}

impl ListState {
    /// The thread of the list does it, since the task that reads control messages must not wait for a
    /// disk.
    fn link(&mut self, step: LinkStep) {
        match step {
            LinkStep::Find(_, path) if line::format(&path, &digest::NONE).is_none() => {
                self.leave_out(path);
            }
            step => self.writer.put_link(step),
        }
    }

    fn leave_out(&mut self, path: Vec<u8>) {
        match self.unlisted.len() < UNLISTED_KEPT {
            true => self.unlisted.push(path),
            false => self.more_unlisted += 1,
        }
    }

    fn add(&mut self, path: Vec<u8>, digest: &Digest) {
        match line::format(&path, digest) {
            Some(line) => self.writer.put(line),
            None => self.leave_out(path),
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
    fn link(&mut self, step: LinkStep) {
        match self.more_links.take(step) {
            Ok(Some((path, digest))) => self.add(path, &digest),
            Ok(None) => {}
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{EntryKind, NO_PARENT, Name};

    fn entry(id: EntryId, links: u64) -> Entry {
        let name = Name::try_from(b"x".to_vec()).unwrap();
        Entry {
            links,
            ..Entry::new(id, NO_PARENT, name, EntryKind::File)
        }
    }

    #[test]
    fn the_digests_of_more_hard_links_than_memory_holds_are_listed() {
        let temp = tempfile::tempdir().unwrap();
        let at = temp.path().join("list");
        let list = DigestList::create(&at).unwrap();
        list.set_landed(vec![b"root".to_vec()]);
        let root = Arc::new(ListedPath::of_root(0));
        let dir = Arc::new(root.child(b"dir"));
        let digest = |id: EntryId| {
            let mut digest = digest::NONE;
            digest[..8].copy_from_slice(&id.to_le_bytes());
            digest
        };
        let files = FIRSTS_MAX as u64 + 100;
        for id in 1..=files {
            list.remember(&entry(id, 2), &digest(id));
        }
        assert_eq!(list.links.lock().firsts.len(), FIRSTS_MAX);
        // One in memory, two on disk, and one of a file that has failed.
        let firsts = [1, FIRSTS_MAX as u64 + 1, files, files + 7];
        for (link, first) in (files + 10..).zip(firsts) {
            let name = format!("name of {first}");
            list.add_link(&entry(link, 1), first, dir.child(name.as_bytes()));
        }
        // Its name is not UTF-8.
        list.add_link(&entry(files + 20, 1), files, root.child(b"\xff"));
        list.links_placed(files + 10..files + 30);
        while !list.is_written(true) {
            std::thread::yield_now();
        }
        let (unlisted, more) = list.finish().unwrap();
        assert_eq!((&unlisted[..], more), (&[b"root/\xff".to_vec()][..], 0));
        let lines = std::fs::read_to_string(&at).unwrap();
        let wanted = firsts[..3].iter().map(|&first| {
            let path = format!("root/dir/name of {first}");
            line::format(path.as_bytes(), &digest(first)).unwrap()
        });
        assert_eq!(lines, wanted.collect::<String>());
    }

    #[test]
    fn an_older_list_stays_until_there_is_a_line_or_the_copy_is_complete() {
        let temp = tempfile::tempdir().unwrap();
        let at = temp.path().join("list");
        let line = line::format(b"a", &digest::NONE).unwrap();
        for (has_line, is_complete, left) in [
            (false, false, "a long line of an older list\n"),
            (false, true, ""),
            (true, false, &line),
            (true, true, &line),
        ] {
            std::fs::write(&at, "a long line of an older list\n").unwrap();
            let list = DigestList::create(&at).unwrap();
            if has_line {
                list.add_path(b"a".to_vec(), &digest::NONE);
            }
            while !list.is_written(is_complete) {
                std::thread::yield_now();
            }
            list.finish().unwrap();
            assert_eq!(std::fs::read_to_string(&at).unwrap(), left);
        }
    }
}
