//! A check whether this process was started with a standard input and output. Rust's runtime opens
//! /dev/null in place of a closed one (`>&-`). A copy would then write nowhere and report success.
//! A /dev/null that the user named looks the same, so the check runs before the runtime starts.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::{Errno, fcntl_getfd};

static NO_STDIN: AtomicBool = AtomicBool::new(false);
static NO_STDOUT: AtomicBool = AtomicBool::new(false);

/// True if standard input was closed when this process started.
pub fn is_stdin_closed() -> bool {
    NO_STDIN.load(Relaxed)
}

/// True if standard output was closed when this process started.
pub fn is_stdout_closed() -> bool {
    NO_STDOUT.load(Relaxed)
}

extern "C" fn look() {
    let closed = |found: rustix::io::Result<_>| matches!(found, Err(Errno::BADF));
    NO_STDIN.store(closed(fcntl_getfd(rustix::stdio::stdin())), Relaxed);
    NO_STDOUT.store(closed(fcntl_getfd(rustix::stdio::stdout())), Relaxed);
}

// SAFETY: the C library calls the functions in this section once, before `main`, in a single
// thread. It passes arguments, which a function may ignore. This one makes two system calls and
// writes two statics. It uses nothing of Rust's runtime, which is not set up yet.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
