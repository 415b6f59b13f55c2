//! The receiver's part in `--delete`. While entries arrive, it notes the directories that have names
//! which the source may not have. When everything is in place, it asks the sender about these names,
//! in batches, and deletes what the sender does not have.
//!
//! With `--max-delete` it asks twice: the first time it only counts.

use std::collections::{HashSet, VecDeque};
use std::mem::take;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::FileType;

use super::entries::Entries;
use crate::dest::{self, Directory, EntrySlot, Remover, is_own_name};
use crate::dir::{Dir, DirReader, ReadName};
use crate::error::{Error, Kind, Side};
use crate::manifest::{Entry, EntryId, NO_PARENT, Name, file_type};
use crate::mirror::{DifferingNames, NameSums};
use crate::wire::message::{
    DeletedEntries, DirectoryNames, ExtraEntries, Message, OWN_NAMES_MAX, OWN_NAMES_WAITING,
    OwnEntry, OwnEntryIs, OwnNames, entry_weight,
};

/// About how many bytes of memory noted directories may take.
const NOTED_BYTES_MAX: usize = 24 << 20;

/// About how many bytes one noted directory takes besides its entry.
const NOTED_WEIGHT: usize = 512;

/// About how many bytes of names are in one message.
const NAMES_BYTES: usize = 32 << 10;

/// Directories in one message.
const DIRECTORIES_ASKED: usize = 64;

/// Paths of deleted entries in one message, and about how many bytes they take.
const TOLD_MAX: usize = 256;
const TOLD_BYTES_MAX: usize = 64 << 10;

/// Finds and deletes what the source does not have.
#[derive(Default)]
pub(super) struct Mirroring {
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
    /// The directories that are copied, and those above them.
    sources: HashSet<(u64, u64)>,
    /// An operand without entries, whose destination has some.
    emptied: Option<Error>,
}

impl MirrorPlace {
    /// A question about no entry yet.
    fn question(&self) -> OwnNames {
        OwnNames {
            root: self.root,
            below: self.below.clone(),
            is_extra: self.is_extra,
            confuses: self.confuses,
            entries: Vec::new(),
        }
    }
}

struct NotedDirectory {
    directory: Directory,
    entry: Entry,
    place: Arc<MirrorPlace>,
}

/// A directory with entries to ask about.
struct MirrorPlace {
    dir: Arc<Dir>,
    root: EntryId,
    /// The names from the operand down to the directory, each followed by a slash.
    below: Vec<u8>,
    /// The same from the directory that the user typed, for messages.
    way: Vec<u8>,
    is_extra: bool,
    confuses: bool,
    differ: DifferingNames,
}

/// Where a finished directory is in the copy.
pub(super) struct PlaceInCopy {
    /// The operand's entry number.
    pub root: EntryId,
    /// Number of directories between it and the operand; 0 for the operand.
    pub depth: usize,
}

/// Questions and answers under way.
struct MirrorWork {
    only_counts: bool,
    places: Vec<Arc<MirrorPlace>>,
    next: usize,
    /// Directories that only the destination has, and of which something may stay.
    inner: Vec<Arc<MirrorPlace>>,
    reading: Option<(Arc<MirrorPlace>, DirReader)>,
    /// Entries that were asked about.
    asked: VecDeque<Vec<AskedEntry>>,
    /// Directories to remove at the end, if nothing stays in them. Those above come first.
    extra_directories: Vec<ExtraDirectory>,
    sources: HashSet<(u64, u64)>,
    /// Number of entries that are deleted, and of those in noted directories.
    deleted: u64,
    top: u64,
    told: DeletedEntries,
    told_bytes: usize,
}

struct AskedEntry {
    place: Arc<MirrorPlace>,
    name: Name,
    is_directory: bool,
}

struct ExtraDirectory {
    slot: EntrySlot,
    path: Vec<u8>,
    /// Holds the permissions that were added.
    _opened: Option<Directory>,
}

