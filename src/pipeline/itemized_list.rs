//! The changes at the destination that the user sees (`--itemize-changes`, `--dry-run`).

use std::sync::Arc;
use std::time::Duration;

use crate::progress::Progress;
use crate::report::Reporter;
use crate::wire::message::ItemizedEntries;

/// Bytes of lines that may wait for a slow reader. Copies stop adding lines beyond that.
const WAITING_MAX: usize = 1 << 20;

/// How often a full queue of lines is looked at again.
const LOOK: Duration = Duration::from_millis(5);

/// The end that the user sees shows them; that of the other end is silent.
#[derive(Default)]
pub struct ItemizedList {
    shown: Option<(Arc<dyn Reporter>, Arc<Progress>)>,
}

impl ItemizedList {
    pub fn new(reporter: Arc<dyn Reporter>, progress: Arc<Progress>) -> ItemizedList {
        ItemizedList {
            shown: Some((reporter, progress)),
        }
    }

    /// True if the user sees this end.
    pub fn is_shown(&self) -> bool {
        self.shown.is_some()
    }

    /// Shows and counts what either end has reported. Never waits.
    pub fn add(&self, changes: &ItemizedEntries) {
        let Some((reporter, progress)) = &self.shown else {
            return;
        };
        progress.add_would_send(changes.files, changes.bytes);
        progress.add_unchanged_files(changes.unchanged, 0);
        for entry in &changes.entries {
            progress.add_difference(entry.difference());
            reporter.itemized(entry);
        }
    }

    /// True if so many lines wait that no more should be added now.
    pub fn is_full(&self) -> bool {
        self.waiting() > WAITING_MAX
    }

    fn waiting(&self) -> usize {
        let shown = self.shown.as_ref();
        shown.map_or(0, |(reporter, _)| reporter.changes_waiting())
    }

    /// Waits until there is room.
    pub async fn room(&self) {
        while self.is_full() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until all lines are written.
    pub async fn written(&self) {
        while self.waiting() > 0 {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The same as [`room`](Self::room) on a thread; also returns when `is_ending` is true.
    pub fn room_blocking(&self, is_ending: impl Fn() -> bool) {
        while self.is_full() && !is_ending() {
            std::thread::sleep(LOOK);
        }
    }
}
