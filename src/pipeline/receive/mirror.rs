//! The receiver's part in `--delete`. While entries arrive, it notes the directories that have names
//! which the source may not have. When everything is in place, it asks the sender about these names,
//! and deletes what the sender does not have.

mod work;

use std::collections::HashSet;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use self::work::{Answered, MirrorPlace, MirrorWork};
use super::entry_table::PlaceInCopy;
use super::report::Report;
use crate::dest::{self, Directory, Rules, is_own_name};
use crate::dir::{Dir, DirReader};
use crate::error::{Error, Kind, Side};
use crate::manifest::{Entry, NO_PARENT, Timestamp};
use crate::mirror::NameSums;
use crate::report::TellUser;
use crate::wire::message::{DirectoryNames, ExtraEntries, entry_weight};

/// About how many bytes of memory noted directories may take.
const NOTED_BYTES_MAX: usize = 24 << 20;

/// About how many bytes one noted directory takes besides its entry and paths.
const NOTED_WEIGHT: usize = 512;

/// Most directories and files that are never deleted, in some 8 MB.
const PROTECTED_MAX: usize = 1 << 18;

/// Finds and deletes what the source does not have.
pub(super) struct Mirroring {
    rules: Rules,
    tell: TellUser,
    /// When the copy began. What is younger is not deleted.
    began: Timestamp,
    /// Device and inode numbers mean the same at both ends.
    pub(super) same_machine: AtomicBool,
    noted: Mutex<Noted>,
    spellings: Mutex<dest::Spellings>,
    /// Set from the first question to the last answer.
    work: Mutex<Option<MirrorWork>>,
}

/// What is known when everything is in place.
#[derive(Default)]
struct Noted {
    /// Those below another come before it. They keep their working modes until the end.
    directories: Vec<NotedDirectory>,
    bytes: usize,
    /// Number of further directories, for which there was no room.
    left_out: u64,
    /// Number of entries in all directories that were looked at.
    entries: u64,
    /// Device and inode of the operands, of the places where they go, and of the directories above
    /// both.
    protected: HashSet<(u64, u64)>,
    /// Why nothing may be deleted: an operand without entries, whose destination has some.
    forbidden: Option<Error>,
}

struct NotedDirectory {
    directory: Directory,
    entry: Entry,
    place: Arc<MirrorPlace>,
}

impl Mirroring {
    pub(super) fn new(rules: Rules, tell: TellUser) -> Mirroring {
        let now = clock_gettime(ClockId::Realtime);
        Mirroring {
            rules,
            tell,
            began: Timestamp {
                s: now.tv_sec,
                ns: now.tv_nsec as u32,
            },
            same_machine: AtomicBool::new(false),
            noted: Mutex::default(),
            spellings: Mutex::default(),
            work: Mutex::default(),
        }
    }

    /// Never deletes these files and directories.
    pub(super) fn protect(&self, places: impl IntoIterator<Item = (u64, u64)>) {
        let mut noted = self.noted.lock();
        noted.protected.extend(places);
        if noted.protected.len() > PROTECTED_MAX {
            noted.protected = HashSet::new();
            let message = "nothing is deleted: too many operands in different directories";
            noted.forbidden = Some(Error::new(Kind::Refused, Side::Dest, message));
        }
    }

    /// Never deletes these directories of the source, if it is on this machine.
    pub(super) fn protect_source(&self, places: impl IntoIterator<Item = (u64, u64)>) {
        if self.same_machine.load(Relaxed) {
            self.protect(places);
        }
    }

    /// Compares the names in a directory whose entries are all in place. Returns it unless it may
    /// have others: then it is finished after these were deleted.
    pub(super) fn compare(
        &self,
        report: &Report,
        directory: Directory,
        entry: &Entry,
        names: &DirectoryNames,
        place: &PlaceInCopy,
    ) -> Option<Directory> {
        // A directory that the copy made has nothing else.
        if directory.with_content().is_none() {
            return Some(directory);
        }
        let dir = directory.dir();
        let own = match names_in(dir) {
            Ok(own) => own,
            Err(cause) => {
                let what = "cannot read the directory, so nothing in it is deleted";
                let error = Error::io(Kind::Read, Side::Dest, dir.path(), what, cause);
                report.context.report_fault(&error, 0, 0);
                return Some(directory);
            }
        };
        let Some(differ) = own.differing(&names.sums) else {
            report.breach("an impossible number of sums of names");
            return Some(directory);
        };
        if differ.is_none() {
            self.noted.lock().entries += own.len() as u64;
            return Some(directory);
        }
        let confuses = self.spellings.lock().may_confuse(dir);
        let (_, mut way) = dir.below();
        if !way.is_empty() {
            way.push(b'/');
        }
        let mut noted = self.noted.lock();
        noted.entries += own.len() as u64;
        if entry.parent == NO_PARENT && names.sums == [0] && !self.rules.force {
            let message = "the source directory is empty, so nothing is deleted (--force deletes all \
                           the same)";
            let error = Error::new(Kind::Refused, Side::Dest, message).at(dir.path());
            noted.forbidden.get_or_insert(error);
        }
        let weight = entry_weight(entry) + NOTED_WEIGHT + differ.weight() + 2 * way.len();
        if noted.bytes + weight > NOTED_BYTES_MAX {
            noted.left_out += 1;
            return Some(directory);
        }
        noted.bytes += weight;
        let below = last_names(&way, place.depth).to_vec();
        let place = MirrorPlace::of_copy(dir.clone(), place.root, (below, way), confuses, differ);
        noted.directories.push(NotedDirectory {
            directory,
            entry: entry.clone(),
            place: Arc::new(place),
        });
        None
    }

