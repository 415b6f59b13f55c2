//! What the report of a command shows, as far as the copies have come. Its memory is bounded.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde_json::Value;

use super::charts::Mark;
use super::series::{Reading, Series};
use crate::outcome::FileTime;
use crate::report::event::{FileDone, FileResult, Login};
use crate::ui::events::{CommandStart, LineOf};
use crate::units::printable;

/// Destinations with drawings and tables of their own. The others have a line in a table.
pub(super) const DETAILED_MAX: usize = 4;

/// Destinations that are remembered.
const COPIES_MAX: usize = 1000;

/// Rows of a table of files.
const FILES_MAX: usize = 20;

/// Bytes of a path that are shown: its end.
const PATH_MAX: usize = 1 << 10;

/// Errors and notices that are listed for one destination, and characters of each.
pub(super) const MESSAGES_MAX: usize = 20;
const MESSAGE_MAX: usize = 500;

/// Marks on the time line.
const MARKS_MAX: usize = 100;

/// The report of a command.
pub(super) struct CommandReport {
    pub start: Arc<CommandStart>,
    pub began: SystemTime,
    pub ended: Option<SystemTime>,
    /// Until when the time is counted.
    pub last: Instant,
    /// Seconds since the start, but for waits for the time of the start or another copy.
    pub seconds: f64,
    pub copies: Vec<CopyReport>,
}

/// The report of the copy to one destination.
#[derive(Default)]
pub(super) struct CopyReport {
    /// Distinguishes it from the others; empty if there is one destination only.
    pub name: String,
    /// As typed, printable.
    pub dest: Option<String>,
    pub series: Series,
    pub marks: Vec<(f64, Mark)>,
    pub more_marks: u64,
    pub logins: Vec<Login>,
    pub route: String,
    /// The largest first.
    pub largest: Vec<LargestFile>,
    /// The first errors and notices, as sentences.
    pub messages: Vec<String>,
    pub more_messages: u64,
    pub end: Option<CopyEnd>,
}

pub(super) struct LargestFile {
    /// Printable.
    pub path: String,
    pub size: u64,
    pub result: FileResult,
}

/// The result of a copy.
pub(super) struct CopyEnd {
    /// The fields of the event `end`.
    pub figures: Value,
    /// The summary and what limited the copy.
    pub summary: Vec<String>,
    pub exit_code: i32,
    /// The user or the time of the stop has ended it.
    pub is_wanted: bool,
    pub error: Option<String>,
    pub slowest: Vec<FileTime>,
    /// Neither end is in this process.
    pub is_between: bool,
}

impl CommandReport {
    pub(super) fn new(start: Arc<CommandStart>) -> CommandReport {
        CommandReport {
            start,
            began: SystemTime::now(),
            ended: None,
            last: Instant::now(),
            seconds: 0.0,
            copies: Vec::new(),
        }
    }

    /// The present time, in seconds since the start.
    pub(super) fn seconds_now(&self) -> f64 {
        self.seconds + self.last.elapsed().as_secs_f64()
    }

    pub(super) fn add(&mut self, name: &str, time: (f64, f64), reading: Reading) {
        let Some((copy, true)) = self.copy(name) else {
            return;
        };
        for _ in 0..copy.series.add(time, reading) {
            copy.mark(time.1, Mark::DialledAgain);
        }
    }

    pub(super) fn copy_of(&mut self, of: &LineOf) -> Option<(&mut CopyReport, bool)> {
        let (copy, is_detailed) = self.copy(of.name.trim_end_matches(": "))?;
        if copy.dest.is_none() {
            copy.dest = of.dest.clone();
        }
        Some((copy, is_detailed))
    }

    /// The copy to the destination of this name, and whether it has drawings.
    fn copy(&mut self, name: &str) -> Option<(&mut CopyReport, bool)> {
        let at = self.copies.iter().position(|copy| copy.name == name);
        let at = match at {
            Some(at) => at,
            None if self.copies.len() == COPIES_MAX => return None,
            None => {
                self.copies.push(CopyReport {
                    name: name.to_owned(),
                    ..CopyReport::default()
                });
                self.copies.len() - 1
            }
        };
        // Lines about the whole command have no name, and take no place.
        let same_kind = |copy: &&CopyReport| copy.name.is_empty() == name.is_empty();
        let before = self.copies[..at].iter().filter(same_kind).count();
        Some((&mut self.copies[at], before < DETAILED_MAX))
    }
}

impl CopyReport {
    pub(super) fn mark(&mut self, at: f64, mark: Mark) {
        match self.marks.len() {
            MARKS_MAX => self.more_marks += 1,
            _ => self.marks.push((at, mark)),
        }
    }

    pub(super) fn note_message(&mut self, message: &str) {
        match self.messages.len() {
            MESSAGES_MAX => self.more_messages += 1,
            _ => {
                let message = message.chars().take(MESSAGE_MAX).collect();
                self.messages.push(message);
            }
        }
    }

    pub(super) fn note_file(&mut self, file: &FileDone) {
        // A further name has no content.
        if file.result == FileResult::Linked {
            return;
        }
        let at = self
            .largest
            .partition_point(|other| other.size >= file.size);
        if at == FILES_MAX {
            return;
        }
        let path = match &file.path[..] {
            b"" => ".".to_owned(),
            path => printable(&path[path.len().saturating_sub(PATH_MAX)..]),
        };
        let large = LargestFile {
            path,
            size: file.size,
            result: file.result,
        };
        self.largest.insert(at, large);
        self.largest.truncate(FILES_MAX);
    }
}
