//! Snapshots on disk (`--snapshot`): a directory with one complete copy per run.
//!
//! ```text
//! 2026-11-22T020000Z/           a complete snapshot, named after the start of its copy in UTC
//! latest -> 2026-11-22T020000Z  the newest complete snapshot
//! .fastcp-snapshot-partial/     the unfinished snapshot, of this run or an interrupted one
//! .fastcp-removing-DATE/        a snapshot that --keep is removing
//! .fastcp-snapshots/lock        locked by the run that works here; its text names that run
//! .fastcp-snapshots/boot        the boot in which the unfinished snapshot was begun
//! .fastcp-snapshots/*.journal   the journal of the unfinished snapshot
//! .fastcp-snapshots/DATE        an empty file: the snapshot DATE is complete
//! .fastcp-snapshots/DATE.new    DATE is being completed; the next run does the rest
//! .fastcp-latest                the next `latest`, for a moment
//! ```
//!
//! Promises:
//! - A directory counts as a snapshot only with its mark in `.fastcp-snapshots`, which no copy by a
//!   confined key can write.
//! - When all of a snapshot is on the disk, it gets its name; then `latest` leads to it; then it
//!   gets its mark. Each of these is one step. If a run stops between these steps, the next one
//!   does the rest.
//! - One run works here at a time.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir as Reader, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, flock,
    fstat, fsync, mkdirat, readlinkat, renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::directory::unlock;
use super::equal_names::Spellings;
use super::own_names::is_in_use;
use super::resolve::make_directory;
use super::root::RootTarget;
use super::snapshot_marks::{STATE, closed, holds_snapshots, is_state, refused};
use super::temporary::same_file;
use super::user_path::FoundPath;
use super::{EntrySlot, Remover, Rules, Spec, is_flag_unknown, mkpath, sync_directory};
use crate::dir::{DEPTH_MAX, Dir, Handles, RESERVED, is_reserved};
use crate::error::{BUSY_ADVICE, Error, Kind, Result, Side};
use crate::manifest::{Name, Timestamp, file_type};
use crate::snapshot::{LATEST, Retention, SnapshotName};
use crate::units::printable;

const PARTIAL: &str = ".fastcp-snapshot-partial";
const REMOVING: &str = ".fastcp-removing-";
const NEW_LATEST: &str = ".fastcp-latest";
const LOCK: &str = "lock";
const BOOT: &str = "boot";

/// The end of the mark of a snapshot that is being completed.
const COMPLETING: &str = ".new";

/// How long a run waits for the lock: a run that has just ended may still be exiting.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same for the lock of an earlier session of this command. Its server notices within a minute
/// that its client is gone, and then waits for a disk that it writes to.
const PATIENCE_WITH_OWN: Duration = Duration::from_secs(600);

/// Time between two attempts to lock.
const INTERVAL: Duration = Duration::from_millis(50);

/// Attempts to lock a file that is removed at the same moment, and to find a free name.
const TRIES: usize = 64;

/// Most bytes of the text about a lock's holder.
const HOLDER_MAX: usize = 256;

/// Most snapshots and other entries in one directory of snapshots.
const NAMES_MAX: usize = 1 << 20;

/// Leftovers of one directory that are removed before it is read again.
const REMOVED_AT_ONCE: usize = 4096;

/// The run that wants to work in a snapshot directory.
pub struct SnapshotRun<'a> {
    /// 128 bits that are unique to its session.
    pub session: [u8; 16],
    /// Earlier sessions of the same command, which may still hold the lock.
    pub before: &'a [[u8; 16]],
    /// Discard what an interrupted run has left.
    pub no_resume: bool,
    /// A first snapshot needs an empty directory: the key is limited.
    pub needs_empty: bool,
    /// Old snapshots are removed (`--keep`).
    pub thins: bool,
    pub is_ending: &'a dyn Fn() -> bool,
}

/// A locked snapshot directory with a snapshot under way.
pub struct SnapshotStore {
    container: Arc<Dir>,
    state: Arc<Dir>,
    lock: File,
    /// Locked too, so that removing the file does not let a second run in. Some file systems do not
    /// lock directories.
    _directory: OwnedFd,
    latest: Option<(SnapshotName, Arc<Dir>)>,
    partial: Arc<Dir>,
    /// Its handle, which is older than all data of this run, and stays open.
    partial_handle: Arc<OwnedFd>,
    /// This run has made the directory with the marks.
    made_state: bool,
    is_new: bool,
    is_certain: bool,
    began: SnapshotName,
}

/// What a dry run sees.
pub struct SnapshotView {
    /// The path that the new snapshot would get.
    pub path: std::path::PathBuf,
    pub latest: Option<Arc<Dir>>,
}

/// What `--keep` has done.
#[derive(Default)]
pub struct Thinned {
    pub removed: Vec<SnapshotName>,
    /// Nothing was removed, because a snapshot has a later date than the one just made.
    pub is_clock_behind: bool,
    /// The first that could not be removed; the others were.
    pub failed: Option<Error>,
}

