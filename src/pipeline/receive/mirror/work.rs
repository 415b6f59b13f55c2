//! The questions about names that only the destination has, and what follows from the answers.
//!
//! With `--max-delete` all questions are asked twice: the first time entries are only counted.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{FileType, Stat, Timespec, Timestamps, fstat, fsync, futimens};

use super::super::report::Report;
use crate::dest::{self, BackupPart, Directory, EntrySlot, Remover, Rules, is_own_name};
use crate::dir::{Dir, DirReader, ReadName};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{EntryId, Name, Timestamp, file_type};
use crate::mirror::{DifferingNames, MostDeleted};
use crate::wire::message::{
    DeletedEntries, ExtraEntries, Message, OWN_NAMES_MAX, OWN_NAMES_WAITING, OwnEntry, OwnEntryIs,
    OwnNames,
};

/// About how many bytes of memory directories to ask about may take.
pub(super) const NOTED_BYTES_MAX: usize = 24 << 20;

/// About how many bytes of names are in one message.
const NAMES_BYTES: usize = 32 << 10;

/// Directories in one message.
const DIRECTORIES_ASKED: usize = 64;

/// Paths of deleted entries in one message, and about how many bytes they take.
const TOLD_MAX: usize = 256;
const TOLD_BYTES_MAX: usize = 64 << 10;

/// About how many bytes a directory takes that only the destination has, besides its paths.
const EXTRA_WEIGHT: usize = 1024;

/// A directory of the copy with entries to ask about.
pub(super) struct NotedDirectory {
    /// The operand's entry number.
    pub root: EntryId,
    /// The names from the operand down to the directory, each followed by a slash.
    pub below: Box<[u8]>,
    /// The same from the directory that the user typed, for messages.
    pub way: Box<[u8]>,
    pub confuses: bool,
    pub differ: DifferingNames,
    /// Device and inode.
    pub identity: (u64, u64),
}

/// An open directory with entries to ask about.
struct MirrorPlace {
    /// With the permissions that are needed to delete.
    directory: Directory,
    /// Its times, which are restored after entries were deleted.
    times: Option<Timestamps>,
    /// Something was deleted in it.
    is_less: AtomicBool,
    fsync: bool,
    root: EntryId,
    below: Vec<u8>,
    way: Vec<u8>,
    confuses: bool,
    differ: DifferingNames,
    /// Its number among the directories that only the destination has.
    extra: Option<usize>,
    /// Those above it, with the permissions to go through them.
    _above: Vec<Directory>,
}

impl MirrorPlace {
    fn dir(&self) -> &Arc<Dir> {
        self.directory.dir()
    }

    /// A question about no entry yet.
    fn question(&self) -> OwnNames {
        OwnNames {
            root: self.root,
            below: self.below.clone(),
            is_extra: self.extra.is_some(),
            confuses: self.confuses,
            entries: Vec::new(),
        }
    }
}

impl Drop for MirrorPlace {
    fn drop(&mut self) {
        let Ok(dir) = self.dir().handle() else {
            return;
        };
        if !self.is_less.load(Relaxed) {
            return;
        }
        // If this fails, only a time is wrong, or the name of a deleted entry is not durable.
        if let Some(times) = &self.times {
            let _ = futimens(&*dir, times);
        }
        if self.fsync {
            let _ = fsync(&*dir);
        }
    }
}

