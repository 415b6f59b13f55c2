//! Names that fastcp gives to its own files in a destination directory, and which of them this
//! process uses now.
//!
//! A source may hold files with such names, and they are copied like any others. The names depend on
//! the directory too, so that what a cut copy left in a source does not meet what its copy makes.
//! Where they meet all the same, the entry gets its name and the unfinished file another one; the
//! files of another process, and the journal, keep theirs and the entry fails. Every look at a
//! destination ([`Slot::stat`]) goes through [`make_way`].

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, renameat};
use rustix::io::Errno;

use super::Slot;
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;

/// Device and inode of a directory, and a name in it.
type Place = ((u64, u64), OsString);

/// What has a name.
enum Holder {
    /// An unfinished file. Its name changes when an entry of that name comes.
    Partial(Arc<Mutex<OsString>>),
    Journal,
}

/// The names that this process uses. Taken after a [`Holder`]'s own lock, never before.
static IN_USE: Mutex<BTreeMap<Place, Holder>> = Mutex::new(BTreeMap::new());

/// Places of entries that have such names: what stands there is not what a killed copy left.
static ENTRIES: Mutex<BTreeSet<Place>> = Mutex::new(BTreeSet::new());

/// With more of them nothing counts as left by a killed copy.
const ENTRIES_MAX: usize = 10_000;

/// True for a name that fastcp may give to a file of its own.
pub fn is_own_name(name: &[u8]) -> bool {
    let ends = |end: &[u8]| name.ends_with(end);
    name.starts_with(b".fastcp-") && (ends(b".part") || ends(b".journal"))
}

/// The name of the unfinished file for `slot`: short whatever the final name is, the same on every
/// run, and another one in every directory.
pub(super) fn usual_name(slot: &Slot) -> OsString {
    format!(".fastcp-{}.part", hash_of(slot)).into()
}

/// For where the usual name is taken, and for what cannot be locked.
pub(super) fn random_name(slot: &Slot) -> OsString {
    let mut random = [0; 8];
    // Without a source of chance the clock serves: O_EXCL is what protects, not the name.
    if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK).is_err() {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        random = now.tv_nsec.to_ne_bytes();
    }
    let random = u64::from_ne_bytes(random);
    format!(".fastcp-{}-{random:016x}.part", hash_of(slot)).into()
}

fn hash_of(slot: &Slot) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&slot.dir.lasting_number().to_le_bytes());
    hasher.update(slot.name.as_bytes());
    hasher.finalize().to_hex()[..16].to_owned()
}

/// The name of an unfinished file of this process.
pub(super) struct OwnName {
    dir: (u64, u64),
    current: Arc<Mutex<OsString>>,
}

impl OwnName {
    /// Takes `name` and opens the file. None where a file of this process has the name already.
    pub fn claim<T>(
        dir: &Arc<Dir>,
        name: &OsStr,
        open: impl FnOnce() -> io::Result<T>,
    ) -> Option<io::Result<(OwnName, T)>> {
        let current = Arc::new(Mutex::new(name.to_owned()));
        // Until it is open nobody may rename it.
        let mut held = current.lock().expect("no panic while held");
        let place = (dir.identity(), name.to_owned());
        {
            let mut in_use = in_use();
            if in_use.contains_key(&place) {
                return None;
            }
            in_use.insert(place.clone(), Holder::Partial(current.clone()));
        }
        let opened = open();
        if opened.is_err() {
            // What stands there is not this process's.
            in_use().remove(&place);
            held.clear();
        }
        drop(held);
        let own = OwnName {
            dir: dir.identity(),
            current,
        };
        Some(opened.map(|file| (own, file)))
    }

    /// Looks at what stands under `name`; an entry of that name waits until it has. None where a
    /// file of this process has the name.
    pub fn while_held<T>(dir: &Arc<Dir>, name: &OsStr, look: impl FnOnce() -> T) -> Option<T> {
        let mut found = None;
        let nothing_opened = || {
            found = Some(look());
            Err::<(), _>(io::ErrorKind::Other.into())
        };
        // It is open for no longer than the look.
        let _ = OwnName::claim(dir, name, nothing_opened)?;
        found
    }

    /// The name. It does not change while the guard is held.
    pub fn hold(&self) -> Held<'_> {
        Held {
            dir: self.dir,
            name: self.current.lock().expect("no panic while held"),
            cell: &self.current,
        }
    }
}

impl Drop for OwnName {
    fn drop(&mut self) {
        let name = self.current.lock().expect("no panic while held");
        in_use().remove(&(self.dir, name.clone()));
    }
}

/// The name of an unfinished file, which stays as it is for so long.
pub(super) struct Held<'a> {
    dir: (u64, u64),
    name: MutexGuard<'a, OsString>,
    cell: &'a Arc<Mutex<OsString>>,
}

