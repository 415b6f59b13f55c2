//! Permissions that this process lends to directories of its user for as long as it works in them.
//!
//! Several parts of a process may work in one directory at a time. It gets its mode back when the
//! last of them is done, so the loans of all are counted in one place.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, fchmod, fstat};

use crate::dir::Dir;

/// Permissions that the owner needs to fill or empty a directory.
pub(super) const WORKING: u32 = 0o700;

struct Loan {
    /// The mode that the directory gets in the end.
    mode: u32,
    borrowers: usize,
}

/// By device and inode. It holds as many entries as directories are open; a lock that is held during
/// two system calls on a directory, so that no other thread sees a mode that is about to change.
static LOANS: Mutex<BTreeMap<(u64, u64), Loan>> = Mutex::new(BTreeMap::new());

/// A directory with permissions that it does not have by itself. When the last one of a directory is
/// dropped, the directory gets its mode back.
pub(super) struct LentMode {
    dir: Arc<Dir>,
}

impl LentMode {
    /// Adds the missing permissions of [`WORKING`] if this user owns the directory. None if it has
    /// them by itself. `before` is the mode before permissions were added by its name.
    ///
    /// # Errors
    /// If the status cannot be read, or the mode cannot be set.
    pub(super) fn lend(dir: &Arc<Dir>, before: Option<u32>) -> std::io::Result<Option<LentMode>> {
        let handle = dir.handle()?;
        let mut loans = LOANS.lock();
        if let Some(loan) = loans.get_mut(&dir.identity()) {
            loan.borrowers += 1;
            return Ok(Some(LentMode { dir: dir.clone() }));
        }
        let stat = fstat(&*handle)?;
        let mode = stat.st_mode & 0o7777;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
        let lacks = is_ours && mode & WORKING != WORKING;
        if lacks {
            fchmod(&*handle, Mode::from_raw_mode(mode | WORKING))?;
        }
        let own = before.or(lacks.then_some(mode));
        Ok(own.map(|mode| {
            loans.insert(dir.identity(), Loan { mode, borrowers: 1 });
            LentMode { dir: dir.clone() }
        }))
    }

    /// For a directory to which an earlier run has added permissions: it gets this `mode` in the end.
    pub(super) fn resume(dir: &Arc<Dir>, mode: u32) -> LentMode {
        let mut loans = LOANS.lock();
        let new = Loan { mode, borrowers: 0 };
        let loan = loans.entry(dir.identity()).or_insert(new);
        loan.mode = mode;
        loan.borrowers += 1;
        LentMode { dir: dir.clone() }
    }

    /// The mode that the directory gets in the end.
    pub(super) fn mode(&self) -> Option<u32> {
        LOANS.lock().get(&self.dir.identity()).map(|loan| loan.mode)
    }

    /// Ends the loan; the directory is to have this `mode`, or that of before. True if nobody else
    /// works in it, so that the caller sets the mode.
    pub(super) fn end(self, mode: Option<u32>) -> bool {
        let dir = self.dir.clone();
        std::mem::forget(self);
        give_back(&dir, mode, |_| ())
    }
}

impl Drop for LentMode {
    fn drop(&mut self) {
        give_back(&self.dir, None, |mode| {
            // A drop cannot report an error.
            if let Ok(handle) = self.dir.handle() {
                let _ = fchmod(&*handle, Mode::from_raw_mode(mode));
            }
        });
    }
}

/// Ends one loan of a directory. If it is the last, calls `restore` with the mode, and returns true.
fn give_back(dir: &Arc<Dir>, mode: Option<u32>, restore: impl FnOnce(u32)) -> bool {
    let mut loans = LOANS.lock();
    let Some(loan) = loans.get_mut(&dir.identity()) else {
        return true;
    };
    loan.mode = mode.unwrap_or(loan.mode);
    loan.borrowers -= 1;
    if loan.borrowers > 0 {
        return false;
    }
    let mode = loan.mode;
    loans.remove(&dir.identity());
    restore(mode);
    true
}
