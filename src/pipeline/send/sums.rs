//! Directories that the destination may already have. The sender holds back their entries and sends
//! one sum of them, which the receiver compares with its own. So an unchanged directory costs one
//! sum on the wire and not one entry per file. If the sums differ, the sender sends a short sum of
//! each entry, and announces only the entries that differ.
//!
//! A large directory is compared in parts from the start, so that few entries are held back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::digest::Digest;
use crate::dir::attributes::change;
use crate::keep::{Keep, MetadataChanges};
use crate::manifest::{EntryId, EntryKind};
use crate::source::{Changes, FoundFile};
use crate::threads;
use crate::wire::message::{
    DirectorySum, EntryEnd, EntrySums, SHORT_SUM, SUMS_MAX, SumsAnswer, SumsFound, entry_weight,
};

/// Most entries that are held back, and about how many bytes they may take.
const HELD_MAX: usize = 8 * SUMS_MAX;
pub(super) const HELD_BYTES_MAX: usize = 16 << 20;

/// Entries that one message of sums stands for, about. The receiver reads that many in some 10 ms, so
/// it begins soon and both ends work at the same time.
const ASKED_ENTRIES: usize = 2048;

/// Most directories whose answers are awaited.
const DIRECTORIES_MAX: usize = 4096;

/// How the receiver compares, once it has said so.
#[derive(Clone)]
pub(super) struct SumTerms {
    pub key: Digest,
    pub keep: Keep,
    /// What the destination's entries have instead of the source's modes and owners.
    pub changes: Arc<MetadataChanges>,
    pub has_time: bool,
    /// `--checksum`: the contents of small files are compared, which are read for that.
    pub contents: Option<Changes>,
}

/// Entries that are held back until the receiver has compared them.
#[derive(Default)]
pub(super) struct HeldEntries {
    /// None: nothing is compared, and entries are announced at once.
    pub terms: Option<SumTerms>,
    directories: HashMap<EntryId, HeldDirectory>,
    held: usize,
    held_bytes: usize,
    bytes_max: usize,
    /// Sums to be sent.
    sums: Vec<DirectorySum>,
    entry_sums: Vec<EntrySums>,
    /// Number of entries in `sums`.
    summed: usize,
    /// Questions that are sent or to be sent, and not answered.
    unanswered: usize,
}

#[derive(Default)]
struct HeldDirectory {
    /// Entries that are not summed up yet.
    gathered: Vec<FoundFile>,
    /// Parts that the receiver compares. A directory that is compared as a whole is part 0.
    parts: BTreeMap<u32, HeldPart>,
    next_part: u32,
    /// Number of held entries that turned out to differ, and so are announced.
    announced: u64,
    /// Number of its other children, once the walk has left it.
    children: Option<u64>,
}

#[derive(Default)]
struct HeldPart {
    entries: Vec<FoundFile>,
    /// The short sum of each, until it is asked about.
    sums: Vec<u8>,
}

/// What follows from an answer.
#[derive(Default)]
pub(super) struct Compared {
    /// Entries to be announced.
    pub differ: Vec<FoundFile>,
    /// Number and bytes of unchanged files.
    pub files: u64,
    pub bytes: u64,
    /// The end of a directory, to be sent after these entries.
    pub end: Option<EntryEnd>,
}

/// The answer fits no question.
pub(super) struct NotAsked;

impl HeldEntries {
    /// Holds back entries of at most `bytes_max` bytes, about.
    pub(super) fn new(terms: Option<SumTerms>, bytes_max: usize) -> HeldEntries {
        HeldEntries {
            terms,
            bytes_max,
            ..HeldEntries::default()
        }
    }