/// Questions and answers under way.
pub(super) struct MirrorWork {
    only_counts: bool,
    /// In the order in which they are asked about.
    places: Vec<NotedDirectory>,
    /// By entry number, the directory of each operand.
    roots: HashMap<EntryId, Arc<Dir>>,
    next: usize,
    /// Directories that only the destination has, and of which something may stay.
    inner: Vec<Arc<MirrorPlace>>,
    reading: Option<(Arc<MirrorPlace>, DirReader)>,
    /// Entries that were asked about.
    asked: VecDeque<Vec<AskedEntry>>,
    /// The same directories. Those below another come after it.
    extra: Vec<ExtraDirectory>,
    extra_bytes: usize,
    /// Number of directories for which there was no room.
    pub left_out: u64,
    /// Number of entries of which the sender is not sure.
    pub unsure: u64,
    /// Device and inode of the entries that are never deleted.
    pub protected: HashSet<(u64, u64)>,
    /// Entries younger than this stay.
    began: Timestamp,
    /// In a dry run, entries to delete are only reported.
    rules: Rules,
    /// The sender could not read all of the source.
    is_incomplete: bool,
    pub count: DeletionCount,
    told: UntoldDeletions,
}

/// How many entries are deleted, and how many may be.
#[derive(Default)]
pub(super) struct DeletionCount {
    /// Number of entries in the directories of the copy.
    pub entries: u64,
    /// Number of entries that were deleted before, to make room for others.
    pub made_room: u64,
    deleted: u64,
    /// Deleted entries of directories that only the destination has.
    nested: u64,
    /// Most entries to delete.
    limit: Option<u64>,
    /// More were to be deleted.
    was_limited: bool,
}

impl DeletionCount {
    /// True if nothing more may be deleted. Notes that more was to be.
    fn stops(&mut self) -> bool {
        let is_at_limit = self.limit.is_some_and(|limit| self.deleted >= limit);
        self.was_limited |= is_at_limit;
        is_at_limit
    }

    /// Everything was counted. Begins the count of what is deleted.
    ///
    /// # Errors
    /// The message for the user if that is more than `most`.
    fn allow(&self, most: MostDeleted) -> Result<DeletionCount, String> {
        let deleted = self.deleted + self.made_room;
        let all = self.entries + self.nested + self.made_room;
        if most.is_exceeded(deleted, all) {
            let nothing = match self.made_room {
                0 => "nothing",
                _ => "nothing more",
            };
            return Err(format!(
                "{nothing} is deleted: {deleted} of {all} entries would be, and --max-delete allows \
                 {most}"
            ));
        }
        Ok(DeletionCount {
            entries: self.entries,
            made_room: self.made_room,
            limit: Some(most.of(all).saturating_sub(self.made_room)),
            ..DeletionCount::default()
        })
    }
}

/// Deleted entries that the user has not heard of.
#[derive(Default)]
pub(super) struct UntoldDeletions {
    deleted: DeletedEntries,
    bytes: usize,
}

impl UntoldDeletions {
    pub(super) fn add(&mut self, report: &Report, path: &[u8]) {
        self.deleted.count += 1;
        if report.context.options.mirror.lists {
            self.bytes += path.len() + size_of::<Vec<u8>>();
            self.deleted.paths.push(path.to_vec());
        }
        if self.deleted.paths.len() >= TOLD_MAX || self.bytes >= TOLD_BYTES_MAX {
            take(self).say(report);
        }
    }

    pub(super) fn say(self, report: &Report) {
        if self.deleted.count > 0 {
            report.deleted(self.deleted);
        }
    }
}

struct AskedEntry {
    place: Arc<MirrorPlace>,
    name: Name,
    is_directory: bool,
}

struct ExtraDirectory {
    slot: EntrySlot,
    path: Vec<u8>,
    /// The directory that contains it.
    above: Arc<MirrorPlace>,
    /// Something in it stays.
    holds: bool,
}

/// What follows from an answer.
pub(super) enum Answered {
    /// More answers will follow, or the copy ends.
    Waiting,
    /// Everything is deleted.
    Over,
    /// Nothing is, because the sender could not read all of the source.
    Incomplete,
}

