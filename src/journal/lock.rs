//! Who may write: one process at a time. A second one fails at once, gives way to nobody, but
//! waits for one that has lost its client, or that served this command before.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat};
use rustix::io::Errno;

use super::record::Session;
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

/// What waiting for the lock goes by.
pub struct Waiting<'a> {
    /// Former sessions of the same command.
    pub before: &'a [[u8; 16]],
    /// What the user wants written, for messages.
    pub path: &'a Path,
    pub is_ending: &'a dyn Fn() -> bool,
    /// Says a line to the user.
    pub tell: &'a dyn Fn(&str),
}

/// Opens the journal `name`, or makes it, and takes its lock. None where no journal can be: the
/// directory takes no file, or something of that name is not ours.
///
/// # Errors
/// `Kind::Busy` where another process holds it.
pub(super) fn take(dir: &Arc<Dir>, name: &OsStr, waiting: &Waiting) -> Result<Option<File>> {
    let mut patience = None;
    for _ in 0..TRIES {
        match dir.stat(name) {
            Ok(stat) if !is_ours(&stat) => return Ok(None),
            _ => {}
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NONBLOCK;
        let Ok(fd) = dir.open(name, flags, Mode::RUSR | Mode::WUSR) else {
            return Ok(None);
        };
        let file = File::from(fd);
        // Some file systems have no locks; there the partials' names are the protection.
        while flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN) {
            let patience = patience.get_or_insert_with(Patience::default);
            patience.go_on(&file, waiting)?;
            std::thread::sleep(INTERVAL);
        }
        match fstat(&file) {
            Ok(stat) if stat.st_nlink == 0 => {} // Its owner has come to its end: a new one.
            Ok(stat) if is_ours(&stat) => return Ok(Some(file)),
            _ => return Ok(None),
        }
    }
    Err(busy(waiting.path))
}

pub(super) fn is_ours(stat: &Stat) -> bool {
    file_type(stat) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink <= 1
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
    /// `Err` where there is nothing to wait for (any more).
    fn go_on(&mut self, file: &File, waiting: &Waiting) -> Result<()> {
        let waited = self.since.elapsed();
        let holder = past::last_session(file);
        let was_ours = |holder: &Session| waiting.before.contains(&holder.id);
        if (waiting.is_ending)() || waited > PATIENCE {
            return Err(busy(waiting.path));
        }
        if let Some(holder) = holder.filter(was_ours) {
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
