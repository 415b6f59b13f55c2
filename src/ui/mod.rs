//! The user interface: the progress bar, failure messages and the summary. While a [`Screen`] is
//! open (during a copy), a single thread writes all messages to stderr, so that lines never mix
//! and no caller waits for the terminal.
//!
//! No colour is used, so `NO_COLOR` has no effect.

mod bars;
mod canvas;
mod change_lines;
mod error_counts;
mod errors;
mod events;
mod json;
mod line_writer;
mod log_file;
pub mod probe;
mod rate;
mod record;
mod report_page;
mod several;
mod status;
pub mod stdout;
mod steady;
mod summary;
mod tell;
mod terminal;
mod trusted_path;
mod view;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bars::Bars;
use change_lines::{ChangeForm, ChangeLines};
use error_counts::ErrorCounts;
pub use errors::EndHosts;
use errors::{host, sentence};
pub use events::CommandStart;
use events::LineOf;
use line_writer::{LineWriter, WriterQueue};
pub use log_file::LogFile;
use parking_lot::Mutex;
use rate::{CopyRates, RateMeter};
pub use record::Recorded;
use record::{Recorder, Records, SnapshotSource};
pub use report_page::ReportFile;
pub use several::Copied;
use steady::Steady;
pub use tell::Output;
use tell::Verbosity;
use terminal::Terminal;

use crate::control::room::{Room, RoomShare};
use crate::error::{Error, Kind, Result, Side};
use crate::itemize::{ItemAction, ItemizedEntry};
use crate::pipe::write_all;
use crate::progress::Snapshot;
use crate::report::Reporter;
use crate::report::event::CopyEvent;
use crate::session::Outcome;
use crate::units::{count, harmless, plural, printable, size};

/// Interval between readings of the rate, for status requests, when nothing is drawn.
const QUIET_TICK: Duration = Duration::from_secs(1);

/// Interval between redraws.
const TICK: Duration = Duration::from_millis(100);

/// A wake-up this much later than requested may mean that the process was stopped (Ctrl-Z), or that
/// the machine is busy.
const LATE: Duration = Duration::from_millis(500);

/// Lines that may wait for a terminal that accepts none (Ctrl-S, a full pipe). Further lines are
/// only counted.
const LINES_WAITING_MAX: usize = 10_000;

/// The most bytes of these lines.
const LINES_BYTES_MAX: usize = 4 << 20;

/// Bytes of memory that a waiting line takes beside its text. Because these count, a copy with
/// `-vv` waits (at 1 MiB of lines) before short lines fill the queue of 10,000.
const LINE_BYTES: usize = 160;

/// The most bytes of lines that wait for a reader of stdout. A copy waits long before that, but
/// errors do not.
const STDOUT_WAITING_MAX: usize = 64 << 20;

/// Failures that are kept for the end if the queue is full: the endless output of a command must
/// not hide why it failed. Further failures are only counted.
const FAILURES_WAITING_MAX: usize = 20;

/// Lines that are kept to detect an error that repeats them. An error quotes fewer lines.
const SHOWN_MAX: usize = 20;

/// The progress of the copy, with its rates.
struct Figures {
    reading: SnapshotSource,
    meter: RateMeter,
    hosts: EndHosts,
}

impl Figures {
    /// Reads the counters, also for the rates.
    fn read(&mut self) -> (Snapshot, CopyRates) {
        let (now, snapshot) = (Instant::now(), (self.reading)());
        self.meter.note(now, &snapshot);
        let rates = self.meter.rates(now, &snapshot);
        (snapshot, rates)
    }

    /// The progress in one line.
    fn status(&mut self) -> String {
        let (snapshot, rates) = self.read();
        status::line(&snapshot, &rates, &self.hosts)
    }
}

/// The output on stderr while a session runs. Open it before the session, pass its reporter to
/// the session, and finish it afterwards.
pub struct Screen {
    teller: Teller,
    writer: JoinHandle<()>,
    stdout: Option<LineWriter>,
    recorder: Recorder,
    /// The records of each of several destinations, with its name.
    several: Mutex<Vec<(String, Records)>>,
    terminal: Option<Terminal>,
}

enum ScreenMessage {
    Line {
        text: String,
        /// Its share of the bytes that may wait.
        _share: RoomShare,
    },
    /// Another program uses the terminal for a while.
    Hold(ScreenHold),
    /// Show the current progress.
    Status,
    /// The process was stopped, and the shell has written to the terminal.
    Continued,
    End,
}

