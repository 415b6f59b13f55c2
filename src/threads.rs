//! Creation of threads, which the system may refuse. A refusal is an error, not a panic.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use parking_lot::Mutex;

use crate::error::{Error, Kind, Result, Side, reason_of};

/// The beginnings of the panic messages with which tokio and the standard library report a
/// refused thread.
const PANICS: [&str; 2] = ["OS can't spawn worker thread", "failed to spawn thread"];

/// Time to wait for the kernel to remove a joined thread, which counts against the limit until
/// then.
const REMOVAL_MAX: Duration = Duration::from_secs(1);

pub fn start<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    thread::Builder::new().spawn(body).map_err(refused)
}

/// Items that a thread takes at a time.
const SHARE: usize = 8;

/// Calls `each` for all items, on up to as many threads as there are processors.
pub fn share<T: Send>(items: &mut [T], each: impl Fn(&mut T) + Sync) {
    let parts = Mutex::new(items.chunks_mut(SHARE).collect::<Vec<_>>());
    let next = || parts.lock().pop();
    let work = &|| {
        while let Some(part) = next() {
            part.iter_mut().for_each(&each);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let others = threads.min(parts.lock().len()).saturating_sub(1);
    thread::scope(|scope| {
        for _ in 0..others {
            // Without it, the others do its part.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

pub fn refused(cause: io::Error) -> Error {
    let message = format!(
        "cannot start a thread: {}; raise the limit of processes (`ulimit -u`, or pids.max of \
         the control group)",
        reason_of(&cause)
    );
    Error::new(Kind::FarEnd, Side::Here, message)
}

/// Starts up to `wanted` idle threads at the same time, then ends them. Returns the number that
/// could be started and the error of the first refusal.
pub fn spare(wanted: usize) -> (usize, Option<Error>) {
    let running = count();
    let mut idle = Vec::new();
    let mut refusal = None;
    while idle.len() < wanted && refusal.is_none() {
        let gate = Arc::new(Barrier::new(2));
        let waiting = gate.clone();
        match start(move || waiting.wait().is_leader()) {
            Ok(thread) => idle.push((gate, thread)),
            Err(error) => refusal = Some(error),
        }
    }
    let started = idle.len();
    for (gate, thread) in idle {
        gate.wait();
        // The thread has no code that could panic.
        let _ = thread.join();
    }
    let until = Instant::now() + REMOVAL_MAX;
    while refusal.is_some() && count() > running && Instant::now() < until {
        thread::yield_now();
    }
    (started, refusal)
}

/// Threads of this process; 0 without /proc.
fn count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count())
}

/// Makes the panic of a library about a refused thread end this process, with an error message
/// and its exit code. Otherwise the copy would wait for work that the thread never does.
pub fn end_where_a_panic_says_so() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>();
        match text {
            Some(text) if PANICS.iter().any(|begin| text.starts_with(begin)) => {
                let error = refused(io::Error::from_raw_os_error(nix::libc::EAGAIN));
                // The exit code is the same if stderr is closed.
                let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("{error}\n"));
                std::process::exit(error.kind.exit_code());
            }
            _ => print(panic),
        }
    }));
}

/// Counts the started threads of a runtime.
#[derive(Clone, Default)]
pub struct StartedThreads(Arc<AtomicUsize>);

impl StartedThreads {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until `count` threads have started; false if that takes longer than `limit`.
    pub fn reaches(&self, count: usize, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while self.0.load(Ordering::Relaxed) < count {
            if Instant::now() > until {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}
