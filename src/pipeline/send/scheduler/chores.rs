//! Tasks of the sender's care thread. It closes files, which may wait for a disk or a server, and
//! checks files that changed until they stop changing.

use std::sync::Arc;

use super::{AnnouncedFile, Ended, InFlight, ReadyChunk, Scheduler, SchedulerState};
use crate::error::Error;
use crate::pipeline::send::plan::{Plan, SendFile};
use crate::source::SourceFile;

/// A file that nobody reads any more. Dropping it closes the file.
pub enum Discarded {
    File(Arc<SendFile>),
    Source(Box<SourceFile>),
}

/// Tasks, limited by the number of files that may be open at once.
pub struct Chores {
    pub discarded: Vec<Discarded>,
    /// Files that changed while they were read, each with the error.
    pub changed: Vec<(Arc<SendFile>, Error)>,
}

/// Plans and entries that hold files. Dropping this closes the files.
pub struct Rest {
    _discarded: Vec<Discarded>,
    _open: Vec<AnnouncedFile>,
    _fresh: Vec<ReadyChunk>,
    _again: Vec<Arc<Plan>>,
    _in_flight: Vec<InFlight>,
}

impl Scheduler {
    /// Gives a file to the thread that closes files.
    pub fn discard(&self, file: Discarded) {
        self.state.lock().discarded.push(file);
        self.changed.wake_all();
    }

    /// Gives a changed file to the thread that waits until it can be read again.
    pub fn read_again(&self, file: Arc<SendFile>, error: Error) {
        self.state.lock().changed.push((file, error));
        self.changed.wake_all();
    }

    /// Takes the tasks. If `waits`, waits until there is one.
    pub fn chores(&self, waits: bool) -> Result<Chores, Ended> {
        let is_due =
            |state: &SchedulerState| !state.discarded.is_empty() || !state.changed.is_empty();
        let mut state = self.wait_until(|state| !waits || is_due(state))?;
        let discarded = std::mem::take(&mut state.discarded);
        state.closing += discarded.len();
        let changed = std::mem::take(&mut state.changed);
        Ok(Chores { discarded, changed })
    }

    /// Records that so many discarded files are closed.
    pub fn were_closed(&self, files: usize) {
        if files > 0 {
            self.state.lock().closing -= files;
            self.changed.wake_all();
        }
    }

    /// Takes what still holds files when the copy is over.
    pub fn take_rest(&self) -> Rest {
        let mut state = self.state.lock();
        Rest {
            _discarded: std::mem::take(&mut state.discarded),
            _open: state.open.drain().map(|(_, open)| open).collect(),
            _fresh: state.fresh.drain(..).collect(),
            _again: std::mem::take(&mut state.again).into_values().collect(),
            _in_flight: std::mem::take(&mut state.in_flight).into_values().collect(),
        }
    }
}
