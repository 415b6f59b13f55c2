//! The thread that writes a list of digests. The list may be a FIFO that nobody reads, or a file on
//! a disk that hangs; the task that reads control adds lines and must not wait for either.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::dest;

/// Bytes of lines that may wait before the copy waits for them.
pub const QUEUE_BYTES: usize = 1 << 20;

/// Bytes of lines that may wait at all: those of files that were under way when the copy began to
/// wait. A line beyond is an error of the list.
const QUEUE_MAX: usize = 24 << 20;

/// How often a thread that waits looks whether it still has to.
const LOOK: Duration = Duration::from_millis(100);

/// What the thread is to do before it goes on with the lines.
#[derive(Default)]
pub struct Waiting {
    lines: Vec<u8>,
    /// The lines written so far are to go.
    begins_again: bool,
    /// Of lines that wait and of those that are being written.
    pub bytes: usize,
    /// No more lines come: the file is to be closed.
    is_last: bool,
    is_closed: bool,
    /// Nobody waits for the thread any more.
    is_over: bool,
    error: Option<io::Error>,
}

#[derive(Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// The end that lines are given to. Dropped, it lets the thread end.
pub struct Writer {
    pub queue: Arc<Queue>,
}

impl Writer {
    pub fn start(file: File) -> io::Result<Writer> {
        let queue = Arc::<Queue>::default();
        let taken = queue.clone();
        let thread = std::thread::Builder::new().name("digest list".into());
        thread.spawn(move || taken.write(file))?;
        Ok(Writer { queue })
    }

    /// Never waits.
    pub fn put(&self, line: String) {
        let mut waiting = self.queue.lock();
        if waiting.error.is_some() {
            return;
        }
        if waiting.bytes + line.len() > QUEUE_MAX {
            let message = "nothing takes its lines: it is a pipe that is not read, or a slow disk";
            waiting.error = Some(io::Error::new(io::ErrorKind::TimedOut, message));
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.extend_from_slice(line.as_bytes());
        drop(waiting);
        self.queue.changed.notify_all();
    }

    pub fn begin_again(&self) {
        let mut waiting = self.queue.lock();
        waiting.bytes -= waiting.lines.len();
        waiting.lines.clear();
        waiting.begins_again = true;
        drop(waiting);
        self.queue.changed.notify_all();
    }

    /// Has the file closed behind the last line. True once it is, or cannot be.
    pub fn is_closed(&self) -> bool {
        let mut waiting = self.queue.lock();
        waiting.is_last = true;
        self.queue.changed.notify_all();
        waiting.is_closed || waiting.error.is_some()
    }

    /// To be called when it [`is_closed`](Writer::is_closed); else that is an error.
    pub fn finish(&self) -> io::Result<()> {
        let mut waiting = self.queue.lock();
        if let Some(error) = waiting.error.take() {
            return Err(error);
        }
        if waiting.is_closed {
            return Ok(());
        }
        let message = "it was not written before the end";
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.lock().is_over = true;
        self.queue.changed.notify_all();
    }
}

impl Queue {
    pub fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no panic while held")
    }

    /// Waits until `is_over`, which may depend on more than what waits.
    pub fn wait(&self, is_over: impl Fn(&Waiting) -> bool) {
        let mut waiting = self.lock();
        while !is_over(&waiting) {
            let waited = self.changed.wait_timeout(waiting, LOOK);
            waiting = waited.expect("no panic while held").0;
        }
    }

    fn closed(&self, closed: io::Result<()>) {
        let mut waiting = self.lock();
        waiting.is_closed = true;
        if let Err(error) = closed {
            waiting.error.get_or_insert(error);
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// The thread.
    fn write(&self, mut file: File) {
        loop {
            let mut waiting = self.lock();
            while waiting.lines.is_empty()
                && !waiting.begins_again
                && !waiting.is_last
                && !waiting.is_over
            {
                waiting = self.changed.wait(waiting).expect("no panic while held");
            }
            if waiting.is_over {
                return;
            }
            if waiting.lines.is_empty() && !waiting.begins_again {
                drop(waiting);
                // Some file systems tell only now that they could not write.
                return self.closed(dest::close(file));
            }
            let lines = std::mem::take(&mut waiting.lines);
            let begins_again = std::mem::take(&mut waiting.begins_again);
            drop(waiting);
            let emptied = match begins_again {
                // A pipe cannot take back what was said.
                true => file.set_len(0).and_then(|()| file.rewind()).or(Ok(())),
                false => Ok(()),
            };
            let written = emptied.and_then(|()| file.write_all(&lines));
            let mut waiting = self.lock();
            waiting.bytes -= lines.len();
            if let Err(error) = written {
                waiting.error.get_or_insert(error);
            }
            drop(waiting);
            self.changed.notify_all();
        }
    }
}
