//! Files that interrupted copies have left: partial files, and the journals that name them. The
//! user has them removed (`--clean`); old ones go when another copy writes to the same directory.
//!
//! A name proves nothing, because a source may have files with such names. A journal of this user
//! is signed with the user's key, and what a signed journal names as a partial file is one.
//! `--clean` also removes a partial file without a journal, if its name was made for a file of this
//! directory: the digits of the name are a hash of that file's name and of the directory's inode.
//! Nothing else is removed, and nothing that a running copy has locked or that a locked journal in
//! the cleaned tree names. Where the locks of other hosts are not seen, the time of the last change
//! takes the place of the lock.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FileType, Stat};
use rustix::process::geteuid;

use crate::dest::{CleanedDirectory, FoundPartial, LeftPartial};
use crate::dir::own_name::{JOURNAL, is_own_name};
use crate::dir::{Dir, DirReader, age, is_ours, is_reserved};
use crate::journal::record::JournalUserKey;
use crate::journal::{FoundJournal, JournalPlace};
use crate::manifest::{Inode, Name, Timestamp, file_type};
use crate::units::count;
use crate::wire::message::{Fault, Leftover, LeftoverFate};

/// A copy that nobody has resumed for this long is abandoned.
const AGE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Names in the directory of a copy among which old journals are looked for: some milliseconds,
/// even if the directory has a million names.
const LOOKED_AT_MAX: usize = 10_000;

/// Names below it among which their partial files are looked for, and the time for that.
const SWEPT_MAX: usize = 100_000;
const SWEEP_TIME: Duration = Duration::from_secs(1);

/// The most files with such names that one `--clean` looks at; it can be repeated.
pub const FOUND_MAX: usize = 100_000;

/// A `--clean`.
pub struct Cleaning<'a> {
    pub directory: &'a CleanedDirectory,
    /// The secret of this user, if there is one yet.
    pub user: Option<JournalUserKey>,
    /// Nothing is removed.
    pub dry_run: bool,
    /// Files with names of fastcp's own files that it looks at: [`FOUND_MAX`].
    pub found_max: usize,
    pub is_ending: &'a dyn Fn() -> bool,
    pub tell: &'a dyn Fn(Leftover),
}

