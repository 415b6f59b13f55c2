//! Files that the source has renamed or moved since the last copy: they are compared with the file of
//! the same size and time that the destination has under another name, instead of being sent.

use std::fs::File;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::dest::{FilesByTime, Landing, RootTarget};
use crate::dir::Dir;
use crate::manifest::Entry;
use crate::pipeline::context::Context;

/// How long the destination's files are looked through. Those that were not seen by then are sent.
const LOOK_MAX: Duration = Duration::from_secs(20);

/// The directories that the copy goes into, and the large files in them.
#[derive(Default)]
pub(super) struct MovedFiles {
    roots: OnceLock<Vec<KnownRoot>>,
}

struct KnownRoot {
    dir: Arc<Dir>,
    /// Looked through by the first thread that needs it; the others wait for that.
    files: OnceLock<FilesByTime>,
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
        let roots = dirs.map(|dir| KnownRoot {
            dir,
            files: OnceLock::new(),
        });
        // Roots land once, so it was not set before.
        let _ = self.roots.set(roots.collect());
    }

    /// True if there was anything before the copy.
    pub(super) fn may_have_any(&self) -> bool {
        self.roots.get().is_some_and(|roots| !roots.is_empty())
    }

    /// A file of the entry's size and time. Called on a worker, since it may look through all files at
    /// the destination.
    pub(super) fn find(&self, entry: &Entry, context: &Context) -> Option<File> {
        let roots = self.roots.get()?;
        roots.iter().find_map(|root| {
            let files = root.files.get_or_init(|| {
                let until = Instant::now() + LOOK_MAX;
                let is_over = || context.is_ending() || Instant::now() > until;
                FilesByTime::read(&root.dir, is_over)
            });
            files.open(entry.size, entry.mtime)
        })
    }
}
