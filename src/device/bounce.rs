//! Aligned memory for direct I/O, because the buffers of the pool are not aligned. There is one per
//! thread that reads or writes at the same time; it is reused.

use std::io;

use parking_lot::{Condvar, Mutex};

/// In bytes: a page, and at least the block size of all known disks.
pub(super) const ALIGNMENT: usize = 4096;

/// Limit of buffers, each as long as a chunk. They are not part of the pool, so there must be few,
/// and fewer keep a disk busy.
const BOUNCES_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Bounces {
    state: Mutex<BounceState>,
    returned: Condvar,
}

#[derive(Default)]
struct BounceState {
    free: Vec<Vec<u8>>,
    /// Number of buffers, free or in use.
    made: usize,
}

impl Bounces {
    pub(super) fn write(
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

    pub(super) fn read(
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
        let mut memory = self.take();
        if memory.len() < len + ALIGNMENT {
            memory = vec![0; len + ALIGNMENT];
        }
        // Less than ALIGNMENT for bytes, whatever the address.
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        let done = work(&mut memory[start..start + len]);
        let mut state = self.state.lock();
        state.free.push(memory);
        drop(state);
        self.returned.notify_one();
        done
    }

    /// Waits while all buffers are in use.
    fn take(&self) -> Vec<u8> {
        let mut state = self.state.lock();
        let is_out = |state: &mut BounceState| state.free.is_empty() && state.made >= BOUNCES_MAX;
        self.returned.wait_while(&mut state, is_out);
        state.free.pop().unwrap_or_else(|| {
            state.made += 1;
            Vec::new()
        })
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
        assert!(bounces.state.lock().made <= 1);
    }

    #[test]
    fn however_many_write_there_are_few() {
        let bounces = Bounces::default();
        let bytes = [7; ALIGNMENT + 1];
        std::thread::scope(|scope| {
            for _ in 0..4 * BOUNCES_MAX {
                scope.spawn(|| {
                    // One of the two is not aligned.
                    for part in [&bytes[1..], &bytes[..ALIGNMENT]] {
                        let write = |seen: &[u8]| {
                            std::thread::sleep(std::time::Duration::from_millis(1));
                            assert!(seen == part);
                            Ok(())
                        };
                        bounces.write(part, write).unwrap();
                    }
                });
            }
        });
        let state = bounces.state.lock();
        assert!((1..=BOUNCES_MAX).contains(&state.made));
        assert_eq!(state.free.len(), state.made);
    }
}
