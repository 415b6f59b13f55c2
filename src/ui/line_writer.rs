//! A thread that writes lines. Adding a line never waits, however slow the reader or the disk is.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::Result;

/// About how many bytes are written at once.
const BATCH: usize = 64 << 10;

/// Takes lines for the writer.
#[derive(Clone)]
pub(super) struct WriterQueue {
    /// None is the end.
    lines: Sender<Option<String>>,
    /// Bytes that are not written yet.
    waiting: Arc<AtomicUsize>,
    /// The most bytes that may wait.
    waiting_max: usize,
    lost: Arc<AtomicU64>,
}

/// The thread that writes them.
pub(super) struct LineWriter {
    pub queue: WriterQueue,
    writer: JoinHandle<Result<()>>,
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
}

impl LineWriter {
    /// `write` gets whole lines. The thread keeps taking lines after an error, and returns the first.
    /// Lines are dropped and counted while more than `waiting_max` bytes wait.
    pub(super) fn start(
        waiting_max: usize,
        write: impl FnMut(&str) -> Result<()> + Send + 'static,
    ) -> LineWriter {
        let (sender, receiver) = mpsc::channel();
        let waiting = Arc::<AtomicUsize>::default();
        let written = waiting.clone();
        let (end, ended) = mpsc::channel();
        let writer = std::thread::spawn(move || {
            let result = run(&receiver, &written, write);
            drop(end);
            result
        });
        LineWriter {
            queue: WriterQueue {
                lines: sender,
                waiting,
                waiting_max,
                lost: Arc::default(),
            },
            writer,
            ended,
        }
    }

    /// Waits until all lines are written, or for a limited time. The result is None if they were not
    /// written in that time; the thread may then hold its file for ever.
    ///
    /// # Errors
    /// The first error of `write`.
    pub(super) fn finish(self, limit: Option<Duration>) -> Option<Result<()>> {
        // Fails only if the thread has ended.
        let _ = self.queue.lines.send(None);
        if let Some(limit) = limit
            && self.ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout)
        {
            return None;
        }
        Some(self.writer.join().unwrap_or(Ok(())))
    }
}

impl WriterQueue {
    /// Bytes of lines that are not written yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Number of lines that were dropped since the last call.
    pub(super) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Relaxed)
    }

    /// Adds a line with its newline.
    pub(super) fn add(&self, line: String) {
        if self.waiting() > self.waiting_max {
            self.lost.fetch_add(1, Relaxed);
            return;
        }
        self.waiting.fetch_add(line.len(), Relaxed);
        // Fails only if the thread has ended.
        let _ = self.lines.send(Some(line));
    }
}

fn run(
    lines: &Receiver<Option<String>>,
    waiting: &AtomicUsize,
    mut write: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
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
        if !batch.is_empty() {
            let written = write(&batch);
            result = result.and(written);
        }
        waiting.fetch_sub(batch.len(), Relaxed);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_counted_and_the_last_ones_written() {
        let (begin, begun) = mpsc::channel::<()>();
        let (told, written) = mpsc::channel();
        let mut first = Some(begun);
        let writer = LineWriter::start(10, move |lines| {
            // The first write hangs until the test lets it go.
            let _ = first.take().map(|begun| begun.recv());
            told.send(lines.to_owned()).expect("the test reads");
            Ok(())
        });
        for _ in 0..5 {
            writer.queue.add("12345\n".to_owned());
        }
        assert_eq!(writer.queue.take_lost(), 3);
        assert_eq!(writer.queue.waiting(), 12);
        drop(begin);
        let queue = writer.queue.clone();
        assert_eq!(writer.finish(None), Some(Ok(())));
        assert_eq!(queue.waiting(), 0);
        assert_eq!(written.iter().collect::<String>(), "12345\n12345\n");
    }
}
