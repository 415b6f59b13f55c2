//! The receiver's part in `--delete`. While entries arrive, it notes the directories that have names
//! which the source may not have. When everything is in place, it asks the sender about these names,
//! and deletes what the sender does not have.

mod deletion;
mod own_names;
mod place;
mod room;
mod work;

use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use self::deletion::{DeletionCount, DeletionPass, EarlierPart, EntryCount, UNREAD_IN_CHECK};
use self::own_names::OwnNamesReader;
use self::place::NotedDirectory;
use self::work::{Answered, MirrorWork};
use super::open_directories::PlaceInCopy;
use super::report::Report;
use crate::dest::{self, Directory, Rules, is_own_name};
use crate::dir::{Dir, DirReader};
use crate::error::{Error, Kind, Side};
use crate::manifest::{EntryId, Timestamp};
use crate::mirror::NameSums;
use crate::report::TellUser;
use crate::units::plural;
use crate::wire::message::{ABOVE_MAX, DirectoryNames, ExtraEntries};

/// Most directories and files that are never deleted, in some 8 MB.
const PROTECTED_MAX: usize = 1 << 18;

/// Finds and deletes what the source does not have.
pub(super) struct Mirroring {
    rules: Rules,
    tell: TellUser,
    /// When this session began.
    began: Timestamp,
    /// When the first session of this copy began, if there were earlier ones.
    copy_began: OnceLock<Timestamp>,
    /// Device and inode numbers mean the same at both ends.
    pub(super) same_machine: AtomicBool,
    noted: Mutex<Noted>,
    spellings: Mutex<dest::Spellings>,
    /// Number of entries that were deleted to make room for others.
    made_room: Mutex<u64>,
    /// Set from the first question to the last answer.
    work: Mutex<Option<MirrorWork>>,
}

/// Facts about the copy, for the time when everything is in place.
#[derive(Default)]
struct Noted {
    reader: OwnNamesReader,
    /// Device and inode of its directories.
    seen: HashSet<(u64, u64)>,
    /// The name of each operand below the destination.
    names: HashMap<EntryId, Vec<u8>>,
    /// Number of further directories, for which there was no room.
    left_out: u64,
    /// Entries in all directories that were looked at.
    entries: EntryCount,
    /// Device and inode of the operands, of the places where they go, and of the directories above
    /// both; and of earlier copies.
    protected: Arc<HashSet<(u64, u64)>>,
    /// Device and inode of the directories of earlier copies, and of those above them.
    earlier: HashMap<(u64, u64), EarlierPart>,
    /// Why nothing may be deleted.
    forbidden: Option<Forbidden>,
}

enum Forbidden {
    /// A directory that the user named has no entries, and this one at the destination has some. As
    /// when a disk is not mounted.
    EmptySource(PathBuf),
    TooManyOperands,
}

impl Forbidden {
    /// `nothing`: "nothing", or "nothing more".
    fn into_error(self, nothing: &str) -> Error {
        let refused = |message| Error::new(Kind::Refused, Side::Dest, message);
        match self {
            Forbidden::EmptySource(directory) => refused(format!(
                "the source of this directory is empty, or all of it is left out (is the source's \
                 disk mounted?), so {nothing} is deleted (--force deletes anyway)"
            ))
            .at(directory),
            Forbidden::TooManyOperands => refused(format!(
                "{nothing} is deleted: too many operands in different directories; copy in several \
                 runs"
            )),
        }
    }
}

impl Mirroring {
    pub(super) fn new(rules: Rules, tell: TellUser) -> Mirroring {
        Mirroring {
            rules,
            tell,
            began: Timestamp::now(),
            copy_began: OnceLock::new(),
            same_machine: AtomicBool::new(false),
            noted: Mutex::default(),
            spellings: Mutex::default(),
            made_room: Mutex::default(),
            work: Mutex::default(),
        }
    }

    /// Notes that earlier sessions of this copy began at `time`.
    pub(super) fn began_at(&self, time: Timestamp) {
        // Noted once.
        let _ = self.copy_began.set(time);
    }

