//! The page cache during a copy with `--drop-cache`. The copy drops the pages that it brought in,
//! and writes its data to disk at once. So the cache keeps the pages of other programs.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use nix::libc;
use parking_lot::Mutex;
use rustix::fs::{Advice, fadvise};
use rustix::io::{ReadWriteFlags, preadv2};

/// Bytes of one file that may be under way to the disk: enough to keep the disk busy.
const BEHIND_MAX: u64 = 16 << 20;

/// The same for all files of this process. The dirty bytes may reach twice this, because each
/// writer adds at most a chunk before it checks.
const DIRTY_MAX: u64 = 128 << 20;

/// The smallest page size of any kernel.
const PAGE: u64 = 4096;

/// Bytes that this process has written and not yet waited for, of files that are written this way.
static DIRTY: AtomicU64 = AtomicU64::new(0);

/// Turns off readahead, which would fill the cache with bytes that nobody asked for.
pub fn read_without_readahead(file: &File) {
    // With readahead, the next bytes would be cached before [`Before`] checks whether they were.
    let _ = fadvise(file, 0, None, Advice::Random);
}

/// True if most of `range` can be read without the disk, so that others seem to use it. The check
/// itself brings nothing into the cache.
pub fn is_cached(file: &File, range: Range<u64>) -> bool {
    match cached_pages(file, &range) {
        Some(pages) => 2 * pages * page_size() > range.end - range.start,
        None => is_cached_at(file, range.start),
    }
}

/// Number of pages of `range` in the cache. None if the kernel is older than 6.5, or does not allow
/// the call for another user's file.
fn cached_pages(file: &File, range: &Range<u64>) -> Option<u64> {
    /// `cachestat`, which has the same number on all architectures.
    const CACHESTAT: libc::c_long = 451;
    let place = [range.start, range.end - range.start];
    // The number of cached pages, and four more counts.
    let mut told = [0u64; 5];
    // SAFETY: the descriptor is borrowed and therefore open. The call reads two numbers and writes
    // five, in arrays of that size that outlive it.
    let result = unsafe {
        let (place, told) = (place.as_ptr(), told.as_mut_ptr());
        libc::syscall(CACHESTAT, file.as_raw_fd(), place, told, 0)
    };
    (result == 0).then_some(told[0])
}

