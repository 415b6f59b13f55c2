//! The page cache behind a copy: what the copy brought into it goes out again, so that a host that
//! serves others from it keeps what they need; and what was written goes to disk as it comes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use nix::libc;
use rustix::fs::{Advice, fadvise};
use rustix::io::{ReadWriteFlags, preadv2};

/// Bytes of one file that may be on their way to the disk: enough to keep it busy.
const BEHIND_MAX: u64 = 16 << 20;

/// The same of all files of this process. Half of what a copy that drops its pages may have dirty:
/// each writer adds at most a chunk before it looks.
const DIRTY_MAX: u64 = 128 << 20;

/// No kernel has smaller pages.
const PAGE: u64 = 4096;

/// Bytes that this process has written and not seen on disk, of files that are written so.
static DIRTY: AtomicU64 = AtomicU64::new(0);

/// Reads without filling the cache with what nobody asked for.
pub fn read_without_readahead(file: &File) {
    // Else what comes next would be there before it is known whether it was.
    let _ = fadvise(file, 0, None, Advice::Random);
}

/// True if most of `range` can be had without the disk: others have use for it. Looking at it brings
/// nothing.
pub fn is_cached(file: &File, range: Range<u64>) -> bool {
    match cached_pages(file, &range) {
        Some(pages) => 2 * pages * page_size() > range.end - range.start,
        None => is_cached_at(file, range.start),
    }
}

/// Pages of `range` that are in the cache. None where the kernel does not tell: it is older than 6.5,
/// or the file is another's.
fn cached_pages(file: &File, range: &Range<u64>) -> Option<u64> {
    /// `cachestat`, by the same number on all machines.
    const CACHESTAT: libc::c_long = 451;
    let place = [range.start, range.end - range.start];
    // In the cache, and four more numbers.
    let mut told = [0u64; 5];
    // SAFETY: a call on a descriptor that is borrowed, so open; it reads two numbers and writes five,
    // into arrays of that size that outlive it.
    let result = unsafe {
        let (place, told) = (place.as_ptr(), told.as_mut_ptr());
        libc::syscall(CACHESTAT, file.as_raw_fd(), place, told, 0)
    };
    (result == 0).then_some(told[0])
}

/// True if the byte at `offset` can be read without waiting. It may be that it cannot, and is there:
/// where reading it would make the system read ahead.
fn is_cached_at(file: &File, offset: u64) -> bool {
    let mut byte = [0];
    let mut room = [IoSliceMut::new(&mut byte)];
    // A file system that cannot tell fails.
    preadv2(file, &mut room, offset, ReadWriteFlags::NOWAIT).is_ok()
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// What of a file was in the cache before the copy came. Looked at ahead of what is read: behind
/// what others had read the system reads ahead, and that is the copy's doing.
#[derive(Debug, Default)]
pub struct Before(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    up_to: u64,
    /// Of that, in ascending order.
    cached: Vec<Range<u64>>,
}

/// Bytes that are looked at as one, by their first.
const STEP: u64 = 1 << 20;

/// How far ahead it is looked: further than any system reads ahead that we know.
const LOOK_AHEAD: u64 = 32 << 20;

impl Before {
    /// True if what is read at `offset` of a file of `size` bytes was there. To be asked in about
    /// ascending order, before it is read.
    pub fn was_cached(&self, file: &File, offset: u64, size: u64) -> bool {
        let mut seen = self.0.lock().expect("no panic while held");
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

/// Drops what was read of `range`.
pub fn drop_read(file: &File, range: Range<u64>) {
    // Of a page that is only in part in the range nothing would go. Nothing at all would mean all
    // that follows.
    let end = range.end.next_multiple_of(PAGE);
    if let Some(len) = std::num::NonZeroU64::new(end - range.start) {
        // Advice only.
        let _ = fadvise(file, range.start, Some(len), Advice::DontNeed);
    }
}

/// Writes `range` back and drops it from the cache, so that the next read comes from the disk. True
/// if the disk took it, as far as the system says; `file` must be a descriptor that nobody else
/// learns of write errors by.
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

/// Takes a write error that the file has and nobody was told of: it is of an earlier writer. True if
/// there was none. Waits for no more than the first page.
pub fn take_write_error(file: &File) -> bool {
    sync_range(file, &(0..1), libc::SYNC_FILE_RANGE_WAIT_BEFORE).is_ok()
}

/// What was written to one file and is on its way to the disk, oldest first.
#[derive(Debug, Default)]
pub struct Behind {
    ranges: Mutex<VecDeque<Range<u64>>>,
    /// The first error of the disk, as the system numbers it: it is told once, to whoever waits.
    failed: OnceLock<i32>,
}

impl Behind {
    /// Starts to write a range back that was just written, and waits for older ones and drops them
    /// where too much is under way.
    ///
    /// # Errors
    /// Where the disk did not take what was written, now or before. An `fsync` that follows may not
    /// tell of it again.
    pub fn wrote(&self, file: &File, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let len = range.end - range.start;
        self.note(sync_range(file, &range, libc::SYNC_FILE_RANGE_WRITE));
        let dirty = DIRTY.fetch_add(len, Relaxed) + len;
        self.lock().push_back(range);
        let bound = if dirty > DIRTY_MAX { 0 } else { BEHIND_MAX };
        self.settle(file, bound)
    }

    /// Waits for all of it and drops it.
    ///
    /// # Errors
    /// As [`wrote`](Behind::wrote).
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

    /// Takes the oldest range, where more than `bound` bytes are under way.
    fn oldest_beyond(&self, bound: u64) -> Option<Range<u64>> {
        let mut ranges = self.lock();
        let all: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        (all > bound).then(|| ranges.pop_front())?
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Range<u64>>> {
        self.ranges.lock().expect("no panic while held")
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let mut left = 0;
        for range in self.lock().drain(..) {
            left += range.end - range.start;
        }
        DIRTY.fetch_sub(left, Relaxed);
    }
}

/// Asks for writing `range` back, and waits if `flags` say so. Gives the number of the error.
fn sync_range(file: &File, range: &Range<u64>, flags: libc::c_uint) -> Result<(), i32> {
    let (start, len) = (range.start as libc::off64_t, range.end - range.start);
    loop {
        // SAFETY: a call on a descriptor that is borrowed, so open; it takes numbers alone.
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
            // A kernel or a file system without the call: its pages stay in the cache.
            libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL | libc::ESPIPE => return Ok(()),
            _ => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

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
            .lock()
            .iter()
            .map(|range| range.end - range.start)
            .sum();
        assert!(under_way <= BEHIND_MAX);
        behind.finish(&file).unwrap();
        assert!(behind.lock().is_empty());
        read_without_readahead(&file);
        if is_cached(&file, 0..MIB) || is_cached(&file, 39 * MIB..40 * MIB) {
            // A file system that keeps its cache.
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
