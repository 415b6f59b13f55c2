//! The sender's part in `--delete`: it tells the receiver which directories must stay, and answers
//! which of the receiver's entries the source does not have. The questions follow from sums of names,
//! which the walk sends.
//!
//! It answers from the state of the source after the walk. So the receiver keeps entries that have
//! appeared at the source during the copy.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Sender;
use super::scheduler::Ended;
use crate::dir::Dir;
use crate::error::Result;
use crate::file_list::FileList;
use crate::manifest::{EntryId, EntryKind, Name, Timestamp};
use crate::source::{FoundFile, LookupDirectory, NamedSource, PartOf, Presence, root_id};
use crate::wire::message::{
    ABOVE_MAX, ExtraEntries, Message, OwnEntry, OwnEntryIs, OwnNames, SourcePlaces,
};

/// How far the clock of file systems may be behind: two of its longest steps, of 10 ms at 100 Hz. On a
/// busy machine a step may come late.
const LATE_MAX: Duration = Duration::from_millis(40);

/// The operands, as they were found.
#[derive(Default)]
pub(super) struct MirrorRoots {
    /// In order. The name is None if the contents of a directory are copied.
    roots: Vec<MirrorRoot>,
    by_name: HashMap<Name, Vec<usize>>,
    /// Those whose contents are copied.
    of_contents: Vec<usize>,
    /// When the walk began, by the clock of file systems.
    began: Timestamp,
    /// The user may have named others, which their size or age leaves out.
    may_lack_names: bool,
    /// The walk has followed links on the way to these names.
    ways: Option<Arc<FileList>>,
    /// The directory of the last operand.
    last_place: Option<(u64, u64)>,
}

struct MirrorRoot {
    /// None if its contents are copied, unless it is a part.
    name: Option<Name>,
    /// It goes to a separate place, where no other one goes.
    part: Option<Arc<PartOf>>,
    /// None until the walk has announced it, and for anything but a directory.
    dir: Option<Arc<Dir>>,
}

impl MirrorRoots {
    pub(super) fn new(
        named: Vec<Arc<NamedSource>>,
        may_lack_names: bool,
        ways: Option<Arc<FileList>>,
    ) -> MirrorRoots {
        let mut by_name: HashMap<Name, Vec<usize>> = HashMap::new();
        let mut of_contents = Vec::new();
        for (nth, root) in named.iter().enumerate() {
            match root.contents {
                _ if root.part.is_some() => {}
                false => by_name.entry(root.name.clone()).or_default().push(nth),
                true => of_contents.push(nth),
            }
        }
        let roots = named.into_iter().map(|root| MirrorRoot {
            name: (root.part.is_some() || !root.contents).then(|| root.name.clone()),
            part: root.part.clone(),
            dir: None,
        });
        MirrorRoots {
            roots: roots.collect(),
            by_name,
            of_contents,
            began: later_than_every_change(),
            may_lack_names,
            ways,
            last_place: None,
        }
    }

    /// Tells the receiver what must not be deleted, and notes where it may look. The walk has found
    /// an operand.
    pub(super) fn found(&mut self, sender: &Sender, found: &FoundFile) -> Result<(), Ended> {
        if found.entry.kind == EntryKind::Directory
            && let Some(root) = self.roots.get_mut(place(found.entry.id))
        {
            root.dir = Some(found.dir.clone());
        }
        let identity = Some(found.dir.identity());
        if std::mem::replace(&mut self.last_place, identity) == identity {
            return Ok(());
        }
        let places = SourcePlaces(found.dir.with_those_above(ABOVE_MAX));
        sender.report.say_or_end(Message::SourcePlaces(places))
    }

    /// Answers the receiver's questions until the copy ends.
    pub(super) fn answer(&self, sender: &Sender) -> Result<(), Ended> {
        while let Some(questions) = sender.control.questions.take() {
            let is_incomplete = sender.report.has_failed();
            let options = &sender.context.options;
            let answer = if is_incomplete && !options.force && !options.check {
                ExtraEntries::Unknown
            } else {
                let mut entries = Vec::new();
                for question in &questions {
                    if sender.context.is_ending() {
                        return Err(Ended);
                    }
                    let found = self.look_up(sender, question);
                    let unsure = || vec![OwnEntryIs::Unsure; question.entries.len()];
                    entries.extend(found.unwrap_or_else(unsure));
                }
                ExtraEntries::Some(entries)
            };
            sender.report.say_or_end(Message::Extra(answer))?;
        }
        Ok(())
    }

