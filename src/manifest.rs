//! Entries: what a file, directory, link or device is, apart from its content. Stored and sent as
//! they stand here (wire version 1), so a field may be added only as an [`Extension`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Stat};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::octets;

/// Dense per session, in walk order, from 1: a parent's number is lower than its children's.
pub type EntryId = u64;

/// The parent of what the user named; no entry has this number.
pub const NO_PARENT: EntryId = 0;

/// One component of a path: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`. A name from a
/// peer that is none of these does not decode, so nothing past the wire has to ask again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Name(#[serde(with = "octets")] Vec<u8>);

/// The longest name that Linux file systems take, in bytes.
pub const NAME_MAX: usize = 255;

#[derive(Debug, thiserror::Error)]
#[error("not a file name")]
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
        let bytes = octets::deserialize(deserializer)?;
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

/// What the files that wait for further names may weigh at the sender, in bytes: with names of 20
/// bytes 113,000 files.
pub const LINKED_BYTES_MAX: usize = 16 << 20;

/// About how many bytes of the receiver's memory a file takes that waits for further names, by the
/// length of its first one.
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
    /// The link's text, at most 4095 bytes.
    Symlink(#[serde(with = "octets")] Vec<u8>),
    /// A further name of an entry that was placed earlier in the same copy.
    HardLink(EntryId),
    /// Bytes that are read once and in order, and whose number nobody knows before their end.
    Stream,
}

/// Something that a later version says of an entry. An unknown `tag` with the top bit set fails
/// the entry, any other is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// [`ANEW`], [`DEVICE`], [`ONCE`], [`MADE_UP`], [`YOUNG`] or unknown.
    pub tag: u16,
    #[serde(with = "octets")]
    pub bytes: Vec<u8>,
}

/// The file changed while it was read and is read once more: what came of it before, in chunks
/// numbered below these eight bytes (little-endian), is worth nothing.
pub const ANEW: u16 = 0x8001;

/// The file's content is that of a block device: nothing tells whether it was written since, nor
/// where it has holes.
pub const DEVICE: u16 = 0x8002;

/// The stream cannot be read a second time: a FIFO, a character device, a command. No bytes, or
/// [`BEGUN`].
pub const ONCE: u16 = 3;

/// A former session of the command has begun to read it, so this one does not: it is in place since
/// then, or fails.
pub const BEGUN: &[u8] = b"begun";

/// The kernel makes the file's content as it is read (/proc, /sys): nothing tells whether it is
/// another now.
pub const MADE_UP: u16 = 4;

/// By the clock of its own host the file was written so recently that it may be written again
/// without its times showing it.
pub const YOUNG: u16 = 5;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub id: EntryId,
    pub parent: EntryId,
    pub name: Name,
    pub kind: EntryKind,
    /// The permission bits with set-id and sticky, without the type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Empty where not known.
    pub user: Vec<u8>,
    pub group: Vec<u8>,
    /// Bytes; 0 for what has no content.
    pub size: u64,
    /// Bytes that the source file system has given to it; less than `size` for a sparse file.
    pub allocated: u64,
    pub mtime: Timestamp,
    pub atime: Timestamp,
    pub ctime: Timestamp,
    pub birth: Timestamp,
    pub dev: u64,
    pub ino: u64,
    /// Names of the file. 1 where the sender links no further name to it: there is none, or no room
    /// to remember it; and of a [`EntryKind::HardLink`] where none comes after this one.
    pub links: u64,
    pub rdev: u64,
    pub extensions: Vec<Extension>,
}

impl Entry {
    /// `kind` is given since a stat knows neither a link's text nor what was copied before.
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
            id,
            parent,
            name,
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            user: Vec::new(),
            group: Vec::new(),
            size,
            allocated: stat.st_blocks as u64 * 512,
            mtime: Timestamp {
                s: stat.st_mtime,
                ns: stat.st_mtime_nsec as u32,
            },
            atime: Timestamp {
                s: stat.st_atime,
                ns: stat.st_atime_nsec as u32,
            },
            ctime: Timestamp {
                s: stat.st_ctime,
                ns: stat.st_ctime_nsec as u32,
            },
            birth: Timestamp::default(),
            dev: stat.st_dev,
            ino: stat.st_ino,
            links: stat.st_nlink,
            rdev: stat.st_rdev,
            extensions: Vec::new(),
        }
    }

    /// The entry of a file that holds what the block device of this entry holds, `size` bytes.
    pub fn of_device(self, size: u64) -> Self {
        let device = Extension {
            tag: DEVICE,
            bytes: Vec::new(),
        };
        Entry {
            size,
            // So that its zeros become holes.
            allocated: 0,
            links: 1,
            extensions: vec![device],
            ..self
        }
    }

    /// True if the source is a block device.
    pub fn is_device(&self) -> bool {
        self.extensions
            .iter()
            .any(|extension| extension.tag == DEVICE)
    }

    /// True if the source is a stream that cannot be read a second time.
    pub fn is_once(&self) -> bool {
        self.extensions
            .iter()
            .any(|extension| extension.tag == ONCE)
    }

    /// True of such a stream that a former session of the command has begun to read.
    pub fn is_begun(&self) -> bool {
        self.extensions
            .iter()
            .any(|extension| extension.tag == ONCE && extension.bytes == BEGUN)
    }

    /// True if the source's content is made as it is read.
    pub fn is_made_up(&self) -> bool {
        self.extensions
            .iter()
            .any(|extension| extension.tag == MADE_UP)
    }

    /// True if its host says that it was just written.
    pub fn is_young(&self) -> bool {
        self.extensions
            .iter()
            .any(|extension| extension.tag == YOUNG)
    }

    /// True if the source has (or may have) holes.
    pub fn is_sparse(&self) -> bool {
        self.allocated < self.size
    }
}

/// What tells that a source file is still the one that was opened.
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
            mtime: Timestamp {
                s: stat.st_mtime,
                ns: stat.st_mtime_nsec as u32,
            },
            ctime: Timestamp {
                s: stat.st_ctime,
                ns: stat.st_ctime_nsec as u32,
            },
        }
    }
}

/// A file at the destination, beyond its name: what tells it from another that has got its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    pub dev: u64,
    pub ino: u64,
    /// Zero where the file system does not tell.
    pub birth: Timestamp,
}

impl Inode {
    /// The same file, as far as both tell.
    pub fn is(&self, other: &Inode) -> bool {
        let unknown = |birth: Timestamp| birth == Timestamp::default();
        (self.dev, self.ino) == (other.dev, other.ino)
            && (self.birth == other.birth || unknown(self.birth) || unknown(other.birth))
    }
}

/// What a copy comes to, from a walk before the first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub files: u64,
    pub directories: u64,
    /// Bytes of content, holes included.
    pub bytes: u64,
    /// Bytes that the sources occupy; what the destination will need.
    pub allocated: u64,
    /// `allocated` of the largest file.
    pub largest: u64,
    /// How many of the files are streams, of which `bytes` holds what was said of their length, if
    /// anything was.
    pub streams: u64,
}

/// One thing that the user named (or a glob found), as the receiver is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    pub id: EntryId,
    /// Which operand it came from, counted from 0.
    pub operand: u32,
    pub name: Name,
    pub is_directory: bool,
    /// The destination is to hold what this directory holds, not the directory itself. Of what is
    /// no directory: it has no name of its own, so it lands in no directory.
    pub contents: bool,
    pub dev: u64,
    pub ino: u64,
}

pub fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}
