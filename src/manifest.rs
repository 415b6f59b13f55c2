//! Entries: the metadata of files, directories, links and devices. They are sent in this
//! form (protocol version 1), so new fields can be added only as an [`Extension`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Stat, Statx, StatxFlags, Timespec};
use rustix::time::{ClockId, clock_gettime};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::byte_strings;
use crate::digest::Digest;
use crate::keep::Keep;
use crate::limited_list;

/// Numbered per session without gaps, from 1, in the order of their announcement. A parent's number
/// is lower than its children's.
pub type EntryId = u64;

/// The parent of an entry that the user named. No entry has this number.
pub const NO_PARENT: EntryId = 0;

/// One component of a path: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`. An invalid name
/// from a peer fails to decode, so later code need not check names again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Name(#[serde(with = "byte_strings")] Vec<u8>);

/// The longest name that Linux file systems allow, in bytes.
pub const NAME_MAX: usize = 255;

/// Room for what most entries are summed up from, in bytes.
const USUAL_SUM_LEN: usize = 256;

#[derive(Debug, thiserror::Error)]
#[error("not a valid file name")]
pub struct NotAName;

impl TryFrom<Vec<u8>> for Name {
    type Error = NotAName;

    fn try_from(bytes: Vec<u8>) -> Result<Self, NotAName> {
        let plain = !bytes.is_empty()
            && bytes.len() <= NAME_MAX
            && !bytes.iter().any(|&byte| byte == b'/' || byte == 0)
            && bytes != b"."
            && bytes != b"..";
        if plain {
            Ok(Name(bytes))
        } else {
            Err(NotAName)
        }
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = byte_strings::deserialize(deserializer)?;
        Name::try_from(bytes).map_err(D::Error::custom)
    }
}

