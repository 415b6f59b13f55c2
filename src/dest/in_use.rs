//! Whether another process holds a file open for writing: replaced, it would go on writing to a
//! file that has no name any more, and what it writes would be lost.

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::libc;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat};

use super::{Rules, Slot};
use crate::error::Result;
use crate::manifest::file_type;

/// Which signal tells of a broken lease; the same number on every Linux, which libc's crate names
/// on some only.
const F_SETSIG: libc::c_int = 10;

/// Refuses a file that is open for writing elsewhere, unless the user said `--force`. The kernel
/// tells by refusing a lease on it; it gives leases to a file's owner and to root alone, and some
/// file systems have none: then nobody can tell, and the copy goes on.
pub(super) fn refuse_in_use(slot: &Slot, old: &Stat, rules: &Rules) -> Result<()> {
    if rules.force || file_type(old) != FileType::RegularFile {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let Ok(fd) = slot.dir.open(slot.name.as_os_str(), flags, Mode::empty()) else {
        return Ok(());
    };
    let is_file = fstat(&fd).is_ok_and(|stat| file_type(&stat) == FileType::RegularFile);
    if is_file && is_open_for_writing(&File::from(fd)) {
        return Err(slot.refused(
            "is open for writing in another process, which would go on writing to what is \
             replaced (--force does it all the same)",
        ));
    }
    Ok(())
}

fn is_open_for_writing(file: &File) -> bool {
    // A process that opens the file while we hold the lease makes the kernel send us a signal:
    // SIGIO would end us, this one is ignored by default.
    let quiet = lease(file, F_SETSIG, libc::SIGURG);
    if quiet.is_err() {
        return false;
    }
    let taken = lease(file, libc::F_SETLEASE, libc::F_RDLCK);
    // Closing the file gives it back too.
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
        // Where the file system has leases.
        if let Err(error) = refuse_in_use(&slot, &old, &rules()) {
            assert_eq!(error.kind, Kind::Refused);
            assert!(error.message.contains("--force"), "{error}");
        }
        let force = Rules {
            force: true,
            ..rules()
        };
        refuse_in_use(&slot, &old, &force).unwrap();
        drop(writer);
        refuse_in_use(&slot, &old, &rules()).unwrap();
    }
}