/// A question on the terminal. Nothing else is written until it is answered.
struct ScreenHold {
    /// Called when the lines are written and the bars removed.
    shown: Box<dyn FnOnce() + Send>,
    /// Carries no message; it is closed when the question is answered.
    answered: Receiver<()>,
}

impl ScreenHold {
    fn wait(self) {
        (self.shown)();
        let _ = self.answered.recv();
    }
}

/// Passes lines to the writer, as far as `output` allows.
#[derive(Clone)]
struct Teller {
    output: Output,
    /// Somebody may be waiting at a terminal.
    is_watched: bool,
    lines: SyncSender<ScreenMessage>,
    /// For the bytes of waiting lines.
    room: Arc<Room>,
    lost: Arc<AtomicU64>,
    failures: Arc<Mutex<Vec<String>>>,
    /// The errors that are printed, and the number of the others.
    errors: Arc<Mutex<ErrorCounts>>,
    /// The last lines that were shown at once, including those of commands.
    shown: Arc<Mutex<VecDeque<String>>>,
    /// Takes the lines about changes, if the user wants them.
    changes: Option<ChangeLines>,
    /// Takes lines about changes, and events.
    stdout: Option<WriterQueue>,
    records: Records,
    of: LineOf,
    hosts: EndHosts,
}

impl Screen {
    /// Starts the writer thread. It draws the progress from `reading` if stderr is a terminal and
    /// `output` allows it.
    pub fn open(
        output: Output,
        hosts: EndHosts,
        recorded: Recorded,
        reading: impl Fn() -> Snapshot + Send + Sync + 'static,
    ) -> Screen {
        let reading: SnapshotSource = Arc::new(reading);
        let terminal = Terminal::of_stderr();
        let (sender, lines) = mpsc::sync_channel(LINES_WAITING_MAX);
        let is_json = output.json;
        let stdout = (is_json || output.changes).then(|| stdout_writer(is_json));
        let queue = stdout.as_ref().map(|stdout| stdout.queue.clone());
        let events = queue.clone().filter(|_| is_json);
        let (records, recorder) = Recorder::start(recorded, events, &reading);
        let changes = queue.clone().filter(|_| output.changes);
        let form = ChangeForm {
            json: is_json,
            check: output.check,
        };
        let figures = Figures {
            reading,
            meter: RateMeter::default(),
            hosts: hosts.clone(),
        };
        let every = output.progress.filter(|_| !output.quiet);
        let may_draw = !output.quiet && !output.plain && every.is_none();
        let writer = std::thread::spawn(move || match terminal {
            Some(terminal) if terminal.can_redraw && may_draw => draw(&lines, &terminal, figures),
            _ => pass_on(&lines, figures, every),
        });
        Screen {
            teller: Teller {
                output,
                is_watched: terminal.is_some(),
                lines: sender,
                room: Room::new(LINES_BYTES_MAX),
                lost: Arc::default(),
                failures: Arc::default(),
                errors: Arc::default(),
                shown: Arc::default(),
                changes: changes.map(|lines| ChangeLines { lines, form }),
                stdout: queue,
                records,
                of: LineOf::default(),
                hosts,
            },
            stdout,
            recorder,
            several: Mutex::default(),
            writer,
            terminal,
        }
    }

    pub fn reporter(&self) -> Arc<dyn Reporter> {
        Arc::new(self.teller.clone())
    }

    /// Removes the bar and shows the result: the reason for an early end, and the summary if it
    /// is wanted.
    ///
    /// # Errors
    /// `Kind::Write` if lines on stdout (events, or lines about changes) could not be written.
    pub fn finish(self, outcome: &Outcome) -> Result<()> {
        let (output, terminal) = (self.teller.output, self.terminal);
        let tell = Verbosity::of(output, terminal.is_some());
        let teller = self.teller.clone();
        let hosts = teller.hosts.clone();
        let is_ended = outcome.fatal.as_ref().is_some_and(is_wanted);
        let end = |records: &Records| records.end(&LineOf::default(), outcome, &hosts);
        let (mut lines, written) = self.end(!is_ended, end);
        if tell >= Verbosity::Each {
            lines.extend(summary::lines(outcome, width(terminal), tell));
        }
        if tell > Verbosity::Failures && outcome.unlisted > 0 {
            lines.push(summary::unlisted(outcome.unlisted));
        }
        if tell > Verbosity::Failures && outcome.counters.unlinked > 0 {
            lines.push(summary::unlinked(outcome.counters.unlinked));
        }
        if tell > Verbosity::Failures {
            lines.extend(summary::not_kept(&outcome.counters.not_kept, &hosts));
        }
        if let Some(fatal) = &outcome.fatal {
            lines.push(teller.sentence(fatal));
        }
        write_lines(lines);
        written
    }

