//! File trees: made with short calls, and read back as a map for comparison.
//!
//! Comparison uses a digest of the contents that treats holes and written zeros alike and never
//! reads a hole. So a sparse file of many gigabytes costs nothing. A test of holes checks the
//! blocks on disk.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, DirEntry, File, Metadata, Permissions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::libc;
use rustix::fs::SeekFrom;

const BLOCK: usize = 64 * 1024;

/// Bytes that no codec can shrink; the same seed gives the same bytes.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// Bytes that every codec shrinks to a small part: lines that differ in their numbers.
pub(crate) fn prose(seed: u64, len: usize) -> Vec<u8> {
    const WORDS: &str = " the same words as in every other line\n";
    let mut bytes = Vec::with_capacity(len + 80);
    let line = |number: u64| format!("{number:08}{WORDS}").into_bytes();
    let mut number = seed;
    let mut next = line(number);
    while bytes.len() < len {
        bytes.extend_from_slice(&next);
        number += 1;
        // Almost always another last digit. To format a whole line takes much longer.
        let last = next.len() - WORDS.len() - 1;
        match next[last] {
            b'9' => next = line(number),
            _ => next[last] += 1,
        }
    }
    bytes.truncate(len);
    bytes
}

/// Random zeros and ones as text, which codecs shrink to slightly more than an eighth.
pub(crate) fn digits(seed: u64, len: usize) -> Vec<u8> {
    let of = |byte: u8| std::array::from_fn(|bit| b'0' + (byte >> bit & 1));
    spelled::<8>(&noise(seed, len.div_ceil(8)), of, len)
}

/// The first `len` bytes of a text that has N letters for each byte. An unoptimised build takes long for
/// each letter, so it finds them once for each value of a byte.
pub(crate) fn spelled<const N: usize>(
    bytes: &[u8],
    letters: impl Fn(u8) -> [u8; N],
    len: usize,
) -> Vec<u8> {
    let letters: Vec<_> = (0..=u8::MAX).map(letters).collect();
    let mut text = Vec::with_capacity(N * bytes.len());
    for byte in bytes {
        text.extend_from_slice(&letters[usize::from(*byte)]);
    }
    text.truncate(len);
    text
}

/// A directory that a test fills. Every method makes missing parents.
#[derive(Clone, Debug)]
pub(crate) struct Dir(pub PathBuf);

impl Dir {
    pub(crate) fn path(&self, rel: impl AsRef<Path>) -> PathBuf {
        self.0.join(rel)
    }

    pub(crate) fn dir(&self, rel: impl AsRef<Path>) -> Dir {
        let path = self.path(rel);
        fs::create_dir_all(&path).expect("make a directory");
        Dir(path)
    }

    pub(crate) fn file(&self, rel: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.parented(rel);
        fs::write(&path, content).expect("write a file");
        no_longer_written(&path);
        path
    }

    pub(crate) fn link(&self, rel: impl AsRef<Path>, target: impl AsRef<Path>) -> PathBuf {
        let path = self.parented(rel);
        symlink(target, &path).expect("make a symlink");
        path
    }

    pub(crate) fn hard_link(&self, rel: impl AsRef<Path>, existing: impl AsRef<Path>) -> PathBuf {
        let path = self.parented(rel);
        fs::hard_link(self.path(existing), &path).expect("make a hard link");
        path
    }

    /// A file of `len` bytes that is a hole except for `pieces` of (offset, content).
    pub(crate) fn sparse(
        &self,
        rel: impl AsRef<Path>,
        len: u64,
        pieces: &[(u64, &[u8])],
    ) -> PathBuf {
        let path = self.parented(rel);
        let file = File::create(&path).expect("make a file");
        file.set_len(len).expect("set its length");
        for (offset, content) in pieces {
            file.write_all_at(content, *offset).expect("write a piece");
        }
        path
    }

    pub(crate) fn mode(&self, rel: impl AsRef<Path>, mode: u32) {
        let path = self.path(rel);
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set a mode");
        if mode & 0o111 != 0 && path.is_file() {
            no_longer_written(&path);
        }
    }

    /// Sets atime and mtime, in seconds and nanoseconds after 1970.
    pub(crate) fn time(&self, rel: impl AsRef<Path>, seconds: u64, nanos: u32) {
        let when = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
        File::open(self.path(rel))
            .and_then(|file| {
                file.set_times(fs::FileTimes::new().set_accessed(when).set_modified(when))
            })
            .expect("set times");
    }

