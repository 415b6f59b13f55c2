//! The names that the sender is asked about: those in directories of the copy that differ from the
//! source's, and in directories that only the destination has.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::report::Report;
use super::deletion::{DeletionPass, UNREAD_IN_CHECK};
use super::place::{ExtraDirectories, MirrorPlace, NOTED_BYTES_MAX, NotedDirectory};
use crate::dir::{Dir, DirReader};
use crate::error::{Error, Kind, Side};
use crate::manifest::{EntryId, Name};
use crate::wire::message::{OWN_NAMES_MAX, OwnEntry, OwnNames};

/// About how many bytes one noted directory takes besides its paths.
const NOTED_WEIGHT: usize = 192;

/// About how many bytes of names are in one message.
const NAMES_BYTES: usize = 32 << 10;

/// Directories in one message.
const DIRECTORIES_ASKED: usize = 64;

/// An entry that was asked about.
pub(super) struct AskedEntry {
    pub place: Arc<MirrorPlace>,
    pub name: Name,
    pub is_directory: bool,
}

/// Reads the names, directory by directory.
#[derive(Default)]
pub(super) struct OwnNamesReader {
    /// In the order in which they are asked about.
    places: Vec<NotedDirectory>,
    /// About how many bytes of memory they take.
    bytes: usize,
    /// By entry number, the directory of each operand.
    roots: HashMap<EntryId, Arc<Dir>>,
    next: usize,
    /// Directories that only the destination has, and of which something may stay.
    inner: Vec<Arc<MirrorPlace>>,
    reading: Option<(Arc<MirrorPlace>, DirReader)>,
}

impl OwnNamesReader {
    /// Adds a directory of the copy; `root` is its operand's. False if there is no room.
    pub(super) fn note(&mut self, directory: NotedDirectory, root: Arc<Dir>) -> bool {
        let weight = NOTED_WEIGHT + directory.differ.weight() + 2 * directory.way.len();
        let has_room = self.bytes + weight <= NOTED_BYTES_MAX;
        if has_room {
            self.bytes += weight;
            self.roots.entry(directory.root).or_insert(root);
            self.places.push(directory);
        }
        has_room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// All was read. The same directories are read once more.
    pub(super) fn start_again(&mut self) {
        self.next = 0;
    }

    /// The directory of one of the operands.
    pub(super) fn some_root(&self) -> Option<&Arc<Dir>> {
        self.roots.values().next()
    }

    /// This directory is read next.
    pub(super) fn add(&mut self, inner: MirrorPlace) {
        self.inner.push(Arc::new(inner));
    }

    /// The next names to ask about; none if there are no more.
    pub(super) fn gather(
        &mut self,
        report: &Report,
        pass: &DeletionPass,
        extra: &mut ExtraDirectories,
    ) -> (Vec<OwnNames>, Vec<AskedEntry>) {
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
                let Some(place) = has_room.then(|| self.next_place(report, pass)).flatten() else {
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
                    let what = match pass.rules.check {
                        true => UNREAD_IN_CHECK,
                        false => "cannot read the directory, so not everything in it is deleted",
                    };
                    let path = place.dir().path();
                    let error = Error::io(Kind::Read, Side::Dest, path, what, cause);
                    pass.failed(report, &error);
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
            let is_kept = pass.rules.backup.as_ref().is_some_and(|backup| {
                !report.context.options.mirror.deletes_excluded && backup.is_backup(&found.name)
            });
            if is_kept {
                extra.holds(place);
                continue;
            }
            if let Some((name, is_directory)) = place.candidate(found) {
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
    fn next_place(&mut self, report: &Report, pass: &DeletionPass) -> Option<Arc<MirrorPlace>> {
        if let Some(inner) = self.inner.pop() {
            return Some(inner);
        }
        loop {
            let noted = self.places.get(self.next)?;
            self.next += 1;
            let Some(root) = self.roots.get(&noted.root) else {
                continue;
            };
            match MirrorPlace::open(noted, root, report, pass) {
                Ok(Some(place)) => return Some(Arc::new(place)),
                // Another one has taken its place.
                Ok(None) => {}
                Err(error) => pass.failed(report, &error),
            }
        }
    }
}
