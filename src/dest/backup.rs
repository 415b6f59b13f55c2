//! Backups (`--backup`): the old version of a file gets another name before a new version replaces
//! it, or before it is deleted.
//!
//! Promises:
//! - The old version keeps its final name until the new one takes it, except where the system allows
//!   no hard link to it.
//! - If no backup can be made, the old version stays, and the entry fails.
//! - An existing backup is replaced, but never a directory. If the file is then not replaced after
//!   all, the existing backup gets its name back.
//!
//! A backup on another file system is a copy, which is durable before the old version is replaced.
//! A file that is written in place has no backup: after an interruption, the next run would back up
//! the half-written version.

mod copy;

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{
    AtFlags, FileType, Mode, RenameFlags, Stat, linkat, mkdirat, renameat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;

use self::copy::failed;
use super::own_names::random_name;
use super::snapshot_marks::{closed, holds_snapshots};
use super::temporary::same_file;
use super::{EntrySlot, Rules, is_flag_unknown, sync_directory};
use crate::backup::BackupPlace;
use crate::dir::{Dir, is_reserved};
use crate::error::{Error, Kind, Result, Side, reason_of};
use crate::manifest::{NAME_MAX, Name, file_type};

/// Most names of this copy that look like those of backups, in 5 MB; beyond this no backup is made
/// beside its file.
const TAKEN_MAX: usize = (1 << 18) / 8 * 7;

/// Most backups of this copy that are noted, in 20 MB; beyond this no more are made beside their files.
/// Also the most files of earlier sessions that are noted, in 18 MB.
const MADE_MAX: usize = (1 << 20) / 8 * 7;

/// Most directories above a backup directory that are looked at.
pub(super) const ABOVE_MAX: usize = 1024;

const IS_BACKUP_DIRECTORY: &str = "is the backup directory of this copy: exclude it at the source, or \
                                   choose another --backup-dir";

const NO_PLACE: &str = "is neither replaced nor deleted, since fastcp cannot make its backup: \
                        --backup-dir needs the path from the destination to the entry's directory, \
                        and fastcp cannot find it; write -b instead, which keeps backups beside \
                        their files";

/// The mode of a directory below the backup directory, until it gets that of its model.
const FIRST_MODE: u32 = 0o700;

/// Where this copy makes its backups, and which it must not make.
pub struct Backups {
    place: BackupPlace,
    state: Mutex<BackupState>,
    hashing: RandomState,
    /// A claim has ended.
    unclaimed: Condvar,
}

#[derive(Default)]
struct BackupState {
    /// Set when the destination is known.
    landed: Option<Arc<Landed>>,
    /// The backup directory, once it is open.
    root: Option<Arc<Dir>>,
    /// Device and inode of the directories above it.
    above: HashSet<(u64, u64)>,
    /// The directory of the last backup, by that of its file.
    last: Option<((u64, u64), Arc<Dir>)>,
    /// Names of this copy that look like those of backups: hashes of directory and name. Two with the
    /// same hash are as rare as damage that no checksum shows.
    taken: HashSet<u64>,
    /// Backups that this copy made, in the same form.
    made: HashSet<u64>,
    /// Earlier sessions of this copy may have made backups.
    has_earlier: bool,
    /// Files that earlier sessions of this copy placed, in the same form, and their inodes.
    placed: HashMap<u64, u64>,
    /// Those beside their files that are being made now, or whose new version has no name yet.
    claimed: HashSet<u64>,
}

/// The name of a backup beside its file, until the new version has its own name: an entry of this copy
/// with the name of the backup waits so long, or one would replace the other.
struct NameOfBackup {
    backups: Arc<Backups>,
    key: u64,
}

/// Where the copy lands, and its backups go.
pub(super) struct Landed {
    /// The backup directory.
    pub path: PathBuf,
    /// Makes it if it is missing, and opens it.
    pub make: Box<dyn Fn() -> Result<Arc<Dir>> + Send + Sync>,
    /// By device and inode of a directory that was opened by its path.
    pub ways: HashMap<(u64, u64), Vec<DestinationWay>>,
}

/// A path below an open directory, and the path below the destination that it stands for, without a
/// slash at the end.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct DestinationWay {
    pub from: Vec<u8>,
    pub below: Vec<u8>,
}

/// An old version that has its backup. [`settle`] must follow.
#[must_use]
pub(super) struct KeptOld<'a> {
    slot: &'a EntrySlot,
    backups: Arc<Backups>,
    backup: EntrySlot,
    /// None in the backup directory.
    claim: Option<NameOfBackup>,
    older: OlderBackup,
    /// The old version was moved, since it could not be linked.
    is_moved: bool,
}

