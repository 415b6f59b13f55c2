//! Digests of files whose further names (hard links) are not in place yet, beyond those that memory
//! holds: in a temporary file. Callers may be slowed down by the disk.

use std::io;

use crate::digest::Digest;
use crate::disk_table::{DiskTable, Key, temporary_file};
use crate::error::reason_of;
use crate::manifest::EntryId;

pub(super) enum LinkStep {
    /// Keeps the digest of a file.
    Keep(EntryId, Digest),
    /// Looks up the digest of a file that has a further name at this path.
    Find(EntryId, Vec<u8>),
}

#[derive(Default)]
pub(super) struct MoreLinks(Option<DiskTable>);

impl LinkStep {
    /// Approximate bytes of memory.
    pub(super) fn weight(&self) -> usize {
        match self {
            LinkStep::Keep(..) => size_of::<LinkStep>(),
            LinkStep::Find(_, path) => size_of::<LinkStep>() + path.len(),
        }
    }
}

impl MoreLinks {
    /// Returns a further name with its digest, if that was kept.
    ///
    /// # Errors
    /// If the temporary file cannot be made, read or written, or has 67 million digests. The text
    /// says so, since the user knows only of the list.
    pub(super) fn take(&mut self, step: LinkStep) -> io::Result<Option<(Vec<u8>, Digest)>> {
        self.try_take(step).map_err(|cause| {
            let reason = reason_of(&cause);
            let what = "a temporary file for hard links, in $TMPDIR, /var/tmp or /tmp";
            io::Error::new(cause.kind(), format!("{what}: {reason}"))
        })
    }

    fn try_take(&mut self, step: LinkStep) -> io::Result<Option<(Vec<u8>, Digest)>> {
        match step {
            LinkStep::Keep(first, digest) => {
                let table = match &mut self.0 {
                    Some(table) => table,
                    none => none.insert(DiskTable::new(Box::new(temporary_file))?),
                };
                table.put(key(first), digest)?;
                Ok(None)
            }
            LinkStep::Find(first, path) => {
                let Some(table) = &self.0 else {
                    return Ok(None);
                };
                Ok(table.get(key(first))?.map(|digest| (path, digest)))
            }
        }
    }
}

fn key(first: EntryId) -> Key {
    // The second half is not that of a mark.
    [first, 1]
}
