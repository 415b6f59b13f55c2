//! The care thread: it closes files, which may wait for a disk or a server, and it waits until
//! files that changed while they were read can be read again.

use std::sync::Arc;
use std::time::Duration;

use super::plan::SendFile;
use super::read::SendReader;
use super::report::SendReport;
use super::scheduler::Scheduler;
use crate::error::Error;
use crate::source::SourceFile;

/// How often a changed file is checked, and how long it must stay unchanged before it is read
/// again. All checks take two seconds: little compared with a second reading that fails too.
const SETTLE: Duration = Duration::from_millis(100);
const SETTLE_TRIES: usize = 20;

/// A file that changed while it was read, until it can be read again.
struct Settling {
    file: Arc<SendFile>,
    /// The error of the first reading.
    error: Error,
    /// The file as opened at the last check.
    source: Option<SourceFile>,
    tries: usize,
}

impl Settling {
    fn new((file, error): (Arc<SendFile>, Error)) -> Settling {
        Settling {
            file,
            error,
            source: None,
            tries: 0,
        }
    }
}

/// What the care thread needs of the sender.
pub(super) struct Care<'a> {
    reader: &'a SendReader,
    report: &'a SendReport,
    scheduler: &'a Scheduler,
}

impl Care<'_> {
    pub(super) fn new(reader: &SendReader) -> Care<'_> {
        Care {
            reader,
            report: reader.report(),
            scheduler: reader.report().scheduler(),
        }
    }

    /// Closes files and waits for changed files, until the copy ends.
    pub(super) fn run(&self) {
        let mut settling: Vec<Settling> = Vec::new();
        while let Ok(chores) = self.scheduler.chores(settling.is_empty()) {
            let files = chores.discarded.len();
            drop(chores.discarded);
            self.scheduler.were_closed(files);
            settling.extend(chores.changed.into_iter().map(Settling::new));
            if !settling.is_empty() {
                std::thread::sleep(SETTLE);
                settling.retain_mut(|file| !self.has_settled(file));
            }
        }
        drop(self.scheduler.take_rest());
    }

    /// Checks a file that changed. Its writer may continue, and the times change after the size:
    /// half a second later when a big file is truncated. So the file is checked again, up to a
    /// limit, if it changed since the last check or still has the old times. True when the checks
    /// are over.
    fn has_settled(&self, settling: &mut Settling) -> bool {
        let Settling {
            file,
            error,
            source,
            tries,
        } = settling;
        if file.reading.has_failed() {
            return true;
        }
        *tries += 1;
        let before = file.found.entry.ctime;
        let is_over = |source: &SourceFile| {
            source.found().entry.ctime != before && source.unchanged().is_ok()
        };
        match source.take() {
            Some(source) if is_over(&source) => {
                self.reader.announce_second_reading(file, source);
                return true;
            }
            // It goes on growing, so a second reading would not be complete either.
            Some(_) if *tries > SETTLE_TRIES && file.reading.has_grown() => {
                self.scheduler.compare_grown(file.clone());
                return true;
            }
            Some(source) if *tries > SETTLE_TRIES => {
                self.reader.announce_second_reading(file, source);
                return true;
            }
            _ => {}
        }
        match self.reader.open(&file.found) {
            Ok(opened) => *source = Some(opened),
            // It was replaced or removed, so it cannot be read again. The change is reported as
            // the cause.
            Err(_) => {
                self.report.fail_file(file, error.clone());
                return true;
            }
        }
        false
    }
}
