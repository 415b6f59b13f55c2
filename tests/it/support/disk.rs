//! Disks with faults: real file systems in files, mounted for a test. They need root. Tests of
//! quotas use btrfs, whose quotas need no further kernel support.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::case::Case;
use super::loops;

/// The smallest size of a btrfs with mixed data and metadata; the file is a hole at first.
const BTRFS_SIZE: u64 = 160 << 20;

/// One or more mounted file systems; the last one mounted is unmounted first.
pub(crate) struct Mounted {
    at: Vec<PathBuf>,
}

impl Mounted {
    /// A btrfs at `at`, where `at/limited` takes only `bytes`. None on a machine without btrfs.
    pub(crate) fn with_quota(case: &Case, at: &Path, bytes: u64) -> Option<Mounted> {
        let image = case.scratch.path("btrfs.img");
        image_of(&image, BTRFS_SIZE);
        let mut mounted = Mounted { at: Vec::new() };
        let limited = at.join("limited");
        let made = run("mkfs.btrfs", &["-q"], &[&image])
            && mounted.mount("loop", &image, at)
            && run("btrfs", &["-q", "quota", "enable"], &[at])
            && run("btrfs", &["-q", "subvolume", "create"], &[&limited])
            && run(
                "btrfs",
                &["qgroup", "limit", &bytes.to_string()],
                &[&limited],
            )
            && run("sync", &["-f"], &[at]);
        made.then_some(mounted)
    }

    /// An ext4 at `at` that takes about `bytes`, after which every write fails with EIO: its
    /// image is a file that cannot grow.
    pub(crate) fn failing(case: &Case, at: &Path, bytes: u64) -> Option<Mounted> {
        let below = case.scratch.dir("below").0;
        let mut mounted = Mounted::with_quota(case, &below, bytes)?;
        let image = below.join("limited/ext4.img");
        image_of(&image, 100 << 20);
        let options = ["-q", "-O", "^has_journal", "-E", "nodiscard"];
        // Mounted with `sync`: an error of a later writeback would reach only `--fsync`.
        let made = run("mkfs.ext4", &options, &[&image]) && mounted.mount("loop,sync", &image, at);
        made.then_some(mounted)
    }

    /// An ext4 of `bytes` at `at`, on a disk that can be full for a moment: its image is in a
    /// tmpfs. The inode tables are written beforehand, so that only contents are lost.
    pub(crate) fn thin(case: &Case, at: &Path, bytes: u64) -> Option<Mounted> {
        let below = case.scratch.dir("below").0;
        let mut mounted = Mounted::small(&below, 2 * bytes)?;
        let image = below.join("ext4.img");
        image_of(&image, bytes);
        let without = "^has_journal,^metadata_csum,^uninit_bg";
        let options = ["-q", "-O", without, "-E", "nodiscard,lazy_itable_init=0"];
        let made = run("mkfs.ext4", &options, &[&image])
            && mounted.mount("loop,errors=continue", &image, at)
            && run("sync", &["-f"], &[at]);
        made.then_some(mounted)
    }

    /// Fills the disk below a thin file system, calls `writing` to write, and syncs `file` so
    /// that the kernel reports failed writes. Then it gives the disk its room back. True if
    /// writes failed.
    pub(crate) fn lose(&self, file: &File, writing: impl FnOnce()) -> bool {
        let below = &self.at[0];
        let used = |field: &rustix::fs::StatVfs| (field.f_blocks - field.f_bfree) * field.f_frsize;
        let now = used(&rustix::fs::statvfs(below).expect("its size"));
        let size = |bytes: u64| {
            let options = format!("remount,size={bytes}");
            assert!(run("mount", &["-o", &options], &[below]), "remount it");
        };
        size(now);
        writing();
        let failed = file.sync_all().is_err();
        size(4 * now + (1 << 30));
        failed
    }

    /// A file system at `at` that clones files.
    pub(crate) fn cloning(case: &Case, at: &Path) -> Option<Mounted> {
        let image = case.scratch.path("btrfs.img");
        image_of(&image, BTRFS_SIZE);
        let mut mounted = Mounted { at: Vec::new() };
        let made = run("mkfs.btrfs", &["-q"], &[&image]) && mounted.mount("loop", &image, at);
        made.then_some(mounted)
    }

    /// An ext4 at `at` that keeps times in whole seconds.
    pub(crate) fn with_whole_seconds(case: &Case, at: &Path) -> Option<Mounted> {
        let image = case.scratch.path("ext4.img");
        image_of(&image, 32 << 20);
        let mut mounted = Mounted { at: Vec::new() };
        let made =
            run("mkfs.ext4", &["-q", "-I", "128"], &[&image]) && mounted.mount("loop", &image, at);
        made.then_some(mounted)
    }

    /// A file system at `at` that ignores case in names.
    pub(crate) fn caseless(case: &Case, at: &Path) -> Option<Mounted> {
        let image = case.scratch.path("exfat.img");
        image_of(&image, 64 << 20);
        let mut mounted = Mounted { at: Vec::new() };
        let made = run("mkfs.exfat", &[], &[&image])
            && run("mount", &["-t", "exfat-fuse", "-o", "loop"], &[&image, at]);
        mounted.at.extend(made.then(|| at.to_owned()));
        made.then_some(mounted)
    }

    /// Stops the process that serves a caseless file system until the guard is dropped. Calls of
    /// a copy into it hang, and not even SIGKILL ends the caller.
    pub(crate) fn hang(&self) -> Stopped {
        let at = self.at[0].to_str().expect("a path of ours");
        let serves = |pid: &i32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            line.is_ok_and(|line| line.contains("exfat-fuse") && line.contains(at))
        };
        let processes = std::fs::read_dir("/proc").expect("/proc is mounted");
        let pids = processes
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let pid = pids.into_iter().find(serves).expect("its process");
        let stopped = Stopped(Pid::from_raw(pid).expect("a process"));
        kill_process(stopped.0, Signal::STOP).expect("stop it");
        stopped
    }

    /// A tmpfs at `at` that takes `inodes` files and directories.
    pub(crate) fn of_inodes(at: &Path, inodes: u64) -> Option<Mounted> {
        // The directory itself takes one inode.
        Mounted::tmpfs(at, &format!("nr_inodes={}", inodes + 1))
    }

    /// A tmpfs of `bytes` at `at`.
    pub(crate) fn small(at: &Path, bytes: u64) -> Option<Mounted> {
        Mounted::tmpfs(at, &format!("size={bytes}"))
    }

    fn tmpfs(at: &Path, options: &str) -> Option<Mounted> {
        let mut mounted = Mounted { at: Vec::new() };
        let options = ["-t", "tmpfs", "-o", options, "fastcp-test"];
        let made = run("mount", &options, &[at]);
        mounted.at.extend(made.then(|| at.to_owned()));
        made.then_some(mounted)
    }

    fn mount(&mut self, options: &str, image: &Path, at: &Path) -> bool {
        let mounted = loops::mount(options, image, at);
        if mounted {
            self.at.push(at.to_owned());
        }
        mounted
    }
}

/// A stopped process; dropping this continues it.
pub(crate) struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have ended: a panic here would hide the cause.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for at in self.at.iter().rev() {
            // Lazily: a process left by a failed test may still use it.
            run("umount", &["-l"], &[at]);
        }
    }
}

fn image_of(path: &Path, size: u64) {
    File::create(path)
        .and_then(|file| file.set_len(size))
        .expect("make an image");
}

pub(crate) fn run(program: &str, args: &[&str], paths: &[&Path]) -> bool {
    Command::new(program)
        .args(args)
        .args(paths)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
