//! The queue of existing data to verify: open files, big finished files, and small finished files.
//! Small files are stored in so few bytes that some 300,000 of them can wait.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::open_file::OpenFile;
use super::recorded::FinishedBefore;
use crate::chunk::ranges::RangeSet;
use crate::journal::UnfinishedFile;
use crate::manifest::{Entry, EntryId, Name};

/// Finished files that may wait with all their metadata: some 4 MB. A thread that finds another one
/// reads it at once.
const PLACED_MAX: usize = 4096;

/// Memory for small files: enough for some 300,000 with names of 20 bytes.
const SMALL_BYTES_MAX: usize = 12 << 20;

/// Bytes of one part of that memory. A part is freed when all files in it were taken.
const PART: usize = 64 << 10;

/// Small files that are taken at a time.
pub const BATCH: usize = 16;

/// Something to be read.
pub enum Check {
    /// The unread ranges of an open file. Those in `certain` are trusted without reading them.
    Open {
        file: Arc<OpenFile>,
        begun: UnfinishedFile,
        certain: RangeSet,
    },
    Placed(Box<FinishedBefore>),
    Small(Vec<FinishedSmallFile>),
}

/// A small file that an earlier session finished. Its other metadata is in the journal and in its
/// directory.
#[derive(Debug, PartialEq, Eq)]
pub struct FinishedSmallFile {
    pub id: EntryId,
    pub parent: EntryId,
    pub name: Name,
    /// Bytes.
    pub size: u32,
    /// Further names of it may follow.
    pub has_links: bool,
}

/// The queue of the reading threads.
#[derive(Default)]
pub struct Checks {
    waiting: Mutex<WaitingChecks>,
    came: Condvar,
}

#[derive(Default)]
struct WaitingChecks {
    checks: VecDeque<Check>,
    small: FinishedSmallFiles,
    /// The two kinds take turns, so that neither waits until all of the other is read.
    is_small_next: bool,
    is_closed: bool,
}

/// First in, first out.
#[derive(Default)]
struct FinishedSmallFiles {
    parts: VecDeque<Vec<u8>>,
    /// Bytes of the first part that were taken.
    taken: usize,
}

impl Checks {
    pub fn add(&self, check: Check) {
        let mut waiting = self.waiting.lock();
        if !waiting.is_closed {
            waiting.checks.push_back(check);
            self.came.notify_one();
        }
    }

    /// Returns false if the queue has no room for it.
    pub fn add_small(&self, small: &FinishedSmallFile) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.small.is_full() {
            return false;
        }
        if !waiting.is_closed {
            waiting.small.push(small);
            self.came.notify_one();
        }
        true
    }

    /// Waits for the next check; None once the copy ends.
    pub fn next(&self) -> Option<Check> {
        let mut waiting = self.waiting.lock();
        self.came.wait_while(&mut waiting, |waiting| {
            waiting.is_idle() && !waiting.is_closed
        });
        waiting.pop()
    }

    pub fn is_full(&self) -> bool {
        self.waiting.lock().checks.len() >= PLACED_MAX
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.lock().is_idle()
    }

    /// Drops the remaining checks and wakes all waiting threads.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        let left = std::mem::take(&mut waiting.checks);
        let small = std::mem::take(&mut waiting.small);
        drop(waiting);
        self.came.notify_all();
        drop((left, small));
    }
}

impl WaitingChecks {
    fn is_idle(&self) -> bool {
        self.checks.is_empty() && self.small.is_empty()
    }

    fn pop(&mut self) -> Option<Check> {
        let is_small = self.is_small_next || self.checks.is_empty();
        self.is_small_next = !is_small;
        if is_small && !self.small.is_empty() {
            let small = std::iter::from_fn(|| self.small.pop());
            return Some(Check::Small(small.take(BATCH).collect()));
        }
        self.checks.pop_front()
    }
}