impl MirrorWork {
    pub(super) fn new(
        places: Vec<NotedDirectory>,
        roots: HashMap<EntryId, Arc<Dir>>,
        began: Timestamp,
        rules: Rules,
    ) -> MirrorWork {
        MirrorWork {
            only_counts: false,
            places,
            roots,
            next: 0,
            inner: Vec::new(),
            reading: None,
            asked: VecDeque::new(),
            extra: Vec::new(),
            extra_bytes: 0,
            left_out: 0,
            unsure: 0,
            protected: HashSet::new(),
            began,
            rules,
            is_incomplete: false,
            count: DeletionCount::default(),
            told: UntoldDeletions::default(),
        }
    }

    /// Counts before anything is deleted.
    pub(super) fn only_count(&mut self) {
        self.only_counts = true;
    }

    pub(super) fn awaits_answers(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Handles an answer.
    pub(super) fn answered(&mut self, report: &Report, answer: ExtraEntries) -> Answered {
        let Some(asked) = self.asked.pop_front() else {
            report.breach("an answer about names that it was not asked for");
            return Answered::Waiting;
        };
        match answer {
            ExtraEntries::Unknown => self.is_incomplete = true,
            ExtraEntries::Some(found) if found.len() == asked.len() => {
                for (asked, is) in asked.into_iter().zip(found) {
                    self.handle(report, &asked, is);
                }
            }
            ExtraEntries::Some(_) => {
                report.breach("an answer about other names than those asked for");
            }
        }
        self.ask(report);
        if report.context.is_ending() {
            // The next run deletes the rest.
            take(&mut self.told).say(report);
            return Answered::Waiting;
        }
        if self.awaits_answers() {
            return Answered::Waiting;
        }
        if self.is_incomplete {
            return Answered::Incomplete;
        }
        self.settle_extra_directories(report);
        if self.only_counts {
            if self.counted(report) {
                self.ask(report);
            }
            if self.awaits_answers() {
                return Answered::Waiting;
            }
        } else if self.count.was_limited {
            // The source has lost entries since they were counted.
            let message = "not all entries are deleted: the source lost more during the copy, and \
                           --max-delete allows no more";
            let error = Error::new(Kind::Refused, Side::Dest, message);
            report.context.report_fault(&error, 0, 0);
        }
        take(&mut self.told).say(report);
        Answered::Over
    }

    /// Everything was counted. True if it may be deleted; then the questions start again.
    fn counted(&mut self, report: &Report) -> bool {
        let Some(most) = report.context.options.mirror.most else {
            return true;
        };
        let count = match self.count.allow(most) {
            Ok(count) => count,
            Err(message) => {
                let error = Error::new(Kind::Refused, Side::Dest, message);
                let error = match self.roots.values().next() {
                    Some(root) => error.at(root.path()),
                    None => error,
                };
                report.context.report_fault(&error, 0, 0);
                return false;
            }
        };
        let (places, roots) = (take(&mut self.places), take(&mut self.roots));
        *self = MirrorWork {
            count,
            protected: take(&mut self.protected),
            left_out: self.left_out,
            ..MirrorWork::new(places, roots, self.began, self.rules.clone())
        };
        true
    }

    /// Sends questions, as many as may wait for an answer.
    pub(super) fn ask(&mut self, report: &Report) {
        let is_over = |work: &MirrorWork| work.is_incomplete || report.context.is_ending();
        while self.asked.len() < OWN_NAMES_WAITING && !is_over(self) {
            let (questions, asked) = self.gather(report);
            if asked.is_empty() {
                return;
            }
            self.asked.push_back(asked);
            report.context.say(Message::OwnNames(questions));
        }
    }

    /// The next names to ask about; none if there are no more.
    fn gather(&mut self, report: &Report) -> (Vec<OwnNames>, Vec<AskedEntry>) {
        let (mut questions, mut asked) = (Vec::<OwnNames>::new(), Vec::new());
        let mut bytes = 0;
        // A directory may have been begun in an earlier message.
        if let Some((place, _)) = &self.reading {
            bytes += place.below.len();
            questions.push(place.question());
        }
        while asked.is_empty() || bytes < NAMES_BYTES && asked.len() < OWN_NAMES_MAX {
            if self.reading.is_none() {
                let has_room = questions.len() < DIRECTORIES_ASKED;
                let Some(place) = has_room.then(|| self.next_place(report)).flatten() else {
                    break;
                };
                let question = place.question();
                bytes += question.below.len();
                questions.push(question);
                self.reading = Some((place.clone(), DirReader::new(place.dir().clone())));
            }
            let (Some((place, reader)), Some(question)) = (&mut self.reading, questions.last_mut())
            else {
                break;
            };
            let found = match reader.next_name() {
                Ok(found) => found,
                Err(cause) => {
                    let what = "cannot read the directory, so not everything in it is deleted";
                    let path = place.dir().path();
                    let error = Error::io(Kind::Read, Side::Dest, path, what, cause);
                    if !self.only_counts {
                        report.context.report_fault(&error, 0, 0);
                    }
                    None
                }
            };
            let Some(found) = found else {
                if question.entries.is_empty() {
                    bytes -= question.below.len();
                    questions.pop();
                }
                self.reading = None;
                continue;
            };
            let is_kept = self.rules.backup.as_ref().is_some_and(|backup| {
                !report.context.options.mirror.deletes_excluded && backup.is_backup(&found.name)
            });
            if is_kept {
                if let Some(extra) = place.extra {
                    self.extra[extra].holds = true;
                }
                continue;
            }
            if let Some((name, is_directory)) = candidate(place, found) {
                bytes += name.as_bytes().len() + size_of::<OwnEntry>();
                question.entries.push(OwnEntry {
                    name: name.as_bytes().to_vec(),
                    is_directory,
                });
                asked.push(AskedEntry {
                    place: place.clone(),
                    name,
                    is_directory,
                });
            }
        }
        questions.retain(|question| !question.entries.is_empty());
        (questions, asked)
    }

    /// Inner directories come first, so that few are open.
    fn next_place(&mut self, report: &Report) -> Option<Arc<MirrorPlace>> {
        if let Some(inner) = self.inner.pop() {
            return Some(inner);
        }
        loop {
            let noted = self.places.get(self.next)?;
            self.next += 1;
            match self.open(noted) {
                Ok(Some(place)) => return Some(Arc::new(place)),
                // It is gone.
                Ok(None) => {}
                Err(error) if !self.only_counts => report.context.report_fault(&error, 0, 0),
                // Reported in the second pass.
                Err(_) => {}
            }
        }
    }

    fn open(&self, noted: &NotedDirectory) -> Result<Option<MirrorPlace>> {
        let Some(root) = self.roots.get(&noted.root) else {
            return Ok(None);
        };
        let names = noted.below.split(|byte| *byte == b'/');
        let mut above = Vec::new();
        let mut directory = match self.rules.dry_run {
            true => Directory::look(root.clone()),
            false => Directory::enter(root.clone())?,
        };
        for name in names.filter(|name| !name.is_empty()) {
            let Ok(name) = Name::try_from(name.to_vec()) else {
                return Ok(None);
            };
            let slot = EntrySlot::new(directory.dir().clone(), name);
            above.push(directory);
            directory = dest::enter_to_delete(&slot, self.rules.dry_run)?;
        }
        // Another process has replaced it.
        if directory.dir().identity() != noted.identity {
            return Ok(None);
        }
        // Permissions are taken back from the inside out.
        above.reverse();
        let stat = directory.dir().handle().and_then(|dir| Ok(fstat(&*dir)?));
        let stat = stat.map_err(|cause| {
            let path = directory.dir().path();
            Error::io(
                Kind::Write,
                Side::Dest,
                path,
                "cannot read its status",
                cause,
            )
        })?;
        let changes = !self.only_counts && !self.rules.dry_run;
        let keeps_times = self.rules.keep.times && !self.rules.keep.omit_dir_times;
        Ok(Some(MirrorPlace {
            is_less: AtomicBool::new(false),
            times: (changes && keeps_times).then(|| times_of(&stat)),
            fsync: changes && self.rules.fsync,
            directory,
            root: noted.root,
            below: noted.below.to_vec(),
            way: noted.way.to_vec(),
            confuses: noted.confuses,
            differ: noted.differ.clone(),
            extra: None,
            _above: above,
        }))
    }

    /// Deletes an entry, or counts it.
    fn handle(&mut self, report: &Report, asked: &AskedEntry, is: OwnEntryIs) {
        let AskedEntry {
            place,
            name,
            is_directory,
        } = asked;
        let slot = EntrySlot::new(place.dir().clone(), name.clone());
        let is = self.with_backups(report, &slot, *is_directory, is);
        if is == OwnEntryIs::Kept {
            return self.holds(place.extra);
        }
        if is == OwnEntryIs::Unsure || dest::is_born_since(&slot, self.began) {
            self.unsure += 1;
            return self.holds(place.extra);
        }
        if self.count.stops() {
            return self.holds(place.extra);
        }
        let path = [&place.way[..], name.as_bytes()].concat();
        if is == OwnEntryIs::AllExtra || !is_directory {
            let before = self.count.deleted;
            let all = self.with_remover(report, |remover| remover.remove_tree(&slot, path));
            let deleted = self.count.deleted - before;
            place.is_less.fetch_or(deleted > 0, Relaxed);
            let top = u64::from(place.extra.is_none() && all);
            self.count.nested += deleted.saturating_sub(top);
            let has_backup = self.rules.backup.as_ref();
            let has_backup = has_backup.is_some_and(|backup| backup.are_beside());
            if !all {
                self.count.stops();
            }
            if !all || has_backup {
                self.holds(place.extra);
            }
            return;
        }
        let weight = EXTRA_WEIGHT + 4 * path.len();
        if self.extra_bytes + weight > NOTED_BYTES_MAX {
            // In the second pass it is counted again.
            self.left_out += u64::from(!self.only_counts);
            return self.holds(place.extra);
        }
        match self.with_remover(report, |remover| remover.open_directory(&slot)) {
            Ok(opened) => self.add_extra(place, slot, path, opened, weight),
            Err(error) => {
                self.holds(place.extra);
                if !self.only_counts {
                    report.context.report_fault(&error, 0, 0);
                }
            }
        }
    }

    /// What is done to an entry that the source does not have, given the backups.
    fn with_backups(
        &self,
        report: &Report,
        slot: &EntrySlot,
        is_directory: bool,
        is: OwnEntryIs,
    ) -> OwnEntryIs {
        let Some(backup) = self.rules.backup.as_ref().filter(|_| is_directory) else {
            return is;
        };
        // If it is extra, its entries are looked at one by one.
        let asks = match is {
            OwnEntryIs::AllExtra => OwnEntryIs::Extra,
            is => is,
        };
        if backup.are_beside() {
            // Its entries may be backups, which stay.
            return match report.context.options.mirror.deletes_excluded {
                true => is,
                false => asks,
            };
        }
        let there = dest::existing(slot).ok().flatten();
        match there.map(|there| backup.part((there.dev, there.ino))) {
            Some(BackupPart::Root) => OwnEntryIs::Kept,
            // It was made for the backups.
            Some(BackupPart::Above) if dest::is_born_since(slot, self.began) => OwnEntryIs::Kept,
            Some(BackupPart::Above) => asks,
            Some(BackupPart::None) | None => is,
        }
    }

    /// Asks about the entries of a directory that the source does not have.
    fn add_extra(
        &mut self,
        above: &Arc<MirrorPlace>,
        slot: EntrySlot,
        mut path: Vec<u8>,
        opened: Directory,
        weight: usize,
    ) {
        path.push(b'/');
        self.extra_bytes += weight;
        self.inner.push(Arc::new(MirrorPlace {
            directory: opened,
            is_less: AtomicBool::new(false),
            times: None,
            fsync: false,
            root: above.root,
            below: [&above.below, slot.name.as_bytes(), b"/"].concat(),
            way: path.clone(),
            confuses: above.confuses,
            differ: DifferingNames::all(),
            extra: Some(self.extra.len()),
            _above: Vec::new(),
        }));
        self.extra.push(ExtraDirectory {
            slot,
            path,
            above: above.clone(),
            holds: false,
        });
    }

    /// Something in one of the extra directories stays.
    fn holds(&mut self, extra: Option<usize>) {
        if let Some(extra) = extra {
            self.extra[extra].holds = true;
        }
    }

    /// Removes the extra directories in which nothing stays.
    fn settle_extra_directories(&mut self, report: &Report) {
        let mut holding: HashSet<usize> = HashSet::new();
        for (nth, extra) in take(&mut self.extra).into_iter().enumerate().rev() {
            let mut stays = extra.holds || holding.remove(&nth);
            if !stays && !self.only_counts && !self.rules.dry_run {
                self.count.stops();
                if report.context.is_ending() || self.count.was_limited {
                    return;
                }
                match dest::remove_if_empty(&extra.slot) {
                    Ok(is_removed) => stays = !is_removed,
                    Err(error) => {
                        stays = true;
                        report.context.report_fault(&error, 0, 0);
                    }
                }
            }
            if stays {
                holding.extend(extra.above.extra);
            } else {
                self.count.nested += u64::from(extra.above.extra.is_some());
                extra.above.is_less.store(true, Relaxed);
                self.removed(report, &extra.path);
            }
        }
    }

    fn with_remover<T>(&mut self, report: &Report, act: impl FnOnce(&mut Remover) -> T) -> T {
        let context = &report.context;
        let (protected, rules) = (take(&mut self.protected), self.rules.clone());
        let (only_counts, only_looks) = (self.only_counts, self.rules.dry_run);
        let (limit, began) = (self.count.limit, self.began);
        let deleted = Cell::new(self.count.deleted);
        let done = {
            let mut remover = Remover {
                only_counts: only_counts || only_looks,
                only_looks,
                rules: &rules,
                protected: &protected,
                is_ending: &|| context.is_ending(),
                began,
                may_remove: &|| limit.is_none_or(|limit| deleted.get() < limit),
                removed: &mut |path| {
                    self.removed(report, path);
                    deleted.set(self.count.deleted);
                },
                // An error is reported only by the pass that deletes.
                failed: &mut |error| {
                    if !only_counts {
                        context.report_fault(error, 0, 0);
                    }
                },
            };
            act(&mut remover)
        };
        self.protected = protected;
        done
    }

    fn removed(&mut self, report: &Report, path: &[u8]) {
        self.count.deleted += 1;
        if !self.only_counts {
            self.told.add(report, path);
        }
    }
}

fn times_of(stat: &Stat) -> Timestamps {
    let time = |tv_sec, tv_nsec| Timespec {
        tv_sec,
        tv_nsec: tv_nsec as _,
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// An entry to ask about, and whether it is a directory.
fn candidate(place: &MirrorPlace, found: ReadName) -> Option<(Name, bool)> {
    // Those of other copies; in a directory that goes, they go too.
    let is_own = match place.confuses {
        true => is_own_name(&found.name.to_ascii_lowercase()),
        false => is_own_name(&found.name),
    };
    let is_of_a_copy = is_own && place.extra.is_none();
    if is_of_a_copy || !place.differ.may_have(&found.name) {
        return None;
    }
    let name = Name::try_from(found.name).ok()?;
    let is_directory = match found.file_type {
        FileType::Unknown => {
            let stat = place.dir().stat(name.as_os_str()).ok()?;
            file_type(&stat) == FileType::Directory
        }
        known => known == FileType::Directory,
    };
    Some((name, is_directory))
}