    /// Holds an entry of a directory back.
    pub(super) fn hold(&mut self, found: FoundFile) {
        let parent = found.entry.parent;
        self.held_bytes += entry_weight(&found.entry);
        let directory = self.directories.entry(parent).or_default();
        directory.gathered.push(found);
        self.held += 1;
        if directory.gathered.len() == SUMS_MAX {
            self.ask_part(parent);
        } else if self.holds_much() && self.unanswered == 0 {
            // Directories that the walk has not left hold too much.
            let holding = |(id, directory): (&EntryId, &HeldDirectory)| {
                (!directory.gathered.is_empty()).then_some(*id)
            };
            let ids: Vec<EntryId> = self.directories.iter().filter_map(holding).collect();
            ids.into_iter().for_each(|id| self.ask_part(id));
        }
    }

    /// Counts an entry of `parent` that is announced although it has no number from the walk.
    pub(super) fn announced(&mut self, parent: EntryId) {
        self.directories.entry(parent).or_default().announced += 1;
    }

    /// The walk has left a directory with `children` numbered entries. Returns its end, unless held
    /// entries are compared first.
    pub(super) fn leave(&mut self, id: EntryId, children: u64) -> Option<EntryEnd> {
        let Some(directory) = self.directories.get_mut(&id) else {
            return Some(end_of(id, children));
        };
        directory.children = Some(children);
        let has_parts = directory.next_part > 0;
        match (directory.gathered.is_empty(), has_parts) {
            (true, _) => {}
            (false, true) => self.ask_part(id),
            (false, false) => self.ask_whole(id),
        }
        self.end_if_over(id)
    }

    /// Takes the entries that are to be summed up next.
    fn take_gathered(&mut self, id: EntryId) -> Vec<FoundFile> {
        let directory = self.directories.get_mut(&id);
        let mut gathered = directory.map_or_else(Vec::new, |directory| {
            std::mem::take(&mut directory.gathered)
        });
        if let Some(changes) = self.terms.as_ref().and_then(|terms| terms.contents) {
            // The digests take memory too.
            self.held_bytes -= weight(&gathered);
            threads::share(&mut gathered, |found| {
                // An error is reported when the entry is asked about or sent.
                let _ = found.read_content(changes);
            });
            self.held_bytes += weight(&gathered);
        }
        gathered
    }

    fn ask_whole(&mut self, id: EntryId) {
        let gathered = self.take_gathered(id);
        let (Some(terms), Some(directory)) = (&self.terms, self.directories.get_mut(&id)) else {
            return;
        };
        let (mut sum, mut sums) = (0u128, Vec::with_capacity(gathered.len() * SHORT_SUM));
        for found in &gathered {
            let one = terms.sum(found);
            sum = sum.wrapping_add(first_half(&one));
            sums.extend_from_slice(&one[..SHORT_SUM]);
        }
        self.sums.push(DirectorySum {
            directory: id,
            entries: gathered.len() as u64,
            sum: sum.to_le_bytes(),
        });
        self.summed += gathered.len();
        let entries = gathered;
        directory.parts.insert(0, HeldPart { entries, sums });
        directory.next_part = 1;
        self.unanswered += 1;
    }

    /// Asks about each entry that is gathered.
    fn ask_part(&mut self, id: EntryId) {
        let entries = self.take_gathered(id);
        let (Some(terms), Some(directory)) = (&self.terms, self.directories.get_mut(&id)) else {
            return;
        };
        let mut sums = Vec::with_capacity(entries.len() * SHORT_SUM);
        for found in &entries {
            sums.extend_from_slice(&terms.sum(found)[..SHORT_SUM]);
        }
        let part = directory.next_part;
        directory.parts.insert(part, HeldPart { entries, sums });
        directory.next_part += 1;
        self.ask_entries(id, part);
    }

    /// Asks about each entry of a part.
    fn ask_entries(&mut self, id: EntryId, part: u32) {
        let directory = self.directories.get_mut(&id);
        let Some(held) = directory.and_then(|directory| directory.parts.get_mut(&part)) else {
            return;
        };
        self.entry_sums.push(EntrySums {
            directory: id,
            part,
            sums: std::mem::take(&mut held.sums),
        });
        self.unanswered += 1;
    }

