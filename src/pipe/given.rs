//! A check whether this process was started with a standard input, output and error. Rust's runtime
//! opens /dev/null in place of a closed one (`>&-`). A copy would then write nowhere and report
//! success. A /dev/null that the user named looks the same, so the check runs before the runtime
//! starts.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::{Errno, fcntl_getfd};

static NO_STDIN: AtomicBool = AtomicBool::new(false);
static NO_STDOUT: AtomicBool = AtomicBool::new(false);
static NO_STDERR: AtomicBool = AtomicBool::new(false);

/// True if standard input was closed when this process started.
pub fn is_stdin_closed() -> bool {
    NO_STDIN.load(Relaxed)
}

/// True if standard output was closed when this process started.
pub fn is_stdout_closed() -> bool {
    NO_STDOUT.load(Relaxed)
}

/// True if standard error was closed when this process started.
pub fn is_stderr_closed() -> bool {
    NO_STDERR.load(Relaxed)
}

/// True if `path` is another name of the standard input, which was closed when this process started.
/// The name leads to an empty file.
pub fn is_closed_stdin(path: &Path) -> bool {
    let names = ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];
    is_stdin_closed() && names.iter().any(|name| path == Path::new(name))
}

/// Opens a file that the user named in an option.
///
/// # Errors
/// Also if it is a standard input that was closed.
pub fn open_option_file(path: &Path) -> io::Result<File> {
    match is_closed_stdin(path) {
        true => Err(io::Error::other("standard input is closed")),
        false => File::open(path),
    }
}

extern "C" fn look() {
    let closed = |found: rustix::io::Result<_>| matches!(found, Err(Errno::BADF));
    NO_STDIN.store(closed(fcntl_getfd(rustix::stdio::stdin())), Relaxed);
    NO_STDOUT.store(closed(fcntl_getfd(rustix::stdio::stdout())), Relaxed);
    NO_STDERR.store(closed(fcntl_getfd(rustix::stdio::stderr())), Relaxed);
}

// SAFETY: the C library calls the functions in this section once, before `main`, in a single
// thread. It passes arguments, which a function may ignore. This one makes three system calls and
// writes three statics. It uses nothing of Rust's runtime, which is not set up yet.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
