//! The receiver's side of sums: it sums up the directories at the destination, and reports which
//! entries of the source exist there unchanged.

use std::collections::HashMap;
use std::sync::Arc;

use super::entries::Entries;
use crate::dest::{self, EarlierEntry, EntrySlot};
use crate::digest::Digest;
use crate::dir::Dir;
use crate::dir::attributes::OwnerNames;
use crate::earlier::Reuse;
use crate::keep::UnchangedBy;
use crate::manifest::{Entry, EntryId, EntryKind, Name};
use crate::pipeline::send::sums::first_half;
use crate::threads;
use crate::wire::message::{DirectorySum, EntrySums, SHORT_SUM, SUMS_MAX, SumsAnswer, SumsFound};

/// Most entries of a directory whose short sums are kept, in some 40 MB. The others count as
/// changed, so each is compared by itself.
const ENTRIES_MAX: usize = 1 << 20;

/// Most entries of directories that differ and that are kept for the questions about their entries,
/// in some 20 MB. Others are read again.
const DIFFERING_MAX: usize = 1 << 19;

/// Most bytes of a directory of an earlier copy, whose names are kept too.
const LINKABLE_BYTES_MAX: usize = 24 << 20;

/// Approximate bytes of an entry there without its name, and of a short sum.
const LINKABLE: usize = 128;
const SHORT: usize = 40;

/// Small files that are read at a time (`--checksum`).
const READ_AT_ONCE: usize = 1024;

/// The sums of the destination's directories.
pub(super) struct OwnSums {
    key: Digest,
    names: OwnerNames,
    spellings: dest::Spellings,
    /// The directory that was read last.
    last: Option<(EntryId, EntriesThere)>,
    /// Directories that differ as a whole, until each of their entries is asked about.
    differing: HashMap<EntryId, EntriesThere>,
    /// Number of their entries, by [`weight`].
    differing_entries: usize,
}

/// The entries of a directory.
#[derive(Default)]
struct EntriesThere {
    entries: u64,
    sum: u128,
    /// The short sum of each entry, and the size of a file; None for other entries.
    short: Vec<([u8; SHORT_SUM], Option<u64>)>,
    /// They are sorted, so that one can be found.
    is_sorted: bool,
    /// Set for a directory of an earlier copy, whose equal entries are linked into the new one.
    links: Option<Linkable>,
}

/// The number of its entries, and more for the directory and for names, which take as much memory.
fn weight(there: &EntriesThere) -> usize {
    let names = there.links.as_ref().map_or(0, |links| links.bytes / SHORT);
    there.short.len() + 8 + names
}

/// The entries of a directory of an earlier copy, and the new directory.
struct Linkable {
    new: Arc<Dir>,
    old: Arc<Dir>,
    /// Name, device and inode by short sum.
    entries: HashMap<[u8; SHORT_SUM], (Name, (u64, u64))>,
    /// Approximate bytes of `entries`.
    bytes: usize,
}

impl Linkable {
    /// Makes an entry of the earlier copy an entry of the new directory. False if that is not
    /// possible: then it is announced, and copied or sent.
    fn link(&self, entries: &Entries, sum: &[u8; SHORT_SUM]) -> bool {
        let Some((name, inode)) = self.entries.get(sum) else {
            return false;
        };
        let Some(found) = EarlierEntry::equal(&self.old, name, *inode, &entries.rules) else {
            return false;
        };
        let slot = EntrySlot::new(self.new.clone(), name.clone());
        if entries.rules.check_name(&slot).is_err() {
            return false;
        }
        let linked = found.link_to(&slot, &entries.rules);
        matches!(linked, Ok(Some(_)))
    }
}

impl EntriesThere {
    fn add(&mut self, sum: &Digest, entry: &Entry) {
        self.sum = self.sum.wrapping_add(first_half(sum));
        let (short, _) = sum.split_at(SHORT_SUM);
        let size = (entry.kind == EntryKind::File).then_some(entry.size);
        self.short
            .push((short.try_into().unwrap_or_default(), size));
    }

    fn sort(&mut self) {
        if !std::mem::replace(&mut self.is_sorted, true) {
            self.short.sort_unstable();
        }
    }

    /// The size of the file with this sum, if the receiver has such an entry, or has linked it now.
    /// The sums must be sorted.
    fn find(&self, entries: &Entries, sum: &[u8; SHORT_SUM]) -> Option<Option<u64>> {
        let at = self.short.binary_search_by_key(sum, |(short, _)| *short);
        let (_, size) = self.short.get(at.ok()?)?;
        let links = self.links.as_ref();
        links
            .is_none_or(|links| links.link(entries, sum))
            .then_some(*size)
    }

