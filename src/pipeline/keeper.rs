//! Work for the journal beside the copy, on a thread that may wait for a disk. It touches the journal
//! while the other end is heard. From time to time it syncs the file system, so that less has to be
//! compared after the machine went down; a write error that shows itself there fails the copy.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::error::{Error, Kind, Side};
use crate::journal::Journal;
use crate::pipeline::receiver::Receiver;
use crate::wire::message::{Fault, Message};

/// How often the journal is touched; a second fastcp takes five of them for silence.
const TOUCH_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two syncs: each takes from the copy what the disk has left.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);

/// With fewer free buffers than one in so many the disk is what the copy waits for: a sync would
/// only be in its way.
const BEHIND: usize = 4;

/// How often a wait for a sync looks whether the copy is ending.
const STEP: Duration = Duration::from_millis(200);

/// How long the end of a copy waits for a sync that is under way. It writes what all processes have
/// left on this file system, which may take minutes.
const SETTLE_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Keeper {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_over: bool,
    is_syncing: bool,
}

impl Keeper {
    /// Ends [`keep`], but for a sync that is under way.
    pub fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Ends [`keep`] and waits for a sync that is under way, since it may tell of an error. Returns
    /// early when the copy `is_ending`. False if the sync takes longer than it is waited for.
    pub fn settle(&self, is_ending: impl Fn() -> bool) -> bool {
        self.end();
        let until = Instant::now() + SETTLE_MAX;
        let mut state = self.lock();
        while state.is_syncing && !is_ending() {
            if Instant::now() >= until {
                return false;
            }
            let waited = self.changed.wait_timeout(state, STEP);
            state = waited.expect("no panic while held").0;
        }
        true
    }

    /// True after a second, false when the copy is over.
    fn wait(&self) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), TOUCH_INTERVAL, |state| !state.is_over);
        !waited.expect("no panic while held").0.is_over
    }

    /// Runs `sync`, unless the copy is over.
    fn sync(&self, sync: impl FnOnce()) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.is_syncing = true;
        drop(state);
        sync();
        self.lock().is_syncing = false;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

/// Runs until the copy is over. `heard` counts what came from the other end; it is none where that
/// is in this process.
pub fn keep(receiver: &Receiver, heard: Option<&AtomicU64>) {
    let mut before = 0;
    let buffers = receiver.pool.free();
    let mut synced = Instant::now();
    let mut has_failed = false;
    while receiver.keeper.wait() {
        let Some(journal) = receiver.journal() else {
            continue;
        };
        let now = heard.map_or(before + 1, |heard| heard.load(Relaxed));
        if now != before {
            journal.touch();
        }
        before = now;
        let is_behind = receiver.pool.free() * BEHIND < buffers;
        if synced.elapsed() >= SYNC_INTERVAL && !is_behind && !has_failed {
            receiver.keeper.sync(|| {
                if let Err(cause) = sync(journal) {
                    has_failed = true;
                    receiver.write_back_failed(journal, cause);
                }
            });
            synced = Instant::now();
        }
    }
}

/// Makes what was written durable, and records how far the journal went before.
///
/// # Errors
/// Where the disk did not take something that was written to this file system, be it ours or not.
fn sync(journal: &Journal) -> io::Result<()> {
    let position = journal.position();
    // A directory that cannot be opened again says nothing of what is in it.
    let Ok(dir) = journal.dir().handle() else {
        return Ok(());
    };
    match syncfs_beside(&dir) {
        Some(Ok(())) => journal.synced(position),
        None | Some(Err(Errno::NOSYS)) => {}
        Some(Err(cause)) => return Err(cause.into()),
    }
    Ok(())
}

/// Syncs the file system of `dir` by a process of its own, which [`sync_stdin`] runs in. None where
/// that was ended before it knew.
///
/// A thread inside `syncfs` takes no signal, not even SIGKILL: this process could exit no earlier
/// than the disk is done.
fn syncfs_beside(dir: &OwnedFd) -> Option<rustix::io::Result<()>> {
    let started = dir.try_clone().and_then(|dir| {
        Command::new("/proc/self/exe")
            .arg("--syncfs")
            .stdin(dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
    });
    match started {
        Ok(status) => match status.code()? {
            0 => Some(Ok(())),
            errno => Some(Err(Errno::from_raw_os_error(errno))),
        },
        // No process is to be had, or no /proc.
        Err(_) => Some(rustix::fs::syncfs(dir)),
    }
}

/// The process beside a copy; gives its exit code, the number of the error. It ends with the copy,
/// or when the kernel lets it.
pub fn sync_stdin() -> i32 {
    // Where it is refused the process ends when the disk is done.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let synced = rustix::fs::syncfs(io::stdin());
    synced.map_or_else(Errno::raw_os_error, |()| 0)
}

impl Receiver {
    /// The disk has lost something, and does not tell of which file.
    fn write_back_failed(&self, journal: &Journal, cause: io::Error) {
        journal.doubted();
        let what = "a disk error while the copy was written, so any of its files may be damaged; \
                    copy again when the disk is in order";
        let error = Error::io(Kind::Write, Side::Dest, journal.dir().path(), what, cause);
        self.tally.add(&error);
        self.say(Message::Fault(Fault::of(&error, 0, 0)));
    }
}
