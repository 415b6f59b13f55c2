//! Zeros in a file: holes, or blocks that are really allocated.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// Granularity of holes in bytes; no common file system has a finer one.
const BLOCK: usize = 4096;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Punches a hole, which reads as zeros.
pub(super) fn punch(file: &File, offset: u64, len: u64) -> rustix::io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, flags, offset, len)
}

/// Fills a range with zeros and allocates its blocks.
pub(super) fn fill(file: &File, offset: u64, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::ZERO_RANGE, offset, len) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::INTR) => {}
        Err(cause) => return Err(cause.into()),
    }
    let mut at = offset;
    while at < offset + len {
        let step = (offset + len - at).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..step as usize], at)?;
        at += step;
    }
    Ok(())
}

/// Writes the blocks that are not zeros, each run of them at once. Returns the end of the last run,
/// or 0 if there was none. Only for files whose unwritten ranges read as zeros.
pub(crate) fn write_sparse(file: &File, data: &[u8], offset: u64) -> io::Result<u64> {
    // The first block is short where the offset is not aligned.
    let first = (BLOCK - (offset % BLOCK as u64) as usize).min(data.len());
    let mut end = 0;
    let mut run = 0..0;
    let mut block = 0..first;
    while !block.is_empty() {
        if !is_zero(&data[block.clone()]) {
            if run.end != block.start {
                end = write_run(file, data, offset, run)?.max(end);
                run = block.clone();
            }
            run.end = block.end;
        }
        block = block.end..(block.end + BLOCK).min(data.len());
    }
    Ok(write_run(file, data, offset, run)?.max(end))
}

fn write_run(
    file: &File,
    data: &[u8],
    offset: u64,
    run: std::ops::Range<usize>,
) -> io::Result<u64> {
    if run.is_empty() {
        return Ok(0);
    }
    let end = offset + run.end as u64;
    file.write_all_at(&data[run.clone()], offset + run.start as u64)?;
    Ok(end)
}

/// `block` must not be longer than `ZEROS`. The comparison compiles to memcmp, which looks at the
/// first bytes first.
fn is_zero(block: &[u8]) -> bool {
    block == &ZEROS[..block.len()]
}
