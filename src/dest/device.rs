//! A block device as the destination. It is written in place: no temporary, no rename; whether it
//! is whole, the end of the copy says. Everything that can be refused is refused before the first
//! byte.

use std::path::Path;

use crate::chunk::{ChunkKind, VerifiedChunk};
use crate::device::{Access, BlockDevice};
use crate::error::{Error, Kind, Result, Side};

/// What the user asked of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceRules {
    /// Also one that is in use. Not one that is too small.
    pub force: bool,
    /// Past the page cache.
    pub direct: bool,
}

/// Written from several threads at once, chunk by chunk at its offset.
pub struct Device {
    device: BlockDevice,
}

impl Device {
    /// `size` is how many bytes are to come, where that is known.
    ///
    /// # Errors
    /// `Kind::Refused` for a device that is in use or too small; `Kind::Entry` for what is none;
    /// `Kind::Write`; `Kind::Usage` where it has no direct I/O.
    pub fn open(path: &Path, size: Option<u64>, rules: DeviceRules) -> Result<Device> {
        let access = if rules.force {
            Access::WriteByForce
        } else {
            Access::Write
        };
        let mut device = BlockDevice::open(path, access)?;
        if let Some(size) = size.filter(|size| *size > device.size()) {
            let show = |bytes| bytesize::ByteSize(bytes).display().si();
            let (needed, there) = (show(size), show(device.size()));
            let message = format!(
                "is too small: needs {needed} ({size} bytes), has {there} ({} bytes)",
                device.size()
            );
            return Err(Error::new(Kind::Refused, Side::Dest, message).at(path));
        }
        if rules.direct {
            device.go_direct()?;
        }
        Ok(Device { device })
    }

    /// Puts a chunk in its place.
    ///
    /// # Errors
    /// `Kind::Write`; also where it does not fit, which only a stream of unknown length can bring.
    pub fn write(&self, chunk: &VerifiedChunk) -> Result<()> {
        let (offset, len) = (chunk.place().offset, u64::from(chunk.place().raw_len));
        self.check_range(offset, len)?;
        let written = match chunk.place().kind {
            ChunkKind::Zeros => self.device.zero(offset, len),
            _ => self.device.write_at(chunk.data(), offset),
        };
        written.map_err(|cause| self.failed("cannot write", cause))
    }

    /// What stands there now: for the chunks that a former copy is said to have written. No
    /// digest is remembered for a device that somebody may have written since.
    pub fn read(&self, room: &mut [u8], offset: u64) -> Result<()> {
        self.check_range(offset, room.len() as u64)?;
        let read = self.device.read_at(room, offset);
        read.map_err(|cause| self.failed("cannot read back", cause))
    }

    /// To be called after the last chunk, always: an error of the disk shows itself here.
    pub fn finish(&self) -> Result<()> {
        let synced = self.device.sync();
        synced.map_err(|cause| self.failed("cannot make it durable", cause))
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.device.size()
    }

    /// What tells it from other devices, for the key of its journal.
    pub fn stable_name(&self) -> Vec<u8> {
        self.device.stable_name()
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        if offset
            .checked_add(len)
            .is_some_and(|end| end <= self.size())
        {
            return Ok(());
        }
        let show = bytesize::ByteSize(self.size()).display().si();
        let message = format!("no space left: the device ends after {show}");
        Err(Error::new(Kind::Write, Side::Dest, message).at(self.device.path()))
    }

