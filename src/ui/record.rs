//! The records of a copy: events on stdout for programs (`--json`), and a log and a report for
//! people (`--log-file`, `--report`). Every event goes through here to all of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::errors::EndHosts;
use super::events::{
    self, Again, Body, CommandStart, End, ErrorEvent, File, LineOf, ProgressFigures,
};
use super::line_writer::WriterQueue;
use super::log_file::{LogFile, LogLines, LogWriter};
use super::rate::RateMeter;
use super::report_page::{ReportBook, ReportFile};
use super::tell::Verbosity;
use super::{json, summary};
use crate::error::Error;
use crate::progress::{Phase, Snapshot};
use crate::report::event::{CopyEvent, Login};
use crate::session::Outcome;
use crate::units::printable;

/// Interval between events about the progress.
const TICK: Duration = Duration::from_secs(1);

/// Ticks for one line about the progress in the log, and for one event during a wait, which may take
/// a night.
const LOG_TICKS: u32 = 60;

/// While more bytes wait for a slow reader, the progress is left out.
const PROGRESS_WAITING_MAX: usize = 64 << 10;

/// Hosts that are remembered. There are as many as operands name.
const LOGINS_MAX: usize = 1000;

/// Reads the counters of the copy.
pub(super) type SnapshotSource = Arc<dyn Fn() -> Snapshot + Send + Sync>;

/// What a command records.
#[derive(Default)]
pub struct Recorded {
    pub start: CommandStart,
    pub log: Option<LogFile>,
    pub report: Option<ReportFile>,
}

/// Takes the events of one copy.
#[derive(Clone)]
pub(super) struct Records {
    json: Option<WriterQueue>,
    log: Option<LogLines>,
    report: Option<ReportBook>,
    start: Arc<CommandStart>,
    began: SystemTime,
    seen: Arc<SeenHosts>,
}

/// The hosts and the route of a copy, as far as they are known.
#[derive(Default)]
struct SeenHosts {
    logins: Mutex<Vec<Login>>,
    has_route: AtomicBool,
}

/// The threads behind the records.
pub(super) struct Recorder {
    log: Option<LogWriter>,
    report: Option<(ReportBook, ReportFile)>,
    /// Dropped to end the thread.
    ticks: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Recorder {
    /// Events go to `json`, if the user wants them. Reads the progress from `reading`.
    pub(super) fn start(
        recorded: Recorded,
        json: Option<WriterQueue>,
        reading: &SnapshotSource,
    ) -> (Records, Recorder) {
        let log = recorded.log.map(LogWriter::start);
        let start = Arc::new(recorded.start);
        let report = recorded.report.map(|file| {
            let book = ReportBook::new(start.clone());
            (book, file)
        });
        let records = Records {
            json,
            log: log.as_ref().map(|log| log.lines.clone()),
            report: report.as_ref().map(|(book, _)| book.clone()),
            start,
            began: SystemTime::now(),
            seen: Arc::default(),
        };
        records.add(&LineOf::default(), &Body::Start(&records.start));
        let (end, ended) = mpsc::channel();
        let ticks = records.is_on().then(|| {
            let (records, reading) = (records.clone(), reading.clone());
            let tick = move || {
                let mut meter = RateMeter::default();
                let mut next = Instant::now() + TICK;
                for ticks in 1.. {
                    let rest = next.saturating_duration_since(Instant::now());
                    let is_over = ended.recv_timeout(rest) != Err(RecvTimeoutError::Timeout);
                    next = Instant::now() + TICK;
                    let (now, snapshot) = (Instant::now(), reading());
                    if let Some(report) = &records.report {
                        report.tick(now, &snapshot);
                    }
                    if is_over {
                        return;
                    }
                    meter.note(now, &snapshot);
                    let recent = meter.rates(now, &snapshot).recent;
                    records.progress(&snapshot, recent, ticks);
                }
            };
            (end, std::thread::spawn(tick))
        });
        let recorder = Recorder { log, report, ticks };
        (records, recorder)
    }

    /// Ends the events about the progress.
    pub(super) fn end_ticks(&mut self) {
        if let Some((end, ticks)) = self.ticks.take() {
            drop(end);
            let _ = ticks.join();
        }
    }

    /// Ends the log, in this time if there is a limit, and writes the report. Returns messages if
    /// they are incomplete.
    pub(super) fn finish(self, limit: Option<Duration>) -> Vec<String> {
        let log = self.log.and_then(|log| log.finish(limit));
        let report = self.report.and_then(|(book, file)| book.finish(file));
        log.into_iter().chain(report).collect()
    }
}

impl Records {
    /// The records of nothing.
    #[cfg(test)]
    pub(super) fn none() -> Records {
        Records {
            json: None,
            log: None,
            report: None,
            start: Arc::default(),
            began: SystemTime::now(),
            seen: Arc::default(),
        }
    }