/// The backup of an earlier run, under a name of fastcp's own until the new version has its name.
struct OlderBackup(Option<OsString>);

/// What a directory at the destination is for the backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupPart {
    /// Nothing.
    None,
    /// It contains the backup directory.
    Above,
    /// It is the backup directory.
    Root,
}

impl std::fmt::Debug for Backups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Backups").field(&self.place).finish()
    }
}

impl Backups {
    fn key_of(&self, slot: &EntrySlot) -> u64 {
        let place = (slot.dir.identity(), slot.name.as_bytes());
        self.hashing.hash_one(place)
    }

    pub fn new(place: BackupPlace) -> Arc<Backups> {
        Arc::new(Backups {
            place,
            state: Mutex::default(),
            hashing: RandomState::new(),
            unclaimed: Condvar::new(),
        })
    }

    /// True if backups are beside their files.
    pub fn are_beside(&self) -> bool {
        self.place.is_beside()
    }

    /// True for the name of a backup beside its file.
    pub fn is_backup(&self, name: &[u8]) -> bool {
        self.place.is_backup(name)
    }

    /// True if this copy made the backup in `slot`, beside its file, or may have made it.
    pub fn has_made(&self, slot: &EntrySlot) -> bool {
        let state = self.state.lock();
        let has_made = || state.has_earlier || state.made.contains(&self.key_of(slot));
        self.is_backup(slot.name.as_bytes()) && has_made()
    }

    /// Notes that there were earlier sessions of this copy. Their backups are not known.
    pub fn has_earlier_sessions(&self) {
        self.state.lock().has_earlier = true;
    }

    /// Notes where the copy lands, and the backup directory if it exists.
    pub(super) fn set_landed(&self, landed: Landed, root: Option<Arc<Dir>>) {
        let mut state = self.state.lock();
        if let Some(root) = root {
            state.set_root(root);
        }
        state.landed = Some(Arc::new(landed));
    }

    pub(super) fn place(&self) -> &BackupPlace {
        &self.place
    }

    /// What a directory is for the backups.
    pub fn part(&self, directory: (u64, u64)) -> BackupPart {
        let state = self.state.lock();
        match &state.root {
            Some(root) if root.identity() == directory => BackupPart::Root,
            Some(_) if state.above.contains(&directory) => BackupPart::Above,
            _ => BackupPart::None,
        }
    }

    /// Notes the name of an entry of this copy, so that no backup replaces the entry. Waits for a
    /// backup that is getting the name: for a few system calls on one directory.
    pub fn note(&self, slot: &EntrySlot) {
        if self.is_backup(slot.name.as_bytes()) {
            let key = self.key_of(slot);
            let mut state = self.state.lock();
            self.unclaimed
                .wait_while(&mut state, |state| state.claimed.contains(&key));
            // One more shows that there were too many.
            if state.taken.len() <= TAKEN_MAX {
                state.taken.insert(key);
            }
        }
    }

    /// Notes a file that an earlier session of this copy has placed. It gets no backup, since its own
    /// would replace that of the version before the copy.
    pub fn note_placed(&self, slot: &EntrySlot, inode: u64) {
        let mut state = self.state.lock();
        if state.placed.len() < MADE_MAX {
            state.placed.insert(self.key_of(slot), inode);
        }
    }

    fn has_placed(&self, slot: &EntrySlot, old: &Stat) -> bool {
        let state = self.state.lock();
        // Most copies have one session.
        !state.placed.is_empty() && state.placed.get(&self.key_of(slot)) == Some(&old.st_ino)
    }

    /// Refuses a directory of the copy that is the backup directory.
    ///
    /// # Errors
    /// `Kind::Refused`.
    pub fn check_directory(&self, slot: &EntrySlot, dir: &Arc<Dir>) -> Result<()> {
        match self.part(dir.identity()) {
            BackupPart::Root => Err(slot.refused(IS_BACKUP_DIRECTORY)),
            BackupPart::Above | BackupPart::None => Ok(()),
        }
    }

    /// The same for one that is not made yet, by its path.
    ///
    /// # Errors
    /// `Kind::Refused`.
    pub fn check_path(&self, slot: &EntrySlot) -> Result<()> {
        let state = self.state.lock();
        let landed = state.landed.as_ref().filter(|_| !self.are_beside());
        match landed.is_some_and(|landed| landed.path == slot.path()) {
            true => Err(slot.refused(IS_BACKUP_DIRECTORY)),
            false => Ok(()),
        }
    }

