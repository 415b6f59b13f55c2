//! Memory for direct I/O, which wants it aligned; a pool's buffers are not. One is made for each
//! thread that reads or writes at a time, and used again.

use std::io;
use std::sync::Mutex;

/// Bytes: a page, and at least the block of any disk that we know of.
pub const ALIGNMENT: usize = 4096;

#[derive(Default)]
pub struct Bounces {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Bounces {
    pub fn write(
        &self,
        bytes: &[u8],
        write: impl FnOnce(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        if bytes.is_empty() || is_aligned(bytes) {
            return write(bytes);
        }
        self.with(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            write(room)
        })
    }

    pub fn read(
        &self,
        into: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        if into.is_empty() || is_aligned(into) {
            return read(into);
        }
        self.with(into.len(), |room| {
            read(room)?;
            into.copy_from_slice(room);
            Ok(())
        })
    }

    fn with(&self, len: usize, work: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
        let free = self.free.lock().expect("no panic while held").pop();
        let mut memory = free.unwrap_or_default();
        if memory.len() < len + ALIGNMENT {
            memory = vec![0; len + ALIGNMENT];
        }
        // Less than ALIGNMENT for bytes, whatever the address.
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        let done = work(&mut memory[start..start + len]);
        self.free.lock().expect("no panic while held").push(memory);
        done
    }
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().align_offset(ALIGNMENT) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_aligned_goes_by_memory_that_is() {
        let bounces = Bounces::default();
        let bytes: Vec<u8> = (0..2 * ALIGNMENT + 1).map(|n| n as u8).collect();
        for skip in [0, 1] {
            let part = &bytes[skip..skip + ALIGNMENT];
            let write = |seen: &[u8]| {
                assert!(is_aligned(seen) && seen == part);
                Ok(())
            };
            bounces.write(part, write).unwrap();
            let mut into = vec![0; 2 * ALIGNMENT];
            let into = &mut into[skip..skip + ALIGNMENT];
            let read = |room: &mut [u8]| {
                assert!(is_aligned(room));
                room.copy_from_slice(part);
                Ok(())
            };
            bounces.read(into, read).unwrap();
            assert!(into == part);
        }
        assert!(bounces.free.lock().unwrap().len() <= 1);
    }
}
