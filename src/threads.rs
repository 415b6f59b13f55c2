//! Threads that the system may refuse: each refusal is an error with one sentence, not a panic.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::error::{Error, Kind, Result, Side};

/// How tokio and the standard library begin the panic of a refused thread.
const PANICS: [&str; 2] = ["OS can't spawn worker thread", "failed to spawn thread"];

/// A joined thread counts against the limit until the kernel has removed it.
const REMOVAL_MAX: Duration = Duration::from_secs(1);

pub fn start<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    thread::Builder::new().spawn(body).map_err(refused)
}

pub fn refused(cause: io::Error) -> Error {
    let message = format!(
        "cannot start a thread: {cause}; raise the limit of processes (`ulimit -u`, or pids.max of \
         the control group)"
    );
    Error::new(Kind::FarEnd, Side::Here, message)
}

/// Starts up to `wanted` idle threads at once and ends them; returns how many could be started. The
/// error is that of the first refusal.
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
        // It does nothing that could panic.
        let _ = thread.join();
    }
    let until = Instant::now() + REMOVAL_MAX;
    while refusal.is_some() && count() > running && Instant::now() < until {
        thread::yield_now();
    }
    (started, refusal)
}

/// Threads of this process, 0 without /proc.
fn count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count())
}

/// Ends this process with the sentence and its exit code where a library panics because a thread
/// was refused. Without that thread its work would never run, and the copy would wait for it.
pub fn end_where_a_panic_says_so() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>();
        match text {
            Some(text) if PANICS.iter().any(|begin| text.starts_with(begin)) => {
                let error = refused(io::Error::from_raw_os_error(nix::libc::EAGAIN));
                // A closed stderr changes nothing.
                let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("{error}\n"));
                std::process::exit(error.kind.exit_code());
            }
            _ => print(panic),
        }
    }));
}

/// Counts the threads of a runtime that have begun.
#[derive(Clone, Default)]
pub struct Begun(Arc<AtomicUsize>);

impl Begun {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until `count` have begun; false if `limit` passes before.
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
