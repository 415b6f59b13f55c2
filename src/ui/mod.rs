//! What the person sees: the bar, lines about what failed, the summary. One thread writes to
//! stderr, so that nothing tears, and nobody who reports ever waits for the terminal.
//!
//! No colour is used, so `NO_COLOR` has nothing to switch off.

mod bars;
mod canvas;
mod json;
pub mod probe;
mod rate;
mod several;
mod status;
pub mod stdout;
mod steady;
mod summary;
mod tell;
mod terminal;
mod view;

use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result, Side};
use crate::progress::Snapshot;
use crate::session::{Outcome, Reporter};
use crate::units::{count, harmless};

use bars::Bars;
use rate::Rate;
pub use several::Copied;
use steady::Steady;
use tell::Tell;
use terminal::Terminal;

/// Where nothing is drawn the rate is noted this often, for who asks.
const QUIET_TICK: Duration = Duration::from_secs(1);

/// Ten redraws a second.
const TICK: Duration = Duration::from_millis(100);

/// Who wakes so much later than asked was stopped meanwhile (Ctrl-Z), and the shell wrote.
const STOPPED: Duration = Duration::from_millis(500);

/// Lines that wait for a terminal that takes none (Ctrl-S, a full pipe); beyond it they are
/// counted.
const LINES_WAITING_MAX: usize = 10_000;

/// Failures that found no room among them and are told at the end: a command that chatters without
/// an end must not hide why it failed. More are counted.
const FAILURES_WAITING_MAX: usize = 20;

/// Lines that are kept to see whether an error repeats them: an error quotes fewer.
const SHOWN_MAX: usize = 20;

/// How much is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Errors only; outranks the other two.
    pub quiet: bool,
    pub verbose: bool,
    /// The summary even where stderr is no terminal.
    pub summary: bool,
    /// No bars: the data itself is typed or shown on a terminal.
    pub plain: bool,
    /// The summary as JSON on stdout, whatever stderr is told.
    pub json: bool,
}

/// Reads the counters of what is shown.
type Reading = Box<dyn Fn() -> Snapshot + Send>;

/// The screen while a session runs. Open it before, give its reporter to the session, finish it
/// after.
pub struct Screen {
    teller: Teller,
    writer: JoinHandle<()>,
    terminal: Option<Terminal>,
}

enum Message {
    Line(String),
    /// Leave the terminal to somebody else for a while.
    Hold(Hold),
    /// Say how far it is.
    Status,
    End,
}

/// A question on the terminal, during which nothing else is written.
struct Hold {
    /// Called once the lines are out and the bars are gone.
    shown: Box<dyn FnOnce() + Send>,
    /// Nothing is sent; it is closed when the question is answered.
    answered: Receiver<()>,
}

impl Hold {
    fn wait(self) {
        (self.shown)();
        let _ = self.answered.recv();
    }
}

/// Passes on lines, as many as `output` allows.
#[derive(Clone)]
struct Teller {
    output: Output,
    lines: SyncSender<Message>,
    lost: Arc<AtomicU64>,
    failures: Arc<Mutex<Vec<String>>>,
    /// The last lines that were shown as they came, of commands among others.
    shown: Arc<Mutex<VecDeque<String>>>,
    /// Before each line: of which of several copies it is.
    name: String,
}

impl Screen {
    /// Starts the thread that draws what `reading` gives, if stderr is a terminal and `output` lets
    /// it.
    pub fn open(output: Output, reading: impl Fn() -> Snapshot + Send + 'static) -> Screen {
        let reading: Reading = Box::new(reading);
        let terminal = Terminal::of_stderr();
        let (sender, lines) = mpsc::sync_channel(LINES_WAITING_MAX);
        let writer = std::thread::spawn(move || match terminal.filter(|_| !output.quiet) {
            Some(terminal) if terminal.can_redraw && !output.plain => {
                draw(&lines, &terminal, &reading)
            }
            _ => pass_on(&lines, &reading),
        });
        Screen {
            teller: Teller {
                output,
                lines: sender,
                lost: Arc::default(),
                failures: Arc::default(),
                shown: Arc::default(),
                name: String::new(),
            },
            writer,
            terminal,
        }
    }

    pub fn reporter(&self) -> Arc<dyn Reporter> {
        Arc::new(self.teller.clone())
    }

    /// Takes the bar away and says what came of it: why the session ended early, if it did, and
    /// the summary, where one is wanted.
    ///
    /// # Errors
    /// `Kind::Write` where the JSON that was asked for could not be written.
    pub fn finish(self, outcome: &Outcome) -> Result<()> {
        let (output, terminal) = (self.teller.output, self.terminal);
        let tell = Tell::of(output, terminal.is_some());
        let teller = self.teller.clone();
        let mut lines = self.end();
        if tell >= Tell::Each {
            lines.extend(summary::lines(outcome, width(terminal)));
        }
        if tell > Tell::Failures && outcome.unlisted > 0 {
            lines.push(summary::unlisted(outcome.unlisted));
        }
        if tell > Tell::Failures && outcome.counters.unlinked > 0 {
            lines.push(summary::unlinked(outcome.counters.unlinked));
        }
        if let Some(fatal) = &outcome.fatal {
            lines.push(teller.sentence(fatal));
        }
        write_lines(lines);
        match output.json {
            true => stdout::record(&json::line(outcome)),
            false => Ok(()),
        }
    }

    /// Ends it without a summary; says why a session ended early, if it did.
    pub fn close(self, fatal: Option<&Error>) {
        let mut lines = self.end();
        lines.extend(fatal.map(sentence));
        write_lines(lines);
    }

