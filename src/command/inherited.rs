//! Signals and limits that this process changes for itself. Its commands get them as its user would
//! expect: each of these signals has its default action, and the limit on open files is that with
//! which this process started.

use std::io;
use std::sync::OnceLock;

use nix::sys::signal::{SigHandler, Signal, signal};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Signals that this process ignores.
static IGNORED: Mutex<Vec<Signal>> = Mutex::new(Vec::new());

/// The limit on open files before this process raised it.
static OPEN_FILES: OnceLock<Rlimit> = OnceLock::new();

/// Ignores a signal in this process.
pub fn ignore_signal(ignored: Signal) {
    // SAFETY: ignoring a signal installs no handler that could run.
    let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    IGNORED.lock().push(ignored);
}

/// Lets this process open as many files as the hard limit allows.
pub fn raise_open_files() {
    let found = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: found.maximum,
        maximum: found.maximum,
    };
    // Refused only if the limit may not be raised; then the copy opens fewer files.
    if setrlimit(Resource::Nofile, raised).is_ok() {
        OPEN_FILES.get_or_init(|| found);
    }
}

/// The state that a command must not inherit from this process.
pub(super) struct Inherited {
    ignored: Vec<Signal>,
    open_files: Option<Rlimit>,
}

impl Inherited {
    pub(super) fn now() -> Inherited {
        Inherited {
            ignored: IGNORED.lock().clone(),
            open_files: OPEN_FILES.get().copied(),
        }
    }

    /// Undoes it in a new process, between `fork` and `exec`: allocates nothing and locks nothing.
    pub(super) fn undo(&self) -> io::Result<()> {
        for ignored in &self.ignored {
            // SAFETY: the default action is no handler that could run.
            unsafe { signal(*ignored, SigHandler::SigDfl)? };
        }
        if let Some(found) = self.open_files {
            setrlimit(Resource::Nofile, found)?;
        }
        Ok(())
    }
}