    /// The same for the copy to another destination.
    pub(super) fn of_another(&self, of: &LineOf) -> Records {
        if let Some(report) = &self.report {
            report.add_dest(of);
        }
        Records {
            seen: Arc::default(),
            ..self.clone()
        }
    }

    fn is_on(&self) -> bool {
        self.has_lines() || self.report.is_some()
    }

    /// Events become lines.
    fn has_lines(&self) -> bool {
        self.json.is_some() || self.log.is_some()
    }

    fn add(&self, of: &LineOf, body: &Body<'_>) {
        if let Some(json) = &self.json {
            json.add(events::line(body.name(), of, body));
        }
        if let Some(log) = &self.log {
            log.add(of, body);
        }
    }

    fn progress(&self, snapshot: &Snapshot, rate: Option<f64>, ticks: u32) {
        let (of, body) = (
            LineOf::default(),
            Body::Progress(ProgressFigures::of(snapshot, rate)),
        );
        let is_minute = ticks.is_multiple_of(LOG_TICKS);
        let is_waiting = snapshot.phase == Phase::Waiting;
        let json = self.json.as_ref().filter(|_| is_minute || !is_waiting);
        if let Some(json) = json.filter(|json| json.waiting() <= PROGRESS_WAITING_MAX) {
            json.add(events::line(body.name(), &of, &body));
        }
        if let Some(log) = self.log.as_ref().filter(|_| is_minute && !is_waiting) {
            log.add(&of, &body);
        }
    }

    pub(super) fn event(&self, of: &LineOf, event: CopyEvent) {
        if let Some(report) = &self.report {
            report.event(of, &event);
        }
        match event {
            CopyEvent::LoggedIn(login) => {
                self.add(of, &Body::Login(&login));
                let mut logins = self.seen.logins.lock();
                let is_same = |other: &Login| (other.end, &other.host) == (login.end, &login.host);
                logins.retain(|other| !is_same(other));
                if logins.len() < LOGINS_MAX {
                    logins.push(login);
                }
            }
            CopyEvent::Route(route) => {
                self.seen.has_route.store(true, Relaxed);
                self.add(of, &Body::Route { route: &route });
            }
            CopyEvent::Retry(retry) => self.add(of, &Body::Retry(Again::of(&retry))),
            CopyEvent::Files(files) if self.has_lines() => {
                for file in &files {
                    self.add(of, &Body::File(File::of(file)));
                }
            }
            CopyEvent::Files(_) => {}
        }
    }

    pub(super) fn failure(&self, of: &LineOf, error: &Error, hosts: &EndHosts, fatal: bool) {
        if let Some(report) = self.report.as_ref().filter(|_| !fatal) {
            report.failure(of, error, hosts);
        }
        if self.has_lines() {
            self.add(of, &Body::Error(ErrorEvent::of(error, hosts, fatal)));
        }
    }

    pub(super) fn waiting(&self, of: &LineOf, message: String) {
        self.add(of, &Body::Waiting { message });
    }

    pub(super) fn notice(&self, of: &LineOf, message: &str) {
        if let Some(report) = &self.report {
            report.notice(of, message);
        }
        self.add(of, &Body::Notice { message });
    }

    /// A line of `-v`, for people alone.
    pub(super) fn detail(&self, of: &LineOf, line: &str) {
        if let Some(log) = &self.log {
            log.line(of, "detail", line);
        }
    }

    /// An entry was deleted. `is_told`: a line about changes on stdout says so.
    pub(super) fn deleted(&self, of: &LineOf, path: &[u8], is_told: bool) {
        if self.start.dry_run || !self.has_lines() {
            return;
        }
        let path = printable(path);
        let body = Body::Deleted { path };
        match &self.log {
            Some(log) if is_told => log.add(of, &body),
            _ if is_told => {}
            _ => self.add(of, &body),
        }
    }

    /// The copy is over.
    pub(super) fn end(&self, of: &LineOf, outcome: &Outcome, hosts: &EndHosts) {
        if !self.is_on() {
            return;
        }
        if let Some(report) = &self.report {
            report.end(of, outcome, hosts);
        }
        if let Some(fatal) = &outcome.fatal {
            self.failure(of, fatal, hosts, true);
        }
        // A short copy may be over before a route is chosen.
        if !self.seen.has_route.load(Relaxed) && !outcome.route.is_empty() {
            let route = &outcome.route;
            self.add(of, &Body::Route { route });
        }
        if let Some(verdict) = summary::verdict(outcome) {
            self.add(of, &Body::Verdict(verdict));
        }
        if let Some(log) = &self.log {
            for line in summary::figures(outcome, usize::MAX, Verbosity::All) {
                log.line(of, "summary", &line);
            }
            for line in summary::not_kept(&outcome.counters.not_kept, hosts) {
                log.line(of, "summary", &line);
            }
        }
        let logins = self.seen.logins.lock().clone();
        let result = json::summary(outcome, hosts);
        let end = End::of(&self.start, &logins, self.began, result);
        self.add(of, &Body::End(end));
    }
}
