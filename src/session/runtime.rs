//! The tokio runtime, which drives sockets and control, and blocking work on its threads.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::threads;

/// Threads that drive sockets and control. The pipeline's own threads do the work.
const RUNTIME_THREADS: usize = 4;

/// Further threads of one end: for signals, for blocking calls, and those of a copy with one
/// worker.
const OTHER_THREADS: usize = 7;

/// How long a runtime's threads may take to start on a busy machine.
const BEGIN_MAX: Duration = Duration::from_secs(10);

/// Idle blocking threads stay, so that a running copy never needs a new one.
const KEEP_BLOCKING: Duration = Duration::from_secs(1 << 30);

/// A runtime whose threads all run. If one is refused, tokio itself panics or waits forever.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let wanted = processors.min(RUNTIME_THREADS);
    let (spare, refusal) = threads::spare(wanted + OTHER_THREADS);
    let workers = spare.saturating_sub(OTHER_THREADS);
    if let Some(refusal) = refusal.filter(|_| workers == 0) {
        return Err(refusal);
    }
    let begun = threads::StartedThreads::default();
    let begins = begun.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_keep_alive(KEEP_BLOCKING)
        .on_thread_start(move || begins.add())
        .enable_all()
        .build()
        .map_err(threads::refused)?;
    runtime.spawn_blocking(|| ());
    if !begun.reaches(workers + 1, BEGIN_MAX) {
        runtime.shutdown_background();
        return Err(threads::refused(std::io::ErrorKind::WouldBlock.into()));
    }
    Ok(runtime)
}

/// Does work that may wait for a disk on another thread, so that this task can read control.
///
/// # Errors
/// If the work panicked.
pub async fn off_task<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Error::panicked())
}