    fn failed(&self, what: &str, cause: std::io::Error) -> Error {
        Error::io(Kind::Write, Side::Dest, self.device.path(), what, cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{Buffer, Chunk, Place};
    use crate::device::testing::{Loop, run};
    use crate::digest::{NONE, of_range};

    const MIB: usize = 1 << 20;

    fn chunk(kind: ChunkKind, data: &[u8], offset: u64, raw_len: u32) -> VerifiedChunk {
        let mut buffer = Buffer::loose(MIB);
        buffer.room()[..data.len()].copy_from_slice(data);
        buffer.set_len(data.len());
        let place = Place {
            kind,
            chunk: 0,
            entry: 1,
            offset,
            raw_len,
        };
        let digest = match kind {
            ChunkKind::Zeros => NONE,
            _ => of_range(data, offset, false),
        };
        let verified = Chunk { place, buffer }.verify(digest, false);
        verified.unwrap_or_else(|_| panic!("the digest is right"))
    }

    fn data(data: &[u8], offset: usize) -> VerifiedChunk {
        chunk(ChunkKind::Range, data, offset as u64, data.len() as u32)
    }

    fn rules(direct: bool) -> DeviceRules {
        DeviceRules {
            force: false,
            direct,
        }
    }

    #[test]
    fn chunks_zeros_and_a_short_end_are_in_place_and_the_rest_is_as_it_was() {
        for direct in [false, true] {
            let Some(old) = Loop::new(&[9; 6 * MIB]) else {
                return;
            };
            let size = 5 * MIB as u64 + 1000;
            let device = Device::open(&old.path, Some(size), rules(direct)).unwrap();
            assert_eq!(device.size(), 6 * MIB as u64);
            device.write(&data(&[1; MIB], 2 * MIB)).unwrap();
            device.write(&data(&[2; MIB], 0)).unwrap();
            let zeros = chunk(ChunkKind::Zeros, &[], 3 << 20, 2 << 20);
            device.write(&zeros).unwrap();
            device.write(&data(&[3; 1000], 5 * MIB)).unwrap();
            device.finish().unwrap();
            let mut back = vec![0; 1000];
            device.read(&mut back, 5 << 20).unwrap();
            assert_eq!(back, [3; 1000]);
            drop(device);
            let expected = [
                vec![2; MIB],
                vec![9; MIB],
                vec![1; MIB],
                vec![0; 2 * MIB],
                vec![3; 1000],
                vec![9; MIB - 1000],
            ];
            assert!(old.content() == expected.concat(), "direct: {direct}");
        }
    }

    #[test]
    fn zeros_that_are_no_whole_sectors_are_zeros() {
        let Some(old) = Loop::new(&[9; MIB]) else {
            return;
        };
        let device = Device::open(&old.path, None, rules(true)).unwrap();
        device
            .write(&chunk(ChunkKind::Zeros, &[], 4096, 5000))
            .unwrap();
        device.finish().unwrap();
        drop(device);
        let expected = [vec![9; 4096], vec![0; 5000], vec![9; MIB - 9096]];
        assert!(old.content() == expected.concat());
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_before_the_first_byte() {
        let Some(small) = Loop::new(&[9; MIB]) else {
            return;
        };
        let size = Some(MIB as u64 + 1);
        for force in [false, true] {
            let rules = DeviceRules {
                force,
                direct: false,
            };
            let error = Device::open(&small.path, size, rules).err().unwrap();
            assert_eq!(error.kind, Kind::Refused);
            let figures = "is too small: needs 1.0 MB (1048577 bytes), has 1.0 MB (1048576 bytes)";
            assert_eq!(error.message, figures);
        }
        let device = Device::open(&small.path, None, rules(false)).unwrap();
        let error = device.write(&data(&[1; 512], MIB)).unwrap_err();
        assert_eq!(error.kind, Kind::Write);
        assert!(error.message.starts_with("no space left"), "{error}");
        drop(device);
        assert!(small.content() == vec![9; MIB]);
    }

    #[test]
    fn a_device_in_use_is_refused_with_who_uses_it_and_written_by_force() {
        let Some(used) = Loop::new(&[9; MIB]) else {
            return;
        };
        let first = Device::open(&used.path, None, rules(false)).unwrap();
        let error = Device::open(&used.path, None, rules(false)).err().unwrap();
        assert_eq!(error.kind, Kind::Refused);
        assert!(error.message.starts_with("is in use by another program; "));
        let force = DeviceRules {
            force: true,
            direct: false,
        };
        Device::open(&used.path, None, force).unwrap();
        drop(first);
        Device::open(&used.path, None, rules(false)).unwrap();
    }

    #[test]
    fn a_mounted_device_is_refused_with_the_place() {
        let Some(disk) = Loop::new(&vec![0; 16 * MIB]) else {
            return;
        };
        let mount = tempfile::tempdir().unwrap();
        let place = mount.path().join("a b");
        std::fs::create_dir(&place).unwrap();
        if !run("mkfs.ext4", &["-q".as_ref(), &disk.path]) || !run("mount", &[&disk.path, &place]) {
            return crate::device::testing::skip();
        }
        let error = Device::open(&disk.path, None, rules(false)).err();
        assert!(run("umount", &[&place]));
        let error = error.unwrap();
        assert_eq!(error.kind, Kind::Refused);
        let message = format!("is mounted on {}; stop that first", place.display());
        assert!(error.message.starts_with(&message), "{error}");
    }

    #[test]
    fn what_is_no_device_is_not_written() {
        let temp = tempfile::NamedTempFile::new().unwrap();
        for path in [temp.path(), Path::new("/dev/null")] {
            let error = Device::open(path, None, rules(false)).err().unwrap();
            assert_eq!(error.kind, Kind::Entry, "{error}");
        }
    }
}
