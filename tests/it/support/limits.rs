//! Small environments: a disk of a few megabytes, a user without privileges.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::process::geteuid;
use tempfile::{NamedTempFile, TempDir};

use super::case::Case;
use super::tree::Dir;

/// A file system with little free space; removed when dropped.
pub(crate) struct Disk {
    pub dir: Dir,
    _kind: Kind,
}

enum Kind {
    /// A separate tmpfs; it needs the right to mount.
    Mounted(PathBuf),
    /// A small /dev/shm, as containers have it, filled up. Only one test uses it at a time.
    Shared {
        _dir: TempDir,
        _filler: NamedTempFile,
        _turn: MutexGuard<'static, ()>,
    },
}

/// A /dev/shm with more free space takes too much of the machine's memory to fill.
const SHARED_MAX: u64 = 256 << 20;

impl Disk {
    /// None where this machine allows neither.
    pub(crate) fn small(case: &Case, bytes: u64) -> Option<Disk> {
        let dir = case.scratch.dir("disk");
        let size = format!("size={bytes}");
        if run(
            "mount",
            &["-t", "tmpfs", "-o", &size, "fastcp-test"],
            &dir.0,
        ) {
            let _kind = Kind::Mounted(dir.0.clone());
            return Some(Disk { dir, _kind });
        }
        Disk::in_shared_memory(bytes)
    }

    fn in_shared_memory(bytes: u64) -> Option<Disk> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let stat = rustix::fs::statvfs("/dev/shm").ok()?;
        let free = stat.f_bavail * stat.f_frsize;
        if !(bytes..SHARED_MAX).contains(&free) {
            return None;
        }
        let filler = NamedTempFile::new_in("/dev/shm").ok()?;
        let dir = tempfile::tempdir_in("/dev/shm").ok()?;
        rustix::fs::fallocate(&filler, FallocateFlags::empty(), 0, free - bytes).ok()?;
        Some(Disk {
            dir: Dir(dir.path().to_owned()),
            _kind: Kind::Shared {
                _dir: dir,
                _filler: filler,
                _turn: turn,
            },
        })
    }

    /// Takes all free space.
    pub(crate) fn fill(&self) {
        let mut filler = std::fs::File::create(self.dir.path("filler")).expect("make a file");
        std::io::copy(&mut std::io::repeat(1), &mut filler).expect_err("the disk is small");
    }
}

impl Drop for Kind {
    fn drop(&mut self) {
        if let Kind::Mounted(dir) = self {
            // Lazily: a process left by a failed test may still use it.
            run("umount", &["-l"], dir);
        }
    }
}

fn run(program: &str, args: &[&str], path: &Path) -> bool {
    Command::new(program)
        .args(args)
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Words before a command that take root's power to ignore file modes; empty for other users.
pub(crate) fn without_powers() -> Vec<String> {
    if !geteuid().is_root() {
        return Vec::new();
    }
    let powers = "-dac_override,-dac_read_search,-chown,-fowner,-fsetid";
    vec![
        "setpriv".into(),
        format!("--bounding-set={powers}"),
        format!("--inh-caps={powers}"),
    ]
}