impl SnapshotStore {
    /// Opens the snapshot directory at the typed path, or makes one, and locks it.
    ///
    /// # Errors
    /// `Kind::Busy` if another run works there. `Kind::Usage` if the path is something else.
    pub fn open(
        spec: &Spec,
        run: &SnapshotRun,
        rules: &Rules,
        handles: &Arc<Handles>,
    ) -> Result<SnapshotStore> {
        let container = container(spec, handles).map_err(|error| spec.as_typed(error))?;
        refuse_nested(&container)?;
        let has_state = container.stat(STATE.as_ref()).is_ok();
        if run.needs_empty && !has_state && !is_empty(&container)? {
            return Err(refused(
                &container,
                "is not empty, and this key may begin snapshots only in an empty directory: choose \
                 a new directory as DEST",
            ));
        }
        let (state, made_state) = state_directory(&container)?;
        let (lock, directory) = take_lock(&container, &state, run)?;
        check_latest(&container)?;
        try_link(&container)?;
        let began = SnapshotName::of(clock_gettime(ClockId::Realtime).tv_sec);
        complete_interrupted(&container, &state)?;
        let latest = newest(&container, &state)?;
        if run.no_resume {
            remove_tree(&container, PARTIAL.as_ref(), rules, run.is_ending)?;
        }
        if run.thins {
            // This makes room. `thin` reports what still cannot be removed.
            let _ = remove_hidden(&container, rules, run.is_ending);
        }
        let (mut partial, mut is_new) = partial_directory(&container)?;
        if !is_new && Spellings::default().may_confuse(&partial, rules) {
            // Names do not tell leftover entries from announced ones.
            remove_tree(&container, PARTIAL.as_ref(), rules, run.is_ending)?;
            (partial, is_new) = partial_directory(&container)?;
        }
        let boot = boot();
        let is_certain = match is_new {
            true => {
                write_text(&state, BOOT, &boot)?;
                true
            }
            // Data written before the machine stopped may not be on the disk.
            false => !boot.is_empty() && read_text(&state, BOOT) == boot,
        };
        let partial_handle = partial.handle();
        let partial_handle = partial_handle
            .map_err(|cause| failed(&container, "cannot open .fastcp-snapshot-partial", cause))?;
        Ok(SnapshotStore {
            container,
            state,
            lock,
            _directory: directory,
            latest,
            partial,
            partial_handle,
            made_state,
            is_new,
            is_certain,
            began,
        })
    }

    /// Removes what [`open`](SnapshotStore::open) has made, since nothing is copied: the directory
    /// holds no snapshots. Anything that cannot be removed stays, and the next run uses it.
    pub fn withdraw(self) {
        let remove = |dir: &Arc<Dir>, name: &str, flags| {
            let removed = dir.handle().map(|dir| unlinkat(&*dir, name, flags));
            drop(removed);
        };
        if self.is_new {
            remove(&self.container, PARTIAL, AtFlags::REMOVEDIR);
        }
        if self.made_state {
            remove(&self.state, BOOT, AtFlags::empty());
            remove(&self.state, LOCK, AtFlags::empty());
            remove(&self.container, STATE, AtFlags::REMOVEDIR);
        }
    }

    /// Something has failed: the disk may have lost data that this run wrote, and the kernel says so
    /// only once. The next run does not trust the size and time of any existing file.
    pub fn doubt(&self) {
        // If even this fails, the run has failed, as it has anyway.
        let _ = write_text(&self.state, BOOT, "");
    }

    /// Looks at a snapshot directory without a change or a lock.
    ///
    /// # Errors
    /// As [`open`](SnapshotStore::open).
    pub fn look(spec: &Spec, handles: &Arc<Handles>) -> Result<SnapshotView> {
        let name = SnapshotName::of(clock_gettime(ClockId::Realtime).tv_sec).to_string();
        let path = spec.expanded()?;
        let found = spec.reach(handles).find(&path);
        let container = match found {
            Ok(FoundPath::Directory(dir)) => dir,
            Ok(FoundPath::Other(..)) => return Err(usage(&path, NO_DIRECTORY)),
            Err(error) if error.errno != Errno::NOENT.raw_os_error() || !spec.mkpath => {
                return Err(error);
            }
            Ok(FoundPath::Nothing(_)) | Err(_) => {
                return Ok(SnapshotView {
                    path: path.join(name),
                    latest: None,
                });
            }
        };
        refuse_nested(&container)?;
        check_latest(&container)?;
        let state = Name::try_from(STATE.as_bytes().to_vec());
        let state = state.ok().and_then(|name| container.child(&name).ok());
        let latest = match state {
            Some(state) => newest(&container, &state)?,
            None => None,
        };
        Ok(SnapshotView {
            path: path.join(name),
            latest: latest.map(|(_, dir)| dir),
        })
    }

    /// The directory of the snapshot under way.
    pub fn partial(&self) -> &Arc<Dir> {
        &self.partial
    }

    /// The directory with the marks.
    pub fn state(&self) -> &Arc<Dir> {
        &self.state
    }

    /// The newest complete snapshot.
    pub fn latest(&self) -> Option<&Arc<Dir>> {
        self.latest.as_ref().map(|(_, dir)| dir)
    }

    /// True if no interrupted run has left anything.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// False if the machine has stopped since an interrupted run, or if a run failed in part
    /// ([`doubt`](Self::doubt)): data of that run may be missing on the disk although size and time of
    /// a file look right.
    pub fn is_certain(&self) -> bool {
        self.is_certain
    }