impl Cleaning<'_> {
    /// Finds leftovers in the directory and below it, on its file system, and removes them.
    pub fn run(&self) {
        let (mut journals, mut partials) = (Vec::new(), Vec::new());
        let mut search = LeftoverSearch::new(&self.directory.dir);
        while let Some(step) = search.next(&|_| (self.is_ending)()) {
            if step.is_ok() && journals.len() + partials.len() == self.found_max {
                let what = format!(
                    "stopped looking after {} files with the names of leftovers",
                    count(self.found_max as u64)
                );
                // Nothing changes if nothing was removed.
                let cause = io::Error::other(
                    "if some were removed, run the same command again; otherwise clean the \
                     subdirectories one by one",
                );
                self.failed(Vec::new(), &what, cause);
                break;
            }
            match step {
                Ok(found) if found.is_journal() => journals.push(found),
                Ok(found) => partials.push(found),
                Err((below, cause)) => self.failed(below, "cannot read this directory", cause),
            }
        }
        let mut named = NamedFiles::default();
        let mut in_use = NamedFiles::default();
        let mut maybe_in_use = NamedFiles::default();
        journals.retain(|journal| match self.look(journal) {
            FoundJournal::Left(left) => {
                named.add(&left.unfinished);
                true
            }
            FoundJournal::InUse(unfinished) => {
                in_use.add(&unfinished);
                self.tell(journal, LeftoverFate::InUse);
                false
            }
            FoundJournal::MaybeInUse(unfinished) => {
                maybe_in_use.add(&unfinished);
                self.tell(journal, LeftoverFate::MaybeInUse);
                false
            }
            FoundJournal::Unsigned => {
                self.tell(journal, unsigned(journal));
                false
            }
            FoundJournal::Nothing => false,
        });
        for partial in &partials {
            if (self.is_ending)() {
                return;
            }
            self.clean_partial(partial, &named, [&in_use, &maybe_in_use]);
        }
        // Last: until then they show which partial files are left, should this be interrupted.
        for journal in &journals {
            // A copy may have resumed in between.
            let left = match self.look(journal) {
                FoundJournal::Left(left) => left,
                FoundJournal::InUse(_) => {
                    self.tell(journal, LeftoverFate::InUse);
                    continue;
                }
                FoundJournal::MaybeInUse(_) => {
                    self.tell(journal, LeftoverFate::MaybeInUse);
                    continue;
                }
                FoundJournal::Unsigned | FoundJournal::Nothing => continue,
            };
            self.remove(journal, || left.remove());
        }
    }

    fn look(&self, journal: &FoundName) -> FoundJournal {
        match (&self.user, journal.stat()) {
            (_, None) => FoundJournal::Nothing,
            (Some(user), Some(_)) => journal.place().find(user),
            (None, Some(_)) => FoundJournal::Unsigned,
        }
    }

    fn clean_partial(
        &self,
        found: &FoundName,
        named: &NamedFiles,
        [in_use, maybe_in_use]: [&NamedFiles; 2],
    ) {
        let partial = match LeftPartial::find(&found.dir, &found.name) {
            Ok(FoundPartial::Left(partial)) => partial,
            Ok(FoundPartial::InUse) => return self.tell(found, LeftoverFate::InUse),
            Ok(FoundPartial::OfUser(user)) => return self.tell(found, LeftoverFate::OfUser(user)),
            Ok(FoundPartial::Linked) => return self.tell(found, unsigned(found)),
            Ok(FoundPartial::Nothing) => return,
            Err(cause) => {
                return self.failed(found.below.clone(), "cannot open this leftover", cause);
            }
        };
        // By the number alone: to another host, the device has another number.
        let ino = partial.inode.ino;
        if in_use.has_number(ino) {
            self.tell(found, LeftoverFate::InUse);
        } else if maybe_in_use.has_number(ino) {
            self.tell(found, LeftoverFate::MaybeInUse);
        } else if named.has(&partial.inode) {
            self.remove(found, || partial.remove());
        } else if partial.is_named_for_here && partial.may_be_in_use {
            self.tell(found, LeftoverFate::MaybeInUse);
        } else if partial.is_named_for_here {
            self.remove(found, || partial.remove());
        } else {
            self.tell(found, unsigned(found));
        }
    }

    fn remove(&self, found: &FoundName, remove: impl FnOnce() -> io::Result<()>) {
        let told = found.told(LeftoverFate::Removed);
        let removed = match self.dry_run {
            true => Ok(()),
            false => remove(),
        };
        match (removed, told) {
            (Ok(()), Some(told)) => (self.tell)(told),
            (Ok(()), None) => {}
            (Err(cause), _) => {
                self.failed(found.below.clone(), "cannot remove this leftover", cause);
            }
        }
    }

    fn tell(&self, found: &FoundName, fate: LeftoverFate) {
        found.told(fate).into_iter().for_each(self.tell);
    }

    fn failed(&self, below: Vec<u8>, what: &str, cause: io::Error) {
        let error = self.directory.error(&below, what, cause);
        (self.tell)(Leftover {
            path: below,
            bytes: 0,
            age_s: 0,
            fate: LeftoverFate::Failed(Fault::of(&error, 0, 0)),
        });
    }
}

/// The fate of a file that nothing shows to be this user's leftover.
fn unsigned(found: &FoundName) -> LeftoverFate {
    match found.stat() {
        Some(stat) if stat.st_uid != geteuid().as_raw() => LeftoverFate::OfUser(stat.st_uid),
        _ => LeftoverFate::Unsigned,
    }
}

