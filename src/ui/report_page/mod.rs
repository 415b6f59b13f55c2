//! The report of `--report`: one page that shows a copy over time, for people. It takes the same
//! events and figures as `--json` and the log. Its memory is bounded (some 2 MB), and the copy
//! never waits for it; only its end does, for 3 s.

mod charts;
mod collected;
mod file;
mod page;
mod series;

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

pub use file::ReportFile;
use parking_lot::Mutex;

use self::charts::Mark;
use self::collected::{CommandReport, CopyEnd};
use self::series::Reading;
use super::errors::{EndHosts, cause};
use super::events::{CommandStart, LineOf};
use super::tell::Verbosity;
use super::{json, summary};
use crate::error::{Error, reason_of};
use crate::progress::{Copies, Phase, Snapshot};
use crate::report::event::CopyEvent;
use crate::session::Outcome;
use crate::units::{harmless, printable};

/// How long the page may take to be written at the end of the copy. Its disk may hang.
const PATIENCE: Duration = Duration::from_secs(3);

/// Collects what the page shows. Clones share it.
#[derive(Clone)]
pub(super) struct ReportBook(Arc<Mutex<CommandReport>>);

impl ReportBook {
    pub(super) fn new(start: Arc<CommandStart>) -> ReportBook {
        ReportBook(Arc::new(Mutex::new(CommandReport::new(start))))
    }

    /// There is a copy to this destination. The page has them in this order.
    pub(super) fn add_dest(&self, of: &LineOf) {
        let _ = self.0.lock().copy_of(of);
    }

    /// Takes the figures of the moment, about once a second.
    pub(super) fn tick(&self, now: Instant, snapshot: &Snapshot) {
        let mut report = self.0.lock();
        let passed = now.saturating_duration_since(report.last).as_secs_f64();
        report.last = now;
        if snapshot.phase == Phase::Waiting {
            return;
        }
        let from = report.seconds;
        report.seconds += passed;
        let time = (from, report.seconds);
        match &snapshot.copies {
            Some(Copies::Together { dests, .. }) => {
                for dest in dests.iter().filter(|dest| dest.phase != Phase::Waiting) {
                    let reading = Reading {
                        content: dest.moved_bytes,
                        traffic: dest.traffic.clone(),
                    };
                    report.add(&dest.name, time, reading);
                }
            }
            _ => {
                let reading = Reading {
                    content: snapshot.moved_bytes,
                    traffic: snapshot.traffic(),
                };
                report.add("", time, reading);
            }
        }
    }

    pub(super) fn event(&self, of: &LineOf, event: &CopyEvent) {
        let mut report = self.0.lock();
        let at = report.seconds_now();
        let Some((copy, is_detailed)) = report.copy_of(of) else {
            return;
        };
        match event {
            CopyEvent::LoggedIn(login) => {
                copy.logins.retain(|other| other.host != login.host);
                copy.logins.push(login.clone());
            }
            CopyEvent::Route(route) => copy.route = harmless(route),
            CopyEvent::Retry(_) => copy.mark(at, Mark::LoggedInAgain),
            CopyEvent::Files(files) if is_detailed => {
                files.iter().for_each(|file| copy.note_file(file));
            }
            CopyEvent::Files(_) => {}
        }
    }

    /// An entry failed.
    pub(super) fn failure(&self, of: &LineOf, error: &Error, hosts: &EndHosts) {
        let mut report = self.0.lock();
        if let Some((copy, true)) = report.copy_of(of) {
            copy.note_message(&cause(error, hosts));
        }
    }

    /// A line for the user, such as one of ssh, which an error may refer to.
    pub(super) fn notice(&self, of: &LineOf, message: &str) {
        if let Some((copy, true)) = self.0.lock().copy_of(of) {
            copy.note_message(message);
        }
    }

    /// The copy is over.
    pub(super) fn end(&self, of: &LineOf, outcome: &Outcome, hosts: &EndHosts) {
        let mut report = self.0.lock();
        report.ended = Some(SystemTime::now());
        let Some((copy, is_detailed)) = report.copy_of(of) else {
            return;
        };
        if copy.route.is_empty() {
            copy.route = harmless(&outcome.route);
        }
        let error = outcome.fatal.as_ref();
        copy.end = Some(CopyEnd {
            figures: json::summary(outcome, hosts),
            summary: summary::lines(outcome, usize::MAX, Verbosity::All),
            exit_code: outcome.exit_code(),
            is_wanted: error.is_some_and(|error| error.kind.is_wanted()),
            error: error.map(|error| cause(error, hosts)),
            slowest: match is_detailed {
                true => outcome.slowest.clone(),
                false => Vec::new(),
            },
            is_between: hosts.source.is_some() && hosts.dest.is_some(),
        });
    }

    /// Writes the page. Returns a message if that fails.
    pub(super) fn finish(self, file: ReportFile) -> Option<String> {
        let path = printable(file.path().as_os_str().as_encoded_bytes());
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let report = self.0.lock();
            let written = file.write(|out| page::write(out, &report));
            // Nobody waits for it after some time.
            let _ = done.send(written);
        });
        let why = match is_done.recv_timeout(PATIENCE) {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => reason_of(&error),
            Err(RecvTimeoutError::Timeout) => "it took too long".to_owned(),
            Err(RecvTimeoutError::Disconnected) => "it could not be drawn".to_owned(),
        };
        Some(format!(
            "fastcp: {path}: the report was not written (--report): {why}"
        ))
    }
}
