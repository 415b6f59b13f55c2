//! The lock of a journal: one process writes at a time. A second one fails at once, unless the
//! first has lost its client, or is an earlier server of the same command. Then it waits for the
//! first to end, up to a limit. An earlier server that does not end soon is killed.
//!
//! A lock may not show a process of another host, or one that reaches the file system through
//! another mount. Such a process is known by its session record and by the time of the journal,
//! which it touches every second.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, Stat, StatxFlags, fchmod, flock, fstat, statx,
};
use rustix::io::Errno;

use super::record::{Hash, JournalSession, JournalUserKey};
use super::{past, process};
use crate::dir::{Dir, age, is_ours};
use crate::error::{Error, Result};
use crate::units::printable;

/// A journal touched this recently belongs to a process that hears from its client: it touches the
/// journal every second.
const FRESH: Duration = Duration::from_secs(5);

/// How long to wait for the lock: longer than a server takes to notice that its client is gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long an earlier server of the same command may take to exit before it is killed.
const MERCY: Duration = Duration::from_secs(10);

/// Time between two attempts to lock.
const INTERVAL: Duration = Duration::from_millis(50);

/// Attempts to open a journal that other processes remove at the same moment, or while too many files
/// are open.
const TRIES: usize = 16;

/// How to wait for the lock.
pub struct WaitForLock<'a> {
    /// Earlier sessions of the same command.
    pub before: &'a [[u8; 16]],
    /// The owner that those sessions must have.
    pub owner: Hash,
    /// The path that the user wants to write, for messages.
    pub path: &'a Path,
    pub is_ending: &'a dyn Fn() -> bool,
    /// Prints a line for the user.
    pub tell: &'a dyn Fn(&str),
}

/// Opens or makes the journal `name`, and takes its lock. The flag is true if the file existed. None
/// if no journal is possible: the directory does not allow a new file, or something else has that
/// name.
///
/// # Errors
/// `Kind::Busy` if another process holds the lock, or writes without a lock that is seen here.
pub(super) fn take(
    dir: &Arc<Dir>,
    name: &OsStr,
    user: &JournalUserKey,
    waiting: &WaitForLock,
) -> Result<Option<(File, bool)>> {
    let mut patience = None;
    for attempt in 1..=TRIES {
        // Checked before the open, because opening a device or a FIFO has effects.
        let existed = match dir.stat(name) {
            Ok(stat) if !is_ours(&stat) => return Ok(None),
            found => found.is_ok(),
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NONBLOCK;
        let fd = match dir.open(name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => fd,
            // Nothing else removes a journal of an earlier session. Other threads soon close files.
            Err(cause) if is_out_of_files(&cause) && attempt < TRIES => {
                std::thread::sleep(INTERVAL);
                continue;
            }
            // The copy does not need a journal.
            Err(_) => return Ok(None),
        };
        let file = File::from(fd);
        // Checked before anything in it is read, because another user's file must not be trusted.
        if !fstat(&file).is_ok_and(|stat| stat.st_nlink == 0 || is_ours(&stat)) {
            return Ok(None);
        }
        // Some file systems have no locks. There the names of the partial files protect them.
        while flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN) {
            let patience = patience.get_or_insert_with(LockWait::default);
            patience.go_on(&file, user, waiting)?;
            std::thread::sleep(INTERVAL);
        }
        if existed {
            // Longer than a server takes to notice that its client is gone, unless the lock of a
            // server would be seen.
            let enough = if dir.shares_locks() { FRESH } else { PATIENCE };
            wait_for_silence(&file, enough, user, waiting)?;
        }
        match fstat(&file) {
            Ok(stat) if stat.st_nlink == 0 => {} // Its owner has removed it: make a new one.
            Ok(stat) if is_ours(&stat) => {
                return Ok(make_private(&file, &stat).then_some((file, existed)));
            }
            _ => return Ok(None),
        }
    }
    Err(Error::busy(waiting.path))
}