impl From<Name> for Vec<u8> {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl Name {
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<std::path::Path> for Name {
    fn as_ref(&self) -> &std::path::Path {
        std::path::Path::new(self.as_os_str())
    }
}

/// Most bytes, by [`Entry::heap_bytes`], of operands' directories that are announced and not walked,
/// and as many of those that are walked and may have unsettled entries.
pub const OPERAND_BYTES_MAX: usize = 2 << 20;

/// Most bytes, by [`linked_weight`], of files with further names (hard links) that the sender
/// remembers. That is 113,000 files with names of 20 bytes.
pub const LINKED_BYTES_MAX: usize = 16 << 20;

/// Approximate bytes of the receiver's memory for a file that has further names, given the length
/// of its first name.
pub fn linked_weight(name_len: usize) -> usize {
    128 + name_len
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Timestamp {
    pub s: i64,
    pub ns: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    File,
    Directory,
    /// The link's target, at most 4095 bytes.
    Symlink(#[serde(with = "byte_strings")] Vec<u8>),
    /// A further name of an earlier entry of the same copy.
    HardLink(EntryId),
    /// A pipe: bytes that are read once, in order, and whose number is unknown until the end.
    Pipe,
    /// A device, FIFO or socket: created at the destination, without content.
    Special(SpecialFile),
}

/// A device has its number in [`Entry::rdev`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpecialFile {
    BlockDevice,
    CharacterDevice,
    Fifo,
    Socket,
}

impl SpecialFile {
    pub fn of(file_type: FileType) -> Option<SpecialFile> {
        match file_type {
            FileType::BlockDevice => Some(SpecialFile::BlockDevice),
            FileType::CharacterDevice => Some(SpecialFile::CharacterDevice),
            FileType::Fifo => Some(SpecialFile::Fifo),
            FileType::Socket => Some(SpecialFile::Socket),
            _ => None,
        }
    }

    pub fn file_type(self) -> FileType {
        match self {
            SpecialFile::BlockDevice => FileType::BlockDevice,
            SpecialFile::CharacterDevice => FileType::CharacterDevice,
            SpecialFile::Fifo => FileType::Fifo,
            SpecialFile::Socket => FileType::Socket,
        }
    }

    pub fn is_device(self) -> bool {
        matches!(
            self,
            SpecialFile::BlockDevice | SpecialFile::CharacterDevice
        )
    }
}

/// The most extensions that an entry can have. This version knows eight.
pub const EXTENSIONS_MAX: usize = 16;

/// An attribute of an entry that a later version added. An unknown `tag` with the top bit set
/// makes the entry fail; any other unknown tag is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// [`ANEW`], [`DEVICE`], [`ONCE`], [`MADE_UP`], [`YOUNG`], [`ATTRIBUTES`], [`CONTENT`],
    /// [`IMPLIED`] or unknown.
    pub tag: u16,
    #[serde(with = "byte_strings")]
    pub bytes: Vec<u8>,
}

/// The file changed during the copy and is read again. The receiver discards the data of its
/// chunks with numbers below these eight bytes (little-endian).
pub const ANEW: u16 = 0x8001;

/// The content comes from a block device. Nothing shows whether the device was written in the
/// meantime, or where it has holes.
pub const DEVICE: u16 = 0x8002;

/// The pipe cannot be read again: a FIFO, a character device, a command. Contains no bytes, or
/// [`BEGUN`].
pub const ONCE: u16 = 3;

/// An earlier session of the command has begun to read the pipe, so this one does not. Either
/// that session finished the file, or the entry fails.
pub const BEGUN: &[u8] = b"begun";

/// The kernel generates the content on each read (/proc, /sys), so nothing shows whether it has
/// changed.
pub const MADE_UP: u16 = 4;

/// The BLAKE3 of a small file, with which the other end compares its own (`--checksum`).
pub const CONTENT: u16 = 7;

/// By its host's clock the file was written so recently that another write might not change its
/// times.
pub const YOUNG: u16 = 5;

/// Extended attributes with their access control lists: a postcard list of [`Attribute`]s.
pub const ATTRIBUTES: u16 = 6;

/// A directory that is copied without all that it has, because only some of its entries are listed.
/// Contains no bytes, or [`PLAIN`].
pub const IMPLIED: u16 = 0x8010;

/// If the directory exists, it keeps its metadata.
pub const PLAIN: &[u8] = b"plain";

/// Most bytes of an entry's attributes, names and values together.
pub const ATTRIBUTES_MAX: usize = 64 << 10;

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attribute {
    /// At most 255 bytes, without NUL.
    #[serde(with = "byte_strings")]
    pub name: Vec<u8>,
    #[serde(with = "byte_strings")]
    pub value: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub id: EntryId,
    pub parent: EntryId,
    pub name: Name,
    pub kind: EntryKind,
    /// The permission bits with set-id and sticky bits, without the file type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Empty if unknown.
    pub user: Vec<u8>,
    pub group: Vec<u8>,
    /// Bytes; 0 for entries without content.
    pub size: u64,
    /// Bytes that the source file system has allocated; less than `size` for a sparse file.
    pub allocated: u64,
    pub mtime: Timestamp,
    pub atime: Timestamp,
    pub ctime: Timestamp,
    pub birth: Timestamp,
    pub dev: u64,
    pub ino: u64,
    /// Number of the file's names. 1 if the sender sends no further names: the file has only one,
    /// or the sender lacks the memory to remember it. Also 1 on a [`EntryKind::HardLink`] that is
    /// the last name.
    pub links: u64,
    pub rdev: u64,
    /// At most [`EXTENSIONS_MAX`].
    #[serde(deserialize_with = "limited_list::deserialize::<EXTENSIONS_MAX, _, _>")]
    pub extensions: Vec<Extension>,
}

/// A file server's clock may be so far ahead of this machine's, in seconds.
const CLOCKS_DIFFER_S: i64 = 24 * 3600;

impl Timestamp {
    /// A time of a clock.
    pub fn of(time: Timespec) -> Self {
        let (s, ns) = (time.tv_sec, time.tv_nsec as u32);
        Timestamp { s, ns }
    }

    pub fn now() -> Self {
        Timestamp::of(clock_gettime(ClockId::Realtime))
    }

    /// True for a time of a file system that may lie between `began` and `now`. A time in the far
    /// future comes from a clock that was wrong, and says nothing.
    pub fn is_since(self, began: Timestamp, now: Timestamp) -> bool {
        self >= began && self.s <= now.s.saturating_add(CLOCKS_DIFFER_S)
    }