impl Held<'_> {
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The file has got another name.
    pub fn set(&mut self, name: OsString) {
        let mut in_use = in_use();
        in_use.remove(&(self.dir, self.name.clone()));
        let place = (self.dir, name.clone());
        in_use.insert(place, Holder::Partial(self.cell.clone()));
        *self.name = name;
    }
}

/// Keeps the journal's name for the journal.
pub struct JournalName(Place);

impl JournalName {
    pub fn reserve(dir: &Arc<Dir>, name: &OsStr) -> JournalName {
        let place = (dir.identity(), name.to_owned());
        in_use().insert(place.clone(), Holder::Journal);
        JournalName(place)
    }
}

impl Drop for JournalName {
    fn drop(&mut self) {
        in_use().remove(&self.0);
    }
}

/// Sees to it that no file which fastcp uses now stands at `slot`: an unfinished file of this
/// process is renamed.
///
/// # Errors
/// `Kind::Busy` for the journal of this copy and for a file of another fastcp.
pub(super) fn make_way(slot: &Slot) -> Result<()> {
    if !is_own_name(slot.name.as_bytes()) {
        return Ok(());
    }
    note_entry(slot);
    let cell = {
        let in_use = in_use();
        match in_use.get(&place_of(slot)) {
            Some(Holder::Partial(name)) => name.clone(),
            Some(Holder::Journal) => return Err(is_taken(slot)),
            // Nobody in this process takes the name or its lock meanwhile: a lock is another's.
            None if is_locked(slot) => return Err(is_taken(slot)),
            None => return Ok(()),
        }
    };
    let mut held = Held {
        dir: slot.dir.identity(),
        name: cell.lock().expect("no panic while held"),
        cell: &cell,
    };
    rename_partial(slot, &mut held)
        .map_err(|cause| slot.error("cannot rename the unfinished file there", cause))
}

fn note_entry(slot: &Slot) {
    let mut entries = ENTRIES.lock().expect("no panic while held");
    if entries.len() < ENTRIES_MAX {
        entries.insert(place_of(slot));
    }
}

/// True where a file of this name may be an entry that this process has seen.
pub(super) fn may_be_entry(dir: &Arc<Dir>, name: &OsStr) -> bool {
    let entries = ENTRIES.lock().expect("no panic while held");
    entries.len() >= ENTRIES_MAX || entries.contains(&(dir.identity(), name.to_owned()))
}

fn rename_partial(slot: &Slot, held: &mut Held) -> io::Result<()> {
    if held.name() != slot.name.as_os_str() {
        return Ok(()); // Somebody else was faster.
    }
    let dir = slot.dir.handle()?;
    let new = random_name(slot);
    match renameat(&*dir, held.name(), &*dir, &new) {
        Ok(()) => held.set(new),
        // It was not made after all, or another process has removed it, as its owner will notice.
        Err(Errno::NOENT) => held.set(new),
        Err(cause) => return Err(cause.into()),
    }
    Ok(())
}

/// Another fastcp works with the file that stands there. Where there are no locks it has a name
/// that no source has.
fn is_locked(slot: &Slot) -> bool {
    let name = slot.name.as_os_str();
    // Opening anything but a file has effects.
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

/// Gives back a lock: a child of this process that has not yet started its program has the file
/// too, and closing it here would not end the lock.
pub(super) fn unlock(file: impl AsFd) {
    // It has none, or there are none.
    let _ = flock(file, FlockOperation::Unlock);
}

/// Calls `rename`, which puts something under the name of `slot`, while no unfinished file can get
/// that name. None where one has it: then there is [way to make](make_way).
pub(super) fn while_unused<T>(slot: &Slot, rename: impl FnOnce() -> T) -> Option<T> {
    if !is_own_name(slot.name.as_bytes()) {
        return Some(rename());
    }
    let in_use = in_use();
    match in_use.contains_key(&place_of(slot)) {
        true => None,
        false => Some(rename()),
    }
}

fn place_of(slot: &Slot) -> Place {
    (slot.dir.identity(), slot.name.as_os_str().to_owned())
}

fn is_taken(slot: &Slot) -> Error {
    let message = match slot.name.as_bytes().ends_with(b".journal") {
        true => {
            "is the name of the journal of a copy that is running; copy this file when it has ended"
        }
        false => "is the unfinished file of another fastcp; copy this file when that has ended",
    };
    Error::new(Kind::Busy, Side::Dest, message).at(slot.path())
}

fn in_use() -> MutexGuard<'static, BTreeMap<Place, Holder>> {
    IN_USE.lock().expect("no panic while held")
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    /// Its lock says so too, where it has one and is still there.
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
