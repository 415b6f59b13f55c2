//! The sender's half: contents as they are read, then the table.

use super::{FRAME, MEMBERS_MAX, Member, RECORD_MAX, SPARE, TABLE_MAX};
use crate::chunk::{Buffer, SMALL_FILE_MAX};
use crate::digest::Digest;
use crate::manifest::Entry;

/// Writes a pack into a buffer: [`room`](PackWriter::room), read the content into it,
/// [`push`](PackWriter::push), and so on; what was not pushed leaves no trace.
pub struct PackWriter<'a> {
    buffer: &'a mut Buffer,
    limit: usize,
    contents: usize,
    members: usize,
    /// The records, encoded.
    records: Vec<u8>,
}

impl<'a> PackWriter<'a> {
    pub fn new(buffer: &'a mut Buffer) -> Self {
        let limit = buffer.capacity() - SPARE;
        PackWriter {
            buffer,
            limit,
            contents: 0,
            members: 0,
            records: Vec::new(),
        }
    }

    /// Where `entry.size` bytes of content are to go; None if they or the entry do not fit.
    pub fn room(&mut self, entry: &Entry) -> Option<&mut [u8]> {
        let size = usize::try_from(entry.size.min(SMALL_FILE_MAX + 1)).ok()?;
        let fits = entry.size <= SMALL_FILE_MAX && size <= self.left(entry)?;
        fits.then(|| &mut self.buffer.room()[self.contents..self.contents + size])
    }

    /// Where content goes whose size nobody knows before it is read: as much as there is room for,
    /// and [`SMALL_FILE_MAX`] at most. None if the entry does not fit.
    pub fn room_left(&mut self, entry: &Entry) -> Option<&mut [u8]> {
        let size = self.left(entry)?.min(SMALL_FILE_MAX as usize);
        Some(&mut self.buffer.room()[self.contents..self.contents + size])
    }

    /// Bytes of content that there is room for, if this entry comes with them.
    fn left(&self, entry: &Entry) -> Option<usize> {
        let table = self.records.len() + record_bound(entry) + FRAME;
        let fits = self.members < MEMBERS_MAX && table <= TABLE_MAX;
        let left = self.limit.checked_sub(self.contents + table)?;
        fits.then_some(left)
    }

    /// Takes up the file whose content was just read into its room.
    pub fn push(&mut self, entry: Entry) -> Digest {
        let end = self.contents + entry.size as usize;
        let content = &self.buffer.room()[self.contents..end];
        let digest = *blake3::hash(content).as_bytes();
        let member = Member {
            len: entry.size as u32,
            digest,
            entry,
        };
        self.records = postcard::to_extend(&member, std::mem::take(&mut self.records))
            .expect("every length is known, and a vector grows");
        self.contents = end;
        self.members += 1;
        digest
    }

    /// Writes the table. The buffer's length, and the digest of the table.
    pub fn finish(self) -> (u32, Digest) {
        let mut table = postcard::to_extend(&self.members, Vec::new())
            .expect("a number, into a vector that grows");
        table.extend_from_slice(&self.records);
        let digest = *blake3::hash(&table).as_bytes();
        let length = table.len() as u32;
        table.extend_from_slice(&length.to_le_bytes());
        let end = self.contents + table.len();
        self.buffer.room()[self.contents..end].copy_from_slice(&table);
        self.buffer.set_len(end);
        (end as u32, digest)
    }
}

/// Bytes that a record takes at most.
pub(super) fn record_bound(entry: &Entry) -> usize {
    let extensions = entry.extensions.iter();
    RECORD_MAX
        + entry.name.as_bytes().len()
        + entry.user.len()
        + entry.group.len()
        + extensions.map(|one| one.bytes.len() + 16).sum::<usize>()
}
