//! The thread that writes a list of digests. The list may be a FIFO that nobody reads, or a file on
//! a disk that hangs. The task that reads control messages adds lines and must not wait for either.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::more_links::{LinkStep, MoreLinks};
use crate::dest;
use crate::digest::line;

/// Bytes of waiting lines above which the copy waits.
pub(super) const QUEUE_BYTES: usize = 1 << 20;

/// Most bytes of waiting lines; one more line is an error of the list. The room above
/// [`QUEUE_BYTES`] is for files that were in progress when the copy began to wait.
const QUEUE_MAX: usize = 24 << 20;

/// How often a waiting thread checks whether it still has to wait.
const LOOK: Duration = Duration::from_millis(100);

/// The work of the thread, and its state.
#[derive(Default)]
pub(super) struct WriterState {
    lines: Vec<u8>,
    links: Vec<LinkStep>,
    /// The file has an older list, or the lines of an earlier session. They must be removed before
    /// the next line.
    begins_again: bool,
    /// Bytes of lines and links that wait or are being written.
    pub bytes: usize,
    /// No more lines follow: the file can be closed.
    is_last: bool,
    /// The list is that of a complete copy, even if it has no lines.
    is_complete: bool,
    is_closed: bool,
    /// The [`ListWriter`] was dropped.
    is_over: bool,
    pub error: Option<io::Error>,
}

#[derive(Default)]
pub(super) struct LineQueue {
    waiting: Mutex<WriterState>,
    changed: Condvar,
}

/// Takes the lines. Dropping it ends the thread.
pub(super) struct ListWriter {
    pub queue: Arc<LineQueue>,
}

impl ListWriter {
    pub(super) fn start(file: File) -> io::Result<ListWriter> {
        let queue = Arc::<LineQueue>::default();
        queue.waiting.lock().begins_again = true;
        let taken = queue.clone();
        let thread = std::thread::Builder::new().name("digest list".into());
        thread.spawn(move || taken.write(file))?;
        Ok(ListWriter { queue })
    }

    /// Adds a line without waiting.
    pub(super) fn put(&self, line: String) {
        let line = line.as_bytes();
        self.add(line.len(), |waiting| waiting.lines.extend_from_slice(line));
    }

    /// Adds a step without waiting. The name that it finds becomes a line.
    pub(super) fn put_link(&self, step: LinkStep) {
        self.add(step.weight(), |waiting| waiting.links.push(step));
    }

    fn add(&self, bytes: usize, add: impl FnOnce(&mut WriterState)) {
        let mut waiting = self.queue.waiting.lock();
        if waiting.error.is_some() {
            return;
        }
        if waiting.bytes + bytes > QUEUE_MAX {
            let message =
                "it cannot be written fast enough (a pipe that nobody reads, or a slow disk)";
            waiting.error = Some(io::Error::new(io::ErrorKind::TimedOut, message));
            return;
        }
        waiting.bytes += bytes;
        add(&mut waiting);
        drop(waiting);
        self.queue.changed.notify_all();
    }

    pub(super) fn begin_again(&self) {
        let mut waiting = self.queue.waiting.lock();
        waiting.bytes -= waiting.waiting_bytes();
        waiting.lines.clear();
        waiting.links.clear();
        waiting.begins_again = true;
        drop(waiting);
        self.queue.changed.notify_all();
    }

    /// Asks the thread to close the file after the last line. Returns true once the file is closed
    /// or an error occurred. Without a line, the file is emptied only if the copy `is_complete`.
    pub(super) fn is_closed(&self, is_complete: bool) -> bool {
        let mut waiting = self.queue.waiting.lock();
        waiting.is_last = true;
        waiting.is_complete |= is_complete;
        self.queue.changed.notify_all();
        waiting.is_closed || waiting.error.is_some()
    }

    /// Returns the error of the thread. Call this when [`is_closed`](ListWriter::is_closed) returns
    /// true; earlier it is an error.
    pub(super) fn finish(&self) -> io::Result<()> {
        let mut waiting = self.queue.waiting.lock();
        if let Some(error) = waiting.error.take() {
            return Err(error);
        }
        if waiting.is_closed {
            return Ok(());
        }
        let message = "it could not be completed in time";
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    }
}

impl WriterState {
    /// False if there is work for the thread.
    fn is_empty(&self) -> bool {
        let empties = self.begins_again && self.is_last && self.is_complete;
        self.lines.is_empty() && self.links.is_empty() && !empties
    }

    /// Bytes of lines and links that wait.
    fn waiting_bytes(&self) -> usize {
        self.lines.len() + self.links.iter().map(LinkStep::weight).sum::<usize>()
    }
}

impl Drop for ListWriter {
    fn drop(&mut self) {
        self.queue.waiting.lock().is_over = true;
        self.queue.changed.notify_all();
    }
}

impl LineQueue {
    /// Waits until `is_over`, which may depend on other state too and is therefore checked
    /// regularly.
    pub(super) fn wait(&self, is_over: impl Fn(&WriterState) -> bool) {
        let mut waiting = self.waiting.lock();
        while !is_over(&waiting) {
            self.changed.wait_for(&mut waiting, LOOK);
        }
    }

    fn closed(&self, closed: io::Result<()>) {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        if let Err(error) = closed {
            waiting.error.get_or_insert(error);
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// Runs the thread.
    fn write(&self, mut file: File) {
        let mut more_links = MoreLinks::default();
        loop {
            let mut waiting = self.waiting.lock();
            while waiting.is_empty() && !waiting.is_last && !waiting.is_over {
                self.changed.wait(&mut waiting);
            }
            if waiting.is_over {
                return;
            }
            if waiting.is_empty() {
                drop(waiting);
                // Some file systems report write errors only at the close.
                return self.closed(dest::close(file));
            }
            let taken = waiting.waiting_bytes();
            let mut lines = std::mem::take(&mut waiting.lines);
            let links = std::mem::take(&mut waiting.links);
            let begins_again = std::mem::take(&mut waiting.begins_again);
            drop(waiting);
            let emptied = match begins_again {
                true => {
                    more_links = MoreLinks::default();
                    emptied(&mut file)
                }
                false => Ok(()),
            };
            let found = links.into_iter().try_for_each(|step| {
                if let Some((path, digest)) = more_links.take(step)?
                    && let Some(line) = line::format(&path, &digest)
                {
                    lines.extend_from_slice(line.as_bytes());
                }
                Ok(())
            });
            let written = emptied.and_then(|()| file.write_all(&lines)).and(found);
            let mut waiting = self.waiting.lock();
            waiting.bytes -= taken;
            if let Err(error) = written {
                waiting.error.get_or_insert(error);
            }
            drop(waiting);
            self.changed.notify_all();
        }
    }
}

/// Removes the content. A pipe or device has none that could be removed.
fn emptied(file: &mut File) -> io::Result<()> {
    match file.set_len(0) {
        Err(cause) if cause.kind() == io::ErrorKind::InvalidInput => Ok(()),
        emptied => emptied.and_then(|()| file.rewind()),
    }
}