    /// Makes the snapshot under way a complete one: everything is written to the disk, then it gets
    /// its name, then `latest` leads to it, and last it gets its mark.
    ///
    /// # Errors
    /// Of the file system. `latest` is then as it was, or leads to the new snapshot.
    ///
    /// `sync` writes the file system of a handle to the disk, which may take long. The kernel reports
    /// through it the errors since it was opened, and the last one that it has reported to nobody.
    pub fn complete(
        &self,
        sync: impl FnOnce(&OwnedFd) -> io::Result<()>,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<SnapshotName> {
        let failed = |what: &str, cause: io::Error| failed(&self.container, what, cause);
        let check_end = || {
            let what = "the snapshot is not completed: the copy was stopped early; run the same \
                        command again";
            match is_ending() {
                true => Err(refused(&self.container, what)),
                false => Ok(()),
            }
        };
        check_end()?;
        sync(&self.partial_handle).map_err(|cause| {
            self.doubt();
            failed("cannot write the snapshot to the disk", cause)
        })?;
        check_end()?;
        self.check_held()?;
        let name = self.free_name()?;
        let mark = format!("{name}{COMPLETING}");
        write_text(&self.state, &mark, "")?;
        sync_directory(&self.state)?;
        let named = self.container.handle().and_then(|dir| {
            let (from, to) = (PARTIAL, name.to_string());
            match renameat_with(&*dir, from, &*dir, &*to, RenameFlags::NOREPLACE) {
                // The name was free, and only fastcp gives such names.
                Err(cause) if is_flag_unknown(cause) => Ok(renameat(&*dir, from, &*dir, &*to)?),
                other => Ok(other?),
            }
        });
        named.map_err(|cause| failed("cannot give the snapshot its name", cause))?;
        sync_directory(&self.container)?;
        finish(&self.container, &self.state, name)?;
        Ok(name)
    }

    /// Fails if the name of the lock or of the unfinished directory no longer leads to the entry
    /// that this run has opened.
    fn check_held(&self) -> Result<()> {
        let is_it = |dir: &Arc<Dir>, name: &str, own: &Stat| {
            dir.stat(name.as_ref())
                .is_ok_and(|stat| same_file(&stat, own))
        };
        let lock = fstat(&self.lock);
        let partial = self.partial.handle().and_then(|dir| Ok(fstat(&*dir)?));
        let is_held = lock.is_ok_and(|lock| is_it(&self.state, LOCK, &lock))
            && partial.is_ok_and(|partial| is_it(&self.container, PARTIAL, &partial));
        match is_held {
            true => Ok(()),
            false => Err(refused(
                &self.container,
                "the snapshot is not completed: another process has removed or replaced its lock or \
                 its directory (.fastcp-snapshots/lock, .fastcp-snapshot-partial); copy again",
            )),
        }
    }

    /// The name for the start of this run, or the next one that is free.
    fn free_name(&self) -> Result<SnapshotName> {
        let mut name = Some(self.began);
        for _ in 0..TRIES {
            let Some(free) = name else {
                break;
            };
            match self.container.stat(free.to_string().as_ref()) {
                Err(cause) if is_missing(&cause) => return Ok(free),
                Err(cause) => {
                    let what = "cannot find a free name for the snapshot";
                    return Err(failed(&self.container, what, cause));
                }
                Ok(_) => name = free.next(),
            }
        }
        let message = "has no free name for a snapshot of this minute; copy again later";
        Err(refused(&self.container, message))
    }

    /// Removes the snapshots that `policy` does not keep, and what an interrupted removal has left.
    /// Each gets a hidden name first, so that none is half there.
    ///
    /// # Errors
    /// If the snapshots cannot be listed.
    pub fn thin(
        &self,
        policy: &Retention,
        made: SnapshotName,
        rules: &Rules,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Thinned> {
        let mut thinned = Thinned::default();
        let all: Vec<SnapshotName> = complete(&self.container, &self.state)?
            .into_iter()
            .collect();
        thinned.is_clock_behind = all.iter().any(|name| *name > made);
        if !thinned.is_clock_behind {
            for name in policy.thinned(&all, made) {
                if is_ending() {
                    return Ok(thinned);
                }
                match self.hide(name) {
                    Ok(()) => thinned.removed.push(name),
                    Err(error) => drop(thinned.failed.get_or_insert(error)),
                }
            }
        }
        if let Err(error) = remove_hidden(&self.container, rules, is_ending) {
            thinned.failed.get_or_insert(error);
        }
        Ok(thinned)
    }

    /// Gives a snapshot a hidden name, and takes its mark away.
    fn hide(&self, name: SnapshotName) -> Result<()> {
        let hidden = format!("{REMOVING}{name}");
        let renamed = self.container.handle().and_then(|dir| {
            Ok(renameat_with(
                &*dir,
                name.to_string(),
                &*dir,
                &*hidden,
                RenameFlags::NOREPLACE,
            )
            .or_else(|cause| match is_flag_unknown(cause) {
                true => renameat(&*dir, name.to_string(), &*dir, &*hidden),
                false => Err(cause),
            })?)
        });
        renamed.map_err(|cause| {
            failed(
                &self.container,
                &format!("cannot remove the snapshot {name}"),
                cause,
            )
        })?;
        remove_mark(&self.state, &name.to_string())?;
        sync_directory(&self.container)
    }
}

/// Removes the snapshots with hidden names. One that cannot be removed does not stop the others.
///
/// # Errors
/// The first one.
fn remove_hidden(container: &Arc<Dir>, rules: &Rules, is_ending: &dyn Fn() -> bool) -> Result<()> {
    let mut removed = Ok(());
    for hidden in names_in(container)? {
        let date = hidden.strip_prefix(REMOVING.as_bytes());
        if date.and_then(SnapshotName::parse).is_some() {
            removed = removed.and(remove_tree(container, &os(&hidden), rules, is_ending));
        }
    }
    removed
}

/// Removes all entries of `dir` except those for which `stays` is true, and partial files of this
/// process, which would get other names again and again.
///
/// # Errors
/// If the directory cannot be read, or something cannot be removed, also because the directory
/// lists a name that does not exist in it, or the copy `is_ending`.
pub fn remove_others(
    dir: &Arc<Dir>,
    stays: impl Fn(&[u8]) -> bool,
    rules: &Rules,
    is_ending: &dyn Fn() -> bool,
) -> Result<()> {
    let mut before = Vec::new();
    loop {
        let mut others = Vec::new();
        let full = each_name(dir, |name| {
            let other = os(name);
            if !stays(name) && !is_in_use(dir, &other) {
                others.push(other);
            }
            others.len() < REMOVED_AT_ONCE
        });
        full.map_err(|cause| failed(dir, "cannot read the directory", cause))?;
        let Some(first) = others.first() else {
            return Ok(());
        };
        // A damaged disk, or a remote one, may list what it does not have.
        if others == before {
            let path = dir.path().join(first);
            let message = "cannot be removed: its directory lists this name, but no such entry \
                           exists; check the disk or the remote file system";
            return Err(Error::new(Kind::Write, Side::Dest, message).at(path));
        }
        for name in &others {
            remove_tree(dir, name, rules, is_ending)?;
        }
        before = others;
    }
}

/// Removes an entry and everything in it. Nothing happens if it does not exist.
///
/// # Errors
/// If something of it cannot be removed, or the copy `is_ending`.
pub fn remove_tree(
    dir: &Arc<Dir>,
    name: &OsStr,
    rules: &Rules,
    is_ending: &dyn Fn() -> bool,
) -> Result<()> {
    let Ok(name) = Name::try_from(name.as_encoded_bytes().to_vec()) else {
        return Ok(());
    };
    let slot = EntrySlot::new(dir.clone(), name);
    match dir.stat(slot.name.as_os_str()) {
        Err(cause) if is_missing(&cause) => return Ok(()),
        _ => {}
    }
    let mut first = None;
    let mut remover = Remover {
        only_counts: false,
        only_looks: false,
        protected: &HashSet::new(),
        rules,
        is_ending,
        // All of it goes, whatever the clock says.
        began: Timestamp { s: i64::MAX, ns: 0 },
        may_remove: &|| true,
        removed: &mut |_| (),
        failed: &mut |error| {
            first.get_or_insert_with(|| error.clone());
        },
    };
    match remover.remove_tree(&slot, Vec::new()) {
        true => Ok(()),
        false => {
            Err(first.unwrap_or_else(|| slot.refused("is not removed: the copy was stopped early")))
        }
    }
}

/// Refuses a place in a directory that holds snapshots, or that would be such a directory, before
/// anything is made there.
///
/// # Errors
/// `Kind::Refused`.
pub fn refuse_in_snapshots(spec: &Spec, handles: &Arc<Handles>) -> Result<()> {
    let path = spec.expanded()?;
    match spec.reach(handles).find(&path) {
        // A link may lead there.
        Ok(FoundPath::Nothing(slot)) if is_reserved(slot.name.as_bytes()) => {
            Err(slot.refused(RESERVED))
        }
        Ok(FoundPath::Nothing(slot) | FoundPath::Other(slot, _)) => refuse_within(&slot.dir),
        Ok(FoundPath::Directory(dir)) => refuse_within(&dir),
        Err(_) => refuse_path_in_snapshots(&path, spec, handles),
    }
}

/// The same for a directory that perhaps does not exist.
///
/// # Errors
/// `Kind::Refused`.
pub(super) fn refuse_path_in_snapshots(
    path: &Path,
    spec: &Spec,
    handles: &Arc<Handles>,
) -> Result<()> {
    nearest(path, spec, handles).map_or(Ok(()), |dir| refuse_within(&dir))
}

/// The same for the places of the roots: links with their names may lead there.
///
/// # Errors
/// `Kind::Refused`.
pub fn refuse_targets_in_snapshots(targets: &[RootTarget]) -> Result<()> {
    let mut seen = HashSet::new();
    let dirs = targets.iter().filter_map(|target| target.landing.dir());
    let mut new = dirs.filter(|dir| seen.insert(dir.identity()));
    new.try_for_each(refuse_within)
}

fn refuse_within(dir: &Arc<Dir>) -> Result<()> {
    match is_within(dir, false) {
        true => Err(closed(dir)),
        false => Ok(()),
    }
}

const NO_DIRECTORY: &str = "is not a directory, and snapshots go into one";

/// The directory at the typed path, which is made if it is missing.
fn container(spec: &Spec, handles: &Arc<Handles>) -> Result<Arc<Dir>> {
    let path = spec.expanded()?;
    let reach = spec.reach(handles);
    if let Ok(FoundPath::Directory(dir)) = reach.find(&path)
        && holds_snapshots(&dir)
    {
        return Ok(dir);
    }
    // Nothing is made in a snapshot.
    let above = path.parent().map(|above| nearest(above, spec, handles));
    if above
        .flatten()
        .is_some_and(|above| is_within(&above, false))
    {
        return Err(usage(&path, IS_NESTED));
    }
    if spec.mkpath {
        mkpath::make(reach, &path, true, spec.fsync)?;
    }
    match reach.find(&path)? {
        FoundPath::Directory(dir) => Ok(dir),
        FoundPath::Nothing(slot) => make_directory(&slot, true),
        FoundPath::Other(..) => Err(usage(&path, NO_DIRECTORY)),
    }
}

const IS_NESTED: &str = "is inside a directory of snapshots: write that directory as DEST";

/// The directory at `path`, or the nearest above it that exists.
fn nearest(path: &Path, spec: &Spec, handles: &Arc<Handles>) -> Option<Arc<Dir>> {
    path.ancestors().find_map(|path| match &spec.confine {
        Some(confine) => confine.directory(path).ok(),
        None => Dir::root(path, handles).ok(),
    })
}

fn refuse_nested(container: &Arc<Dir>) -> Result<()> {
    let own = [PARTIAL, STATE].map(OsStr::new);
    let path = container.path();
    let is_own = path.file_name().is_some_and(|name| own.contains(&name));
    match is_own || !holds_snapshots(container) && is_within(container, true) {
        true => Err(usage(&path, IS_NESTED)),
        false => Ok(()),
    }
}

/// True if one of the directories above holds snapshots, or `dir` itself unless only those `above` are
/// looked at. The kernel resolves `..`, so links in the typed path make no difference.
fn is_within(dir: &Arc<Dir>, above: bool) -> bool {
    let Ok(fd) = dir.handle() else {
        return false;
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let mut way = String::new();
    // So many levels may be between the directory of a key and the deepest one below it.
    for level in 0..=DEPTH_MAX {
        let state = statat(&*fd, format!("{way}{STATE}"), flags);
        if (level > 0 || !above) && state.is_ok_and(|stat| is_state(&stat)) {
            return true;
        }
        let here = statat(&*fd, format!("{way}."), flags);
        way.push_str("../");
        match (here, statat(&*fd, format!("{way}."), flags)) {
            (Ok(here), Ok(up)) if !same_file(&here, &up) => {}
            _ => return false,
        }
    }
    false
}

/// True if a directory has no entries.
fn is_empty(dir: &Arc<Dir>) -> Result<bool> {
    has_none_but(dir, |_| false)
}

/// True if a directory of a copy has nothing in it but files of fastcp, and names for which `is_other`
/// is true.
///
/// # Errors
/// If it cannot be read.
pub fn has_no_entries(dir: &Arc<Dir>, is_other: impl Fn(&[u8]) -> bool) -> Result<bool> {
    has_none_but(dir, |name| super::is_own_name(name) || is_other(name))
}

fn has_none_but(dir: &Arc<Dir>, is_other: impl Fn(&[u8]) -> bool) -> Result<bool> {
    let mut has_none = true;
    let read = each_name(dir, |name| {
        has_none = is_other(name);
        has_none
    });
    read.map_err(|cause| failed(dir, "cannot read the directory", cause))?;
    Ok(has_none)
}

/// The names in a directory of snapshots, or with their marks.
fn names_in(dir: &Arc<Dir>) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let read = each_name(dir, |name| {
        names.push(name.to_vec());
        names.len() < NAMES_MAX
    });
    read.map_err(|cause| failed(dir, "cannot read the directory", cause))?;
    Ok(names)
}

/// Calls `each` for every name in a directory until it returns false.
fn each_name(dir: &Arc<Dir>, mut each: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut reader = Reader::new(dir.open(".".as_ref(), flags, Mode::empty())?)?;
    while let Some(found) = reader.read() {
        let found = found?;
        let name = found.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && !each(name) {
            break;
        }
    }
    Ok(())
}

/// The directory with the marks, which only this user can write. True if it was made now.
fn state_directory(container: &Arc<Dir>) -> Result<(Arc<Dir>, bool)> {
    let what = "cannot create the directory .fastcp-snapshots";
    let name = Name::try_from(STATE.as_bytes().to_vec());
    let name = name.map_err(|_| refused(container, what))?;
    let opened = container.handle().and_then(|dir| {
        let is_new = match mkdirat(&*dir, STATE, Mode::from_raw_mode(0o700)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(cause) => return Err(cause.into()),
        };
        Ok((container.child(&name)?, is_new))
    });
    let (state, is_new) = opened.map_err(|cause| failed(container, what, cause))?;
    let stat = state.handle().and_then(|dir| Ok(fstat(&*dir)?));
    let stat = stat.map_err(|cause| failed(container, what, cause))?;
    let user = rustix::process::geteuid();
    if stat.st_uid != user.as_raw() && !user.is_root() {
        let message = "has a .fastcp-snapshots of another user: make snapshots there as that user";
        return Err(refused(container, message));
    }
    sync_directory(container)?;
    Ok((state, is_new))
}

/// Locks the file and, where that is possible, the directory.
fn take_lock(container: &Arc<Dir>, state: &Arc<Dir>, run: &SnapshotRun) -> Result<(File, OwnedFd)> {
    let what = "cannot lock .fastcp-snapshots/lock";
    let cannot = |cause: io::Error| failed(container, what, cause);
    let since = Instant::now();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = state.open(".".as_ref(), flags, Mode::empty());
    let directory = directory.map_err(cannot)?;
    for _ in 0..TRIES {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
        let opened = state.open(LOCK.as_ref(), flags, Mode::RUSR | Mode::WUSR);
        let lock = File::from(opened.map_err(cannot)?);
        loop {
            let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive).and_then(|()| {
                match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                    Err(Errno::AGAIN) => Err(Errno::AGAIN),
                    // The file is locked.
                    _ => Ok(()),
                }
            });
            match locked {
                Ok(()) => break,
                Err(Errno::AGAIN | Errno::INTR) => wait(container, &lock, since, run)?,
                Err(cause) => return Err(cannot(cause.into())),
            }
        }
        let own = fstat(&lock).map_err(|cause| cannot(cause.into()))?;
        // Otherwise another process has just removed it.
        if state
            .stat(LOCK.as_ref())
            .is_ok_and(|stat| same_file(&stat, &own))
        {
            sign(&lock, run.session).map_err(cannot)?;
            return Ok((lock, directory));
        }
    }
    Err(cannot(Errno::AGAIN.into()))
}

