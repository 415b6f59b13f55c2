//! A table in a file without a name, for more records than memory should hold. The file needs about
//! 100 bytes for each record, and is gone when the process ends.
//!
//! It is a hash table of pages. A record is appended to the page that the hash of its key gives, or
//! to the next one that is not full (linear probing: Knuth, The Art of Computer Programming, volume
//! 3, section 6.4). A new record costs one write. A search usually costs one read. A search for a
//! missing key usually costs none, because a Bloom filter (Communications of the ACM 13, 1970)
//! answers it.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Two numbers, not both [`u64::MAX`].
pub type Key = [u64; 2];

/// Bytes of a record's value.
pub const VALUE: usize = 32;

pub type Value = [u8; VALUE];

/// Makes an empty file that has no name, for reading and writing.
pub type MakeFile = Box<dyn Fn() -> io::Result<File> + Send>;

const PAGE: usize = 4096;
const SLOT: usize = size_of::<Key>() + VALUE;
const SLOTS: usize = PAGE / SLOT;

/// Pages of an empty table, and most pages: 4 GiB, for 67 million records.
const PAGES_MIN: u64 = 1 << 8;
const PAGES_MAX: u64 = 1 << 20;

/// Slots that a page may use on average. With more, a search reads several pages.
const FULL: u64 = SLOTS as u64 * 3 / 4;

/// The key of a removed record.
const REMOVED: Key = [u64::MAX; 2];

pub struct DiskTable {
    make_file: MakeFile,
    file: File,
    /// Used slots of each page. The number of pages is a power of two.
    used: Vec<u8>,
    /// Used slots of all pages, and the records in them.
    slots: u64,
    records: u64,
    filter: BloomFilter,
    /// Random, so that a peer cannot choose keys that make searches long.
    hasher: RandomState,
}

struct FoundRecord {
    /// The offset of the slot.
    offset: u64,
    value: Value,
}

impl DiskTable {
    /// # Errors
    /// If the file cannot be made.
    pub fn new(make_file: MakeFile) -> io::Result<DiskTable> {
        Ok(DiskTable {
            file: make(&make_file, PAGES_MIN)?,
            make_file,
            used: vec![0; PAGES_MIN as usize],
            slots: 0,
            records: 0,
            filter: BloomFilter::for_pages(PAGES_MIN),
            hasher: RandomState::new(),
        })
    }

    /// # Errors
    /// If the file cannot be read.
    pub fn get(&self, key: Key) -> io::Result<Option<Value>> {
        Ok(self.find(key)?.map(|found| found.value))
    }

    /// Adds a record, or replaces the value of the one with this key. After an error, records may be
    /// missing.
    ///
    /// # Errors
    /// If the file cannot be read or written, or the table is full.
    pub fn put(&mut self, key: Key, value: Value) -> io::Result<()> {
        if key == REMOVED {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Some(found) = self.find(key)? {
            let value_at = found.offset + size_of::<Key>() as u64;
            return self.file.write_all_at(&value, value_at);
        }
        if self.slots >= self.pages() * FULL {
            self.grow()?;
        }
        self.append(key, &value)
    }

    /// Removes the record with this key, if there is one.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn remove(&mut self, key: Key) -> io::Result<()> {
        if let Some(found) = self.find(key)? {
            let slot = slot(REMOVED, &found.value);
            self.file.write_all_at(&slot, found.offset)?;
            self.records -= 1;
        }
        Ok(())
    }

    fn pages(&self) -> u64 {
        self.used.len() as u64
    }

    /// The first page for a key with this hash. It is of the high bits: when the table grows, the
    /// records of a page go to two neighbours.
    fn page_of(&self, hash: u64) -> u64 {
        hash >> (64 - self.pages().ilog2())
    }

    fn find(&self, key: Key) -> io::Result<Option<FoundRecord>> {
        let hash = self.hasher.hash_one(key);
        if !self.filter.may_have(hash) {
            return Ok(None);
        }
        let first = self.page_of(hash);
        let mut page = [0; PAGE];
        for number in (first..self.pages()).chain(0..first) {
            let used = usize::from(self.used[number as usize]);
            let start = number * PAGE as u64;
            let slots = &mut page[..used * SLOT];
            self.file.read_exact_at(slots, start)?;
            for (index, slot) in slots.chunks_exact(SLOT).enumerate() {
                let (found, value) = parse(slot);
                if found == key {
                    let offset = start + (index * SLOT) as u64;
                    return Ok(Some(FoundRecord { offset, value }));
                }
            }
            if used < SLOTS {
                break;
            }
        }
        Ok(None)
    }

    /// Adds a record that the table does not have.
    fn append(&mut self, key: Key, value: &Value) -> io::Result<()> {
        let hash = self.hasher.hash_one(key);
        let first = self.page_of(hash);
        let mut pages = (first..self.pages()).chain(0..first);
        let page = pages.find(|page| usize::from(self.used[*page as usize]) < SLOTS);
        let page = page.ok_or_else(full)?;
        let used = &mut self.used[page as usize];
        let offset = page * PAGE as u64 + u64::from(*used) * SLOT as u64;
        self.file.write_all_at(&slot(key, value), offset)?;
        *used += 1;
        self.slots += 1;
        self.records += 1;
        self.filter.add(hash);
        Ok(())
    }