    /// True if the receiver has all entries, or has linked all of an earlier copy now.
    fn has_all(&self, entries: &Entries) -> bool {
        let Some(links) = &self.links else {
            return true;
        };
        self.short.iter().all(|(sum, _)| links.link(entries, sum))
    }
}

/// Number and bytes of files.
#[derive(Clone, Copy, Default)]
struct FileSum {
    files: u64,
    bytes: u64,
}

impl FileSum {
    fn add(&mut self, size: Option<u64>) {
        if let Some(size) = size {
            self.files += 1;
            self.bytes = self.bytes.saturating_add(size);
        }
    }
}

impl OwnSums {
    pub(super) fn new(key: Digest) -> OwnSums {
        OwnSums {
            key,
            names: OwnerNames::default(),
            spellings: dest::Spellings::default(),
            last: None,
            differing: HashMap::new(),
            differing_entries: 0,
        }
    }

    /// Compares a whole directory; None if the sender may not ask about it.
    pub(super) fn whole(&mut self, entries: &Entries, asked: &DirectorySum) -> Option<SumsAnswer> {
        let there = match self.directory(entries, asked.directory)? {
            There::Read(there) => there,
            There::New => return Some(answer(asked.directory, 0, SumsFound::New)),
        };
        let is_same = there.entries == asked.entries
            && there.sum.to_le_bytes() == asked.sum
            && there.has_all(entries);
        if !is_same {
            self.keep_last();
            return Some(answer(asked.directory, 0, SumsFound::Differ));
        }
        // Entries of a directory that differs are counted with their own answers.
        if there.links.is_some() {
            entries.reused.add_linked(there.short.len() as u64);
        }
        let mut files = FileSum::default();
        there.short.iter().for_each(|(_, size)| files.add(*size));
        Some(counted(
            entries,
            files,
            answer(asked.directory, 0, SumsFound::Same),
        ))
    }

    /// Compares some entries of a directory; None if the sender may not ask about it, or if the
    /// question is malformed.
    pub(super) fn some(&mut self, entries: &Entries, asked: &EntrySums) -> Option<SumsAnswer> {
        let (sums, rest) = asked.sums.as_chunks::<SHORT_SUM>();
        if !rest.is_empty() || sums.len() > SUMS_MAX {
            return None;
        }
        if matches!(self.directory(entries, asked.directory)?, There::New) {
            return Some(answer(asked.directory, asked.part, SumsFound::New));
        }
        let (_, there) = self.last.as_mut()?;
        there.sort();
        let mut files = FileSum::default();
        let mut linked = 0;
        let mut bits = vec![0; sums.len().div_ceil(8)];
        for (nth, sum) in sums.iter().enumerate() {
            match there.find(entries, sum) {
                Some(size) => {
                    files.add(size);
                    linked += u64::from(there.links.is_some());
                }
                None => bits[nth / 8] |= 1 << (nth % 8),
            }
        }
        entries.reused.add_linked(linked);
        let found = answer(asked.directory, asked.part, SumsFound::Some(bits));
        Some(counted(entries, files, found))
    }

    /// Keeps the last directory until each of its entries is asked about.
    fn keep_last(&mut self) {
        let has_room = |(_, there): &mut (EntryId, EntriesThere)| {
            self.differing_entries + weight(there) <= DIFFERING_MAX
        };
        if let Some((id, there)) = self.last.take_if(has_room) {
            self.differing_entries += weight(&there);
            self.differing.insert(id, there);
        }
    }

