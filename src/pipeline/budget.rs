//! The division of `--memory`: into the buffer pool, and a spare buffer and codec contexts for each
//! worker. If the memory does not suffice, the number of connections is reduced first, then the
//! number of workers.

use super::send::scheduler::UNACKED_MAX;
use crate::algorithms::{Compress, Method};
use crate::chunk::Pool;
use crate::codec::{LARGE_BYTES, LZMA_BYTES};
use crate::dir::open_share;
use crate::error::{Error, Result};
use crate::wire::hello::STREAMS_MAX;
use crate::wire::message::CopyOptions;

/// The memory budget of each process in bytes if the user sets none. An eighth of the machine's
/// memory if that is less.
pub const MEMORY_DEFAULT: u64 = 256 << 20;

/// Connections that must have room if the user sets no number: the most that a copy starts with.
const STREAMS_AUTO: u16 = 16;

/// The strongest zstd levels that the tuner may choose. `STRONGEST` is allowed if the contexts for
/// it fit into a quarter of the memory, otherwise `STRONG`.
const STRONGEST: i32 = 9;
const STRONG: i32 = 3;

/// LZMA encoders may borrow the buffers of the pool divided by this: half of them. A slow link
/// needs few buffers.
const LZMA_SHARE: usize = 2;

/// The fraction of the pool that encoders of large packs and pieces may borrow: three fifths.
const LARGE_SHARE: (usize, usize) = (3, 5);

/// More worker threads than any chunk rate needs.
const THREADS_MAX: usize = 256;

/// More buffers than any link can fill. Each takes a few bytes even while it is unused.
const SLOTS_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Buffers in the pool.
    pub slots: usize,
    pub workers: usize,
    pub streams: u16,
    /// The strongest zstd level that every worker has room for, if the user asked for no level.
    pub strongest: Method,
    /// Workers that may use LZMA at the same time, in memory that the pool lends.
    pub lzma_workers: usize,
    /// Large packs and pieces that may be compressed at the same time, in memory that the pool
    /// lends.
    pub large_packs: usize,
}

/// The least number of unacknowledged chunks of a pipe.
const WINDOW_MIN: usize = 2;

impl Budget {
    /// Chunks of a pipe that may be in flight, or may wait for earlier chunks. This is the
    /// number of buffers left after each connection and each worker has its own. So the
    /// chunk that all others wait for always finds a buffer.
    pub fn window(&self) -> usize {
        let others = usize::from(self.streams) + 2 * self.workers;
        self.slots
            .saturating_sub(others)
            .clamp(WINDOW_MIN, UNACKED_MAX)
    }

    /// The most connections that can have a buffer each.
    pub fn streams_max(&self) -> u16 {
        let spare = self.slots.saturating_sub(2 * self.workers).max(1);
        u16::try_from(spare)
            .unwrap_or(u16::MAX)
            .min(Budget::open_streams())
    }

    /// The most connections that the limit on open files allows.
    pub fn open_streams() -> u16 {
        open_share(4, STREAMS_MAX.into()) as u16
    }

    /// The whole budget in bytes.
    pub fn memory(options: &CopyOptions) -> u64 {
        options
            .memory
            .unwrap_or_else(|| MEMORY_DEFAULT.min(machine_memory() / 8))
    }

    /// # Errors
    /// `Kind::Usage` if not even one worker and one connection fit.
    pub fn new(options: &CopyOptions, streams: Option<u16>, chunk_size: usize) -> Result<Budget> {
        let memory = Budget::memory(options);
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let workers = options
            .threads
            .map_or(processors, usize::from)
            .clamp(1, THREADS_MAX)
            // Each worker has a file open, and a receiver's worker sometimes the directory too.
            .min(open_share(8, THREADS_MAX));
        let streams = streams.unwrap_or(STREAMS_AUTO).min(Budget::open_streams());
        let strong = context_size(Compress::Zstd(STRONGEST));
        let mut context = context_size(options.compress);
        let mut strongest = Method::Zstd(STRONG);
        if options.compress == Compress::Auto && (workers * strong) as u64 <= memory / 4 {
            (context, strongest) = (strong, Method::Zstd(STRONGEST));
        }
        let fit = Budget::fit(memory, workers, streams, chunk_size, context)?;
        let lzma_workers = match options.compress {
            Compress::Auto => (fit.slots / LZMA_SHARE / lzma_slots(chunk_size)).min(fit.workers),
            _ => 0,
        };
        let lent = fit.slots * LARGE_SHARE.0 / LARGE_SHARE.1;
        let large_packs = (lent / large_slots(chunk_size)).min(fit.workers);
        Ok(Budget {
            strongest,
            lzma_workers,
            large_packs,
            ..fit
        })
    }

    fn fit(
        memory: u64,
        mut workers: usize,
        mut streams: u16,
        chunk_size: usize,
        context: usize,
    ) -> Result<Budget> {
        let slot = Pool::slot_size(chunk_size);
        loop {
            let spent = workers * (slot + context);
            let slots = (memory as usize).saturating_sub(spent) / slot;
            if slots >= usize::from(streams) + 2 * workers + WINDOW_MIN {
                return Ok(Budget {
                    slots: slots.min(SLOTS_MAX),
                    workers,
                    streams,
                    strongest: Method::None,
                    lzma_workers: 0,
                    large_packs: 0,
                });
            }
            match (streams, workers) {
                (1, 1) => {
                    let least = ((4 + WINDOW_MIN) * slot + context) as u64;
                    return Err(Error::usage(format!(
                        "--memory: {}Mi is too little for this --compress; give at least {}Mi",
                        memory >> 20,
                        least.div_ceil(1 << 20)
                    )));
                }
                (1, _) => workers -= 1,
                _ => streams -= 1,
            }
        }
    }
}

/// Buffers whose memory one LZMA encoder takes.
pub fn lzma_slots(chunk_size: usize) -> usize {
    LZMA_BYTES.div_ceil(Pool::slot_size(chunk_size))
}

/// Buffers whose memory a large pack or piece takes while it is compressed.
pub fn large_slots(chunk_size: usize) -> usize {
    LARGE_BYTES.div_ceil(Pool::slot_size(chunk_size))
}

/// Bytes of a worker's encoding and decoding contexts: zstd's tables for 1 MiB of input, by
/// `ZSTD_estimateCCtxSize` of version 1.5.7, rounded up.
fn context_size(compress: Compress) -> usize {
    let zstd = match compress {
        Compress::Lzma(_) => LZMA_BYTES,
        Compress::Zstd(level) if level > 12 => 24 << 20,
        Compress::Zstd(level) if level > 4 => 10 << 20,
        _ => 3 << 20,
    };
    zstd + (1 << 20)
}

fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_cut_before_workers_and_too_little_is_refused() {
        let chunk = 1 << 20;
        let roomy = Budget::fit(256 << 20, 4, 8, chunk, 4 << 20).unwrap();
        assert_eq!((roomy.workers, roomy.streams), (4, 8));
        let slot = Pool::slot_size(chunk) as u64;
        assert!((roomy.slots + 4) as u64 * slot + 4 * (4 << 20) <= 256 << 20);
        let tight = Budget::fit(32 << 20, 2, 64, chunk, 4 << 20).unwrap();
        assert!(tight.streams < 64 && tight.workers == 2);
        assert!(tight.window() >= 2 && roomy.window() > 200);
        assert!(Budget::fit(1 << 20, 1, 1, chunk, 4 << 20).is_err());
    }
}
