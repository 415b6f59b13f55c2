//! The existing content that a new version of a file is compared with: rsync's "basis file".

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::read_ahead::ReadAhead;
use super::readback::{NOT_ON_DISK, Readback};
use super::{EntrySlot, existing};
use crate::cache::{self, Before};

/// Existing content, read by several threads.
pub struct Basis {
    content: BasisContent,
    /// Bytes.
    len: u64,
    /// It is the file that is written, so equal ranges are in their place.
    is_target: bool,
    /// The journal records equal ranges.
    is_recorded: bool,
    /// For a clone: the file that it was cloned from.
    replaced: Option<Box<Basis>>,
    /// Set if pages that were not in the page cache before do not stay there.
    before: Option<Before>,
}

enum BasisContent {
    File(File),
    /// Equal ranges are not written again, so they must be on the disk.
    OnDisk(Readback),
    /// The same, if this copy writes only ranges that were compared before.
    Ahead(ReadAhead),
}

impl Basis {
    /// The file that the new version replaces. None if there is none, or if it cannot be read.
    pub(super) fn replaced(slot: &EntrySlot, drops_pages: bool) -> Option<Basis> {
        if slot.fresh {
            return None;
        }
        let opened = existing::open_checked(slot, |cause| slot.unreadable(cause));
        // Without it, the file is sent whole.
        let (file, stat) = opened.ok()??;
        Some(Basis::other(file, stat.st_size as u64, drops_pages))
    }

    /// Another file of `len` bytes that probably has the new version's content.
    pub fn other(file: File, len: u64, drops_pages: bool) -> Basis {
        Basis {
            is_recorded: true,
            ..Basis::equal(file, len, drops_pages)
        }
    }

    /// The file of `len` bytes that stays if the new version equals it.
    pub(super) fn equal(file: File, len: u64, drops_pages: bool) -> Basis {
        Basis {
            content: BasisContent::File(file),
            len,
            is_target: false,
            is_recorded: false,
            replaced: None,
            before: drops_pages.then(Before::default),
        }
    }

    /// The file that is written, into which `len` bytes of the version `old` were cloned. A clone has
    /// only bytes that are on the disk.
    pub(super) fn cloned(file: File, len: u64, old: Basis, drops_pages: bool) -> Basis {
        Basis {
            is_target: true,
            replaced: Some(Box::new(old)),
            ..Basis::equal(file, len, drops_pages)
        }
    }

    /// The file or device that is written in place, whose first `len` bytes are those of the old
    /// version. A readback never reads from the page cache.
    pub(super) fn target(readback: Readback, len: u64) -> Basis {
        Basis::on_disk(BasisContent::Ahead(ReadAhead::new(readback, len)), len)
    }

    /// The partial file of `len` bytes that an earlier session has written in part.
    pub(super) fn written(readback: Readback, len: u64) -> Basis {
        Basis {
            is_recorded: true,
            ..Basis::on_disk(BasisContent::OnDisk(readback), len)
        }
    }

    fn on_disk(content: BasisContent, len: u64) -> Basis {
        Basis {
            content,
            len,
            is_target: true,
            is_recorded: false,
            replaced: None,
            before: None,
        }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if ranges that equal the new version are in their place already.
    pub fn is_target(&self) -> bool {
        self.is_target
    }

    /// True if the journal records equal ranges. Otherwise a later run compares them once more,
    /// which costs no more than to verify them, and the journal of a large file stays short.
    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// The existing content where all of it can be read during the copy, for content that has moved.
    /// None if it is overwritten.
    pub fn unwritten(&self) -> Option<&Basis> {
        match &self.replaced {
            Some(replaced) => Some(replaced),
            None => Some(self).filter(|_| !self.is_target),
        }
    }

    /// The file itself, to clone it.
    pub(super) fn file(&self) -> Option<&File> {
        match &self.content {
            BasisContent::File(file) => Some(file),
            BasisContent::OnDisk(_) | BasisContent::Ahead(_) => None,
        }
    }

    /// Reads the existing bytes from `offset` on. Returns how many of `into` there are: fewer at the
    /// end of the old version.
    ///
    /// # Errors
    /// If the disk does not give them.
    pub fn read(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let there = self.len.saturating_sub(offset).min(into.len() as u64) as usize;
        let (into, range) = (&mut into[..there], offset..offset + there as u64);
        match &self.content {
            BasisContent::File(file) => {
                let was_cached = |before: &Before| before.was_cached(file, offset, self.len);
                let drops_pages = self.before.as_ref().is_some_and(|it| !was_cached(it));
                // It may have become shorter, which is as if it differed.
                file.read_exact_at(into, offset)?;
                if drops_pages {
                    cache::drop_read(file, range);
                }
            }
            BasisContent::OnDisk(readback) => {
                if !readback.prepare(&range) {
                    return Err(io::Error::other(NOT_ON_DISK));
                }
                readback.read(into, offset)?;
            }
            BasisContent::Ahead(ahead) => ahead.read(into, offset)?,
        }
        Ok(there)
    }
}
