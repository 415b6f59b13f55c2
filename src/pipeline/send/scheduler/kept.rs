//! Small files that the receiver has from an earlier session and verifies while other files are
//! sent. Of each, the sender keeps only enough to find the file again, so the walk does not wait
//! until all are verified. Files that the receiver finds damaged are packed and sent.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::dir::Dir;
use crate::keep::Keep;
use crate::manifest::{Entry, EntryId, EntryKind, Identity, Name, Timestamp};
use crate::source::FoundFile;

/// The most memory in bytes, enough for some 270,000 files with names of 20 bytes. Beyond this the
/// walk waits.
const BYTES_MAX: usize = 12 << 20;

/// Files in a block: one for each bit of a word.
const BLOCK_FILES: usize = 64;

/// The approximate size of a block in bytes, without files, directories and names.
const BLOCK_BYTES: usize = size_of::<Block>() + 64;

#[derive(Default)]
pub(super) struct KeptFiles {
    /// Keyed by the number of the first file. Each block begins after the end of the one before.
    blocks: BTreeMap<EntryId, Block>,
    /// The number of the last file that was added.
    last: EntryId,
    count: u64,
    bytes: usize,
}

/// Consecutive files. The memory of a removed file is freed along with its block.
#[derive(Default)]
struct Block {
    homes: Vec<Home>,
    files: Vec<SmallFile>,
    /// The names, without separators.
    names: Vec<u8>,
    /// The files that are still kept, as bits.
    left: u64,
    /// The files that were found damaged, as bits.
    damaged: u64,
}

/// The directory of one or more files.
struct Home {
    parent: EntryId,
    dir: Arc<Dir>,
    dev: u64,
}

struct SmallFile {
    ino: u64,
    /// The file's number minus the number of the block's first file.
    after: u32,
    size: u32,
    /// The end of its name in `names`.
    name_end: u16,
    home: u8,
    through_link: bool,
    /// Hard links to it may follow.
    has_links: bool,
}

/// A number of files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub files: u64,
    pub bytes: u64,
}

impl KeptFiles {
    /// Adds a file. False if more must be known about it than is kept here.
    pub(super) fn add(&mut self, found: &FoundFile) -> bool {
        let FoundFile {
            entry,
            dir,
            name,
            identity,
            through_link,
            keep,
            ..
        } = found;
        let Ok(size) = u32::try_from(entry.size) else {
            return false;
        };
        let is_plain = entry.kind == EntryKind::File
            && entry.name == *name
            && entry.extensions.is_empty()
            && !keep.has_names()
            && !keep.has_attributes();
        if !is_plain || entry.id <= self.last {
            return false;
        }
        let (first, home) = self.room_for(entry.id, entry.parent, dir, identity.dev);
        let Some(block) = self.blocks.get_mut(&first) else {
            return false;
        };
        block.names.extend_from_slice(name.as_bytes());
        block.left |= 1 << block.files.len();
        block.files.push(SmallFile {
            ino: identity.ino,
            after: (entry.id - first) as u32,
            size,
            name_end: block.names.len() as u16,
            home,
            through_link: *through_link,
            has_links: entry.links > 1,
        });
        self.bytes += size_of::<SmallFile>() + name.as_bytes().len();
        self.last = entry.id;
        self.count += 1;
        true
    }

    /// Returns the block for this file, which comes after all others, and the file's directory in
    /// the block.
    fn room_for(
        &mut self,
        id: EntryId,
        parent: EntryId,
        dir: &Arc<Dir>,
        dev: u64,
    ) -> (EntryId, u8) {
        let last = self.blocks.last_entry();
        let last = last.filter(|last| {
            let is_near = id - last.key() <= u64::from(u32::MAX);
            is_near && last.get().files.len() < BLOCK_FILES
        });
        let (first, block) = match last {
            Some(last) => (*last.key(), last.into_mut()),
            None => {
                if let Some(mut full) = self.blocks.last_entry() {
                    full.get_mut().shrink();
                }
                self.bytes += BLOCK_BYTES;
                (id, self.blocks.entry(id).or_default())
            }
        };
        let is_it =
            |home: &Home| home.parent == parent && home.dev == dev && Arc::ptr_eq(&home.dir, dir);
        let home = block.homes.iter().position(is_it).unwrap_or_else(|| {
            self.bytes += size_of::<Home>();
            let dir = dir.clone();
            block.homes.push(Home { parent, dir, dev });
            block.homes.len() - 1
        });
        (first, home as u8)
    }

    /// Removes the files in `range`, which are in place or failed.
    pub(super) fn settle(&mut self, range: Range<EntryId>) -> Sum {
        let mut sum = Sum::default();
        if range.is_empty() || self.count == 0 {
            return sum;
        }
        let before = self.blocks.range(..=range.start).next_back();
        let from = before.map_or(range.start, |(&first, _)| first);
        let mut empty = Vec::new();
        for (&first, block) in self.blocks.range_mut(from..range.end) {
            for (place, file) in block.files.iter().enumerate() {
                let is_kept = block.left & 1 << place != 0;
                if is_kept && range.contains(&(first + u64::from(file.after))) {
                    block.left &= !(1 << place);
                    sum.files += 1;
                    sum.bytes += u64::from(file.size);
                }
            }
            if block.left == 0 {
                empty.push(first);
            }
        }
        for first in empty {
            if let Some(block) = self.blocks.remove(&first) {
                self.bytes -= block.weight();
            }
        }
        self.count -= sum.files;
        sum
    }