    /// None if this cannot be answered.
    fn look_up(&self, sender: &Sender, question: &OwnNames) -> Option<Vec<OwnEntryIs>> {
        let below = names_of(&question.below)?;
        let asking = self.roots.get(place(question.root))?;
        let mut found = vec![OwnEntryIs::AllExtra; question.entries.len()];
        self.look_in(sender, asking, (question, &below), &mut found)?;
        if asking.part.is_some() {
            return Some(found);
        }
        // Other operands may go into the same directory.
        let asking_at = place(question.root);
        let from_top: Vec<Name> = asking.name.iter().cloned().chain(below.clone()).collect();
        for nth in self.of_contents.iter().filter(|nth| **nth != asking_at) {
            let root = &self.roots[*nth];
            self.look_beside(sender, root, (question, &from_top), &mut found)?;
        }
        let is_alone = self.roots.iter().filter(|root| root.part.is_none()).count() == 1;
        // Which of several operands such a name belongs to cannot be told.
        if question.confuses && !is_alone {
            return None;
        }
        // An operand that its size or age leaves out has no number here.
        if from_top.is_empty() && self.may_lack_names {
            return None;
        }
        let Some((first, path)) = from_top.split_first() else {
            self.keep_operands(question, &mut found);
            return Some(found);
        };
        let same = self.by_name.get(first).into_iter().flatten();
        for nth in same.filter(|nth| **nth != asking_at) {
            self.look_beside(sender, &self.roots[*nth], (question, path), &mut found)?;
        }
        Some(found)
    }

    /// Keeps entries of the destination directory itself that are operands.
    fn keep_operands(&self, question: &OwnNames, found: &mut [OwnEntryIs]) {
        for (entry, is) in question.entries.iter().zip(found) {
            let name = Name::try_from(entry.name.clone());
            if name.is_ok_and(|name| self.by_name.contains_key(&name)) {
                *is = OwnEntryIs::Kept;
            }
        }
    }

    /// Keeps what an operand has that goes into the same directory as the one asked about.
    fn look_beside(
        &self,
        sender: &Sender,
        root: &MirrorRoot,
        (question, below): (&OwnNames, &[Name]),
        found: &mut [OwnEntryIs],
    ) -> Option<()> {
        let beside = OwnNames {
            // It may have a directory that the other operand lacks, and lack one that it has.
            is_extra: true,
            ..question.clone()
        };
        let mut of_root = vec![OwnEntryIs::AllExtra; found.len()];
        self.look_in(sender, root, (&beside, below), &mut of_root)?;
        for (is, of_root) in found.iter_mut().zip(of_root) {
            *is = match (*is, of_root) {
                (OwnEntryIs::Kept, _) | (_, OwnEntryIs::Kept) => OwnEntryIs::Kept,
                (OwnEntryIs::Unsure, _) | (_, OwnEntryIs::Unsure) => OwnEntryIs::Unsure,
                (OwnEntryIs::AllExtra, OwnEntryIs::AllExtra) => OwnEntryIs::AllExtra,
                _ => OwnEntryIs::Extra,
            };
        }
        Some(())
    }

    /// Looks the entries of `question` up in the directory `below` an operand.
    fn look_in(
        &self,
        sender: &Sender,
        root: &MirrorRoot,
        (question, below): (&OwnNames, &[Name]),
        found: &mut [OwnEntryIs],
    ) -> Option<()> {
        let options = &sender.context.options;
        let name = (root.name.as_ref(), root.part.as_deref());
        let mut place = LookupDirectory::of_root(
            root.dir.as_ref()?,
            name,
            &options.selector,
            options.follow_links,
            self.ways.as_ref(),
        )
        .ok()?;
        for name in below {
            if !place.enter(name, question.is_extra).ok()? {
                return None;
            }
        }
        // A directory that has vanished since the walk is left to the next copy.
        if !place.exists() && !question.is_extra {
            return None;
        }
        let is_changed = place.has_changed_since(self.began);
        let similar = match question.confuses {
            true => Some(place.similar_names().ok()?),
            false => None,
        };
        for (entry, is) in question.entries.iter().zip(found) {
            let name = Name::try_from(entry.name.clone()).ok()?;
            let is_similar = similar
                .as_ref()
                .is_some_and(|similar| similar.may_have(&name));
            *is = if is_similar || self.leads_to_part(root, below, &name) {
                OwnEntryIs::Kept
            } else {
                match self.entry(sender, &place, entry, &name) {
                    OwnEntryIs::Kept => OwnEntryIs::Kept,
                    _ if is_changed => OwnEntryIs::Unsure,
                    is => is,
                }
            };
        }
        Some(())
    }

