//! The records of a journal, byte by byte, and damaged ones.

use super::*;

fn bodies() -> Vec<RecordBody> {
    let inode = Inode {
        dev: 1,
        ino: 2,
        birth: Timestamp { s: -3, ns: 4 },
    };
    let session = JournalSession {
        boot_id: [1; 16],
        id: [2; 16],
        dev: 3,
        mount: 4,
        pid: 5,
        uid: 6,
        started: 7,
        roots: [8; 16],
        chunk_size: 1 << 20,
        starts_again: false,
    };
    let file = BegunFile {
        path: [1; 16],
        identity: [2; 16],
        size: 3,
        inode,
        young: true,
        inplace: true,
    };
    let chunk = WrittenRange {
        offset: 1 << 40,
        len: 1 << 20,
        digest: Some([9; 32]),
    };
    let finished = Finished {
        path: [1; 16],
        identity: [2; 16],
        placed: [3; 16],
        digest: Some([4; 32]),
        young: false,
    };
    vec![
        RecordBody::Session(session),
        RecordBody::Session(JournalSession {
            starts_again: true,
            ..session
        }),
        RecordBody::File(7, file),
        RecordBody::Chunk(7, chunk),
        RecordBody::Chunk(
            8,
            WrittenRange {
                digest: None,
                ..chunk
            },
        ),
        RecordBody::Finished(finished),
        RecordBody::Finished(Finished {
            digest: None,
            young: true,
            ..finished
        }),
        RecordBody::Synced(96 * 5),
        RecordBody::Directory(MadeDirectory {
            path: [5; 16],
            made: true,
            restore: None,
        }),
        RecordBody::Directory(MadeDirectory {
            path: [5; 16],
            made: false,
            restore: Some(0o555),
        }),
        RecordBody::Checked {
            number: 7,
            start: 5,
            end: 1 << 40,
        },
        RecordBody::Dropped(7),
        RecordBody::Owner([6; 16]),
        RecordBody::Doubted,
    ]
}

#[test]
fn every_record_comes_back_and_a_bent_one_does_not() {
    let user = [7; 32];
    let (header, key) = ChecksumKey::header([3; 16], &user);
    assert!(ChecksumKey::read(&header, &user).is_some());
    assert!(
        ChecksumKey::read(&header, &[8; 32]).is_none(),
        "of another user"
    );
    let (_, other) = ChecksumKey::header([4; 16], &user);
    let (_, stranger) = ChecksumKey::header([3; 16], &[8; 32]);
    for body in bodies() {
        let record = body.encode(&key);
        assert_eq!(RecordBody::decode(&record, &key), Some(body));
        assert_eq!(
            RecordBody::decode(&record, &other),
            None,
            "of another journal"
        );
        assert_eq!(
            RecordBody::decode(&record, &stranger),
            None,
            "of another user"
        );
        for at in 0..LEN {
            let mut bent = record;
            bent[at] ^= 1;
            assert_eq!(RecordBody::decode(&bent, &key), None, "byte {at}");
        }
    }
    for at in 0..LEN {
        let mut bent = header;
        bent[at] ^= 0x20;
        assert!(ChecksumKey::read(&bent, &user).is_none(), "byte {at}");
    }
}

#[test]
fn the_bytes_of_a_journal_are_these() {
    let (header, key) = ChecksumKey::header([0xab; 16], &[7; 32]);
    assert_eq!(&header[..16], b"fastcp journal 2");
    assert_eq!(header[16..32], [0xab; 16]);
    assert_eq!(header[32..88], [0; 56]);
    let record = RecordBody::Chunk(
        0x0102_0304,
        WrittenRange {
            offset: 0x1000_0000,
            len: 0x10_0000,
            digest: Some([0xcd; 32]),
        },
    );
    let record = record.encode(&key);
    assert_eq!(record[..8], [3, 0, 0, 0, 4, 3, 2, 1]);
    assert_eq!(
        record[8..24],
        [0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0]
    );
    assert_eq!(record[24..56], [0xcd; 32]);
    assert_eq!(record[56..88], [0; 32]);
    let all: Vec<u8> = bodies().iter().flat_map(|body| body.encode(&key)).collect();
    let hash = blake3::hash(&[&header[..], &all].concat());
    assert_eq!(
        &hash.to_hex()[..16],
        "9225f8a2a65e99b1",
        "a change of the format"
    );
}