    /// Ends the output without a summary. Shows the reason if the session ended early.
    pub fn close(self, fatal: Option<&Error>) {
        let hosts = self.teller.hosts.clone();
        let (mut lines, _) = self.end(true, |_| ());
        lines.extend(fatal.map(|error| sentence(error, &hosts)));
        write_lines(lines);
    }

    /// Removes the bar and returns the lines that are still to be shown, and whether the lines on
    /// stdout could be written. `record` adds the last events. Unless it `waits`, lines that nobody
    /// reads are given up after a moment, which is no error.
    fn end(mut self, waits: bool, record: impl FnOnce(&Records)) -> (Vec<String>, Result<()>) {
        let limit = (!waits).then_some(CHANGES_PATIENCE);
        self.recorder.end_ticks();
        record(&self.teller.records);
        let written = match self.stdout {
            Some(stdout) => finish_stdout(stdout, limit),
            None => Ok(()),
        };
        let log = self.recorder.finish(limit);
        // Fails only if the writer thread has ended.
        let _ = self.teller.lines.send(ScreenMessage::End);
        let _ = self.writer.join();
        let lost = self.teller.lost.load(Relaxed);
        let told =
            (lost > 0).then(|| format!("fastcp: {} more lines could not be shown", count(lost)));
        let mut failures = self.teller.failures.lock();
        let lines = told.into_iter().chain(failures.drain(..));
        let lines = lines.chain(self.teller.errors.lock().rest()).chain(log);
        (lines.collect(), written)
    }
}

/// The writer of lines on stdout: events, or lines about changes.
fn stdout_writer(is_json: bool) -> LineWriter {
    let mut has_failed = false;
    LineWriter::start(STDOUT_WAITING_MAX, move |lines| {
        if has_failed {
            return Ok(());
        }
        let written = match is_json {
            true => stdout::record(lines),
            // A reader may have seen enough (`| head`).
            false => stdout::show(lines),
        };
        has_failed = written.is_err();
        written
    })
}

/// Lines for the user on stdout, which wait for no reader.
pub struct StdoutLines(LineWriter);

/// Takes these lines.
#[derive(Clone)]
pub struct StdoutQueue(WriterQueue);

impl StdoutLines {
    pub fn start() -> (StdoutLines, StdoutQueue) {
        let writer = stdout_writer(false);
        let queue = StdoutQueue(writer.queue.clone());
        (StdoutLines(writer), queue)
    }

    /// Waits until they are written; after an end that the user has asked for, only for a moment.
    ///
    /// # Errors
    /// `Kind::Write` if lines could not be written.
    pub fn finish(self, fatal: Option<&Error>) -> Result<()> {
        let limit = fatal.is_some_and(is_wanted).then_some(CHANGES_PATIENCE);
        finish_stdout(self.0, limit)
    }
}

impl StdoutQueue {
    /// Adds a line with its newline.
    pub fn add(&self, line: String) {
        self.0.add(line);
    }
}

/// # Errors
/// `Kind::Write` if lines could not be written.
fn finish_stdout(stdout: LineWriter, limit: Option<Duration>) -> Result<()> {
    let lost = stdout.queue.take_lost();
    // Nobody reads stdout if they were not written in time.
    stdout.finish(limit).unwrap_or(Ok(()))?;
    if lost == 0 {
        return Ok(());
    }
    let lost = plural(lost, "line was", "lines were");
    let message = format!("standard output was not read fast enough: {lost} lost");
    Err(Error::new(Kind::Write, Side::Here, message))
}

/// How long the last lines about changes may take after a signal or at the time of the stop.
const CHANGES_PATIENCE: Duration = Duration::from_millis(300);

/// The user has ended the copy, and may not read its lines any more.
fn is_wanted(error: &Error) -> bool {
    error.kind.is_wanted()
}

/// Most columns of a line. Lines are not broken if a program reads them.
fn width(terminal: Option<Terminal>) -> usize {
    terminal.map_or(usize::MAX, |at| at.size().columns)
}

impl Teller {
    /// False if the queue is full.
    fn line(&self, line: &str) -> bool {
        self.tell(self.waiting_line(format!("{}{line}", self.of.name)))
    }