    /// The time of birth; None if the kernel is too old, or the file system keeps none.
    pub fn birth(told: &Statx) -> Option<Self> {
        let has_birth = told.stx_mask & StatxFlags::BTIME.bits() != 0;
        has_birth.then_some(Timestamp {
            s: told.stx_btime.tv_sec,
            ns: told.stx_btime.tv_nsec,
        })
    }

    pub fn mtime(stat: &Stat) -> Self {
        let (s, ns) = (stat.st_mtime, stat.st_mtime_nsec as u32);
        Timestamp { s, ns }
    }

    pub fn ctime(stat: &Stat) -> Self {
        let (s, ns) = (stat.st_ctime, stat.st_ctime_nsec as u32);
        Timestamp { s, ns }
    }

    pub fn atime(stat: &Stat) -> Self {
        let (s, ns) = (stat.st_atime, stat.st_atime_nsec as u32);
        Timestamp { s, ns }
    }
}

/// The number of names of a file.
#[allow(clippy::unnecessary_cast)] // It has 32 bits on ARM.
pub fn link_count(stat: &Stat) -> u64 {
    stat.st_nlink as u64
}

impl Entry {
    /// An empty entry of root, without times, permissions or a place on a disk.
    pub fn new(id: EntryId, parent: EntryId, name: Name, kind: EntryKind) -> Self {
        let time = Timestamp::default();
        Entry {
            id,
            parent,
            name,
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            user: Vec::new(),
            group: Vec::new(),
            size: 0,
            allocated: 0,
            mtime: time,
            atime: time,
            ctime: time,
            birth: time,
            dev: 0,
            ino: 0,
            links: 1,
            rdev: 0,
            extensions: Vec::new(),
        }
    }

    /// Approximate bytes of memory that the entry takes besides its own size: those of its names, text
    /// and extensions.
    pub fn heap_bytes(&self) -> usize {
        let text = match &self.kind {
            EntryKind::Symlink(text) => text.len(),
            _ => 0,
        };
        let one = |extension: &Extension| size_of::<Extension>() + extension.bytes.len();
        let extensions: usize = self.extensions.iter().map(one).sum();
        let names = self.name.as_bytes().len() + self.user.len() + self.group.len();
        names + text + extensions
    }

    /// `kind` is a parameter because a stat has neither a link's target nor earlier entries.
    pub fn from_stat(
        id: EntryId,
        parent: EntryId,
        name: Name,
        kind: EntryKind,
        stat: &Stat,
    ) -> Self {
        let size = if kind == EntryKind::File {
            stat.st_size as u64
        } else {
            0
        };
        Entry {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size,
            allocated: stat.st_blocks as u64 * 512,
            mtime: Timestamp::mtime(stat),
            atime: Timestamp::atime(stat),
            ctime: Timestamp::ctime(stat),
            dev: stat.st_dev,
            ino: stat.st_ino,
            links: link_count(stat),
            rdev: stat.st_rdev,
            ..Entry::new(id, parent, name, kind)
        }
    }

    /// Converts to a file entry for the content of this block device, `size` bytes.
    pub fn of_device(self, size: u64) -> Self {
        let device = Extension {
            tag: DEVICE,
            bytes: Vec::new(),
        };
        Entry {
            size,
            // Makes the zeros into holes.
            allocated: 0,
            links: 1,
            extensions: vec![device],
            ..self
        }
    }

    /// Marks a directory that comes without all that it has. With `is_plain`, nobody named it.
    pub fn imply(&mut self, is_plain: bool) {
        let bytes = if is_plain { PLAIN } else { &[] };
        self.extensions.push(Extension {
            tag: IMPLIED,
            bytes: bytes.to_vec(),
        });
        if is_plain {
            // The receiver's umask decides.
            self.mode = 0o777;
        }
    }

    fn has(&self, tag: u16) -> bool {
        self.extensions.iter().any(|extension| extension.tag == tag)
    }

