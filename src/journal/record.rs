//! The records of a journal: 96 bytes each, little-endian.
//!
//! | bytes | of every record |
//! |---|---|
//! | 0 | kind |
//! | 1 | flags |
//! | 2–3 | zero |
//! | 4–7 | number of a file within the journal; in a session record, its chunk size |
//! | 8–87 | the body, see [`RecordBody`]; zero after its end |
//! | 88–95 | checksum: the first bytes of the keyed BLAKE3 of the bytes before it |
//!
//! The key of the checksum is derived from the receiving user's secret key and the journal's
//! header. So nobody else can make a record, and a record of one journal is not valid in another.

use crate::digest::Digest;
use crate::manifest::{Inode, Timestamp};

/// Length in bytes of a record, and of the header.
pub const LEN: usize = 96;

const CHECKED: usize = LEN - 8;

/// The first bytes of a journal: name and version of the format.
pub const MAGIC: &[u8; 16] = b"fastcp journal 2";

/// 128 bits of a BLAKE3 hash: of a path, of a source's identity, or of a file as it was placed.
pub type Hash = [u8; 16];

/// The secret of the receiving user. Journals made with another key are not trusted.
pub type JournalUserKey = [u8; 32];

const SESSION: u8 = 1;
const FILE: u8 = 2;
const CHUNK: u8 = 3;
const FINISHED: u8 = 4;
const SYNCED: u8 = 5;
const DIRECTORY: u8 = 6;
const DROPPED: u8 = 7;
const OWNER: u8 = 8;
const DOUBTED: u8 = 9;
const RANGE_CHECKED: u8 = 10;

const YOUNG: u8 = 1;
const INPLACE: u8 = 2;
const ZEROS: u8 = 4;
const NO_DIGEST: u8 = 8;
const MADE: u8 = 16;
const RESTORE: u8 = 32;
const STARTS_AGAIN: u8 = 64;

/// A process that writes the journal, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSession {
    pub boot_id: [u8; 16],
    pub id: [u8; 16],
    /// Device and mount of the journal; 0 if the mount is unknown.
    pub dev: u64,
    pub mount: u64,
    pub pid: u32,
    pub uid: u32,
    /// When the process started, in kernel ticks since the boot.
    pub started: u64,
    /// A hash of the names and kinds of the roots at the source.
    pub roots: Hash,
    /// In bytes.
    pub chunk_size: u32,
    /// It discards what earlier sessions wrote of files.
    pub starts_again: bool,
}

impl JournalSession {
    /// True if both wrote during one boot to one mount, so that no cached write was lost in
    /// between.
    pub fn is_of_mount(&self, other: &JournalSession) -> bool {
        let place = |of: &JournalSession| (of.boot_id, of.dev, of.mount);
        self.boot_id != [0; 16] && self.mount != 0 && place(self) == place(other)
    }

    /// The same as far as the kernel tells mounts apart.
    pub fn may_be_of_mount(&self, other: &JournalSession) -> bool {
        let place = |of: &JournalSession| (of.boot_id, of.dev);
        let is_mount = [self.mount, other.mount].contains(&0) || self.mount == other.mount;
        self.boot_id != [0; 16] && is_mount && place(self) == place(other)
    }
}

/// A big file that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BegunFile {
    pub path: Hash,
    pub identity: Hash,
    /// In bytes.
    pub size: u64,
    /// The file that is written: the partial file, or with `inplace` the existing file.
    pub inode: Inode,
    /// The source was written so recently that its identity does not prove that it is unchanged.
    pub young: bool,
    pub inplace: bool,
}

/// A range that was verified and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenRange {
    pub offset: u64,
    pub len: u64,
    /// None for a range of zeros.
    pub digest: Option<Digest>,
}

/// A file that has its final name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    pub path: Hash,
    pub identity: Hash,
    /// A hash of inode, size and time of the file as it was placed.
    pub placed: Hash,
    /// None if nobody needed it.
    pub digest: Option<Digest>,
    pub young: bool,
}