    /// The name of the backup of the entry in `slot`, in a directory that exists. It has the suffix
    /// once more if an entry of this copy, or another backup of it, has the name.
    fn target(
        self: &Arc<Self>,
        slot: &EntrySlot,
        rules: &Rules,
    ) -> Result<(EntrySlot, Option<NameOfBackup>)> {
        let dir = match self.are_beside() {
            true => slot.dir.clone(),
            false => self.directory_for(slot, rules)?,
        };
        let mut name = slot.name.as_bytes().to_vec();
        let (backup, claim) = loop {
            name.extend_from_slice(&self.place.suffix);
            let backup = Name::try_from(name.clone()).map_err(|_| {
                let message = format!(
                    "is neither replaced nor deleted: the name of its backup would have more than \
                     {NAME_MAX} bytes; choose a shorter --suffix, or --backup-dir"
                );
                Error::new(Kind::Write, Side::Dest, message).at(slot.path())
            })?;
            let backup = EntrySlot::new(dir.clone(), backup);
            if !self.are_beside() {
                break (backup, None);
            }
            if let Some(claim) = self.claim(&backup, slot)? {
                break (backup, Some(claim));
            }
        };
        if rules.no_own_names && is_reserved(backup.name.as_bytes()) {
            return Err(slot.refused(crate::dir::RESERVED));
        }
        check_link(slot, &backup, rules)?;
        Ok((backup, claim))
    }

    /// Takes the name of a backup beside its file. None if this copy has the name for something else.
    ///
    /// # Errors
    /// `Kind::Refused` if too many names are known.
    fn claim(
        self: &Arc<Self>,
        backup: &EntrySlot,
        slot: &EntrySlot,
    ) -> Result<Option<NameOfBackup>> {
        let key = self.key_of(backup);
        let mut state = self.state.lock();
        if state.taken.len() > TAKEN_MAX || state.made.len() > MADE_MAX {
            return Err(slot.refused(
                "is neither replaced nor deleted, since fastcp cannot make its backup: too many \
                 files of this copy have the suffix; choose another --suffix, or --backup-dir",
            ));
        }
        if state.taken.contains(&key) || !state.made.insert(key) {
            return Ok(None);
        }
        state.claimed.insert(key);
        Ok(Some(NameOfBackup {
            backups: self.clone(),
            key,
        }))
    }

    /// True if this copy made the backup in the backup directory. Then the version to keep now was
    /// placed by this copy itself: another of its entries has the same place.
    fn has_kept(&self, backup: &EntrySlot) -> bool {
        !self.are_beside() && self.state.lock().made.contains(&self.key_of(backup))
    }

    /// Notes a backup in the backup directory. Those beside their files are noted before.
    fn note_kept(&self, backup: &EntrySlot) {
        let mut state = self.state.lock();
        if state.made.len() <= MADE_MAX {
            state.made.insert(self.key_of(backup));
        }
    }

    /// The directory of the backups of all entries in the directory of `slot`.
    fn directory_for(&self, slot: &EntrySlot, rules: &Rules) -> Result<Arc<Dir>> {
        let mut state = self.state.lock();
        let identity = slot.dir.identity();
        if let Some((_, dir)) = state.last.as_ref().filter(|(of, _)| *of == identity) {
            return Ok(dir.clone());
        }
        let landed = state.landed.clone();
        let no_place = || slot.refused(NO_PLACE);
        let landed = landed.ok_or_else(no_place)?;
        let mut dir = match &state.root {
            Some(root) => root.clone(),
            None => {
                let root = (landed.make)()?;
                state.set_root(root.clone());
                root
            }
        };
        let way = landed.below(slot).ok_or_else(no_place)?;
        let names: Vec<&[u8]> = way.split(|byte| *byte == b'/').collect();
        let names: Vec<&[u8]> = names.into_iter().filter(|name| !name.is_empty()).collect();
        for (nth, name) in names.iter().enumerate() {
            let name = Name::try_from(name.to_vec()).map_err(|_| no_place())?;
            // The directory with that name at the destination.
            let model = slot.dir.up(names.len() - nth - 1);
            let model = model.unwrap_or_else(|| slot.dir.clone());
            refuse_closed(&dir, rules)?;
            dir = make_like(&dir, name, &model, rules)?;
        }
        refuse_closed(&dir, rules)?;
        state.last = Some((identity, dir.clone()));
        Ok(dir)
    }