    /// True if the source is a block device.
    pub fn is_device(&self) -> bool {
        self.has(DEVICE)
    }

    /// True if the source is a pipe that cannot be read again.
    pub fn is_once(&self) -> bool {
        self.has(ONCE)
    }

    /// True if it is such a pipe and an earlier session of the command has begun to read it.
    pub fn is_begun(&self) -> bool {
        self.extensions
            .iter()
            .any(|extension| extension.tag == ONCE && extension.bytes == BEGUN)
    }

    /// True if a directory comes without all that it has.
    pub fn is_implied(&self) -> bool {
        self.has(IMPLIED)
    }

    /// True if nobody named this directory, so that an existing one keeps its metadata.
    pub fn is_plain(&self) -> bool {
        self.extensions
            .iter()
            .any(|extension| extension.tag == IMPLIED && extension.bytes == PLAIN)
    }

    /// True if the kernel generates the content on each read.
    pub fn is_made_up(&self) -> bool {
        self.has(MADE_UP)
    }

    /// True if the file was recently written, by its host's clock.
    pub fn is_young(&self) -> bool {
        self.has(YOUNG)
    }

    /// The BLAKE3 of its content, if that was read.
    pub fn content(&self) -> Option<Digest> {
        let held = |extension: &&Extension| extension.tag == CONTENT;
        let held = self.extensions.iter().find(held)?;
        held.bytes.as_slice().try_into().ok()
    }

    pub fn set_content(&mut self, digest: &Digest) {
        self.extensions.retain(|extension| extension.tag != CONTENT);
        self.extensions.push(Extension {
            tag: CONTENT,
            bytes: digest.to_vec(),
        });
    }

    /// A keyed hash of everything about the entry that `keep` says, but not of its place in a tree or
    /// on a disk. Both ends compute it; equal sums mean that there is nothing to copy. A file's
    /// content is represented by its size and, with `has_time`, its modification time, or by its
    /// digest if that is known.
    pub fn sum(&self, key: &Digest, keep: &Keep, has_time: bool) -> Digest {
        // Gathered, since each update of a hasher costs more than these few bytes.
        let mut parts = Vec::with_capacity(USUAL_SUM_LEN);
        let mut part = |bytes: &[u8]| {
            parts.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            parts.extend_from_slice(bytes);
        };
        part(self.name.as_bytes());
        let (kind, text, number): (u8, &[u8], u64) = match &self.kind {
            EntryKind::File => (0, &[], self.size),
            EntryKind::Directory => (1, &[], 0),
            EntryKind::Symlink(text) => (2, text, 0),
            EntryKind::HardLink(first) => (3, &[], *first),
            EntryKind::Pipe => (4, &[], 0),
            EntryKind::Special(special) => {
                let device = if special.is_device() { self.rdev } else { 0 };
                (5 + *special as u8, &[], device)
            }
        };
        part(&[kind]);
        part(text);
        part(&number.to_le_bytes());
        if has_time {
            part(&self.mtime.s.to_le_bytes());
            part(&self.mtime.ns.to_le_bytes());
        }
        if keep.perms && kind != 2 {
            part(&self.mode.to_le_bytes());
        }
        for (is_kept, name, id) in [
            (keep.owner, &self.user, self.uid),
            (keep.group, &self.group, self.gid),
        ] {
            match (is_kept, name.is_empty()) {
                (false, _) => {}
                (true, false) => part(name),
                (true, true) => part(&id.to_le_bytes()),
            }
        }
        if keep.has_attributes() {
            let held = |extension: &&Extension| extension.tag == ATTRIBUTES;
            let held = self.extensions.iter().find(held);
            part(held.map_or(&[], |held| &held.bytes));
        }
        if let Some(content) = self.content() {
            part(&content);
        }
        *blake3::keyed_hash(key, &parts).as_bytes()
    }