/// If the last session may be running where its lock is not seen, waits until the journal has been
/// silent for as long as is `enough`.
///
/// # Errors
/// `Kind::Busy` if the journal is touched in the meantime, unless by an earlier session of the same
/// command, which soon ends.
fn wait_for_silence(
    file: &File,
    enough: Duration,
    user: &JournalUserKey,
    waiting: &WaitForLock,
) -> Result<()> {
    if silence(file) >= enough {
        return Ok(());
    }
    let (Some((last, owner)), Ok(stat)) = (past::last_session(file, user), fstat(file)) else {
        return Ok(());
    };
    if is_of_here(&last, &stat) {
        return Ok(());
    }
    let is_own = waiting.before.contains(&last.id) && owner == waiting.owner;
    let began = Instant::now();
    let (mut known, mut since) = (touched(file), began);
    let mut told = false;
    loop {
        let now = touched(file);
        if now != known {
            if !is_own {
                return Err(Error::busy(waiting.path));
            }
            (known, since) = (now, Instant::now());
        }
        // The clocks of two hosts may differ.
        if silence(file).max(since.elapsed()) >= enough {
            return Ok(());
        }
        if (waiting.is_ending)() || began.elapsed() > enough + PATIENCE {
            return Err(Error::busy(waiting.path));
        }
        if !told {
            told = true;
            (waiting.tell)(&format!(
                "fastcp: {}: another fastcp, perhaps on another host, wrote there {} s ago; \
                 waiting until it has been inactive for {} s",
                printable(waiting.path.as_os_str().as_encoded_bytes()),
                silence(file).as_secs(),
                enough.as_secs()
            ));
        }
        std::thread::sleep(INTERVAL);
    }
}

/// True if this kernel sees the lock of that session on the file with this status: the session is
/// of this boot of this machine, and of this mount or one of the same device.
pub(super) fn is_of_here(session: &JournalSession, stat: &Stat) -> bool {
    let boot = process::boot_id();
    // Without /proc it is not known.
    boot == [0; 16] || session.boot_id == boot && session.dev == stat.st_dev
}

/// Time and length of the journal as the server knows them, if there is one.
fn touched(file: &File) -> Option<(i64, u32, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let told = statx(file, c"", flags, StatxFlags::MTIME | StatxFlags::SIZE).ok()?;
    let time = told.stx_mtime;
    Some((time.tv_sec, time.tv_nsec, told.stx_size))
}

/// True if this process or the system has too many open files.
fn is_out_of_files(cause: &io::Error) -> bool {
    let cause = Errno::from_io_error(cause);
    matches!(cause, Some(Errno::MFILE | Errno::NFILE))
}

/// Ensures that only this user can write records that are trusted. Empties a file that others could
/// write. On file systems without modes, the key of the checksums is the protection.
fn make_private(file: &File, stat: &Stat) -> bool {
    if stat.st_mode & 0o7077 == 0 {
        return true;
    }
    let has_modes = fchmod(file, Mode::RUSR | Mode::WUSR).is_ok()
        && fstat(file).is_ok_and(|now| now.st_mode & 0o7077 == 0);
    !has_modes || file.set_len(0).is_ok()
}

/// A wait for the lock: since when, and the steps taken so far.
struct LockWait {
    since: Instant,
    told: bool,
    killed: bool,
}

impl Default for LockWait {
    fn default() -> Self {
        LockWait {
            since: Instant::now(),
            told: false,
            killed: false,
        }
    }
}

impl LockWait {
    /// `Err` if waiting (longer) is useless.
    fn go_on(&mut self, file: &File, user: &JournalUserKey, waiting: &WaitForLock) -> Result<()> {
        let waited = self.since.elapsed();
        if (waiting.is_ending)() || waited > PATIENCE {
            return Err(Error::busy(waiting.path));
        }
        // Another client may name any session, but only the same client has the same owner.
        let holder = past::last_session(file, user).filter(|(holder, owner)| {
            waiting.before.contains(&holder.id) && *owner == waiting.owner
        });
        if let Some((holder, _)) = holder {
            if waited > MERCY && !self.killed {
                self.killed = true;
                process::kill(&holder);
            }
            return Ok(());
        }
        let silent = silence(file);
        if silent < FRESH {
            return Err(Error::busy(waiting.path));
        }
        if !self.told {
            self.told = true;
            (waiting.tell)(&format!(
                "fastcp: {}: another fastcp writes there but has been inactive for {} s; waiting \
                 up to {} s for it to end",
                printable(waiting.path.as_os_str().as_encoded_bytes()),
                silent.as_secs(),
                PATIENCE.as_secs()
            ));
        }
        Ok(())
    }
}

/// Time since the journal was last touched.
pub(super) fn silence(file: &File) -> Duration {
    fstat(file).map_or(Duration::MAX, |stat| age(&stat, SystemTime::now()))
}
