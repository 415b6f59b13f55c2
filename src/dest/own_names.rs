//! Names that fastcp gives to its own files in a destination directory, and which of them this
//! process uses now.
//!
//! [`dir::own_name`](crate::dir::own_name) has their form.
//!
//! A source may hold files with such names; they are copied like any others. The names depend on
//! the directory too, so that a partial file in a source does not have the name of a partial file
//! of its copy. If an entry has such a name nevertheless, the entry gets it, and the partial file
//! of this process is renamed. The files of another process, and the journal, keep their names and the
//! entry fails. Every check of a destination name ([`EntrySlot::stat`]) calls [`make_way`] first.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, flock, renameat};
use rustix::io::Errno;

use super::EntrySlot;
use crate::dir::Dir;
pub use crate::dir::own_name::is_own_name;
use crate::dir::own_name::{DIGITS, JOURNAL, PARTIAL, own_name, parts};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;

/// Device and inode of a directory, and a name in it.
type NamePlace = ((u64, u64), OsString);

/// Which file uses a name.
enum Holder {
    /// A partial file. It is renamed when an entry of that name arrives.
    Partial(Arc<Mutex<OsString>>),
    Journal,
}

/// The names that this process uses. Lock order: the lock in a [`Holder`] first, then this one.
static IN_USE: Mutex<BTreeMap<NamePlace, Holder>> = Mutex::new(BTreeMap::new());

/// Places of entries that have such names: a file there is not the partial file of a killed run.
static ENTRIES: Mutex<BTreeSet<NamePlace>> = Mutex::new(BTreeSet::new());

/// With more entries than this, no file counts as left by a killed run.
const ENTRIES_MAX: usize = 10_000;

/// True if a file of this process has the name now.
pub(super) fn is_in_use(dir: &Arc<Dir>, name: &OsStr) -> bool {
    let place = (dir.identity(), name.to_owned());
    IN_USE.lock().contains_key(&place)
}

/// The name of the partial file for `slot`: short enough whatever the final name is, the same on
/// every run, and different in every directory.
pub(super) fn usual_name(slot: &EntrySlot) -> OsString {
    own_name(slot.name.as_bytes(), &hash_of(slot), PARTIAL)
}

/// The usual name in earlier versions, whose partial files are resumed.
pub(super) fn former_name(slot: &EntrySlot) -> OsString {
    own_name(b"", &hash_of(slot), PARTIAL)
}

/// For files whose usual name is taken, and for files that cannot be locked.
pub(super) fn random_name(slot: &EntrySlot) -> OsString {
    let digits = format!("{}-{}", hash_of(slot), random_digits());
    own_name(slot.name.as_bytes(), &digits, PARTIAL)
}

/// For a file that is left for the user: nothing in its name shows that fastcp may remove it.
pub(super) fn name_for_user(slot: &EntrySlot) -> OsString {
    own_name(slot.name.as_bytes(), &random_digits(), PARTIAL)
}

fn random_digits() -> String {
    let mut random = [0; 8];
    // Without random bytes the clock serves: `O_EXCL` gives the protection, not the name.
    if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK).is_err() {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        random = now.tv_nsec.to_ne_bytes();
    }
    let random = u64::from_ne_bytes(random);
    format!("{random:016x}")
}

/// True if the partial file's name shows all of another name, and was made for a file of that name
/// in this directory. A file that was copied here from elsewhere has other digits, unless the two
/// directories have the same number. False too if the file system gives directories other numbers
/// later.
pub(super) fn is_made_for(dir: &Arc<Dir>, name: &OsStr) -> bool {
    let mut parts = parts(name.as_bytes());
    dir.lasting_number() != 0
        && parts.any(|(shown, digits)| hash_in(dir, shown).as_bytes() == digits)
}

fn hash_of(slot: &EntrySlot) -> String {
    hash_in(&slot.dir, slot.name.as_bytes())
}

fn hash_in(dir: &Arc<Dir>, name: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&dir.lasting_number().to_le_bytes());
    hasher.update(name);
    hasher.finalize().to_hex()[..DIGITS].to_owned()
}

