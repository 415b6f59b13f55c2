//! Files that the source has renamed or moved since the last copy: they are compared with the file of
//! the same size and time that the destination has under another name, instead of being sent.

use std::fs::File;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::dest::{FilesByTime, Landing, RootTarget};
use crate::dir::Dir;
use crate::manifest::Entry;
use crate::pipeline::context::Context;
use crate::threads;

/// How long the destination's files are looked through. Those that were not seen by then are sent.
const LOOK_MAX: Duration = Duration::from_secs(20);

/// The least time that the search gets, from its own beginning, before a file stops waiting for it.
const WAIT_MIN: Duration = Duration::from_millis(250);

/// A file waits as long as it would take to send it at this rate, if that is longer.
const WAIT_BYTES_PER_S: u64 = 10_000_000;

/// The directories that the copy goes into, and the large files in them.
#[derive(Default)]
pub(super) struct MovedFiles {
    roots: OnceLock<Vec<Arc<Dir>>>,
    /// Begun by the first file that may have been moved.
    search: OnceLock<Arc<MovedSearch>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    is_closed: Arc<AtomicBool>,
}

/// One search through all directories, in a separate thread.
struct MovedSearch {
    began: Instant,
    /// Set when the search is over.
    found: Mutex<Option<Arc<FilesByTime>>>,
    is_over: Condvar,
}

impl MovedFiles {
    /// Notes the directories that existed before the copy.
    pub(super) fn set_roots(&self, targets: &[RootTarget]) {
        let existed = targets.iter().filter(|target| target.existed);
        let dirs = existed.filter_map(|target| match &target.landing {
            Landing::Directory(dir) => Some(dir.clone()),
            // Otherwise it is a file, or nothing is known of it.
            Landing::Name(slot) => slot.dir.child(&slot.name).ok(),
            Landing::Exit(_) | Landing::Missing(_) => None,
        });
        // Roots land once, so it was not set before.
        let _ = self.roots.set(dirs.collect());
    }

    /// True if there was anything before the copy.
    pub(super) fn may_have_any(&self) -> bool {
        self.roots.get().is_some_and(|roots| !roots.is_empty())
    }

    /// A file of the entry's size and time. Called on a worker, since it may wait for a search of all
    /// files at the destination, but not longer than it is worth. None if that has not ended then.
    pub(super) fn find(&self, entry: &Entry, context: &Arc<Context>) -> Option<File> {
        let roots = self.roots.get()?;
        let search = self.search.get_or_init(|| self.begin(roots, context));
        let until = search.began + patience(entry.size, search.began.elapsed());
        let files = search.files(until)?;
        files.open(entry.size, entry.mtime, &entry.name)
    }

    fn begin(&self, roots: &[Arc<Dir>], context: &Arc<Context>) -> Arc<MovedSearch> {
        let search = Arc::new(MovedSearch {
            began: Instant::now(),
            found: Mutex::default(),
            is_over: Condvar::new(),
        });
        let (roots, context) = (roots.to_vec(), context.clone());
        let (looking, is_closed) = (search.clone(), self.is_closed.clone());
        let thread = threads::start(move || {
            let is_late = || looking.began.elapsed() > LOOK_MAX;
            let is_over = || is_closed.load(Relaxed) || context.is_ending() || is_late();
            looking.ends(FilesByTime::read(&roots, is_over));
        });
        match thread {
            Ok(thread) => *self.thread.lock() = Some(thread),
            // All files are sent.
            Err(_) => search.ends(FilesByTime::default()),
        }
        search
    }

    /// Ends the search and all waits for it. Returns its thread, if there is one.
    pub(super) fn close(&self) -> Option<JoinHandle<()>> {
        self.is_closed.store(true, Relaxed);
        self.thread.lock().take()
    }
}

impl MovedSearch {
    fn ends(&self, found: FilesByTime) {
        *self.found.lock() = Some(Arc::new(found));
        self.is_over.notify_all();
    }

    /// The files, if the search ends before `until`.
    fn files(&self, until: Instant) -> Option<Arc<FilesByTime>> {
        let mut found = self.found.lock();
        while found.is_none() && !self.is_over.wait_until(&mut found, until).timed_out() {}
        found.clone()
    }
}

/// How long after the beginning of a search, which has taken `elapsed`, a file of `size` bytes stops
/// waiting for it.
fn patience(size: u64, elapsed: Duration) -> Duration {
    let worth = Duration::from_secs_f64(size as f64 / WAIT_BYTES_PER_S as f64);
    elapsed.saturating_add(worth).clamp(WAIT_MIN, LOOK_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_waits_longer_than_its_sending_takes_or_than_the_search() {
        let s = Duration::from_secs;
        assert_eq!(patience(300_000, s(0)), WAIT_MIN);
        assert_eq!(patience(300_000, s(7)), s(7) + Duration::from_millis(30));
        assert_eq!(patience(50_000_000, s(1)), s(6));
        assert_eq!(patience(u64::MAX, s(1)), LOOK_MAX);
        assert_eq!(patience(1, s(30)), LOOK_MAX);
    }
}