impl FinishedSmallFile {
    /// None if the file's size does not fit into the field.
    pub fn of(entry: &Entry) -> Option<FinishedSmallFile> {
        Some(FinishedSmallFile {
            id: entry.id,
            parent: entry.parent,
            name: entry.name.clone(),
            size: u32::try_from(entry.size).ok()?,
            has_links: entry.links > 1,
        })
    }
}

impl FinishedSmallFiles {
    fn push(&mut self, small: &FinishedSmallFile) {
        let name = small.name.as_bytes();
        let head = [
            &small.id.to_le_bytes()[..],
            &small.parent.to_le_bytes(),
            &small.size.to_le_bytes(),
            // Names have at most 255 bytes.
            &[u8::from(small.has_links), name.len() as u8],
        ];
        let len = HEAD + name.len();
        let room = |part: &Vec<u8>| part.capacity() - part.len();
        if self.parts.back().is_none_or(|part| room(part) < len) {
            self.parts.push_back(Vec::with_capacity(PART));
        }
        let Some(part) = self.parts.back_mut() else {
            return;
        };
        head.iter().for_each(|field| part.extend_from_slice(field));
        part.extend_from_slice(name);
    }

    fn pop(&mut self) -> Option<FinishedSmallFile> {
        let part = self.parts.front()?;
        let (head, rest) = part[self.taken..].split_first_chunk::<HEAD>()?;
        let number = |at: usize| {
            let bytes = head[at..at + 8].try_into().expect("8 bytes");
            u64::from_le_bytes(bytes)
        };
        let size = head[16..20].try_into().expect("4 bytes");
        let name_len = usize::from(head[21]);
        let small = FinishedSmallFile {
            id: number(0),
            parent: number(8),
            name: Name::try_from(rest[..name_len].to_vec()).expect("it was a name before"),
            size: u32::from_le_bytes(size),
            has_links: head[20] != 0,
        };
        self.taken += HEAD + name_len;
        if self.taken == part.len() {
            self.taken = 0;
            self.parts.pop_front();
        }
        Some(small)
    }

    fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn is_full(&self) -> bool {
        self.parts.len() * PART >= SMALL_BYTES_MAX
    }
}

/// Bytes of a small file without its name.
const HEAD: usize = 8 + 8 + 4 + 1 + 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn small(id: EntryId) -> FinishedSmallFile {
        let name = format!("{id:0len$}", len = 1 + id as usize % 255);
        FinishedSmallFile {
            id,
            parent: id / 7,
            name: Name::try_from(name.into_bytes()).unwrap(),
            size: (id * 31) as u32,
            has_links: id.is_multiple_of(3),
        }
    }

    #[test]
    fn small_files_are_taken_in_the_order_in_which_they_came_and_as_they_were() {
        let checks = Checks::default();
        let mut next = 1;
        let mut take = |checks: &Checks| match checks.next() {
            Some(Check::Small(files)) => files.iter().for_each(|file| {
                assert_eq!(*file, small(next));
                next += 1;
            }),
            _ => panic!("nothing else waits"),
        };
        let mut id = 0;
        while checks.waiting.lock().small.parts.len() < 4 {
            id += 1;
            assert!(checks.add_small(&small(id)));
            if id % 100 == 0 {
                take(&checks);
            }
        }
        while !checks.is_idle() {
            take(&checks);
        }
        assert_eq!(next, id + 1);
        assert_eq!(checks.waiting.lock().small.taken, 0);
    }

    #[test]
    fn small_files_have_bounded_room() {
        let checks = Checks::default();
        let count = (1..).find(|&id| !checks.add_small(&small(id))).unwrap();
        assert!(count > SMALL_BYTES_MAX as u64 / 300, "{count}");
        let waiting = checks.waiting.lock();
        let taken: usize = waiting.small.parts.iter().map(Vec::capacity).sum();
        assert!(taken <= SMALL_BYTES_MAX, "{taken}");
    }
}
