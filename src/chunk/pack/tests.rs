//! Both halves of a pack against each other, and against arbitrary input from a peer.

use super::*;
use crate::chunk::pack::read::split;
use crate::chunk::pack::write::record_bound;
use crate::chunk::{Buffer, Chunk, ChunkKind, ChunkPlace};
use crate::manifest::{EXTENSIONS_MAX, EntryKind, Extension, Name, Timestamp};
use proptest::prelude::*;

fn entry(id: u64, name: &[u8], size: u64) -> Entry {
    let time = Timestamp {
        s: i64::MIN,
        ns: u32::MAX,
    };
    Entry {
        id,
        parent: u64::MAX,
        name: Name::try_from(name.to_vec()).unwrap(),
        kind: EntryKind::File,
        mode: u32::MAX,
        uid: u32::MAX,
        gid: u32::MAX,
        user: vec![b'u'; 32],
        group: vec![b'g'; 200],
        size,
        allocated: u64::MAX,
        mtime: time,
        atime: time,
        ctime: time,
        birth: time,
        dev: u64::MAX,
        ino: u64::MAX,
        links: u64::MAX,
        rdev: u64::MAX,
        extensions: vec![Extension {
            tag: u16::MAX,
            bytes: vec![1; 300],
        }],
    }
}

/// An entry as a directory walk finds it, with all fields that differ between files.
fn common(id: u64, name: &[u8], size: u64) -> Entry {
    let extension = Extension {
        tag: 5,
        bytes: vec![],
    };
    let time = |ns: u64| Timestamp {
        s: 1_790_000_000 + (id / 3) as i64,
        ns: (ns * (id + 1) % 1_000_000_000) as u32,
    };
    Entry {
        parent: 7,
        mode: 0o644,
        uid: 1000,
        gid: id as u32 % 2,
        user: b"me".to_vec(),
        group: vec![b'g'; id as usize % 2],
        extensions: vec![extension; usize::from(id.is_multiple_of(7))],
        allocated: size.next_multiple_of(4096),
        mtime: time(123_456_789),
        atime: time(987_654_321),
        ctime: time(123_456_789),
        birth: Timestamp::default(),
        dev: 66,
        ino: 4_000_000 - 2 * id,
        links: 1 + id % 2,
        rdev: 0,
        ..entry(id, name, size)
    }
}

fn packed(contents: &[Vec<u8>]) -> (Chunk, Digest) {
    packed_as(TableForm::Records, contents, entry)
}

fn packed_as(
    form: TableForm,
    contents: &[Vec<u8>],
    entry: fn(u64, &[u8], u64) -> Entry,
) -> (Chunk, Digest) {
    let mut buffer = Buffer::loose(CHUNK_SIZE);
    let mut pack = PackWriter::new(&mut buffer, form);
    for (id, content) in contents.iter().enumerate() {
        let entry = entry(id as u64, b"name", content.len() as u64);
        pack.room(&entry).unwrap().copy_from_slice(content);
        pack.push(entry);
    }
    let (raw_len, digest) = pack.finish();
    (chunk(buffer, raw_len), digest)
}

fn chunk(buffer: Buffer, raw_len: u32) -> Chunk {
    let kind = ChunkKind::Pack;
    let place = ChunkPlace {
        kind,
        chunk: 0,
        entry: 0,
        offset: 0,
        raw_len,
    };
    Chunk { place, buffer }
}

fn of_bytes(data: &[u8]) -> Chunk {
    let mut buffer = Buffer::loose(CHUNK_SIZE);
    buffer.set_len(data.len());
    buffer.room()[..data.len()].copy_from_slice(data);
    chunk(buffer, data.len() as u32)
}

#[test]
fn a_record_is_never_longer_than_was_reckoned() {
    let longest = entry(u64::MAX, &[b'n'; 255], SMALL_FILE_MAX);
    let bound = record_bound(&longest);
    let member = MemberRow {
        len: u32::MAX,
        digest: [0xff; 32],
        entry: longest,
    };
    assert!(postcard::to_stdvec(&member).unwrap().len() <= bound);
    const { assert!(MEMBERS_MAX * (RECORD_MAX + 255) + FRAME <= TABLE_MAX) };
}

