//! The directories of the destination that have entries to ask the sender about.

use std::collections::HashSet;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{FileType, Timestamps, fstat, futimens};

use super::super::report::Report;
use super::deletion::DeletionPass;
use crate::dest::{self, Directory, EntrySlot, is_own_name};
use crate::dir::{Dir, ReadName};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{EntryId, Name, file_type};
use crate::mirror::DifferingNames;
use crate::pipeline::context::Context;
use crate::wire::message::OwnNames;

/// About how many bytes of memory directories to ask about may take.
pub(super) const NOTED_BYTES_MAX: usize = 24 << 20;

/// About how many bytes a directory takes that only the destination has, besides its paths.
const EXTRA_WEIGHT: usize = 1024;

/// A directory of the copy with entries to ask about.
pub(super) struct NotedDirectory {
    /// The operand's entry number.
    pub root: EntryId,
    /// The names from the operand down to the directory, each followed by a slash.
    pub below: Box<[u8]>,
    /// The same from the directory that the user typed, for messages.
    pub way: Box<[u8]>,
    pub confuses: bool,
    pub differ: DifferingNames,
    /// Device and inode.
    pub identity: (u64, u64),
}

/// An open directory with entries to ask about.
pub(super) struct MirrorPlace {
    /// With the permissions that are needed to delete.
    directory: Directory,
    /// Its times, which are restored after entries were deleted.
    times: Option<Timestamps>,
    /// Something was deleted in it.
    is_less: AtomicBool,
    /// With `--fsync`: where an error of the sync is reported.
    syncs: Option<Arc<Context>>,
    root: EntryId,
    pub below: Vec<u8>,
    pub way: Vec<u8>,
    confuses: bool,
    differ: DifferingNames,
    /// Its number among the directories that only the destination has.
    pub extra: Option<usize>,
    /// Those above it, with the permissions to go through them.
    _above: Vec<Directory>,
}

impl MirrorPlace {
    pub(super) fn dir(&self) -> &Arc<Dir> {
        self.directory.dir()
    }

    /// Opens a directory of the copy below the operand's, which is `root`. None if another directory
    /// has taken its place.
    ///
    /// # Errors
    /// If it, or one above it, is gone or cannot be opened.
    pub(super) fn open(
        noted: &NotedDirectory,
        root: &Arc<Dir>,
        report: &Report,
        pass: &DeletionPass,
    ) -> Result<Option<MirrorPlace>> {
        let rules = &pass.rules;
        let names = noted.below.split(|byte| *byte == b'/');
        let mut above = Vec::new();
        let mut directory = match rules.dry_run {
            true => Directory::look(root.clone()),
            false => Directory::enter(root.clone())?,
        };
        for name in names.filter(|name| !name.is_empty()) {
            let Ok(name) = Name::try_from(name.to_vec()) else {
                return Ok(None);
            };
            let slot = EntrySlot::new(directory.dir().clone(), name);
            above.push(directory);
            directory = dest::enter_to_delete(&slot, rules.dry_run)?;
        }
        // Another process has replaced it.
        if directory.dir().identity() != noted.identity {
            return Ok(None);
        }
        // Permissions are taken back from the inside out.
        above.reverse();
        let stat = directory.dir().handle().and_then(|dir| Ok(fstat(&*dir)?));
        let stat = stat.map_err(|cause| {
            let path = directory.dir().path();
            Error::io(
                Kind::Write,
                Side::Dest,
                path,
                "cannot read its status",
                cause,
            )
        })?;
        let keeps_times = rules.keep.times && !rules.keep.omit_dir_times;
        Ok(Some(MirrorPlace {
            is_less: AtomicBool::new(false),
            times: (pass.changes() && keeps_times).then(|| dest::times_in(&stat)),
            syncs: (pass.changes() && rules.fsync).then(|| report.context.clone()),
            directory,
            root: noted.root,
            below: noted.below.to_vec(),
            way: noted.way.to_vec(),
            confuses: noted.confuses,
            differ: noted.differ.clone(),
            extra: None,
            _above: above,
        }))
    }

    /// A directory in this one that only the destination has. `extra` is its number among those.
    pub(super) fn inner(
        &self,
        name: &Name,
        directory: Directory,
        path: &[u8],
        extra: usize,
    ) -> MirrorPlace {
        MirrorPlace {
            directory,
            is_less: AtomicBool::new(false),
            times: None,
            syncs: None,
            root: self.root,
            below: [&self.below, name.as_bytes(), b"/"].concat(),
            way: path.to_vec(),
            confuses: self.confuses,
            differ: DifferingNames::all(),
            extra: Some(extra),
            _above: Vec::new(),
        }
    }

