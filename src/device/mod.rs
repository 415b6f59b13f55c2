//! A block device at either end: its size, its users, and reads and writes at offsets.
//!
//! Without `--force` a device is opened for writing with `O_EXCL`. The kernel then refuses a device
//! that is mounted, used as swap, or part of another device. [`usage`] finds out who uses it, for
//! the message.

mod bounce;
mod usage;

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    Advice, FallocateFlags, FileType, Mode, OFlags, SeekFrom, fadvise, fallocate, fcntl_getfl,
    fcntl_setfl, fstat, ioctl_blksszget, seek,
};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result, Side, reason_of};
use crate::manifest::file_type;
use bounce::{ALIGNMENT, Bounces};
pub use usage::used_by;

/// Time between two attempts to open a device that another process holds.
const INTERVAL: Duration = Duration::from_millis(50);

/// The purpose for which a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    Read,
    /// For writing, without other users. If the user of the device is unknown, the open is retried:
    /// the device of a killed writer stays busy until the kernel has written the cache back.
    Write {
        patience: Duration,
    },
    /// For writing, even if others use it.
    WriteByForce,
}

/// An open block device, which several threads use at once.
pub struct BlockDevice {
    file: File,
    /// For aligned reads and writes that bypass the page cache.
    direct: Option<Direct>,
    /// As the user would write it, for messages.
    path: PathBuf,
    side: Side,
    rdev: u64,
    size: u64,
    sector: usize,
}

struct Direct {
    file: File,
    bounces: Bounces,
}