    /// Handles the receiver's answer.
    pub(super) fn answered(&mut self, answer: &SumsAnswer) -> Result<Compared, NotAsked> {
        let id = answer.directory;
        self.unanswered = self.unanswered.checked_sub(1).ok_or(NotAsked)?;
        let directory = self.directories.get_mut(&id).ok_or(NotAsked)?;
        if answer.found == SumsFound::Differ {
            // Asked about each entry once only: a second such answer finds no whole directory.
            let is_whole = directory.next_part == 1 && answer.part == 0;
            if !is_whole || !directory.parts.contains_key(&0) {
                return Err(NotAsked);
            }
            directory.next_part = 2;
            self.ask_entries(id, 0);
            return Ok(Compared::default());
        }
        let HeldPart { entries, .. } = directory.parts.remove(&answer.part).ok_or(NotAsked)?;
        self.held -= entries.len();
        self.held_bytes -= weight(&entries);
        let differs = |nth: usize| match &answer.found {
            SumsFound::Same => false,
            SumsFound::New | SumsFound::Differ => true,
            // What an answer does not mention differs.
            SumsFound::Some(bits) => bits
                .get(nth / 8)
                .is_none_or(|byte| byte >> (nth % 8) & 1 == 1),
        };
        let mut compared = Compared::default();
        for (nth, found) in entries.into_iter().enumerate() {
            if differs(nth) {
                compared.differ.push(found);
            } else if found.entry.kind == EntryKind::File {
                compared.files += 1;
                compared.bytes += found.entry.size;
            }
        }
        directory.announced += compared.differ.len() as u64;
        compared.end = self.end_if_over(id);
        Ok(compared)
    }

    /// Removes a directory that the walk has left and of which nothing is held any more.
    fn end_if_over(&mut self, id: EntryId) -> Option<EntryEnd> {
        let directory = self.directories.get(&id)?;
        let children = directory.children?;
        if !directory.parts.is_empty() || !directory.gathered.is_empty() {
            return None;
        }
        let end = end_of(id, children + directory.announced);
        self.directories.remove(&id);
        Some(end)
    }

    /// Takes the questions to be sent.
    pub(super) fn take_questions(&mut self) -> (Vec<DirectorySum>, Vec<EntrySums>) {
        self.summed = 0;
        (
            std::mem::take(&mut self.sums),
            std::mem::take(&mut self.entry_sums),
        )
    }

    pub(super) fn has_many_questions(&self) -> bool {
        self.sums.len() >= 64 || self.summed >= ASKED_ENTRIES || !self.entry_sums.is_empty()
    }

    /// True if no more entries should be held back before some are compared.
    pub(super) fn is_full(&self) -> bool {
        let has_many = self.directories.len() >= DIRECTORIES_MAX;
        self.unanswered > 0 && (self.holds_much() || has_many)
    }

    fn holds_much(&self) -> bool {
        self.held >= HELD_MAX || self.held_bytes >= self.bytes_max
    }

    /// True if the receiver has not answered everything.
    pub(super) fn is_waiting(&self) -> bool {
        self.unanswered > 0
    }
}

impl SumTerms {
    fn sum(&self, found: &FoundFile) -> Digest {
        if self.changes.is_empty() {
            return found.entry.sum(&self.key, &self.keep, self.has_time);
        }
        let mut entry = found.entry.clone();
        change(&mut entry, &self.changes);
        entry.sum(&self.key, &self.keep, self.has_time)
    }
}

/// Bytes of memory, about.
fn weight(entries: &[FoundFile]) -> usize {
    entries.iter().map(|found| entry_weight(&found.entry)).sum()
}

/// As the receiver adds it up.
pub(in crate::pipeline) fn first_half(sum: &Digest) -> u128 {
    let (half, _) = sum.split_at(16);
    u128::from_le_bytes(half.try_into().unwrap_or_default())
}

fn end_of(entry: EntryId, children: u64) -> EntryEnd {
    EntryEnd {
        entry,
        length: children,
        root: None,
    }
}
