//! A file or device that is read from the disk in roughly ascending order by several threads. The
//! disk fetches the next ranges while these threads work on the last ones.

use std::io;
use std::ops::Range;

use parking_lot::Mutex;

use super::readback::{NOT_ON_DISK, Readback};
use crate::chunk::ranges::RangeSet;

/// Bytes that the disk fetches at a time.
const STEP: u64 = 2 << 20;

/// How far ahead of a read the disk fetches, in bytes, to at most one step more. Network volumes
/// answer after about a millisecond, in which 10 Gbit/s bring 1.25 MB.
const AHEAD: u64 = 4 << 20;

/// Most prepared ranges that are remembered: some 50 KiB. Reads in another order prepare a range
/// once more.
const FRAGMENTS_MAX: usize = 1024;

pub(super) struct ReadAhead {
    readback: Readback,
    /// Bytes.
    len: u64,
    prepared: Mutex<Prepared>,
}

#[derive(Default)]
struct Prepared {
    ranges: RangeSet,
    /// The disk has not taken all of these. The kernel tells it only once, perhaps before the range
    /// is read.
    refused: RangeSet,
}

impl ReadAhead {
    /// Of the first `len` bytes.
    pub(super) fn new(readback: Readback, len: u64) -> ReadAhead {
        ReadAhead {
            readback,
            len,
            prepared: Mutex::default(),
        }
    }

    /// Reads all of `into`.
    ///
    /// # Errors
    /// If the disk cannot read the range, or has reported an error of an earlier write to it.
    pub(super) fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let range = offset..offset + into.len() as u64;
        {
            let mut prepared = self.prepared.lock();
            prepared.prepare(&range, &self.readback);
            prepared.prepare_ahead(&range, self.len, &self.readback);
            if prepared.refused.contains_any(range) {
                return Err(io::Error::other(NOT_ON_DISK));
            }
        }
        self.readback.read(into, offset)
    }
}

impl Prepared {
    fn prepare(&mut self, range: &Range<u64>, readback: &Readback) {
        if self.ranges.contains_all(range.clone()) {
            return;
        }
        if !readback.prepare(range) {
            self.refused.insert(range.clone());
        }
        if self.ranges.fragments() >= FRAGMENTS_MAX {
            self.ranges = RangeSet::new();
        }
        self.ranges.insert(range.clone());
    }

    /// Continues a sequence of reads, of which `range` is not the first.
    fn prepare_ahead(&mut self, range: &Range<u64>, len: u64, readback: &Readback) {
        let is_first = range.start > 0 && !self.ranges.contains(range.start - 1);
        let end = self.ranges.next_missing(range.start);
        if !is_first && end < len.min(range.end + AHEAD) {
            self.prepare(&(end..len.min(end + STEP)), readback);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Reads a page at each of these offsets, and returns how far the file was then prepared.
    fn prepared_after(offsets: &[u64], len: u64) -> Range<u64> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create_new(&path).unwrap();
        file.set_len(len).unwrap();
        for offset in offsets {
            file.write_all_at(&[1; 4096], *offset).unwrap();
        }
        let readback = Readback::of(&File::open(&path).unwrap()).unwrap();
        let ahead = ReadAhead::new(readback, len);
        for offset in offsets {
            let mut page = [0; 4096];
            ahead.read(&mut page, *offset).unwrap();
            assert_eq!(page, [1; 4096], "at {offset}");
        }
        let prepared = ahead.prepared.lock();
        assert!(prepared.refused.is_empty());
        assert_eq!(prepared.ranges.fragments(), 1);
        prepared.ranges.iter().next().unwrap()
    }

    #[test]
    fn reads_in_a_row_have_the_next_megabytes_prepared() {
        assert_eq!(prepared_after(&[0], 100 * MIB), 0..2 * MIB + 4096);
        let row = [0, 4096, MIB, 2 * MIB];
        assert_eq!(prepared_after(&row, 100 * MIB), 0..6 * MIB + 4096);
        assert_eq!(
            prepared_after(&[0, 4096], MIB),
            0..MIB,
            "not beyond the end"
        );
    }

    #[test]
    fn a_read_elsewhere_prepares_itself_alone() {
        let alone = 50 * MIB..50 * MIB + 4096;
        assert_eq!(prepared_after(&[50 * MIB], 100 * MIB), alone);
    }

    #[test]
    fn what_the_disk_has_not_taken_is_not_read_even_if_the_kernel_tells_it_early() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create_new(dir.path().join("file")).unwrap();
        file.set_len(MIB).unwrap();
        let ahead = ReadAhead::new(Readback::of(&file).unwrap(), MIB);
        ahead.prepared.lock().refused.insert(8192..12288);
        let mut page = [0; 4096];
        ahead.read(&mut page, 4096).unwrap();
        ahead.read(&mut page, 8192).unwrap_err();
    }
}