#[test]
fn a_planned_pack_stays_within_a_chunk_and_leaves_room_to_grow() {
    let mut plan = PackPlan::default();
    let mut buffer = Buffer::loose(CHUNK_SIZE);
    let mut pack = PackWriter::new(&mut buffer, TableForm::Records);
    while plan.fits(255, 700) {
        plan.add(255, 700);
        let mut entry = entry(0, &[b'n'; 255], 700);
        (entry.user, entry.group, entry.extensions) = (vec![], vec![], vec![]);
        assert!(pack.room(&entry).is_some());
        pack.push(entry);
    }
    let grown = entry(0, b"grown", 20 << 10);
    assert!(pack.room(&grown).is_some(), "room to grow");
    pack.push(grown);
    let (raw_len, _) = pack.finish();
    assert!(plan.members > 800 && raw_len as usize <= CHUNK_SIZE + TAILROOM - SPARE);
    assert!(!plan.fits(1, SMALL_FILE_MAX + 1));
}

#[test]
fn no_more_members_are_taken_than_are_read() {
    let mut buffer = Buffer::loose(CHUNK_SIZE);
    let mut pack = PackWriter::new(&mut buffer, TableForm::Records);
    let mut small = entry(0, b"n", 0);
    small.extensions.clear();
    while pack.room(&small).is_some() {
        pack.push(small.clone());
    }
    let (raw_len, digest) = pack.finish();
    let verified = chunk(buffer, raw_len).verify_pack(digest).ok().unwrap();
    assert_eq!(Pack::parse(&verified).unwrap().len(), MEMBERS_MAX);
}

#[test]
fn a_large_pack_takes_what_several_take() {
    let mut buffer = Buffer::loose(LARGE_PACK * CHUNK_SIZE);
    let mut pack = PackWriter::new(&mut buffer, TableForm::Columns);
    let mut taken = 0;
    while pack.room(&common(taken, b"n", 0)).is_some() {
        pack.push(common(taken, b"n", 0));
        taken += 1;
    }
    let (raw_len, digest) = pack.finish();
    let verified = chunk(buffer, raw_len).verify_pack(digest).ok().unwrap();
    assert_eq!(taken as usize, LARGE_PACK * MEMBERS_MAX);
    assert_eq!(Pack::parse(&verified).unwrap().len(), taken as usize);
}

#[test]
fn lengths_that_do_not_add_up_are_no_pack() {
    let (whole, _) = packed(&[b"one".to_vec(), b"three".to_vec()]);
    let data = whole.buffer.data();
    let (contents, table, _) = split(data).unwrap();
    assert_eq!(contents, b"onethree");
    let verify = |contents: &[u8], table: &[u8]| {
        let length = (table.len() as u32).to_le_bytes();
        let data = [contents, table, &length].concat();
        let digest = *blake3::hash(table).as_bytes();
        of_bytes(&data).verify_pack(digest).is_ok()
    };
    assert!(verify(contents, table));
    assert!(!verify(b"onethre", table), "content is missing");
    assert!(!verify(b"onethreee", table), "content is left over");
    assert!(
        !verify(contents, &[table, &[0]].concat()),
        "the table goes on"
    );
    assert!(
        !verify(contents, &table[..table.len() - 1]),
        "the table is cut"
    );
    assert!(!verify(b"", &[0xff; 9]), "a count beyond all bounds");
    assert!(
        !verify(contents, &[&[3], &table[1..]].concat()),
        "a record is missing"
    );
    assert!(verify(b"", &[0]), "an empty pack is a pack");
}

#[test]
fn a_table_by_columns_is_read_as_it_was_written() {
    let contents: Vec<Vec<u8>> = (0..50).map(|nth| vec![nth; nth.into()]).collect();
    for form in [TableForm::Records, TableForm::Columns] {
        let (chunk, digest) = packed_as(form, &contents, common);
        let verified = chunk.verify_pack(digest).ok().unwrap();
        assert_eq!(split(verified.data()).unwrap().2, form);
        for (id, (found, content)) in Pack::parse(&verified).unwrap().enumerate() {
            assert_eq!(found, common(id as u64, b"name", id as u64));
            assert_eq!(content, contents[id]);
        }
    }
}

#[test]
fn a_table_with_too_many_extensions_is_refused() {
    let mut many = common(0, b"name", 0);
    for (count, fits) in [(EXTENSIONS_MAX, true), (EXTENSIONS_MAX + 1, false)] {
        let extension = Extension {
            tag: 5,
            bytes: vec![],
        };
        many.extensions = vec![extension; count];
        for form in [TableForm::Records, TableForm::Columns] {
            let mut buffer = Buffer::loose(CHUNK_SIZE);
            let mut pack = PackWriter::new(&mut buffer, form);
            pack.push(many.clone());
            let (raw_len, digest) = pack.finish();
            let verified = chunk(buffer, raw_len).verify_pack(digest);
            assert_eq!(verified.is_ok(), fits, "{count}, {form:?}");
        }
    }
}