/// Removes journals in `dir` that no copy has used for 30 days, and the partial files that they
/// name. Looks at a bounded number of names, and not for long: what it misses stays. Whatever
/// cannot be read or removed stays too.
pub fn sweep(dir: &Arc<Dir>, user: &JournalUserKey, now: SystemTime) {
    let old = old_journals(dir, now);
    let mut named = NamedFiles::default();
    let left = old.into_iter().filter(|place| match place.find(user) {
        FoundJournal::Left(left) => {
            named.add(&left.unfinished);
            true
        }
        _ => false,
    });
    let left: Vec<JournalPlace> = left.collect();
    if left.is_empty() {
        return;
    }
    let began = Instant::now();
    let is_over = |looked| looked > SWEPT_MAX || began.elapsed() > SWEEP_TIME;
    let mut search = LeftoverSearch::new(dir);
    while !named.is_empty()
        && let Some(step) = search.next(&is_over)
    {
        // Others are not even locked: a copy may be about to resume them.
        if let Ok(found) = step
            && !found.is_journal()
            && found
                .stat()
                .is_some_and(|stat| named.has_number(stat.st_ino))
            && let Ok(FoundPartial::Left(partial)) = LeftPartial::find(&found.dir, &found.name)
            && named.take(&partial.inode)
        {
            let _ = partial.remove();
        }
    }
    // Without its journal, a partial file that was not reached would stay for ever.
    let has_reached_all = named.is_empty() || !is_over(search.looked);
    for place in left {
        // A needed one is small, and nobody has asked for its removal.
        if let FoundJournal::Left(left) = place.find(user)
            && has_reached_all
            && !left.is_needed
        {
            let _ = left.remove();
        }
    }
}

fn old_journals(dir: &Arc<Dir>, now: SystemTime) -> Vec<JournalPlace> {
    let mut reader = DirReader::new(dir.clone());
    let mut old = Vec::new();
    for _ in 0..LOOKED_AT_MAX {
        let Ok(Some(read)) = reader.next_name() else {
            break;
        };
        let found = FoundName {
            dir: dir.clone(),
            name: OsString::from_vec(read.name),
            below: Vec::new(),
        };
        let is_old = |stat: Stat| is_ours(&stat) && age(&stat, now) > AGE_MAX;
        if is_own_name(found.name.as_bytes())
            && found.is_journal()
            && found.stat().is_some_and(is_old)
        {
            old.push(found.place());
        }
    }
    old
}

/// Partial files that journals name, by inode number.
#[derive(Default)]
struct NamedFiles(HashMap<u64, Vec<Inode>>);

impl NamedFiles {
    fn add(&mut self, files: &[Inode]) {
        for file in files {
            self.0.entry(file.ino).or_default().push(*file);
        }
    }

    fn has(&self, file: &Inode) -> bool {
        let same = self.0.get(&file.ino);
        same.is_some_and(|same| same.iter().any(|one| is_same(one, file)))
    }

    fn has_number(&self, ino: u64) -> bool {
        self.0.contains_key(&ino)
    }