    /// Records that a file is damaged at the receiver. False if it is not kept or was already
    /// recorded.
    pub(super) fn set_damaged(&mut self, id: EntryId) -> bool {
        let place = self.place(id);
        let block = place.and_then(|(first, place)| Some((self.blocks.get_mut(&first)?, place)));
        let Some((block, place)) = block else {
            return false;
        };
        let is_new = block.damaged & 1 << place == 0;
        block.damaged |= 1 << place;
        is_new
    }

    /// The size of a file in bytes; None if it is not kept.
    pub(super) fn size(&self, id: EntryId) -> Option<u64> {
        let (first, place) = self.place(id)?;
        Some(self.blocks.get(&first)?.files[place].size.into())
    }

    fn place(&self, id: EntryId) -> Option<(EntryId, usize)> {
        let (&first, block) = self.blocks.range(..=id).next_back()?;
        let after = u32::try_from(id - first).ok()?;
        let place = block.files.binary_search_by_key(&after, |file| file.after);
        let place = place.ok().filter(|place| block.left & 1 << place != 0)?;
        Some((first, place))
    }

    /// Removes a file that will be read. The reading looks up everything that is not kept here.
    pub(super) fn take(&mut self, id: EntryId) -> Option<FoundFile> {
        let (first, place) = self.place(id)?;
        let found = self.blocks.get(&first)?.found(id, place);
        self.settle(id..id + 1);
        Some(found)
    }

    pub(super) fn has_room(&self) -> bool {
        self.bytes < BYTES_MAX
    }

    /// The number of kept files.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Block {
    fn shrink(&mut self) {
        self.homes.shrink_to_fit();
        self.files.shrink_to_fit();
        self.names.shrink_to_fit();
    }

    fn weight(&self) -> usize {
        BLOCK_BYTES + size_of_val(&self.homes[..]) + size_of_val(&self.files[..]) + self.names.len()
    }

