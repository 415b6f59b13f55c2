//! The receiver's half of a pack: it checks the whole table before it looks at any file.

use std::ops::Range;

use super::{BY_COLUMNS, LENGTH_LEN, MEMBERS_TAKEN, MemberRow, TABLE_TAKEN, TableForm, columns};
use crate::chunk::pack::NotAPack;
use crate::chunk::{Buffer, Chunk, ChunkKind, VerifiedChunk};
use crate::digest::Digest;
use crate::manifest::{Entry, EntryKind};

/// The files of a verified pack, in order.
pub struct Pack<'a> {
    data: &'a [u8],
    members: std::vec::IntoIter<FileOf>,
}

/// A file, the digest of its content if the table has it, and the range of its content.
type FileOf = (Entry, Option<Digest>, Range<usize>);

impl<'a> Pack<'a> {
    /// # Errors
    /// If the chunk is not a pack; a chunk from [`Chunk::verify_pack`] always is.
    pub fn parse(chunk: &'a VerifiedChunk) -> Result<Pack<'a>, NotAPack> {
        if chunk.place.kind != ChunkKind::Pack {
            return Err(NotAPack);
        }
        let data = chunk.data();
        let members = read_members(data)?.into_iter();
        Ok(Pack { data, members })
    }
}

impl<'a> Iterator for Pack<'a> {
    type Item = (Entry, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (entry, _, range) = self.members.next()?;
        Some((entry, &self.data[range]))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.members.size_hint()
    }
}

impl ExactSizeIterator for Pack<'_> {}

impl Chunk {
    /// Recomputes the digests of a pack's table and of all its files.
    ///
    /// # Errors
    /// Returns the buffer if a digest does not match or the chunk is not a pack.
    pub fn verify_pack(self, digest: Digest) -> Result<VerifiedChunk, Buffer> {
        let right = self.place.kind == ChunkKind::Pack && is_whole(self.buffer.data(), &digest);
        self.verified(digest, right)
    }
}

fn is_whole(data: &[u8], digest: &Digest) -> bool {
    let Ok((_, table, form)) = split(data) else {
        return false;
    };
    if form == TableForm::Records && blake3::hash(table).as_bytes() != digest {
        return false;
    }
    let Ok(members) = read_members(data) else {
        return false;
    };
    let found = members
        .iter()
        .map(|(_, _, range)| *blake3::hash(&data[range.clone()]).as_bytes());
    match form {
        TableForm::Records => found
            .zip(&members)
            .all(|(found, (_, told, _))| Some(found) == *told),
        TableForm::Columns => {
            let found: Vec<Digest> = found.collect();
            columns::digest(table, found.iter()) == *digest
        }
    }
}

/// Splits a pack into contents and table.
pub(super) fn split(data: &[u8]) -> Result<(&[u8], &[u8], TableForm), NotAPack> {
    let (rest, length) = data.split_last_chunk::<LENGTH_LEN>().ok_or(NotAPack)?;
    let length = u32::from_le_bytes(*length);
    let form = match length & BY_COLUMNS {
        0 => TableForm::Records,
        _ => TableForm::Columns,
    };
    let length = (length & !BY_COLUMNS) as usize;
    if length > TABLE_TAKEN {
        return Err(NotAPack);
    }
    let contents = rest.len().checked_sub(length).ok_or(NotAPack)?;
    let (contents, table) = rest.split_at(contents);
    Ok((contents, table, form))
}

/// Reads every file with its digest, if the table has it, and the range of its content. The
/// lengths must add up to the length of the contents.
fn read_members(data: &[u8]) -> Result<Vec<FileOf>, NotAPack> {
    let (contents, table, form) = split(data)?;
    let listed = match form {
        TableForm::Records => read_records(table)?,
        TableForm::Columns => {
            let entries = columns::decode(table)?;
            entries.into_iter().map(|entry| (entry, None)).collect()
        }
    };
    let mut members = Vec::with_capacity(listed.len());
    let mut start = 0;
    for (entry, digest) in listed {
        let len = usize::try_from(entry.size).map_err(|_| NotAPack)?;
        let end = usize::checked_add(start, len).ok_or(NotAPack)?;
        if entry.kind != EntryKind::File || end > contents.len() {
            return Err(NotAPack);
        }
        members.push((entry, digest, start..end));
        start = end;
    }
    match start == contents.len() {
        true => Ok(members),
        false => Err(NotAPack),
    }
}

/// Reads the records of a table. Each file must be as long as its record says.
fn read_records(table: &[u8]) -> Result<Vec<(Entry, Option<Digest>)>, NotAPack> {
    let (count, mut rest) = postcard::take_from_bytes::<usize>(table).map_err(|_| NotAPack)?;
    if count > MEMBERS_TAKEN {
        return Err(NotAPack);
    }
    let mut records = Vec::with_capacity(count);
    for _ in 0..count {
        let (member, after) = postcard::take_from_bytes::<MemberRow>(rest).map_err(|_| NotAPack)?;
        rest = after;
        if member.entry.size != u64::from(member.len) {
            return Err(NotAPack);
        }
        records.push((member.entry, Some(member.digest)));
    }
    match rest.is_empty() {
        true => Ok(records),
        false => Err(NotAPack),
    }
}