    /// Takes the bar away; gives what else there is to tell.
    fn end(self) -> Vec<String> {
        // Refused only if the writer is gone, and then there is nothing to end.
        let _ = self.teller.lines.send(Message::End);
        let _ = self.writer.join();
        let lost = self.teller.lost.load(Relaxed);
        let told =
            (lost > 0).then(|| format!("fastcp: {} more lines could not be shown", count(lost)));
        let mut failures = self.teller.failures.lock().expect("no panic while held");
        told.into_iter().chain(failures.drain(..)).collect()
    }
}

/// Columns that a line may take. For a program that reads it, a line stays one.
fn width(terminal: Option<Terminal>) -> usize {
    terminal.map_or(usize::MAX, |at| at.size().columns)
}

impl Teller {
    /// False if it found no room.
    fn line(&self, line: &str) -> bool {
        self.tell(Message::Line(format!("{}{line}", self.name)))
    }

    /// The error of a command without the lines of the command that were shown already.
    fn sentence(&self, error: &Error) -> String {
        let whole = sentence(error);
        if error.kind != Kind::Command {
            return whole;
        }
        let shown = self.shown.lock().expect("no panic while held");
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

    /// Never waits: who reports may be what keeps the session alive.
    fn tell(&self, message: Message) -> bool {
        let is_told = self.lines.try_send(message).is_ok();
        if !is_told {
            self.lost.fetch_add(1, Relaxed);
        }
        is_told
    }
}

impl Reporter for Teller {
    fn failure(&self, error: &Error) {
        let line = format!("{}{}", self.name, self.sentence(error));
        if self.lines.try_send(Message::Line(line.clone())).is_ok() {
            return;
        }
        let mut failures = self.failures.lock().expect("no panic while held");
        if failures.len() < FAILURES_WAITING_MAX {
            failures.push(line);
        } else {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    fn notice(&self, line: &str) {
        if self.output.quiet {
            return;
        }
        let line = harmless(line);
        let is_shown = self.line(&line);
        let mut shown = self.shown.lock().expect("no panic while held");
        if !is_shown {
            return shown.clear();
        }
        if shown.len() == SHOWN_MAX {
            shown.pop_front();
        }
        shown.push_back(line);
    }

    fn detail(&self, line: &str) {
        if self.output.verbose && !self.output.quiet {
            self.line(&format!("fastcp: {}", harmless(line)));
        }
    }

    fn status(&self) {
        self.tell(Message::Status);
    }

    fn hold(&self, shown: Box<dyn FnOnce() + Send>) -> Box<dyn Send> {
        let (until, answered) = mpsc::channel::<()>();
        self.tell(Message::Hold(Hold { shown, answered }));
        Box::new(until)
    }
}

/// `fastcp: dest: /data/a: no space left`, `fastcp: no such host`.
fn sentence(error: &Error) -> String {
    let text = harmless(&error.to_string());
    match error.side {
        Side::Here => text,
        Side::Source | Side::Dest => format!("fastcp: {text}"),
    }
}

/// Writes each line as it comes.
fn pass_on(lines: &Receiver<Message>, reading: &Reading) {
    let mut rate = Rate::default();
    loop {
        let message = lines.recv_timeout(QUIET_TICK);
        rate.note(Instant::now(), reading().moved_bytes);
        let line = match message {
            Ok(Message::Line(line)) => line,
            Ok(Message::Status) => status::line(&reading(), rate.per_s()),
            Ok(Message::Hold(hold)) => {
                hold.wait();
                continue;
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
        };
        write(&(line + "\n"));
    }
}

/// Draws ten times a second, but not during a resize; lines come between, above the bars.
fn draw(lines: &Receiver<Message>, terminal: &Terminal, reading: &Reading) {
    let mut bars = Bars::new(terminal.glyphs);
    let mut rate = Rate::default();
    let mut steady = Steady::new(terminal.size());
    let mut above = String::new();
    let mut next = Instant::now() + TICK;
    let mut is_drawn = false;
    'ticks: loop {
        let asleep = Instant::now();
        let message = lines.recv_timeout(next.saturating_duration_since(asleep));
        if asleep.elapsed() >= TICK + STOPPED {
            bars = Bars::new(terminal.glyphs);
        }
        let mut hold = None;
        let is_last = match message {
            Ok(Message::Hold(held)) => {
                hold = Some(held);
                false
            }
            Ok(message @ (Message::Line(_) | Message::Status)) => {
                let line = match message {
                    Message::Line(line) => line,
                    _ => status::line(&reading(), rate.per_s()),
                };
                above.push_str(&line);
                above.push('\n');
                // A flood of lines may not put off the tick, nor gather here. Without a bar each
                // line goes out at once, since ssh may be about to write its next prompt.
                if Instant::now() < next && is_drawn {
                    continue;
                }
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => true,
        };
        let now = Instant::now();
        next = now + TICK;
        let snapshot = reading();
        rate.note(now, snapshot.moved_bytes);
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
            view::lines(&snapshot, rate.per_s(), terminal.glyphs, size.columns)
        };
        is_drawn = !shown.is_empty();
        if terminal.is_foreground() {
            write(&bars.redraw(&above, &shown, size));
        } else {
            // The shell has the terminal: its cursor is no longer where the bars end.
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

/// A stderr that is closed is no reason to stop copying.
fn write(text: &str) {
    if !text.is_empty() {
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_command_does_not_repeat_what_was_shown() {
        let told = |output, shown: &[&str], message: &str| {
            let (lines, _kept) = mpsc::sync_channel(LINES_WAITING_MAX);
            let teller = Teller {
                output,
                lines,
                lost: Arc::default(),
                failures: Arc::default(),
                shown: Arc::default(),
                name: String::new(),
            };
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
