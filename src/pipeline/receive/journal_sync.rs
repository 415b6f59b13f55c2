//! Upkeep of the journal during the copy, on a thread that may wait for a disk. It sets the
//! journal's time while messages arrive, so that other processes see that the copy is alive. From
//! time to time it syncs the file system, so that after a crash of the machine less data has to be
//! compared. A write error that such a sync reports fails the copy.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::report::Report;
use crate::error::{Error, Kind, Side};
use crate::journal::Journal;

/// Time between two touches of the journal. A second fastcp takes five missed touches for silence.
const TOUCH_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two syncs. Each sync takes disk throughput from the copy.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);

/// If fewer than one in this many buffers is free, the disk is the bottleneck, and a sync would
/// only slow the copy down.
const BEHIND: usize = 4;

/// Time between two checks whether the copy is ending, during a wait for a sync.
const STEP: Duration = Duration::from_millis(200);

/// How long the end of a copy waits for a running sync. A sync writes the data of all processes on
/// this file system, which may take minutes.
const SETTLE_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct JournalSync {
    state: Mutex<SyncState>,
    changed: Condvar,
    has_failed: AtomicBool,
}

#[derive(Default)]
struct SyncState {
    is_over: bool,
    is_syncing: bool,
}

impl JournalSync {
    /// Runs until the copy is over. `heard` counts the bytes from the other end; None if that end
    /// is in this process.
    pub fn keep(&self, journal: &OnceLock<Journal>, report: &Report, heard: Option<&AtomicU64>) {
        let pool = &report.context.pool;
        let mut before = 0;
        let buffers = pool.free();
        let mut synced = Instant::now();
        thread::scope(|scope| {
            while self.wait() {
                let Some(journal) = journal.get() else {
                    continue;
                };
                let now = heard.map_or(before + 1, |heard| heard.load(Relaxed));
                if now != before {
                    journal.touch();
                }
                before = now;
                let is_behind = pool.free() * BEHIND < buffers;
                if self.state.lock().is_syncing {
                    synced = Instant::now();
                } else if synced.elapsed() >= SYNC_INTERVAL
                    && !is_behind
                    && !self.has_failed()
                    && self.begin()
                {
                    let sync = || self.sync(journal, report);
                    // The journal is touched during the sync too, or the copy would seem dead.
                    if thread::Builder::new().spawn_scoped(scope, sync).is_err() {
                        self.sync(journal, report);
                    }
                }
            }
        });
    }

    /// True if a sync has reported that the disk lost data.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    /// Ends [`keep`](JournalSync::keep), but does not wait for a running sync.
    pub fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Ends [`keep`](JournalSync::keep) and waits for a running sync, since it may report an error.
    /// Returns early if the copy `is_ending`. Returns false if the sync takes longer than
    /// `SETTLE_MAX`.
    pub fn settle(&self, is_ending: impl Fn() -> bool) -> bool {
        self.end();
        let until = Instant::now() + SETTLE_MAX;
        let mut state = self.state.lock();
        while state.is_syncing && !is_ending() {
            if Instant::now() >= until {
                return false;
            }
            self.changed.wait_for(&mut state, STEP);
        }
        true
    }

    /// Returns true after [`TOUCH_INTERVAL`], and false when the copy is over.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.changed
            .wait_while_for(&mut state, |state| !state.is_over, TOUCH_INTERVAL);
        !state.is_over
    }

    /// Begins a sync. False if the copy is over.
    fn begin(&self) -> bool {
        let mut state = self.state.lock();
        state.is_syncing = !state.is_over;
        state.is_syncing
    }

    fn sync(&self, journal: &Journal, report: &Report) {
        if let Err(cause) = sync(journal) {
            self.has_failed.store(true, Relaxed);
            write_back_failed(report, journal, cause);
        }
        self.state.lock().is_syncing = false;
        self.changed.notify_all();
    }
}

/// Makes the written data durable, and records the length that the journal had before.
///
/// # Errors
/// If the disk did not take data that any process wrote to this file system.
fn sync(journal: &Journal) -> io::Result<()> {
    let position = journal.position();
    match syncfs_beside(journal.disk()) {
        Some(Ok(())) => journal.synced(position),
        None | Some(Err(Errno::NOSYS)) => {}
        Some(Err(cause)) => return Err(cause.into()),
    }
    Ok(())
}

/// Writes the file system of `handle` to the disk in a child process, so that this one can exit.
///
/// # Errors
/// If the disk did not take some data, or the sync did not end.
pub(super) fn sync_beside(handle: &OwnedFd) -> io::Result<()> {
    let synced = syncfs_beside(handle).unwrap_or(Err(Errno::INTR));
    Ok(synced?)
}

/// Syncs the file system of `handle` in a child process, which runs [`sync_stdin`]. None if a signal
/// ended the child.
///
/// A thread inside `syncfs` takes no signal, not even SIGKILL: this process could not exit before
/// the disk is done. It must have no handle that is locked, or the lock would outlive this process.
fn syncfs_beside(handle: &OwnedFd) -> Option<rustix::io::Result<()>> {
    let started = handle.try_clone().and_then(|handle| {
        Command::new("/proc/self/exe")
            .arg("--syncfs")
            .stdin(handle)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
    });
    match started {
        Ok(status) => match status.code()? {
            0 => Some(Ok(())),
            errno => Some(Err(Errno::from_raw_os_error(errno))),
        },
        // There is no /proc, or no process can be started.
        Err(_) => Some(rustix::fs::syncfs(handle)),
    }
}

/// The child process for a sync. Returns its exit code: the error number, or 0. The child ends with
/// the copy, or when the kernel allows it.
pub fn sync_stdin() -> i32 {
    // If this is refused, the child ends when the disk is done.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let synced = rustix::fs::syncfs(io::stdin());
    synced.map_or_else(Errno::raw_os_error, |()| 0)
}

/// Reports that the disk lost data; the kernel does not tell which file is affected.
fn write_back_failed(report: &Report, journal: &Journal, cause: io::Error) {
    journal.doubted();
    let what = "the disk reported an error during the copy";
    let mut error = Error::io(Kind::Write, Side::Dest, journal.dir().path(), what, cause);
    error.message += "; any file of this copy may be damaged: repair the disk and copy again";
    report.context.report_fault(&error, 0, 0);
}