    /// Gives the entry in `slot`, whose status is `old`, the name of its backup instead of
    /// deleting it.
    ///
    /// # Errors
    /// If that is not possible. The entry then stays.
    pub fn move_away(self: &Arc<Self>, slot: &EntrySlot, old: &Stat, rules: &Rules) -> Result<()> {
        let (backup, _claim) = self.target(slot, rules)?;
        match move_to(slot, &backup, rules) {
            Ok(()) => {}
            Err(Errno::XDEV) => {
                copy_to(slot, old, &backup, rules)?;
                unlink(slot).map_err(|cause| slot.error("cannot delete it", cause))?;
            }
            Err(cause) => return Err(failed(slot, &backup, cause)),
        }
        sync(&backup, rules)
    }
}

impl BackupState {
    fn set_root(&mut self, root: Arc<Dir>) {
        let above = root.with_those_above(ABOVE_MAX);
        self.above = above.into_iter().skip(1).collect();
        self.root = Some(root);
    }
}

impl Drop for NameOfBackup {
    fn drop(&mut self) {
        self.backups.state.lock().claimed.remove(&self.key);
        self.backups.unclaimed.notify_all();
    }
}

impl Landed {
    /// The path below the destination of the directory of `slot`.
    fn below(&self, slot: &EntrySlot) -> Option<Vec<u8>> {
        let (top, way) = slot.dir.below();
        let ways = self.ways.get(&top.identity())?.iter();
        let under = ways.filter_map(|DestinationWay { from, below }| {
            let rest = way.strip_prefix(&from[..])?;
            let is_whole = from.is_empty() || rest.is_empty() || rest[0] == b'/';
            is_whole.then(|| {
                (
                    from.len(),
                    joined(below, rest.strip_prefix(b"/").unwrap_or(rest)),
                )
            })
        });
        under.max_by_key(|(len, _)| *len).map(|(_, below)| below)
    }
}

impl KeptOld<'_> {
    /// Gives the old version its name back, and the older backup too.
    ///
    /// # Errors
    /// If the old version has only the name of its backup, or the older backup has another name. The
    /// name of the backup then stays taken.
    fn undo(self) -> Result<()> {
        if self.is_moved {
            move_back(&self.backup, self.slot).map_err(|cause| {
                let path = crate::units::printable(self.backup.path().as_os_str().as_bytes());
                let reason = reason_of(&cause.into());
                Error::new(
                    Kind::Write,
                    Side::Dest,
                    format!(
                        "is not replaced, and its old version is now {path}, since fastcp cannot \
                         rename it back: {reason}; rename it by hand"
                    ),
                )
                .at(self.slot.path())
            })?;
        }
        let is_there = matches!(self.slot.stat(), Ok(Some(_)));
        match self.older.0 {
            // If this fails, the old version only keeps one more name.
            None if is_there && !self.is_moved => drop(unlink(&self.backup)),
            None => {}
            Some(_) => self.older.give_back(&self.backup)?,
        }
        // In this order: another backup that takes the name then has a claim of its own.
        drop(self.claim);
        self.backups
            .state
            .lock()
            .made
            .remove(&self.backups.key_of(&self.backup));
        Ok(())
    }
}

/// Ends the replacement of an old version. If the new version has no name, everything is as before.
///
/// # Errors
/// If that is not possible; the error says where the old version is.
pub(super) fn settle(kept: Option<KeptOld<'_>>, is_replaced: bool) -> Result<()> {
    match kept {
        Some(kept) if is_replaced => {
            kept.older.remove(&kept.backup);
            Ok(())
        }
        Some(kept) => kept.undo(),
        None => Ok(()),
    }
}

impl OlderBackup {
    /// Gives the existing backup, if there is one and it may be replaced, a further name; without hard
    /// links another one.
    fn set_aside(backup: &EntrySlot, rules: &Rules) -> rustix::io::Result<OlderBackup> {
        let dir = handle(backup)?;
        let name = backup.name.as_os_str();
        match statat(&*dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if file_type(&stat) != FileType::Directory && !rules.untouched => {}
            // Nothing replaces a directory.
            Ok(_) | Err(Errno::NOENT) => return Ok(OlderBackup(None)),
            Err(cause) => return Err(cause),
        }
        let aside = random_name(backup);
        match linkat(&*dir, name, &*dir, &aside, AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(OlderBackup(None)),
            Err(_) => renameat(&*dir, name, &*dir, &aside)?,
        }
        Ok(OlderBackup(Some(aside)))
    }