impl BlockDevice {
    /// # Errors
    /// `Kind::Entry` if it is not a block device; `Kind::Refused` if it is opened for writing and
    /// in use; otherwise `Kind::Read` or `Kind::Write`. The latter also stands for a read-only
    /// device.
    pub fn open(path: &Path, access: DeviceUse) -> Result<BlockDevice> {
        let (flags, side) = match access {
            DeviceUse::Read => (OFlags::RDONLY, Side::Source),
            // Its content is read too, to find out which chunks of an earlier copy are correct.
            DeviceUse::Write { .. } => (OFlags::RDWR | OFlags::EXCL, Side::Dest),
            DeviceUse::WriteByForce => (OFlags::RDWR, Side::Dest),
        };
        // NONBLOCK: opening something else, such as a FIFO, must not block.
        let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let since = Instant::now();
        let fd = loop {
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(fd) => break fd,
                Err(Errno::BUSY) => refuse_in_use(path, side, access, since.elapsed())?,
                Err(cause) => return Err(Error::io(kind(side), side, path, "cannot open", cause)),
            }
            std::thread::sleep(INTERVAL);
        };
        let failed =
            |cause: Errno| Error::io(kind(side), side, path, "cannot read its status", cause);
        let stat = fstat(&fd).map_err(failed)?;
        if file_type(&stat) != FileType::BlockDevice {
            let message = "is not a block device";
            return Err(Error::new(Kind::Entry, side, message).at(path));
        }
        if access != DeviceUse::Read && usage::is_read_only(stat.st_rdev) {
            let message = "is read-only (blockdev --setrw may make it writable)";
            return Err(Error::new(Kind::Write, side, message).at(path));
        }
        Ok(BlockDevice {
            // The end of a block device is its size; BLKGETSIZE64 returns the same number.
            size: seek(&fd, SeekFrom::End(0)).map_err(failed)?,
            sector: ioctl_blksszget(&fd).map_err(failed)?.max(512) as usize,
            file: fd.into(),
            direct: None,
            path: path.to_owned(),
            side,
            rdev: stat.st_rdev,
        })
    }

    /// Makes aligned ranges bypass the page cache from now on, through an aligned copy if a buffer
    /// is not aligned. The rest goes through the cache as before.
    ///
    /// # Errors
    /// `Kind::Usage` if the device does not support direct I/O.
    pub fn go_direct(&mut self) -> Result<()> {
        let failed = |cause: io::Error| {
            let why = reason_of(&cause);
            let message =
                format!("direct I/O is not possible on this device: {why}; leave out --direct-io");
            Error::new(Kind::Usage, self.side, message).at(&self.path)
        };
        // The flag belongs to the open file, and unaligned ends need a file without it. A second
        // open with EXCL would conflict with the first, and the first already keeps others out.
        let access = match self.side {
            Side::Source => OFlags::RDONLY,
            _ => OFlags::RDWR,
        };
        let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = rustix::fs::open(&self.path, flags, Mode::empty());
        let fd = fd.map_err(|cause| failed(cause.into()))?;
        let stat = fstat(&fd).map_err(|cause| failed(cause.into()))?;
        if file_type(&stat) != FileType::BlockDevice || stat.st_rdev != self.rdev {
            let message = "changed while it was opened: the path leads to another device now; start \
                           the copy again";
            return Err(Error::new(Kind::Changed, self.side, message).at(&self.path));
        }
        let flags = fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags | OFlags::DIRECT));
        flags.map_err(|cause| failed(cause.into()))?;
        let file = fd.into();
        self.direct = Some(Direct {
            file,
            bounces: Bounces::default(),
        });
        Ok(())
    }

    /// The size in bytes when the device was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The present size in bytes: a volume can be resized while it is copied.
    pub fn size_now(&self) -> io::Result<u64> {
        // Nothing reads at the position of this file, so it may be moved.
        Ok(seek(&self.file, SeekFrom::End(0))?)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Like [`stable_name`] of its path, which may belong to another device by now.
    pub fn stable_name(&self) -> Vec<u8> {
        usage::stable_name(self.rdev, &self.path)
    }

    /// Fills `room` from `offset`.
    pub fn read_at(&self, room: &mut [u8], offset: u64) -> io::Result<()> {
        let (whole, rest) = room.split_at_mut(self.direct_len(room.len(), offset));
        if let Some(direct) = &self.direct {
            let read = |room: &mut [u8]| direct.file.read_exact_at(room, offset);
            direct.bounces.read(whole, read)?;
        }
        self.file.read_exact_at(rest, offset + whole.len() as u64)
    }

    /// Writes all of `bytes` at `offset`.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (mut whole, mut rest) = bytes.split_at(self.direct_len(bytes.len(), offset));
        if let Some(direct) = &self.direct {
            let write = |bytes: &[u8]| direct.file.write_all_at(bytes, offset);
            match direct.bounces.write(whole, write) {
                // The device needs a larger alignment than expected.
                Err(cause) if Errno::from_io_error(&cause) == Some(Errno::INVAL) => {
                    (whole, rest) = (&[], bytes);
                }
                written => written?,
            }
        }
        let offset = offset + whole.len() as u64;
        self.file.write_all_at(rest, offset)?;
        if let Some(len) = NonZeroU64::new(rest.len() as u64) {
            // Makes the kernel start writing at once. Otherwise the sync at the end would have to
            // wait for the whole cache, and so would the process after a killed writer.
            let _ = fadvise(&self.file, offset, Some(len), Advice::DontNeed);
        }
        Ok(())
    }

    /// Makes a range read as zeros. The device does it if it can, as with BLKZEROOUT; otherwise
    /// this writes zeros. Nothing is discarded.
    pub fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let whole = self.whole_sectors(offset, len);
        let done = match whole {
            0 => false,
            _ => self.fallocate(FallocateFlags::ZERO_RANGE, offset, whole)?,
        };
        let at = if done { offset + whole } else { offset };
        self.write_zeros(at, offset + len)
    }

    /// Like [`zero`](BlockDevice::zero), but also gives the space back to a device that supports it
    /// and is known to read zeros there. The kernel makes a hole in a device only if both hold. A
    /// block that is merely discarded is not guaranteed to read as zeros.
    pub fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let whole = self.whole_sectors(offset, len);
        if whole > 0 && self.fallocate(FallocateFlags::PUNCH_HOLE, offset, whole)? {
            return self.write_zeros(offset + whole, offset + len);
        }
        self.zero(offset, len)
    }

    /// Length of the whole sectors at the start of a range; 0 if `offset` is not at a sector.
    fn whole_sectors(&self, offset: u64, len: u64) -> u64 {
        let sector = self.sector as u64;
        if offset.is_multiple_of(sector) {
            len / sector * sector
        } else {
            0
        }
    }

    /// False if the device or the kernel (before 4.9) does not support it.
    fn fallocate(&self, how: FallocateFlags, offset: u64, len: u64) -> io::Result<bool> {
        // KEEP_SIZE, because a device cannot grow.
        match fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, offset, len) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => Ok(false),
            // Another process has its pages in the cache, which happens only with --force.
            Err(Errno::BUSY | Errno::INTR) => Ok(false),
            Err(cause) => Err(cause.into()),
        }
    }

    fn write_zeros(&self, mut at: u64, end: u64) -> io::Result<()> {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        while at < end {
            let step = (end - at).min(ZEROS.len() as u64);
            self.write_at(&ZEROS[..step as usize], at)?;
            at += step;
        }
        Ok(())
    }

    /// Returns when all writes are on the device, or with an error.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.file.as_fd())?)
    }

    /// How many bytes from the start of a range bypass the page cache.
    fn direct_len(&self, len: usize, offset: u64) -> usize {
        let grain = self.sector.max(ALIGNMENT);
        if self.direct.is_some() && offset.is_multiple_of(grain as u64) {
            len / grain * grain
        } else {
            0
        }
    }
}

/// A name that identifies the device at `path` even if a restart renumbers the devices, if the
/// kernel knows one; otherwise its path. None if there is no device.
pub fn stable_name(path: &Path) -> Option<Vec<u8>> {
    let stat = rustix::fs::stat(path).ok()?;
    let is_device = file_type(&stat) == FileType::BlockDevice;
    is_device.then(|| usage::stable_name(stat.st_rdev, path))
}

fn kind(side: Side) -> Kind {
    match side {
        Side::Source => Kind::Read,
        _ => Kind::Write,
    }
}

/// `Ok` if the device may become free soon.
fn refuse_in_use(path: &Path, side: Side, access: DeviceUse, waited: Duration) -> Result<()> {
    let used = rustix::fs::stat(path).ok();
    let used = used.and_then(|stat| used_by(stat.st_rdev));
    let way_out = match access {
        DeviceUse::Write { patience } if used.is_none() && waited < patience => return Ok(()),
        DeviceUse::Write { .. } => "free it first, or overwrite it with --force",
        // Some kernels never allow writing to a mounted device.
        DeviceUse::Read | DeviceUse::WriteByForce => "free it first",
    };
    let used = used.unwrap_or_else(|| "is in use by another program".to_owned());
    let message = format!("{used}; {way_out}");
    Err(Error::new(Kind::Refused, side, message).at(path))
}

#[cfg(test)]
pub mod testing;