    /// There was no room for the names in a directory.
    pub(super) fn had_no_room(&self) {
        self.noted.lock().left_out += 1;
    }

    /// Everything is in place. Begins to ask about names. True if there is nothing to ask.
    pub(super) fn begin(&self, report: &Report) -> bool {
        let noted = &mut *self.noted.lock();
        if let Some(error) = noted.forbidden.take() {
            report.context.report_fault(&error, 0, 0);
            self.finish(report, take(noted));
            return true;
        }
        let places = noted.directories.iter().map(|noted| noted.place.clone());
        let mut work = MirrorWork::new(places.collect(), take(&mut noted.protected), self.began);
        if report.context.options.mirror.most.is_some() {
            work.only_count();
        }
        work.ask(report);
        if work.awaits_answers() {
            *self.work.lock() = Some(work);
            return false;
        }
        // Then the next run goes on.
        if report.context.is_ending() {
            return false;
        }
        self.finish(report, take(noted));
        true
    }

    /// Handles an answer of the sender. True after the last one.
    pub(super) fn answered(&self, report: &Report, answer: ExtraEntries) -> bool {
        // The first questions are sent while this is locked.
        let noted = &mut *self.noted.lock();
        let mut guard = self.work.lock();
        let Some(work) = guard.as_mut() else {
            report.breach("an answer about names that it was not asked for");
            return false;
        };
        match work.answered(report, answer, noted.entries) {
            Answered::Waiting => return false,
            Answered::Over => {}
            Answered::Incomplete => {
                let line = "fastcp: nothing was deleted, because some of the source could not be \
                            read (--force deletes all the same)";
                (self.tell)(line);
            }
        }
        noted.left_out += work.left_out();
        *guard = None;
        self.finish(report, take(noted));
        true
    }

    /// Gives the noted directories their modes and times.
    fn finish(&self, report: &Report, noted: Noted) {
        for noted in noted.directories {
            if let Err(error) = noted.directory.finish(&noted.entry, &self.rules) {
                report.context.report_fault(&error, 0, 0);
            }
        }
        if noted.left_out > 0 {
            let message = format!(
                "{} more directories have entries that the source may not have: copy again to \
                 delete them",
                noted.left_out
            );
            let error = Error::new(Kind::Entry, Side::Dest, message);
            report.context.report_fault(&error, 0, 0);
        }
    }

    /// After an early end: the noted directories that this copy made, with their entries.
    pub(super) fn take_made(&self) -> Vec<(Directory, Entry)> {
        let directories = take(&mut self.noted.lock().directories);
        *self.work.lock() = None;
        let made = directories
            .into_iter()
            .filter(|noted| noted.directory.made());
        made.map(|noted| (noted.directory, noted.entry)).collect()
    }
}

/// The names in a directory but our own.
fn names_in(dir: &Arc<Dir>) -> std::io::Result<NameSums> {
    let mut names = NameSums::default();
    let mut reader = DirReader::new(dir.clone());
    while let Some(found) = reader.next_name()? {
        if !is_own_name(&found.name) {
            names.add(&found.name);
        }
    }
    Ok(names)
}

/// The last `count` names of a path in which each name is followed by a slash.
fn last_names(way: &[u8], count: usize) -> &[u8] {
    let slashes = way.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let ends: Vec<usize> = slashes.map(|(nth, _)| nth + 1).collect();
    let before = ends.len().checked_sub(count + 1);
    let start = before.map_or(0, |last| ends[last]);
    &way[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_ends_in_the_names_below_the_operand() {
        for (way, count, last) in [
            ("", 0, ""),
            ("top/a/b/", 2, "a/b/"),
            ("top/a/b/", 0, ""),
            ("a/b/", 2, "a/b/"),
        ] {
            assert_eq!(last_names(way.as_bytes(), count), last.as_bytes(), "{way}");
        }
    }
}
