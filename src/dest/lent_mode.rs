//! Permissions that this process lends to directories of its user for as long as it works in them.
//!
//! Several parts of a process may work in one directory at a time: two sources may land in it, and
//! its extra entries may be deleted. The directory gets its mode when the last part is done, so the
//! parts are counted in one place.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, fchmod, fstat};
use rustix::io::Errno;

use crate::dir::Dir;

/// Permissions that the owner needs to fill or empty a directory.
pub(super) const WORKING: u32 = 0o700;

#[derive(Default)]
struct Loan {
    /// The mode that the directory gets in the end. None if it keeps the one that it has.
    mode: Option<u32>,
    borrowers: usize,
}

/// By device and inode. It holds as many entries as directories are open; a lock that is held during
/// two system calls on a directory, so that no other thread sees a mode that is about to change.
static LOANS: Mutex<BTreeMap<(u64, u64), Loan>> = Mutex::new(BTreeMap::new());

/// A directory that keeps the permissions of [`WORKING`]. When the last one of a directory is dropped,
/// the directory gets its mode back.
pub(super) struct LentMode {
    dir: Arc<Dir>,
    is_over: bool,
}

impl LentMode {
    /// Adds the missing permissions of [`WORKING`] if this user owns the directory. `before` is the
    /// mode before permissions were added by its name.
    ///
    /// # Errors
    /// If the status cannot be read, or the mode cannot be set.
    pub(super) fn lend(dir: &Arc<Dir>, before: Option<u32>) -> std::io::Result<LentMode> {
        let handle = dir.handle()?;
        let mut loans = LOANS.lock();
        let stat = fstat(&*handle)?;
        let mode = stat.st_mode & 0o7777;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
        let mut lacks = is_ours && mode & WORKING != WORKING;
        if lacks {
            match fchmod(&*handle, Mode::from_raw_mode(mode | WORKING)) {
                // It was opened without read permission, and can be filled without it.
                Err(Errno::BADF) => lacks = false,
                other => other?,
            }
        }
        let loan = loans.entry(dir.identity()).or_default();
        loan.mode = loan.mode.or(before).or(lacks.then_some(mode));
        loan.borrowers += 1;
        Ok(LentMode {
            dir: dir.clone(),
            is_over: false,
        })
    }

    /// Sets the mode that the directory gets in the end. None: it keeps the one that it has.
    pub(super) fn set_mode(&self, mode: Option<u32>) {
        if let Some(loan) = LOANS.lock().get_mut(&self.dir.identity()) {
            loan.mode = mode;
        }
    }

    /// The mode that the directory gets in the end, if it is another one.
    pub(super) fn mode(&self) -> Option<u32> {
        let loans = LOANS.lock();
        loans.get(&self.dir.identity()).and_then(|loan| loan.mode)
    }

    /// Ends the loan; the directory is to have this `mode`, or that of before, which `set` gives it. It
    /// keeps the permissions of [`WORKING`] while anybody else works in it.
    ///
    /// # Errors
    /// Of `set`.
    pub(super) fn end<E>(
        mut self,
        mode: Option<u32>,
        set: impl FnOnce(u32) -> Result<(), E>,
    ) -> Result<(), E> {
        self.is_over = true;
        give_back(&self.dir, mode, set)
    }
}

impl Drop for LentMode {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let set = |mode| {
            let handle = self.dir.handle()?;
            Ok::<_, std::io::Error>(fchmod(&*handle, Mode::from_raw_mode(mode))?)
        };
        // A drop cannot report an error.
        let _ = give_back(&self.dir, None, set);
    }
}

/// Ends one loan of a directory. `set` is called under the lock: whoever borrows it next sees the mode.
fn give_back<E>(
    dir: &Arc<Dir>,
    mode: Option<u32>,
    set: impl FnOnce(u32) -> Result<(), E>,
) -> Result<(), E> {
    let mut loans = LOANS.lock();
    let Some(loan) = loans.get_mut(&dir.identity()) else {
        return Ok(());
    };
    loan.mode = mode.or(loan.mode);
    loan.borrowers -= 1;
    let (mode, is_last) = (loan.mode, loan.borrowers == 0);
    if is_last {
        loans.remove(&dir.identity());
    }
    match mode {
        Some(mode) if is_last => set(mode),
        Some(mode) => set(mode | WORKING),
        None => Ok(()),
    }
}
