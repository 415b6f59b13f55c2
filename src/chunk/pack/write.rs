//! The sender's half of a pack: it takes the contents in the order of reading, then writes the
//! table.

use super::{
    BY_COLUMNS, FRAME, MEMBERS_MAX, MemberRow, RECORD_MAX, SPARE, TABLE_MAX, TableForm, columns,
};
use crate::chunk::{Buffer, CHUNK_SIZE, LARGE_PACK, SMALL_FILE_MAX};
use crate::digest::Digest;
use crate::manifest::Entry;

/// Writes a pack into a buffer. For each file, call [`room`](PackWriter::room), read the content
/// into it and call [`push`](PackWriter::push). Content that is not pushed leaves no trace.
pub struct PackWriter<'a> {
    buffer: &'a mut Buffer,
    limit: usize,
    /// How many ordinary packs this one may hold.
    packs: usize,
    contents: usize,
    members: usize,
    /// The records, encoded.
    records: Vec<u8>,
    /// Members and their digests for a table in columns, which are written at the end.
    by_columns: Option<(Vec<Entry>, Vec<Digest>)>,
}

impl<'a> PackWriter<'a> {
    pub fn new(buffer: &'a mut Buffer, form: TableForm) -> Self {
        let limit = buffer.capacity() - SPARE;
        let packs = (buffer.capacity() / CHUNK_SIZE).clamp(1, LARGE_PACK);
        PackWriter {
            buffer,
            limit,
            packs,
            contents: 0,
            members: 0,
            records: Vec::new(),
            by_columns: (form == TableForm::Columns).then(Default::default),
        }
    }

    /// The room for `entry.size` bytes of content; None if they or the entry do not fit.
    pub fn room(&mut self, entry: &Entry) -> Option<&mut [u8]> {
        let size = usize::try_from(entry.size.min(SMALL_FILE_MAX + 1)).ok()?;
        let fits = entry.size <= SMALL_FILE_MAX && size <= self.left(entry)?;
        fits.then(|| &mut self.buffer.room()[self.contents..self.contents + size])
    }

    /// The room for content of unknown size: all that is left, and [`SMALL_FILE_MAX`] at most.
    /// None if the entry does not fit.
    pub fn room_left(&mut self, entry: &Entry) -> Option<&mut [u8]> {
        let size = self.left(entry)?.min(SMALL_FILE_MAX as usize);
        Some(&mut self.buffer.room()[self.contents..self.contents + size])
    }

    /// Bytes of content that fit together with this entry.
    fn left(&self, entry: &Entry) -> Option<usize> {
        let table = self.records.len() + record_bound(entry) + FRAME;
        let fits = self.members < self.packs * MEMBERS_MAX && table <= self.packs * TABLE_MAX;
        let left = self.limit.checked_sub(self.contents + table)?;
        fits.then_some(left)
    }

    /// Adds the file whose content was just read into its room.
    pub fn push(&mut self, entry: Entry) -> Digest {
        let end = self.contents + entry.size as usize;
        let content = &self.buffer.room()[self.contents..end];
        let digest = *blake3::hash(content).as_bytes();
        let member = MemberRow {
            len: entry.size as u32,
            digest,
            entry,
        };
        self.records = postcard::to_extend(&member, std::mem::take(&mut self.records))
            .expect("every length is known, and a vector grows");
        self.contents = end;
        self.members += 1;
        if let Some((entries, digests)) = &mut self.by_columns {
            entries.push(member.entry);
            digests.push(digest);
        }
        digest
    }

    /// Writes the table. Returns the buffer's length and the digest of the pack.
    pub fn finish(self) -> (u32, Digest) {
        let (mut table, length, digest) = self.columns().unwrap_or_else(|| self.table());
        table.extend_from_slice(&length.to_le_bytes());
        let end = self.contents + table.len();
        self.buffer.room()[self.contents..end].copy_from_slice(&table);
        self.buffer.set_len(end);
        (end as u32, digest)
    }

    /// Returns a table of records with its length field, and the digest of the pack.
    fn table(&self) -> (Vec<u8>, u32, Digest) {
        let mut table = postcard::to_extend(&self.members, Vec::new())
            .expect("a number, into a vector that grows");
        table.extend_from_slice(&self.records);
        let digest = *blake3::hash(&table).as_bytes();
        let length = table.len() as u32;
        (table, length, digest)
    }

    /// The same in columns, if requested and no longer than the records, for which there is room.
    fn columns(&self) -> Option<(Vec<u8>, u32, Digest)> {
        let (entries, digests) = self.by_columns.as_ref()?;
        let table = columns::encode(entries)?;
        if table.len() > self.records.len() {
            return None;
        }
        let digest = columns::digest(&table, digests.iter());
        let length = table.len() as u32 | BY_COLUMNS;
        Some((table, length, digest))
    }
}

/// The most bytes that a record takes.
pub(super) fn record_bound(entry: &Entry) -> usize {
    let extensions = entry.extensions.iter();
    RECORD_MAX
        + entry.name.as_bytes().len()
        + entry.user.len()
        + entry.group.len()
        + extensions.map(|one| one.bytes.len() + 16).sum::<usize>()
}
