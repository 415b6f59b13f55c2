//! A journal that a copy has left: whether a running copy uses it, which unfinished files it names,
//! and its removal by somebody who does not copy.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, OFlags, flock, fstat};
use rustix::io::Errno;

use super::record::JournalUserKey;
use super::{JournalPlace, lock, past, process};
use crate::dir::RECENT;
use crate::manifest::Inode;

/// What a file with a journal's name is.
pub enum FoundJournal {
    Nothing,
    /// No journal that this user's fastcp has signed.
    Unsigned,
    /// A running copy uses it, and may still resume these partial files.
    InUse(Vec<Inode>),
    /// The same may be true: it was touched recently, by a process whose lock would not be seen
    /// here.
    MaybeInUse(Vec<Inode>),
    Left(LeftJournal),
}

/// A journal that no copy uses. As long as this exists, no copy of this host opens the journal.
pub struct LeftJournal {
    /// Its unfinished partial files.
    pub unfinished: Vec<Inode>,
    /// Without the journal, the next run of the copy may take a damaged file for a complete one, or
    /// may land in another place.
    pub is_needed: bool,
    place: JournalPlace,
    file: File,
}

impl JournalPlace {
    pub fn find(&self, user: &JournalUserKey) -> FoundJournal {
        // NFS locks only files that are open for writing; a file system may be read-only.
        let opened = self.open_own(OFlags::RDWR);
        let Some(file) = opened.or_else(|| self.open_own(OFlags::RDONLY)) else {
            return FoundJournal::Unsigned;
        };
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        // Its copy may have ended, and removed it, since it was opened.
        let Some(stat) = fstat(&file).ok().filter(|stat| stat.st_nlink > 0) else {
            return FoundJournal::Nothing;
        };
        let Some(key) = past::key(&file, user) else {
            let _ = flock(&file, FlockOperation::Unlock);
            return FoundJournal::Unsigned;
        };
        let past = past::unfinished(&file, &key);
        let is_of_here = |session| lock::is_of_here(session, &stat);
        let silent = lock::silence(&file);
        let may_be_in_use = match locked {
            Err(Errno::AGAIN) => return FoundJournal::InUse(past.partials),
            Ok(()) if past.last.as_ref().is_none_or(is_of_here) => false,
            // A copy that has gone on since this machine started is none of an earlier boot.
            Ok(()) if self.dir.shares_locks() => silent < RECENT.min(process::uptime()),
            _ => silent < RECENT,
        };
        if may_be_in_use {
            let _ = flock(&file, FlockOperation::Unlock);
            return FoundJournal::MaybeInUse(past.partials);
        }
        FoundJournal::Left(LeftJournal {
            unfinished: past.partials,
            is_needed: past.is_needed,
            place: self.clone(),
            file,
        })
    }
}

impl LeftJournal {
    /// Removes it, unless its name is that of another file by now.
    ///
    /// # Errors
    /// Of the file system.
    pub fn remove(self) -> io::Result<()> {
        self.place.dir.remove_name_of(&self.place.name, &self.file)
    }
}

impl Drop for LeftJournal {
    /// A child of this process may have the file open too, and so the lock.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
