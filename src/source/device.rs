//! A block device as the source: read range by range like a big file, but with no time that would
//! tell whether it was written meanwhile. So nothing that was read of it once is taken for true
//! later: what is resumed is read and compared.

use std::path::Path;

use rustix::fs::Stat;

use crate::chunk::Buffer;
use crate::device::{Access, BlockDevice};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;

/// What a range holds. A device has no holes that could be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Data,
    /// Nothing but zeros: nothing of it needs to travel.
    Zeros,
}

/// Read by several threads at once.
pub struct SourceDevice {
    device: BlockDevice,
}

/// Whether what stands there is a block device.
pub fn is_device(stat: &Stat) -> bool {
    file_type(stat) == rustix::fs::FileType::BlockDevice
}

impl SourceDevice {
    /// # Errors
    /// `Kind::Read`, `Kind::Entry` for what is no block device, `Kind::Usage` where `direct` is
    /// asked of one that cannot.
    pub fn open(path: &Path, direct: bool) -> Result<SourceDevice> {
        let mut device = BlockDevice::open(path, Access::Read)?;
        if direct {
            device.go_direct()?;
        }
        Ok(SourceDevice { device })
    }

    /// Bytes, as they were when it was opened.
    pub fn size(&self) -> u64 {
        self.device.size()
    }

    /// Who may be writing to it meanwhile, for a warning: "is mounted on /srv".
    pub fn used_by(&self) -> Option<String> {
        self.device.used_by()
    }

    /// What tells it from other devices, for the key of a journal.
    pub fn stable_name(&self) -> Vec<u8> {
        self.device.stable_name()
    }

    /// Fills `buffer` with the `len` bytes at `offset`, and says if they are zeros. `len` must fit.
    pub fn read(&self, offset: u64, len: usize, buffer: &mut Buffer) -> Result<Content> {
        buffer.set_len(len);
        let room = &mut buffer.room()[..len];
        let read = self.device.read_at(room, offset);
        read.map_err(|cause| self.cannot_read(cause))?;
        Ok(if is_zero(buffer.data()) {
            Content::Zeros
        } else {
            Content::Data
        })
    }

    /// To be asked after the last byte was read.
    ///
    /// # Errors
    /// `Kind::Changed` where the device has another size now. That it was written, nobody can say.
    pub fn unchanged(&self) -> Result<()> {
        let now = self.device.size_now();
        let now = now.map_err(|cause| self.cannot_read(cause))?;
        if now == self.size() {
            return Ok(());
        }
        let message = format!(
            "was resized while it was copied: from {} to {now} bytes",
            self.size()
        );
        Err(Error::new(Kind::Changed, Side::Source, message).at(self.device.path()))
    }

    fn cannot_read(&self, cause: std::io::Error) -> Error {
        let path = self.device.path();
        Error::io(Kind::Read, Side::Source, path, "cannot read", cause)
    }
}

/// Comparing with itself, shifted by a byte, compiles to memcmp and ends at the first difference.
fn is_zero(bytes: &[u8]) -> bool {
    match bytes {
        [] => true,
        [first, rest @ ..] => *first == 0 && *rest == bytes[..rest.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::testing::{Loop, run};

    const MIB: usize = 1 << 20;

    #[test]
    fn zeros_are_told_from_data() {
        let mut bytes = vec![0; 5000];
        assert!(is_zero(&bytes) && is_zero(&[]) && is_zero(&[0]));
        for at in [0, 1, 4095, 4999] {
            bytes[at] = 1;
            assert!(!is_zero(&bytes), "{at}");
            bytes[at] = 0;
        }
    }

    #[test]
    fn a_device_is_read_as_it_is_with_its_zeros() {
        let content = [vec![7; MIB], vec![0; MIB], vec![8; MIB / 2]].concat();
        let Some(disk) = Loop::new(&content) else {
            return;
        };
        for direct in [false, true] {
            let device = SourceDevice::open(&disk.path, direct).unwrap();
            assert_eq!(device.size(), content.len() as u64);
            let mut buffer = Buffer::loose(MIB);
            let mut read = Vec::new();
            let mut found = Vec::new();
            for (at, len) in [(0, MIB), (MIB, MIB), (2 * MIB, MIB / 2 - 100)] {
                found.push(device.read(at as u64, len, &mut buffer).unwrap());
                read.extend_from_slice(buffer.data());
            }
            assert_eq!(found, [Content::Data, Content::Zeros, Content::Data]);
            assert!(read == content[..content.len() - 100]);
            device.unchanged().unwrap();
            let past = device.read(content.len() as u64, 1, &mut buffer);
            assert_eq!(past.unwrap_err().kind, Kind::Read);
            assert_eq!(device.used_by(), None);
            assert!(device.stable_name().starts_with(b"loop/backing_file=/"));
        }
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
