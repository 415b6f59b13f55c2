//! Loop devices: block devices backed by a file. They need root.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::OFlags;

use super::tree::Dir;

/// Attempts to get a free device, or to mount or unmount one. Other tests take devices too, and a
/// process that they are about to start may inherit a descriptor that was open here.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// The attempts to unmount: a killed receiver's sync ends only when the disk has finished it.
const BUSY_TRIES: usize = 600;

/// A loop device; detached when dropped.
pub(crate) struct Loop {
    pub path: PathBuf,
    file: PathBuf,
}

impl Loop {
    /// Makes one backed by a file in `dir` with this content, a multiple of 512 bytes. None where
    /// this machine gives tests no loop devices.
    pub(crate) fn new(dir: &Dir, name: &str, content: impl AsRef<[u8]>) -> Option<Loop> {
        let file = dir.file(name, content);
        match attached(&file) {
            Some(path) => Some(Loop { path, file }),
            None => {
                // Leaves no file where there are no devices.
                std::fs::remove_file(file).expect("it was made just now");
                None
            }
        }
    }

    /// The whole content of the device.
    pub(crate) fn content(&self) -> Vec<u8> {
        let mut content = Vec::new();
        let read = File::open(&self.path).and_then(|mut file| file.read_to_end(&mut content));
        read.expect("read the device");
        content
    }

    /// Writes directly to the device, past any user of it.
    pub(crate) fn write(&self, content: &[u8], offset: u64) {
        let mut options = File::options();
        let file = options.write(true).open(&self.path).expect("open it");
        file.write_all_at(content, offset).expect("write to it");
        file.sync_all().expect("sync it");
    }

    /// Opens it exclusively, which keeps others from writing to it, as a mount does.
    pub(crate) fn hold(&self) -> File {
        alone(&self.path).expect("open it alone")
    }

    /// Bytes on disk of the backing file.
    pub(crate) fn taken(&self) -> u64 {
        std::fs::metadata(&self.file).expect("its file").blocks() * 512
    }

    /// Makes a file system on it and mounts that until the guard is dropped.
    pub(crate) fn mounted(&self, at: &Path) -> Option<Mount> {
        let made = again_and_again(TRIES, || run("mkfs.ext4", &["-q".as_ref(), &self.path]));
        made.then(|| self.mounted_again(at)).flatten()
    }

    /// Mounts the file system that is on it.
    pub(crate) fn mounted_again(&self, at: &Path) -> Option<Mount> {
        again_and_again(TRIES, || run("mount", &[&self.path, at])).then(|| Mount {
            device: self.path.clone(),
            at: at.to_owned(),
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach".as_ref(), &self.path]);
    }
}

pub(crate) struct Mount {
    device: PathBuf,
    at: PathBuf,
}

impl Mount {
    /// Unmounts it. Returns false if the device is still mounted elsewhere: a test with network
    /// namespaces may have a copy of the mount. A new mount of the device would then get the same
    /// file system with its cached state.
    pub(crate) fn end(self) -> bool {
        let device = self.device.clone();
        drop(self);
        again_and_again(TRIES, || alone(&device).is_ok())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !again_and_again(BUSY_TRIES, || run("umount", &[&self.at])) {
            run("umount", &["--lazy".as_ref(), &self.at]);
        }
    }
}

/// Opens the device exclusively; fails while it is mounted anywhere.
fn alone(device: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).custom_flags(OFlags::EXCL.bits() as i32);
    options.open(device)
}

/// Mounts a file system image; false where this machine does not allow it.
pub(crate) fn mount(options: &str, image: &Path, at: &Path) -> bool {
    again_and_again(TRIES, || {
        run("mount", &["-o".as_ref(), options.as_ref(), image, at])
    })
}

/// Retries `what`; true once it succeeds.
fn again_and_again(tries: usize, what: impl Fn() -> bool) -> bool {
    (0..tries).any(|nth| {
        if nth > 0 {
            std::thread::sleep(PAUSE);
        }
        what()
    })
}

fn run(program: &str, args: &[&Path]) -> bool {
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

fn attached(file: &Path) -> Option<PathBuf> {
    for _ in 0..TRIES {
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .stderr(Stdio::null())
            .output()
            .ok()?;
        if made.status.success() {
            let path = String::from_utf8(made.stdout).expect("a path");
            return Some(path.trim().into());
        }
        std::thread::sleep(PAUSE);
    }
    None
}
