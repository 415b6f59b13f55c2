//! What one thread of the sender does besides the copy: it closes files, which may wait for a disk
//! or a server, and looks at files that changed until they stay as they are.

use std::sync::Arc;

use super::{Ended, Fresh, InFlight, Open, Plans, State};
use crate::error::Error;
use crate::pipeline::plan::{File, Plan};
use crate::source::SourceFile;

/// A file that nobody reads any more. Dropped, it is closed.
pub enum Discarded {
    File(Arc<File>),
    Source(Box<SourceFile>),
}

/// What is to be done; all of it is bounded by the files that may be open at once.
pub struct Chores {
    pub discarded: Vec<Discarded>,
    /// Files that changed while they were read, and what failed.
    pub changed: Vec<(Arc<File>, Error)>,
}

/// All that holds files. Dropped, they are closed.
pub struct Rest {
    _discarded: Vec<Discarded>,
    _open: Vec<Open>,
    _fresh: Vec<Fresh>,
    _again: Vec<Arc<Plan>>,
    _in_flight: Vec<InFlight>,
}

impl Plans {
    /// Has a file closed by the thread that may wait for it.
    pub fn discard(&self, file: Discarded) {
        self.lock().discarded.push(file);
        self.changed.wake_all();
    }

    /// Has a file that changed looked at until it can be read again.
    pub fn read_again(&self, file: Arc<File>, error: Error) {
        self.lock().changed.push((file, error));
        self.changed.wake_all();
    }

    /// What is to be done; `waits` until there is something.
    pub fn chores(&self, waits: bool) -> Result<Chores, Ended> {
        let is_due = |state: &State| !state.discarded.is_empty() || !state.changed.is_empty();
        let mut state = self.wait_until(|state| !waits || is_due(state))?;
        let discarded = std::mem::take(&mut state.discarded);
        state.closing += discarded.len();
        let changed = std::mem::take(&mut state.changed);
        Ok(Chores { discarded, changed })
    }

    /// So many discarded files are closed.
    pub fn were_closed(&self, files: usize) {
        if files > 0 {
            self.lock().closing -= files;
            self.changed.wake_all();
        }
    }

    /// All that still holds files, once the copy is over.
    pub fn take_rest(&self) -> Rest {
        let mut state = self.lock();
        Rest {
            _discarded: std::mem::take(&mut state.discarded),
            _open: state.open.drain().map(|(_, open)| open).collect(),
            _fresh: state.fresh.drain(..).collect(),
            _again: std::mem::take(&mut state.again).into_values().collect(),
            _in_flight: std::mem::take(&mut state.in_flight).into_values().collect(),
        }
    }
}