impl Mirroring {
    /// Compares the names in a directory whose entries are all in place. Returns it unless it may
    /// have others: then it is finished after these were deleted.
    pub(super) fn compare(
        &self,
        entries: &Entries,
        directory: Directory,
        entry: &Entry,
        names: &DirectoryNames,
        place: &PlaceInCopy,
    ) -> Option<Directory> {
        if entry.parent == NO_PARENT && entries.same_machine() {
            self.noted.lock().sources.extend(&names.above);
        }
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
                entries.context().report_fault(&error, 0, 0);
                return Some(directory);
            }
        };
        let Some(differ) = own.differing(&names.sums) else {
            entries
                .report
                .breach("an impossible number of sums of names");
            return Some(directory);
        };
        let confuses = self.spellings.lock().may_confuse(dir);
        let mut noted = self.noted.lock();
        noted.entries += own.len() as u64;
        if differ.is_none() {
            return Some(directory);
        }
        if entry.parent == NO_PARENT && names.sums == [0] {
            let message = "the source directory is empty, so nothing is deleted here (--force \
                           deletes all the same)";
            let error = Error::new(Kind::Refused, Side::Dest, message).at(dir.path());
            noted.emptied.get_or_insert(error);
        }
        let weight = entry_weight(entry) + NOTED_WEIGHT + differ.weight();
        if noted.bytes + weight > NOTED_BYTES_MAX {
            noted.left_out += 1;
            return Some(directory);
        }
        noted.bytes += weight;
        let (_, mut way) = dir.below();
        if !way.is_empty() {
            way.push(b'/');
        }
        let place = MirrorPlace {
            dir: dir.clone(),
            root: place.root,
            below: last_names(&way, place.depth).to_vec(),
            way,
            is_extra: false,
            confuses,
            differ,
        };
        noted.directories.push(NotedDirectory {
            directory,
            entry: entry.clone(),
            place: Arc::new(place),
        });
        None
    }

    /// There was no room for the names in a directory.
    pub(super) fn leaves_out_directory(&self) {
        self.noted.lock().left_out += 1;
    }

    /// Everything is in place. Begins to ask about names. False if there is nothing to ask.
    pub(super) fn begin(&self, entries: &Entries) -> bool {
        let mut noted = self.noted.lock();
        if let Some(error) = noted.emptied.take().filter(|_| !entries.rules.force) {
            entries.context().report_fault(&error, 0, 0);
            drop(noted);
            self.finish(entries);
            return false;
        }
        let places = noted.directories.iter().map(|noted| noted.place.clone());
        let places: Vec<Arc<MirrorPlace>> = places.collect();
        let sources = noted.sources.clone();
        drop(noted);
        if places.is_empty() {
            return false;
        }
        let mut work = self.work.lock();
        let only_counts = entries.context().options.mirror.most.is_some();
        let begun = work.insert(MirrorWork::new(only_counts, places, sources));
        begun.ask(entries);
        let is_over = begun.asked.is_empty();
        if is_over {
            *work = None;
            drop(work);
            self.finish(entries);
        }
        !is_over
    }

    /// Handles an answer of the sender. Returns true after the last one.
    pub(super) fn answered(&self, entries: &Entries, answer: ExtraEntries) -> bool {
        let mut guard = self.work.lock();
        let Some(work) = guard.as_mut() else {
            entries
                .report
                .breach("an answer about names that it was not asked for");
            return false;
        };
        let Some(asked) = work.asked.pop_front() else {
            entries
                .report
                .breach("an answer about names that it was not asked for");
            return false;
        };
        match answer {
            ExtraEntries::Unknown => {
                let line = "fastcp: nothing was deleted, because some of the source could not be \
                            read (--force deletes all the same)";
                (entries.sessions.tell)(line);
                *guard = None;
                drop(guard);
                self.finish(entries);
                return true;
            }
            ExtraEntries::Some(found) if found.len() == asked.len() => {
                for (asked, is) in asked.into_iter().zip(found) {
                    if entries.context().is_ending() {
                        return false;
                    }
                    work.handle(entries, asked, is);
                }
            }
            ExtraEntries::Some(_) => {
                entries
                    .report
                    .breach("an answer about other names than those asked for");
                return false;
            }
        }
        work.ask(entries);
        if !work.asked.is_empty() {
            return false;
        }
        if work.only_counts {
            if let Some(error) = self.too_many(entries, work) {
                entries.context().report_fault(&error, 0, 0);
            } else {
                let places = take(&mut work.places);
                let sources = take(&mut work.sources);
                *work = MirrorWork::new(false, places, sources);
                work.ask(entries);
                if !work.asked.is_empty() {
                    return false;
                }
            }
        }
        work.remove_extra_directories(entries);
        work.tell(entries);
        *guard = None;
        drop(guard);
        self.finish(entries);
        true
    }

    /// The error if more entries would be deleted than the user allows.
    fn too_many(&self, entries: &Entries, work: &MirrorWork) -> Option<Error> {
        let most = entries.context().options.mirror.most?;
        // Entries of directories that only the destination has were not counted before.
        let all = self.noted.lock().entries + (work.deleted - work.top);
        most.is_exceeded(work.deleted, all).then(|| {
            let message = format!(
                "nothing is deleted: {} of {all} entries would be, and --max-delete allows {most}",
                work.deleted
            );
            let error = Error::new(Kind::Refused, Side::Dest, message);
            match work.places.last() {
                Some(place) => error.at(place.dir.path()),
                None => error,
            }
        })
    }

    /// Gives the noted directories their modes and times.
    fn finish(&self, entries: &Entries) {
        let Noted {
            directories,
            left_out,
            ..
        } = take(&mut *self.noted.lock());
        for noted in directories {
            if let Err(error) = noted.directory.finish(&noted.entry, &entries.rules) {
                entries.context().report_fault(&error, 0, 0);
            }
        }
        if left_out > 0 {
            let message = format!(
                "{left_out} more directories have entries that the source may not have: copy again to \
                 delete them"
            );
            let error = Error::new(Kind::Entry, Side::Dest, message);
            entries.context().report_fault(&error, 0, 0);
        }
    }

    /// After an early end: the noted directories that this copy made, with their entries.
    pub(super) fn take_made(&self) -> Vec<(Directory, Entry)> {
        *self.work.lock() = None;
        let directories = take(&mut self.noted.lock().directories);
        let made = directories
            .into_iter()
            .filter(|noted| noted.directory.made());
        made.map(|noted| (noted.directory, noted.entry)).collect()
    }
}

