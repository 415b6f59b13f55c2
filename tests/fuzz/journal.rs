//! A journal with any content: whole records in any order, and bytes that are no records.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use fastcp::dir::{Dir, Handles};
use fastcp::journal::record::{ChecksumKey, Hash, LEN, RecordBody};
use fastcp::journal::{Journal, JournalPlace, Opening, WaitForLock};

/// A record's checksum follows these bytes, which it covers.
const CHECKED: usize = LEN - 8;

/// The first byte decides whether the checksums are made correct, so that the records are read too.
pub(crate) fn journal(data: &[u8]) {
    let Some((&whole, bytes)) = data.split_first() else {
        return;
    };
    let (header, key) = ChecksumKey::header([5; 16], &[6; 32]);
    let mut written = header.to_vec();
    let mut paths: Vec<Hash> = Vec::new();
    for piece in bytes.chunks(LEN) {
        let mut record = [0; LEN];
        record[..piece.len()].copy_from_slice(piece);
        if whole & 1 == 0 {
            let sum = blake3::keyed_hash(blake3::hash(&header).as_bytes(), &record[..CHECKED]);
            record[CHECKED..].copy_from_slice(&sum.as_bytes()[..8]);
        }
        if let Some(body) = RecordBody::decode(&record, &key) {
            let again = RecordBody::decode(&body.encode(&key), &key).expect("our own record");
            assert_eq!(again.encode(&key), body.encode(&key));
        }
        paths.push(record[8..24].try_into().expect("16 bytes"));
        written.extend_from_slice(&record[..piece.len().max(usize::from(whole & 2) * LEN / 2)]);
    }
    read_back(&written, &paths);
}

fn read_back(written: &[u8], paths: &[Hash]) {
    let temp = tempfile::tempdir().expect("a directory");
    let dir: Arc<Dir> = Dir::root(temp.path(), &Arc::new(Handles::default())).expect("it is there");
    let place = JournalPlace::new(dir, [&b"name"[..]].into_iter());
    let file = temp.path().join(&place.name);
    std::fs::write(&file, written).expect("write a journal");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).expect("set a mode");
    place.holds_copy_of(&[[0; 16]], &[6; 32]);
    place.find(&[6; 32]);
    let opening = Opening {
        user: [6; 32],
        owner: [0; 16],
        own_only: false,
        is_user_lasting: true,
        session: [1; 16],
        roots: [2; 16],
        chunk_size: 1 << 20,
        afresh: false,
    };
    let waiting = WaitForLock {
        owner: [0; 16],
        before: &[],
        path: Path::new("name"),
        is_ending: &|| false,
        tell: &|_| {},
    };
    let journal = Journal::open(place, &opening, &waiting);
    let Ok(Some(journal)) = journal else {
        return;
    };
    journal.begun_bytes();
    for path in paths {
        journal.knows(path);
        journal.finished_before(path, 1);
        journal.directory_before(path);
        if let Some(begun) = journal.take_begun(path) {
            let mut chunks = 0;
            journal.replay(&begun, |_| {
                chunks += 1;
                ControlFlow::Continue(())
            });
            assert!(chunks >= begun.chunks.min(1));
        }
    }
    let _ = journal.remove();
}
