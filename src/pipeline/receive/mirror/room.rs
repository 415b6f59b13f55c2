//! Room for an entry whose place at the destination is taken by an entry of another kind. That one
//! must be deleted before the end of the copy, or the new entry could not get its place.

use std::cell::RefCell;

use super::super::open_directories::PlaceInCopy;
use super::super::report::Report;
use super::deletion::UntoldDeletions;
use super::{Mirroring, last_names};
use crate::dest::{self, EntrySlot, Obstacle, Remover};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::Entry;
use crate::mirror::MostDeleted;

impl Mirroring {
    /// Fails if the copy may not remove the obstacle in the place of `entry`. None if there is no
    /// obstacle.
    ///
    /// # Errors
    /// `Kind::Refused`; or if the place cannot be looked at.
    pub(in super::super) fn check_room(
        &self,
        report: &Report,
        slot: &EntrySlot,
        entry: &Entry,
    ) -> Result<Option<Obstacle>> {
        let Some(obstacle) = dest::obstacle(slot, entry, &self.rules)? else {
            return Ok(None);
        };
        if obstacle == Obstacle::FullDirectory
            && let Some(why) = self.full_directory_stays(report, slot)
        {
            let message = format!(
                "is a directory with entries, and an entry of another kind does not replace it: {why}; \
                 remove the directory first"
            );
            return Err(Error::new(Kind::Refused, Side::Dest, message).at(slot.path()));
        }
        Ok(Some(obstacle))
    }

    /// Why a directory with entries may not be removed now.
    fn full_directory_stays(&self, report: &Report, slot: &EntrySlot) -> Option<&'static str> {
        let mirror = &report.context.options.mirror;
        if mirror.may_protect {
            return Some("filter rules may protect some of them");
        }
        if (report.has_failed() || report.has_source_failed()) && !self.rules.force {
            return Some("after another entry has failed, only --force removes it");
        }
        if self.noted.lock().forbidden.is_some() {
            return Some(
                "this copy deletes no more entries, for the reason that a later message gives",
            );
        }
        let backup = self.rules.backup.as_ref();
        if backup.is_some_and(|backup| backup.are_beside()) {
            return Some("backups of its entries would be inside it (see --backup-dir)");
        }
        if self.may_confuse(&slot.dir) {
            return Some(
                "the file system confuses names such as a and A, so it may belong to another entry \
                 of the source",
            );
        }
        match mirror.most {
            Some(MostDeleted::Percent(percent)) if percent < 100 => {
                Some("with --max-delete in percent, nothing is deleted before the end")
            }
            _ => None,
        }
    }

    /// Removes an entry of another kind from the place of `entry`. In a dry run, only reports it.
    ///
    /// # Errors
    /// As [`check_room`](Mirroring::check_room); or if something in its place stays.
    pub(in super::super) fn make_room(
        &self,
        report: &Report,
        (slot, entry): (&EntrySlot, &Entry),
        place: Option<PlaceInCopy>,
    ) -> Result<()> {
        let Some(obstacle) = self.check_room(report, slot, entry)? else {
            return Ok(());
        };
        let path = self.path_of(slot, place);
        // One at a time, so that the limit holds.
        let mut removed = self.made_room.lock();
        if let Some(MostDeleted::Entries(most)) = report.context.options.mirror.most
            && obstacle == Obstacle::FullDirectory
        {
            let mut count = 0;
            self.remove(report, slot, &path, true, &mut |_| count += 1)?;
            if *removed + count > most {
                let message = format!(
                    "is a directory with entries, and an entry of another kind does not replace it: \
                     to delete them would exceed --max-delete {most}; remove the directory first"
                );
                return Err(Error::new(Kind::Refused, Side::Dest, message).at(slot.path()));
            }
        }
        let told = RefCell::new(UntoldDeletions::default());
        let is_all = self.remove(report, slot, &path, self.rules.dry_run, &mut |path| {
            *removed += 1;
            told.borrow_mut().add(report, path);
        });
        told.into_inner().say(report);
        is_all
    }

    /// Removes the tree in `slot`, or only looks at it. `deleted` gets the path of each entry in it.
    fn remove(
        &self,
        report: &Report,
        slot: &EntrySlot,
        path: &[u8],
        only_looks: bool,
        deleted: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let protected = self.noted.lock().protected.clone();
        let mut first: Option<Error> = None;
        let is_all = {
            let mut remover = Remover {
                only_counts: only_looks,
                only_looks,
                protected: &protected,
                rules: &self.rules,
                is_ending: &|| report.context.is_ending(),
                began: self.began(),
                may_remove: &|| true,
                removed: &mut |gone| {
                    // The entry itself is replaced.
                    if gone.strip_suffix(b"/").unwrap_or(gone) != path {
                        deleted(gone);
                    }
                },
                failed: &mut |error| {
                    first.get_or_insert_with(|| error.clone());
                },
            };
            remover.remove_tree(slot, path.to_vec())
        };
        match (is_all, first) {
            (true, _) => Ok(()),
            (false, Some(error)) => Err(error),
            (false, None) if report.context.is_ending() => {
                let message = "is of another kind at the destination, and stays: the copy was \
                               stopped early; run the same command again";
                Err(Error::new(Kind::Refused, Side::Dest, message).at(slot.path()))
            }
            (false, None) => {
                let message = "is of another kind at the destination, and stays because another \
                               process wrote there during the copy; copy again";
                Err(Error::new(Kind::Refused, Side::Dest, message).at(slot.path()))
            }
        }
    }

    /// The path of an entry from the directory that the user typed, for messages.
    fn path_of(&self, slot: &EntrySlot, place: Option<PlaceInCopy>) -> Vec<u8> {
        let (_, mut way) = slot.dir.below();
        if !way.is_empty() {
            way.push(b'/');
        }
        let Some(place) = place else {
            return slot.name.as_bytes().to_vec();
        };
        let noted = self.noted.lock();
        let root = noted.names.get(&place.root).map_or(&b""[..], |name| name);
        let slash: &[u8] = if root.is_empty() { b"" } else { b"/" };
        let below = last_names(&way, place.depth);
        [root, slash, below, slot.name.as_bytes()].concat()
    }
}
