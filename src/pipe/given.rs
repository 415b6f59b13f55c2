//! Whether somebody gave this process a standard input and output. Rust's runtime opens /dev/null in
//! the place of one that is closed (`>&-`), so that a copy would go nowhere and call itself
//! complete; and a /dev/null that the user named looks the same. So it is looked at before that.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::{Errno, fcntl_getfd};

static NO_STDIN: AtomicBool = AtomicBool::new(false);
static NO_STDOUT: AtomicBool = AtomicBool::new(false);

/// Standard input was closed when this process began.
pub fn is_stdin_closed() -> bool {
    NO_STDIN.load(Relaxed)
}

/// Standard output was closed when this process began.
pub fn is_stdout_closed() -> bool {
    NO_STDOUT.load(Relaxed)
}

extern "C" fn look() {
    let closed = |found: rustix::io::Result<_>| matches!(found, Err(Errno::BADF));
    NO_STDIN.store(closed(fcntl_getfd(rustix::stdio::stdin())), Relaxed);
    NO_STDOUT.store(closed(fcntl_getfd(rustix::stdio::stdout())), Relaxed);
}

// SAFETY: what this section holds is called once by the C library before `main`, with no thread
// beside it, as functions that may take arguments and need not. This one makes two system calls
// and writes to two statics; of Rust's runtime, which is not set up yet, it uses nothing.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
