//! The receiver's half: the table is checked whole before a file of it is looked at.

use std::ops::Range;

use super::{LENGTH_LEN, MEMBERS_MAX, Member, TABLE_MAX};
use crate::chunk::{Buffer, Chunk, ChunkKind, VerifiedChunk};
use crate::digest::Digest;
use crate::manifest::{Entry, EntryKind};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a pack")]
pub struct NotAPack;

/// The files of a verified pack, in order.
pub struct Pack<'a> {
    data: &'a [u8],
    members: std::vec::IntoIter<(Member, Range<usize>)>,
}

impl<'a> Pack<'a> {
    /// # Errors
    /// Where the chunk is none; one from [`Chunk::verify_pack`] always is.
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
        let (member, range) = self.members.next()?;
        Some((member.entry, &self.data[range]))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.members.size_hint()
    }
}

impl ExactSizeIterator for Pack<'_> {}

impl Chunk {
    /// Recomputes the digest of a pack's table and those of all its files. The buffer comes back
    /// where one does not match or where it is no pack.
    pub fn verify_pack(self, digest: Digest) -> Result<VerifiedChunk, Buffer> {
        let good = self.place.kind == ChunkKind::Pack && is_whole(self.buffer.data(), &digest);
        if good {
            Ok(VerifiedChunk {
                place: self.place,
                digest,
                buffer: self.buffer,
            })
        } else {
            Err(self.buffer)
        }
    }
}

fn is_whole(data: &[u8], digest: &Digest) -> bool {
    let Ok((_, table)) = split(data) else {
        return false;
    };
    if blake3::hash(table).as_bytes() != digest {
        return false;
    }
    let Ok(members) = read_members(data) else {
        return false;
    };
    members
        .iter()
        .all(|(member, range)| *blake3::hash(&data[range.clone()]).as_bytes() == member.digest)
}

/// Contents and table.
pub(super) fn split(data: &[u8]) -> Result<(&[u8], &[u8]), NotAPack> {
    let (rest, length) = data.split_last_chunk::<LENGTH_LEN>().ok_or(NotAPack)?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > TABLE_MAX {
        return Err(NotAPack);
    }
    let contents = rest.len().checked_sub(length).ok_or(NotAPack)?;
    Ok(rest.split_at(contents))
}

/// Every record with the range of its content. Lengths must add up, and nothing may be left over.
fn read_members(data: &[u8]) -> Result<Vec<(Member, Range<usize>)>, NotAPack> {
    let (contents, table) = split(data)?;
    let (count, mut rest) = postcard::take_from_bytes::<usize>(table).map_err(|_| NotAPack)?;
    if count > MEMBERS_MAX {
        return Err(NotAPack);
    }
    let mut members = Vec::with_capacity(count);
    let mut start = 0;
    for _ in 0..count {
        let (member, after) = postcard::take_from_bytes::<Member>(rest).map_err(|_| NotAPack)?;
        rest = after;
        let end = start + member.len as usize;
        let sound = member.entry.kind == EntryKind::File
            && member.entry.size == u64::from(member.len)
            && end <= contents.len();
        if !sound {
            return Err(NotAPack);
        }
        members.push((member, start..end));
        start = end;
    }
    if start == contents.len() && rest.is_empty() {
        Ok(members)
    } else {
        Err(NotAPack)
    }
}