    /// The message of an error, without lines of a failed command that were already shown.
    fn sentence(&self, error: &Error) -> String {
        let whole = sentence(error, &self.hosts);
        if error.kind != Kind::Command {
            return whole;
        }
        let shown = self.shown.lock();
        let last = shown.back().map_or("", String::as_str);
        let all = shown
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(" / ");
        let is_shown = |quoted: &str| all.ends_with(quoted) || last.starts_with(quoted);
        let quoted = whole
            .match_indices(": ")
            .map(|(at, colon)| (at, &whole[at + colon.len()..]));
        let mut quoted = quoted.filter(|(_, quoted)| !quoted.is_empty());
        match quoted.find(|(_, quoted)| is_shown(quoted)) {
            Some((at, _)) => whole[..at].to_owned(),
            None => whole,
        }
    }

    /// Shows a harmless line unless the user wants errors only.
    fn show(&self, line: String) {
        if self.output.quiet {
            return;
        }
        let is_shown = self.line(&line);
        let mut shown = self.shown.lock();
        if !is_shown {
            return shown.clear();
        }
        if shown.len() == SHOWN_MAX {
            shown.pop_front();
        }
        shown.push_back(line);
    }

    /// A line of `-v`.
    fn detail_line(&self, line: &str) {
        if self.output.verbose && !self.output.quiet {
            self.line(line);
        }
    }

    /// None if there are too many bytes.
    fn waiting_line(&self, text: String) -> Option<ScreenMessage> {
        let _share = self.room.try_take(text.len() + LINE_BYTES)?;
        Some(ScreenMessage::Line { text, _share })
    }

    /// Never waits, because the caller may be the task that keeps the session alive.
    fn tell(&self, message: Option<ScreenMessage>) -> bool {
        let is_told = message.is_some_and(|message| self.lines.try_send(message).is_ok());
        if !is_told {
            self.lost.fetch_add(1, Relaxed);
        }
        is_told
    }
}