    /// # Errors
    /// If it keeps the name of fastcp's own, which the message tells.
    fn give_back(&self, backup: &EntrySlot) -> Result<()> {
        let Some(aside) = &self.0 else {
            return Ok(());
        };
        let renamed = handle(backup).and_then(|dir| {
            renameat(&*dir, aside, &*dir, backup.name.as_os_str())?;
            // A rename between two names of one file does nothing.
            let _ = unlinkat(&*dir, aside, AtFlags::empty());
            Ok(())
        });
        renamed.map_err(|cause| {
            let message = format!(
                "the backup of an earlier run is now {}, since fastcp cannot rename it back: {}; \
                 rename it by hand",
                crate::units::printable(aside.as_bytes()),
                reason_of(&cause.into())
            );
            Error::new(Kind::Write, Side::Dest, message).at(backup.path())
        })
    }

    fn remove(&self, backup: &EntrySlot) {
        if let (Some(aside), Ok(dir)) = (&self.0, handle(backup)) {
            // At worst, a file with a name of a partial file is left.
            let _ = unlinkat(&*dir, aside, AtFlags::empty());
        }
    }
}

/// Moves an old version from its backup's place to its own, if that is free.
fn move_back(backup: &EntrySlot, slot: &EntrySlot) -> rustix::io::Result<()> {
    let (from, to) = (handle(backup)?, handle(slot)?);
    let (old, name) = (backup.name.as_os_str(), slot.name.as_os_str());
    match renameat_with(&*from, old, &*to, name, RenameFlags::NOREPLACE) {
        Err(cause) if is_flag_unknown(cause) => {
            match statat(&*to, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => renameat(&*from, old, &*to, name),
                Err(cause) => Err(cause),
            }
        }
        other => other,
    }
}

/// Makes the backup of the entry in `slot`, whose status is `old`, before another entry replaces
/// it. None if there is nothing to keep.
///
/// # Errors
/// If no backup can be made; the old version is then where it was.
pub(super) fn keep_old<'a>(
    slot: &'a EntrySlot,
    old: Option<&Stat>,
    rules: &Rules,
) -> Result<Option<KeptOld<'a>>> {
    let (Some(backups), Some(old)) = (&rules.backup, old) else {
        return Ok(None);
    };
    if file_type(old) == FileType::Directory || backups.has_placed(slot, old) {
        return Ok(None);
    }
    let (backup, claim) = backups.target(slot, rules)?;
    if backups.has_kept(&backup) {
        return Ok(None);
    }
    let older = OlderBackup::set_aside(&backup, rules);
    let older = older.map_err(|cause| failed(slot, &backup, cause))?;
    match make_backup(slot, old, &backup, rules) {
        Ok(Some(is_moved)) => {
            backups.note_kept(&backup);
            let kept = KeptOld {
                slot,
                backups: backups.clone(),
                backup,
                claim,
                older,
                is_moved,
            };
            match sync(&kept.backup, rules) {
                Ok(()) => Ok(Some(kept)),
                Err(error) => kept.undo().and(Err(error)),
            }
        }
        // Another process has removed the old version, or it stays: so does the older backup.
        other => {
            older.give_back(&backup)?;
            other.map(|_| None)
        }
    }
}

/// True if the old version was moved; None if it is gone.
fn make_backup(
    slot: &EntrySlot,
    old: &Stat,
    backup: &EntrySlot,
    rules: &Rules,
) -> Result<Option<bool>> {
    match link_to(slot, backup, rules) {
        Ok(()) => Ok(Some(false)),
        // Another process has removed it.
        Err(Errno::NOENT) if slot.stat()?.is_none() => Ok(None),
        Err(Errno::XDEV) => copy_to(slot, old, backup, rules).map(|()| Some(false)),
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK | Errno::ACCESS) => {
            match move_to(slot, backup, rules) {
                Ok(()) => Ok(Some(true)),
                Err(Errno::XDEV) => copy_to(slot, old, backup, rules).map(|()| Some(false)),
                Err(cause) => Err(failed(slot, backup, cause)),
            }
        }
        Err(cause) => Err(failed(slot, backup, cause)),
    }
}

/// Gives the entry in `slot` the name of its backup too.
fn link_to(slot: &EntrySlot, backup: &EntrySlot, rules: &Rules) -> rustix::io::Result<()> {
    let (from, to) = (handle(slot)?, handle(backup)?);
    let old = slot.name.as_os_str();
    let link = |name: &OsStr| linkat(&*from, old, &*to, name, AtFlags::empty());
    // Otherwise it is checked before it has the name of the backup.
    if !rules.links_inside {
        match link(backup.name.as_os_str()) {
            Err(Errno::EXIST) => {}
            // A process that is killed now leaves no other name.
            done => return done,
        }
    }
    let temporary = random_name(backup);
    link(&temporary)?;
    name_backup(backup, &temporary, rules)
}

