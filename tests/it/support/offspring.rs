//! Processes that do not outlive the test that starts them.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::signal::{SigHandler, Signal, signal};

use super::host::find_program;

/// A command that leaves no process behind if a test is killed or panics: the kernel kills what its
/// thread started. And tests that a script runs in the background, where shells have Ctrl-C ignored, or
/// under nohup say the same as others.
///
/// Not by `pre_exec`, with which std forks: to copy and free the page tables of a process as large
/// as the tests are in took an eighth of all their processor time.
pub fn dying_with_this_thread(program: impl AsRef<OsStr>) -> Command {
    static SETPRIV: OnceLock<PathBuf> = OnceLock::new();
    let setpriv = SETPRIV.get_or_init(|| {
        for ignored in [Signal::SIGINT, Signal::SIGHUP] {
            // SAFETY: the default action runs no code of ours. What we start inherits it.
            unsafe { signal(ignored, SigHandler::SigDfl) }.expect("a signal");
        }
        find_program("setpriv").expect("setpriv comes with util-linux")
    });
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}