    fn found(&self, id: EntryId, place: usize) -> FoundFile {
        let file = &self.files[place];
        let home = &self.homes[usize::from(file.home)];
        let begin = match place {
            0 => 0,
            place => self.files[place - 1].name_end,
        };
        let name = &self.names[usize::from(begin)..usize::from(file.name_end)];
        let name = Name::try_from(name.to_vec()).expect("it was a name before");
        let time = Timestamp::default();
        let identity = Identity {
            dev: home.dev,
            ino: file.ino,
            size: file.size.into(),
            mtime: time,
            ctime: time,
        };
        // Without device and inode the reading is not shared, since nothing here shows whether the
        // file changed.
        let entry = Entry {
            size: file.size.into(),
            allocated: file.size.into(),
            links: 1 + u64::from(file.has_links),
            ..Entry::new(id, home.parent, name.clone(), EntryKind::File)
        };
        FoundFile {
            entry,
            dir: home.dir.clone(),
            name,
            identity,
            through_link: file.through_link,
            // Without names and attributes it changes nothing at the sender.
            keep: Keep::default(),
            lacks_attributes: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ended, NextTask, Scheduler, SmallFileMode, UNSETTLED_ENTRIES_MAX};
    use super::*;
    use crate::chunk::ranges::RangeSet;
    use crate::dir::Handles;
    use crate::pipeline::send::plan::{PackMember, PlannedContent};

    fn dir() -> Arc<Dir> {
        Dir::root(std::path::Path::new("/"), &Arc::new(Handles::default())).unwrap()
    }

    fn name_of(id: EntryId) -> Name {
        Name::try_from(format!("{id:020}").into_bytes()).unwrap()
    }

    fn found(id: EntryId, parent: EntryId, name: Name, dir: &Arc<Dir>) -> FoundFile {
        let block = Block {
            homes: vec![Home {
                parent,
                dir: dir.clone(),
                dev: 7,
            }],
            files: vec![SmallFile {
                ino: id + 1000,
                after: 0,
                size: id as u32 % 100 + 1,
                name_end: name.as_bytes().len() as u16,
                home: 0,
                through_link: false,
                has_links: id.is_multiple_of(5),
            }],
            names: name.as_bytes().to_vec(),
            left: 1,
            damaged: 0,
        };
        block.found(id, 0)
    }

    /// Meets a file on the walk, asks about it and hears that the receiver has it. `Err` if the
    /// walk has to wait.
    fn meet(plans: &Scheduler, id: EntryId, name: Name, dir: &Arc<Dir>) -> Result<(), Ended> {
        plans.wait_entry_room(id, || Err(Ended))?;
        let found = found(id, 1, name, dir);
        let size = found.entry.size;
        plans.announcing(std::slice::from_ref(&found.entry));
        plans.ask(vec![PackMember::new(found, None)]);
        assert!(plans.hold(id, size, None).is_some());
        Ok(())
    }

    #[test]
    fn the_walk_does_not_wait_for_small_files_that_are_there() {
        let (plans, dir) = (Scheduler::default(), dir());
        let many = 5 * UNSETTLED_ENTRIES_MAX;
        for id in 1..=many {
            meet(&plans, id, name_of(id), &dir).expect("room");
        }
        let kept = |plans: &Scheduler| plans.state.lock().asked.kept_bytes();
        assert!(kept(&plans) < many as usize * 50, "{}", kept(&plans));
        assert!(!plans.state.lock().is_idle(), "none of them is settled");
        assert_eq!(plans.settle_entries(1..many + 1).kept.files, many);
        assert_eq!((kept(&plans), plans.state.lock().is_idle()), (0, true));
        // Long names fill the memory, and then the walk waits.
        let long = |id| Name::try_from(format!("{id:0255}").into_bytes()).unwrap();
        let full = (many + 1..).find(|&id| meet(&plans, id, long(id), &dir).is_err());
        let more = full.unwrap() - many;
        assert!(kept(&plans) < BYTES_MAX + 1000);
        assert!(more as usize > BYTES_MAX / 300, "{more}");
    }

    #[test]
    fn gaps_between_settled_entries_are_bounded() {
        let (plans, dir) = (Scheduler::default(), dir());
        let full = (1..).find(|&id| {
            let met = meet(&plans, id, name_of(id), &dir);
            if id % 2 == 0 {
                plans.settle_entries(id..id + 1);
            }
            met.is_err()
        });
        let full = full.unwrap();
        assert!(full > UNSETTLED_ENTRIES_MAX && full < 3 * UNSETTLED_ENTRIES_MAX);
    }

    #[test]
    fn what_is_kept_is_found_again_until_it_is_settled() {
        let dirs = [dir(), dir(), dir()];
        let mut kept = KeptFiles::default();
        let ids = || (3..2000).filter(|id| id % 7 != 0);
        let of = |id: EntryId| {
            let at = id as usize / 30 % 3;
            found(id, 1 + at as u64, name_of(id), &dirs[at])
        };
        for id in ids() {
            assert!(kept.add(&of(id)));
        }
        assert!(!kept.add(&of(100)), "they come in their order");
        assert_eq!(kept.count(), ids().count() as u64);
        let mut left: Vec<_> = ids().collect();
        for (nth, id) in ids().step_by(3).enumerate() {
            let range = match nth % 2 {
                0 => id..id + 1,
                _ => id.saturating_sub(4)..id + 9,
            };
            let (gone, rest) = left.into_iter().partition(|id| range.contains(id));
            left = rest;
            let gone: Vec<EntryId> = gone;
            let bytes = gone.iter().map(|id| id % 100 + 1).sum();
            let files = gone.len() as u64;
            assert_eq!(kept.settle(range), Sum { files, bytes });
        }
        for id in ids() {
            let is_left = left.binary_search(&id).is_ok();
            assert_eq!(kept.size(id), is_left.then_some(id % 100 + 1), "{id}");
            let Some(taken) = kept.take(id) else {
                assert!(!is_left);
                continue;
            };
            let was = of(id);
            assert_eq!((&taken.entry, taken.identity), (&was.entry, was.identity));
            assert!(Arc::ptr_eq(&taken.dir, &was.dir));
        }
        assert_eq!((kept.count(), kept.bytes, kept.blocks.len()), (0, 0, 0));
    }

    #[test]
    fn a_damaged_file_goes_into_a_pack_once() {
        let (plans, dir) = (Scheduler::default(), dir());
        plans.start(SmallFileMode::Resumes, 8);
        for id in 1..=100 {
            meet(&plans, id, name_of(id), &dir).expect("room");
        }
        let whole = |len: u64| -> RangeSet { std::iter::once(0..len).collect() };
        assert!(plans.missing(200, whole(1)).is_ok_and(|had| had.is_none()));
        assert!(plans.missing(7, whole(3)).is_err(), "a part of it");
        for id in [50, 60] {
            let had = plans.missing(id, whole(id % 100 + 1));
            assert_eq!(had.ok(), Some(Some(id % 100 + 1)));
        }
        assert!(plans.missing(50, whole(51)).is_err(), "a second time");
        plans.settle_entries(60..61);
        let Ok(NextTask::Chunk(plan)) = plans.next() else {
            panic!("a pack comes");
        };
        let PlannedContent::Pack(members) = &plan.what else {
            panic!("a pack");
        };
        let ids: Vec<_> = members.iter().map(|it| it.found.entry.id).collect();
        assert_eq!(ids, [50]);
        plans.settle_chunks(0..1, |_| {});
        plans.settle_entries(1..101);
        assert!(plans.state.lock().is_idle());
    }
}