    /// Something was deleted in it.
    pub(super) fn has_lost(&self) {
        self.is_less.store(true, Relaxed);
    }

    /// A question about no entry yet.
    pub(super) fn question(&self) -> OwnNames {
        OwnNames {
            root: self.root,
            below: self.below.clone(),
            is_extra: self.extra.is_some(),
            confuses: self.confuses,
            entries: Vec::new(),
        }
    }

    /// The name of an entry to ask about, and whether it is a directory.
    pub(super) fn candidate(&self, found: ReadName) -> Option<(Name, bool)> {
        // Those of other copies stay, except in a directory that only the destination has.
        let is_own = match self.confuses {
            true => is_own_name(&found.name.to_ascii_lowercase()),
            false => is_own_name(&found.name),
        };
        let is_of_a_copy = is_own && self.extra.is_none();
        if is_of_a_copy || !self.differ.may_have(&found.name) {
            return None;
        }
        let name = Name::try_from(found.name).ok()?;
        let is_directory = match found.file_type {
            FileType::Unknown => {
                let stat = self.dir().stat(name.as_os_str()).ok()?;
                file_type(&stat) == FileType::Directory
            }
            known => known == FileType::Directory,
        };
        Some((name, is_directory))
    }
}

/// The last entry was deleted when nobody asks about the directory any more.
impl Drop for MirrorPlace {
    fn drop(&mut self) {
        if !self.is_less.load(Relaxed) {
            return;
        }
        if let (Some(times), Ok(dir)) = (&self.times, self.dir().handle()) {
            // If this fails, only a time is wrong.
            let _ = futimens(&*dir, times);
        }
        // After an early end, control may take no more messages.
        if let Some(context) = &self.syncs
            && let Err(error) = dest::sync_directory(self.dir())
            && !context.is_ending()
        {
            context.report_fault(&error, 0, 0);
        }
    }
}

/// Directories that only the destination has, and of which something may stay. They are removed at
/// the end, if nothing is left in them.
#[derive(Default)]
pub(super) struct ExtraDirectories {
    /// Those below another come after it.
    directories: Vec<ExtraDirectory>,
    /// About how many bytes of memory they take.
    bytes: usize,
}

struct ExtraDirectory {
    slot: EntrySlot,
    path: Vec<u8>,
    /// The directory that contains it.
    above: Arc<MirrorPlace>,
    /// Something in it stays.
    holds: bool,
}

impl ExtraDirectories {
    /// True if there is room for one more, with this path.
    pub(super) fn has_room(&self, path: &[u8]) -> bool {
        self.bytes + weight(path) <= NOTED_BYTES_MAX
    }

    /// Adds a directory, and returns it as a place with entries to ask about.
    pub(super) fn add(
        &mut self,
        above: &Arc<MirrorPlace>,
        slot: EntrySlot,
        mut path: Vec<u8>,
        opened: Directory,
    ) -> MirrorPlace {
        self.bytes += weight(&path);
        path.push(b'/');
        let place = above.inner(&slot.name, opened, &path, self.directories.len());
        self.directories.push(ExtraDirectory {
            slot,
            path,
            above: above.clone(),
            holds: false,
        });
        place
    }

    /// Something in `place` stays.
    pub(super) fn holds(&mut self, place: &MirrorPlace) {
        if let Some(extra) = place.extra {
            self.directories[extra].holds = true;
        }
    }

    /// Removes the directories in which nothing stays, and forgets all.
    pub(super) fn settle(&mut self, report: &Report, pass: &mut DeletionPass) {
        let mut holding: HashSet<usize> = HashSet::new();
        let directories = take(self).directories;
        for (nth, extra) in directories.into_iter().enumerate().rev() {
            let mut stays = extra.holds || holding.remove(&nth);
            if !stays && pass.changes() {
                pass.count.stops();
                if report.context.is_ending() || pass.count.was_limited {
                    return;
                }
                match dest::remove_if_empty(&extra.slot) {
                    Ok(is_removed) => stays = !is_removed,
                    Err(error) => {
                        stays = true;
                        report.context.report_fault(&error, 0, 0);
                    }
                }
            }
            if stays {
                holding.extend(extra.above.extra);
            } else {
                extra.above.has_lost();
                pass.removed(report, &extra.path, extra.above.extra.is_some());
            }
        }
    }
}

fn weight(path: &[u8]) -> usize {
    EXTRA_WEIGHT + 4 * path.len()
}