/// The name of a partial file of this process.
pub(super) struct OwnName {
    dir: (u64, u64),
    current: Arc<Mutex<OsString>>,
}

impl OwnName {
    /// Reserves `name` and opens the file. None if a file of this process has the name already.
    pub(super) fn claim<T>(
        dir: &Arc<Dir>,
        name: &OsStr,
        open: impl FnOnce() -> io::Result<T>,
    ) -> Option<io::Result<(OwnName, T)>> {
        let current = Arc::new(Mutex::new(name.to_owned()));
        // Nobody may rename the file before it is open.
        let mut held = current.lock();
        let place = (dir.identity(), name.to_owned());
        {
            let mut in_use = IN_USE.lock();
            if in_use.contains_key(&place) {
                return None;
            }
            in_use.insert(place.clone(), Holder::Partial(current.clone()));
        }
        let opened = open();
        if opened.is_err() {
            // The file that exists there, if any, is not this process's.
            IN_USE.lock().remove(&place);
            held.clear();
        }
        drop(held);
        let own = OwnName {
            dir: dir.identity(),
            current,
        };
        Some(opened.map(|file| (own, file)))
    }

    /// Calls `look` to check the file called `name`; an entry of that name waits until it is done.
    /// None if a file of this process has the name.
    pub(super) fn while_held<T>(
        dir: &Arc<Dir>,
        name: &OsStr,
        look: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut found = None;
        let nothing_opened = || {
            found = Some(look());
            Err::<(), _>(io::ErrorKind::Other.into())
        };
        // The name is released as soon as `look` has returned.
        let _ = OwnName::claim(dir, name, nothing_opened)?;
        found
    }

    /// The name. It does not change while the guard is held.
    pub(super) fn hold(&self) -> LockedName<'_> {
        LockedName {
            dir: self.dir,
            name: self.current.lock(),
            cell: &self.current,
        }
    }
}

impl Drop for OwnName {
    fn drop(&mut self) {
        let name = self.current.lock();
        IN_USE.lock().remove(&(self.dir, name.clone()));
    }
}

/// The name of a partial file, locked against a change.
pub(super) struct LockedName<'a> {
    dir: (u64, u64),
    name: MutexGuard<'a, OsString>,
    cell: &'a Arc<Mutex<OsString>>,
}

impl LockedName<'_> {
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Notes that the file has got another name.
    pub(super) fn set(&mut self, name: OsString) {
        let mut in_use = IN_USE.lock();
        in_use.remove(&(self.dir, self.name.clone()));
        let place = (self.dir, name.clone());
        in_use.insert(place, Holder::Partial(self.cell.clone()));
        *self.name = name;
    }
}

/// Reserves the journal's name for as long as it lives.
pub struct JournalName(NamePlace);

impl JournalName {
    pub fn reserve(dir: &Arc<Dir>, name: &OsStr) -> JournalName {
        let place = (dir.identity(), name.to_owned());
        IN_USE.lock().insert(place.clone(), Holder::Journal);
        JournalName(place)
    }
}

impl Drop for JournalName {
    fn drop(&mut self) {
        IN_USE.lock().remove(&self.0);
    }
}

impl EntrySlot {
    /// Status of the entry under this name; a symbolic link is not followed. If a partial file of
    /// this process has the name, it is renamed first.
    pub(super) fn stat(&self) -> Result<Option<Stat>> {
        make_way(self)?;
        match self.dir.stat(self.name.as_os_str()) {
            Ok(stat) => Ok(Some(stat)),
            Err(cause) if Errno::from_io_error(&cause) == Some(Errno::NOENT) => Ok(None),
            Err(cause) => Err(self.error("cannot read its status", cause)),
        }
    }
}