/// A directory that was made, or made writable to be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeDirectory {
    pub path: Hash,
    pub made: bool,
    /// The mode to restore at the end.
    pub restore: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordBody {
    Session(JournalSession),
    /// Gives the file this number.
    File(u32, BegunFile),
    Chunk(u32, WrittenRange),
    /// The range from an earlier session was read and matches its records.
    Checked {
        number: u32,
        start: u64,
        end: u64,
    },
    Finished(Finished),
    /// All bytes recorded before this position in the journal are on disk.
    Synced(u64),
    Directory(MadeDirectory),
    /// The bytes written of this file are gone or useless.
    Dropped(u32),
    /// The owner of the session: a hash that only the client's user can produce. Follows each
    /// `JournalSession`; zero if the client gave none.
    Owner(Hash),
    /// A write was lost or bytes were damaged. Records before this may not be trusted without
    /// reading.
    Doubted,
}

pub type Record = [u8; LEN];

/// The key of a journal's checksums.
#[derive(Clone)]
pub struct ChecksumKey([u8; 32]);

impl ChecksumKey {
    /// The header of a new journal and its key. `id` is random.
    pub fn header(id: [u8; 16], user: &JournalUserKey) -> (Record, ChecksumKey) {
        let mut record = [0; LEN];
        record[..16].copy_from_slice(MAGIC);
        record[16..32].copy_from_slice(&id);
        let sum = checksum(user, &record);
        record[CHECKED..].copy_from_slice(&sum);
        (record, ChecksumKey::of(&record, user))
    }

    /// None unless `header` is that of a journal of this version and this user.
    pub fn read(header: &Record, user: &JournalUserKey) -> Option<ChecksumKey> {
        let is_ours = header[..16] == MAGIC[..] && header[CHECKED..] == checksum(user, header);
        is_ours.then(|| ChecksumKey::of(header, user))
    }

    fn of(header: &Record, user: &JournalUserKey) -> ChecksumKey {
        let mut hasher = blake3::Hasher::new_keyed(user);
        hasher.update(b"journal records").update(header);
        ChecksumKey(*hasher.finalize().as_bytes())
    }
}

fn checksum(key: &[u8; 32], record: &Record) -> [u8; 8] {
    let hash = blake3::keyed_hash(key, &record[..CHECKED]);
    let mut sum = [0; 8];
    sum.copy_from_slice(&hash.as_bytes()[..8]);
    sum
}

impl RecordBody {
    pub fn encode(&self, key: &ChecksumKey) -> Record {
        let mut out = Fields::default();
        let (kind, flags, number) = self.put(&mut out);
        let mut record = [0; LEN];
        record[0] = kind;
        record[1] = flags;
        record[4..8].copy_from_slice(&number.to_le_bytes());
        record[8..CHECKED].copy_from_slice(&out.bytes);
        let sum = checksum(&key.0, &record);
        record[CHECKED..].copy_from_slice(&sum);
        record
    }

    fn put(&self, out: &mut Fields) -> (u8, u8, u32) {
        match self {
            RecordBody::Session(session) => {
                out.put(&session.boot_id).put(&session.id);
                out.u64(session.dev).u64(session.mount);
                out.u32(session.pid).u32(session.uid).u64(session.started);
                out.put(&session.roots);
                let flags = flag(session.starts_again, STARTS_AGAIN);
                (SESSION, flags, session.chunk_size)
            }
            RecordBody::File(number, file) => {
                let birth = file.inode.birth;
                out.put(&file.path).put(&file.identity).u64(file.size);
                out.u64(file.inode.dev).u64(file.inode.ino);
                out.u64(birth.s as u64).u32(birth.ns);
                let flags = flag(file.young, YOUNG) | flag(file.inplace, INPLACE);
                (FILE, flags, *number)
            }
            RecordBody::Checked { number, start, end } => {
                out.u64(*start).u64(*end);
                (RANGE_CHECKED, 0, *number)
            }
            RecordBody::Chunk(number, chunk) => {
                out.u64(chunk.offset).u64(chunk.len);
                out.put(&chunk.digest.unwrap_or_default());
                (CHUNK, flag(chunk.digest.is_none(), ZEROS), *number)
            }
            RecordBody::Finished(file) => {
                out.put(&file.path).put(&file.identity).put(&file.placed);
                out.put(&file.digest.unwrap_or_default());
                let flags = flag(file.young, YOUNG) | flag(file.digest.is_none(), NO_DIGEST);
                (FINISHED, flags, 0)
            }
            RecordBody::Synced(position) => {
                out.u64(*position);
                (SYNCED, 0, 0)
            }
            RecordBody::Directory(directory) => {
                let restore = directory.restore;
                out.put(&directory.path).u32(restore.unwrap_or_default());
                let flags = flag(directory.made, MADE) | flag(restore.is_some(), RESTORE);
                (DIRECTORY, flags, 0)
            }
            RecordBody::Dropped(number) => (DROPPED, 0, *number),
            RecordBody::Owner(owner) => {
                out.put(owner);
                (OWNER, 0, 0)
            }
            RecordBody::Doubted => (DOUBTED, 0, 0),
        }
    }