impl Reporter for Teller {
    fn failure(&self, error: &Error) {
        self.records.failure(&self.of, error, &self.hosts, false);
        let is_printed = || {
            let host = host(error, &self.hosts).map(|host| format!("{host}: "));
            let beginning = format!("{}fastcp: {}", self.of.name, host.unwrap_or_default());
            self.errors.lock().add(&beginning, error)
        };
        if !self.output.verbose && !is_printed() {
            return;
        }
        let line = format!("{}{}", self.of.name, self.sentence(error));
        if self
            .waiting_line(line.clone())
            .is_some_and(|message| self.lines.try_send(message).is_ok())
        {
            return;
        }
        let mut failures = self.failures.lock();
        if failures.len() < FAILURES_WAITING_MAX {
            failures.push(line);
        } else {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    fn left_out(&self, error: &Error) {
        let line = sentence(error, &self.hosts);
        self.records.detail(&self.of, &line);
        self.detail_line(&line);
    }

    fn notice(&self, line: &str) {
        let line = harmless(line);
        self.records.notice(&self.of, &line);
        self.show(line);
    }

    fn waiting(&self, cause: &Error) {
        let line = sentence(cause, &self.hosts);
        self.records.waiting(&self.of, line.clone());
        self.show(line);
    }

    fn installing(&self, line: &str) {
        if self.is_watched || self.output.verbose {
            self.notice(line);
        } else {
            self.records.detail(&self.of, line);
        }
    }

    fn detail(&self, line: &str) {
        let line = harmless(line);
        self.records.detail(&self.of, &line);
        self.detail_line(&format!("fastcp: {line}"));
    }

    fn itemized(&self, entry: &ItemizedEntry) {
        match &self.changes {
            Some(changes) => changes.changed(entry, &self.of, self.hosts.dest.is_some()),
            None if self.output.names_files => {
                self.detail_line(&format!("fastcp: {}", copied(entry)));
            }
            None => {}
        }
    }

    fn deleted(&self, path: &[u8]) {
        self.records.deleted(&self.of, path, self.changes.is_some());
        match &self.changes {
            Some(changes) => changes.deleted(path, &self.of),
            None => self.detail_line(&format!("fastcp: deleted {}", printable(path))),
        }
    }

    fn event(&self, event: CopyEvent) {
        self.records.event(&self.of, event);
    }

    fn changes_waiting(&self) -> usize {
        let on_stdout = self.stdout.as_ref().map_or(0, WriterQueue::waiting);
        // These lines must not take the room of errors.
        let of_files = match self.changes.is_none() && self.output.names_files {
            true => self.room.taken(),
            false => 0,
        };
        on_stdout.max(of_files)
    }

    fn status(&self) {
        self.tell(Some(ScreenMessage::Status));
    }

    fn continued(&self) {
        // A reader that takes no lines sees no bar either.
        let _ = self.lines.try_send(ScreenMessage::Continued);
    }

    fn hold(&self, shown: Box<dyn FnOnce() + Send>) -> Box<dyn Send> {
        let (until, answered) = mpsc::channel::<()>();
        self.tell(Some(ScreenMessage::Hold(ScreenHold { shown, answered })));
        Box::new(until)
    }
}

/// `copied tree/a (1.05 MB)`, a line of `-vv`.
fn copied(entry: &ItemizedEntry) -> String {
    let path = printable(&entry.shown_path());
    let target = entry.arrow().map(|arrow| (arrow, printable(&entry.target)));
    let target = target.map_or_else(String::new, |(arrow, target)| arrow.to_owned() + &target);
    match entry.action {
        // The length of a pipe is not known.
        ItemAction::Sent if entry.size == 0 => format!("copied {path}"),
        ItemAction::Sent => format!("copied {path} ({})", size(entry.size)),
        ItemAction::Made => format!("made {path}{target}"),
        ItemAction::Linked => format!("linked {path}{target}"),
        ItemAction::Corrected => format!("set the metadata of {path}"),
    }
}

/// Writes each line when it arrives, and a line of progress `every` so often.
fn pass_on(lines: &Receiver<ScreenMessage>, mut figures: Figures, every: Option<Duration>) {
    let mut look = Instant::now() + QUIET_TICK;
    let mut due = every.map(|every| Instant::now() + every);
    loop {
        let next = due.map_or(look, |due| due.min(look));
        let message = lines.recv_timeout(next.saturating_duration_since(Instant::now()));
        let line = match message {
            Ok(ScreenMessage::Line { text, .. }) => Some(text),
            Ok(ScreenMessage::Status) => Some(figures.status()),
            Ok(ScreenMessage::Hold(hold)) => {
                hold.wait();
                None
            }
            Ok(ScreenMessage::Continued) | Err(RecvTimeoutError::Timeout) => None,
            Ok(ScreenMessage::End) | Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Some(line) = line {
            write(&(line + "\n"));
        }
        let now = Instant::now();
        if let (Some(at), Some(every)) = (due, every)
            && at <= now
        {
            write(&(figures.status() + "\n"));
            // After a stop (Ctrl-Z), a question or a wait for the reader, no line is made up for.
            due = Some(at + every)
                .filter(|next| *next > now)
                .or(Some(now + every));
        }
        if look <= now {
            figures.read();
            look = now + QUIET_TICK;
        }
    }
}

/// Draws ten times a second, but not during a resize. Writes other lines above the bars.
fn draw(lines: &Receiver<ScreenMessage>, terminal: &Terminal, mut figures: Figures) {
    let mut bars = Bars::new(terminal.glyphs);
    let mut steady = Steady::new(terminal.size());
    let mut above = String::new();
    let mut next = Instant::now() + TICK;
    let (mut is_drawn, mut has_waited) = (false, false);
    'ticks: loop {
        let asleep = Instant::now();
        let message = lines.recv_timeout(next.saturating_duration_since(asleep));
        let is_late = asleep.elapsed() >= TICK + LATE;
        let was_stopped = match &message {
            // The message about a stop may be on its way.
            Err(RecvTimeoutError::Timeout) if is_late && !has_waited => {
                has_waited = true;
                next = Instant::now() + TICK;
                continue;
            }
            Ok(ScreenMessage::End) if is_late => {
                matches!(lines.recv_timeout(TICK), Ok(ScreenMessage::Continued))
            }
            Ok(ScreenMessage::Continued) => true,
            Ok(_) => is_late,
            Err(_) => false,
        };
        has_waited = false;
        if was_stopped {
            // The cursor is no longer where the bars end.
            bars = Bars::new(terminal.glyphs);
        }
        let mut hold = None;
        let is_last = match message {
            Ok(ScreenMessage::Hold(held)) => {
                hold = Some(held);
                false
            }
            Ok(message @ (ScreenMessage::Line { .. } | ScreenMessage::Status)) => {
                let line = match message {
                    ScreenMessage::Line { text, .. } => text,
                    _ => figures.status(),
                };
                above.push_str(&line);
                above.push('\n');
                // Many lines must neither delay the tick nor collect here. Without a bar each
                // line is written at once, since ssh may be about to print a prompt.
                if Instant::now() < next && is_drawn {
                    continue;
                }
                false
            }
            Ok(ScreenMessage::Continued) | Err(RecvTimeoutError::Timeout) => false,
            Ok(ScreenMessage::End) | Err(RecvTimeoutError::Disconnected) => true,
        };
        next = Instant::now() + TICK;
        let (snapshot, rates) = figures.read();
        let mut size = terminal.size();
        while !steady.note(Instant::now(), size) {
            if !is_last && hold.is_none() {
                continue 'ticks;
            }
            std::thread::sleep(TICK);
            size = terminal.size();
        }
        let shown = if is_last || hold.is_some() {
            Vec::new()
        } else {
            view::lines(&snapshot, &rates, terminal.glyphs, size)
        };
        is_drawn = !shown.is_empty();
        if terminal.is_foreground() {
            write(&bars.redraw(&above, &shown, size));
        } else {
            // The shell owns the terminal: the cursor is no longer where the bars end.
            bars = Bars::new(terminal.glyphs);
            write(&above);
        }
        above.clear();
        if let Some(hold) = hold {
            hold.wait();
            // The answer has moved the cursor.
            bars = Bars::new(terminal.glyphs);
        }
        if is_last {
            return;
        }
    }
}

fn write_lines(lines: Vec<String>) {
    let mut text = String::new();
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    write(&text);
}

/// Ignores errors: the copy continues if stderr is closed.
fn write(text: &str) {
    if !text.is_empty() {
        let _ = write_all(std::io::stderr().lock(), text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Side;

    fn teller(output: Output, lines: SyncSender<ScreenMessage>) -> Teller {
        Teller {
            output,
            is_watched: false,
            lines,
            room: Room::new(LINES_BYTES_MAX),
            lost: Arc::default(),
            failures: Arc::default(),
            errors: Arc::default(),
            shown: Arc::default(),
            changes: None,
            stdout: None,
            records: Records::none(),
            of: LineOf::default(),
            hosts: EndHosts::default(),
        }
    }

    #[test]
    fn an_entry_that_is_left_out_is_named_with_its_host_for_v() {
        let told = |verbose, host: Option<&str>| {
            let (lines, told) = mpsc::sync_channel(LINES_WAITING_MAX);
            let output = Output {
                verbose,
                ..Output::default()
            };
            let mut teller = teller(output, lines);
            teller.hosts.source = host.map(str::to_owned);
            let error = Error::new(Kind::Entry, Side::Source, "is a FIFO, which is not copied");
            teller.left_out(&error.at("/data/fifo"));
            drop(teller);
            let line = told.iter().map(|message| match message {
                ScreenMessage::Line { text, .. } => text,
                _ => panic!("another message"),
            });
            line.collect::<Vec<_>>()
        };
        let line = "fastcp: db1:/data/fifo: is a FIFO, which is not copied";
        assert_eq!(told(true, Some("db1")), [line]);
        let line = "fastcp: /data/fifo: is a FIFO, which is not copied";
        assert_eq!(told(true, None), [line]);
        assert_eq!(told(false, None), [""; 0]);
    }

    #[test]
    fn an_error_of_a_command_does_not_repeat_what_was_shown() {
        let told = |output, shown: &[&str], message: &str| {
            let (lines, _kept) = mpsc::sync_channel(LINES_WAITING_MAX);
            let teller = teller(output, lines);
            shown.iter().for_each(|line| teller.notice(line));
            teller.sentence(&Error::new(Kind::Command, Side::Here, message))
        };
        let (lines, long) = (["first", "oops: one", "two"], "x".repeat(200));
        let failed = "fastcp: the command `a: b` failed with status 3";
        let with = |quoted: &str| format!("the command `a: b` failed with status 3: {quoted}");
        let plain = Output::default();
        assert_eq!(told(plain, &lines, &with("oops: one / two")), failed);
        assert_eq!(told(plain, &[&long], &with(&long[..140])), failed);
        assert_eq!(
            told(plain, &lines, &with("else")),
            format!("{failed}: else")
        );
        assert_eq!(
            told(plain, &lines, "the command `a: b` failed with status 3"),
            failed
        );
        let quiet = Output {
            quiet: true,
            ..plain
        };
        assert_eq!(told(quiet, &lines, &with("two")), format!("{failed}: two"));
    }
}
