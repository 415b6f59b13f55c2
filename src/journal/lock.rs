//! The lock of a journal: one process writes at a time. A second one fails at once, unless the first
//! has lost its client or served this same command before; then it waits for the first to end.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat};
use rustix::io::Errno;

use super::record::{Hash, UserKey};
use super::{past, process};
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;

/// A journal that was touched this lately is of a process that hears its client, which touches it
/// every second.
const FRESH: Duration = Duration::from_secs(5);

/// How long to wait for the lock: longer than a server takes to see that its client is gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a former server of the same command may take to end by itself.
const MERCY: Duration = Duration::from_secs(10);

/// Between two tries for the lock.
const INTERVAL: Duration = Duration::from_millis(50);

/// Tries for a journal that others remove at the same moment.
const TRIES: usize = 16;

/// How to wait for the lock.
pub struct Waiting<'a> {
    /// Earlier sessions of the same command,
    pub before: &'a [[u8; 16]],
    /// if they have this owner.
    pub owner: Hash,
    /// What the user wants written, for messages.
    pub path: &'a Path,
    pub is_ending: &'a dyn Fn() -> bool,
    /// Says a line to the user.
    pub tell: &'a dyn Fn(&str),
}

/// Opens the journal `name`, or makes it, and takes its lock. None where no journal is possible: the
/// directory takes no file, or something of that name is not ours.
///
/// # Errors
/// `Kind::Busy` where another process holds it.
pub(super) fn take(
    dir: &Arc<Dir>,
    name: &OsStr,
    user: &UserKey,
    waiting: &Waiting,
) -> Result<Option<File>> {
    let mut patience = None;
    for _ in 0..TRIES {
        // Before it is opened, since opening a device or a FIFO has effects.
        match dir.stat(name) {
            Ok(stat) if !is_ours(&stat) => return Ok(None),
            _ => {}
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NONBLOCK;
        let Ok(fd) = dir.open(name, flags, Mode::RUSR | Mode::WUSR) else {
            return Ok(None);
        };
        let file = File::from(fd);
        // Before anything in it is read: another user's file says nothing.
        if !fstat(&file).is_ok_and(|stat| stat.st_nlink == 0 || is_ours(&stat)) {
            return Ok(None);
        }
        // Some file systems have no locks; there the partials' names are the protection.
        while flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN) {
            let patience = patience.get_or_insert_with(Patience::default);
            patience.go_on(&file, user, waiting)?;
            std::thread::sleep(INTERVAL);
        }
        match fstat(&file) {
            Ok(stat) if stat.st_nlink == 0 => {} // Its owner has removed it: make a new one.
            Ok(stat) if is_ours(&stat) => {
                return Ok(make_private(&file, &stat).then_some(file));
            }
            _ => return Ok(None),
        }
    }
    Err(busy(waiting.path))
}

/// A regular file of this user with one name.
pub(super) fn is_ours(stat: &Stat) -> bool {
    file_type(stat) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1
}

/// Only this user may write what is believed. A file that others could write is emptied; some file
/// systems have no modes, and there the checksums' key is the protection.
fn make_private(file: &File, stat: &Stat) -> bool {
    if stat.st_mode & 0o7077 == 0 {
        return true;
    }
    let has_modes = fchmod(file, Mode::RUSR | Mode::WUSR).is_ok()
        && fstat(file).is_ok_and(|now| now.st_mode & 0o7077 == 0);
    !has_modes || file.set_len(0).is_ok()
}

fn busy(path: &Path) -> Error {
    Error::new(Kind::Busy, Side::Dest, "another fastcp is writing there").at(path)
}

/// How long it has waited, and for whom.
struct Patience {
    since: Instant,
    told: bool,
    killed: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            since: Instant::now(),
            told: false,
            killed: false,
        }
    }
}

impl Patience {
    /// `Err` where waiting makes no sense (any more).
    fn go_on(&mut self, file: &File, user: &UserKey, waiting: &Waiting) -> Result<()> {
        let waited = self.since.elapsed();
        if (waiting.is_ending)() || waited > PATIENCE {
            return Err(busy(waiting.path));
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
            return Err(busy(waiting.path));
        }
        if !self.told {
            self.told = true;
            (waiting.tell)(&format!(
                "fastcp: another fastcp that writes there has heard nothing for {} s; waiting up \
                 to {} s for it to end",
                silent.as_secs(),
                PATIENCE.as_secs()
            ));
        }
        Ok(())
    }
}

/// Since when nobody has touched the journal.
fn silence(file: &File) -> Duration {
    let touched = file.metadata().and_then(|meta| meta.modified());
    let touched = touched.unwrap_or(SystemTime::UNIX_EPOCH);
    // A time to come is one of now, by another clock.
    SystemTime::now()
        .duration_since(touched)
        .unwrap_or_default()
}