/// Copies the entry in `slot`, whose status is `old`.
fn copy_to(slot: &EntrySlot, old: &Stat, backup: &EntrySlot, rules: &Rules) -> Result<()> {
    let copied = copy::copy(slot, old, backup, rules)?;
    let named = name_backup(backup, copied.name(), rules);
    named.map_err(|cause| failed(slot, backup, cause))?;
    // The old version is gone soon.
    sync_directory(&backup.dir)
}

/// Gives the entry with the name `temporary` that of the backup.
fn name_backup(backup: &EntrySlot, temporary: &OsStr, rules: &Rules) -> rustix::io::Result<()> {
    let dir = handle(backup)?;
    let checked = check_moved(backup, temporary, rules);
    let renamed = checked.and_then(|()| put(&dir, temporary, &dir, backup, rules));
    // Needed after a success too: a rename between two names of one file does nothing.
    let _ = unlinkat(&*dir, temporary, AtFlags::empty());
    renamed
}

/// Moves the entry in `slot` to its backup.
fn move_to(slot: &EntrySlot, backup: &EntrySlot, rules: &Rules) -> rustix::io::Result<()> {
    let (from, to) = (handle(slot)?, handle(backup)?);
    put(&from, slot.name.as_os_str(), &to, backup, rules)?;
    if let Err(cause) = check_moved(backup, backup.name.as_os_str(), rules) {
        // If another entry has the name now, it must not stay here either.
        move_back(backup, slot).or_else(|_| {
            let new = backup.name.as_os_str();
            renameat(&*to, new, &*from, random_name(slot))
        })?;
        return Err(cause);
    }
    // A rename between two names of one file does nothing.
    let stat = |slot: &EntrySlot| slot.dir.stat(slot.name.as_os_str());
    if let (Ok(old), Ok(new)) = (stat(slot), stat(backup))
        && same_file(&old, &new)
    {
        unlinkat(&*from, slot.name.as_os_str(), AtFlags::empty())?;
    }
    Ok(())
}

fn put(
    from: &impl std::os::fd::AsFd,
    name: &OsStr,
    to: &impl std::os::fd::AsFd,
    backup: &EntrySlot,
    rules: &Rules,
) -> rustix::io::Result<()> {
    let new = backup.name.as_os_str();
    match rules.untouched {
        true => renameat_with(from, name, to, new, RenameFlags::NOREPLACE),
        false => renameat(from, name, to, new),
    }
}

fn handle(slot: &EntrySlot) -> rustix::io::Result<Arc<std::os::fd::OwnedFd>> {
    let handle = slot.dir.handle();
    handle.map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::STALE))
}

fn unlink(slot: &EntrySlot) -> rustix::io::Result<()> {
    unlinkat(&*handle(slot)?, slot.name.as_os_str(), AtFlags::empty())
}

fn sync(backup: &EntrySlot, rules: &Rules) -> Result<()> {
    match rules.fsync {
        true => sync_directory(&backup.dir),
        false => Ok(()),
    }
}

/// A link that moves to another depth may lead out of the directory that a key is confined to.
fn check_link(slot: &EntrySlot, backup: &EntrySlot, rules: &Rules) -> Result<()> {
    let leads_out = handle(slot)
        .and_then(|dir| rules.leads_out(&*dir, slot.name.as_os_str(), backup.dir.depth()));
    match leads_out {
        // If another process has removed it, there is nothing to keep.
        Ok(false) | Err(Errno::NOENT) => Ok(()),
        Ok(true) => Err(slot.refused(
            "is a symbolic link, and its backup could lead out of the directory that this key is \
             confined to: the key's forced command lacks --allow-outside-links",
        )),
        Err(cause) => Err(slot.unreadable(cause)),
    }
}