    pub(crate) fn append(&self, rel: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.path(rel);
        File::options()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(content.as_ref()))
            .expect("append to a file");
        no_longer_written(&path);
    }

    pub(crate) fn read(&self, rel: impl AsRef<Path>) -> Vec<u8> {
        let path = self.path(rel);
        fs::read(&path).unwrap_or_else(|cause| panic!("read {}: {cause}", path.display()))
    }

    /// True also for a dangling symlink.
    pub(crate) fn has(&self, rel: impl AsRef<Path>) -> bool {
        self.path(rel).symlink_metadata().is_ok()
    }

    pub(crate) fn meta(&self, rel: impl AsRef<Path>) -> Metadata {
        let path = self.path(rel);
        path.symlink_metadata()
            .unwrap_or_else(|cause| panic!("stat {}: {cause}", path.display()))
    }

    pub(crate) fn mode_of(&self, rel: impl AsRef<Path>) -> u32 {
        self.meta(rel).mode() & 0o7777
    }

    /// True if a partial file directly below has content already.
    pub(crate) fn has_partial(&self) -> bool {
        self.partials()
            .iter()
            .any(|path| path.symlink_metadata().is_ok_and(|meta| meta.blocks() > 0))
    }

    /// Bytes on disk of the partial files.
    pub(crate) fn partial_bytes(&self) -> u64 {
        self.partials()
            .iter()
            .filter_map(|path| path.symlink_metadata().ok())
            .map(|meta| meta.blocks() * 512)
            .sum()
    }

    /// fastcp's partial files directly below.
    pub(crate) fn partials(&self) -> Vec<PathBuf> {
        self.own(".part")
    }

    /// fastcp's name for the partial file of `name` in this directory.
    pub(crate) fn partial_of(&self, name: &str) -> String {
        let number = fs::metadata(&self.0).expect("look at it").ino();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&number.to_le_bytes()).update(name.as_bytes());
        format!(".fastcp-{name}-{}.part", &hasher.finalize().to_hex()[..16])
    }

    /// fastcp's name for the journal of a copy of a directory's content into this directory.
    pub(crate) fn journal_of_content(&self) -> String {
        self.journal_of("")
    }

    /// The name of the journal of a copy that lands as `name` in this directory.
    pub(crate) fn journal_of(&self, name: &str) -> String {
        let number = fs::metadata(&self.0).expect("look at it").ino();
        let mut hasher = blake3::Hasher::new();
        for part in [&number.to_le_bytes()[..], name.as_bytes()] {
            hasher
                .update(&(part.len() as u64).to_le_bytes())
                .update(part);
        }
        let hash = &hasher.finalize().to_hex()[..16];
        match name {
            "" => format!(".fastcp-{hash}.journal"),
            name => format!(".fastcp-{name}-{hash}.journal"),
        }
    }

    pub(crate) fn journals(&self) -> Vec<PathBuf> {
        self.own(".journal")
    }

    fn own(&self, end: &str) -> Vec<PathBuf> {
        self.names()
            .iter()
            .filter(|name| name.starts_with(".fastcp-") && name.ends_with(end))
            .map(|name| self.path(name))
            .collect()
    }

    /// Removes the files that an interrupted copy left here for a resume.
    pub(crate) fn sweep(&self) {
        for left in self.own("") {
            fs::remove_file(left).expect("remove the rest");
        }
    }

    /// Names directly below, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(&self.0)
            .expect("read a directory")
            .map(|entry| {
                entry
                    .expect("read an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }

    fn parented(&self, rel: impl AsRef<Path>) -> PathBuf {
        let path = self.path(rel);
        let parent = path.parent().expect("below this directory");
        fs::create_dir_all(parent).expect("make the parents");
        path
    }
}

/// A small tree with one entry of each kind that every copy keeps, and names of every kind.
pub(crate) fn one_of_everything(dir: &Dir) {
    dir.file("empty", "");
    dir.file("small", "a few bytes\n");
    dir.file("one chunk and a bit", noise(1, 1_100_000));
    dir.file("many chunks", noise(2, 5 << 20));
    dir.file("text", prose(3, 3 << 20));
    dir.file(".hidden", "hidden\n");
    dir.file("sub/deeper/file", "deep\n");
    dir.file("sub/quote'\"`$(x);\\n", "quotes\n");
    dir.file("sub/new\nline", "newline\n");
    dir.file("sub/-dash", "dash\n");
    dir.file("sub/größe 日本", "unicode\n");
    dir.file(
        Path::new("sub").join(OsStr::from_bytes(b"not-utf8-\xff\xfe")),
        "bytes\n",
    );
    dir.file("sub/*?[x]", "glob characters\n");
    dir.dir("empty dir");
    dir.link("sub/link to small", "../small");
    dir.link("sub/link to nothing", "nothing/here");
    dir.link("link to dir", "sub");
    dir.hard_link("sub/second name", "small");
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    File {
        size: u64,
        content: blake3::Hash,
    },
    Dir,
    Link(PathBuf),
    Special,
    /// Its mode denies access to the test, or it is gone.
    Closed,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub what: What,
    pub mode: u32,
    pub mtime: (i64, i64),
    inode: u64,
}

/// The tree below a directory, by relative path; the directory itself is "".
#[derive(Clone, Debug)]
pub(crate) struct Tree(pub BTreeMap<PathBuf, Node>);

/// Properties that must be equal in addition to names, types, contents and link targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Also {
    Nothing,
    /// Hard links join the same names.
    HardLinks,
    /// Mode and mtime of everything except symlinks, as `-p` keeps them.
    ModesAndTimes,
}

/// Digests of files that were read before. Only for files that no disk has damaged since: a file is
/// recognized by its status.
#[derive(Default)]
pub(crate) struct KnownFiles(HashMap<[i64; 7], blake3::Hash>);

/// More than a step of the clock that file systems use: a file that is written twice within one step
/// looks unchanged.
const CLOCK_STEP: Duration = Duration::from_millis(20);

impl KnownFiles {
    fn fingerprint(&mut self, path: &Path, meta: &Metadata) -> Option<blake3::Hash> {
        let status = [
            meta.dev() as i64,
            meta.ino() as i64,
            meta.size() as i64,
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        ];
        if let Some(known) = self.0.get(&status) {
            return Some(*known);
        }
        let changed = Duration::new(meta.ctime() as u64, meta.ctime_nsec() as u32);
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed);
        let digest = fingerprint(path)?;
        if age.is_ok_and(|age| age > CLOCK_STEP) {
            self.0.insert(status, digest);
        }
        Some(digest)
    }
}