#[test]
fn times_that_no_column_holds_come_in_records() {
    let (chunk, digest) = packed_as(TableForm::Columns, &[b"one".to_vec()], entry);
    let verified = chunk.verify_pack(digest).ok().unwrap();
    assert_eq!(split(verified.data()).unwrap().2, TableForm::Records);
    let (found, _) = Pack::parse(&verified).unwrap().next().unwrap();
    assert_eq!(found, entry(0, b"name", 3));
}

/// Digests, which no codec compresses, once made 20,000 files a tenth larger on the wire.
#[test]
fn a_table_by_columns_has_few_bytes_that_do_not_shrink() {
    let contents: Vec<Vec<u8>> = (0..1000u64).map(|nth| nth.to_le_bytes().into()).collect();
    let [records, columns] = [TableForm::Records, TableForm::Columns].map(|form| {
        let (chunk, _) = packed_as(form, &contents, common);
        zstd::bulk::compress(chunk.buffer.data(), 19).unwrap().len()
    });
    assert!(columns + 32_000 < records, "{columns}, {records}");
}

proptest! {
    #[test]
    fn what_is_packed_comes_out_again(
        contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 0..20)
    ) {
        let (chunk, digest) = packed(&contents);
        let verified = chunk.verify_pack(digest).ok().unwrap();
        let pack = Pack::parse(&verified).unwrap();
        prop_assert_eq!(pack.len(), contents.len());
        for (id, (entry, content)) in pack.enumerate() {
            prop_assert_eq!(entry.id, id as u64);
            prop_assert_eq!(content, &contents[id][..]);
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_no_pack(
        at in any::<prop::sample::Index>(), bit in 0u8..8, by_columns in any::<bool>()
    ) {
        let form = if by_columns { TableForm::Columns } else { TableForm::Records };
        let contents = [b"one".to_vec(), vec![], vec![7; 1000]];
        let (mut chunk, digest) = packed_as(form, &contents, common);
        let at = at.index(chunk.buffer.len());
        chunk.buffer.room()[at] ^= 1u8 << bit;
        prop_assert!(chunk.verify_pack(digest).is_err());
    }

    #[test]
    fn garbage_with_a_good_digest_is_refused_in_peace(
        contents in prop::collection::vec(any::<u8>(), 0..50),
        count in 0u8..4,
        records in prop::collection::vec(any::<u8>(), 0..400),
        length in prop::option::of(any::<u32>()),
        form in prop::sample::select(&[0, BY_COLUMNS]),
    ) {
        let table = [&[count], &records[..]].concat();
        let length = length.unwrap_or(table.len() as u32 | form).to_le_bytes();
        let data = [&contents[..], &table, &length].concat();
        let digest = *blake3::hash(&table).as_bytes();
        if let Ok(verified) = of_bytes(&data).verify_pack(digest) {
            Pack::parse(&verified).unwrap();
        }
    }

    #[test]
    fn damaged_columns_with_a_good_digest_are_refused_in_peace(
        at in any::<prop::sample::Index>(), byte in any::<u8>()
    ) {
        let contents = [b"one".to_vec(), b"two".to_vec()];
        let (mut chunk, _) = packed_as(TableForm::Columns, &contents, common);
        let at = at.index(chunk.buffer.len());
        chunk.buffer.room()[at] = byte;
        let digests = contents.map(|content| *blake3::hash(&content).as_bytes());
        let digest = match split(chunk.buffer.data()) {
            Ok((_, table, _)) => columns::digest(table, digests.iter()),
            Err(NotAPack) => [0; 32],
        };
        if let Ok(verified) = chunk.verify_pack(digest) {
            for (entry, content) in Pack::parse(&verified).unwrap() {
                prop_assert_eq!(entry.size, content.len() as u64);
            }
        }
    }

    #[test]
    fn a_damaged_table_with_a_good_digest_is_refused_in_peace(
        at in any::<prop::sample::Index>(), byte in any::<u8>()
    ) {
        let (mut chunk, _) = packed(&[b"one".to_vec(), b"two".to_vec()]);
        let at = at.index(chunk.buffer.len());
        chunk.buffer.room()[at] = byte;
        let digest = match split(chunk.buffer.data()) {
            Ok((_, table, _)) => *blake3::hash(table).as_bytes(),
            Err(NotAPack) => [0; 32],
        };
        if let Ok(verified) = chunk.verify_pack(digest) {
            for (entry, content) in Pack::parse(&verified).unwrap() {
                prop_assert_eq!(entry.size, content.len() as u64);
            }
        }
    }
}
