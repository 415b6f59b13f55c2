//! Processes that do not outlive the test that starts them.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::signal::{SigHandler, Signal, signal};

use super::host::find_program;

/// A command whose process does not outlive the test: if a test is killed or panics, the kernel
/// kills the processes that its thread started. Ctrl-C and SIGHUP get their default action. A
/// shell's background jobs and nohup ignore them, and tests would then give other results.
///
/// `setpriv` sets the death signal, not `pre_exec`, with which std forks: to copy and free this
/// large process's page tables took an eighth of the tests' processor time.
pub(crate) fn dying_with_this_thread(program: impl AsRef<OsStr>) -> Command {
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