    /// As [`has`](Self::has); it is not asked about again.
    fn take(&mut self, file: &Inode) -> bool {
        let has = self.has(file);
        if has {
            self.0.remove(&file.ino);
        }
        has
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The number of a device may change when the machine starts again. Then the time at which the file
/// was made tells it from others.
fn is_same(one: &Inode, other: &Inode) -> bool {
    let is_born_alike = one.birth == other.birth && one.birth != Timestamp::default();
    one.is(other) || one.ino == other.ino && is_born_alike
}

/// A file, regular as far as is known, with a name that fastcp gives to its own files.
struct FoundName {
    dir: Arc<Dir>,
    name: OsString,
    /// Its path below the directory where the search began.
    below: Vec<u8>,
}

impl FoundName {
    fn is_journal(&self) -> bool {
        self.name.as_bytes().ends_with(JOURNAL.as_bytes())
    }

    fn place(&self) -> JournalPlace {
        JournalPlace {
            dir: self.dir.clone(),
            name: self.name.clone(),
        }
    }

    /// None for anything but a regular file.
    fn stat(&self) -> Option<Stat> {
        let stat = self.dir.stat(&self.name).ok();
        stat.filter(|stat| file_type(stat) == FileType::RegularFile)
    }

    fn told(&self, fate: LeftoverFate) -> Option<Leftover> {
        let stat = self.stat()?;
        Some(Leftover {
            path: self.below.clone(),
            // Its length would count what is missing.
            bytes: stat.st_blocks as u64 * 512,
            age_s: age(&stat, SystemTime::now()).as_secs(),
            fate,
        })
    }
}

/// A search for such names, depth first, within one file system. It opens no directory of another
/// file system or of fastcp's own, such as that of an unfinished snapshot, and follows no links.
struct LeftoverSearch {
    /// The directories on the way, with their paths below the first one.
    readers: Vec<(DirReader, Vec<u8>)>,
    device: u64,
    /// Names so far.
    looked: usize,
}

impl LeftoverSearch {
    fn new(dir: &Arc<Dir>) -> LeftoverSearch {
        LeftoverSearch {
            readers: vec![(DirReader::new(dir.clone()), Vec::new())],
            device: dir.identity().0,
            looked: 0,
        }
    }

    /// The next such name, or a directory that cannot be read. None at the end, or when it
    /// `is_over` after so many names.
    fn next(
        &mut self,
        is_over: &dyn Fn(usize) -> bool,
    ) -> Option<Result<FoundName, (Vec<u8>, io::Error)>> {
        loop {
            self.looked += 1;
            if is_over(self.looked) {
                return None;
            }
            let (reader, below) = self.readers.last_mut()?;
            let read = match reader.next_name() {
                Ok(Some(read)) => read,
                Ok(None) => {
                    self.readers.pop();
                    continue;
                }
                Err(cause) => {
                    let below = std::mem::take(below);
                    self.readers.pop();
                    return Some(Err((below, cause)));
                }
            };
            let dir = reader.dir().clone();
            let below = match &below[..] {
                b"" => read.name.clone(),
                above => [above, b"/", &read.name].concat(),
            };
            let (is_own, may_enter) = (is_own_name(&read.name), !is_reserved(&read.name));
            let found = FoundName {
                dir,
                name: OsString::from_vec(read.name),
                below,
            };
            let is_wanted = match read.file_type {
                FileType::RegularFile => is_own,
                FileType::Directory => may_enter,
                FileType::Unknown => is_own || may_enter,
                _ => false,
            };
            if !is_wanted {
                continue;
            }
            let kind = match found.dir.type_within(&found.name) {
                Ok(kind) => kind,
                Err(cause) if is_other_by_now(&cause) => continue,
                Err(cause) => return Some(Err((found.below, cause))),
            };
            match kind {
                Some(FileType::RegularFile) if is_own => return Some(Ok(found)),
                Some(FileType::Directory) if may_enter => {
                    reader.pause();
                    if let Err(cause) = self.enter(&found) {
                        return Some(Err((found.below, cause)));
                    }
                }
                _ => {}
            }
        }
    }

    fn enter(&mut self, found: &FoundName) -> io::Result<()> {
        let Ok(name) = Name::try_from(found.name.as_bytes().to_vec()) else {
            return Ok(());
        };
        let dir = match found.dir.child(&name) {
            Ok(dir) => dir,
            // It was removed or replaced in between.
            Err(cause) if is_other_by_now(&cause) => return Ok(()),
            Err(cause) => return Err(cause),
        };
        // It may have been mounted in between.
        if dir.identity().0 == self.device {
            self.readers
                .push((DirReader::new(dir), found.below.clone()));
        }
        Ok(())
    }
}

fn is_other_by_now(cause: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(cause),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_search_that_stops_at_its_limit_says_so() {
        let temp = tempfile::tempdir().unwrap();
        for name in [".fastcp-a.part", ".fastcp-b.journal", ".fastcp-c.part"] {
            std::fs::write(temp.path().join(name), "of a source").unwrap();
        }
        let path = temp.path().to_str().unwrap();
        let here = (PathBuf::new(), false);
        let directory = CleanedDirectory::find(path.as_bytes(), here, None).unwrap();
        let told = |found_max| {
            let told = RefCell::new(Vec::new());
            let cleaning = Cleaning {
                directory: &directory,
                user: None,
                dry_run: false,
                found_max,
                is_ending: &|| false,
                tell: &|leftover| told.borrow_mut().push(leftover.fate),
            };
            cleaning.run();
            told.into_inner()
        };
        let three = [const { LeftoverFate::Unsigned }; 3];
        assert_eq!(told(FOUND_MAX), three);
        // With as many as the limit, nothing is missing.
        assert_eq!(told(3), three);
        let fates = told(2);
        let [LeftoverFate::Failed(fault), rest @ ..] = &fates[..] else {
            panic!("{fates:?}");
        };
        assert_eq!(rest, &three[..2]);
        let error = fault.clone().into_error();
        assert_eq!(error.kind, Kind::Write);
        assert!(
            error
                .message
                .contains("stopped looking after 2 files with the names of leftovers: if some"),
            "{error}"
        );
    }
}