/// Waits a moment for the holder to end.
///
/// # Errors
/// `Kind::Busy` if that takes too long.
fn wait(container: &Arc<Dir>, lock: &File, since: Instant, run: &SnapshotRun) -> Result<()> {
    let holder = holder(lock);
    let is_own = run
        .before
        .iter()
        .any(|session| holder.starts_with(&hex(session)));
    let patience = match is_own {
        true => PATIENCE_WITH_OWN,
        false => PATIENCE,
    };
    if since.elapsed() > patience || (run.is_ending)() {
        let who = match holder.split_once(' ') {
            Some((_, who)) => format!(" ({})", printable(who.as_bytes())),
            None => String::new(),
        };
        let message = format!("another fastcp is making a snapshot there{who}{BUSY_ADVICE}");
        let error = Error::new(Kind::Busy, Side::Dest, message);
        return Err(error.at(container.path()));
    }
    // The file may belong to a run that has gone, and the directory to another.
    let _ = flock(lock, FlockOperation::Unlock);
    std::thread::sleep(INTERVAL);
    Ok(())
}

fn holder(lock: &File) -> String {
    let mut text = vec![0; HOLDER_MAX];
    let len = lock.read_at(&mut text, 0).unwrap_or(0);
    String::from_utf8_lossy(&text[..len]).trim_end().to_owned()
}