impl Tree {
    pub(crate) fn read(root: impl AsRef<Path>) -> Tree {
        Tree::read_by(root, &mut |path, _| fingerprint(path))
    }

    /// As [`read`](Tree::read), but reads no file whose status is as before.
    pub(crate) fn read_new(root: impl AsRef<Path>, known: &mut KnownFiles) -> Tree {
        Tree::read_by(root, &mut |path, meta| known.fingerprint(path, meta))
    }

    /// With digests from `digest`.
    pub(crate) fn read_by(
        root: impl AsRef<Path>,
        digest: &mut dyn FnMut(&Path, &Metadata) -> Option<blake3::Hash>,
    ) -> Tree {
        let mut nodes = Vec::new();
        let mut stack = vec![PathBuf::new()];
        let root = root.as_ref();
        while let Some(rel) = stack.pop() {
            let path = if rel.as_os_str().is_empty() {
                root.to_owned()
            } else {
                root.join(&rel)
            };
            let meta = match path.symlink_metadata() {
                Ok(meta) => meta,
                // The receiver of an interrupted copy may still be removing its files.
                Err(gone) if gone.kind() == ErrorKind::NotFound && path != root => continue,
                Err(cause) => panic!("stat {}: {cause}", path.display()),
            };
            if meta.is_dir()
                && let Ok(entries) = fs::read_dir(&path)
            {
                let name =
                    |entry: std::io::Result<DirEntry>| entry.expect("read an entry").file_name();
                let mut names: Vec<_> = entries.map(name).collect();
                // In the order of the map, which then need not compare whole paths again and again.
                names.sort_by(|one, other| other.cmp(one));
                stack.extend(names.iter().map(|name| rel.join(name)));
            }
            let node = Node::read(&path, &meta, digest);
            nodes.push((rel, node));
        }
        Tree(nodes.into_iter().collect())
    }

    /// One line for each difference.
    pub(crate) fn differences(&self, other: &Tree, also: Also) -> Vec<String> {
        let mut faults = Vec::new();
        for (path, node) in &self.0 {
            match other.0.get(path) {
                None => faults.push(format!("missing: {path:?}")),
                Some(there) => node.compare(there, path, also, &mut faults),
            }
        }
        for path in other.0.keys().filter(|path| !self.0.contains_key(*path)) {
            faults.push(format!("unexpected: {path:?}"));
        }
        if also == Also::HardLinks && self.link_groups() != other.link_groups() {
            faults.push(format!(
                "hard links: {:?} became {:?}",
                self.link_groups(),
                other.link_groups()
            ));
        }
        faults
    }

    fn link_groups(&self) -> Vec<Vec<&Path>> {
        let mut groups: BTreeMap<u64, Vec<&Path>> = BTreeMap::new();
        for (path, node) in &self.0 {
            if let What::File { .. } = node.what {
                groups.entry(node.inode).or_default().push(path);
            }
        }
        let mut groups: Vec<_> = groups
            .into_values()
            .filter(|names| names.len() > 1)
            .collect();
        groups.sort();
        groups
    }
}

