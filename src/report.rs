//! Events of a copy that the user interface shows while the copy runs.

pub mod event;

use std::sync::Arc;

use crate::error::Error;
use crate::itemize::ItemizedEntry;
use event::CopyEvent;

/// Prints a line for the user.
pub type TellUser = Arc<dyn Fn(&str) + Send + Sync>;

/// Receives the events of a copy. `ui` implements it. No method waits.
pub trait Reporter: Send + Sync {
    /// An entry failed.
    fn failure(&self, error: &Error);
    /// An entry is not copied, which is no failure: a line for `-v`.
    fn left_out(&self, error: &Error);
    /// A line shown once, unchanged ("ssh: ..." from ssh's stderr).
    fn notice(&self, line: &str);
    /// The copy waits for `cause` to pass: a notice that names its host and path.
    fn waiting(&self, cause: &Error);
    /// fastcp is being installed on a host, which may take a while: a line for a user who waits at a
    /// terminal, and for `-v`.
    fn installing(&self, line: &str);
    /// A line for `-v`, shown after "fastcp: ".
    fn detail(&self, line: &str);
    /// An entry has changed at the destination: shown on a separate line.
    fn itemized(&self, entry: &ItemizedEntry);
    /// The same for a deleted entry.
    fn deleted(&self, path: &[u8]);
    /// An event for the records of the copy (`--json`, `--log-file`, `--report`).
    fn event(&self, event: CopyEvent);
    /// Bytes of lines about changes, and of events, that wait to be written.
    fn changes_waiting(&self) -> usize;
    /// The user asked for the progress.
    fn status(&self);

    /// The process was stopped and goes on. The shell has used the terminal.
    fn continued(&self) {}

    /// Removes the progress bars and calls `shown` when all earlier lines are on the terminal.
    /// Nothing is written after that until the returned value is dropped. `shown` is dropped
    /// uncalled if the screen is closed or takes no more lines.
    fn hold(&self, shown: Box<dyn FnOnce() + Send>) -> Box<dyn Send> {
        shown();
        Box::new(())
    }
}

/// A reporter for tests that look at no event.
#[cfg(test)]
pub(crate) struct SilentReporter;

#[cfg(test)]
impl Reporter for SilentReporter {
    fn failure(&self, _: &Error) {}
    fn left_out(&self, _: &Error) {}
    fn notice(&self, _: &str) {}
    fn waiting(&self, _: &Error) {}
    fn installing(&self, _: &str) {}
    fn detail(&self, _: &str) {}
    fn itemized(&self, _: &ItemizedEntry) {}
    fn deleted(&self, _: &[u8]) {}
    fn event(&self, _: CopyEvent) {}
    fn changes_waiting(&self) -> usize {
        0
    }
    fn status(&self) {}
}
