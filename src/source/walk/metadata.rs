//! The metadata of entries: what of it is kept, and what could not be read.

use rustix::fs::{FileType, Stat};

use super::spot::WalkSpot;
use crate::dir::attributes::OwnerNames;
use crate::keep::Keep;
use crate::manifest::{EntryId, EntryKind, SpecialFile};
use crate::source::attributes;
use crate::source::found::FoundFile;

pub(super) struct WalkMetadata {
    keep: Keep,
    compares_modes: bool,
    owner_names: OwnerNames,
    /// Number of entries with extended attributes that could not be read.
    unread_attributes: u64,
}

impl WalkMetadata {
    /// `compares_modes`: a mode is what the destination would get.
    pub(super) fn new(keep: Keep, compares_modes: bool) -> WalkMetadata {
        WalkMetadata {
            keep,
            compares_modes,
            owner_names: OwnerNames::default(),
            unread_attributes: 0,
        }
    }

    pub(super) fn unread_attributes(&self) -> u64 {
        self.unread_attributes
    }

    /// True if the destination gets a special file of this type.
    pub(super) fn takes_special(&self, file_type: FileType) -> bool {
        SpecialFile::of(file_type).is_some_and(|special| match special.is_device() {
            true => self.keep.devices,
            false => self.keep.specials,
        })
    }

    /// An entry with all metadata that is kept.
    pub(super) fn found(
        &mut self,
        id: EntryId,
        spot: WalkSpot,
        kind: EntryKind,
        stat: &Stat,
    ) -> FoundFile {
        let keep = self.keep;
        let mut found = spot.into_found(id, kind, stat, keep);
        // Of a held entry the caller does that.
        if self.compares_modes && id != 0 {
            found.take_list_from_mode();
        }
        if keep.has_names() {
            self.owner_names.name(&mut found.entry, &keep);
        }
        if keep.has_attributes() {
            let FoundFile {
                entry,
                dir,
                name,
                through_link,
                ..
            } = &mut found;
            let is_whole = attributes::add(entry, (dir, name), *through_link, &keep);
            self.unread_attributes += u64::from(!is_whole);
            found.lacks_attributes = !is_whole;
        }
        found
    }
}