/// Writes who holds the lock.
fn sign(mut lock: &File, session: [u8; 16]) -> io::Result<()> {
    let began = SnapshotName::of(clock_gettime(ClockId::Realtime).tv_sec);
    let node = rustix::system::uname();
    let node = node.nodename().to_string_lossy();
    let text = format!(
        "{} process {} on {node}, since {began}\n",
        hex(&session),
        std::process::id()
    );
    lock.set_len(0)?;
    lock.write_all(text.as_bytes())
}

fn hex(session: &[u8; 16]) -> String {
    session.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The complete snapshots: those with a mark whose directory exists. The user may have removed one.
fn complete(container: &Arc<Dir>, state: &Arc<Dir>) -> Result<BTreeSet<SnapshotName>> {
    let marks = names_in(state)?;
    let marks = marks.iter().filter_map(|name| SnapshotName::parse(name));
    let mut found = BTreeSet::new();
    for name in marks {
        match container.stat(name.to_string().as_ref()) {
            Ok(stat) if file_type(&stat) == FileType::Directory => {
                found.insert(name);
            }
            Ok(_) => {}
            Err(cause) if is_missing(&cause) => {}
            Err(cause) => {
                return Err(failed(container, "cannot read its snapshots", cause));
            }
        }
    }
    Ok(found)
}

/// The complete snapshot that `latest` leads to, or else the one with the newest date.
fn newest(container: &Arc<Dir>, state: &Arc<Dir>) -> Result<Option<(SnapshotName, Arc<Dir>)>> {
    let all = complete(container, state)?;
    let text = container
        .handle()
        .and_then(|dir| Ok(readlinkat(&*dir, LATEST, Vec::new())?));
    let linked = text
        .ok()
        .and_then(|text| SnapshotName::parse(text.as_bytes()));
    let linked = linked.filter(|name| all.contains(name));
    let Some(name) = linked.or(all.last().copied()) else {
        return Ok(None);
    };
    let as_name = Name::try_from(name.to_string().into_bytes());
    let opened = as_name.ok().map(|as_name| container.child(&as_name));
    match opened {
        Some(Ok(dir)) => Ok(Some((name, dir))),
        // A snapshot has the modes of its source, and may be closed to its own user. All is sent.
        Some(Err(cause)) if is_closed(&cause) => Ok(None),
        Some(Err(cause)) => Err(failed(container, "cannot open its latest snapshot", cause)),
        None => Ok(None),
    }
}

fn check_latest(container: &Arc<Dir>) -> Result<()> {
    match container.stat(LATEST.as_ref()) {
        Ok(stat) if file_type(&stat) != FileType::Symlink => {
            let message = "has an entry called latest that is no symbolic link: rename it, or choose \
                           another directory for snapshots";
            Err(refused(container, message))
        }
        _ => Ok(()),
    }
}

/// Finds out before the copy whether `latest` can be made.
fn try_link(container: &Arc<Dir>) -> Result<()> {
    let made = container.handle().and_then(|dir| {
        match unlinkat(&*dir, NEW_LATEST, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(cause) => return Err(cause.into()),
        }
        symlinkat(LATEST, &*dir, NEW_LATEST)?;
        Ok(unlinkat(&*dir, NEW_LATEST, AtFlags::empty())?)
    });
    let what = "cannot create symbolic links here, and snapshots need one (latest)";
    made.map_err(|cause| failed(container, what, cause))
}

/// Removes the journals of copies into a snapshot that is complete. They do no harm.
fn remove_journals(state: &Arc<Dir>) {
    for name in names_in(state).unwrap_or_default() {
        if super::is_own_name(&name)
            && let Ok(dir) = state.handle()
        {
            let _ = unlinkat(&*dir, os(&name), AtFlags::empty());
        }
    }
}

/// Completes a snapshot whose run was stopped between its last steps.
fn complete_interrupted(container: &Arc<Dir>, state: &Arc<Dir>) -> Result<()> {
    for mark in names_in(state)? {
        let date = mark.strip_suffix(COMPLETING.as_bytes());
        let Some(name) = date.and_then(SnapshotName::parse) else {
            continue;
        };
        match container.stat(name.to_string().as_ref()) {
            Ok(_) => finish(container, state, name)?,
            Err(cause) if is_missing(&cause) => {
                remove_mark(state, &format!("{name}{COMPLETING}"))?;
            }
            // Without its mark a snapshot would never count as one.
            Err(cause) => {
                let what = format!("cannot look at its snapshot {name}");
                return Err(failed(container, &what, cause));
            }
        }
    }
    Ok(())
}

/// Lets `latest` lead to a snapshot that has its name, and marks it. If that stops in between, the mark
/// of its beginning stays, and the next run does the rest.
fn finish(container: &Arc<Dir>, state: &Arc<Dir>, name: SnapshotName) -> Result<()> {
    let name = name.to_string();
    let linked = container.handle().and_then(|dir| {
        match unlinkat(&*dir, NEW_LATEST, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(cause) => return Err(cause.into()),
        }
        symlinkat(&*name, &*dir, NEW_LATEST)?;
        Ok(renameat(&*dir, NEW_LATEST, &*dir, LATEST)?)
    });
    linked.map_err(|cause| {
        let what =
            "cannot make the link latest (the snapshot is on disk, and the next run completes it)";
        failed(container, what, cause)
    })?;
    sync_directory(container)?;
    let marked = state.handle().and_then(|dir| {
        let from = format!("{name}{COMPLETING}");
        Ok(renameat(&*dir, &*from, &*dir, &*name)?)
    });
    marked.map_err(|cause| {
        failed(
            container,
            "cannot mark the snapshot as complete (it is on disk, and the next run completes it)",
            cause,
        )
    })?;
    sync_directory(state)?;
    remove_journals(state);
    Ok(())
}

fn remove_mark(state: &Arc<Dir>, name: &str) -> Result<()> {
    let removed = state
        .handle()
        .and_then(|dir| match unlinkat(&*dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(cause) => Err(cause.into()),
        });
    let what = format!("cannot remove {name}, the mark of a snapshot");
    removed.map_err(|cause| failed(state, &what, cause))
}

/// The directory of the snapshot under way. True if it was made now.
fn partial_directory(container: &Arc<Dir>) -> Result<(Arc<Dir>, bool)> {
    let what = "cannot create .fastcp-snapshot-partial";
    let name = Name::try_from(PARTIAL.as_bytes().to_vec());
    let name = name.map_err(|_| refused(container, what))?;
    let opened = container.handle().and_then(|dir| {
        // The umask removes the permissions that the user does not want to give.
        let is_new = match mkdirat(&*dir, PARTIAL, Mode::from_raw_mode(0o777)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(cause) => return Err(cause.into()),
        };
        let opened = match container.child(&name) {
            // It got the mode of its source before the interruption.
            Err(cause) if is_closed(&cause) => {
                unlock(&EntrySlot::new(container.clone(), name.clone()))?;
                container.child(&name)
            }
            opened => opened,
        };
        Ok((opened?, is_new))
    });
    opened.map_err(|cause| failed(container, what, cause))
}

fn write_text(state: &Arc<Dir>, name: &str, text: &str) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let opened = state.open(name.as_ref(), flags, Mode::RUSR | Mode::WUSR);
    let written = opened.and_then(|fd| {
        let mut file = File::from(fd);
        file.write_all(text.as_bytes())?;
        Ok(fsync(&file)?)
    });
    written.map_err(|cause| failed(state, "cannot write to it", cause))
}