    /// Moves the records to another file: a larger one, unless most slots are of removed records.
    fn grow(&mut self) -> io::Result<()> {
        let pages = match self.records * 2 > self.slots {
            true => self.pages() * 2,
            false => self.pages(),
        };
        if pages > PAGES_MAX {
            return Err(full());
        }
        let file = make(&self.make_file, pages)?;
        let old = std::mem::replace(&mut self.file, file);
        let old_used = std::mem::replace(&mut self.used, vec![0; pages as usize]);
        self.filter = BloomFilter::for_pages(pages);
        (self.slots, self.records) = (0, 0);
        let mut page = [0; PAGE];
        for (number, used) in old_used.into_iter().enumerate() {
            let slots = &mut page[..usize::from(used) * SLOT];
            old.read_exact_at(slots, (number * PAGE) as u64)?;
            for slot in slots.chunks_exact(SLOT) {
                let (key, value) = parse(slot);
                if key != REMOVED {
                    self.append(key, &value)?;
                }
            }
        }
        Ok(())
    }
}

/// A Bloom filter: a set of hashes that may seem to have a few more.
struct BloomFilter {
    bits: Vec<u64>,
}

impl BloomFilter {
    /// Bits that a hash sets.
    const PER_HASH: u64 = 4;
    /// Most memory of the bits. Beyond 7 million records the filter answers less often.
    const BYTES_MAX: usize = 8 << 20;

    /// 8 bits for each slot, so at least 10 for each record.
    fn for_pages(pages: u64) -> BloomFilter {
        let bytes = (pages as usize * SLOTS).min(BloomFilter::BYTES_MAX);
        BloomFilter {
            bits: vec![0; bytes / 8],
        }
    }

    fn add(&mut self, hash: u64) {
        for bit in self.bits_of(hash) {
            self.bits[bit / 64] |= 1 << (bit % 64);
        }
    }

    fn may_have(&self, hash: u64) -> bool {
        self.bits_of(hash)
            .all(|bit| self.bits[bit / 64] & (1 << (bit % 64)) != 0)
    }

    /// Two halves of the hash make all positions (Kirsch and Mitzenmacher, Less Hashing, Same
    /// Performance, 2006).
    fn bits_of(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let (first, step) = (hash >> 32, hash << 32 >> 32 | 1);
        let all = self.bits.len() as u64 * 64;
        (0..BloomFilter::PER_HASH).map(move |n| ((first + n * step) % all) as usize)
    }
}

/// A file without a name in a directory for temporary files: $TMPDIR, /var/tmp or /tmp.
///
/// # Errors
/// That of the last directory, if none of them can have one.
pub fn temporary_file() -> io::Result<File> {
    let from_user = std::env::var_os("TMPDIR").map(PathBuf::from);
    // /tmp is often in memory.
    let usual = ["/var/tmp", "/tmp"].map(PathBuf::from);
    let mut last = io::ErrorKind::NotFound.into();
    for dir in from_user.into_iter().chain(usual) {
        match tempfile::tempfile_in(&dir) {
            Ok(file) => return Ok(file),
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

fn make(make_file: &MakeFile, pages: u64) -> io::Result<File> {
    let file = make_file()?;
    file.set_len(pages * PAGE as u64)?;
    Ok(file)
}

fn full() -> io::Error {
    io::Error::other("the table has no more room")
}

fn slot(key: Key, value: &Value) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[..8].copy_from_slice(&key[0].to_le_bytes());
    slot[8..16].copy_from_slice(&key[1].to_le_bytes());
    slot[16..].copy_from_slice(value);
    slot
}

/// The key and the value of a slot.
fn parse(slot: &[u8]) -> (Key, Value) {
    let number = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("8 bytes"));
    let value = slot[16..].try_into().expect("the rest of a slot");
    ([number(0), number(8)], value)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn table() -> DiskTable {
        DiskTable::new(Box::new(temporary_file)).unwrap()
    }

    fn value(number: u64) -> Value {
        let mut value = [0; VALUE];
        value[..8].copy_from_slice(&number.to_le_bytes());
        value
    }

    #[test]
    fn it_holds_what_a_map_holds() {
        let (mut table, mut map) = (table(), HashMap::new());
        let mut random = fastrand::Rng::with_seed(7);
        for step in 0..150_000 {
            let key = [random.u64(1..60_000), 1];
            match random.u8(..4) {
                0 => {
                    table.remove(key).unwrap();
                    map.remove(&key);
                }
                1 => assert_eq!(table.get(key).unwrap(), map.get(&key).copied()),
                _ => {
                    table.put(key, value(step)).unwrap();
                    map.insert(key, value(step));
                }
            }
        }
        assert_eq!(table.records, map.len() as u64);
        assert!(table.pages() > PAGES_MIN);
        for number in 1..60_000 {
            let key = [number, 1];
            assert_eq!(table.get(key).unwrap(), map.get(&key).copied());
        }
    }

    #[test]
    fn removed_records_make_room() {
        let mut table = table();
        for number in 0..100_000 {
            table.put([number, 0], value(number)).unwrap();
            table.remove([number, 0]).unwrap();
        }
        assert_eq!((table.records, table.pages()), (0, PAGES_MIN));
    }

    #[test]
    fn the_key_of_removed_records_is_refused() {
        let mut table = table();
        assert!(table.put(REMOVED, value(1)).is_err());
        assert_eq!(table.get(REMOVED).unwrap(), None);
    }

    #[test]
    fn an_error_of_the_file_is_reported() {
        let read_only = || File::open("/dev/zero");
        // Setting the length of a device fails.
        assert!(DiskTable::new(Box::new(read_only)).is_err());
    }
}