    /// None for a record that is torn, damaged, from another journal, or of an unknown kind.
    pub fn decode(record: &Record, key: &ChecksumKey) -> Option<RecordBody> {
        if record[CHECKED..] != checksum(&key.0, record) {
            return None;
        }
        let mut number = [0; 4];
        number.copy_from_slice(&record[4..8]);
        let number = u32::from_le_bytes(number);
        let has = |flag: u8| record[1] & flag != 0;
        let mut from = Fields::default();
        from.bytes.copy_from_slice(&record[8..CHECKED]);
        Some(match record[0] {
            SESSION => RecordBody::Session(JournalSession {
                boot_id: from.take(),
                id: from.take(),
                dev: from.take_u64(),
                mount: from.take_u64(),
                pid: from.take_u32(),
                uid: from.take_u32(),
                started: from.take_u64(),
                roots: from.take(),
                chunk_size: number,
                starts_again: has(STARTS_AGAIN),
            }),
            FILE => RecordBody::File(
                number,
                BegunFile {
                    path: from.take(),
                    identity: from.take(),
                    size: from.take_u64(),
                    inode: Inode {
                        dev: from.take_u64(),
                        ino: from.take_u64(),
                        birth: Timestamp {
                            s: from.take_u64() as i64,
                            ns: from.take_u32(),
                        },
                    },
                    young: has(YOUNG),
                    inplace: has(INPLACE),
                },
            ),
            RANGE_CHECKED => RecordBody::Checked {
                number,
                start: from.take_u64(),
                end: from.take_u64(),
            },
            CHUNK => RecordBody::Chunk(
                number,
                WrittenRange {
                    offset: from.take_u64(),
                    len: from.take_u64(),
                    digest: Some(from.take()).filter(|_| !has(ZEROS)),
                },
            ),
            FINISHED => RecordBody::Finished(Finished {
                path: from.take(),
                identity: from.take(),
                placed: from.take(),
                digest: Some(from.take()).filter(|_| !has(NO_DIGEST)),
                young: has(YOUNG),
            }),
            SYNCED => RecordBody::Synced(from.take_u64()),
            DIRECTORY => RecordBody::Directory(MadeDirectory {
                path: from.take(),
                made: has(MADE),
                restore: Some(from.take_u32()).filter(|_| has(RESTORE)),
            }),
            DROPPED => RecordBody::Dropped(number),
            OWNER => RecordBody::Owner(from.take()),
            DOUBTED => RecordBody::Doubted,
            _ => return None,
        })
    }
}

fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

/// The bytes of a body, written or read one field after the other.
struct Fields {
    bytes: [u8; CHECKED - 8],
    at: usize,
}

impl Default for Fields {
    fn default() -> Self {
        Fields {
            bytes: [0; CHECKED - 8],
            at: 0,
        }
    }
}

impl Fields {
    fn put(&mut self, field: &[u8]) -> &mut Self {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
        self
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.put(&number.to_le_bytes())
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.put(&number.to_le_bytes())
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn take_u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn take_u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests;
