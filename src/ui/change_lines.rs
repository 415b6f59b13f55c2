//! The lines on stdout about changes and differences at the destination (`--itemize-changes`,
//! `--dry-run`, `--check`). A thread writes them. No call here waits for a slow reader, but
//! the pipeline adds no line while too many wait.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::stdout;
use crate::error::Result;
use crate::itemize::{DELETED, Difference, ItemizedEntry};
use crate::units::printable;

/// About how many bytes are written at once.
const BATCH: usize = 64 << 10;

/// Takes lines for the writer.
#[derive(Clone)]
pub(super) struct ChangeLines {
    /// None is the end.
    lines: Sender<Option<String>>,
    /// Bytes that are not written yet.
    waiting: Arc<AtomicUsize>,
    form: ChangeForm,
}

/// The format of the lines.
#[derive(Clone, Copy)]
pub(super) struct ChangeForm {
    /// Each line is an object.
    pub json: bool,
    /// As differences between the ends (`--check`).
    pub check: bool,
}

/// The thread that writes them.
pub(super) struct ChangeWriter {
    pub lines: ChangeLines,
    writer: JoinHandle<Result<()>>,
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
}

impl ChangeWriter {
    pub(super) fn start(form: ChangeForm) -> ChangeWriter {
        let (sender, receiver) = mpsc::channel();
        let waiting = Arc::<AtomicUsize>::default();
        let written = waiting.clone();
        let (end, ended) = mpsc::channel();
        let writer = std::thread::spawn(move || {
            let result = write(&receiver, &written, form.json);
            drop(end);
            result
        });
        let lines = ChangeLines {
            lines: sender,
            waiting,
            form,
        };
        ChangeWriter {
            lines,
            writer,
            ended,
        }
    }

    /// Waits until all lines are written, or for a limited time. The result is None if they were not
    /// written in that time; the thread may then hold stdout for ever.
    ///
    /// # Errors
    /// `Kind::Write`.
    pub(super) fn finish(self, limit: Option<Duration>) -> Option<Result<()>> {
        // Fails only if the thread has ended.
        let _ = self.lines.lines.send(None);
        if let Some(limit) = limit
            && self.ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout)
        {
            return None;
        }
        Some(self.writer.join().unwrap_or(Ok(())))
    }
}

impl ChangeLines {
    /// Bytes of lines that are not written yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// `of` is what distinguishes several destinations; `goes_out`: the destination is another host.
    pub(super) fn changed(&self, entry: &ItemizedEntry, of: &LineOf, goes_out: bool) {
        if self.form.check {
            return self.differs(entry.difference(), &entry.shown_path(), of);
        }
        let (code, path) = (entry.code(goes_out), printable(&entry.shown_path()));
        let target = entry.arrow().map(|arrow| (arrow, printable(&entry.target)));
        if !self.form.json {
            let target =
                target.map_or_else(String::new, |(arrow, target)| arrow.to_owned() + &target);
            return self.add(format!("{}{code} {path}{target}\n", of.name));
        }
        let mut event = json!({ "change": code, "path": path });
        if let Some((_, target)) = target {
            event["target"] = target.into();
        }
        if entry.size > 0 {
            event["bytes"] = entry.size.into();
        }
        self.add_event(event, of);
    }

    pub(super) fn deleted(&self, path: &[u8], of: &LineOf) {
        if self.form.check {
            return self.differs(Difference::Extra, path, of);
        }
        let path = printable(path);
        match self.form.json {
            true => self.add_event(json!({ "change": DELETED, "path": path }), of),
            false => self.add(format!("{}{DELETED:<11} {path}\n", of.name)),
        }
    }

    fn differs(&self, difference: Difference, path: &[u8], of: &LineOf) {
        let (word, path) = (difference.word(), printable(path));
        match self.form.json {
            true => self.add_event(json!({ "difference": word, "path": path }), of),
            false => self.add(format!("{}{word:<8} {path}\n", of.name)),
        }
    }

    fn add_event(&self, mut event: Value, of: &LineOf) {
        if let Some(dest) = &of.dest {
            event["dest"] = dest.as_str().into();
        }
        self.add(format!("{event}\n"));
    }

    fn add(&self, line: String) {
        self.waiting.fetch_add(line.len(), Relaxed);
        // Fails only if the thread has ended.
        let _ = self.lines.send(Some(line));
    }
}

/// The destination that a line is about, if there are several.
#[derive(Clone, Debug, Default)]
pub(super) struct LineOf {
    /// Precedes the line.
    pub name: String,
    pub dest: Option<String>,
}

/// Writes lines until the end. Keeps taking them after an error, which is returned.
fn write(lines: &Receiver<Option<String>>, waiting: &AtomicUsize, json: bool) -> Result<()> {
    let mut result = Ok(());
    let mut is_over = false;
    while !is_over {
        let mut batch = String::new();
        let mut next = lines.recv().unwrap_or_default();
        loop {
            match next {
                Some(line) => batch.push_str(&line),
                None => is_over = true,
            }
            if is_over || batch.len() >= BATCH {
                break;
            }
            match lines.try_recv() {
                Ok(line) => next = line,
                Err(_) => break,
            }
        }
        if result.is_ok() && !batch.is_empty() {
            result = match json {
                true => stdout::record(&batch),
                // A reader may have seen enough (`| head`).
                false => stdout::show(&batch),
            };
        }
        waiting.fetch_sub(batch.len(), Relaxed);
    }
    result
}