/// Checks the entry `name` in the directory of the backup, since another session of the key may have
/// replaced the old version after [`check_link`].
fn check_moved(backup: &EntrySlot, name: &OsStr, rules: &Rules) -> rustix::io::Result<()> {
    if !rules.links_inside {
        return Ok(());
    }
    let dir = handle(backup)?;
    let stat = statat(&*dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    // A directory may contain such links.
    let is_directory = file_type(&stat) == FileType::Directory;
    match is_directory || rules.leads_out(&*dir, name, backup.dir.depth())? {
        true => Err(Errno::STALE),
        false => Ok(()),
    }
}

/// Refuses to make a backup among snapshots that the key may not change.
fn refuse_closed(dir: &Arc<Dir>, rules: &Rules) -> Result<()> {
    match rules.closed && holds_snapshots(dir) {
        true => Err(closed(dir)),
        false => Ok(()),
    }
}

/// Enters the directory `name`, or makes it with the mode, owner and attributes of `model`.
fn make_like(above: &Arc<Dir>, name: Name, model: &Arc<Dir>, rules: &Rules) -> Result<Arc<Dir>> {
    let slot = EntrySlot::new(above.clone(), name);
    let failed = |cause| slot.error("cannot create this directory for backups", cause);
    let handle = above.handle().map_err(failed)?;
    match mkdirat(
        &*handle,
        slot.name.as_os_str(),
        Mode::from_raw_mode(FIRST_MODE),
    ) {
        Ok(()) => {}
        Err(Errno::EXIST) => return above.child(&slot.name).map_err(failed),
        Err(cause) => return Err(failed(cause.into())),
    }
    let dir = above.child(&slot.name).map_err(failed)?;
    let (from, to) = (
        model.handle().map_err(failed)?,
        dir.handle().map_err(failed)?,
    );
    copy::give_attributes(&*from, &*to, rules).map_err(|cause| failed(cause.into()))?;
    // Backups on another file system are copies, and are durable before the old version is gone.
    if rules.fsync || above.identity().0 != model.identity().0 {
        sync_directory(above)?;
    }
    Ok(dir)
}

pub(super) fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = match path.is_empty() || name.is_empty() {
        true => b"",
        false => b"/",
    };
    [path, slash, name].concat()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::testing;
    use super::*;

    /// Backups beside their files, with `~`.
    fn beside() -> (Arc<Backups>, Rules) {
        let backups = Backups::new(BackupPlace {
            suffix: b"~".to_vec(),
            directory: Vec::new(),
        });
        let rules = Rules {
            backup: Some(backups.clone()),
            ..testing::rules()
        };
        (backups, rules)
    }

    /// A destination `a/b`, and backups in `bk`, for a confined key.
    fn in_directory(temp: &std::path::Path) -> (EntrySlot, Rules) {
        for dir in ["a/b", "bk"] {
            fs::create_dir_all(temp.join(dir)).unwrap();
        }
        let top = Dir::root(temp, &Arc::default()).unwrap();
        let child = |dir: &Arc<Dir>, name: &str| dir.child(&testing::name(name)).unwrap();
        let root = child(&top, "bk");
        let backups = Backups::new(BackupPlace {
            suffix: Vec::new(),
            directory: b"bk".to_vec(),
        });
        let way = DestinationWay {
            from: b"a/b".to_vec(),
            below: Vec::new(),
        };
        let landed = Landed {
            path: root.path(),
            make: Box::new(|| unreachable!("it exists")),
            ways: HashMap::from([(top.identity(), vec![way])]),
        };
        backups.set_landed(landed, Some(root));
        let rules = Rules {
            backup: Some(backups),
            links_inside: true,
            ..testing::rules()
        };
        let dir = child(&child(&top, "a"), "b");
        (EntrySlot::new(dir, testing::name("f")), rules)
    }

    /// Another session of a confined key replaces a file, after its status was read, by an entry that
    /// leads out from the place of the backup.
    #[test]
    fn no_backup_of_a_replaced_file_leads_out() {
        let temp = tempfile::tempdir().unwrap();
        let (slot, rules) = in_directory(temp.path());
        let at = temp.path().join("a/b/f");
        fs::write(&at, "old").unwrap();
        let old = slot.stat().unwrap().unwrap();
        let backup = settle_as_kept(&slot, &old, &rules);
        fs::remove_file(&at).unwrap();
        symlink("../../x", &at).unwrap();
        let refused = |error: Error| assert!(error.message.contains("could lead out"), "{error}");
        refused(keep_old(&slot, Some(&old), &rules).err().unwrap());
        let backups = rules.backup.as_ref().unwrap();
        refused(backups.move_away(&slot, &old, &rules).unwrap_err());
        // The same after that check.
        let error = make_backup(&slot, &old, &backup, &rules).unwrap_err();
        assert_eq!(error.kind, Kind::Changed, "{error}");
        assert_eq!(move_to(&slot, &backup, &rules), Err(Errno::STALE));
        let link = slot.stat().unwrap().unwrap();
        assert!(copy_to(&slot, &link, &backup, &rules).is_err());
        assert!(at.is_symlink());
        // The directory could contain such a link.
        fs::remove_file(&at).unwrap();
        fs::create_dir(&at).unwrap();
        assert!(make_backup(&slot, &old, &backup, &rules).is_err());
        assert!(at.is_dir());
        assert_eq!(testing::names(&temp.path().join("bk")), [""; 0]);
        assert_eq!(testing::names(&temp.path().join("a/b")), ["f"]);
    }

    /// The place of the backup, which is made and taken back.
    fn settle_as_kept(slot: &EntrySlot, old: &Stat, rules: &Rules) -> EntrySlot {
        let kept = keep_old(slot, Some(old), rules).unwrap().unwrap();
        let backup = kept.backup.clone();
        assert_eq!(fs::read(backup.path()).unwrap(), b"old");
        settle(Some(kept), false).unwrap();
        assert!(!backup.path().exists());
        backup
    }

    #[test]
    fn no_backup_goes_into_snapshots_that_the_key_may_not_change() {
        let temp = tempfile::tempdir().unwrap();
        let (slot, rules) = in_directory(temp.path());
        fs::write(temp.path().join("a/b/f"), "old").unwrap();
        fs::create_dir(temp.path().join("bk/.fastcp-snapshots")).unwrap();
        let old = slot.stat().unwrap();
        let keep = |rules: &Rules| keep_old(&slot, old.as_ref(), rules).map(|kept| kept.is_some());
        assert!(keep(&rules).unwrap());
        let rules = Rules {
            closed: true,
            ..in_directory(temp.path()).1
        };
        let error = keep(&rules).unwrap_err();
        assert!(error.message.contains("holds snapshots"), "{error}");
    }

    #[test]
    fn a_new_version_without_its_name_leaves_everything_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        let (_, rules) = beside();
        fs::write(at("file"), "old").unwrap();
        let slot = testing::slot(temp.path(), "file");
        let keep = || keep_old(&slot, slot.stat().unwrap().as_ref(), &rules).unwrap();
        let names = || fs::read_dir(temp.path()).unwrap().count();
        settle(keep(), false).unwrap();
        assert!(names() == 1 && !at("file~").exists());
        fs::write(at("file~"), "older").unwrap();
        settle(keep(), false).unwrap();
        assert_eq!(fs::read(at("file~")).unwrap(), b"older");
        assert_eq!(names(), 2);
        // As on a file system without hard links.
        let moved = || {
            let mut kept = keep().unwrap();
            fs::remove_file(at("file")).unwrap();
            kept.is_moved = true;
            kept
        };
        settle(Some(moved()), false).unwrap();
        assert_eq!(fs::read(at("file")).unwrap(), b"old");
        assert_eq!(fs::read(at("file~")).unwrap(), b"older");
        let kept = moved();
        fs::write(at("file"), "of another process").unwrap();
        let error = settle(Some(kept), false).unwrap_err();
        assert!(error.message.contains("file~"), "{error}");
        assert_eq!(fs::read(at("file~")).unwrap(), b"old");
    }

    /// Another backup under this name would replace, or be removed with, what is there.
    #[test]
    fn a_backup_has_its_name_until_it_is_undone() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("file"), "old").unwrap();
        fs::write(temp.path().join("file~"), "older").unwrap();
        let (backups, rules) = beside();
        let slot = testing::slot(temp.path(), "file");
        let kept = keep_old(&slot, slot.stat().unwrap().as_ref(), &rules).unwrap();
        let kept = kept.unwrap();
        let aside = kept.older.0.clone().unwrap();
        fs::remove_file(temp.path().join(aside)).unwrap();
        settle(Some(kept), false).unwrap_err();
        assert!(backups.has_made(&testing::slot(temp.path(), "file~")));
    }

    /// The file `file~` of a copy gets its name while the old version of `file` gets it as well.
    #[test]
    fn an_entry_waits_for_a_backup_that_gets_its_name() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("file"), "old").unwrap();
        let (backups, rules) = beside();
        let slot = testing::slot(temp.path(), "file");
        let entry = testing::slot(temp.path(), "file~");
        for is_replaced in [true, false] {
            let (tell, told) = std::sync::mpsc::channel();
            let (backups, entry) = (&backups, &entry);
            let kept = keep_old(&slot, slot.stat().unwrap().as_ref(), &rules).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    backups.note(entry);
                    tell.send(()).unwrap();
                });
                let soon = std::time::Duration::from_millis(20);
                assert!(told.recv_timeout(soon).is_err(), "it did not wait");
                settle(kept, is_replaced).unwrap();
                told.recv().unwrap();
            });
            let mut state = backups.state.lock();
            assert_eq!(state.taken.drain().count(), 1);
            state.made.clear();
        }
    }
}