    /// The content of a directory, read now if it is not the last one.
    fn directory(&mut self, entries: &Entries, id: EntryId) -> Option<There<'_>> {
        if let Some(there) = self.differing.remove(&id) {
            self.differing_entries -= weight(&there);
            self.last = Some((id, there));
        }
        let is_last = self.last.as_ref().is_some_and(|(last, _)| *last == id);
        if !is_last {
            let (comparable, is_shared) = {
                let table = entries.table();
                let is_shared =
                    table.roots.beside(id).is_some() || table.directories.is_merging(id);
                (table.directories.comparable(id)?, is_shared)
            };
            // Each name is compared with those of other sources when it is announced.
            if is_shared {
                return Some(There::New);
            }
            let Some(dir) = comparable else {
                return self.earlier(entries, id);
            };
            // A snapshot needs every entry announced: it removes all others at the end.
            if entries.rules.snapshot {
                return Some(There::New);
            }
            // There each name is compared with the others when it is announced.
            if self.spellings.may_confuse(&dir, &entries.rules) {
                return Some(There::New);
            }
            // A directory that cannot be read has nothing to compare; its files fail, or not, one
            // by one.
            let there = self.read(entries, &dir).unwrap_or_default();
            self.last = Some((id, there));
        }
        let (_, there) = self.last.as_ref()?;
        Some(There::Read(there))
    }

    /// The entries of the same directory in an earlier copy, for a directory that this copy made.
    fn earlier(&mut self, entries: &Entries, id: EntryId) -> Option<There<'_>> {
        if entries.rules.earlier != Some(Reuse::Link) {
            return Some(There::New);
        }
        let linkable = entries.table().directories.linkable(id);
        let Some((new, old)) = linkable else {
            return Some(There::New);
        };
        if self.spellings.may_confuse(&new, &entries.rules) {
            return Some(There::New);
        }
        let there = self.read_earlier(entries, new, old).unwrap_or_default();
        self.last = Some((id, there));
        let (_, there) = self.last.as_ref()?;
        Some(There::Read(there))
    }

    fn read_earlier(
        &mut self,
        entries: &Entries,
        new: Arc<Dir>,
        old: Arc<Dir>,
    ) -> std::io::Result<EntriesThere> {
        let rules = &entries.rules;
        let mut there = EntriesThere::default();
        // The contents of files are compared one by one.
        if rules.update.unchanged_by == UnchangedBy::Content {
            return Ok(there);
        }
        let has_time = rules.update.sums_have_times(&rules.keep);
        let key = self.key;
        let (mut linkable, mut bytes) = (HashMap::new(), 0);
        dest::entries_to_link(&old, rules, &mut self.names, |entry| {
            there.entries += 1;
            if bytes >= LINKABLE_BYTES_MAX {
                return;
            }
            bytes += LINKABLE + entry.name.as_bytes().len();
            let sum = entry.sum(&key, &rules.keep, has_time);
            there.add(&sum, &entry);
            let (short, _) = sum.split_at(SHORT_SUM);
            let short = short.try_into().unwrap_or_default();
            // Otherwise it counts as changed, and is refused when it is announced.
            let slot = EntrySlot::new(new.clone(), entry.name.clone());
            if !entries.reused.may_link(&slot, &entry).unwrap_or(false) {
                return;
            }
            linkable.insert(short, (entry.name, (entry.dev, entry.ino)));
        })?;
        there.links = Some(Linkable {
            new,
            old,
            entries: linkable,
            bytes,
        });
        Ok(there)
    }

    fn read(&mut self, entries: &Entries, dir: &Arc<Dir>) -> std::io::Result<EntriesThere> {
        let rules = &entries.rules;
        let has_time = rules.update.sums_have_times(&rules.keep);
        let mut there = EntriesThere::default();
        let key = self.key;
        let mut add = |entry: &Entry| {
            there.entries += 1;
            // The name is noted when the entry is announced.
            let backup = rules.backup.as_ref();
            if backup.is_some_and(|backup| backup.is_backup(entry.name.as_bytes())) {
                return;
            }
            if there.short.len() >= ENTRIES_MAX {
                return;
            }
            there.add(&entry.sum(&key, &rules.keep, has_time), entry);
        };
        if rules.update.unchanged_by != UnchangedBy::Content {
            dest::entries_in(dir, rules, &mut self.names, |entry| add(&entry))?;
            return Ok(there);
        }
        let mut unread = Vec::new();
        let mut others = 0;
        let is_ending = || entries.context().is_ending();
        let mut add_read = |unread: &mut Vec<Entry>| {
            threads::share(unread, |entry| {
                if !is_ending() {
                    dest::read_content(dir, entry);
                }
            });
            for entry in unread.drain(..) {
                // A large file is compared by itself, and one that cannot be read is sent.
                match entry.kind == EntryKind::File && entry.content().is_none() {
                    true => others += 1,
                    false => add(&entry),
                }
            }
        };
        dest::entries_in(dir, rules, &mut self.names, |entry| {
            unread.push(entry);
            if unread.len() >= READ_AT_ONCE {
                add_read(&mut unread);
            }
        })?;
        add_read(&mut unread);
        there.entries += others;
        Ok(there)
    }
}

enum There<'a> {
    Read(&'a EntriesThere),
    /// The copy made the directory, or its entries are compared one by one.
    New,
}

fn answer(directory: EntryId, part: u32, found: SumsFound) -> SumsAnswer {
    SumsAnswer {
        directory,
        part,
        files: 0,
        found,
    }
}

/// Counts unchanged files at this end, and tells the other end their number.
fn counted(entries: &Entries, files: FileSum, answer: SumsAnswer) -> SumsAnswer {
    let FileSum { files, bytes } = files;
    let progress = &entries.context().progress;
    progress.add_unchanged_files(files, bytes);
    SumsAnswer { files, ..answer }
}