    /// When the copy began. Younger entries are not deleted.
    fn began(&self) -> Timestamp {
        self.copy_began.get().copied().unwrap_or(self.began)
    }

    /// Never deletes these files and directories.
    pub(super) fn protect(&self, places: impl IntoIterator<Item = (u64, u64)>) {
        let mut noted = self.noted.lock();
        Arc::make_mut(&mut noted.protected).extend(places);
        if noted.protected.len() > PROTECTED_MAX {
            noted.protected = Arc::default();
            noted.forbidden = Some(Forbidden::TooManyOperands);
        }
    }

    /// Names the operands at the destination, for messages.
    pub(super) fn set_names(&self, names: impl Iterator<Item = (EntryId, Vec<u8>)>) {
        self.noted.lock().names = names.collect();
    }

    /// Never deletes these directories of the source, if it is on this machine.
    pub(super) fn protect_source(&self, places: impl IntoIterator<Item = (u64, u64)>) {
        if self.same_machine.load(Relaxed) {
            self.protect(places);
        }
    }

    /// Never deletes this directory of an earlier copy, which may be in the destination. That is no
    /// error, because the user has named it.
    pub(super) fn protect_earlier(&self, dir: &Arc<Dir>) {
        self.protect([dir.identity()]);
        let earlier = &mut self.noted.lock().earlier;
        for above in dir.with_those_above(ABOVE_MAX) {
            earlier.entry(above).or_insert(EarlierPart::Above);
        }
        earlier.insert(dir.identity(), EarlierPart::Whole);
    }

    /// True if two names of a copy could be one name in `dir`.
    pub(super) fn may_confuse(&self, dir: &Arc<Dir>) -> bool {
        self.spellings.lock().may_confuse(dir, &self.rules)
    }

    /// True if errors forbid nothing. A check deletes nothing anyway.
    fn is_free(&self) -> bool {
        self.rules.force || self.rules.check
    }

    /// Compares the names in a directory whose entries are all in place.
    pub(super) fn compare(
        &self,
        report: &Report,
        directory: &Directory,
        names: &DirectoryNames,
        place: &PlaceInCopy,
    ) {
        // A directory that the copy made has nothing else.
        let Some(dir) = directory.with_content() else {
            return;
        };
        let Some(root) = dir.up(place.depth) else {
            return;
        };
        let is_elsewhere = dir.identity().0 != root.identity().0;
        if report.context.options.mirror.one_file_system && is_elsewhere {
            return;
        }
        let own = match names_in(dir) {
            Ok(own) => own,
            Err(cause) => {
                let what = match self.rules.check {
                    true => UNREAD_IN_CHECK,
                    false => "cannot read the directory, so nothing in it is deleted",
                };
                let error = Error::io(Kind::Read, Side::Dest, dir.path(), what, cause);
                return report.context.report_fault(&error, 0, 0);
            }
        };
        let Some(differ) = own.differing(&names.sums) else {
            return report.breach("an impossible number of sums of names");
        };
        let counted = (dir.identity(), own.len() as u64);
        self.noted.lock().entries.add(counted, place.merging);
        if differ.is_none() {
            return;
        }
        let confuses = self.may_confuse(dir);
        let (_, mut way) = dir.below();
        if !way.is_empty() {
            way.push(b'/');
        }
        let below = last_names(&way, place.depth);
        let mut noted = self.noted.lock();
        if names.is_named && names.sums == [0] && !self.is_free() {
            let forbidden = &mut noted.forbidden;
            forbidden.get_or_insert_with(|| Forbidden::EmptySource(dir.path()));
        }
        // Two operands may go into one directory. The sender answers for both.
        if noted.seen.contains(&dir.identity()) {
            return;
        }
        let root_name = noted.names.get(&place.root).map_or(&b""[..], |name| name);
        let slash: &[u8] = if root_name.is_empty() { b"" } else { b"/" };
        let way = [root_name, slash, below].concat();
        let directory = NotedDirectory {
            root: place.root,
            below: below.into(),
            way: way.into(),
            confuses,
            differ,
            identity: dir.identity(),
        };
        if noted.reader.note(directory, root) {
            noted.seen.insert(dir.identity());
        } else {
            noted.left_out += 1;
        }
    }

