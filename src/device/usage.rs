//! The users of a block device and its permanent name, from /proc and /sys. This is for messages
//! and keys only; `O_EXCL` decides whether a device may be written.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, major, minor};

use crate::manifest::file_type;
use crate::units::printable;

/// Bytes read from a kernel table; a host with more mounts gets a less exact message.
const TABLE_MAX: u64 = 4 << 20;

/// Limit of partitions, and of devices on top of a device, that are checked.
const LISTED_MAX: usize = 256;

/// The use of the device with this number, worded for a message: "is mounted on /srv", "is in use
/// as swap", "is part of vg-lv (dm-3)". Includes partitions. None if no use is known.
pub fn used_by(rdev: u64) -> Option<String> {
    let mut all = std::iter::once((rdev, None)).chain(partitions(rdev));
    all.find_map(|(rdev, partition)| {
        let how = mounted(rdev)
            .or_else(|| swapped(rdev))
            .or_else(|| part_of(rdev))?;
        Some(match partition {
            None => how,
            Some(name) => format!("has a partition {name} that {how}"),
        })
    })
}

/// The ID of a volume, a disk's world-wide name or a loop device's file; otherwise the path.
pub(super) fn stable_name(rdev: u64, path: &Path) -> Vec<u8> {
    let dir = sys(rdev);
    let facts = [
        "dm/uuid",
        "md/uuid",
        "wwid",
        "device/wwid",
        "loop/backing_file",
    ];
    for fact in facts {
        if let Some(text) = line(&dir.join(fact)) {
            return [fact.as_bytes(), b"=", &text].concat();
        }
    }
    // A partition is named by its disk and its number.
    if let (Some(number), Ok(own)) = (line(&dir.join("partition")), dir.canonicalize())
        && let Some(disk) = own.parent()
    {
        for fact in ["wwid", "device/wwid", "loop/backing_file"] {
            if let Some(text) = line(&disk.join(fact)) {
                return [fact.as_bytes(), b"=", &text, b" partition=", &number].concat();
            }
        }
    }
    [b"path=", path.as_os_str().as_bytes()].concat()
}

/// True if the kernel does not allow writes. The open succeeds, and only the first write fails.
pub(super) fn is_read_only(rdev: u64) -> bool {
    line(&sys(rdev).join("ro")).as_deref() == Some(b"1")
}

fn sys(rdev: u64) -> PathBuf {
    format!("/sys/dev/block/{}", number(rdev)).into()
}

fn number(rdev: u64) -> String {
    format!("{}:{}", major(rdev), minor(rdev))
}

/// The partitions of a disk with their names.
fn partitions(rdev: u64) -> Vec<(u64, Option<String>)> {
    let mut found = Vec::new();
    for name in listed(&sys(rdev)) {
        let dir = sys(rdev).join(&name);
        if dir.join("partition").exists()
            && let Some(dev) = line(&dir.join("dev"))
            && let Some((major, minor)) = std::str::from_utf8(&dev)
                .ok()
                .and_then(|dev| dev.split_once(':'))
            && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
        {
            let rdev = rustix::fs::makedev(major, minor);
            found.push((rdev, Some(printable(name.as_bytes()))));
        }
    }
    found
}

fn mounted(rdev: u64) -> Option<String> {
    let table = table("/proc/self/mountinfo");
    let number = number(rdev);
    table.split(|&byte| byte == b'\n').find_map(|line| {
        let fields: Vec<_> = line.split(|&byte| byte == b' ').collect();
        let (dev, place) = (fields.get(2)?, fields.get(4)?);
        // A file system on several devices has its own device number, but names one of its devices.
        let dash = fields.iter().position(|field| *field == b"-")?;
        let of = fields.get(dash + 2).map(|field| unescaped(field));
        let is_it = *dev == number.as_bytes() || of.is_some_and(|path| is_device(&path, rdev));
        is_it.then(|| format!("is mounted on {}", printable(&unescaped(place))))
    })
}

fn swapped(rdev: u64) -> Option<String> {
    let table = table("/proc/swaps");
    let mut lines = table.split(|&byte| byte == b'\n').skip(1);
    let used = lines.any(|line| {
        let path = line.split(|&byte| byte == b' ' || byte == b'\t').next();
        path.is_some_and(|path| is_device(&unescaped(path), rdev))
    });
    used.then(|| "is in use as swap".to_owned())
}

/// A volume or an array on top of the device.
fn part_of(rdev: u64) -> Option<String> {
    let holder = listed(&sys(rdev).join("holders")).into_iter().next()?;
    let shown = printable(holder.as_bytes());
    let name = line(&Path::new("/sys/block").join(&holder).join("dm/name"));
    Some(match name {
        Some(name) => format!("is part of {} ({shown})", printable(&name)),
        None => format!("is part of {shown}"),
    })
}

fn is_device(path: &[u8], rdev: u64) -> bool {
    // Many mounts have no path as their source.
    path.starts_with(b"/")
        && rustix::fs::stat(path)
            .is_ok_and(|stat| file_type(&stat) == FileType::BlockDevice && stat.st_rdev == rdev)
}

fn listed(dir: &Path) -> Vec<OsString> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    let mut names: Vec<_> = names.take(LISTED_MAX).collect();
    names.sort();
    names
}

/// The only line of a file of /sys; None if it is empty or cannot be read.
fn line(path: &Path) -> Option<Vec<u8>> {
    let mut text = table(path);
    while text.last().is_some_and(u8::is_ascii_whitespace) {
        text.pop();
    }
    (!text.is_empty()).then_some(text)
}

fn table(path: impl AsRef<Path>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // If the read fails midway, the bytes so far are as good as a shorter table.
        let _ = file.take(TABLE_MAX).read_to_end(&mut bytes);
    }
    bytes
}

/// Undoes the escapes in kernel tables, such as `\040` for a space.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\');
        let code = octal.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_escapes_is_read_back() {
        let read = |text: &str| String::from_utf8(unescaped(text.as_bytes())).unwrap();
        assert_eq!(read("/mnt/a\\040b\\134c"), "/mnt/a b\\c");
        assert_eq!(read("\\04"), "\\04");
        assert_eq!(read("\\9999"), "\\9999");
    }
}
