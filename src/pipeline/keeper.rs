//! What is done for the journal beside the copy, by a thread that may wait for a disk: it is touched
//! while the other end is heard, and from time to time what was written is made durable, so that less
//! has to be compared after the machine went down.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::pipeline::receiver::Receiver;

/// How often the journal is touched; a second fastcp takes five of them for silence.
const TOUCH_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two syncs: each takes from the copy what the disk has left.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);

/// With fewer free buffers than one in so many the disk is what the copy waits for: a sync would
/// only be in its way.
const BEHIND: usize = 4;

#[derive(Default)]
pub struct Keeper {
    over: Mutex<bool>,
    changed: Condvar,
}

impl Keeper {
    /// Ends [`run`](Keeper::run), but for a sync that is under way.
    pub fn end(&self) {
        *self.over.lock().expect("no panic while held") = true;
        self.changed.notify_all();
    }

    /// True after a second, false when the copy is over.
    fn wait(&self) -> bool {
        let over = self.over.lock().expect("no panic while held");
        let waited = self
            .changed
            .wait_timeout_while(over, TOUCH_INTERVAL, |over| !*over);
        !*waited.expect("no panic while held").0
    }
}

/// Runs until the copy is over. `heard` counts what came from the other end; it is none where that
/// is in this process.
pub fn keep(receiver: &Receiver, heard: Option<&AtomicU64>) {
    let mut before = 0;
    let buffers = receiver.pool.free();
    let mut synced = Instant::now();
    while receiver.keeper.wait() {
        let Some(journal) = receiver.journal() else {
            continue;
        };
        let now = heard.map_or(before + 1, |heard| heard.load(Relaxed));
        if now != before {
            journal.touch();
        }
        before = now;
        let is_behind = receiver.pool.free() * BEHIND < buffers;
        if synced.elapsed() >= SYNC_INTERVAL && !is_behind {
            let position = journal.position();
            let done = journal
                .dir()
                .handle()
                .is_ok_and(|dir| rustix::fs::syncfs(&*dir).is_ok());
            if done {
                journal.synced(position);
            }
            synced = Instant::now();
        }
    }
}