/// True if the byte at `offset` can be read without waiting. May be false for a cached byte, if
/// reading it would start readahead.
fn is_cached_at(file: &File, offset: u64) -> bool {
    let mut byte = [0];
    let mut room = [IoSliceMut::new(&mut byte)];
    // Fails on file systems that do not support the flag.
    preadv2(file, &mut room, offset, ReadWriteFlags::NOWAIT).is_ok()
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// The parts of a file that were cached before the copy began. It checks ahead of the reads,
/// because reading cached pages makes the kernel read ahead, and those pages are the copy's doing.
#[derive(Debug, Default)]
pub struct Before(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    up_to: u64,
    /// Cached ranges below `up_to`, in ascending order.
    cached: Vec<Range<u64>>,
}

/// Granularity in bytes: one check decides for a whole step.
const STEP: u64 = 1 << 20;

/// How far ahead it checks, in bytes: further than any known readahead.
const LOOK_AHEAD: u64 = 32 << 20;

impl Before {
    /// True if the bytes at `offset` of a file of `size` bytes were cached before the copy. To be
    /// called before each read, in roughly ascending order.
    pub fn was_cached(&self, file: &File, offset: u64, size: u64) -> bool {
        let mut seen = self.0.lock();
        let Seen { up_to, cached } = &mut *seen;
        *up_to = (*up_to).max(offset / STEP * STEP);
        while *up_to < size.min(offset.saturating_add(LOOK_AHEAD)) {
            let at = *up_to;
            *up_to += STEP;
            if !is_cached(file, at..size.min(*up_to)) {
                continue;
            }
            match cached.last_mut().filter(|last| last.end == at) {
                Some(last) => last.end = *up_to,
                None => cached.push(at..*up_to),
            }
        }
        let behind = cached.partition_point(|range| range.end <= offset);
        cached
            .get(behind)
            .is_some_and(|range| range.contains(&offset))
    }
}

/// Drops `range` from the page cache after it was read.
pub fn drop_read(file: &File, range: Range<u64>) {
    // The kernel drops only whole pages, and takes a length of 0 as "to the end of the file".
    let end = range.end.next_multiple_of(PAGE);
    if let Some(len) = std::num::NonZeroU64::new(end - range.start) {
        // Advice only.
        let _ = fadvise(file, range.start, Some(len), Advice::DontNeed);
    }
}

/// Writes `range` back and drops it from the cache, so that the next read comes from the disk. True
/// if the disk reported no error. The caller must not share this open file with code that needs to
/// see write errors, because each error is reported only once.
pub fn through_to_disk(file: &File, range: &Range<u64>) -> bool {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let is_written = sync_range(file, range, all).is_ok();
    drop_read(file, range.clone());
    is_written
}

/// Starts to read `range` into the cache.
pub fn read_soon(file: &File, range: &Range<u64>) {
    if let Some(len) = std::num::NonZeroU64::new(range.end - range.start) {
        // Advice only.
        let _ = fadvise(file, range.start, Some(len), Advice::WillNeed);
    }
}

/// Clears a pending write error of the file, which an earlier writer has left. True if there was
/// none. Waits for no more than the first page.
pub fn take_write_error(file: &File) -> bool {
    sync_range(file, &(0..1), libc::SYNC_FILE_RANGE_WAIT_BEFORE).is_ok()
}

/// Ranges written to one file that are under way to the disk, oldest first.
#[derive(Debug, Default)]
pub struct Behind {
    ranges: Mutex<VecDeque<Range<u64>>>,
    /// The first write error (errno). The kernel reports it only once, to the first caller.
    failed: OnceLock<i32>,
}

impl Behind {
    /// Starts to write back a range. If too much is under way, waits for older ranges and drops
    /// them.
    ///
    /// # Errors
    /// The disk's error for this range or an earlier one. A later `fsync` may not report it again.
    pub fn wrote(&self, file: &File, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let len = range.end - range.start;
        self.note(sync_range(file, &range, libc::SYNC_FILE_RANGE_WRITE));
        let dirty = DIRTY.fetch_add(len, Relaxed) + len;
        self.ranges.lock().push_back(range);
        let bound = if dirty > DIRTY_MAX { 0 } else { BEHIND_MAX };
        self.settle(file, bound)
    }

    /// Waits for all ranges and drops them.
    ///
    /// # Errors
    /// As for [`wrote`](Behind::wrote).
    pub fn finish(&self, file: &File) -> io::Result<()> {
        self.settle(file, 0)
    }

    fn settle(&self, file: &File, bound: u64) -> io::Result<()> {
        while let Some(range) = self.oldest_beyond(bound) {
            let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            self.note(sync_range(file, &range, all));
            DIRTY.fetch_sub(range.end - range.start, Relaxed);
            drop_read(file, range);
        }
        match self.failed.get() {
            Some(&errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }

    fn note(&self, synced: Result<(), i32>) {
        if let Err(errno) = synced {
            self.failed.get_or_init(|| errno);
        }
    }

    /// Takes the oldest range if more than `bound` bytes are under way.
    fn oldest_beyond(&self, bound: u64) -> Option<Range<u64>> {
        let mut ranges = self.ranges.lock();
        let all: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        (all > bound).then(|| ranges.pop_front())?
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let mut left = 0;
        for range in self.ranges.lock().drain(..) {
            left += range.end - range.start;
        }
        DIRTY.fetch_sub(left, Relaxed);
    }
}

/// Starts to write `range` back, or waits for it, as `flags` say. The error is an errno.
fn sync_range(file: &File, range: &Range<u64>, flags: libc::c_uint) -> Result<(), i32> {
    let (start, len) = (range.start as libc::off64_t, range.end - range.start);
    loop {
        // SAFETY: the descriptor is borrowed and therefore open; the call takes only numbers.
        let result =
            unsafe { libc::sync_file_range(file.as_raw_fd(), start, len as libc::off64_t, flags) };
        let errno = match result {
            0 => return Ok(()),
            _ => io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        };
        match errno {
            libc::EINTR => {}
            // A kernel or file system without this call: the pages stay in the cache.
            libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL | libc::ESPIPE => return Ok(()),
            _ => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_was_written_is_dropped_behind_and_what_was_read_too() {
        // A file system on a disk: one in memory drops nothing.
        let temp = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(temp.path().join("a"))
            .unwrap();
        let behind = Behind::default();
        for nth in 0..40 {
            file.write_all_at(&vec![nth as u8 + 1; MIB as usize], nth * MIB)
                .unwrap();
            behind.wrote(&file, nth * MIB..(nth + 1) * MIB).unwrap();
        }
        let under_way: u64 = behind
            .ranges
            .lock()
            .iter()
            .map(|range| range.end - range.start)
            .sum();
        assert!(under_way <= BEHIND_MAX);
        behind.finish(&file).unwrap();
        assert!(behind.ranges.lock().is_empty());
        read_without_readahead(&file);
        if is_cached(&file, 0..MIB) || is_cached(&file, 39 * MIB..40 * MIB) {
            // This file system keeps its cache.
            return;
        }
        let mut bytes = vec![0; MIB as usize];
        file.read_exact_at(&mut bytes, 5 * MIB).unwrap();
        assert_eq!(bytes[0], 6);
        assert!(is_cached(&file, 5 * MIB..6 * MIB));
        drop_read(&file, 5 * MIB..6 * MIB);
        assert!(!is_cached(&file, 5 * MIB..6 * MIB));
    }
}