impl MirrorWork {
    fn new(
        only_counts: bool,
        places: Vec<Arc<MirrorPlace>>,
        sources: HashSet<(u64, u64)>,
    ) -> MirrorWork {
        MirrorWork {
            only_counts,
            places,
            next: 0,
            inner: Vec::new(),
            reading: None,
            asked: VecDeque::new(),
            extra_directories: Vec::new(),
            sources,
            deleted: 0,
            top: 0,
            told: DeletedEntries {
                count: 0,
                paths: Vec::new(),
            },
            told_bytes: 0,
        }
    }

    /// Sends questions, as many as may wait for an answer.
    fn ask(&mut self, entries: &Entries) {
        while self.asked.len() < OWN_NAMES_WAITING && !entries.context().is_ending() {
            let (questions, asked) = self.gather(entries);
            if asked.is_empty() {
                return;
            }
            self.asked.push_back(asked);
            entries.context().say(Message::OwnNames(questions));
        }
    }

    /// The next names to ask about.
    fn gather(&mut self, entries: &Entries) -> (Vec<OwnNames>, Vec<AskedEntry>) {
        let (mut questions, mut asked) = (Vec::<OwnNames>::new(), Vec::new());
        let mut bytes = 0;
        // A directory may have been begun in an earlier message.
        if let Some((place, _)) = &self.reading {
            questions.push(place.question());
        }
        while bytes < NAMES_BYTES && asked.len() < OWN_NAMES_MAX {
            if self.reading.is_none() {
                let has_room = questions.len() < DIRECTORIES_ASKED;
                let Some(place) = has_room.then(|| self.next_place()).flatten() else {
                    break;
                };
                let question = place.question();
                bytes += question.below.len();
                questions.push(question);
                self.reading = Some((place.clone(), DirReader::new(place.dir.clone())));
            }
            let (Some((place, reader)), Some(question)) = (&mut self.reading, questions.last_mut())
            else {
                break;
            };
            let found = match reader.next_name() {
                Ok(found) => found,
                Err(cause) => {
                    let what = "cannot read the directory, so not everything in it is deleted";
                    let path = place.dir.path();
                    let error = Error::io(Kind::Read, Side::Dest, path, what, cause);
                    entries.context().report_fault(&error, 0, 0);
                    None
                }
            };
            let Some(found) = found else {
                if question.entries.is_empty() {
                    questions.pop();
                }
                self.reading = None;
                continue;
            };
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
    fn next_place(&mut self) -> Option<Arc<MirrorPlace>> {
        self.inner.pop().or_else(|| {
            let place = self.places.get(self.next).cloned();
            self.next += 1;
            place
        })
    }

    /// Deletes an entry, or counts it.
    fn handle(&mut self, entries: &Entries, asked: AskedEntry, is: OwnEntryIs) {
        let AskedEntry {
            place,
            name,
            is_directory,
        } = asked;
        if is == OwnEntryIs::Kept {
            return;
        }
        let mut path = [&place.way[..], name.as_bytes()].concat();
        self.top += u64::from(!place.is_extra);
        if is == OwnEntryIs::AllExtra || !is_directory {
            return self.remove(entries, &place.dir, &name, path);
        }
        let slot = EntrySlot::new(place.dir.clone(), name.clone());
        let opened = self.with_remover(entries, |remover| remover.open_directory(&slot));
        match opened {
            Ok((dir, opened)) => {
                path.push(b'/');
                self.inner.push(Arc::new(MirrorPlace {
                    dir,
                    root: place.root,
                    below: [&place.below, name.as_bytes(), b"/"].concat(),
                    way: path.clone(),
                    is_extra: true,
                    confuses: place.confuses,
                    differ: DifferingNames::all(),
                }));
                self.extra_directories.push(ExtraDirectory {
                    slot,
                    path,
                    _opened: opened,
                });
            }
            Err(error) => entries.context().report_fault(&error, 0, 0),
        }
    }

    fn remove(&mut self, entries: &Entries, dir: &Arc<Dir>, name: &Name, path: Vec<u8>) {
        self.with_remover(entries, |remover| remover.remove_tree(dir, name, path));
    }

    fn with_remover<T>(&mut self, entries: &Entries, act: impl FnOnce(&mut Remover) -> T) -> T {
        let context = entries.context();
        let sources = take(&mut self.sources);
        let only_counts = self.only_counts;
        let done = {
            let mut remover = Remover {
                only_counts,
                sources: &sources,
                is_ending: &|| context.is_ending(),
                removed: &mut |path| self.removed(entries, path),
                failed: &mut |error| context.report_fault(error, 0, 0),
            };
            act(&mut remover)
        };
        self.sources = sources;
        done
    }

    fn removed(&mut self, entries: &Entries, path: &[u8]) {
        self.deleted += 1;
        if self.only_counts {
            return;
        }
        self.told.count += 1;
        if entries.context().options.mirror.lists {
            self.told_bytes += path.len() + size_of::<Vec<u8>>();
            self.told.paths.push(path.to_vec());
        }
        if self.told.paths.len() >= TOLD_MAX || self.told_bytes >= TOLD_BYTES_MAX {
            self.tell(entries);
        }
    }

    /// Tells the user what was deleted.
    fn tell(&mut self, entries: &Entries) {
        self.told_bytes = 0;
        let told = DeletedEntries {
            count: take(&mut self.told.count),
            paths: take(&mut self.told.paths),
        };
        if told.count > 0 {
            entries.context().deletions.add(&told);
            entries.context().say(Message::Deleted(told));
        }
    }

    fn remove_extra_directories(&mut self, entries: &Entries) {
        for extra in take(&mut self.extra_directories).into_iter().rev() {
            if entries.context().is_ending() {
                return;
            }
            match dest::remove_if_empty(&extra.slot) {
                Ok(true) => self.removed(entries, &extra.path),
                // A rule protects something in it.
                Ok(false) => {}
                Err(error) => entries.context().report_fault(&error, 0, 0),
            }
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

/// An entry to ask about, and whether it is a directory.
fn candidate(place: &MirrorPlace, found: ReadName) -> Option<(Name, bool)> {
    // Those of other copies; in a directory that goes, they go too.
    if is_own_name(&found.name) && !place.is_extra || !place.differ.may_have(&found.name) {
        return None;
    }
    let name = Name::try_from(found.name).ok()?;
    let is_directory = match found.file_type {
        FileType::Unknown => {
            let stat = place.dir.stat(name.as_os_str()).ok()?;
            file_type(&stat) == FileType::Directory
        }
        known => known == FileType::Directory,
    };
    Some((name, is_directory))
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
