//! A block device as the source. It is read range by range like a big file, but no times show
//! whether it was written during the copy. So a resumed copy reads it again and compares.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::Stat;

use crate::device::{self, BlockDevice, DeviceUse};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;
use crate::units::printable;

/// Number of blocks sampled before a device is copied, and their size in bytes. This takes about
/// two seconds on a disk that has to move its heads, and is accurate to six percentage points.
const SAMPLES: u64 = 256;
const SAMPLE_BLOCK: usize = 4096;

/// An open block device, which several threads read at once.
pub struct SourceDevice {
    device: BlockDevice,
}

/// True for the status of a block device.
pub fn is_device(stat: &Stat) -> bool {
    file_type(stat) == rustix::fs::FileType::BlockDevice
}

/// A warning to show before the copy, if `path` is a device that is in use.
pub fn warning(path: &Path, stat: &Stat) -> Option<String> {
    let used = device::used_by(is_device(stat).then_some(stat.st_rdev)?)?;
    let path = printable(path.as_os_str().as_bytes());
    Some(format!(
        "fastcp: warning: {path} {used}: the copy may be inconsistent; copy a snapshot instead"
    ))
}

impl SourceDevice {
    /// # Errors
    /// `Kind::Read`, also if nothing is in the device; `Kind::Entry` if it is no block device;
    /// `Kind::Usage` if it does not support `direct` I/O.
    pub fn open(path: &Path, direct: bool) -> Result<SourceDevice> {
        let mut device = BlockDevice::open(path, DeviceUse::Read)?;
        if device.size() == 0 {
            let message = "the device has size 0: it has no medium or no backing file";
            return Err(Error::new(Kind::Read, Side::Source, message).at(path));
        }
        if direct {
            device.go_direct()?;
        }
        Ok(SourceDevice { device })
    }

    /// An estimate, from a few blocks, of the least number of bytes that a file with this content
    /// occupies: blocks of zeros become holes. At most one in forty devices needs less than this.
    pub fn content(&self) -> u64 {
        let places = self.size() / SAMPLE_BLOCK as u64;
        let samples = places.min(SAMPLES);
        let mut block = [0; SAMPLE_BLOCK];
        let mut full = 0.0;
        for n in 0..samples {
            let place = (u128::from(places) * u128::from(n) / u128::from(samples)) as u64;
            let read = self.device.read_at(&mut block, place * SAMPLE_BLOCK as u64);
            // If a read fails, the copy reports why.
            full += f64::from(u8::from(read.is_ok() && block != [0; SAMPLE_BLOCK]));
        }
        let samples = samples.max(1) as f64;
        let share = full / samples;
        // Twice the standard error of a share measured with so many samples.
        let doubt = 2.0 * (share * (1.0 - share) / samples).sqrt();
        (self.size() as f64 * (share - doubt).max(0.0)) as u64
    }

    /// The size in bytes when the device was opened.
    pub fn size(&self) -> u64 {
        self.device.size()
    }

    /// Fills `room` with the bytes at `offset`.
    pub fn read(&self, offset: u64, room: &mut [u8]) -> Result<()> {
        let read = self.device.read_at(room, offset);
        read.map_err(|cause| self.cannot_read(cause))
    }

    /// The present size in bytes.
    pub fn size_now(&self) -> Result<u64> {
        let now = self.device.size_now();
        now.map_err(|cause| self.cannot_read(cause))
    }

    /// Checks that the size has not changed; to be called after the last byte was read.
    ///
    /// # Errors
    /// `Kind::Changed` if the device has another size now. A write to it cannot be detected.
    pub fn unchanged(&self) -> Result<()> {
        let now = self.size_now()?;
        if now == self.size() {
            return Ok(());
        }
        let message = format!(
            "was resized during the copy: from {} to {now} bytes",
            self.size()
        );
        Err(Error::new(Kind::Changed, Side::Source, message).at(self.device.path()))
    }

    fn cannot_read(&self, cause: std::io::Error) -> Error {
        let path = self.device.path();
        Error::io(Kind::Read, Side::Source, path, "cannot read", cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::testing::{Loop, run};

    const MIB: usize = 1 << 20;

    #[test]
    fn a_device_is_read_as_it_is() {
        let content = [vec![7; MIB], vec![0; MIB], vec![8; MIB / 2]].concat();
        let Some(disk) = Loop::new(&content) else {
            return;
        };
        for direct in [false, true] {
            let device = SourceDevice::open(&disk.path, direct).unwrap();
            assert_eq!(device.size(), content.len() as u64);
            let mut read = vec![0; content.len() - 100];
            for (index, room) in read.chunks_mut(MIB).enumerate() {
                device.read((index * MIB) as u64, room).unwrap();
            }
            assert!(read == content[..content.len() - 100]);
            device.unchanged().unwrap();
            let past = device.read(content.len() as u64, &mut [0]);
            assert_eq!(past.unwrap_err().kind, Kind::Read);
        }
    }

    #[test]
    fn a_device_without_a_medium_is_no_empty_file() {
        let Some(empty) = Loop::new(&[]) else {
            return;
        };
        let error = SourceDevice::open(&empty.path, false).err().unwrap();
        assert_eq!(error.kind, Kind::Read, "{error}");
    }

    #[test]
    fn a_device_that_is_resized_meanwhile_is_not_called_whole() {
        let Some(disk) = Loop::new(&[7; MIB]) else {
            return;
        };
        let device = SourceDevice::open(&disk.path, false).unwrap();
        disk.file.as_file().set_len(2 << 20).unwrap();
        assert!(run("losetup", &["--set-capacity".as_ref(), &disk.path]));
        let error = device.unchanged().unwrap_err();
        assert_eq!(error.kind, Kind::Changed);
        assert!(
            error.message.ends_with("from 1048576 to 2097152 bytes"),
            "{error}"
        );
    }
}