/// The text of a small file; empty if there is none.
fn read_text(state: &Arc<Dir>, name: &str) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let opened = state.open(name.as_ref(), flags, Mode::empty());
    opened.map_or_else(|_| String::new(), |fd| holder(&File::from(fd)))
}

/// Identifies the time since the machine was started; empty if it is unknown.
fn boot() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim_end().to_owned()
}

fn os(name: &[u8]) -> OsString {
    use std::os::unix::ffi::OsStrExt;
    OsStr::from_bytes(name).to_owned()
}

fn is_closed(cause: &io::Error) -> bool {
    Errno::from_io_error(cause) == Some(Errno::ACCESS)
}

fn is_missing(cause: &io::Error) -> bool {
    Errno::from_io_error(cause) == Some(Errno::NOENT)
}

fn failed(dir: &Arc<Dir>, what: &str, cause: io::Error) -> Error {
    Error::io(Kind::Write, Side::Dest, dir.path(), what, cause)
}

fn usage(path: &Path, message: &str) -> Error {
    Error::new(Kind::Usage, Side::Dest, message).at(path)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustix::fs::{fcntl_getfl, fcntl_setfl};

    use super::super::temporary::Temporary;
    use super::super::testing::{name, names, rules, slot, spec};
    use super::*;

    /// A handle that is opened later is not told of an error that another process was told of.
    #[test]
    fn a_snapshot_is_synced_by_a_handle_from_before_its_first_byte() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("other")).unwrap();
        let handles = Arc::new(Handles::default());
        let run = SnapshotRun {
            session: [1; 16],
            before: &[],
            no_resume: false,
            needs_empty: false,
            thins: false,
            is_ending: &|| false,
        };
        let spec = spec(temp.path(), "snapshots");
        let store = SnapshotStore::open(&spec, &run, &rules(), &handles).unwrap();
        // The mark of a handle that is open now.
        let mark = OFlags::NONBLOCK;
        fcntl_setfl(&*store.partial().handle().unwrap(), mark).unwrap();
        // So many directories are open in a copy that others close their handles.
        let above = Dir::root(temp.path(), &handles).unwrap();
        let _others: Vec<_> = (0..1024)
            .map(|_| above.child(&name("other")).unwrap())
            .collect();
        let sync = |dir: &OwnedFd| {
            assert!(fcntl_getfl(dir).unwrap().contains(mark), "it is new");
            Ok(())
        };
        store.complete(sync, &|| false).unwrap();
    }

    #[test]
    fn a_partial_file_that_is_written_stays_and_the_removal_of_all_others_ends() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "big");
        let partial = Temporary::create(&slot).unwrap();
        std::fs::write(temp.path().join("other"), "x").unwrap();
        let asked = Cell::new(0);
        let is_ending = || {
            asked.set(asked.get() + 1);
            assert!(asked.get() < 1000, "it does not end");
            false
        };
        remove_others(&slot.dir, |_| false, &rules(), &is_ending).unwrap();
        assert_eq!(names(temp.path()), [partial.name().to_str().unwrap()]);
    }

    #[test]
    fn the_deepest_directory_of_a_snapshot_is_in_it() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join(STATE)).unwrap();
        let deepest = temp.path().join("d/".repeat(DEPTH_MAX));
        std::fs::create_dir_all(&deepest).unwrap();
        let dir = Dir::root(&deepest, &Arc::default()).unwrap();
        let is_in = is_within(&dir, false);
        // Removing the whole tree at once opens all of it.
        for dir in deepest.ancestors().take(DEPTH_MAX) {
            std::fs::remove_dir(dir).unwrap();
        }
        assert!(is_in);
    }

    #[test]
    fn a_snapshot_that_cannot_be_looked_at_keeps_its_mark() {
        let temp = tempfile::tempdir().unwrap();
        let at = |path: &str| temp.path().join(path);
        let handles = Arc::new(Handles::default());
        let above = Dir::root(temp.path(), &handles).unwrap();
        let open = |text: &str| above.child(&name(text)).unwrap();
        for dir in ["snapshots", "state", "other"] {
            std::fs::create_dir(at(dir)).unwrap();
        }
        let snapshot = SnapshotName::of(1_700_000_000);
        let mark = at("state").join(format!("{snapshot}{COMPLETING}"));
        std::fs::write(&mark, "").unwrap();
        let container = open("snapshots");
        // Its handle is closed, and cannot be opened again: it has another inode.
        let _others: Vec<_> = (0..1024).map(|_| open("other")).collect();
        std::fs::rename(at("snapshots"), at("away")).unwrap();
        std::fs::create_dir(at("snapshots")).unwrap();
        let cause = container.stat("x".as_ref()).expect_err("it is away");
        assert!(!is_missing(&cause), "{cause}");
        let error = complete_interrupted(&container, &open("state")).unwrap_err();
        assert!(error.message.contains("cannot look at"), "{error}");
        assert!(mark.exists());
        // It was not named.
        complete_interrupted(&open("snapshots"), &open("state")).unwrap();
        assert!(!mark.exists());
    }
}