    /// True for an entry at the path of a part of `root`, or on the way there. The part goes to a
    /// separate place, and rules that leave it out do not say what is at its path.
    fn leads_to_part(&self, root: &MirrorRoot, below: &[Name], name: &Name) -> bool {
        let is_on_way = |part: &MirrorRoot| {
            let between = part.part.iter().flat_map(|part| &part.between);
            let mut way = between.chain(&part.name);
            below
                .iter()
                .chain([name])
                .all(|name| way.next() == Some(name))
        };
        let mut parts = self.roots.iter().filter(|root| root.part.is_some());
        root.part.is_none() && parts.any(is_on_way)
    }

    fn entry(
        &self,
        sender: &Sender,
        place: &LookupDirectory,
        entry: &OwnEntry,
        name: &Name,
    ) -> OwnEntryIs {
        let options = &sender.context.options;
        let excluded_too = options.mirror.deletes_excluded;
        let is_there = match place.look_for(name) {
            Presence::Unknown => return OwnEntryIs::Unsure,
            Presence::Present { is_directory } => !place.leaves_out(name, is_directory),
            Presence::Absent => false,
        };
        if is_there || place.protects(name, entry.is_directory, excluded_too) {
            OwnEntryIs::Kept
        } else if options.selector.may_protect(excluded_too) {
            OwnEntryIs::Extra
        } else {
            OwnEntryIs::AllExtra
        }
    }
}

/// The time by the clock of file systems, once it is later than every change until now. A directory
/// that changed just before the copy is then not taken for one that changed during it.
///
/// File systems take the coarse clock, which is behind by up to two steps. Since Linux 6.13 they take
/// the precise one for a file whose time was read since its last change, so its next step alone may
/// be earlier than such a change
/// (<https://docs.kernel.org/filesystems/multigrain-ts.html>).
fn later_than_every_change() -> Timestamp {
    let now = |clock| Timestamp::of(clock_gettime(clock));
    let last_change = now(ClockId::Realtime);
    let pause = Duration::from_millis(1);
    for _ in 0..LATE_MAX.as_millis() {
        if now(ClockId::RealtimeCoarse) > last_change {
            break;
        }
        sleep(pause);
    }
    now(ClockId::RealtimeCoarse)
}

/// The index of an operand, from its entry number.
fn place(id: EntryId) -> usize {
    usize::try_from(id.wrapping_sub(root_id(0))).unwrap_or(usize::MAX)
}

/// The names of a path from the receiver; None if it is malformed.
fn names_of(below: &[u8]) -> Option<Vec<Name>> {
    let names = below.split_inclusive(|byte| *byte == b'/');
    let name = |part: &[u8]| Name::try_from(part.strip_suffix(b"/")?.to_vec()).ok();
    names.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_changed_just_before_has_not_changed_during_the_copy() {
        let temp = tempfile::tempdir().unwrap();
        let time = || Timestamp::ctime(&rustix::fs::stat(temp.path()).unwrap());
        let mut began = Timestamp::default();
        for nth in 0..20 {
            // The time was read, so the next change gets a precise one.
            time();
            std::fs::write(temp.path().join(format!("{nth}")), "").unwrap();
            began = later_than_every_change();
            assert!(time() < began, "{nth}");
        }
        std::fs::write(temp.path().join("newer"), "").unwrap();
        assert!(time() >= began);
    }

    #[test]
    fn a_path_of_the_receiver_consists_of_names() {
        assert_eq!(names_of(b""), Some(Vec::new()));
        assert_eq!(names_of(b"a/b/").map(|names| names.len()), Some(2));
        for path in ["/", "a", "a/b", "../", "a/./", "a//"] {
            assert_eq!(names_of(path.as_bytes()), None, "{path}");
        }
    }
}
