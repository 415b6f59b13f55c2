//! A check whether another process has a file open for writing. If the file were replaced, that
//! process would continue to write to a file without a name, and its data would be lost.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::libc;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat};

use super::own_names::make_way;
use super::{EntrySlot, Rules};
use crate::error::Result;
use crate::manifest::file_type;

/// Chooses the signal for a broken lease. The libc crate has it for some targets only; the number
/// is the same on every Linux but that of PA-RISC.
const F_SETSIG: libc::c_int = 10;

/// A new process holds its parent's open files until it runs its own program. So a file counts as
/// open for writing only if it is so at each of several looks.
const LOOKS: u32 = 5;
const LOOKS_APART: Duration = Duration::from_millis(20);

/// Refuses a file that another process has open for writing, unless the user gave `--force`.
pub(super) fn refuse_in_use(slot: &EntrySlot, old: &Stat, rules: &Rules) -> Result<()> {
    if !rules.force && is_in_use(slot, old)? {
        return Err(slot.refused(
            "is open for writing in another process, which would continue to write to the old \
             file (--force replaces it anyway)",
        ));
    }
    Ok(())
}

/// The same for a file that a link or a special file replaces. With `--inplace` this copy may write
/// to such a file by another of its names.
pub(super) fn refuse_in_use_elsewhere(slot: &EntrySlot, old: &Stat, rules: &Rules) -> Result<()> {
    match rules.inplace && old.st_nlink > 1 {
        true => Ok(()),
        false => refuse_in_use(slot, old, rules),
    }
}

/// True if another process has the file open for writing. The kernel shows this by refusing a lease
/// on the file. It gives leases only to the file's owner and root, and some file systems have none:
/// then the copy continues, since nobody can tell.
pub(super) fn is_in_use(slot: &EntrySlot, old: &Stat) -> Result<bool> {
    if file_type(old) != FileType::RegularFile {
        return Ok(false);
    }
    // An entry may be called like an unfinished file: this process has the file open for writing
    // while it looks whether it is one.
    make_way(slot)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let Ok(fd) = slot.dir.open(slot.name.as_os_str(), flags, Mode::empty()) else {
        return Ok(false);
    };
    let is_file = fstat(&fd).is_ok_and(|stat| file_type(&stat) == FileType::RegularFile);
    let file = File::from(fd);
    let is_used = |look| {
        if look > 0 {
            std::thread::sleep(LOOKS_APART);
        }
        is_open_for_writing(&file)
    };
    Ok(is_file && (0..LOOKS).all(is_used))
}

fn is_open_for_writing(file: &File) -> bool {
    // If a process opens the file while this one holds the lease, the kernel sends a signal. SIGIO
    // would end this process; SIGURG is ignored by default.
    let quiet = lease(file, F_SETSIG, libc::SIGURG);
    if quiet.is_err() {
        return false;
    }
    let taken = lease(file, libc::F_SETLEASE, libc::F_RDLCK);
    // Closing the file would release it too.
    let _ = lease(file, libc::F_SETLEASE, libc::F_UNLCK);
    taken == Err(libc::EAGAIN)
}

fn lease(file: &File, command: libc::c_int, argument: libc::c_int) -> Result<(), i32> {
    // SAFETY: the descriptor is open while `file` is borrowed, and both commands take a number.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_file_that_is_open_for_writing_is_refused_without_force() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a");
        std::fs::write(&path, b"x").unwrap();
        let slot = slot(temp.path(), "a");
        let old = slot.stat().unwrap().unwrap();
        refuse_in_use(&slot, &old, &rules()).unwrap();
        let reader = File::open(&path).unwrap();
        refuse_in_use(&slot, &old, &rules()).unwrap();
        drop(reader);
        let writer = File::options().append(true).open(&path).unwrap();
        // Only if the file system has leases.
        if let Err(error) = refuse_in_use(&slot, &old, &rules()) {
            assert_eq!(error.kind, Kind::Refused);
            assert!(error.message.contains("--force"), "{error}");
        }
        let force = Rules {
            force: true,
            ..rules()
        };
        refuse_in_use(&slot, &old, &force).unwrap();
        // The writer may be this copy.
        std::fs::hard_link(&path, temp.path().join("b")).unwrap();
        let inplace = Rules {
            inplace: true,
            ..rules()
        };
        let linked = slot.stat().unwrap().unwrap();
        refuse_in_use_elsewhere(&slot, &linked, &inplace).unwrap();
        drop(writer);
        // A process that another test has just started may still have the file open.
        let began = std::time::Instant::now();
        while let Err(error) = refuse_in_use(&slot, &old, &rules()) {
            assert!(began.elapsed().as_secs() < 60, "{error}");
            std::thread::yield_now();
        }
    }
}
