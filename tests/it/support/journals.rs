//! Journals that copies have left, changed for a test.

use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fastcp::journal::record::{ChecksumKey, JournalSession, LEN, Record, RecordBody};

/// Ranges of bytes that it records as written, in the order of their writing.
pub fn recorded(path: &Path) -> Vec<Range<u64>> {
    let content = std::fs::read(path).expect("read the journal");
    let (records, _) = content.as_chunks::<LEN>();
    // It is empty for a moment.
    let Some(key) = records.first().and_then(|header| key(path, header)) else {
        return Vec::new();
    };
    let bodies = records
        .iter()
        .filter_map(|record| RecordBody::decode(record, &key));
    let chunks = bodies.filter_map(|body| match body {
        RecordBody::Chunk(_, chunk) => Some(chunk.offset..chunk.offset + chunk.len),
        _ => None,
    });
    chunks.collect()
}

/// Makes its first session one of before the machine was started.
pub fn age_by_a_boot(path: &Path) {
    change(path, |session| session.boot_id = [1; 16]);
}

/// Makes its first session one of a fastcp that cut files into chunks of another size.
pub fn cut_otherwise(path: &Path) {
    change(path, |session| session.chunk_size /= 2);
}

/// The key of a journal that begins with `header`, by the key of the user whose home is the case's.
pub fn key(path: &Path, header: &Record) -> Option<ChecksumKey> {
    let in_home = |above: &Path| std::fs::read(above.join("home/.local/state/fastcp/key")).ok();
    let user = path.ancestors().find_map(in_home)?;
    ChecksumKey::read(header, &user.try_into().ok()?)
}

fn change(path: &Path, how: impl FnOnce(&mut JournalSession)) {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.expect("open the journal");
    let mut record = [0; LEN];
    file.read_exact_at(&mut record, 0).expect("read the header");
    let key = key(path, &record).expect("a journal");
    let at = LEN as u64;
    file.read_exact_at(&mut record, at)
        .expect("read the session");
    let Some(RecordBody::Session(mut session)) = RecordBody::decode(&record, &key) else {
        panic!("it begins with a session");
    };
    how(&mut session);
    let record = RecordBody::Session(session).encode(&key);
    file.write_all_at(&record, at).expect("write the session");
}