impl Node {
    fn read(
        path: &Path,
        meta: &Metadata,
        digest: &mut dyn FnMut(&Path, &Metadata) -> Option<blake3::Hash>,
    ) -> Node {
        let kind = meta.file_type();
        let what = if kind.is_dir() {
            What::Dir
        } else if kind.is_symlink() {
            What::Link(fs::read_link(path).expect("read a link"))
        } else if kind.is_file() {
            match digest(path, meta) {
                Some(content) => What::File {
                    size: meta.size(),
                    content,
                },
                None => What::Closed,
            }
        } else {
            What::Special
        };
        Node {
            what,
            mode: meta.mode() & 0o7777,
            mtime: (meta.mtime(), meta.mtime_nsec()),
            inode: meta.ino(),
        }
    }

    fn compare(&self, other: &Node, path: &Path, also: Also, faults: &mut Vec<String>) {
        if self.what != other.what {
            faults.push(format!("{path:?}: {:?} became {:?}", self.what, other.what));
        } else if also == Also::ModesAndTimes && !matches!(self.what, What::Link(_)) {
            if self.mode != other.mode {
                faults.push(format!(
                    "{path:?}: mode {:o} became {:o}",
                    self.mode, other.mode
                ));
            }
            if self.mtime != other.mtime {
                faults.push(format!(
                    "{path:?}: time {:?} became {:?}",
                    self.mtime, other.mtime
                ));
            }
        }
    }
}

/// Panics with every difference between the trees below two directories (or two files).
#[track_caller]
pub(crate) fn assert_same(want: impl AsRef<Path>, got: impl AsRef<Path>, also: Also) {
    let (want, got) = (want.as_ref(), got.as_ref());
    assert!(
        got.symlink_metadata().is_ok(),
        "{} is not there",
        got.display()
    );
    let faults = Tree::read(want).differences(&Tree::read(got), also);
    assert!(
        faults.is_empty(),
        "{} differs from {}:\n  {}",
        got.display(),
        want.display(),
        faults.join("\n  ")
    );
}

/// A digest of a file's length and of every non-zero block; None without permission to read.
fn fingerprint(path: &Path) -> Option<blake3::Hash> {
    static ZEROS: [u8; BLOCK] = [0; BLOCK];
    let file = match File::open(path) {
        // The receiver of an interrupted copy may just have removed it.
        Err(cause)
            if matches!(
                cause.kind(),
                ErrorKind::PermissionDenied | ErrorKind::NotFound
            ) =>
        {
            return None;
        }
        opened => opened.unwrap_or_else(|cause| panic!("open {}: {cause}", path.display())),
    };
    let size = file.metadata().expect("stat an open file").len();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&size.to_le_bytes());
    let mut block = vec![0; BLOCK];
    let mut offset = 0;
    while offset < size {
        match rustix::fs::seek(&file, SeekFrom::Data(offset)) {
            Ok(data) => offset = data / BLOCK as u64 * BLOCK as u64,
            Err(rustix::io::Errno::NXIO) => break,
            Err(cause) => panic!("find data in {}: {cause}", path.display()),
        }
        let len = BLOCK.min(usize::try_from(size - offset).unwrap_or(BLOCK));
        match file.read_exact_at(&mut block[..len], offset) {
            Ok(()) => {}
            // It is just being replaced, such as a program that is installed again.
            Err(cause) if cause.kind() == ErrorKind::UnexpectedEof => return None,
            Err(cause) => panic!("read {}: {cause}", path.display()),
        }
        if block[..len] != ZEROS[..len] {
            hasher.update(&offset.to_le_bytes()).update(&block[..len]);
        }
        offset += len as u64;
    }
    Some(hasher.finalize())
}

/// Waits until nobody has a file open for writing. A child that another test forked while the file
/// was written has it open until its exec. Such a file cannot be executed, and fastcp refuses to
/// replace it.
pub(crate) fn no_longer_written(path: &Path) {
    // A read lease is refused as long as somebody writes.
    const F_SETSIG: i32 = 10;
    let Ok(file) = File::open(path) else { return };
    let lease = |kind: i32| unsafe {
        // SAFETY: the descriptor is open during both calls. SIGURG is ignored, unlike the signal
        // that a broken lease sends by default.
        libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind)
    };
    super::procs::until("nobody writes it", || {
        let is_refused = lease(libc::F_RDLCK) == -1
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
        (!is_refused).then_some(())
    });
    lease(libc::F_UNLCK);
}