/// Makes sure that no file which fastcp is using has the name of `slot`: a partial file of this
/// process is renamed.
///
/// # Errors
/// `Kind::Busy` for the journal of this copy and for a file of another fastcp.
pub(super) fn make_way(slot: &EntrySlot) -> Result<()> {
    if !is_own_name(slot.name.as_bytes()) {
        return Ok(());
    }
    note_entry(slot);
    let cell = {
        let in_use = IN_USE.lock();
        match in_use.get(&place_of(slot)) {
            Some(Holder::Partial(name)) => name.clone(),
            Some(Holder::Journal) => return Err(is_taken(slot)),
            // This process takes neither name nor lock now, so the lock is another process's.
            None if is_locked(slot) => return Err(is_taken(slot)),
            None => return Ok(()),
        }
    };
    let mut held = LockedName {
        dir: slot.dir.identity(),
        name: cell.lock(),
        cell: &cell,
    };
    rename_partial(slot, &mut held)
        .map_err(|cause| slot.error("cannot rename the partial file", cause))
}

fn note_entry(slot: &EntrySlot) {
    let mut entries = ENTRIES.lock();
    if entries.len() < ENTRIES_MAX {
        entries.insert(place_of(slot));
    }
}

/// True if a file of this name may be an entry that this process has seen.
pub(super) fn may_be_entry(dir: &Arc<Dir>, name: &OsStr) -> bool {
    let entries = ENTRIES.lock();
    entries.len() >= ENTRIES_MAX || entries.contains(&(dir.identity(), name.to_owned()))
}

fn rename_partial(slot: &EntrySlot, held: &mut LockedName) -> io::Result<()> {
    if held.name() != slot.name.as_os_str() {
        return Ok(()); // Somebody else was faster.
    }
    let dir = slot.dir.handle()?;
    let new = random_name(slot);
    match renameat(&*dir, held.name(), &*dir, &new) {
        Ok(()) => held.set(new),
        // The file was never made, or another process has removed it, which its owner will notice.
        Err(Errno::NOENT) => held.set(new),
        Err(cause) => return Err(cause.into()),
    }
    Ok(())
}

/// True if another fastcp is working on the file there. Without locks a partial file has a random
/// name, which no source has.
fn is_locked(slot: &EntrySlot) -> bool {
    let name = slot.name.as_os_str();
    // Opening anything but a regular file has side effects.
    let stat = slot.dir.stat(name);
    if !stat.is_ok_and(|stat| file_type(&stat) == FileType::RegularFile) {
        return false;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let Ok(fd) = slot.dir.open(name, flags, Mode::empty()) else {
        return false;
    };
    let locked = flock(&fd, FlockOperation::NonBlockingLockShared);
    unlock(&fd);
    locked == Err(Errno::AGAIN)
}

/// Releases a lock. Closing the file would not suffice: a child process that has not started its
/// program yet has the file open too.
pub(super) fn unlock(file: impl AsFd) {
    // An error means that there was no lock.
    let _ = flock(file, FlockOperation::Unlock);
}

/// Calls `rename`, which gives an entry the name of `slot`, while no partial file can get that
/// name. None if a file of this process has it: then call [`make_way`].
pub(super) fn while_unused<T>(slot: &EntrySlot, rename: impl FnOnce() -> T) -> Option<T> {
    if !is_own_name(slot.name.as_bytes()) {
        return Some(rename());
    }
    let in_use = IN_USE.lock();
    match in_use.contains_key(&place_of(slot)) {
        true => None,
        false => Some(rename()),
    }
}

fn place_of(slot: &EntrySlot) -> NamePlace {
    (slot.dir.identity(), slot.name.as_os_str().to_owned())
}

fn is_taken(slot: &EntrySlot) -> Error {
    let message = match slot.name.as_bytes().ends_with(JOURNAL.as_bytes()) {
        true => {
            "a running copy uses this name for its journal; copy this file after that copy has ended"
        }
        false => "is the partial file of another fastcp; copy this file after that copy has ended",
    };
    Error::new(Kind::Busy, Side::Dest, message).at(slot.path())
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    /// The journal's lock refuses the name too, if the journal has a lock and still exists.
    #[test]
    fn the_name_of_the_journal_is_kept_for_it() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), ".fastcp-0123456789abcdef.journal");
        assert!(slot.stat().unwrap().is_none());
        let name = JournalName::reserve(&slot.dir, slot.name.as_os_str());
        assert_eq!(slot.stat().unwrap_err().kind, Kind::Busy);
        assert!(while_unused(&slot, || ()).is_none());
        drop(name);
        assert!(slot.stat().unwrap().is_none());
    }
}