    /// Its extended attributes, sorted by name. None for those of a peer that are malformed or more
    /// than [`ATTRIBUTES_MAX`].
    pub fn attributes(&self) -> Option<Vec<Attribute>> {
        let held = |extension: &&Extension| extension.tag == ATTRIBUTES;
        let Some(held) = self.extensions.iter().find(held) else {
            return Some(Vec::new());
        };
        let mut attributes: Vec<Attribute> = match postcard::take_from_bytes(&held.bytes) {
            Ok((attributes, [])) if held.bytes.len() <= ATTRIBUTES_MAX => attributes,
            _ => return None,
        };
        let is_possible = |one: &Attribute| {
            let name = &one.name;
            !name.is_empty() && name.len() <= NAME_MAX && !name.contains(&0)
        };
        attributes.sort();
        attributes.dedup_by(|a, b| a.name == b.name);
        attributes.iter().all(is_possible).then_some(attributes)
    }

    /// Replaces its extended attributes. False if they are more than [`ATTRIBUTES_MAX`]; then it
    /// has none.
    pub fn set_attributes(&mut self, attributes: &[Attribute]) -> bool {
        self.extensions
            .retain(|extension| extension.tag != ATTRIBUTES);
        if attributes.is_empty() {
            return true;
        }
        // A vector grows, and all lengths are known.
        let bytes = postcard::to_stdvec(attributes).unwrap_or_default();
        let fits = bytes.len() <= ATTRIBUTES_MAX && !bytes.is_empty();
        if fits {
            let tag = ATTRIBUTES;
            self.extensions.push(Extension { tag, bytes });
        }
        fits
    }

    /// True if the source has (or may have) holes.
    pub fn is_sparse(&self) -> bool {
        self.allocated < self.size
    }
}

/// Identifies a source file and its state. A difference shows that the file changed after it was
/// opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub dev: u64,
    pub ino: u64,
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

impl Identity {
    pub fn of(stat: &Stat) -> Self {
        Identity {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size: stat.st_size as u64,
            mtime: Timestamp::mtime(stat),
            ctime: Timestamp::ctime(stat),
        }
    }
}

/// Identifies a file at the destination. Distinguishes it from a later file that has the same
/// inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    pub dev: u64,
    pub ino: u64,
    /// Zero if the file system does not record it.
    pub birth: Timestamp,
}

impl Inode {
    /// True if both are the same file, as far as is known.
    pub fn is(&self, other: &Inode) -> bool {
        let unknown = |birth: Timestamp| birth == Timestamp::default();
        (self.dev, self.ino) == (other.dev, other.ino)
            && (self.birth == other.birth || unknown(self.birth) || unknown(other.birth))
    }
}

/// The size of a copy, from a walk before the first byte is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub files: u64,
    pub directories: u64,
    /// Bytes of content, including holes.
    pub bytes: u64,
    /// Bytes that the sources occupy and the destination will need.
    pub allocated: u64,
    /// `allocated` of the largest file.
    pub largest: u64,
    /// Number of files that are pipes. `bytes` includes their lengths where the user gave them.
    pub streams: u64,
}

impl Totals {
    /// Adds those of another source.
    pub fn add(&mut self, other: &Totals) {
        self.files = self.files.saturating_add(other.files);
        self.directories = self.directories.saturating_add(other.directories);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.largest = self.largest.max(other.largest);
        self.streams = self.streams.saturating_add(other.streams);
    }
}

/// One operand, or one match of a glob, as the receiver sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    pub id: EntryId,
    /// Index of the operand, from 0.
    pub operand: u32,
    pub name: Name,
    pub is_directory: bool,
    /// Copy the contents of this directory, and not the directory itself. If the root is not a
    /// directory, it has no name and cannot go into a directory.
    pub contents: bool,
    pub dev: u64,
    pub ino: u64,
}

pub fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_in_the_far_future_is_not_of_this_copy() {
        let at = |s| Timestamp { s, ns: 5 };
        let (began, now) = (at(1_000), at(2_000));
        for (time, is_since) in [
            (at(999), false),
            (began, true),
            (at(1_500), true),
            // The clock of a file server may be ahead.
            (at(2_000 + 3_600), true),
            (at(2_000 + 30 * 24 * 3_600), false),
            (at(i64::MAX), false),
        ] {
            assert_eq!(time.is_since(began, now), is_since, "{time:?}");
        }
    }
}