    /// There was no room for the names in a directory.
    pub(super) fn had_no_room(&self) {
        self.noted.lock().left_out += 1;
    }

    /// Everything is in place. Begins to ask about names. True if there is nothing to ask.
    pub(super) fn begin(&self, report: &Report) -> bool {
        let mut noted = take(&mut *self.noted.lock());
        if let Some(forbidden) = noted.forbidden.take() {
            let error = forbidden.into_error(deletion::nothing(*self.made_room.lock()));
            report.context.report_fault(&error, 0, 0);
            return true;
        }
        if report.has_failed() && !self.is_free() && !noted.reader.is_empty() {
            self.say_kept("some entries could not be copied");
            return true;
        }
        // Then everything is counted before anything is deleted.
        let only_counts = report.context.options.mirror.most.is_some();
        let protected = Arc::unwrap_or_clone(noted.protected);
        let count = DeletionCount::new(noted.entries.sum(), *self.made_room.lock());
        let rules = self.rules.clone();
        let (began, earlier) = (self.began(), noted.earlier);
        let pass = DeletionPass::new(only_counts, rules, protected, earlier, began, count);
        let mut work = MirrorWork::new(noted.reader, pass, noted.left_out);
        // An answer waits until this is unlocked.
        let mut guard = self.work.lock();
        work.ask(report);
        if work.awaits_answers() {
            *guard = Some(work);
            return false;
        }
        self.conclude(report, &work);
        // If the copy ends early, the next run goes on.
        !report.context.is_ending()
    }

    /// Handles an answer of the sender. True after the last one.
    pub(super) fn answered(&self, report: &Report, answer: ExtraEntries) -> bool {
        let mut guard = self.work.lock();
        let Some(work) = guard.as_mut() else {
            report.breach("an answer about names that it was not asked for");
            return false;
        };
        match work.answered(report, answer) {
            Answered::Waiting => return false,
            Answered::Over => self.conclude(report, work),
            Answered::Incomplete => {
                *guard = None;
                drop(guard);
                self.say_kept("some of the source could not be read");
                return true;
            }
        }
        *guard = None;
        true
    }

    /// Says that no extra entry is deleted. Some may have made room for entries of another kind.
    fn say_kept(&self, why: &str) {
        let nothing = deletion::nothing(*self.made_room.lock());
        (self.tell)(&format!(
            "fastcp: {nothing} was deleted, because {why} (--force deletes anyway)"
        ));
    }

    /// Ends the work early. Directories get their modes and times back.
    pub(super) fn end(&self) {
        let work = self.work.lock().take();
        drop(work);
    }

    /// Reports what could not be decided.
    fn conclude(&self, report: &Report, work: &MirrorWork) {
        if work.unsure > 0 {
            let entries = plural(work.unsure, "entry", "entries");
            let line = match self.rules.check {
                true => {
                    format!(
                        "fastcp: {entries} at the destination may be extra: directories changed \
                         during the check (check again), or fastcp cannot tell which SOURCE they \
                         belong to"
                    )
                }
                false => format!(
                    "fastcp: --delete leaves {entries}: directories changed during the copy (copy \
                     again), or fastcp cannot tell which SOURCE they belong to (see fastcp --help \
                     mirror)"
                ),
            };
            (self.tell)(&line);
        }
        if work.left_out > 0 {
            let message = format!(
                "fastcp had no memory left to look for extra entries in {}{}",
                plural(work.left_out, "directory", "directories"),
                match self.rules.check || self.rules.dry_run {
                    true => "",
                    false => ": copy again to delete these entries",
                }
            );
            let error = Error::new(Kind::Entry, Side::Dest, message);
            report.context.report_fault(&error, 0, 0);
        }
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
